//! pprof's protobuf, gzipped: what `go tool pprof`, Pyroscope, Grafana and many others read.
//!
//! Four values for each stack and thread: objects and bytes, allocated and in use; and time, if it was sampled; and bytes
//! at the peak, if a reader shall see those first: what a program that ended has in use says little. They are estimates of
//! the whole program, not of the samples; readers take them as they stand. Nothing is dropped.

mod message;

use std::io::{self, Write};

use allocsample_profile::{Frame, Sample, Weights};
use flate2::Compression;
use flate2::write::GzEncoder;
use indexmap::IndexSet;
use prost::Message;
use rustc_hash::FxHashMap;

use crate::blocks;
use crate::by_stack::{ByStack, Entry};
use crate::format::Options;
use crate::metric::{Metric, at_peak};
use crate::rounding::Rounding;
use crate::source::{LocationIndex, Nature, Source, Survival, build_id_hex, thread_name};

/// Names and units of a sample's values.
pub(crate) const SAMPLE_TYPES: [(&str, &str); 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];

/// The best level takes a third longer in all, for a file that is a tenth smaller.
const LEVEL: Compression = Compression::new(5);

/// What samples are told apart by besides their stacks.
const LABELS: [&str; 4] = ["thread", "heap", "type", "survival"];

/// The number of a text, or 0, for each of them.
type Labels = [i64; 4];

/// All that a sample can have: those of [`SAMPLE_TYPES`], time, and bytes at the peak.
type Values<T> = [T; SAMPLE_TYPES.len() + 2];

/// Number of the first function, mapping and location: 0 means none.
const FIRST_ID: u64 = 1;

/// See [`crate::Options`].
pub(crate) fn write(source: &Source, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, LEVEL);
    let message = Builder::new().profile(source, options, &mut gzip)?;
    gzip.write_all(&message.encode_to_vec())?;
    gzip.finish()?;
    Ok(())
}

/// The tables that grow while the samples are written.
struct Builder {
    strings: IndexSet<String>,
    functions: IndexSet<(i64, i64)>,
}

impl Builder {
    fn new() -> Self {
        Self {
            strings: IndexSet::from([String::new()]),
            functions: IndexSet::new(),
        }
    }

    /// Writes the samples to `out` and returns the rest: parts of a message may come in any order, and behind each
    /// other. All samples at once would be as large as the profile.
    fn profile(
        mut self,
        source: &Source,
        options: &Options,
        out: &mut dyn Write,
    ) -> io::Result<message::Profile> {
        let since_ns = options.allocated_since_ns;
        let about = &source.profile.process;
        let mut sample_type = SAMPLE_TYPES
            .map(|(name, unit)| self.value_type(name, unit))
            .to_vec();
        if !source.ticks.is_empty() {
            sample_type.push(self.value_type("cpu", "nanoseconds"));
        }
        if options.metric == Metric::Peak {
            sample_type.push(self.value_type("peak_space", "bytes"));
        }
        self.samples(source, options, out)?;
        let modules = &source.profile.modules;
        let mut mapping: Vec<message::Mapping> = modules
            .iter()
            .zip(FIRST_ID..)
            .map(|(module, id)| message::Mapping {
                id,
                memory_start: module.start,
                memory_limit: module.end,
                filename: self.string(&module.path),
                build_id: self.string(&build_id_hex(module)),
                ..Default::default()
            })
            .collect();
        for location in &source.locations {
            let Some(mapping) = location.module.and_then(|module| mapping.get_mut(module)) else {
                continue;
            };
            mapping.has_functions |= location.is_symbolized();
            mapping.has_filenames |= location.lines.iter().any(|line| line.file.is_some());
            mapping.has_line_numbers |= location.lines.iter().any(|line| line.line != 0);
            mapping.has_inline_frames |= location.lines.len() > 1;
        }
        // The first one is what readers take for the program, and show as the profile's file.
        mapping.sort_by_key(|it| {
            let module = usize::try_from(it.id - FIRST_ID).ok();
            module.is_none_or(|module| !source.is_program(&modules[module]))
        });
        let location = source
            .locations
            .iter()
            .zip(FIRST_ID..)
            .map(|(location, id)| message::Location {
                id,
                mapping_id: location.module.map_or(0, id_of),
                address: source.address_in_memory(location),
                line: location.lines.iter().map(|line| self.line(line)).collect(),
            })
            .collect();
        let comment = self.comments(source);
        let from_ns = since_ns.max(about.start_ns).min(about.end_ns);
        let period_type = Some(self.value_type("space", "bytes"));
        let default_sample_type = self.string(match options.metric {
            Metric::Peak => "peak_space",
            _ => "inuse_space",
        });
        let function = self
            .functions
            .into_iter()
            .zip(FIRST_ID..)
            .map(|((name, filename), id)| message::Function {
                id,
                name,
                system_name: name,
                filename,
            })
            .collect();
        Ok(message::Profile {
            sample_type,
            sample: Vec::new(),
            mapping,
            location,
            function,
            string_table: self.strings.into_iter().collect(),
            time_nanos: (about.start_wall_ns + (from_ns - about.start_ns)).cast_signed(),
            duration_nanos: about.end_ns.saturating_sub(from_ns).cast_signed(),
            period_type,
            period: source.profile.interval_bytes().cast_signed(),
            comment,
            default_sample_type,
        })
    }

    /// One for each stack with its labels, in the order of their first samples; rounded after adding up, so that
    /// the sums are right.
    fn samples(
        &mut self,
        source: &Source,
        options: &Options,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        const CPU: usize = SAMPLE_TYPES.len();
        const PEAK: usize = CPU + 1;
        let since_ns = options.allocated_since_ns;
        let names = LABELS.map(|name| self.string(name));
        let threads: Vec<i64> = source
            .threads
            .iter()
            .map(|thread| self.string(&thread_name(thread)))
            .collect();
        let malloc = self.string("malloc");
        let heaps: Vec<i64> = source
            .heaps
            .iter()
            .map(|(_, name)| self.string(name))
            .collect();
        let mut objects: FxHashMap<LocationIndex, [i64; 2]> = FxHashMap::default();
        let mut sums: ByStack<Labels, Values<f64>> = ByStack::of(source.profile);
        let mut columns = vec![0, 1, 2, 3];
        columns.extend((!source.ticks.is_empty()).then_some(CPU));
        columns.extend((options.metric == Metric::Peak).then_some(PEAK));
        let is_told = |sample: &Sample| {
            sample.time_ns >= since_ns && !sample.is_carried() || sample.is_live()
        };
        let mut labels = |sample: &Sample| {
            let thread = threads[source.thread(sample.thread)];
            let heap = source.heap(sample).map_or(malloc, |heap| heaps[heap]);
            let object = |place| {
                *objects
                    .entry(place)
                    .or_insert_with(|| self.object(source, place))
            };
            let [kind, survival] = source.object(sample).map_or([0; 2], object);
            [thread, heap, kind, survival]
        };
        let mut weights = Weights::of(source.profile);
        for sample in source.samples.iter().filter(is_told) {
            let sums = sums.at(sample.stack, labels(&sample));
            let values = values(&sample, &mut weights, since_ns);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += value;
            }
        }
        if options.metric == Metric::Peak {
            at_peak(source.profile, |sample, bytes| {
                sums.at(sample.stack, labels(sample))[PEAK] += bytes;
            });
        }
        for tick in source.ticks.iter().filter(|tick| tick.time_ns >= since_ns) {
            let thread = threads[source.thread(tick.thread)];
            sums.at(tick.stack, [thread, 0, 0, 0])[CPU] += tick.cpu_ns as f64;
        }
        let sums = rounded(sums.into_all());
        blocks::write(sums.len(), out, |rows, bytes| {
            for sum in &sums[rows] {
                let labels = std::iter::zip(names, sum.key);
                let sample = message::Sample {
                    location_id: source.locations_of(sum.stack).map(id_of).collect(),
                    value: columns.iter().map(|&column| sum.value[column]).collect(),
                    label: labels
                        .filter(|(_, value)| *value != 0)
                        .map(|(key, str)| message::Label { key, str })
                        .collect(),
                };
                let part = message::Profile {
                    sample: vec![sample],
                    ..Default::default()
                };
                // A vector takes all.
                let _ = part.encode(bytes);
            }
        })
    }

    /// The labels of objects of a type that had the same fate.
    fn object(&mut self, source: &Source, place: LocationIndex) -> [i64; 2] {
        let place = &source.locations[place];
        let Nature::Object(survival) = place.nature else {
            return [0; 2];
        };
        let name = place.lines.first().map_or("", |line| &line.function);
        let (name, survival) = match survival {
            Survival::DiedYoung => (name.strip_suffix(" (died young)"), "died young"),
            Survival::Survived => (name.strip_suffix(" (survived)"), "survived"),
            Survival::Open => (Some(name), ""),
        };
        [name.unwrap_or_default(), survival].map(|text| self.string(text))
    }

    fn comments(&mut self, source: &Source) -> Vec<i64> {
        let profile = source.profile;
        let command = profile.process.command_line.join(" ");
        let mut comments = vec![format!("command: {command}")];
        let (lost_samples, lost_bytes) = profile.lost.samples();
        if lost_samples > 0 {
            comments.push(format!(
                "lost: {lost_samples} samples that stand for {lost_bytes} bytes are missing"
            ));
        }
        if !profile.is_complete() {
            comments.push("the profile ends before the process did".into());
        }
        comments
            .iter()
            .map(|comment| self.string(comment))
            .collect()
    }

    fn line(&mut self, line: &Frame) -> message::Line {
        let name = self.string(&line.function);
        let filename = self.string(line.file.as_deref().unwrap_or_default());
        message::Line {
            function_id: id_of(self.functions.insert_full((name, filename)).0),
            line: i64::from(line.line),
        }
    }

    fn value_type(&mut self, name: &str, unit: &str) -> message::ValueType {
        message::ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        }
    }

    fn string(&mut self, text: &str) -> i64 {
        // A table of 2^63 strings does not fit into memory.
        self.strings.insert_full(text.to_owned()).0 as i64
    }
}

/// Each value with what was left of those before it.
fn rounded(sums: Vec<Entry<Labels, Values<f64>>>) -> Vec<Entry<Labels, Values<i64>>> {
    let mut rounding: Values<Rounding> = Default::default();
    let mut next = |values: Values<f64>| {
        let mut values = values.into_iter();
        let next = |rounding: &mut Rounding| rounding.next(values.next().unwrap_or(0.0));
        rounding.each_mut().map(next)
    };
    let rounded = sums.into_iter().map(|Entry { stack, key, value }| Entry {
        stack,
        key,
        value: next(value),
    });
    rounded.collect()
}

/// In the order of the sample types.
pub(crate) fn values(sample: &Sample, weights: &mut Weights, since_ns: u64) -> [f64; 4] {
    let in_use = f64::from(u8::from(sample.is_live()));
    let is_told = sample.time_ns >= since_ns && !sample.is_carried();
    let allocated = f64::from(u8::from(is_told));
    let (bytes, objects) = weights.get(sample);
    let (bytes, objects) = (bytes.value(), objects.value());
    [
        objects * allocated,
        bytes * allocated,
        objects * in_use,
        bytes * in_use,
    ]
}

fn id_of(index: usize) -> u64 {
    // Widens on every machine that we run on.
    index as u64 + FIRST_ID
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use allocsample_profile::{ThreadId, Tick};
    use flate2::read::GzDecoder;
    use std::io::Read;

    #[test]
    fn a_program_that_ended_shows_its_peak_first() {
        let profile = fixture::ended();
        let options = Options {
            metric: Metric::Peak,
            ..Options::default()
        };
        let mut out = Vec::new();
        write(&Source::of(&profile), &options, &mut out).unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&out[..]).read_to_end(&mut bytes).unwrap();
        let written = message::Profile::decode(&bytes[..]).unwrap();
        let text = |index: i64| written.string_table[usize::try_from(index).unwrap()].as_str();
        assert_eq!(text(written.default_sample_type), "peak_space");
        assert_eq!(written.sample_type.len(), 5);
        let sum = |column: usize| -> i64 { written.sample.iter().map(|it| it.value[column]).sum() };
        // Two blocks of 100 bytes were live at once, and none at the end.
        assert_eq!((sum(1), sum(3), sum(4)), (300, 0, 200));
    }

    fn decoded(source: &Source) -> message::Profile {
        decoded_since(source, 0)
    }

    fn decoded_since(source: &Source, since_ns: u64) -> message::Profile {
        let mut out = Vec::new();
        let options = Options {
            allocated_since_ns: since_ns,
            ..Options::default()
        };
        write(source, &options, &mut out).unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&out[..]).read_to_end(&mut bytes).unwrap();
        message::Profile::decode(&bytes[..]).unwrap()
    }

    #[test]
    fn each_stack_and_thread_is_a_sample_with_its_frames() {
        let source = fixture::source();
        let profile = decoded(&source);
        let samples = source.samples.iter();
        let names: std::collections::HashSet<_> = samples
            .map(|sample| (sample.stack, sample.thread))
            .collect();
        assert_eq!(profile.sample.len(), names.len());
        let first = source.samples.at(0).stack;
        let depth = source.locations_of(first).count();
        assert_eq!(profile.sample[0].location_id.len(), depth);
        let known = |id: &u64| profile.location.iter().any(|location| location.id == *id);
        assert!(
            profile
                .sample
                .iter()
                .all(|s| s.location_id.iter().all(known))
        );
    }

    #[test]
    fn sums_are_the_profiles() {
        let source = fixture::source();
        let profile = decoded(&source);
        let rounding = profile.sample.len() as f64 / 2.0;
        let mut weights = Weights::of(source.profile);
        for place in 0..4 {
            let sum: i64 = profile.sample.iter().map(|s| s.value[place]).sum();
            let samples = source.samples.iter();
            let total: f64 = samples.map(|s| values(&s, &mut weights, 0)[place]).sum();
            assert!((sum as f64 - total).abs() <= rounding, "{place}");
            assert!(sum > 0, "{place}");
        }
    }

    #[test]
    fn samples_of_time_are_a_type_of_their_own() {
        let Sample { stack, time_ns, .. } = fixture::profile().samples.at(0);
        let tick = |thread, time_ns| Tick {
            time_ns,
            thread: ThreadId(thread),
            stack,
            cpu_ns: 4_000_000,
            ..Tick::default()
        };
        let ticks = vec![tick(1, time_ns), tick(1, time_ns), tick(2, time_ns + 9)];
        let source = fixture::source_with(|profile| profile.ticks = ticks);
        let profile = decoded(&source);
        let text = |index: i64| profile.string_table[index as usize].as_str();
        let last = profile.sample_type.last().unwrap();
        assert_eq!((text(last.r#type), text(last.unit)), ("cpu", "nanoseconds"));
        assert!(profile.sample.iter().all(|s| s.value.len() == 5));
        let sum =
            |profile: &message::Profile| profile.sample.iter().map(|s| s.value[4]).sum::<i64>();
        assert_eq!(sum(&profile), 12_000_000);
        let later = decoded_since(&source, time_ns + 1);
        assert_eq!(sum(&later), 4_000_000);
        // The bytes are as without them.
        let bytes =
            |profile: &message::Profile| -> i64 { profile.sample.iter().map(|s| s.value[1]).sum() };
        assert_eq!(bytes(&profile), bytes(&decoded(&fixture::source())));
    }

    #[test]
    fn a_period_has_its_own_allocations_and_all_that_is_in_use() {
        let source = fixture::source();
        let middle = source.samples.at(source.samples.len() / 2).time_ns;
        let sums = |since| {
            let profile = decoded_since(&source, since);
            [0, 1, 2, 3].map(|place| profile.sample.iter().map(|s| s.value[place]).sum::<i64>())
        };
        let (all, period, nothing) = (sums(0), sums(middle), sums(u64::MAX));
        assert!(0 < period[0] && period[0] < all[0], "{period:?} {all:?}");
        assert!(0 < period[1] && period[1] < all[1], "{period:?} {all:?}");
        assert_eq!([period[2], period[3]], [all[2], all[3]]);
        assert_eq!(nothing, [0, 0, all[2], all[3]]);
        let profile = decoded_since(&source, middle);
        let end = |profile: &message::Profile| profile.time_nanos + profile.duration_nanos;
        assert_eq!(end(&profile), end(&decoded(&source)));
        assert!(profile.duration_nanos < decoded(&source).duration_nanos);
    }

    #[test]
    fn objects_of_machines_are_told_apart_by_heap_type_and_survival() {
        let profile = decoded(&fixture::source_with_machine());
        let text = |index: i64| profile.string_table[index as usize].as_str();
        let labels = |sample: &message::Sample| -> Vec<String> {
            let values = sample.label.iter().skip(1);
            values
                .map(|it| format!("{}={}", text(it.key), text(it.str)))
                .collect()
        };
        let all: Vec<_> = profile.sample.iter().map(labels).collect();
        for wanted in [
            &["heap=org.example.vm", "type=Node", "survival=died young"][..],
            &["heap=org.example.vm", "type=Node", "survival=survived"],
            &["heap=org.example.vm", "type=Text"],
            &["heap=malloc"],
        ] {
            assert!(all.iter().any(|it| it == wanted), "{wanted:?}: {all:?}");
        }
    }

    #[test]
    fn types_and_units_are_those_that_readers_know() {
        let profile = decoded(&fixture::source());
        let text = |index: i64| profile.string_table[index as usize].as_str();
        let types: Vec<_> = profile
            .sample_type
            .iter()
            .map(|t| (text(t.r#type), text(t.unit)))
            .collect();
        let expected = [
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ];
        assert_eq!(types, expected);
        assert_eq!(text(profile.default_sample_type), "inuse_space");
        let period_type = profile.period_type.unwrap();
        assert_eq!(
            (text(period_type.r#type), text(period_type.unit)),
            ("space", "bytes")
        );
        assert_eq!((text(0), profile.period), ("", 524_288));
    }

    #[test]
    fn every_index_leads_somewhere_and_stacks_are_leaf_first() {
        let profile = decoded(&fixture::source());
        let text = |index: i64| profile.string_table[index as usize].as_str();
        let function = |id: u64| &profile.function[id as usize - 1];
        let names = |sample: &message::Sample| -> Vec<&str> {
            sample
                .location_id
                .iter()
                .flat_map(|&id| &profile.location[id as usize - 1].line)
                .map(|line| text(function(line.function_id).name))
                .collect()
        };
        assert!(
            profile
                .sample
                .iter()
                .any(|s| names(s) == ["inlined", "outer", "main"])
        );
        for sample in &profile.sample {
            assert_eq!(sample.value.len(), 4);
            let labels: Vec<_> = sample
                .label
                .iter()
                .map(|it| (text(it.key), text(it.str)))
                .collect();
            let [("thread", thread), ("heap", "malloc")] = labels[..] else {
                panic!("{labels:?}");
            };
            assert!(["main thread", "worker"].contains(&thread));
        }
        for (location, id) in profile.location.iter().zip(1..) {
            assert_eq!(location.id, id);
            assert!(location.mapping_id as usize <= profile.mapping.len());
            if location.mapping_id != 0 {
                let mapping = &profile.mapping[location.mapping_id as usize - 1];
                let range = mapping.memory_start..mapping.memory_limit;
                assert!(range.contains(&location.address));
            }
        }
        assert!(profile.function.iter().zip(1..).all(|(f, id)| f.id == id));
        let app = &profile.mapping[0];
        assert_eq!(
            (text(app.filename), text(app.build_id)),
            ("/usr/bin/app", "00ff10")
        );
        assert!(
            app.has_functions && app.has_filenames && app.has_line_numbers && app.has_inline_frames
        );
        assert!(!profile.mapping[1].has_functions);
    }
}
