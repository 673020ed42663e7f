//! Keeping the program's signal handlers out for a moment.

/// Size of the kernel's signal sets, in bytes.
const SET_BYTES: usize = 8;

/// The calling thread takes no signal until this is dropped: no handler can leave what it is at by a jump.
#[derive(Debug)]
pub struct Held {
    before: u64,
}

impl Held {
    /// All that can be blocked, and libc's own.
    pub fn all() -> Self {
        Self {
            before: set_mask(u64::MAX),
        }
    }

    /// The same; `None` behind a filter of system calls, where nobody may ask the kernel.
    pub fn unless_filtered() -> Option<Self> {
        (!super::is_filtered()).then(Self::all)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Returns the mask that was set before.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel reads `mask` and writes `before`, both of the size that it is told.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            SET_BYTES,
        )
    };
    before
}
