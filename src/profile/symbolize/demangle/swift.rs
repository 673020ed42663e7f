//! Demangles the names of Swift: `$s4main5QueueC4push2atySi_tF` is `main.Queue.push(at:)`.
//!
//! The mangling (<https://github.com/swiftlang/swift/blob/main/docs/ABI/Mangling.rst>) is postfix code for a stack machine: an
//! operator takes its operands from a stack of nodes and pushes the node that it makes. A name can refer to earlier parts of
//! itself, so a short one can stand for a text without end: nodes, pushes, depth and text are bounded. A name that needs more,
//! or that has an operator which is not known here, has no demangled form.
//!
//! The text is that of `swift-demangle -simplified` with the modules, which that leaves out: labels of parameters instead of
//! their types, no conformances, no `where`. The parts into which the compiler splits an async function have the function's name.

mod generics;
mod identifiers;
mod impl_types;
mod operators;
mod specializations;
mod text;
mod thunks;
mod tree;
mod type_text;
mod types;

use tree::{Kind, Node, NodeId, Tree};

/// Nodes and pushes in one name. The longest names of the standard library take a few thousand.
const MOST_STEPS: usize = 50_000;
/// Bytes of a mangled name. Those of the standard library and of Foundation have up to two thousand.
const LONGEST_NAME: usize = 64 << 10;
/// Bytes of a demangled name, and of all identifiers of a name.
const LONGEST: usize = 16 << 10;
/// Nodes inside of each other.
const DEEPEST: usize = 200;

/// Whether names of modules are a part of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modules {
    /// `main.Queue.push(at:)`
    Shown,
    /// `Queue.push(at:)`, as `swift-demangle -simplified` has it.
    #[cfg(test)]
    Hidden,
}

/// The readable form of a name, `None` if it is none of Swift's.
pub(super) fn demangle(mangled: &str, modules: Modules) -> Option<String> {
    let name = mangled.strip_prefix('_').unwrap_or(mangled);
    let name = name
        .strip_prefix("$s")
        .or_else(|| name.strip_prefix("$S"))?;
    if name.len() > LONGEST_NAME || !name.is_ascii() {
        return None;
    }
    let mut machine = Machine {
        name: name.as_bytes(),
        at: 0,
        tree: Tree::new(MOST_STEPS, LONGEST),
        stack: Vec::new(),
        substitutions: Vec::new(),
        words: Vec::new(),
        pushes: 0,
    };
    let root = machine.global()?;
    text::of(&machine.tree, root, modules)
}

/// The state of the stack machine between two operators.
struct Machine<'a> {
    name: &'a [u8],
    at: usize,
    tree: Tree,
    stack: Vec<NodeId>,
    substitutions: Vec<NodeId>,
    /// Words of the identifiers so far, to which later ones refer.
    words: Vec<&'a [u8]>,
    pushes: usize,
}

impl Machine<'_> {
    /// Runs to the end of the name, and puts what attributes a function has before it.
    fn global(&mut self) -> Option<NodeId> {
        // From a dot on, the name has what LLVM adds, as `.llvm.123` or a number.
        while self.peek().is_some_and(|it| it != b'.') {
            let node = self.operator()?;
            self.push(node)?;
        }
        let mut attributes = Vec::new();
        while let Some(attribute) = self.pop_if(Kind::is_function_attribute) {
            attributes.push(attribute);
        }
        let rest = std::mem::take(&mut self.stack);
        let rest: Vec<NodeId> = rest
            .into_iter()
            .map(|it| self.tree.without_type(it))
            .collect();
        // A forwarder is that of all that comes behind it.
        let mut inner = rest;
        for attribute in attributes.into_iter().rev() {
            if self.kind(attribute) == Kind::PartialApply {
                inner = vec![self.node(Kind::PartialApply, inner)?];
            } else {
                inner.insert(0, attribute);
            }
        }
        (!inner.is_empty()).then_some(())?;
        self.node(Kind::Global, inner)
    }

    fn peek(&self) -> Option<u8> {
        self.name.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_here = self.peek() == Some(byte);
        if is_here {
            self.at += 1;
        }
        is_here
    }

    /// A decimal number.
    fn natural(&mut self) -> Option<usize> {
        let mut number: usize = 0;
        let start = self.at;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            number = number
                .checked_mul(10)?
                .checked_add(usize::from(digit - b'0'))?;
            self.at += 1;
        }
        // The reference has 31 bits.
        (self.at > start && number < 1 << 31).then_some(number)
    }

    /// `_` is 0, `0_` is 1, and so on.
    fn index(&mut self) -> Option<usize> {
        if self.take(b'_') {
            return Some(0);
        }
        let number = self.natural()?;
        self.take(b'_').then_some(number + 1)
    }

    fn index_node(&mut self) -> Option<NodeId> {
        let number = self.index()?;
        self.tree.add(Node {
            number,
            ..Node::of(Kind::Number)
        })
    }

    fn kind(&self, node: NodeId) -> Kind {
        self.tree.node(node).kind
    }

    fn node(&mut self, kind: Kind, children: Vec<NodeId>) -> Option<NodeId> {
        self.tree.add(Node {
            children,
            ..Node::of(kind)
        })
    }

    /// A type that is `kind`.
    fn type_of(&mut self, kind: Kind, children: Vec<NodeId>) -> Option<NodeId> {
        let inner = self.node(kind, children)?;
        self.node(Kind::Type, vec![inner])
    }

    fn push(&mut self, node: NodeId) -> Option<()> {
        self.pushes += 1;
        (self.pushes <= MOST_STEPS).then(|| self.stack.push(node))
    }

    fn pop(&mut self) -> Option<NodeId> {
        self.stack.pop()
    }

    fn pop_if(&mut self, is_wanted: impl Fn(Kind) -> bool) -> Option<NodeId> {
        let top = *self.stack.last()?;
        is_wanted(self.kind(top)).then(|| self.stack.pop())?
    }

    fn pop_kind(&mut self, kind: Kind) -> Option<NodeId> {
        self.pop_if(|it| it == kind)
    }

    fn pop_type(&mut self) -> Option<NodeId> {
        self.pop_kind(Kind::Type)
    }

    /// What the type on the stack is.
    fn pop_inner_type(&mut self) -> Option<NodeId> {
        let node = self.pop_type()?;
        self.tree.only_child(node)
    }

    /// Elements until the one that is marked as the first; none after an empty list.
    fn pop_list(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Option<NodeId>,
    ) -> Option<Vec<NodeId>> {
        let mut elements = Vec::new();
        if self.pop_kind(Kind::EmptyList).is_none() {
            loop {
                let is_first = self.pop_kind(Kind::FirstElement).is_some();
                elements.push(element(self)?);
                if is_first {
                    break;
                }
            }
        }
        elements.reverse();
        Some(elements)
    }
}

#[cfg(test)]
mod tests;
