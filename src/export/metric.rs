//! The kinds of figures that a format shows which can show only one.

use allocsample_profile::{Halves, Peak, Profile, Sample, StackId};

use crate::source::Source;

/// What a format shows that can show one kind of figure only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Metric {
    /// All bytes that were allocated.
    #[default]
    Allocated,
    /// Those that were live when the process held most.
    Peak,
    /// Those that were still allocated at the end.
    Live,
    /// Nanoseconds of processors, from samples of time.
    Cpu,
}

impl Metric {
    /// As a heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Metric::Allocated => "Allocated bytes",
            Metric::Live => "Live bytes",
            Metric::Peak => "Bytes live at the peak",
            Metric::Cpu => "CPU time in nanoseconds",
        }
    }

    /// What a profile has that has none of it.
    pub(crate) fn absent(self) -> &'static str {
        match self {
            Metric::Allocated => "no allocations",
            Metric::Live => "no live bytes; use --metric allocated to include freed blocks",
            Metric::Peak => "no bytes that were live at the peak",
            Metric::Cpu => "no CPU time, which `allocsample run --time-hz 99` records",
        }
    }

    /// Bytes (or nanoseconds) by stack, for stacks that have any, in the order of their numbers.
    pub(crate) fn by_stack(self, source: &Source) -> Vec<(StackId, f64)> {
        let profile = source.profile;
        let mut sums = vec![0.0; profile.stacks.count() as usize + 1];
        let mut add = |stack: StackId, more: f64| sums[stack.0 as usize] += more;
        match self {
            Metric::Peak => at_peak(profile, |sample, bytes| add(sample.stack, bytes)),
            Metric::Cpu => {
                let ticks = source.ticks.iter();
                ticks.for_each(|tick| add(tick.stack, tick.cpu_ns as f64));
            }
            Metric::Allocated | Metric::Live => {
                for (sample, bytes) in source.samples.with_bytes() {
                    let is_counted = match self {
                        Metric::Live => sample.is_live(),
                        _ => !sample.is_carried(),
                    };
                    if is_counted {
                        add(sample.stack, bytes);
                    }
                }
            }
        }
        let sums = (0..).map(StackId).zip(sums);
        sums.filter(|&(_, sum)| sum > 0.0).collect()
    }
}

/// Tells `add` of every sample that was live when the process held most, and of how many bytes it stands for.
pub(crate) fn at_peak(profile: &Profile, mut add: impl FnMut(&Sample, f64)) {
    let moments = Peak::of(profile).moments;
    let mut halves = Halves::of(profile);
    for sample in &profile.samples {
        let bytes = halves.at(&sample, &moments).value();
        if bytes > 0.0 {
            add(&sample, bytes);
        }
    }
}
