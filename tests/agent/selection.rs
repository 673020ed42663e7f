//! Promise: only some threads or sizes can be sampled, estimates of those stay right, and what is left out is told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::profile::Profile;
use crate::support::room::{assert_error, stderr};
use crate::support::{Program, Room, is_installed, is_root, skip, truth};
use serde_json::Value;

/// selected.c under the agent.
struct Selected {
    room: Room,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The kernel's numbers of worker-1 and of other.
    numbers: [String; 2],
}

impl Selected {
    fn start(interval: &str) -> Self {
        Self::start_by(interval, |room, arguments| room.command(arguments))
    }

    /// By a command that runs ours with these arguments.
    fn start_by(interval: &str, command: impl FnOnce(&Room, &[&str]) -> Command) -> Self {
        let room = Room::new();
        room.add(&Program::compiled("selected.c"), "selected");
        let options = ["run", "-q", "-o", "x.allocsample", "--seed", "5"];
        let program = ["--interval", interval, "--", "./selected"];
        let mut child = command(&room, &[&options[..], &program].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command");
        let mut selected = Self {
            room,
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
            numbers: Default::default(),
        };
        let line = selected.answer();
        let (worker, other) = line.split_once(' ').expect("two numbers");
        selected.numbers = [worker.to_owned(), other.to_owned()];
        selected
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// Both threads allocate.
    fn allocate(&mut self, count: u64, size: u64) {
        writeln!(self.input, "{count} {size}").expect("the program listens");
        assert_eq!(self.answer(), "done");
    }

    #[track_caller]
    fn ctl(&self, arguments: &[&str]) {
        let output = self
            .room
            .output(&[&["ctl", "x.allocsample"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }

    fn end(mut self) -> (Room, Profile) {
        drop(self.input);
        let status = self.child.wait().expect("the program");
        assert!(status.success(), "{status}");
        let profile = Profile::read(&self.room.path("x.allocsample"));
        (self.room, profile)
    }
}

fn thread<'a>(profile: &'a Profile, name: &str) -> &'a Value {
    let threads = profile.report["threads"].as_array().expect("threads");
    let found = threads.iter().find(|row| row["thread"] == name);
    found.unwrap_or_else(|| panic!("no thread {name}"))
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().expect("a number")
}

/// What libc takes for a thread of the agent's, on the thread that starts it, and the like: muted.
const MOST_OF_LIBC: u64 = 4096;

/// What a thread that is left out allocates before it looks at the agent again.
const MOST_UNSEEN: u64 = 1 << 20;

#[test]
fn a_thread_can_be_left_out_and_taken_in_again_and_its_bytes_are_counted_all_the_same() {
    let mut selected = Selected::start("1");
    let other = selected.numbers[1].clone();
    selected.allocate(100, 100);
    selected.ctl(&["thread", &other, "off"]);
    selected.allocate(20_000, 100);
    selected.ctl(&["thread", &other, "on"]);
    selected.allocate(20_000, 100);
    selected.allocate(1000, 100);
    let (room, profile) = selected.end();
    let worker = thread(&profile, "worker-1");
    assert_eq!(number(worker, "samples"), 41_100);
    assert!(number(worker, "muted_bytes") < MOST_OF_LIBC);
    let other = thread(&profile, "other");
    let (samples, muted) = (number(other, "samples"), number(other, "muted_bytes"));
    // The allocation at which it hears that it is out is still in.
    let least_muted = 20_000 * 100 - 100;
    assert!(
        (least_muted..=least_muted + MOST_UNSEEN).contains(&muted),
        "{muted}"
    );
    assert_eq!(number(other, "allocated_bytes_exact"), samples * 100);
    let all = 41_100 * 100;
    let told = samples * 100 + muted;
    assert!((all..all + MOST_OF_LIBC).contains(&told), "{told}");
    let text = crate::support::room::stdout(&room.output(&["report", "x.allocsample"]));
    assert!(text.contains("on excluded threads"), "{text}");
}

/// The thread that has this number in its own namespace, among all of a process's descendants: its and its process's
/// numbers as we see them.
fn seen_from_here(parent: u32, number: &str) -> Option<[String; 2]> {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    for task in tasks.flatten() {
        let task = task.file_name().into_string().ok()?;
        let status = read(format!("/proc/{parent}/task/{task}/status"));
        let numbers = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))?;
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        if numbers.len() > 1 && numbers.last() == Some(&number) {
            return Some([parent.to_string(), task]);
        }
        let children = read(format!("/proc/{parent}/task/{task}/children"));
        let mut children = children.split_whitespace().filter_map(|it| it.parse().ok());
        if let Some(found) = children.find_map(|child| seen_from_here(child, number)) {
            return Some(found);
        }
    }
    None
}

#[test]
fn a_thread_in_a_container_has_the_number_that_is_seen_from_outside() {
    if !is_root() || !is_installed("unshare") {
        return skip("namespaces of processes need root and unshare");
    }
    let mut selected = Selected::start_by("1", |room, arguments| {
        let inner = room.command(arguments);
        let mut outer = Command::new("unshare");
        outer
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(inner.get_program())
            .args(inner.get_args())
            .current_dir(room.directory())
            .env("ALLOCSAMPLE_LIBRARY", room.agent());
        outer
    });
    selected.allocate(100, 100);
    let other = selected.numbers[1].clone();
    let found = seen_from_here(selected.child.id(), &other);
    let [pid, tid] = found.expect("the thread, from outside");
    assert_ne!(tid, other);
    for what in [pid.as_str(), "x.allocsample"] {
        let output = selected.room.output(&["ctl", what, "thread", &tid, "off"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    selected.allocate(20_000, 100);
    selected.allocate(20_000, 100);
    let (_room, profile) = selected.end();
    assert_eq!(number(thread(&profile, "worker-1"), "samples"), 40_100);
    let other = thread(&profile, "other");
    assert!(number(other, "samples") < 20_000, "{other}");
}

#[test]
fn threads_are_chosen_by_their_names() {
    let mut selected = Selected::start("1");
    selected.allocate(100, 100);
    selected.ctl(&["filter", "--threads", "work*"]);
    selected.allocate(20_000, 100);
    selected.ctl(&["filter", "--threads", "other"]);
    // Twice what one that is out may leave unseen.
    selected.allocate(20_000, 100);
    selected.allocate(1000, 100);
    selected.ctl(&["filter"]);
    selected.allocate(20_000, 100);
    selected.allocate(1000, 100);
    let (room, profile) = selected.end();
    let all = 62_100 * 100;
    for (name, out) in [("worker-1", 21_000), ("other", 20_000)] {
        let row = thread(&profile, name);
        let (samples, muted) = (number(row, "samples"), number(row, "muted_bytes"));
        let least = out * 100 - 100;
        assert!(
            (least..=least + MOST_UNSEEN + 100).contains(&muted),
            "{name}: {muted}"
        );
        let told = samples * 100 + muted;
        assert!((all..all + MOST_OF_LIBC).contains(&told), "{name}: {told}");
    }
    let text = crate::support::room::stdout(&room.output(&["report", "x.allocsample"]));
    for line in [
        "threads named work*, all sizes",
        "threads named other, all sizes",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn sizes_that_are_left_out_are_counted_and_the_others_stay_unbiased() {
    let mut selected = Selected::start("2K");
    selected.allocate(20_000, 500);
    selected.ctl(&["filter", "--sizes", "1000..2K"]);
    for size in [500, 1500, 3000] {
        selected.allocate(20_000, size);
    }
    selected.ctl(&["filter"]);
    selected.allocate(20_000, 3000);
    let (room, profile) = selected.end();
    let classes = crate::support::room::stdout(&room.output(&[
        "query",
        "x.allocsample",
        "--format",
        "json",
        "SELECT size, COUNT(*) AS samples, SUM(bytes) AS bytes FROM samples WHERE heap_id = 0 GROUP BY size",
    ]));
    let classes: Value = serde_json::from_str(&classes).expect("rows");
    let row = |size: u64| {
        let rows = classes.as_array().expect("rows");
        let found = rows.iter().find(|row| row["size"] == size);
        found.unwrap_or_else(|| panic!("no {size} in {classes}"))
    };
    let interval = 2048.0;
    for (size, rounds) in [(500.0, 1.0), (1500.0, 1.0), (3000.0, 1.0)] {
        let p: f64 = 1.0 - f64::exp(-size / interval);
        let due = rounds * 2.0 * 20_000.0;
        let found = row(size as u64)["samples"].as_f64().expect("a number");
        let z = truth::z(found, due * p, (due * p * (1.0 - p)).sqrt());
        // One allocation of a thread may pass before it hears of a filter.
        assert!(z.abs() < 4.0, "{size}: {found}, z {z:+.1}");
    }
    let left = &profile.report["lost"]["left out by the filter"];
    let (events, bytes) = (number(left, "events"), number(left, "bytes"));
    let due = 2.0 * 20_000.0 * (500.0 + 3000.0);
    // Those of the main thread are there too: at most as many as it has time for.
    assert!(bytes as f64 > 0.95 * due, "{bytes} of {due}");
    assert!(events > 10_000, "{events}");
    assert_eq!(profile.number("lost_samples"), 0.0);
    let z = profile.report["audit"]["z"].as_f64().expect("a deviation");
    assert!(z.abs() < 4.0, "{z}");
    let text = crate::support::room::stdout(&room.output(&["report", "x.allocsample"]));
    assert!(text.contains("excluded by the filter of sizes"), "{text}");
    assert!(text.contains("sizes from 1000 to 2048 bytes"), "{text}");
}

#[test]
fn what_cannot_be_chosen_is_refused() {
    let selected = Selected::start("64K");
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let output = selected
            .room
            .output(&[&["ctl", "x.allocsample"], arguments].concat());
        assert_error(&output, status, why);
    };
    refused(&["filter", "--sizes", "10"], 2, "expected FROM..TO");
    refused(&["filter", "--sizes", "20..10"], 2, "expected FROM..TO");
    refused(
        &["filter", "--threads", "a*b"],
        2,
        "expected a thread's name",
    );
    refused(
        &["filter", "--threads", "sixteen-letters-"],
        2,
        "at most 15 bytes",
    );
    refused(&["thread", "1", "off"], 1, "it has no thread 1");
    selected.end();
}
