//! Demangles the names of D: `_D3app5Queue4pushMFiZv` is `app.Queue.push`.
//!
//! The grammar is that of the language's ABI (<https://dlang.org/spec/abi.html#name_mangling>). A name refers back to parts of
//! itself, so a short one can stand for a text without end: both the steps and the text are bounded, and a name that needs
//! more, or that is not one of D's, has no demangled form.

mod templates;
mod types;
mod values;

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
    let mangled = behind_thunk(mangled).unwrap_or(mangled);
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

/// The function that an interface's entry jumps to, as gdc names such entries: `_DTi16_D3app5Queue4pushMFiZv`.
fn behind_thunk(mangled: &str) -> Option<&str> {
    let distance = mangled.strip_prefix("_DT")?.trim_start_matches(['i', 'n']);
    let name = distance.trim_start_matches(|c: char| c.is_ascii_digit());
    (name.len() < distance.len() && name.starts_with("_D")).then_some(name)
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
}

#[cfg(test)]
mod tests;
