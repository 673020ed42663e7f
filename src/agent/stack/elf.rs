//! Reads the headers of a mapped module: its build id and the place of its unwind tables.

use core::ops::Range;

use allocsample_record::MAX_BUILD_ID_BYTES;

use crate::os::memory;

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

impl Elf {
    /// `None` if the first page is not an ELF header with its program headers behind it.
    ///
    /// # Safety
    /// `start` is where a module is mapped, and it stays so while the result is used.
    pub unsafe fn at(start: *const u8) -> Option<Self> {
        if !memory::is_readable(start.addr() as u64) {
            return None;
        }
        // SAFETY: the first page of the mapping is readable.
        let page = unsafe { core::slice::from_raw_parts(start, 4096) };
        // 64-bit, little-endian.
        if !page.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let word = |at: usize| Some(u16::from_le_bytes([*page.get(at)?, *page.get(at + 1)?]));
        let offset = usize::from(word(32)?);
        let count = usize::from(word(56)?);
        let table = page.get(offset..offset + count * size_of::<ProgramHeader>())?;
        // SAFETY: inside the page; ELF aligns the table to 8, and so does the check.
        let headers = (table.as_ptr().addr() % 8 == 0)
            .then(|| unsafe { core::slice::from_raw_parts(table.as_ptr().cast(), count) })?;
        Some(Self { headers })
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
mod tests {
    use super::*;

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
