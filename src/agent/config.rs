//! The settings, read from the environment.

mod unknown;

use allocsample_record::Sampling;
use allocsample_sampling::{
    Budget, Interval, IntervalError, IntervalSetting, parse_decimal, parse_max_size,
    parse_max_size_rotated, parse_percent, parse_rotate_size, parse_time_ms,
};

use crate::path::Path;
pub use unknown::UnknownSetting;

/// The default interval: at one gigabyte a second 2,000 samples a second, each a few hundred nanoseconds.
const DEFAULT_INTERVAL: Interval = match Interval::new(512 * 1024) {
    Some(interval) => interval,
    None => Interval::EVERY_ALLOCATION,
};
const DEFAULT_MAX_DEPTH: usize = 512;
/// Maximum number of frames of a stack.
pub const LARGEST_MAX_DEPTH: usize = 4096;
/// Kernels look at timers 100 to 1,000 times a second, and tell how many ticks they have missed.
const LARGEST_TIME_HZ: u64 = 10_000;

/// With fewer live samples estimates are too rough.
const LEAST_MAX_LIVE: u64 = 100;
const LIVE_EXPECTED: &str = "expected a number of samples, at least 100";
const DEFAULT_TEMPLATE: &[u8] = b"allocsample.%n.%p.allocsample";

/// Whether the agent joins the language runtimes that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bridges {
    /// Join every known runtime in the process.
    Auto,
    /// As [`Self::Auto`], and PyPy, whose code is changed in memory for it.
    Pypy,
    /// Native code only.
    None,
}

/// What to do with a sample when the ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// The sample is lost, and counted with its weight.
    Drop,
    /// The program waits for the drain thread.
    Wait,
}

/// How stacks are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwind {
    /// By call-frame information, with frame pointers where there is none.
    Auto,
    /// By frame pointers alone: faster, but stacks end at code without frame pointers.
    FramePointers,
    /// As [`Self::Auto`], and each stack is walked again by the unwinder alone and compared. Slow: for our tests.
    Verify,
    /// No stacks.
    None,
}

/// What becomes of functions that a runtime's compiler inlines, where its own profiler does not see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inlining {
    /// They are named by another profiler of the runtime.
    Named,
    /// The same, and after an attach the runtime compiles all code again for it, whatever the size of its heap.
    Recompiled,
    /// What they allocate is charged to their callers.
    Charged,
    /// The runtime is told to compile without inlining.
    Off,
}

impl Inlining {
    /// Whether they are named.
    pub fn is_named(self) -> bool {
        matches!(self, Self::Named | Self::Recompiled)
    }
}

/// All settings.
pub struct Config {
    /// Absolute, with `%p`, `%n` and `%t` not yet filled in.
    pub output: Path,
    /// `ALLOCSAMPLE_INTERVAL`; `None` for off.
    pub interval: Option<Interval>,
    /// `ALLOCSAMPLE_SAMPLING`
    pub sampling: Sampling,
    /// `ALLOCSAMPLE_SEED`
    pub seed: Option<u64>,
    /// `ALLOCSAMPLE_UNWIND`
    pub unwind: Unwind,
    /// `ALLOCSAMPLE_MAX_DEPTH`
    pub max_depth: usize,
    /// `ALLOCSAMPLE_START=off`: no samples until somebody asks for them.
    pub is_stopped: bool,
    /// `ALLOCSAMPLE_RUNTIME`
    pub bridges: Bridges,
    /// `ALLOCSAMPLE_EMBEDDED`: whether allocators that are part of the program or of a library are joined.
    pub joins_embedded: bool,
    /// `ALLOCSAMPLE_OBJECTS`: whether objects are sampled that a runtime reports only at a high cost.
    pub samples_objects: bool,
    /// `ALLOCSAMPLE_INLINING`
    pub inlining: Inlining,
    /// `ALLOCSAMPLE_CHILDREN`
    pub follow_children: bool,
    /// `ALLOCSAMPLE_MAPPINGS`: whether calls of mmap and its kin are recorded.
    pub records_mappings: bool,
    /// `ALLOCSAMPLE_ON_FULL`
    pub on_full: OnFull,
    /// `ALLOCSAMPLE_MAX_OVERHEAD`, in millionths of the program's own time.
    pub max_overhead_ppm: Option<u32>,
    /// `ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND`
    pub max_samples_per_second: Option<u64>,
    /// `ALLOCSAMPLE_MAX_LIVE`: samples that are alive at the same time.
    pub max_live: Option<u64>,
    /// `ALLOCSAMPLE_MAX_SIZE`
    pub max_size_bytes: Option<u64>,
    /// `ALLOCSAMPLE_ROTATE_EVERY`: the profile goes on in another file after this time.
    pub rotate_every_ms: Option<u64>,
    /// `ALLOCSAMPLE_ROTATE_SIZE`: or when the file has grown by this.
    pub rotate_size_bytes: Option<u64>,
    /// `ALLOCSAMPLE_KEEP`: how many files stay beside the one that is being written; all if `None`.
    pub keep_parts: Option<u32>,
    /// `ALLOCSAMPLE_SIGNAL`: this signal has the profile copied.
    pub snapshot_signal: Option<i32>,
    /// `ALLOCSAMPLE_TIME_HZ`, as processor time between two ticks of a thread.
    pub tick_period_ns: Option<u64>,
    /// `ALLOCSAMPLE_PAGES`: page faults are sampled, one for every so many bytes that they make resident.
    pub pages_interval: Option<Interval>,
    /// Whether `ALLOCSAMPLE_INTERVAL` was given.
    is_interval_given: bool,
    /// `ALLOCSAMPLE_RUN_PID`: set by `allocsample run`; its direct child writes a profile even without a sample.
    pub run_pid: Option<u32>,
}

/// A variable that cannot be understood.
#[derive(Clone, Copy, Debug)]
pub struct ConfigError<'a> {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: &'a [u8],
    /// The values that are valid, for the user.
    pub expected: &'static str,
}

impl Config {
    /// Before any configuration was read.
    pub(crate) const OFF: Config = Config {
        output: Path::new(),
        interval: None,
        sampling: Sampling::Poisson,
        seed: None,
        unwind: Unwind::None,
        max_depth: DEFAULT_MAX_DEPTH,
        is_stopped: false,
        bridges: Bridges::None,
        joins_embedded: false,
        samples_objects: false,
        inlining: Inlining::Named,
        follow_children: false,
        records_mappings: false,
        on_full: OnFull::Drop,
        max_overhead_ppm: None,
        max_samples_per_second: None,
        max_live: None,
        max_size_bytes: None,
        rotate_every_ms: None,
        rotate_size_bytes: None,
        keep_parts: None,
        snapshot_signal: None,
        tick_period_ns: None,
        pages_interval: None,
        is_interval_given: false,
        run_pid: None,
    };

    /// Whether the cost of sampling is controlled, from the first sample on.
    pub fn is_watched(&self) -> bool {
        self.max_overhead_ppm.is_some() || self.max_samples_per_second.is_some()
    }

    /// Whether the drain thread is needed from the first sample on.
    pub(crate) fn is_attended(&self) -> bool {
        self.is_watched()
            || self.max_live.is_some()
            || self.joins_embedded
            || self.is_rotated()
            || self.snapshot_signal.is_some()
            || self.pages_interval.is_some()
    }

    /// Whether the profile continues in other files by itself.
    pub fn is_rotated(&self) -> bool {
        self.rotate_every_ms.is_some() || self.rotate_size_bytes.is_some()
    }

    /// The shortest interval that a controller may choose: the user's, or one that shows every detail.
    pub fn shortest_interval(&self) -> Interval {
        const SHORTEST: Interval = match Interval::new(4096) {
            Some(interval) => interval,
            None => Interval::EVERY_ALLOCATION,
        };
        self.interval
            .filter(|_| self.is_interval_given)
            .unwrap_or(SHORTEST)
    }

    /// The budget of sampling.
    pub fn budget(&self) -> Budget {
        Budget {
            overhead: self.max_overhead_ppm.map(|ppm| f64::from(ppm) / 1e6),
            samples_per_second: self.max_samples_per_second.map(|most| most as f64),
            shortest: self.shortest_interval(),
        }
    }

    /// The interval that a process begins with; `None` if sampling starts on request. Long if the samples per second are
    /// limited.
    pub fn first_interval(&self) -> Option<Interval> {
        let interval = self.interval.filter(|_| !self.is_stopped)?;
        Some(match self.max_samples_per_second {
            Some(_) => interval.max(self.budget().shortest_first()),
            None => interval,
        })
    }

    /// Reads the settings through `lookup`. `directory` is the working directory, for a relative output path.
    pub fn read<'a>(
        lookup: impl Fn(&str) -> Option<&'a [u8]>,
        directory: &[u8],
    ) -> Result<Self, ConfigError<'a>> {
        let mut config = Self {
            interval: Some(DEFAULT_INTERVAL),
            unwind: Unwind::Auto,
            is_stopped: false,
            bridges: Bridges::Auto,
            follow_children: true,
            records_mappings: true,
            ..Self::OFF
        };
        if let Some(value) = lookup("ALLOCSAMPLE_INTERVAL") {
            config.is_interval_given = true;
            config.interval = match Interval::parse(value) {
                Ok(IntervalSetting::Every(interval)) => Some(interval),
                Ok(IntervalSetting::Off) => None,
                Err(error) => {
                    return Err(ConfigError {
                        name: "ALLOCSAMPLE_INTERVAL",
                        value,
                        expected: explain(error),
                    });
                }
            };
        }
        let choice =
            |name: &'static str, choices: &[&str], expected: &'static str| match lookup(name) {
                None => Ok(None),
                Some(value) => match choices.iter().position(|choice| choice.as_bytes() == value) {
                    Some(index) => Ok(Some(index)),
                    None => Err(ConfigError {
                        name,
                        value,
                        expected,
                    }),
                },
            };
        let number = |name: &'static str, largest: u64, expected: &'static str| match lookup(name) {
            None => Ok(None),
            Some(value) => match parse_decimal(value).filter(|&number| number <= largest) {
                Some(number) => Ok(Some(number)),
                None => Err(ConfigError {
                    name,
                    value,
                    expected,
                }),
            },
        };
        if choice(
            "ALLOCSAMPLE_SAMPLING",
            &["poisson", "periodic"],
            "expected poisson or periodic",
        )? == Some(1)
        {
            config.sampling = Sampling::Periodic;
        }
        config.seed = number("ALLOCSAMPLE_SEED", u64::MAX, "expected a number below 2^64")?;
        config.is_stopped =
            choice("ALLOCSAMPLE_START", &["on", "off"], "expected on or off")? == Some(1);
        config.unwind = match choice(
            "ALLOCSAMPLE_UNWIND",
            &["auto", "dwarf", "fp", "none", "verify"],
            "expected auto, dwarf, fp or none",
        )? {
            Some(2) => Unwind::FramePointers,
            Some(3) => Unwind::None,
            Some(4) => Unwind::Verify,
            _ => Unwind::Auto,
        };
        if let Some(depth) = number(
            "ALLOCSAMPLE_MAX_DEPTH",
            LARGEST_MAX_DEPTH as u64,
            "expected 1 to 4096 frames",
        )? {
            if depth == 0 {
                let value = lookup("ALLOCSAMPLE_MAX_DEPTH").unwrap_or(&[]);
                return Err(ConfigError {
                    name: "ALLOCSAMPLE_MAX_DEPTH",
                    value,
                    expected: "expected 1 to 4096 frames",
                });
            }
            config.max_depth = depth as usize;
        }
        config.bridges = match choice(
            "ALLOCSAMPLE_RUNTIME",
            &["auto", "none", "pypy"],
            "expected auto, none or pypy",
        )? {
            Some(1) => Bridges::None,
            Some(2) => Bridges::Pypy,
            _ => Bridges::Auto,
        };
        config.joins_embedded =
            choice("ALLOCSAMPLE_EMBEDDED", &["on", "off"], "expected on or off")? == Some(0);
        config.samples_objects =
            choice("ALLOCSAMPLE_OBJECTS", &["on", "off"], "expected on or off")? == Some(0);
        config.inlining = match choice(
            "ALLOCSAMPLE_INLINING",
            &["named", "charged", "off", "recompiled"],
            "expected named, charged, off or recompiled",
        )? {
            Some(1) => Inlining::Charged,
            Some(2) => Inlining::Off,
            Some(3) => Inlining::Recompiled,
            _ => Inlining::Named,
        };
        if choice(
            "ALLOCSAMPLE_CHILDREN",
            &["follow", "ignore"],
            "expected follow or ignore",
        )? == Some(1)
        {
            config.follow_children = false;
        }
        config.records_mappings =
            choice("ALLOCSAMPLE_MAPPINGS", &["on", "off"], "expected on or off")? != Some(1);
        config.on_full = match choice(
            "ALLOCSAMPLE_ON_FULL",
            &["drop", "wait"],
            "expected drop or wait",
        )? {
            Some(0) => OnFull::Drop,
            Some(_) => OnFull::Wait,
            // Exactness is what interval 1 was chosen for.
            None if config.interval == Some(Interval::EVERY_ALLOCATION) => OnFull::Wait,
            None => OnFull::Drop,
        };
        config.max_overhead_ppm = match lookup("ALLOCSAMPLE_MAX_OVERHEAD") {
            None => None,
            Some(value) => Some(parse_percent(value).ok_or(ConfigError {
                name: "ALLOCSAMPLE_MAX_OVERHEAD",
                value,
                expected: "expected 0.01% to 100%, as in 1% or 0.5%",
            })?),
        };
        config.max_samples_per_second = number(
            "ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND",
            u64::from(u32::MAX),
            "expected a number of samples, at least 1",
        )?;
        if let Some(value) = lookup("ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND")
            && config.max_samples_per_second == Some(0)
        {
            return Err(ConfigError {
                name: "ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND",
                value,
                expected: "expected a number of samples, at least 1",
            });
        }
        config.max_live = number("ALLOCSAMPLE_MAX_LIVE", u64::from(u32::MAX), LIVE_EXPECTED)?;
        if let Some(value) = lookup("ALLOCSAMPLE_MAX_LIVE")
            && config.max_live.is_some_and(|most| most < LEAST_MAX_LIVE)
        {
            return Err(ConfigError {
                name: "ALLOCSAMPLE_MAX_LIVE",
                value,
                expected: LIVE_EXPECTED,
            });
        }
        config.max_size_bytes = match lookup("ALLOCSAMPLE_MAX_SIZE") {
            None => None,
            Some(value) => {
                let name = "ALLOCSAMPLE_MAX_SIZE";
                let refused = |expected| ConfigError {
                    name,
                    value,
                    expected,
                };
                Some(parse_max_size(value).map_err(refused)?)
            }
        };
        config.read_rotation(&lookup)?;
        config.snapshot_signal = match choice(
            "ALLOCSAMPLE_SIGNAL",
            &["USR1", "USR2"],
            "expected USR1 or USR2",
        )? {
            Some(0) => Some(libc::SIGUSR1),
            Some(_) => Some(libc::SIGUSR2),
            None => None,
        };
        config.tick_period_ns = match number(
            "ALLOCSAMPLE_TIME_HZ",
            LARGEST_TIME_HZ,
            "expected 1 to 10000 ticks for each second of a processor",
        )? {
            Some(0) => {
                return Err(ConfigError {
                    name: "ALLOCSAMPLE_TIME_HZ",
                    value: b"0",
                    expected: "expected 1 to 10000 ticks for each second of a processor",
                });
            }
            hz => hz.map(|hz| 1_000_000_000 / hz),
        };
        config.pages_interval = match lookup("ALLOCSAMPLE_PAGES") {
            None => None,
            Some(value) => {
                let refused = |expected| ConfigError {
                    name: "ALLOCSAMPLE_PAGES",
                    value,
                    expected,
                };
                match Interval::parse(value) {
                    Ok(IntervalSetting::Every(interval)) => Some(interval),
                    Ok(IntervalSetting::Off) => None,
                    Err(error) => return Err(refused(explain(error))),
                }
            }
        };
        config.run_pid = number(
            "ALLOCSAMPLE_RUN_PID",
            u64::from(u32::MAX),
            "expected a process id",
        )?
        .and_then(|pid| u32::try_from(pid).ok());
        let template = lookup("ALLOCSAMPLE_OUTPUT")
            .filter(|path| !path.is_empty())
            .unwrap_or(DEFAULT_TEMPLATE);
        if !template.starts_with(b"/") {
            config.output.push(directory).push(b"/");
        }
        config.output.push(template);
        if config.output.is_too_long() {
            return Err(ConfigError {
                name: "ALLOCSAMPLE_OUTPUT",
                value: template,
                expected: "the path is too long",
            });
        }
        Ok(config)
    }

    fn read_rotation<'a>(
        &mut self,
        lookup: &impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<(), ConfigError<'a>> {
        /// Number of complete files that cover a window; one more is being written.
        const WINDOW_PARTS: u32 = 4;
        let time = |name: &'static str| match lookup(name) {
            None => Ok(None),
            Some(value) => parse_time_ms(value)
                .map(Some)
                .map_err(|expected| ConfigError {
                    name,
                    value,
                    expected,
                }),
        };
        self.rotate_every_ms = time("ALLOCSAMPLE_ROTATE_EVERY")?;
        if let Some(window_ms) = time("ALLOCSAMPLE_WINDOW")? {
            // The oldest goes only when those after it are as old as the window.
            let every_ms = window_ms.div_ceil(u64::from(WINDOW_PARTS));
            let every_ms = every_ms.min(self.rotate_every_ms.unwrap_or(u64::MAX));
            self.rotate_every_ms = Some(every_ms);
            // At least a second each, so at most a year of seconds.
            self.keep_parts = u32::try_from(window_ms.div_ceil(every_ms.max(1))).ok();
        }
        if let Some(value) = lookup("ALLOCSAMPLE_ROTATE_SIZE") {
            let name = "ALLOCSAMPLE_ROTATE_SIZE";
            let refused = |expected| ConfigError {
                name,
                value,
                expected,
            };
            self.rotate_size_bytes = Some(parse_rotate_size(value).map_err(refused)?);
        }
        if let Some(value) = lookup("ALLOCSAMPLE_KEEP") {
            match parse_decimal(value).and_then(|keep| u32::try_from(keep).ok()) {
                Some(keep) => self.keep_parts = Some(keep),
                None => {
                    return Err(ConfigError {
                        name: "ALLOCSAMPLE_KEEP",
                        value,
                        expected: "expected a number of files",
                    });
                }
            }
        }
        if self.is_rotated()
            && let Some(most) = self.max_size_bytes
        {
            let name = "ALLOCSAMPLE_MAX_SIZE";
            let value = lookup(name).unwrap_or(&[]);
            let refused = |expected| ConfigError {
                name,
                value,
                expected,
            };
            parse_max_size_rotated(value).map_err(refused)?;
            // All files together may have that: the oldest goes, and not everything at once.
            let share = most / u64::from(WINDOW_PARTS);
            self.rotate_size_bytes = Some(share.min(self.rotate_size_bytes.unwrap_or(u64::MAX)));
        }
        Ok(())
    }

    /// The path of a profile of this process. `attempt` tells apart paths that exist already.
    pub fn output_path(&self, pid: u32, program: &[u8], start_wall_ns: u64, attempt: u32) -> Path {
        let mut path = Path::new();
        let mut rest = self.output.as_bytes();
        const SUFFIX: &[u8] = b".allocsample";
        let has_suffix = rest.ends_with(SUFFIX);
        if has_suffix {
            rest = rest.get(..rest.len() - SUFFIX.len()).unwrap_or(rest);
        }
        while let Some((&byte, after)) = rest.split_first() {
            rest = match (byte, after.first()) {
                (b'%', Some(&letter @ (b'p' | b'n' | b't' | b'%'))) => {
                    match letter {
                        b'p' => path.push_decimal(u64::from(pid)),
                        b'n' => path.push(program),
                        b't' => path.push_decimal(start_wall_ns / 1_000_000_000),
                        _ => path.push(b"%"),
                    };
                    after.get(1..).unwrap_or(&[])
                }
                _ => {
                    path.push(&[byte]);
                    after
                }
            };
        }
        if attempt > 0 {
            path.push(b".").push_decimal(u64::from(attempt));
        }
        if has_suffix {
            path.push(SUFFIX);
        }
        path
    }
}

fn explain(error: IntervalError) -> &'static str {
    match error {
        IntervalError::Zero => {
            "0 is ambiguous: use 1 to record every allocation, or off to record none"
        }
        IntervalError::NotANumber => "expected bytes, as in 1, 512K or 1M, or off",
        IntervalError::UnknownUnit => "unknown unit: expected K, M, G or T",
        IntervalError::TooLarge => "the longest interval is 2^63 - 1 bytes",
    }
}

#[cfg(test)]
mod tests;
