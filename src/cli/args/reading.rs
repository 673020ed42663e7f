//! Arguments of commands that read finished profiles.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use regex::Regex;

use crate::output_format::OutputFormat;

/// Report where memory goes, by function, site, line, type, thread, ...
///
/// Every figure is an estimate with its standard error. Names that the profile lacks are looked up for this report only;
/// `allocsample symbolize` stores them. docs/report.md explains every column.
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

    /// Output format; JSON has everything, or the part that --by, --tree, ... select
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Rows of the table [default: function]
    #[arg(long, value_name = "WHAT")]
    pub by: Option<By>,

    /// Measure to rank by, largest first [default: memory held: live, or peak if the program ended by itself]
    ///
    /// peak: bytes live when the process held most. live: bytes live at the end. allocated: all bytes, freed or not.
    /// growth: bytes live at the end minus those live half-way. count: allocations.
    #[arg(long, value_name = "WHAT")]
    pub sort: Option<Sort>,

    /// Maximum number of rows [default: 20; all in JSON and CSV]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,

    /// Show the call tree instead of the table
    #[arg(long, conflicts_with_all = ["by", "top"])]
    pub tree: bool,

    /// Show the allocating functions with their callers below, as a tree
    #[arg(long, conflicts_with_all = ["by", "top", "tree"])]
    pub callgraph: bool,

    /// With --callgraph: only objects of this type (full name)
    #[arg(
        long = "type",
        value_name = "TYPE",
        requires = "callgraph",
        conflicts_with = "tree"
    )]
    pub type_name: Option<String>,

    /// With --callgraph: show the paths from this function down to the allocations
    #[arg(
        long,
        value_name = "FUNCTION",
        requires = "callgraph",
        conflicts_with = "tree"
    )]
    pub from: Option<String>,

    /// Show how long blocks live, in seconds and in bytes allocated meanwhile; in total, and by type and site
    #[arg(long, conflicts_with_all = ["by", "sort", "tree", "callgraph", "at_peak"])]
    pub lifetimes: bool,

    /// Show objects with equal contents, for virtual machines that hash them; in total, and by type and site
    #[arg(long, conflicts_with_all = ["by", "sort", "tree", "callgraph", "lifetimes", "at_peak"])]
    pub redundancy: bool,

    /// Show only the totals
    #[arg(long, conflicts_with_all = [
        "by", "sort", "top", "tree", "callgraph", "lifetimes", "redundancy", "filter", "only_type", "ignore_type",
        "only_caller", "only_thread", "heap", "since", "until", "at_peak",
    ])]
    pub summary: bool,

    /// Selected samples
    #[command(flatten)]
    pub narrow: Narrow,

    /// Which function is charged
    #[command(flatten)]
    pub charge: Charge,
}

/// Which function an allocation is charged to.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Charging")]
pub struct Charge {
    /// Charge wrappers of the allocator (xmalloc, zmalloc, ...) instead of their callers
    #[arg(long)]
    pub no_skip: bool,

    /// Show all frames: the interpreter's, and others of the language's runtime, are left out otherwise
    #[arg(long)]
    pub all_frames: bool,

    /// Charge the callers of functions whose names match, as if these were allocators
    #[arg(long, value_name = "REGEX")]
    pub allocator_function: Option<Regex>,
}

/// Samples that are left out.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Filters")]
pub struct Narrow {
    /// Only samples with a function, file or module that matches this regular expression
    #[arg(long, value_name = "REGEX")]
    pub filter: Option<String>,

    /// Only objects of matching types
    #[arg(long, value_name = "REGEX")]
    pub only_type: Option<String>,

    /// No objects of matching types
    #[arg(long, value_name = "REGEX")]
    pub ignore_type: Option<String>,

    /// Only allocations below a matching function, directly or not
    #[arg(long, value_name = "REGEX")]
    pub only_caller: Option<String>,

    /// Only threads with a matching name or number (tid)
    #[arg(long, value_name = "REGEX")]
    pub only_thread: Option<String>,

    /// Only heaps with a matching name: malloc, python, jvm, ...; `mappings` and `pages` show
    /// mappings and sampled pages instead of samples
    #[arg(long, value_name = "REGEX")]
    pub heap: Option<String>,

    /// Only allocations after this time since the start: 10s, 250ms, 1.5m, 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<Moment>,

    /// Only allocations before this time since the start; live then means live at this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<Moment>,

    /// Only allocations before the moment with most live bytes; live then means live at this moment
    #[arg(long, conflicts_with = "until")]
    pub at_peak: bool,
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

/// Find the sites that leak, with the evidence for each
///
/// Sites are ranked by evidence, not by size. The verdicts are leak (old blocks are never freed, and more come at a steady
/// rate), possible leak (nothing was freed), growing (old blocks are freed too, or all when the program ends), undecided,
/// cache-like (has stopped growing), start-up and steady. A leak is named when it has kept about 24 times the interval.
/// docs/leaks.md explains the tests.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample leaks app.allocsample
  allocsample leaks app.allocsample --all --top 50
  allocsample leaks monday.allocsample tuesday.allocsample wednesday.allocsample
  allocsample leaks app.allocsample --format json | jq '.suspects[0]'")]
pub struct Leaks {
    /// The profile, or several files of one recording (parts, snapshots) in any order, which are judged as one
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Output format; JSON has everything, CSV one line per row
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Also print sites that have stopped growing or never grew
    #[arg(long)]
    pub all: bool,

    /// Maximum number of sites
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// Maximum number of callers per site
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub depth: usize,

    /// Selected samples
    #[command(flatten)]
    pub narrow: Narrow,

    /// Which function is charged
    #[command(flatten)]
    pub charge: Charge,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For scripts.
    Json,
    /// For scripts and spreadsheets.
    Csv,
}

/// Show what changed between two profiles, without sampling noise
///
/// Rows are matched by name, so you can compare different builds. Shown are changes that sampling does not explain; at most
/// 5 % of them are noise (false discovery rate, Benjamini and Hochberg). Runs of the same program also differ by themselves:
/// give several runs per side, separated by --, to include that. A second table shows which rows of the resident memory changed
/// (`allocsample memory`).
#[derive(Debug, Parser)]
#[command(
    override_usage = "allocsample diff [OPTIONS] <BEFORE> <AFTER>\n       allocsample diff [OPTIONS] <BEFORE>... -- <AFTER>...",
    after_help = "\
Examples:
  allocsample diff before.allocsample after.allocsample
  allocsample diff a1.allocsample a2.allocsample a3.allocsample -- b1.allocsample b2.allocsample b3.allocsample
  allocsample diff before.allocsample after.allocsample --per-count 10000,25000 --by site
  allocsample diff monday.allocsample friday.allocsample --measure live
  allocsample diff monday.allocsample friday.allocsample --to html -o week.html"
)]
pub struct Diff {
    /// The profiles before and after; with --, one or more runs before
    #[arg(required = true, value_name = "PROFILE")]
    pub files: Vec<PathBuf>,

    /// One or more runs after
    #[arg(last = true, value_name = "AFTER")]
    pub after: Vec<PathBuf>,

    /// The measure to compare
    #[arg(long, value_name = "WHAT", default_value = "allocated")]
    pub measure: Measure,

    /// Rows of the table
    #[arg(long, value_name = "WHAT", default_value = "function")]
    pub by: By,

    /// Divide both sides by their length in seconds
    #[arg(long, conflicts_with = "per_count")]
    pub per_second: bool,

    /// Divide the first side by N and the second by M, such as requests or rows
    #[arg(long, value_name = "N,M")]
    pub per_count: Option<PerCount>,

    /// Output format; JSON has everything, CSV one line per row
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Write a page for the browser instead, with a flame graph of both profiles and all tables
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["format", "measure", "by", "top", "all"])]
    pub to: Option<Page>,

    /// Path of the page; - is stdout [default: beside the second profile]
    #[arg(short, long, value_name = "OUT", requires = "to")]
    pub output: Option<PathBuf>,

    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,

    /// Also show noise
    #[arg(long)]
    pub all: bool,

    /// Selected samples
    #[command(flatten)]
    pub narrow: Narrow,

    /// Which function is charged
    #[command(flatten)]
    pub charge: Charge,
}

impl Diff {
    /// The profiles before, and those after.
    pub fn sides(&self) -> Result<(&[PathBuf], &[PathBuf]), &'static str> {
        let (before, after) = match self.files.as_slice() {
            [before, after] if self.after.is_empty() => {
                (std::slice::from_ref(before), std::slice::from_ref(after))
            }
            _ if self.after.is_empty() => {
                return Err(
                    "expected two profiles, BEFORE AFTER, or several per side, BEFORE... -- AFTER...",
                );
            }
            files => (files, self.after.as_slice()),
        };
        if self.to.is_some() && (before.len(), after.len()) != (1, 1) {
            return Err("--to compares two profiles: give one before and one after");
        }
        Ok((before, after))
    }
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

/// Join the files of a rotating recording into one profile
///
/// `run --rotate-every`, `run --window` and `ctl rotate` make such files. The process may be running; it is not affected. Every command can also read every file by itself.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample join 4711 -o last-minutes.allocsample
  allocsample join app.allocsample                       with the parts beside it
  allocsample join app.part-7.allocsample app.part-8.allocsample -o both.allocsample")]
pub struct Join {
    /// A pid, or the last file of a recording (earlier files are found), or all files in order
    #[arg(required = true, value_name = "PID|FILE")]
    pub what: Vec<String>,

    /// Path of the joined profile [default: NAME.joined.allocsample here]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Store names of functions, files and lines in a profile
///
/// A profile with names can be read on another machine. `allocsample run` does this at the end. For a killed process, this also adds the last records to the profile.
#[derive(Debug, Parser)]
#[command(after_help = "Example: allocsample symbolize app.allocsample")]
pub struct Symbolize {
    /// The profile
    pub file: PathBuf,
}

/// Convert a profile to other tools' formats
///
/// firefox: profiler.firefox.com; pprof: go tool pprof and others; collapsed: one line per stack, for flame graph tools;
/// svg: a flame graph; json: everything, for scripts; speedscope: www.speedscope.app; csv: one line per sample; html: a page
/// for the browser; parquet: the tables of `allocsample query`, as a directory of files.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample convert app.allocsample --to firefox          writes app.firefox.json
  allocsample convert app.allocsample --to firefox -o app.json.gz
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

    /// The measure that collapsed and svg show [default: memory held: live, or peak if the program ended by itself]
    #[arg(long, value_name = "WHAT")]
    pub metric: Option<Metric>,

    /// Path for a single format, compressed if it ends in .gz; - is stdout [default: beside the profile]
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,

    /// Selected samples
    #[command(flatten)]
    pub narrow: Narrow,

    /// Which function is charged
    #[command(flatten)]
    pub charge: Charge,
}

/// Query a profile with SQL
///
/// Tables are samples, frees, stacks, frames, functions, types, threads, gc, markers, ...; `SELECT * FROM tables` describes
/// all tables and columns, and docs/queries.md has examples. Times count from the start of the profile. A query never changes
/// the profile.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample query app.allocsample 'SELECT sum(bytes), sum(bytes) FILTER (WHERE live) FROM samples'
  allocsample query app.allocsample 'SELECT function, sum(bytes) AS bytes FROM samples JOIN functions USING (function_id)
      GROUP BY function ORDER BY bytes DESC LIMIT 10'
  allocsample query app.allocsample --format csv 'SELECT * FROM frees' > frees.csv")]
pub struct Query {
    /// The profile
    pub file: PathBuf,

    /// The query; - reads it from stdin
    pub sql: String,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: QueryFormat,

    /// Stop after this many seconds; 0 means no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,

    /// Selected samples
    #[command(flatten)]
    pub narrow: Narrow,

    /// Which function is charged
    #[command(flatten)]
    pub charge: Charge,
}

/// Show a profile in the browser
///
/// The page has a flame graph, memory over time, tables, a heat map, leaks, collections and source lines. Serves the page on 127.0.0.1 until Ctrl-C, prints the address and opens it. `convert --to html` writes the same page to a
/// file.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample view app.allocsample
  allocsample view --against monday.allocsample friday.allocsample      with the changes that `diff` finds
  allocsample view --firefox app.allocsample                opens profiler.firefox.com; nothing is uploaded")]
pub struct View {
    /// The profile
    pub file: PathBuf,

    /// Open the profile in the Firefox Profiler, which fetches it from this machine
    #[arg(long)]
    pub firefox: bool,

    /// An earlier profile to compare with
    #[arg(long, value_name = "BEFORE", conflicts_with = "firefox")]
    pub against: Option<PathBuf>,

    /// Port to serve on; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,

    /// Print the address without opening it
    #[arg(long)]
    pub no_open: bool,

    /// Selected samples
    #[command(flatten)]
    pub narrow: Narrow,

    /// Which function is charged
    #[command(flatten)]
    pub charge: Charge,
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
    Peak,
    Live,
    #[value(alias = "bytes")]
    Allocated,
    Growth,
    Count,
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
    /// Bytes live when the process held most
    Peak,
    /// Bytes live at the end
    Live,
    /// All bytes, freed or not
    Allocated,
    /// CPU time in nanoseconds, from --time-hz
    Cpu,
}
