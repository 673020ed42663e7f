//! Types, those of functions among them.

use super::Parser;

impl Parser<'_> {
    pub(super) fn is_function(&self) -> bool {
        matches!(self.peek(), Some(b'F' | b'U' | b'V' | b'W' | b'R' | b'Y'))
    }

    pub(super) fn call_convention(&mut self) -> Option<&'static str> {
        Some(match self.next()? {
            b'F' => "",
            b'U' => "extern(C) ",
            b'W' => "extern(Windows) ",
            b'V' => "extern(Pascal) ",
            b'R' => "extern(C++) ",
            b'Y' => "extern(Objective-C) ",
            _ => return None,
        })
    }

    pub(super) fn attributes(&mut self) -> Option<String> {
        let mut attributes = String::new();
        while self.peek() == Some(b'N') {
            let name = match self.name.get(self.at + 1)? {
                b'a' => "pure ",
                b'b' => "nothrow ",
                b'c' => "ref ",
                b'd' => "@property ",
                b'e' => "@trusted ",
                b'f' => "@safe ",
                b'i' => "@nogc ",
                b'j' => "return ",
                b'l' => "scope ",
                b'm' => "@live ",
                // Parameters begin with these.
                b'g' | b'h' | b'k' | b'n' => break,
                _ => return None,
            };
            self.at += 2;
            attributes.push_str(name);
        }
        Some(attributes)
    }

    pub(super) fn arguments(&mut self) -> Option<()> {
        let mut is_first = true;
        loop {
            self.step()?;
            match self.peek()? {
                b'X' => {
                    self.at += 1;
                    self.out.push_str("...");
                    return Some(());
                }
                b'Y' => {
                    self.at += 1;
                    self.out.push_str(if is_first { "..." } else { ", ..." });
                    return Some(());
                }
                b'Z' => {
                    self.at += 1;
                    return Some(());
                }
                _ => {}
            }
            if !is_first {
                self.out.push_str(", ");
            }
            is_first = false;
            if self.take(b"M") {
                self.out.push_str("scope ");
            }
            if self.take(b"Nk") {
                self.out.push_str("return ");
            }
            let mut storage = match self.peek()? {
                b'I' => "in ",
                b'J' => "out ",
                b'K' => "ref ",
                b'L' => "lazy ",
                _ => "",
            };
            if !storage.is_empty() {
                self.at += 1;
            }
            if storage == "in " && self.take(b"K") {
                storage = "in ref ";
            }
            self.out.push_str(storage);
            self.any_type()?;
        }
    }

    pub(super) fn any_type(&mut self) -> Option<()> {
        self.nested(Self::any_type_here)
    }

    fn wrapped(&mut self, before: &str, after: &str) -> Option<()> {
        self.out.push_str(before);
        self.any_type()?;
        self.out.push_str(after);
        Some(())
    }

    fn any_type_here(&mut self) -> Option<()> {
        let kind = self.peek()?;
        if self.is_function() {
            self.function_type()?;
            self.out.push_str("function");
            return Some(());
        }
        if kind == b'Q' {
            return self.at_reference(Self::any_type_here);
        }
        self.at += 1;
        match kind {
            b'O' => self.wrapped("shared(", ")"),
            b'x' => self.wrapped("const(", ")"),
            b'y' => self.wrapped("immutable(", ")"),
            b'N' => match self.next()? {
                b'g' => self.wrapped("inout(", ")"),
                b'h' => self.wrapped("__vector(", ")"),
                b'n' => {
                    self.out.push_str("typeof(*null)");
                    Some(())
                }
                _ => None,
            },
            b'A' => self.wrapped("", "[]"),
            b'G' => {
                let length = self.number()?;
                self.wrapped("", &format!("[{length}]"))
            }
            b'H' => {
                let key = self.written(Self::any_type)?;
                self.wrapped("", &format!("[{key}]"))
            }
            b'P' if self.is_function() => self.any_type(),
            b'P' => self.wrapped("", "*"),
            b'I' | b'C' | b'S' | b'E' | b'T' => self.qualified(false),
            b'D' => {
                let modifiers = self.written(Self::modifiers)?;
                match self.peek()? {
                    b'Q' => self.at_reference(Self::function_type)?,
                    _ => self.function_type()?,
                }
                self.out.push_str("delegate");
                self.out.push_str(&modifiers);
                Some(())
            }
            b'B' => self.tuple(),
            b'z' => {
                let name = match self.next()? {
                    b'i' => "cent",
                    b'k' => "ucent",
                    _ => return None,
                };
                self.out.push_str(name);
                Some(())
            }
            _ => {
                self.out.push_str(basic_type(kind)?);
                Some(())
            }
        }
    }

    fn tuple(&mut self) -> Option<()> {
        self.out.push_str("Tuple!(");
        if self.peek()?.is_ascii_digit() {
            let count = self.number()?;
            for index in 0..count {
                if index > 0 {
                    self.out.push_str(", ");
                }
                self.any_type()?;
            }
        } else {
            self.arguments()?;
        }
        self.out.push(')');
        Some(())
    }

    /// `int(char) pure `, without the word behind it.
    fn function_type(&mut self) -> Option<()> {
        self.step()?;
        self.is_function().then_some(())?;
        let convention = self.call_convention()?;
        let attributes = self.attributes()?;
        let arguments = self.written(Self::arguments)?;
        self.out.push_str(convention);
        self.any_type()?;
        self.out.push_str(&format!("({arguments}) {attributes}"));
        Some(())
    }
}

fn basic_type(kind: u8) -> Option<&'static str> {
    Some(match kind {
        b'n' => "typeof(null)",
        b'v' => "void",
        b'g' => "byte",
        b'h' => "ubyte",
        b's' => "short",
        b't' => "ushort",
        b'i' => "int",
        b'k' => "uint",
        b'l' => "long",
        b'm' => "ulong",
        b'f' => "float",
        b'd' => "double",
        b'e' => "real",
        b'o' => "ifloat",
        b'p' => "idouble",
        b'j' => "ireal",
        b'q' => "cfloat",
        b'r' => "cdouble",
        b'c' => "creal",
        b'b' => "bool",
        b'a' => "char",
        b'u' => "wchar",
        b'w' => "dchar",
        _ => return None,
    })
}
