//! The whole procedure: a borrowed thread starts a helper thread, and the helper calls the agent's function.

mod hear;
mod start;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use crate::borrow::{Forbidden, Standing};
use crate::image::Memory;
use crate::leftover;
use crate::limits;
use crate::machine;
use crate::parts::{Functions, find_functions, find_instructions, present_function};
use crate::remote::{Borrowed, Instructions, put_back};
use crate::rendezvous::Rendezvous;
use crate::target::{OTHER_TRACER, Target};
use crate::tracee::{Tracee, Until};
use crate::{AttachError, Reply, Request};

/// Part of the file name under which the library is opened. The agent recognises by it that it must wait; no other
/// library has such a name.
const TO_WAIT: &[u8] = b"/././";
/// How long we look for a thread that can be borrowed, in seconds.
const SEARCH_S: u64 = 10;
/// How long we wait for another command, in seconds.
const OTHER_COMMAND_S: u64 = 30;
/// Time between two looks for a deadlock.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// How long a thread may take to stop before the next one is tried. Doubled after every unsuccessful pass over all threads,
/// because on a busy machine a thread must first be scheduled.
const ONE_THREAD: Duration = Duration::from_millis(100);
const ONE_THREAD_AT_MOST: Duration = Duration::from_secs(2);
/// How long we wait at the end for threads that have not stopped yet.
const LAST_THREADS: Duration = Duration::from_secs(2);

/// One command's work on a process, while no other command is at work on it.
pub(crate) struct Work<'a> {
    pub(crate) target: &'a Target,
    request: &'a Request<'a>,
    pub(crate) memory: &'a Memory,
    functions: Functions,
    instructions: Instructions,
    forbidden: Forbidden,
    /// The agent's function, if the agent is there.
    present: Option<u64>,
    /// Threads that were asked to stop and have not stopped yet: on a busy machine, or in a system call that does not
    /// end. They are released when they stop.
    late: RefCell<Vec<Tracee>>,
    rendezvous: RefCell<Rendezvous>,
    looked: Cell<Option<Instant>>,
    /// Memory for a helper that was not started.
    spare: Cell<Option<u64>>,
}

/// The memory that was mapped for the helper.
struct Helper {
    region: u64,
}

/// See [`crate::call`].
pub(crate) fn call(target: &Target, request: &Request<'_>) -> Result<Reply, AttachError> {
    let memory = reach(target)?;
    finish(target, request, &memory)?;
    let mut work = Work::on(target, request, &memory)?;
    work.present = present_function(target, &memory, &target.mappings()?, request.function)?;
    if work.present.is_none() {
        let library = request.library.ok_or(AttachError::NoAgent(target.pid()))?;
        fs::metadata(library).map_err(|error| unreadable(library, error))?;
        if !target.has_proc() {
            return Err(AttachError::NoProc(target.pid()));
        }
        limits::check(target)?;
    }
    let started = work.on_some_thread(|borrowed| work.start_on(borrowed));
    if let Err(AttachError::NoHelper { .. }) = started {
        // The thread has gone on before it could unmap the memory. If this attempt fails too, the next command does
        // it.
        let _ = finish(target, request, &memory);
    }
    work.hear(&started?)
}

/// See [`crate::finish_earlier`].
pub(crate) fn finish_earlier(target: &Target, despite_seccomp: bool) -> Result<(), AttachError> {
    let request = Request {
        library: None,
        function: "",
        settings: &[],
        despite_seccomp,
    };
    match leftover::is_any(target)? {
        true => finish(target, &request, &reach(target)?),
        false => Ok(()),
    }
}

/// The process's memory, and the right to work on it: no other command works on it until this is dropped.
fn reach(target: &Target) -> Result<Memory, AttachError> {
    let pid = target.pid();
    if target.status(pid)?.lists("x86_Thread_features", "shstk") {
        return Err(AttachError::ShadowStack(pid));
    }
    let memory =
        Memory::of(pid).map_err(|error| target.explain(error, "its memory cannot be reached"))?;
    let since = Instant::now();
    while memory.lock().is_err() {
        if since.elapsed() > Duration::from_secs(OTHER_COMMAND_S) {
            return Err(AttachError::OtherCommand(pid, OTHER_COMMAND_S));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(memory)
}

/// Finishes or undoes what killed commands have begun.
fn finish(target: &Target, request: &Request<'_>, memory: &Memory) -> Result<(), AttachError> {
    if leftover::is_any(target)? {
        Work::on(target, request, memory)?.finish_earlier()?;
    }
    Ok(())
}

fn unreadable(library: &Path, error: io::Error) -> AttachError {
    AttachError::Library {
        path: library.to_owned(),
        error,
    }
}

impl<'a> Work<'a> {
    /// The process in its present state.
    fn on(
        target: &'a Target,
        request: &'a Request<'_>,
        memory: &'a Memory,
    ) -> Result<Self, AttachError> {
        let mappings = target.mappings()?;
        Ok(Self {
            functions: find_functions(target, memory, &mappings)?,
            instructions: find_instructions(target, memory, &mappings)?,
            present: None,
            forbidden: Forbidden::find(memory, mappings),
            target,
            request,
            memory,
            late: RefCell::new(Vec::new()),
            rendezvous: RefCell::default(),
            looked: Cell::new(None),
            spare: Cell::new(None),
        })
    }
}

impl Work<'_> {
    /// Looks for a thread that can be borrowed, and makes it do this.
    pub(crate) fn on_some_thread<T>(
        &self,
        work: impl Fn(&mut Borrowed<'_>) -> Result<Option<T>, AttachError>,
    ) -> Result<T, AttachError> {
        let pid = self.target.pid();
        let since = Instant::now();
        let mut refusal = None;
        let mut patience = ONE_THREAD;
        while since.elapsed() < Duration::from_secs(SEARCH_S) {
            for thread in self.target.threads()? {
                self.keep_going();
                let is_late = |late: &Tracee| late.thread() == thread;
                if self.late.borrow().iter().any(is_late) {
                    continue;
                }
                match self.try_thread(thread, patience, &work) {
                    Ok(Some(done)) => return Ok(done),
                    Ok(None) => {}
                    // Perhaps the reason holds for one thread only.
                    Err(
                        error @ (AttachError::SeccompFilter(_) | AttachError::SeccompStrict(_)),
                    ) => {
                        refusal = Some(error);
                    }
                    // Another command may trace the process until it ends, even after it has released the lock.
                    Err(AttachError::Traced { .. }) if since.elapsed() < OTHER_TRACER => {}
                    Err(error) => return Err(error),
                }
            }
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            // Until its parent has waited for it, a process that has ended still has its first thread.
            let is_over = |&thread: &i32| {
                let status = self.target.status(thread);
                status.map_or(true, |status| matches!(status.letter(), 'Z' | 'X'))
            };
            if self.target.threads()?.iter().all(is_over) {
                return Err(AttachError::Ended(pid));
            }
            patience = (2 * patience).min(ONE_THREAD_AT_MOST);
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(AttachError::NoThread(pid, SEARCH_S))
    }

    /// Runs during every wait for the process: the program may wait for a thread that we have stopped, while we wait
    /// for the program.
    pub(crate) fn keep_going(&self) {
        self.let_late_go();
        self.end_deadlock();
    }

    /// Releases the threads that have stopped late.
    fn let_late_go(&self) {
        let mut late = self.late.borrow_mut();
        let waiting = late.drain(..).filter_map(|tracee| tracee.release().err());
        *late = waiting.collect();
    }

    /// Borrows this thread; `None` if that is not possible now.
    fn try_thread<T>(
        &self,
        thread: i32,
        patience: Duration,
        work: impl Fn(&mut Borrowed<'_>) -> Result<Option<T>, AttachError>,
    ) -> Result<Option<T>, AttachError> {
        let status = match self.target.status(thread) {
            Ok(status) => status,
            // The thread has just ended.
            Err(_) if thread != self.target.pid() => return Ok(None),
            Err(error) => return Err(error),
        };
        match status.number("Seccomp") {
            Some(1) => return Err(AttachError::SeccompStrict(self.target.pid())),
            Some(2) if !self.request.despite_seccomp => {
                return Err(AttachError::SeccompFilter(self.target.pid()));
            }
            _ => {}
        }
        if status.letter() == 'Z' {
            return Ok(None);
        }
        // A thread that has just ended cannot be traced either.
        let has_ended = || {
            let status = self.target.status(thread);
            status.map_or(true, |status| matches!(status.letter(), 'Z' | 'X'))
        };
        let explain = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(None),
            Some(libc::EPERM) if has_ended() => Ok(None),
            _ => Err(self.target.explain(error, "it cannot be traced")),
        };
        let mut tracee = match Tracee::seize(thread) {
            Ok(tracee) => tracee,
            Err(error) => return explain(error),
        };
        // Measured from the stop until the thread runs as before.
        let signals = SigSet::all();
        let before = signals.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
        let tried = self.try_stopped(&mut tracee, patience, work);
        self.release(tracee);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        match tried {
            Ok(done) => done,
            Err(error) => explain(error),
        }
    }

    /// Releases the thread, now or when it stops.
    pub(crate) fn release(&self, tracee: Tracee) {
        if let Err(tracee) = tracee.release() {
            self.late.borrow_mut().push(tracee);
        }
    }

    fn try_stopped<T>(
        &self,
        tracee: &mut Tracee,
        patience: Duration,
        work: impl Fn(&mut Borrowed<'_>) -> Result<Option<T>, AttachError>,
    ) -> io::Result<Result<Option<T>, AttachError>> {
        if !self.settle(tracee, patience)? {
            return Ok(Ok(None));
        }
        if machine::has_shadow_stack(tracee.thread()) {
            put_back(tracee, tracee.registers()?, self.target)?;
            return Ok(Err(AttachError::ShadowStack(self.target.pid())));
        }
        match self.forbidden.look_at(self.memory, &tracee.registers()?) {
            Standing::Free => {}
            Standing::Busy if self.wait_for_it(tracee, patience)? => {}
            Standing::Busy | Standing::Waiting => return self.let_go(tracee),
        }
        let room = tracee.registers()?;
        let room = self
            .forbidden
            .end_of_stack(machine::stack(&room))
            .unwrap_or(u64::MAX);
        let keep_going = || self.keep_going();
        let taken = Borrowed::take(
            self.target,
            self.memory,
            tracee,
            self.instructions,
            room,
            &keep_going,
        )?;
        let Some(mut borrowed) = taken else {
            return self.let_go(tracee);
        };
        let done = work(&mut borrowed);
        match (done, borrowed.put_back()) {
            // Another thread must not do the same again. A thread that could not be put back goes back by itself.
            (Ok(Some(done)), _) => Ok(Ok(Some(done))),
            (done, Ok(())) => Ok(done),
            (_, Err(error)) => Err(error),
        }
    }

    /// Stops the thread; false if it does not stop within this time, or has ended.
    fn settle(&self, tracee: &mut Tracee, patience: Duration) -> io::Result<bool> {
        let since = Instant::now();
        while !tracee.settle(ONE_THREAD)? {
            if tracee.is_gone() || since.elapsed() >= patience {
                return Ok(false);
            }
            self.keep_going();
        }
        Ok(true)
    }

    /// This thread cannot be borrowed now.
    fn let_go<T>(&self, tracee: &Tracee) -> io::Result<Result<Option<T>, AttachError>> {
        if !tracee.is_gone() {
            put_back(tracee, tracee.registers()?, self.target)?;
        }
        Ok(Ok(None))
    }

    /// Stops the thread repeatedly until it can be borrowed, which slows it down. It is not single-stepped, because the
    /// kernel leaves the trap flag set if the tracer is killed, and the process then dies of SIGTRAP.
    fn wait_for_it(&self, tracee: &mut Tracee, patience: Duration) -> io::Result<bool> {
        let since = Instant::now();
        for turn in 0_u64.. {
            if since.elapsed() > patience / 2 {
                break;
            }
            put_back(tracee, tracee.registers()?, self.target)?;
            tracee.resume(Until::Anything)?;
            // Pauses of varying length, so that the looks do not stay in step with what the thread does.
            std::thread::sleep(Duration::from_micros(1 + turn * 37 % 101));
            if !self.settle(tracee, patience)? {
                return Ok(false);
            }
            match self.forbidden.look_at(self.memory, &tracee.registers()?) {
                Standing::Free => return Ok(true),
                Standing::Busy => {}
                Standing::Waiting => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Not more often than it makes sense.
    fn end_deadlock(&self) {
        let looked = self.looked.get();
        if looked.is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS) {
            return;
        }
        self.looked.set(Some(Instant::now()));
        let mut rendezvous = self.rendezvous.borrow_mut();
        let late = rendezvous.look(self.target, self.memory, &self.forbidden);
        self.late.borrow_mut().extend(late);
    }
}

impl Drop for Work<'_> {
    /// A thread that has not stopped by now sleeps uninterruptibly in the kernel. It stays stopped until this process
    /// ends.
    fn drop(&mut self) {
        let since = Instant::now();
        self.let_late_go();
        while !self.late.get_mut().is_empty() && since.elapsed() < LAST_THREADS {
            std::thread::sleep(Duration::from_millis(1));
            self.let_late_go();
        }
    }
}
