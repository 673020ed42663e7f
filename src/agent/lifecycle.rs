//! Fork, exec, the ends of threads and of the process.

use allocsample_record::{
    ExecRecord, ExitHow, ExitRecord, ForkRecord, Note, ThreadEndRecord, ThreadId, ThreadTotalRecord,
};

use crate::accounting::slow_path::SlowPath;
use crate::accounting::thread::{ShimThread, Totals};
use crate::agent::Agent;
use crate::mappings::write_own_mappings;
use crate::os::signals::Held;
use crate::os::{self, clock, process};
use crate::recording::{self, DrainRequest, DrainState, Recording};
use crate::shim::Caller;
use crate::spill;
use crate::stack;
use crate::switch::Switch;

/// Time that an exit waits for a drain thread that makes no progress. Records that are not written stay in the ring's file for
/// the reader, so a disk that hangs costs this time but no records.
pub(crate) const FINISH_PATIENCE_MS: u32 = 2_000;

/// State of a thread that forks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forking {
    /// The agent was off when it began.
    Unnoticed = 0,
    /// The thread stays muted until the fork is done.
    Muted = 1,
    /// A signal handler forks that interrupted a slow path.
    WithinSlowPath = 2,
}

impl Agent {
    /// Mutes the thread until [`Self::after_fork`]: other libraries' fork handlers allocate in between, in the child
    /// before it is ours.
    pub fn before_fork(&self, thread: &ShimThread, caller: &Caller) -> Forking {
        self.notice_fork_on(thread);
        self.on_borrowed(thread, caller);
        let is_within = self.is_in_slow_path(thread, caller);
        if is_within {
            recording::bequeath_rings();
        }
        let (slow_path, _) = thread.mute(0, caller);
        match slow_path.leave_open() {
            true => Forking::Muted,
            false => Forking::WithinSlowPath,
        }
    }

    /// `child` is 0 in the child, negative if there is none.
    pub fn after_fork(&self, thread: &ShimThread, child: i32, forking: Forking) {
        if child == 0 {
            self.restart_in_child();
            // It joins as a new thread of a new process once the interrupted slow path has ended.
            match forking {
                Forking::WithinSlowPath => thread.drift(),
                Forking::Unnoticed | Forking::Muted => thread.begin_anew(),
            }
            thread.take_tick_place();
            thread.set_fault_place(0);
            self.on_thread_start(thread, 0);
            return;
        }
        if child > 0
            && let Some(recording) = recording::current()
        {
            let record = ForkRecord {
                time_ns: clock::monotonic_ns(),
                child_pid: child.cast_unsigned(),
            };
            recording.push(&record);
        }
        if forking == Forking::Muted {
            drop(SlowPath::again(thread));
        }
    }

    /// Records the end of the calling thread. Its totals are final, unless later destructors allocate.
    pub fn on_thread_end(&self, thread: &ShimThread) {
        self.notice_fork_on(thread);
        let signal_stack = self.end_ticks_of(thread);
        if signal_stack != 0 {
            (self.setup.hooks().give_back_signal_stack)(signal_stack);
        }
        if thread.epoch() != self.epoch() {
            return;
        }
        let _held = Held::unless_filtered();
        if thread.is_muted() && !thread.is_of_the_agent() {
            // A signal handler has jumped out of a slow path, which will never end.
            self.give_up_slow_path(thread);
        }
        if thread.has_borrowed() {
            self.settle_borrowed(thread);
        }
        let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
        if let Some(recording) = recording::current() {
            // A thread without a sample has bytes in the exact total all the same.
            if !thread.is_announced() && recording.announce_thread(thread.number()) {
                thread.set_announced();
            }
            let record = ThreadEndRecord {
                time_ns: clock::monotonic_ns(),
                total: total_record(thread.number(), thread.totals()),
            };
            recording.push(&record);
        } else {
            self.accounting.threads.add_ended(thread.totals());
        }
        self.accounting.selection.forget_calling_thread();
        // Before the slot is freed: a signal handler may still write a record as this thread's writer.
        slow_path.leave();
        self.accounting.threads.leave(thread.slot());
    }

    /// Completes the profile: the process is about to end. Returns whether [`Self::after_exec_failed`] must be called if an
    /// exec fails.
    pub fn on_exit(
        &self,
        thread: &ShimThread,
        caller: &Caller,
        how: ExitHow,
        status: Option<i32>,
        path: &[u8],
    ) -> bool {
        self.notice_fork_on(thread);
        // A child of vfork, or of a fork that we have not noticed: the memory, or the files, are its parent's.
        // A recording that was stopped for lack of memory has an end to tell all the same.
        let state = self.switch.get();
        let is_recording =
            state == Switch::On || state == Switch::Failed && recording::current().is_some();
        if !is_recording || thread.is_of_the_agent() || !self.is_own_end(how) {
            return false;
        }
        // Signals stay blocked: a handler that forks here would leave two processes writing the profile's end.
        let _held = Held::unless_filtered();
        self.on_borrowed(thread, caller);
        let is_within = self.is_in_slow_path(thread, caller);
        let _slow_path = thread.mute(0, caller);
        let Some(recording) = recording::current().or_else(|| self.begin_at_exit(thread, how))
        else {
            if how == ExitHow::Detached {
                // Nor is one to begin.
                self.switch.change(state, Switch::Finished);
            }
            return false;
        };
        if !self.switch.change(state, Switch::Finished) {
            return false;
        }
        if is_within {
            // The process ends in a signal handler, so the interrupted slow path never finishes.
            if !recording.abandon_record_of(thread) {
                self.count_given_up(thread, thread.pending());
            }
        }
        self.write_end(thread, recording, how, status, path);
        match recording.drain_state() {
            DrainState::Running | DrainState::Starting => {
                recording.ask_drain(DrainRequest::Finish, FINISH_PATIENCE_MS);
            }
            DrainState::None | DrainState::Failed => {
                spill::finish(
                    recording,
                    self.setup.hooks().compress,
                    self.config().max_size_bytes,
                );
            }
            DrainState::Done => {}
        }
        true
    }

    /// Begins another profile after a failed exec, since the one before is complete. All threads join again; unfinished
    /// records of theirs are dropped.
    pub fn after_exec_failed(&self, thread: &ShimThread) {
        let _held = Held::unless_filtered();
        let ended = recording::current();
        recording::forget();
        self.epoch_ended();
        self.accounting.threads.clear();
        if let Some(ended) = ended {
            (self.setup.hooks().leave_drain)(ended);
            ended.let_go();
        }
        match thread.is_muted() {
            true => thread.drift(),
            false => thread.begin_anew(),
        }
        self.switch.change(Switch::Finished, Switch::On);
    }

    /// Begins a profile at the exit of a process without samples. Only at an orderly exit, and only for the process that `run`
    /// started, not for every child of a shell.
    fn begin_at_exit(&self, thread: &ShimThread, how: ExitHow) -> Option<&'static Recording> {
        let is_wanted = self
            .config()
            .run_pid
            .is_none_or(|pid| pid == process::parent_pid());
        if how != ExitHow::Exit || !is_wanted {
            return None;
        }
        self.capture
            .in_area(thread, |area| self.begin_recording(area))
            .flatten()
    }

    pub(crate) fn write_end(
        &self,
        thread: &ShimThread,
        recording: &Recording,
        how: ExitHow,
        status: Option<i32>,
        path: &[u8],
    ) {
        let time_ns = clock::monotonic_ns();
        let write_total = |number, totals| {
            let record = total_record(number, totals);
            recording.push_at_end(&record);
        };
        let own = if thread.epoch() == self.epoch() {
            thread.number()
        } else {
            0
        };
        if own != 0 {
            if !thread.is_announced() && recording.announce_thread(own) {
                thread.set_announced();
            }
            write_total(own, thread.totals());
        }
        self.accounting.threads.for_each_other(own, write_total);
        self.write_ended_before(recording);
        // A signal handler ends the recording where the thread that began it was about to tell that.
        self.publisher.write_lost_before(recording);
        // There may be no drain thread: the only sample was taken while a library was opened.
        self.publisher.note_late_bridges(recording);
        for heap in self.heaps.all() {
            self.publisher.write_exact_bytes(heap);
        }
        self.capture.write_compared(recording);
        self.look_at_pages_now(recording, time_ns);
        self.pages.end_recording(recording);
        if how == ExitHow::Detached {
            self.stop_faults();
        }
        write_own_mappings(recording);
        recording.update_figures();
        if how == ExitHow::Exec {
            let record = ExecRecord { time_ns, path };
            recording.push_at_end(&record);
        }
        recording.announce_exit(&ExitRecord {
            time_ns,
            how,
            status,
        });
    }

    /// Writes the exact totals of all threads that are not in a slow path, and of all heaps, at the end of a file. The total
    /// of any other thread is in its last sample. Called by the drain thread.
    pub fn write_totals(&self, recording: &Recording) {
        if !recording.is_current() {
            // What there is to tell is another recording's.
            return;
        }
        self.accounting.threads.for_each_quiet(|number, totals| {
            let record = total_record(number, totals);
            recording.push(&record);
        });
        for heap in self.heaps.all() {
            self.publisher.write_exact_bytes(heap);
        }
    }

    /// Writes the exact total of the threads that ended before the recording began, as thread 0.
    pub(crate) fn write_ended_before(&self, recording: &Recording) {
        let ended = self.accounting.threads.ended();
        if ended.bytes == 0 {
            return;
        }
        let record = total_record(0, ended);
        recording.push_at_end(&record);
    }

    /// Whether this process is ending, and not a vfork child in its memory. Behind a filter of system calls the kernel cannot
    /// be asked; an exit that only a vfork child may make is ignored then.
    fn is_own_end(&self, how: ExitHow) -> bool {
        match os::is_filtered() {
            true => !matches!(how, ExitHow::ImmediateExit | ExitHow::Exec),
            false => process::pid() == self.identity.pid(),
        }
    }

    /// Has the drain thread open the profile: the process is about to give up its root directory or its rights, and could not
    /// open it later. Does nothing in a vfork child, which uses its parent's memory.
    pub fn before_confinement(&self, thread: &ShimThread, caller: &Caller) {
        self.notice_fork_on(thread);
        let is_on = self.switch.get() == Switch::On && !self.is_in_slow_path(thread, caller);
        if !is_on || os::is_filtered() || process::pid() != self.identity.pid() {
            return;
        }
        let _slow_path = thread.mute(0, caller);
        let recording = recording::current().or_else(|| {
            self.capture
                .in_area(thread, |area| self.begin_recording(area))
                .flatten()
        });
        if let Some(recording) = recording {
            if recording.drain_state() == DrainState::None && process::may_have_threads() {
                self.publisher.set_drain_to_work(recording, false);
            }
            recording.wait_for_drain_start();
        }
    }

    /// A filter of system calls is about to be installed, which may end the process at each call that it does not know.
    /// Our thread, which it does not reach, opens the profile now and looks for work by itself from here on; the program's
    /// threads make no calls for us any more than for memory, which they need themselves; what is in the ring at the end
    /// stays there for the reader. Children have the filter, too, and no profiles.
    pub fn before_filter(&self, thread: &ShimThread, caller: Caller) {
        self.before_confinement(thread, &caller);
        if os::is_filtered()
            || self.switch.get() != Switch::On
            || process::pid() != self.identity.pid()
        {
            return;
        }
        // The return from a handler is a system call, too.
        (self.setup.hooks().end_ticks)();
        stack::learn_own_stack(thread);
        let recording = recording::current();
        if let Some(recording) = recording {
            // A first sample makes memory for these.
            self.walk_once(thread, caller, recording);
            self.blocks.prepare();
        }
        os::set_filtered();
        if let Some(recording) = recording {
            recording.wake_drain_for_the_last_time();
        }
    }

    /// Called when the filter is installed, or when the kernel has refused it; then everything is as before.
    pub fn after_filter(&self, is_installed: bool) {
        if !os::is_filtered() {
            return;
        }
        if !is_installed {
            os::set_unfiltered();
            self.after_unshare();
        } else if let Some(recording) = recording::current() {
            recording.note(Note::Filtered, b"");
        }
    }

    fn walk_once(&self, thread: &ShimThread, caller: Caller, recording: &Recording) {
        let Some(_slow_path) = self.enter(thread, 0, &caller) else {
            return;
        };
        let _none_free = self.capture.in_area(thread, |area| {
            self.capture.call(thread, caller, None, area, recording);
        });
    }

    /// Waits until a starting drain thread has a root directory of its own: to enter a mount namespace, a thread must not
    /// share it.
    pub fn before_entering_mounts(&self) {
        if let Some(recording) = recording::current() {
            recording.wait_for_drain_start();
        }
    }

    /// Pauses the drain thread, so that the process has no thread of ours.
    pub fn before_unshare(&self) {
        if let Some(recording) = recording::current()
            && matches!(
                recording.drain_state(),
                DrainState::Starting | DrainState::Running
            )
        {
            // One that a disk holds up does not hold up the program.
            if recording.ask_drain(DrainRequest::Pause, FINISH_PATIENCE_MS) {
                (self.setup.hooks().join_drain)(recording);
            }
        }
    }

    /// Allows the drain thread to start again.
    pub fn after_unshare(&self) {
        if let Some(recording) = recording::current()
            && self.switch.get() == Switch::On
        {
            recording.allow_drain_again();
        }
    }

    /// Notes that the main thread ends by `pthread_exit`. The drain thread then ends when it is the last thread, or the
    /// process would never end.
    pub fn on_pthread_exit(&self) {
        if self.is_leaving_main()
            && let Some(recording) = recording::current()
        {
            recording.main_has_exited();
        }
    }

    /// The calling thread ends by the system call, past libc. True: it is the program's last one, so the process must end,
    /// with this thread's status; ours would end it with another.
    pub fn on_raw_exit(&self) -> bool {
        if !self.is_leaving_main() {
            return false;
        }
        let own = recording::current().map_or(0, |recording| {
            let is_there = matches!(
                recording.drain_state(),
                DrainState::Starting | DrainState::Running
            );
            u64::from(is_there)
        });
        let is_last = process::threads() == 1 + own;
        if !is_last {
            self.on_pthread_exit();
        }
        is_last
    }

    /// Whether this is the main thread of a process that has a profile. Behind a filter, or where a program has forbidden itself
    /// nearly everything, nobody can be asked.
    fn is_leaving_main(&self) -> bool {
        self.switch.get() == Switch::On
            && !os::is_filtered()
            && process::tid() == self.identity.pid()
    }
}

fn total_record(number: u32, totals: Totals) -> ThreadTotalRecord {
    ThreadTotalRecord {
        thread: ThreadId(number),
        bytes: totals.bytes,
        muted_bytes: totals.muted_bytes,
    }
}

#[cfg(test)]
mod tests;
