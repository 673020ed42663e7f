//! Why a table or a tree has no rows, and where else to look.

use allocsample_profile::{Note, Profile};

use super::Options;
use crate::sums::Figures;
use crate::table::Sort;
use crate::totals::Totals;
use crate::units;

/// The line in place of the rows. A worker between two requests holds nothing that was sampled, for example.
pub(super) fn line(
    profile: &Profile,
    totals: &Totals,
    selected: &Figures,
    options: &Options,
) -> String {
    let samples = selected.allocated.samples();
    if samples + selected.live.samples() == 0 {
        return "no rows: no sample passes the filters".to_owned();
    }
    let is_of_peak = options.sort == Sort::Peak || options.selection.at_peak.is_some();
    let moment = match options.sort {
        _ if is_of_peak => "at the peak".to_owned(),
        Sort::Live if profile.is_running => "now".to_owned(),
        Sort::Live => match options.selection.until_ns {
            Some(until) => format!("after {}", units::duration(until as f64 / 1e9)),
            None => "at the end".to_owned(),
        },
        Sort::Allocated | Sort::Count | Sort::Growth | Sort::Peak => {
            return "no rows: the samples have none of this measure".to_owned();
        }
    };
    let mut line = format!(
        "no rows: nothing of {} is live {moment}",
        match samples {
            1 => "1 sample".to_owned(),
            samples => format!("{} samples", units::count(samples as f64)),
        }
    );
    let has_peak = !is_of_peak && totals.peak.bytes.samples() > 0;
    line += match has_peak {
        true => "; `--sort peak` shows the largest amount held, `--sort allocated` all samples",
        false => "; `--sort allocated` shows all samples",
    };
    let mut notes = profile.notes.iter();
    if let Some((_, parent)) = notes.find(|(note, _)| *note == Note::ForkedFrom) {
        line += &format!(
            "; process {parent}, which forked this one, and its other children have profiles of their own"
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::frames::Frames;
    use crate::selection::Selection;
    use crate::table::By;
    use crate::text::{Shape, write};
    use crate::tree::Direction;
    use crate::width::Width;
    use allocsample_profile::{
        IntervalInfo, Location, ModuleId, Sample, Sampling, StackId, StackNode,
    };

    /// A forked worker that has freed all that it allocated.
    fn worker() -> Profile {
        let mut profile = Profile::default();
        profile.intervals.push(IntervalInfo {
            time_ns: 0,
            sampling: Sampling::Poisson,
            interval_bytes: 1,
            seed: 1,
        });
        profile.notes.push((Note::ForkedFrom, "7".to_owned()));
        let location = Location {
            module: ModuleId(0),
            offset: 9,
        };
        let parent = StackId::EMPTY;
        let stack = profile.stacks.push(StackNode { parent, location });
        for at in 1..=3 {
            profile.samples.push(Sample {
                time_ns: at,
                address: at << 12,
                size: 100,
                stack,
                points: 1,
                freed_ns: NonZeroU64::new(at + 10),
                ..Sample::default()
            });
        }
        profile.is_running = true;
        profile
    }

    fn printed(profile: &Profile, shape: Shape, sort: Sort) -> String {
        let options = Options {
            shape,
            sort,
            top: 10,
            selection: Selection::default(),
            width: Width::new(None),
            colour: false,
        };
        let (totals, frames) = (Totals::of(profile), Frames::of(profile));
        let mut out = Vec::new();
        write(profile, &totals, Some(&frames), &options, &mut out).expect("memory");
        let text = String::from_utf8(out).expect("UTF-8");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_worker_that_holds_nothing_says_so_and_where_to_look_in_every_shape() {
        let worker = worker();
        for shape in [Shape::Table(By::Function), Shape::Tree(Direction::Down)] {
            let text = printed(&worker, shape.clone(), Sort::Live);
            let line = "no rows: nothing of 3 samples is live now; `--sort peak` shows the largest amount held, `--sort allocated` all samples; process 7, which forked this one, and its other children have profiles of their own";
            assert!(text.ends_with(line), "{text}");
            assert!(!printed(&worker, shape, Sort::Peak).contains("no rows"));
        }
    }
}
