//! The command `allocsample`.

mod args;
mod commands;
mod exit;
mod inherited;

use args::Command;

fn main() -> std::process::ExitCode {
    let arguments = match args::parse() {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let result = match arguments.command {
        Command::Run(run) => commands::run::run(&run),
    };
    exit::with(result)
}
