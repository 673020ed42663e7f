//! Work that a borrowed thread does for us, before it goes on as if nothing had been.

use std::io;
use std::time::Duration;

use crate::borrow::interrupted_call;
use crate::target::Target;
use crate::tracee::{Registers, Stop, Tracee, Until};

/// How long a thread may take for what is done in microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// All signals but SIGTRAP, by which the thread tells us that it has returned.
const ALL_BUT_TRAP: u64 = !(1 << (libc::SIGTRAP - 1));

/// Instructions that are found in every C library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions {
    /// `syscall`
    pub system_call: u64,
    /// `int3`
    pub trap: u64,
}

/// A stopped thread, and how it was.
pub(crate) struct Borrowed<'a> {
    target: &'a Target,
    tracee: &'a mut Tracee,
    registers: Registers,
    vectors: Vec<u8>,
    signal_mask: u64,
    instructions: Instructions,
}

impl<'a> Borrowed<'a> {
    /// From here on until [`Self::put_back`] no signal is delivered to the thread.
    pub fn take(
        target: &'a Target,
        tracee: &'a mut Tracee,
        instructions: Instructions,
    ) -> io::Result<Self> {
        let borrowed = Self {
            target,
            registers: tracee.registers()?,
            vectors: tracee.vector_state()?,
            signal_mask: tracee.signal_mask()?,
            tracee,
            instructions,
        };
        borrowed.tracee.set_signal_mask(ALL_BUT_TRAP)?;
        Ok(borrowed)
    }

    fn registers_for(&self, code: u64, arguments: [u64; 6]) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        Registers {
            rip: code,
            rdi,
            rsi,
            rdx,
            // A function's fourth argument, and a system call's.
            rcx: r10,
            r10,
            r8,
            r9,
            // No system call is to be restarted in place of this.
            orig_rax: u64::MAX,
            // Direction: up, as functions expect it.
            eflags: self.registers.eflags & !0x400,
            ..self.registers
        }
    }

    /// One system call.
    pub fn system_call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        let mut registers = self.registers_for(self.instructions.system_call, arguments);
        registers.rax = number.cast_unsigned();
        self.tracee.set_registers(&registers)?;
        // Its begin and its end.
        for _ in 0..2 {
            self.resume(Until::SystemCall)?;
            self.wait_for(Stop::SystemCall)?;
        }
        let result = self.tracee.registers()?.rax.cast_signed();
        match result {
            -4095..=-1 => Err(io::Error::from_raw_os_error(-result as i32)),
            _ => Ok(result.cast_unsigned()),
        }
    }

    /// One call of a function, on a stack of which `stack` is the high end. `None`: it does not return, and was given up.
    pub fn function_call(
        &mut self,
        function: u64,
        arguments: [u64; 6],
        stack: u64,
        write: impl FnOnce(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Option<u64>> {
        let mut registers = self.registers_for(function, arguments);
        // Where a call leaves it: a multiple of 16, less the return address.
        registers.rsp = (stack & !15) - 8;
        registers.rax = 0;
        write(registers.rsp, &self.instructions.trap.to_le_bytes())?;
        self.tracee.set_registers(&registers)?;
        self.resume(Until::Anything)?;
        match self.wait()? {
            Some(Stop::Signal(libc::SIGTRAP)) => Ok(Some(self.tracee.registers()?.rax)),
            Some(stop) => Err(unexpected(stop)),
            None => Ok(None),
        }
    }

    fn resume(&mut self, until: Until) -> io::Result<()> {
        self.tracee.resume(until, 0)
    }

    fn wait_for(&mut self, expected: Stop) -> io::Result<()> {
        match self.wait()? {
            Some(stop) if stop == expected => Ok(()),
            Some(stop) => Err(unexpected(stop)),
            None => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// The next stop that is not about something else, such as a SIGSTOP for the whole process. `None`: it waits in the
    /// kernel for somebody who does not come.
    fn wait(&mut self) -> io::Result<Option<Stop>> {
        loop {
            match self.tracee.wait(PATIENCE)? {
                Some(Stop::Event) => self.resume(Until::Anything)?,
                Some(stop) => return Ok(Some(stop)),
                None if self.sleeps() => return Ok(None),
                // On a busy machine it has not had its turn yet.
                None => {}
            }
        }
    }

    /// Whether the thread waits, whenever one looks.
    fn sleeps(&self) -> bool {
        const LOOKS: u32 = 20;
        (0..LOOKS).all(|_| {
            std::thread::sleep(Duration::from_millis(5));
            let status = self.target.status(self.tracee.thread());
            status.is_ok_and(|status| status.letter() == 'S')
        })
    }

    /// The thread is where it was, and will not know.
    pub fn put_back(self) -> io::Result<()> {
        // The kernel restarts an interrupted system call from such a stop only.
        // It is stopped, or about to be: nothing else is left to be waited for.
        while !self.tracee.settle(PATIENCE)? {
            if self.tracee.is_gone() {
                return Ok(());
            }
        }
        self.tracee.set_vector_state(&self.vectors)?;
        self.tracee.set_signal_mask(self.signal_mask)?;
        put_back(self.tracee, self.registers, self.target)
    }
}

/// Lets a thread that we stopped go on with its registers as they were.
///
/// Some system calls end with EINTR when a thread is merely stopped for a moment (`epoll_wait`, for one). No signal was
/// the reason, so no program expects it there: such a call is made once more.
pub(crate) fn put_back(
    tracee: &Tracee,
    mut registers: Registers,
    target: &Target,
) -> io::Result<()> {
    let is_interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
    if let Some(call) = interrupted_call(&registers)
        && is_interrupted
        && !has_signal(target, tracee.thread())
    {
        const SYSCALL_BYTES: u64 = 2;
        registers.rip -= SYSCALL_BYTES;
        registers.rax = call.cast_unsigned();
        registers.orig_rax = u64::MAX;
    }
    tracee.set_registers(&registers)
}

/// Whether a signal is about to be delivered to the thread.
fn has_signal(target: &Target, thread: i32) -> bool {
    target.status(thread).map_or(true, |status| {
        let pending = status.signals("SigPnd") | status.signals("ShdPnd");
        pending & !status.signals("SigBlk") != 0
    })
}

fn unexpected(stop: Stop) -> io::Error {
    io::Error::other(match stop {
        Stop::Gone => "the thread has ended".to_owned(),
        Stop::Signal(signal) => format!("the thread got signal {signal}"),
        Stop::Event | Stop::SystemCall => "the thread has stopped elsewhere".to_owned(),
    })
}
