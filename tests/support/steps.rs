//! steps.c under `run`, which allocates as much as it is told to, and what is read out of its files.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::profile::Profile;
use super::room::{stderr, stdout};
use super::{Program, Room};

/// What a step of steps.c allocates, and what is alive of it after it: the odd half of what the steps before kept, and
/// all that it kept itself.
pub const BLOCKS: u64 = 20_000;
pub const KEPT: u64 = BLOCKS / 100;

pub fn alive_after(steps: u64) -> u64 {
    match steps {
        0 => 0,
        // Places of the odd half are overwritten, so those blocks are never freed.
        steps => (steps - 1) * KEPT / 2 + KEPT,
    }
}

/// steps.c, every allocation of it recorded.
pub struct Steps {
    pub room: Room,
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Steps {
    pub fn start(options: &[&str], arguments: &[&str]) -> Self {
        let room = Room::new();
        room.add(&Program::compiled("steps.c"), "steps");
        let all = [
            &["run", "-q", "-o", "x%n.allocsample", "--interval", "1"],
            options,
            &["--", "./steps"],
            arguments,
        ]
        .concat();
        let command = room.command(&all);
        Self::of(room, command)
    }

    pub fn of(room: Room, mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        Self {
            room,
            input: child.stdin.take().expect("a pipe"),
            output: child.stdout.take().expect("a pipe"),
            child,
        }
    }

    pub fn step(&mut self) {
        self.input.write_all(b"\n").expect("the program listens");
        let mut done = [0];
        self.output.read_exact(&mut done).expect("an answer");
        assert_eq!(done, *b"d");
    }

    pub fn current(&self) -> PathBuf {
        self.room.path("xsteps.allocsample")
    }

    /// Of the program, not of `run`.
    pub fn pid(&self) -> nix::unistd::Pid {
        let of_run = self.child.id();
        let children = fs::read_to_string(format!("/proc/{of_run}/task/{of_run}/children"));
        let children = children.expect("the kernel tells");
        nix::unistd::Pid::from_raw(children.trim().parse().expect("one child"))
    }

    /// A place that only the program sees by its name.
    pub fn seen_from_here(&self, name: &str) -> PathBuf {
        let place = self.room.path(name);
        PathBuf::from(format!("/proc/{}/root{}", self.pid(), place.display()))
    }

    /// Whether the program has been started, and has done a step.
    pub fn is_ready(&mut self) -> bool {
        let mut done = [0];
        self.input.write_all(b"\n").is_ok() && self.output.read_exact(&mut done).is_ok()
    }

    pub fn ctl(&self, action: &str) -> String {
        self.ctl_of(Path::new("xsteps.allocsample"), action)
    }

    pub fn ctl_of(&self, profile: &Path, action: &str) -> String {
        let profile = profile.to_str().expect("a path");
        let output = self.room.output(&["ctl", profile, action]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    }

    /// The program ends by itself.
    pub fn end(mut self) -> Room {
        drop(self.input);
        let status = self.child.wait().expect("the program");
        assert!(status.success(), "{status}");
        self.room
    }

    /// The program is killed, at whatever its drain thread is doing. `run` then makes its last file whole, but not if it
    /// is killed first.
    pub fn kill(mut self) -> Room {
        let pid = self.pid();
        self.child.kill().expect("run");
        self.child.wait().expect("run");
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("the program");
        // Its end of the pipe closes when it is gone.
        let mut rest = Vec::new();
        self.output.read_to_end(&mut rest).expect("a pipe");
        self.room
    }
}

/// Complete files, in the order of time.
pub fn parts(room: &Room, stem: &str) -> Vec<PathBuf> {
    let number = |name: &String| -> Option<u32> {
        let rest = name.strip_prefix(stem)?.strip_prefix(".part-")?;
        rest.strip_suffix(".allocsample")?.parse().ok()
    };
    let names = room.names();
    let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let name = |number| room.path(&format!("{stem}.part-{number}.allocsample"));
    numbers.into_iter().map(name).collect()
}

/// A number that a query gives.
pub fn query(path: &Path, sql: &str) -> u64 {
    let output = std::process::Command::new(super::command())
        .args(["query", "--format", "csv"])
        .arg(path)
        .arg(sql)
        .output()
        .expect("the command");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let value = text.lines().nth(1).unwrap_or_default();
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("{sql}: {text}"));
    value as u64
}

pub const LIVE: &str = "SELECT count(*) FROM samples WHERE live = 1 AND size < 1024";
pub const LIVE_IDS: &str = "SELECT coalesce(sum(sample_id), 0) FROM samples WHERE live = 1";
pub const CARRIED_IDS: &str = "SELECT coalesce(sum(sample_id), 0) FROM samples WHERE carried = 1";
pub const TAKEN: &str = "SELECT count(*) FROM samples WHERE carried = 0 AND size < 1024";

/// Joins everything that a recording has left.
pub fn join(room: &Room, last: &str) -> PathBuf {
    let output = room.output(&["join", last, "-o", "all.allocsample"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    room.path("all.allocsample")
}

#[track_caller]
pub fn assert_sound(path: &Path) {
    let profile = Profile::read(path);
    assert_eq!(profile.number("lost_samples"), 0.0, "{}", path.display());
    assert_eq!(profile.report["audit"]["passed"], true);
    // At interval 1 the estimate is the count.
    let (estimate, exact) = (
        profile.total("allocated_bytes"),
        profile.total("allocated_bytes_exact"),
    );
    assert_eq!(estimate, exact, "{}", path.display());
}
