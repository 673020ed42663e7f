//! Memory for our own Rust code: the drain thread's tables, and the unwinder's description of a module.
//!
//! Size classes of powers of two, each a list of free blocks, filled from mappings of 1 MiB; larger blocks are mappings
//! of their own. One spin lock: it is held for a few instructions, by the drain thread and, once per module, by a
//! thread of the program that is muted, so that no signal handler enters it again. A forked child, in which the lock's
//! owner may not exist, starts from nothing ([`OwnAllocator::abandon`]).

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use allocsample_agent::os::memory;

const SMALLEST_SHIFT: u32 = 4;
const CLASSES: usize = 13;
const LARGEST: usize = 1 << (SMALLEST_SHIFT as usize + CLASSES - 1);
const CHUNK_BYTES: usize = 1 << 20;

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
    state: UnsafeCell<State>,
}

// SAFETY: `state` is touched only under `lock`.
unsafe impl Sync for OwnAllocator {}

impl OwnAllocator {
    /// Without memory yet.
    pub const fn new() -> Self {
        Self {
            lock: AtomicBool::new(false),
            state: UnsafeCell::new(State::EMPTY),
        }
    }

    fn with_state<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        // Acquire and release: the state's previous owner is done with it.
        while self.lock.swap(true, Ordering::Acquire) {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
        // SAFETY: the lock is ours.
        let result = work(unsafe { &mut *self.state.get() });
        self.lock.store(false, Ordering::Release);
        result
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
        match class_of(layout) {
            Some(class) => self.with_state(|state| state.take(class)),
            // A mapping is aligned to a page; nobody here asks for more.
            None => memory::map(layout.size()).map_or(std::ptr::null_mut(), NonNull::as_ptr),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(block) = NonNull::new(block) else {
            return;
        };
        match class_of(layout) {
            // SAFETY: the caller gives back what `alloc` gave for this layout.
            Some(class) => self.with_state(|state| unsafe { state.give(class, block.cast()) }),
            // SAFETY: as above.
            None => unsafe { memory::unmap(block, layout.size()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_reused() {
        let allocator = OwnAllocator::new();
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
}
