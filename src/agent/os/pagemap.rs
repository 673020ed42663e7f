//! Which pages of the process are resident, by the kernel's page tables.

use super::file::File;
use super::memory;

/// `/proc/self/pagemap`, open.
pub struct Pagemap(File);

/// What the kernel says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState(u64);

impl PageState {
    /// Whether it is in memory, and no page of a file or of shared memory.
    pub fn is_anonymous(self) -> bool {
        const IS_PRESENT: u64 = 1 << 63;
        const IS_OF_FILE: u64 = 1 << 61;
        self.0 & (IS_PRESENT | IS_OF_FILE) == IS_PRESENT
    }

    /// Whether no other process has it. The page of zeros that the kernel maps where memory was only read belongs to nobody.
    pub fn is_exclusive(self) -> bool {
        const IS_EXCLUSIVE: u64 = 1 << 56;
        self.0 & IS_EXCLUSIVE != 0
    }
}

impl Pagemap {
    /// `None`: it cannot be read.
    pub fn open() -> Option<Self> {
        File::open_to_read(c"/proc/self/pagemap").ok().map(Self)
    }

    /// What is mapped at an address.
    pub fn state(&self, address: u64) -> Option<PageState> {
        let mut entry = [0; 8];
        let offset = address / memory::page_bytes() as u64 * 8;
        let is_read = self
            .0
            .read_at(offset, &mut entry)
            .is_ok_and(|read| read == 8);
        is_read.then_some(PageState(u64::from_ne_bytes(entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_anonymous_from_its_first_write_until_it_is_given_back() {
        let pagemap = Pagemap::open().unwrap();
        let base = memory::map(2 * memory::page_bytes()).unwrap();
        let address = base.as_ptr().addr() as u64;
        let state = || pagemap.state(address).unwrap();
        assert!(!state().is_anonymous());
        // SAFETY: our mapping.
        let read = unsafe { base.read_volatile() };
        assert_eq!(read, 0);
        assert!(!state().is_exclusive());
        // SAFETY: our mapping.
        unsafe { base.write_volatile(1) };
        assert!(state().is_anonymous() && state().is_exclusive());
        // SAFETY: our mapping, to which nobody refers.
        unsafe { libc::madvise(base.as_ptr().cast(), 4096, libc::MADV_DONTNEED) };
        assert!(!state().is_anonymous());
    }

    #[test]
    fn a_page_of_a_file_is_not_anonymous() {
        static TEXT: [u8; 16] = *b"0123456789abcdef";
        assert_eq!(core::hint::black_box(&TEXT)[3], b'3');
        let state = Pagemap::open().unwrap().state(TEXT.as_ptr().addr() as u64);
        assert!(!state.unwrap().is_anonymous());
    }
}
