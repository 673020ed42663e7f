//! The agent: all that the threads of the program share.
//!
//! Each part owns its state and knows none of the others. The entry points (`malloc.rs`, `free.rs`, `lifecycle.rs`, `ticks.rs`,
//! `requests.rs`, `hooks/`) are methods of [`Agent`] that join the parts.

use allocsample_record::{Note, ValueRecord};
use allocsample_ring::request;
use allocsample_sampling::Seed;

use crate::accounting::Accounting;
use crate::accounting::thread::ShimThread;
use crate::blocks::SampledBlocks;
use crate::capture::{Capture, WorkArea};
use crate::config::{Config, Inlining};
use crate::hooks::Heaps;
use crate::identity::Identity;
use crate::live::BlockFilter;
use crate::mappings::Mappings;
use crate::os::file::complain;
use crate::os::signals::Held;
use crate::os::{self, process};
use crate::pages::Pages;
use crate::publishing::Publisher;
use crate::recording::{self, Beginning, CannotRecord, Recording};
use crate::setup::{Setup, Start};
use crate::stack::locking::LockingCode;
use crate::stack::modules::Modules;
use crate::switch::{Switch, SwitchCell};
use crate::ticks::Ticks;
use crate::waiting::LastLook;

/// See the module.
pub struct Agent {
    pub(crate) switch: SwitchCell,
    pub(crate) setup: Setup,
    pub(crate) identity: Identity,
    pub(crate) accounting: Accounting,
    pub(crate) capture: Capture,
    pub(crate) publisher: Publisher,
    pub(crate) blocks: SampledBlocks,
    pub(crate) heaps: Heaps,
    pub(crate) ticks: Ticks,
    pub(crate) mappings: Mappings,
    pub(crate) pages: Pages,
    pub(crate) last_look: LastLook,
}

impl Agent {
    /// Off.
    pub const fn new(filter: BlockFilter) -> Self {
        Self {
            switch: SwitchCell::new(),
            setup: Setup::new(),
            identity: Identity::new(),
            accounting: Accounting::new(),
            capture: Capture::new(),
            publisher: Publisher::new(),
            blocks: SampledBlocks::new(filter),
            heaps: Heaps::new(),
            ticks: Ticks::new(),
            mappings: Mappings::new(),
            pages: Pages::new(),
            last_look: LastLook::new(),
        }
    }

    /// Switches on: from the library's constructor, or when it is attached. Returns what it was started with before.
    pub fn switch_on(&self, start: &'static Start) -> Option<&'static Start> {
        let before = self.setup.get();
        for setup in [&self.setup, &self.capture.setup, &self.publisher.setup] {
            setup.set(start);
        }
        self.accounting.begin(self.setup.first_interval());
        self.identity.begin(start.config.seed);
        self.switch.set(Switch::On);
        before
    }

    /// Whether samples are taken, or will be with the first allocation.
    pub fn is_on(&self) -> bool {
        self.switch.get() == Switch::On
    }

    /// The agent's state.
    pub fn state(&self) -> Switch {
        self.switch.get()
    }

    /// The settings.
    pub fn config(&self) -> &'static Config {
        self.setup.config()
    }

    /// Samples run on the stack of the thread that takes them, not beside it.
    pub fn stay_on_threads_stacks(&self) {
        self.capture.stay_on_threads_stacks();
    }

    /// See [`Hooks::on_module`](crate::Hooks).
    pub fn on_module(&self, start: u64) -> bool {
        (self.setup.hooks().on_module)(start)
    }

    /// See [`Hooks::own_counts`](crate::Hooks).
    pub fn own_counts(&self, write: &mut dyn FnMut(ValueRecord)) {
        (self.setup.hooks().own_counts)(write);
    }

    /// The modules, for what the constructor and `dlclose` know about them.
    pub fn modules(&self) -> &Modules {
        &self.capture.modules
    }

    /// Code that takes locks which the start of a thread takes too; the constructor fills it in.
    pub fn locking_code(&self) -> &LockingCode {
        &self.capture.locking_code
    }

    /// Where records that need no other part of the agent go.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// The number of the profile, see [`Identity::epoch`].
    pub(crate) fn epoch(&self) -> u32 {
        self.identity.epoch()
    }

    pub(crate) fn seed(&self) -> Seed {
        self.identity.seed()
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
        let start = self.setup.started();
        // In a forked child, in which this goes on, it may be off.
        let is_wanted = || self.switch.get() == Switch::On;
        let beginning = Beginning {
            config: &start.config,
            seed: self.seed().process,
            program: start.program,
            next_allocator: start.next_allocator,
            malloc_elsewhere: start.malloc_elsewhere,
            unknown_setting: start.unknown_setting.as_ref(),
            forked_from: self.identity.forked_from(),
            definitions: self.publisher.definitions(),
            buffer: &mut area.texts,
        };
        let begun = recording::begin(beginning, is_wanted)?;
        if let Some(recording) = begun {
            self.write_first_records(recording);
            self.write_kept_mappings(area, recording);
            self.take_waiting_request(recording);
        }
        Ok(begun)
    }

    /// As [`Self::try_to_begin`], but a failure is reported in one line and switches the agent off.
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

    /// Writes what happened before the recording began.
    fn write_first_records(&self, recording: &Recording) {
        self.publisher.write_late_definitions(recording);
        for heap in self.heaps.all() {
            self.publisher.write_interval_of(heap, self.seed());
        }
        let force = self.accounting.control.force();
        if force.index != 0 {
            // Of the profile before this one: an exec has failed.
            let index = Some(force.index);
            (self.publisher).write_interval(recording, force.interval, index, self.seed());
        }
        self.write_ended_before(recording);
        self.ticks
            .begin_recording(recording, self.config().tick_period_ns);
        self.mappings.begin_recording(recording);
        self.pages.begin_recording(recording);
        self.publisher.write_lost_before(recording);
        if self.config().inlining == Inlining::Off {
            recording.note(Note::NotInlined, b"");
        }
        self.publisher.note_bridges(recording);
    }

    /// Notes the bridges that have declined since the recording began.
    pub fn note_late_bridges(&self) {
        if let Some(recording) = recording::current() {
            self.publisher.note_late_bridges(recording);
        }
    }

    /// Takes no more samples: there is no memory to work in. What was recorded stays.
    pub fn fail_for_lack_of_memory(&self) {
        if self.switch.change(Switch::On, Switch::Failed)
            && let Some(recording) = recording::current()
        {
            recording.note(Note::SwitchedOff, b"no memory for the agent");
        }
    }

    /// Finds out, at the price of a load, whether this process was forked without libc's help.
    pub(crate) fn notice_fork(&self) {
        if self.identity.is_forked_child() {
            self.restart_in_child();
        }
    }

    /// The same on a thread that may have been in a slow path when a signal handler forked.
    pub fn notice_fork_on(&self, thread: &ShimThread) {
        if self.identity.is_forked_child() {
            let is_within = thread.is_muted();
            self.restart_in_child();
            match is_within {
                true => thread.drift(),
                false => thread.begin_anew(),
            }
        }
    }

    /// Asks for a copy of the file so far. In a signal handler; `errno` may change.
    pub fn ask_for_snapshot(&self) {
        // In a child that has not been noticed the recording is its parent's.
        if self.identity.is_forked_child() || self.switch.get() != Switch::On {
            return;
        }
        if let Some(recording) = recording::current() {
            recording.ask_for_file_work(request::SNAPSHOT, 0);
        }
    }

    /// The profile so far is complete: threads join again.
    pub(crate) fn epoch_ended(&self) {
        self.next_epoch();
        self.forget_blocks();
        self.heaps.forget_counts();
    }

    fn next_epoch(&self) {
        self.capture.after_epoch(self.identity.next_epoch());
    }

    fn forget_blocks(&self) {
        self.blocks.of_malloc().clear();
        for heap in self.heaps.all() {
            self.blocks.of(heap).clear();
        }
        self.pages.clear();
    }

    /// Makes the state that of a new process. Only while it has a single thread.
    pub(crate) fn restart_in_child(&self) {
        let _held = Held::unless_filtered();
        recording::leave_rings();
        // Behind a filter nobody can be asked, and the child has no profile.
        let pid = if os::is_filtered() { 0 } else { process::pid() };
        let has_parent_profile = recording::current().is_some();
        self.identity.become_child(pid, has_parent_profile);
        self.next_epoch();
        recording::forget();
        self.publisher.restart();
        self.capture.restart();
        self.ticks.forget();
        self.mappings.restart();
        self.pages.forget();
        self.heaps.restart();
        self.forget_blocks();
        self.accounting.restart(self.setup.first_interval());
        (self.setup.hooks().after_fork_in_child)();
        // Behind a filter of system calls no file can be made.
        let has_profile = self.config().follow_children && !os::is_filtered();
        if !has_profile && self.switch.get() == Switch::On {
            self.switch.set(Switch::Off);
        }
    }
}
