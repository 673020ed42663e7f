//! Arguments of commands that record a program.

use std::ffi::OsString;
use std::path::PathBuf;

use allocsample_sampling::{
    Interval, IntervalError, parse_max_size, parse_percent, parse_rotate_size, parse_time_ms,
};
use clap::{Args, Parser, ValueEnum};

use super::{OnOff, name_of};
use crate::output_format::OutputFormat;
use crate::processes;

/// Options about samples, which `run` and `attach` share.
#[derive(Debug, Default, Args)]
pub struct Capture {
    /// Mean number of allocated bytes between two samples (512K, 1M, ...); 1 records every allocation, off records none
    /// [default: 512K]
    #[arg(short, long, value_name = "BYTES", value_parser = interval)]
    pub interval: Option<String>,

    /// Spacing of samples: poisson (random, with standard errors) or periodic (exactly every BYTES) [default: poisson]
    #[arg(long, value_name = "LAW")]
    pub sampling: Option<Sampling>,

    /// Seed of the random gaps between samples [default: random]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// How to capture stacks: auto and dwarf use unwind tables, and frame pointers where these are missing; fp uses frame
    /// pointers only; none captures no stacks [default: auto]
    #[arg(long, value_name = "HOW")]
    pub unwind: Option<Unwind>,

    /// Maximum number of frames per stack, 1 to 4096; longer stacks end in (truncated) [default: 512]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub max_depth: Option<u16>,

    /// Record calls that map or unmap memory, with their stacks: on or off [default: on]
    #[arg(long, value_name = "ON|OFF")]
    pub mappings: Option<OnOff>,

    /// Also sample allocators that are part of the program or of a library: jemalloc, mimalloc and tcmalloc (polars, pyarrow,
    /// many services in Rust). Calls into duckdb's jemalloc become slower
    #[arg(long)]
    pub embedded: bool,

    /// Ruby: also sample objects that live in slots of Ruby's heap, such as short strings. Ruby then reports every new and every
    /// freed object, which takes 1.2 to 1.5 times the CPU time
    #[arg(long)]
    pub objects: bool,

    /// If samples come faster than they can be written: drop and count them, or make the program wait
    /// [default: drop; wait at --interval 1]
    #[arg(long, value_name = "WHAT")]
    pub on_full: Option<OnFull>,
}

impl Capture {
    /// The agent's environment variables for the given options.
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
            ("ALLOCSAMPLE_MAPPINGS", self.mappings.map(name_of)),
            (
                "ALLOCSAMPLE_EMBEDDED",
                self.embedded.then(|| "on".to_owned()),
            ),
            ("ALLOCSAMPLE_OBJECTS", self.objects.then(|| "on".to_owned())),
            ("ALLOCSAMPLE_ON_FULL", self.on_full.map(name_of)),
        ];
        given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Run a program and record a profile of it
///
/// The program keeps its input, output and exit status. When it has ended, allocsample prints a summary on stderr.
/// Options set the agent's environment variables (--interval sets ALLOCSAMPLE_INTERVAL and so on); options that you omit
/// leave the variables unchanged.
///
/// The heap of a Go program is read from outside, from its first allocation to its end; --interval, --output, --start and
/// --children apply to it, as do the options about the finished profile.
#[derive(Debug, Default, Parser)]
#[command(after_help = "\
Examples:
  allocsample run -- python3 script.py
  allocsample run --interval 64K -o /tmp/redis.%p.allocsample -- redis-server --port 7777
  allocsample run --convert firefox,svg -- ./app")]
pub struct Run {
    /// Path of the profile; %p is the pid, %n the program's name, %t the time
    /// [default: allocsample.%n.%p.allocsample]
    #[arg(short, long, value_name = "TEMPLATE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub capture: Capture,

    /// Start with sampling on, or off until `ctl PID start` [default: on]
    #[arg(long, value_name = "ON|OFF")]
    pub start: Option<OnOff>,

    /// Record frames and heaps of language runtimes: auto (CPython, JVM, Node.js, .NET, PHP, Perl, R, Tcl, Guile,
    /// Ruby, Lua, Erlang, OCaml, libgc, Mono), none, or pypy (also PyPy, whose code is then changed in memory) [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub runtime: Option<Runtime>,

    /// Node.js: functions that V8 inlines are named by its CPU profiler, their objects are charged to their callers, or V8
    /// inlines none, and LuaJIT compiles nothing; see integrations/node for the costs [default: named]
    #[arg(long, value_name = "HOW")]
    pub inlining: Option<Inlining>,

    /// Whether child processes get their own profiles [default: follow]
    #[arg(long, value_name = "WHAT")]
    pub children: Option<Children>,

    /// Keep sampling below this share of the program's CPU time, such as 1%, by adapting the interval; --interval is the
    /// shortest one (4K if omitted)
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub max_overhead: Option<String>,

    /// Maximum number of samples per second, by adapting the interval as for --max-overhead
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_samples_per_second: Option<u32>,

    /// Maximum number of live samples per process; the interval becomes four times as long whenever half of
    /// the remaining room is used
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(100..))]
    pub max_live: Option<u32>,

    /// Maximum size of a process's profile (64M, 1G, ...; at least 1M); the interval doubles whenever half of
    /// the remaining room is used
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub max_size: Option<String>,

    /// Start a new file after this time (30s, 10m, 1h, 7d); finished files are NAME.part-N.allocsample, each readable by
    /// itself
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub rotate_every: Option<String>,

    /// Start a new file when the current one has grown by this size (64K, 16M, ...)
    #[arg(long, value_name = "BYTES", value_parser = rotate_size)]
    pub rotate_size: Option<String>,

    /// Number of finished files to keep; the oldest is deleted [default: all]
    #[arg(long, value_name = "NUMBER")]
    pub keep: Option<u32>,

    /// Keep only the last 10m, 1h, ... in a ring of files; `allocsample join` makes one profile of them
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub window: Option<String>,

    /// Write a copy of the profile, NAME.snapshot-N.allocsample, when the program gets this signal; ignored if the program
    /// uses the signal itself
    #[arg(long, value_name = "SIGNAL")]
    pub snapshot_on: Option<SnapshotSignal>,

    /// Also sample CPU time, at this rate per CPU-second, such as 99 [default: off]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub time_hz: Option<u32>,

    /// Also sample page faults, one for every BYTES that they make resident, to see who made memory resident whatever its
    /// allocator; `report --heap pages` shows them [default: off; 256K if BYTES is left out]
    #[arg(long, value_name = "BYTES", value_parser = interval, num_args = 0..=1, require_equals = true, default_missing_value = "256K")]
    pub pages: Option<String>,

    /// Do not look up names; `allocsample symbolize` can add them later
    #[arg(long)]
    pub no_symbolize: bool,

    /// Convert the profiles at the end to these formats of `allocsample convert`, separated by commas
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = str::parse::<OutputFormat>)]
    pub convert: Vec<OutputFormat>,

    /// Write the profile as a page and open it in the browser at the end
    #[arg(long)]
    pub open: bool,

    /// Print only errors
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

/// Start a profile of a running process
///
/// Loads the agent into the process and redirects its calls of the allocator. One of its threads stops for some
/// milliseconds. Earlier allocations are not counted. A process that was started with `run --start off` starts sampling.
/// The heap profile that a static Go program keeps is read from outside instead, until you press Ctrl-C or the program ends.
/// docs/attach.md lists requirements and limits.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample attach 4711
  allocsample attach 4711 --interval 64K -o /tmp/redis.%p.allocsample
  allocsample attach 4711 --seconds 60                     and detach again
  allocsample detach 4711")]
pub struct Attach {
    /// The process: its number, or the name of a program that one process runs
    #[arg(value_name = "PID|NAME", value_parser = processes::pid)]
    pub pid: i32,

    /// Path of the profile; %p is the pid, %n the program's name, %t the time
    /// [default: allocsample.%n.%p.allocsample here, or in the process's own directory if it cannot see this one]
    #[arg(short, long, value_name = "TEMPLATE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub capture: Capture,

    /// Whether processes that it forks from now on get their own profiles [default: ignore]
    #[arg(long, value_name = "WHAT")]
    pub children: Option<Children>,

    /// Join language runtimes: auto (CPython, JVM, Node.js, .NET, PHP, Perl, R, Tcl, Guile, Ruby, Lua, Erlang, OCaml, D, libgc), none, or
    /// pypy (also PyPy, whose code is then changed in memory) [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub runtime: Option<Runtime>,

    /// Node.js: name functions that V8 inlines, for which V8 compiles its code again if its heap has less than 64 MiB;
    /// the same whatever the size of the heap, with a pause as for several full collections; or charge their objects to
    /// their callers and leave the code alone [default: named]
    #[arg(long, value_name = "HOW")]
    pub inlining: Option<RunningInlining>,

    /// Wait for so many seconds, then detach
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub seconds: Option<u64>,

    /// Attach even if a system call filter may kill the process for it
    #[arg(long)]
    pub despite_seccomp: bool,
}

/// End the profile of an attached process
///
/// The process continues as before. Restores the calls of the allocator. The agent stays in memory, idle, because the program may hold pointers to its
/// functions. You can attach to the process again for another profile.
#[derive(Debug, Parser)]
#[command(after_help = "Example: allocsample detach 4711")]
pub struct Detach {
    /// The process: its number, or the name of a program that one process runs
    #[arg(value_name = "PID|NAME", value_parser = processes::pid)]
    pub pid: i32,

    /// Do not look up names; `allocsample symbolize` can add them later
    #[arg(long)]
    pub no_symbolize: bool,

    /// Detach even if a system call filter may kill the process for it
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

/// Which language runtimes are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Runtime {
    Auto,
    None,
    Pypy,
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

/// What becomes of functions that V8 inlines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Inlining {
    Named,
    Charged,
    Off,
}

/// The same in a process that runs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RunningInlining {
    Named,
    Recompiled,
    Charged,
}

/// What happens when the ring is full.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnFull {
    Drop,
    Wait,
}

/// Accepts what the agent accepts, and passes it on as it was typed.
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
