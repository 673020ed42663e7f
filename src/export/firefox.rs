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
//! The viewer matches frees with allocations inside one thread's table, by a number that must be an exact JSON number:
//! that is why all rows are on thread 0, whoever freed, and why the "address" is the number of the sample. The crate
//! that makes the tables knows nothing of lines, inlined calls and libraries without addresses; `tables` puts them in.

mod counters;
mod markers;
mod meta;
mod object;
mod tables;

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, ProcessHandle, Profile,
    ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp, WeightType,
};
use object::{Object, Part};

use crate::ExportError;
use crate::view::{
    End, HeapIndex, LocationIndex, Nature, Rounding, Sample, StackIndex, Survival, View,
};

/// How processes are told apart that have what was alive when the file began.
const CARRIED: &str = " (alive before)";

/// Threads that are shown without being asked for, besides the process: those that allocated most.
const SHOWN_THREADS: usize = 10;

pub(crate) fn write(view: &View, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(view);
    builder.heaps();
    builder.carried();
    builder.allocations();
    builder.threads();
    builder.ticks();
    markers::add(view, &mut builder.profile, &builder.heaps);
    let (profile, heaps) = (&mut builder.profile, &builder.heaps);
    let counters = counters::add(view, profile, builder.process, heaps);
    let text = serde_json::to_string(&builder.profile)?;
    drop(builder);
    let mut document = Object::parse(&text)?;
    document.set("libs", Part::Value(tables::libraries(view)));
    let mut threads = document.objects("threads")?;
    for thread in &mut threads {
        tables::fill(view, thread)?;
    }
    document.set("threads", Part::Array(threads));
    let mut documents = document.objects("counters")?;
    counters::describe(&mut documents, &counters);
    document.set("counters", Part::Array(documents));
    let mut meta = document.value("meta")?;
    meta::describe(view, &mut meta);
    document.set("meta", Part::Value(meta));
    serde_json::to_writer(out, &document)?;
    Ok(())
}

/// Time since the start of the profile.
fn timestamp(view: &View, time_ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(time_ns.saturating_sub(view.about.start_ns))
}

/// What the viewer takes a sample of time for.
fn sampling_interval(view: &View) -> SamplingInterval {
    match view.tick_period_ns {
        0 => SamplingInterval::from_millis(1),
        period_ns => SamplingInterval::from_nanos(period_ns),
    }
}

struct Builder<'a> {
    view: &'a View<'a>,
    profile: Profile,
    process: ProcessHandle,
    /// Where the allocations and frees are.
    whole: ThreadHandle,
    /// Each with the thread where its allocations and frees are.
    heaps: HashMap<HeapIndex, (ProcessHandle, ThreadHandle)>,
    /// Where those of each heap (or malloc's) are that were alive before the file began.
    carried: HashMap<Option<HeapIndex>, ThreadHandle>,
    categories: Categories,
    stacks: HashMap<(ThreadHandle, StackIndex), StackHandle>,
    objects: HashMap<(ThreadHandle, StackIndex, LocationIndex), StackHandle>,
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
    fn new(view: &'a View<'a>) -> Self {
        let about = &view.about;
        let start = Duration::from_nanos(about.start_wall_ns);
        let mut profile = Profile::new(
            &about.program,
            ReferenceTimestamp::from_duration_since_unix_epoch(start),
            sampling_interval(view),
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
        let process = profile.add_process(&about.program, about.pid, zero);
        profile.set_process_end_time(process, timestamp(view, about.end_ns));
        // No thread of the program, so that none of its numbers is taken.
        let whole = profile.add_thread(process, 0, zero, true);
        profile.set_thread_end_time(whole, timestamp(view, about.end_ns));
        profile.add_initial_visible_thread(whole);
        profile.add_initial_selected_thread(whole);
        Self {
            view,
            profile,
            process,
            whole,
            heaps: HashMap::new(),
            carried: HashMap::new(),
            categories,
            stacks: HashMap::new(),
            objects: HashMap::new(),
        }
    }

    /// A process for each heap of a virtual machine: the viewer has one table of allocations for each.
    fn heaps(&mut self) {
        for (heap, name) in self.view.heaps.iter().enumerate() {
            let name = format!("{}: {name}", self.view.about.program);
            let (process, thread) = self.process(&name);
            self.profile
                .set_thread_samples_weight_type(thread, WeightType::Bytes);
            self.profile
                .set_thread_show_markers_in_timeline(thread, true);
            self.heaps.insert(heap, (process, thread));
        }
    }

    /// A process for what was alive when the file began: it is retained, and was not allocated in this file.
    fn carried(&mut self) {
        for sample in self.view.samples.iter().filter(|it| it.is_carried) {
            if self.carried.contains_key(&sample.heap) {
                continue;
            }
            let mut name = format!("{}{CARRIED}", self.view.about.program);
            if let Some(heap) = sample.heap {
                name = format!(
                    "{}: {}{CARRIED}",
                    self.view.about.program, self.view.heaps[heap]
                );
            }
            let (_, thread) = self.process(&name);
            self.carried.insert(sample.heap, thread);
        }
    }

    /// A process with one thread, which the viewer's one table of allocations of a process is in.
    fn process(&mut self, name: &str) -> (ProcessHandle, ThreadHandle) {
        let about = &self.view.about;
        let zero = Timestamp::from_nanos_since_reference(0);
        let end = timestamp(self.view, about.end_ns);
        let process = self.profile.add_process(name, about.pid, zero);
        self.profile.set_process_end_time(process, end);
        let thread = self.profile.add_thread(process, 0, zero, true);
        self.profile.set_thread_end_time(thread, end);
        self.profile.add_initial_visible_thread(thread);
        (process, thread)
    }

    /// Rows of allocations and frees, in the order of time.
    fn allocations(&mut self) {
        let mut rows = Vec::new();
        // What the rows of one thread add up to is rounded once.
        let mut rounding: HashMap<ThreadHandle, Rounding> = HashMap::new();
        for (number, sample) in self.view.samples.iter().enumerate() {
            let thread = self.thread_of_rows(&sample);
            let weight = rounding.entry(thread).or_default().next(sample.bytes);
            // An allocation of 0 bytes at interval 1: a row of weight 0 is neither allocation nor free.
            if weight == 0 {
                continue;
            }
            rows.push((sample.time_ns, number, thread, weight));
            if let End::Freed(time_ns) = sample.end {
                // Clocks of two threads may disagree by a moment; a free must not come first.
                rows.push((time_ns.max(sample.time_ns), number, thread, -weight));
            }
        }
        // Stable: an allocation stays before its own free.
        rows.sort_by_key(|&(time_ns, ..)| time_ns);
        for (time_ns, number, thread, weight) in rows {
            let sample = &self.view.samples.get(number);
            let stack = (weight > 0).then(|| self.stack_with_type(thread, sample));
            let time = timestamp(self.view, time_ns);
            self.profile
                .add_allocation_sample(thread, time, stack, number as u64, weight);
            let draws_track = sample.heap.is_some() && !sample.is_carried;
            if draws_track && weight > 0 {
                self.add_sample(thread, time, stack, weight);
            }
        }
    }

    fn thread_of_rows(&self, sample: &Sample) -> ThreadHandle {
        if sample.is_carried {
            return self.carried[&sample.heap];
        }
        let heap = sample.heap.and_then(|heap| self.heaps.get(&heap));
        heap.map_or(self.whole, |&(_, thread)| thread)
    }

    /// Weights are 32-bit here: what is larger becomes several samples at the same moment.
    fn add_sample(
        &mut self,
        thread: ThreadHandle,
        time: Timestamp,
        stack: Option<StackHandle>,
        mut weight: i64,
    ) {
        while weight > 0 {
            let part = i32::try_from(weight).unwrap_or(i32::MAX);
            self.profile
                .add_sample(thread, time, stack, CpuDelta::ZERO, part);
            weight -= i64::from(part);
        }
    }

    /// A track for each thread that has samples.
    fn threads(&mut self) {
        let mut bytes = vec![0.0; self.view.threads.len()];
        let view = self.view;
        let allocated = || view.samples.iter().filter(|it| !it.is_carried);
        for sample in allocated() {
            bytes[sample.thread] += sample.bytes;
        }
        let mut handles = vec![None; bytes.len()];
        let mut heaviest_first: Vec<usize> = (0..bytes.len()).collect();
        heaviest_first.sort_by(|&a, &b| bytes[b].total_cmp(&bytes[a]));
        // Beside it is one of its time.
        let suffix = match self.view.ticks.is_empty() {
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
            handles[thread] = Some(handle);
        }
        let mut rounding: Vec<Rounding> = bytes.iter().map(|_| Rounding::default()).collect();
        for sample in allocated() {
            let Some(thread) = handles[sample.thread] else {
                continue;
            };
            let stack = Some(self.stack_with_type(thread, &sample));
            let time = timestamp(self.view, sample.time_ns);
            let weight = rounding[sample.thread].next(sample.bytes);
            self.add_sample(thread, time, stack, weight);
        }
    }

    fn thread(&mut self, number: usize, suffix: &str) -> ThreadHandle {
        let thread = &self.view.threads[number];
        let start = timestamp(self.view, thread.start_ns);
        let handle = self
            .profile
            .add_thread(self.process, thread.tid, start, false);
        let name = format!("{}{suffix}", thread.name);
        self.profile.set_thread_name(handle, &name);
        let end_ns = thread.end_ns.unwrap_or(self.view.about.end_ns);
        self.profile
            .set_thread_end_time(handle, timestamp(self.view, end_ns));
        handle
    }

    /// A track of its own for the time of each thread: samples of a track have one unit.
    fn ticks(&mut self) {
        let mut cpu_ns = vec![0; self.view.threads.len()];
        for tick in &self.view.ticks {
            cpu_ns[tick.thread] += tick.cpu_ns;
        }
        let mut busiest_first: Vec<usize> = (0..cpu_ns.len()).collect();
        busiest_first.sort_by_key(|&thread| std::cmp::Reverse(cpu_ns[thread]));
        let mut handles = vec![None; cpu_ns.len()];
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
            handles[thread] = Some(handle);
        }
        for tick in &self.view.ticks {
            let Some(thread) = handles[tick.thread] else {
                continue;
            };
            let stack = self.stack(thread, tick.stack);
            let time = timestamp(self.view, tick.time_ns);
            // A tick that was late stands for those that it missed.
            let periods = tick.cpu_ns / self.view.tick_period_ns.max(1);
            let weight = i32::try_from(periods).unwrap_or(i32::MAX).max(1);
            let cpu = CpuDelta::from_nanos(tick.cpu_ns);
            self.profile
                .add_sample(thread, time, Some(stack), cpu, weight);
        }
    }

    /// The sample's stack, with its type on top if it has one.
    fn stack_with_type(&mut self, thread: ThreadHandle, sample: &Sample) -> StackHandle {
        let stack = self.stack(thread, sample.stack);
        let Some(object) = sample.object else {
            return stack;
        };
        if let Some(&known) = self.objects.get(&(thread, sample.stack, object)) {
            return known;
        }
        let frame = self.frame(object, 0);
        let frame = self.profile.intern_frame(thread, frame);
        let whole = self.profile.intern_stack(thread, Some(stack), frame);
        self.objects.insert((thread, sample.stack, object), whole);
        whole
    }

    /// A stack in a thread's table. The tables are the threads' own: a stack of one means something else in another.
    fn stack(&mut self, thread: ThreadHandle, stack: StackIndex) -> StackHandle {
        let mut missing = Vec::new();
        let mut known = None;
        for stack in self.view.stacks_of(stack) {
            known = self.stacks.get(&(thread, stack)).copied();
            if known.is_some() {
                break;
            }
            missing.push(stack);
        }
        for stack in missing.into_iter().rev() {
            let location = self.view.stacks.get(stack).location;
            let lines = self.view.locations[location].lines.len();
            // Outermost first: callers are below their callees.
            for line in (0..lines).rev() {
                let frame = self.frame(location, line);
                let frame = self.profile.intern_frame(thread, frame);
                known = Some(self.profile.intern_stack(thread, known, frame));
            }
            if let Some(known) = known {
                self.stacks.insert((thread, stack), known);
            }
        }
        known.expect("a location has a line at least")
    }

    /// A stand-in that `tables` recognises by its name.
    fn frame(&mut self, location: LocationIndex, line: usize) -> FrameInfo {
        let place = &self.view.locations[location];
        let category = match place.nature {
            Nature::Interpreted => self.categories.interpreted,
            Nature::Object(Survival::DiedYoung) => self.categories.died_young,
            Nature::Object(Survival::Survived) => self.categories.survived,
            Nature::Object(Survival::Open) => self.categories.object,
            Nature::Native => self.category_of_code(location),
        };
        let name = tables::name_of_stand_in(location, line);
        FrameInfo {
            frame: Frame::Label(self.profile.intern_string(&name)),
            category_pair: category.into(),
            flags: FrameFlags::empty(),
        }
    }

    fn category_of_code(&self, location: LocationIndex) -> CategoryHandle {
        match &self.view.locations[location] {
            place if place.address.is_none() => CategoryHandle::OTHER,
            place => match place.module {
                None if place.is_symbolized => self.categories.compiled,
                None => self.categories.unknown,
                Some(module) if is_kernels(&self.view.modules[module].name) => {
                    self.categories.kernel
                }
                Some(module) if self.view.modules[module].is_program => self.categories.program,
                Some(_) => self.categories.library,
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
