//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use allocsample_sampling::{Interval, IntervalError};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand, ValueEnum};

use crate::exit;

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
  allocsample run --interval 64K -o /tmp/redis.%p.allocsample -- redis-server --port 7777")]
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

    /// How stacks are captured: by frame pointers, by DWARF unwind tables, by whichever serves, or not at all
    /// [default: auto]
    #[arg(long, value_name = "HOW")]
    pub unwind: Option<Unwind>,

    /// Deepest stack that is kept; what is above it shows as (truncated)
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u16).range(1..))]
    pub max_depth: Option<u16>,

    /// Whether the processes that the program starts get profiles of their own [default: follow]
    #[arg(long, value_name = "WHAT")]
    pub children: Option<Children>,

    /// What happens when samples come faster than they can be written: they are lost and counted, or the program waits
    /// [default: drop, and wait at --interval 1]
    #[arg(long, value_name = "WHAT")]
    pub on_full: Option<OnFull>,

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
