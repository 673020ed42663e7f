//! Promise: with `--embedded`, blocks of a mimalloc, a tcmalloc or a jemalloc that is part of the program are sampled as malloc's
//! are, by jumps at the beginnings of its functions, and the program is as it was.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::profile::figure;
use crate::support::room::stdout;
use crate::support::talking::Talking;
use crate::support::{Program, Room, bridge, embedded, truth};

const EVERY: &[&str] = &["--embedded", "--interval", "1"];

/// The allocators that are there, and flags to link with them.
fn allocators() -> Vec<(&'static str, Vec<String>)> {
    let all = [
        ("mimalloc", embedded::mimalloc_flags()),
        ("tcmalloc", embedded::tcmalloc_flags()),
        ("tcmalloc", Some(embedded::strict_flags())),
        ("jemalloc", embedded::flags(&["-DOWN"])),
    ];
    let found = all.into_iter();
    found
        .filter_map(|(name, flags)| Some((name, flags?)))
        .collect()
}

fn compiled(source: &str, flags: &[String]) -> Program {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Program::compiled_with(source, &flags)
}

fn started(flags: &[String], options: &[&str]) -> Talking {
    let room = Room::new();
    room.add(&compiled("embedded.c", flags), "own");
    Talking::start(room, options, &["./own"])
}

// ---- programs ----

#[test]
fn every_block_has_its_size_its_site_and_its_end_at_interval_1() {
    for (name, flags) in allocators() {
        let mut program = started(&flags, EVERY);
        for line in embedded::BLOCKS {
            program.ask(line);
        }
        program.ask("allocate second 3 3000000");
        let (_room, profile) = program.end();
        for (function, blocks, bytes, live) in [
            ("first", 1100, 1_006_400, 6_400),
            ("second", 503, 10_000_000, 9_000_000),
            ("third", 300, 902_400, 0),
            ("fourth", 300, 812_800, 12_800),
            ("resized", 2000, 10_000_000, 0),
        ] {
            let site = profile.site(function);
            let found = (site.allocations, site.allocated_bytes, site.live_bytes);
            let expected = (f64::from(blocks), f64::from(bytes), f64::from(live));
            assert_eq!(found, expected, "{name}: {function}");
        }
        let heap = bridge::heap(&profile, &format!("{name} in own"));
        assert_eq!(heap["kind"], "allocator");
        bridge::assert_stack(&profile, &["main", "allocate", "first"]);
    }
}

#[test]
fn threads_that_allocate_at_the_same_time_are_within_their_error() {
    for (name, flags) in allocators() {
        let options = ["--embedded", "--interval", "4K", "--seed", "11"];
        let mut program = started(&flags, &[&options[..], &["--on-full", "wait"]].concat());
        program.ask("allocate second 2000 1600");
        program.ask("threads 8 30000");
        program.ask("threads 3 20000");
        let (_room, profile) = program.end();
        let heap = bridge::heap(&profile, &format!("{name} in own"));
        let allocated = figure(heap, "allocated_bytes");
        let exact = figure(heap, "allocated_bytes_exact");
        // 300,000 blocks of 2,008 bytes on average, and the first ones.
        assert!((exact / 605.6e6 - 1.0).abs() < 0.02, "{heap}");
        let z = truth::z(allocated, exact, figure(heap, "allocated_bytes_stderr"));
        assert!(z.abs() < 4.0, "z {z:+.1}: {heap}");
        let live = profile.site("second").live_bytes;
        let error = 4.0 * figure(heap, "live_bytes_stderr");
        assert!((live - 3.2e6).abs() < error, "{heap}");
    }
}

#[test]
fn a_fork_leaves_the_parents_blocks_alone_and_the_child_has_a_heap_of_its_own() {
    for (name, flags) in allocators() {
        let mut program = started(&flags, EVERY);
        program.ask("allocate first 1000 1000");
        program.ask("fork 300 700");
        program.ask("allocate first 1000 1000");
        let (room, profile) = program.end();
        assert_eq!(profile.site("first").live_bytes, 2_000_000.0, "{name}");
        let mut children = std::fs::read_dir(room.path("x.processes")).expect("profiles");
        let child = children
            .next()
            .expect("the child's profile")
            .expect("a file");
        let child = crate::support::profile::Profile::read(&child.path());
        assert_eq!(child.site("first").live_bytes, 210_000.0, "{name}");
    }
}

#[test]
fn a_leak_is_named() {
    for (name, flags) in allocators() {
        let is_googles = flags.iter().any(|it| it == "-DGOOGLE");
        let [malloc, calloc, free] = match name {
            "mimalloc" => ["mi_malloc", "mi_calloc", "mi_free"],
            "tcmalloc" if is_googles => [
                "TCMallocInternalMalloc",
                "TCMallocInternalCalloc",
                "TCMallocInternalFree",
            ],
            "tcmalloc" => ["tc_malloc", "tc_calloc", "tc_free"],
            _ => ["app_malloc", "app_calloc", "app_free"],
        };
        let functions = [("malloc", malloc), ("calloc", calloc), ("free", free)];
        let renamed = functions.map(|(name, its)| format!("-D{name}={its}"));
        let program = compiled("leaks.c", &[&renamed[..], &flags].concat());
        let path = program.path().to_string_lossy();
        bridge::assert_leak_with(&["--embedded"], &[], &[&path, "300000"], "leak_session");
    }
}

/// What an allocator counted itself when it was last asked.
fn last_count(name: &str, flags: &[String]) -> serde_json::Value {
    let mut program = started(flags, EVERY);
    program.ask("allocate second 3000 8192");
    program.ask("allocate first 40 65536");
    let (room, _profile) = program.end();
    let output = room.output(&["memory", "x.allocsample", "--format", "json"]);
    let ledger: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a ledger");
    let counts = ledger["last"]["own_counts"].as_array().expect("counts");
    let [count] = &counts[..] else {
        panic!("{name}: {counts:?}");
    };
    count.clone()
}

#[test]
fn an_allocators_own_count_stands_beside_the_estimate() {
    for (name, flags) in &allocators() {
        // An allocator that once took more than half a second to answer, as it may on a busy machine, is not asked again.
        const TRIES: usize = 5;
        let resident = |count: &serde_json::Value| count["resident_bytes"].as_u64();
        let at_the_end = |count: &serde_json::Value| resident(count) >= Some(27_197_440);
        let count = (0..TRIES).map(|_| last_count(name, flags)).find(at_the_end);
        let count = count.unwrap_or_else(|| panic!("{name}: no count of the end in {TRIES} runs"));
        assert_eq!(count["name"], format!("{name} in own"), "{count}");
        // mimalloc knows how much memory it has, and no more.
        let agreement = match *name {
            "mimalloc" => "fits",
            _ => "reconciled",
        };
        assert_eq!(count["agreement"], agreement, "{count}");
    }
}

#[test]
fn a_jemalloc_that_is_redirected_keeps_all_its_hooks() {
    let Some(flags) = embedded::flags(&["-DOWN"]) else {
        return;
    };
    let mut program = started(&flags, EVERY);
    assert_eq!(program.asked("slots"), "4");
    let (_room, profile) = program.end();
    assert!(bridge::has_heap(&profile, "jemalloc in own"));
}

#[test]
fn a_block_that_changes_in_place_ends_and_another_one_begins() {
    let Some(flags) = embedded::flags(&["-DOWN"]) else {
        return;
    };
    let mut program = started(&flags, EVERY);
    // Sizes that Debian's jemalloc takes in whole pages, which have 64 KiB in its build for aarch64.
    program.ask("allocate first 30 1310720");
    let answer = program.asked("shrink 655360");
    let (changed, bytes) = answer.split_once(' ').expect("two numbers");
    let [changed, bytes] = [changed, bytes].map(|it| it.parse::<f64>().expect(it));
    // A second time nothing changes.
    assert_eq!(program.asked("shrink 655360"), "0 0");
    let (_room, profile) = program.end();
    let [before, after] = [profile.site("first"), profile.site("shrunk")];
    assert!(changed > 0.0, "{answer}");
    assert_eq!(
        (after.allocations, after.live_bytes),
        (changed, bytes),
        "{answer}"
    );
    assert_eq!(
        before.live_bytes,
        (30.0 - changed) * 1_310_720.0,
        "{answer}"
    );
}

/// An allocator that reads its settings from the environment finds them, although it is called before libc has begun.
#[test]
fn settings_in_the_environment_are_obeyed() {
    let Some(flags) = embedded::mimalloc_flags() else {
        return;
    };
    let room = Room::new();
    room.add(&compiled("embedded.c", &flags), "own");
    let settings = [("MIMALLOC_VERBOSE", "1")];
    let said = |options: &[&str], name: &str| {
        let command = [&["run", "-q", "-o", name], options, &["--", "./own"]].concat();
        let mut command = room.command(&command);
        let output = command.envs(settings).stdin(Stdio::null()).output();
        let stderr = String::from_utf8_lossy(&output.expect("the command").stderr).into_owned();
        stderr.contains("option 'verbose': 1")
    };
    assert!(said(&[], "plain"));
    assert!(said(EVERY, "embedded"));
}

// ---- libraries that are opened later ----

/// Such libraries, by the allocators in them, and the name of each in a profile.
fn libraries() -> Vec<(String, Program)> {
    let all = [
        ("mimalloc", embedded::mimalloc_flags()),
        ("jemalloc", embedded::flags(&[])),
    ];
    let found = all
        .into_iter()
        .filter_map(|(name, flags)| Some((name, flags?)));
    let made = found.map(|(name, flags)| {
        let file = format!("lib{name}_inside.so");
        (
            format!("{name} in {file}"),
            embedded::library(&file, &flags),
        )
    });
    made.collect()
}

/// These allocators take more thread-local memory than a library gets that is opened later.
const ROOM_FOR_THEM: [(&str, &str); 1] =
    [("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384")];

/// A program that opens them.
fn opener() -> Talking {
    let room = Room::new();
    room.add(&Program::compiled("embedded.c"), "opens");
    Talking::start_with(room, &ROOM_FOR_THEM, EVERY, &["./opens"])
}

#[test]
fn a_library_that_is_opened_later_is_redirected_and_may_be_closed() {
    for (name, library) in libraries() {
        let mut program = opener();
        // Other threads do not matter.
        program.ask("sleepers 2");
        for turn in 1..=2 {
            program.ask(&format!("open {}", library.path().display()));
            for line in embedded::BLOCKS {
                program.ask(line);
            }
            if name.starts_with("jemalloc") {
                assert_eq!(program.asked("slots"), "4", "no hook is installed");
            }
            // Blocks that nobody can free any more.
            if turn == 1 {
                program.ask("close");
            }
        }
        let (_room, profile) = program.end();
        // Those of constructors count, too. Blocks of the library that was closed are live.
        for (function, blocks, bytes, live) in [
            ("first", 2202, 2_016_000, 16_000),
            ("second", 1000, 2_000_000, 0),
            ("third", 600, 1_804_800, 0),
            ("fourth", 600, 1_625_600, 25_600),
            ("resized", 4000, 20_000_000, 0),
        ] {
            let site = profile.site(function);
            let found = (site.allocations, site.allocated_bytes, site.live_bytes);
            let expected = (f64::from(blocks), f64::from(bytes), f64::from(live));
            assert_eq!(found, expected, "{name}: {function}");
        }
        assert!(bridge::has_heap(&profile, &name), "{name}");
    }
}

/// More of them than can be joined.
#[test]
fn threads_that_open_and_close_libraries_at_the_same_time_go_on() {
    let Some(flags) = embedded::mimalloc_flags() else {
        return;
    };
    let library = embedded::library("libinside.so", &flags);
    let room = Room::new();
    room.add(&Program::compiled("opens_libraries.c"), "opens");
    let copies = ["./a.so", "./b.so", "./c.so"];
    for copy in copies {
        room.add(&library, copy.trim_start_matches("./"));
    }
    let run = ["run", "-q", "-o", "x.allocsample", "--embedded"];
    let more = ["--interval", "4K", "--", "./opens"];
    let mut command = room.command(&[&run[..], &more, &copies].concat());
    let output = command.envs(ROOM_FOR_THEM).output().expect("the command");
    let expected = format!("{}\n", copies.len() * 24 * 100);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(5), expected),
        "{output:?}"
    );
}

// ---- refusals ----

/// Functions that stand apart, so that jumps between them are long.
fn toy(flags: &[&str]) -> Program {
    Program::compiled_with(
        "toy_mimalloc.c",
        &[flags, &["-ffunction-sections"]].concat(),
    )
}

/// Functions whose first instructions no jump can replace. On aarch64 a jump replaces a single one.
#[cfg(target_arch = "x86_64")]
const OF_BEGINNINGS: [(&str, &str); 2] = [
    ("-DSHORT", "mi_free is too short"),
    (
        "-DLOOP",
        "mi_malloc jumps between instructions that would be moved",
    ),
];
#[cfg(not(target_arch = "x86_64"))]
const OF_BEGINNINGS: [(&str, &str); 1] = [(
    "-DSHORT",
    "mi_free begins with an instruction that is not known",
)];

#[test]
fn an_allocator_that_cannot_be_redirected_is_left_alone_and_the_report_says_why() {
    let of_code = [
        ("-DTWICE", "mi_zalloc did not pass its trial"),
        ("-DNEAR", "mi_zalloc has a short jump to another function"),
        (
            "-DOTHER",
            "_mi_heap_malloc is called as well, and not known",
        ),
        (
            "-DBY_MALLOC",
            "mi_malloc takes its blocks from malloc, which is sampled",
        ),
    ];
    for (flag, why) in of_code.iter().chain(&OF_BEGINNINGS) {
        let room = Room::new();
        room.add(&toy(&[flag]), "toy");
        let run = [
            "run",
            "-q",
            "-o",
            "x.allocsample",
            "--embedded",
            "--",
            "./toy",
        ];
        let output = room.output(&run);
        assert_eq!(output.status.code(), Some(7), "{flag}: {output:?}");
        assert_eq!(stdout(&output), "5000\n", "{flag}");
        let profile = crate::support::profile::Profile::read(&room.path("x.allocsample"));
        assert!(!bridge::has_heap(&profile, "mimalloc in toy"), "{flag}");
        // Blocks that malloc has made are in the profile.
        if *flag != "-DBY_MALLOC" {
            let text = stdout(&room.output(&["report", "x.allocsample"])).to_owned();
            let said = format!("`--embedded` left mimalloc in toy alone: {why}; ");
            assert!(text.contains(&said), "{flag}: {text}");
        }
    }
}

// ---- refusals of libraries that are opened later ----

/// The toy as a library.
fn toy_library(name: &str, flags: &[&str]) -> Program {
    let more = ["-ffunction-sections", "-DLIBRARY", "-Wl,-Bsymbolic"];
    Program::library("toy_mimalloc.c", name, &[flags, &more].concat())
}

/// Runs opens_toys.c with these arguments. How many blocks had their content, and the report.
#[track_caller]
fn opened(toys: &[Program], arguments: &[&str]) -> (String, String) {
    let room = Room::new();
    room.add(&Program::compiled("opens_toys.c"), "opens");
    for toy in toys {
        let name = toy.path().file_name().expect("a name");
        room.add(toy, &name.to_string_lossy());
    }
    let run = ["run", "-q", "-o", "x.allocsample", "--embedded", "--"];
    let output = room.output(&[&run[..], &["./opens"], arguments].concat());
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let report = room.output(&["report", "x.allocsample"]);
    (stdout(&output), stdout(&report))
}

#[test]
fn a_library_that_cannot_be_redirected_later_is_left_alone_and_the_report_says_why() {
    let twice = [("-DTWICE", "mi_zalloc did not pass its trial")];
    for (flag, why) in twice.iter().chain(&OF_BEGINNINGS) {
        let toy = toy_library("libtoy.so", &[flag]);
        let (right, report) = opened(&[toy], &["./libtoy.so", "5000"]);
        assert_eq!(right, "5000\n", "{flag}");
        let said = format!("`--embedded` left mimalloc in libtoy.so alone: {why}; ");
        assert!(report.contains(&said), "{flag}: {report}");
    }
}

#[test]
fn the_fifth_allocator_is_one_too_many_and_the_report_says_so() {
    let names = ["liba.so", "libb.so", "libc0.so", "libd.so", "libe.so"];
    let toys = names.map(|name| toy_library(name, &[]));
    let paths = names.map(|name| format!("./{name}"));
    let mut arguments: Vec<&str> = paths
        .iter()
        .flat_map(|path| [path.as_str(), "10"])
        .collect();
    arguments.pop();
    arguments.push("5000");
    let (right, report) = opened(&toys, &arguments);
    assert_eq!(right, "5040\n");
    let said = "`--embedded` left mimalloc in libe.so alone: it is one allocator too many; ";
    assert!(report.contains(said), "{report}");
}

#[test]
fn a_library_that_is_opened_behind_a_filter_is_left_alone_and_the_report_says_why() {
    let toys = ["libbefore.so", "libbehind.so"].map(|name| toy_library(name, &[]));
    let arguments = [
        "./libbefore.so",
        "10",
        "filter",
        "0",
        "./libbehind.so",
        "5000",
    ];
    let (right, report) = opened(&toys, &arguments);
    assert_eq!(right, "5010\n");
    let said = "note: libraries were opened behind a filter of system calls: `--embedded` leaves ";
    assert!(report.contains(said), "{report}");
}

/// The first child of a process.
fn child_of(parent: u32) -> String {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path).expect("a process");
    let first = children.split_whitespace().next();
    first.expect("a child").to_owned()
}

#[test]
fn a_library_that_is_opened_while_sampling_is_stopped_is_sampled_from_the_start_on() {
    let Some(flags) = embedded::mimalloc_flags() else {
        return;
    };
    let library = embedded::library("libmimalloc_inside.so", &flags);
    let mut program = opener();
    program.ctl(&["stop"]);
    program.ask(&format!("open {}", library.path().display()));
    program.ask("allocate first 100 3000");
    program.ctl(&["start"]);
    program.ask("allocate first 2000 3000");
    program.ask("allocate second 100 3000");
    let (_room, profile) = program.end();
    assert_eq!(profile.site("second").live_bytes, 300_000.0);
}

/// The function at which the loader calls us is the one at which debuggers stop.
#[test]
fn a_library_that_is_opened_under_a_debugger_that_came_later_is_redirected() {
    let Some(flags) = embedded::mimalloc_flags() else {
        return;
    };
    if !crate::support::is_installed("gdb") {
        return crate::support::skip("no gdb");
    }
    let library = embedded::library("libmimalloc_inside.so", &flags);
    let mut program = opener();
    let pid = child_of(program.parent());
    let mut command = Command::new("gdb");
    command.args(["-q", "-nx", "-batch", "-p", &pid]);
    command.args(["-ex", "set stop-on-solib-events 1", "-ex", "echo here\\n"]);
    for _ in 0..50 {
        command.args(["-ex", "continue"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut debugger = command.stderr(Stdio::null()).spawn().expect("gdb");
    let output = BufReader::new(debugger.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map_while(Result::ok);
    if !lines.by_ref().any(|line| line == "here") {
        debugger.wait().expect("gdb");
        return crate::support::skip("gdb cannot attach");
    }
    program.ask(&format!("open {}", library.path().display()));
    for line in embedded::BLOCKS {
        program.ask(line);
    }
    program.ask("allocate second 100 3000");
    let (_room, profile) = program.end();
    let said: Vec<String> = lines.collect();
    debugger.wait().expect("gdb");
    assert_eq!(profile.site("second").live_bytes, 300_000.0, "{said:#?}");
    assert!(
        said.iter().any(|line| line.contains("libmimalloc_inside")),
        "it has not stopped: {said:#?}"
    );
}

/// The toy's heap at interval 1.
fn heap_of_toy(flags: &[&str]) -> serde_json::Value {
    let room = Room::new();
    room.add(&toy(flags), "toy");
    let run = ["run", "-q", "-o", "x.allocsample"];
    let output = room.output(&[&run[..], EVERY, &["--", "./toy"]].concat());
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(7), "5000\n"),
        "{flags:?}"
    );
    let profile = crate::support::profile::Profile::read(&room.path("x.allocsample"));
    bridge::heap(&profile, "mimalloc in toy").clone()
}

#[test]
fn an_allocator_whose_functions_call_and_jump_to_each_other_counts_every_block_once() {
    let heap = heap_of_toy(&[]);
    let expected = [6000.0 * 4096.0, 5000.0 * 4096.0];
    let found = ["allocated_bytes_exact", "live_bytes"].map(|it| figure(&heap, it));
    assert_eq!(found, expected, "{heap}");
}

/// On aarch64 numbers in instructions do not look like instructions.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_number_that_looks_like_a_jump_does_not_matter() {
    let heap = heap_of_toy(&["-DLIKE"]);
    assert_eq!(figure(&heap, "live_bytes"), 5000.0 * 4096.0, "{heap}");
}

// ---- operators ----

/// Flags for a C++ program with all of Debian's jemalloc, whose functions are `malloc` and C++'s operators.
fn whole_jemalloc() -> Option<[String; 2]> {
    let Some(archive) = embedded::static_library("libjemalloc.a") else {
        crate::support::skip("no static jemalloc (Debian: libjemalloc-dev)");
        return None;
    };
    let whole = format!(
        "-Wl,--whole-archive,{},--no-whole-archive",
        archive.display()
    );
    Some([whole, "-ldl".to_owned()])
}

fn profile_of_operators(flags: &[String]) -> crate::support::profile::Profile {
    let room = Room::new();
    room.add(&compiled("jemalloc_operators.cpp", flags), "own");
    let run = ["run", "-q", "-o", "x.allocsample"];
    let output = room.output(&[&run[..], EVERY, &["--", "./own"]].concat());
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(3), "2000\n"),
        "{output:?}"
    );
    crate::support::profile::Profile::read(&room.path("x.allocsample"))
}

#[track_caller]
fn assert_site(profile: &crate::support::profile::Profile, name: &str, size: f64, live: f64) {
    let site = profile.site(name);
    let found = (site.allocations, site.allocated_bytes, site.live_bytes);
    assert_eq!(found, (1000.0, 1000.0 * size, live * size), "{name}");
}

#[test]
fn blocks_of_a_jemallocs_own_operators_count_once() {
    let Some(flags) = whole_jemalloc() else {
        return;
    };
    let profile = profile_of_operators(&flags);
    for site in ["plain", "quiet", "aligned"] {
        assert_site(&profile, site, 400.0, 200.0);
    }
}

#[test]
fn operators_of_the_program_that_call_jemalloc_are_left_alone() {
    let Some(flags) = embedded::flags(&["-DWRAPPED"]) else {
        return;
    };
    let profile = profile_of_operators(&flags);
    // With the headers of both sites' blocks; the nothrow operators call the plain ones.
    let heap = bridge::heap(&profile, "jemalloc in own");
    assert_eq!(figure(heap, "allocated_bytes_exact"), 2000.0 * 416.0);
    assert_eq!(figure(heap, "live_bytes"), 400.0 * 416.0, "{heap}");
}
