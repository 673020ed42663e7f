//! Demangles the names of D: `_D3app5Queue4pushMFiZv` is `app.Queue.push`.
//!
//! The grammar is that of the language's ABI (<https://dlang.org/spec/abi.html#name_mangling>). A name refers back to parts of
//! itself, so a short one can stand for a text without end: both the steps and the text are bounded, and a name that needs
//! more, or that is not one of D's, has no demangled form.

/// Steps of the grammar in one name. The longest names of Phobos, some thousand bytes, take a few thousand.
const MOST_STEPS: usize = 50_000;
/// Types inside of each other.
const DEEPEST: usize = 100;
/// Bytes of a demangled name.
const LONGEST: usize = 16 << 10;

/// Whether a function's parameters are a part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameters {
    /// `app.Queue.push`
    Hidden,
    /// `app.Queue.push(int)`
    Shown,
}

/// The readable form of a name, `None` if it is none of D's.
pub(super) fn demangle(mangled: &str, parameters: Parameters) -> Option<String> {
    if mangled == "_Dmain" {
        return Some("D main".to_owned());
    }
    if !mangled.starts_with("_D") || !mangled.is_ascii() {
        return None;
    }
    let mut parser = Parser {
        name: mangled.as_bytes(),
        at: 0,
        out: String::new(),
        parameters,
        steps: 0,
        depth: 0,
    };
    parser.mangled_name()?;
    (parser.at == mangled.len()).then_some(parser.out)
}

struct Parser<'a> {
    name: &'a [u8],
    at: usize,
    out: String,
    parameters: Parameters,
    steps: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.name.get(self.at).copied()
    }

    fn rest(&self) -> &[u8] {
        self.name.get(self.at..).unwrap_or(&[])
    }

    fn take(&mut self, text: &[u8]) -> bool {
        let is_here = self.rest().starts_with(text);
        if is_here {
            self.at += text.len();
        }
        is_here
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Counts a step; `None`: there were too many, or the text is too long.
    fn step(&mut self) -> Option<()> {
        self.steps += 1;
        (self.steps <= MOST_STEPS && self.out.len() <= LONGEST).then_some(())
    }

    /// Goes one level down for `inner`.
    fn nested(&mut self, inner: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.step()?;
        self.depth += 1;
        let result = (self.depth <= DEEPEST).then(|| inner(self)).flatten();
        self.depth -= 1;
        result
    }

    /// What `inner` writes, taken out of the text again.
    fn written(&mut self, inner: impl FnOnce(&mut Self) -> Option<()>) -> Option<String> {
        let before = self.out.len();
        inner(self)?;
        Some(self.out.split_off(before))
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.rest().iter().take_while(|it| it.is_ascii_digit());
        let count = digits.count();
        let text = std::str::from_utf8(self.rest().get(..count)?).ok()?;
        let number = text.parse().ok()?;
        self.at += count;
        Some(number)
    }

    /// `Q` and a number to base 26, whose last digit is a small letter: how far back the place is.
    fn back_reference(&mut self) -> Option<usize> {
        let start = self.at;
        self.take(b"Q").then_some(())?;
        let mut distance: usize = 0;
        loop {
            let byte = self.next()?;
            let digit = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a',
                _ => return None,
            };
            distance = distance.checked_mul(26)?.checked_add(usize::from(digit))?;
            if byte.is_ascii_lowercase() {
                break;
            }
        }
        (distance > 0).then(|| start.checked_sub(distance))?
    }

    /// Reads `inner` at an earlier place, and comes back.
    fn at_reference(&mut self, inner: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let target = self.back_reference()?;
        let after = std::mem::replace(&mut self.at, target);
        self.nested(inner)?;
        self.at = after;
        Some(())
    }

    fn mangled_name(&mut self) -> Option<()> {
        self.take(b"_D").then_some(())?;
        self.qualified(true)?;
        if self.take(b"Z") {
            return Some(());
        }
        self.written(Self::any_type).map(drop)
    }

    /// Whether a further part of a qualified name begins here.
    fn is_symbol_name(&self) -> bool {
        match self.peek() {
            Some(b'0'..=b'9') => true,
            Some(b'Q') => {
                let mut ahead = Parser {
                    out: String::new(),
                    ..*self
                };
                let target = ahead.back_reference();
                target.is_some_and(|it| self.name.get(it).is_some_and(u8::is_ascii_digit))
            }
            _ => self.is_template(),
        }
    }

    fn is_template(&self) -> bool {
        self.rest().starts_with(b"__T") || self.rest().starts_with(b"__U")
    }

    /// Names with dots between them, each with the type of a function if others are inside of it.
    fn qualified(&mut self, has_modifiers: bool) -> Option<()> {
        let begin = self.out.len();
        loop {
            self.step()?;
            if self.take(b"0") {
                // Without a name.
            } else {
                if self.out.len() > begin {
                    self.out.push('.');
                }
                self.identifier()?;
                self.function_of_name(has_modifiers)?;
            }
            if !self.is_symbol_name() {
                return Some(());
            }
        }
    }

    /// The type of a function behind its name. What looks like one and is none is left where it is.
    fn function_of_name(&mut self, has_modifiers: bool) -> Option<()> {
        let (at, length) = (self.at, self.out.len());
        let found = (|| {
            let mut modifiers = String::new();
            if self.take(b"M") {
                modifiers = self.written(|it| it.modifiers())?;
            } else if !self.is_function() {
                return None;
            }
            self.call_convention()?;
            self.attributes()?;
            let arguments = self.written(|it| it.arguments())?;
            if self.parameters == Parameters::Shown {
                self.out.push_str(&format!("({arguments})"));
                if has_modifiers {
                    self.out.push_str(&modifiers);
                }
            }
            self.peek().map(drop)
        })();
        if found.is_none() {
            self.step()?;
            self.at = at;
            self.out.truncate(length);
        }
        Some(())
    }

    /// Modifiers behind a method's parameters.
    fn modifiers(&mut self) -> Option<()> {
        loop {
            let text = match self.peek() {
                Some(b'x') => " const",
                Some(b'y') => " immutable",
                Some(b'O') => " shared",
                Some(b'N') if self.rest().starts_with(b"Ng") => {
                    self.at += 1;
                    " inout"
                }
                _ => return Some(()),
            };
            self.at += 1;
            self.out.push_str(text);
        }
    }

    fn identifier(&mut self) -> Option<()> {
        self.step()?;
        if self.peek() == Some(b'Q') {
            return self.at_reference(|it| {
                it.peek()?.is_ascii_digit().then_some(())?;
                it.identifier()
            });
        }
        if self.is_template() {
            return self.template();
        }
        let length = self.number()?;
        let end = self.at.checked_add(length)?;
        if length >= 5 && self.is_template() {
            self.nested(Self::template)?;
            return (self.at == end).then_some(());
        }
        let name = self.name.get(self.at..end).filter(|it| !it.is_empty())?;
        // A parent that only tells apart declarations of one name in one function.
        let is_number = |it: &[u8]| !it.is_empty() && it.iter().all(u8::is_ascii_digit);
        if name.strip_prefix(b"__S").is_some_and(is_number) {
            self.at = end;
            return self.identifier();
        }
        let shown = match name {
            b"__ctor" => "this",
            b"__dtor" => "~this",
            b"__postblit" => "this(this)",
            _ => std::str::from_utf8(name).ok()?,
        };
        self.out.push_str(shown);
        self.at = end;
        if name == b"__postblit" {
            self.take(b"MFZ");
        }
        Some(())
    }

    /// `__T`, a name, its arguments, `Z`.
    fn template(&mut self) -> Option<()> {
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

    fn is_function(&self) -> bool {
        matches!(self.peek(), Some(b'F' | b'U' | b'V' | b'W' | b'R' | b'Y'))
    }

    fn call_convention(&mut self) -> Option<&'static str> {
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

    fn attributes(&mut self) -> Option<String> {
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

    fn arguments(&mut self) -> Option<()> {
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

    fn any_type(&mut self) -> Option<()> {
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

    fn value(&mut self, kind: u8, type_name: &str) -> Option<()> {
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

#[cfg(test)]
mod tests;
