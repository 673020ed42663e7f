//! Work that a borrowed thread does for us before it continues unchanged.
//!
//! From [`Borrowed::take`] on the thread goes back by itself if we are killed at any moment: every path ends in a
//! frame (`frame.rs`) from which the kernel restores everything.

use std::io;
use std::time::{Duration, Instant};

use crate::frame::{Frame, RESTARTED, SIGNAL_AT, SIGNAL_BYTES, Saved, handler_frame_bytes};
use crate::image::Memory;
use crate::machine::{
    self, RETURN_ADDRESS_BYTES, Registers, SIGNAL_RETURN, SYSTEM_CALL, call_again, waits_at_futex,
};
use crate::target::Target;
use crate::tracee::{SETXID, Stop, Tracee, Until, bit};

/// How long a thread may take for work of a few microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a thread may wait for a lock that others take again and again.
const LONGEST: Duration = Duration::from_secs(5);

/// Time between two looks at a running thread.
const TURN: Duration = Duration::from_millis(100);

/// Signals that are blocked while the thread calls a function: all others wait until it is put back. So does a
/// cancellation, which would unwind the thread from the wrong place; nobody waits for the answer to that.
const BLOCKED_SIGNALS: u64 = !bit(SETXID);

/// Signals that are blocked while the thread makes system calls, which take microseconds. A program that changes its
/// user in a loop would otherwise keep this thread busy with nothing else.
const ALL_SIGNALS: u64 = u64::MAX;

/// Stack that the C library's handler takes besides its frame.
const HANDLER_BYTES: u64 = 512;

const SYSCALL_BYTES: u64 = SYSTEM_CALL.len() as u64;

/// Signals that show that the thread's work for us has gone wrong.
const FAULTS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// Instructions that are found in every process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions {
    /// [`machine::SYSTEM_CALL_AND_RETURN`]
    pub system_call: u64,
    /// [`SIGNAL_RETURN`]
    pub signal_return: u64,
}

/// Where a function finds its stack, and what it returns to.
pub(crate) struct Place {
    /// The high end of the stack.
    pub stack: u64,
    /// Code that stores the result and ends in the system call of a signal handler's return.
    pub return_to: u64,
    /// The end of that.
    pub end: u64,
    /// Where the code has stored that the function has returned, and what.
    pub has_returned: u64,
    pub result: u64,
}

/// A stopped thread, and its state at the stop.
pub(crate) struct Borrowed<'a> {
    target: &'a Target,
    memory: &'a Memory,
    tracee: &'a mut Tracee,
    saved: Saved,
    instructions: Instructions,
    /// Runs at every turn of a wait.
    keep_going: &'a dyn Fn(),
    /// On the thread's own stack, below what it uses.
    frame: u64,
    /// What was there before.
    below_stack: Vec<u8>,
    /// The kernel has put it back.
    has_gone_on: bool,
}

impl<'a> Borrowed<'a> {
    /// From here until [`Self::put_back`] no signal of the program is delivered to the thread. `None` if its stack,
    /// whose end `room` knows, has no room for our frame and the C library's handler, or if it has state that cannot be
    /// put back.
    ///
    /// Calls `keep_going` every [`TURN`] while it waits for the thread.
    pub fn take(
        target: &'a Target,
        memory: &'a Memory,
        tracee: &'a mut Tracee,
        instructions: Instructions,
        room: u64,
        keep_going: &'a dyn Fn(),
    ) -> io::Result<Option<Self>> {
        let registers = tracee.registers()?;
        let Some(vectors) = tracee.vector_state()? else {
            return Ok(None);
        };
        let saved = Saved {
            call_again: call_again(memory, &registers),
            registers,
            vectors,
            signal_mask: tracee.signal_mask()?,
        };
        let frame = saved.below_stack(instructions.signal_return);
        let handler_bytes = handler_frame_bytes(&frame) + HANDLER_BYTES;
        let Frame { start, bytes } = frame;
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

    /// Puts a string where the thread's next system calls find it, and replaces the one before. Returns its address.
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
        let (code, stack) = self.at_rest();
        self.tracee
            .set_registers(&self.sent_to(code, stack, [0; 6]))
    }

    /// Where the thread is then, and its stack pointer.
    fn at_rest(&self) -> (u64, u64) {
        let stack = self.frame + RETURN_ADDRESS_BYTES;
        (self.instructions.signal_return, stack)
    }

    /// The thread at code that returns to the instruction that puts everything back.
    fn sent_to(&self, code: u64, stack: u64, arguments: [u64; 6]) -> Registers {
        let return_to = self.instructions.signal_return;
        machine::sent_to(&self.saved.registers, code, stack, return_to, arguments)
    }

    /// One system call.
    pub fn system_call(&mut self, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        if self.has_gone_on {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let registers = self.sent_to(self.instructions.system_call, self.frame, arguments);
        let registers = machine::with_call(registers, number);
        loop {
            self.tracee.set_registers(&registers)?;
            // Its begin and its end.
            let after = self.instructions.system_call + SYSCALL_BYTES;
            for _ in 0..2 {
                self.run_to(after, self.frame)?;
            }
            let result = machine::result(&self.tracee.registers()?);
            self.rest()?;
            match result {
                // The handler runs now, and the system call once more after it.
                result if RESTARTED.contains(&result) => {}
                -4095..=-1 => return Err(io::Error::from_raw_os_error(-result as i32)),
                _ => return Ok(result.cast_unsigned()),
            }
        }
    }

    /// Runs to the next entry or exit of a system call at this place. System calls of a handler of the C library have
    /// their stack below; its return ends where it interrupted the thread.
    fn run_to(&mut self, code: u64, stack: u64) -> io::Result<()> {
        loop {
            self.resume()?;
            self.wait_for(Stop::SystemCall)?;
            let registers = self.tracee.registers()?;
            if place_of(&registers) == (code, stack) {
                return Ok(());
            }
        }
    }

    /// Replaces the system call that the thread is about to make by none.
    fn skip_call(&mut self) -> io::Result<()> {
        self.rest()?;
        self.resume()?;
        self.wait_for(Stop::SystemCall)?;
        self.rest()
    }

    /// Calls a function that starts a thread. `None` if it did not return and was given up.
    ///
    /// Until the thread is started this one runs without stops: while it waits for a lock, it may be asked again and
    /// again to change its user, and must be as fast at that as the thread that asks.
    pub fn function_call(
        &mut self,
        function: u64,
        arguments: [u64; 6],
        place: &Place,
    ) -> io::Result<Option<u64>> {
        let Frame { start, bytes } = self.saved.below(place.stack, place.return_to);
        self.memory.write(start, &bytes)?;
        let saved = &self.saved.registers;
        let registers = machine::sent_to(saved, function, start, place.return_to, arguments);
        let registers = machine::with_call(registers, 0);
        // This comes first: if we are killed between the two steps, the thread must not wait for a lock with this
        // signal blocked.
        self.tracee.set_signal_mask(BLOCKED_SIGNALS)?;
        self.tracee.set_registers(&registers)?;
        self.tracee.follow(true)?;
        self.tracee.resume(Until::Anything)?;
        let mut since = Instant::now();
        while !self.tracee.has_created() {
            (self.keep_going)();
            let stop = self.tracee.wait(TURN)?;
            if self.memory.word(place.has_returned)? != 0 {
                // The call has failed, and the kernel puts the thread back.
                self.has_gone_on = true;
                return self.memory.word(place.result).map(Some);
            }
            let is_late = match stop {
                Some(Stop::Created) => false,
                Some(stop) => {
                    self.go_on(stop)?;
                    since.elapsed() > LONGEST
                }
                // On a busy machine the thread may not have run yet.
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
        self.follow_to_the_end(place, start + RETURN_ADDRESS_BYTES)
    }

    /// Runs the thread from the stop at which it has started the new thread until the function has returned.
    ///
    /// The thread is stopped at the instruction that would put it back, so that we put it back precisely: a call with
    /// a timeout then continues with the rest of its time. But stops make it slow. While others change the user
    /// without a pause, every stop in the C library's handler lets the next such signal arrive before the function
    /// gets any further. In that case the thread runs without stops and goes back by itself.
    fn follow_to_the_end(&mut self, place: &Place, stack: u64) -> io::Result<Option<u64>> {
        const MOST_STOPS: usize = 64;
        for _ in 0..MOST_STOPS {
            self.resume()?;
            self.wait_for(Stop::SystemCall)?;
            // The thread's own system calls stop it too.
            let registers = self.tracee.registers()?;
            if place_of(&registers) == (place.end, stack) {
                self.skip_call()?;
                self.tracee.set_signal_mask(ALL_SIGNALS)?;
                return self.memory.word(place.result).map(Some);
            }
        }
        self.tracee.resume(Until::Anything)?;
        loop {
            (self.keep_going)();
            let stop = self.tracee.wait(TURN)?;
            // Checked first: the thread may have gone back and ended.
            if self.memory.word(place.has_returned)? != 0 {
                self.has_gone_on = true;
                return self.memory.word(place.result).map(Some);
            }
            if let Some(stop) = stop {
                self.go_on(stop)?;
            }
        }
    }

    /// Runs without further stops, from a stop that is neither the end of the thread nor the end of its work for us.
    fn go_on(&mut self, stop: Stop) -> io::Result<()> {
        match stop {
            Stop::Gone => Err(unexpected(Stop::Gone)),
            Stop::Signal if FAULTS.contains(&self.tracee.signal()) => Err(self.fault()),
            _ => self.tracee.resume(Until::Anything),
        }
    }

    /// Takes the thread out of a function in which it waits for a lock. False if it does not wait now; it is then
    /// stopped if it has started a thread.
    ///
    /// A thread in the C library's handler is followed until it leaves the handler. Taken out of the handler, it
    /// would never answer, and the thread that changes the user would wait forever.
    fn give_up(&mut self, place: &Place) -> io::Result<bool> {
        // A handler makes about three system calls, with two stops each.
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

    /// Whether a function that has its stack here waits for a lock, or is about to: the kernel restarts the call, or
    /// a handler has just returned to it. Nobody has woken the thread by then, so nobody relies on it.
    fn waits_for_a_lock(&self, registers: &Registers, place: &Place) -> bool {
        (place.return_to..place.stack).contains(&machine::stack(registers))
            && waits_at_futex(self.memory, registers)
    }

    /// The thread's work for us has gone wrong.
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

    /// Returns the next stop that belongs to this work, so not, for example, a SIGSTOP for the whole process. `None`
    /// if the thread waits in the kernel for an event that does not come.
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
                // On a busy machine the thread may not have run yet.
                None => (self.keep_going)(),
            }
        }
    }

    /// Whether the thread is found waiting at every look.
    fn sleeps(&self) -> bool {
        const LOOKS: u32 = 20;
        (0..LOOKS).all(|_| {
            std::thread::sleep(Duration::from_millis(5));
            let status = self.target.status(self.tracee.thread());
            status.is_ok_and(|status| status.letter() == 'S')
        })
    }

    /// Stops the thread where the next instruction is the one that puts everything back. The kernel restarts an
    /// interrupted system call only from such a stop. False if the thread has ended.
    fn settle(&mut self) -> io::Result<bool> {
        let at_rest = self.at_rest();
        loop {
            // The thread is stopped or about to be; there is nothing else to wait for.
            while !self.tracee.settle(PATIENCE)? {
                if self.tracee.is_gone() {
                    return Ok(false);
                }
            }
            let registers = self.tracee.registers()?;
            if place_of(&registers) == at_rest {
                return Ok(true);
            }
            // In a handler of the C library, whose end another thread waits for.
            let (code, stack) = at_rest;
            self.run_to(code + SIGNAL_RETURN.len() as u64, stack)?;
            self.skip_call()?;
        }
    }

    /// The thread is where it was, and notices nothing.
    pub fn put_back(mut self) -> io::Result<()> {
        if self.has_gone_on && self.tracee.is_gone() {
            return Ok(());
        }
        if self.has_gone_on {
            // A thread that is not stopped now is released when it stops.
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
        put_back(self.tracee, machine::continued(registers), self.target)?;
        self.memory.write(self.frame, &self.below_stack)
    }
}

/// Lets a stopped thread continue with its original registers.
///
/// Some system calls (`epoll_wait`, for one) end with EINTR when a thread is merely stopped for a moment. There was
/// no signal, so no program expects that error: such a call is made once more.
pub(crate) fn put_back(tracee: &Tracee, registers: Registers, target: &Target) -> io::Result<()> {
    let again = machine::made_again(&registers).filter(|_| !has_signal(target, tracee.thread()));
    tracee.set_registers(&again.unwrap_or(registers))
}

/// Where the thread is, and its stack pointer.
fn place_of(registers: &Registers) -> (u64, u64) {
    (machine::code(registers), machine::stack(registers))
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
