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
    /// Whose stack it was, and before which `dlclose`.
    pub walk: MemoKey,
    /// How often machines had told of a change of their compiled code.
    pub code_changes: u32,
}

/// See the module. All zero bytes are an empty one.
pub struct WrittenStack {
    key: WrittenKey,
    /// The sample, as `ShimThread::last_sample` has it; 0 for none.
    sample: u64,
    depth: usize,
    /// Root first, so that the part which stays is in place.
    frames: [u64; LARGEST_MAX_DEPTH],
}

impl WrittenStack {
    /// How many of `frames` (leaf first), counted from the root, are those of the sample `last`; 0 if it is not this one.
    pub fn shared(&self, frames: &[u64], key: WrittenKey, last: u64) -> usize {
        if self.sample != last || last == 0 || self.key != key {
            return 0;
        }
        let written = self.frames.iter().take(self.depth);
        written
            .zip(frames.iter().rev())
            .take_while(|(written, frame)| written == frame)
            .count()
    }

    /// The sample `last` is in the ring: `shared` frames as they are here, and `fresh` ones, leaf first.
    pub fn remember(&mut self, shared: usize, fresh: &[u64], key: WrittenKey, last: u64) {
        let places = self.frames.get_mut(shared..).unwrap_or(&mut []);
        for (place, frame) in places.iter_mut().zip(fresh.iter().rev()) {
            *place = *frame;
        }
        self.depth = shared + fresh.len();
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
            depth: 0,
            frames: [0; LARGEST_MAX_DEPTH],
        })
    }

    proptest::proptest! {
        /// A reader that keeps the last stack and goes by the number of shared frames has each stack back.
        #[test]
        fn what_is_told_is_enough(
            stacks in proptest::collection::vec(proptest::collection::vec(0_u64..3, 0..12), 1..20),
        ) {
            let mut written = empty();
            let (mut last, mut read) = (0, Vec::<u64>::new());
            for (index, frames) in stacks.iter().enumerate() {
                let shared = written.shared(frames, KEY, last);
                let fresh = frames.get(..frames.len() - shared).unwrap();
                last = index as u64 + 1;
                written.remember(shared, fresh, KEY, last);
                read.truncate(shared);
                proptest::prop_assert_eq!(read.len(), shared);
                read.extend(fresh.iter().rev());
                proptest::prop_assert!(read.iter().eq(frames.iter().rev()));
                proptest::prop_assert_eq!(written.shared(frames, KEY, last), frames.len());
            }
        }
    }

    #[test]
    fn nothing_is_shared_with_another_sample_or_another_time() {
        let mut written = empty();
        assert_eq!(written.shared(&[1, 2], KEY, 0), 0);
        written.remember(0, &[1, 2], KEY, 7);
        assert_eq!(written.shared(&[5, 2], KEY, 7), 1);
        assert_eq!(written.shared(&[5, 2], KEY, 8), 0);
        let walk = MemoKey {
            dlclose_count: 1,
            ..KEY.walk
        };
        assert_eq!(written.shared(&[5, 2], WrittenKey { walk, ..KEY }, 7), 0);
        let changed = WrittenKey {
            code_changes: 1,
            ..KEY
        };
        assert_eq!(written.shared(&[5, 2], changed, 7), 0);
    }
}
