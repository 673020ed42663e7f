//! Stacks that do not reach the start of their thread.
//!
//! Such a stack ends in a pseudo-frame that says why. It is a node like others, below a copy of the nodes of the stack, so that
//! readers need not know of it: the same frames with a root are another stack.

use allocsample_record::{Location, ModuleId, SampleFlags, StackId};
use rustc_hash::FxHashMap;

use crate::frames::Frame;
use crate::model::Profile;
use crate::stacks::StackTable;

/// Why the root of a stack is missing, by the number that is the offset of its location.
const REASONS: [&str; 3] = ["(truncated)", "(unwind failed)", "(no stack)"];
const TRUNCATED: u64 = 0;
const UNWIND_FAILED: u64 = 1;
const NO_STACK: u64 = 2;

fn missing_root(stack: StackId, flags: SampleFlags) -> Option<u64> {
    if flags.contains(SampleFlags::TRUNCATED) {
        Some(TRUNCATED)
    } else if flags.contains(SampleFlags::UNWIND_FAILED) {
        Some(UNWIND_FAILED)
    } else if stack == StackId::EMPTY {
        Some(NO_STACK)
    } else {
        None
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
        let mut ended = Ended {
            stacks: &mut self.stacks,
            known: FxHashMap::default(),
        };
        for row in 0..self.samples.len() {
            let (stack, flags) = (self.samples.stack(row), self.samples.flags(row));
            if let Some(reason) = missing_root(stack, flags) {
                self.samples.set_stack(row, ended.stack(stack, reason));
            }
        }
        let ticks = self.ticks.iter_mut().map(|it| (&mut it.stack, it.flags));
        let calls = self.mappings.iter_mut();
        let calls = calls.map(|it| (&mut it.stack, it.mapped.stack_flags));
        for (stack, flags) in ticks.chain(calls) {
            if let Some(reason) = missing_root(*stack, flags) {
                *stack = ended.stack(*stack, reason);
            }
        }
    }
}

/// The stacks that end in pseudo-frames.
struct Ended<'a> {
    stacks: &'a mut StackTable,
    /// By the stack as it was recorded, and by reason.
    known: FxHashMap<(StackId, u64), StackId>,
}

impl Ended<'_> {
    fn stack(&mut self, recorded: StackId, reason: u64) -> StackId {
        let mut new = Vec::new();
        let mut at = recorded;
        let mut ended = loop {
            if let Some(&known) = self.known.get(&(at, reason)) {
                break known;
            }
            let Some((parent, place)) = self.stacks.parent_and_place(at) else {
                let place = self.stacks.place_number(Location {
                    module: ModuleId::NO_ROOT,
                    offset: reason,
                });
                break self.push(StackId::EMPTY, place, (at, reason));
            };
            new.push((at, place));
            at = parent;
        };
        for (at, place) in new.into_iter().rev() {
            ended = self.push(ended, place, (at, reason));
        }
        ended
    }

    fn push(&mut self, parent: StackId, place: u32, known_as: (StackId, u64)) -> StackId {
        let stack = self.stacks.push_at(parent, place);
        self.known.insert(known_as, stack);
        stack
    }
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
}
