//! The part of a recording in which the blocks of a heap are judged.
//!
//! Blocks of malloc are judged to the horizon: a block is alive until it is freed. In a collected heap an object counts as
//! live until a collection finds it dead, so an object that was born after the last full collection began may be garbage.
//! There only objects that were born before count, and their run ends at that collection ([`Examined`] has the rule).
//! Objects that the first full collection after their birth finds dead were never known to be live: they are *transient*,
//! and add nothing to the level, which would be a sawtooth of garbage otherwise.

use std::sync::Arc;

use allocsample_profile::{Examined, GcKind, HeapId, Profile, Sample};

use crate::blocks::Life;
use crate::growth::WARM_UP;
use crate::progress::{self, Clock};

/// A run that ends before this part of the recording says too little of the rest.
const LEAST_EXAMINED: f64 = 0.5;

/// An object that the first full collection after its birth finds dead may have died at any time since. If that collection came
/// within this part of the run, it was hardly known to be live. If it came later, or there was but one, the object counts until
/// then: a full cache whose old entries only that collection finds dead would seem to grow otherwise.
const LONGEST_TRANSIENT: f64 = 0.25;

/// From when to when blocks are looked at, and the clocks that measure progress in between.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// That of time first. Shared: they are as large as the samples.
    pub clocks: Arc<Vec<Clock>>,
    /// Blocks that were born later do not count.
    pub end_ns: u64,
    /// Deaths after this moment do not count. It is the horizon of the recording.
    pub horizon_ns: u64,
    /// No full collection, or none in the second half of the recording, has looked at what is live.
    pub is_unexamined: bool,
    /// When the full collections began, in their order, where what is live was examined.
    full_ns: Vec<u64>,
}

impl Span {
    /// Of these clocks, without collections.
    #[cfg(test)]
    pub fn of_clocks(clocks: Vec<Clock>, end_ns: u64) -> Self {
        Self {
            clocks: Arc::new(clocks),
            end_ns,
            horizon_ns: end_ns,
            is_unexamined: false,
            full_ns: Vec::new(),
        }
    }

    /// Of malloc's blocks.
    pub fn whole(profile: &Profile, horizon_ns: u64) -> Self {
        Self {
            clocks: Arc::new(progress::clocks(profile, horizon_ns)),
            end_ns: horizon_ns,
            horizon_ns,
            is_unexamined: false,
            full_ns: Vec::new(),
        }
    }

    /// Of each collected heap.
    pub fn collected(profile: &Profile, whole: &Self) -> Vec<(HeapId, Self)> {
        let examined = Examined::of(profile);
        let heaps = profile.vm.heaps.keys();
        let collected = heaps.filter(|heap| examined.is_collected(**heap));
        collected
            .map(|&heap| {
                let until_ns = examined.until_ns(heap);
                (heap, Self::of_collected(profile, heap, until_ns, whole))
            })
            .collect()
    }

    /// `until_ns` is when the last full collection began whose findings are known.
    fn of_collected(profile: &Profile, heap: HeapId, until_ns: Option<u64>, whole: &Self) -> Self {
        let gcs = profile.vm.gcs.iter();
        let full = gcs.filter(|gc| gc.heap == heap && gc.kind == GcKind::Major);
        let looked_until: Vec<u64> = full.map(|gc| gc.looked_until_ns).collect();
        // While the program runs nothing is freed because it ends: a collection that was asked for just now counts. Once it has ended,
        // one behind the horizon may be that of its end; without such a one, deaths that are told there were found before.
        let ends_with_one =
            progress::has_ended(profile) && looked_until.iter().any(|&it| it > whole.horizon_ns);
        let horizon_ns = match ends_with_one {
            true => whole.horizon_ns,
            false => whole.horizon_ns.max(profile.process.end_ns),
        };
        let last_ns = until_ns.unwrap_or(0).min(horizon_ns);
        let mut full_ns = looked_until;
        full_ns.retain(|&until| until <= last_ns);
        full_ns.sort_unstable();
        let is_late = |begin_ns: &u64| whole.clocks[0].at(*begin_ns) >= LEAST_EXAMINED;
        match full_ns.last().copied().filter(is_late) {
            Some(begin_ns) => Self {
                clocks: Arc::new(progress::clocks(profile, begin_ns.saturating_sub(1))),
                end_ns: begin_ns.saturating_sub(1),
                horizon_ns,
                is_unexamined: false,
                full_ns,
            },
            None => Self {
                is_unexamined: true,
                ..whole.clone()
            },
        }
    }

    /// Whether a sample was born in it.
    #[inline]
    pub fn contains(&self, sample: &Sample) -> bool {
        sample.time_ns <= self.end_ns
    }

    /// When a sample was freed, if that was before the horizon.
    #[inline]
    pub fn death_ns(&self, sample: &Sample) -> Option<u64> {
        let freed = sample.freed()?;
        Some(freed.time_ns).filter(|&time_ns| time_ns <= self.horizon_ns)
    }

    /// Born in it, and not freed before the horizon.
    #[inline]
    pub fn is_live(&self, sample: &Sample) -> bool {
        self.contains(sample) && self.death_ns(sample).is_none()
    }

    /// By the clock with this index; `bytes` is what the sample stands for.
    pub fn life(&self, clock: usize, sample: &Sample, bytes: f64) -> Life {
        let clock = &self.clocks[clock];
        let death_ns = self.death_ns(sample);
        Life {
            birth: clock.at(sample.time_ns),
            // What the collection at the end finds dead dies at the end.
            death: death_ns.map(|time_ns| clock.at(time_ns).min(1.0)),
            is_transient: death_ns.is_some_and(|death_ns| self.is_transient(sample, death_ns)),
            bytes,
        }
    }

    /// Found dead by the first full collection after its birth, or between that and the second, and soon.
    fn is_transient(&self, sample: &Sample, death_ns: u64) -> bool {
        let first = self
            .full_ns
            .partition_point(|&begin| begin < sample.time_ns);
        let Some(&first_ns) = self.full_ns.get(first) else {
            return false;
        };
        let second = self.full_ns.get(first + 1);
        let clock = &self.clocks[0];
        let waited = clock.at(first_ns) - clock.at(sample.time_ns);
        waited <= LONGEST_TRANSIENT
            && death_ns >= first_ns
            && second.is_none_or(|&begin_ns| death_ns < begin_ns)
    }

    /// Seconds that were looked at.
    pub fn length_s(&self) -> f64 {
        let start_ns = self.clocks[0].time_ns(0.0);
        self.end_ns.saturating_sub(start_ns) as f64 / 1e9
    }

    /// Bytes since the warm-up as bytes in a second.
    pub fn per_s(&self, bytes: f64) -> f64 {
        per(bytes, self.length_s() * (1.0 - WARM_UP))
    }

    /// Bytes in the whole of it as bytes in a second.
    pub fn in_whole_per_s(&self, bytes: f64) -> f64 {
        per(bytes, self.length_s())
    }
}

fn per(bytes: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Fate, Freed, Gc, Sample, ThreadId};

    fn sample(time_ns: u64, dead_ns: Option<u64>) -> Sample {
        let mut sample = Sample {
            heap: HeapId(1),
            time_ns,
            first_fate: Some(Fate::Alive),
            ..Sample::default()
        };
        if let Some(time_ns) = dead_ns {
            let thread = ThreadId(0);
            sample.set_freed(Freed { time_ns, thread });
        }
        sample
    }

    fn recorded(full_ns: &[u64]) -> Profile {
        let mut profile = Profile::default();
        profile.process.end_ns = 1000;
        profile.samples = vec![sample(100, None), sample(300, Some(810)), sample(900, None)].into();
        profile.vm.heaps.insert(HeapId(1), Default::default());
        profile.vm.gcs = full_ns
            .iter()
            .map(|&begin_ns| Gc {
                heap: HeapId(1),
                kind: GcKind::Major,
                id: begin_ns,
                begin_ns,
                end_ns: begin_ns + 20,
                looked_until_ns: begin_ns,
                statistics: Vec::new(),
            })
            .collect();
        profile
    }

    #[test]
    fn objects_that_no_full_collection_has_looked_at_do_not_count() {
        let of = |full_ns: &[u64]| {
            let profile = recorded(full_ns);
            let whole = Span::whole(&profile, 950);
            let (heap, span) = Span::collected(&profile, &whole).remove(0);
            assert_eq!(heap, HeapId(1));
            let live = profile.samples.iter().map(|it| span.is_live(&it));
            (span.is_unexamined, live.collect::<Vec<bool>>())
        };
        // The second one was found dead by the collection that ends the run.
        assert_eq!(of(&[200, 800]), (false, vec![true, false, false]));
        let profile = recorded(&[200, 800]);
        let whole = Span::whole(&profile, 950);
        let span = Span::collected(&profile, &whole).remove(0).1;
        let is_transient = |birth_ns, death_ns| {
            let sample = sample(birth_ns, Some(death_ns));
            span.life(0, &sample, 1.0).is_transient
        };
        assert!(is_transient(100, 210), "the first one found it dead");
        assert!(!is_transient(100, 810), "it survived the first one");
        assert!(is_transient(700, 810));
        assert!(!is_transient(300, 810), "that collection came late");
        assert!(!is_transient(100, 150), "another one found it dead before");
        // None, or none for long: nothing is left out, but nothing is known of it either.
        assert_eq!(of(&[]), (true, vec![true, false, true]));
        assert_eq!(of(&[200]), (true, vec![true, false, true]));
    }

    #[test]
    fn a_collection_behind_the_horizon_counts_while_the_program_runs() {
        let mut profile = recorded(&[200, 980]);
        let whole = Span::whole(&profile, 950);
        let is_examined_to = |profile: &Profile| {
            let span = Span::collected(profile, &whole).remove(0).1;
            (!span.is_unexamined).then_some(span.end_ns)
        };
        assert_eq!(is_examined_to(&profile), Some(979));
        // One that a program makes when it ends finds everything dead.
        profile.exit = Some(allocsample_profile::Exit {
            time_ns: 1000,
            how: allocsample_profile::ExitHow::Exit,
            status: Some(0),
        });
        assert_eq!(is_examined_to(&profile), None);
    }

    /// A collector may tell of the dead after the last allocation, when the program has nearly ended.
    #[test]
    fn deaths_that_are_told_late_count_unless_the_end_may_have_brought_them() {
        let of = |full_ns: &[u64]| {
            let mut profile = recorded(full_ns);
            profile.samples = vec![sample(100, None), sample(300, Some(970))].into();
            profile.exit = Some(allocsample_profile::Exit {
                time_ns: 1000,
                how: allocsample_profile::ExitHow::Exit,
                status: Some(0),
            });
            let whole = Span::whole(&profile, 950);
            let span = Span::collected(&profile, &whole).remove(0).1;
            let live = profile.samples.iter().map(|it| span.is_live(&it));
            live.collect::<Vec<bool>>()
        };
        assert_eq!(of(&[200, 800]), [true, false]);
        assert_eq!(of(&[200, 800, 960]), [true, true]);
    }
}
