//! Cursors over the words of a ring record: they write them without a heap and read them without trust.

/// Words needed for `bytes` bytes of text.
pub(crate) const fn text_words(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Fills a slice word by word; the first write that does not fit makes the whole record fail.
pub(crate) struct WordWriter<'a> {
    words: &'a mut [u64],
    used: usize,
}

impl<'a> WordWriter<'a> {
    pub(crate) fn new(words: &'a mut [u64]) -> Self {
        Self { words, used: 0 }
    }

    pub(crate) fn word(&mut self, value: u64) -> Option<&mut Self> {
        *self.words.get_mut(self.used)? = value;
        self.used += 1;
        Some(self)
    }

    pub(crate) fn words(&mut self, values: &[u64]) -> Option<&mut Self> {
        self.words
            .get_mut(self.used..self.used.checked_add(values.len())?)?
            .copy_from_slice(values);
        self.used += values.len();
        Some(self)
    }

    /// Little-endian bytes, padded with zeros to a whole word.
    pub(crate) fn text(&mut self, bytes: &[u8]) -> Option<&mut Self> {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.get_mut(..chunk.len())?.copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word))?;
        }
        Some(self)
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

/// Reads words in order; text is borrowed from the same words seen as bytes.
pub(crate) struct WordReader<'a> {
    words: &'a [u64],
    text: &'a [u8],
    used: usize,
}

impl<'a> WordReader<'a> {
    pub(crate) fn new(words: &'a [u64], text: &'a [u8]) -> Self {
        Self {
            words,
            text,
            used: 0,
        }
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let word = self.words.get(self.used).copied()?;
        self.used += 1;
        Some(word)
    }

    pub(crate) fn words(&mut self, count: usize) -> Option<&'a [u64]> {
        let end = self.used.checked_add(count)?;
        let words = self.words.get(self.used..end)?;
        self.used = end;
        Some(words)
    }

    pub(crate) fn text(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let start = self.used.checked_mul(8)?;
        let text = self.text.get(start..start.checked_add(bytes)?)?;
        self.words(text_words(bytes))?;
        Some(text)
    }
}

/// Packs two halves into one word.
pub(crate) const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

pub(crate) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
