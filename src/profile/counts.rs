//! How old the machines' exact counts are.
//!
//! Some machines say how many bytes went through their heaps with a collection, and at the end. Of a process that goes on,
//! or was killed, that may be long ago: an estimate cannot be compared with it.

use allocsample_record::{HeapId, ValueRecord};
use rustc_hash::FxHashMap;

use crate::model::Profile;

/// When each machine last counted, by heap.
#[derive(Default)]
pub(crate) struct Counts(FxHashMap<HeapId, u64>);

impl Counts {
    /// A machine has told a value.
    pub(crate) fn add(&mut self, value: &ValueRecord) {
        if value.statistic == ValueRecord::EXACT_BYTES {
            self.0.insert(value.heap, value.time_ns);
        }
    }

    /// Takes the counts of `profile` away that are older than the last sample of their heap, unless it has come to its end.
    pub(crate) fn drop_old(&self, profile: &mut Profile) {
        let Profile {
            exit,
            part,
            samples,
            vm,
            ..
        } = profile;
        if vm.heaps.is_empty() || exit.is_some() || part.is_continued {
            return;
        }
        let mut last_ns: FxHashMap<HeapId, u64> = FxHashMap::default();
        for sample in samples.iter().filter(|it| it.heap != HeapId::MALLOC) {
            let last = last_ns.entry(sample.heap).or_default();
            *last = sample.time_ns.max(*last);
        }
        for (id, heap) in &mut vm.heaps {
            let counted_ns = self.0.get(id).copied().unwrap_or(0);
            if last_ns.get(id).is_some_and(|&last_ns| last_ns > counted_ns) {
                heap.exact_bytes = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use allocsample_record::ExitHow;

    use super::*;
    use crate::model::{Exit, Sample};
    use crate::vm::Heap;

    /// What a machine has counted when its last sample was taken at 20, and it counted at `counted_ns`.
    fn counted(counted_ns: u64, exit: Option<Exit>) -> u64 {
        let heap = HeapId(1);
        let mut profile = Profile {
            exit,
            ..Profile::default()
        };
        let counted = Heap {
            exact_bytes: 5000,
            ..Heap::default()
        };
        profile.vm.heaps.insert(heap, counted);
        profile.samples.push(Sample {
            time_ns: 20,
            heap,
            ..Sample::default()
        });
        let mut counts = Counts::default();
        counts.add(&ValueRecord {
            time_ns: counted_ns,
            heap,
            statistic: ValueRecord::EXACT_BYTES,
            value: 5000,
        });
        counts.drop_old(&mut profile);
        profile.exact_bytes_of(heap)
    }

    #[test]
    fn an_old_count_of_a_process_that_goes_on_is_none() {
        let exit = Exit {
            time_ns: 30,
            how: ExitHow::Exit,
            status: None,
        };
        assert_eq!(counted(10, None), 0);
        assert_eq!(counted(20, None), 5000);
        assert_eq!(counted(10, Some(exit)), 5000);
    }
}
