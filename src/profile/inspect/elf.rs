//! Reads the few parts of an ELF file that say what is linked into it. Whatever is in the file, no more is read than it has.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use memchr::memmem;
use object::{Object, ObjectSection, ObjectSymbol, ReadCache, ReadRef, SectionKind};

/// A larger file is no module. It may be one without end.
const LARGEST_FILE: u64 = 4 << 30;
/// A larger section is not looked at.
const LARGEST_SECTION: u64 = 256 << 20;
/// Longer names are none of those that are looked for: most are C++'s.
const LONGEST_NAME: usize = 40;

/// An ELF file, of which parts are read when they are asked for.
pub(super) struct Elf {
    cache: ReadCache<File>,
}

/// A symbol that the file defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) name: String,
    pub(super) address: u64,
    pub(super) bytes: u64,
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

    /// The symbols that the file defines, of those whose names are wanted.
    pub(super) fn symbols(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Symbol> {
        let mut found = Vec::new();
        let Some(file) = self.file() else {
            return found;
        };
        let is_small = |name| {
            let section = file.section_by_name(name);
            section.is_none_or(|it| it.size() <= LARGEST_SECTION)
        };
        let full = (is_small(".symtab") && is_small(".strtab")).then(|| file.symbols());
        for symbol in file.dynamic_symbols().chain(full.into_iter().flatten()) {
            if symbol.is_definition()
                && let Ok(name) = symbol.name_bytes()
                && name.len() <= LONGEST_NAME
                && let Ok(name) = std::str::from_utf8(name)
                && is_wanted(name)
            {
                found.push(Symbol {
                    name: name.to_owned(),
                    address: symbol.address(),
                    bytes: symbol.size(),
                });
            }
        }
        found
    }

    pub(super) fn section(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.file()?;
        let section = file.section_by_name(name)?;
        let (offset, bytes) = section.file_range()?;
        (bytes <= LARGEST_SECTION).then_some(())?;
        Some(self.cache.read_bytes_at(offset, bytes).ok()?.to_vec())
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
