//! The text of a name: declarations, and what is made of them.

use super::{DEEPEST, Kind, LONGEST, MOST_STEPS, Modules, NodeId, Tree};

/// A context that is to be written behind its member, as in `closure #1 in main.run()`.
pub(super) type Behind = Option<NodeId>;

/// The text of a tree; `None` if it is too long, or its nodes do not fit together.
pub(super) fn of(tree: &Tree, root: NodeId, modules: Modules) -> Option<String> {
    let mut text = Text {
        tree,
        out: String::new(),
        modules,
        says_specialized: false,
        steps: 0,
        depth: 0,
    };
    text.all(root)?;
    (1..=LONGEST).contains(&text.out.len()).then_some(text.out)
}

pub(super) struct Text<'a> {
    pub(super) tree: &'a Tree,
    pub(super) out: String,
    modules: Modules,
    says_specialized: bool,
    steps: usize,
    depth: usize,
}

/// How an entity's name is made.
#[derive(Clone, Copy, Default)]
struct Naming {
    /// The second child is the name.
    is_named: bool,
    /// A name instead of it.
    fixed: &'static str,
    /// What is added: `getter`, `closure #`. It comes before the context if it has a space.
    extra: &'static str,
    number: Option<usize>,
    has_parameters: bool,
    has_type: bool,
}

impl Text<'_> {
    /// What comes behind the longest text is dropped, and with it the name.
    pub(super) fn put(&mut self, text: &str) {
        if self.out.len() <= LONGEST {
            self.out.push_str(text);
        }
    }

    /// `None`: the name has too many parts, or is too long.
    pub(super) fn count(&mut self, steps: usize) -> Option<()> {
        self.steps += steps;
        (self.steps <= MOST_STEPS && self.out.len() <= LONGEST).then_some(())
    }

    pub(super) fn child(&self, node: NodeId, index: usize) -> Option<NodeId> {
        self.tree.child(node, index)
    }

    pub(super) fn kind(&self, node: NodeId) -> Kind {
        self.tree.node(node).kind
    }

    /// A node with all of its contexts.
    pub(super) fn all(&mut self, node: NodeId) -> Option<()> {
        self.write(node, false).map(drop)
    }

    pub(super) fn first(&mut self, node: NodeId) -> Option<()> {
        let child = self.child(node, 0)?;
        self.all(child)
    }

    pub(super) fn second(&mut self, node: NodeId) -> Option<()> {
        let child = self.child(node, 1)?;
        self.all(child)
    }

    pub(super) fn children(&mut self, node: NodeId, between: &str) -> Option<()> {
        for (index, child) in self.tree.node(node).children.iter().enumerate() {
            if index > 0 {
                self.put(between);
            }
            self.all(*child)?;
        }
        Some(())
    }

    /// Writes a node. As a prefix it may leave its own context to the caller, which writes it behind.
    pub(super) fn write(&mut self, node: NodeId, is_prefix: bool) -> Option<Behind> {
        self.count(1)?;
        self.depth += 1;
        (self.depth <= DEEPEST).then_some(())?;
        let behind = self.declaration(node, is_prefix)?;
        self.depth -= 1;
        Some(behind)
    }

    fn declaration(&mut self, node: NodeId, is_prefix: bool) -> Option<Behind> {
        let named = Naming {
            is_named: true,
            ..Naming::default()
        };
        let naming = match self.kind(node) {
            Kind::Class
            | Kind::Structure
            | Kind::Enum
            | Kind::Protocol
            | Kind::Alias
            | Kind::OtherNominal => named,
            Kind::Variable => Naming {
                has_type: true,
                ..named
            },
            Kind::Function | Kind::BoundFunction => Naming {
                has_parameters: true,
                has_type: true,
                ..named
            },
            Kind::Subscript => subscript(true),
            Kind::Closure(extra) => Naming {
                extra,
                number: Some(self.number_of(node)? + 1),
                ..Naming::default()
            },
            Kind::DefaultArgument => Naming {
                extra: "default argument ",
                number: Some(self.number_of(node)?),
                ..Naming::default()
            },
            Kind::Member(extra) => Naming {
                extra,
                ..Naming::default()
            },
            Kind::Deallocator(of_class) => Naming {
                extra: if self.is_of_class(node)? {
                    of_class
                } else {
                    "deinit"
                },
                ..Naming::default()
            },
            Kind::Allocator => Naming {
                extra: if self.is_of_class(node)? {
                    "__allocating_init"
                } else {
                    "init"
                },
                has_parameters: true,
                has_type: true,
                ..Naming::default()
            },
            Kind::Constructor => Naming {
                extra: "init",
                has_parameters: true,
                has_type: true,
                ..Naming::default()
            },
            Kind::Accessor(extra) => {
                let storage = self.child(node, 0)?;
                let naming = match self.kind(storage) {
                    Kind::Variable => Naming {
                        has_type: true,
                        ..named
                    },
                    Kind::Subscript => subscript(false),
                    _ => return None,
                };
                return self.entity(storage, is_prefix, Naming { extra, ..naming });
            }
            _ => {
                self.other(node)?;
                return Some(None);
            }
        };
        self.entity(node, is_prefix, naming)
    }

    fn number_of(&self, node: NodeId) -> Option<usize> {
        let number = self.child(node, 1)?;
        Some(self.tree.node(number).number)
    }

    fn is_of_class(&self, node: NodeId) -> Option<bool> {
        let context = self.child(node, 0)?;
        Some(self.kind(context) == Kind::Class)
    }

    /// `context.name.extra(labels:)`, or `extra #1 in context`.
    fn entity(&mut self, node: NodeId, is_prefix: bool, naming: Naming) -> Option<Behind> {
        let (entity, arguments) = match self.kind(node) {
            Kind::BoundFunction => (self.child(node, 0)?, self.child(node, 1)),
            _ => (node, None),
        };
        let name = naming.is_named.then(|| self.child(entity, 1)).flatten();
        let is_local = name.is_some_and(|it| self.kind(it) == Kind::LocalName);
        let has_words = naming.extra.contains(' ') || is_local;
        if is_prefix && (naming.has_type || has_words) {
            return Some(Some(entity));
        }
        let context = self.child(entity, 0)?;
        let mut behind = None;
        if has_words {
            behind = Some(context);
        } else {
            let before = self.out.len();
            behind = self.write(context, true)?.or(behind);
            if self.out.len() > before {
                self.put(".");
            }
        }
        self.name(name, naming, has_words)?;
        if naming.has_parameters {
            self.parameters(entity, arguments, has_words)?;
        }
        if is_prefix {
            return Some(behind);
        }
        if let Some(context) = behind {
            let is_of = self.kind(entity) == Kind::DefaultArgument
                || matches!(self.kind(entity), Kind::Member(words) if words.contains(' '));
            self.put(if is_of { " of " } else { " in " });
            self.all(context)?;
        }
        Some(None)
    }

    fn name(&mut self, name: Option<NodeId>, mut naming: Naming, has_words: bool) -> Option<()> {
        if naming.is_named || !naming.fixed.is_empty() {
            if has_words && !naming.extra.is_empty() {
                self.extra(naming);
                self.put(" of ");
                naming.extra = "";
            }
            let before = self.out.len();
            if naming.fixed.is_empty() {
                self.all(name?)?;
            } else {
                self.put(naming.fixed);
            }
            if self.out.len() > before && !naming.extra.is_empty() {
                self.put(".");
            }
        }
        self.extra(naming);
        Some(())
    }

    fn extra(&mut self, naming: Naming) {
        self.put(naming.extra);
        if let (false, Some(number)) = (naming.extra.is_empty(), naming.number) {
            self.put(&number.to_string());
        }
    }

    /// The signature and the labels of a function.
    fn parameters(
        &mut self,
        entity: NodeId,
        arguments: Option<NodeId>,
        has_words: bool,
    ) -> Option<()> {
        let of_type = self.tree.child_of_kind(entity, Kind::Type)?;
        let mut function = self.child(of_type, 0)?;
        let mut innermost = function;
        while self.kind(innermost) == Kind::GenericType {
            innermost = self.tree.without_type(self.child(innermost, 1)?);
        }
        if !matches!(
            self.kind(innermost),
            Kind::FunctionType("" | "@convention(c) " | "@convention(thin) ")
        ) {
            // A type that the text does not have.
            return Some(());
        }
        if has_words {
            self.put(" ");
        }
        if let Some(arguments) = arguments {
            self.put("<");
            self.children(arguments, ", ")?;
            self.put(">");
        }
        let labels = self.tree.child_of_kind(entity, Kind::LabelList);
        if self.kind(function) == Kind::GenericType {
            if arguments.is_none() {
                self.first(function)?;
            }
            function = self.tree.without_type(self.child(function, 1)?);
        }
        self.labels_of_function(function, labels)
    }

    /// What is written for other nodes than declarations.
    fn other(&mut self, node: NodeId) -> Option<()> {
        let tree = self.tree;
        let data = tree.node(node);
        match data.kind {
            Kind::Global => return self.children(node, ""),
            Kind::AnonymousContext | Kind::LabelList => {}
            Kind::Identifier => self.put(&data.text),
            Kind::Module => {
                if self.modules == Modules::Shown {
                    self.put(&data.text);
                }
            }
            Kind::Operator(position) => {
                self.put(&data.text);
                self.put(position);
            }
            Kind::LocalName => {
                self.second(node)?;
                let number = self.child(node, 0)?;
                self.put(&format!(" #{}", tree.node(number).number + 1));
            }
            Kind::PrivateName => {
                if let Some(name) = self.child(node, 1) {
                    self.all(name)?;
                }
            }
            Kind::RelatedName => {
                self.put(&format!("related decl '{}' for ", data.text));
                self.first(node)?;
            }
            Kind::Extension => {
                self.second(node)?;
                if let Some(signature) = self.child(node, 2) {
                    self.all(signature)?;
                }
            }
            Kind::Static => {
                self.put("static ");
                self.first(node)?;
            }
            Kind::Prefixed(words) => {
                self.put(words);
                self.first(node)?;
            }
            Kind::Joined(before, between) => {
                self.put(before);
                self.first(node)?;
                self.put(between);
                self.second(node)?;
            }
            Kind::JoinedInConformance(words) => {
                self.put(words);
                self.first(node)?;
                self.put(" : ");
                self.second(node)?;
                self.put(" in ");
                let conformance = self.child(node, 2)?;
                self.all(conformance)?;
            }
            Kind::AssociatedConformance(words) => {
                self.put(words);
                self.first(node)?;
                self.put(".");
                self.second(node)?;
                self.put(": ");
                let requirement = self.child(node, 2)?;
                self.all(requirement)?;
            }
            Kind::OnceFunction(words) => {
                self.put(words);
                if self.modules == Modules::Shown {
                    self.first(node)?;
                    self.put(".");
                }
                self.second(node)?;
            }
            Kind::DeclarationList => match data.children[..] {
                [name] => self.all(name)?,
                _ => {
                    self.put("(");
                    self.children(node, ", ")?;
                    self.put(")");
                }
            },
            Kind::Outlined(words) => {
                self.put(words);
                self.children(node, "")?;
            }
            Kind::Derivative(prefix, words) => {
                self.put(prefix);
                self.put(words);
                self.first(node)?;
            }
            Kind::ReabstractionThunk => {
                self.put("thunk for ");
                self.second(node)?;
            }
            Kind::ReabstractionWithSelf => self.reabstraction_with_self(node)?,
            Kind::KeyPathAccessor(words) => {
                self.put(words);
                self.first(node)?;
                self.put(" : ");
                for child in data.children.iter().skip(1) {
                    self.all(*child)?;
                }
            }
            Kind::KeyPathOperator(words) => {
                self.put(words);
                if let Some(signature) = self.child(node, 1) {
                    self.all(signature)?;
                }
                self.put("(");
                let types = self.child(node, 0)?;
                self.children(types, ", ")?;
                self.put(")");
            }
            Kind::Attribute(words) => self.put(words),
            Kind::NumberedAttribute(words) => {
                self.put(&format!("{words}{} of ", data.number));
            }
            Kind::BridgedMethod => {
                self.put(&format!("outlined bridged method ({}) of ", data.text));
            }
            Kind::Specialization => {
                if !self.says_specialized {
                    self.put("specialized ");
                    self.says_specialized = true;
                }
            }
            Kind::PartialApply => {
                self.put("partial apply");
                if !data.children.is_empty() {
                    self.put(" for ");
                    self.children(node, "")?;
                }
            }
            _ => return self.type_text(node),
        }
        Some(())
    }

    fn reabstraction_with_self(&mut self, node: NodeId) -> Option<()> {
        self.put("reabstraction thunk ");
        let children = &self.tree.node(node).children;
        let ([signature, of_self, from, to], has_signature) = match children[..] {
            [signature, of_self, from, to] => ([signature, of_self, from, to], true),
            [of_self, from, to] => ([of_self, of_self, from, to], false),
            _ => return None,
        };
        if has_signature {
            self.all(signature)?;
            self.put(" ");
        }
        for (words, part) in [("from ", to), (" to ", from), (" self ", of_self)] {
            self.put(words);
            self.all(part)?;
        }
        Some(())
    }
}

fn subscript(has_parameters: bool) -> Naming {
    Naming {
        fixed: "subscript",
        has_parameters,
        has_type: true,
        ..Naming::default()
    }
}
