//! The heap of a Go program while it is read from outside.

use std::io;
use std::path::{Path, PathBuf};

use allocsample_goheap::{Buckets, GoError, Moment, Recorder, Runtime, Since, Unreadable};
use allocsample_sampling::{Interval, IntervalSetting};
use anyhow::{Context, bail};
use rustix::time::ClockId;

use crate::commands::run::output::Template;

/// Go's own default, for a program without a profile.
pub const DEFAULT_RATE: u64 = 512 << 10;

/// The rate that a program that runs samples with, in bytes, and the one that it is to have while it is read.
pub struct Rate {
    pub before: u64,
    pub wanted: u64,
}

impl Rate {
    /// The user's choice before the program's, and that before Go's default.
    pub fn of(runtime: &Runtime, asked_for: Option<u64>) -> Result<Self, GoError> {
        let before = runtime.rate()?;
        let wanted = asked_for.unwrap_or(match before {
            0 => DEFAULT_RATE,
            before => before,
        });
        Ok(Self { before, wanted })
    }

    fn set(&self, runtime: &Runtime) -> Result<(), GoError> {
        match self.wanted == self.before {
            true => Ok(()),
            false => runtime.set_rate(self.wanted),
        }
    }

    pub fn restore(&self, runtime: &Runtime) -> Result<(), GoError> {
        match self.wanted == self.before {
            true => Ok(()),
            false => runtime.set_rate(self.before),
        }
    }

    /// The rate that earlier samples were most likely taken with.
    fn of_earlier_samples(&self) -> u64 {
        match self.before {
            0 => self.wanted,
            before => before,
        }
    }
}

/// A Go program, and the profile of its heap.
pub struct GoHeap {
    pub runtime: Runtime,
    pub buckets: Buckets,
    pub recorder: Recorder,
    pub path: PathBuf,
}

impl GoHeap {
    /// Begins to read a program that runs: has it take samples at this rate, and creates the profile, with what was sampled
    /// before. Whoever sees the profile knows that samples are taken.
    pub fn begin(
        template: &Template,
        pid: u32,
        mut runtime: Runtime,
        since: Since,
        rate: &Rate,
    ) -> anyhow::Result<Self> {
        let mut buckets = Buckets::default();
        // Nothing is written yet: this may fail.
        runtime.read(&mut buckets)?;
        rate.set(&runtime)?;
        let now = now();
        let created = create(template, pid, &runtime, since, now);
        let begun = created.and_then(|(path, mut recorder)| {
            recorder.set_rate(rate.of_earlier_samples(), now)?;
            recorder.add(&runtime, &buckets, now)?;
            Ok((path, recorder))
        });
        if begun.is_err() {
            let _ = rate.restore(&runtime);
        }
        let (path, recorder) = begun?;
        Ok(Self {
            runtime,
            buckets,
            recorder,
            path,
        })
    }

    /// Begins to read a program that waits at its exec, and takes samples at this rate already.
    pub fn begin_at_exec(
        template: &Template,
        pid: u32,
        runtime: Runtime,
        rate: u64,
    ) -> anyhow::Result<Self> {
        let now = now();
        let (path, mut recorder) = create(template, pid, &runtime, Since::Start, now)?;
        recorder.set_rate(rate, now)?;
        Ok(Self {
            runtime,
            buckets: Buckets::default(),
            recorder,
            path,
        })
    }

    /// Adds what is new. False: the process has ended, or runs another program.
    pub fn read(&mut self) -> anyhow::Result<bool> {
        match self.runtime.read(&mut self.buckets) {
            Ok(()) => {}
            Err(GoError::Buckets(Unreadable::Gone)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let now = now();
        if let Ok(rate) = self.runtime.rate() {
            self.recorder.set_rate(rate, now)?;
        }
        self.recorder.add(&self.runtime, &self.buckets, now)?;
        Ok(true)
    }
}

fn create(
    template: &Template,
    pid: u32,
    runtime: &Runtime,
    since: Since,
    now: Moment,
) -> anyhow::Result<(PathBuf, Recorder)> {
    const MOST: u32 = 1_000;
    let pid = pid.cast_signed();
    let program = runtime.program_name();
    for number in 0..MOST {
        let path = template.expand(pid, &program, now.wall_ns / 1_000_000_000, number);
        match Recorder::create(&path, runtime, since, now) {
            Ok(recorder) => return Ok((path, recorder)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    let last = template.expand(pid, &program, 0, MOST);
    bail!(
        "{}: all names up to this one are taken",
        Path::display(&last)
    )
}

/// Whether a process runs a Go program. One whose executable cannot be read is none: what is tried next explains that better.
pub fn is_go(pid: u32) -> bool {
    Runtime::is_go(Path::new(&format!("/proc/{pid}/exe"))).unwrap_or(false)
}

/// The interval that the user asked for.
pub fn interval(text: Option<&str>) -> anyhow::Result<Option<IntervalSetting>> {
    let parsed = text.map(|text| Interval::parse(text.as_bytes()));
    Ok(parsed.transpose()?)
}

/// The names of the given options that mean nothing to a Go program, which samples itself.
pub fn options_of_the_agent<'a>(
    names: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = String> {
    names
        .filter(|&name| name != "ALLOCSAMPLE_INTERVAL")
        .map(|name| {
            let option = name.trim_start_matches("ALLOCSAMPLE_").to_lowercase();
            format!("--{}", option.replace('_', "-"))
        })
}

/// The moment on the clocks of profiles.
pub fn now() -> Moment {
    Moment {
        mono_ns: time_ns(ClockId::Monotonic),
        wall_ns: time_ns(ClockId::Realtime),
    }
}

fn time_ns(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
