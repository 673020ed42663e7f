//! The record of an executable or shared object that code was seen in.

use crate::ModuleId;
use crate::words::{WordReader, WordWriter, text_words};

/// Longest build id that is kept (the linkers' default is 20 bytes, SHA-1).
pub const MAX_BUILD_ID_BYTES: usize = 32;
/// Longest path that is kept; longer ones are cut at the end.
pub const MAX_PATH_BYTES: usize = 4096;

/// A module as it was mapped when a stack first ran through it. A later record that overlaps its range replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleRecord<'a> {
    /// First mapped address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Address in memory minus address in the file's program headers.
    pub bias: u64,
    /// GNU build id, empty if it has none.
    pub build_id: &'a [u8],
    /// As the dynamic loader knows it; made absolute for the main program. Not always UTF-8.
    pub path: &'a [u8],
}

impl<'a> ModuleRecord<'a> {
    /// Length of the payload in words.
    pub fn words(&self) -> usize {
        5 + text_words(self.build_id.len()) + text_words(self.path.len())
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.start)?
            .word(self.end)?
            .word(self.bias)?
            .word(self.build_id.len() as u64)?
            .word(self.path.len() as u64)?
            .text(self.build_id)?
            .text(self.path)?;
        Some(writer.used())
    }

    /// Decodes a payload; `text` is the same words as bytes.
    pub fn decode(words: &'a [u64], text: &'a [u8]) -> Option<Self> {
        let mut reader = WordReader::new(words, text);
        let (start, end, bias) = (reader.word()?, reader.word()?, reader.word()?);
        let build_id_bytes = usize::try_from(reader.word()?).ok()?;
        let path_bytes = usize::try_from(reader.word()?).ok()?;
        let build_id = reader.text(build_id_bytes)?;
        let path = reader.text(path_bytes)?;
        Some(Self {
            start,
            end,
            bias,
            build_id,
            path,
        })
    }
}

/// A module that the profile has described already is mapped again, perhaps elsewhere. The drain thread writes it in the
/// place of a [`ModuleRecord`] with the same path and build id, so that a program that loads and unloads a plugin all day
/// does not fill memory and profile with copies of the same stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleAgainRecord {
    /// Its number.
    pub module: ModuleId,
    /// First mapped address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Address in memory minus address in the file's program headers.
    pub bias: u64,
}

impl ModuleAgainRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 4;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(u64::from(self.module.0))?
            .word(self.start)?
            .word(self.end)?
            .word(self.bias)?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        Some(Self {
            module: ModuleId(u32::try_from(reader.word()?).ok()?),
            start: reader.word()?,
            end: reader.word()?,
            bias: reader.word()?,
        })
    }
}
