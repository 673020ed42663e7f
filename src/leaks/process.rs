//! How the whole process grows, against which the sites are measured.

use allocsample_profile::{HeapId, Note, Profile, SampleFlags};
use allocsample_report::Weights;

use crate::growth::{WARM_UP, Window};
use crate::progress;
use crate::span::Span;

/// Growth of the process after the first fifth of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessGrowth {
    /// Of its resident set, in bytes a second: the least-squares line. `None` with too few readings, or a change that
    /// is too small for them.
    pub resident_per_s: Option<f64>,
    /// Of all sampled live bytes.
    pub live_per_s: f64,
    /// 95 % confidence limits of that.
    pub live_per_s_95: (f64, f64),
    /// Variance of that.
    pub(crate) variance: f64,
    /// Recording began while the program ran, or was interrupted: blocks that were allocated unrecorded are freed unseen, and
    /// what is alive seems to grow.
    pub began_late: bool,
}

/// Of what a site seems to have grown by, the part that the process must have grown by beyond the others to confirm it.
const CONFIRMED: f64 = 0.5;
/// Of the run, the time without sampling that does not matter.
const UNOBSERVED: f64 = 0.01;
/// Of the resident set, the change that is recorded for sure.
const RESOLUTION: f64 = 1.0 / 32.0;
/// The normal quantile of one-sided 99 %.
const Z_99: f64 = 2.326;

impl ProcessGrowth {
    /// Of a profile whose heaps are looked at in these spans.
    pub(crate) fn of<'s>(
        profile: &Profile,
        whole: &Span,
        span: impl Fn(HeapId) -> &'s Span,
    ) -> Self {
        let start_ns = progress::observed_from_ns(profile);
        let heaps = profile.vm.heaps.keys().copied();
        let heaps = heaps.filter(|&heap| heap != HeapId::MALLOC);
        let (mut live_per_s, mut variance) = (0.0, 0.0);
        for heap in heaps.chain([HeapId::MALLOC]) {
            let span = span(heap);
            let window = window(profile, heap, span);
            live_per_s += span.per_s(window.net());
            variance += span.per_s(window.error()).powi(2);
        }
        let half = 1.96 * variance.sqrt();
        Self {
            resident_per_s: resident_per_s(profile, start_ns, whole.horizon_ns),
            live_per_s,
            live_per_s_95: (live_per_s - half, live_per_s + half),
            variance,
            began_late: began_late(profile, whole),
        }
    }

    /// The better of the two.
    pub fn per_s(&self) -> f64 {
        self.resident_per_s.unwrap_or(self.live_per_s)
    }

    /// Whether the growth of a site, with this variance, may be blocks that take the place of others, which are freed
    /// unseen. If it is, the process grows by no more than the other sites seem to: unseen frees only make a site seem to
    /// grow more than it does. So two things must hold of the growth of the resident set. It exceeds that of all other sites
    /// together by more than chance (one-sided, 1 %), which refutes that the site does not grow. And the excess is at least
    /// half of the site's growth, so that it is this site that grows, and not a part of the process that nobody sees.
    pub(crate) fn is_unconfirmed(&self, site_per_s: f64, site_variance: f64) -> bool {
        if !self.began_late {
            return false;
        }
        let Some(resident_per_s) = self.resident_per_s else {
            return true;
        };
        let error = (self.variance - site_variance).max(0.0).sqrt();
        let excess_per_s = resident_per_s - (self.live_per_s - site_per_s);
        excess_per_s < Z_99 * error || excess_per_s < CONFIRMED * site_per_s
    }
}

/// What came and went in a heap since the warm-up.
fn window(profile: &Profile, heap: HeapId, span: &Span) -> Window {
    let mut weights = Weights::of(profile);
    let samples = profile.samples.iter().filter(|sample| {
        let is_tracked = !sample.flags.contains(SampleFlags::UNTRACKED);
        sample.heap == heap && is_tracked && span.contains(sample)
    });
    let lives = samples.map(|sample| {
        let bytes = weights.get(&sample).0.value();
        span.life(0, &sample, bytes)
    });
    Window::of_each(lives, WARM_UP)
}

fn began_late(profile: &Profile, whole: &Span) -> bool {
    let mut notes = profile.notes.iter();
    let is_attached = notes.any(|(note, _)| *note == Note::Attached);
    let is_cut = profile.span_ns().start > profile.process.start_ns;
    let unobserved_s = progress::unobserved_ns(profile, whole.horizon_ns) as f64 / 1e9;
    is_attached || is_cut || unobserved_s > UNOBSERVED * whole.length_s()
}

/// The slope of the least-squares line through the readings of the resident set.
fn resident_per_s(profile: &Profile, start_ns: u64, horizon_ns: u64) -> Option<f64> {
    let length_ns = horizon_ns.checked_sub(start_ns)? as f64;
    let place = |time_ns: u64| (time_ns as f64 - start_ns as f64) / length_ns;
    let readings = profile.resident_bytes.iter();
    let points: Vec<(f64, f64)> = readings
        .map(|&(time_ns, bytes)| (place(time_ns), bytes as f64))
        .filter(|(place, _)| (WARM_UP..=1.05).contains(place))
        .collect();
    let (first, last) = (points.first(), points.last());
    let spanned = first
        .zip(last)
        .map_or(0.0, |(first, last)| last.0 - first.0);
    let slope = if points.len() >= 3 && spanned >= (1.0 - WARM_UP) / 2.0 {
        slope(&points)
    } else {
        changes_slope(profile, place)?
    };
    Some(slope / (length_ns / 1e9))
}

/// The same from the readings of the memory map. They were recorded only when the memory had changed, so a level stays
/// until the next reading. Readings from before the recording are left out: the growth until then is not its growth. `None` if
/// there is none before the end of the warm-up, or if the memory changed by less than a reading takes.
fn changes_slope(profile: &Profile, place: impl Fn(u64) -> f64) -> Option<f64> {
    const STEPS: u32 = 64;
    let totals = || {
        let totals = profile.memory.iter().map(|map| map.totals);
        totals.filter(|it| place(it.time_ns) >= 0.0)
    };
    let level = |at: f64| {
        let last = totals().take_while(|it| place(it.time_ns) <= at).last();
        last.map(|it| it.resident_bytes as f64)
    };
    let at = |step: u32| WARM_UP + (1.0 - WARM_UP) * f64::from(step) / f64::from(STEPS);
    let points: Option<Vec<(f64, f64)>> = (0..=STEPS)
        .map(|step| Some((at(step), level(at(step))?)))
        .collect();
    let points = points?;
    let slope = slope(&points);
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    ((1.0 - WARM_UP) * slope.abs() >= RESOLUTION * highest).then_some(slope)
}

fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (time, bytes) = (mean(|point| point.0), mean(|point| point.1));
    let products: f64 = points.iter().map(|it| (it.0 - time) * (it.1 - bytes)).sum();
    let squares: f64 = points.iter().map(|it| (it.0 - time).powi(2)).sum();
    products / squares
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{MemoryMap, MemoryTotals};

    #[test]
    fn a_site_is_confirmed_by_what_the_others_do_not_explain() {
        let growth = |resident_per_s, live_per_s| ProcessGrowth {
            resident_per_s,
            live_per_s,
            variance: 0.01,
            began_late: true,
            ..ProcessGrowth::default()
        };
        // A leak of 5 and a full cache of 1, whose old entries are freed unseen.
        let both = growth(Some(5.0), 6.0);
        assert!(!both.is_unconfirmed(5.0, 0.01));
        assert!(both.is_unconfirmed(1.0, 0.01));
        // As before, but how much the others grow is known too badly: 1 at most is what chance makes of nothing.
        let unsure = ProcessGrowth {
            variance: 0.25,
            ..growth(Some(5.0), 5.9)
        };
        assert!(unsure.is_unconfirmed(1.0, 0.01));
        // A leak of 1, beside others of 0.2 that are known to 0.2: their upper limit alone leaves less than half of it.
        let small = ProcessGrowth {
            variance: 0.05,
            ..growth(Some(1.0), 1.2)
        };
        assert!(!small.is_unconfirmed(1.0, 0.01));
        // Two leaks.
        assert!(!growth(Some(6.0), 6.0).is_unconfirmed(1.0, 0.01));
        assert!(growth(None, 6.0).is_unconfirmed(5.0, 0.01));
        let from_the_start = ProcessGrowth {
            began_late: false,
            ..growth(None, 6.0)
        };
        assert!(!from_the_start.is_unconfirmed(5.0, 0.01));
    }

    #[test]
    fn the_resident_set_is_read_from_its_changes_if_there_are_no_regular_readings() {
        let of = |bytes: &dyn Fn(u64) -> u64| {
            let mut profile = Profile::default();
            let reading = |second: u64| MemoryMap {
                totals: MemoryTotals {
                    time_ns: second * 1_000_000_000,
                    resident_bytes: bytes(second),
                    ..MemoryTotals::default()
                },
                ..MemoryMap::default()
            };
            // Nothing was recorded while nothing changed.
            let kept = (0..=100).filter(|&it| it == 0 || bytes(it) != bytes(it - 1));
            profile.memory = kept.map(reading).collect();
            resident_per_s(&profile, 0, 100_000_000_000)
        };
        let growing = of(&|second| 1_000_000 + 20_000 * second).expect("a slope");
        assert!((growing / 20_000.0 - 1.0).abs() < 0.02, "{growing}");
        // From the middle on; the line has 1.5 times the mean slope of a step in the middle.
        let step = of(&|second| if second < 60 { 1_000_000 } else { 2_000_000 });
        let mean = 1_000_000.0 / 80.0;
        assert!(
            (1.4..1.6).contains(&(step.expect("a slope") / mean)),
            "{step:?}"
        );
        assert_eq!(of(&|_| 1_000_000), None, "too small to be recorded");
        // The program grew before the recording began; the next reading came after the warm-up.
        let mut profile = Profile::default();
        for (time_ns, resident_bytes) in [(10, 1_000_000), (150, 2_000_000), (190, 2_000_000)] {
            let mut map = MemoryMap::default();
            (map.totals.time_ns, map.totals.resident_bytes) = (time_ns, resident_bytes);
            profile.memory.push(map);
        }
        assert_eq!(resident_per_s(&profile, 100, 200), None);
        assert_eq!(of(&|second| 1_000_000 + 200 * second), None);
    }
}
