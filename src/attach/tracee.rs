//! One thread of another process under ptrace.

use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

pub(crate) use libc::user_regs_struct as Registers;

/// Why a thread stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Because we asked for it, or the whole process is stopped.
    Event,
    /// At the begin or end of a system call.
    SystemCall,
    /// A signal is about to be delivered: [`Tracee::signal`].
    Signal,
    /// It has started a thread, which is not traced any more.
    Created,
    /// The thread has ended.
    Gone,
}

/// How a thread goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// Until something happens.
    Anything,
    /// Until it begins or ends a system call.
    SystemCall,
}

/// A thread that we trace. It goes on where it stands when this is dropped.
pub(crate) struct Tracee {
    thread: i32,
    is_stopped: bool,
    is_gone: bool,
    /// What it was about to be told when it stopped. It is told when it goes on: a signal that is kept from it is lost.
    signal: i32,
    has_created: bool,
}

const NT_X86_XSTATE: usize = 0x202;
/// Enough for all state components that processors have.
const XSTATE_BYTES: usize = 64 * 1024;

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
        })
    }

    /// Whether it stops when it has started a thread. It is stopped.
    pub fn follow(&self, is_to_stop: bool) -> io::Result<()> {
        let mut options = libc::PTRACE_O_TRACESYSGOOD;
        if is_to_stop {
            options |= libc::PTRACE_O_TRACECLONE;
        }
        ptrace(libc::PTRACE_SETOPTIONS, self.thread, 0, options as usize)
    }

    /// Whether it has started a thread since.
    pub fn has_created(&self) -> bool {
        self.has_created
    }

    /// The thread that it has started is traced too; it is let go as soon as it stops, which it does before it runs.
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
        };
        // On a busy machine it may take its time. Left traced, it would never run.
        while created.wait(Duration::from_secs(1))?.is_none() {}
        Ok(())
    }

    /// Lets it go as soon as it has stopped. `Err`: it has not yet.
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

    /// Waits until it stops. `None`: it has not within that time.
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

    /// What it has stopped for, if it has.
    ///
    /// A signal's stop is only looked at and never collected: the kernel forgets the signal of a collected stop, and if we were
    /// killed before the thread goes on, it would never hear of it. By such a signal the C library changes the user of all
    /// threads, and waits for each.
    fn look(&mut self) -> io::Result<Option<Stop>> {
        let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
        let kinds = libc::WEXITED | libc::WSTOPPED | libc::__WALL;
        // SAFETY: what is found is written to a place of ours.
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

    /// Takes note for the kernel of what [`Self::look`] has found, which is there still.
    fn collect(&self) {
        let mut status = 0;
        // SAFETY: the status is written to a place of ours.
        unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
    }

    fn gone(&mut self) -> Stop {
        self.is_gone = true;
        Stop::Gone
    }

    /// The signal that it gets when it goes on; 0 for none.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// Keeps the signal from it.
    pub fn take_signal(&mut self) -> i32 {
        std::mem::take(&mut self.signal)
    }

    /// Lets it go on, with the signal that it was about to get.
    pub fn resume(&mut self, until: Until) -> io::Result<()> {
        let request = match until {
            Until::Anything => libc::PTRACE_CONT,
            Until::SystemCall => libc::PTRACE_SYSCALL,
        };
        // A signal's number is small and positive.
        ptrace(request, self.thread, 0, self.signal as usize)?;
        self.is_stopped = false;
        self.signal = 0;
        Ok(())
    }

    /// Stops it at a point from which the kernel restarts what it interrupted, whatever it is at now.
    pub fn settle(&mut self, patience: Duration) -> io::Result<bool> {
        self.interrupt()?;
        if self.is_stopped {
            self.resume(Until::Anything)?;
        }
        let since = Instant::now();
        while let Some(left) = patience.checked_sub(since.elapsed()) {
            match self.wait(left)? {
                Some(Stop::Event) => return Ok(true),
                Some(Stop::Gone) | None => return Ok(false),
                Some(Stop::SystemCall | Stop::Signal | Stop::Created) => {
                    self.resume(Until::Anything)?;
                }
            }
        }
        Ok(false)
    }

    /// Its general registers.
    pub fn registers(&self) -> io::Result<Registers> {
        let mut registers = MaybeUninit::<Registers>::uninit();
        ptrace(
            libc::PTRACE_GETREGS,
            self.thread,
            0,
            registers.as_mut_ptr().expose_provenance(),
        )?;
        // SAFETY: the kernel has filled all of it.
        Ok(unsafe { registers.assume_init() })
    }

    /// Replaces them.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        ptrace(
            libc::PTRACE_SETREGS,
            self.thread,
            0,
            std::ptr::from_ref(registers).expose_provenance(),
        )
    }

    /// Its floating-point and vector registers, as the processor stores them.
    pub fn vector_state(&self) -> io::Result<Vec<u8>> {
        let mut state = vec![0_u8; XSTATE_BYTES];
        let mut place = libc::iovec {
            iov_base: state.as_mut_ptr().cast(),
            iov_len: state.len(),
        };
        ptrace(
            libc::PTRACE_GETREGSET,
            self.thread,
            NT_X86_XSTATE,
            (&raw mut place).expose_provenance(),
        )?;
        state.truncate(place.iov_len);
        Ok(state)
    }

    /// Puts them back.
    pub fn set_vector_state(&self, state: &[u8]) -> io::Result<()> {
        let mut place = libc::iovec {
            iov_base: state.as_ptr().cast_mut().cast(),
            iov_len: state.len(),
        };
        ptrace(
            libc::PTRACE_SETREGSET,
            self.thread,
            NT_X86_XSTATE,
            (&raw mut place).expose_provenance(),
        )
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

    /// Blocks these signals and no others.
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
        // A thread that has stopped for a signal since the last look is told that signal. One that has not stopped yet cannot be
        // let go, and if it stopped between a look and a detach, its signal would be lost: the end of this process lets it go.
        let is_stopped = self.is_stopped || matches!(self.look(), Ok(Some(_)));
        if !is_stopped || self.is_gone {
            return;
        }
        let _ = ptrace(libc::PTRACE_DETACH, self.thread, 0, self.signal as usize);
    }
}

/// `address` and `data` are numbers, or addresses of ours that the kernel reads or fills as the request says.
fn ptrace(request: libc::c_uint, thread: i32, address: usize, data: usize) -> io::Result<()> {
    let address: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(address);
    let data: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(data);
    // SAFETY: each caller in this file passes a place that is as large as its request fills or reads, and alive. It is
    // another process that is changed.
    let result = unsafe { libc::ptrace(request, thread, address, data) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
