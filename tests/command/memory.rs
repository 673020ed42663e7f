//! Promise: `allocsample memory` says where all resident memory of a process is.

use crate::support::ledger::{accounts, assert_adds_up, ledger};
use crate::support::python::interpreters;
use crate::support::room::{stderr, stdout};
use crate::support::{Program, Room};
use allocsample_profile::{MappingChange, Profile};
use serde_json::Value;

fn room(program: &str) -> Room {
    let room = Room::new();
    room.add(&Program::compiled_with(program, &["-lpthread"]), "program");
    room
}

/// What the program holds is known, page by page.
#[test]
fn memory_of_every_kind_is_in_its_row() {
    let room = room("memory_of_every_kind.c");
    let run = [
        "run",
        "-q",
        "--seed",
        "3",
        "--interval",
        "64K",
        "-o",
        "it.allocsample",
        "--",
    ];
    let output = room.output(&[&run[..], &["./program"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let ledger = ledger(&room, "it.allocsample");
    assert_adds_up(&ledger["peak"]);
    assert_adds_up(&ledger["last"]);
    let accounts = accounts(&ledger["peak"]);
    let near = |account: &str, expected: f64, tolerance: f64| {
        let found = accounts.get(account).copied().unwrap_or(0.0);
        assert!(
            (found - expected).abs() <= tolerance,
            "{account}: {found} instead of {expected} MiB: {accounts:#?}"
        );
    };
    // 16 MiB in blocks of 16 KiB, of which every fourth is freed: at 64 KiB an estimate of 12 MiB has a standard error of
    // 0.9 MiB.
    near("malloc", 12.0, 4.0);
    near("malloc_held", 4.0, 4.2);
    near("mapped", 24.0, 0.1);
    near("shared", 8.0, 0.1);
    // Eight threads touch 256 KiB of their stacks each.
    near("stacks", 2.0, 0.5);
    near("data", 4.0, 1.0);
    near("unexplained", 0.0, 0.3);
    let rows = ledger["peak"]["rows"].as_array().expect("rows");
    let row = |account: &str| {
        let row = rows.iter().find(|row| row["account"] == account);
        row.expect("a row")
    };
    let function = |account: &str, site: usize| {
        let stack = row(account)["sites"][site]["stack"]
            .as_array()
            .expect("a stack");
        stack[0]["function"]
            .as_str()
            .expect("a function")
            .to_owned()
    };
    // An estimate and the rest beside it are off by the same.
    let error = |account: &str| row(account)["stderr_bytes"].as_f64();
    assert!(error("malloc").is_some_and(|it| it > 0.0));
    assert_eq!(error("malloc_held"), error("malloc"));
    assert_eq!(error("mapped"), None);
    assert_eq!(row("mapped")["name"], "mapped by program");
    assert_eq!(function("mapped", 0), "map_often");
    assert_eq!(row("mapped")["sites"][0]["calls"], 4);
    assert_eq!(function("mapped", 1), "map_and_grow");
    assert_eq!(function("shared", 0), "share");
    assert_eq!(function("stacks", 0), "start_thread");
    assert_eq!(row("stacks")["sites"][0]["calls"], 8);
    let text = room.output(&["memory", "it.allocsample"]);
    let text = stdout(&text);
    for said in [
        "malloc: live blocks",
        "mapped by program",
        "4 calls: map_often",
        "resident; unexplained: 0.",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let csv = stdout(&room.output(&["memory", "--format", "csv", "it.allocsample"]));
    assert!(
        csv.starts_with("moment,account,name,resident_bytes,anonymous_bytes,stderr_bytes\n"),
        "{csv}"
    );
    let sql = "SELECT sum(resident_bytes) FROM residency GROUP BY time_ns ORDER BY 1 DESC LIMIT 1";
    let sum = stdout(&room.output(&["query", "--format", "csv", "it.allocsample", sql]));
    let sum: f64 = sum
        .lines()
        .nth(1)
        .expect("a row")
        .parse()
        .expect("a number");
    assert!((sum - ledger["peak"]["resident_bytes"].as_f64().expect("bytes")).abs() < 2.0);
    let sql = "SELECT call, count(*) FROM mappings WHERE call <> 'allocsample' GROUP BY call ORDER BY call";
    let calls = stdout(&room.output(&["query", "--format", "csv", "it.allocsample", sql]));
    assert_eq!(
        calls.lines().skip(1).collect::<Vec<_>>(),
        ["mmap,6", "mremap,1", "pthread_create,8"]
    );
}

/// The addresses of CPython's small objects are not known, and they could fill both.
#[test]
fn memory_that_a_library_maps_is_not_pythons() {
    const HOLDS: &str = "
import ctypes, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
kept = [str(number) + 'x' * 200 for number in range(150_000)]
for _ in range(20):
    libc.memset(libc.mmap(None, 2 << 20, 3, 0x22, -1, 0), 1, 2 << 20)
time.sleep(0.5)
";
    for python in interpreters() {
        let room = Room::new();
        let python = python.display().to_string();
        let run = [
            "run",
            "-q",
            "--seed",
            "1",
            "--interval",
            "16K",
            "-o",
            "it.allocsample",
            "--",
            &python,
            "-c",
            HOLDS,
        ];
        let output = room.output(&run);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let ledger = ledger(&room, "it.allocsample");
        let accounts = accounts(&ledger["peak"]);
        let of = |account: &str| accounts.get(account).copied().unwrap_or(0.0);
        // 150,000 strings of 255 bytes each; the mappings may have been read before the last of both.
        let of_python = of("objects") + of("objects_held");
        assert!((25.0..50.0).contains(&of_python), "{python}: {accounts:#?}");
        assert!(of("mapped") > 20.0, "{python}: {accounts:#?}");
    }
}

/// Our own constructor is the first to call such a malloc; and a child has what its parent mapped.
#[test]
fn what_was_mapped_before_the_recording_has_its_owner() {
    let room = room("maps_early.c");
    let run = ["run", "-q", "-o", "it.allocsample", "--", "./program"];
    let output = room.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let files = std::fs::read_dir(room.directory()).expect("the room");
    let mut names = files.map(|it| {
        it.expect("a file")
            .file_name()
            .into_string()
            .expect("UTF-8")
    });
    let is_of_child = |it: &String| it.ends_with(".allocsample") && it != "it.allocsample";
    let child = names.find(is_of_child);
    let child = child.expect("the child's profile");
    for (what, mib) in [("it.allocsample", 28.0), (child.as_str(), 48.0)] {
        let ledger = ledger(&room, what);
        assert_adds_up(&ledger["peak"]);
        let accounts = accounts(&ledger["peak"]);
        let of = |account: &str| accounts.get(account).copied().unwrap_or(0.0);
        // The last 4 MiB may come after the last list of mappings, which a growth by less than a sixteenth does not renew.
        let (least, most) = (mib - 4.5, mib + 0.5);
        assert!(
            (least..most).contains(&of("mapped")),
            "{what}: {accounts:#?}"
        );
        assert!(of("unexplained") < 0.5, "{what}: {accounts:#?}");
        let rows = ledger["peak"]["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["account"] == "mapped");
        assert_eq!(row.expect("a row")["name"], "mapped by program (malloc)");
        // It names what it looks for in other files, and is no allocator for that.
        let names = rows.iter().filter_map(|row| row["name"].as_str());
        let own: Vec<&str> = names.filter(|it| it.contains("liballocsample")).collect();
        assert!(own.is_empty(), "{own:?}");
    }
}

#[test]
fn a_mapping_is_enough_for_a_profile_and_off_is_off() {
    let room = room("only_maps.c");
    for (interval, is_there) in [("512K", true), ("off", false)] {
        let name = format!("{interval}.allocsample");
        let run = [
            "run",
            "-q",
            "--interval",
            interval,
            "-o",
            &name,
            "--",
            "./program",
        ];
        let output = room.output(&run);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let found = Profile::open(&room.path(&name)).map_or(0, |profile| {
            let calls = profile.mappings.iter();
            calls
                .filter(|it| it.mapped.change == MappingChange::Map)
                .count()
        });
        assert_eq!(found > 0, is_there, "{interval}: {found}");
    }
}

/// What `leaks` says of a program that grows in this way for some seconds.
fn leaks(how: &str, seed: u32) -> (Value, String) {
    let room = room("leaks_past_malloc.c");
    let name = "it.allocsample";
    let seed = seed.to_string();
    let directory = room.directory().to_str().expect("a path").to_owned();
    let run = [
        "run",
        "-q",
        "--seed",
        &seed,
        "-o",
        name,
        "--",
        "./program",
        how,
        "5",
        &seed,
        &directory,
    ];
    let output = room.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json = room.output(&["leaks", "--format", "json", name]);
    let json = serde_json::from_slice(&json.stdout).expect("JSON");
    (json, stdout(&room.output(&["leaks", name])))
}

/// The functions that are called leaks, with their heaps.
fn accused(leaks: &Value) -> Vec<(String, String)> {
    let suspects = leaks["suspects"].as_array().expect("suspects").iter();
    let text = |suspect: &Value, key: &str| suspect[key].as_str().unwrap_or("malloc").to_owned();
    suspects
        .filter(|it| {
            ["leak", "possible leak"].contains(&it["verdict"].as_str().unwrap_or_default())
        })
        .map(|it| (text(it, "function"), text(it, "heap")))
        .collect()
}

/// `scripts/growth-verdicts` does the same with as many seeds as it is told.
#[test]
fn growth_past_malloc_is_called_by_its_name() {
    let mappings = |function: &str| vec![(function.to_owned(), "mappings".to_owned())];
    let cases = [
        (
            "mmap",
            mappings("leak_a_mapping"),
            "mapped",
            "mapped by program",
        ),
        (
            "commits",
            mappings("leak_a_commit"),
            "mapped",
            "mapped by program",
        ),
        (
            "threads",
            mappings("forget_a_thread"),
            "stacks",
            "stacks of threads",
        ),
        (
            "file",
            Vec::new(),
            "files",
            "page cache of files, which the kernel takes back",
        ),
        (
            "fragments",
            Vec::new(),
            "malloc_held",
            "free blocks that malloc keeps",
        ),
    ];
    std::thread::scope(|scope| {
        for (case, seed) in cases.iter().zip(1..) {
            scope.spawn(move || {
                let (how, expected, account, said) = case;
                let (leaks, text) = leaks(how, seed);
                let accused = accused(&leaks);
                // The function that maps is charged, or its caller.
                let is_right = match expected.first() {
                    Some((function, heap)) => {
                        accused.len() == 1
                            && &accused[0].1 == heap
                            && text.contains(function.as_str())
                    }
                    None => accused.is_empty(),
                };
                assert!(is_right, "{how}: {accused:?}: {text}");
                assert_eq!(
                    leaks["resident_growth"]["mostly"], *account,
                    "{how}: {text}"
                );
                assert!(text.contains(said), "{how}: {text}");
            });
        }
    });
}

#[test]
fn mappings_that_come_and_go_are_no_leak() {
    let (leaks, text) = leaks("nothing", 9);
    assert_eq!(accused(&leaks), [], "{text}");
}

#[test]
fn mistakes_are_one_line() {
    let room = Room::new();
    for (what, said) in [
        ("4194305", "process 4194305: there is no such process"),
        ("nothing.allocsample", "nothing.allocsample: "),
    ] {
        let output = room.output(&["memory", what]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(said) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn a_process_without_the_agent_has_the_kernels_rows() {
    let room = Room::new();
    let own = std::process::id().to_string();
    let ledger = ledger(&room, &own);
    assert_adds_up(&ledger["last"]);
    assert!(accounts(&ledger["last"])["files"] > 0.0);
}
