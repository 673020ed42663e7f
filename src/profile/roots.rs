//! Stacks that do not reach the start of their thread.
//!
//! Such a stack ends in a pseudo-frame that says why. It is a node like others, so that readers need not know of it: the same
//! frames with a root are another stack.

use allocsample_record::{Location, ModuleId, SampleFlags, StackId};

use crate::frames::Frame;
use crate::model::Profile;
use crate::stacks::StackTable;
use crate::uses::Uses;

/// Why the root of a stack is missing, by the number that is the offset of its location.
const REASONS: [&str; 3] = ["(truncated)", "(unwind failed)", "(no stack)"];
const TRUNCATED: usize = 0;
const UNWIND_FAILED: usize = 1;
const NO_STACK: usize = 2;

/// The stack has its root.
pub(crate) const WHOLE: usize = REASONS.len();

/// How a stack ends: the reason why its root is missing, or [`WHOLE`].
#[inline]
pub(crate) fn end_of(stack: StackId, flags: SampleFlags) -> usize {
    if flags.contains(SampleFlags::TRUNCATED) {
        TRUNCATED
    } else if flags.contains(SampleFlags::UNWIND_FAILED) {
        UNWIND_FAILED
    } else if stack == StackId::EMPTY {
        NO_STACK
    } else {
        WHOLE
    }
}

/// What stands for the root. A damaged file can have any offset.
pub(crate) fn frame(offset: u64) -> Frame {
    let reason = usize::try_from(offset).ok().and_then(|it| REASONS.get(it));
    Frame {
        function: reason.unwrap_or(&"(unknown)").to_string(),
        file: None,
        line: 0,
        module: String::new(),
        is_symbolized: true,
        file_end: None,
    }
}

impl Profile {
    /// Ends every stack whose root is missing in a pseudo-frame: those of samples and ticks, and of calls that map memory. A
    /// profile that was read from a file has them. To be called once, when all samples are there.
    ///
    /// ```
    /// use allocsample_profile::{Profile, Sample};
    ///
    /// let mut profile = Profile::default();
    /// profile.samples.push(Sample::default());
    /// profile.end_stacks_without_root();
    /// let frames = profile.stack_frames(&profile.samples.at(0));
    /// assert_eq!(frames[0].function, "(no stack)");
    /// ```
    pub fn end_stacks_without_root(&mut self) {
        self.end_stacks(Uses::of(self));
    }

    /// The same, when the uses of all stacks are counted already.
    pub(crate) fn end_stacks(&mut self, uses: Uses) {
        let ended = Ended::of(&mut self.stacks, uses.ends);
        if ended.0.iter().all(Vec::is_empty) {
            return;
        }
        let last = StackId(self.stacks.count());
        let new = |stack, flags| ended.get(stack, end_of(stack, flags));
        self.samples.map_stacks(last, new);
        for (_, stack) in &mut self.free_stacks {
            *stack = ended.get(*stack, WHOLE);
        }
        for it in &mut self.ticks {
            it.stack = ended.get(it.stack, end_of(it.stack, it.flags));
        }
        for it in &mut self.mappings {
            it.stack = ended.get(it.stack, end_of(it.stack, it.mapped.stack_flags));
        }
        for it in &mut self.pages.samples {
            it.stack = ended.get(it.stack, end_of(it.stack, it.flags));
        }
    }
}

/// What became of the stacks as they were recorded, by how they end: with their root, or by reason. Where a list is empty, or
/// too short, they are the same.
#[derive(Default)]
struct Ended([Vec<StackId>; REASONS.len() + 1]);

impl Ended {
    /// Nodes with each end that they are used with, in their order: parents stay before their children. A table in which all
    /// nodes have one end has hardly more of them.
    fn of(recorded: &mut StackTable, ends: Vec<u8>) -> Self {
        let all = ends.iter().fold(0, |all, ends| all | ends);
        let is_used = |end: usize| all & 1 << end != 0;
        let mut ended = Self::default();
        if is_used(TRUNCATED) || is_used(UNWIND_FAILED) {
            *recorded = ended.copy(recorded, ends, [TRUNCATED, UNWIND_FAILED].map(is_used));
        }
        if is_used(NO_STACK) {
            // Nothing is on top of it.
            ended.0[NO_STACK] = vec![push_root(recorded, NO_STACK)];
        }
        ended
    }

    /// A table with the nodes that are needed. `ends`: those that each node is used with; `is_used`: which of the two roots
    /// that have callees.
    fn copy(&mut self, recorded: &StackTable, mut ends: Vec<u8>, is_used: [bool; 2]) -> StackTable {
        let node = |number: usize| recorded.parent_and_place(StackId(number as u32));
        for number in (1..ends.len()).rev() {
            if let Some((parent, _)) = node(number) {
                ends[parent.0 as usize] |= ends[number];
            }
        }
        let mut new = recorded.without_nodes();
        self.0[WHOLE] = vec![StackId::EMPTY; ends.len()];
        for (reason, is_used) in [TRUNCATED, UNWIND_FAILED].into_iter().zip(is_used) {
            if is_used {
                let root = push_root(&mut new, reason);
                self.0[reason] = vec![root; ends.len()];
            }
        }
        for (number, &ends) in ends.iter().enumerate().skip(1) {
            let Some((parent, place)) = node(number) else {
                continue;
            };
            // One that nobody uses stays.
            let ends = if ends == 0 { 1 << WHOLE } else { ends };
            for (end, stacks) in self.0.iter_mut().enumerate() {
                if ends & 1 << end != 0 {
                    stacks[number] = new.push_at(stacks[parent.0 as usize], place);
                }
            }
        }
        new
    }

    fn get(&self, recorded: StackId, end: usize) -> StackId {
        let stacks = &self.0[end];
        stacks.get(recorded.0 as usize).copied().unwrap_or(recorded)
    }
}

fn push_root(stacks: &mut StackTable, reason: usize) -> StackId {
    let place = stacks.place_number(Location {
        module: ModuleId::NO_ROOT,
        offset: reason as u64,
    });
    stacks.push_at(StackId::EMPTY, place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sample, StackNode, Tick};

    #[test]
    fn stacks_end_in_what_is_missing_of_them() {
        let mut profile = Profile::default();
        let mut push = |parent, offset| {
            let location = Location {
                module: ModuleId::NONE,
                offset,
            };
            profile.stacks.push(StackNode { parent, location })
        };
        let outer = push(StackId::EMPTY, 0x11);
        let inner = push(outer, 0x21);
        let whole = SampleFlags::default();
        for (stack, flags) in [
            (inner, whole),
            (inner, SampleFlags::TRUNCATED),
            (outer, SampleFlags::TRUNCATED),
            (inner, SampleFlags::UNWIND_FAILED),
            (StackId::EMPTY, whole),
        ] {
            profile.samples.push(Sample {
                stack,
                flags,
                ..Sample::default()
            });
        }
        profile.ticks.push(Tick {
            stack: inner,
            flags: SampleFlags::TRUNCATED,
            ..Tick::default()
        });
        profile.end_stacks_without_root();
        let names = |sample: Sample| {
            let frames = profile.stack_frames(&sample).into_iter().rev();
            frames
                .map(|frame| frame.function)
                .collect::<Vec<_>>()
                .join(";")
        };
        let found: Vec<String> = profile.samples.iter().map(names).collect();
        let expected = [
            "0x10;0x20",
            "(truncated);0x10;0x20",
            "(truncated);0x10",
            "(unwind failed);0x10;0x20",
            "(no stack)",
        ];
        assert_eq!(found, expected);
        assert_eq!(profile.ticks[0].stack, profile.samples.at(1).stack);
        // Two as they were recorded; three and three with a pseudo-frame below; one is nothing else.
        assert_eq!(profile.stacks.count(), 2 + 3 + 3 + 1);
    }

    /// A stack of two frames, and a sample of it.
    fn with_sample(flags: SampleFlags) -> Profile {
        let mut profile = Profile::default();
        let stack = (1..3).fold(StackId::EMPTY, |parent, offset| {
            let location = Location {
                module: ModuleId::NONE,
                offset,
            };
            profile.stacks.push(StackNode { parent, location })
        });
        profile.samples.push(Sample {
            stack,
            flags,
            ..Sample::default()
        });
        profile
    }

    #[test]
    fn nodes_that_have_one_end_are_not_copied() {
        for flags in [SampleFlags::TRUNCATED, SampleFlags::UNWIND_FAILED] {
            let mut profile = with_sample(flags);
            profile.end_stacks_without_root();
            assert_eq!(profile.stacks.count(), 3);
            assert_eq!(profile.stack_frames(&profile.samples.at(0)).len(), 3);
        }
    }

    #[test]
    fn stacks_with_roots_stay_where_they_are() {
        let mut profile = with_sample(SampleFlags::default());
        profile.free_stacks.push((0, StackId(1)));
        profile.end_stacks_without_root();
        assert_eq!(profile.stacks.count(), 2);
        // One that is not there is one more, at the end.
        profile.samples.push(Sample::default());
        profile.end_stacks_without_root();
        let stacks = profile.samples.iter().map(|sample| sample.stack.0);
        assert_eq!(stacks.collect::<Vec<_>>(), [2, 3]);
        assert_eq!((profile.stacks.count(), profile.free_stacks[0].1.0), (3, 1));
        // Behind a pseudo-frame they move, and say the same.
        profile.ticks.push(Tick {
            stack: StackId(1),
            flags: SampleFlags::TRUNCATED,
            ..Tick::default()
        });
        let places = |profile: &Profile, stack| -> Vec<u64> {
            let locations = profile.stacks.locations(stack);
            locations.map(|location| location.offset).collect()
        };
        let free = places(&profile, profile.free_stacks[0].1);
        profile.end_stacks_without_root();
        assert_eq!(places(&profile, profile.free_stacks[0].1), free);
        assert_eq!(places(&profile, profile.samples.stack(0)), [2, 1]);
        assert_eq!(
            places(&profile, profile.ticks[0].stack),
            [1, TRUNCATED as u64]
        );
    }
}
