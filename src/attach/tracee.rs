//! One thread of another process under ptrace.

use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use crate::frame::{FRAME_BYTES, signal_frame_at};
use crate::image::Memory;
use crate::machine::{self, Before, Registers, SIGNAL_RETURN, Vectors};

/// Why a thread is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// We asked for it, or the whole process is stopped.
    Event,
    /// At the begin or end of a system call.
    SystemCall,
    /// A signal is about to be delivered: [`Tracee::signal`].
    Signal,
    /// It has started a thread, which is no longer traced.
    Created,
    /// The thread has ended.
    Gone,
}

/// How a thread continues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// Until something happens.
    Anything,
    /// Until it begins or ends a system call.
    SystemCall,
}

/// A thread that we trace. Dropping this lets it continue from where it is.
pub(crate) struct Tracee {
    thread: i32,
    is_stopped: bool,
    is_gone: bool,
    /// The signal that it stopped for. It is delivered when the thread continues: a suppressed signal is lost.
    signal: i32,
    has_created: bool,
    /// What it did when it was asked to stop.
    before: Before,
}

/// The C library's own signal that cancels a thread.
const CANCEL: i32 = 32;
/// The C library's own signal that makes every thread change its user or group. The sender waits for all of them,
/// holds a lock that `pthread_create` takes, and may be the thread that everything else waits for.
pub(crate) const SETXID: i32 = 33;
/// How long the delivery of a signal may take, on a busy machine.
const DELIVERY: Duration = Duration::from_secs(2);
/// How many bytes of the stack are searched for the frame of the handler for a change of user.
const HANDLER_BYTES: usize = 768;

/// Of a signal in a mask.
pub(crate) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl Tracee {
    /// Without stopping it.
    pub fn seize(thread: i32) -> io::Result<Self> {
        ptrace(
            libc::PTRACE_SEIZE,
            thread,
            0,
            libc::PTRACE_O_TRACESYSGOOD as usize,
        )?;
        Ok(Self {
            thread,
            is_stopped: false,
            is_gone: false,
            signal: 0,
            has_created: false,
            before: Before::default(),
        })
    }

    /// Sets whether it stops when it has started a thread. The thread must be stopped.
    pub fn follow(&self, is_to_stop: bool) -> io::Result<()> {
        let mut options = libc::PTRACE_O_TRACESYSGOOD;
        if is_to_stop {
            options |= libc::PTRACE_O_TRACECLONE;
        }
        ptrace(libc::PTRACE_SETOPTIONS, self.thread, 0, options as usize)
    }

    /// Whether it has started a thread since then.
    pub fn has_created(&self) -> bool {
        self.has_created
    }

    /// The new thread is traced too. It is released as soon as it stops, which it does before it runs.
    fn let_created_go(&mut self) -> io::Result<()> {
        let mut number: libc::c_ulong = 0;
        ptrace(
            libc::PTRACE_GETEVENTMSG,
            self.thread,
            0,
            (&raw mut number).expose_provenance(),
        )?;
        let mut created = Self {
            thread: i32::try_from(number).map_err(io::Error::other)?,
            is_stopped: false,
            is_gone: false,
            signal: 0,
            has_created: false,
            before: Before::default(),
        };
        // On a busy machine that may take a while. Left traced, the thread would never run.
        while created.wait(Duration::from_secs(1))?.is_none() {}
        Ok(())
    }

    /// Releases it as soon as it has stopped. `Err` if it has not stopped yet.
    pub fn release(mut self) -> Result<(), Self> {
        match self.is_stopped || !matches!(self.wait(Duration::ZERO), Ok(None)) {
            true => Ok(()),
            false => Err(self),
        }
    }

    /// Its number.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Asks it to stop.
    pub fn interrupt(&self) -> io::Result<()> {
        ptrace(libc::PTRACE_INTERRUPT, self.thread, 0, 0)
    }

    /// Waits until it stops; `None` if it does not stop within that time.
    pub fn wait(&mut self, patience: Duration) -> io::Result<Option<Stop>> {
        let since = Instant::now();
        loop {
            match self.look()? {
                Some(stop) => return Ok(Some(stop)),
                None if since.elapsed() > patience => return Ok(None),
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Why it has stopped, if it has.
    ///
    /// A stop for a signal is only looked at and never collected: the kernel forgets the signal of a collected stop,
    /// so that the thread would lose it if we were killed now. The C library changes the user of all threads by such
    /// a signal, and waits for each of them.
    fn look(&mut self) -> io::Result<Option<Stop>> {
        let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
        let kinds = libc::WEXITED | libc::WSTOPPED | libc::__WALL;
        // SAFETY: the result is written to memory of ours.
        let waited = unsafe {
            libc::waitid(
                libc::P_PID,
                self.thread.cast_unsigned(),
                found.as_mut_ptr(),
                kinds | libc::WNOHANG | libc::WNOWAIT,
            )
        };
        if waited == -1 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EINTR) => Ok(None),
                Some(libc::ECHILD) => Ok(Some(self.gone())),
                _ => Err(error),
            };
        }
        // SAFETY: all zero bytes are a value of it, and the kernel has filled in what a child's has.
        let (found, number, status) = unsafe {
            let found = found.assume_init();
            (found, found.si_pid(), found.si_status())
        };
        if number == 0 {
            return Ok(None);
        }
        if !matches!(found.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED) {
            self.collect();
            return Ok(Some(self.gone()));
        }
        self.is_stopped = true;
        let (event, signal) = (status >> 8, status & 0xff);
        if event == 0 && signal != libc::SIGTRAP | 0x80 {
            self.signal = signal;
            return Ok(Some(Stop::Signal));
        }
        self.collect();
        Ok(Some(match event {
            0 => Stop::SystemCall,
            libc::PTRACE_EVENT_CLONE => {
                self.let_created_go()?;
                self.has_created = true;
                Stop::Created
            }
            _ => Stop::Event,
        }))
    }

    /// Collects the stop that [`Self::look`] has found and left in place.
    fn collect(&self) {
        let mut status = 0;
        // SAFETY: the status is written to memory of ours.
        unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
    }

    fn gone(&mut self) -> Stop {
        self.is_gone = true;
        Stop::Gone
    }

    /// The signal that is delivered when it continues; 0 for none.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// Suppresses the signal.
    pub fn take_signal(&mut self) -> i32 {
        std::mem::take(&mut self.signal)
    }

    /// Lets it continue, and delivers the signal that it stopped for.
    ///
    /// A change of user is delivered first: the thread is then at the first instruction of the C library's handler,
    /// or will stop there.
    pub fn resume(&mut self, until: Until) -> io::Result<()> {
        if self.signal == SETXID && self.signal_mask()? & bit(CANCEL) == 0 {
            self.settle(DELIVERY)?;
            if !self.is_stopped {
                return Ok(());
            }
        }
        self.go(until)
    }

    fn go(&mut self, until: Until) -> io::Result<()> {
        let request = match until {
            Until::Anything => libc::PTRACE_CONT,
            Until::SystemCall => libc::PTRACE_SYSCALL,
        };
        // A signal's number is small and positive.
        ptrace(request, self.thread, 0, self.signal as usize)?;
        self.is_stopped = false;
        self.signal = 0;
        self.before = Before::default();
        Ok(())
    }

    /// Stops it at a point from which the kernel restarts whatever the stop interrupted.
    pub fn settle(&mut self, patience: Duration) -> io::Result<bool> {
        let before = Before::of(self.thread);
        self.interrupt()?;
        match self.is_stopped {
            true => self.go(Until::Anything)?,
            false => self.before = before,
        }
        let since = Instant::now();
        while let Some(left) = patience.checked_sub(since.elapsed()) {
            match self.wait(left)? {
                Some(Stop::Event) => {
                    self.put_off_cancellation();
                    return Ok(true);
                }
                Some(Stop::Gone) | None => return Ok(false),
                Some(Stop::SystemCall | Stop::Signal | Stop::Created) => {
                    self.go(Until::Anything)?;
                }
            }
        }
        Ok(false)
    }

    /// Makes a stopped thread in the C library's handler for a change of user finish the handler before it is
    /// cancelled.
    ///
    /// A thread that is cancelled inside the handler ends without an answer and with that signal blocked, and the
    /// thread that changes the user waits for it forever (glibc 2.36). Without us, the window for that is a few
    /// microseconds. The handler's return restores the signals that were blocked before, even if we are killed.
    fn put_off_cancellation(&self) {
        let Ok(mask) = self.signal_mask() else {
            return;
        };
        let is_in_handler = mask & (bit(SETXID) | bit(CANCEL)) == bit(SETXID)
            && self
                .mask_after_handler()
                .is_some_and(|after| after & bit(SETXID) == 0);
        if is_in_handler {
            // This fails if the thread has just been killed.
            let _ = self.set_signal_mask(mask | bit(CANCEL));
        }
    }

    /// The signals that will be blocked when the innermost handler returns, if the thread has only just entered it.
    fn mask_after_handler(&self) -> Option<u64> {
        let memory = Memory::of(self.thread).ok()?;
        let stack = machine::stack(&self.registers().ok()?) & !7;
        let bytes = memory.read_some(stack, HANDLER_BYTES + FRAME_BYTES as usize);
        let words = bytes.chunks_exact(8);
        let words: Vec<u64> = words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])))
            .collect();
        let is_return = |word| *memory.read_some(word, SIGNAL_RETURN.len()) == SIGNAL_RETURN;
        let frame = (0..HANDLER_BYTES / 8).find_map(|at| signal_frame_at(&words, at, is_return))?;
        frame.mask
    }

    /// Its general registers, and the system call that its stop has interrupted.
    pub fn registers(&self) -> io::Result<Registers> {
        machine::read_registers(self.thread, self.before)
    }

    /// Replaces them.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        machine::write_registers(self.thread, registers)
    }

    /// Its floating-point and vector registers; `None` if it has state that we cannot put back.
    pub fn vector_state(&self) -> io::Result<Option<Vectors>> {
        machine::read_vectors(self.thread)
    }

    /// Puts them back.
    pub fn set_vector_state(&self, state: &Vectors) -> io::Result<()> {
        machine::write_vectors(self.thread, state)
    }

    /// The signals that it has blocked.
    pub fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        ptrace(
            libc::PTRACE_GETSIGMASK,
            self.thread,
            size_of::<u64>(),
            (&raw mut mask).expose_provenance(),
        )?;
        Ok(mask)
    }

    /// Blocks exactly these signals.
    pub fn set_signal_mask(&self, mask: u64) -> io::Result<()> {
        ptrace(
            libc::PTRACE_SETSIGMASK,
            self.thread,
            size_of::<u64>(),
            (&raw const mask).expose_provenance(),
        )
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // A thread that has stopped for a signal since the last look gets that signal. A thread that has not stopped
        // yet cannot be released: if it stopped between a look and a detach, its signal would be lost. The end of
        // this process releases it.
        let is_stopped = self.is_stopped || matches!(self.look(), Ok(Some(_)));
        if !is_stopped || self.is_gone {
            return;
        }
        if self.signal == SETXID {
            let _ = self.settle(DELIVERY);
        }
        let _ = ptrace(libc::PTRACE_DETACH, self.thread, 0, self.signal as usize);
    }
}

/// A set of a thread's registers, of which the kernel has at most so many bytes.
pub(crate) fn read_set(thread: i32, kind: usize, most_bytes: usize) -> io::Result<Vec<u8>> {
    let mut state = vec![0_u8; most_bytes];
    let mut place = libc::iovec {
        iov_base: state.as_mut_ptr().cast(),
        iov_len: state.len(),
    };
    ptrace(
        libc::PTRACE_GETREGSET,
        thread,
        kind,
        (&raw mut place).expose_provenance(),
    )?;
    state.truncate(place.iov_len);
    Ok(state)
}

/// Replaces a set of a thread's registers.
pub(crate) fn write_set(thread: i32, kind: usize, state: &[u8]) -> io::Result<()> {
    let mut place = libc::iovec {
        iov_base: state.as_ptr().cast_mut().cast(),
        iov_len: state.len(),
    };
    ptrace(
        libc::PTRACE_SETREGSET,
        thread,
        kind,
        (&raw mut place).expose_provenance(),
    )
}

/// `address` and `data` are numbers, or addresses of ours that the kernel reads or fills, depending on the request.
pub(crate) fn ptrace(
    request: libc::c_uint,
    thread: i32,
    address: usize,
    data: usize,
) -> io::Result<()> {
    let address: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(address);
    let data: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(data);
    // SAFETY: each caller, here and in `machine/`, passes a place that is as large as its request fills or reads, and alive. It is
    // another process that is changed.
    let result = unsafe { libc::ptrace(request, thread, address, data) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// The system call that `pause` makes.
    #[cfg(target_arch = "x86_64")]
    const PAUSE: i64 = libc::SYS_pause;
    #[cfg(target_arch = "aarch64")]
    const PAUSE: i64 = libc::SYS_ppoll;

    /// Runs a thread in `pause` and prints its number. `ids` makes another thread change the user, `cancel` cancels
    /// the first. The alarm ends a process in which either waits forever. A cancellation opens libgcc_s; if that has
    /// thread-local memory, opening it would wait for the change of user.
    const PROGRAM: &str = r#"
import ctypes, os, signal, sys, threading
signal.alarm(60)
c = ctypes.CDLL(None)
ctypes.CDLL("libgcc_s.so.1")
thread = ctypes.c_ulong()
before = set(os.listdir("/proc/self/task"))
c.pthread_create(ctypes.byref(thread), None, c.pause, None)
print(*(set(os.listdir("/proc/self/task")) - before), flush=True)
sys.stdin.readline()
ids = threading.Thread(target=lambda: c.seteuid(os.geteuid()))
ids.start()
sys.stdin.readline()
c.pthread_cancel(thread)
print("cancelled", flush=True)
ids.join()
c.pthread_join(thread, None)
print("done", flush=True)
"#;

    /// Cancels a thread that we hold in a handler for a change of user, or just before one.
    #[test]
    fn a_thread_answers_a_change_of_user_before_it_is_cancelled() {
        const PATIENCE: Duration = Duration::from_secs(30);
        for is_in_handler in [false, true] {
            let mut program = Command::new("python3")
                .args(["-c", PROGRAM])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = program.stdin.take().unwrap();
            let mut output = BufReader::new(program.stdout.take().unwrap()).lines();
            let mut line = || output.next().map(Result::unwrap).unwrap_or_default();
            let thread = line().parse().unwrap();
            while !std::fs::read_to_string(format!("/proc/{thread}/syscall"))
                .unwrap()
                .starts_with(&format!("{PAUSE} "))
            {
                std::thread::yield_now();
            }
            let mut tracee = Tracee::seize(thread).unwrap();
            input.write_all(b"ids\n").unwrap();
            assert_eq!(tracee.wait(PATIENCE).unwrap(), Some(Stop::Signal));
            assert_eq!(tracee.signal(), SETXID);
            if is_in_handler {
                assert!(tracee.settle(PATIENCE).unwrap());
            }
            input.write_all(b"cancel\n").unwrap();
            assert_eq!(line(), "cancelled");
            drop(tracee);
            assert_eq!(line(), "done");
            assert!(program.wait().unwrap().success());
        }
    }
}
