//! Functions that the optimizer made for some arguments: what they are made for is read, and left out of the text.

use super::{Kind, Machine, NodeId};

/// What a parameter's specialization takes from the stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operands {
    None,
    /// An identifier.
    Name,
    /// Types, and an identifier before them.
    TypesAndName,
}

impl Machine<'_> {
    /// For types: a list of them.
    pub(super) fn generic_specialization(&mut self) -> Option<NodeId> {
        self.specialization_pass()?;
        self.type_list()?;
        self.node(Kind::Specialization, vec![])
    }

    /// For types, without some of the arguments.
    pub(super) fn specialization_without_arguments(&mut self) -> Option<NodeId> {
        loop {
            if self.peek()?.is_ascii_digit() {
                self.natural()?;
            }
            if !self.take(b't') {
                break;
            }
        }
        matches!(self.next()?, b'g' | b'G' | b'B').then_some(())?;
        self.generic_specialization()
    }

    /// For a signature.
    pub(super) fn partial_specialization(&mut self) -> Option<NodeId> {
        self.specialization_pass()?;
        self.pop_type()?;
        self.node(Kind::Specialization, vec![])
    }

    /// For values of the parameters, or for how they are passed.
    pub(super) fn function_specialization(&mut self) -> Option<NodeId> {
        self.specialization_pass()?;
        if self.peek()?.is_ascii_digit() {
            self.natural()?;
        }
        let mut operands = Vec::new();
        while !self.take(b'_') {
            operands.push(self.specialized_parameter()?);
        }
        if !self.take(b'n') {
            self.specialized_parameter()?;
        }
        for operand in operands.into_iter().rev() {
            if operand == Operands::TypesAndName {
                while self.pop_type().is_some() {}
            }
            if operand != Operands::None {
                self.pop_kind(Kind::Identifier)?;
            }
        }
        self.node(Kind::Specialization, vec![])
    }

    /// The pass that made it, and what it did to all of the function.
    fn specialization_pass(&mut self) -> Option<()> {
        for flag in [b'm', b'a', b'q'] {
            self.take(flag);
        }
        self.next()?.is_ascii_digit().then_some(())
    }

    fn specialized_parameter(&mut self) -> Option<Operands> {
        let flags: &[u8] = match self.next()? {
            b'n' | b'x' | b'i' | b's' | b'r' => b"",
            b'c' => return Some(Operands::TypesAndName),
            b'p' => match self.next()? {
                b'f' | b'g' => return Some(Operands::Name),
                b'k' => return Some(Operands::TypesAndName),
                b'i' | b'd' => {
                    self.peek()?.is_ascii_digit().then_some(())?;
                    while self.peek().is_some_and(|it| it.is_ascii_digit()) {
                        self.at += 1;
                    }
                    b""
                }
                b's' => {
                    matches!(self.next()?, b'b' | b'w' | b'c').then_some(())?;
                    return Some(Operands::Name);
                }
                _ => return None,
            },
            b'e' => b"DGOX",
            b'd' => b"GOX",
            b'g' | b'o' => b"X",
            _ => return None,
        };
        for flag in flags {
            self.take(*flag);
        }
        Some(Operands::None)
    }
}
