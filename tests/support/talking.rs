//! A program that does what each line of its input says, and answers, under the agent.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus, Stdio};

use super::profile::Profile;
use super::room::{Room, stderr};

/// The program and its profile, x.allocsample.
pub struct Talking {
    /// Where it runs.
    pub room: Room,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talking {
    /// With these options of `run`; its first answer is "ready".
    pub fn start(room: Room, options: &[&str], command: &[&str]) -> Self {
        Self::start_with(room, &[], options, command)
    }

    /// The same, with variables in its environment.
    pub fn start_with(
        room: Room,
        variables: &[(&str, &str)],
        options: &[&str],
        command: &[&str],
    ) -> Self {
        let run = ["run", "-q", "-o", "x.allocsample"];
        let mut child = room
            .command(&[&run, options, &["--"], command].concat())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        let mut talking = Self {
            room,
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        };
        assert_eq!(talking.answer(), "ready");
        talking
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// Has it do something.
    #[track_caller]
    pub fn ask(&mut self, line: &str) {
        assert_eq!(self.asked(line), "done", "{line}");
    }

    /// Asks it something: its answer.
    #[track_caller]
    pub fn asked(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("the program listens");
        self.answer()
    }

    /// `ctl` with these arguments; a program that waits hears of it when it allocates next.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) {
        let output = self
            .room
            .output(&[&["ctl", "x.allocsample"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said = stderr(&output);
        let is_late = said.contains("takes effect when the program next allocates");
        assert!(said.is_empty() || is_late, "{said}");
    }

    /// The number of the `run` that started it.
    pub fn parent(&self) -> u32 {
        self.child.id()
    }

    /// Nothing more is asked for: what it left.
    #[track_caller]
    pub fn end(mut self) -> (Room, Profile) {
        drop(self.input);
        let status: ExitStatus = self.child.wait().expect("the program");
        assert!(status.success(), "{status}");
        let profile = Profile::read(&self.room.path("x.allocsample"));
        assert!(profile.is_complete(), "{}", profile.exit());
        (self.room, profile)
    }
}
