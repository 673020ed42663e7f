//! Figures that an allocator counts itself, as statistics of its heap.

/// One of them, in bytes; allocsample.h reserves no numbers, so these are the last ones before
/// [`ValueRecord::EXACT_BYTES`](crate::ValueRecord::EXACT_BYTES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum OwnFigure {
    /// Blocks in use, with what their sizes were rounded up by, and those that caches of threads keep.
    Allocated = 0,
    /// Pages with such blocks.
    Active = 1,
    /// The allocator's own data.
    Metadata = 2,
    /// All memory of the allocator that may be resident, free pages included.
    Resident = 3,
    /// Memory that is still mapped, and was given back to the kernel.
    Retained = 4,
}

impl OwnFigure {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Allocated,
        Self::Active,
        Self::Metadata,
        Self::Resident,
        Self::Retained,
    ];

    const FIRST: u32 = u32::MAX - 16;

    /// The number of the statistic.
    pub fn statistic(self) -> u32 {
        Self::FIRST + self as u32
    }

    /// The figure with this number of a statistic.
    pub fn from_statistic(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.statistic() == number)
    }

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated_bytes",
            Self::Active => "active_bytes",
            Self::Metadata => "metadata_bytes",
            Self::Resident => "resident_bytes",
            Self::Retained => "retained_bytes",
        }
    }

    /// The name in tables of statistics.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Allocated => "own count: allocated",
            Self::Active => "own count: active",
            Self::Metadata => "own count: metadata",
            Self::Resident => "own count: resident",
            Self::Retained => "own count: retained",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ValueRecord;

    #[test]
    fn numbers_are_distinct_and_lead_back() {
        for figure in OwnFigure::ALL {
            assert_eq!(OwnFigure::from_statistic(figure.statistic()), Some(figure));
            assert_ne!(figure.statistic(), ValueRecord::EXACT_BYTES);
        }
        assert_eq!(OwnFigure::from_statistic(ValueRecord::EXACT_BYTES), None);
        assert_eq!(OwnFigure::from_statistic(0), None);
    }
}
