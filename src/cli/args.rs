//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use allocsample_sampling::{Interval, IntervalError};
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
    Report(Report),
    Leaks(Leaks),
    Diff(Diff),
    Symbolize(Symbolize),
    Convert(Convert),
    Query(Query),
    View(View),
    Top(Top),
    Ctl(Ctl),
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

    /// Whether frames and heaps of language runtimes are shown: of all that the agent knows (CPython, JVM, Ruby, Lua), or none
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

/// Say where memory goes: totals, and the functions, sites, lines, modules or threads that allocate
///
/// Every figure is an estimate with its standard error. A profile without names gets them for the report, but not for
/// ever: that is `allocsample symbolize`.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample report app.allocsample
  allocsample report app.allocsample --by site --sort live --top 5
  allocsample report app.allocsample --filter 'json|yaml' --tree
  allocsample report app.allocsample --format json | jq .totals")]
pub struct Report {
    /// The profile
    pub file: PathBuf,

    /// Text for people, or JSON with everything for scripts
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: ReportFormat,

    /// What the rows of the table are [default: function]
    #[arg(long, value_name = "WHAT")]
    pub by: Option<By>,

    /// What is largest on top [default: allocated]
    #[arg(long, value_name = "WHAT")]
    pub sort: Option<Sort>,

    /// Rows of the table at most [default: 20]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,

    /// Only samples with a function, file or module that matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub filter: Option<String>,

    /// The call tree instead of the table
    #[arg(long, conflicts_with_all = ["by", "top"])]
    pub tree: bool,

    /// Only the totals
    #[arg(long, conflicts_with_all = ["by", "sort", "top", "filter", "tree"])]
    pub summary: bool,
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

    /// Text for people, or JSON with everything for scripts
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
  allocsample diff monday.allocsample friday.allocsample --measure live")]
pub struct Diff {
    /// The first profile
    pub before: PathBuf,

    /// The one that is compared with it
    pub after: PathBuf,

    /// What is compared
    #[arg(long, value_name = "WHAT", default_value = "allocated")]
    pub measure: Sort,

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

    /// Text for people, or JSON with everything for scripts
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Rows at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,

    /// Noise too
    #[arg(long)]
    pub all: bool,
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
    /// Write what has been recorded so far into a profile of its own, which is complete and has names
    Snapshot {
        /// Where to write it [default: NAME.snapshot.N.allocsample here]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
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

/// Show a profile in the browser: flame graph, memory over time, tables, heat map, lifetimes
///
/// Prints the address, opens it, and serves it on 127.0.0.1 until Ctrl-C. `convert --to html` writes the same page into a
/// file.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample view app.allocsample
  allocsample view --firefox app.allocsample                opens profiler.firefox.com; nothing is uploaded")]
pub struct View {
    /// The profile
    pub file: PathBuf,

    /// In the Firefox Profiler, which fetches the profile from this machine
    #[arg(long)]
    pub firefox: bool,

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

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
}

/// What the rows of a report are.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum By {
    Function,
    Site,
    Line,
    Module,
    Thread,
}

/// What a report is ordered by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Sort {
    Allocated,
    Live,
    Count,
}

/// Which bytes are shown.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Metric {
    Allocated,
    Live,
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
