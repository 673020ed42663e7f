//! Whether the program is written in Go, whose runtime takes all signals past libc when it starts.

/// By the note in which Go's linker keeps the build id. In the constructor, before the program's code runs.
pub(crate) fn is_program() -> bool {
    let [headers, count, size] = [libc::AT_PHDR, libc::AT_PHNUM, libc::AT_PHENT].map(|of| {
        // SAFETY: the kernel's own figures.
        unsafe { libc::getauxval(of) as usize }
    });
    if headers == 0 || size != size_of::<libc::Elf64_Phdr>() {
        return false;
    }
    let first: *const libc::Elf64_Phdr = std::ptr::with_exposed_provenance(headers);
    // SAFETY: the kernel tells where the program's headers are, and the loader has mapped them.
    let headers = unsafe { std::slice::from_raw_parts(first, count) };
    let of_headers = headers.iter().find(|it| it.p_type == libc::PT_PHDR);
    // A program that is linked to a fixed address may lack that header.
    let base = of_headers.map_or(0, |it| first.addr().wrapping_sub(it.p_vaddr as usize));
    let mut notes = headers.iter().filter(|it| it.p_type == libc::PT_NOTE);
    notes.any(|note| {
        let start = base.wrapping_add(note.p_vaddr as usize);
        let bytes: *const u8 = std::ptr::with_exposed_provenance(start);
        // SAFETY: the loader has mapped what the header describes.
        has_go(unsafe { std::slice::from_raw_parts(bytes, note.p_memsz as usize) })
    })
}

/// Whether one of the notes is Go's: each has the lengths of its name and of its contents, a type, and both, padded.
fn has_go(mut notes: &[u8]) -> bool {
    const FIXED: usize = 12;
    const PADDING: usize = 4;
    while let Some((fixed, rest)) = notes.split_at_checked(FIXED) {
        let [name, contents] = [0, 4].map(|at| {
            let length = fixed[at..].first_chunk().copied().unwrap_or_default();
            u32::from_le_bytes(length) as usize
        });
        if rest.get(..name).is_some_and(|name| name == b"Go\0\0") {
            return true;
        }
        let length = name.next_multiple_of(PADDING) + contents.next_multiple_of(PADDING);
        let Some(next) = rest.get(length..) else {
            return false;
        };
        notes = next;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], contents: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        note.extend((name.len() as u32).to_le_bytes());
        note.extend((contents.len() as u32).to_le_bytes());
        note.extend(4_u32.to_le_bytes());
        for part in [name, contents] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn gos_note_is_found_among_others() {
        let others = note(b"GNU\0", b"abcde");
        assert!(!has_go(&others));
        assert!(has_go(&[others.clone(), note(b"Go\0\0", b"id")].concat()));
        assert!(!has_go(&[others, vec![0xff; 30]].concat()));
        assert!(!has_go(&[]));
        assert!(!is_program());
    }
}
