//! Where the static data of a module ends, by its program headers.
//!
//! The loader maps the initial values of static data from the file, and zeros behind them. The kernel joins these zeros with any
//! anonymous memory that is mapped right behind, so `smaps` alone does not say where they end. The file does:
//!
//! ```text
//! segment     offset and bytes in the file, address and bytes in memory
//! its pages   [address of the mapping - (offset of the mapping - offset of the segment), ... + bytes in memory), in whole pages
//! ```

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// A segment that the loader maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

/// What a file says of its static data.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    /// It is no module.
    Other,
    /// By address.
    Module(Vec<Segment>),
}

/// The place where a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// First address.
    pub start: u64,
    /// Where in the file.
    pub offset: u64,
}

/// The files that a process has mapped.
#[derive(Debug)]
pub(crate) struct Modules {
    /// The process, such as `/proc/self`.
    directory: String,
    page_bytes: u64,
    /// `None`: it could not be read, or makes no sense.
    known: HashMap<Vec<u8>, Option<Contents>>,
    pages: Option<File>,
}

impl Modules {
    pub fn of(directory: &str, page_bytes: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            page_bytes,
            known: HashMap::new(),
            pages: File::open(format!("{directory}/pagemap")).ok(),
        }
    }

    /// Returns the first address behind the static data that begins in this part of a file. `image` is the address that maps the
    /// beginning of the file, if any. `None`: neither the file nor its image says.
    pub fn end_of_static_data(
        &mut self,
        file: &[u8],
        place: Place,
        image: Option<u64>,
    ) -> Option<u64> {
        if !self.known.contains_key(file) {
            let contents = self.read(file);
            // A deleted file, or one without a path, can only be read where it is mapped.
            let contents = contents.or_else(|| self.read_memory(image?));
            self.known.insert(file.to_vec(), contents);
        }
        match self.known.get(file)?.as_ref()? {
            Contents::Other => Some(0),
            Contents::Module(segments) => end_in(segments, place, self.page_bytes),
        }
    }

    fn read(&self, file: &[u8]) -> Option<Contents> {
        let name = std::str::from_utf8(file).ok()?;
        // The process may see other files than we do.
        let path = format!("{}/root{name}", self.directory);
        // Opening anything else could wait.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let file = File::open(path).ok()?;
        contents(&|offset, into| file.read_exact_at(into, offset).is_ok())
    }

    /// Reads the headers of a file from the memory that maps its beginning. Loading does not change them.
    fn read_memory(&self, image: u64) -> Option<Contents> {
        let memory = File::open(format!("{}/mem", self.directory)).ok()?;
        // Reading unmapped memory through this file returns an error and does not fault.
        let read = |offset: u64, into: &mut [u8]| {
            let at = image.checked_add(offset);
            at.is_some_and(|at| memory.read_exact_at(into, at).is_ok())
        };
        read(0, &mut [0]).then(|| contents(&read))?
    }

    /// How much of a range of whole pages is in memory. `None`: the kernel does not say.
    pub fn present_bytes(&self, start: u64, end: u64) -> Option<u64> {
        const ENTRY_BYTES: u64 = 8;
        const AT_ONCE: u64 = 1 << 13;
        const IS_PRESENT: u64 = 1 << 63;
        let pages = self.pages.as_ref()?;
        let (mut page, last) = (start / self.page_bytes, end / self.page_bytes);
        let mut present = 0;
        while page < last {
            let count = (last - page).min(AT_ONCE);
            let mut entries = vec![0; usize::try_from(count * ENTRY_BYTES).ok()?];
            let at = page.checked_mul(ENTRY_BYTES)?;
            pages.read_exact_at(&mut entries, at).ok()?;
            let words = entries.as_chunks().0.iter();
            let words = words.filter(|word| u64::from_le_bytes(**word) & IS_PRESENT != 0);
            present += words.count() as u64 * self.page_bytes;
            page += count;
        }
        Some(present)
    }
}

const FILE_HEADER_BYTES: usize = 64;
const HEADER_BYTES: usize = 56;
/// Modules have about ten.
const MOST_HEADERS: u16 = 512;

/// By a function that fills a buffer from an offset on, or fails.
fn contents(read: &dyn Fn(u64, &mut [u8]) -> bool) -> Option<Contents> {
    const MAGIC: &[u8; 4] = b"\x7fELF";
    /// 64 bits, least significant byte first.
    const CLASS_AND_ORDER: [u8; 2] = [2, 1];
    const LOADED: u32 = 1;
    let mut magic = [0; 4];
    if !read(0, &mut magic) || magic != *MAGIC {
        return Some(Contents::Other);
    }
    let mut header = [0; FILE_HEADER_BYTES];
    if !read(0, &mut header) || header[4..6] != CLASS_AND_ORDER {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(*header.get(at..)?.first_chunk()?));
    let (each, count) = (half(54)?, half(56)?);
    if usize::from(each) != HEADER_BYTES || count > MOST_HEADERS {
        return None;
    }
    let mut table = vec![0; HEADER_BYTES * usize::from(count)];
    if !read(word(&header, 32)?, &mut table) {
        return None;
    }
    let loaded = table.chunks_exact(HEADER_BYTES).filter(|it| {
        let kind = it.first_chunk().map(|it| u32::from_le_bytes(*it));
        kind == Some(LOADED)
    });
    let segment = |it: &[u8]| {
        Some(Segment {
            offset: word(it, 8)?,
            address: word(it, 16)?,
            file_bytes: word(it, 32)?,
            memory_bytes: word(it, 40)?,
        })
    };
    let mut segments: Vec<Segment> = loaded.map(segment).collect::<Option<_>>()?;
    segments.sort_unstable_by_key(|it| it.address);
    Some(Contents::Module(segments))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// `None`: no segment is mapped from there, or its numbers make no sense.
fn end_in(segments: &[Segment], place: Place, page_bytes: u64) -> Option<u64> {
    let whole = |address: u64| address / page_bytes * page_bytes;
    let is_mapped = |it: &&Segment| {
        let end = it.offset.checked_add(it.file_bytes);
        whole(it.offset) <= place.offset && end.is_some_and(|end| place.offset < end)
    };
    let mapped = segments.iter().rfind(is_mapped)?;
    if mapped.address % page_bytes != mapped.offset % page_bytes
        || mapped.memory_bytes < mapped.file_bytes
    {
        return None;
    }
    let first_page = (place.start).checked_sub(place.offset - whole(mapped.offset))?;
    // From the addresses in the file to those in memory.
    let to_memory =
        |address: u64| first_page.checked_add(address.checked_sub(whole(mapped.address))?);
    let end_of = |it: &Segment| {
        let end = it.address.checked_add(it.memory_bytes)?;
        to_memory(end)?.checked_next_multiple_of(page_bytes)
    };
    let mut end = end_of(mapped)?;
    // Some linkers put the zeros into a segment of their own.
    for segment in segments.iter().filter(|it| it.file_bytes == 0) {
        if to_memory(whole(segment.address)).is_some_and(|start| start == end) {
            end = end_of(segment)?;
        }
    }
    Some(end)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn of_bytes(bytes: &[u8]) -> Option<Contents> {
        contents(&|offset, into| {
            let from = usize::try_from(offset).ok();
            let found = from.and_then(|from| bytes.get(from..from.checked_add(into.len())?));
            found.map(|found| into.copy_from_slice(found)).is_some()
        })
    }

    /// The head of a file with these segments.
    fn module(segments: &[Segment]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(FILE_HEADER_BYTES, 0);
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        let count = u16::try_from(segments.len()).expect("few");
        bytes[56..58].copy_from_slice(&count.to_le_bytes());
        for it in segments {
            bytes.extend([1, 0, 0, 0, 6, 0, 0, 0]);
            for word in [
                it.offset,
                it.address,
                0,
                it.file_bytes,
                it.memory_bytes,
                PAGE,
            ] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes
    }

    const CODE: Segment = Segment {
        offset: 0,
        address: 0,
        file_bytes: 0x5000,
        memory_bytes: 0x5000,
    };
    /// Two pages from the file and three of zeros.
    const DATA: Segment = Segment {
        offset: 0x5e00,
        address: 0x6e00,
        file_bytes: 0x1000,
        memory_bytes: 0x4000,
    };
    const PLACE: Place = Place {
        start: 0x7f00_0000_6000,
        offset: 0x5000,
    };

    /// A module that is mapped from offset 0x5000 on, two pages, with three of zeros behind them.
    pub(crate) fn module_with_zeros() -> Vec<u8> {
        module(&[CODE, DATA])
    }

    fn end(segments: &[Segment], place: Place) -> Option<u64> {
        match of_bytes(&module(segments))? {
            Contents::Other => Some(0),
            Contents::Module(segments) => end_in(&segments, place, PAGE),
        }
    }

    #[test]
    fn static_data_ends_where_its_segment_does() {
        assert_eq!(end(&[CODE, DATA], PLACE), Some(0x7f00_0000_b000));
        // The loader has made the first page read-only, which divides the mapping.
        let second = Place {
            start: 0x7f00_0000_7000,
            offset: 0x6000,
        };
        assert_eq!(end(&[CODE, DATA], second), Some(0x7f00_0000_b000));
        let no_zeros = Segment {
            memory_bytes: DATA.file_bytes,
            ..DATA
        };
        assert_eq!(end(&[CODE, no_zeros], PLACE), Some(0x7f00_0000_8000));
        let zeros = Segment {
            offset: 0x7000,
            address: 0x8000,
            file_bytes: 0,
            memory_bytes: 0x2001,
        };
        assert_eq!(end(&[CODE, no_zeros, zeros], PLACE), Some(0x7f00_0000_b000));
        let elsewhere = Place {
            offset: 0x9000,
            ..PLACE
        };
        assert_eq!(end(&[CODE, DATA], elsewhere), None);
        assert_eq!(of_bytes(b"PK\x03\x04"), Some(Contents::Other));
        assert_eq!(of_bytes(b""), Some(Contents::Other));
    }

    #[test]
    fn a_module_with_impossible_numbers_has_no_end() {
        let with = |offset, address, file_bytes, memory_bytes| Segment {
            offset,
            address,
            file_bytes,
            memory_bytes,
        };
        for hostile in [
            with(0x5e00, u64::MAX - 0x1ff, 0x1000, 0x4000),
            with(0x5e00, 0x6e00, 0x1000, u64::MAX),
            with(0x5e00, 0x6e00, u64::MAX, u64::MAX),
            with(0x5e00, 0x6e01, 0x1000, 0x4000),
            with(0x5e00, 0x6e00, 0x1000, 0xfff),
            with(u64::MAX, u64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!(end(&[CODE, hostile], PLACE), None, "{hostile:?}");
        }
        let low = Place { start: 0, ..PLACE };
        let deep = Place {
            offset: 0x6000,
            ..low
        };
        assert_eq!(end(&[CODE, DATA], deep), None);
        let whole = module(&[CODE, DATA]);
        for length in 4..whole.len() {
            assert_eq!(of_bytes(&whole[..length]), None, "{length}");
        }
        let mut of_32_bits = whole.clone();
        of_32_bits[4] = 1;
        assert_eq!(of_bytes(&of_32_bits), None);
        let mut far = whole;
        far[32..40].fill(0xff);
        assert_eq!(of_bytes(&far), None);
    }

    /// Of this test's own executable, by its symbols' addresses in `maps`: its zeros lie before the end, and nothing else does.
    #[test]
    fn the_end_of_this_programs_data_is_found() {
        static ZEROS: [std::sync::atomic::AtomicU8; 300_000] =
            [const { std::sync::atomic::AtomicU8::new(0) }; 300_000];
        let last = &raw const ZEROS[299_999] as u64;
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let own = std::env::current_exe().expect("a program");
        let own = own.to_str().expect("UTF-8");
        let writable = maps
            .lines()
            .rfind(|line| line.contains(" rw-p ") && line.ends_with(own));
        let fields: Vec<&str> = writable.expect("data").split(' ').collect();
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let (start, _) = fields[0].split_once('-').expect("a range");
        let place = Place {
            start: number(start),
            offset: number(fields[2]),
        };
        let mut modules = Modules::of("/proc/self", PAGE);
        let end = modules.end_of_static_data(own.as_bytes(), place, None);
        let end = end.expect("an end");
        assert!(end > last, "{end:x} {last:x}");
        assert!(end - place.start < 4 << 20, "{end:x} {:x}", place.start);
        let heap = maps.lines().find(|line| line.ends_with("[heap]"));
        let heap = heap.map(|line| number(line.split('-').next().expect("a range")));
        assert!(heap.is_none_or(|heap| end <= heap));
        let missing = modules.end_of_static_data(b"/nothing/of/the/kind", place, None);
        assert_eq!(missing, None);
        // The image in memory gives the same end. Unmapped memory gives none, and memory without an ELF header is no module.
        let mut end_by_image = |image| {
            let name = format!("/nothing/{image:x}");
            modules.end_of_static_data(name.as_bytes(), place, Some(image))
        };
        let first = maps.lines().find(|line| line.ends_with(own));
        let first = first.expect("a beginning").split('-').next();
        assert_eq!(end_by_image(number(first.expect("a range"))), Some(end));
        assert_eq!(end_by_image(PAGE), None);
        assert_eq!(end_by_image(&raw const ZEROS as u64), Some(0));
        assert_eq!(modules.end_of_static_data(b"/dev/null", place, None), None);
        let present = modules.present_bytes(place.start, place.start + PAGE);
        assert!(present.is_some_and(|it| it <= PAGE));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            words in prop::collection::vec(any::<u64>(), 8),
            start: u64,
            offset: u64,
        ) {
            let _ = of_bytes(&bytes);
            let mut headed = b"\x7fELF\x02\x01".to_vec();
            headed.extend(bytes);
            let _ = of_bytes(&headed);
            let segment = |it: &[u64]| Segment {
                offset: it[0],
                address: it[1],
                file_bytes: it[2],
                memory_bytes: it[3],
            };
            let segments = [segment(&words[..4]), segment(&words[4..])];
            let _ = end(&segments, Place { start, offset });
        }
    }
}
