//! A program that runs while a test asks for things.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use super::Program;
use super::profile::Profile;
use super::room::{Room, stderr, stdout};

/// What a phase allocates.
pub const BYTES: u32 = 400_000_000;

/// phases.c under the agent, a phase at a time.
pub struct Running {
    /// Where its profile, x.allocsample, is.
    pub room: Room,
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    /// With these options of `run`.
    pub fn start(options: &[&str]) -> Self {
        let room = Room::new();
        room.add(&Program::compiled("phases.c"), "phases");
        let bytes = BYTES.to_string();
        let arguments = [
            &["run", "-q", "-o", "x.allocsample", "--seed", "3"],
            options,
            &["--", "./phases", &bytes],
        ]
        .concat();
        let mut child = room
            .command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            room,
            child,
            output,
        }
    }

    /// Lets the next phase run to its end.
    pub fn phase(&mut self) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input).expect("the program listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        assert_eq!(line, "done\n");
    }

    /// The program's number.
    pub fn pid(&self) -> String {
        let of_run = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{of_run}/task/{of_run}/children"));
        children.expect("the kernel tells").trim().to_owned()
    }

    /// The same, once the program waits for its first phase.
    pub fn waiting_pid(&self) -> String {
        loop {
            let pid = self.pid();
            let of_process = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
            // The system call in which it waits: read, of its standard input.
            if of_process("comm").is_ok_and(|name| name == "phases\n")
                && of_process("syscall").is_ok_and(|call| call.starts_with("0 0x0 "))
            {
                return pid;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// What `ctl` with these arguments prints.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let arguments = [&["ctl", "x.allocsample"], arguments].concat();
        let output = self.room.output(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    }

    /// Lets it end, and reads what it left.
    pub fn end(mut self) -> (Room, Profile) {
        let status = self.child.wait().expect("the program");
        assert!(status.success(), "{status}");
        let profile = Profile::read(&self.room.path("x.allocsample"));
        (self.room, profile)
    }
}
