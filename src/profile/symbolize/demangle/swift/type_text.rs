//! The text of a type.

use super::text::Text;
use super::{Kind, NodeId};

/// Parameters of a signature that are written.
const MOST_PARAMETERS: usize = 128;

impl Text<'_> {
    pub(super) fn type_text(&mut self, node: NodeId) -> Option<()> {
        let tree = self.tree;
        let data = tree.node(node);
        match data.kind {
            Kind::Type => return self.first(node),
            Kind::TypeList => return self.children(node, ""),
            Kind::Builtin | Kind::GenericParameter => self.put(&data.text),
            Kind::Number | Kind::Integer => self.put(&data.number.to_string()),
            Kind::NegativeInteger => self.put(&format!("-{}", data.number)),
            Kind::Tuple => {
                self.put("(");
                self.children(node, ", ")?;
                self.put(")");
            }
            Kind::TupleElement => {
                if let Some(name) = tree.child_of_kind(node, Kind::TupleName) {
                    self.put(&tree.node(name).text);
                    self.put(": ");
                }
                self.first(node)?;
                if tree.child_of_kind(node, Kind::Variadic).is_some() {
                    self.put("...");
                }
            }
            Kind::Pack(word) => {
                self.put(word);
                self.put("Pack{");
                self.children(node, ", ")?;
                self.put("}");
            }
            Kind::PackExpansion => {
                self.put("repeat ");
                self.first(node)?;
            }
            Kind::PackElement => {
                let level = tree.node(self.child(node, 1)?).number;
                self.put(&format!("/* level: {level} */ each "));
                self.first(node)?;
            }
            Kind::FunctionType(_) => return self.labels_of_function(node, None),
            Kind::FunctionPrefix(words) | Kind::Differentiable(words) => self.put(words),
            Kind::GlobalActor => {
                self.put("@");
                self.first(node)?;
                self.put(" ");
            }
            Kind::BoundGeneric => return self.bound_generic(node),
            Kind::BoundProtocol => {
                self.second(node)?;
                self.put(" as ");
                self.first(node)?;
            }
            Kind::Qualified(word) | Kind::BoxField(word) => {
                self.put(word);
                self.first(node)?;
            }
            Kind::Representation(word) => self.put(word),
            Kind::Metatype => {
                self.representation(node)?;
                let inner = tree.without_type(self.child(node, 0)?);
                self.with_parentheses(inner)?;
                self.put(match self.kind(inner) {
                    Kind::ExistentialMetatype
                    | Kind::ProtocolList
                    | Kind::ProtocolListWithClass
                    | Kind::ProtocolListWithAnyObject => ".Protocol",
                    _ => ".Type",
                });
            }
            Kind::ExistentialMetatype => {
                self.representation(node)?;
                self.first(node)?;
                self.put(".Type");
            }
            Kind::DynamicSelf | Kind::ConstrainedSelf => self.put("Self"),
            Kind::AssociatedTypeRef => {
                self.first(node)?;
                self.put(".");
                self.second(node)?;
            }
            Kind::DependentMember => {
                self.first(node)?;
                self.put(".");
                self.second(node)?;
            }
            Kind::AssociatedTypeName => {
                if let Some(protocol) = self.child(node, 1) {
                    self.all(protocol)?;
                    self.put(".");
                }
                self.first(node)?;
            }
            Kind::AssociatedTypePath => return self.children(node, "."),
            Kind::GenericType => {
                self.first(node)?;
                let inner = tree.without_type(self.child(node, 1)?);
                if !matches!(self.kind(inner), Kind::FunctionType("") | Kind::GenericType) {
                    self.put(" ");
                }
                self.all(inner)?;
            }
            Kind::ProtocolList => match data.children.is_empty() {
                true => self.put("Any"),
                false => self.children(node, " & ")?,
            },
            Kind::ProtocolListWithClass => {
                self.second(node)?;
                self.put(" & ");
                let protocols = self.child(node, 0)?;
                self.children(protocols, " & ")?;
            }
            Kind::ProtocolListWithAnyObject => {
                let protocols = self.child(node, 0)?;
                if !tree.node(protocols).children.is_empty() {
                    self.children(protocols, " & ")?;
                    self.put(" & ");
                }
                self.put("Swift.AnyObject");
            }
            Kind::ConstrainedExistential => {
                self.put("any ");
                self.first(node)?;
                self.put("<");
                let requirements = self.child(node, 1)?;
                self.children(requirements, ", ")?;
                self.put(">");
            }
            Kind::Requirement(between) => {
                self.first(node)?;
                self.put(between);
                self.second(node)?;
                if between.starts_with(".shape") {
                    self.put(".shape");
                }
            }
            Kind::OpaqueReturnType => self.put("some"),
            Kind::OpaqueReturnTypeOf => {
                self.put("<<opaque return type of ");
                self.children(node, "")?;
                self.put(">>");
            }
            Kind::OpaqueType => {
                self.first(node)?;
                self.put(".");
                self.second(node)?;
            }
            Kind::ErrorType => self.put("<ERROR TYPE>"),
            Kind::BoxLayout => return self.box_layout(node),
            Kind::Sugar(before, between, after) => {
                self.put(before);
                self.children(node, between)?;
                self.put(after);
            }
            Kind::ImplFunction => return self.impl_function(node),
            Kind::ImplAttribute(word) => self.put(word),
            Kind::ImplParameter => return self.children(node, " "),
            Kind::ImplResult(word) => {
                self.put(word);
                self.children(node, " ")?;
            }
            Kind::Signature => return self.signature(node),
            // A part that is never written by itself, or a name that is not that of a function or of a type.
            _ => return None,
        }
        Some(())
    }

    /// The words before a function's parameters, and the parameters' labels: `_:` is one without.
    pub(super) fn labels_of_function(
        &mut self,
        function: NodeId,
        labels: Option<NodeId>,
    ) -> Option<()> {
        let Kind::FunctionType(word) = self.kind(function) else {
            return None;
        };
        self.put(word);
        let tree = self.tree;
        let children = &tree.node(function).children;
        let (properties, of_types) = children.split_at_checked(children.len().checked_sub(2)?)?;
        for property in properties {
            self.all(*property)?;
        }
        let parameters = tree.without_type(*of_types.first()?);
        if self.kind(parameters) != Kind::Tuple {
            self.put("(_:)");
            return Some(());
        }
        let labels = labels.map_or(&[][..], |it| &tree.node(it).children);
        self.put("(");
        for (index, parameter) in tree.node(parameters).children.iter().enumerate() {
            self.count(1)?;
            if let Some(label) = labels.get(index) {
                let is_name = self.kind(*label) == Kind::Identifier;
                self.put(if is_name {
                    &tree.node(*label).text
                } else {
                    "_"
                });
            } else if let Some(name) = tree.child_of_kind(*parameter, Kind::TupleName) {
                self.put(&tree.node(name).text);
            } else {
                self.put("_");
            }
            self.put(":");
        }
        self.put(")");
        Some(())
    }

    fn representation(&mut self, node: NodeId) -> Option<()> {
        match self.child(node, 1) {
            Some(word) => self.all(word),
            None => Some(()),
        }
    }

    /// `[A]`, `[A : B]`, `A?`, or `Name<A, B>`.
    fn bound_generic(&mut self, node: NodeId) -> Option<()> {
        let tree = self.tree;
        let nominal = tree.without_type(self.child(node, 0)?);
        let arguments = self.child(node, 1)?;
        let list = &tree.node(arguments).children;
        let is_swift = |it: NodeId| {
            let module = tree.child(it, 0).map(|it| tree.node(it));
            module.is_some_and(|it| it.kind == Kind::Module && it.text == "Swift")
        };
        let name = self.child(nominal, 1).map(|it| tree.node(it));
        let name = name
            .filter(|it| it.kind == Kind::Identifier && is_swift(nominal))
            .map_or("", |it| it.text.as_ref());
        match (self.kind(nominal), name, &list[..]) {
            (Kind::Enum, "Optional", [wrapped]) => {
                let wrapped = tree.without_type(*wrapped);
                self.with_parentheses(wrapped)?;
                self.put("?");
            }
            (Kind::Structure, "Array", [element]) => {
                self.put("[");
                self.all(*element)?;
                self.put("]");
            }
            (Kind::Structure, "Dictionary", [key, value]) => {
                self.put("[");
                self.all(*key)?;
                self.put(" : ");
                self.all(*value)?;
                self.put("]");
            }
            _ => {
                self.all(nominal)?;
                self.put("<");
                self.children(arguments, ", ")?;
                self.put(">");
            }
        }
        Some(())
    }

    fn with_parentheses(&mut self, node: NodeId) -> Option<()> {
        let is_simple = match self.kind(node) {
            Kind::ProtocolList => self.tree.node(node).children.len() <= 1,
            Kind::ProtocolListWithAnyObject => {
                let protocols = self.child(node, 0)?;
                self.tree.node(protocols).children.is_empty()
            }
            kind => {
                kind.is_any_generic()
                    || matches!(
                        kind,
                        Kind::AssociatedTypeRef
                            | Kind::BoundGeneric
                            | Kind::BoundProtocol
                            | Kind::BoundFunction
                            | Kind::Builtin
                            | Kind::Sugar(..)
                            | Kind::GenericType
                            | Kind::DependentMember
                            | Kind::GenericParameter
                            | Kind::DynamicSelf
                            | Kind::ErrorType
                            | Kind::ExistentialMetatype
                            | Kind::Metatype
                            | Kind::Tuple
                            | Kind::Pack(_)
                            | Kind::ConstrainedExistential
                            | Kind::BoxLayout
                            | Kind::Qualified("@box ")
                            | Kind::OpaqueReturnTypeOf
                            | Kind::OpaqueType
                            | Kind::OpaqueReturnType
                            | Kind::Integer
                            | Kind::NegativeInteger
                    )
            }
        };
        if is_simple {
            return self.all(node);
        }
        self.put("(");
        self.all(node)?;
        self.put(")");
        Some(())
    }

    fn box_layout(&mut self, node: NodeId) -> Option<()> {
        if let Some(signature) = self.child(node, 1) {
            self.all(signature)?;
            self.put(" ");
        }
        self.put("{");
        let fields = self.child(node, 0)?;
        for (index, field) in self.tree.node(fields).children.iter().enumerate() {
            self.put(if index > 0 { ", " } else { " " });
            self.all(*field)?;
        }
        self.put(" }");
        if let Some(arguments) = self.child(node, 2) {
            self.put(" <");
            self.children(arguments, ", ")?;
            self.put(">");
        }
        Some(())
    }

    /// `@escaping @callee_guaranteed (@guaranteed A) -> (@out B)`
    fn impl_function(&mut self, node: NodeId) -> Option<()> {
        let tree = self.tree;
        let pattern = tree.child_of_kind(node, Kind::ImplPattern);
        let invocation = tree.child_of_kind(node, Kind::ImplInvocation);
        let sending = tree.child_of_kind(node, Kind::ImplSendingResult);
        let (mut parameters, mut results) = (Vec::new(), Vec::new());
        for child in &tree.node(node).children {
            match self.kind(*child) {
                Kind::ImplParameter => parameters.push(*child),
                Kind::ImplResult(_) => results.push(*child),
                Kind::ImplPattern | Kind::ImplInvocation | Kind::ImplSendingResult => {}
                _ => {
                    self.all(*child)?;
                    self.put(" ");
                }
            }
        }
        if let Some(pattern) = pattern {
            self.put("@substituted ");
            self.first(pattern)?;
            self.put(" ");
        }
        self.list(&parameters)?;
        self.put(" -> ");
        if sending.is_some() {
            self.put("sending ");
        }
        self.list(&results)?;
        for (list, index) in [(pattern, 1), (invocation, 0)] {
            if let Some(list) = list {
                self.put(" for <");
                let types = self.child(list, index)?;
                self.children(types, "")?;
                self.put(">");
            }
        }
        Some(())
    }

    fn list(&mut self, nodes: &[NodeId]) -> Option<()> {
        self.put("(");
        for (index, node) in nodes.iter().enumerate() {
            if index > 0 {
                self.put(", ");
            }
            self.all(*node)?;
        }
        self.put(")");
        Some(())
    }

    /// `<A, B><C>`: the parameters of each level, without what is required of them.
    fn signature(&mut self, node: NodeId) -> Option<()> {
        let tree = self.tree;
        let parameter_of = |marker: NodeId| {
            let parameter = tree.without_type(tree.child(marker, 0)?);
            Some(tree.node(parameter).text.clone())
        };
        self.count(tree.node(node).children.len())?;
        let (mut packs, mut values) = (Vec::new(), Vec::new());
        for marker in &tree.node(node).children {
            match self.kind(*marker) {
                Kind::PackMarker => packs.push(parameter_of(*marker)?),
                Kind::ValueMarker => values.push((parameter_of(*marker)?, *marker)),
                _ => {}
            }
        }
        self.put("<");
        let is_count = |it: &NodeId| self.tree.node(*it).kind == Kind::ParameterCount;
        let counts = tree.node(node).children.iter().copied();
        for (depth, count) in counts.take_while(is_count).enumerate() {
            if depth > 0 {
                self.put("><");
            }
            for index in 0..tree.node(count).number {
                if index > 0 {
                    self.put(", ");
                }
                if index >= MOST_PARAMETERS {
                    self.put("...");
                    break;
                }
                self.count(1 + packs.len() + values.len())?;
                let name = super::generics::parameter_name(depth, index);
                if packs.iter().any(|it| **it == name) {
                    self.put("each ");
                }
                let value = values.iter().find(|it| *it.0 == name);
                if value.is_some() {
                    self.put("let ");
                }
                self.put(&name);
                if let Some((_, marker)) = value {
                    self.put(": ");
                    self.second(*marker)?;
                }
            }
        }
        self.put(">");
        Some(())
    }
}
