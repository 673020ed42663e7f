//! Work that a borrowed thread does for us, before it goes on as if nothing had been.
//!
//! From [`Borrowed::take`] on the thread goes on as it was wherever we are killed: each of its ways ends in a frame
//! (`frame.rs`) of which the kernel puts everything back.

use std::io;
use std::time::{Duration, Instant};

use crate::borrow::{SIGNAL_RETURN, interrupted_call};
use crate::frame::{Frame, RESTARTED, SIGNAL_AT, SIGNAL_BYTES, Saved, is_restarted};
use crate::image::Memory;
use crate::target::Target;
use crate::tracee::{Registers, SETXID, Stop, Tracee, Until, bit};

/// How long a thread may take for what is done in microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a thread may wait for a lock that others get again and again.
const LONGEST: Duration = Duration::from_secs(5);

/// Between two looks at a thread that runs.
const TURN: Duration = Duration::from_millis(100);

/// While it calls a function everything else waits until the thread is put back. So does a cancellation, which would unwind the
/// thread from where it is not; nobody waits for that to be answered.
const BLOCKED_SIGNALS: u64 = !bit(SETXID);

/// While it makes system calls, which take microseconds, even that waits: a program that changes its user in a loop would
/// have this thread do nothing else.
const ALL_SIGNALS: u64 = u64::MAX;

/// What the C library's handler takes of the stack besides its frame, which is as large as ours.
const HANDLER_BYTES: u64 = 512;

/// The instruction `syscall`.
const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];
const SYSCALL_BYTES: u64 = SYSTEM_CALL.len() as u64;

/// Signals that say that what the thread does for us has gone wrong.
const FAULTS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// Instructions that are found in every C library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions {
    /// `syscall; ret`
    pub system_call: u64,
    /// `mov $15, %rax; syscall`: what signal handlers return to.
    pub signal_return: u64,
}

/// Where a function finds its stack, and what it returns to.
pub(crate) struct Place {
    /// The high end of the stack.
    pub stack: u64,
    /// Code that stores the result and ends in `mov $15, %eax; syscall`.
    pub return_to: u64,
    /// The end of that.
    pub end: u64,
    /// Where the code has stored that the function has returned, and what.
    pub has_returned: u64,
    pub result: u64,
}

/// A stopped thread, and how it was.
pub(crate) struct Borrowed<'a> {
    target: &'a Target,
    memory: &'a Memory,
    tracee: &'a mut Tracee,
    saved: Saved,
    instructions: Instructions,
    /// To be done at every turn of a wait.
    keep_going: &'a dyn Fn(),
    /// On the thread's own stack, below what it uses.
    frame: u64,
    /// What lies there otherwise.
    below_stack: Vec<u8>,
    /// The kernel has put it back.
    has_gone_on: bool,
}

impl<'a> Borrowed<'a> {
    /// From here on until [`Self::put_back`] no signal of the program's is delivered to the thread. `None`: its stack, of
    /// which `room` says where it ends, has no room for a frame of ours and the C library's handler.
    ///
    /// Whenever it waits for the thread, it calls `keep_going` every [`TURN`].
    pub fn take(
        target: &'a Target,
        memory: &'a Memory,
        tracee: &'a mut Tracee,
        instructions: Instructions,
        room: u64,
        keep_going: &'a dyn Fn(),
    ) -> io::Result<Option<Self>> {
        let registers = tracee.registers()?;
        let saved = Saved {
            call_again: call_again(memory, &registers),
            registers,
            vectors: tracee.vector_state()?,
            signal_mask: tracee.signal_mask()?,
        };
        let Frame { start, bytes } = saved.below_stack(instructions.signal_return);
        let handler_bytes = bytes.len() as u64 + HANDLER_BYTES;
        if start.saturating_sub(handler_bytes) < room {
            return Ok(None);
        }
        let mut below_stack = vec![0; bytes.len()];
        memory.read(start, &mut below_stack)?;
        memory.write(start, &bytes)?;
        let borrowed = Self {
            target,
            memory,
            tracee,
            saved,
            instructions,
            keep_going,
            frame: start,
            below_stack,
            has_gone_on: false,
        };
        borrowed.rest()?;
        borrowed.tracee.set_signal_mask(ALL_SIGNALS)?;
        Ok(Some(borrowed))
    }

    /// Its number.
    pub fn thread(&self) -> i32 {
        self.tracee.thread()
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        self.tracee.is_gone()
    }

    /// Puts a string where the thread's next system calls find it; it replaces the one before. Returns its address.
    pub fn lay_down(&self, text: &[u8]) -> io::Result<u64> {
        let mut text = text.to_vec();
        text.push(0);
        if text.len() as u64 > SIGNAL_BYTES {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let place = self.frame + SIGNAL_AT;
        self.memory.write(place, &text).map(|()| place)
    }

    /// The thread's next instruction is the one that puts everything back.
    fn rest(&self) -> io::Result<()> {
        let mut registers = self.registers_for(self.instructions.signal_return, [0; 6]);
        registers.rsp = self.frame + 8;
        self.tracee.set_registers(&registers)
    }

    fn registers_for(&self, code: u64, arguments: [u64; 6]) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        Registers {
            rip: code,
            // Whose first word is what `code` returns to.
            rsp: self.frame,
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
            eflags: self.saved.registers.eflags & !0x400,
            ..self.saved.registers
        }
    }

    /// One system call.
    pub fn system_call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        if self.has_gone_on {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let mut registers = self.registers_for(self.instructions.system_call, arguments);
        registers.rax = number.cast_unsigned();
        loop {
            self.tracee.set_registers(&registers)?;
            // Its begin and its end.
            let after = self.instructions.system_call + SYSCALL_BYTES;
            for _ in 0..2 {
                self.run_to(after, self.frame)?;
            }
            let result = self.tracee.registers()?.rax.cast_signed();
            self.rest()?;
            match result {
                // The handler comes now, and then the system call once more.
                result if RESTARTED.contains(&result) => {}
                -4095..=-1 => return Err(io::Error::from_raw_os_error(-result as i32)),
                _ => return Ok(result.cast_unsigned()),
            }
        }
    }

    /// To the next begin or end of a system call at this place. Those of a handler of the C library's have their stack
    /// below, and its return ends where it came in.
    fn run_to(&mut self, code: u64, stack: u64) -> io::Result<()> {
        loop {
            self.resume()?;
            self.wait_for(Stop::SystemCall)?;
            let registers = self.tracee.registers()?;
            if (registers.rip, registers.rsp) == (code, stack) {
                return Ok(());
            }
        }
    }

    /// In place of the system call that it is about to make, none is made.
    fn skip_call(&mut self) -> io::Result<()> {
        self.rest()?;
        self.resume()?;
        self.wait_for(Stop::SystemCall)?;
        self.rest()
    }

    /// One call of a function that starts a thread. `None`: it does not return, and was given up.
    ///
    /// Until the thread is started this one runs without a stop: it may be asked again and again to change its user while it
    /// waits for a lock, and must not be slower at that than who asks.
    pub fn function_call(
        &mut self,
        function: u64,
        arguments: [u64; 6],
        place: &Place,
    ) -> io::Result<Option<u64>> {
        let Frame { start, bytes } = self.saved.below(place.stack, place.return_to);
        self.memory.write(start, &bytes)?;
        let mut registers = self.registers_for(function, arguments);
        registers.rsp = start;
        registers.rax = 0;
        // First of all: if we are killed between the two, the thread must not wait for a lock without answering.
        self.tracee.set_signal_mask(BLOCKED_SIGNALS)?;
        self.tracee.set_registers(&registers)?;
        self.tracee.follow(true)?;
        self.tracee.resume(Until::Anything)?;
        let mut since = Instant::now();
        while !self.tracee.has_created() {
            (self.keep_going)();
            let stop = self.tracee.wait(TURN)?;
            if self.memory.word(place.has_returned)? != 0 {
                // It has failed, and the kernel puts the thread back.
                self.has_gone_on = true;
                return self.memory.word(place.result).map(Some);
            }
            let is_late = match stop {
                Some(Stop::Created) => false,
                Some(stop) => {
                    self.go_on(stop)?;
                    since.elapsed() > LONGEST
                }
                // On a busy machine it has not had its turn yet.
                None => since.elapsed() > LONGEST || since.elapsed() > PATIENCE && self.sleeps(),
            };
            if is_late {
                since = Instant::now();
                if self.give_up(place)? {
                    return Ok(None);
                }
            }
        }
        self.tracee.follow(false)?;
        self.follow_to_the_end(place, start + 8)
    }

    /// From the stop at which it has started the thread until the function has returned.
    ///
    /// The thread is stopped where it would go back by itself, so that it is put back precisely: a call for a time, for the rest of
    /// that time. But stops make it slow: while others change the user without a pause, each stop in the C library's handler lets
    /// the next such signal come before the function gets any further. Then the thread runs without stops and goes back by itself.
    fn follow_to_the_end(&mut self, place: &Place, stack: u64) -> io::Result<Option<u64>> {
        const MOST_STOPS: usize = 64;
        for _ in 0..MOST_STOPS {
            self.resume()?;
            self.wait_for(Stop::SystemCall)?;
            // Its own system calls stop it too.
            let registers = self.tracee.registers()?;
            if (registers.rip, registers.rsp) == (place.end, stack) {
                self.skip_call()?;
                self.tracee.set_signal_mask(ALL_SIGNALS)?;
                return self.memory.word(place.result).map(Some);
            }
        }
        self.tracee.resume(Until::Anything)?;
        loop {
            (self.keep_going)();
            let stop = self.tracee.wait(TURN)?;
            // Looked at first: the thread can have gone back, and ended.
            if self.memory.word(place.has_returned)? != 0 {
                self.has_gone_on = true;
                return self.memory.word(place.result).map(Some);
            }
            if let Some(stop) = stop {
                self.go_on(stop)?;
            }
        }
    }

    /// Without further stops, from one that is not the end of the thread or of what it does for us.
    fn go_on(&mut self, stop: Stop) -> io::Result<()> {
        match stop {
            Stop::Gone => Err(unexpected(Stop::Gone)),
            Stop::Signal if FAULTS.contains(&self.tracee.signal()) => Err(self.fault()),
            _ => self.tracee.resume(Until::Anything),
        }
    }

    /// Takes the thread out of a function in which it waits for a lock. False: it does not, just now, and is stopped if it has
    /// started a thread.
    ///
    /// A thread in the C library's handler is followed until it comes out. Taken out of there, it would never answer, and who
    /// changes the user would wait for it for ever.
    fn give_up(&mut self, place: &Place) -> io::Result<bool> {
        // A handler makes some three system calls, and each is two stops.
        const MOST_STOPS: usize = 32;
        self.halt()?;
        for _ in 0..MOST_STOPS {
            if self.tracee.has_created() || self.memory.word(place.has_returned)? != 0 {
                break;
            }
            if self.waits_for_a_lock(&self.tracee.registers()?, place) {
                self.rest()?;
                self.tracee.set_signal_mask(ALL_SIGNALS)?;
                return Ok(true);
            }
            self.resume()?;
            match self.wait()? {
                Some(Stop::Gone) => return Err(unexpected(Stop::Gone)),
                Some(_) => {}
                None => self.halt()?,
            }
        }
        if !self.tracee.has_created() {
            self.tracee.resume(Until::Anything)?;
        }
        Ok(false)
    }

    /// Stops the thread, however long that takes.
    fn halt(&mut self) -> io::Result<()> {
        while !self.tracee.settle(TURN)? {
            if self.tracee.is_gone() {
                return Err(unexpected(Stop::Gone));
            }
            (self.keep_going)();
        }
        Ok(())
    }

    /// Whether a function that has its stack here waits for a lock, or is about to: the kernel makes the call again, or a handler
    /// has just returned to it. Nobody has woken the thread by then, so nobody counts on it.
    fn waits_for_a_lock(&self, registers: &Registers, place: &Place) -> bool {
        const COMMAND: u64 = 0x7f;
        if !(place.return_to..place.stack).contains(&registers.rsp) {
            return false;
        }
        if is_restarted(registers) {
            return interrupted_call(registers) == Some(libc::SYS_futex);
        }
        let operation = (registers.rsi & COMMAND) as i32;
        interrupted_call(registers).is_none()
            && *self.memory.read_some(registers.rip, SYSTEM_CALL.len()) == SYSTEM_CALL
            && registers.rax == libc::SYS_futex as u64
            && matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
    }

    /// What the thread does for us has gone wrong.
    fn fault(&mut self) -> io::Error {
        let signal = self.tracee.take_signal();
        let error = io::Error::other(format!("the thread got signal {signal}"));
        self.rest().err().unwrap_or(error)
    }

    fn resume(&mut self) -> io::Result<()> {
        self.tracee.resume(Until::SystemCall)
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
        let mut since = Instant::now();
        loop {
            let stop = self.tracee.wait(TURN)?;
            if stop.is_some() {
                since = Instant::now();
            }
            match stop {
                Some(Stop::Event) => self.resume()?,
                Some(Stop::Signal) if !FAULTS.contains(&self.tracee.signal()) => self.resume()?,
                Some(Stop::Signal) => return Err(self.fault()),
                Some(stop) => return Ok(Some(stop)),
                None if since.elapsed() > PATIENCE && self.sleeps() => return Ok(None),
                // On a busy machine it has not had its turn yet.
                None => (self.keep_going)(),
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

    /// Stops it where the next instruction is the one that puts everything back. The kernel restarts an interrupted system
    /// call from such a stop only. False: it has ended.
    fn settle(&mut self) -> io::Result<bool> {
        let at_rest = (self.instructions.signal_return, self.frame + 8);
        loop {
            // It is stopped, or about to be: nothing else is left to be waited for.
            while !self.tracee.settle(PATIENCE)? {
                if self.tracee.is_gone() {
                    return Ok(false);
                }
            }
            let registers = self.tracee.registers()?;
            if (registers.rip, registers.rsp) == at_rest {
                return Ok(true);
            }
            // In a handler of the C library's, for which somebody waits.
            let (code, stack) = at_rest;
            self.run_to(code + SIGNAL_RETURN.len() as u64, stack)?;
            self.skip_call()?;
        }
    }

    /// The thread is where it was, and will not know.
    pub fn put_back(mut self) -> io::Result<()> {
        if self.has_gone_on && self.tracee.is_gone() {
            return Ok(());
        }
        if self.has_gone_on {
            // A thread that is not stopped now is let go when it stops.
            return match self.tracee.settle(PATIENCE)? {
                true => put_back(self.tracee, self.tracee.registers()?, self.target),
                false => Ok(()),
            };
        }
        if !self.settle()? {
            return Ok(());
        }
        let Saved {
            registers,
            vectors,
            signal_mask,
            ..
        } = self.saved;
        self.tracee.set_vector_state(&vectors)?;
        self.tracee.set_signal_mask(signal_mask)?;
        put_back(self.tracee, registers, self.target)?;
        self.memory.write(self.frame, &self.below_stack)
    }
}

/// The system call that an interrupted thread makes again if nobody puts it back.
///
/// One that the kernel has restarted once has the number of `restart_syscall`, which does not survive a return from a
/// signal frame. Its own number is in front of the instruction, where the C library loads it.
fn call_again(memory: &Memory, registers: &Registers) -> u64 {
    if registers.orig_rax != libc::SYS_restart_syscall as u64 {
        return registers.orig_rax;
    }
    match *memory.read_some(registers.rip.wrapping_sub(7), 7) {
        // `mov $number, %eax; syscall`
        [0xb8, a, b, c, d, 0x0f, 0x05] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => registers.orig_rax,
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
        Stop::Gone => "the thread has ended",
        Stop::Event | Stop::SystemCall | Stop::Signal | Stop::Created => {
            "the thread has stopped elsewhere"
        }
    })
}
