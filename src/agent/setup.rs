//! The settings, and the functions that the agent gets from the library around it.

use allocsample_record::{Sampling, ValueRecord};
use allocsample_sampling::{GapLaw, Interval};

use crate::config::{Config, UnknownSetting};
use crate::os::leaked::StaticRef;
use crate::recording::Recording;
use crate::shim::KeptMapping;
use crate::spill;

/// Functions of the library around the agent, which it cannot implement itself.
pub struct Hooks {
    /// Starts the drain thread of a recording, which it lets go of at its end; returns whether it could. Called outside of
    /// libc's locks.
    pub start_drain: fn(&Recording) -> bool,
    /// Compresses the first slice into the second as one LZ4 block; its length. Called on a muted thread.
    pub compress: spill::Compress,
    /// Waits until the recording's drain thread is gone for the kernel too.
    pub join_drain: fn(&Recording),
    /// Detaches the recording's drain thread: nobody will join it.
    pub leave_drain: fn(&Recording),
    /// A thread has taken its first slow path: its end is to be reported by [`crate::Agent::on_thread_end`].
    pub on_thread_joined: fn(),
    /// Makes our own allocator usable in a forked child.
    pub after_fork_in_child: fn(),
    /// A thread that has ended gives back its stack for signals: see [`crate::Agent::on_thread_start`].
    pub give_back_signal_stack: fn(u64),
    /// Stops time samples for good: a filter of system calls is about to be installed.
    pub end_ticks: fn(),
    /// Whether a garbage collector may be there that stops threads by signals, wherever they are, and takes all from their stack
    /// pointers up to the bases of their stacks for these stacks.
    pub may_stop_threads: fn() -> bool,
    /// Whether there is a listener for samples. The weight of a sample is only computed for listeners.
    pub has_listener: fn() -> bool,
    /// A sample was recorded: its address, its size, and the bytes that it stands for. On the program's stack.
    pub on_sampled: fn(u64, u64, u64),
    /// A sampled block of a heap other than malloc's was freed.
    pub on_heap_freed: fn(u64),
    /// A stack has run through a module that starts at this address for the first time. On the drain thread. False: call again
    /// later.
    pub on_module: fn(u64) -> bool,
    /// Whether a bridge waits for a module with this path, so that [`Self::on_module`] should be called soon. On the program's thread.
    pub awaits_module: fn(&[u8]) -> bool,
    /// The mapping with this index that was made before the first recording, or by the process that this one was forked from.
    pub kept_mapping: fn(usize) -> Option<KeptMapping>,
    /// What allocators of the process count themselves, as readings of their heaps. On the drain thread.
    pub own_counts: fn(&mut dyn FnMut(ValueRecord)),
    /// Writes the detail of a [`NotJoined`](allocsample_record::Note::NotJoined) note for the declined bridge with this index.
    /// Returns its length in bytes, or 0 if there are no more.
    pub not_joined: fn(usize, &mut [u8]) -> usize,
}

impl Hooks {
    /// Those of a library that is not there: they do nothing.
    pub const NONE: Self = Self {
        start_drain: |_| false,
        compress: |_, _| None,
        join_drain: |_| {},
        leave_drain: |_| {},
        on_thread_joined: || {},
        after_fork_in_child: || {},
        give_back_signal_stack: |_| {},
        end_ticks: || {},
        may_stop_threads: || false,
        has_listener: || false,
        on_sampled: |_, _, _| {},
        on_heap_freed: |_| {},
        on_module: |_| true,
        awaits_module: |_| false,
        kept_mapping: |_| None,
        own_counts: |_| {},
        not_joined: |_, _| 0,
    };
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

/// The settings that the agent was last started with. Every part that reads settings has its own copy of this reference; all
/// copies are set before the agent is switched on.
pub(crate) struct Setup(StaticRef<Start>);

impl Setup {
    /// Not started: everything is off.
    pub const fn new() -> Self {
        Self(StaticRef::new())
    }

    /// Replaces the settings.
    pub fn set(&self, start: &'static Start) {
        self.0.set(Some(start));
    }

    /// The settings that were set, if any.
    pub fn get(&self) -> Option<&'static Start> {
        self.0.get()
    }

    /// The settings, or those of an agent that is off.
    pub fn started(&self) -> &'static Start {
        static NOT_STARTED: Start = Start {
            config: Config::OFF,
            hooks: Hooks::NONE,
            program: &[],
            next_allocator: &[],
            malloc_elsewhere: None,
            unknown_setting: None,
        };
        self.0.get().unwrap_or(&NOT_STARTED)
    }

    /// The user's settings.
    pub fn config(&self) -> &'static Config {
        &self.started().config
    }

    /// See [`Hooks`].
    pub fn hooks(&self) -> &'static Hooks {
        &self.started().hooks
    }

    /// The interval that a process begins with; `None` if it waits until sampling is started.
    pub fn first_interval(&self) -> Option<Interval> {
        self.config().first_interval()
    }

    /// How gaps between sample points are drawn.
    pub fn law(&self) -> GapLaw {
        match self.config().sampling {
            Sampling::Poisson => GapLaw::Poisson,
            Sampling::Periodic => GapLaw::Periodic,
        }
    }

    /// Whether a malloc stands before ours.
    pub fn has_malloc_elsewhere(&self) -> bool {
        self.started().malloc_elsewhere.is_some()
    }
}
