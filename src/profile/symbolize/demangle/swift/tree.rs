//! The nodes that a name of Swift stands for.

use std::borrow::Cow;

/// A node of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(usize);

/// What a node is. Where kinds differ in their text only, it is a part of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Global,
    Number,
    // Names.
    Identifier,
    /// A number and a name.
    LocalName,
    /// A discriminator, and a name if it has one.
    PrivateName,
    RelatedName,
    /// `== infix`
    Operator(&'static str),
    // Contexts.
    Module,
    Class,
    Structure,
    Enum,
    Protocol,
    Alias,
    OtherNominal,
    /// A module, a type, a signature if it has one.
    Extension,
    AnonymousContext,
    Function,
    Variable,
    Subscript,
    Static,
    Allocator,
    Constructor,
    Deallocator(&'static str),
    /// A member without a type: `deinit`.
    Member(&'static str),
    Closure(&'static str),
    DefaultArgument,
    Accessor(&'static str),
    OpaqueReturnTypeOf,
    // Types.
    Type,
    TypeList,
    Builtin,
    Integer,
    NegativeInteger,
    Tuple,
    TupleElement,
    TupleName,
    Variadic,
    Pack(&'static str),
    PackExpansion,
    PackElement,
    FunctionType(&'static str),
    /// What is written before a function's parameters.
    FunctionPrefix(&'static str),
    GlobalActor,
    /// What is written behind them, which is left out.
    FunctionProperty,
    Differentiable(&'static str),
    LabelList,
    BoundGeneric,
    BoundProtocol,
    BoundFunction,
    /// `inout `
    Qualified(&'static str),
    Metatype,
    ExistentialMetatype,
    /// `@thin `
    Representation(&'static str),
    DynamicSelf,
    AssociatedTypeRef,
    GenericParameter,
    ConstrainedSelf,
    DependentMember,
    AssociatedTypeName,
    AssociatedTypePath,
    GenericType,
    ProtocolList,
    ProtocolListWithClass,
    ProtocolListWithAnyObject,
    ConstrainedExistential,
    OpaqueReturnType,
    OpaqueType,
    ErrorType,
    BoxLayout,
    BoxField(&'static str),
    Sugar(&'static str, &'static str, &'static str),
    ImplFunction,
    /// `@escaping`
    ImplAttribute(&'static str),
    /// A convention, further words, a type.
    ImplParameter,
    ImplResult(&'static str),
    ImplPattern,
    ImplInvocation,
    ImplSendingResult,
    // Generics.
    Signature,
    ParameterCount,
    PackMarker,
    ValueMarker,
    /// A type, a word between, a type.
    Requirement(&'static str),
    Conformance,
    /// A conformance of an argument, whose text is left out.
    ConformanceRef,
    Retroactive,
    // Lists.
    EmptyList,
    FirstElement,
    // What is made of a function or a type.
    /// Text before the first child.
    Prefixed(&'static str),
    /// Text, the first child, text, the second.
    Joined(&'static str, &'static str),
    /// The same, and then a colon and the third child.
    JoinedInConformance(&'static str),
    AssociatedConformance(&'static str),
    OnceFunction(&'static str),
    DeclarationList,
    Outlined(&'static str),
    Derivative(&'static str, &'static str),
    ReabstractionThunk,
    ReabstractionWithSelf,
    KeyPathAccessor(&'static str),
    KeyPathOperator(&'static str),
    // Attributes of functions.
    Attribute(&'static str),
    NumberedAttribute(&'static str),
    Specialization,
    PartialApply,
    BridgedMethod,
}

impl Kind {
    pub(super) fn is_function_attribute(self) -> bool {
        matches!(
            self,
            Self::Attribute(_)
                | Self::NumberedAttribute(_)
                | Self::Specialization
                | Self::PartialApply
                | Self::BridgedMethod
        )
    }

    pub(super) fn is_declaration_name(self) -> bool {
        matches!(
            self,
            Self::Identifier
                | Self::LocalName
                | Self::PrivateName
                | Self::RelatedName
                | Self::Operator(_)
        )
    }

    pub(super) fn is_any_generic(self) -> bool {
        matches!(
            self,
            Self::Class
                | Self::Structure
                | Self::Enum
                | Self::Protocol
                | Self::Alias
                | Self::OtherNominal
        )
    }

    pub(super) fn is_context(self) -> bool {
        self.is_any_generic()
            || matches!(
                self,
                Self::Module
                    | Self::Extension
                    | Self::AnonymousContext
                    | Self::Function
                    | Self::Variable
                    | Self::Subscript
                    | Self::Static
                    | Self::Allocator
                    | Self::Constructor
                    | Self::Deallocator(_)
                    | Self::Member(_)
                    | Self::Closure(_)
                    | Self::DefaultArgument
                    | Self::Accessor(_)
                    | Self::OpaqueReturnTypeOf
            )
    }

    pub(super) fn is_entity(self) -> bool {
        self == Self::Type || self.is_context()
    }

    pub(super) fn is_requirement(self) -> bool {
        matches!(
            self,
            Self::Requirement(_) | Self::PackMarker | Self::ValueMarker
        )
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) text: Cow<'static, str>,
    pub(super) number: usize,
    pub(super) children: Vec<NodeId>,
}

impl Node {
    pub(super) fn of(kind: Kind) -> Self {
        Self {
            kind,
            text: Cow::Borrowed(""),
            number: 0,
            children: Vec::new(),
        }
    }
}

/// All nodes of a name. Children are there before their parents, so there are no cycles.
pub(super) struct Tree {
    nodes: Vec<Node>,
    most_nodes: usize,
    text_left: usize,
}

impl Tree {
    pub(super) fn new(most_nodes: usize, most_text: usize) -> Self {
        Self {
            nodes: Vec::new(),
            most_nodes,
            text_left: most_text,
        }
    }

    /// `None`: there are too many, or too much text.
    pub(super) fn add(&mut self, node: Node) -> Option<NodeId> {
        if let Cow::Owned(text) = &node.text {
            self.text_left = self.text_left.checked_sub(text.len())?;
        }
        (self.nodes.len() < self.most_nodes).then(|| {
            self.nodes.push(node);
            NodeId(self.nodes.len() - 1)
        })
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    pub(super) fn child(&self, id: NodeId, index: usize) -> Option<NodeId> {
        self.node(id).children.get(index).copied()
    }

    pub(super) fn only_child(&self, id: NodeId) -> Option<NodeId> {
        match self.node(id).children[..] {
            [child] => Some(child),
            _ => None,
        }
    }

    /// What a type is, or the node itself.
    pub(super) fn without_type(&self, id: NodeId) -> NodeId {
        match self.node(id).kind {
            Kind::Type => self.child(id, 0).unwrap_or(id),
            _ => id,
        }
    }

    pub(super) fn child_of_kind(&self, id: NodeId, kind: Kind) -> Option<NodeId> {
        let children = &self.node(id).children;
        children
            .iter()
            .copied()
            .find(|it| self.node(*it).kind == kind)
    }
}
