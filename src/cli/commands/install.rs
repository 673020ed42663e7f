//! `allocsample install`: a directory with all that a container or another machine needs.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::run::embedded;
use super::run::library::{Library, NAME};
use crate::args::{Arguments, Install};
use crate::exit::Ending;
use crate::output_file;

const COMMAND: &str = "allocsample";

/// Shells with completions, and the file that each looks for.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/allocsample"),
    (Shell::Fish, "fish/vendor_completions.d/allocsample.fish"),
    (Shell::Zsh, "zsh/site-functions/_allocsample"),
];

/// Writes the command, the library, manual pages and completions below `options.into`.
pub fn run(options: &Install) -> anyhow::Result<Ending> {
    let root = &options.into;
    let library = match embedded::library() {
        Some(library) => library.to_vec(),
        None => read(Library::find()?.path())?,
    };
    let executable = std::env::current_exe().context("cannot find the path of this program")?;
    put(root, &format!("bin/{COMMAND}"), &read(&executable)?, 0o755)?;
    put(root, &format!("lib/{COMMAND}/{NAME}"), &library, 0o755)?;
    if options.no_manual {
        return Ok(Ending::SUCCESS);
    }
    for (shell, file) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), COMMAND, &mut script);
        put(root, &format!("share/{file}"), &script, 0o644)?;
    }
    let mut command = Arguments::command();
    command.build();
    put_manual(root, &command, COMMAND)?;
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let name = format!("{COMMAND}-{}", subcommand.get_name());
        put_manual(root, subcommand, &name)?;
    }
    Ok(Ending::SUCCESS)
}

fn put_manual(root: &Path, command: &clap::Command, name: &str) -> anyhow::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().display_name(name.to_owned()))
        .title(name.to_uppercase())
        .render(&mut page)?;
    put(root, &format!("share/man/man1/{name}.1"), &page, 0o644)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

fn put(root: &Path, file: &str, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let path = root.join(file);
    let directory = path.parent().unwrap_or(root);
    output_file::shared_directory(directory).with_context(|| directory.display().to_string())?;
    output_file::install(&path, bytes, mode)
}
