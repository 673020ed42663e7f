//! The command line.

mod reading;
mod recording;
mod running;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

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
    Memory(Memory),
    Top(Top),
    Ctl(Ctl),
    Serve(Serve),
    Push(Push),
    Install(Install),
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

    /// Which samples it selects; `None` for commands that select none.
    pub fn narrow(&self) -> Option<&Narrow> {
        match self {
            Self::Report(Report { narrow, .. })
            | Self::Leaks(Leaks { narrow, .. })
            | Self::Diff(Diff { narrow, .. })
            | Self::Convert(Convert { narrow, .. })
            | Self::Query(Query { narrow, .. })
            | Self::View(View { narrow, .. }) => Some(narrow),
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
            exit::complain(&one_line(&error));
            ExitCode::from(exit::USAGE)
        }
    })
}

/// Folds what clap has to say into one line: its message and its tips, without the usage, and the help that explains it.
fn one_line(error: &clap::Error) -> String {
    let mut said = String::new();
    for line in error.render().to_string().lines().map(str::trim) {
        if line.starts_with("Usage: ") {
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
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let command = command_among(&words);
    if let Some(tip) = tip(error, command.as_deref()) {
        said = format!("{said}; tip: {tip}");
    }
    match command {
        Some(command) => format!("{said}; see `allocsample {command} --help`"),
        None => format!("{said}; see `allocsample --help`"),
    }
}

/// The command that was typed, with the command below it if it has some.
fn command_among(words: &[String]) -> Option<String> {
    let mut at = Arguments::command();
    let mut names = Vec::new();
    for word in words {
        match at.find_subcommand(word) {
            Some(next) => {
                names.push(word.as_str());
                at = next.clone();
            }
            None if names.is_empty() && word.starts_with('-') => {}
            None => break,
        }
    }
    (!names.is_empty()).then(|| names.join(" "))
}

/// What was probably meant, where clap cannot know it.
fn tip(error: &clap::Error, command: Option<&str>) -> Option<String> {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    // Similar names are better advice.
    let has_similar = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    if has_similar.iter().any(|kind| error.get(*kind).is_some()) {
        return None;
    }
    match error.kind() {
        ErrorKind::InvalidSubcommand if command.is_none() => {
            let word = named(ContextKind::InvalidSubcommand).filter(|word| *word != "help")?;
            Some(match word.ends_with(".allocsample") {
                true => format!("`allocsample report {word}` reads a profile"),
                false => format!("`allocsample run -- {word}` profiles a program"),
            })
        }
        ErrorKind::UnknownArgument => {
            let word = named(ContextKind::InvalidArg)?;
            let is_file = !word.starts_with('-');
            let reads_one = ["report", "view", "convert", "query"].contains(&command?);
            (is_file && reads_one).then(|| {
                "it reads one profile; `allocsample diff BEFORE AFTER` compares two".to_owned()
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_point_to_the_help_of_their_command() {
        for (words, command) in [
            (&["report", "x", "--by", "functions"][..], Some("report")),
            (&["--no-limits", "leaks"], Some("leaks")),
            (&["ctl", "4711", "interval"], Some("ctl")),
            (&["reprot", "report"], None),
            (&[], None),
        ] {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(command_among(&words).as_deref(), command, "{words:?}");
        }
    }
}
