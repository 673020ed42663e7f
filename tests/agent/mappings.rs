//! Promise: every call that maps memory, makes it usable or gives it back is recorded, with its stack, or counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::attached::Attached;
use crate::support::ledger::ledger;
use crate::support::room::{stderr, stdout};
use crate::support::{Program, Room};
use allocsample_profile::{Mapped, MappingChange, Profile};

fn room(program: &str) -> Room {
    let room = Room::new();
    room.add(&Program::compiled_with(program, &["-lpthread"]), "program");
    room
}

/// Address, length and function of each run of pages that is mapped, by what the program printed.
type Ranges = Vec<(u64, u64, String)>;

fn printed(text: &str) -> Ranges {
    let mut ranges: Ranges = text
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| fields[at].parse().expect("a number");
            (number(0), number(1), fields[2].to_owned())
        })
        .collect();
    ranges.sort();
    ranges
}

/// The same by the calls of a profile, within the lowest and highest of these addresses.
fn recorded(profile: &Path, within: &Ranges) -> Ranges {
    let profile = Profile::open(profile).expect("a profile");
    let start = within.first().expect("a range").0;
    let end = within.iter().map(|(start, bytes, _)| start + bytes).max();
    let mut ranges: Ranges = Vec::new();
    for (from, to, row) in (profile.mapped_at(u64::MAX)).within(start, end.expect("a range")) {
        let call = profile.mappings[row];
        if call.mapped.change == MappingChange::Own {
            continue;
        }
        let leaf = profile
            .stacks
            .locations(call.stack)
            .next()
            .expect("a stack");
        let function = profile.frames(leaf)[0].function.clone();
        match ranges.last_mut() {
            // Two calls of one function side by side are one run to the program.
            Some((last, bytes, name)) if *last + *bytes == from && *name == function => {
                *bytes += to - from;
            }
            _ => ranges.push((from, to - from, function)),
        }
    }
    ranges
}

/// Only what lies in the areas of the threads: between them others may have mapped.
fn in_areas(ranges: Ranges, printed: &Ranges) -> Ranges {
    let known = [
        "map_a",
        "map_b",
        "map_c",
        "move_page",
        "reserve",
        "commit_a",
        "commit_b",
    ];
    let is_near = |start: u64| {
        const AREA: u64 = 300 * 4096;
        printed.iter().any(|(it, _, _)| start.abs_diff(*it) < AREA)
    };
    let ranges = ranges.into_iter();
    ranges
        .filter(|(start, _, name)| known.contains(&name.as_str()) || is_near(*start))
        .collect()
}

fn record_at_random(seed: u32, steps: u32, options: &[&str], arguments: &[&str]) -> (Room, Ranges) {
    let room = room("maps_at_random.c");
    let (seed, steps) = (seed.to_string(), steps.to_string());
    let command = [
        &["run", "-q", "--seed", "1", "-o", "it.allocsample"],
        options,
        &["--", "./program", &seed, &steps],
        arguments,
    ]
    .concat();
    let output = room.output(&command);
    (room, printed(&stdout(&output)))
}

#[test]
fn every_range_belongs_to_the_call_that_mapped_it() {
    for seed in 1..=20 {
        let (room, expected) = record_at_random(seed, 150, &[], &[]);
        let found = recorded(&room.path("it.allocsample"), &expected);
        assert_eq!(in_areas(found, &expected), expected, "seed {seed}");
    }
}

#[test]
fn a_process_that_is_killed_loses_no_call() {
    let (room, expected) = record_at_random(77, 150, &[], &["kill"]);
    let found = recorded(&room.path("it.allocsample"), &expected);
    assert_eq!(in_areas(found, &expected), expected);
}

/// The agent's thread, which rotates, may get no processor for a while: then the program takes longer.
#[test]
fn a_later_part_of_a_recording_knows_what_was_mapped_before() {
    let options = ["--rotate-every", "1s"];
    for steps in [1800, 6000, 20_000] {
        let (room, expected) = record_at_random(5, steps, &options, &["slowly"]);
        if !room.names().iter().any(|name| name.contains(".part-")) {
            continue;
        }
        let found = recorded(&room.path("it.allocsample"), &expected);
        assert_eq!(in_areas(found, &expected), expected);
        return;
    }
    panic!("the file did not rotate");
}

#[test]
fn a_program_that_maps_all_the_time_is_not_recorded_for_ever() {
    let room = room("maps_without_end.c");
    let run = [
        "run",
        "-q",
        "-o",
        "it.allocsample",
        "--",
        "./program",
        "100000",
    ];
    let output = room.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let ledger = ledger(&room, "it.allocsample");
    let count = |what: &str| ledger["mapping_calls"][what].as_u64().expect("a count");
    let (recorded, not_recorded) = (count("recorded"), count("not_recorded"));
    // A burst of 8,192, and a hundred a second.
    assert!((8_000..20_000).contains(&recorded), "{recorded}");
    // Each is a map and an unmap; a few more are the program's start.
    let all = recorded + not_recorded;
    assert!((200_000..200_300).contains(&all), "{all}");
    let text = room.output(&["memory", "it.allocsample"]);
    assert!(
        stdout(&text).contains("were not recorded"),
        "{}",
        stdout(&text)
    );
}

/// A stack is written as what differs from the last sample's. Every mapping has all of its own, whatever was sampled between.
#[test]
fn stacks_of_mappings_are_whole_between_samples_of_the_same_frames() {
    let room = room("maps_between_samples.c");
    let run = [
        "run",
        "-q",
        "--interval",
        "1K",
        "-o",
        "it.allocsample",
        "--",
        "./program",
    ];
    let output = room.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let profile = Profile::open(&room.path("it.allocsample")).expect("a profile");
    assert!(profile.samples.len() > 1000, "{}", profile.samples.len());
    let mut seen = BTreeMap::new();
    for call in &profile.mappings {
        let frames = (profile.stacks.locations(call.stack)).flat_map(|it| profile.frames(it));
        let functions: Vec<String> = frames.map(|frame| frame.function).collect();
        if functions
            .first()
            .is_none_or(|first| first != "map_at_depth")
        {
            assert!(call.mapped.change != MappingChange::Map, "{functions:?}");
            continue;
        }
        // The length says how deep it was: a page, and one for each call of `descend`.
        let depth = call.mapped.bytes as usize / 4096 - 1;
        let descended = functions.iter().filter(|it| *it == "descend").count();
        assert_eq!(descended, depth, "{functions:?}");
        assert!(functions.iter().any(|it| it == "main"), "{functions:?}");
        *seen.entry(depth).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 12, "{seen:?}");
    assert_eq!(seen.values().sum::<usize>(), 600, "{seen:?}");
}

#[test]
fn mappings_of_an_attached_process_are_recorded_until_it_is_detached() {
    let room = room("leaks_past_malloc.c");
    let directory = room.directory().to_str().expect("a path").to_owned();
    let mut program = Command::new(room.path("program"))
        .args(["mmap", "600", "1", &directory])
        .spawn()
        .expect("the program");
    let pid = program.id().to_string();
    // The loader maps the C library after it has started.
    let has_libc = || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
        maps.is_ok_and(|maps| maps.contains("/libc.so.6"))
    };
    while !has_libc() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let attached = room.output(&["attach", &pid, "--interval", "64K", "-o", "it.allocsample"]);
    assert_eq!(attached.status.code(), Some(0), "{}", stderr(&attached));
    let path = room.path("it.allocsample");
    let calls = || {
        let profile = Profile::open(&path).map_or(Vec::new(), |it| it.mappings);
        let calls = profile
            .iter()
            .filter(|it| it.mapped.change == MappingChange::Map);
        calls.count()
    };
    // Some fifty a second.
    while calls() < 50 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let detached = room.output(&["detach", &pid]);
    assert_eq!(detached.status.code(), Some(0), "{}", stderr(&detached));
    let recorded = calls();
    std::thread::sleep(Duration::from_millis(300));
    let is_running = program.try_wait().expect("the program").is_none();
    program.kill().expect("the program");
    program.wait().expect("the program");
    assert!(is_running, "the program did not survive");
    assert_eq!(calls(), recorded);
    let sql = "SELECT count(*) FROM mappings m JOIN stacks s ON s.stack_id = m.stack_id
               WHERE m.call = 'mmap' AND s.stack LIKE '%main;%map'";
    let whole = stdout(&room.output(&["query", "--format", "csv", "it.allocsample", sql]));
    let whole: usize = whole
        .lines()
        .nth(1)
        .expect("a row")
        .parse()
        .expect("a number");
    assert_eq!(whole, recorded);
}

/// The calls of these kinds within 64 MiB from `start` on, as (kind, MiB from there, MiB, innermost function).
fn calls_in(
    profile: &Path,
    start: u64,
    kinds: &[MappingChange],
) -> Vec<(MappingChange, u64, u64, String)> {
    const MIB: u64 = 1 << 20;
    let profile = Profile::open(profile).expect("a profile");
    let calls = profile.mappings.iter();
    let wanted = calls.filter(|call| {
        let Mapped {
            change, start: at, ..
        } = call.mapped;
        kinds.contains(&change) && (start..start + 64 * MIB).contains(&at)
    });
    wanted
        .map(|call| {
            let leaf = profile.stacks.locations(call.stack).next();
            let function = leaf.map_or(String::new(), |leaf| {
                profile.frames(leaf)[0].function.clone()
            });
            let it = &call.mapped;
            (
                it.change,
                (it.start - start) / MIB,
                it.bytes / MIB,
                function,
            )
        })
        .collect()
}

/// What `reserves.c` does to its reservation, whatever else it does with the rights of what is usable.
#[track_caller]
fn assert_commits(profile: &Path, start: u64) {
    use MappingChange::{Commit, Discard, Uncommit};
    let expected = [
        (Commit, 0, 2, "commit_first"),
        (Commit, 8, 4, "commit_first"),
        (Commit, 2, 6, "commit_again"),
        (Discard, 9, 1, "give_back"),
        (Uncommit, 9, 1, "(no stack)"),
    ];
    let expected =
        expected.map(|(change, at, mib, function)| (change, at, mib, function.to_owned()));
    assert_eq!(
        calls_in(profile, start, &[Commit, Uncommit, Discard]),
        expected
    );
}

#[test]
fn reserved_memory_belongs_to_the_calls_that_make_it_usable() {
    let room = room("reserves.c");
    let output = room.output(&["run", "-q", "-o", "it.allocsample", "--", "./program"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let start = stdout(&output).trim().parse().expect("an address");
    let path = room.path("it.allocsample");
    assert_commits(&path, start);
    // Not the 40,000 calls that change the rights of what is usable.
    let profile = Profile::open(&path).expect("a profile");
    assert!(profile.mappings.len() < 100, "{}", profile.mappings.len());
    // The end of the data segment, by brk.
    let breaks = profile
        .mappings
        .iter()
        .filter(|it| it.mapped.change == MappingChange::Break);
    let breaks: Vec<u64> = breaks.map(|it| it.mapped.bytes).collect();
    assert_eq!(breaks, [3 << 20]);
    let sql = "SELECT call, count(*), sum(bytes) FROM mappings WHERE call = 'mprotect' GROUP BY 1";
    let rows = stdout(&room.output(&["query", "--format", "csv", "it.allocsample", sql]));
    assert_eq!(rows.lines().nth(1), Some("mprotect,3,12582912"));
}

#[test]
fn memory_that_was_reserved_before_an_attach_belongs_to_the_calls_that_make_it_usable() {
    let mut running = Attached::start_other("reserves.c", &["wait"]);
    let path = running.attach(&["--interval", "64K"]);
    let start = running.ask("go").parse().expect("an address");
    running.detach();
    assert_commits(&path, start);
}
