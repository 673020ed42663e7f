//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use allocsample_sampling::{Interval, IntervalError, IntervalSetting, parse_percent};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand, ValueEnum};

use crate::exit;
use crate::output_format::OutputFormat;

/// Where a program's memory goes, at a cost that nobody notices.
#[derive(Debug, Parser)]
#[command(
    name = "allocsample",
    version,
    disable_help_subcommand = true,
    after_help = "Example: allocsample run -- python3 script.py"
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Run),
    Attach(Attach),
    Detach(Detach),
    Report(Report),
    Leaks(Leaks),
    Diff(Diff),
    Join(Join),
    Symbolize(Symbolize),
    Convert(Convert),
    Query(Query),
    View(View),
    Top(Top),
    Ctl(Ctl),
    Serve(Serve),
    Push(Push),
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

    /// Mean number of allocated bytes between two samples: 512K, 1M, ...; 1 records every allocation; off records none
    /// [default: 512K]
    #[arg(long, value_name = "BYTES", value_parser = interval)]
    pub interval: Option<String>,

    /// How samples are spaced: poisson gives standard errors, periodic a sample point every BYTES exactly
    /// [default: poisson]
    #[arg(long, value_name = "LAW")]
    pub sampling: Option<Sampling>,

    /// Seed of the random gaps between samples, to repeat a run [default: random]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// Whether sampling is on from the start [default: on]
    #[arg(long, value_name = "ON|OFF")]
    pub start: Option<Start>,

    /// How stacks are captured: by unwind tables, with frame pointers where there are none (auto or dwarf), by frame
    /// pointers alone (fp), or not at all [default: auto]
    #[arg(long, value_name = "HOW")]
    pub unwind: Option<Unwind>,

    /// Frames that are kept of a stack, 1 to 4096; what called them shows as (truncated) [default: 512]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub max_depth: Option<u16>,

    /// Whether frames and heaps of language runtimes are shown: of all that the agent knows (CPython, JVM, Ruby, Lua, OCaml, Node.js, libgc), or none
    /// [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub runtime: Option<Runtime>,

    /// Whether the processes that the program starts get profiles of their own [default: follow]
    #[arg(long, value_name = "WHAT")]
    pub children: Option<Children>,

    /// What happens when samples come faster than they can be written: they are lost and counted, or the program waits
    /// [default: drop, and wait at --interval 1]
    #[arg(long, value_name = "WHAT")]
    pub on_full: Option<OnFull>,

    /// Let sampling take no more than this share of the program's own processor time, 1% say: the interval is adapted as
    /// the program runs, down to the one given (4K if none is), and each sample keeps its own
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub max_overhead: Option<String>,

    /// Take no more samples than these in a second: the interval is adapted as for --max-overhead
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_samples_per_second: Option<u32>,

    /// Let no process write more than this to its profile (64M, 1G, ..., 1M at least): the interval doubles each time that
    /// the room left has halved
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub max_size: Option<String>,

    /// Go on in another file after this time (30s, 10m, 1h, 7d); those before are kept as NAME.part-N.allocsample, and each
    /// can be read by itself
    #[arg(long, value_name = "TIME")]
    pub rotate_every: Option<String>,

    /// Go on in another file when the present one has grown by this (64K, 16M, ...)
    #[arg(long, value_name = "BYTES")]
    pub rotate_size: Option<String>,

    /// Keep so many files beside the one that is being written; the oldest goes [default: all]
    #[arg(long, value_name = "NUMBER")]
    pub keep: Option<u32>,

    /// Keep the last time (10m, 1h, ...) only, in a ring of files; `allocsample join` makes one of them
    #[arg(long, value_name = "TIME")]
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

    /// Mean number of allocated bytes between two samples: 512K, 1M, ...; 1 records every allocation [default: 512K]
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

    /// Whether processes that it forks from now on get profiles of their own [default: ignore]
    #[arg(long, value_name = "WHAT")]
    pub children: Option<Children>,

    /// What happens when samples come faster than they can be written: they are lost and counted, or the program waits
    /// [default: drop, and wait at --interval 1]
    #[arg(long, value_name = "WHAT")]
    pub on_full: Option<OnFull>,

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

/// Say where memory goes: totals, and the functions, sites, lines, types, threads, ... that allocate
///
/// Every figure is an estimate with its standard error. A profile without names gets them for the report, but not for
/// ever: that is `allocsample symbolize`. docs/report.md explains each column.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample report app.allocsample
  allocsample report app.allocsample --by site --sort live --top 5
  allocsample report app.allocsample --filter 'json|yaml' --tree
  allocsample report app.allocsample --by type --since 10s --until 20s
  allocsample report app.allocsample --callgraph --type dict --from handle_request
  allocsample report app.allocsample --by size --format csv > sizes.csv
  allocsample report app.allocsample --format json | jq .totals")]
pub struct Report {
    /// The profile
    pub file: PathBuf,

    /// Text for people, or JSON (everything, or what --by, --tree, ... ask for) or CSV for scripts
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// What the rows of the table are [default: function]
    #[arg(long, value_name = "WHAT")]
    pub by: Option<By>,

    /// What is largest on top; growth is live bytes at the end less those half-way [default: bytes]
    #[arg(long, value_name = "WHAT")]
    pub sort: Option<Sort>,

    /// Rows of the table at most [default: 20, and all in JSON and CSV]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,

    /// The call tree instead of the table
    #[arg(long, conflicts_with_all = ["by", "top"])]
    pub tree: bool,

    /// Who allocates, and who calls that: the tree from what allocates up to its callers
    #[arg(long, conflicts_with_all = ["by", "top", "tree"])]
    pub callgraph: bool,

    /// Only objects of this type (its whole name), with --callgraph
    #[arg(long = "type", value_name = "TYPE", requires = "callgraph")]
    pub type_name: Option<String>,

    /// The ways from this function down to what allocates, with --callgraph
    #[arg(long, value_name = "FUNCTION", requires = "callgraph")]
    pub from: Option<String>,

    /// How long blocks live, in seconds and in bytes allocated meanwhile; of all, and of each type and site
    #[arg(long, conflicts_with_all = ["by", "sort", "tree", "callgraph", "at_peak"])]
    pub lifetimes: bool,

    /// Only the totals
    #[arg(long, conflicts_with_all = ["by", "sort", "top", "tree", "callgraph", "lifetimes"])]
    pub summary: bool,

    /// As it was when most bytes were alive: live is what was alive then, and what came later is left out
    #[arg(long, conflicts_with_all = ["until", "summary"])]
    pub at_peak: bool,

    /// Which samples
    #[command(flatten)]
    pub narrow: Narrow,
}

/// Samples that are left out. What remains is shown with its share of the whole.
#[derive(Debug, Default, clap::Args)]
pub struct Narrow {
    /// Only samples with a function, file or module that matches this regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "summary")]
    pub filter: Option<String>,

    /// Only objects of types whose names match
    #[arg(long, value_name = "REGEX", conflicts_with = "summary")]
    pub only_type: Option<String>,

    /// No objects of types whose names match
    #[arg(long, value_name = "REGEX", conflicts_with = "summary")]
    pub ignore_type: Option<String>,

    /// Only what a function whose name matches called, directly or not
    #[arg(long, value_name = "REGEX", conflicts_with = "summary")]
    pub only_caller: Option<String>,

    /// Only threads whose names, or numbers (tid), match
    #[arg(long, value_name = "REGEX", conflicts_with = "summary")]
    pub only_thread: Option<String>,

    /// Only what was allocated later than this after the start: 10s, 250ms, 1.5m, 2h
    #[arg(long, value_name = "TIME", conflicts_with = "summary")]
    pub since: Option<Moment>,

    /// Only what was allocated earlier than this after the start; live is what was alive then
    #[arg(long, value_name = "TIME", conflicts_with = "summary")]
    pub until: Option<Moment>,
}

/// Nanoseconds since the start of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct Moment(pub u64);

impl std::str::FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const UNITS: [(&str, f64); 5] = [
            ("us", 1e3),
            ("ms", 1e6),
            ("s", 1e9),
            ("m", 60e9),
            ("h", 3600e9),
        ];
        let text = text.trim();
        let (number, scale) = UNITS
            .iter()
            .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)))
            .unwrap_or((text, 1e9));
        let number = number.trim().parse::<f64>().ok();
        let ns = number.map(|number| number * scale);
        match ns {
            // Below 2^64: 584 years.
            Some(ns) if (0.0..1.8e19).contains(&ns) => Ok(Self(ns.round() as u64)),
            _ => Err("expected a time as in 10s, 250ms, 1.5m or 2h"),
        }
    }
}

/// Say which sites leak, and how sure that is
///
/// Sites are ranked by evidence, not by size. A verdict is leak (grows to the end, and what stays is never freed),
/// growing (older blocks are freed too, or all when the program ends), cache-like (has stopped growing), start-up or
/// steady. A leak must have allocated some ten times the interval to be found. docs/leaks.md explains the test.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample leaks app.allocsample
  allocsample leaks app.allocsample --all --top 50
  allocsample leaks app.allocsample --format json | jq '.suspects[0]'")]
pub struct Leaks {
    /// The profile
    pub file: PathBuf,

    /// Text for people, JSON with everything or CSV with a line for each row for scripts
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Sites that have stopped growing, or never did, too
    #[arg(long)]
    pub all: bool,

    /// Sites at most
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// Callers of each site at most
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub depth: usize,

    /// Only samples with a function, file or module that matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub filter: Option<String>,
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For scripts.
    Json,
    /// For scripts and spreadsheets.
    Csv,
}

/// Say what changed from one profile to another, and what is only noise
///
/// Rows are matched by name, so the profiles may be of different builds. Shown are changes that sampling alone does not
/// explain: among them at most 5 % are noise (false discovery rate, Benjamini and Hochberg).
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample diff before.allocsample after.allocsample
  allocsample diff before.allocsample after.allocsample --per-count 10000,25000 --by site
  allocsample diff monday.allocsample friday.allocsample --measure live
  allocsample diff monday.allocsample friday.allocsample --to html -o week.html")]
pub struct Diff {
    /// The first profile
    pub before: PathBuf,

    /// The one that is compared with it
    pub after: PathBuf,

    /// What is compared
    #[arg(long, value_name = "WHAT", default_value = "allocated")]
    pub measure: Measure,

    /// What the rows are
    #[arg(long, value_name = "WHAT", default_value = "function")]
    pub by: By,

    /// Divide each by its length in seconds
    #[arg(long, conflicts_with = "per_count")]
    pub per_second: bool,

    /// Divide the first by N and the second by M: requests, rows, what you know of
    #[arg(long, value_name = "N,M")]
    pub per_count: Option<PerCount>,

    /// Only samples with a function, file or module that matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub filter: Option<String>,

    /// Text for people, JSON with everything or CSV with a line for each row for scripts
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Write a page for a browser instead, with a flame graph of both and the tables of all kinds of rows
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["format", "filter", "measure", "by", "top", "all"])]
    pub to: Option<Page>,

    /// Where to write the page; - is stdout [default: beside the second profile]
    #[arg(short, long, value_name = "OUT", requires = "to")]
    pub output: Option<PathBuf>,

    /// Rows at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,

    /// Noise too
    #[arg(long)]
    pub all: bool,
}

/// What a comparison can be written as besides text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Page {
    /// One file without any reference to another.
    Html,
}

/// Two numbers above 0.
#[derive(Clone, Copy, Debug)]
pub struct PerCount(pub f64, pub f64);

impl std::str::FromStr for PerCount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            text.trim()
                .parse::<f64>()
                .ok()
                .filter(|&n| n > 0.0 && n.is_finite())
        };
        text.split_once(',')
            .and_then(|(before, after)| Some(Self(number(before)?, number(after)?)))
            .ok_or("expected two numbers above 0, as in 1000,2500")
    }
}

/// Steer the agent in a running process: status, start, stop, another interval, a snapshot
///
/// Works for every process that was started under the agent, with ALLOCSAMPLE_START=off (`run --start off`) for one that
/// is to wait for `start`. Each sample keeps the interval that it was taken with, so estimates stay right.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample ctl 4711 status
  allocsample ctl 4711 interval 64K
  allocsample ctl 4711 snapshot -o now.allocsample && allocsample leaks now.allocsample")]
pub struct Ctl {
    /// A pid, or the profile that a process is writing
    #[arg(value_name = "PID|FILE")]
    pub what: String,

    /// What to do
    #[command(subcommand)]
    pub action: CtlAction,
}

/// Make one profile of the files of a recording that went on in others (`run --rotate-every`, `--window`, `ctl rotate`)
///
/// The process may be running: it does not notice. Each file can be read by itself, too.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample join 4711 -o last-minutes.allocsample
  allocsample join app.allocsample                       the parts beside it, and it
  allocsample join app.part-7.allocsample app.part-8.allocsample -o both.allocsample")]
pub struct Join {
    /// A pid, or the last file of a recording, with which those before it are found; or all files, in the order of time
    #[arg(required = true, value_name = "PID|FILE")]
    pub what: Vec<String>,

    /// Where to write it [default: NAME.joined.allocsample here]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What `ctl` does.
#[derive(Debug, Subcommand)]
pub enum CtlAction {
    /// Say what has been recorded so far, and at which intervals
    Status,
    /// Take samples again, at the interval of before unless told otherwise
    Start {
        /// Mean number of allocated bytes between two samples
        #[arg(long, value_name = "BYTES")]
        interval: Option<String>,
    },
    /// Take no more samples; frees of those that were taken are still told
    Stop,
    /// Change the mean number of allocated bytes between two samples
    Interval {
        /// 512K, 1M, ...; 1 records every allocation
        #[arg(value_name = "BYTES")]
        interval: String,
    },
    /// Write what is in memory to the profile's file, now
    Flush,
    /// Go on in another file; the present one is kept as NAME.part-N.allocsample
    Rotate,
    /// Begin anew: forget what was allocated so far, but for what is alive
    Reset,
    /// Write what has been recorded so far into a profile of its own, which is complete and has names
    Snapshot {
        /// Where to write it [default: NAME.snapshot.N.allocsample here]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Serve what running processes have recorded over HTTP, for scrapers and browsers
///
/// The address that is printed holds a secret, so that nobody else on the machine can read it. Below it are a page of all
/// processes, a page of each, and profiles in the form of pprof, which Parca, Pyroscope, Grafana Alloy and `go tool pprof`
/// fetch: PID/debug/pprof/heap, with ?seconds=N for the allocations of the next N seconds alone. The processes notice
/// nothing.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample serve                                        every process of mine that writes a profile
  allocsample serve 4711 --secret ~/.allocsample-secret    one, at an address that stays the same")]
pub struct Serve {
    /// Pids, or profiles that processes are writing [default: all that I may look into]
    #[arg(value_name = "PID|FILE")]
    pub what: Vec<String>,

    /// Where to listen; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4041")]
    pub listen: std::net::SocketAddr,

    /// A file with the secret, which is made if it does not exist [default: another secret each time]
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
}

/// Send what a running process records to Pyroscope or an OpenTelemetry Collector, again and again until the process ends
///
/// The process notices nothing: its profile is read from outside. Each time goes what was allocated since the last time that
/// was accepted, and all that is in use; so while the server is away nothing is lost and nothing piles up.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample push 4711 --to http://pyroscope:4040 --label env=production
  allocsample push 4711 --to https://profiles.example.net --user 1234     the password in ALLOCSAMPLE_PUSH_PASSWORD
  allocsample push 4711 --to http://collector:4318 --protocol otlp")]
pub struct Push {
    /// A pid, or the profile that a process is writing
    #[arg(value_name = "PID|FILE")]
    pub what: String,

    /// The server; its push API is below this address
    #[arg(long, value_name = "URL")]
    pub to: String,

    /// What the server speaks: Pyroscope's push API, or OTLP over HTTP (its profiles signal, which is not stable yet)
    #[arg(long, value_name = "NAME", default_value = "pyroscope")]
    pub protocol: Protocol,

    /// Seconds between two pushes
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub every: u64,

    /// Send once and end
    #[arg(long)]
    pub once: bool,

    /// The service's name [default: the program's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// A label of the profiles; may be given again
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<Label>,

    /// User for the server; the password is taken from ALLOCSAMPLE_PUSH_PASSWORD
    #[arg(long)]
    pub user: Option<String>,

    /// Tenant of the server, for one that has several
    #[arg(long)]
    pub tenant: Option<String>,
}

/// A signal that asks for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SnapshotSignal {
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Pyroscope's push API.
    Pyroscope,
    /// OpenTelemetry's.
    Otlp,
}

/// A label: a name that such servers take, and a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label(pub String, pub String);

impl std::str::FromStr for Label {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        text.split_once('=')
            .filter(|(name, value)| {
                name.starts_with(is_letter)
                    && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
                    && !value.is_empty()
            })
            .map(|(name, value)| Self(name.to_owned(), value.to_owned()))
            .ok_or("expected NAME=VALUE, the name of letters, digits and _")
    }
}

/// Write function names, files and lines into a profile, so that it can leave the machine
///
/// `allocsample run` does this at the end. A profile that a killed process left behind gets its last records too.
#[derive(Debug, Parser)]
#[command(after_help = "Example: allocsample symbolize app.allocsample")]
pub struct Symbolize {
    /// The profile
    pub file: PathBuf,
}

/// Convert a profile to other tools' formats
///
/// firefox: profiler.firefox.com; pprof: go tool pprof and others; collapsed: one line for each stack, for flame graph
/// tools; svg: a flame graph; json: everything, for scripts; speedscope: www.speedscope.app; csv: a line for each sample;
/// html: a page with everything, for a browser; parquet: the tables of `allocsample query`, a directory of files.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample convert app.allocsample --to firefox          writes app.firefox.json
  allocsample convert app.allocsample --to svg,pprof        writes app.svg and app.pb.gz
  allocsample convert app.allocsample --to svg --metric live -o leak.svg
  allocsample convert app.allocsample --to collapsed -o - | head
  allocsample convert app.allocsample --to parquet          writes app.parquet/samples.parquet and so on")]
pub struct Convert {
    /// The profile
    pub file: PathBuf,

    /// One or more formats, separated by commas
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', required = true, value_parser = str::parse::<OutputFormat>)]
    pub to: Vec<OutputFormat>,

    /// Which bytes collapsed and svg show [default: allocated]
    #[arg(long, value_name = "WHAT")]
    pub metric: Option<Metric>,

    /// Where to write a single format; - is stdout [default: beside the profile]
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

/// Answer a question in SQL: the tables are samples, frees, stacks, frames, functions, types, threads, gc, markers, ...
///
/// `SELECT * FROM tables` describes all tables and columns; docs/queries.md has recipes. Times count from the start of
/// the profile. The profile is never changed.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample query app.allocsample 'SELECT sum(bytes), sum(bytes * live) FROM samples'
  allocsample query app.allocsample 'SELECT function, sum(bytes) AS bytes FROM samples JOIN functions USING (function_id)
      GROUP BY function ORDER BY bytes DESC LIMIT 10'
  allocsample query app.allocsample --format csv 'SELECT * FROM frees' > frees.csv")]
pub struct Query {
    /// The profile
    pub file: PathBuf,

    /// The query; - reads it from stdin
    pub sql: String,

    /// Columns for people, JSON or CSV for scripts
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: QueryFormat,
}

/// Show a profile in the browser: flame graph, memory over time, tables, heat map, leaks, collections, sources
///
/// Prints the address, opens it, and serves it on 127.0.0.1 until Ctrl-C. `convert --to html` writes the same page into a
/// file.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample view app.allocsample
  allocsample view --against monday.allocsample friday.allocsample      what changed, as `diff` says
  allocsample view --firefox app.allocsample                opens profiler.firefox.com; nothing is uploaded")]
pub struct View {
    /// The profile
    pub file: PathBuf,

    /// In the Firefox Profiler, which fetches the profile from this machine
    #[arg(long)]
    pub firefox: bool,

    /// An earlier profile, with which this one is compared
    #[arg(long, value_name = "BEFORE", conflicts_with = "firefox")]
    pub against: Option<PathBuf>,

    /// The port to serve on; 0 is any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,

    /// Print the address and open nothing
    #[arg(long)]
    pub no_open: bool,
}

/// Watch who holds memory while a program runs
///
/// Keys: l, g, a, c sort by live bytes, growth, allocated bytes, count; s shows sites; / finds; p pauses; q quits.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample top 4711
  allocsample top app.allocsample")]
pub struct Top {
    /// The pid of a program that runs under the agent, or a profile
    #[arg(value_name = "PID|FILE")]
    pub what: String,
}

/// How a query's answer is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum QueryFormat {
    Table,
    Json,
    Csv,
}

/// What the rows of a report are.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum By {
    Function,
    Site,
    Line,
    Module,
    Thread,
    Type,
    Heap,
    Size,
    Lifetime,
}

/// What a report is ordered by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Sort {
    #[value(name = "bytes", alias = "allocated")]
    Allocated,
    Count,
    Live,
    Peak,
    Growth,
}

/// What is compared.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Measure {
    Allocated,
    Live,
    Count,
}

/// What is shown by a format that shows one kind of figure.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Metric {
    Allocated,
    Live,
    /// Nanoseconds of processors, of a run with --time-hz
    Cpu,
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

/// The name of an option's value, as it is typed.
pub fn name_of(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
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
    /// The agent's own limit.
    const LEAST_BYTES: u64 = 1 << 20;
    match Interval::parse(text.as_bytes()) {
        Ok(IntervalSetting::Every(size)) if size.bytes() >= LEAST_BYTES => Ok(text.to_owned()),
        _ => Err("expected bytes, at least 1M, as in 64M or 1G"),
    }
}

/// Reads the command line. Help and version are printed here, and so is the one line about what makes no sense.
pub fn parse() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A broken pipe is success.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            exit::complain("no command given; see `allocsample --help`");
            ExitCode::from(exit::USAGE)
        }
        _ => {
            exit::complain(&one_line(&error.render().to_string()));
            ExitCode::from(exit::USAGE)
        }
    })
}

/// Folds what clap has to say into one line: its message and its tips, without the usage.
fn one_line(rendered: &str) -> String {
    let mut said = String::new();
    let mut command = String::from("allocsample");
    for line in rendered.lines().map(str::trim) {
        if let Some(usage) = line.strip_prefix("Usage: ") {
            let words = usage.split(' ');
            let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
            command = words.take_while(is_name).collect::<Vec<_>>().join(" ");
            break;
        }
        if line.is_empty() || line.starts_with("For more information") {
            continue;
        }
        if !said.is_empty() {
            said.push_str(if line.starts_with("tip: ") { "; " } else { " " });
        }
        said.push_str(line.strip_prefix("error: ").unwrap_or(line));
    }
    format!("{said}; see `{command} --help`")
}
