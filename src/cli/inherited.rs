//! State that the shell gave us and that start-up changes.
//!
//! A Rust program starts by ignoring SIGPIPE and by opening `/dev/null` over closed standard descriptors; and a
//! parent learns how its child ends only if SIGCHLD is not ignored. The programs that we start must get the original
//! state. A constructor runs before `main`, so it can read that.

use std::sync::OnceLock;

/// State of the process before the standard library's start-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// SIGPIPE was ignored (as under systemd, or after `trap '' PIPE`).
    pub is_sigpipe_ignored: bool,
    /// SIGCHLD was ignored: the kernel then does not report how a child ended.
    pub is_sigchld_ignored: bool,
    /// The descriptors among 0, 1 and 2 that were closed.
    pub closed: Vec<i32>,
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// The original state; the default if it could not be read.
pub fn inherited() -> Inherited {
    INHERITED.get().cloned().unwrap_or_default()
}

// Runs before `main`: it only reads /proc, with the parts of the standard library that need no start-up.
#[ctor::ctor(unsafe)]
fn look() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut closed = Vec::new();
    if std::fs::symlink_metadata("/proc/self/fd").is_ok() {
        let is_closed =
            |fd: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_err();
        closed.extend((0..=2).filter(is_closed));
    }
    let _ = INHERITED.set(Inherited {
        is_sigpipe_ignored: is_ignored(&status, nix::libc::SIGPIPE),
        is_sigchld_ignored: is_ignored(&status, nix::libc::SIGCHLD),
        closed,
    });
}

/// Reads the mask `SigIgn` of /proc/PID/status.
fn is_ignored(status: &str, signal: i32) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001000\n";
        assert!(is_ignored(status, 13));
        assert!(!is_ignored(status, 12));
        assert!(!is_ignored(status, 14));
        assert!(!is_ignored("", 13));
    }
}
