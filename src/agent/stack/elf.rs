//! Reads the headers of a mapped module: its build id and the place of its unwind tables.

use core::ops::Range;

use allocsample_record::MAX_BUILD_ID_BYTES;

use crate::os::safe_read;

/// The build id that the linker wrote, usually a hash of the content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct BuildId {
    bytes: [u8; MAX_BUILD_ID_BYTES],
    length: usize,
}

impl BuildId {
    /// The build id of a module that has none.
    pub const NONE: Self = Self {
        bytes: [0; MAX_BUILD_ID_BYTES],
        length: 0,
    };

    /// Empty if there is none.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}

/// The program headers of a mapped module.
pub(super) struct Elf {
    headers: &'static [ProgramHeader],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ProgramHeader {
    pub kind: u32,
    flags: u32,
    file_offset: u64,
    pub address: u64,
    physical: u64,
    file_bytes: u64,
    pub memory_bytes: u64,
    alignment: u64,
}

impl ProgramHeader {
    /// What a copy of its memory says.
    pub fn from_bytes(bytes: &[u8; size_of::<Self>()]) -> Self {
        // SAFETY: any bytes are a value of this type, which consists of numbers without padding.
        unsafe { core::mem::transmute::<[u8; size_of::<Self>()], Self>(*bytes) }
    }
}

pub(super) const LOAD: u32 = 1;
pub(super) const DYNAMIC: u32 = 2;
/// Where `.eh_frame_hdr` is.
pub(super) const EH_FRAME: u32 = 0x6474_e550;
pub(super) const NOTE: u32 = 4;
/// The program headers themselves.
const HEADERS: u32 = 6;
const NOTE_GNU_BUILD_ID: u32 = 3;

const PAGE: usize = 4096;

/// Whether all of it can be read.
fn is_readable(address: usize, bytes: usize) -> bool {
    let end = address.saturating_add(bytes);
    let mut pages = (address & !(PAGE - 1)..end).step_by(PAGE);
    pages.all(|page| safe_read::is_readable(page as u64))
}

impl Elf {
    /// `None` if the first page is not an ELF header, or if its program headers are not in memory where it says. They are behind it, or
    /// in a segment of their own at the end of the file: tools that rewrite code (BOLT) find no room for more of them.
    ///
    /// # Safety
    /// `start` is where a module is mapped, and it stays so while the result is used.
    pub unsafe fn at(start: *const u8) -> Option<Self> {
        if !safe_read::is_readable(start.addr() as u64) {
            return None;
        }
        // SAFETY: the first page of the mapping is readable.
        let page = unsafe { core::slice::from_raw_parts(start, PAGE) };
        // 64-bit, little-endian.
        if !page.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let offset = u64::from_le_bytes(*page.get(32..)?.first_chunk()?);
        let count = usize::from(u16::from_le_bytes(*page.get(56..)?.first_chunk()?));
        let bytes = count.checked_mul(size_of::<ProgramHeader>())?;
        let place = usize::try_from(offset).ok()?;
        let is_behind = place.checked_add(bytes)? <= PAGE;
        let table = start.wrapping_add(place);
        if table.addr() % 8 != 0 || !is_behind && !is_readable(table.addr(), bytes) {
            return None;
        }
        // SAFETY: in the first page, or readable as well; aligned as ELF aligns it.
        let headers = unsafe { core::slice::from_raw_parts(table.cast(), count) };
        let elf = Self { headers };
        (is_behind || elf.has_headers_at(offset)).then_some(elf)
    }

    /// Whether the file's bytes from this offset on are as far from the module's start as from the file's.
    fn has_headers_at(&self, offset: u64) -> bool {
        let first = self
            .of_kind(LOAD)
            .map(|it| it.address & !(PAGE as u64 - 1))
            .min();
        let mut around = self.of_kind(LOAD).filter(|it| {
            let end = it.file_offset.saturating_add(it.file_bytes);
            (it.file_offset..end).contains(&offset)
        });
        around.any(|it| {
            let address = it.address.wrapping_add(offset - it.file_offset);
            first.map(|first| address.wrapping_sub(first)) == Some(offset)
        })
    }

    fn of_kind(&self, kind: u32) -> impl Iterator<Item = &ProgramHeader> {
        self.headers
            .iter()
            .filter(move |header| header.kind == kind)
    }

    /// `address` up to the end of the file's bytes in its segment.
    fn bytes_from(&self, bias: u64, address: u64) -> Option<&'static [u8]> {
        let offset = address.wrapping_sub(bias);
        let segment = self.of_kind(LOAD).find(|segment| {
            offset >= segment.address && offset < segment.address + segment.file_bytes
        })?;
        const READABLE: u32 = 4;
        if segment.flags & READABLE == 0 {
            return None;
        }
        let length = segment.address + segment.file_bytes - offset;
        let pointer: *const u8 = core::ptr::with_exposed_provenance(address as usize);
        // SAFETY: a readable segment of a module that is mapped by `Elf::at`'s promise. It is 'static in type only:
        // it is used while a frame of the module is on a stack.
        Some(unsafe { core::slice::from_raw_parts(pointer, usize::try_from(length).ok()?) })
    }

    /// The build id in its notes.
    pub fn build_id(&self, bias: u64) -> BuildId {
        let mut id = BuildId::NONE;
        for note in self.of_kind(NOTE) {
            let Some(mut rest) = self.bytes_from(bias, bias.wrapping_add(note.address)) else {
                continue;
            };
            rest = rest.get(..note.file_bytes as usize).unwrap_or(rest);
            while let Some((kind, name, description, after)) = next_note(rest) {
                if kind == NOTE_GNU_BUILD_ID && name == b"GNU\0" {
                    id.length = description.len().min(MAX_BUILD_ID_BYTES);
                    for (to, from) in id.bytes.iter_mut().zip(description) {
                        *to = *from;
                    }
                    return id;
                }
                rest = after;
            }
        }
        id
    }

    /// Where the unwind tables are; only the usual encoding of the pointer to `.eh_frame` is known.
    pub fn unwind_sections(
        &self,
        bias: u64,
        header: *const u8,
    ) -> Option<framehop::ExplicitModuleSectionInfo<&'static [u8]>> {
        if header.is_null() {
            return None;
        }
        let header_address = header.addr() as u64;
        let eh_frame_hdr = self.bytes_from(bias, header_address)?;
        const PC_RELATIVE_SIGNED_4: u8 = 0x1b;
        let [1, PC_RELATIVE_SIGNED_4, _, _, a, b, c, d] = *eh_frame_hdr.first_chunk::<8>()? else {
            return None;
        };
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        let eh_frame_address = (header_address + 4).wrapping_add_signed(distance);
        let eh_frame = self.bytes_from(bias, eh_frame_address)?;
        let range = |address: u64, bytes: &[u8]| {
            let start = address.wrapping_sub(bias);
            Some(start..start + bytes.len() as u64)
        };
        Some(framehop::ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma: range(eh_frame_address, eh_frame),
            eh_frame: Some(eh_frame),
            eh_frame_hdr_svma: range(header_address, eh_frame_hdr),
            eh_frame_hdr: Some(eh_frame_hdr),
            ..Default::default()
        })
    }
}

/// Where a program is mapped, by its program headers in memory; `None` if they do not tell.
///
/// # Safety
/// `headers` is the address of `count` program headers.
pub(super) unsafe fn range_of_program(headers: u64, count: usize) -> Option<Range<u64>> {
    let table: *const ProgramHeader = core::ptr::with_exposed_provenance(headers as usize);
    // SAFETY: the caller's word.
    let table = unsafe { core::slice::from_raw_parts(table, count) };
    let bias = headers.wrapping_sub(table.iter().find(|it| it.kind == HEADERS)?.address);
    let parts = || table.iter().filter(|it| it.kind == LOAD);
    let start = parts().map(|it| it.address).min()? & !0xFFF;
    let end = parts().map(|it| it.address + it.memory_bytes).max()?;
    Some(bias.wrapping_add(start)..bias.wrapping_add(end))
}

type ElfNote<'a> = (u32, &'a [u8], &'a [u8], &'a [u8]);

/// Kind, name, description, and what comes after the first note of `bytes`.
fn next_note(bytes: &[u8]) -> Option<ElfNote<'_>> {
    let (header, rest) = bytes.split_first_chunk::<12>()?;
    let field = |at: usize| {
        let mut field = [0; 4];
        field.copy_from_slice(header.get(at..at + 4)?);
        Some(u32::from_le_bytes(field))
    };
    let (name_bytes, description_bytes, kind) = (field(0)? as usize, field(4)? as usize, field(8)?);
    let padded_name = rest.get(..name_bytes.checked_next_multiple_of(4)?)?;
    let rest = rest.get(padded_name.len()..)?;
    let description = rest.get(..description_bytes)?;
    let after = rest
        .get(description_bytes.checked_next_multiple_of(4)?..)
        .unwrap_or(&[]);
    Some((kind, padded_name.get(..name_bytes)?, description, after))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test may fail")]
mod tests {
    use super::super::fake_loader::Loader;
    use super::*;

    #[test]
    fn program_headers_are_read_where_the_file_has_them() {
        let mut loader = Loader::new(8);
        let id = |loader: &Loader, page| {
            let start = core::ptr::with_exposed_provenance(loader.at(page) as usize);
            // SAFETY: pages of ours.
            let elf = unsafe { Elf::at(start) };
            elf.map(|elf| elf.build_id(loader.at(page)).bytes().to_vec())
        };
        for (file, page) in [(0, 1), (1, 4)] {
            loader.load_file(page, 3, file);
            let expected = Some(Loader::build_id_of(file).to_vec());
            assert_eq!(id(&loader, page), expected);
            // Elsewhere there are none, or nothing is there.
            let before = loader.pages[page].0[4];
            for elsewhere in [PAGE as u64, 1 << 40] {
                loader.pages[page].0[4] = elsewhere;
                assert_eq!(id(&loader, page), None);
            }
            loader.pages[page].0[4] = before;
            assert_eq!(id(&loader, page), expected);
        }
        // By what they say they are at another address: its file's bytes are a page further on.
        loader.pages[6].0[1] = PAGE as u64;
        assert_eq!(id(&loader, 4), None);
    }

    #[test]
    fn notes_follow_each_other_at_multiples_of_four() {
        let mut bytes = [0_u8; 12 + 4 + 8 + 12 + 8 + 2];
        let mut at = bytes.iter_mut();
        let mut put = |part: &[u8]| {
            for (from, to) in part.iter().zip(at.by_ref()) {
                *to = *from;
            }
        };
        put(&[4, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0]);
        put(b"GNU\0");
        put(&[1, 2, 3, 4, 5, 0, 0, 0]);
        put(&[5, 0, 0, 0, 2, 0, 0, 0, 9, 1, 0, 0]);
        put(b"else\0\0\0\0");
        put(&[6, 7]);
        let (kind, name, description, rest) = next_note(&bytes).unwrap();
        assert_eq!((kind, name), (3, &b"GNU\0"[..]));
        assert_eq!(description, [1, 2, 3, 4, 5]);
        // The padding behind the last one may be missing.
        let (kind, name, description, rest) = next_note(rest).unwrap();
        assert_eq!((kind, name), (265, &b"else\0"[..]));
        assert_eq!(description, [6, 7]);
        assert!(rest.is_empty());
        assert_eq!(next_note(rest), None);
        // One that is cut has no description.
        assert_eq!(next_note(bytes.get(..20).unwrap()), None);
    }
}
