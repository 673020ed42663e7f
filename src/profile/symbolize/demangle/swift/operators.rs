//! The operators of the stack machine, and those that make declarations.

use super::{Kind, Machine, Node, NodeId};

/// How often one operator may push a substitution.
const MOST_REPEATS: usize = 2048;

impl Machine<'_> {
    /// Runs one operator: takes its operands from the stack, and returns what is to be pushed.
    pub(super) fn operator(&mut self) -> Option<NodeId> {
        match self.next()? {
            b'A' => self.multiple_substitutions(),
            b'B' => self.builtin_type(),
            b'C' => self.nominal(Kind::Class),
            b'D' => self.type_mangling(),
            b'E' => self.extension(),
            b'F' => self.plain_function(),
            b'G' => self.bound_generic_type(),
            b'H' => self.conformance_operator(),
            b'I' => self.impl_function_type(),
            b'K' => self.node(Kind::FunctionProperty, vec![]),
            b'L' => self.local_identifier(),
            b'M' => self.metadata(),
            b'N' => self.prefixed_type("type metadata for "),
            b'O' => self.nominal(Kind::Enum),
            b'P' => self.nominal(Kind::Protocol),
            b'Q' => self.archetype(),
            b'R' => self.requirement(),
            b'S' => self.standard_substitution(),
            b'T' => self.thunk_or_specialization(),
            b'V' => self.nominal(Kind::Structure),
            b'W' => self.witness(),
            b'X' => self.special_type(),
            b'Y' => self.type_annotation(),
            b'Z' => {
                let entity = self.pop_if(Kind::is_entity)?;
                self.node(Kind::Static, vec![entity])
            }
            b'a' => self.nominal(Kind::Alias),
            b'c' => self.function_type(""),
            b'd' => self.node(Kind::Variadic, vec![]),
            b'f' => self.function_entity(),
            b'g' => self.retroactive_conformance(),
            b'h' => self.qualified_type("__shared "),
            b'i' => self.subscript(),
            b'l' => self.generic_signature(false),
            b'm' => {
                let instance = self.pop_type()?;
                self.type_of(Kind::Metatype, vec![instance])
            }
            b'n' => self.qualified_type("__owned "),
            b'o' => self.operator_identifier(),
            b'p' => {
                let protocols = self.protocol_list()?;
                self.node(Kind::Type, vec![protocols])
            }
            b'q' => {
                let parameter = self.generic_parameter_index()?;
                self.node(Kind::Type, vec![parameter])
            }
            b'r' => self.generic_signature(true),
            b's' => self.module("Swift"),
            b't' => self.tuple(),
            b'u' => {
                let signature = self.pop_kind(Kind::Signature)?;
                let inner = self.pop_type()?;
                self.type_of(Kind::GenericType, vec![signature, inner])
            }
            b'v' => self.variable(),
            b'w' => self.value_witness(),
            b'x' => {
                let parameter = self.generic_parameter(0, 0)?;
                self.node(Kind::Type, vec![parameter])
            }
            b'y' => self.node(Kind::EmptyList, vec![]),
            b'z' => self.qualified_type("inout "),
            b'_' => self.node(Kind::FirstElement, vec![]),
            b'$' => self.integer_type(),
            _ => {
                self.at -= 1;
                self.identifier()
            }
        }
    }

    fn multiple_substitutions(&mut self) -> Option<NodeId> {
        let mut repeats = None;
        loop {
            match self.next()? {
                letter @ b'a'..=b'z' => {
                    let node = self.substitution(repeats.take(), usize::from(letter - b'a'))?;
                    self.push(node)?;
                }
                letter @ b'A'..=b'Z' => {
                    return self.substitution(repeats, usize::from(letter - b'A'));
                }
                b'_' => {
                    // The number was that of a substitution.
                    let index = repeats.map_or(26, |it: usize| it + 27);
                    return self.substitutions.get(index).copied();
                }
                _ => {
                    self.at -= 1;
                    repeats = Some(self.natural()?);
                }
            }
        }
    }

    /// Pushes a substitution all but once.
    fn substitution(&mut self, repeats: Option<usize>, index: usize) -> Option<NodeId> {
        let node = *self.substitutions.get(index)?;
        self.push_repeats(repeats, node)
    }

    fn push_repeats(&mut self, repeats: Option<usize>, node: NodeId) -> Option<NodeId> {
        let repeats = repeats.unwrap_or(1);
        (repeats <= MOST_REPEATS).then_some(())?;
        for _ in 1..repeats {
            self.push(node)?;
        }
        Some(node)
    }

    fn standard_substitution(&mut self) -> Option<NodeId> {
        match self.peek()? {
            b'o' => {
                self.at += 1;
                self.module("__C")
            }
            b'C' => {
                self.at += 1;
                self.module("__C_Synthesized")
            }
            b'g' => {
                self.at += 1;
                let wrapped = self.pop_type()?;
                let optional = self.swift_type(Kind::Enum, "Optional")?;
                let arguments = self.node(Kind::TypeList, vec![wrapped])?;
                let node = self.type_of(Kind::BoundGeneric, vec![optional, arguments])?;
                self.substitutions.push(node);
                Some(node)
            }
            byte => {
                let repeats = byte.is_ascii_digit().then(|| self.natural());
                let repeats = match repeats {
                    Some(repeats) => Some(repeats?),
                    None => None,
                };
                let is_of_concurrency = self.take(b'c');
                let letter = self.next()?;
                let (kind, name) = standard_type(letter, is_of_concurrency)?;
                let node = self.swift_type(kind, name)?;
                self.push_repeats(repeats, node)
            }
        }
    }

    fn swift_type(&mut self, kind: Kind, name: &'static str) -> Option<NodeId> {
        let module = self.module("Swift")?;
        let name = self.tree.add(Node {
            text: name.into(),
            ..Node::of(Kind::Identifier)
        })?;
        self.type_of(kind, vec![module, name])
    }

    pub(super) fn module(&mut self, name: &'static str) -> Option<NodeId> {
        self.tree.add(Node {
            text: name.into(),
            ..Node::of(Kind::Module)
        })
    }

    pub(super) fn pop_module(&mut self) -> Option<NodeId> {
        let Some(name) = self.pop_kind(Kind::Identifier) else {
            return self.pop_kind(Kind::Module);
        };
        let text = self.tree.node(name).text.clone();
        self.tree.add(Node {
            text,
            ..Node::of(Kind::Module)
        })
    }

    pub(super) fn pop_context(&mut self) -> Option<NodeId> {
        let is_module = |it: &Self| {
            let top = it.stack.last().map(|top| it.kind(*top));
            matches!(top, Some(Kind::Identifier | Kind::Module))
        };
        if is_module(self) {
            return self.pop_module();
        }
        if let Some(node) = self.pop_type() {
            let inner = self.tree.only_child(node)?;
            return self.kind(inner).is_context().then_some(inner);
        }
        self.pop_if(Kind::is_context)
    }

    pub(super) fn nominal(&mut self, kind: Kind) -> Option<NodeId> {
        let name = self.pop_if(Kind::is_declaration_name)?;
        let context = self.pop_context()?;
        let node = self.type_of(kind, vec![context, name])?;
        self.substitutions.push(node);
        Some(node)
    }

    fn extension(&mut self) -> Option<NodeId> {
        let signature = self.pop_kind(Kind::Signature);
        let module = self.pop_module()?;
        let extended = self.pop_nominal_type()?;
        let mut children = vec![module, extended];
        children.extend(signature);
        self.node(Kind::Extension, children)
    }

    fn plain_function(&mut self) -> Option<NodeId> {
        let signature = self.pop_kind(Kind::Signature);
        let mut function = self.function_type("")?;
        let labels = self.parameter_labels(function)?;
        if let Some(signature) = signature {
            function = self.type_of(Kind::GenericType, vec![signature, function])?;
        }
        let name = self.pop_if(Kind::is_declaration_name)?;
        let context = self.pop_context()?;
        let mut children = vec![context, name];
        children.extend(labels);
        children.push(function);
        self.node(Kind::Function, children)
    }

    /// The labels of a function's parameters: `Some(None)` for a function without parameters and for what is none.
    #[expect(clippy::option_option, reason = "no labels, and no name")]
    fn parameter_labels(&mut self, function: NodeId) -> Option<Option<NodeId>> {
        if self.pop_kind(Kind::EmptyList).is_some() {
            return Some(Some(self.node(Kind::LabelList, vec![])?));
        }
        let mut inner = self.tree.without_type(function);
        if self.kind(inner) == Kind::GenericType {
            let of_signature = self.tree.child(inner, 1)?;
            inner = self.tree.without_type(of_signature);
        }
        if !matches!(self.kind(inner), Kind::FunctionType("")) {
            return Some(None);
        }
        let children = &self.tree.node(inner).children;
        let parameters = *children.get(children.len().checked_sub(2)?)?;
        let parameters = self.tree.without_type(parameters);
        let count = match self.kind(parameters) {
            Kind::Tuple => self.tree.node(parameters).children.len(),
            _ => 1,
        };
        if count == 0 {
            return Some(None);
        }
        let mut labels = Vec::new();
        for _ in 0..count {
            let label = self.pop_if(|it| matches!(it, Kind::Identifier | Kind::FirstElement))?;
            labels.push(label);
        }
        labels.reverse();
        let is_labelled = |it: &NodeId| self.kind(*it) == Kind::Identifier;
        if !labels.iter().any(is_labelled) {
            labels.clear();
        }
        Some(Some(self.node(Kind::LabelList, labels)?))
    }

    /// A context, a name, labels if there are, a type.
    fn entity(&mut self, kind: Kind) -> Option<NodeId> {
        let of_type = self.pop_type()?;
        let labels = self.parameter_labels(of_type)?;
        let name = self.pop_if(Kind::is_declaration_name)?;
        let context = self.pop_context()?;
        let mut children = vec![context, name];
        children.extend(labels);
        children.push(of_type);
        self.node(kind, children)
    }

    fn variable(&mut self) -> Option<NodeId> {
        let variable = self.entity(Kind::Variable)?;
        self.accessor(variable)
    }

    fn subscript(&mut self) -> Option<NodeId> {
        let name = self.pop_kind(Kind::PrivateName);
        let of_type = self.pop_type()?;
        let labels = self.parameter_labels(of_type)?;
        let context = self.pop_context()?;
        let mut children = vec![context];
        children.extend(labels);
        children.push(of_type);
        children.extend(name);
        let subscript = self.node(Kind::Subscript, children)?;
        self.accessor(subscript)
    }

    fn accessor(&mut self, storage: NodeId) -> Option<NodeId> {
        let name = match self.next()? {
            b'm' => "materializeForSet",
            b's' => "setter",
            b'g' | b'G' => "getter",
            b'w' => "willset",
            b'W' => "didset",
            b'r' => "read",
            b'M' => "modify",
            b'i' => "init",
            b'a' => match self.next()? {
                b'O' => "owningMutableAddressor",
                b'o' => "nativeOwningMutableAddressor",
                b'P' => "nativePinningMutableAddressor",
                b'u' => "unsafeMutableAddressor",
                _ => return None,
            },
            b'l' => match self.next()? {
                b'O' => "owningAddressor",
                b'o' => "nativeOwningAddressor",
                b'p' => "nativePinningAddressor",
                b'u' => "unsafeAddressor",
                _ => return None,
            },
            // The storage itself.
            b'p' => return Some(storage),
            _ => return None,
        };
        self.node(Kind::Accessor(name), vec![storage])
    }

    fn function_entity(&mut self) -> Option<NodeId> {
        match self.next()? {
            b'D' => self.member(Kind::Deallocator("__deallocating_deinit")),
            b'Z' => self.member(Kind::Deallocator("__isolated_deallocating_deinit")),
            b'd' => self.member(Kind::Member("deinit")),
            b'E' => self.member(Kind::Member("__ivar_destroyer")),
            b'e' => self.member(Kind::Member("__ivar_initializer")),
            b'i' => self.member(Kind::Member("variable initialization expression")),
            b'P' => self.member(Kind::Member("property wrapper backing initializer")),
            b'W' => self.member(Kind::Member("property wrapper init from projected value")),
            b'C' => self.initializer(Kind::Allocator),
            b'c' => self.initializer(Kind::Constructor),
            b'U' => self.closure("closure #"),
            b'u' => self.closure("implicit closure #"),
            b'A' => {
                let number = self.index_node()?;
                let context = self.pop_context()?;
                self.node(Kind::DefaultArgument, vec![context, number])
            }
            _ => None,
        }
    }

    fn member(&mut self, kind: Kind) -> Option<NodeId> {
        let context = self.pop_context()?;
        self.node(kind, vec![context])
    }

    fn closure(&mut self, name: &'static str) -> Option<NodeId> {
        let number = self.index_node()?;
        let of_type = self.pop_type()?;
        let context = self.pop_context()?;
        self.node(Kind::Closure(name), vec![context, number, of_type])
    }

    fn initializer(&mut self, kind: Kind) -> Option<NodeId> {
        let name = self.pop_kind(Kind::PrivateName);
        let of_type = self.pop_type()?;
        let labels = self.parameter_labels(of_type)?;
        let context = self.pop_context()?;
        let mut children = vec![context];
        children.extend(labels);
        children.push(of_type);
        children.extend(name);
        self.node(kind, children)
    }
}

/// The types of the standard library that have a letter, and those of its concurrency.
fn standard_type(letter: u8, is_of_concurrency: bool) -> Option<(Kind, &'static str)> {
    let (structures, protocols): (&[_], &[_]) = if is_of_concurrency {
        (CONCURRENCY_STRUCTURES, CONCURRENCY_PROTOCOLS)
    } else {
        (STRUCTURES, PROTOCOLS)
    };
    let named = |names: &[(u8, &'static str)]| {
        let found = names.iter().find(|it| it.0 == letter);
        found.map(|it| it.1)
    };
    if let Some(name) = named(structures) {
        return Some((Kind::Structure, name));
    }
    if let Some(name) = named(protocols) {
        return Some((Kind::Protocol, name));
    }
    match (letter, is_of_concurrency) {
        (b'q', false) => Some((Kind::Enum, "Optional")),
        (b'M', true) => Some((Kind::Class, "MainActor")),
        _ => None,
    }
}

const STRUCTURES: &[(u8, &str)] = &[
    (b'A', "AutoreleasingUnsafeMutablePointer"),
    (b'a', "Array"),
    (b'b', "Bool"),
    (b'D', "Dictionary"),
    (b'd', "Double"),
    (b'f', "Float"),
    (b'h', "Set"),
    (b'I', "DefaultIndices"),
    (b'i', "Int"),
    (b'J', "Character"),
    (b'N', "ClosedRange"),
    (b'n', "Range"),
    (b'O', "ObjectIdentifier"),
    (b'P', "UnsafePointer"),
    (b'p', "UnsafeMutablePointer"),
    (b'R', "UnsafeBufferPointer"),
    (b'r', "UnsafeMutableBufferPointer"),
    (b'S', "String"),
    (b's', "Substring"),
    (b'u', "UInt"),
    (b'V', "UnsafeRawPointer"),
    (b'v', "UnsafeMutableRawPointer"),
    (b'W', "UnsafeRawBufferPointer"),
    (b'w', "UnsafeMutableRawBufferPointer"),
];

const PROTOCOLS: &[(u8, &str)] = &[
    (b'B', "BinaryFloatingPoint"),
    (b'E', "Encodable"),
    (b'e', "Decodable"),
    (b'F', "FloatingPoint"),
    (b'G', "RandomNumberGenerator"),
    (b'H', "Hashable"),
    (b'j', "Numeric"),
    (b'K', "BidirectionalCollection"),
    (b'k', "RandomAccessCollection"),
    (b'L', "Comparable"),
    (b'l', "Collection"),
    (b'M', "MutableCollection"),
    (b'm', "RangeReplaceableCollection"),
    (b'Q', "Equatable"),
    (b'T', "Sequence"),
    (b't', "IteratorProtocol"),
    (b'U', "UnsignedInteger"),
    (b'X', "RangeExpression"),
    (b'x', "Strideable"),
    (b'Y', "RawRepresentable"),
    (b'y', "StringProtocol"),
    (b'Z', "SignedInteger"),
    (b'z', "BinaryInteger"),
];

const CONCURRENCY_STRUCTURES: &[(u8, &str)] = &[
    (b'C', "CheckedContinuation"),
    (b'c', "UnsafeContinuation"),
    (b'E', "CancellationError"),
    (b'e', "UnownedSerialExecutor"),
    (b'G', "TaskGroup"),
    (b'g', "ThrowingTaskGroup"),
    (b'J', "UnownedJob"),
    (b'P', "TaskPriority"),
    (b'S', "AsyncStream"),
    (b's', "AsyncThrowingStream"),
    (b'T', "Task"),
    (b't', "UnsafeCurrentTask"),
];

const CONCURRENCY_PROTOCOLS: &[(u8, &str)] = &[
    (b'A', "Actor"),
    (b'F', "Executor"),
    (b'f', "SerialExecutor"),
    (b'h', "TaskExecutor"),
    (b'I', "AsyncIteratorProtocol"),
    (b'i', "AsyncSequence"),
];
