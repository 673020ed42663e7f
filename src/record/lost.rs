//! Why a sample that was due could not be recorded.

/// Number of [`LostReason`]s: the length of the counter arrays in the ring's header.
pub const LOST_REASONS: usize = 7;

/// Why something was lost. For each reason the ring's header counts the events and the bytes they stood for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LostReason {
    /// The ring had no room for the sample. Weight: size / p.
    RingFull = 0,
    /// The ring had no room for the end of a sample: that sample stays live in the profile.
    FreeRingFull = 1,
    /// The live table had no room: the sample is recorded, but flagged untracked and left out of live figures.
    LiveTableFull = 2,
    /// No memory for the agent's own work area. Weight: size / p.
    NoMemory = 3,
    /// The profile could not be written (disk full, file too large): everything since then; or its creation took long,
    /// and other threads did not wait for it. Weight: size / p.
    WriteFailed = 4,
    /// A virtual machine reported an allocation out of a callback, or a signal handler, that had interrupted the agent.
    /// Weight: size / p.
    Reentered = 5,
    /// Nobody wanted it: its size is outside of the filter. It is not lost, but left out. Weight: size / p.
    LeftOut = 6,
}

impl LostReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [LostReason; LOST_REASONS] = [
        Self::RingFull,
        Self::FreeRingFull,
        Self::LiveTableFull,
        Self::NoMemory,
        Self::WriteFailed,
        Self::Reentered,
        Self::LeftOut,
    ];

    /// The name in reports.
    pub fn description(self) -> &'static str {
        match self {
            Self::RingFull => "ring full",
            Self::FreeRingFull => "ring full (frees)",
            Self::LiveTableFull => "live table full",
            Self::NoMemory => "no memory for the agent",
            Self::WriteFailed => "profile could not be written",
            Self::Reentered => "allocated inside the agent's own work",
            Self::LeftOut => "left out by the filter",
        }
    }

    /// Whether the sample itself is missing (and so its weight from every total).
    pub fn is_sample_missing(self) -> bool {
        matches!(
            self,
            Self::RingFull | Self::NoMemory | Self::WriteFailed | Self::Reentered
        )
    }
}
