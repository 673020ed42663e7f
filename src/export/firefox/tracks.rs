//! The rows of each thread of the document: made from the samples again for each column, and never kept.
//!
//! What is in memory is one thread's stacks, 8 bytes each, and the times of its frees. See the module above for what the
//! threads stand for.

use std::cell::RefCell;

use fxprof_processed_profile::{CategoryHandle, CpuDelta};
use rustc_hash::FxHashMap;
use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::moments::{Chosen, Moment, Moments, Weights};
use super::object::{Object, Part};
use super::{tables, timestamp};
use crate::view::{LocationIndex, Lookup, Rounding, Sample, StackIndex, View};

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
    pub view: &'a View<'a>,
    /// As they were written; the weight of the only sample of each is the number of its track.
    pub texts: Vec<&'a RawValue>,
    pub tracks: &'a [Track],
    /// Of the rows of allocations.
    pub weights: &'a Weights,
    pub category_of: &'a (dyn Fn(LocationIndex) -> CategoryHandle + 'a),
}

impl std::fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tracks).finish()
    }
}

impl Serialize for Threads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut threads = serializer.serialize_seq(Some(self.texts.len()))?;
        let room = RefCell::new(Vec::new());
        for text in &self.texts {
            let mut thread = Object::parse(text.get()).map_err(S::Error::custom)?;
            let samples = thread.object("samples").map_err(S::Error::custom)?;
            let track = samples.value("weight").map_err(S::Error::custom)?;
            let weight_type = samples.value("weightType").map_err(S::Error::custom)?;
            let track = track[0]
                .as_u64()
                .and_then(|number| self.tracks.get(usize::try_from(number).ok()?))
                .ok_or_else(|| S::Error::custom("a thread without a track"))?;
            let numbered = Numbered::of(self.view, track, self.weights, room.take());
            tables::fill(self.view, &mut thread, &numbered.places, self.category_of)
                .map_err(S::Error::custom)?;
            thread.set("stackTable", Part::Stacks(&numbered.stacks));
            if let Some(chosen) = &track.allocations {
                let rows = Rows {
                    view: self.view,
                    moments: Moments::of(self.view, chosen),
                    weights: self.weights,
                    numbered: &numbered,
                };
                if rows.iter().next().is_some() {
                    thread.set("nativeAllocations", Part::Allocations(rows));
                }
            }
            let samples = SampleTable {
                view: self.view,
                track,
                weights: self.weights,
                numbered: &numbered,
                weight_type: weight_type.as_str().unwrap_or_default().to_owned(),
            };
            thread.set("samples", Part::Samples(samples));
            threads.serialize_element(&thread)?;
            drop(thread);
            room.replace(numbered.into_room());
        }
        threads.end()
    }
}

/// No stack: the numbers count from 1 here, and from 0 in the document.
const NONE: u32 = 0;

/// The stacks and frames of one thread, in the order in which its rows need them.
struct Numbered<'a> {
    view: &'a View<'a>,
    /// The number of each stack of the view; [`NONE`] for those that the thread does not have.
    of_stack: Vec<u32>,
    /// Those that it has.
    seen: Vec<u32>,
    /// With a type on top.
    objects: FxHashMap<(StackIndex, LocationIndex), u32>,
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
    fn of(view: &'a View<'a>, track: &Track, weights: &Weights, mut room: Vec<u32>) -> Self {
        room.resize(view.stacks.len(), NONE);
        let mut numbered = Self {
            view,
            of_stack: room,
            seen: Vec::new(),
            objects: FxHashMap::default(),
            stacks: StackTable::default(),
            places: Vec::new(),
            of_location: FxHashMap::default(),
        };
        let mut lookup = view.samples.lookup();
        for number in track.allocations.iter().flat_map(Chosen::iter) {
            let sample = lookup.get(number);
            if weights.of(&sample, number) > 0 {
                numbered.add(&sample);
            }
        }
        match &track.samples {
            Samples::None | Samples::OfAllocations => {}
            Samples::Some(chosen) => {
                for number in chosen.iter() {
                    numbered.add(&lookup.get(number));
                }
            }
            Samples::Ticks(thread) => {
                for tick in view.ticks.iter().filter(|tick| tick.thread == *thread) {
                    numbered.add_stack(tick.stack);
                }
            }
        }
        numbered
    }

    /// Gives the memory back, with nothing in it.
    fn into_room(mut self) -> Vec<u32> {
        for stack in self.seen {
            self.of_stack[stack as usize] = NONE;
        }
        self.of_stack
    }

    /// The sample's stack, with its type on top if it has one.
    fn add(&mut self, sample: &Sample) {
        let stack = self.add_stack(sample.stack);
        if let Some(object) = sample.object
            && !self.objects.contains_key(&(sample.stack, object))
        {
            let frame = self.first_frame(object, 0..1);
            let whole = self.stacks.push(stack, frame);
            self.objects.insert((sample.stack, object), whole);
        }
    }

    fn add_stack(&mut self, stack: StackIndex) -> u32 {
        let view = self.view;
        let mut missing = Vec::new();
        let mut known = NONE;
        for stack in view.stacks_of(stack) {
            known = self.of_stack[stack];
            if known != NONE {
                break;
            }
            missing.push(stack);
        }
        for stack in missing.into_iter().rev() {
            let location = view.stacks.get(stack).location;
            let lines = view.locations[location].lines.len();
            // Outermost first: callers are below their callees.
            let first = self.first_frame(location, 0..lines);
            // As many as there are lines of a function's inlined calls.
            for frame in (first..).take(lines) {
                known = self.stacks.push(known, frame);
            }
            self.of_stack[stack] = known;
            // Numbers of things in memory, which 32 bits are enough for; so are those of frames and stacks.
            self.seen.push(stack as u32);
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

    fn of_tick(&self, stack: StackIndex) -> u32 {
        self.of_stack[stack]
    }

    fn of_sample(&self, sample: &Sample) -> u32 {
        let known = sample.object.and_then(|object| {
            let key = (sample.stack, object);
            self.objects.get(&key).copied()
        });
        known.unwrap_or(self.of_stack[sample.stack])
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

/// A column, made as it is written.
struct Column<F>(F);

impl<I: IntoIterator, F: Fn() -> I> Serialize for Column<F>
where
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

impl Serialize for StackTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(stacks) = self;
        let mut table = serializer.serialize_map(Some(3))?;
        table.serialize_entry("length", &stacks.len())?;
        let prefixes = || stacks.iter().map(|&(caller, _)| index(caller));
        table.serialize_entry("prefix", &Column(prefixes))?;
        let frames = || stacks.iter().map(|&(_, frame)| frame);
        table.serialize_entry("frame", &Column(frames))?;
        table.end()
    }
}

/// Allocations and frees.
pub(super) struct Rows<'a> {
    view: &'a View<'a>,
    moments: Moments<'a>,
    weights: &'a Weights,
    numbered: &'a Numbered<'a>,
}

impl std::fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rows").field(&self.moments).finish()
    }
}

impl Rows<'_> {
    /// With weights: those of allocations are positive. One of 0 bytes at interval 1 is left out: a row of weight 0 is
    /// neither allocation nor free.
    fn iter(&self) -> impl Iterator<Item = (Moment, Sample, i64)> + '_ {
        let mut lookup = self.view.samples.lookup();
        self.moments.iter().filter_map(move |moment| {
            let sample = lookup.get(moment.number);
            let weight = self.weights.of(&sample, moment.number);
            let signed = if moment.is_free { -weight } else { weight };
            (weight != 0).then_some((moment, sample, signed))
        })
    }
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let length = self.iter().count();
        let mut table = serializer.serialize_map(Some(7))?;
        let rows = || self.iter();
        let times = || rows().map(|(moment, ..)| timestamp(self.view, moment.time_ns));
        table.serialize_entry("time", &Column(times))?;
        let weights = || rows().map(|(_, _, weight)| weight);
        table.serialize_entry("weight", &Column(weights))?;
        table.serialize_entry("weightType", "bytes")?;
        let stack = |(moment, sample, _): (Moment, Sample, i64)| {
            let number = (!moment.is_free).then(|| self.numbered.of_sample(&sample));
            number.and_then(index)
        };
        table.serialize_entry("stack", &Column(|| rows().map(stack)))?;
        let numbers = || rows().map(|(moment, ..)| moment.number);
        table.serialize_entry("memoryAddress", &Column(numbers))?;
        // The viewer wants a number, and does nothing with it.
        let zeros = || std::iter::repeat_n(0, length);
        table.serialize_entry("threadId", &Column(zeros))?;
        table.serialize_entry("length", &length)?;
        table.end()
    }
}

/// What draws a track.
pub(super) struct SampleTable<'a> {
    view: &'a View<'a>,
    track: &'a Track,
    weights: &'a Weights,
    numbered: &'a Numbered<'a>,
    weight_type: String,
}

impl std::fmt::Debug for SampleTable<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SampleTable").field(self.track).finish()
    }
}

/// A row of it.
#[derive(Clone, Copy)]
struct Row {
    time_ns: u64,
    stack: u32,
    weight: i64,
    cpu_ns: u64,
}

impl Row {
    /// Weights are 32-bit here: what is larger becomes several samples at the same moment; of 0 there is none.
    fn parts(self) -> impl Iterator<Item = Self> {
        const MOST: i64 = i32::MAX as i64;
        let count = (self.weight + MOST - 1) / MOST;
        (0..count).map(move |part| Self {
            weight: (self.weight - part * MOST).min(MOST),
            ..self
        })
    }
}

impl SampleTable<'_> {
    fn iter(&self) -> Box<dyn Iterator<Item = Row> + '_> {
        let mut lookup: Lookup<'_> = self.view.samples.lookup();
        let row = |sample: &Sample, weight| Row {
            time_ns: sample.time_ns,
            stack: self.numbered.of_sample(sample),
            weight,
            cpu_ns: 0,
        };
        match (&self.track.samples, &self.track.allocations) {
            (Samples::OfAllocations, Some(chosen)) => Box::new(chosen.iter().flat_map(move |it| {
                let sample = lookup.get(it);
                row(&sample, self.weights.of(&sample, it)).parts()
            })),
            (Samples::Some(chosen), _) => {
                let mut rounding = Rounding::default();
                Box::new(chosen.iter().flat_map(move |number| {
                    let sample = lookup.get(number);
                    row(&sample, rounding.next(sample.bytes)).parts()
                }))
            }
            (Samples::Ticks(thread), _) => {
                let ticks = self.view.ticks.iter();
                let ticks = ticks.filter(move |tick| tick.thread == *thread);
                let period_ns = self.view.tick_period_ns.max(1);
                Box::new(
                    ticks.map(move |tick| Row {
                        time_ns: tick.time_ns,
                        stack: self.numbered.of_tick(tick.stack),
                        // A tick that was late stands for those that it missed.
                        weight: i64::from(
                            i32::try_from(tick.cpu_ns / period_ns).unwrap_or(i32::MAX),
                        )
                        .max(1),
                        cpu_ns: tick.cpu_ns,
                    }),
                )
            }
            _ => Box::new(std::iter::empty()),
        }
    }
}

impl Serialize for SampleTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("length", &self.iter().count())?;
        let stacks = || self.iter().map(|row| index(row.stack));
        table.serialize_entry("stack", &Column(stacks))?;
        let cpu = || self.iter().map(|row| CpuDelta::from_nanos(row.cpu_ns));
        // All zero but in samples of time, which the viewer would draw as an idle thread.
        if cpu().any(|delta| !delta.is_zero()) {
            table.serialize_entry("threadCPUDelta", &Column(cpu))?;
        }
        let deltas = || {
            let mut before = self.view.about.start_ns;
            self.iter().map(move |row| {
                let time_ns = row.time_ns.max(before);
                let delta_ns = time_ns - std::mem::replace(&mut before, time_ns);
                delta_ns as f64 / 1e6
            })
        };
        table.serialize_entry("timeDeltas", &Column(deltas))?;
        let weights = || self.iter().map(|row| row.weight);
        table.serialize_entry("weight", &Column(weights))?;
        table.serialize_entry("weightType", &self.weight_type)?;
        table.end()
    }
}
