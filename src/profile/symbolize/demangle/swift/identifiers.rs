//! Identifiers and names of declarations.

use super::{Kind, Machine, Node, NodeId};

/// Words that later identifiers can refer to.
const MOST_WORDS: usize = 26;
/// Bytes of an identifier with other characters than those of ASCII, whose decoding takes quadratic time.
const LONGEST_PUNYCODE: usize = 1_000;
/// The characters of operators, from `a` on.
const OPERATOR_CHARACTERS: &[u8] = b"& @/= >    <*!|+?%-~   ^ .";

impl<'a> Machine<'a> {
    pub(super) fn identifier(&mut self) -> Option<NodeId> {
        self.peek().filter(u8::is_ascii_digit)?;
        let (mut has_words, mut is_punycode) = (false, false);
        if self.take(b'0') {
            is_punycode = self.take(b'0');
            has_words = !is_punycode;
        }
        let mut identifier = String::new();
        loop {
            while has_words && self.peek().is_some_and(|it| it.is_ascii_alphabetic()) {
                let letter = self.next()?;
                has_words = letter.is_ascii_lowercase();
                let index = usize::from(letter.to_ascii_lowercase() - b'a');
                let word = *self.words.get(index)?;
                identifier.push_str(std::str::from_utf8(word).ok()?);
                (identifier.len() <= super::LONGEST).then_some(())?;
            }
            if self.take(b'0') {
                break;
            }
            let length = self.natural().filter(|it| *it > 0)?;
            if is_punycode {
                self.take(b'_');
            }
            let end = self.at.checked_add(length)?;
            let slice = self.name.get(self.at..end)?;
            self.at = end;
            if is_punycode {
                identifier.push_str(&punycode(slice)?);
            } else {
                identifier.push_str(std::str::from_utf8(slice).ok()?);
                self.remember_words(slice);
            }
            if !has_words {
                break;
            }
        }
        (!identifier.is_empty()).then_some(())?;
        let node = self.tree.add(Node {
            text: identifier.into(),
            ..Node::of(Kind::Identifier)
        })?;
        self.substitutions.push(node);
        Some(node)
    }

    fn remember_words(&mut self, slice: &'a [u8]) {
        let mut start = None;
        for at in 0..=slice.len() {
            let byte = slice.get(at).copied();
            if let Some(from) = start {
                let before = slice.get(at.wrapping_sub(1)).copied();
                let is_capital = |it: Option<u8>| it.is_some_and(|it| it.is_ascii_uppercase());
                let is_end =
                    matches!(byte, None | Some(b'_')) || (!is_capital(before) && is_capital(byte));
                if is_end {
                    if at - from >= 2 && self.words.len() < MOST_WORDS {
                        self.words.push(&slice[from..at]);
                    }
                    start = None;
                }
            }
            let begins = byte.is_some_and(|it| !it.is_ascii_digit() && it != b'_');
            if start.is_none() && begins {
                start = Some(at);
            }
        }
    }

    pub(super) fn operator_identifier(&mut self) -> Option<NodeId> {
        let identifier = self.pop_kind(Kind::Identifier)?;
        let mut operator = String::new();
        for character in self.tree.node(identifier).text.chars() {
            if !character.is_ascii() {
                operator.push(character);
                continue;
            }
            let index = u8::try_from(character).ok()?.checked_sub(b'a')?;
            let byte = *OPERATOR_CHARACTERS.get(usize::from(index))?;
            (byte != b' ').then_some(())?;
            operator.push(char::from(byte));
        }
        let position = match self.next()? {
            b'i' => " infix",
            b'p' => " prefix",
            b'P' => " postfix",
            _ => return None,
        };
        self.tree.add(Node {
            text: operator.into(),
            ..Node::of(Kind::Operator(position))
        })
    }

    /// A private name, one that is related to another, or one of a local declaration.
    pub(super) fn local_identifier(&mut self) -> Option<NodeId> {
        match self.peek()? {
            b'L' => {
                self.at += 1;
                let discriminator = self.pop_kind(Kind::Identifier)?;
                let name = self.pop_if(Kind::is_declaration_name)?;
                self.node(Kind::PrivateName, vec![discriminator, name])
            }
            b'l' => {
                self.at += 1;
                let discriminator = self.pop_kind(Kind::Identifier)?;
                self.node(Kind::PrivateName, vec![discriminator])
            }
            letter @ (b'a'..=b'j' | b'A'..=b'J') => {
                self.at += 1;
                let name = self.pop()?;
                self.tree.add(Node {
                    text: char::from(letter).to_string().into(),
                    children: vec![name],
                    ..Node::of(Kind::RelatedName)
                })
            }
            _ => {
                let number = self.index_node()?;
                let name = self.pop_if(Kind::is_declaration_name)?;
                self.node(Kind::LocalName, vec![number, name])
            }
        }
    }
}

/// Decodes an identifier (RFC 3492), whose digits are `a` to `z` and `A` to `J` here, whose delimiter is `_`, and in which
/// U+D800 to U+D87F stand for characters of ASCII that no symbol may have.
fn punycode(text: &[u8]) -> Option<String> {
    const BASE: u32 = 36;
    (text.len() <= LONGEST_PUNYCODE).then_some(())?;
    let (basic, digits) = match text.iter().rposition(|it| *it == b'_') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (&text[..0], text),
    };
    let mut output: Vec<u32> = basic.iter().copied().map(u32::from).collect();
    let (mut code, mut index, mut bias) = (128_u32, 0_u32, 72_u32);
    let mut digits = digits.iter();
    while digits.len() > 0 {
        let before = index;
        let mut weight = 1_u32;
        for k in (BASE..).step_by(36) {
            let digit = match *digits.next()? {
                byte @ b'a'..=b'z' => byte - b'a',
                byte @ b'A'..=b'J' => byte - b'A' + 26,
                _ => return None,
            };
            let digit = u32::from(digit);
            index = index.checked_add(digit.checked_mul(weight)?)?;
            let threshold = k.saturating_sub(bias).clamp(1, 26);
            if digit < threshold {
                break;
            }
            weight = weight.checked_mul(BASE - threshold)?;
        }
        let length = u32::try_from(output.len() + 1).ok()?;
        let mut delta = (index - before) / if before == 0 { 700 } else { 2 };
        delta += delta / length;
        let mut k = 0;
        while delta > 455 {
            delta /= BASE - 1;
            k += BASE;
        }
        bias = k + 36 * delta / (delta + 38);
        code = code.checked_add(index / length)?;
        index %= length;
        output.insert(usize::try_from(index).ok()?, code);
        index += 1;
    }
    let character = |it: u32| match it {
        0xd800..=0xd87f => char::from_u32(it - 0xd800),
        _ => char::from_u32(it),
    };
    output.into_iter().map(character).collect()
}
