//! Releases a process from a deadlock in its C library that loading the agent can complete.
//!
//! Three threads wait for each other forever (seen with glibc 2.36). Opening any library with static thread-local
//! memory can complete it:
//!
//! ```text
//! dlopen          holds the lock of thread-local memory, waits for that of stacks
//! seteuid         holds the lock of stacks, waits for a thread that is being created to run
//! pthread_create  has to finish that thread's thread-local memory, waits for that lock
//! ```
//!
//! `seteuid` need not wait: the new thread inherits the user of its creator, which answers like any other thread; and
//! if the new thread runs by then, the next round asks it. So we give the word at which `seteuid` waits the value
//! that it has once the thread runs.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use crate::borrow::Forbidden;
use crate::image::Memory;
use crate::machine;
use crate::remote::put_back;
use crate::target::Target;
use crate::tracee::Tracee;

/// Values that the C library stores in a new thread's word: when somebody waits for it to run, and once it runs.
const AWAITED: u32 = -2_i32 as u32;
const RUNS: u32 = 0;

/// A thread takes microseconds from its creation to its first instruction. If one takes longer on a busy machine,
/// releasing the waiting thread does no harm: see above.
const PATIENCE: Duration = Duration::from_millis(500);
const STOP_PATIENCE: Duration = Duration::from_millis(100);

/// A thread that waits in `setuid` or a similar function for another one to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    thread: i32,
    word: u64,
    /// Its number of context switches: if this is unchanged, the thread has not moved.
    switches: Option<u64>,
}

/// Looks for such a thread whenever it is asked to.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous {
    seen: Option<(Waiter, Instant)>,
}

impl Rendezvous {
    /// Releases the thread that has waited since an earlier look. Returns it if it has not stopped yet.
    pub fn look(
        &mut self,
        target: &Target,
        memory: &Memory,
        forbidden: &Forbidden,
    ) -> Option<Tracee> {
        let found = find(target, memory, forbidden);
        self.seen = match (found, self.seen) {
            (Some(now), Some((before, since))) if now == before => {
                if since.elapsed() < PATIENCE {
                    return None;
                }
                self.seen = None;
                let mut tracee = Tracee::seize(now.thread).ok()?;
                // If this fails, the thread has continued or ended.
                let _ = free(&mut tracee, target, memory, now);
                return tracee.release().err();
            }
            (Some(now), _) => Some((now, Instant::now())),
            (None, _) => None,
        };
        None
    }
}

fn find(target: &Target, memory: &Memory, forbidden: &Forbidden) -> Option<Waiter> {
    target.threads().ok()?.into_iter().find_map(|thread| {
        let path = format!("/proc/{}/task/{thread}/syscall", target.pid());
        let (word, stack) = parse(&fs::read_to_string(path).ok()?)?;
        let is_one = value(memory, word).ok()? == AWAITED && forbidden.is_asking(memory, stack);
        is_one.then(|| Waiter {
            thread,
            word,
            switches: target
                .status(thread)
                .ok()
                .and_then(|status| status.number("voluntary_ctxt_switches")),
        })
    })
}

/// The word at which a thread waits, and its stack pointer, if it waits for a value other than [`AWAITED`].
fn parse(call: &str) -> Option<(u64, u64)> {
    const COMMAND: u64 = 0x7f;
    let mut fields = call.split_whitespace();
    if fields.next()?.parse() != Ok(libc::SYS_futex) {
        return None;
    }
    let mut numbers = fields.map_while(|field| {
        let digits = field.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    });
    let (word, operation, expected) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let stack = numbers.nth(3)?;
    let is_wait = operation & COMMAND == libc::FUTEX_WAIT as u64;
    (is_wait && expected & u64::from(u32::MAX) == u64::from(AWAITED)).then_some((word, stack))
}

fn value(memory: &Memory, word: u64) -> io::Result<u32> {
    let mut bytes = [0; 4];
    memory.read(word, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn free(tracee: &mut Tracee, target: &Target, memory: &Memory, waiter: Waiter) -> io::Result<()> {
    // While the waiting thread is stopped, only the new thread changes the word, and to the same value.
    if !tracee.settle(STOP_PATIENCE)? {
        return Ok(());
    }
    let registers = tracee.registers()?;
    let still_waits = machine::waits_at(memory, &registers, waiter.word)
        && value(memory, waiter.word)? == AWAITED;
    if still_waits {
        memory.write(waiter.word, &RUNS.to_le_bytes())?;
    }
    // The kernel restarts the system call, which reads the word again.
    put_back(tracee, registers, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_new_thread_is_told_from_other_waits() {
        let line = |call: i64, rest: &str| {
            format!("{call} {rest} 0x0 0x0 0x0 0x7f6a711fee50 0x7f6a7a3c1234\n")
        };
        let futex = libc::SYS_futex;
        let wait = line(futex, "0x7f6a727fccdc 0x80 0xfffffffe");
        assert_eq!(parse(&wait), Some((0x7f6a_727f_ccdc, 0x7f6a_711f_ee50)));
        for other in [
            "running\n",
            "-1 0x7f6a711fee50 0x7f6a7a3c1234\n",
            &line(futex, "0x7f6a727fccdc 0x80 0x2"),
            &line(futex, "0x7f6a727fccdc 0x81 0xfffffffe"),
            &line(libc::SYS_read, "0x7f6a727fccdc 0x80 0xfffffffe"),
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
