//! Values that templates are instantiated with.

use super::Parser;

impl Parser<'_> {
    pub(super) fn value(&mut self, kind: u8, type_name: &str) -> Option<()> {
        self.step()?;
        let first = self.next()?;
        match first {
            b'n' => {
                self.out.push_str("null");
                Some(())
            }
            b'N' => {
                self.out.push('-');
                self.integer(kind)
            }
            b'i' => self.integer(kind),
            b'0'..=b'9' => {
                self.at -= 1;
                self.integer(kind)
            }
            b'e' => self.real(),
            b'c' => {
                self.real()?;
                self.out.push('+');
                self.take(b"c").then_some(())?;
                self.real()?;
                self.out.push('i');
                Some(())
            }
            b'a' | b'w' | b'd' => self.string(first),
            b'A' => {
                let count = self.number()?;
                self.out.push('[');
                for index in 0..count {
                    if index > 0 {
                        self.out.push_str(", ");
                    }
                    self.nested(|it| it.value(0, ""))?;
                    if kind == b'H' {
                        self.out.push(':');
                        self.nested(|it| it.value(0, ""))?;
                    }
                }
                self.out.push(']');
                Some(())
            }
            b'S' => {
                let count = self.number()?;
                self.out.push_str(type_name);
                self.out.push('(');
                for index in 0..count {
                    if index > 0 {
                        self.out.push_str(", ");
                    }
                    self.nested(|it| it.value(0, ""))?;
                }
                self.out.push(')');
                Some(())
            }
            b'f' => self.nested(Self::mangled_name),
            _ => None,
        }
    }

    fn integer(&mut self, kind: u8) -> Option<()> {
        let digits = self
            .rest()
            .iter()
            .take_while(|it| it.is_ascii_digit())
            .count();
        let text = std::str::from_utf8(self.name.get(self.at..self.at + digits)?).ok()?;
        (!text.is_empty()).then_some(())?;
        let text = text.to_owned();
        self.at += digits;
        match kind {
            b'a' | b'u' | b'w' => {
                let code: u32 = text.parse().ok()?;
                let shown = match (kind, u8::try_from(code)) {
                    (b'a', Ok(byte @ 0x20..=0x7e)) => char::from(byte).to_string(),
                    (b'a', _) => format!("\\x{code:02x}"),
                    (b'u', _) => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                };
                self.out.push_str(&format!("'{shown}'"));
            }
            b'b' => {
                let is_true = text.bytes().any(|it| it != b'0');
                self.out.push_str(if is_true { "true" } else { "false" });
            }
            _ => {
                self.out.push_str(&text);
                self.out.push_str(match kind {
                    b'h' | b't' | b'k' => "u",
                    b'l' => "L",
                    b'm' => "uL",
                    _ => "",
                });
            }
        }
        Some(())
    }

    /// `NAN`, `INF`, or digits of base 16 with an exponent: `N8P4` is -0x8.p4.
    fn real(&mut self) -> Option<()> {
        for (written, shown) in [("NAN", "NaN"), ("INF", "Inf"), ("NINF", "-Inf")] {
            if self.take(written.as_bytes()) {
                self.out.push_str(shown);
                return Some(());
            }
        }
        if self.take(b"N") {
            self.out.push('-');
        }
        let first = self.next().filter(u8::is_ascii_hexdigit)?;
        self.out.push_str("0x");
        self.out.push(char::from(first));
        self.out.push('.');
        while let Some(digit) = self.peek().filter(u8::is_ascii_hexdigit) {
            self.step()?;
            self.out.push(char::from(digit));
            self.at += 1;
        }
        self.take(b"P").then_some(())?;
        self.out.push('p');
        if self.take(b"N") {
            self.out.push('-');
        }
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            self.step()?;
            self.out.push(char::from(digit));
            self.at += 1;
        }
        Some(())
    }

    /// A number of bytes, `_`, and two digits of base 16 for each.
    fn string(&mut self, kind: u8) -> Option<()> {
        let length = self.number()?;
        self.take(b"_").then_some(())?;
        self.out.push('"');
        for _ in 0..length {
            self.step()?;
            let digits = self.name.get(self.at..self.at.checked_add(2)?)?;
            let byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            self.at += 2;
            match byte {
                b'\t' => self.out.push_str("\\t"),
                b'\n' => self.out.push_str("\\n"),
                b'\r' => self.out.push_str("\\r"),
                0x0c => self.out.push_str("\\f"),
                0x0b => self.out.push_str("\\v"),
                0x20..=0x7e => self.out.push(char::from(byte)),
                _ => self.out.push_str(&format!("\\x{byte:02x}")),
            }
        }
        self.out.push('"');
        if kind != b'a' {
            self.out.push(char::from(kind));
        }
        Some(())
    }
}
