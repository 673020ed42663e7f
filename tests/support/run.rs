//! Runs a program bare or under the agent, and compares the two.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::agent_library;
use super::directory::Directory;
use super::profile::Profile;

/// No test program needs a tenth of this on an idle machine; who needs more hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// How the agent is set up for a run.
#[derive(Clone, Debug)]
pub struct Agent {
    variables: Vec<(&'static str, String)>,
}

impl Agent {
    /// An agent with this sampling interval. It loses no sample, however late a busy machine lets it write them; otherwise
    /// the defaults.
    pub fn at_interval(interval: impl ToString) -> Agent {
        Agent::by_default()
            .with("ALLOCSAMPLE_INTERVAL", interval)
            .with("ALLOCSAMPLE_ON_FULL", "wait")
    }

    /// An agent with nothing but the defaults, and a fixed seed, so that a test of samples does not fail now and then.
    pub fn by_default() -> Agent {
        Agent {
            variables: vec![("ALLOCSAMPLE_SEED", "7".to_owned())],
        }
    }

    /// With one more variable.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Agent {
        self.variables.push((name, value.to_string()));
        self
    }

    /// With another seed.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Agent {
        self.with("ALLOCSAMPLE_SEED", seed)
    }
}

/// A program with its arguments and surroundings, to be run any number of times.
#[derive(Clone, Debug)]
pub struct Run {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    preload_before: Vec<PathBuf>,
    preload_after: Vec<PathBuf>,
    is_agent_inside: bool,
    patience: Duration,
}

/// What came of a run. Its directory is removed with it, unless the test has failed.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained of.
    pub stderr: Vec<u8>,
    directory: Directory,
}

impl Run {
    /// A program by its path, or by a name to be found in PATH.
    pub fn of(program: impl AsRef<Path>) -> Run {
        Run {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
            preload_before: Vec::new(),
            preload_after: Vec::new(),
            is_agent_inside: false,
            patience: PATIENCE,
        }
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Run {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// With more arguments.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Run {
        self.arguments.extend(arguments.iter().map(OsString::from));
        self
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.variables
            .push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// With a library preloaded, in front of the agent if there is one.
    #[must_use]
    pub fn preload_before_agent(mut self, library: &Path) -> Run {
        self.preload_before.push(library.to_owned());
        self
    }

    /// With a library preloaded, behind the agent if there is one.
    #[must_use]
    pub fn preload_after_agent(mut self, library: &Path) -> Run {
        self.preload_after.push(library.to_owned());
        self
    }

    /// For a program that contains the agent: nothing is preloaded.
    #[must_use]
    pub fn with_agent_inside(mut self) -> Run {
        self.is_agent_inside = true;
        self
    }

    /// For what is meant to take long.
    #[must_use]
    pub fn patience(mut self, seconds: u64) -> Run {
        self.patience = Duration::from_secs(seconds);
        self
    }

    /// Runs it without the agent.
    pub fn bare(&self) -> Outcome {
        self.execute(None)
    }

    /// Runs it under the agent, the profiles going into the outcome's directory.
    pub fn observed(&self, agent: &Agent) -> Outcome {
        self.execute(Some(agent))
    }

    /// Runs it both ways; output and status must be the same to the byte, and the agent must have been at work.
    pub fn unchanged(&self, agent: &Agent) -> Outcome {
        let bare = self.bare();
        let observed = self.observed(agent);
        observed.assert_same_as(&bare);
        assert!(
            !observed.profile_paths().is_empty(),
            "no profile of {self:?}"
        );
        observed
    }

    fn execute(&self, agent: Option<&Agent>) -> Outcome {
        let directory = Directory::new();
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .current_dir(directory.join("work"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ALLOCSAMPLE_") {
                command.env_remove(name);
            }
        }
        command
            .env_remove("LD_PRELOAD")
            .envs(self.variables.iter().cloned());
        let mut preload = self.preload_before.clone();
        if let Some(agent) = agent {
            if !self.is_agent_inside {
                preload.push(agent_library());
            }
            command.env(
                "ALLOCSAMPLE_OUTPUT",
                directory.join("profiles/%n.%p.allocsample"),
            );
            command.envs(agent.variables.iter().cloned());
        }
        preload.extend(self.preload_after.iter().cloned());
        if !preload.is_empty() {
            let paths: Vec<&OsStr> = preload.iter().map(|path| path.as_os_str()).collect();
            command.env("LD_PRELOAD", paths.join(OsStr::new(":")));
        }
        finish(command, directory, self.patience)
    }
}

/// Runs `command` to its end in a process group of its own. It writes into files: a descendant that outlives it cannot
/// keep us waiting at a pipe.
pub fn finish(mut command: Command, directory: Directory, patience: Duration) -> Outcome {
    let stdout = directory.join("stdout");
    let stderr = directory.join("stderr");
    command
        .stdin(Stdio::null())
        .stdout(File::create(&stdout).expect("a file for the output"))
        .stderr(File::create(&stderr).expect("a file for the errors"))
        .process_group(0);
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let group = Pid::from_raw(child.id().try_into().expect("a pid"));
    let status = wait(&mut child, patience);
    // Whoever is left of the group has no business any more; often nobody is, which is the error ignored here.
    let _ = killpg(group, Signal::SIGKILL);
    let outcome = Outcome {
        status: status.unwrap_or(ExitStatus::from_raw(Signal::SIGKILL as i32)),
        stdout: fs::read(stdout).expect("output"),
        stderr: fs::read(stderr).expect("errors"),
        directory,
    };
    assert!(status.is_some(), "hangs: {command:?}\n{outcome:?}");
    outcome
}

fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    while start.elapsed() < patience {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(8));
    }
    let group = Pid::from_raw(child.id().try_into().expect("a pid"));
    killpg(group, Signal::SIGKILL).expect("a process to end");
    child.wait().expect("a child");
    None
}

impl Outcome {
    /// The directory in which it ran.
    pub fn work(&self) -> PathBuf {
        self.directory.join("work")
    }

    /// All profiles that it left, by name.
    pub fn profile_paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = fs::read_dir(self.directory.join("profiles"))
            .expect("the profiles")
            .map(|entry| entry.expect("a profile").path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|ending| ending == "allocsample")
            })
            .collect();
        paths.sort();
        paths
    }

    /// Reads them all.
    pub fn profiles(&self) -> Vec<Profile> {
        self.profile_paths()
            .iter()
            .map(|path| Profile::read(path))
            .collect()
    }

    /// Reads the only one.
    pub fn profile(&self) -> Profile {
        match &self.profile_paths()[..] {
            [only] => Profile::read(only),
            others => panic!("one profile expected, not {others:?}; {self:?}"),
        }
    }

    /// Reads that of `program`, of which others may stand beside it: a shell that becomes a program can have been
    /// sampled before.
    pub fn profile_of(&self, program: &str) -> Profile {
        let start = format!("{program}.");
        let named = |path: &&PathBuf| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&start))
        };
        let paths = self.profile_paths();
        match paths.iter().filter(named).collect::<Vec<_>>()[..] {
            [only] => Profile::read(only),
            _ => panic!("one profile of {program} expected in {paths:?}; {self:?}"),
        }
    }

    /// What it printed, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// What it complained of, as text.
    pub fn complaints(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The test program checks itself: it must be content.
    #[track_caller]
    pub fn assert_success(&self) -> &Self {
        assert!(
            self.status.success(),
            "{}\n{}{}",
            self.status,
            self.text(),
            self.complaints()
        );
        self
    }

    /// Output and status must equal those of another run to the byte.
    #[track_caller]
    pub fn assert_same_as(&self, other: &Outcome) {
        assert_eq!(
            (self.status, self.text(), self.complaints()),
            (other.status, other.text(), other.complaints()),
            "with the agent (left) and without (right)"
        );
        assert!(self.stdout == other.stdout && self.stderr == other.stderr);
    }
}
