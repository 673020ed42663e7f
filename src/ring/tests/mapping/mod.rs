//! Memory for a ring under test, with its bytes as a file would hold them.

use std::ptr::NonNull;

use allocsample_ring::{Ring, file_bytes};

/// Profile id of every ring made here.
pub const PROFILE_ID: u128 = 0x0123_4567_89ab_cdef_1122_3344_5566_7788;

/// Zeroed memory and the ring in it.
pub struct Mapping {
    ring: Ring,
    base: NonNull<u8>,
    layout: std::alloc::Layout,
}

impl Mapping {
    /// A ring of that capacity.
    pub fn new(capacity_words: u64) -> Self {
        let layout = std::alloc::Layout::from_size_align(file_bytes(capacity_words), 4096).unwrap();
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        // SAFETY: zeroed, aligned, and ours until `drop`; the ring is lent out no longer than that.
        let ring = unsafe { Ring::create(base, capacity_words, PROFILE_ID) };
        Self { ring, base, layout }
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// A copy of the file's bytes. No other thread may use the ring meanwhile.
    #[allow(dead_code, reason = "not every test file looks at the bytes")]
    pub fn file(&self) -> Vec<u8> {
        // SAFETY: allocated with this size; the tests call it while no other thread runs.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.size()) }.to_vec()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}
