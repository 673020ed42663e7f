//! Limits of a process that loading the agent would exhaust.
//!
//! The program and the agent share what a limit leaves. An agent that fits exactly leaves nothing, and the program's next
//! allocation fails. So there must be room for the agent before anything is done.

use std::fs;

use crate::AttachError;
use crate::target::Target;

const MIB: u64 = 1 << 20;

/// A limit of the size of a process.
struct Limit {
    what: &'static str,
    /// Its line in `/proc/PID/limits`.
    line: &'static str,
    /// The line in `/proc/PID/status` of what counts against it.
    used: &'static str,
    /// The option of `prlimit`.
    option: &'static str,
    /// What the agent takes at most.
    ///
    /// The helper and the drain thread have stacks of 8 MiB, the agent 33 MiB and a bridge up to 33 MiB. The C library reserves 64
    /// MiB for each thread that allocates, and for a moment twice as much. CPython 3.11 grew from 16 to 151 MiB of addresses and
    /// from 7 to 71 MiB of data, a C program from 2 to 97 (142 for a moment) and 26 MiB (glibc 2.36, 2026-11-30).
    needed_mib: u64,
}

const LIMITS: [Limit; 2] = [
    Limit {
        what: "address space",
        line: "Max address space",
        used: "VmSize",
        option: "as",
        needed_mib: 192,
    },
    Limit {
        what: "data",
        line: "Max data size",
        used: "VmData",
        option: "data",
        needed_mib: 96,
    },
];

/// Whether the agent can be loaded without taking the program's last memory.
pub(crate) fn check(target: &Target) -> Result<(), AttachError> {
    let Some(limits) = Limits::of(target) else {
        return Ok(());
    };
    for limit in &LIMITS {
        let left_mib = limits.left_mib(target, limit);
        if let Some(left_mib) = left_mib.filter(|left| *left < limit.needed_mib) {
            return Err(AttachError::NoSpace {
                pid: target.pid(),
                what: limit.what,
                option: limit.option,
                left_mib,
                needed_mib: limit.needed_mib,
            });
        }
    }
    Ok(())
}

/// Which limit may keep a process from starting a thread, and what helps.
pub(crate) fn remedy(target: &Target) -> String {
    const BESIDE_STACK_MIB: u64 = 8;
    let pid = target.pid();
    let Some(limits) = Limits::of(target) else {
        return String::new();
    };
    // The C library's default for a stack, unless the limit was another one when the program started.
    let stack_mib = limits.value("Max stack size").unwrap_or(0) / MIB;
    let needed_mib = stack_mib + BESIDE_STACK_MIB;
    for limit in &LIMITS {
        if let Some(left_mib) = limits
            .left_mib(target, limit)
            .filter(|left| *left < needed_mib)
        {
            let Limit { what, option, .. } = limit;
            return format!(
                "; its limit of {what} leaves it {left_mib} MiB, and prlimit --pid {pid} --{option}=SOFT:HARD raises it"
            );
        }
    }
    match limits.value("Max processes") {
        Some(most) => format!(
            "; its user may have {most} threads (prlimit --pid {pid} --nproc=SOFT:HARD raises that), and its control group as many as its pids.max says"
        ),
        None => "; its control group may have as many threads as its pids.max says".to_owned(),
    }
}

/// The content of `/proc/PID/limits`.
struct Limits(String);

impl Limits {
    fn of(target: &Target) -> Option<Self> {
        let limits = fs::read_to_string(format!("/proc/{}/limits", target.pid()));
        limits.ok().map(Self)
    }

    /// A limit in force; `None` if it is unlimited.
    fn value(&self, line: &str) -> Option<u64> {
        let values = self.0.lines().find_map(|found| found.strip_prefix(line))?;
        values.split_whitespace().next()?.parse().ok()
    }

    fn left_mib(&self, target: &Target, limit: &Limit) -> Option<u64> {
        let most_bytes = self.value(limit.line)?;
        let status = target.status(target.pid()).ok()?;
        let used_bytes = status.kib(limit.used)? << 10;
        Some(most_bytes.saturating_sub(used_bytes) / MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_unless_there_is_none() {
        let limits = Limits(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max data size             unlimited            unlimited            bytes     \n\
             Max processes             12                   93903                processes \n\
             Max address space         44000000             unlimited            bytes     \n"
                .to_owned(),
        );
        assert_eq!(limits.value("Max address space"), Some(44_000_000));
        assert_eq!(limits.value("Max processes"), Some(12));
        assert_eq!(limits.value("Max data size"), None);
        assert_eq!(limits.value("Max stack size"), None);
    }
}
