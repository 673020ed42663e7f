//! Finds the live sample at an address.
//!
//! Three levels. The *block filter*, a byte for each granule of some 128 bytes, is read by every `free`: zero means "not
//! sampled". While there is one sample in the granule the byte has a tag of its address, which all but one in 128 others
//! fail. What passes that is looked up, exactly: hash tables of 64-byte buckets, eight addresses each, with a
//! second choice of bucket, and sample ids beside them. A table is never rehashed: when an address finds both its
//! buckets in the newest full, one four times its size is added, inserts go there, and the older ones drain as their
//! samples are freed. Nobody counts what is in a table: all threads would write that count.
//!
//! Address 0, which `free` is called with all the time, is an empty place: it is never asked for.
//!
//! An address is inserted before the allocator's caller gets it and taken out before it is freed, so no two threads
//! ever work on the same address; the words they share (buckets, counts) are atomic. No locks, no allocation but the
//! tables, which come from the kernel.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::os::leaked::{self, StaticRef};
use crate::os::memory;

const BUCKET: usize = 8;
const FIRST_BUCKETS: usize = 512;
const TABLES: usize = 12;

/// Bytes of the filter.
pub const FILTER_GRANULES: usize = 1 << 20;

/// The byte for an address: the upper 20 bits of 32. Times 32 would make them the bits 7 to 26 of the address; times 33
/// puts what is 64 MiB apart, as the heaps of glibc's threads are, in different places too.
#[inline]
fn granule(address: u64) -> usize {
    ((address as u32).wrapping_mul(33) >> 12) as usize
}

/// Multiplies well: 2^64 over the golden ratio.
#[inline]
fn hash(address: u64) -> u64 {
    (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The byte of a granule with two samples or more is their number. At this value it stays: the true number is lost. 1 is one
/// sample whose tag is lost.
const TOO_MANY: u8 = 127;

/// The byte of a granule with this address as its only sample: more than [`TOO_MANY`].
#[inline]
fn tag(address: u64) -> u8 {
    // The upper 7 bits, which no table uses.
    128 | (hash(address) >> 57) as u8
}

/// One byte for each granule; owned by the C shim, whose `free` reads it.
pub struct BlockFilter {
    bytes: &'static [AtomicU8; FILTER_GRANULES],
    /// Makes `free` read the filter from now on. It does not while the filter is all zero.
    watch_frees: fn(),
}

impl BlockFilter {
    /// All `bytes` are zero. `watch_frees` is called whenever one is about to be marked.
    pub const fn new(bytes: &'static [AtomicU8; FILTER_GRANULES], watch_frees: fn()) -> Self {
        Self { bytes, watch_frees }
    }

    #[inline]
    fn byte(&self, address: u64) -> &AtomicU8 {
        let [first, ..] = self.bytes;
        self.bytes.get(granule(address)).unwrap_or(first)
    }

    /// Relaxed: whoever frees the block got its address from the thread that marked the granule, and with it the mark.
    fn mark(&self, address: u64) {
        (self.watch_frees)();
        let _ = self
            .byte(address)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |byte| match byte {
                0 => Some(tag(address)),
                TOO_MANY => None,
                count @ 1..TOO_MANY => Some(count + 1),
                _ => Some(2),
            });
    }

    fn unmark(&self, address: u64) {
        let _ = self
            .byte(address)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |byte| match byte {
                TOO_MANY => None,
                count @ 0..TOO_MANY => Some(count.saturating_sub(1)),
                _ => Some(0),
            });
    }

    /// Whether the address may be a sample. False is certain.
    #[inline]
    pub fn may_hold(&self, address: u64) -> bool {
        match self.byte(address).load(Ordering::Relaxed) {
            0 => false,
            1..=TOO_MANY => true,
            only => only == tag(address),
        }
    }
}

/// Eight words, a cache line.
type Bucket = [AtomicU64; BUCKET];

struct Table {
    addresses: &'static [Bucket],
    ids: &'static [Bucket],
}

impl Table {
    fn with_buckets(buckets: usize) -> Option<Self> {
        let map = || Some(memory::map_atomics(buckets * BUCKET)?.as_chunks().0);
        Some(Self {
            addresses: map()?,
            ids: map()?,
        })
    }

    /// The places where `address` may be: two buckets.
    fn places(&self, address: u64) -> impl Iterator<Item = (&AtomicU64, &AtomicU64)> {
        let hash = hash(address);
        [hash >> 40, hash >> 16].into_iter().flat_map(|bits| {
            // Their number is a power of two.
            let index = bits as usize & (self.addresses.len() - 1);
            let bucket = self.addresses.get(index).zip(self.ids.get(index));
            let places =
                |(addresses, ids): (&'static Bucket, &'static Bucket)| addresses.iter().zip(ids);
            bucket.into_iter().flat_map(places)
        })
    }

    fn insert(&self, address: u64, id: u64) -> bool {
        self.places(address).any(|(place, id_place)| {
            // Relaxed: see the module's comment on who can look for this address.
            let is_taken = place.load(Ordering::Relaxed) == 0
                && place
                    .compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if is_taken {
                id_place.store(id, Ordering::Relaxed);
            }
            is_taken
        })
    }

    fn take(&self, address: u64) -> Option<u64> {
        let (place, id_place) = self
            .places(address)
            .find(|(place, _)| place.load(Ordering::Relaxed) == address)?;
        let id = id_place.load(Ordering::Relaxed);
        // Release: the next owner of the place stores its id after its exchange, so after this load.
        place.store(0, Ordering::Release);
        Some(id)
    }
}

/// The live samples of a heap whose blocks are freed by address: malloc's, or one that a virtual machine registered.
pub struct LiveSamples {
    tables: [StaticRef<Table>; TABLES],
    /// Number of tables that may exist. It only grows.
    made: AtomicUsize,
}

impl LiveSamples {
    /// None.
    pub const fn new() -> Self {
        Self {
            tables: [const { StaticRef::new() }; TABLES],
            made: AtomicUsize::new(0),
        }
    }

    /// Adds a sample. False: there is no room, which the caller counts as lost.
    pub fn insert(&self, filter: &BlockFilter, address: u64, id: u64) -> bool {
        filter.mark(address);
        let is_in = self.insert_unmarked(address, id);
        if !is_in {
            filter.unmark(address);
        }
        is_in
    }

    fn insert_unmarked(&self, address: u64, id: u64) -> bool {
        // Relaxed, here and in `take_unmarked`: the tables themselves are acquired, and who looks for an address has seen what
        // its thread had seen when it was inserted.
        let made = self.made.load(Ordering::Relaxed);
        if let Some(newest) = made
            .checked_sub(1)
            .and_then(|newest| self.tables.get(newest)?.get())
            && newest.insert(address, id)
        {
            return true;
        }
        self.insert_in_next(made, address, id)
    }

    #[cold]
    fn insert_in_next(&self, next: usize, address: u64, id: u64) -> bool {
        if next >= TABLES {
            return false;
        }
        let Some(table) = self.make(next) else {
            // No memory for a larger one: the older ones may have room.
            let older = self.tables.iter().filter_map(StaticRef::get);
            return older.rev().any(|table| table.insert(address, id));
        };
        table.insert(address, id)
    }

    /// Allocates the first table now.
    pub fn prepare(&self) {
        self.make(0);
    }

    /// Returns the table with this number, and allocates it if necessary.
    fn make(&self, number: usize) -> Option<&'static Table> {
        let place = self.tables.get(number)?;
        let made = || Table::with_buckets(FIRST_BUCKETS << (2 * number)).and_then(leaked::leak);
        let table = place.set_if_empty(place.get().or_else(made)?);
        self.made.fetch_max(number + 1, Ordering::Relaxed);
        Some(table)
    }

    /// Removes the sample at this address and returns its id.
    pub fn take(&self, filter: &BlockFilter, address: u64) -> Option<u64> {
        if !filter.may_hold(address) {
            return None;
        }
        let id = self.take_unmarked(address)?;
        filter.unmark(address);
        Some(id)
    }

    /// Removes the sample at this address if it has this id.
    pub fn take_as(&self, filter: &BlockFilter, address: u64, id: u64) {
        if let Some(found) = self.take(filter, address)
            && found != id
        {
            // Of another one, which has the same address in this process.
            self.insert(filter, address, found);
        }
    }

    fn take_unmarked(&self, address: u64) -> Option<u64> {
        if address == 0 {
            // The granule of NULL may be marked, by an address 4 GiB or a multiple away.
            return None;
        }
        let made = self.tables.get(..self.made.load(Ordering::Relaxed))?;
        made.iter()
            .rev()
            .filter_map(StaticRef::get)
            .find_map(|table| table.take(address))
    }

    /// Removes all samples: in a forked child they are the parent's. Only while no other thread exists.
    pub fn clear(&self, filter: &BlockFilter) {
        for table in self.tables.iter().filter_map(StaticRef::get) {
            for place in table.addresses.as_flattened() {
                // Looked at first: a store would take memory for each page of a large table that was never used.
                if place.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let address = place.swap(0, Ordering::Relaxed);
                if address != 0 {
                    filter.unmark(address);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::BTreeMap;

    fn filter() -> BlockFilter {
        let bytes: Box<[AtomicU8]> = (0..FILTER_GRANULES).map(|_| AtomicU8::new(0)).collect();
        BlockFilter::new(Box::leak(bytes.try_into().unwrap()), || {})
    }

    /// Addresses as an allocator gives them, some in one granule, some 4 GiB apart (which share a byte of the filter).
    fn address(number: u64) -> u64 {
        0x7f00_0000_0000 + ((number % 5) << 32) + number * 48
    }

    #[test]
    fn behaves_like_a_map_through_all_table_sizes() {
        let (live, filter) = (LiveSamples::new(), filter());
        let mut oracle = BTreeMap::new();
        let mut state = 1u64;
        for step in 0..300_000u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let address = address(state >> 48);
            if oracle.remove(&address).is_some_and(|id| {
                assert_eq!(live.take(&filter, address), Some(id));
                true
            }) {
                assert_eq!(live.take(&filter, address), None);
                continue;
            }
            assert!(live.insert(&filter, address, step));
            assert_ne!(filter.byte(address).load(Ordering::Relaxed), 0);
            oracle.insert(address, step);
        }
        assert!(oracle.len() > 20_000, "enough for several tables");
        for (address, id) in oracle {
            assert_eq!(live.take(&filter, address), Some(id));
        }
        // What never had too many marks counts down to none; the rest stays marked for ever.
        let left = filter
            .bytes
            .iter()
            .filter(|byte| !matches!(byte.load(Ordering::Relaxed), 0 | TOO_MANY))
            .count();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_granule_with_too_many_samples_stays_marked() {
        let (live, filter) = (LiveSamples::new(), filter());
        for number in 0..300 {
            assert!(live.insert(
                &filter,
                0x5000_0000 + number % 16 * 8 + ((number / 16) << 32),
                number
            ));
        }
        for number in 0..300 {
            assert_eq!(
                live.take(
                    &filter,
                    0x5000_0000 + number % 16 * 8 + ((number / 16) << 32)
                ),
                Some(number)
            );
        }
        assert_eq!(filter.byte(0x5000_0000).load(Ordering::Relaxed), TOO_MANY);
    }

    #[test]
    fn one_sample_in_a_granule_hides_nearly_all_others_there() {
        let filter = filter();
        let (sample, another) = (0x5000_0000, 0x5000_0020);
        filter.mark(sample);
        assert!(filter.may_hold(sample));
        // 4 GiB apart: all in the sample's granule.
        let pass = (1..100_000u64)
            .filter(|number| filter.may_hold(sample + (number << 32)))
            .count();
        // A hash that is as good as chance lets 781 pass, standard deviation 28.
        assert!((600..1000).contains(&pass), "{pass}");
        // Two cannot be told apart by a tag, and the one that is left has lost its own.
        filter.mark(another);
        filter.unmark(sample);
        assert!(filter.may_hold(another) && filter.may_hold(sample));
        filter.unmark(another);
        assert!(!filter.may_hold(another) && !filter.may_hold(sample));
    }

    #[test]
    fn threads_work_on_different_addresses_at_once() {
        let (live, filter) = (LiveSamples::new(), filter());
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (live, filter) = (&live, &filter);
                scope.spawn(move || {
                    for round in 0..20 {
                        for number in 0..2000 {
                            let id = round * 10_000 + number;
                            assert!(live.insert(
                                filter,
                                0x6000_0000 + (number * 4 + thread) * 16,
                                id
                            ));
                        }
                        for number in 0..2000 {
                            let id = round * 10_000 + number;
                            assert_eq!(
                                live.take(filter, 0x6000_0000 + (number * 4 + thread) * 16),
                                Some(id)
                            );
                        }
                    }
                });
            }
        });
    }

    /// As under a real allocator: an address that one thread gives back is the next one that another gets.
    #[test]
    fn each_taker_gets_the_id_that_was_inserted_last() {
        let (live, filter) = (LiveSamples::new(), filter());
        let free_list: std::sync::Mutex<std::vec::Vec<u64>> = std::sync::Mutex::new(
            (0..64)
                .map(|number| 0x7000_0000 + number * 0x10_0000)
                .collect(),
        );
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (live, filter, free_list) = (&live, &filter, &free_list);
                scope.spawn(move || {
                    for round in 0..100_000u64 {
                        let Some(address) = free_list.lock().unwrap().pop() else {
                            continue;
                        };
                        let id = thread << 32 | round;
                        assert!(live.insert(filter, address, id));
                        assert_ne!(filter.byte(address).load(Ordering::Relaxed), 0);
                        assert_eq!(live.take(filter, address), Some(id));
                        free_list.lock().unwrap().push(address);
                    }
                });
            }
        });
    }

    /// Threads whose heaps are 4 GiB apart: their granules share bytes of the filter.
    #[test]
    fn threads_that_share_a_byte_of_the_filter_do_not_disturb_each_other() {
        let (live, filter) = (LiveSamples::new(), filter());
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (live, filter) = (&live, &filter);
                scope.spawn(move || {
                    let address = 0x7f00_0000_0b70 + (thread << 32);
                    for id in 1..400_000u64 {
                        assert!(live.insert(filter, address, id));
                        assert_ne!(filter.byte(address).load(Ordering::Relaxed), 0);
                        assert_eq!(live.take(filter, address), Some(id));
                    }
                });
            }
        });
    }

    /// `free` passes all on while nothing is marked: it must know before the first mark.
    #[test]
    fn frees_are_watched_before_a_granule_is_marked() {
        static BYTES: [AtomicU8; FILTER_GRANULES] = [const { AtomicU8::new(0) }; FILTER_GRANULES];
        static MARKED_WHEN_CALLED: std::sync::Mutex<std::vec::Vec<u8>> =
            std::sync::Mutex::new(std::vec::Vec::new());
        let filter = BlockFilter::new(&BYTES, || {
            let marked = BYTES
                .iter()
                .filter(|byte| byte.load(Ordering::Relaxed) != 0);
            MARKED_WHEN_CALLED
                .lock()
                .unwrap()
                .push(marked.count() as u8);
        });
        let live = LiveSamples::new();
        assert!(live.insert(&filter, 0x1000, 1));
        assert_eq!(live.take(&filter, 0x1000), Some(1));
        assert!(live.insert(&filter, 0x1000, 2));
        assert!(live.insert(&filter, 0x9000, 3));
        assert_eq!(*MARKED_WHEN_CALLED.lock().unwrap(), [0, 0, 1]);
    }

    /// Empty places hold 0: `free(NULL)` must not find one, and much less empty it while another thread fills it.
    #[test]
    fn null_is_never_a_sample() {
        let (live, filter) = (LiveSamples::new(), filter());
        let shares_a_byte_with_null = 4 << 30;
        assert!(live.insert(&filter, shares_a_byte_with_null, 7));
        assert_ne!(filter.byte(0).load(Ordering::Relaxed), 0);
        assert_eq!(live.take(&filter, 0), None);
        assert_eq!(live.take(&filter, shares_a_byte_with_null), Some(7));
        assert_eq!(live.take(&filter, 0), None);
    }

    #[test]
    fn clear_forgets_all() {
        let (live, filter) = (LiveSamples::new(), filter());
        assert!(live.insert(&filter, 0x1000, 1));
        live.clear(&filter);
        assert_eq!(live.take(&filter, 0x1000), None);
        assert_eq!(filter.byte(0x1000).load(Ordering::Relaxed), 0);
    }
}
