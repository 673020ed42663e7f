//! Output for a terminal in which no name can control the terminal.
//!
//! Names of functions, types, threads and files come from other people's programs. An escape sequence in a name could
//! change the terminal's title, its clipboard, or what the reader sees.

use std::io::{self, Write};

/// Passes text on, with `?` for control characters. Line breaks, tabs and colours pass.
pub struct Harmless<W> {
    inner: W,
    /// The beginning of a sequence that may be harmless: a write can end in its middle.
    pending: Vec<u8>,
}

/// The kind of a few bytes.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Text,
    Order,
    /// More bytes are needed.
    Open,
}

/// No colour sequence is longer.
const LONGEST_COLOUR: usize = 24;

impl<W: Write> Harmless<W> {
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            pending: Vec::new(),
        }
    }

    fn settle(&mut self) -> io::Result<()> {
        match meaning(&self.pending) {
            Meaning::Open => return Ok(()),
            Meaning::Text => self.inner.write_all(&self.pending)?,
            Meaning::Order => {
                // Only the first byte is replaced; the rest is text, or the start of another sequence.
                let rest = self.pending.split_off(1);
                let rest = match (self.pending.first(), rest.as_slice()) {
                    // A control character of two bytes in UTF-8.
                    (Some(0xC2), [_, rest @ ..]) => rest.to_vec(),
                    _ => rest,
                };
                self.pending.clear();
                self.inner.write_all(b"?")?;
                for byte in rest {
                    self.pending.push(byte);
                    self.settle()?;
                }
                return Ok(());
            }
        }
        self.pending.clear();
        Ok(())
    }
}

fn meaning(bytes: &[u8]) -> Meaning {
    match bytes {
        [] | [0x1b] | [0xC2] => Meaning::Open,
        [b'\n' | b'\t', ..] => Meaning::Text,
        [0x1b, b'[', colour @ ..] if bytes.len() <= LONGEST_COLOUR => match colour.split_last() {
            None => Meaning::Open,
            Some((last, rest)) => {
                let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b';';
                match last {
                    _ if !rest.iter().all(is_part) => Meaning::Order,
                    b'm' => Meaning::Text,
                    last if is_part(last) => Meaning::Open,
                    _ => Meaning::Order,
                }
            }
        },
        [0..=0x1f | 0x7f, ..] | [0xC2, 0x80..=0x9f, ..] => Meaning::Order,
        _ => Meaning::Text,
    }
}

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(&byte) = rest.first() {
            let is_plain = |byte: &u8| *byte >= 0x20 && *byte != 0x7f && *byte != 0xC2;
            let plain = rest.iter().take_while(|byte| is_plain(byte)).count();
            if self.pending.is_empty() && plain > 0 {
                self.inner.write_all(&rest[..plain])?;
                rest = &rest[plain..];
                continue;
            }
            self.pending.push(byte);
            self.settle()?;
            rest = &rest[1..];
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // No more bytes will come to complete it.
        if !self.pending.is_empty() {
            self.pending.clear();
            self.inner.write_all(b"?")?;
        }
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However it is cut.
    fn passed(text: &[u8]) -> String {
        let whole = |pieces: usize| {
            let mut out = Harmless::new(Vec::new());
            for piece in text.chunks(pieces) {
                out.write_all(piece).unwrap();
            }
            out.flush().unwrap();
            String::from_utf8(out.inner).unwrap()
        };
        let once = whole(text.len().max(1));
        for pieces in 1..8 {
            assert_eq!(whole(pieces), once);
        }
        once
    }

    #[test]
    fn text_and_colours_pass() {
        for text in [
            "",
            "a\tb\n",
            "é ± µ – 漢",
            "\u{a0}\u{bf}",
            "\x1b[1;31mred\x1b[0m",
            "\x1b[m",
        ] {
            assert_eq!(passed(text.as_bytes()), text);
        }
    }

    #[test]
    fn orders_do_not() {
        for (text, expected) in [
            ("\x1b]0;title\x07", "?]0;title?"),
            ("\x1b[2J\x1b[1m", "?[2J\x1b[1m"),
            ("\x1b[1\x1b[1m", "?[1\x1b[1m"),
            ("\x1b[?25l", "?[?25l"),
            ("\x1b\x1b[1m", "?\x1b[1m"),
            ("a\rb\x08c\x7f\0", "a?b?c??"),
            ("\u{9b}2J\u{85}x", "?2J?x"),
            ("end\x1b", "end?"),
            ("\x1b[1;2", "?"),
        ] {
            assert_eq!(passed(text.as_bytes()), expected, "{text:?}");
        }
        let long = format!("\x1b[{}m", "1;".repeat(20));
        assert_eq!(passed(long.as_bytes()), long.replace('\x1b', "?"));
    }
}
