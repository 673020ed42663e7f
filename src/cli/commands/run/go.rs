//! The heap of a Go program that we run: read from outside, from its first moment until its last.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use allocsample_goheap::{Runtime, Since};
use allocsample_sampling::IntervalSetting;

use super::output::Template;
use super::traced::Stop;
use crate::args::{Run, name_of};
use crate::exit::{self, Ending};
use crate::go_heap::{self, DEFAULT_RATE, GoHeap, Rate};

/// How Go programs are read.
#[derive(Clone)]
pub struct Plan {
    template: Template,
    /// The interval that the user asked for.
    interval: Option<u64>,
    is_quiet: bool,
}

/// The heaps of the process that we have started, and the thread that reads them.
pub struct GoHeaps {
    process: Arc<Mutex<Process>>,
    reader: Option<Reader>,
}

/// The Go programs that one process becomes, one after the other.
struct Process {
    plan: Plan,
    pid: u32,
    /// Whether its next exec stops it.
    is_traced: bool,
    reading: Option<Reading>,
    profiles: Vec<PathBuf>,
}

/// The thread that reads now and then.
struct Reader {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// A program while it is read.
pub struct Reading {
    heap: GoHeap,
    begin: Instant,
    /// The rate that the program had, where it ran already.
    before: u64,
    settled: Settled,
    state: State,
    is_quiet: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Read,
    /// The process has ended, or runs another program.
    Gone,
    /// Its counts are not what we know.
    GivenUp,
}

/// The rate that a program is to have when its runtime has started.
#[derive(Clone, Copy)]
struct Settled {
    rate: u64,
    /// 0 is the linker's choice, not the program's.
    not_off: bool,
    /// The default is the runtime's choice.
    not_default: bool,
}

impl Plan {
    /// `None`: nothing is to be read. The environment counts as it does for the agent, which says what is wrong with it.
    pub fn of(options: &Run, template: &Template) -> Option<Self> {
        let setting = |option: Option<String>, variable| {
            let value = option.or_else(|| std::env::var(variable).ok());
            value.filter(|value| !value.is_empty())
        };
        let start = setting(options.start.map(name_of), "ALLOCSAMPLE_START");
        if start.is_some_and(|start| start.eq_ignore_ascii_case("off")) {
            return None;
        }
        let interval = setting(options.capture.interval.clone(), "ALLOCSAMPLE_INTERVAL");
        let interval = match go_heap::interval(interval.as_deref()).ok()? {
            None => None,
            Some(IntervalSetting::Every(interval)) => Some(interval.bytes()),
            Some(IntervalSetting::Off) => return None,
        };
        Some(Self {
            template: template.clone(),
            interval,
            is_quiet: options.quiet,
        })
    }

    /// Begins to read a process that runs, and that may have an agent, too.
    pub fn begin_late(&self, pid: u32) -> anyhow::Result<Option<Reading>> {
        let Some(runtime) = Runtime::find(pid)? else {
            return Ok(None);
        };
        match runtime.is_dynamic() {
            true => self.read(pid, runtime, &self.template.with_part("go"), false),
            false => self.read(pid, runtime, &self.template, false),
        }
        .map(Some)
    }

    /// Begins to read the process that we have started. One that waits at its exec takes samples from its first allocation on.
    fn begin(&self, pid: u32, is_waiting: bool) -> anyhow::Result<Option<Reading>> {
        let Some(runtime) = Runtime::find(pid)? else {
            return Ok(None);
        };
        self.read(pid, runtime, &self.template, is_waiting)
            .map(Some)
    }

    fn read(
        &self,
        pid: u32,
        runtime: Runtime,
        template: &Template,
        is_waiting: bool,
    ) -> anyhow::Result<Reading> {
        let begun = |heap, before, rate, not_off| Reading {
            heap,
            begin: Instant::now(),
            before,
            settled: Settled {
                rate,
                not_off,
                not_default: self.interval.is_some(),
            },
            state: State::Read,
            is_quiet: self.is_quiet,
        };
        if is_waiting {
            let rate = self.interval.unwrap_or(DEFAULT_RATE);
            let not_off = !runtime.switch_on(rate)?;
            let heap = GoHeap::begin_at_exec(template, pid, runtime, rate)?;
            return Ok(begun(heap, 0, rate, not_off));
        }
        let rate = Rate::of(&runtime, self.interval)?;
        let since = match rate.before {
            0 => Since::Attach,
            _ => Since::Start,
        };
        let heap = GoHeap::begin(template, pid, runtime, since, &rate)?;
        Ok(begun(heap, rate.before, rate.wanted, true))
    }
}

impl GoHeaps {
    pub fn new(plan: Plan, pid: u32) -> Self {
        let process = Process {
            plan,
            pid,
            is_traced: false,
            reading: None,
            profiles: Vec::new(),
        };
        Self {
            process: Arc::new(Mutex::new(process)),
            reader: None,
        }
    }

    /// The process waits.
    pub fn on(&mut self, stop: Stop) {
        let mut process = lock(&self.process);
        match stop {
            Stop::Exec => {
                process.is_traced = true;
                process.begin(true);
            }
            // Its main thread may end alone, or because another thread has called exec.
            Stop::Exit => {
                process.is_traced = false;
                process.step();
            }
        }
        drop(process);
        self.start_reader();
    }

    /// Begins to read the process, which runs.
    pub fn begin(&mut self) {
        lock(&self.process).begin(false);
        self.start_reader();
    }

    fn start_reader(&mut self) {
        if self.reader.is_none() {
            self.reader = Some(Reader::start(Arc::clone(&self.process)));
        }
    }

    /// The process has ended: its profiles.
    pub fn end(self, ending: Ending) -> Vec<PathBuf> {
        if let Some(Reader { stop, thread }) = self.reader {
            drop(stop);
            let _ = thread.join();
        }
        let mut process = lock(&self.process);
        if let Some(reading) = process.reading.take() {
            reading.end(Some(ending));
        }
        std::mem::take(&mut process.profiles)
    }
}

fn lock(process: &Mutex<Process>) -> MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Begins to read the program that the process runs now, if it is a Go program.
    fn begin(&mut self, is_waiting: bool) {
        if let Some(mut reading) = self.reading.take() {
            reading.end_by_exec();
        }
        if !go_heap::is_go(self.pid) {
            return;
        }
        match self.plan.begin(self.pid, is_waiting) {
            Ok(None) => {}
            Ok(Some(reading)) => {
                self.profiles.push(reading.path().to_owned());
                self.reading = Some(reading);
            }
            Err(_) if self.plan.is_quiet => {}
            Err(error) => exit::remark(format_args!(
                "process {}: a Go program, but {}; it runs without a profile",
                self.pid,
                exit::in_one_line(&error)
            )),
        }
    }

    fn step(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.step();
        }
    }

    /// Reads what is new; time until the next reading.
    fn look(&mut self) -> Duration {
        self.step();
        // If a thread that is not traced calls exec, the program does not stop.
        let is_gone = !self.is_traced
            && self
                .reading
                .as_ref()
                .is_some_and(|it| it.state == State::Gone);
        if is_gone && std::fs::metadata(format!("/proc/{}/exe", self.pid)).is_ok() {
            self.begin(false);
        }
        self.reading
            .as_ref()
            .map_or(Reading::LONGEST, Reading::pause)
    }
}

impl Reader {
    fn start(process: Arc<Mutex<Process>>) -> Self {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut pause = Duration::ZERO;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = lock(&process).look();
            }
        });
        Self { stop, thread }
    }
}

impl Reading {
    /// Counts change when a collection ends, which is seldom more often.
    const LONGEST: Duration = Duration::from_secs(1);
    /// A program may end soon.
    pub const SHORTEST: Duration = Duration::from_millis(1);
    /// So long the runtime may need until it calls the program's code.
    const START: Duration = Duration::from_millis(200);

    /// Time until the next reading. Short at first: a program may end soon.
    pub fn pause(&self) -> Duration {
        (self.begin.elapsed() / 20).clamp(Self::SHORTEST, Self::LONGEST)
    }

    /// Its profile.
    pub fn path(&self) -> &Path {
        &self.heap.path
    }

    /// Whether the program has ended, or cannot be read any more.
    pub fn is_over(&self) -> bool {
        self.state != State::Read
    }

    /// Reads what is new.
    pub fn step(&mut self) {
        if self.is_over() {
            return;
        }
        if self.begin.elapsed() < Self::START {
            self.settle();
        }
        match self.heap.read() {
            Ok(true) => {}
            Ok(false) => self.state = State::Gone,
            Err(error) => {
                self.state = State::GivenUp;
                let why = exit::in_one_line(&error);
                if !self.is_quiet {
                    exit::remark(format_args!(
                        "the heap of a Go program is not read any more: {why}"
                    ));
                }
                let recorder = &mut self.heap.recorder;
                say_failure(recorder.give_up(&why, go_heap::now()));
            }
        }
    }

    /// Sets the rate once more if the runtime has set another one while it started.
    fn settle(&mut self) {
        let Settled {
            rate,
            not_off,
            not_default,
        } = self.settled;
        let has_reset = match self.heap.runtime.rate() {
            Ok(0) => not_off,
            Ok(DEFAULT_RATE) => not_default && rate != DEFAULT_RATE,
            _ => false,
        };
        if has_reset {
            // A failure shows in the next reading.
            let _ = self.heap.runtime.set_rate(rate);
        }
    }

    fn end_by_exec(&mut self) {
        let GoHeap {
            recorder, buckets, ..
        } = &mut self.heap;
        say_failure(recorder.end_by_exec(buckets, go_heap::now()));
    }

    /// The process runs on, without being read.
    pub fn leave(mut self) {
        let runtime = &self.heap.runtime;
        // The program may have set another rate itself.
        if runtime.rate().is_ok_and(|rate| rate == self.settled.rate) {
            let _ = runtime.set_rate(self.before);
        }
        let GoHeap {
            recorder, buckets, ..
        } = &mut self.heap;
        say_failure(recorder.leave(buckets, go_heap::now()));
    }

    /// The process has ended; in which way may be unknown.
    pub fn end(mut self, ending: Option<Ending>) {
        let GoHeap {
            recorder, buckets, ..
        } = &mut self.heap;
        let now = go_heap::now();
        say_failure(match ending {
            Some(Ending::Status(status)) => recorder.end(buckets, Some(status.into()), now),
            Some(Ending::Signal(_)) => recorder.end_by_signal(buckets, now),
            None => recorder.end(buckets, None, now),
        });
    }
}

fn say_failure(written: std::io::Result<()>) {
    if let Err(error) = written {
        exit::complain(&format!("the profile of a Go program: {error}"));
    }
}
