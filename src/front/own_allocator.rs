//! Memory for our own Rust code: the drain thread's tables, and the unwinder's description of a module.
//!
//! Size classes of powers of two, each a list of free blocks, filled from mappings of 1 MiB; larger blocks are mappings
//! of their own. One spin lock: it is held for a few instructions, by the drain thread and, once per module, by a
//! thread of the program that is muted, so that no signal handler enters it again. A forked child, in which the lock's
//! owner may not exist, starts from nothing ([`OwnAllocator::abandon`]). A handler may leave its owner by a jump, and then it
//! stays locked: blocks are mappings from there on, and those that are given back are lost.
//!
//! Rust aborts where memory runs out, and a program under a limit of address space must not die of us. What a muted
//! thread needs then comes from a reserve, and the agent is told in time to switch itself off; the drain thread waits
//! for better times, and ends if they do not come (`Shortage`).

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use allocsample_agent::os::memory;

const SMALLEST_SHIFT: u32 = 4;
const CLASSES: usize = 13;
const LARGEST: usize = 1 << (SMALLEST_SHIFT as usize + CLASSES - 1);
const CHUNK_BYTES: usize = 1 << 20;

/// What to do when the kernel has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Ask again.
    TryAgain,
    /// Take it from the reserve, of which more than half is left or not.
    UseReserve,
}

/// Called without the lock, with the number of times that it was called for this allocation. May end the thread.
pub type OnShortage = fn(attempt: u32) -> Shortage;

/// Enough for the working memory of several samples under way.
const RESERVE_BYTES: usize = 1 << 20;

/// Touched only in need: until then it is address space of the library.
#[repr(align(4096))]
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: each part is given out once, by an atomic addition.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve {
    bytes: UnsafeCell::new([0; RESERVE_BYTES]),
    used: AtomicUsize::new(0),
};

impl Reserve {
    fn take(&self, layout: Layout) -> *mut u8 {
        let rounded = layout.size().max(1).next_multiple_of(16);
        // Room for any alignment.
        let bytes = rounded + layout.align();
        let used = self.used.fetch_add(bytes, Ordering::Relaxed);
        if used.saturating_add(bytes) > RESERVE_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: inside, as just checked.
        let start = unsafe { self.bytes.get().cast::<u8>().add(used) };
        // SAFETY: less than the alignment, for which there is room.
        unsafe { start.add(start.align_offset(layout.align())) }
    }

    fn contains(&self, block: NonNull<u8>) -> bool {
        (block.addr().get()).wrapping_sub(self.bytes.get().addr()) < RESERVE_BYTES
    }
}

/// Whether more than half of the reserve is used, so that sampling should stop.
pub fn is_reserve_low() -> bool {
    RESERVE.used.load(Ordering::Relaxed) > RESERVE_BYTES / 2
}

struct FreeBlock {
    next: Option<NonNull<FreeBlock>>,
}

struct State {
    free: [Option<NonNull<FreeBlock>>; CLASSES],
    chunk: *mut u8,
    chunk_left: usize,
}

impl State {
    const EMPTY: State = State {
        free: [None; CLASSES],
        chunk: std::ptr::null_mut(),
        chunk_left: 0,
    };

    fn take(&mut self, class: usize) -> *mut u8 {
        if let Some(block) = self.free[class] {
            // SAFETY: a block in the list is ours and holds its link.
            self.free[class] = unsafe { block.as_ref().next };
            return block.as_ptr().cast();
        }
        let bytes = 1 << (SMALLEST_SHIFT as usize + class);
        // Blocks are aligned to their size, chunks to a page: the offset from the chunk's end keeps both.
        if self.chunk_left / bytes * bytes == 0 {
            let Some(chunk) = memory::map(CHUNK_BYTES) else {
                return std::ptr::null_mut();
            };
            self.chunk = chunk.as_ptr();
            self.chunk_left = CHUNK_BYTES;
        }
        self.chunk_left = self.chunk_left / bytes * bytes - bytes;
        // SAFETY: inside the chunk.
        unsafe { self.chunk.add(self.chunk_left) }
    }

    /// # Safety
    /// `block` came from `take(class)` and is not used any more.
    unsafe fn give(&mut self, class: usize, block: NonNull<FreeBlock>) {
        let next = self.free[class];
        // SAFETY: the caller's promise; a block has at least 16 bytes, aligned to 16.
        unsafe { block.write(FreeBlock { next }) };
        self.free[class] = Some(block);
    }
}

/// See the module.
pub struct OwnAllocator {
    lock: AtomicBool,
    /// The lock was not released for a long time: its holder has left by a jump.
    is_left_locked: AtomicBool,
    state: UnsafeCell<State>,
    on_shortage: OnShortage,
}

// SAFETY: `state` is touched only under `lock`.
unsafe impl Sync for OwnAllocator {}

impl OwnAllocator {
    /// Without memory yet.
    pub const fn new(on_shortage: OnShortage) -> Self {
        Self {
            lock: AtomicBool::new(false),
            is_left_locked: AtomicBool::new(false),
            state: UnsafeCell::new(State::EMPTY),
            on_shortage,
        }
    }

    fn try_alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => self
                .with_state(|state| state.take(class))
                .unwrap_or_else(|| {
                    // As large as all of its class, for it may be given back to the others.
                    let block = memory::map(1 << (SMALLEST_SHIFT as usize + class));
                    block.map_or(std::ptr::null_mut(), NonNull::as_ptr)
                }),
            // A mapping is aligned to a page; nobody here asks for more.
            None => memory::map(layout.size()).map_or(std::ptr::null_mut(), NonNull::as_ptr),
        }
    }

    /// Runs `work` with the lock. `None`: the lock will never be released.
    fn with_state<R>(&self, work: impl FnOnce(&mut State) -> R) -> Option<R> {
        const PATIENCE: u32 = 100_000;
        let mut patience = match self.is_left_locked.load(Ordering::Relaxed) {
            true => 1,
            false => PATIENCE,
        };
        // Acquire and release: the state's previous owner is done with it.
        while self.lock.swap(true, Ordering::Acquire) {
            patience -= 1;
            if patience == 0 {
                self.is_left_locked.store(true, Ordering::Relaxed);
                return None;
            }
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
        self.is_left_locked.store(false, Ordering::Relaxed);
        // SAFETY: the lock is ours.
        let result = work(unsafe { &mut *self.state.get() });
        self.lock.store(false, Ordering::Release);
        Some(result)
    }

    /// Forgets all memory, also the lock. Only in a forked child, while it has one thread.
    pub fn abandon(&self) {
        // SAFETY: no other thread exists, and this one is not inside `with_state`: it is in the fork path.
        unsafe { *self.state.get() = State::EMPTY };
        self.lock.store(false, Ordering::Release);
    }
}

/// Size class of a layout; `None` if it needs a mapping of its own.
fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT);
    (bytes <= LARGEST)
        .then(|| (bytes.next_power_of_two().trailing_zeros() - SMALLEST_SHIFT) as usize)
}

// SAFETY: blocks are at least as large and aligned as asked for, disjoint, and live until given back.
unsafe impl GlobalAlloc for OwnAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut attempt = 0;
        loop {
            let block = self.try_alloc(layout);
            if !block.is_null() {
                return block;
            }
            if (self.on_shortage)(attempt) == Shortage::UseReserve {
                return RESERVE.take(layout);
            }
            attempt += 1;
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { self.alloc(layout) };
        // A mapping is zero, and writing that would touch all its pages.
        let is_zero = class_of(layout).is_none();
        if let Some(start) =
            NonNull::new(block).filter(|block| !is_zero || RESERVE.contains(*block))
        {
            // SAFETY: fresh memory of this size.
            unsafe { start.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(block) = NonNull::new(block) else {
            return;
        };
        if RESERVE.contains(block) {
            // Given out once: what is left of it is for the next shortage.
            return;
        }
        match class_of(layout) {
            Some(class) => {
                // SAFETY: the caller gives back what `alloc` gave for this layout.
                let _lost_if_locked =
                    self.with_state(|state| unsafe { state.give(class, block.cast()) });
            }
            // SAFETY: as above.
            None => unsafe { memory::unmap(block, layout.size()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any address space has.
    const TOO_MUCH: usize = 1 << 60;

    #[test]
    fn a_shortage_asks_again_and_then_uses_the_reserve() {
        static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
        let allocator = OwnAllocator::new(|attempt| {
            ATTEMPTS.fetch_add(1, Ordering::Relaxed);
            if attempt < 2 {
                Shortage::TryAgain
            } else {
                Shortage::UseReserve
            }
        });
        let layout = Layout::from_size_align(TOO_MUCH, 8).unwrap();
        // SAFETY: the size is not 0.
        assert!(unsafe { allocator.alloc(layout) }.is_null());
        assert_eq!(ATTEMPTS.load(Ordering::Relaxed), 3);
        let reserve = Reserve {
            bytes: UnsafeCell::new([0; RESERVE_BYTES]),
            used: AtomicUsize::new(0),
        };
        let layout = Layout::from_size_align(100_000, 64).unwrap();
        let mut ends = Vec::new();
        while let Some(block) = NonNull::new(reserve.take(layout)) {
            assert!(reserve.contains(block) && block.addr().get() % 64 == 0);
            assert!(ends.last().is_none_or(|&end| block.addr().get() >= end));
            ends.push(block.addr().get() + layout.size());
        }
        assert_eq!(ends.len(), 10);
    }

    #[test]
    fn blocks_are_aligned_disjoint_and_reused() {
        let allocator = OwnAllocator::new(|_| Shortage::UseReserve);
        let mut blocks = Vec::new();
        for size in [1, 15, 16, 17, 100, 4096, 65_536, 65_537, 3_000_000] {
            for align in [1, 8, 16, 64, 4096] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not 0.
                let block = unsafe { allocator.alloc(layout) };
                assert!(
                    !block.is_null() && block.addr().is_multiple_of(align),
                    "{layout:?}"
                );
                // SAFETY: just allocated.
                unsafe { block.write_bytes(blocks.len() as u8, size) };
                blocks.push((block, layout));
            }
        }
        for (index, &(block, layout)) in blocks.iter().enumerate() {
            // SAFETY: allocated above, not freed yet.
            let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
            assert!(bytes.iter().all(|&byte| byte == index as u8));
        }
        let (last, layout) = blocks[4];
        // SAFETY: allocated with this layout, used no more.
        unsafe { allocator.dealloc(last, layout) };
        // SAFETY: the size is not 0.
        assert_eq!(unsafe { allocator.alloc(layout) }, last);
    }

    #[test]
    fn a_lock_that_was_left_is_no_end() {
        let allocator = OwnAllocator::new(|_| Shortage::TryAgain);
        let layout = Layout::from_size_align(100, 8).unwrap();
        allocator.lock.store(true, Ordering::Relaxed);
        // SAFETY: of a size that is not 0; given back as they came.
        unsafe {
            let block = allocator.alloc(layout);
            assert!(!block.is_null());
            block.write_bytes(1, 100);
            allocator.dealloc(block, layout);
            allocator.lock.store(false, Ordering::Relaxed);
            let block = allocator.alloc(layout);
            allocator.dealloc(block, layout);
            assert_eq!(allocator.alloc(layout), block);
        }
        assert!(!allocator.is_left_locked.load(Ordering::Relaxed));
    }
}
