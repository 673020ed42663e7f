//! Names as they can be shown.
//!
//! Names of functions, types, threads, modules and files come from other people's programs, and a profile may be made to
//! deceive. An escape sequence in a name would give orders to a terminal, a character that turns the direction of writing
//! would hide what is written, and most control characters are in no XML document. Every reader passes names through
//! [`readable`], so that no output has to.

use alloc::borrow::Cow;
use alloc::string::String;

/// Text for people: bytes that are no UTF-8, and characters that do something other than be seen, become U+FFFD. Line
/// breaks and tabs become spaces.
pub fn readable(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    if text.chars().all(is_plain) {
        return text;
    }
    Cow::Owned(text.chars().map(readable_char).collect())
}

/// Whether the character can stand in a name as it is.
pub fn is_plain(c: char) -> bool {
    !c.is_control() && !is_format(c)
}

/// The replacement of a character in a name.
pub fn readable_char(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => ' ',
        c if is_plain(c) => c,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

/// Directions of writing, separators of lines, and what XML does not allow. Joiners are left: some scripts need them.
const fn is_format(c: char) -> bool {
    matches!(c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_every_script_stay_as_they_are() {
        for name in [
            "",
            "main",
            "operator<<",
            "функция",
            "関数",
            "f\u{200d}g",
            "a b",
            "\u{a0}é",
        ] {
            assert!(matches!(readable(name.as_bytes()), Cow::Borrowed(same) if same == name));
        }
    }

    #[test]
    fn characters_that_act_are_replaced() {
        assert_eq!(readable(b"\x1b]0;title\x07"), "\u{fffd}]0;title\u{fffd}");
        assert_eq!(readable(b"a\tb\r\nc\0"), "a b  c\u{fffd}");
        assert_eq!(readable("\u{9b}2J\u{85}".as_bytes()), "\u{fffd}2J ");
        assert_eq!(
            readable("x\u{202e}y\u{2069}".as_bytes()),
            "x\u{fffd}y\u{fffd}"
        );
        assert_eq!(readable(b"\xff"), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_bytes_become_plain_text(bytes in proptest::collection::vec(any::<u8>(), 0..60), text in ".{0,20}") {
            for bytes in [&bytes[..], text.as_bytes()] {
                let name = readable(bytes);
                prop_assert!(name.chars().all(is_plain));
                prop_assert_eq!(readable(name.as_bytes()), name.as_ref());
            }
        }
    }
}
