//! Memory of our own, straight from the kernel; and what fork does to it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bytes that [`map`] gave and [`unmap`] did not take back.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of the agent, in bytes of address space.
pub fn mapped_bytes() -> u64 {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

/// How many mappings of our own are known at most.
pub const MOST_OWN_RANGES: usize = 256;

/// Mappings of our own, by start and length: (0, 0) is a free place. What finds no place is not known.
struct OwnRanges([(AtomicU64, AtomicU64); MOST_OWN_RANGES]);

static OWN_RANGES: OwnRanges = OwnRanges::new();

impl OwnRanges {
    const fn new() -> Self {
        Self([const { (AtomicU64::new(0), AtomicU64::new(0)) }; MOST_OWN_RANGES])
    }

    fn add(&self, start: u64, bytes: u64) {
        let place = self.0.iter().find(|(place, _)| {
            place.load(Ordering::Relaxed) == 0
                && place
                    .compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        });
        if let Some((_, length)) = place {
            length.store(bytes, Ordering::Release);
        }
    }

    fn remove(&self, start: u64) {
        let mut places = self.0.iter();
        let place = places.find(|(place, _)| place.load(Ordering::Relaxed) == start);
        if let Some((place, length)) = place {
            length.store(0, Ordering::Relaxed);
            place.store(0, Ordering::Release);
        }
    }

    fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(place, length)| {
            let bytes = length.load(Ordering::Acquire);
            match place.load(Ordering::Acquire) {
                start if start != 0 && bytes != 0 => (start, bytes),
                _ => (0, 0),
            }
        })
    }
}

/// Start and length of each place for a mapping of our own, (0, 0) where it is free. Any thread; what another thread maps or
/// unmaps meanwhile may be missing.
pub fn own_ranges() -> impl Iterator<Item = (u64, u64)> {
    OWN_RANGES.all()
}

/// The end of the heap of `brk`.
pub fn heap_end() -> u64 {
    // SAFETY: asks only: no address is so low.
    unsafe { libc::syscall(libc::SYS_brk, 0_i64) }.cast_unsigned()
}

/// The size of a page.
pub fn page_bytes() -> usize {
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    match BYTES.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: reads the auxiliary vector that libc has kept.
            let bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
            BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        known => known,
    }
}

/// Zeroed private memory that is never given back. `None`: the kernel has none for us.
pub fn map(bytes: usize) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    let base = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            core::ptr::null_mut::<u8>(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            // As words: the last ones are passed on the stack.
            -1_i64,
            0_i64,
        )
    };
    let base = mapped(base)?;
    MAPPED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    OWN_RANGES.add(base.as_ptr().addr() as u64, bytes as u64);
    Some(base)
}

/// Decodes the result of mmap: an address, or -1.
fn mapped(base: libc::c_long) -> Option<NonNull<u8>> {
    if base == -1 {
        return None;
    }
    NonNull::new(core::ptr::with_exposed_provenance_mut(base as usize))
}

/// Gives a mapping of [`map`] back.
///
/// # Safety
/// `base` came from `map(bytes)`, and nothing refers into it any more.
pub unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    MAPPED_BYTES.fetch_sub(bytes as u64, Ordering::Relaxed);
    OWN_RANGES.remove(base.as_ptr().addr() as u64);
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_munmap, base.as_ptr(), bytes) };
}

/// Makes pages unreadable, as if they were gone. In a test other threads would map what they need into a real hole.
///
/// # Safety
/// The range is part of a mapping of [`map`], and nothing refers to it.
#[cfg(test)]
pub(crate) unsafe fn make_unreadable(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::mprotect(base.as_ptr().cast(), bytes, libc::PROT_NONE) };
    assert_eq!(result, 0);
}

/// Puts fresh private memory in the place of a mapping, at once for all threads.
///
/// # Safety
/// The range is a mapping of ours, and whoever still uses it can do with zeros.
pub unsafe fn replace_by_zeros(base: NonNull<u8>, bytes: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    unsafe {
        libc::syscall(
            libc::SYS_mmap,
            base.as_ptr(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1_i64,
            0_i64,
        )
    };
}

/// `count` atomics, all zero, for ever.
pub fn map_atomics(count: usize) -> Option<&'static [AtomicU64]> {
    let base = map(count.checked_mul(size_of::<AtomicU64>())?)?;
    // SAFETY: zeroed, aligned to a page, of this length, and never unmapped.
    Some(unsafe { core::slice::from_raw_parts(base.as_ptr().cast::<AtomicU64>(), count) })
}

/// A word that reads 0 in every child of fork, however it was forked: its page is wiped by the kernel.
pub struct ForkCanary(AtomicPtr<AtomicU32>);

impl ForkCanary {
    /// Not armed.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// From now on [`Self::is_forked_child`] tells. Without kernel support (before 4.14) it never does, and only
    /// children made by libc's `fork` are noticed.
    pub fn arm(&self) {
        let present = self.0.load(Ordering::Acquire);
        let word = if present.is_null() {
            let Some(page) = map(4096) else { return };
            // SAFETY: the page was just mapped, privately and anonymously, as the advice demands.
            if unsafe {
                libc::syscall(
                    libc::SYS_madvise,
                    page.as_ptr(),
                    4096,
                    libc::MADV_WIPEONFORK,
                )
            } != 0
            {
                return;
            }
            page.as_ptr().cast::<AtomicU32>()
        } else {
            present
        };
        // SAFETY: a mapped page, never unmapped.
        unsafe { &*word }.store(1, Ordering::Relaxed);
        self.0.store(word, Ordering::Release);
    }

    /// Whether this process was forked since [`Self::arm`].
    pub fn is_forked_child(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: null or a page that is never unmapped.
        unsafe { word.as_ref() }.is_some_and(|word| word.load(Ordering::Relaxed) == 0)
    }
}

/// Maps a file that is to be shared with whoever reads it after we are gone. A forked child does not inherit it: two
/// processes must not write one ring.
pub fn map_shared(fd: i32, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    unsafe { map_shared_with(fd, core::ptr::null_mut(), bytes, 0) }
}

/// As [`map_shared`], in place of other memory of ours.
///
/// # Safety
/// The range is a mapping of ours, in which nobody relies on what is there.
pub unsafe fn map_shared_at(fd: i32, base: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise.
    unsafe { map_shared_with(fd, base.as_ptr(), bytes, libc::MAP_FIXED) }
}

/// # Safety
/// With `MAP_FIXED`: the range is a mapping of ours, in which nobody relies on what is there.
unsafe fn map_shared_with(fd: i32, base: *mut u8, bytes: usize, flags: i32) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise; or the kernel chooses the address.
    let base = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            base,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | flags,
            i64::from(fd),
            0_i64,
        )
    };
    let base = mapped(base)?;
    // SAFETY: our own mapping.
    unsafe { libc::syscall(libc::SYS_madvise, base.as_ptr(), bytes, libc::MADV_DONTFORK) };
    Some(base)
}

/// Makes forked children inherit a mapping of [`map_shared`].
pub fn inherit(base: NonNull<u8>, bytes: usize) {
    // SAFETY: our own mapping, of which nothing is changed in this process.
    unsafe { libc::syscall(libc::SYS_madvise, base.as_ptr(), bytes, libc::MADV_DOFORK) };
}

/// Puts memory where a mapping of [`map_shared`] was in the parent, unless something else is there by now.
pub fn fill_hole(base: NonNull<u8>, bytes: usize) {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping where there is none.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            base.as_ptr(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1_i64,
            0_i64,
        )
    };
    // Kernels before 4.17 take the address for a wish.
    if mapped != -1 && mapped as usize != base.addr().get() {
        // SAFETY: mapped just now, and of no use.
        unsafe { libc::syscall(libc::SYS_munmap, mapped, bytes) };
    }
}

/// Gives a shared mapping all its pages now, so that who writes into it first need not wait for the file system: threads
/// that touch a new page of a file at the same time wait for one another asleep. Kernels before 5.14 refuse; then each page
/// comes when it is needed.
pub fn populate(base: NonNull<u8>, bytes: usize) {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: changes nothing that is in memory; where there is no such mapping the kernel refuses.
    unsafe { libc::syscall(libc::SYS_madvise, base.as_ptr(), bytes, MADV_POPULATE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::safe_read::is_readable;

    #[test]
    fn mappings_of_our_own_are_known_until_they_are_given_back() {
        let ranges = OwnRanges::new();
        let known = || {
            ranges
                .all()
                .filter(|it| *it != (0, 0))
                .collect::<std::vec::Vec<_>>()
        };
        ranges.add(4096, 100);
        ranges.add(8192, 200);
        assert_eq!(known(), [(4096, 100), (8192, 200)]);
        ranges.remove(4096);
        ranges.remove(5);
        ranges.add(12_288, 300);
        assert_eq!(known(), [(12_288, 300), (8192, 200)]);
        // What finds no place is not known.
        for number in 0..2 * MOST_OWN_RANGES as u64 {
            ranges.add(1 << 20 | number, 1);
        }
        assert_eq!(known().len(), MOST_OWN_RANGES);
        ranges.remove(1 << 20 | (2 * MOST_OWN_RANGES as u64 - 1));
        assert_eq!(known().len(), MOST_OWN_RANGES);
    }

    const PAGE: usize = 4096;

    /// Whether this is so in a forked child. `is_so` must be allowed there: other threads of this process are gone.
    fn is_so_in_child(is_so: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing but `is_so` and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let is_so = is_so();
                // SAFETY: does not return.
                unsafe { libc::_exit(i32::from(is_so)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the place is valid; the child is ours.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(libc::WIFEXITED(status), "{status:#x}");
                libc::WEXITSTATUS(status) == 1
            }
        }
    }

    #[test]
    fn a_forked_child_knows_that_it_is_one() {
        let canary = ForkCanary::new();
        assert!(!canary.is_forked_child());
        canary.arm();
        assert!(!canary.is_forked_child());
        let is_noticed_once = || {
            let is_noticed = canary.is_forked_child();
            canary.arm();
            is_noticed && !canary.is_forked_child()
        };
        assert!(is_so_in_child(is_noticed_once));
        assert!(!canary.is_forked_child());
    }

    /// A shared mapping of a file that is removed again.
    fn shared(name: &str) -> NonNull<u8> {
        let name = std::format!("allocsample-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let file = crate::os::file::File::create_new(&c_path).unwrap();
        file.truncate(PAGE as u64).unwrap();
        let base = map_shared(file.number(), PAGE).unwrap();
        crate::os::file::unlink(&c_path);
        // SAFETY: just mapped, of this size.
        unsafe { base.as_ptr().write_bytes(7, PAGE) };
        base
    }

    #[test]
    fn a_forked_child_has_a_shared_mapping_only_if_it_is_to_inherit_it() {
        let base = shared("inherit");
        let address = base.as_ptr().expose_provenance() as u64;
        assert!(is_readable(address));
        assert!(!is_so_in_child(|| is_readable(address)));
        inherit(base, PAGE);
        assert!(is_so_in_child(|| is_readable(address)));
    }

    #[test]
    fn a_hole_is_filled_and_what_is_there_stays() {
        let base = shared("hole");
        // SAFETY: a page of this test's own in either process, mapped when it is called.
        let content = || unsafe { base.as_ptr().read_volatile() };
        let fill = || {
            fill_hole(base, PAGE);
            let was_empty = content() == 0;
            // SAFETY: as above.
            unsafe { base.as_ptr().write_volatile(9) };
            // Once more: something is there now.
            fill_hole(base, PAGE);
            was_empty && content() == 9
        };
        assert!(is_so_in_child(fill));
        fill_hole(base, PAGE);
        assert_eq!(content(), 7);
    }

    #[test]
    fn a_populated_mapping_is_in_memory() {
        let name = std::format!("allocsample-populate-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let file = crate::os::file::File::create_new(&c_path).unwrap();
        file.truncate(8 * PAGE as u64).unwrap();
        let base = map_shared(file.number(), 8 * PAGE).unwrap();
        crate::os::file::unlink(&c_path);
        let resident = || {
            let mut pages = [0_u8; 8];
            // SAFETY: so many pages are mapped, and there is a byte for each.
            let asked =
                unsafe { libc::mincore(base.as_ptr().cast(), 8 * PAGE, pages.as_mut_ptr()) };
            assert_eq!(asked, 0);
            pages.iter().filter(|page| *page & 1 != 0).count()
        };
        assert_eq!(resident(), 0);
        populate(base, 8 * PAGE);
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: as above.
        let again = unsafe { libc::madvise(base.as_ptr().cast(), PAGE, MADV_POPULATE_WRITE) };
        // Kernels before 5.14 refuse.
        assert_eq!(resident(), if again == 0 { 8 } else { 0 });
    }
}
