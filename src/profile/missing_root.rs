//! Stacks that do not reach the start of their thread.

use allocsample_record::{SampleFlags, StackId};

use crate::model::{Sample, Tick};

/// Why the root of a stack is missing.
///
/// ```
/// use allocsample_profile::{MissingRoot, Sample, SampleFlags, StackId};
///
/// let sample = Sample {
///     stack: StackId(1),
///     flags: SampleFlags::TRUNCATED,
///     ..Sample::default()
/// };
/// assert_eq!(sample.missing_root(), Some(MissingRoot::Truncated));
/// assert_eq!(MissingRoot::Truncated.name(), "(truncated)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissingRoot {
    /// The stack had more frames than the agent keeps.
    Truncated,
    /// The agent could not unwind further.
    UnwindFailed,
    /// There is no frame.
    NoStack,
}

impl MissingRoot {
    /// How many there are; each is below it as a number.
    pub const COUNT: usize = Self::NoStack as usize + 1;

    /// The pseudo-frame that stands at the root.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "(truncated)",
            Self::UnwindFailed => "(unwind failed)",
            Self::NoStack => "(no stack)",
        }
    }

    #[inline]
    pub(crate) fn of(stack: StackId, flags: SampleFlags) -> Option<Self> {
        if flags.contains(SampleFlags::TRUNCATED) {
            Some(Self::Truncated)
        } else if flags.contains(SampleFlags::UNWIND_FAILED) {
            Some(Self::UnwindFailed)
        } else if stack == StackId::EMPTY {
            Some(Self::NoStack)
        } else {
            None
        }
    }
}

impl Sample {
    /// Why the root of its stack is missing, if it is.
    #[inline]
    pub fn missing_root(&self) -> Option<MissingRoot> {
        MissingRoot::of(self.stack, self.flags)
    }
}

impl Tick {
    /// Why the root of its stack is missing, if it is.
    pub fn missing_root(&self) -> Option<MissingRoot> {
        MissingRoot::of(self.stack, self.flags)
    }
}
