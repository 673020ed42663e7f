//! The rows of each thread of the document, written by several threads of ours.
//!
//! What is in memory is one thread's stacks, 8 bytes each, and its rows, 16 or 24 bytes each. See the module above for what the
//! threads stand for.

use std::io::Write;

use allocsample_profile::{Sample, StackId};
use fxprof_processed_profile::{CategoryHandle, CpuDelta};
use rustc_hash::FxHashMap;
use serde::ser::Error as _;
use serde_json::Value;
use serde_json::value::RawValue;

use super::fields::{Fields, Part};
use super::moments::{Chosen, Moments, Weights, freed_ns};
use super::{tables, tick_period_ns, timestamp};
use crate::ExportError;
use crate::object::{Array, Object};
use crate::source::{LocationIndex, Source};

/// What a thread of the document has.
#[derive(Debug)]
pub(super) struct Track {
    /// Samples of which it has allocations and frees.
    pub allocations: Option<Chosen>,
    pub samples: Samples,
}

/// What draws a thread's track.
#[derive(Debug)]
pub(super) enum Samples {
    None,
    /// The same allocations once more.
    OfAllocations,
    /// Allocations of a thread.
    Some(Chosen),
    /// A thread's samples of time.
    Ticks(usize),
}

/// The threads of the document, taken apart and filled one after the other.
pub(super) struct Threads<'a> {
    pub source: &'a Source<'a>,
    /// As they were written; the weight of the only sample of each is the number of its track.
    pub texts: Vec<&'a RawValue>,
    pub tracks: &'a [Track],
    pub weights: &'a TrackWeights,
    pub category_of: &'a (dyn Fn(LocationIndex) -> CategoryHandle + 'a),
}

/// What samples weigh: what those of one track that stay add up to is rounded once, and so is what the others do.
pub(super) struct TrackWeights {
    /// In the rows of allocations.
    pub rows: Weights,
    /// On the track of the thread.
    pub threads: Weights,
}

impl Threads<'_> {
    /// Writes the array of them.
    pub fn write(self, out: &mut dyn Write) -> Result<(), ExportError> {
        let mut room = Vec::new();
        let mut array = Array::begin(out)?;
        for text in &self.texts {
            array.element(|out| {
                room = self.write_one(text, std::mem::take(&mut room), out)?;
                Ok(())
            })?;
        }
        array.end()
    }

    /// `room` is what this gave for the thread before.
    fn write_one(
        &self,
        text: &RawValue,
        room: Vec<u32>,
        out: &mut dyn Write,
    ) -> Result<Vec<u32>, ExportError> {
        let thread = Fields::parse(text.get())?;
        let samples = thread.fields("samples")?;
        let track = samples.value("weight")?;
        let weight_type = samples.value("weightType")?;
        let track = track[0]
            .as_u64()
            .and_then(|number| self.tracks.get(usize::try_from(number).ok()?))
            .ok_or_else(|| serde_json::Error::custom("a thread without a track"))?;
        let numbered = Numbered::of(self.source, track, &self.weights.rows, room);
        self.fill(thread, track, &weight_type, &numbered)?
            .write(out)?;
        Ok(numbered.into_room())
    }

    fn fill<'b>(
        &'b self,
        mut thread: Fields<'b>,
        track: &'b Track,
        weight_type: &'b Value,
        numbered: &'b Numbered<'_>,
    ) -> Result<Fields<'b>, ExportError> {
        tables::fill(self.source, &mut thread, &numbered.places, self.category_of)?;
        let stacks = Part::written(|out| write_stacks(&numbered.stacks, out));
        thread.set("stackTable", stacks);
        if let Some(chosen) = &track.allocations {
            let rows = self.allocations(chosen, numbered);
            if !rows.is_empty() {
                let write = move |out: &mut dyn Write| write_allocations(self.source, &rows, out);
                thread.set("nativeAllocations", Part::written(write));
            }
        }
        let samples = Part::written(move |out| {
            let rows = self.samples(track, numbered);
            let has_ticks = matches!(track.samples, Samples::Ticks(_));
            let mut table = Object::begin(out)?;
            write_samples(self.source, &rows, has_ticks, &mut table)?;
            table.entry("weightType", weight_type)?;
            Ok(table.end()?)
        });
        thread.set("samples", samples);
        Ok(thread)
    }

    /// Allocations and frees in the order of time. One of 0 bytes at interval 1 is left out: a row of weight 0 is neither
    /// allocation nor free.
    fn allocations(&self, chosen: &Chosen, numbered: &Numbered<'_>) -> Vec<Allocation> {
        let moments = Moments::of(self.source, chosen);
        let mut bytes = self.source.samples.bytes();
        let mut rows = Vec::with_capacity(moments.len());
        for moment in moments.iter() {
            let (sample, bytes) = bytes.with_sample(moment.number);
            let weight = self.weights.rows.of(bytes, moment.number);
            if weight != 0 {
                rows.push(Allocation {
                    weight: if moment.is_free { -weight } else { weight },
                    stack: match moment.is_free {
                        true => NONE,
                        false => numbered.of_sample(&sample),
                    },
                    // A number of a thing in memory, which 32 bits are enough for.
                    number: moment.number as u32,
                });
            }
        }
        rows
    }

    /// What draws the track.
    fn samples(&self, track: &Track, numbered: &Numbered<'_>) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut of_samples = |chosen: &Chosen, weights: &Weights| {
            let mut bytes = self.source.samples.bytes();
            rows.reserve_exact(chosen.len());
            for number in chosen.iter() {
                let (sample, bytes) = bytes.with_sample(number);
                let (stack, weight) = (numbered.of_sample(&sample), weights.of(bytes, number));
                rows.extend(Row::parts(sample.time_ns, stack, weight));
            }
        };
        match (&track.samples, &track.allocations) {
            (Samples::OfAllocations, Some(chosen)) => of_samples(chosen, &self.weights.rows),
            (Samples::Some(chosen), _) => of_samples(chosen, &self.weights.threads),
            (Samples::Ticks(thread), _) => {
                let period_ns = tick_period_ns(self.source).max(1);
                let ticks = self.source.ticks.iter();
                let ticks = ticks.filter(|it| self.source.thread(it.thread) == *thread);
                rows.extend(ticks.map(|tick| {
                    Row {
                        time_ns: tick.time_ns,
                        cpu_ns: tick.cpu_ns,
                        stack: numbered.of_stack(tick.stack),
                        // A tick that was late stands for those that it missed.
                        weight: i32::try_from(tick.cpu_ns / period_ns)
                            .unwrap_or(i32::MAX)
                            .max(1),
                    }
                }));
            }
            _ => {}
        }
        rows
    }
}

/// No stack: the numbers count from 1 here, and from 0 in the document.
const NONE: u32 = 0;

/// The stacks and frames of one thread, in the order in which its rows need them.
struct Numbered<'a> {
    source: &'a Source<'a>,
    /// The number of each stack of the profile; [`NONE`] for those that the thread does not have.
    of_stack: Vec<u32>,
    /// Those that it has.
    seen: Vec<StackId>,
    /// With a type on top.
    objects: FxHashMap<(StackId, LocationIndex), u32>,
    stacks: StackTable,
    /// The line of a location that each frame stands for.
    places: Vec<(LocationIndex, usize)>,
    /// The first frame of each location, which is its outermost line.
    of_location: FxHashMap<LocationIndex, u32>,
}

/// Callers' stacks (or [`NONE`]), and frames.
#[derive(Debug, Default)]
pub(super) struct StackTable(Vec<(u32, u32)>);

impl<'a> Numbered<'a> {
    /// `room` is what [`Self::into_room`] of the thread before gave.
    fn of(source: &'a Source<'a>, track: &Track, weights: &Weights, mut room: Vec<u32>) -> Self {
        room.resize(source.profile.stacks.count() as usize + 1, NONE);
        let mut numbered = Self {
            source,
            of_stack: room,
            seen: Vec::new(),
            objects: FxHashMap::default(),
            stacks: StackTable::default(),
            places: Vec::new(),
            of_location: FxHashMap::default(),
        };
        let mut bytes = source.samples.bytes();
        for number in track.allocations.iter().flat_map(Chosen::iter) {
            let (sample, bytes) = bytes.with_sample(number);
            if weights.of(bytes, number) > 0 {
                numbered.add(&sample);
            }
        }
        match &track.samples {
            Samples::None | Samples::OfAllocations => {}
            Samples::Some(chosen) => {
                for number in chosen.iter() {
                    numbered.add(&source.samples.at(number));
                }
            }
            Samples::Ticks(thread) => {
                let ticks = source.ticks.iter();
                for tick in ticks.filter(|it| source.thread(it.thread) == *thread) {
                    numbered.add_stack(tick.stack);
                }
            }
        }
        numbered
    }

    /// Gives the memory back, with nothing in it.
    fn into_room(mut self) -> Vec<u32> {
        for stack in self.seen {
            self.of_stack[stack.0 as usize] = NONE;
        }
        self.of_stack
    }

    /// The sample's stack, with its type on top if it has one.
    fn add(&mut self, sample: &Sample) {
        let stack = self.add_stack(sample.stack);
        if let Some(object) = self.source.object(sample)
            && !self.objects.contains_key(&(sample.stack, object))
        {
            let frame = self.first_frame(object, 0..1);
            let whole = self.stacks.push(stack, frame);
            self.objects.insert((sample.stack, object), whole);
        }
    }

    fn add_stack(&mut self, stack: StackId) -> u32 {
        let source = self.source;
        let mut missing = Vec::new();
        let (mut at, mut known) = (stack, NONE);
        while let Some((parent, place)) = source.profile.stacks.parent_and_place(at) {
            known = self.of_stack[at.0 as usize];
            if known != NONE {
                break;
            }
            missing.push((at, place as LocationIndex));
            at = parent;
        }
        for (stack, location) in missing.into_iter().rev() {
            let lines = source.locations[location].lines.len();
            // Outermost first: callers are below their callees.
            let first = self.first_frame(location, 0..lines);
            // As many as there are lines of a function's inlined calls.
            for frame in (first..).take(lines) {
                known = self.stacks.push(known, frame);
            }
            self.of_stack[stack.0 as usize] = known;
            self.seen.push(stack);
        }
        known
    }

    fn first_frame(&mut self, location: LocationIndex, lines: std::ops::Range<usize>) -> u32 {
        let places = &mut self.places;
        *self.of_location.entry(location).or_insert_with(|| {
            let first = places.len() as u32;
            places.extend(lines.rev().map(|line| (location, line)));
            first
        })
    }

    fn of_stack(&self, stack: StackId) -> u32 {
        self.of_stack[stack.0 as usize]
    }

    fn of_sample(&self, sample: &Sample) -> u32 {
        let known = self.source.object(sample).and_then(|object| {
            let key = (sample.stack, object);
            self.objects.get(&key).copied()
        });
        known.unwrap_or_else(|| self.of_stack(sample.stack))
    }
}

impl StackTable {
    fn push(&mut self, caller: u32, frame: u32) -> u32 {
        self.0.push((caller, frame));
        self.0.len() as u32
    }
}

/// As the document has it.
fn index(number: u32) -> Option<u32> {
    number.checked_sub(1)
}

/// An allocation, or its free; when it was is known of the sample.
struct Allocation {
    /// Bytes; of a free less than 0.
    weight: i64,
    /// [`NONE`] for a free.
    stack: u32,
    /// The index of the sample.
    number: u32,
}

/// What draws a track.
#[derive(Clone, Copy)]
struct Row {
    time_ns: u64,
    cpu_ns: u64,
    stack: u32,
    weight: i32,
}

impl Row {
    /// Weights are 32-bit here: what is larger becomes several samples at the same moment; of 0 there is none.
    fn parts(time_ns: u64, stack: u32, weight: i64) -> impl Iterator<Item = Self> {
        const MOST: i64 = i32::MAX as i64;
        let count = (weight + MOST - 1) / MOST;
        (0..count).map(move |part| Self {
            time_ns,
            cpu_ns: 0,
            stack,
            weight: (weight - part * MOST).min(MOST) as i32,
        })
    }
}

fn write_stacks(StackTable(stacks): &StackTable, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut table = Object::begin(out)?;
    table.entry("length", &stacks.len())?;
    table.rows("prefix", stacks.len(), |range| {
        stacks[range].iter().map(|&(caller, _)| index(caller))
    })?;
    table.rows("frame", stacks.len(), |range| {
        stacks[range].iter().map(|&(_, frame)| frame)
    })?;
    Ok(table.end()?)
}

fn write_allocations(
    source: &Source,
    rows: &[Allocation],
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut table = Object::begin(out)?;
    table.rows("time", rows.len(), |range| {
        rows[range].iter().map(|row| {
            let number = row.number as usize;
            let born_ns = source.samples.at(number).time_ns;
            let is_free = row.weight < 0;
            let freed_ns = is_free.then(|| freed_ns(source, number)).flatten();
            timestamp(source, freed_ns.unwrap_or(born_ns))
        })
    })?;
    table.rows("weight", rows.len(), |range| {
        rows[range].iter().map(|row| row.weight)
    })?;
    table.entry("weightType", "bytes")?;
    table.rows("stack", rows.len(), |range| {
        rows[range].iter().map(|row| index(row.stack))
    })?;
    table.rows("memoryAddress", rows.len(), |range| {
        rows[range].iter().map(|row| row.number)
    })?;
    // The viewer wants a number, and does nothing with it.
    table.rows("threadId", rows.len(), |range| range.map(|_| 0))?;
    table.entry("length", &rows.len())?;
    Ok(table.end()?)
}

fn write_samples(
    source: &Source,
    rows: &[Row],
    has_ticks: bool,
    table: &mut Object<'_>,
) -> Result<(), ExportError> {
    table.entry("length", &rows.len())?;
    table.rows("stack", rows.len(), |range| {
        rows[range].iter().map(|row| index(row.stack))
    })?;
    // Allocations take none, and the viewer would draw an idle thread.
    if has_ticks {
        table.rows("threadCPUDelta", rows.len(), |range| {
            let cpu_ns = rows[range].iter().map(|row| row.cpu_ns);
            cpu_ns.map(CpuDelta::from_nanos)
        })?;
    }
    // In the order of time, but for what was there before the profile began.
    let time_ns = |row: usize| rows[row].time_ns.max(source.profile.process.start_ns);
    table.rows("timeDeltas", rows.len(), |range| {
        range.map(|row| {
            let before = row
                .checked_sub(1)
                .map_or(source.profile.process.start_ns, time_ns);
            time_ns(row).saturating_sub(before) as f64 / 1e6
        })
    })?;
    table.rows("weight", rows.len(), |range| {
        rows[range].iter().map(|row| row.weight)
    })
}
