//! What a file says of the time before it, in a recording that went on in it from others.

use allocsample_record::{FIGURES, Figure, HeapId, ThreadId};
use rustc_hash::FxHashMap;

use crate::model::{Lost, Profile};

/// What had been counted when the file began; all counts of a recording go on from file to file.
#[derive(Default)]
pub(crate) struct Before {
    /// Whether it is being told.
    pub(crate) is_told: bool,
    /// It was told in the middle: files of one recording were joined, and what was before is known.
    pub(crate) is_known: bool,
    /// Modules that were told since.
    pub(crate) modules: usize,
    /// What had gone through the threads' counters, and how much of it on muted threads.
    pub(crate) threads: FxHashMap<ThreadId, (u64, u64)>,
    /// What had gone through the machines' heaps.
    pub(crate) heaps: FxHashMap<HeapId, u64>,
    /// What had been lost.
    pub(crate) lost: Option<Lost>,
    /// What the agent had told of itself.
    pub(crate) figures: Option<[u64; FIGURES]>,
}

impl Before {
    /// Bytes of memory that it takes, about.
    pub(crate) fn held_bytes(&self) -> u64 {
        const ENTRY: usize = 32;
        (ENTRY * (self.threads.capacity() + self.heaps.capacity())) as u64
    }

    /// What had gone through a thread's counter.
    pub(crate) fn bytes_of(&self, thread: ThreadId) -> u64 {
        self.threads.get(&thread).map_or(0, |&(bytes, _)| bytes)
    }

    /// Leaves in the counts of `profile` what is of its own time.
    pub(crate) fn take_off(&self, profile: &mut Profile) {
        for (id, &(bytes, muted_bytes)) in &self.threads {
            if let Some(thread) = profile.threads.get_mut(id) {
                thread.exact_bytes = thread.exact_bytes.saturating_sub(bytes);
                thread.muted_bytes = thread.muted_bytes.saturating_sub(muted_bytes);
            }
        }
        for (id, &bytes) in &self.heaps {
            if let Some(heap) = profile.vm.heaps.get_mut(id) {
                heap.exact_bytes = heap.exact_bytes.saturating_sub(bytes);
            }
        }
        if let Some(before) = &self.lost {
            for (now, before) in profile.lost.0.iter_mut().zip(&before.0) {
                now.0 = now.0.saturating_sub(before.0);
                now.1 = now.1.saturating_sub(before.1);
            }
        }
        if let Some(before) = &self.figures {
            let now = &mut profile.own_cost.figures;
            for figure in Figure::SUMS.map(|figure| figure as usize) {
                now[figure] = now[figure].saturating_sub(before[figure]);
            }
        }
    }
}
