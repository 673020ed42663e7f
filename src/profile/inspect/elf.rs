//! Reads the few parts of an ELF file that say what is linked into it. Whatever is in the file, no more is read than it has.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use memchr::memmem;
use object::{Object, ObjectSection, ReadCache, ReadRef, SectionKind};

/// A larger file is no module. It may be one without end.
const LARGEST_FILE: u64 = 4 << 30;
/// A larger section is not looked at.
const LARGEST_SECTION: u64 = 256 << 20;
/// Longer names are none of those that are looked for: most are C++'s.
const LONGEST_NAME: usize = 40;

/// A symbol of a 64-bit file.
const ENTRY_BYTES: usize = 24;

/// An ELF file, of which parts are read when they are asked for.
pub(super) struct Elf {
    cache: ReadCache<File>,
}

/// A symbol that the file defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) name: String,
    pub(super) address: u64,
}

impl Elf {
    /// `None`: no ELF file, or more than is `left`. A profile may name any file as a module: a pipe, which nobody writes
    /// to, or a device without end.
    pub(super) fn open(path: &Path, left: &mut u64) -> Option<Self> {
        const MAGIC: [u8; 4] = *b"\x7fELF";
        let metadata = std::fs::metadata(path).ok()?;
        if !metadata.is_file() || metadata.len() > LARGEST_FILE {
            return None;
        }
        *left = left.checked_sub(metadata.len())?;
        let mut file = File::open(path).ok()?;
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).ok()?;
        (magic == MAGIC).then(|| Self {
            cache: ReadCache::new(file),
        })
    }

    fn file(&self) -> Option<object::File<'_, &ReadCache<File>>> {
        object::File::parse(&self.cache).ok()
    }

    pub(super) fn build_id(&self) -> Vec<u8> {
        let file = self.file();
        let id = file
            .as_ref()
            .and_then(|file| file.build_id().ok().flatten());
        id.unwrap_or(&[]).to_vec()
    }

    /// The symbols that the file defines, of those whose names are wanted. C++'s are not looked at.
    ///
    /// A table and its names are read as one block each: a reading for every name takes a large program's file a hundred
    /// thousand system calls.
    pub(super) fn symbols(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Symbol> {
        let mut found = Vec::new();
        for (table, names) in [(".dynsym", ".dynstr"), (".symtab", ".strtab")] {
            let (Some(table), Some(names)) = (self.block(table), self.block(names)) else {
                continue;
            };
            // In our byte order, as every file is whose code runs here.
            for entry in table.chunks_exact(ENTRY_BYTES) {
                if let Some(symbol) = defined(entry, names, &is_wanted) {
                    found.push(symbol);
                }
            }
        }
        found
    }

    fn block(&self, section: &str) -> Option<&[u8]> {
        let file = self.file()?;
        let (offset, bytes) = file.section_by_name(section)?.file_range()?;
        (bytes <= LARGEST_SECTION).then_some(())?;
        self.cache.read_bytes_at(offset, bytes).ok()
    }

    pub(super) fn section(&self, name: &str) -> Option<Vec<u8>> {
        Some(self.block(name)?.to_vec())
    }

    /// At most so many bytes of what lies at an address.
    pub(super) fn at(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let file = self.file()?;
        let section = file.sections().find(|section| {
            let place = address.checked_sub(section.address());
            section.address() > 0 && place.is_some_and(|it| it < section.size())
        })?;
        let (offset, length) = section.file_range()?;
        let skipped = address - section.address();
        let length = length.checked_sub(skipped)?.min(bytes as u64);
        let offset = offset.checked_add(skipped)?;
        Some(self.cache.read_bytes_at(offset, length).ok()?.to_vec())
    }

    /// Calls `found` with what stands behind each occurrence of `text` in constants, until it gives something. What it is
    /// given ends after so many bytes.
    pub(super) fn find_text<T>(
        &self,
        text: &[u8],
        mut found: impl FnMut(&[u8]) -> Option<T>,
    ) -> Option<T> {
        const BEHIND: usize = 64;
        let finder = memmem::Finder::new(text);
        let file = self.file()?;
        let constants = file.sections().filter(|section| {
            let is_constant = matches!(
                section.kind(),
                SectionKind::ReadOnlyData | SectionKind::ReadOnlyString
            );
            is_constant && section.size() <= LARGEST_SECTION
        });
        for section in constants {
            let Some((offset, bytes)) = section.file_range() else {
                continue;
            };
            let Ok(data) = self.cache.read_bytes_at(offset, bytes) else {
                continue;
            };
            for at in finder.find_iter(data) {
                let behind = data.get(at + text.len()..).unwrap_or(&[]);
                let behind = behind.get(..BEHIND).unwrap_or(behind);
                if let Some(it) = found(behind) {
                    return Some(it);
                }
            }
        }
        None
    }
}

/// The symbol of an entry: `name: u32, info: u8, other: u8, section: u16, address: u64, bytes: u64`. `None`: the file does
/// not define it, or its name is not wanted.
fn defined(entry: &[u8], names: &[u8], is_wanted: impl Fn(&str) -> bool) -> Option<Symbol> {
    const DEFINED: std::ops::Range<u16> = 1..0xff00;
    const UNTYPED: u8 = 0;
    const TYPED: [u8; 2] = [1, 2]; // data, functions
    let half = |at: usize| Some(u16::from_ne_bytes(*entry.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u64::from_ne_bytes(*entry.get(at..)?.first_chunk()?));
    let (kind, bytes) = (entry.get(4)? & 0xf, word(16)?);
    let is_typed = TYPED.contains(&kind) || kind == UNTYPED && bytes > 0;
    if !is_typed || !DEFINED.contains(&half(6)?) {
        return None;
    }
    let at = u32::from_ne_bytes(*entry.first_chunk()?);
    let name = names.get(usize::try_from(at).ok()?..)?;
    if name.starts_with(b"_Z") {
        return None;
    }
    let name = name.get(..=LONGEST_NAME).unwrap_or(name);
    let name = std::str::from_utf8(name.get(..memchr::memchr(0, name)?)?).ok()?;
    is_wanted(name).then_some(())?;
    Some(Symbol {
        name: name.to_owned(),
        address: word(8)?,
    })
}
