//! Templates and what they are instantiated with.

use super::Parser;

impl Parser<'_> {
    /// `__T`, a name, its arguments, `Z`.
    pub(super) fn template(&mut self) -> Option<()> {
        self.at += 3;
        self.identifier()?;
        self.out.push_str("!(");
        let mut is_first = true;
        while !self.take(b"Z") {
            if !is_first {
                self.out.push_str(", ");
            }
            is_first = false;
            self.nested(Self::template_argument)?;
        }
        self.out.push(')');
        Some(())
    }

    fn template_argument(&mut self) -> Option<()> {
        self.take(b"H");
        match self.next()? {
            b'T' => self.any_type(),
            b'S' => self.symbol_argument(),
            b'V' => {
                // A reference says nothing of how the value is written: the type that it leads to does.
                let mut kind = self.peek()?;
                if kind == b'Q' {
                    let mut ahead = Parser {
                        out: String::new(),
                        ..*self
                    };
                    kind = *self.name.get(ahead.back_reference()?)?;
                }
                let name = self.written(Self::any_type)?;
                self.value(kind, &name)
            }
            b'X' => {
                let length = self.number()?;
                let end = self.at.checked_add(length)?;
                let text = self.name.get(self.at..end)?;
                self.out.push_str(std::str::from_utf8(text).ok()?);
                self.at = end;
                Some(())
            }
            _ => None,
        }
    }

    /// A symbol as it is mangled, with or without its length before it, or a qualified name.
    fn symbol_argument(&mut self) -> Option<()> {
        if self.rest().starts_with(b"_D") {
            return self.mangled_name();
        }
        if self.peek() == Some(b'Q') {
            return self.qualified(false);
        }
        // Old compilers wrote a length before it, whose last digits may be those of the first name.
        let start = self.at;
        let digits = self
            .rest()
            .iter()
            .take_while(|it| it.is_ascii_digit())
            .count();
        for taken in (1..=digits).rev() {
            let length = std::str::from_utf8(self.name.get(start..start + taken)?).ok()?;
            let length: usize = length.parse().ok()?;
            self.at = start + taken;
            let Some(end) = self.at.checked_add(length) else {
                continue;
            };
            let before = self.out.len();
            let found = match self.rest() {
                rest if rest.starts_with(b"_D") => self.mangled_name(),
                rest if rest.first().is_some_and(u8::is_ascii_digit) => self.qualified(false),
                _ => None,
            };
            if found.is_some() && self.at == end {
                return Some(());
            }
            self.step()?;
            self.out.truncate(before);
        }
        self.at = start;
        self.qualified(false)
    }
}
