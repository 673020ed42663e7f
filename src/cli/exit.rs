//! How the command ends: one line about the failure, with the status that says whose mistake it was.
//!
//! ```text
//! 0  done, or the reader of our output went away (a broken pipe is success)
//! 1  it failed
//! 2  it was asked for something that makes no sense, and did nothing
//! ```
//! `run` ends as the program that it ran: same status, or death by the same signal.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use allocsample_profile::readable;
use nix::sys::signal::{Signal, raise};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Status of a request that is invalid.
pub const USAGE: u8 = 2;
/// Status of a failure.
pub const FAILURE: u8 = 1;

/// How a command that succeeded ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this status.
    Status(u8),
    /// By this signal, as the program that it ran.
    Signal(i32),
}

impl Ending {
    /// Success.
    pub const SUCCESS: Ending = Ending::Status(0);
}

/// An invalid request: the command ends with status 2 instead of 1.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// `SIGSEGV`, or `signal 40` for one without a name.
pub fn name_of_signal(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

/// Turns the result of a command into the end of the process; does not return if that is death by a signal.
pub fn with(result: anyhow::Result<Ending>) -> ExitCode {
    match result {
        Ok(Ending::Status(status)) => ExitCode::from(status),
        Ok(Ending::Signal(signal)) => die_of(signal),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&in_one_line(&error));
            let status = if error.is::<Usage>() { USAGE } else { FAILURE };
            ExitCode::from(status)
        }
    }
}

/// An error with its causes, outermost first, as `file: what: why`.
pub fn in_one_line(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Without the number of an I/O error, which adds nothing to its words.
        let cause = match cause.rsplit_once(" (os error ") {
            Some((words, _)) => words,
            None => &cause,
        };
        // Some errors print their cause and also name it as their source.
        if said.ends_with(cause) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(cause);
    }
    said
}

/// Prints `error: what` as one line on stderr. Ignores a stderr that cannot be written to.
pub fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "error: {}", one_line(what));
}

/// Errors name files and programs, and a name must not control the terminal.
fn one_line(what: &str) -> String {
    let lines: Vec<_> = what.split('\n').map(str::trim).collect();
    readable(lines.join(" ").as_bytes()).into_owned()
}

/// Prints `allocsample: what` as one line on stderr: a note about a program that runs anyway.
pub fn remark(what: impl fmt::Display) {
    let what = what.to_string();
    let _ = writeln!(io::stderr(), "allocsample: {}", readable(what.as_bytes()));
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Ends by `signal`, so that our parent sees the same as from the program itself. The program has left its core file;
/// we leave none.
fn die_of(signal: i32) -> ExitCode {
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Both are best effort: the limit keeps the kernel from writing a core file, the flag from starting a core
    // handler.
    let _ = setrlimit(Resource::Core, no_core);
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    match Signal::try_from(signal) {
        // This signal cannot be caught, so there is no default to restore.
        Ok(Signal::SIGKILL) => {
            let _ = raise(Signal::SIGKILL);
        }
        Ok(_) => {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        Err(_) => {}
    }
    // A real-time signal, or one that does not end a process by default: use the status that a shell would show.
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_said_once() {
        let missing = || io::Error::from_raw_os_error(2);
        let error = anyhow::Error::new(missing()).context("a.allocsample");
        assert_eq!(
            in_one_line(&error),
            "a.allocsample: No such file or directory"
        );
        let error = error.context("what it printed: No such file or directory");
        let expected =
            "what it printed: No such file or directory: a.allocsample: No such file or directory";
        assert_eq!(in_one_line(&error), expected);
        let twice = allocsample_profile::ReadError::Io(missing());
        let error = anyhow::Error::new(twice).context("a");
        assert_eq!(in_one_line(&error), "a: No such file or directory");
    }

    #[test]
    fn a_broken_pipe_is_seen_through_any_context() {
        let pipe = Err::<(), _>(io::Error::from(io::ErrorKind::BrokenPipe)).context("stdout");
        assert!(is_broken_pipe(&pipe.unwrap_err()));
        let other = Err::<(), _>(io::Error::from(io::ErrorKind::NotFound)).context("stdout");
        assert!(!is_broken_pipe(&other.unwrap_err()));
    }
}
