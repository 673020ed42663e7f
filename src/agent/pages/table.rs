//! The sampled pages that are resident, by their addresses.
//!
//! A hash table of fixed size, without locks: a signal handler may come in anywhere. It is in address space that is not touched
//! before it is used.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::os::leaked::StaticRef;
use crate::os::memory;

/// Pages at the same time: 16 GiB at one sample every 256 KiB.
const PLACES: usize = 1 << 16;
/// An address is at most so many places behind the one that its hash names.
const REACH: usize = 64;
/// Nothing was ever here.
const EMPTY: u64 = 0;
/// What was here is gone, and others may lie behind it.
const GONE: u64 = 1;
/// Added to an address, which is a multiple of a page's size, while the rest of its place is being written.
const IS_INCOMPLETE: u64 = 2;
/// Added to the id of a page that was found resident after its fault.
const IS_CONFIRMED: u64 = 1 << 63;

/// See the module.
pub(super) struct PageTable(StaticRef<[Place; PLACES]>);

/// Address and id.
type Place = [AtomicU64; 2];

/// A page of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampled {
    pub address: u64,
    /// Its sample.
    pub id: u64,
    /// Whether it was found resident after its fault.
    pub is_confirmed: bool,
}

fn first_place(address: u64) -> usize {
    ((address >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

impl PageTable {
    /// Empty.
    pub const fn new() -> Self {
        Self(StaticRef::new())
    }

    /// Makes room. False: there is no memory.
    pub fn prepare(&self) -> bool {
        if self.0.get().is_some() {
            return true;
        }
        let places = memory::map_atomics(2 * PLACES)
            .map(|words| words.as_chunks::<2>().0)
            .and_then(|places| places.first_chunk::<PLACES>());
        self.0.set(places);
        places.is_some()
    }

    /// The places in which an address may be.
    fn places_of(&self, address: u64) -> impl Iterator<Item = &'static Place> {
        let (before, after) = match self.0.get() {
            Some(places) => places.split_at(first_place(address)),
            None => (&[][..], &[][..]),
        };
        after.iter().chain(before).take(REACH)
    }

    /// Adds a page that is not there. False: there is no place for it.
    pub fn insert(&self, address: u64, id: u64) -> bool {
        for [place, id_place] in self.places_of(address) {
            let found = place.load(Ordering::Relaxed);
            let is_free = matches!(found, EMPTY | GONE);
            let incomplete = address | IS_INCOMPLETE;
            if is_free
                && place
                    .compare_exchange(found, incomplete, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                id_place.store(id, Ordering::Relaxed);
                // Release: who finds the address finds its id.
                place.store(address, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Takes out the page at an address; its id.
    pub fn take(&self, address: u64) -> Option<u64> {
        for [place, id_place] in self.places_of(address) {
            match place.load(Ordering::Acquire) {
                EMPTY => return None,
                found if found == address => {
                    let id = id_place.load(Ordering::Relaxed) & !IS_CONFIRMED;
                    let is_ours = place
                        .compare_exchange(address, GONE, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok();
                    return is_ours.then_some(id);
                }
                _ => {}
            }
        }
        None
    }

    /// All pages.
    pub fn all(&self) -> impl Iterator<Item = Sampled> {
        let places = self.0.get().map_or(&[][..], |places| &places[..]);
        places.iter().filter_map(|[place, id_place]| {
            let address = place.load(Ordering::Acquire);
            let id = id_place.load(Ordering::Relaxed);
            (address > GONE && address & IS_INCOMPLETE == 0).then_some(Sampled {
                address,
                id: id & !IS_CONFIRMED,
                is_confirmed: id & IS_CONFIRMED != 0,
            })
        })
    }

    /// Notes that a page was found resident.
    pub fn confirm(&self, page: Sampled) {
        let place = self
            .places_of(page.address)
            .find(|[place, _]| place.load(Ordering::Relaxed) == page.address);
        if let Some([_, id_place]) = place {
            // Unless another sample is there by now.
            let (from, to) = (page.id, page.id | IS_CONFIRMED);
            let _ = id_place.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes out the pages that begin in a range, with `on_page` for the address and the id of each.
    pub fn take_range(&self, range: Range<u64>, mut on_page: impl FnMut(u64, u64)) {
        let page_bytes = memory::page_bytes() as u64;
        let start = range.start & !(page_bytes - 1);
        if (range.end.saturating_sub(start)) / page_bytes < PLACES as u64 / 16 {
            let pages = (start..range.end).step_by(page_bytes as usize);
            for address in pages {
                if let Some(id) = self.take(address) {
                    on_page(address, id);
                }
            }
            return;
        }
        // To look at all places is faster than to look for each address.
        let within = self.all().filter(|page| range.contains(&page.address));
        for page in within {
            if let Some(id) = self.take(page.address) {
                on_page(page.address, id);
            }
        }
    }

    /// Forgets all pages.
    pub fn clear(&self) {
        for [place, _] in self.0.get().map_or(&[][..], |places| &places[..]) {
            if place.load(Ordering::Relaxed) != EMPTY {
                place.store(EMPTY, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::HashMap;
    use std::sync::LazyLock;
    use std::vec::Vec;

    fn table() -> &'static PageTable {
        let table: &'static PageTable = Box::leak(Box::new(PageTable::new()));
        assert!(table.prepare() && table.prepare());
        table
    }

    /// As many as can all have places.
    const CROWD: usize = REACH - 2;

    /// Pages that share the last three places, so that most of them are at the beginning of the table.
    static CROWDED: LazyLock<Vec<u64>> = LazyLock::new(|| {
        let addresses = (1..).map(|page: u64| page << 12);
        let shared = addresses.filter(|address| first_place(*address) >= PLACES - 3);
        shared.take(CROWD).collect()
    });

    fn range(table: &PageTable, range: Range<u64>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        table.take_range(range, |address, id| found.push((address, id)));
        found.sort_unstable();
        found
    }

    #[test]
    fn a_page_is_found_until_it_is_taken() {
        let table = table();
        assert_eq!(table.take(0x5000), None);
        assert!(table.insert(0x5000, 7));
        assert_eq!(table.take(0x6000), None);
        assert_eq!(table.take(0x5000), Some(7));
        assert_eq!(table.take(0x5000), None);
    }

    #[test]
    fn without_memory_there_is_nothing() {
        let table = PageTable::new();
        assert!(!table.insert(0x5000, 7));
        assert_eq!(table.take(0x5000), None);
        assert_eq!(table.all().count(), 0);
        table.clear();
    }

    #[test]
    fn small_and_large_ranges_lose_their_pages_alone() {
        for bytes in [0x10_000_u64, 1 << 34] {
            let table = table();
            for address in [
                0xF000,
                0x10_000,
                0x10_000 + bytes - 0x1000,
                0x10_000 + bytes,
            ] {
                assert!(table.insert(address, address >> 12));
            }
            let last = 0x10_000 + bytes - 0x1000;
            let expected = Vec::from([(0x10_000, 0x10), (last, last >> 12)]);
            assert_eq!(range(table, 0x10_000..0x10_000 + bytes), expected);
            assert_eq!(table.all().count(), 2);
        }
    }

    #[test]
    fn a_page_is_confirmed_as_the_sample_that_it_was() {
        let table = table();
        assert!(table.insert(0x5000, 7));
        let page = table.all().next().unwrap();
        assert!(!page.is_confirmed);
        table.confirm(page);
        let confirmed = table.all().next().unwrap();
        assert_eq!((confirmed.id, confirmed.is_confirmed), (7, true));
        // Another one came.
        assert_eq!(table.take(0x5000), Some(7));
        assert!(table.insert(0x5000, 8));
        table.confirm(page);
        assert!(!table.all().next().unwrap().is_confirmed);
    }

    proptest::proptest! {
        /// As a map of the standard library does it.
        #[test]
        fn agrees_with_a_map(steps in proptest::collection::vec((0_usize..CROWD, proptest::bool::ANY), 0..600)) {
            let (table, mut map) = (table(), HashMap::new());
            for (number, (page, inserts)) in (1_u64..).zip(steps) {
                let address = CROWDED.get(page).copied().unwrap();
                proptest::prop_assert_eq!(table.take(address), map.remove(&address));
                if inserts {
                    proptest::prop_assert!(table.insert(address, number));
                    map.insert(address, number);
                }
            }
            let mut all: Vec<_> = table.all().map(|page| (page.address, page.id)).collect();
            let mut expected: Vec<_> = map.into_iter().collect();
            all.sort_unstable();
            expected.sort_unstable();
            proptest::prop_assert_eq!(all, expected);
        }
    }
}
