//! What can be typed about processes that run.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

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
    #[command(visible_alias = "resume")]
    Start {
        /// Mean number of allocated bytes between two samples
        #[arg(long, value_name = "BYTES")]
        interval: Option<String>,
    },
    /// Take no more samples; frees of those that were taken are still told
    #[command(visible_alias = "pause")]
    Stop,
    /// Change the mean number of allocated bytes between two samples
    Interval {
        /// 512K, 1M, ...; 1 records every allocation
        #[arg(value_name = "BYTES")]
        interval: String,
    },
    /// Sample one thread, or do not; it hears of it when it has allocated up to 1 MiB
    Thread {
        /// Its number in the kernel, as `top -H` and /proc/PID/task show it
        #[arg(value_name = "TID")]
        tid: u32,

        /// Whether it is sampled from now on
        #[arg(value_name = "on|off")]
        state: OnOff,
    },
    /// Sample only blocks of some sizes, and threads of some names; without options all again
    ///
    /// What is in is estimated as without a filter. What is left out is in no figure: the exact bytes of threads and the
    /// number of samples and their weight are told in the report.
    #[command(after_help = "\
Examples:
  allocsample ctl 4711 filter --threads 'worker-*'         those whose names begin so
  allocsample ctl 4711 filter --sizes 64K..                blocks of 64 KiB or more
  allocsample ctl 4711 filter                              everything again")]
    Filter {
        /// A thread's name, or the beginning of one with * behind it; at most 15 bytes
        #[arg(long, value_name = "NAME")]
        threads: Option<String>,

        /// FROM..TO in bytes, both included; either may be left out
        #[arg(long, value_name = "FROM..TO")]
        sizes: Option<String>,
    },
    /// Write what is in memory to the profile's file, now
    Flush,
    /// Go on in another file; the present one is kept as NAME.part-N.allocsample
    Rotate,
    /// Begin anew: forget what was allocated so far, but for what is alive
    Reset,
    /// Have the runtimes of languages collect their heaps, so that what is live is known
    ///
    /// Until a full collection has looked at an object nobody knows whether it is garbage. The runtime collects at its next
    /// safe point, on a thread of the program: that takes as long as its own full collections do, and finalizers run. Said is
    /// for each heap whether it was collected. CPython, the JVM, Node.js and Ruby can be asked.
    Gc,
    /// Write what has been recorded so far into a profile of its own, which is complete and has names
    Snapshot {
        /// First have the runtimes collect their heaps, as `gc` does
        #[arg(long)]
        gc: bool,

        /// Where to write it [default: NAME.snapshot.N.allocsample here]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
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
