//! What a call of the agent must leave as it was.

/// Restores errno when dropped.
pub struct KeepErrno(i32);

impl KeepErrno {
    /// Saves errno.
    pub fn save() -> Self {
        // SAFETY: errno is always readable.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: as above, and writable.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
