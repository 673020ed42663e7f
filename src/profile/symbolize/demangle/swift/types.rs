//! Types, but for what generics add to them.

use super::{Kind, Machine, Node, NodeId};

/// Bits of a number and elements of a vector in a builtin type.
const LARGEST_BUILTIN: usize = 4096;

impl Machine<'_> {
    pub(super) fn pop_nominal_type(&mut self) -> Option<NodeId> {
        let inner = self.pop_inner_type()?;
        self.kind(inner).is_any_generic().then_some(inner)
    }

    pub(super) fn qualified_type(&mut self, word: &'static str) -> Option<NodeId> {
        let inner = self.pop_inner_type()?;
        self.type_of(Kind::Qualified(word), vec![inner])
    }

    /// A type at the end of a name that is only a type's.
    pub(super) fn type_mangling(&mut self) -> Option<NodeId> {
        let inner = self.pop_type()?;
        self.node(Kind::Prefixed(""), vec![inner])
    }

    pub(super) fn builtin_type(&mut self) -> Option<NodeId> {
        let sized = |it: &mut Self| {
            let size = it.index()?.checked_sub(1)?;
            (1..=LARGEST_BUILTIN).contains(&size).then_some(size)
        };
        let name = match self.next()? {
            b'b' => "Builtin.BridgeObject".into(),
            b'B' => "Builtin.UnsafeValueBuffer".into(),
            b'e' => "Builtin.Executor".into(),
            b'f' => format!("Builtin.FPIEEE{}", sized(self)?),
            b'i' => format!("Builtin.Int{}", sized(self)?),
            b'I' => "Builtin.IntLiteral".into(),
            b'v' => {
                let count = sized(self)?;
                let element = self.pop_inner_type()?;
                let element = &self.tree.node(element).text;
                format!("Builtin.Vec{count}x{}", element.strip_prefix("Builtin.")?)
            }
            b'V' => {
                let element = self.pop_type()?;
                let size = self.pop_type()?;
                return self.type_of(
                    Kind::Sugar("Builtin.FixedArray<", ", ", ">"),
                    vec![size, element],
                );
            }
            b'O' => "Builtin.UnknownObject".into(),
            b'o' => "Builtin.NativeObject".into(),
            b'p' => "Builtin.RawPointer".into(),
            b'j' => "Builtin.Job".into(),
            b'D' => "Builtin.DefaultActorStorage".into(),
            b'd' => "Builtin.NonDefaultDistributedActorStorage".into(),
            b'c' => "Builtin.RawUnsafeContinuation".into(),
            b't' => "Builtin.SILToken".into(),
            b'T' => "Builtin.TheTupleType".into(),
            b'P' => "Builtin.PackIndex".into(),
            b'w' => "Builtin.Word".into(),
            _ => return None,
        };
        let builtin = self.tree.add(Node {
            text: String::into(name),
            ..Node::of(Kind::Builtin)
        })?;
        self.node(Kind::Type, vec![builtin])
    }

    pub(super) fn integer_type(&mut self) -> Option<NodeId> {
        let kind = if self.take(b'n') {
            Kind::NegativeInteger
        } else {
            Kind::Integer
        };
        let number = self.index()?;
        let integer = self.tree.add(Node {
            number,
            ..Node::of(kind)
        })?;
        self.node(Kind::Type, vec![integer])
    }

    /// What is written before a function's parameters, the parameters, the result.
    pub(super) fn function_type(&mut self, word: &'static str) -> Option<NodeId> {
        let is_property = |it| {
            matches!(
                it,
                Kind::FunctionPrefix(_)
                    | Kind::FunctionProperty
                    | Kind::GlobalActor
                    | Kind::Differentiable(_)
            )
        };
        let mut children = Vec::new();
        while let Some(property) = self.pop_if(is_property) {
            if self.kind(property) != Kind::FunctionProperty {
                children.push(property);
            }
        }
        for _ in ["parameters", "result"] {
            let node = if self.pop_kind(Kind::EmptyList).is_some() {
                self.type_of(Kind::Tuple, vec![])?
            } else {
                self.pop_type()?
            };
            children.push(node);
        }
        self.type_of(Kind::FunctionType(word), children)
    }

    pub(super) fn tuple(&mut self) -> Option<NodeId> {
        let elements = self.pop_list(|it| {
            let variadic = it.pop_kind(Kind::Variadic);
            let name = it.pop_kind(Kind::Identifier);
            let mut children = vec![it.pop_type()?];
            if let Some(name) = name {
                let text = it.tree.node(name).text.clone();
                children.push(it.tree.add(Node {
                    text,
                    ..Node::of(Kind::TupleName)
                })?);
            }
            children.extend(variadic);
            it.node(Kind::TupleElement, children)
        })?;
        self.type_of(Kind::Tuple, elements)
    }

    pub(super) fn type_list(&mut self) -> Option<NodeId> {
        let types = self.pop_list(Self::pop_type)?;
        self.node(Kind::TypeList, types)
    }

    fn pack(&mut self, word: &'static str) -> Option<NodeId> {
        let types = self.pop_list(Self::pop_type)?;
        self.type_of(Kind::Pack(word), types)
    }

    pub(super) fn protocol(&mut self) -> Option<NodeId> {
        if let Some(node) = self.pop_type() {
            let inner = self.tree.child(node, 0)?;
            let is_protocol = self.kind(inner) == Kind::Protocol;
            return is_protocol.then_some(node);
        }
        let name = self.pop_if(Kind::is_declaration_name)?;
        let context = self.pop_context()?;
        self.type_of(Kind::Protocol, vec![context, name])
    }

    pub(super) fn protocol_list(&mut self) -> Option<NodeId> {
        let protocols = self.pop_list(Self::protocol)?;
        self.node(Kind::ProtocolList, protocols)
    }

    pub(super) fn type_annotation(&mut self) -> Option<NodeId> {
        match self.next()? {
            b'a' => self.node(Kind::FunctionProperty, vec![]),
            b'A' => self.node(Kind::FunctionPrefix("@isolated(any) "), vec![]),
            b'b' => self.node(Kind::FunctionPrefix("@Sendable "), vec![]),
            b'C' => self.node(Kind::FunctionPrefix("nonisolated(nonsending) "), vec![]),
            b'c' => {
                let actor = self.pop_inner_type()?;
                self.node(Kind::GlobalActor, vec![actor])
            }
            b'g' => self.qualified_type("@const "),
            b'i' => self.qualified_type("isolated "),
            b'j' => {
                let word = match self.next()? {
                    b'f' => "@differentiable(_forward) ",
                    b'r' => "@differentiable(reverse) ",
                    b'd' => "@differentiable ",
                    b'l' => "@differentiable(_linear) ",
                    _ => return None,
                };
                self.node(Kind::Differentiable(word), vec![])
            }
            b'K' => {
                self.pop_inner_type()?;
                self.node(Kind::FunctionProperty, vec![])
            }
            b'k' => self.qualified_type("@noDerivative "),
            b'T' => self.node(Kind::FunctionProperty, vec![]),
            b't' => self.qualified_type("_const "),
            b'u' => self.qualified_type("sending "),
            _ => None,
        }
    }

    pub(super) fn special_type(&mut self) -> Option<NodeId> {
        match self.next()? {
            b'E' => self.function_type(""),
            b'A' | b'K' => self.function_type("@autoclosure "),
            b'f' => self.function_type("@convention(thin) "),
            b'L' => self.function_type("@escaping @convention(block) "),
            b'B' => self.function_type("@convention(block) "),
            b'C' => self.function_type("@convention(c) "),
            b'o' => self.referring("unowned "),
            b'u' => self.referring("unowned(unsafe) "),
            b'w' => self.referring("weak "),
            b'b' => self.referring("@box "),
            b'D' => {
                let inner = self.pop_type()?;
                self.type_of(Kind::DynamicSelf, vec![inner])
            }
            b'M' => self.metatype(Kind::Metatype),
            b'm' => self.metatype(Kind::ExistentialMetatype),
            b'p' => {
                let inner = self.pop_type()?;
                self.type_of(Kind::ExistentialMetatype, vec![inner])
            }
            b'P' => {
                let requirements = self.pop_list(|it| it.pop_if(Kind::is_requirement))?;
                let base = self.pop_type()?;
                let requirements = self.node(Kind::TypeList, requirements)?;
                self.type_of(Kind::ConstrainedExistential, vec![base, requirements])
            }
            b'c' => {
                let class = self.pop_type()?;
                let protocols = self.protocol_list()?;
                self.type_of(Kind::ProtocolListWithClass, vec![protocols, class])
            }
            b'l' => {
                let protocols = self.protocol_list()?;
                self.type_of(Kind::ProtocolListWithAnyObject, vec![protocols])
            }
            b'X' => self.box_type(true),
            b'x' => self.box_type(false),
            b'Y' => self.nominal(Kind::OtherNominal),
            b'Z' => {
                self.type_list()?;
                self.pop_kind(Kind::Identifier)?;
                let context = self.pop_context()?;
                self.node(Kind::AnonymousContext, vec![context])
            }
            b'e' => self.type_of(Kind::ErrorType, vec![]),
            _ => None,
        }
    }

    fn referring(&mut self, word: &'static str) -> Option<NodeId> {
        let inner = self.pop_type()?;
        self.type_of(Kind::Qualified(word), vec![inner])
    }

    fn metatype(&mut self, kind: Kind) -> Option<NodeId> {
        let representation = match self.next()? {
            b't' => "@thin ",
            b'T' => "@thick ",
            b'o' => "@objc_metatype ",
            _ => return None,
        };
        let inner = self.pop_type()?;
        let representation = self.node(Kind::Representation(representation), vec![])?;
        self.type_of(kind, vec![inner, representation])
    }

    /// A box that holds variables, with a signature and arguments if it is generic.
    fn box_type(&mut self, is_generic: bool) -> Option<NodeId> {
        let mut children = Vec::new();
        if is_generic {
            children.push(self.pop_kind(Kind::Signature)?);
            children.push(self.type_list()?);
        }
        let types = self.type_list()?;
        let types = self.tree.node(types).children.clone();
        let mut fields = Vec::new();
        for field in types {
            let inner = self.tree.child(field, 0)?;
            fields.push(match self.kind(inner) {
                Kind::Qualified("inout ") => {
                    let inner = self.tree.child(inner, 0)?;
                    self.node(Kind::BoxField("var "), vec![inner])?
                }
                _ => self.node(Kind::BoxField("let "), vec![field])?,
            });
        }
        children.insert(0, self.node(Kind::TypeList, fields)?);
        self.type_of(Kind::BoxLayout, children)
    }

    pub(super) fn archetype(&mut self) -> Option<NodeId> {
        let node = match self.next()? {
            b'a' => {
                let name = self.pop_kind(Kind::Identifier)?;
                let base = self.pop_inner_type()?;
                self.type_of(Kind::AssociatedTypeRef, vec![base, name])?
            }
            b'O' => {
                let context = self.pop_context()?;
                return self.node(Kind::OpaqueReturnTypeOf, vec![context]);
            }
            b'o' => self.opaque_type()?,
            b'r' => return self.type_of(Kind::OpaqueReturnType, vec![]),
            b'R' => {
                self.index()?;
                return self.type_of(Kind::OpaqueReturnType, vec![]);
            }
            b'x' => self.associated_type(None)?,
            b'X' => self.associated_type_path(None)?,
            b'y' => {
                let base = self.generic_parameter_index()?;
                self.associated_type(Some(base))?
            }
            b'Y' => {
                let base = self.generic_parameter_index()?;
                self.associated_type_path(Some(base))?
            }
            b'z' => {
                let base = self.generic_parameter(0, 0)?;
                self.associated_type(Some(base))?
            }
            b'Z' => {
                let base = self.generic_parameter(0, 0)?;
                self.associated_type_path(Some(base))?
            }
            b'p' => {
                self.pop_inner_type()?;
                let pattern = self.pop_inner_type()?;
                return self.type_of(Kind::PackExpansion, vec![pattern]);
            }
            b'e' => {
                let pack = self.pop_inner_type()?;
                let level = self.index_node()?;
                return self.type_of(Kind::PackElement, vec![pack, level]);
            }
            b'P' => return self.pack(""),
            b'S' => {
                let word = match self.next()? {
                    b'd' => "@direct ",
                    b'i' => "@indirect ",
                    _ => return None,
                };
                return self.pack(word);
            }
            _ => return None,
        };
        self.substitutions.push(node);
        Some(node)
    }
}
