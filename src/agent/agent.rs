//! The agent: all that the threads of the program share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_record::{LostReason, Note};
use allocsample_ring::request;
use allocsample_sampling::{Interval, Seed};

use crate::config::{Bridges, Config, LARGEST_MAX_DEPTH, UnknownSetting};
use crate::control::Control;
use crate::hooks::{Definitions, Heaps};
use crate::live::{BlockFilter, LiveSamples};
use crate::os::file::complain;
use crate::os::memory::{ForkCanary, StaticRef};
use crate::os::scratch::Pool;
use crate::os::signals::Held;
use crate::os::thread::ShimThread;
use crate::os::{self, process};
use crate::path::PATH_BYTES;
use crate::recording::{self, Beginning, CannotRecord, DrainState, Recording};
use crate::selection::Selection;
use crate::spill;
use crate::stack::locking::LockingCode;
use crate::stack::modules::Modules;
use crate::stack::vm::RawFrame;
use crate::stack::{Captured, ForeignPages, FoundStack, Memo, RuleCache, WrittenKey, WrittenStack};
use crate::switch::{Switch, SwitchCell};
use crate::threads::Threads;
use crate::ticks::Ticks;
use crate::waiting::LastLook;

/// What the agent cannot do itself.
pub struct Hooks {
    /// Starts the drain thread of a recording, which it lets go of at its end; returns whether it could. Called outside of
    /// libc's locks.
    pub start_drain: fn(&Recording) -> bool,
    /// Compresses the first slice into the second as one LZ4 block; its length. Called on a muted thread.
    pub compress: spill::Compress,
    /// Waits until the recording's drain thread is gone for the kernel too.
    pub join_drain: fn(&Recording),
    /// Nobody will wait for the recording's drain thread.
    pub leave_drain: fn(&Recording),
    /// A thread has taken its first slow path: its end is to be reported by [`Agent::on_thread_end`].
    pub on_thread_joined: fn(),
    /// Memory of our own must be made fit for use in a forked child.
    pub after_fork_in_child: fn(),
    /// A thread that has ended gives back its stack for signals: see [`Agent::on_thread_start`].
    pub give_back_signal_stack: fn(u64),
    /// No more ticks: a filter of system calls is about to be installed.
    pub end_ticks: fn(),
    /// Whether somebody wants to hear of samples. What a sample stands for takes as long to work out as all else that is
    /// told of it.
    pub has_listener: fn() -> bool,
    /// A sample was recorded: its address, its size, and the bytes that it stands for. On the program's stack.
    pub on_sampled: fn(u64, u64, u64),
    /// A sampled block of a heap other than malloc's was freed.
    pub on_heap_freed: fn(u64),
    /// Writes the detail of a [`Note::NotJoined`] for the declined bridge with this index. Returns its length in bytes, or 0
    /// if there are no more.
    pub not_joined: fn(usize, &mut [u8]) -> usize,
}

/// Facts that are known at start.
pub struct Start {
    /// The settings.
    pub config: Config,
    /// See [`Hooks`].
    pub hooks: Hooks,
    /// The program's name as it was called: `redis-server`, even if that is a link to another name.
    pub program: &'static [u8],
    /// The module that defines the next malloc.
    pub next_allocator: &'static [u8],
    /// The module of a malloc that stands before ours.
    pub malloc_elsewhere: Option<&'static [u8]>,
    /// A variable that was meant as a setting, perhaps.
    pub unknown_setting: Option<UnknownSetting>,
}

/// Memory of a sample in progress, behind its stack.
pub struct WorkArea {
    pub(crate) cache: LazyCache,
    pub(crate) memo: Memo,
    pub(crate) frames: [u64; LARGEST_MAX_DEPTH],
    /// For [`crate::config::Unwind::Verify`] only; untouched otherwise.
    pub(crate) full_memo: Memo,
    pub(crate) full_frames: [u64; LARGEST_MAX_DEPTH],
    pub(crate) vm_frames: [RawFrame; LARGEST_MAX_DEPTH],
    pub(crate) merged: [u64; LARGEST_MAX_DEPTH],
    pub(crate) pages: ForeignPages,
    pub(crate) written: WrittenStack,
    pub(crate) path: [u8; PATH_BYTES],
    pub(crate) texts: [u8; 8192],
}

impl WorkArea {
    /// Resets the area after a user that left it by a jump.
    pub(crate) fn forget_all(&mut self) {
        self.memo.forget();
        self.full_memo.forget();
        self.written.forget();
        self.cache.is_made = false;
    }

    /// The frames that were found, leaf first.
    pub(crate) fn captured(&self, captured: &Captured) -> &[u64] {
        let frames = match captured.is_merged {
            true => &self.merged,
            false => &self.frames,
        };
        frames.get(..captured.depth).unwrap_or(&[])
    }

    /// Takes the frames of our own code out of what was found.
    pub(crate) fn strip_own(&mut self, modules: &Modules, captured: &mut Captured) {
        let found = captured.depth;
        modules.strip_own(&mut self.frames, &mut captured.depth);
        if captured.depth < found {
            self.memo.invalidate_shown();
        }
    }

    /// Splits a stack for its record: the number of frames, from the root on, that it shares with the stack of the thread's
    /// sample `last`, and the other frames.
    /// `is_as_walked`: the frames are those that the walk found.
    pub(crate) fn delta_from_last(
        &self,
        captured: &Captured,
        is_as_walked: bool,
        key: WrittenKey,
        last: u64,
    ) -> (usize, &[u64]) {
        let frames = self.captured(captured);
        let found = FoundStack {
            frames,
            walk: captured.walk,
            known: if is_as_walked { captured.known } else { 0 },
            known_from: captured.known_from,
        };
        let shared = self.written.shared(&found, key, last);
        (shared, frames.get(..frames.len() - shared).unwrap_or(&[]))
    }

    /// The thread's sample `last`, whose frames [`Self::delta_from_last`] has split, is in the ring. `walk` found its frames; 0 if
    /// no walk found just those.
    pub(crate) fn note_written(
        &mut self,
        captured: &Captured,
        shared: usize,
        walk: u64,
        key: WrittenKey,
        last: u64,
    ) {
        let frames = match captured.is_merged {
            true => &self.merged,
            false => &self.frames,
        };
        let fresh = frames.get(..captured.depth.saturating_sub(shared));
        (self.written).remember(shared, fresh.unwrap_or(&[]), walk, key, last);
    }
}

/// The unwinder's cache, made in place at first use; all zero bytes are "not made yet".
pub(crate) struct LazyCache {
    is_made: bool,
    made_at: u32,
    cache: core::mem::MaybeUninit<RuleCache>,
}

impl LazyCache {
    /// A cache is made anew after this many modules: it tells them apart by numbers of 16 bits.
    const MODULES: u32 = 1 << 15;

    /// `examined` is the number of modules that have been examined.
    pub(crate) fn get_or_insert_with(
        &mut self,
        examined: u32,
        make: impl FnOnce() -> RuleCache,
    ) -> &mut RuleCache {
        if self.is_made && examined.wrapping_sub(self.made_at) > Self::MODULES {
            self.is_made = false;
            // SAFETY: written when it was made, and not dropped since.
            unsafe { self.cache.assume_init_drop() };
        }
        if !self.is_made {
            self.cache.write(make());
            self.is_made = true;
            self.made_at = examined;
        }
        // SAFETY: written above, or in an earlier call on the same area, which is never given back.
        unsafe { self.cache.assume_init_mut() }
    }
}

/// Stacks that were found twice.
pub(crate) struct Compared {
    pub known: AtomicU64,
    pub different: AtomicU64,
}

/// See the module.
pub struct Agent {
    pub(crate) switch: SwitchCell,
    pub(crate) areas: Pool<WorkArea>,
    pub(crate) modules: Modules,
    pub(crate) locking_code: LockingCode,
    pub(crate) live: LiveSamples,
    pub(crate) filter: BlockFilter,
    pub(crate) control: Control,
    pub(crate) threads: Threads,
    pub(crate) ticks: Ticks,
    pub(crate) selection: Selection,
    pub(crate) heaps: Heaps,
    pub(crate) definitions: Definitions,
    canary: ForkCanary,
    start: StaticRef<Start>,
    epoch: AtomicU32,
    pid: AtomicU32,
    forked_from: AtomicU32,
    seed: AtomicU64,
    /// Samples, and the bytes they stand for.
    lost_before: (AtomicU64, AtomicU64),
    pub(crate) compared: Compared,
    pub(crate) last_look: LastLook,
}

impl Agent {
    /// Off.
    pub const fn new(filter: BlockFilter) -> Self {
        Self {
            switch: SwitchCell::new(),
            areas: Pool::new(),
            modules: Modules::new(),
            locking_code: LockingCode::new(),
            live: LiveSamples::new(),
            filter,
            control: Control::new(),
            threads: Threads::new(),
            ticks: Ticks::new(),
            selection: Selection::new(),
            heaps: Heaps::new(),
            definitions: Definitions::new(),
            canary: ForkCanary::new(),
            start: StaticRef::new(),
            epoch: AtomicU32::new(1),
            pid: AtomicU32::new(0),
            forked_from: AtomicU32::new(0),
            seed: AtomicU64::new(0),
            lost_before: (AtomicU64::new(0), AtomicU64::new(0)),
            compared: Compared {
                known: AtomicU64::new(0),
                different: AtomicU64::new(0),
            },
            last_look: LastLook::new(),
        }
    }

    /// Switches on: from the library's constructor, or when it is attached. Returns what it was started with before.
    pub fn switch_on(&self, start: &'static Start) -> Option<&'static Start> {
        let random = process::random_u128() as u64;
        self.seed
            .store(start.config.seed.unwrap_or(random), Ordering::Relaxed);
        self.pid.store(process::pid(), Ordering::Relaxed);
        let before = self.start.get();
        self.start.set(Some(start));
        self.control.reset(self.first_interval());
        self.selection.clear();
        self.canary.arm();
        self.switch.set(Switch::On);
        before
    }

    /// Whether samples are taken, or will be with the first allocation.
    pub fn is_on(&self) -> bool {
        self.switch.get() == Switch::On
    }

    /// Samples run on the stack of the thread that takes them, not beside it.
    pub fn stay_on_threads_stacks(&self) {
        self.areas.stay();
    }

    /// The modules, for what the constructor and `dlclose` know about them.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Code that has locks which the start of a thread takes, to be told at start.
    pub fn locking_code(&self) -> &LockingCode {
        &self.locking_code
    }

    /// Grows by one in each forked child.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// The process that this state belongs to: in a child of vfork it is the parent.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(crate) fn seed(&self) -> Seed {
        Seed {
            process: self.seed.load(Ordering::Relaxed),
        }
    }

    /// The settings.
    pub fn config(&self) -> &'static Config {
        &self.started().config
    }

    /// The interval that a process begins with; `None` if it waits to be told.
    pub(crate) fn first_interval(&self) -> Option<Interval> {
        self.config().first_interval()
    }

    pub(crate) fn hooks(&self) -> &'static Hooks {
        &self.started().hooks
    }

    /// What it is doing.
    pub fn state(&self) -> Switch {
        self.switch.get()
    }

    fn started(&self) -> &'static Start {
        static NOT_STARTED: Start = Start {
            config: Config::OFF,
            hooks: Hooks {
                start_drain: |_| false,
                compress: |_, _| None,
                join_drain: |_| {},
                leave_drain: |_| {},
                on_thread_joined: || {},
                after_fork_in_child: || {},
                give_back_signal_stack: |_| {},
                end_ticks: || {},
                has_listener: || false,
                on_sampled: |_, _, _| {},
                on_heap_freed: |_| {},
                not_joined: |_, _| 0,
            },
            program: &[],
            next_allocator: &[],
            malloc_elsewhere: None,
            unknown_setting: None,
        };
        self.start.get().unwrap_or(&NOT_STARTED)
    }

    /// Makes the files of a profile. `Ok(None)`: another thread is at it, and takes long.
    pub(crate) fn try_to_begin(
        &self,
        area: &mut WorkArea,
    ) -> Result<Option<&'static Recording>, CannotRecord> {
        if self.switch.get() != Switch::On || os::is_filtered() {
            // Detached since the caller saw it on; or nobody may make files any more.
            return Ok(None);
        }
        let start = self.started();
        let forked_from = self.forked_from.load(Ordering::Relaxed);
        // In a forked child, in which this goes on, it may be off.
        let is_wanted = || self.switch.get() == Switch::On;
        let beginning = Beginning {
            config: &start.config,
            seed: self.seed().process,
            program: start.program,
            next_allocator: start.next_allocator,
            malloc_elsewhere: start.malloc_elsewhere,
            unknown_setting: start.unknown_setting.as_ref(),
            forked_from: (forked_from != 0).then_some(forked_from),
            definitions: &self.definitions,
            buffer: &mut area.texts,
        };
        let begun = recording::begin(beginning, is_wanted)?;
        if let Some(recording) = begun {
            self.tell_what_was_before(recording);
            self.tell_of_bridges(recording);
            self.take_waiting_request(recording);
        }
        Ok(begun)
    }

    /// As [`Self::try_to_begin`], but a failure is told in one line and switches the agent off.
    pub(crate) fn begin_recording(&self, area: &mut WorkArea) -> Option<&'static Recording> {
        match self.try_to_begin(area) {
            Ok(recording) => recording,
            Err(error) => {
                if self.switch.change(Switch::On, Switch::Failed) {
                    let reason = error.reason.as_bytes();
                    let output = self.config().output.as_bytes();
                    complain(&[
                        b"allocsample: ",
                        output,
                        b": ",
                        reason,
                        b"; the program runs without a profile\n",
                    ]);
                }
                None
            }
        }
    }

    /// Whether a malloc stands before ours.
    pub(crate) fn has_malloc_elsewhere(&self) -> bool {
        self.started().malloc_elsewhere.is_some()
    }

    fn tell_what_was_before(&self, recording: &Recording) {
        self.write_late_definitions(recording);
        self.tell_intervals_of_heaps();
        let force = self.control.force();
        if force.index != 0 {
            // Of the profile before this one: an exec has failed.
            self.write_interval(recording, force.interval, Some(force.index));
        }
        self.write_ended_before(recording);
        self.tell_ticks(recording);
        self.tell_lost_before(recording);
    }

    /// Counts what was due before the recording began, once.
    pub(crate) fn tell_lost_before(&self, recording: &Recording) {
        if self.lost_before.0.load(Ordering::Relaxed) == 0 {
            return;
        }
        // A handler could end the recording in between.
        let _held = Held::unless_filtered();
        let events = self.lost_before.0.swap(0, Ordering::Relaxed);
        let bytes = self.lost_before.1.swap(0, Ordering::Relaxed);
        match recording.is_current() {
            true => recording.count_lost(LostReason::WriteFailed, events, bytes),
            false => {
                self.lost_before.0.fetch_add(events, Ordering::Relaxed);
                self.lost_before.1.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Notes every bridge that found its runtime and did not join it.
    fn tell_of_bridges(&self, recording: &Recording) {
        if self.config().bridges == Bridges::None {
            recording.note(Note::NotJoined, b"all: --runtime none");
        }
        const MOST: usize = 16;
        for index in 0..MOST {
            let mut detail = [0; 128];
            let length = (self.hooks().not_joined)(index, &mut detail);
            match detail.get(..length) {
                None | Some([]) => break,
                Some(detail) => recording.note(Note::NotJoined, detail),
            }
        }
    }

    /// Counts a sample that is due while there is nowhere to say so.
    pub(crate) fn count_lost_before_recording(&self, bytes: u64) {
        self.lost_before.0.fetch_add(1, Ordering::Relaxed);
        self.lost_before.1.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes no more samples: their working memory could not be had. What was recorded stays.
    pub fn fail_for_lack_of_memory(&self) {
        if self.switch.change(Switch::On, Switch::Failed)
            && let Some(recording) = recording::current()
        {
            recording.note(Note::SwitchedOff, b"no memory for the agent");
        }
    }

    /// Wakes the drain thread, or starts it if this is a good moment.
    pub(crate) fn set_drain_to_work(&self, recording: &Recording, may_hold_loader_locks: bool) {
        if !recording.is_current() {
            return;
        }
        match recording.drain_state() {
            DrainState::Running => recording.nudge_drain(),
            DrainState::None if !may_hold_loader_locks && recording.claim_drain_start() => {
                self.start_drain(recording)
            }
            _ => {}
        }
    }

    pub(crate) fn start_drain(&self, recording: &Recording) {
        if !(self.hooks().start_drain)(recording) {
            recording.set_drain_state(DrainState::Failed);
            recording.note(Note::NoDrainThread, b"the system refused a thread");
            recording.let_go();
        }
    }

    /// Finds out, at the price of a load, whether this process was forked without libc's help.
    pub(crate) fn notice_fork(&self) {
        if self.canary.is_forked_child() {
            self.restart_in_child();
        }
    }

    /// The same on a thread that may have been in a slow path when a signal handler forked.
    pub(crate) fn notice_fork_on(&self, thread: &ShimThread) {
        if self.canary.is_forked_child() {
            let is_within = thread.is_muted();
            self.restart_in_child();
            match is_within {
                true => thread.drift(),
                false => thread.begin_anew(),
            }
        }
    }

    /// The file so far is to be copied. In a signal handler; `errno` may change.
    pub fn ask_for_snapshot(&self) {
        // In a child that has not been noticed the recording is its parent's.
        if self.canary.is_forked_child() || self.switch.get() != Switch::On {
            return;
        }
        if let Some(recording) = recording::current() {
            recording.ask_for_file_work(request::SNAPSHOT, 0);
        }
    }

    /// The profile so far is complete: threads join anew.
    pub(crate) fn epoch_ended(&self) {
        self.next_epoch();
        self.live.clear(&self.filter);
        self.heaps.forget_samples(&self.filter);
    }

    fn next_epoch(&self) {
        let last = self.epoch.fetch_add(1, Ordering::Relaxed);
        self.modules.after_epoch(last.wrapping_add(1));
    }

    /// Makes the state that of a new process. Only while it has a single thread.
    pub(crate) fn restart_in_child(&self) {
        let _held = Held::unless_filtered();
        recording::leave_rings();
        let parent = self.pid();
        let pid = match os::is_filtered() {
            // It has no profile, and nobody asks.
            true => 0,
            false => process::pid(),
        };
        self.canary.arm();
        self.pid.store(pid, Ordering::Relaxed);
        self.next_epoch();
        self.seed
            .store(self.seed().child(pid).process, Ordering::Relaxed);
        // A parent that has not sampled yet is no profile to point at.
        let has_profile = recording::current().is_some();
        self.forked_from
            .store(if has_profile { parent } else { 0 }, Ordering::Relaxed);
        recording::forget();
        // The parent's.
        self.lost_before.0.store(0, Ordering::Relaxed);
        self.lost_before.1.store(0, Ordering::Relaxed);
        self.areas.forget();
        self.modules.restart();
        self.threads.clear();
        self.ticks.forget();
        self.live.clear(&self.filter);
        self.heaps.restart(&self.filter);
        self.control.reset(self.first_interval());
        self.selection.clear();
        (self.hooks().after_fork_in_child)();
        // Behind a filter of system calls no file can be made.
        let has_profile = self.config().follow_children && !os::is_filtered();
        if !has_profile && self.switch.get() == Switch::On {
            self.switch.set(Switch::Off);
        }
    }
}
