//! Promise: `allocsample memory PID` says why malloc keeps memory that is free, as malloc itself counts it, and who holds it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::support::room::{stderr, stdout};
use crate::support::{Program, Room, wait_until};
use serde_json::Value;

/// A program that has come to rest, by what it prints, and waits for input. It is killed when it is dropped.
struct Resting {
    child: Child,
    /// Until it is closed.
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Resting {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let output = child.stdout.take().expect("a pipe");
        Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn memory(room: &Room, pid: u32, options: &[&str]) -> String {
    let pid = pid.to_string();
    let output = room.output(&[&["memory"], options, &[&pid]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

fn malloc_of(room: &Room, pid: u32) -> Value {
    let text = memory(room, pid, &["--format", "json"]);
    let ledger: Value = serde_json::from_str(&text).expect("JSON");
    ledger["last"]["malloc"].clone()
}

fn bytes(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Seed, threads, steps of each, largest block.
const RANDOM_HEAPS: [(u32, u32, u32, u32); 6] = [
    (1, 1, 20_000, 3_000),
    (2, 4, 100_000, 40_000),
    (3, 4, 100_000, 400),
    // More threads than arenas.
    (4, 20, 20_000, 3_000),
    // Blocks with mappings of their own, and arenas of several heaps.
    (5, 6, 20_000, 300_000),
    (6, 16, 30_000, 1_100),
];

fn rests(program: &Program, (seed, threads, steps, largest): (u32, u32, u32, u32)) -> Resting {
    let mut command = Command::new(program.path());
    command.args([seed, threads, steps, largest].map(|it| it.to_string()));
    Resting::start(command)
}

#[test]
fn the_walk_counts_what_malloc_counts_and_knows_what_trimming_returns() {
    let room = Room::new();
    let program = Program::compiled_with("heap_at_rest.c", &["-lpthread"]);
    for heap in RANDOM_HEAPS {
        let mut resting = rests(&program, heap);
        let by_malloc = resting.json();
        let found = malloc_of(&room, resting.child.id());
        let arenas = found["arenas"].as_array().expect("arenas");
        let of = |key| {
            arenas
                .iter()
                .map(|arena| bytes(&arena["chunks"], key))
                .sum::<u64>()
        };
        let case = format!("{heap:?}: {by_malloc} {found}");
        let system: u64 = arenas
            .iter()
            .map(|arena| bytes(arena, "system_bytes"))
            .sum();
        assert_eq!(system, bytes(&by_malloc, "arena"), "{case}");
        assert_eq!(of("not_understood_bytes"), 0, "{case}");
        assert_eq!(of("fastbin_bytes"), bytes(&by_malloc, "fsmblks"), "{case}");
        let free = of("free_bytes") + of("fastbin_bytes") + of("top_bytes");
        assert_eq!(free, bytes(&by_malloc, "fordblks"), "{case}");
        // Chunks in caches of threads are in use to malloc. Without them the blocks are those of the program, and a few of its
        // C library: two for each thread, and one of the main one. Those of the program with mappings are not in arenas.
        let (_, threads, _, largest) = heap;
        if largest < 100_000 {
            let own = of("blocks") - bytes(&by_malloc, "blocks");
            assert!(
                (1..=2 * u64::from(threads) + 1).contains(&own),
                "{own}: {case}"
            );
            let own = of("in_use_bytes") - bytes(&by_malloc, "block_bytes");
            assert!(own <= (u64::from(threads) + 1) * 2048, "{own}: {case}");
        }
        let mut input = resting.input.as_ref().expect("a pipe");
        writeln!(input, "trim").expect("the program listens");
        let trimmed = resting.json();
        let returned = bytes(&trimmed, "before") - bytes(&trimmed, "after");
        assert_eq!(
            bytes(&found["resident"], "returnable_bytes"),
            returned,
            "{case}"
        );
    }
}

#[test]
fn a_static_program_has_its_own_malloc() {
    let room = Room::new();
    let program = Program::compiled_with("heap_at_rest.c", &["-lpthread", "-static"]);
    let mut resting = rests(&program, RANDOM_HEAPS[1]);
    let by_malloc = resting.json();
    let found = malloc_of(&room, resting.child.id());
    let arenas = found["arenas"].as_array().expect("arenas");
    let system: u64 = arenas
        .iter()
        .map(|arena| bytes(arena, "system_bytes"))
        .sum();
    assert_eq!(system, bytes(&by_malloc, "arena"), "{found}");
}

/// The heap changes while it is read: the walk ends, loses little, and the rows still add up.
#[test]
fn a_program_that_never_rests_is_read_too() {
    let room = Room::new();
    let program = Program::compiled_with("heap_at_rest.c", &["-lpthread"]);
    let threads = 4;
    let resting = rests(&program, (7, threads, 2_000_000_000, 4_000));
    let pid = resting.child.id().to_string();
    // Before its first thread the program may not have called malloc yet, or may not have loaded it.
    wait_until("threads", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
        tasks.count() == threads as usize + 1
    });
    for _ in 0..5 {
        let output = room.output(&["memory", "--format", "json", &pid]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let ledger: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let last = &ledger["last"];
        let rows = last["rows"].as_array().expect("rows");
        let sum: f64 = rows
            .iter()
            .map(|row| row["resident_bytes"].as_f64().expect("bytes"))
            .sum();
        let resident = last["resident_bytes"].as_f64().expect("bytes");
        assert!((sum - resident).abs() < 2.0, "{sum} {resident}");
        if last["malloc"].is_null() {
            // On a machine with much else to do.
            assert!(stderr(&output).contains("it takes too long"), "{output:?}");
            continue;
        }
        let parts = &last["malloc"]["resident"];
        let lost = bytes(parts, "not_understood_bytes");
        assert!(lost * 20 < bytes(parts, "in_use_bytes"), "{parts}");
    }
}

fn leave_holes(interval: &str, seed: &str) -> (Room, Resting) {
    let room = Room::new();
    room.add(&Program::compiled("leaves_holes.c"), "program");
    let run = [
        "run",
        "-q",
        "--interval",
        interval,
        "--seed",
        seed,
        "-o",
        "it.allocsample",
        "--",
        "./program",
    ];
    let mut resting = Resting::start(room.command(&run));
    assert_eq!(resting.line(), "ready\n");
    (room, resting)
}

fn program_of(room: &Room) -> u32 {
    let profile = allocsample_profile::Profile::open(&room.path("it.allocsample"));
    profile.expect("a profile").process.pid
}

/// Bytes that each function holds, with their standard errors.
fn holders(malloc: &Value) -> Vec<(String, f64, f64)> {
    let holders = malloc["holders"].as_array().expect("holders").iter();
    holders
        .map(|holder| {
            let functions = holder["stack"].as_array().expect("a stack").iter();
            let mut functions = functions.map(|it| it["function"].as_str().expect("a name"));
            let name = functions
                .find(|it| it.starts_with("keep_"))
                .unwrap_or("other");
            let number = |key: &str| holder[key].as_f64().expect("a number");
            (
                name.to_owned(),
                number("free_bytes"),
                number("stderr_bytes"),
            )
        })
        .collect()
}

fn of(holders: &[(String, f64, f64)], name: &str) -> (f64, f64) {
    let of_name = holders.iter().filter(|it| it.0 == name);
    of_name.fold((0.0, 0.0), |sum, it| (sum.0 + it.1, sum.1 + it.2 * it.2))
}

#[test]
fn free_memory_is_charged_to_the_blocks_that_hold_it() {
    // Every block is a sample: nothing is estimated.
    let (room, resting) = leave_holes("1", "1");
    let malloc = malloc_of(&room, program_of(&room));
    let exact = holders(&malloc);
    let held = bytes(&malloc["resident"], "held_bytes") as f64;
    let attributed = malloc["held_by_sites_bytes"].as_f64().expect("bytes");
    // The C library's own blocks hold a page or two.
    assert!(
        (attributed - held).abs() < 3.0 * 4096.0,
        "{attributed} {held}"
    );
    let (often, seldom) = (of(&exact, "keep_often").0, of(&exact, "keep_seldom").0);
    assert!(
        often > 4.0 * seldom && often + seldom > 0.99 * attributed,
        "{exact:?}"
    );
    assert!(
        bytes(&malloc["resident"], "returnable_bytes") > 3 << 20,
        "{malloc}"
    );
    drop(resting);
    let mut deviations = Vec::new();
    for seed in ["1", "2", "3", "4", "5", "6"] {
        let (room, _resting) = leave_holes("2K", seed);
        let malloc = malloc_of(&room, program_of(&room));
        assert_eq!(bytes(&malloc["sampled_blocks"], "gone"), 0, "{malloc}");
        let estimated = holders(&malloc);
        for (name, truth) in [("keep_often", often), ("keep_seldom", seldom)] {
            let (value, variance) = of(&estimated, name);
            deviations.push((value - truth) / variance.sqrt());
        }
    }
    assert!(deviations.iter().all(|it| it.abs() < 4.0), "{deviations:?}");
}

#[test]
fn the_report_names_the_site_and_what_helps() {
    let (room, _resting) = leave_holes("2K", "1");
    let pid = program_of(&room);
    let text = memory(&room, pid, &[]);
    for said in [
        "free in whole pages, which malloc_trim(0) returns",
        "free in pages that live blocks hold",
        ") by keep_often (programs/leaves_holes.c:",
        "advice     ",
        "malloc_trim(0) returns",
        "stay whatever is called",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let csv = memory(&room, pid, &["--format", "csv"]);
    assert!(
        csv.contains("last,held_by,keep_often (programs/leaves_holes.c:"),
        "{csv}"
    );
    let rows = csv
        .lines()
        .filter(|line| line.starts_with("last,") && !line.contains("held_by"));
    let sum: f64 = rows
        .map(|line| {
            line.rsplit(',')
                .nth(2)
                .expect("a field")
                .parse::<f64>()
                .expect("bytes")
        })
        .sum();
    let json: Value =
        serde_json::from_str(&memory(&room, pid, &["--format", "json"])).expect("JSON");
    let resident = json["last"]["resident_bytes"].as_f64().expect("bytes");
    assert!((sum - resident).abs() < 0.02 * resident, "{sum} {resident}");
}

/// `run` has read the mappings of a program that has ended; nobody has walked its heap. A busy machine lets `run` read
/// nothing of a program that ends at once, so the program stays longer each time.
#[test]
fn a_profile_of_a_process_that_has_ended_has_no_reasons() {
    let mut complaint = String::new();
    for milliseconds in [100, 1_000, 10_000] {
        let (room, mut resting) = leave_holes("2K", "1");
        std::thread::sleep(Duration::from_millis(milliseconds));
        resting.input = None;
        let status = resting.child.wait().expect("the command");
        assert!(status.success());
        let output = room.output(&["memory", "--format", "json", "it.allocsample"]);
        if output.status.success() {
            let ledger: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(ledger["last"]["malloc"], Value::Null);
            return;
        }
        complaint = stderr(&output);
    }
    panic!("run has read no mappings: {complaint}");
}
