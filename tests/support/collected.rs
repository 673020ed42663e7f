//! A program whose runtime is asked to collect while it runs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::Value;

use super::profile::Profile;
use super::room::{Room, stderr, stdout};

/// A program that says its process number, and ends when it gets a line.
pub struct AtWork {
    /// Where its profile, x.allocsample, is.
    pub room: Room,
    /// The number.
    pub pid: String,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl AtWork {
    /// Under the agent; returns when it has said its number.
    pub fn start(room: Room, options: &[&str], command: &[&str]) -> Self {
        let run = ["run", "-q", "--seed", "7", "-o", "x.allocsample"];
        let mut child = room
            .command(&[&run[..], options, &["--"], command].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut program = Self {
            room,
            pid: String::new(),
            child,
            stdin,
            stdout,
        };
        program.pid = program.line();
        program
    }

    /// What it says next.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    /// Sends it a line.
    pub fn go_on(&mut self) {
        writeln!(self.stdin).expect("it reads");
    }

    /// What `ctl PID` prints, on standard output and standard error.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> (String, String) {
        let output = self
            .room
            .output(&[&["ctl", self.pid.as_str()], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    }

    /// Has it collect the heap of this name.
    #[track_caller]
    pub fn collect(&self, heap: &str) {
        let (said, _) = self.ctl(&["gc"]);
        assert_eq!(said, format!("{heap}: collected\n"));
    }

    /// The answer of `query` to this about a copy of its profile.
    #[track_caller]
    pub fn query(&self, sql: &str) -> Value {
        let copy = "copy.allocsample";
        let _from_before = std::fs::remove_file(self.room.path(copy));
        self.ctl(&["snapshot", "-o", copy]);
        let output = self.room.output(&["query", copy, "--format", "json", sql]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("rows")
    }

    /// What a function has allocated in a heap and was live when the collection on request was over, with the standard error.
    #[track_caller]
    pub fn survivors(&self, heap: &str, function: &str) -> (f64, f64) {
        self.live_of(heap, function, "end")
    }

    /// The same of what it had allocated before the request.
    #[track_caller]
    pub fn survivors_of_request(&self, heap: &str, function: &str) -> (f64, f64) {
        self.live_of(heap, function, "begin")
    }

    /// Asks a JVM for collections. Then nearly all that `drop` has allocated is dead, and of `makeEntry` so much is live.
    #[track_caller]
    pub fn assert_java_keeps(&self, known_bytes: f64, context: &str) {
        const REQUESTS: usize = 4;
        for _ in 0..REQUESTS {
            self.collect("java");
        }
        let (live, error) = self.survivors_of_request("java", "makeEntry");
        assert!(
            (live - known_bytes).abs() < 5.0 * error,
            "{context}: {live} ± {error}"
        );
        let (dropped, _) = self.survivors_of_request("java", "drop");
        let most = 0.05 * known_bytes;
        assert!(dropped < most, "{context}: {dropped} not dead");
    }

    #[track_caller]
    fn live_of(&self, heap: &str, function: &str, allocated_before: &str) -> (f64, f64) {
        let rows = self.query(&format!(
            "WITH asked AS (SELECT max(begin_ns) AS begin, max(end_ns) AS end FROM markers \
            WHERE marker = 'collection on request') \
            SELECT count(*) AS samples, coalesce(sum(bytes), 0) AS bytes, \
            coalesce(sum(bytes_variance), 0) AS variance \
            FROM samples JOIN functions USING (function_id) JOIN heaps USING (heap_id), asked \
            WHERE function LIKE '%{function}' AND heap = '{heap}' AND time_ns < asked.{allocated_before} \
            AND (freed_ns IS NULL OR freed_ns > asked.end)"
        ));
        let figure = |name: &str| rows[0][name].as_f64().expect("a figure");
        (figure("bytes"), figure("variance").sqrt())
    }

    /// Lets it end, and reads what it left.
    #[track_caller]
    pub fn end(mut self) -> (Room, Profile) {
        self.go_on();
        drop(self.stdin);
        assert!(self.child.wait().expect("it ends").success());
        let profile = Profile::read(&self.room.path("x.allocsample"));
        (self.room, profile)
    }
}

/// `leaks` accuses no site of this function.
#[track_caller]
pub fn assert_not_accused(room: &Room, profile: &str, function: &str) {
    let output = room.output(&["leaks", profile, "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).expect("suspects");
    let suspects = found["suspects"].as_array().expect("suspects");
    let accused = suspects.iter().find(|suspect| {
        matches!(suspect["verdict"].as_str(), Some("leak" | "possible leak"))
            && suspect["function"]
                .as_str()
                .is_some_and(|name| name.ends_with(function))
    });
    assert!(accused.is_none(), "{accused:?}");
}
