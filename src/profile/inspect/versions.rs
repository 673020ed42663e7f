//! Where a runtime's file says which version it is.

use super::elf::{Elf, Symbol};

/// One way to read a version. What does not look like one is none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Version {
    /// Behind this text in its constants.
    After(&'static str),
    /// A whole text of its constants: this prefix, and so many numbers with dots between them.
    Text(&'static str, usize),
    /// The text at this symbol.
    Symbol(&'static str),
    /// This one, if it defines that symbol.
    If(&'static str, &'static str),
    /// The file's name, behind the runtime's.
    FileName,
    /// The directory below the one of this name.
    Below(&'static str),
    /// What CPython says of itself for debuggers, from 3.13 on, or as a number, from 3.11 on.
    Python,
    /// What Go's linker notes.
    Go,
}

impl Version {
    /// `name`: the runtime's in the name of the file at `path`, if it has one there.
    pub(super) fn read(
        self,
        path: &str,
        name: Option<&str>,
        elf: &Elf,
        symbols: &[Symbol],
    ) -> Option<String> {
        match self {
            Self::After(text) => elf.find_text(text.as_bytes(), number_at),
            Self::Text(prefix, numbers) => {
                let text = format!("\0{prefix}");
                elf.find_text(text.as_bytes(), |behind| {
                    let number = number_at(behind)?;
                    let is_whole = behind.get(number.len()) == Some(&0);
                    let is_long = number.split('.').count() == numbers;
                    (is_whole && is_long).then_some(number)
                })
            }
            Self::Symbol(name) => number_at(&bytes_of(name, elf, symbols)?),
            Self::If(mark, version) => {
                let is_there = symbols.iter().any(|it| it.name == mark);
                is_there.then(|| version.to_owned())
            }
            Self::FileName => {
                let file = path.rsplit('/').next()?;
                let behind = file.strip_prefix(name?)?;
                number_at(behind.trim_start_matches('-').as_bytes())
            }
            Self::Below(directory) => {
                let mut parts = path.split('/').skip_while(|part| *part != directory);
                number_at(parts.nth(1)?.as_bytes())
            }
            Self::Python => python(elf, symbols),
            Self::Go => go(&elf.section(".go.buildinfo")?),
        }
    }
}

fn bytes_of(name: &str, elf: &Elf, symbols: &[Symbol]) -> Option<Vec<u8>> {
    const LONGEST: usize = 64;
    let symbol = symbols.iter().find(|it| it.name == name)?;
    elf.at(symbol.address, LONGEST)
}

/// Numbers with dots between them.
fn number_at(text: &[u8]) -> Option<String> {
    const LONGEST: usize = 24;
    let is_of_it = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let length = text.iter().take_while(|byte| is_of_it(byte)).count();
    let number = std::str::from_utf8(text.get(..length)?).ok()?;
    let number = number.trim_end_matches('.');
    let is_number = number.starts_with(|c: char| c.is_ascii_digit()) && number.len() <= LONGEST;
    is_number.then(|| number.to_owned())
}

/// `_Py_DebugOffsets` begins with a cookie, then `PY_VERSION_HEX` in 64 bits.
fn python(elf: &Elf, symbols: &[Symbol]) -> Option<String> {
    const COOKIE: &[u8] = b"xdebugpy";
    let word = |bytes: &[u8]| bytes.first_chunk().map(|it| u64::from_le_bytes(*it));
    let runtime = bytes_of("_PyRuntime", elf, symbols);
    let described = runtime.and_then(|bytes| word(bytes.strip_prefix(COOKIE)?));
    let hex = described.or_else(|| word(&bytes_of("Py_Version", elf, symbols)?))?;
    let part = |shift: u32| hex >> shift & 0xff;
    (part(24) == 3).then(|| format!("{}.{}.{}", part(24), part(16), part(8)))
}

/// From Go 1.18 on the version stands in the section itself: behind 32 bytes, with its length before it.
fn go(section: &[u8]) -> Option<String> {
    const MAGIC: &[u8] = b"\xff Go buildinf:";
    const IS_INLINE: u8 = 2;
    let is_inline = section.strip_prefix(MAGIC)?.get(1)? & IS_INLINE != 0;
    let text = section.get(33..).filter(|_| is_inline)?;
    number_at(text.strip_prefix(b"go")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_numbers_with_dots() {
        for (text, version) in [
            ("17.0.15+6-Debian", Some("17.0.15")),
            ("8.2.36", Some("8.2.36")),
            ("25).", Some("25")),
            ("3.", Some("3")),
            (".5", None),
            ("x", None),
            ("", None),
            ("1111111111111111111111111111111111", None),
        ] {
            assert_eq!(number_at(text.as_bytes()).as_deref(), version, "{text}");
        }
    }

    #[test]
    fn gos_section_is_read_where_it_holds_the_version() {
        let mut section = b"\xff Go buildinf:\x08\x02".to_vec();
        section.resize(32, 0);
        section.extend(b"\x08go1.19.8rest");
        assert_eq!(go(&section).as_deref(), Some("1.19.8"));
        section[15] = 0;
        assert_eq!(go(&section), None);
        assert_eq!(go(b"\xff Go buildinf:"), None);
    }
}
