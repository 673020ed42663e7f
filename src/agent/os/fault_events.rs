//! Events of the kernel's that count a thread's page faults and signal every n-th of them.
//!
//! An event belongs to the thread that makes it. No descriptor stays open: the mapping of the event's ring keeps it alive, and
//! whatever takes the place of that mapping ends it, before the call returns.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Errno, check, memory, process};

/// A page fault that the kernel has resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The instruction that faulted.
    pub pc: u64,
    /// The address that it touched.
    pub address: u64,
    /// The size of the page that is mapped there now; 0 if the kernel does not say it.
    pub page_bytes: u64,
}

/// `struct perf_event_attr` as in its first version, up to what is used here.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64, "PERF_ATTR_SIZE_VER0");

const PERF_TYPE_SOFTWARE: u32 = 1;
/// Not `PAGE_FAULTS`, which is counted before the page is there.
const PERF_COUNT_SW_PAGE_FAULTS_MIN: u64 = 5;
const PERF_SAMPLE_IP: u64 = 1;
const PERF_SAMPLE_ADDR: u64 = 8;
/// Since Linux 5.11.
const PERF_SAMPLE_DATA_PAGE_SIZE: u64 = 1 << 22;
const IS_DISABLED: u64 = 1;
const EXCLUDES_KERNEL: u64 = 1 << 5;
const EXCLUDES_HYPERVISOR: u64 = 1 << 6;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const PERF_EVENT_IOC_ENABLE: u64 = 0x2400;
const F_SETSIG: i64 = 10;
const F_SETOWN_EX: i64 = 15;
const F_OWNER_TID: i32 = 0;

/// An open event, closed when dropped.
struct Descriptor(i64);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: ours, and closed once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

fn open(period: u64, sample_type: u64) -> Result<Descriptor, Errno> {
    let attributes = Attributes {
        kind: PERF_TYPE_SOFTWARE,
        bytes: size_of::<Attributes>() as u32,
        config: PERF_COUNT_SW_PAGE_FAULTS_MIN,
        period,
        sample_type,
        flags: IS_DISABLED | EXCLUDES_KERNEL | EXCLUDES_HYPERVISOR,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads the attributes, which are as long as they say.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            0_i64,
            -1_i64,
            -1_i64,
            PERF_FLAG_FD_CLOEXEC,
        )
    })?;
    Ok(Descriptor(fd as i64))
}

/// Whether the kernel lets this process have such an event.
pub fn probe() -> Result<(), Errno> {
    open(u64::MAX >> 1, PERF_SAMPLE_IP | PERF_SAMPLE_ADDR).map(drop)
}

/// The ring of a thread's event, or zeros in its place.
#[derive(Clone, Copy, Debug)]
pub struct FaultRing(NonNull<u8>);

/// Places in the first page, `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
const PERF_RECORD_SAMPLE: u32 = 9;

impl FaultRing {
    /// Room for this many rings, each without an event: the address of the first one.
    pub fn reserve(count: usize) -> Option<u64> {
        let base = memory::map(count * Self::bytes())?;
        Some(base.as_ptr().expose_provenance() as u64)
    }

    /// The ring with this index.
    ///
    /// # Safety
    /// `base` is of [`Self::reserve`] in this process, for more than `index` rings.
    pub unsafe fn at(base: u64, index: usize) -> Option<Self> {
        let address = base as usize + index * Self::bytes();
        NonNull::new(core::ptr::with_exposed_provenance_mut(address)).map(Self)
    }

    /// A page for the header, and one for the records.
    fn bytes() -> usize {
        2 * memory::page_bytes()
    }

    /// Makes an event for the calling thread, in place of the one that is there. It sends `signal` to the thread at every
    /// `period`-th page fault of its own instructions. After a failure there is no event.
    pub fn arm(self, signal: i32, period: u64) -> Result<(), Errno> {
        const SAMPLE: u64 = PERF_SAMPLE_IP | PERF_SAMPLE_ADDR;
        const EINVAL: Errno = Errno(libc::EINVAL);
        let opened = match open(period, SAMPLE | PERF_SAMPLE_DATA_PAGE_SIZE) {
            Err(EINVAL) => open(period, SAMPLE),
            other => other,
        };
        let armed = opened.and_then(|event| self.connect(&event, signal));
        if armed.is_err() {
            self.disarm();
        }
        armed
    }

    fn connect(self, event: &Descriptor, signal: i32) -> Result<(), Errno> {
        #[repr(C)]
        struct Owner {
            kind: i32,
            id: i32,
        }
        let fd = i32::try_from(event.0).map_err(|_| Errno(libc::EMFILE))?;
        // SAFETY: the place is ours, and readers can do with the zeros of a new ring.
        unsafe { memory::map_shared_at(fd, self.0, Self::bytes()) }.ok_or(Errno(libc::EPERM))?;
        let owner = Owner {
            kind: F_OWNER_TID,
            id: process::tid().cast_signed(),
        };
        // SAFETY: our descriptor; the kernel reads `owner`.
        unsafe {
            check(libc::syscall(
                libc::SYS_fcntl,
                event.0,
                F_SETOWN_EX,
                &raw const owner,
            ))?;
            check(libc::syscall(
                libc::SYS_fcntl,
                event.0,
                F_SETSIG,
                i64::from(signal),
            ))?;
            check(libc::syscall(
                libc::SYS_fcntl,
                event.0,
                i64::from(libc::F_SETFL),
                i64::from(libc::O_ASYNC),
            ))?;
            check(libc::syscall(
                libc::SYS_ioctl,
                event.0,
                PERF_EVENT_IOC_ENABLE,
                0_i64,
            ))?;
        }
        Ok(())
    }

    /// Ends the event. No signal of it is sent any more; one that was sent may be pending. Any thread, while others read.
    pub fn disarm(self) {
        // SAFETY: ours; who reads finds no records.
        unsafe { memory::replace_by_zeros(self.0, Self::bytes()) };
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the two pages, which stay mapped; aligned, as all offsets here are.
        unsafe { self.0.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Takes the faults that were recorded since the last time. The owning thread only.
    pub fn take(self, mut on_fault: impl FnMut(Fault)) {
        let page_bytes = memory::page_bytes();
        let read = |position: u64| {
            let offset = page_bytes + position as usize % page_bytes;
            self.word(offset & !7).load(Ordering::Relaxed)
        };
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        // Acquire: pairs with the kernel's barrier before it moves the head.
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        while tail < head && head - tail <= page_bytes as u64 {
            let header = read(tail);
            let length = header >> 48;
            if length < 8 || length % 8 != 0 {
                break;
            }
            if header as u32 == PERF_RECORD_SAMPLE && length >= 24 {
                on_fault(Fault {
                    pc: read(tail + 8),
                    address: read(tail + 16),
                    page_bytes: if length >= 32 { read(tail + 24) } else { 0 },
                });
            }
            tail += length;
        }
        // Release: the kernel may overwrite what was read.
        self.word(DATA_TAIL).store(head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::vec::Vec;

    static SIGNALS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_signal: i32) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }

    /// Pages that nobody has touched.
    fn fresh(pages: usize) -> NonNull<u8> {
        let bytes = pages * memory::page_bytes();
        let base = memory::map(bytes).unwrap();
        // One fault for each page. A kernel without huge pages refuses.
        // SAFETY: the mapping above.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
        base
    }

    fn touch(base: NonNull<u8>, pages: usize) {
        for page in 0..pages {
            // SAFETY: within the mapping.
            unsafe { base.add(page * memory::page_bytes()).write_volatile(1) };
        }
    }

    /// Whether the kernel allows such an event, asked without the code that is tested. It may not know of sizes of pages.
    fn allows_events(sample_type: u64) -> bool {
        let mut attributes = [0_u64; 8];
        // Type and size, event, period, sample type, format, flags: nothing of the kernel.
        attributes[0] = 1 | 64 << 32;
        (attributes[1], attributes[2], attributes[3]) = (5, 1000, sample_type);
        attributes[5] = 1 | 1 << 5 | 1 << 6;
        let none = -1_i64;
        // SAFETY: the kernel reads 64 bytes.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                attributes.as_ptr(),
                0_i64,
                none,
                none,
                0_i64,
            )
        };
        drop((fd >= 0).then_some(Descriptor(fd)));
        fd >= 0
    }

    #[test]
    fn there_is_room_for_all_rings_and_an_unused_one_has_no_faults() {
        let base = FaultRing::reserve(9).unwrap();
        let bytes = FaultRing::bytes() as u64;
        assert_eq!(bytes, 2 * memory::page_bytes() as u64);
        for index in 0..9 {
            assert!(super::super::safe_read::is_readable(
                base + (index + 1) * bytes - 1
            ));
            // SAFETY: there are nine.
            let ring = unsafe { FaultRing::at(base, index as usize) }.unwrap();
            assert_eq!(ring.0.as_ptr().addr() as u64, base + index * bytes);
            let mut taken = Vec::new();
            ring.take(|fault| taken.push(fault));
            assert_eq!(taken, []);
        }
    }

    /// The faults taken from a ring that holds these words from `start` on, and the number of bytes that were read.
    fn taken(start: u64, words: &[u64]) -> (Vec<Fault>, u64) {
        let base = FaultRing::reserve(1).unwrap();
        // SAFETY: there is one.
        let ring = unsafe { FaultRing::at(base, 0) }.unwrap();
        let page_bytes = memory::page_bytes() as u64;
        let mut end = start;
        for word in words {
            let place = page_bytes + end % page_bytes;
            ring.word(place as usize).store(*word, Ordering::Relaxed);
            end += 8;
        }
        ring.word(DATA_TAIL).store(start, Ordering::Relaxed);
        ring.word(DATA_HEAD).store(end, Ordering::Relaxed);
        let mut faults = Vec::new();
        ring.take(|fault| faults.push(fault));
        (faults, ring.word(DATA_TAIL).load(Ordering::Relaxed) - start)
    }

    fn fault(pc: u64, address: u64, page_bytes: u64) -> Fault {
        Fault {
            pc,
            address,
            page_bytes,
        }
    }

    /// The first word of a record.
    fn header(kind: u64, words: u64) -> u64 {
        kind | (8 * words) << 48
    }

    #[test]
    fn samples_are_taken_and_other_records_passed_over() {
        const SAMPLE: u64 = 9;
        let words = [
            &[header(SAMPLE, 4), 1, 2, 3][..],
            // Losses, and one that is a word alone.
            &[header(2, 3), 4, 5],
            &[header(3, 1)],
            // A kernel that knows no sizes of pages.
            &[header(SAMPLE, 3), 6, 7],
            // Too short.
            &[header(SAMPLE, 2), 8],
            &[header(SAMPLE, 5), 9, 10, 11, 12],
        ];
        let words = words.concat();
        let expected = [fault(1, 2, 3), fault(6, 7, 0), fault(9, 10, 11)];
        let page_bytes = memory::page_bytes() as u64;
        // At the beginning, and around the end of the page.
        for start in [0, page_bytes - 16, 5 * page_bytes - 72] {
            let all = 8 * words.len() as u64;
            assert_eq!(taken(start, &words), (expected.to_vec(), all));
        }
    }

    #[test]
    fn what_makes_no_sense_ends_a_ring_and_is_passed_over() {
        for wrong in [0, header(9, 0), 9 | 4 << 48, 9 | 25 << 48] {
            let words = [header(9, 3), 1, 2, wrong, 4, 5, header(9, 3), 1, 2];
            let found = taken(0, &words);
            assert_eq!(found, (Vec::from([fault(1, 2, 0)]), 72), "{wrong:#x}");
        }
        // The kernel may have gone around it.
        let page_words = memory::page_bytes() / 8;
        let words = std::vec![header(9, 4); page_words];
        assert_eq!(taken(0, &words).0.len(), page_words / 4);
        let words = std::vec![header(9, 4); page_words + 1];
        assert_eq!(taken(0, &words), (Vec::new(), 8 * words.len() as u64));
        assert_eq!(taken(64, &[]), (Vec::new(), 0));
    }

    /// On whichever processor it runs, and none of the kernel's own.
    fn assert_faults_are_the_threads_own(ring: FaultRing) {
        let page_bytes = memory::page_bytes();
        let knows_sizes = allows_events(1 | 8 | 1 << 22);
        let base = fresh(20);
        ring.arm(libc::SIGSTKFLT, 1).unwrap();
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: within the mapping, to which nobody else refers.
        let by_kernel = unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), 10 * page_bytes) };
        std::io::Read::read_exact(&mut &zeros, by_kernel).unwrap();
        // SAFETY: within the mapping.
        touch(unsafe { base.add(10 * page_bytes) }, 10);
        let mut seen = Vec::with_capacity(100);
        ring.take(|fault| seen.push(fault));
        ring.disarm();
        let start = base.as_ptr().addr() as u64;
        let pages = seen.iter().filter_map(|fault| {
            let page = fault.address.checked_sub(start)? / page_bytes as u64;
            (page < 20).then_some((page, fault.page_bytes))
        });
        let size = if knows_sizes { page_bytes as u64 } else { 0 };
        let expected = (10..20).map(|page| (page, size));
        assert_eq!(pages.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    fn run_on(processor: usize) -> bool {
        // SAFETY: a set of its own, for this thread.
        unsafe {
            let mut set = core::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
        }
    }

    /// One test, for there is one signal.
    #[test]
    fn every_nth_fault_of_the_thread_is_signalled_until_the_event_ends() {
        const PERIOD: usize = 10;
        if !allows_events(1 | 8) {
            assert!(probe().is_err());
            return crate::skip::skip("the kernel allows no events of page faults");
        }
        assert_eq!(probe(), Ok(()));
        // SAFETY: a handler that adds one.
        unsafe { libc::signal(libc::SIGSTKFLT, count as *const () as usize) };
        let rings = FaultRing::reserve(2).unwrap();
        // SAFETY: there are two.
        let ring = unsafe { FaultRing::at(rings, 1) }.unwrap();
        let base = fresh(3000);
        ring.arm(libc::SIGSTKFLT, PERIOD as u64).unwrap();
        let mut seen = Vec::with_capacity(300);
        for hundred in 0..10 {
            // SAFETY: within the mapping.
            touch(
                unsafe { base.add(hundred * 100 * memory::page_bytes()) },
                100,
            );
            ring.take(|fault| seen.push(fault));
        }
        let signals = SIGNALS.load(Ordering::Relaxed);
        // What the test itself touches comes on top.
        assert!((95..=130).contains(&signals), "{signals}");
        let start = base.as_ptr().addr() as u64;
        let end = start + (1000 * memory::page_bytes()) as u64;
        let inside = seen
            .iter()
            .filter(|fault| (start..end).contains(&fault.address));
        let inside: Vec<_> = inside.collect();
        assert!((95..=101).contains(&inside.len()), "{}", inside.len());
        let page_bytes = memory::page_bytes() as u64;
        for fault in inside {
            assert!([0, page_bytes].contains(&fault.page_bytes), "{fault:?}");
            assert_ne!(fault.pc, 0);
        }
        ring.disarm();
        ring.disarm();
        let before = SIGNALS.load(Ordering::Relaxed);
        // SAFETY: within the mapping.
        touch(unsafe { base.add(1000 * memory::page_bytes()) }, 1000);
        let mut late = Vec::new();
        ring.take(|fault| late.push(fault));
        assert_eq!(late, []);
        assert_eq!(SIGNALS.load(Ordering::Relaxed), before);
        // The place can be used again.
        ring.arm(libc::SIGSTKFLT, 1).unwrap();
        // SAFETY: within the mapping.
        touch(unsafe { base.add(2000 * memory::page_bytes()) }, 1);
        assert!(SIGNALS.load(Ordering::Relaxed) > before);
        ring.disarm();
        for processor in 0..64 {
            if run_on(processor) {
                assert_faults_are_the_threads_own(ring);
            }
        }
    }
}
