//! What can be typed to record a program.

use std::ffi::OsString;
use std::path::PathBuf;

use allocsample_sampling::{
    Interval, IntervalError, parse_max_size, parse_percent, parse_rotate_size, parse_time_ms,
};
use clap::{Args, Parser, ValueEnum};

use super::name_of;
use crate::output_format::OutputFormat;

/// What is sampled, and what is kept of a sample: the same for processes that are started and for those that run already.
#[derive(Debug, Default, Args)]
pub struct Capture {
    /// Mean number of allocated bytes between two samples: 512K, 1M, ...; 1 records every allocation; off records none
    /// [default: 512K]
    #[arg(long, value_name = "BYTES", value_parser = interval)]
    pub interval: Option<String>,

    /// How samples are spaced: poisson gives standard errors, periodic a sample point every BYTES exactly
    /// [default: poisson]
    #[arg(long, value_name = "LAW")]
    pub sampling: Option<Sampling>,

    /// Seed of the random gaps between samples [default: random]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// How stacks are captured: by unwind tables, with frame pointers where there are none (auto or dwarf), by frame
    /// pointers alone (fp), or not at all [default: auto]
    #[arg(long, value_name = "HOW")]
    pub unwind: Option<Unwind>,

    /// Frames that are kept of a stack, 1 to 4096; what called them shows as (truncated) [default: 512]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub max_depth: Option<u16>,

    /// What happens when samples come faster than they can be written: they are lost and counted, or the program waits
    /// [default: drop, and wait at --interval 1]
    #[arg(long, value_name = "WHAT")]
    pub on_full: Option<OnFull>,
}

impl Capture {
    /// The agent's variables for what was given.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, String)> {
        let given = [
            ("ALLOCSAMPLE_INTERVAL", self.interval.clone()),
            ("ALLOCSAMPLE_SAMPLING", self.sampling.map(name_of)),
            ("ALLOCSAMPLE_SEED", self.seed.map(|seed| seed.to_string())),
            ("ALLOCSAMPLE_UNWIND", self.unwind.map(name_of)),
            (
                "ALLOCSAMPLE_MAX_DEPTH",
                self.max_depth.map(|depth| depth.to_string()),
            ),
            ("ALLOCSAMPLE_ON_FULL", self.on_full.map(name_of)),
        ];
        given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Run a program under the agent, then say where its profile is and what is in it
///
/// The program's input, output and exit status are its own; what allocsample has to say goes to stderr after it ended.
/// The options set the agent's environment variables (--interval sets ALLOCSAMPLE_INTERVAL and so on); an option that is
/// not given leaves the variable as it is.
#[derive(Debug, Default, Parser)]
#[command(after_help = "\
Examples:
  allocsample run -- python3 script.py
  allocsample run --interval 64K -o /tmp/redis.%p.allocsample -- redis-server --port 7777
  allocsample run --convert firefox,svg -- ./app")]
pub struct Run {
    /// Where to write the profile: %p stands for the pid, %n for the program's name, %t for the time
    /// [default: allocsample.%n.%p.allocsample]
    #[arg(short, long, value_name = "TEMPLATE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub capture: Capture,

    /// Whether sampling is on from the start [default: on]
    #[arg(long, value_name = "ON|OFF")]
    pub start: Option<Start>,

    /// Whether frames and heaps of language runtimes are shown: of all that the agent knows (CPython, JVM, Ruby, Lua, OCaml, Node.js, libgc, Mono), of none, or of PyPy too, whose code is changed in memory for that
    /// [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub runtime: Option<Runtime>,

    /// Whether the processes that the program starts get profiles of their own [default: follow]
    #[arg(long, value_name = "WHAT")]
    pub children: Option<Children>,

    /// Let sampling take no more than this share of the program's own processor time, 1% say: the interval is adapted as
    /// the program runs, down to the one given (4K if none is), and each sample keeps its own
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub max_overhead: Option<String>,

    /// Take no more samples than these in a second: the interval is adapted as for --max-overhead
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_samples_per_second: Option<u32>,

    /// Let no more samples than these be alive at the same time, in each process: the interval becomes four times as long
    /// each time that the room left has halved
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(100..))]
    pub max_live: Option<u32>,

    /// Let no process write more than this to its profile (64M, 1G, ..., 1M at least): the interval doubles each time that
    /// the room left has halved
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub max_size: Option<String>,

    /// Go on in another file after this time (30s, 10m, 1h, 7d); those before are kept as NAME.part-N.allocsample, and each
    /// can be read by itself
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub rotate_every: Option<String>,

    /// Go on in another file when the present one has grown by this (64K, 16M, ...)
    #[arg(long, value_name = "BYTES", value_parser = rotate_size)]
    pub rotate_size: Option<String>,

    /// Keep so many files beside the one that is being written; the oldest goes [default: all]
    #[arg(long, value_name = "NUMBER")]
    pub keep: Option<u32>,

    /// Keep the last time (10m, 1h, ...) only, in a ring of files; `allocsample join` makes one of them
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub window: Option<String>,

    /// Write a copy of the profile, NAME.snapshot-N.allocsample, when the program gets this signal; a program that uses the
    /// signal itself is left alone
    #[arg(long, value_name = "SIGNAL")]
    pub snapshot_on: Option<SnapshotSignal>,

    /// Also look where threads spend their time, so many times in each second of a processor that one uses: 99, say
    /// [default: not]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub time_hz: Option<u32>,

    /// Leave the addresses in the profile without names; `allocsample symbolize` can add them later
    #[arg(long)]
    pub no_symbolize: bool,

    /// Convert the profiles at the end, into files beside them: formats of `allocsample convert`, separated by commas
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = str::parse::<OutputFormat>)]
    pub convert: Vec<OutputFormat>,

    /// Show the profile in the browser at the end, as a page that is written beside it
    #[arg(long)]
    pub open: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = false,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}

/// Begin a profile of a process that runs already
///
/// Puts the agent into the process and redirects its calls of the allocator, which stops one of its threads for some
/// milliseconds. What was allocated before is in no figure. A process that was started under the agent and waits
/// (`run --start off`) is told to start. docs/attach.md says what is possible, and what is not.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample attach 4711
  allocsample attach 4711 --interval 64K -o /tmp/redis.%p.allocsample
  allocsample detach 4711")]
pub struct Attach {
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,

    /// Where the process is to write the profile: %p stands for the pid, %n for the program's name, %t for the time
    /// [default: allocsample.%n.%p.allocsample here, or in its own directory if it cannot see this one]
    #[arg(short, long, value_name = "TEMPLATE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub capture: Capture,

    /// Whether processes that it forks from now on get profiles of their own [default: ignore]
    #[arg(long, value_name = "WHAT")]
    pub children: Option<Children>,

    /// Whether CPython's functions and small objects are shown; other runtimes are joined at their start only [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub runtime: Option<RunningRuntime>,

    /// Attach even if a filter of system calls may kill the process for it
    #[arg(long)]
    pub despite_seccomp: bool,
}

/// End the profile of a process that was attached to, and let it run as before
///
/// Calls of the allocator go where they went before. The agent stays in memory, idle, since somebody may still hold a
/// pointer to a function of it. The process can be attached to again, for another profile.
#[derive(Debug, Parser)]
#[command(after_help = "Example: allocsample detach 4711")]
pub struct Detach {
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,

    /// Leave the addresses in the profile without names; `allocsample symbolize` can add them later
    #[arg(long)]
    pub no_symbolize: bool,

    /// Detach even if a filter of system calls may kill the process for it
    #[arg(long)]
    pub despite_seccomp: bool,
}

/// A signal that asks for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SnapshotSignal {
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

/// How samples are spaced.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Sampling {
    Poisson,
    Periodic,
}

/// Whether sampling is on from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Start {
    On,
    Off,
}

/// Which language runtimes are joined.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Runtime {
    Auto,
    None,
    Pypy,
}

/// Which of those that run already are joined.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RunningRuntime {
    Auto,
    None,
}

/// How stacks are captured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Unwind {
    Auto,
    Fp,
    Dwarf,
    None,
}

/// Whether child processes are profiled.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Children {
    Follow,
    Ignore,
}

/// What happens when the ring is full.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnFull {
    Drop,
    Wait,
}

/// Accepts what the agent accepts, and hands it on as it was typed.
fn interval(text: &str) -> Result<String, IntervalError> {
    Interval::parse(text.as_bytes()).map(|_| text.to_owned())
}

fn percent(text: &str) -> Result<String, &'static str> {
    parse_percent(text.as_bytes())
        .map(|_| text.to_owned())
        .ok_or("expected 0.01% to 100%, as in 1% or 0.5%")
}

fn size(text: &str) -> Result<String, &'static str> {
    parse_max_size(text.as_bytes()).map(|_| text.to_owned())
}

fn rotate_size(text: &str) -> Result<String, &'static str> {
    parse_rotate_size(text.as_bytes()).map(|_| text.to_owned())
}

fn time(text: &str) -> Result<String, &'static str> {
    parse_time_ms(text.as_bytes()).map(|_| text.to_owned())
}
