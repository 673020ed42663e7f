//! The Firefox Profiler's processed profile.
//!
//! ```text
//! thread 0  the process: one row for each sampled allocation and one for its free, weighted, in the order of time
//!           ("Allocated", "Retained" and "Deallocated Memory" in the call tree's data source)
//! thread n  a thread of the program: its allocations as samples weighted in bytes, which draws its track
//! time n    the same thread again, with its samples of time, if there are any
//! carried   a process of its own, of a file that goes on with a recording: what was alive when it began, apart from what it has seen allocated
//! heap h    a process of its own for a virtual machine's heap: its objects as rows and as samples, with the type as the leaf frame, green if
//!           it died young and red if it survived; collections, phases and marks. Thread 0 then has malloc's alone
//! counters  estimated live bytes of each heap, resident set, what a virtual machine reads of its own memory
//! ```
//! There are a million samples at most, of which each may stand for several (`merged.rs`).
//!
//! The viewer matches frees with allocations inside one thread's table, by a number that must be an exact JSON number:
//! that is why all rows are on thread 0, whoever freed, and why the "address" is the number of the sample. The crate
//! that makes the document knows nothing of lines, inlined calls and libraries without addresses, and would keep millions
//! of rows: it makes all but the tables of stacks and rows, which `tables` and `tracks` put in as the document is written.

mod counters;
mod fields;
mod machines;
mod markers;
mod meta;
mod moments;
mod tables;
mod tracks;

use std::io::Write;
use std::time::Duration;

use allocsample_profile::{Figure, HeapId, Sample};
use counters::Levels;
use fields::{Fields, Part};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, ProcessHandle, Profile, ReferenceTimestamp,
    SamplingInterval, ThreadHandle, Timestamp, WeightType,
};
use moments::{Chosen, Weights, grouped};
use rustc_hash::FxHashMap;
use tracks::{Samples, Threads, Track, TrackWeights};

use crate::ExportError;
use crate::rounding::Rounding;
use crate::source::{HeapIndex, LocationIndex, Nature, Source, Survival, thread_name};

/// How processes are told apart that have what was alive when the file began.
const CARRIED: &str = " (alive before)";

/// Samples that the document tells one by one; of more than that, several become one, which stands for them. The viewer takes
/// files of up to 512 MiB in its stride, and a second for each hundred thousand rows: a sample has three.
const MOST_SAMPLES: usize = 1 << 20;

/// Threads that are shown without being asked for, besides the process: those that allocated most.
const SHOWN_THREADS: usize = 10;

pub(crate) fn write(source: Source, out: &mut dyn Write) -> Result<(), ExportError> {
    write_at_most(MOST_SAMPLES, source, out)
}

fn write_at_most(most: usize, mut source: Source, out: &mut dyn Write) -> Result<(), ExportError> {
    // Levels are those of all samples, so that peaks are exact.
    let (levels, merged) = rayon::join(|| counters::levels(&source), || source.merged(most));
    if let Some(merged) = merged {
        source.samples = merged;
    }
    write_samples(&source, levels, out)
}

/// Each sample of the source; `levels` are those of what it was made from.
fn write_samples(source: &Source, levels: Levels, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(source);
    builder.heaps();
    builder.carried();
    builder.allocations();
    builder.threads();
    builder.ticks();
    markers::add(source, &mut builder.profile, &builder.heaps);
    let (profile, heaps) = (&mut builder.profile, &builder.heaps);
    let counters = counters::add(source, levels, profile, builder.process, heaps);
    let weights = builder.weights();
    let Builder {
        profile,
        tracks,
        categories,
        ..
    } = builder;
    let text = serde_json::to_string(&profile)?;
    drop(profile);
    let category_of = |location| categories.of(source, location);
    let mut document = Fields::parse(&text)?;
    document.set("libs", Part::Value(tables::libraries(source)));
    let threads = Threads {
        source,
        texts: document.texts("threads")?,
        tracks: &tracks,
        weights: &weights,
        category_of: &category_of,
    };
    document.set("threads", Part::written(|out| threads.write(out)));
    let mut documents = document.array("counters")?;
    counters::describe(&mut documents, &counters);
    document.set("counters", Part::Array(documents));
    let mut meta = document.value("meta")?;
    meta::describe(source, &mut meta);
    document.set("meta", Part::Value(meta));
    document.write(out)
}

/// Time since the start of the profile.
fn timestamp(source: &Source, time_ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(source.since_start(time_ns))
}

/// Time of a processor between two ticks of a thread; 0 if there are none.
fn tick_period_ns(source: &Source) -> u64 {
    source.profile.own_cost.of(Figure::TickPeriodNs)
}

/// What the viewer takes a sample of time for.
fn sampling_interval(source: &Source) -> SamplingInterval {
    match tick_period_ns(source) {
        0 => SamplingInterval::from_millis(1),
        period_ns => SamplingInterval::from_nanos(period_ns),
    }
}

struct Builder<'a> {
    source: &'a Source<'a>,
    profile: Profile,
    process: ProcessHandle,
    /// Where the allocations and frees are.
    whole: ThreadHandle,
    /// Each with the thread where its allocations and frees are.
    heaps: FxHashMap<HeapId, (ProcessHandle, ThreadHandle)>,
    /// Where those of each heap (or malloc's) are that were alive before the file began.
    carried: FxHashMap<Option<HeapIndex>, ThreadHandle>,
    categories: Categories,
    tracks: Vec<Track>,
}

/// What the colours of frames tell.
struct Categories {
    program: CategoryHandle,
    library: CategoryHandle,
    /// What the kernel maps into each process: calls of the system itself have no frames.
    kernel: CategoryHandle,
    /// Code of no module that has a name: its compiler told it.
    compiled: CategoryHandle,
    unknown: CategoryHandle,
    interpreted: CategoryHandle,
    died_young: CategoryHandle,
    survived: CategoryHandle,
    object: CategoryHandle,
}

impl<'a> Builder<'a> {
    fn new(source: &'a Source<'a>) -> Self {
        let (program, about) = (source.program(), &source.profile.process);
        let start = Duration::from_nanos(about.start_wall_ns);
        let mut profile = Profile::new(
            program,
            ReferenceTimestamp::from_duration_since_unix_epoch(start),
            sampling_interval(source),
        );
        // Names are in the profile or they are nowhere: the viewer has no server to ask.
        profile.set_symbolicated(true);
        profile.set_os_name("Linux");
        let categories = Categories {
            program: profile.add_category("Native (program)", CategoryColor::Blue),
            library: profile.add_category("Native (library)", CategoryColor::LightBlue),
            kernel: profile.add_category("Kernel", CategoryColor::Brown),
            compiled: profile.add_category("JIT", CategoryColor::Orange),
            unknown: profile.add_category("Code without a module", CategoryColor::DarkGray),
            interpreted: profile.add_category("VM", CategoryColor::Purple),
            // Green and red mean these two and nothing else.
            died_young: profile.add_category("Died young", CategoryColor::Green),
            survived: profile.add_category("Survived", CategoryColor::Red),
            object: profile.add_category("Fate not known", CategoryColor::Gray),
        };
        let zero = Timestamp::from_nanos_since_reference(0);
        let process = profile.add_process(program, about.pid, zero);
        profile.set_process_end_time(process, timestamp(source, about.end_ns));
        // No thread of the program, so that none of its numbers is taken.
        let whole = profile.add_thread(process, 0, zero, true);
        profile.set_thread_end_time(whole, timestamp(source, about.end_ns));
        profile.add_initial_visible_thread(whole);
        profile.add_initial_selected_thread(whole);
        Self {
            source,
            profile,
            process,
            whole,
            heaps: FxHashMap::default(),
            carried: FxHashMap::default(),
            categories,
            tracks: Vec::new(),
        }
    }

    /// Says what a thread has: its number is the weight of a sample, which is written in no other thread.
    fn track(&mut self, thread: ThreadHandle, track: Track) {
        let zero = Timestamp::from_nanos_since_reference(0);
        // There are some thousand threads.
        let number = self.tracks.len() as i32;
        self.profile
            .add_sample(thread, zero, None, CpuDelta::ZERO, number);
        self.tracks.push(track);
    }

    /// A process for each heap of a virtual machine: the viewer has one table of allocations for each.
    fn heaps(&mut self) {
        for &(id, name) in &self.source.heaps {
            let name = format!("{}: {name}", self.source.program());
            let (process, thread) = self.process(&name);
            self.profile
                .set_thread_samples_weight_type(thread, WeightType::Bytes);
            self.profile
                .set_thread_show_markers_in_timeline(thread, true);
            self.heaps.insert(id, (process, thread));
        }
    }

    /// A process for what was alive when the file began: it is retained, and was not allocated in this file.
    fn carried(&mut self) {
        for sample in self.source.samples.iter().filter(Sample::is_carried) {
            let heap = self.source.heap(&sample);
            if self.carried.contains_key(&heap) {
                continue;
            }
            let mut name = format!("{}{CARRIED}", self.source.program());
            if let Some(heap) = heap {
                name = format!(
                    "{}: {}{CARRIED}",
                    self.source.program(),
                    self.source.heaps[heap].1
                );
            }
            let (_, thread) = self.process(&name);
            self.carried.insert(heap, thread);
        }
    }

    /// A process with one thread, which the viewer's one table of allocations of a process is in.
    fn process(&mut self, name: &str) -> (ProcessHandle, ThreadHandle) {
        let about = &self.source.profile.process;
        let zero = Timestamp::from_nanos_since_reference(0);
        let end = timestamp(self.source, about.end_ns);
        let process = self.profile.add_process(name, about.pid, zero);
        self.profile.set_process_end_time(process, end);
        let thread = self.profile.add_thread(process, 0, zero, true);
        self.profile.set_thread_end_time(thread, end);
        self.profile.add_initial_visible_thread(thread);
        (process, thread)
    }

    /// Rows of allocations and frees: malloc's, those of each heap, and those that were alive before.
    fn allocations(&mut self) {
        let mut threads = vec![(self.whole, Samples::None)];
        for (heap, _) in &self.source.heaps {
            let (_, thread) = self.heaps[heap];
            threads.push((thread, Samples::OfAllocations));
        }
        let mut carried: Vec<_> = self.carried.values().copied().collect();
        carried.sort_unstable();
        threads.extend(carried.into_iter().map(|thread| (thread, Samples::None)));
        let places: FxHashMap<ThreadHandle, usize> = (0..)
            .zip(&threads)
            .map(|(place, &(thread, _))| (thread, place))
            .collect();
        let chosen = grouped(self.source, threads.len(), |index| {
            let sample = self.source.samples.at(index);
            places.get(&self.thread_of_rows(&sample)).copied()
        });
        for ((thread, samples), chosen) in threads.into_iter().zip(chosen) {
            let allocations = Some(chosen);
            self.track(
                thread,
                Track {
                    allocations,
                    samples,
                },
            );
        }
    }

    fn weights(&self) -> TrackWeights {
        // Those that stay apart from those that are freed: the viewer adds up either.
        let mut rows: FxHashMap<(ThreadHandle, bool), Rounding> = FxHashMap::default();
        let mut threads: Vec<Rounding> = (self.source.threads.iter())
            .map(|_| Rounding::default())
            .collect();
        TrackWeights {
            rows: Weights::new(self.source, |sample, bytes| {
                let sum = (self.thread_of_rows(sample), sample.is_live());
                rows.entry(sum).or_default().next(bytes)
            }),
            threads: Weights::new(self.source, |sample, bytes| match sample.is_carried() {
                // On no thread's track.
                true => 0,
                false => threads[self.source.thread(sample.thread)].next(bytes),
            }),
        }
    }

    fn thread_of_rows(&self, sample: &Sample) -> ThreadHandle {
        if sample.is_carried() {
            return self.carried[&self.source.heap(sample)];
        }
        let heap = self.heaps.get(&sample.heap);
        heap.map_or(self.whole, |&(_, thread)| thread)
    }

    /// A track for each thread that has samples.
    fn threads(&mut self) {
        let mut bytes = vec![0.0; self.source.threads.len()];
        let source = self.source;
        for (sample, more) in source.samples.with_bytes() {
            if !sample.is_carried() {
                bytes[source.thread(sample.thread)] += more;
            }
        }
        let mut chosen = grouped(source, bytes.len(), |index| {
            let sample = source.samples.at(index);
            (!sample.is_carried()).then(|| source.thread(sample.thread))
        });
        let mut heaviest_first: Vec<usize> = (0..bytes.len()).collect();
        heaviest_first.sort_by(|&a, &b| bytes[b].total_cmp(&bytes[a]));
        // Beside it is one of its time.
        let suffix = match self.source.ticks.is_empty() {
            true => "",
            false => " (allocations)",
        };
        for (rank, thread) in heaviest_first.into_iter().enumerate() {
            if bytes[thread] == 0.0 {
                break;
            }
            let handle = self.thread(thread, suffix);
            self.profile
                .set_thread_samples_weight_type(handle, WeightType::Bytes);
            if rank < SHOWN_THREADS {
                self.profile.add_initial_visible_thread(handle);
            }
            let chosen = std::mem::replace(&mut chosen[thread], Chosen::Some(Vec::new()));
            let track = Track {
                allocations: None,
                samples: Samples::Some(chosen),
            };
            self.track(handle, track);
        }
    }

    fn thread(&mut self, number: usize, suffix: &str) -> ThreadHandle {
        let thread = &self.source.threads[number];
        let start = timestamp(self.source, thread.start_ns);
        let handle = self
            .profile
            .add_thread(self.process, thread.tid, start, false);
        let name = format!("{}{suffix}", thread_name(thread));
        self.profile.set_thread_name(handle, &name);
        let end_ns = thread.end_ns.unwrap_or(self.source.profile.process.end_ns);
        self.profile
            .set_thread_end_time(handle, timestamp(self.source, end_ns));
        handle
    }

    /// A track of its own for the time of each thread: samples of a track have one unit.
    fn ticks(&mut self) {
        let mut cpu_ns = vec![0_u64; self.source.threads.len()];
        for tick in self.source.ticks.iter() {
            let sum = &mut cpu_ns[self.source.thread(tick.thread)];
            *sum = sum.saturating_add(tick.cpu_ns);
        }
        let mut busiest_first: Vec<usize> = (0..cpu_ns.len()).collect();
        busiest_first.sort_by_key(|&thread| std::cmp::Reverse(cpu_ns[thread]));
        for (rank, thread) in busiest_first.into_iter().enumerate() {
            if cpu_ns[thread] == 0 {
                break;
            }
            let handle = self.thread(thread, " (time)");
            self.profile
                .set_thread_samples_weight_type(handle, WeightType::Samples);
            if rank < SHOWN_THREADS {
                self.profile.add_initial_visible_thread(handle);
            }
            let track = Track {
                allocations: None,
                samples: Samples::Ticks(thread),
            };
            self.track(handle, track);
        }
    }
}

impl Categories {
    /// That of what stands at a location.
    fn of(&self, source: &Source, location: LocationIndex) -> CategoryHandle {
        let place = &source.locations[location];
        match place.nature {
            Nature::Interpreted => self.interpreted,
            Nature::Object(Survival::DiedYoung) => self.died_young,
            Nature::Object(Survival::Survived) => self.survived,
            Nature::Object(Survival::Open) => self.object,
            Nature::Native if place.address.is_none() => CategoryHandle::OTHER,
            Nature::Native => match place.module {
                None if place.is_symbolized() => self.compiled,
                None => self.unknown,
                Some(module) if is_kernels(source.profile.modules[module].name()) => self.kernel,
                Some(module) if source.is_program(&source.profile.modules[module]) => self.program,
                Some(_) => self.library,
            },
        }
    }
}

/// Whether a module comes from the kernel and not from a file.
fn is_kernels(name: &str) -> bool {
    name.starts_with("[vdso") || name.starts_with("[vsyscall") || name.starts_with("linux-vdso")
}

#[cfg(test)]
mod tests;
