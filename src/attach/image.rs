//! The functions of a module, read from the memory of the process that has loaded it.
//!
//! The file is not used: it may have been replaced since, or lie in a file system that we do not see.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The memory of a process.
pub(crate) struct Memory(File);

impl Memory {
    /// For reading, and for writing where the process could write itself.
    pub fn of(pid: i32) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))?;
        Ok(Self(file))
    }

    /// Keeps other commands from the process until this is dropped or this command ends for any reason. Only users
    /// who may trace the process can open this file and lock it.
    pub fn lock(&self) -> io::Result<()> {
        Ok(self.0.try_lock()?)
    }

    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// As much of it as there is, at most `bytes`.
    pub fn read_some(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        let length = self.0.read_at(&mut found, address).unwrap_or(0);
        found.truncate(length);
        found
    }

    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }

    pub fn word(&self, address: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// A string that ends in 0, or at least its part on this page.
    pub fn text(&self, address: u64) -> String {
        let bytes = self.read_some(address, 1024);
        let end = bytes.iter().position(|&byte| byte == 0);
        String::from_utf8_lossy(bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(&[])).into_owned()
    }
}

/// A function that a module exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub address: u64,
    pub bytes: u64,
    /// In the version that programs are linked with today.
    is_default: bool,
}

impl Symbol {
    pub fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.max(1)
    }
}

/// The exported functions of a module.
pub(crate) struct Image {
    functions: HashMap<String, Symbol>,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
const STT_FUNC: u8 = 2;
const VERSION_HIDDEN: u16 = 0x8000;
/// No module has more; a table that claims more is damaged.
const MOST_SYMBOLS: u64 = 1 << 22;

fn invalid() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    let word = bytes.get(at..at + 2).and_then(|word| word.try_into().ok());
    word.map(u16::from_le_bytes).ok_or_else(invalid)
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map(u32::from_le_bytes).ok_or_else(invalid)
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map(u64::from_le_bytes).ok_or_else(invalid)
}

/// Kind, address in the file's terms, and bytes in memory of each segment. `header` starts with the ELF header.
fn segments(header: &[u8]) -> io::Result<Vec<(u32, u64, u64)>> {
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(invalid());
    }
    let table = usize::try_from(u64_at(header, 32)?).map_err(|_| invalid())?;
    (0..usize::from(u16_at(header, 56)?))
        .map(|index| {
            let at = table + index * 56;
            Ok((
                u32_at(header, at)?,
                u64_at(header, at + 16)?,
                u64_at(header, at + 40)?,
            ))
        })
        .collect()
}

/// Bytes of thread-local memory that the module in a file needs for each thread.
pub(crate) fn thread_local_bytes(library: &[u8]) -> u64 {
    let segments = segments(library).unwrap_or_default();
    let of_kind = segments.iter().filter(|(kind, _, _)| *kind == PT_TLS);
    of_kind.map(|(_, _, bytes)| bytes).sum()
}

impl Image {
    /// The module whose first page is at `base`.
    pub fn read(memory: &Memory, base: u64) -> io::Result<Self> {
        let segments = segments(&memory.read_some(base, 4096))?;
        let first = segments.iter().find(|(kind, _, _)| *kind == PT_LOAD);
        let bias = base.wrapping_sub(first.map_or(0, |(_, address, _)| address & !4095));
        let dynamic = segments.iter().find(|(kind, _, _)| *kind == PT_DYNAMIC);
        let &(_, address, bytes) = dynamic.ok_or_else(invalid)?;
        let length = usize::try_from(bytes.min(1 << 16)).map_err(|_| invalid())?;
        let dynamic = memory.read_some(bias.wrapping_add(address), length);
        let value = |tag: u64| {
            let mut entries = dynamic.chunks_exact(16);
            entries
                .find_map(|entry| (u64_at(entry, 0).ok()? == tag).then(|| u64_at(entry, 8).ok())?)
        };
        // The loader has turned these words into addresses, except where it cannot write.
        let address_of = |tag| {
            value(tag).map(|address| match address < bias {
                true => bias.wrapping_add(address),
                false => address,
            })
        };
        let symbols = address_of(DT_SYMTAB).ok_or_else(invalid)?;
        let names = address_of(DT_STRTAB).ok_or_else(invalid)?;
        let count = match (address_of(DT_GNU_HASH), address_of(DT_HASH)) {
            (Some(table), _) => count_gnu(memory, table)?,
            // The second word: one chain entry for each symbol.
            (None, Some(table)) => u64::from(u32_at(&memory.read_some(table, 8), 4)?),
            (None, None) => return Err(invalid()),
        };
        let count = usize::try_from(count.min(MOST_SYMBOLS)).map_err(|_| invalid())?;
        let versions = address_of(DT_VERSYM).map(|table| memory.read_some(table, 2 * count));
        let names_bytes = value(DT_STRSZ).unwrap_or(0).min(1 << 28);
        let names = memory.read_some(names, names_bytes as usize);
        let symbols = memory.read_some(symbols, 24 * count);
        let mut functions = HashMap::new();
        for (index, symbol) in symbols.chunks_exact(24).enumerate() {
            let section = u16_at(symbol, 6)?;
            if section == 0 || symbol.get(4).is_none_or(|info| info & 15 != STT_FUNC) {
                continue;
            }
            let version = versions
                .as_ref()
                .map_or(Ok(0), |versions| u16_at(versions, 2 * index))?;
            let found = Symbol {
                address: bias.wrapping_add(u64_at(symbol, 8)?),
                bytes: u64_at(symbol, 16)?,
                is_default: version & VERSION_HIDDEN == 0,
            };
            let rest = names.get(u32_at(symbol, 0)? as usize..).unwrap_or(&[]);
            let end = rest.iter().position(|&byte| byte == 0).unwrap_or(0);
            let Ok(name) = str::from_utf8(&rest[..end]) else {
                continue;
            };
            let known = functions.entry(name.to_owned()).or_insert(found);
            if found.is_default {
                *known = found;
            }
        }
        Ok(Self { functions })
    }

    pub fn function(&self, name: &str) -> Option<Symbol> {
        self.functions.get(name).copied()
    }
}

/// One more than the highest symbol in a GNU hash table: the end of the chain that begins last.
fn count_gnu(memory: &Memory, table: u64) -> io::Result<u64> {
    let header = memory.read_some(table, 16);
    let buckets = u32_at(&header, 0)?;
    let first = u32_at(&header, 4)?;
    let bloom_words = u64::from(u32_at(&header, 8)?);
    let start = table + 16 + 8 * bloom_words;
    let heads = memory.read_some(start, 4 * buckets as usize);
    let heads = heads
        .chunks_exact(4)
        .filter_map(|head| u32_at(head, 0).ok());
    let Some(mut last) = heads.max().filter(|&head| head >= first) else {
        return Ok(u64::from(first));
    };
    let chains = start + 4 * u64::from(buckets);
    while u64::from(last) < MOST_SYMBOLS {
        let entry = memory.read_some(chains + 4 * u64::from(last - first), 4);
        last += 1;
        if u32_at(&entry, 0)? & 1 != 0 {
            return Ok(u64::from(last));
        }
    }
    Err(invalid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Target, file_name};

    #[test]
    fn functions_of_our_own_libc_are_where_they_are() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let mappings = Target::find(pid).unwrap().mappings().unwrap();
        let libc = mappings
            .iter()
            .find(|mapping| file_name(&mapping.path) == "libc.so.6" && mapping.offset == 0)
            .unwrap();
        let image = Image::read(&Memory::of(pid).unwrap(), libc.start).unwrap();
        let expected = [
            ("pthread_create", libc::pthread_create as *const () as u64),
            ("dlopen", libc::dlopen as *const () as u64),
            ("munmap", libc::munmap as *const () as u64),
        ];
        for (name, address) in expected {
            let found = image.function(name).unwrap();
            assert_eq!(found.address, address, "{name}");
            assert!(found.bytes > 0);
        }
        assert_eq!(image.function("no_such_function"), None);
    }

    #[test]
    fn what_is_no_module_is_an_error() {
        assert!(segments(b"#!/bin/sh").is_err());
        assert!(segments(b"\x7fELF\x02\x01").is_err());
        assert_eq!(thread_local_bytes(b"\x7fELF\x02\x01 cut off"), 0);
        let pid = i32::try_from(std::process::id()).unwrap();
        // Nothing is mapped there.
        assert!(Image::read(&Memory::of(pid).unwrap(), 4096).is_err());
    }
}
