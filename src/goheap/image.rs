//! The executable of a Go program, as its file describes it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, ReadCache, ReadCacheOps, ReadRef, elf,
};

use crate::memory::words_of;

/// A range of memory that the file was mapped to, in the addresses of its program headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
    /// What lies behind it is zero at first, and in no file.
    pub file_bytes: u64,
    pub is_writable: bool,
    pub is_executable: bool,
}

/// What is needed of the file. Addresses are those of its program headers: add the bias for those of the process.
#[derive(Debug)]
pub struct Image {
    file: File,
    pub entry: u64,
    pub is_x86_64: bool,
    pub segments: Vec<Segment>,
    /// Where the table of functions is, and its length.
    pub functions: (u64, u64),
    /// Whether a dynamic loader started it, so that there may be a C library.
    pub is_dynamic: bool,
    /// Empty in a stripped file.
    pub buckets: Option<u64>,
    pub rate: Option<u64>,
    pub switch: Option<u64>,
    pub build_id: Vec<u8>,
    /// Words that the loader fills in: address and content without the bias, sorted.
    pub relocations: Vec<(u64, u64)>,
}

impl Image {
    /// Reads the headers. `None`: this is no executable of Go for a 64-bit little-endian machine.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        let cache = ReadCache::new(file.try_clone()?);
        Ok(Self::parse(&cache, file))
    }

    fn parse<R: ReadCacheOps>(cache: &ReadCache<R>, file: File) -> Option<Self> {
        let elf = ElfFile64::<LittleEndian, _>::parse(cache).ok()?;
        let functions = elf.sections().find(|section| {
            // In a position-independent executable it is `.data.rel.ro.gopclntab`.
            section.name().is_ok_and(|it| it.ends_with(".gopclntab"))
        })?;
        let endian = elf.endian();
        let segments = elf.elf_program_headers().iter();
        let segments = segments
            .filter(|it| it.p_type(endian) == elf::PT_LOAD)
            .map(|it| Segment {
                start: it.p_vaddr(endian),
                end: it.p_vaddr(endian).saturating_add(it.p_memsz(endian)),
                file_offset: it.p_offset(endian),
                file_bytes: it.p_filesz(endian),
                is_writable: it.p_flags(endian).contains(elf::PF_W),
                is_executable: it.p_flags(endian).contains(elf::PF_X),
            });
        let mut image = Self {
            file,
            entry: elf.entry(),
            is_x86_64: elf.elf_header().e_machine(endian) == elf::EM_X86_64,
            segments: segments.collect(),
            functions: (functions.address(), functions.size()),
            is_dynamic: (elf.elf_program_headers().iter())
                .any(|it| it.p_type(endian) == elf::PT_INTERP),
            buckets: None,
            rate: None,
            switch: None,
            build_id: elf.build_id().ok()?.unwrap_or_default().to_vec(),
            relocations: relocations(&elf),
        };
        for symbol in elf.symbols() {
            match symbol.name_bytes() {
                Ok(b"runtime.mbuckets") => image.buckets = Some(symbol.address()),
                Ok(b"runtime.MemProfileRate") => image.rate = Some(symbol.address()),
                Ok(b"runtime.disableMemoryProfiling") => image.switch = Some(symbol.address()),
                _ => {}
            }
        }
        Some(image)
    }

    /// Bytes of the file by their address; `None` if the file does not have them all.
    pub fn bytes(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        let segment = self.segment(address)?;
        let skipped = address - segment.start;
        let end = skipped.checked_add(length)?;
        if end > segment.file_bytes {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        let offset = segment.file_offset.checked_add(skipped)?;
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    /// The segment that this address lies in.
    pub fn segment(&self, address: u64) -> Option<&Segment> {
        (self.segments.iter()).find(|it| (it.start..it.end).contains(&address))
    }

    /// Whether a variable may be there.
    pub fn is_variable(&self, address: u64) -> bool {
        address.is_multiple_of(8) && self.is_writable(address)
    }

    /// Whether the program can write there.
    pub fn is_writable(&self, address: u64) -> bool {
        self.segment(address).is_some_and(|it| it.is_writable)
    }

    /// The lowest and the highest address.
    pub fn extent(&self) -> (u64, u64) {
        let start = self.segments.iter().map(|it| it.start).min().unwrap_or(0);
        let end = self.segments.iter().map(|it| it.end).max().unwrap_or(0);
        (start, end)
    }
}

/// The relocations that add the bias to a constant, which are all that such a program has for its own data.
fn relocations<'data, R: ReadRef<'data>>(
    elf: &ElfFile64<'data, LittleEndian, R>,
) -> Vec<(u64, u64)> {
    const ENTRY_BYTES: usize = 24;
    const RELATIVE: [u32; 2] = [elf::R_X86_64_RELATIVE.0, elf::R_AARCH64_RELATIVE.0];
    let tables = elf.sections().filter(|section| {
        // Of Go's own linker and of the system's.
        section
            .name()
            .is_ok_and(|it| it == ".rela" || it == ".rela.dyn")
    });
    let mut found: Vec<(u64, u64)> = tables
        .filter_map(|table| table.data().ok())
        .flat_map(|table| table.chunks_exact(ENTRY_BYTES))
        .filter_map(|entry| match *words_of(entry) {
            [at, info, addend] if RELATIVE.contains(&((info & 0xffff_ffff) as u32)) => {
                Some((at, addend))
            }
            _ => None,
        })
        .collect();
    found.sort_unstable();
    found
}
