//! Promise: with `--embedded`, blocks of a jemalloc that is part of the program or of a library, and whose functions cannot be
//! redirected, are sampled as malloc's are, by its hooks, and the program is as it was. (tests/embedded/entries.rs has the others.)

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::attached::Attached;
use crate::support::profile::{Profile, figure};
use crate::support::room::stdout;
use crate::support::talking::Talking;
use crate::support::{Program, Room, allocators, bridge, embedded, truth};
use serde_json::Value;

const EVERY: &[&str] = &["--embedded", "--interval", "1"];

/// Flags for a program with its own jemalloc.
const OWN: &[&str] = &["-DOWN", "-DINLINED"];

/// That program, under the agent with these options.
fn started(options: &[&str]) -> Option<Talking> {
    let room = Room::new();
    room.add(&embedded::program("embedded.c", OWN)?, "own");
    Some(Talking::start(room, options, &["./own"]))
}

#[track_caller]
fn assert_site(profile: &Profile, name: &str, blocks: u64, bytes: u64, live_bytes: u64) {
    let site = profile.site(name);
    let expected = (blocks as f64, bytes as f64, live_bytes as f64);
    let found = (site.allocations, site.allocated_bytes, site.live_bytes);
    assert_eq!(found, expected, "{name}");
}

#[test]
fn every_block_has_its_size_its_site_and_its_end_at_interval_1() {
    let Some(mut program) = started(EVERY) else {
        return;
    };
    for line in embedded::BLOCKS {
        program.ask(line);
    }
    let has_hook = program.asked("slots") == "3";
    let (_room, profile) = program.end();
    assert_site(&profile, "first", 1100, 1_006_400, 6_400);
    assert_site(&profile, "second", 500, 1_000_000, 0);
    assert_site(&profile, "third", 300, 902_400, 0);
    assert_site(&profile, "fourth", 300, 812_800, 12_800);
    assert_site(&profile, "resized", 2000, 10_000_000, 0);
    let heap = bridge::heap(&profile, "jemalloc in own");
    assert_eq!(figure(heap, "live_bytes"), 19_200.0, "{heap}");
    // It was not redirected, which would be tested elsewhere.
    assert!(has_hook, "no hook is installed");
    assert_eq!(heap["kind"], "allocator");
    // No function of the allocator's is on a stack, and the rest of it is whole.
    for (stack, _) in profile.stacks() {
        let of_allocator = stack.iter().find(|name| name.starts_with("app_"));
        assert_eq!(of_allocator, None, "{stack:?}");
    }
    bridge::assert_stack(&profile, &["main", "allocate", "first"]);
}

#[test]
fn live_bytes_are_those_that_the_allocator_counts() {
    let Some(mut program) = started(EVERY) else {
        return;
    };
    let before = program.asked("allocated");
    // Sizes that it need not round up, and does not keep for its threads, which it would count.
    program.ask("allocate first 100 65536");
    program.ask("allocate second 30 131072");
    program.ask("allocate fourth 20 81920");
    let after = program.asked("allocated");
    let (_room, profile) = program.end();
    let number = |text: &str| text.parse::<f64>().expect("a number");
    let heap = bridge::heap(&profile, "jemalloc in own");
    // It also counts small blocks that it keeps for its threads, one of which may have asked it for its own count in between: together
    // less than any of these blocks.
    let difference = figure(heap, "live_bytes") - (number(&after) - number(&before));
    assert!(difference.abs() < 65_536.0, "{difference}");
}

/// The ledger of x.allocsample.
fn ledger(room: &Room) -> Value {
    let output = room.output(&["memory", "x.allocsample", "--format", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn its_own_count_stands_beside_the_estimate() {
    let Some(mut program) = started(EVERY) else {
        return;
    };
    program.ask("allocate second 3000 8192");
    program.ask("allocate first 40 65536");
    let own: f64 = program.asked("allocated").parse().expect("a number");
    let (room, _profile) = program.end();
    let ledger = ledger(&room);
    let counts = ledger["last"]["own_counts"].as_array().expect("counts");
    let [count] = &counts[..] else {
        panic!("{counts:?}");
    };
    assert_eq!(count["name"], "jemalloc in own", "{count}");
    assert_eq!(count["agreement"], "reconciled", "{count}");
    // The last list of mappings, and the count nearest to it, may be from before the last blocks.
    let allocated = figure(count, "allocated_bytes");
    let [active, resident] = ["active_bytes", "resident_bytes"].map(|it| figure(count, it));
    assert!(allocated <= active && active < resident, "{count}");
    assert!(figure(count, "metadata_bytes") > 0.0, "{count}");
    let text = room.output(&["memory", "x.allocsample"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("own count  jemalloc in own, "), "{text}");
    // Its figures are readings of a heap like others.
    let sql = "SELECT value FROM counters WHERE counter = 'own count: allocated' ORDER BY time_ns DESC LIMIT 1";
    let last = room.output(&["query", "x.allocsample", sql, "--format", "csv"]);
    let last = String::from_utf8_lossy(&last.stdout).into_owned();
    let last: f64 = last.lines().nth(1).expect("a count").parse().expect(&last);
    // What the thread that asked keeps for itself.
    assert!((last - own).abs() < 131_072.0, "{own} {last}");
    let sql = "SELECT counter, unit FROM counters WHERE counter LIKE 'own count%' GROUP BY 1, 2 ORDER BY 1";
    let names = room.output(&["query", "x.allocsample", sql, "--format", "csv"]);
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    assert_eq!(names.lines().count(), 6, "{names}");
    assert!(names.contains("own count: allocated,bytes"), "{names}");
}

/// The last count of malloc's allocator in a profile; `None` if there is none.
fn last_count(room: &Room, profile: &Path, figure: &str) -> Option<f64> {
    let sql = format!(
        "SELECT value FROM counters WHERE counter = 'own count: {figure}' AND heap_id = 0 ORDER BY time_ns DESC LIMIT 1"
    );
    let path = profile.to_str().expect("a path");
    let output = room.output(&["query", path, &sql, "--format", "csv"]);
    stdout(&output).lines().nth(1)?.parse().ok()
}

/// Of 60 blocks of 65,536 bytes, which no allocator needs to round up. The agent asks when it next sees that the memory has changed.
#[track_caller]
fn assert_own_count_behind_malloc(room: &Room, profile: &Path, name: &str) {
    let kept = 60.0 * 65_536.0;
    let last = |figure| last_count(room, profile, figure);
    let is_asked = || {
        std::thread::sleep(Duration::from_millis(50));
        last("allocated").is_some_and(|bytes| bytes >= kept)
    };
    assert!(
        (0..400).any(|_| is_asked()),
        "{name}: {:?}",
        last("allocated")
    );
    let [allocated, active, resident] =
        ["allocated", "active", "resident"].map(|it| last(it).expect(it));
    // Besides, libc and the program's own tables have some blocks.
    assert!(allocated < kept + 1_048_576.0, "{name}: {allocated}");
    assert!(
        allocated <= active && active < resident,
        "{name}: {allocated}, {active}, {resident}"
    );
}

#[test]
fn an_allocator_behind_malloc_tells_its_own_count() {
    let allocators = allocators::installed().into_iter();
    for (name, library) in allocators.filter(|(name, _)| *name != "mimalloc") {
        let library = library.to_str().expect("a path");
        let linked = ["-Wl,--no-as-needed", library];
        let room = Room::new();
        room.add(&Program::compiled_with("attached.c", &linked), "attached");
        let mut program = Talking::start(room, EVERY, &["./attached"]);
        program.ask("allocate first 60 65536");
        // Starts the agent's thread, if nothing has.
        program.ctl(&["flush"]);
        let profile = program.room.path("x.allocsample");
        assert_own_count_behind_malloc(&program.room, &profile, name);
        program.end();

        let mut program = Attached::start_with(&linked, |room| Command::new(room.path("attached")));
        let profile = program.attach(EVERY);
        program.ask("allocate first 60 65536");
        assert_own_count_behind_malloc(&program.room, &profile, name);
        program.detach();
        program.ends_well();
    }
}

#[test]
fn without_the_option_no_allocator_is_asked() {
    let Some(mut program) = started(&["--interval", "1"]) else {
        return;
    };
    program.ask("allocate second 3000 8192");
    // The agent's thread, which lists the mappings at the end, starts with the first thing that it has to do.
    program.ctl(&["flush"]);
    let (room, _profile) = program.end();
    assert_eq!(ledger(&room)["last"]["own_counts"], serde_json::json!([]));
}

/// A lock may be held for ever: by a thread that has called `exit` in a signal handler, say.
#[test]
fn an_allocator_that_does_not_answer_is_asked_once_and_not_waited_for() {
    let room = Room::new();
    room.add(&Program::compiled("silent_jemalloc.c"), "program");
    let run = ["run", "-q", "-o", "x.allocsample"];
    let output = room.output(&[&run[..], EVERY, &["--", "./program"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n");
    let profile = Profile::read(&room.path("x.allocsample"));
    assert!(profile.is_complete(), "{}", profile.exit());
    let heap = bridge::heap(&profile, "jemalloc in program");
    assert_eq!(figure(heap, "live_bytes"), 3072.0 * 4096.0, "{heap}");
    assert_eq!(ledger(&room)["last"]["own_counts"], serde_json::json!([]));
}

#[test]
fn threads_that_allocate_at_the_same_time_are_within_their_error() {
    let options = ["--embedded", "--interval", "4K", "--seed", "11"];
    let Some(mut program) = started(&[&options[..], &["--on-full", "wait"]].concat()) else {
        return;
    };
    program.ask("allocate second 2000 1600");
    program.ask("threads 8 30000");
    program.ask("threads 3 20000");
    let (_room, profile) = program.end();
    let heap = bridge::heap(&profile, "jemalloc in own");
    let allocated = figure(heap, "allocated_bytes");
    let exact = figure(heap, "allocated_bytes_exact");
    // 300,000 blocks of 2,008 bytes on average, and the first ones.
    assert!((exact / 605.6e6 - 1.0).abs() < 0.02, "{heap}");
    let z = truth::z(allocated, exact, figure(heap, "allocated_bytes_stderr"));
    assert!(z.abs() < 4.0, "z {z:+.1}: {heap}");
    let kept = profile.site("second").live_bytes;
    let live = figure(heap, "live_bytes");
    let error = 4.0 * figure(heap, "live_bytes_stderr");
    assert!((live - 3.2e6).abs() < error, "{heap}");
    assert_eq!(live, kept);
}

#[test]
fn a_fork_leaves_the_parents_blocks_alone_and_the_child_has_a_heap_of_its_own() {
    let Some(mut program) = started(EVERY) else {
        return;
    };
    program.ask("allocate first 1000 1000");
    program.ask("fork 300 700");
    program.ask("allocate first 1000 1000");
    let (room, profile) = program.end();
    assert_site(&profile, "first", 2000, 2_000_000, 2_000_000);
    let mut children = std::fs::read_dir(room.path("x.processes")).expect("profiles of children");
    let child = children.next().expect("the child's profile");
    let child = Profile::read(&child.expect("a file").path());
    assert_site(&child, "first", 300, 210_000, 210_000);
}

/// Has a library opened that has a jemalloc, and waits until the agent has noticed.
fn open(program: &mut Talking, library: &Path, heaps: usize) {
    program.ask(&format!("open {}", library.display()));
    let is_joined = |program: &Talking| {
        let report = ["report", "x.allocsample", "--format", "json"];
        let output = program.room.output(&report);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let found = report["heaps"].as_array().cloned().unwrap_or_default();
        let is_it = |heap: &&Value| heap["name"] == "jemalloc in libembedded.so";
        found.iter().filter(is_it).count() >= heaps
    };
    // Each attempt takes a report's time; the agent's thread needs some milliseconds.
    const ATTEMPTS: usize = 300;
    for _ in 0..ATTEMPTS {
        if is_joined(program) {
            return program.ask("free");
        }
        program.ask("allocate fourth 1 300000");
    }
    panic!("{} was not joined", library.display());
}

#[test]
fn a_library_that_is_opened_later_is_joined_and_may_be_closed() {
    let Some(flags) = embedded::flags(&["-DINLINED"]) else {
        return;
    };
    let library = embedded::library("libembedded.so", &flags);
    let room = Room::new();
    room.add(&Program::compiled("embedded.c"), "opens");
    // Debian's jemalloc takes more thread-local memory than a library gets that is opened later.
    let room_for_it = [("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384")];
    let mut program = Talking::start_with(room, &room_for_it, EVERY, &["./opens"]);
    open(&mut program, library.path(), 1);
    program.ask("allocate first 1000 1000");
    program.ask("threads 4 1000");
    // Blocks that nobody can free any more.
    program.ask("close");
    open(&mut program, library.path(), 2);
    program.ask("allocate second 700 800");
    program.ask("free");
    program.ask("allocate second 10 800");
    assert_eq!(program.asked("slots"), "3", "a hook is installed");
    let (_room, profile) = program.end();
    // The threads allocated by these functions, too, and freed it.
    assert!(profile.site("first").allocated_bytes >= 1_000_000.0);
    assert!(profile.site("second").allocated_bytes >= 568_000.0);
    assert_eq!(profile.site("second").live_bytes, 8_000.0);
}

/// jemalloc loses a thread that ends after a change of its hooks without having called it again.
#[test]
fn an_attach_leaves_jemalloc_alone() {
    let Some(flags) = embedded::flags(OWN) else {
        return;
    };
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut program = Attached::start_by("embedded.c", &flags, |room| {
        Command::new(room.path("attached"))
    });
    assert_eq!(program.ask("slots"), "4");
    assert_eq!(program.ask("begin 3"), "done");
    for _ in 0..3 {
        program.attach(&["--embedded", "--interval", "16K"]);
        assert_eq!(program.ask("slots"), "4");
        assert_eq!(program.ask("allocate first 3000 1600"), "done");
        let profile = program.detach();
        assert!(!bridge::has_heap(&profile, "jemalloc in attached"));
        assert_eq!(program.ask("content"), "done");
        assert_eq!(program.ask("free"), "done");
    }
    program.ends_well();
}

#[test]
fn a_leak_in_an_embedded_allocator_is_named() {
    let flags = ["-Dmalloc=app_malloc", "-Dfree=app_free"];
    let Some(program) = embedded::program("leaks.c", &flags) else {
        return;
    };
    let path = program.path().to_string_lossy();
    let command = [&*path, "300000"];
    bridge::assert_leak_with(&["--embedded"], &[], &command, "leak_session");
}

#[test]
fn nothing_is_joined_unless_it_is_asked_for() {
    let Some(mut program) = started(&["--interval", "1"]) else {
        return;
    };
    program.ask("allocate first 1000 1000");
    assert_eq!(program.asked("slots"), "4");
    let (_room, profile) = program.end();
    assert!(!bridge::has_heap(&profile, "jemalloc in own"));
    assert_eq!(profile.site("first").samples, 0);
}
