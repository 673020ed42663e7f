//! Rows of functions, lines and modules. A sum belongs to each row that has a frame on its stack, and is charged to one.

use std::ops::Range;

use allocsample_profile::Frame;
use rayon::prelude::*;

use super::By;
use super::group::{Group, Groups, Total};
use crate::frames::{FrameId, FrameKeys, Frames};
use crate::sums::{Figures, Sums};

/// No row.
const NONE: u32 = u32::MAX;

/// Sums are added up in parts of a fixed size, so that no figure depends on how many threads there are.
const PART: usize = 1 << 18;

/// The rows of all sums.
pub(super) fn group(frames: &Frames<'_>, by: By, sums: &Sums) -> Groups {
    group_in_parts(frames, by, sums, PART)
}

fn group_in_parts(frames: &Frames<'_>, by: By, sums: &Sums, part: usize) -> Groups {
    let keys = &keys(frames, by);
    let count = sums.count() as usize;
    let parts: Vec<Rows<'_>> = (0..count.div_ceil(part))
        .into_par_iter()
        .map(|number| {
            let mut rows = Rows::new(keys);
            rows.add_sums(frames, sums, number * part..count.min((number + 1) * part));
            rows
        })
        .collect();
    let mut all = Rows::new(keys);
    parts.iter().for_each(|part| all.merge(part));
    all.groups
}

fn keys(frames: &Frames<'_>, by: By) -> FrameKeys {
    fn line(frame: &Frame) -> (&str, Option<&str>, u32) {
        (&frame.function, frame.file.as_deref(), frame.line)
    }
    match by {
        By::Module => frames.keys(|frame| frame.module.as_str()),
        By::Line => frames.keys(line),
        _ => frames.function_keys(),
    }
}

/// The rows of some sums, in the order in which their frames first came. Frames with the same key have one row.
struct Rows<'k> {
    keys: &'k FrameKeys,
    /// The row of each key; [`NONE`] before its first frame.
    of_key: Vec<u32>,
    groups: Groups,
}

impl<'k> Rows<'k> {
    fn new(keys: &'k FrameKeys) -> Self {
        Self {
            keys,
            of_key: vec![NONE; keys.first.len()],
            groups: Groups::default(),
        }
    }

    fn key(&self, frame: FrameId) -> usize {
        self.keys.of_frame[frame.index()] as usize
    }

    /// The row of a key; a new one is named after this sum.
    fn row_of(&mut self, key: usize, sum: u32) -> usize {
        let groups = &mut self.groups;
        if self.of_key[key] == NONE {
            // There are no more rows than frames, whose numbers have 32 bits.
            self.of_key[key] = groups.groups.len() as u32;
            groups.groups.push(Group {
                sum,
                frame: Some(self.keys.first[key]),
            });
            groups.own.push(Figures::default());
            groups.total.push(Total::default());
        }
        self.of_key[key] as usize
    }

    fn add_sums(&mut self, frames: &Frames<'_>, sums: &Sums, range: Range<usize>) {
        // The last sum, plus one, that was added to a row: a function may be on a stack several times.
        let mut seen = vec![0; self.of_key.len()];
        let mut stack = Vec::new();
        for number in range {
            // Sums have numbers of 32 bits.
            let number = number as u32;
            let sum = sums.at(number);
            let sample = sum.sample(frames.profile);
            frames.fill(sample.stack, &mut stack);
            let total = Total::of(&sum.figures);
            for &frame in &stack {
                let key = self.key(frame);
                if std::mem::replace(&mut seen[key], number + 1) != number + 1 {
                    let row = self.row_of(key, number);
                    self.groups.total[row].add(&total);
                }
            }
            // There is a frame: a stack without any has one that says so.
            let charged = frames.charged(sample.heap, &stack).unwrap_or(0);
            let row = self.of_key[self.key(stack[charged])];
            self.groups.own[row as usize].add(&sum.figures);
            self.groups.charged.push(row);
        }
    }

    /// Adds the rows of the sums behind.
    fn merge(&mut self, behind: &Self) {
        let theirs = &behind.groups;
        let mut row_here = Vec::with_capacity(theirs.groups.len());
        for (place, group) in theirs.groups.iter().enumerate() {
            // A row of frames has one.
            let key = group.frame.map_or(0, |frame| self.key(frame));
            let row = self.row_of(key, group.sum);
            self.groups.own[row].add(&theirs.own[place]);
            self.groups.total[row].add(&theirs.total[place]);
            row_here.push(row as u32);
        }
        let charged = theirs.charged.iter();
        self.groups
            .charged
            .extend(charged.map(|&row| row_here[row as usize]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Filter;
    use crate::random_profile::random_profile;
    use crate::selection::{Selection, Window};
    use allocsample_profile::{
        HeapId, Location, ModuleId, Profile, Sample, StackId, StackNode, SymbolFrame,
    };
    use allocsample_sampling::Random;
    use std::collections::BTreeMap;

    /// The straightforward way: every frame of every stack.
    fn expected(frames: &Frames<'_>, by: By, sums: &Sums) -> BTreeMap<FrameId, (f64, f64, u64)> {
        let keys = keys(frames, by);
        let mut rows: BTreeMap<FrameId, (f64, f64, u64)> = BTreeMap::new();
        let mut stack = Vec::new();
        for sum in sums.iter() {
            let sample = sum.sample(frames.profile);
            frames.fill(sample.stack, &mut stack);
            let first = |frame: FrameId| keys.first[keys.of_frame[frame.index()] as usize];
            let charged = frames.charged(sample.heap, &stack).unwrap_or(0);
            rows.entry(first(stack[charged])).or_default().0 += sum.figures.allocated.value();
            let mut on_stack: Vec<FrameId> = stack.iter().map(|&frame| first(frame)).collect();
            on_stack.sort();
            on_stack.dedup();
            for frame in on_stack {
                let row = rows.entry(frame).or_default();
                row.1 += sum.figures.allocated.value();
                row.2 += sum.figures.allocated.samples();
            }
        }
        rows
    }

    /// Samples in a random tree of stacks: functions are inlined into each other, and call themselves.
    fn random_stacks(seed: u64) -> Profile {
        const PLACES: u64 = 40;
        let mut random = Random::from_seed(seed);
        let mut profile = random_profile(500, 100, seed);
        let place = |offset| Location {
            module: ModuleId::NONE,
            offset,
        };
        for offset in 0..PLACES {
            let mut frame = || SymbolFrame {
                function: Some(format!("f{}", random.below(12)).into()),
                line: random.below(3) as u32,
                ..SymbolFrame::default()
            };
            let frames = [frame(), frame(), frame()];
            let count = 1 + random.below(3) as usize;
            let frames = frames[..count].to_vec();
            profile.symbols.frames.insert(place(offset), frames);
        }
        for number in 0..300 {
            let parent = StackId(random.below(number + 1) as u32);
            let location = place(random.below(PLACES));
            profile.stacks.push(StackNode { parent, location });
        }
        for row in 0..profile.samples.len() {
            let mut sample = profile.samples.at(row);
            sample.stack = StackId(1 + random.below(300) as u32);
            sample.heap = HeapId(random.below(2) as u16);
            profile.samples.set(row, sample);
        }
        profile
    }

    #[test]
    fn rows_have_what_a_walk_over_every_stack_finds() {
        for seed in 1..=20 {
            let profile = random_stacks(seed);
            let frames = Frames::of(&profile);
            let selection = Selection::from(Filter::default());
            let window = Window::of(&profile, &selection, None);
            // Several sums of a stack.
            let mark = |sample: &Sample| (sample.size % 2) as u32;
            let sums = Sums::of(&profile, &frames, &selection, window, false, mark);
            let parts = [1, 50, PART].into_iter();
            let ways =
                parts.flat_map(|part| [By::Function, By::Line, By::Module].map(|by| (by, part)));
            for (by, part) in ways {
                let groups = group_in_parts(&frames, by, &sums, part);
                let rows = groups.groups.iter().zip(&groups.own).zip(&groups.total);
                let found: BTreeMap<_, _> = rows
                    .map(|((group, own), total)| {
                        let allocated = &total.allocated;
                        let figures = (
                            own.allocated.value(),
                            allocated.value(),
                            allocated.samples(),
                        );
                        (group.frame.unwrap(), figures)
                    })
                    .collect();
                // Sums of whole numbers: exact, in whatever order.
                assert_eq!(
                    found,
                    expected(&frames, by, &sums),
                    "{by:?}, {part}, seed {seed}"
                );
                assert_eq!(groups.groups.len(), found.len());
                for (sum, &row) in sums.iter().zip(&groups.charged) {
                    let mut stack = Vec::new();
                    let charged = frames.charged_to(&sum.sample(&profile), &mut stack);
                    let (_, frame) = charged.unwrap();
                    let keys = keys(&frames, by);
                    let first = keys.first[keys.of_frame[frame.index()] as usize];
                    assert_eq!(groups.groups[row as usize].frame, Some(first));
                }
            }
        }
    }
}
