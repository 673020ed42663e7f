//! A directory in which the command is run as a user runs it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use super::{Program, agent_library, command, copy, directory};

/// A working directory, empty at first.
pub struct Room {
    directory: tempfile::TempDir,
    agent: PathBuf,
}

impl Room {
    /// With the agent.
    pub fn new() -> Room {
        directory::begin();
        Room {
            directory: tempfile::tempdir().unwrap(),
            agent: agent_library(),
        }
    }

    /// With a library in its place that does nothing: what is tested is the command's own part.
    pub fn without_agent() -> Room {
        static STAND_IN: OnceLock<PathBuf> = OnceLock::new();
        let stand_in = STAND_IN.get_or_init(|| {
            let library = Program::library("stand_in.c", "libstand_in.so", &[]);
            library.path().to_owned()
        });
        Room {
            agent: stand_in.clone(),
            ..Room::new()
        }
    }

    /// The library that programs are run with.
    pub fn agent(&self) -> &Path {
        &self.agent
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Writes a file that can be run.
    pub fn write_executable(&self, name: &str, content: impl AsRef<[u8]>) {
        let mut written = tempfile::NamedTempFile::new().unwrap();
        written.write_all(content.as_ref()).unwrap();
        copy(written.path(), &self.path(name));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Copies a compiled program here.
    pub fn add(&self, program: &Program, name: &str) {
        copy(program.path(), &self.path(name));
    }

    /// The command with these arguments. The seed is fixed unless they have another one, so that a test of samples does not fail now
    /// and then.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(command());
        command
            .args(arguments)
            .current_dir(self.directory())
            .env_remove("LD_PRELOAD")
            .env("ALLOCSAMPLE_LIBRARY", &self.agent)
            .env("ALLOCSAMPLE_SEED", "7")
            .stdin(Stdio::null());
        command
    }

    /// What it does.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Profiles `sh -c script`.
    pub fn script(&self, script: &str) -> Output {
        self.output(&["run", "--", "sh", "-c", script])
    }

    /// Profiles leaky.c into the file `name`.
    pub fn record(&self, name: &str, options: &[&str], arguments: &[&str]) -> Output {
        self.add(&Program::compiled("leaky.c"), "leaky");
        let run = ["run", "--interval", "4K", "-o", name];
        self.output(&[&run, options, &["--", "./leaky"], arguments].concat())
    }

    /// The files that are here.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
        let mut names: Vec<String> = entries.map(|entry| name(entry).unwrap()).collect();
        names.sort();
        names
    }
}

/// What was printed on stderr.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What was printed on stdout.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// One line that says `what`, nothing done, and the status.
#[track_caller]
pub fn assert_error(output: &Output, status: i32, what: &str) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.contains(what),
        "{stderr}"
    );
    assert!(output.stdout.is_empty());
}
