//! Generic types, signatures and conformances.

use super::{Kind, Machine, Node, NodeId};

impl Machine<'_> {
    /// Lists of arguments, those of the innermost type first. What conforms to what is left out.
    pub(super) fn generic_arguments(&mut self) -> Option<Vec<Vec<NodeId>>> {
        while self.pop_kind(Kind::Retroactive).is_some() {}
        let mut lists = Vec::new();
        loop {
            let mut types = Vec::new();
            while let Some(node) = self.pop_type() {
                types.push(node);
            }
            types.reverse();
            lists.push(types);
            if self.pop_kind(Kind::EmptyList).is_some() {
                return Some(lists);
            }
            self.pop_kind(Kind::FirstElement)?;
        }
    }

    pub(super) fn bound_generic_type(&mut self) -> Option<NodeId> {
        let lists = self.generic_arguments()?;
        let nominal = self.pop_nominal_type()?;
        let bound = self.bound(nominal, &lists, 0)?;
        let node = self.node(Kind::Type, vec![bound])?;
        self.substitutions.push(node);
        Some(node)
    }

    /// A type with its arguments, and so the types around it.
    fn bound(
        &mut self,
        mut nominal: NodeId,
        lists: &[Vec<NodeId>],
        depth: usize,
    ) -> Option<NodeId> {
        (depth < super::DEEPEST).then_some(())?;
        let (arguments, mut outer) = lists.split_first()?;
        let kind = self.kind(nominal);
        let takes_arguments = !matches!(
            kind,
            Kind::Variable
                | Kind::Subscript
                | Kind::Closure(_)
                | Kind::DefaultArgument
                | Kind::Member(_)
                | Kind::Static
        );
        if !takes_arguments {
            outer = lists;
        }
        let context = self.tree.child(nominal, 0)?;
        if !outer.is_empty() {
            let parent = if self.kind(context) == Kind::Extension {
                let mut children = self.tree.node(context).children.clone();
                let extended = children.get_mut(1)?;
                *extended = self.bound(*extended, outer, depth + 1)?;
                self.node(Kind::Extension, children)?
            } else {
                self.bound(context, outer, depth + 1)?
            };
            let mut children = self.tree.node(nominal).children.clone();
            *children.first_mut()? = parent;
            nominal = self.node(kind, children)?;
        }
        if !takes_arguments || arguments.is_empty() {
            return Some(nominal);
        }
        let arguments = self.node(Kind::TypeList, arguments.clone())?;
        match kind {
            Kind::Function | Kind::Constructor => {
                self.node(Kind::BoundFunction, vec![nominal, arguments])
            }
            _ if kind.is_any_generic() => {
                let node = self.node(Kind::Type, vec![nominal])?;
                let kind = match kind {
                    Kind::Protocol => Kind::BoundProtocol,
                    _ => Kind::BoundGeneric,
                };
                self.node(kind, vec![node, arguments])
            }
            _ => None,
        }
    }

    pub(super) fn opaque_type(&mut self) -> Option<NodeId> {
        let index = self.index_node()?;
        self.generic_arguments()?;
        let name = self.pop()?;
        self.type_of(Kind::OpaqueType, vec![name, index])
    }

    pub(super) fn generic_parameter(&mut self, depth: usize, index: usize) -> Option<NodeId> {
        let name = parameter_name(depth, index);
        self.tree.add(Node {
            text: name.into(),
            ..Node::of(Kind::GenericParameter)
        })
    }

    pub(super) fn generic_parameter_index(&mut self) -> Option<NodeId> {
        if self.take(b'd') {
            let depth = self.index()? + 1;
            let index = self.index()?;
            return self.generic_parameter(depth, index);
        }
        if self.take(b'z') {
            return self.generic_parameter(0, 0);
        }
        if self.take(b's') {
            return self.node(Kind::ConstrainedSelf, vec![]);
        }
        let index = self.index()? + 1;
        self.generic_parameter(0, index)
    }

    pub(super) fn associated_type(&mut self, base: Option<NodeId>) -> Option<NodeId> {
        let name = self.associated_type_name()?;
        let base = match base {
            Some(base) => self.node(Kind::Type, vec![base])?,
            None => self.pop_type()?,
        };
        self.type_of(Kind::DependentMember, vec![base, name])
    }

    pub(super) fn associated_type_path(&mut self, base: Option<NodeId>) -> Option<NodeId> {
        let names = self.pop_marked(Self::associated_type_name)?;
        let mut base = match base {
            Some(base) => self.node(Kind::Type, vec![base])?,
            None => self.pop_type()?,
        };
        for name in names {
            base = self.type_of(Kind::DependentMember, vec![base, name])?;
        }
        Some(base)
    }

    /// Elements until the one that is marked as the first. There is at least one.
    fn pop_marked(
        &mut self,
        element: impl FnMut(&mut Self) -> Option<NodeId>,
    ) -> Option<Vec<NodeId>> {
        let is_empty = self.stack.last().map(|it| self.kind(*it)) == Some(Kind::EmptyList);
        (!is_empty).then(|| self.pop_list(element))?
    }

    pub(super) fn associated_type_name(&mut self) -> Option<NodeId> {
        let protocol = self.pop_type();
        if let Some(protocol) = protocol {
            let inner = self.tree.child(protocol, 0)?;
            (self.kind(inner) == Kind::Protocol).then_some(())?;
        }
        let mut children = vec![self.pop_kind(Kind::Identifier)?];
        children.extend(protocol);
        self.node(Kind::AssociatedTypeName, children)
    }

    pub(super) fn pop_associated_type_path(&mut self) -> Option<NodeId> {
        let names = self.pop_marked(Self::associated_type_name)?;
        self.node(Kind::AssociatedTypePath, names)
    }

    pub(super) fn generic_signature(&mut self, has_counts: bool) -> Option<NodeId> {
        let mut children = Vec::new();
        let mut counts = Vec::new();
        if has_counts {
            while !self.take(b'l') {
                counts.push(if self.take(b'z') {
                    0
                } else {
                    self.index()? + 1
                });
            }
        } else {
            counts.push(1);
        }
        for number in counts {
            children.push(self.tree.add(Node {
                number,
                ..Node::of(Kind::ParameterCount)
            })?);
        }
        let mut requirements = Vec::new();
        while let Some(requirement) = self.pop_if(Kind::is_requirement) {
            requirements.push(requirement);
        }
        requirements.reverse();
        children.extend(requirements);
        self.node(Kind::Signature, children)
    }

    pub(super) fn requirement(&mut self) -> Option<NodeId> {
        let letter = self.peek()?;
        self.at += 1;
        let inverse = match letter {
            b'i' | b'I' | b'j' | b'J' => Some(self.index()?),
            _ => None,
        };
        let subject = match letter {
            b'v' | b'V' | b'b' | b's' | b'l' | b'h' | b'i' => self.subject()?,
            b'c' | b't' | b'm' | b'p' | b'j' => {
                let base = self.generic_parameter_index()?;
                let subject = self.associated_type(Some(base))?;
                self.substitutions.push(subject);
                subject
            }
            b'C' | b'T' | b'M' | b'P' | b'J' => {
                let base = self.generic_parameter_index()?;
                let subject = self.associated_type_path(Some(base))?;
                self.substitutions.push(subject);
                subject
            }
            b'B' | b'S' | b'L' | b'Q' | b'I' => self.pop_type()?,
            _ => {
                self.at -= 1;
                self.subject()?
            }
        };
        let (kind, second) = match letter {
            b'v' => return self.node(Kind::PackMarker, vec![subject]),
            b'V' => (Kind::ValueMarker, self.pop_type()?),
            b'c' | b'C' | b'b' | b'B' => (Kind::Requirement(": "), self.pop_type()?),
            b't' | b'T' | b's' | b'S' => (Kind::Requirement(" == "), self.pop_type()?),
            b'h' => (Kind::Requirement(".shape == "), self.pop_type()?),
            b'm' | b'M' | b'l' | b'L' => (Kind::Requirement(": "), self.layout()?),
            b'i' | b'I' | b'j' | b'J' => {
                let name = match inverse? {
                    0 => "Copyable",
                    1 => "Escapable",
                    _ => return None,
                };
                (Kind::Requirement(": ~Swift."), self.word(name)?)
            }
            _ => (Kind::Requirement(": "), self.protocol()?),
        };
        self.node(kind, vec![subject, second])
    }

    fn subject(&mut self) -> Option<NodeId> {
        let parameter = self.generic_parameter_index()?;
        self.node(Kind::Type, vec![parameter])
    }

    fn word(&mut self, text: &'static str) -> Option<NodeId> {
        self.tree.add(Node {
            text: text.into(),
            ..Node::of(Kind::Identifier)
        })
    }

    /// What the memory of a type is like.
    fn layout(&mut self) -> Option<NodeId> {
        let (name, numbers) = match self.next()? {
            b'U' => ("_UnknownLayout", 0),
            b'R' => ("_RefCountedObject", 0),
            b'N' => ("_NativeRefCountedObject", 0),
            b'C' => ("AnyObject", 0),
            b'D' => ("_NativeClass", 0),
            b'T' => ("_Trivial", 0),
            b'E' => ("_Trivial", 2),
            b'e' => ("_Trivial", 1),
            b'M' => ("_TrivialAtMost", 2),
            b'm' => ("_TrivialAtMost", 1),
            _ => return None,
        };
        for _ in 0..numbers {
            self.index()?;
        }
        self.word(name)
    }

    /// Conformances of arguments, and records for the runtime.
    pub(super) fn conformance_operator(&mut self) -> Option<NodeId> {
        let letter = self.peek()?;
        self.at += 1;
        match letter {
            b'A' => {
                self.conformance_index()?;
                self.protocol()?;
                self.pop_type()?;
            }
            b'C' => {
                self.pop_list(|it| it.pop_kind(Kind::ConformanceRef))?;
                if self.pop_kind(Kind::Conformance).is_none() {
                    self.pop_module()?;
                    self.protocol()?;
                }
                self.pop_type()?;
                return self.node(Kind::ConformanceRef, vec![]);
            }
            b'D' => {
                self.conformance_index()?;
                self.protocol()?;
                self.pop_type()?;
                return self.node(Kind::ConformanceRef, vec![]);
            }
            b'I' => {
                self.conformance_index()?;
                self.protocol()?;
            }
            b'P' | b'p' => {
                self.protocol()?;
                return self.node(Kind::Conformance, vec![]);
            }
            _ => return None,
        }
        self.pop_kind(Kind::ConformanceRef)?;
        self.node(Kind::ConformanceRef, vec![])
    }

    fn conformance_index(&mut self) -> Option<usize> {
        self.index().filter(|it| *it > 0)
    }

    pub(super) fn retroactive_conformance(&mut self) -> Option<NodeId> {
        self.index()?;
        self.pop_kind(Kind::ConformanceRef)?;
        self.node(Kind::Retroactive, vec![])
    }

    /// A type and the protocol to which it conforms. The text has the type only.
    pub(super) fn protocol_conformance(&mut self) -> Option<NodeId> {
        let signature = self.pop_kind(Kind::Signature);
        self.pop_module()?;
        self.protocol()?;
        let mut conforming = self.pop_type()?;
        if let Some(signature) = signature {
            conforming = self.type_of(Kind::GenericType, vec![signature, conforming])?;
        }
        Some(conforming)
    }
}

/// `A` to `Z`, then `AB` and so on; `A1` is that of the next level.
pub(super) fn parameter_name(depth: usize, index: usize) -> String {
    let mut name = String::new();
    let mut left = index;
    loop {
        let letter = u8::try_from(left % 26).unwrap_or(0);
        name.push(char::from(b'A' + letter));
        left /= 26;
        if left == 0 {
            break;
        }
    }
    if depth > 0 {
        name.push_str(&depth.to_string());
    }
    name
}
