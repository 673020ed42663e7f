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

/// A Go program, and the profile of its heap.
pub struct GoHeap {
    pub runtime: Runtime,
    pub buckets: Buckets,
    pub recorder: Recorder,
    pub path: PathBuf,
}

impl GoHeap {
    /// Creates the profile.
    pub fn create(
        template: &Template,
        pid: u32,
        runtime: Runtime,
        since: Since,
    ) -> anyhow::Result<Self> {
        let now = now();
        let (path, recorder) = create(template, pid, &runtime, since, now)?;
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
