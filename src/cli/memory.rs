//! How the command's own memory goes back to the system.

/// From this size on a block is the system's own, and goes back to it when it is freed. glibc begins with the same, and
/// raises it with each such block that is freed: of a large profile it then keeps a tenth more than what is in use.
const LARGE_BYTES: i32 = 128 << 10;

/// To be called before there are threads.
pub fn give_large_blocks_back() {
    // SAFETY: sets a parameter of the allocator, whose own locks see to what else may be going on.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}
