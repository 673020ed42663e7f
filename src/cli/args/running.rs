//! Arguments of commands about running processes.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use super::Format;

/// Control the agent in a running process: status, start, stop, interval, snapshot, ...
///
/// Works for every process that was started under the agent or attached to. With ALLOCSAMPLE_START=off (`run --start
/// off`) a process waits for `start`. Every sample keeps its interval, so estimates stay correct after a change.
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

    /// The action
    #[command(subcommand)]
    pub action: CtlAction,
}

/// What `ctl` does.
#[derive(Debug, Subcommand)]
pub enum CtlAction {
    /// Show the recording so far, and its intervals
    Status,
    /// Resume sampling, at the former interval by default
    #[command(visible_alias = "resume")]
    Start {
        /// Mean number of allocated bytes between two samples
        #[arg(long, value_name = "BYTES")]
        interval: Option<String>,
    },
    /// Pause sampling; frees of earlier samples are still recorded
    #[command(visible_alias = "pause")]
    Stop,
    /// Change the mean number of allocated bytes between two samples
    Interval {
        /// The interval (512K, 1M, ...); 1 records every allocation
        #[arg(value_name = "BYTES")]
        interval: String,
    },
    /// Turn sampling on or off for one thread (takes effect within its next 1 MiB of allocations)
    Thread {
        /// The thread's number, as in `top -H` and /proc/PID/task
        #[arg(value_name = "TID")]
        tid: u32,

        /// Sample it, or do not
        #[arg(value_name = "on|off")]
        state: OnOff,
    },
    /// Sample only blocks of some sizes or threads of some names; without options sample everything again
    ///
    /// Selected allocations have the same estimates as without a filter. Excluded ones are not estimated. The report shows
    /// the exact bytes of excluded threads, and the number and weight of samples of excluded sizes.
    #[command(after_help = "\
Examples:
  allocsample ctl 4711 filter --threads 'worker-*'         threads with names that begin so
  allocsample ctl 4711 filter --sizes 64K..                blocks of 64 KiB or more
  allocsample ctl 4711 filter                              everything again")]
    Filter {
        /// A thread's name, or the beginning of one followed by *; at most 15 bytes
        #[arg(long, value_name = "NAME")]
        threads: Option<String>,

        /// Sizes from FROM to TO in bytes, inclusive; you may omit either
        #[arg(long, value_name = "FROM..TO")]
        sizes: Option<String>,
    },
    /// Write the samples in memory to the profile now
    Flush,
    /// Start a new file; the current one becomes NAME.part-N.allocsample
    Rotate,
    /// Reset the totals; blocks that are still live stay tracked
    Reset,
    /// Make language runtimes run a full GC, to separate live objects from garbage
    ///
    /// The runtime collects at its next safe point, on a thread of the program. That takes as long as any full GC of the
    /// runtime, and finalizers run. Prints for every heap whether it was collected. Supported by CPython, the JVM, Node.js
    /// and Ruby.
    Gc,
    /// Write a copy of the recording so far, with names; the recording continues
    Snapshot {
        /// Run a full GC first, as `gc` does
        #[arg(long)]
        gc: bool,

        /// Path of the copy [default: NAME.snapshot.N.allocsample here]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// A switch in an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Serve the profiles of running processes over HTTP, for scrapers and browsers
///
/// The printed address contains a secret that other users do not know. Below it are a page of all processes, a page for
/// every process, and profiles in pprof format for Parca, Pyroscope, Grafana Alloy and `go tool pprof`: PID/debug/pprof/heap,
/// or with ?seconds=N the allocations of the next N seconds. Profiles are read from outside the processes.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample serve                                        every process of mine that writes a profile
  allocsample serve 4711 --secret ~/.allocsample-secret    one process, at a fixed address")]
pub struct Serve {
    /// Pids, or profiles that processes are writing [default: all processes that you may read]
    #[arg(value_name = "PID|FILE")]
    pub what: Vec<String>,

    /// Address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4041")]
    pub listen: std::net::SocketAddr,

    /// File with the secret, created if missing [default: a new secret for every start]
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
}

/// Push the profile of a running process to Pyroscope or an OpenTelemetry Collector
///
/// Pushes until the process ends. Each push carries the allocations since the last acknowledged push and the current live heap, so an outage loses nothing
/// and queues nothing. The profile is read from outside the process.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample push 4711 --to http://pyroscope:4040 --label env=production
  allocsample push 4711 --to https://profiles.example.net --user 1234     password in ALLOCSAMPLE_PUSH_PASSWORD
  allocsample push 4711 --to http://collector:4318 --protocol otlp")]
pub struct Push {
    /// A pid, or the profile that a process is writing
    #[arg(value_name = "PID|FILE")]
    pub what: String,

    /// Base URL of the server
    #[arg(long, value_name = "URL")]
    pub to: String,

    /// Protocol: Pyroscope's push API, or OTLP over HTTP (the profiles signal, not stable yet)
    #[arg(long, value_name = "NAME", default_value = "pyroscope")]
    pub protocol: Protocol,

    /// Seconds between two pushes
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub every: u64,

    /// Push once and exit
    #[arg(long)]
    pub once: bool,

    /// Name of the service [default: the program's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Label of the profiles; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<Label>,

    /// User name for the server; the password is read from ALLOCSAMPLE_PUSH_PASSWORD
    #[arg(long)]
    pub user: Option<String>,

    /// Tenant, for a server with several
    #[arg(long)]
    pub tenant: Option<String>,
}

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Pyroscope's push API.
    Pyroscope,
    /// OpenTelemetry's.
    Otlp,
}

/// A label: a name and a value that such servers accept.
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
            .ok_or("expected NAME=VALUE with letters, digits and _ in the name")
    }
}

/// Show where all resident memory of a process is
///
/// The rows add up to what the kernel counts: live and free blocks of malloc, heaps of language runtimes, stacks, mappings with
/// the calls that made them, files, and what nobody is known to have mapped. Columns are the largest reading in the profile, the
/// last one, and the difference. A running process is read as it is now; if its malloc is glibc's, the output also says why free
/// memory is kept, which sites hold it, and what helps. docs/memory.md explains the rows.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample memory app.allocsample
  allocsample memory 4711
  allocsample memory 4711 --jvm
  allocsample memory 4711 --format json | jq .last.unexplained_bytes")]
pub struct Memory {
    /// The profile, or the pid of a process; one that does not run under the agent has only the kernel's names
    #[arg(value_name = "FILE|PID")]
    pub what: String,

    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,

    /// Maximum number of places shown for each row; JSON has all
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub sites: usize,

    /// Maximum number of innermost frames shown of each place; JSON has all
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub frames: usize,

    /// Also ask the JVM with this pid for its native memory by category, as `jcmd PID VM.native_memory` does: it must have been
    /// started with -XX:NativeMemoryTracking=summary
    #[arg(long)]
    pub jvm: bool,
}

/// Watch which functions hold memory while a program runs
///
/// Above the table: the resident memory (RSS), how much of it the profile covers, and the rows of `memory` that grew in the last
/// minute. Keys: l, g, a, c sort by live bytes, growth, allocated bytes, count; s shows sites; / searches; p pauses; q quits.
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

/// Write the command, the agent's library, manual pages and completions into a directory
///
/// For a volume that containers share, or a machine without a package. The layout is that of /usr: bin, lib and share. The
/// library works with every glibc since 2.17.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  allocsample install --into /usr/local
  allocsample install --into /shared --no-manual && LD_PRELOAD=/shared/lib/allocsample/liballocsample.so ./program")]
pub struct Install {
    /// The directory, which is created if necessary; files of an earlier version are replaced
    #[arg(long, value_name = "DIR")]
    pub into: PathBuf,

    /// Write no manual pages and no completions
    #[arg(long)]
    pub no_manual: bool,
}
