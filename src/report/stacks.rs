//! Samples added up by stack, before anybody asks for names: a program has thousands of stacks and millions of samples.

use std::collections::HashMap;

use allocsample_profile::{HeapId, Profile, Sample, StackId, ThreadId};
use allocsample_sampling::Estimate;

/// What was allocated with one stack, in one heap.
#[derive(Clone, Copy, Debug)]
pub struct StackSum<'a> {
    /// One of its samples: all have the same stack, flags of the stack, and heap.
    pub sample: &'a Sample,
    /// Bytes.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end.
    pub live: Estimate,
}

/// All samples, in the order in which their stacks first came; apart by thread if `by_thread`.
pub fn by_stack(profile: &Profile, by_thread: bool) -> Vec<StackSum<'_>> {
    type Key = (StackId, u16, HeapId, ThreadId);
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut sums: Vec<StackSum<'_>> = Vec::new();
    for sample in &profile.samples {
        let thread = if by_thread {
            sample.thread
        } else {
            ThreadId(0)
        };
        // Of the flags those that say why a root is missing.
        let key = (sample.stack, sample.flags.0 & 3, sample.heap, thread);
        let place = *places.entry(key).or_insert_with(|| {
            sums.push(StackSum {
                sample,
                allocated: Estimate::ZERO,
                allocations: Estimate::ZERO,
                live: Estimate::ZERO,
            });
            sums.len() - 1
        });
        let bytes = profile.bytes(sample);
        let sum = &mut sums[place];
        sum.allocated += bytes;
        sum.allocations += profile.objects(sample);
        if sample.is_live() {
            sum.live += bytes;
        }
    }
    sums
}
