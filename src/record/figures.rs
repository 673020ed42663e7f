//! What the agent tells of itself.

/// Places for figures in the ring's header and in a chunk of the file.
pub const FIGURES: usize = 16;

/// A figure about the agent's own cost: the number is that of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Figure {
    /// Samples of which the time was taken: about one in sixteen.
    TimedSamples = 0,
    /// Their time from the slow path's start to its end, in nanoseconds.
    TimedSamplesNs = 1,
    /// Frees of samples of which the time was taken: about one in sixteen.
    TimedFrees = 2,
    /// Their time, in nanoseconds.
    TimedFreesNs = 3,
    /// Time of a processor that the drain thread has used, in nanoseconds.
    DrainNs = 4,
    /// Time of processors that the whole process has used, in nanoseconds, at the last look.
    ProcessNs = 5,
    /// Most words of the ring that were in use at the same time.
    MostRingWords = 6,
    /// Words that the ring has.
    RingWords = 7,
    /// Memory that the agent has asked the kernel for and not given back, in bytes of address space. What it has not
    /// touched takes no memory.
    MappedBytes = 8,
    /// Length of the profile, in bytes.
    WrittenBytes = 9,
    /// Time of processors between two ticks of a thread, in nanoseconds; 0: there are no ticks.
    TickPeriodNs = 10,
    /// Time that ticks stand for which came while the agent itself was at work: what sampling allocations costs, above all.
    TicksInAgentNs = 11,
    /// Time that ticks stand for which found no room in the ring.
    TicksRingFullNs = 12,
    /// Time that ticks stand for which could not be recorded for another reason: no memory, no profile.
    TicksNotRecordedNs = 13,
}

impl Figure {
    /// Those that only grow while the process runs: a file that begins later takes off what they were then.
    pub const SUMS: [Figure; 6] = [
        Figure::TimedSamples,
        Figure::TimedSamplesNs,
        Figure::TimedFrees,
        Figure::TimedFreesNs,
        Figure::DrainNs,
        Figure::ProcessNs,
    ];
}
