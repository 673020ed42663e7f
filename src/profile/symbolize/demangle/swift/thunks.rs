//! Functions and tables that the compiler makes of a declaration or of a type.

use super::{Kind, Machine, Node, NodeId};

impl Machine<'_> {
    pub(super) fn prefixed_type(&mut self, words: &'static str) -> Option<NodeId> {
        let node = self.pop_type()?;
        self.node(Kind::Prefixed(words), vec![node])
    }

    fn prefixed_entity(&mut self, words: &'static str) -> Option<NodeId> {
        let node = self.pop_if(Kind::is_entity)?;
        self.node(Kind::Prefixed(words), vec![node])
    }

    fn prefixed_any(&mut self, words: &'static str) -> Option<NodeId> {
        let node = self.pop()?;
        self.node(Kind::Prefixed(words), vec![node])
    }

    fn prefixed_protocol(&mut self, words: &'static str) -> Option<NodeId> {
        let node = self.protocol()?;
        self.node(Kind::Prefixed(words), vec![node])
    }

    fn prefixed_conformance(&mut self, words: &'static str) -> Option<NodeId> {
        let node = self.protocol_conformance()?;
        self.node(Kind::Prefixed(words), vec![node])
    }

    fn attribute(&mut self, words: &'static str) -> Option<NodeId> {
        self.node(Kind::Attribute(words), vec![])
    }

    pub(super) fn thunk_or_specialization(&mut self) -> Option<NodeId> {
        match self.next()? {
            b'T' => match self.next()? {
                b'I' => self.prefixed_entity("identity thunk of "),
                _ => None,
            },
            b'c' => self.prefixed_entity("curry thunk of "),
            b'j' => self.prefixed_entity("dispatch thunk of "),
            b'q' => self.prefixed_entity("method descriptor for "),
            b'o' => self.attribute("@objc "),
            b'O' => self.attribute("@nonobjc "),
            b'D' => self.attribute("dynamic "),
            b'd' => self.attribute("super "),
            b'u' => self.attribute("async function pointer to "),
            // These run, or are, the function itself.
            b'E' | b'F' | b'm' | b'X' | b'x' | b'I' => self.attribute(""),
            b'Y' | b'Q' => {
                self.index()?;
                self.attribute("")
            }
            b'a' | b'A' => self.node(Kind::PartialApply, vec![]),
            b'C' => self.prefixed_type("coroutine continuation prototype for "),
            b'V' => {
                let base = self.pop_if(Kind::is_entity)?;
                let derived = self.pop_if(Kind::is_entity)?;
                let kind = Kind::Joined("vtable thunk for ", " dispatching to ");
                self.node(kind, vec![base, derived])
            }
            b'W' => {
                let entity = self.pop_if(Kind::is_entity)?;
                let conformance = self.protocol_conformance()?;
                let kind = Kind::Joined("protocol witness for ", " in conformance ");
                self.node(kind, vec![entity, conformance])
            }
            b'S' => self.prefixed_entity("protocol self-conformance witness for "),
            b'R' | b'r' => {
                self.pop_kind(Kind::Signature);
                let from = self.pop_type()?;
                let to = self.pop_type()?;
                self.node(Kind::ReabstractionThunk, vec![from, to])
            }
            b'y' => {
                let mut children: Vec<_> = self.pop_kind(Kind::Signature).into_iter().collect();
                for _ in ["self", "from", "to"] {
                    children.push(self.pop_type()?);
                }
                self.node(Kind::ReabstractionWithSelf, children)
            }
            b'U' => {
                let actor = self.pop_type()?;
                let thunk = self.pop()?;
                let kind = Kind::Joined("", " with global actor constraint ");
                self.node(kind, vec![thunk, actor])
            }
            b'g' | b'G' | b'B' | b's' | b'i' => self.generic_specialization(),
            b't' => self.specialization_without_arguments(),
            b'p' | b'P' => self.partial_specialization(),
            b'f' => self.function_specialization(),
            b'K' => self.key_path_accessor("key path getter for "),
            b'k' => self.key_path_accessor("key path setter for "),
            b'H' => self.key_path_operator("key path index equality operator for "),
            b'h' => self.key_path_operator("key path index hash operator for "),
            b'J' => self.derivative(),
            b'l' => {
                let name = self.associated_type_name()?;
                self.node(
                    Kind::Prefixed("associated type descriptor for "),
                    vec![name],
                )
            }
            b'L' => self.prefixed_protocol("protocol requirements base descriptor for "),
            b'M' => {
                let name = self.associated_type_name()?;
                let kind = Kind::Prefixed("default associated type metadata accessor for ");
                self.node(kind, vec![name])
            }
            b'n' => self.associated_conformance("associated conformance descriptor for "),
            b'N' => self.associated_conformance("default associated conformance accessor for "),
            b'b' => {
                let requirement = self.protocol()?;
                let protocol = self.pop_type()?;
                let kind = Kind::Joined("base conformance descriptor for ", ": ");
                self.node(kind, vec![protocol, requirement])
            }
            b'v' => {
                let number = self.index()?;
                let words = match self.take(b'r') {
                    true => "outlined read-only object #",
                    false => "outlined variable #",
                };
                self.tree.add(Node {
                    number,
                    ..Node::of(Kind::NumberedAttribute(words))
                })
            }
            b'e' => self.bridged_method(),
            b'w' => match self.next()? {
                b'b' => self.attribute(""),
                b'B' => self.attribute("back deployment fallback for "),
                b'c' => self.attribute("coro function pointer to "),
                b'd' => self.attribute("default override of "),
                b'S' => self.attribute("#_hasSymbol query for "),
                _ => None,
            },
            _ => None,
        }
    }

    /// A derivative of all that is on the stack, which a signature may follow.
    fn derivative(&mut self) -> Option<NodeId> {
        let mut letter = self.next()?;
        let prefix = match letter {
            b'V' => {
                letter = self.next()?;
                "vtable thunk for "
            }
            _ => "",
        };
        let words = match letter {
            b'f' => "forward-mode derivative of ",
            b'r' => "reverse-mode derivative of ",
            b'd' => "differential of ",
            b'p' => "pullback of ",
            _ => return None,
        };
        for end in [b'p', b'r'] {
            let start = self.at;
            while matches!(self.peek(), Some(b'S' | b'U')) {
                self.at += 1;
            }
            (self.at > start && self.take(end)).then_some(())?;
        }
        self.pop_kind(Kind::Signature);
        let of = std::mem::take(&mut self.stack);
        let of = self.node(Kind::Global, of)?;
        self.node(Kind::Derivative(prefix, words), vec![of])
    }

    fn bridged_method(&mut self) -> Option<NodeId> {
        let start = self.at;
        matches!(self.next()?, b'o' | b'p' | b'a' | b'm').then_some(())?;
        while !self.take(b'_') {
            matches!(self.next()?, b'n' | b'b' | b'g').then_some(())?;
        }
        let text = self.name.get(start..self.at - 1)?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        self.tree.add(Node {
            text: text.into(),
            ..Node::of(Kind::BridgedMethod)
        })
    }

    /// A declaration, a signature if it is generic, types.
    fn key_path_accessor(&mut self, words: &'static str) -> Option<NodeId> {
        self.take(b'q');
        let mut types = vec![self.pop_type()?];
        while let Some(node) = self.pop_type() {
            types.push(node);
        }
        let signature = self.pop_kind(Kind::Signature);
        let mut children = vec![self.pop()?];
        children.extend(signature);
        children.extend(types.into_iter().rev());
        self.node(Kind::KeyPathAccessor(words), children)
    }

    fn key_path_operator(&mut self, words: &'static str) -> Option<NodeId> {
        self.take(b'q');
        let signature = self.pop_kind(Kind::Signature);
        let mut types = Vec::new();
        while let Some(node) = self.pop_type() {
            types.push(node);
        }
        self.stack.is_empty().then_some(())?;
        types.reverse();
        let types = self.node(Kind::TypeList, types)?;
        let mut children = vec![types];
        children.extend(signature);
        self.node(Kind::KeyPathOperator(words), children)
    }

    fn associated_conformance(&mut self, words: &'static str) -> Option<NodeId> {
        let requirement = self.protocol()?;
        let path = self.pop_associated_type_path()?;
        let protocol = self.pop_type()?;
        self.node(
            Kind::AssociatedConformance(words),
            vec![protocol, path, requirement],
        )
    }

    pub(super) fn metadata(&mut self) -> Option<NodeId> {
        match self.next()? {
            b'a' => self.prefixed_type("type metadata accessor for "),
            b'A' => self.prefixed_conformance("reflection metadata associated type descriptor "),
            b'b' => self.prefixed_type("canonical specialized generic type metadata accessor for "),
            b'B' => self.prefixed_type("reflection metadata builtin descriptor "),
            b'c' => self.prefixed_conformance("protocol conformance descriptor for "),
            b'C' => self.prefixed_type("reflection metadata superclass descriptor "),
            b'D' => self.prefixed_type("demangling cache variable for type metadata for "),
            b'f' => self.prefixed_type("full type metadata for "),
            b'F' => self.prefixed_type("reflection metadata field descriptor "),
            b'g' => self.prefixed_any("opaque type descriptor accessor for "),
            b'h' => self.prefixed_any("opaque type descriptor accessor impl for "),
            b'i' => self.prefixed_type("type metadata instantiation function for "),
            b'I' => self.prefixed_type("type metadata instantiation cache for "),
            b'j' => self.prefixed_any("opaque type descriptor accessor key for "),
            b'J' => self.prefixed_any(
                "cache variable for noncanonical specialized generic type metadata for ",
            ),
            b'k' => self.prefixed_any("opaque type descriptor accessor var for "),
            b'K' => self.prefixed_any("metadata instantiation cache for "),
            b'l' => self.prefixed_type("type metadata singleton initialization cache for "),
            b'L' => self.prefixed_type("lazy cache variable for type metadata for "),
            b'm' => self.prefixed_type("metaclass for "),
            b'M' => self.prefixed_type("specialized generic metaclass for "),
            b'n' => self.prefixed_type("nominal type descriptor for "),
            b'N' => self.prefixed_type("noncanonical specialized generic type metadata for "),
            b'o' => self.prefixed_type("class metadata base offset for "),
            b'p' => self.prefixed_protocol("protocol descriptor for "),
            b'P' => self.prefixed_type("generic type metadata pattern for "),
            b'q' => self.prefixed_any("uniquable "),
            b'Q' => self.prefixed_any("opaque type descriptor for "),
            b'r' => self.prefixed_type("type metadata completion function for "),
            b's' => self.prefixed_type("ObjC resilient class stub for "),
            b'S' => self.prefixed_protocol("protocol self-conformance descriptor for "),
            b't' => self.prefixed_type("full ObjC resilient class stub for "),
            b'u' => self.prefixed_type("method lookup function for "),
            b'U' => self.prefixed_type("ObjC metadata update function for "),
            b'V' => self.prefixed_entity("property descriptor for "),
            b'X' => match self.next()? {
                b'E' => self.prefixed_context("extension descriptor "),
                b'M' => {
                    let module = self.pop_module()?;
                    self.node(Kind::Prefixed("module descriptor "), vec![module])
                }
                b'X' => self.prefixed_context("anonymous descriptor "),
                b'Y' => {
                    self.pop()?;
                    self.prefixed_context("anonymous descriptor ")
                }
                _ => None,
            },
            b'z' => self.prefixed_type(
                "flag for loading of canonical specialized generic type metadata for ",
            ),
            _ => None,
        }
    }

    fn prefixed_context(&mut self, words: &'static str) -> Option<NodeId> {
        let context = self.pop_context()?;
        self.node(Kind::Prefixed(words), vec![context])
    }

    pub(super) fn witness(&mut self) -> Option<NodeId> {
        match self.next()? {
            b'C' => self.prefixed_entity("enum case for "),
            b'V' => self.prefixed_type("value witness table for "),
            b'v' => match self.next()? {
                b'd' => self.prefixed_entity("direct field offset for "),
                b'i' => self.prefixed_entity("indirect field offset for "),
                _ => None,
            },
            b'S' => self.prefixed_protocol("protocol self-conformance witness table for "),
            b'P' => self.prefixed_conformance("protocol witness table for "),
            b'p' => self.prefixed_conformance("protocol witness table pattern for "),
            b'G' => self.prefixed_conformance("generic protocol witness table for "),
            b'I' => self.prefixed_conformance(
                "instantiation function for generic protocol witness table for ",
            ),
            b'r' => self.prefixed_conformance("resilient protocol witness table for "),
            b'l' => self.lazy_witness("lazy protocol witness table accessor for type "),
            b'L' => self.lazy_witness("lazy protocol witness table cache variable for type "),
            b'a' => self.prefixed_conformance("protocol witness table accessor for "),
            b't' => {
                let name = self.pop_if(Kind::is_declaration_name)?;
                let conformance = self.protocol_conformance()?;
                let kind = Kind::Joined("associated type metadata accessor for ", " in ");
                self.node(kind, vec![name, conformance])
            }
            b'T' => {
                let protocol = self.pop_type()?;
                let path = self.pop_associated_type_path()?;
                let conformance = self.protocol_conformance()?;
                let kind = Kind::JoinedInConformance("associated type witness table accessor for ");
                self.node(kind, vec![path, protocol, conformance])
            }
            b'b' => {
                let protocol = self.pop_type()?;
                let conformance = self.protocol_conformance()?;
                let kind = Kind::Joined("base witness table accessor for ", " in ");
                self.node(kind, vec![protocol, conformance])
            }
            b'O' => self.outlined(),
            b'Z' => self.once_function("one-time initialization function for "),
            b'z' => self.once_function("one-time initialization token for "),
            _ => None,
        }
    }

    fn lazy_witness(&mut self, words: &'static str) -> Option<NodeId> {
        let conformance = self.protocol_conformance()?;
        let node = self.pop_type()?;
        let kind = Kind::Joined(words, " and conformance ");
        self.node(kind, vec![node, conformance])
    }

    fn outlined(&mut self) -> Option<NodeId> {
        let (words, shows_signature) = match self.next()? {
            b'y' => ("outlined copy of ", true),
            b'e' => ("outlined consume of ", true),
            b'r' => ("outlined retain of ", false),
            b's' => ("outlined release of ", false),
            b'b' | b'B' => ("outlined init with take of ", false),
            b'c' | b'C' => ("outlined init with copy of ", false),
            b'd' | b'D' => ("outlined assign with take of ", false),
            b'f' | b'F' => ("outlined assign with copy of ", false),
            b'h' | b'H' => ("outlined destroy of ", false),
            b'g' => ("outlined enum get tag of ", false),
            b'i' => {
                self.index()?;
                ("outlined enum tag store of ", false)
            }
            b'j' => {
                self.index()?;
                ("outlined enum project data for load of ", false)
            }
            _ => return None,
        };
        let signature = self.pop_kind(Kind::Signature);
        let mut children = vec![self.pop_type()?];
        children.extend(signature.filter(|_| shows_signature));
        self.node(Kind::Outlined(words), children)
    }

    /// What a global variable's first use runs.
    fn once_function(&mut self, words: &'static str) -> Option<NodeId> {
        let mut names = Vec::new();
        while self.pop_kind(Kind::FirstElement).is_some() {
            names.push(self.pop_if(Kind::is_declaration_name)?);
        }
        names.reverse();
        let context = self.pop_context()?;
        let names = self.node(Kind::DeclarationList, names)?;
        self.node(Kind::OnceFunction(words), vec![context, names])
    }

    pub(super) fn value_witness(&mut self) -> Option<NodeId> {
        let words = match [self.next()?, self.next()?] {
            [b'a', b'l'] => "allocateBuffer for ",
            [b'c', b'a'] => "assignWithCopy for ",
            [b't', b'a'] => "assignWithTake for ",
            [b'd', b'e'] => "deallocateBuffer for ",
            [b'x', b'x'] => "destroy for ",
            [b'X', b'X'] => "destroyBuffer for ",
            [b'X', b'x'] => "destroyArray for ",
            [b'C', b'P'] => "initializeBufferWithCopyOfBuffer for ",
            [b'C', b'p'] => "initializeBufferWithCopy for ",
            [b'c', b'p'] => "initializeWithCopy for ",
            [b'T', b'k'] => "initializeBufferWithTake for ",
            [b't', b'k'] => "initializeWithTake for ",
            [b'p', b'r'] => "projectBuffer for ",
            [b'T', b'K'] => "initializeBufferWithTakeOfBuffer for ",
            [b'C', b'c'] => "initializeArrayWithCopy for ",
            [b'T', b't'] => "initializeArrayWithTakeFrontToBack for ",
            [b't', b'T'] => "initializeArrayWithTakeBackToFront for ",
            [b'x', b's'] => "storeExtraInhabitant for ",
            [b'x', b'g'] => "getExtraInhabitantIndex for ",
            [b'u', b'g'] => "getEnumTag for ",
            [b'u', b'p'] => "destructiveProjectEnumData for ",
            [b'u', b'i'] => "destructiveInjectEnumTag for ",
            [b'e', b't'] => "getEnumTagSinglePayload for ",
            [b's', b't'] => "storeEnumTagSinglePayload for ",
            _ => return None,
        };
        self.prefixed_type(words)
    }
}
