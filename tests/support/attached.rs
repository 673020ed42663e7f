//! attached.c at work, and what attaching to it is held to.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::profile::Profile;
use super::room::{assert_error, stderr, stdout};
use super::{Program, Room};

/// The program, and the room in which its profiles are.
pub struct Attached {
    /// Where the command is run.
    pub room: Room,
    child: Ends,
    /// Its number, if it is not the child's.
    below: Option<u32>,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A child that does not outlive a test that has failed.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            // Both can fail only if it has just ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Attached {
    /// With all slots filled at start.
    pub fn start() -> Self {
        Self::start_as(|room| Command::new(room.path("attached")))
    }

    /// By a command that runs it under its own pid.
    pub fn start_as(command: impl FnOnce(&Room) -> Command) -> Self {
        Self::start_with(&[], command)
    }

    /// By a command that stays beside it, and ends with it, as its parent.
    pub fn start_below(command: impl FnOnce(&Room) -> Command) -> Self {
        let mut running = Self::start_as(command);
        let parent = running.child.0.id();
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = fs::read_to_string(path).expect("the parent");
        let child = children.trim().parse().expect("one child");
        running.below = Some(child);
        running
    }

    /// With further flags of the compiler.
    pub fn start_with(flags: &[&str], command: impl FnOnce(&Room) -> Command) -> Self {
        Self::start_by("attached.c", flags, |room| {
            let mut command = command(room);
            command.env("LD_BIND_NOW", "1");
            command
        })
    }

    /// Slots are filled at the first call.
    pub fn start_lazily(flags: &[&str]) -> Self {
        Self::start_by("attached.c", flags, |room| {
            Command::new(room.path("attached"))
        })
    }

    /// Another program, which answers `ready`, then each line, and ends when it is told to.
    pub fn start_other(source: &str, arguments: &[&str]) -> Self {
        Self::start_by(source, &[], |room| {
            let mut command = Command::new(room.path("attached"));
            command.args(arguments);
            command
        })
    }

    /// Any of these, with further flags of the compiler, by a command that runs it under its own pid.
    pub fn start_by(source: &str, flags: &[&str], command: impl FnOnce(&Room) -> Command) -> Self {
        let room = Room::new();
        room.add(&Program::compiled_with(source, flags), "attached");
        let command = command(&room);
        Self::start_in(room, command)
    }

    /// A program that behaves like `start_other`'s, in the room where its profiles are to be.
    pub fn start_in(room: Room, mut command: Command) -> Self {
        let mut child = command
            .current_dir(room.directory())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the program");
        let mut running = Self {
            room,
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
            child: Ends(child),
            below: None,
        };
        assert_eq!(running.answer(), "ready");
        running
    }

    /// The next line that it prints.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// Has it do something, and returns its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        let answer = self.answer();
        assert!(!answer.is_empty(), "it has ended at: {line}");
        answer
    }

    /// Has it do something, and does not wait.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the program listens");
    }

    /// Sends it SIGUSR2.
    pub fn signal(&self) {
        let pid = Pid::from_raw(self.number().cast_signed());
        nix::sys::signal::kill(pid, Signal::SIGUSR2).expect("the program");
    }

    /// As an argument of the command.
    pub fn pid(&self) -> String {
        self.number().to_string()
    }

    fn number(&self) -> u32 {
        self.below.unwrap_or_else(|| self.child.0.id())
    }

    #[track_caller]
    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.room.output(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        // Where a path leads through the process, a line says so.
        let remark = stderr(&output);
        let is_expected = remark.is_empty() || remark.contains("that path ends with the process");
        assert!(is_expected, "{remark}");
        stdout(&output)
    }

    /// Attaches, with these options; it must succeed.
    #[track_caller]
    pub fn attach(&self, options: &[&str]) -> PathBuf {
        let pid = self.pid();
        let arguments = [&["attach", &pid, "--seed", "7"], options].concat();
        let said = self.done(&arguments);
        let path = said.strip_prefix(&format!("process {}: ", self.pid()));
        PathBuf::from(path.expect(&said).trim_end())
    }

    /// Returns the profile.
    #[track_caller]
    pub fn detach(&self) -> Profile {
        let said = self.done(&["detach", &self.pid()]);
        let (path, _) = said.split_once(": ").expect("a path");
        let profile = Profile::read(Path::new(path));
        assert!(profile.is_complete(), "{}", profile.report);
        assert!(profile.exit().starts_with("detach"), "{}", profile.exit());
        profile
    }

    /// The command refuses, and says why.
    #[track_caller]
    pub fn fails(&self, arguments: &[&str], what: &str) {
        assert_error(&self.room.output(arguments), 1, what);
    }

    /// How many files a directory of its in /proc has.
    pub fn entries(&self, directory: &str) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/{directory}", self.pid()));
        entries.expect("the process").count()
    }

    /// Mappings of files, which are the ones that somebody could miss on the disk.
    pub fn mapped_files(&self) -> Vec<String> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("the process");
        let paths = maps.lines().filter_map(|line| line.split_once('/'));
        let mut paths: Vec<String> = paths.map(|(_, path)| path.to_owned()).collect();
        paths.dedup();
        paths
    }

    /// Runs a command until a thread can be borrowed. What a program does all the time may keep it from every thread for ten
    /// seconds, as it says then, and docs/attach.md.
    pub fn insist(&self, arguments: &[&str]) -> Output {
        const TRIES: usize = 20;
        let tries = (0..TRIES).map(|_| self.room.output(arguments));
        let is_refused = |output: &Output| stderr(output).contains("none of its threads came out");
        let mut tries = tries.skip_while(is_refused);
        tries.next().expect("a thread that can be borrowed")
    }

    /// Where the first file of this name is mapped.
    pub fn mapped_at(&self, name: &str) -> Option<u64> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("the process");
        let line = maps.lines().find(|line| line.contains(name))?;
        u64::from_str_radix(line.split_once('-')?.0, 16).ok()
    }

    /// Waits until a helper thread that has answered is gone for the kernel too.
    pub fn settle(&self, threads: usize) {
        while self.entries("task") > threads {
            std::thread::yield_now();
        }
    }

    /// Asks it to end with this status, and waits until it has.
    pub fn end(mut self, status: i32) -> (Room, ExitStatus) {
        // The program says nothing more.
        let _ = writeln!(self.input, "end {status}");
        let ended = self.child.0.wait().expect("the program");
        (self.room, ended)
    }

    /// Closes its input, at which it ends, and waits until it has.
    pub fn end_of_input(mut self) -> (Room, ExitStatus) {
        drop(self.input);
        let ended = self.child.0.wait().expect("the program");
        (self.room, ended)
    }

    /// It ends as if nobody had been there.
    #[track_caller]
    pub fn ends_well(self) {
        let (_room, status) = self.end(3);
        assert_eq!(status.code(), Some(3), "{status}");
    }
}

/// Whether the kernel shows a process in this state.
pub fn is_in_state(pid: &str, letter: char) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process");
    status.contains(&format!("State:\t{letter}"))
}
