//! The stack of a thread's last sample as it stands in the ring, so that the next one tells only what is new.
//!
//! Most of a stack does not change between two samples of a thread: a sample whose stack is the same is one cache line in
//! the ring, however deep it is. What reads the ring knows the last sample of each thread too, because the samples of one
//! thread are in their order there and none is missing: one that could not be written is not remembered here.

use crate::config::LARGEST_MAX_DEPTH;
use crate::stack::MemoKey;

/// When addresses meant what they meant.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenKey {
    /// The thread, and the number of `dlclose` calls before the walk.
    pub walk: MemoKey,
    /// Number of times that machines had changed their compiled code before the walk.
    pub code_changes: u32,
}

/// See the module. All zero bytes are an empty one.
pub struct WrittenStack {
    key: WrittenKey,
    /// The sample, as `ShimThread::last_sample` has it; 0 for none.
    sample: u64,
    /// The walk that found it.
    walk: u64,
    depth: usize,
    /// Root first, so that the part which stays is in place.
    frames: [u64; LARGEST_MAX_DEPTH],
}

/// A stack as it was found, leaf first.
#[derive(Clone, Copy, Debug)]
pub struct FoundStack<'a> {
    /// Its frames.
    pub frames: &'a [u64],
    /// The walk that found them.
    pub walk: u64,
    /// How many of them, counted from the root, are those of another walk.
    pub known: usize,
    /// The number of the walk that found the known frames.
    pub known_from: u64,
}

impl WrittenStack {
    /// How many frames of a stack, counted from the root, are those of the sample `last`; 0 if it is not this one.
    pub fn shared(&self, stack: &FoundStack<'_>, key: WrittenKey, last: u64) -> usize {
        if self.sample != last || last == 0 || self.key != key {
            return 0;
        }
        let known = match stack.known_from == self.walk {
            true => stack.known.min(self.depth),
            false => 0,
        };
        let written = self.frames.get(known..self.depth).unwrap_or(&[]);
        let rest = stack.frames.iter().rev().skip(known);
        let equal = written
            .iter()
            .zip(rest)
            .take_while(|(written, frame)| written == frame);
        known + equal.count()
    }

    /// Forgets the last sample: the next one shares no frame.
    pub fn forget(&mut self) {
        self.sample = 0;
    }

    /// Notes the stack of the sample `last`, which is in the ring: `shared` frames of the stack noted before, and `fresh`
    /// ones, leaf first, found by `walk`.
    pub fn note(&mut self, shared: usize, fresh: &[u64], walk: u64, key: WrittenKey, last: u64) {
        let places = self.frames.get_mut(shared..).unwrap_or(&mut []);
        for (place, frame) in places.iter_mut().zip(fresh.iter().rev()) {
            *place = *frame;
        }
        self.depth = shared + fresh.len();
        self.walk = walk;
        self.key = key;
        self.sample = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    const KEY: WrittenKey = WrittenKey {
        walk: MemoKey {
            thread: 3,
            epoch: 1,
            dlclose_count: 0,
        },
        code_changes: 0,
    };

    fn empty() -> Box<WrittenStack> {
        Box::new(WrittenStack {
            key: WrittenKey::default(),
            sample: 0,
            walk: 0,
            depth: 0,
            frames: [0; LARGEST_MAX_DEPTH],
        })
    }

    fn alone(frames: &[u64]) -> FoundStack<'_> {
        FoundStack {
            frames,
            walk: 1,
            known: 0,
            known_from: 0,
        }
    }

    proptest::proptest! {
        /// A reader that keeps the last stack and goes by the number of shared frames has each stack back, whatever the
        /// walk knew of the one before; also if that was not the last sample's.
        #[test]
        fn what_is_told_is_enough(
            stacks in proptest::collection::vec(
                (proptest::collection::vec(0_u64..3, 0..12), 0_usize..12, proptest::bool::ANY), 1..20),
        ) {
            let mut written = empty();
            let (mut last, mut read, mut walk) = (0, Vec::<u64>::new(), 1);
            for (index, (frames, most_known, is_another_between)) in stacks.iter().enumerate() {
                let equal = read.iter().zip(frames.iter().rev()).take_while(|(a, b)| a == b).count();
                let found = FoundStack {
                    frames,
                    walk: walk + 1,
                    known: if *is_another_between { *most_known } else { equal.min(*most_known) },
                    known_from: if *is_another_between { walk + 1 } else { walk },
                };
                walk += 2;
                let shared = written.shared(&found, KEY, last);
                let fresh = frames.get(..frames.len() - shared).unwrap();
                last = index as u64 + 1;
                written.note(shared, fresh, walk, KEY, last);
                read.truncate(shared);
                proptest::prop_assert_eq!(read.len(), shared);
                read.extend(fresh.iter().rev());
                proptest::prop_assert!(read.iter().eq(frames.iter().rev()));
                proptest::prop_assert_eq!(written.shared(&alone(frames), KEY, last), frames.len());
            }
        }
    }

    #[test]
    fn nothing_is_shared_with_another_sample_or_another_time() {
        let mut written = empty();
        assert_eq!(written.shared(&alone(&[1, 2]), KEY, 0), 0);
        written.note(0, &[1, 2], 1, KEY, 7);
        assert_eq!(written.shared(&alone(&[5, 2]), KEY, 7), 1);
        assert_eq!(written.shared(&alone(&[5, 2]), KEY, 8), 0);
        written.forget();
        assert_eq!(written.shared(&alone(&[5, 2]), KEY, 7), 0);
        written.note(0, &[1, 2], 1, KEY, 7);
        let walk = MemoKey {
            dlclose_count: 1,
            ..KEY.walk
        };
        assert_eq!(
            written.shared(&alone(&[5, 2]), WrittenKey { walk, ..KEY }, 7),
            0
        );
        let changed = WrittenKey {
            code_changes: 1,
            ..KEY
        };
        assert_eq!(written.shared(&alone(&[5, 2]), changed, 7), 0);
    }
}
