//! Copies memory that may be gone, page by page, for one walk.
//!
//! A stack that the thread did not get from libc (a coroutine's, a signal stack), code that no module covers, a machine's own
//! stack: the frames that run there keep such memory mapped, but whether a guess leads to one of them is what a walk is about
//! to find out. So nothing of it is read directly. The kernel copies the page, or reports that it is gone, whatever other
//! threads unmap meanwhile (`os::safe_read::copy_pieces`). Behind a filter of system calls nothing is copied.

use crate::os::safe_read::copy_if_mapped;

const PAGE: usize = 4096;
const PAGES: usize = 8;

/// The pages that a walk has copied last. All zero bytes are a valid value: no pages.
pub struct ForeignPages {
    /// Where each page is, plus one; 0 for none.
    places: [u64; PAGES],
    pages: [[u8; PAGE]; PAGES],
    next: usize,
}

impl ForeignPages {
    /// None.
    pub const fn new() -> Self {
        Self {
            places: [0; PAGES],
            pages: [[0; PAGE]; PAGES],
            next: 0,
        }
    }

    /// Forgets what the last walk saw.
    pub(super) fn forget(&mut self) {
        self.places = [0; PAGES];
    }

    /// The `N` bytes at `address`, if they are there.
    pub(super) fn read<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        let into = address as usize % PAGE;
        let page = self.page_at(address - into as u64)?;
        let end = into.checked_add(N)?;
        if let Some(bytes) = page.get(into..end) {
            return bytes.try_into().ok();
        }
        let mut bytes = [0; N];
        let first = page.get(into..)?;
        let (low, high) = bytes.split_at_mut_checked(first.len())?;
        low.copy_from_slice(first);
        let rest = high.len();
        let second = self.page_at(address.checked_add(low.len() as u64)?)?;
        high.copy_from_slice(second.get(..rest)?);
        Some(bytes)
    }

    fn page_at(&mut self, address: u64) -> Option<&[u8; PAGE]> {
        // Never the page at 0, which no program has.
        let known = self.places.iter().position(|&place| place == address + 1);
        let index = match known {
            Some(index) => index,
            None => {
                let index = self.next % PAGES;
                let page = self.pages.get_mut(index)?;
                let place = self.places.get_mut(index)?;
                *place = 0;
                if address == 0 || !copy_if_mapped(address, page) {
                    return None;
                }
                *place = address + 1;
                self.next = self.next.wrapping_add(1);
                index
            }
        };
        self.pages.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::{make_unreadable, map};

    #[test]
    fn what_is_there_is_read_across_pages_and_what_is_gone_is_not() {
        let base = map(3 * PAGE).unwrap();
        let at = base.as_ptr().expose_provenance() as u64;
        for offset in 0..3 * PAGE {
            // SAFETY: just mapped, of this size, and not shared.
            unsafe { base.as_ptr().add(offset).write((offset % 251) as u8) };
        }
        let mut pages = std::boxed::Box::new(ForeignPages::new());
        fn expected<const N: usize>(offset: usize) -> [u8; N] {
            core::array::from_fn(|i| ((offset + i) % 251) as u8)
        }
        for offset in [0, 1, PAGE - 8, PAGE - 3, PAGE, 2 * PAGE - 1, 3 * PAGE - 8] {
            let found = pages.read::<8>(at + offset as u64);
            assert_eq!(found, Some(expected(offset)), "{offset}");
        }
        // SAFETY: mapped above, and nothing refers to it.
        unsafe { make_unreadable(base.add(2 * PAGE), PAGE) };
        pages.forget();
        assert_eq!(pages.read::<8>(at + 2 * PAGE as u64), None);
        assert_eq!(pages.read::<8>(at + 2 * PAGE as u64 - 4), None);
        assert_eq!(
            pages.read::<4>(at + 2 * PAGE as u64 - 4),
            Some(expected(2 * PAGE - 4))
        );
        for nowhere in [0, 8, 1 << 63, u64::MAX - 7, u64::MAX] {
            assert_eq!(pages.read::<8>(nowhere), None, "{nowhere:#x}");
        }
    }

    /// The copies of a walk are those of the moment when it first looked, as long as there is room for them.
    #[test]
    fn the_last_pages_are_kept_and_the_oldest_one_is_given_up() {
        let base = map((PAGES + 1) * PAGE).unwrap();
        let at = |page: usize| base.as_ptr().expose_provenance() as u64 + (page * PAGE) as u64;
        let set = |page: usize, value: u8| {
            // SAFETY: just mapped, of this size, and not shared.
            unsafe { base.as_ptr().add(page * PAGE).write(value) };
        };
        let mut pages = std::boxed::Box::new(ForeignPages::new());
        for page in 0..PAGES {
            set(page, 1);
            assert_eq!(pages.read::<1>(at(page)), Some([1]));
            set(page, 2);
        }
        for page in 0..PAGES {
            assert_eq!(pages.read::<1>(at(page)), Some([1]), "{page}");
        }
        // One more takes the place of the first, which in turn takes that of the second.
        assert_eq!(pages.read::<1>(at(PAGES)), Some([0]));
        assert_eq!(pages.read::<1>(at(0)), Some([2]));
        assert_eq!(pages.read::<1>(at(2)), Some([1]));
        assert_eq!(pages.read::<1>(at(1)), Some([2]));
        pages.forget();
        assert_eq!(pages.read::<1>(at(3)), Some([2]));
    }
}
