//! The command line.

mod reading;
mod recording;
mod running;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand, ValueEnum};

use crate::exit;

pub use reading::*;
pub use recording::*;
pub use running::*;

/// Low-overhead sampling heap profiler for Linux
#[derive(Debug, Parser)]
#[command(
    name = "allocsample",
    version,
    disable_help_subcommand = true,
    after_help = "Example: allocsample run -- python3 script.py"
)]
pub struct Arguments {
    /// Lift the limits on memory, time and output that protect against hostile profiles
    #[arg(long, global = true, hide_short_help = true)]
    pub no_limits: bool,
    /// The command.
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

impl Command {
    /// Which function it charges an allocation to; `None` for commands that read no profile.
    pub fn charge(&self) -> Option<&Charge> {
        match self {
            Self::Report(Report { charge, .. })
            | Self::Leaks(Leaks { charge, .. })
            | Self::Diff(Diff { charge, .. })
            | Self::Convert(Convert { charge, .. })
            | Self::Query(Query { charge, .. })
            | Self::View(View { charge, .. }) => Some(charge),
            _ => None,
        }
    }
}

/// The name of an option's value, as it is typed.
pub fn name_of(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Reads the command line. Prints help and version here, and the one line about a mistake.
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
        // The tip about passing an option as a value is left out: an unknown option is nearly always a mistake.
        let is_about_values = line.starts_with("tip: to pass ");
        if line.is_empty() || line.starts_with("For more information") || is_about_values {
            continue;
        }
        if !said.is_empty() {
            said.push_str(if line.starts_with("tip: ") { "; " } else { " " });
        }
        said.push_str(line.strip_prefix("error: ").unwrap_or(line));
    }
    format!("{said}; see `{command} --help`")
}
