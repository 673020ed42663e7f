//! Profiles with random samples, for tests.

use allocsample_profile::{
    Freed, HeapId, IntervalInfo, Profile, Sample, SampleFlags, SampleId, Sampling, StackId,
    ThreadId,
};
use allocsample_sampling::Random;

/// Samples of 1 to 100 bytes at interval 1, at times below `times`.
pub(crate) fn random_profile(count: u64, times: u64, seed: u64) -> Profile {
    let mut random = Random::from_seed(seed);
    let mut profile = Profile::default();
    // What lies behind the end is in the last bin.
    profile.process.end_ns = times / 2;
    profile.intervals.push(IntervalInfo {
        time_ns: 0,
        sampling: Sampling::Poisson,
        interval_bytes: 1,
        seed,
    });
    for id in 0..count {
        let time_ns = 1 + random.below(times);
        let is_freed = random.below(4) > 0;
        let mut sample = Sample {
            id: SampleId(id),
            time_ns,
            address: id,
            size: 1 + random.below(100),
            thread: ThreadId(1),
            heap: HeapId::MALLOC,
            flags: SampleFlags(if random.below(20) == 0 { 4 } else { 0 }),
            points: 1,
            interval: 0,
            stack: StackId::EMPTY,
            ..Sample::default()
        };
        if is_freed {
            sample.set_freed(Freed {
                time_ns: time_ns + random.below(times + 1 - time_ns),
                thread: ThreadId(1),
            });
        }
        profile.samples.push(sample);
    }
    profile
}
