//! The profile's parts.

use crate::mappings::MappingCall;
use crate::pages::Pages;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;

use regex::Regex;

use crate::backing::Backing;
use crate::events::Events;
use crate::folding::Runtimes;
use crate::reach::Reach;
use crate::samples::Samples;
use crate::stacks::StackTable;
use crate::vm::{Outcome, VirtualMachines};
use allocsample_record::{
    ExitHow, FIGURES, Fate, Figure, HeapId, Inspected, LOST_REASONS, LostReason, MemoryMap,
    ModuleId, Note, SampleFlags, SampleId, Sampling, StackId, SymbolTable, ThreadId,
};
use allocsample_sampling::{Estimate, GapLaw, Interval, SamplePoints, Weight};

/// Everything that is known of one process. All times are CLOCK_MONOTONIC in nanoseconds unless named otherwise.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Profile {
    /// The process.
    pub process: ProcessInfo,
    /// The sampling intervals, each once; [`Sample::interval`] is an index.
    pub intervals: Vec<IntervalInfo>,
    /// Which interval was in force since when, malloc's and those that virtual machines set for heaps of their own, in the
    /// order of time. One that was in force again comes again.
    pub interval_history: Vec<IntervalInfo>,
    /// Modules by number less one.
    pub modules: Vec<Module>,
    /// Threads by our number.
    pub threads: BTreeMap<ThreadId, Thread>,
    /// All stacks.
    pub stacks: StackTable,
    /// Names of locations; empty until the profile is symbolised.
    pub symbols: SymbolTable,
    /// All samples, in the order in which they were recorded.
    pub samples: Samples,
    /// Blocks of malloc's that are the memory of a runtime's heap; empty until they were looked for.
    pub backing: Backing,
    /// Sampled pages of the process's memory: see [`Profile::of_pages`].
    pub pages: Pages,
    /// All samples of time, in the order in which they were recorded.
    pub ticks: Vec<Tick>,
    /// Hashes of the contents of samples, by their index; of those whose machine gave one.
    pub content_hashes: HashMap<usize, u64>,
    /// Where samples were freed, in the order of their indices, which come with them: of some, which the agent chose without
    /// regard to what they are.
    pub free_stacks: Vec<(u32, StackId)>,
    /// What could not be kept.
    pub lost: Lost,
    /// What the agent cost.
    pub own_cost: OwnCost,
    /// What a reader must know.
    pub notes: Vec<(Note, String)>,
    /// Resident set: time, bytes.
    pub resident_bytes: Vec<(u64, u64)>,
    /// The process's memory by the kernel's account, in the order of time; some readings have the mappings.
    pub memory: Vec<MemoryMap>,
    /// Calls of mmap and its kin, in the order of time: all that the agent saw and had room for.
    pub mappings: Vec<MappingCall>,
    /// What the files of the modules say about themselves; empty until the profile is symbolised.
    pub inspected: Vec<Inspected>,
    /// Children that were forked, and other events that are a few numbers.
    pub events: Events,
    /// How the process ended, if it could say so.
    pub exit: Option<Exit>,
    /// Whether the process writes it still. Who opens the profile may ask [`Profile::is_being_written`].
    pub is_running: bool,
    /// Which part of the recording the file is.
    pub part: Part,
    /// How the file was read.
    pub recovery: Recovery,
    /// What virtual machines told.
    pub vm: VirtualMachines,
    /// What its intervals can have hidden.
    pub reach: Reach,
    /// How readers want allocations charged.
    pub charging: Charging,
    /// Which native code belongs to the runtimes of languages; empty until it was looked for.
    pub runtimes: Runtimes,
    /// What a reader has left out; `None` if it is the whole profile.
    pub narrowed: Option<Narrowed>,
}

/// The part of a profile's time that is left, see [`Profile::retain`], [`Profile::begin_at`] and [`Profile::end_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Narrowed {
    /// Nothing was allocated before. CLOCK_MONOTONIC.
    pub from_ns: u64,
    /// Nothing happened later. CLOCK_MONOTONIC.
    pub until_ns: u64,
}

impl Default for Narrowed {
    fn default() -> Self {
        Self {
            from_ns: 0,
            until_ns: u64::MAX,
        }
    }
}

/// Which functions besides the allocator are passed over when an allocation is charged to a function.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Charging {
    /// Whether wrappers of the allocator are passed over: those known by name, and those that the samples show.
    pub skips_wrappers: bool,
    /// Functions whose callers the user wants to be charged.
    pub allocators: Option<Regex>,
    /// Functions and modules that are passed over, where that is known already: a part of a profile is charged like the whole.
    pub known: Option<Vec<(String, String)>>,
}

impl Default for Charging {
    fn default() -> Self {
        Self {
            skips_wrappers: true,
            allocators: None,
            known: None,
        }
    }
}

/// The process.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its pid.
    pub pid: u32,
    /// Its parent's.
    pub parent_pid: u32,
    /// Path of the program.
    pub executable: String,
    /// Its arguments, with the program's name first.
    pub command_line: Vec<String>,
    /// When recording began.
    pub start_ns: u64,
    /// The same moment by CLOCK_REALTIME.
    pub start_wall_ns: u64,
    /// The last moment that is in the profile.
    pub end_ns: u64,
}

/// Which part of a recording a file is. One that was never rotated is the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its number less one: 0 begins where recording did.
    pub before: u32,
    /// When recording began, if this is not where: [`ProcessInfo::start_ns`] is the file's own.
    pub recording_start_ns: Option<u64>,
    /// Whether the recording goes on in another file.
    pub is_continued: bool,
}

/// A sampling interval.
#[derive(Clone, Copy, Debug)]
pub struct IntervalInfo {
    /// Since when.
    pub time_ns: u64,
    /// The law of the gaps.
    pub sampling: Sampling,
    /// Mean bytes between two sample points; 0 if there is none.
    pub interval_bytes: u64,
    /// Seed of the process.
    pub seed: u64,
}

impl IntervalInfo {
    /// The weights of samples taken under it; `None` if it is none.
    pub fn weight(&self) -> Option<Weight> {
        let law = match self.sampling {
            Sampling::Poisson => GapLaw::Poisson,
            Sampling::Periodic => GapLaw::Periodic,
        };
        Some(Weight::new(law, Interval::new(self.interval_bytes)?))
    }
}

/// What the agent told of itself. All zero in profiles of before it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnCost {
    /// By the number of the figure.
    pub(crate) figures: [u64; FIGURES],
}

impl OwnCost {
    /// One of the figures, in its own unit.
    pub fn of(&self, figure: Figure) -> u64 {
        self.figures.get(figure as usize).copied().unwrap_or(0)
    }

    /// Mean time of a sample on its thread, in nanoseconds; `None` if no time was taken.
    pub fn sample_ns(&self) -> Option<f64> {
        self.mean(Figure::TimedSamples, Figure::TimedSamplesNs)
    }

    /// Mean time of a sampled block's free on its thread, in nanoseconds.
    pub fn free_ns(&self) -> Option<f64> {
        self.mean(Figure::TimedFrees, Figure::TimedFreesNs)
    }

    fn mean(&self, number: Figure, time: Figure) -> Option<f64> {
        let number = self.of(number);
        (number > 0).then(|| self.of(time) as f64 / number as f64)
    }
}

/// An executable or shared object.
#[derive(Clone, Debug)]
pub struct Module {
    /// As the loader knew it.
    pub path: String,
    /// Empty if it has none.
    pub build_id: Vec<u8>,
    /// Where it was mapped.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Address in memory minus address in its program headers.
    pub bias: u64,
}

impl Module {
    /// The part of the path behind its last slash.
    pub fn name(&self) -> &str {
        match self.path.rsplit('/').next() {
            Some("linux-vdso.so.1") => "[vdso]",
            Some(name) if !name.is_empty() => name,
            _ => "[unknown]",
        }
    }
}

/// A thread.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// The kernel's number.
    pub tid: u32,
    /// Its name when it was first seen.
    pub name: String,
    /// When it was first seen.
    pub start_ns: u64,
    /// When it ended, if it did.
    pub end_ns: Option<u64>,
    /// Bytes that went through its counter: exact if it ended or the process did, otherwise up to its last sample.
    pub exact_bytes: u64,
    /// Bytes that were allocated while it was muted.
    pub muted_bytes: u64,
}

/// One sampled allocation, as [`Samples`] hold it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Its identity.
    pub id: SampleId,
    /// When.
    pub time_ns: u64,
    /// Where the block was.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// When its end was seen; see [`Sample::freed`].
    pub freed_ns: Option<NonZeroU64>,
    /// Who allocated it.
    pub thread: ThreadId,
    /// Sample points inside it.
    pub points: u32,
    /// Its stack.
    pub stack: StackId,
    /// Who freed it, if somebody did.
    pub freed_by: ThreadId,
    /// Number of its type, 0 if it is not known.
    pub type_id: u32,
    /// From which heap.
    pub heap: HeapId,
    /// Facts about it.
    pub flags: SampleFlags,
    /// Index into [`Profile::intervals`].
    pub interval: u16,
    /// What the first collection said of it; `None` in a heap without a collector, or before its first word.
    pub first_fate: Option<Fate>,
}

impl Sample {
    /// Whether it was alive at the end of the profile. One that was not tracked is not counted.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.freed_ns.is_none() && !self.flags.contains(SampleFlags::UNTRACKED)
    }

    /// Whether it was alive at this CLOCK_MONOTONIC time. At the time of a free a block is dead.
    #[inline]
    pub fn is_live_at(&self, time_ns: u64) -> bool {
        self.time_ns <= time_ns
            && self
                .freed_ns
                .is_none_or(|freed_ns| freed_ns.get() > time_ns)
            && !self.flags.contains(SampleFlags::UNTRACKED)
    }

    /// Whether it was taken before the file began: it counts among what is live, and not among what was allocated.
    #[inline]
    pub fn is_carried(&self) -> bool {
        self.flags.contains(SampleFlags::CARRIED)
    }

    /// Its end, if it was seen.
    #[inline]
    pub fn freed(&self) -> Option<Freed> {
        Some(Freed {
            time_ns: self.freed_ns?.get(),
            thread: self.freed_by,
        })
    }

    /// Notes its end. (The clock began with the machine: nothing happens at 0.)
    pub fn set_freed(&mut self, freed: Freed) {
        self.freed_ns = NonZeroU64::new(freed.time_ns.max(1));
        self.freed_by = freed.thread;
    }

    /// What a collector said of it; `None` in a heap without one, or before its first word.
    #[inline]
    pub fn outcome(&self) -> Option<Outcome> {
        Some(Outcome {
            first: self.first_fate?,
            type_id: self.type_id,
        })
    }
}

/// A thread that was found at work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tick {
    /// When.
    pub time_ns: u64,
    /// Time of a processor that it stands for.
    pub cpu_ns: u64,
    /// Who.
    pub thread: ThreadId,
    /// Where.
    pub stack: StackId,
    /// Facts about the stack.
    pub flags: SampleFlags,
}

/// The end of a sampled block.
#[derive(Clone, Copy, Debug)]
pub struct Freed {
    /// When.
    pub time_ns: u64,
    /// By whom; 0 for a thread that never took a sample.
    pub thread: ThreadId,
}

/// Events and bytes lost, for each [`LostReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost(pub [(u64, u64); LOST_REASONS]);

impl Lost {
    /// Events and bytes lost for one reason.
    pub fn of(&self, reason: LostReason) -> (u64, u64) {
        self.0.get(reason as usize).copied().unwrap_or_default()
    }

    /// Samples that are missing, with the bytes they stood for.
    pub fn samples(&self) -> (u64, u64) {
        LostReason::ALL
            .into_iter()
            .filter(|reason| reason.is_sample_missing())
            .map(|reason| self.of(reason))
            .fold((0, 0), |sum: (u64, u64), lost| {
                (sum.0.saturating_add(lost.0), sum.1.saturating_add(lost.1))
            })
    }
}

/// How the process left.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    /// When.
    pub time_ns: u64,
    /// By which door.
    pub how: ExitHow,
    /// With which status.
    pub status: Option<i32>,
}

impl Exit {
    /// In words.
    pub fn describe(&self) -> String {
        let how = match self.how {
            ExitHow::Exit => "exit",
            ExitHow::ImmediateExit => "_exit",
            ExitHow::QuickExit => "quick_exit",
            ExitHow::Abort => "abort",
            ExitHow::Exec => "exec",
            ExitHow::LastThread => "end of the last thread",
            ExitHow::Detached => "detach: the program went on",
        };
        match self.status {
            Some(status) => format!("{how} ({status})"),
            None => how.to_owned(),
        }
    }
}

/// What is wrong with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The file ends within it: what a killed writer leaves.
    CutShort,
    /// Its first bytes are not a chunk's.
    NoChunk,
    /// Its bytes are not those that were written.
    BadChecksum,
    /// It makes no sense.
    Malformed,
    /// What it expands to is out of proportion to the file.
    TooLarge,
}

/// Where reading stopped, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Why.
    pub damage: Damage,
    /// Number of the chunk, from 1; those before it are used.
    pub chunk: u32,
    /// Its offset in the file, in bytes.
    pub offset: u64,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.damage {
            Damage::CutShort => "is cut short",
            Damage::NoChunk => "is not a chunk",
            Damage::BadChecksum => "has a bad checksum",
            Damage::Malformed => "is malformed",
            Damage::TooLarge => {
                "needs more memory than a profile of this size may take without --no-limits"
            }
        };
        let Self { chunk, offset, .. } = self;
        write!(f, "chunk {chunk} {what} (offset {offset})")?;
        match chunk - 1 {
            0 => write!(f, ", and none is before it"),
            before => write!(f, "; the {before} before it are used"),
        }
    }
}

/// What had to be done to read the profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Records that were found in the ring, not in the file.
    pub ring_records: u64,
    /// Whether a ring lies beside the file: the process was killed, or is running.
    pub ring_found: bool,
    /// Why no ring could be read, if one is there.
    pub ring_error: Option<String>,
    /// Records that were being written when the process died.
    pub unfinished_records: u64,
    /// Why reading stopped before the end of the file.
    pub stopped: Option<Stopped>,
    /// Malformed records that were left out.
    pub malformed_records: u64,
}

impl Profile {
    /// Whether the process ended in an orderly way, or its recording goes on elsewhere, and nothing of the file is missing.
    pub fn is_complete(&self) -> bool {
        let is_ended = self.exit.is_some() || self.part.is_continued;
        is_ended && self.recovery.stopped.is_none() && self.recovery.ring_error.is_none()
    }

    /// The signal that killed the process, if somebody saw that.
    pub fn killed_by(&self) -> Option<&str> {
        let mut notes = self.notes.iter();
        let killed = notes.find(|(note, _)| *note == Note::Killed);
        killed.map(|(_, signal)| signal.as_str())
    }

    /// Where the sample with this index was freed, if the agent looked.
    pub fn free_stack(&self, index: usize) -> Option<StackId> {
        let index = u32::try_from(index).ok()?;
        let stacks = &self.free_stacks;
        let place = stacks.binary_search_by_key(&index, |(index, _)| *index);
        stacks.get(place.ok()?).map(|(_, stack)| *stack)
    }

    /// The first interval at which samples were taken, which is the only one unless it was changed; 0 if there is none.
    pub fn interval_bytes(&self) -> u64 {
        let mut intervals = self.intervals.iter().map(|it| it.interval_bytes);
        intervals.find(|&bytes| bytes != 0).unwrap_or(0)
    }

    /// The shortest and the longest interval; 0 and 0 if there is none.
    pub fn interval_range_bytes(&self) -> (u64, u64) {
        let intervals = self.intervals.iter().map(|it| it.interval_bytes);
        let known = intervals.filter(|&bytes| bytes != 0);
        (known.clone().min().unwrap_or(0), known.max().unwrap_or(0))
    }

    /// Whether estimates have no standard error.
    pub fn is_periodic(&self) -> bool {
        self.intervals
            .iter()
            .any(|interval| interval.sampling == Sampling::Periodic)
    }

    /// The weights of samples taken under a sample's interval.
    pub fn weight(&self, sample: &Sample) -> Option<Weight> {
        self.intervals.get(usize::from(sample.interval))?.weight()
    }

    /// Bytes that a sample stands for.
    pub fn bytes(&self, sample: &Sample) -> Estimate {
        let points = SamplePoints(u64::from(sample.points));
        self.weight(sample)
            .map_or_else(Estimate::default, |weight| {
                weight.bytes_estimate(sample.size, points)
            })
    }

    /// Allocations that a sample stands for.
    pub fn objects(&self, sample: &Sample) -> Estimate {
        let points = SamplePoints(u64::from(sample.points));
        self.weight(sample)
            .map_or_else(Estimate::default, |weight| {
                weight.objects_estimate(sample.size, points, self.smallest_expected())
            })
    }

    /// From when to when samples were taken that are in the profile: its own beginning and end, unless it was narrowed.
    pub fn span_ns(&self) -> std::ops::Range<u64> {
        let ProcessInfo {
            start_ns, end_ns, ..
        } = self.process;
        let from_ns = self.narrowed.unwrap_or_default().from_ns.max(start_ns);
        from_ns..end_ns.max(from_ns)
    }

    /// The module with this number.
    pub fn module(&self, id: ModuleId) -> Option<&Module> {
        self.modules.get((id.0 as usize).checked_sub(1)?)
    }

    /// Whether a module is the allocator that ours stands before. The loader knows it by the name that programs ask for, in whichever
    /// directory, and the kernel by that of the file: `/lib/libtcmalloc.so.4`, `/usr/lib/libtcmalloc.so.4.5.10`.
    pub fn is_next_allocator(&self, path: &str) -> bool {
        let name_of = |path| str::rsplit(path, '/').next().unwrap_or(path);
        let is_it = |name: &str| {
            let rest = name_of(path).strip_prefix(name);
            rest.is_some_and(|rest| {
                rest.is_empty() || name.contains(".so") && rest.starts_with('.')
            })
        };
        let mut notes = self.notes.iter();
        notes.any(|(note, name)| *note == Note::NextAllocator && is_it(name_of(name)))
    }

    /// Bytes that went through all counters.
    pub fn exact_bytes(&self) -> u64 {
        let machines = self.vm.heaps.values().map(|heap| heap.exact_bytes);
        machines.fold(self.exact_bytes_of(HeapId::MALLOC), u64::saturating_add)
    }

    /// The runtime whose own samples these are, in words, if they were read from outside.
    pub fn sampled_by(&self) -> Option<&str> {
        let mut notes = self.notes.iter();
        let (_, runtime) = notes.find(|(note, _)| *note == Note::Outside)?;
        Some(runtime)
    }

    /// Whether the bytes of a heap were counted: not those of a machine that samples by itself.
    pub fn is_counted(&self, heap: HeapId) -> bool {
        heap == HeapId::MALLOC || self.exact_bytes_of(heap) > 0
    }

    /// Bytes that went through one heap's.
    pub fn exact_bytes_of(&self, heap: HeapId) -> u64 {
        match self.vm.heaps.get(&heap) {
            Some(heap) => heap.exact_bytes,
            // Counts of a damaged file can be anything.
            None if heap == HeapId::MALLOC => {
                let threads = self.threads.values().map(|thread| thread.exact_bytes);
                threads.fold(0, u64::saturating_add)
            }
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_allocator_is_known_by_either_of_its_names() {
        let next = |name: &str| Profile {
            notes: vec![(Note::NextAllocator, name.to_owned())],
            ..Profile::default()
        };
        for (name, path, is_it) in [
            (
                "/lib/libtcmalloc.so.4",
                "/usr/lib/libtcmalloc.so.4.5.10",
                true,
            ),
            ("/lib/libtcmalloc.so.4", "/lib/libtcmalloc.so.4", true),
            (
                "/usr/lib/libjemalloc.so.2",
                "/usr/lib/libjemalloc.so",
                false,
            ),
            ("/lib/libtcmalloc.so.4", "/lib/libtcmalloc.so.45", false),
            ("/usr/bin/redis-server", "/usr/bin/redis-server", true),
            ("/usr/bin/a", "/usr/bin/a.out", false),
            ("", "/usr/bin/a", false),
        ] {
            assert_eq!(next(name).is_next_allocator(path), is_it, "{name} {path}");
        }
    }
}
