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

#[cfg(test)]
mod tests {
    use super::*;

    fn mask() -> u64 {
        let mut now = 0_u64;
        // SAFETY: asks only; the place has the size that the kernel is told.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                core::ptr::null::<u64>(),
                &raw mut now,
                SET_BYTES,
            )
        };
        now
    }

    fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn no_signal_gets_in_until_it_is_dropped() {
        // So that there is a mask to come back to.
        set_mask(bit(libc::SIGUSR1) | bit(libc::SIGUSR2));
        let before = mask();
        let held = Held::unless_filtered();
        assert!(held.is_some());
        let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
        assert_eq!(mask(), !never);
        drop(held);
        assert_eq!(mask(), before);
    }
}
