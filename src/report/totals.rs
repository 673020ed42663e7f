//! What the whole process allocated.

use std::collections::BTreeMap;

use allocsample_profile::{HeapId, Profile, Sample, SampleFlags, ThreadId};
use allocsample_sampling::Estimate;

/// Sums over all samples.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Bytes that were allocated.
    pub allocated: Estimate,
    /// Allocations.
    pub allocations: Estimate,
    /// Bytes alive at the end.
    pub live: Estimate,
    /// When most bytes were alive.
    pub peak: Peak,
    /// The estimate against the exact count, for the process and for each thread.
    pub audit: Audit,
    /// Bytes that went through the threads' counters.
    pub exact_bytes: u64,
}

/// The moment at which the estimated live bytes were largest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    /// Live bytes then.
    pub bytes: f64,
    /// Nanoseconds since the start of the profile.
    pub after_ns: u64,
}

/// How far the estimates are from the exact counts, in standard errors. Within 5 is luck, beyond it a defect: of the
/// profile, or of the program's counting (many blocks of 0 bytes).
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Of the whole process; `None` if there is no standard error.
    pub z: Option<f64>,
    /// Of threads.
    pub threads: BTreeMap<ThreadId, f64>,
}

impl Audit {
    /// Beyond this many standard errors something is wrong.
    pub const LIMIT: f64 = 5.0;

    /// Whether all is within bounds.
    pub fn is_passed(&self) -> bool {
        self.z
            .into_iter()
            .chain(self.threads.values().copied())
            .all(|z| z.abs() <= Self::LIMIT)
    }
}

impl Totals {
    /// Adds up a profile.
    pub fn of(profile: &Profile) -> Self {
        let mut totals = Self {
            allocated: Estimate::default(),
            allocations: Estimate::default(),
            live: Estimate::default(),
            peak: peak(profile),
            audit: Audit::default(),
            exact_bytes: profile.exact_bytes(),
        };
        let mut by_thread: BTreeMap<ThreadId, Estimate> = BTreeMap::new();
        let mut counted = Estimate::default();
        for sample in &profile.samples {
            let bytes = profile.bytes(sample);
            totals.allocated += bytes;
            if profile.is_counted(sample.heap) {
                counted += bytes;
            }
            totals.allocations += profile.objects(sample);
            if sample.is_live() {
                totals.live += bytes;
            }
            // A thread's counter is malloc's.
            if sample.heap == HeapId::MALLOC {
                *by_thread.entry(sample.thread).or_default() += bytes;
            }
        }
        let (_, lost_bytes) = profile.lost.samples();
        // What was lost is missing from the estimate for a known reason.
        totals.audit.z =
            (counted + constant(lost_bytes as f64)).z_against(totals.exact_bytes as f64);
        if lost_bytes == 0 {
            /// With fewer samples the standard error is itself too uncertain.
            const ENOUGH_SAMPLES: u64 = 30;
            totals.audit.threads = by_thread
                .into_iter()
                .filter(|(_, estimate)| estimate.samples() >= ENOUGH_SAMPLES)
                .filter_map(|(id, estimate)| {
                    Some((
                        id,
                        estimate.z_against(profile.threads.get(&id)?.exact_bytes as f64)?,
                    ))
                })
                .collect();
        }
        totals
    }

    /// Length of the profile in seconds.
    pub fn duration_s(profile: &Profile) -> f64 {
        profile
            .process
            .end_ns
            .saturating_sub(profile.process.start_ns) as f64
            / 1e9
    }
}

fn constant(value: f64) -> Estimate {
    Estimate::from_parts(value, Some(0.0), 0)
}

/// Replays allocations and frees in the order of time. At equal times frees first: a block that is replaced is not alive
/// twice.
fn peak(profile: &Profile) -> Peak {
    let is_tracked = |sample: &&Sample| !sample.flags.contains(SampleFlags::UNTRACKED);
    let tracked = || profile.samples.iter().filter(is_tracked);
    let in_time = |changes: &[(u64, f64)]| changes.is_sorted_by_key(|change| change.0);
    // Samples come nearly in the order of time, and usually in it.
    let mut births: Vec<(u64, f64)> = Vec::new();
    let is_sorted = tracked().is_sorted_by_key(|sample| sample.time_ns);
    if !is_sorted {
        births = tracked()
            .map(|sample| (sample.time_ns, profile.bytes(sample).value()))
            .collect();
        births.sort_by_key(|birth| birth.0);
    }
    let mut deaths: Vec<(u64, f64)> = tracked()
        .filter_map(|sample| Some((sample.freed?.time_ns, profile.bytes(sample).value())))
        .collect();
    if !in_time(&deaths) {
        deaths.sort_unstable_by_key(|death| death.0);
    }
    let mut deaths = deaths.into_iter().peekable();
    let mut live = 0.0;
    let mut peak = Peak::default();
    let mut born = |time_ns: u64, bytes: f64| {
        while let Some((_, bytes)) = deaths.next_if(|death| death.0 <= time_ns) {
            live -= bytes;
        }
        live += bytes;
        if live > peak.bytes {
            peak = Peak {
                bytes: live,
                after_ns: time_ns.saturating_sub(profile.process.start_ns),
            };
        }
    };
    if is_sorted {
        for sample in tracked() {
            born(sample.time_ns, profile.bytes(sample).value());
        }
    } else {
        for (time_ns, bytes) in births {
            born(time_ns, bytes);
        }
    }
    peak
}
