//! Figures of the agent about itself.

/// Places for figures in the ring's header and in a chunk of the file.
pub const FIGURES: usize = 16;

/// A figure about the agent's own cost: the number is that of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Figure {
    /// Number of samples that were timed: about one in sixteen.
    TimedSamples = 0,
    /// Time of the timed samples, from start to end of the slow path, in nanoseconds.
    TimedSamplesNs = 1,
    /// Number of frees of samples that were timed: about one in sixteen.
    TimedFrees = 2,
    /// Time of the timed frees, in nanoseconds.
    TimedFreesNs = 3,
    /// CPU time of the drain thread, in nanoseconds.
    DrainNs = 4,
    /// CPU time of the whole process, in nanoseconds, when it was last read.
    ProcessNs = 5,
    /// Highest number of ring words in use at the same time.
    MostRingWords = 6,
    /// Capacity of the ring in words.
    RingWords = 7,
    /// Address space that the agent has mapped, in bytes. Untouched parts of it use no memory.
    MappedBytes = 8,
    /// Length of the profile, in bytes.
    WrittenBytes = 9,
    /// CPU time between two time samples of a thread, in nanoseconds; 0: time is not sampled.
    TickPeriodNs = 10,
    /// CPU time of ticks that interrupted the agent: mostly the cost of sampling allocations.
    TicksInAgentNs = 11,
    /// CPU time of ticks that did not fit into the ring.
    TicksRingFullNs = 12,
    /// CPU time of ticks that were not recorded for another reason: no memory, no profile.
    TicksNotRecordedNs = 13,
    /// Number of calls of mmap and its kin that were not recorded: there were too many, or the ring was full.
    MappingsNotRecorded = 14,
    /// Bytes that sampled page faults stood for which were not recorded: the agent was at work, or the ring was full.
    PagesNotRecordedBytes = 15,
}

impl Figure {
    /// Figures that only grow while the process runs. A file that begins later subtracts their values at its beginning.
    pub const SUMS: [Figure; 8] = [
        Figure::TimedSamples,
        Figure::TimedSamplesNs,
        Figure::TimedFrees,
        Figure::TimedFreesNs,
        Figure::DrainNs,
        Figure::ProcessNs,
        Figure::MappingsNotRecorded,
        Figure::PagesNotRecordedBytes,
    ];
}
