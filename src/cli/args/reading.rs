//! What can be typed about profiles that were written.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::output_format::OutputFormat;

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
    #[arg(
        long = "type",
        value_name = "TYPE",
        requires = "callgraph",
        conflicts_with = "tree"
    )]
    pub type_name: Option<String>,

    /// The ways from this function down to what allocates, with --callgraph
    #[arg(
        long,
        value_name = "FUNCTION",
        requires = "callgraph",
        conflicts_with = "tree"
    )]
    pub from: Option<String>,

    /// How long blocks live, in seconds and in bytes allocated meanwhile; of all, and of each type and site
    #[arg(long, conflicts_with_all = ["by", "sort", "tree", "callgraph", "at_peak"])]
    pub lifetimes: bool,

    /// Objects that hold the same as others, of machines that hash them; of all, and of each type and site
    #[arg(long, conflicts_with_all = ["by", "sort", "tree", "callgraph", "lifetimes", "at_peak"])]
    pub redundancy: bool,

    /// Only the totals
    #[arg(long, conflicts_with_all = ["by", "sort", "top", "tree", "callgraph", "lifetimes", "redundancy"])]
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
/// Sites are ranked by evidence, not by size. The verdicts are leak (old blocks are never freed, and more come at a
/// steady rate), possible leak (nothing was freed), growing (old blocks are freed too, or all when the program ends),
/// undecided, cache-like (has stopped growing), start-up and steady. A leak is named when it has kept some 24 times the
/// interval. docs/leaks.md explains the tests.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample leaks app.allocsample
  allocsample leaks app.allocsample --all --top 50
  allocsample leaks monday.allocsample tuesday.allocsample wednesday.allocsample
  allocsample leaks app.allocsample --format json | jq '.suspects[0]'")]
pub struct Leaks {
    /// The profile, or several of one recording in any order: parts, snapshots. They are judged as one
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Text for people, JSON with everything or CSV with a line for each row for scripts
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Also print sites that have stopped growing or never grew
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
/// explain: among them at most 5 % are noise (false discovery rate, Benjamini and Hochberg). Two runs of one program also
/// differ by themselves: give several runs of each side, separated by --, to include that.
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
    /// The profile before and the one after; with --, one or more runs before
    #[arg(required = true, value_name = "PROFILE")]
    pub files: Vec<PathBuf>,

    /// One or more runs after
    #[arg(last = true, value_name = "AFTER")]
    pub after: Vec<PathBuf>,

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

impl Diff {
    /// The profiles before, and those after.
    pub fn sides(&self) -> Result<(&[PathBuf], &[PathBuf]), &'static str> {
        let (before, after) = match self.files.as_slice() {
            [before, after] if self.after.is_empty() => {
                (std::slice::from_ref(before), std::slice::from_ref(after))
            }
            _ if self.after.is_empty() => {
                return Err(
                    "expected two profiles, BEFORE AFTER, or several of each side, BEFORE... -- AFTER...",
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

    /// Which bytes collapsed and svg show [default: allocated]
    #[arg(long, value_name = "WHAT")]
    pub metric: Option<Metric>,

    /// Where to write a single format, with gzip if the name ends in .gz; - is stdout [default: beside the profile]
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

    /// Give up after this many seconds; 0 waits without end
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
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
