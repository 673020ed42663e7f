//! Promise: Python's functions, lines and small objects are in the profile, whichever CPython from 3.8 on runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::attached::Attached;
use crate::support::collected::AtWork;
use crate::support::profile::{Profile, Site};
use crate::support::python::{interpreters, is_free_threaded, minor_of};
use crate::support::room::stderr;
use crate::support::{Agent, Outcome, Program, Room, Run, bridge, is_installed, skip, truth};
use serde_json::Value;

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/known_sites.py")
}

fn known_sites(python: &Path, times: u32, agent: &Agent) -> Outcome {
    let outcome = Run::of(python)
        .arg(program())
        .arg(times.to_string())
        .patience(120)
        .observed(agent);
    outcome.assert_success();
    outcome
}

/// Within 4 of the reported standard errors: once in 16,000 figures that is luck, and seeds are fixed.
#[track_caller]
fn assert_near(what: &str, estimate: f64, truth: f64, stderr: f64) {
    let z = truth::z(estimate, truth, stderr);
    assert!(z.abs() <= 4.0, "{what}: {estimate} for {truth}, z {z:+.1}");
}

#[test]
fn each_site_is_within_its_error_in_every_version() {
    for python in interpreters() {
        for (interval, times) in [("4K", 1), ("64K", 4)] {
            let outcome = known_sites(&python, times, &Agent::at_interval(interval).seeded(7));
            let profile = outcome.profile();
            let known = truth::printed(outcome.text().as_bytes());
            assert_eq!(known.len(), 5);
            for (name, known) in known {
                let site: Site = profile.site(&name);
                let what = format!("{} {interval} {name}", python.display());
                assert!(site.samples > 10, "{what}: {} samples", site.samples);
                assert_near(
                    &what,
                    site.allocated_bytes,
                    known.bytes as f64,
                    site.allocated_bytes_stderr,
                );
                assert_near(
                    &format!("{what}, live"),
                    site.live_bytes,
                    known.live_bytes as f64,
                    site.live_bytes_stderr,
                );
            }
        }
    }
}

/// Bytes that the program asks for at every call. Without the interpreter's lock, an object begins with two words more.
fn steered_bytes(python: &Path) -> f64 {
    if is_free_threaded(python) {
        199.0
    } else {
        183.0
    }
}

fn steered_sites(python: &Path, count: u32, told: bridge::Told) -> [Site; 3] {
    let program = bridge::program("steered_sites.py");
    let command = [
        &*python.to_string_lossy(),
        &program.to_string_lossy(),
        &count.to_string(),
    ];
    let profile = bridge::steered(&Room::new(), &command, told);
    ["first", "second", "third"].map(|name| profile.site(name))
}

#[test]
fn pythons_heap_follows_the_interval() {
    const COUNT: u32 = 1_100_000;
    for python in interpreters() {
        let sites = steered_sites(&python, COUNT, bridge::INTERVALS);
        bridge::assert_follows(sites, f64::from(COUNT) * steered_bytes(&python));
    }
}

#[test]
fn pythons_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const COUNT: u32 = 400_000;
    for python in interpreters() {
        let sites = steered_sites(&python, COUNT, bridge::STOP_AND_START);
        bridge::assert_rests(sites, f64::from(COUNT) * steered_bytes(&python), 4e6);
    }
}

#[test]
fn frames_of_python_and_of_the_interpreter_are_in_their_order() {
    for python in interpreters() {
        let outcome = known_sites(&python, 1, &Agent::at_interval("4K").seeded(7));
        let stacks = outcome.profile().stacks();
        // <module> -> main -> sorts -> (list.sort, native) -> sort_key
        let stack = stacks
            .iter()
            .map(|(stack, _)| stack)
            .find(|stack| stack.iter().any(|frame| frame == "sort_key"))
            .expect("a sample in the key function");
        let place = |name: &str| {
            let found = stack.iter().position(|frame| frame == name);
            found.unwrap_or_else(|| panic!("{}: no {name} in {stack:?}", python.display()))
        };
        let (module, main, sorts) = (place("<module>"), place("main"), place("sorts"));
        assert!(module < main && main < sorts, "{stack:?}");
        assert!(
            place("sort_key") > sorts + 1,
            "the sort itself is between its caller and its key: {stack:?}"
        );
        let ours = stack.iter().any(|frame| frame.contains("liballocsample"));
        assert!(!ours, "{stack:?}");
        let eval = stack
            .iter()
            .any(|frame| frame == "_PyEval_EvalFrameDefault");
        assert!(
            !eval,
            "the loop is shown as the functions that it runs: {stack:?}"
        );
    }
}

#[test]
fn stacks_show_the_language_unless_all_frames_are_asked_for() {
    for python in interpreters() {
        let outcome = known_sites(&python, 1, &Agent::at_interval("4K").seeded(7));
        let recorded = outcome.profile();
        let shown = Profile::read_exactly(recorded.path(), &[]);
        assert_eq!(shown.report["totals"], recorded.report["totals"]);
        // An extension's calls into the interpreter stay: they are how it allocates.
        let is_runtime = |frame: &String| {
            let starts = ["_PyEval", "Py_Run", "Py_BytesMain", "__libc_start"];
            starts.iter().any(|start| frame.starts_with(start))
        };
        let of_language = |options: &[&str]| -> Vec<Vec<String>> {
            let stacks = recorded.stacks_with(options).into_iter();
            let stacks = stacks.map(|(stack, _)| stack);
            stacks
                .filter(|stack| stack.iter().any(|it| it == "main"))
                .collect()
        };
        let all = of_language(&["--all-frames"]);
        assert!(all.iter().flatten().any(is_runtime), "{}", python.display());
        let shown = of_language(&[]);
        assert!(!shown.is_empty());
        for stack in shown {
            assert!(
                !stack.iter().any(is_runtime),
                "{}: {stack:?}",
                python.display()
            );
        }
    }
}

#[test]
fn lines_collections_and_exact_bytes_are_told() {
    for python in interpreters() {
        let outcome = known_sites(&python, 1, &Agent::at_interval("4K").seeded(7));
        let profile = outcome.profile();
        let lines = profile.report["lines"].as_array().expect("lines");
        let text = std::fs::read_to_string(program()).expect("the program");
        let truth = 1 + text
            .lines()
            .position(|line| line.contains("bytes(150)"))
            .expect("the line");
        let line = lines
            .iter()
            .find(|line| line["function"] == "small_and_freed")
            .expect("a line of the function");
        assert_eq!(line["line"], truth, "{}", python.display());
        assert!(
            line["file"]
                .as_str()
                .is_some_and(|file| file.ends_with("known_sites.py"))
        );

        let heaps = profile.report["heaps"].as_array().expect("heaps");
        let heap = heaps.iter().find(|heap| heap["name"] == "python");
        let heap = heap.expect("Python's heap");
        assert!(heap["major_collections"].as_f64() >= Some(1.0), "{heap}");
        let z = profile.report["audit"]["z"].as_f64().expect("a deviation");
        assert!(z.abs() < 4.0, "{}: audit {z}", python.display());
    }
}

/// A sampled object lies elsewhere than the others, which no program can see: what is in it, what becomes of it when it
/// grows, and how many there are by Python's own count.
#[test]
fn sampled_objects_are_objects_like_the_others() {
    for python in interpreters() {
        for interval in ["1", "64", "4K"] {
            let outcome = Run::of(&python)
                .arg(bridge::program("allocated_blocks.py"))
                .observed(&Agent::at_interval(interval).seeded(7));
            outcome.assert_success();
            assert_eq!(outcome.complaints(), "", "{}", python.display());
            let truth: f64 = outcome.text().trim().parse().expect("bytes");
            let profile = outcome.profile();
            let heap = bridge::heap(&profile, "python");
            // All else that the interpreter allocates is several times as much.
            let allocated = heap["allocated_bytes"].as_f64().expect("bytes");
            assert!(
                (truth..10.0 * truth).contains(&allocated),
                "{} at {interval}: {allocated} bytes, {truth} by known objects",
                python.display()
            );
            bridge::assert_audit(&profile);
        }
    }
}

/// The second opinion: what Python's own tracemalloc has of the same program, block by block.
#[test]
fn what_lives_is_what_tracemalloc_says() {
    for python in interpreters() {
        let program = bridge::program("trees.py");
        let program = program.to_string_lossy();
        let traced = Run::of(&python)
            .args(&["-X", "tracemalloc", &program])
            .bare();
        traced.assert_success();
        let traced: f64 = traced.text().trim().parse().expect("bytes");
        let outcome = Run::of(&python)
            .arg(&*program)
            .observed(&Agent::at_interval("4K").seeded(7));
        outcome.assert_success();
        let ours = outcome.profile().total("live_bytes");
        let difference = (ours - traced).abs();
        assert!(
            difference < 0.05 * traced,
            "{}: {ours} bytes live, {traced} by tracemalloc",
            python.display()
        );
    }
}

/// The third: all that memray has counted, for which it looks at each block.
#[test]
fn what_is_allocated_is_what_memray_says() {
    let has_memray = |python: &PathBuf| {
        let output = Command::new(python).args(["-c", "import memray"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let home = std::env::var_os("HOME").unwrap_or_default();
    let cache = ".cache/allocsample-second-opinions/python/bin/python3";
    let others = [PathBuf::from("python3"), Path::new(&home).join(cache)];
    let Some(python) = interpreters().into_iter().chain(others).find(has_memray) else {
        skip("no memray (scripts/second-opinions --fetch)");
        return;
    };
    let program = bridge::program("trees.py");
    let program = program.to_string_lossy();
    let room = Room::new();
    let memray = |arguments: &[&str]| {
        let output = Command::new(&python)
            .args(["-m", "memray"])
            .args(arguments)
            .current_dir(room.directory())
            .output()
            .expect("memray");
        assert!(output.status.success(), "{}", stderr(&output));
    };
    memray(&[
        "run",
        "-q",
        "-o",
        "all.bin",
        "--trace-python-allocators",
        &program,
    ]);
    memray(&["stats", "--json", "-o", "stats.json", "all.bin"]);
    let text = fs::read(room.path("stats.json")).expect("memray's figures");
    let stats: Value = serde_json::from_slice(&text).expect("memray's figures");
    let theirs = stats["total_bytes_allocated"].as_f64().expect("bytes");
    let python = python.to_string_lossy();
    let command = ["-o", "x.allocsample", "--", &*python, &*program];
    let output = room.output(
        &[
            &["run", "-q", "--seed", "7", "--interval", "4K"],
            &command[..],
        ]
        .concat(),
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let ours = Profile::read(&room.path("x.allocsample")).total("allocated_bytes");
    let difference = (ours - theirs).abs();
    assert!(
        difference < 0.05 * theirs,
        "{ours} bytes here, {theirs} there"
    );
}

#[test]
fn the_leak_is_found_in_every_version() {
    let program = bridge::program("leaky.py");
    for python in interpreters() {
        let command = [
            &*python.to_string_lossy(),
            &*program.to_string_lossy(),
            "300000",
        ];
        bridge::assert_leak(&command, "open_session");
    }
}

/// The lines of a site are one site: its name is not that of the line which allocated first.
#[test]
fn a_leak_has_the_line_that_holds_most() {
    const KEEPS: u32 = 13;
    let program = bridge::program("lines_of_one_function.py");
    for python in interpreters() {
        let command = [
            &*python.to_string_lossy(),
            &*program.to_string_lossy(),
            "300000",
        ];
        let room = Room::new();
        let run = ["run", "-q", "--seed", "7", "-o", "x.allocsample", "--"];
        let output = room.output(&[&run[..], &command].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let output = room.output(&["leaks", "--format", "json", "x.allocsample"]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let sites = found["suspects"].as_array().expect("sites");
        let lines: Vec<&Value> = (sites.iter())
            .filter(|site| site["function"] == "serve" && site["type"] == "bytes")
            .map(|site| &site["line"])
            .collect();
        assert_eq!(lines, [KEEPS], "{}: {sites:#?}", python.display());
    }
}

#[test]
fn threads_that_stay_are_accused_and_threads_that_end_are_not() {
    let program = bridge::program("threads_that_stay.py");
    for python in interpreters() {
        let accused = |mode: &str, seed: &str| {
            let command = [&python.to_string_lossy(), &*program.to_string_lossy(), mode];
            let mut leaks = bridge::leaks_of(&[], &[], &command, seed);
            leaks.retain(|leak| leak["heap"] == "mappings");
            leaks
        };
        let is_named = |leak: &Value| leak["stack"].to_string().contains("keep_a_thread");
        // Where a busy machine slows the program down, the growth slows, too.
        let mut runs = ["7", "8", "9"].iter();
        assert!(
            runs.any(|seed| accused("stay", seed).iter().any(is_named)),
            "{}",
            python.display()
        );
        assert_eq!(
            accused("end", "7"),
            [] as [Value; 0],
            "{}",
            python.display()
        );
    }
}

/// Without a call of the allocator, so the function that is named may be another one than keeps the objects.
#[test]
fn a_finding_of_a_type_that_cpython_recycles_says_so() {
    const SAID: &str = "CPython reuses freed objects of this type";
    let program = bridge::program("recycled_lists.py");
    for python in interpreters() {
        let command = [
            &*python.to_string_lossy(),
            &*program.to_string_lossy(),
            "400000",
        ];
        let leaks = bridge::leaks_of(&[], &[], &command, "7");
        let python = python.display();
        assert!(
            leaks.iter().any(|leak| leak["type"] == "list"),
            "{python}: {leaks:#?}"
        );
        for leak in &leaks {
            let sentence = leak["sentence"].as_str().expect("a sentence");
            let is_recycled = leak["type"] == "list";
            assert_eq!(sentence.contains(SAID), is_recycled, "{python}: {leak:#?}");
        }
    }
}

#[test]
fn what_frees_is_named_while_code_and_frames_go_away() {
    const QUESTION: &str = "SELECT count(*) AS frees FROM frees
        JOIN functions USING (function_id) WHERE functions.function = 'evict'";
    for python in interpreters() {
        let outcome = Run::of(&python)
            .arg(bridge::program("frees.py"))
            .patience(120)
            .unchanged(&Agent::at_interval("64").seeded(5));
        outcome.assert_success();
        let profile = outcome.profile();
        let room = Room::new();
        let path = profile.path().to_string_lossy();
        let output = room.output(&["query", "--format", "json", &path, QUESTION]);
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let frees = answer[0]["frees"].as_f64().expect("a count");
        // Without the interpreter's lock these blocks are not malloc's, and what frees them is not recorded.
        if is_free_threaded(&python) {
            continue;
        }
        // 10,000 blocks of 2,000 bytes, all of which are sampled; one free in eight has its stack. Five standard deviations.
        let expected = 10_000.0 / 8.0;
        let error = (expected * 7.0 / 8.0_f64).sqrt();
        let python = python.display();
        assert!((frees - expected).abs() < 5.0 * error, "{python}: {frees}");
    }
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    for python in interpreters() {
        let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
        let profile = known_sites(&python, 1, &agent).profile();
        assert_eq!(profile.site("small_and_kept").samples, 0);
        let heaps = profile.report["heaps"].as_array().expect("heaps");
        assert!(heaps.iter().all(|heap| heap["name"] != "python"));
    }
}

/// Each process has its own; a child that goes on allocating does so under its own profile.
#[test]
fn forked_workers_have_frames_too() {
    let script = "
import multiprocessing
def work(n):
    return len([bytes(300) for _ in range(20000)])
if __name__ == '__main__':
    multiprocessing.set_start_method('fork')
    with multiprocessing.Pool(2) as pool:
        print(sum(pool.map(work, range(4))))
";
    if !is_installed("/usr/bin/python3") {
        skip("no Python (Debian: python3)");
        return;
    }
    let outcome = Run::of("/usr/bin/python3")
        .args(&["-c", script])
        .patience(120)
        .unchanged(&Agent::at_interval("4K"));
    outcome.assert_success();
    let with_work = outcome
        .profiles()
        .iter()
        .filter(|profile| {
            let functions = profile.report["functions"].as_array().expect("functions");
            functions
                .iter()
                .any(|row| row["function"] == "work" || row["function"] == "<listcomp>")
        })
        .count();
    assert!(with_work >= 2, "{with_work} workers");
}

/// Each has a thread state and collections of its own. Before 3.12 the thread's first state is the one that can be found,
/// so that functions of others are not shown.
#[test]
fn sub_interpreters_are_no_trouble() {
    let program = bridge::program("sub_interpreters.py");
    for python in interpreters() {
        let run = Run::of(&python).arg(&program).patience(120);
        let profile = run.unchanged(&Agent::at_interval("4K").seeded(7)).profile();
        let z = profile.report["audit"]["z"].as_f64().expect("an audit");
        assert!(z.abs() < 4.0, "{}: audit {z}", python.display());
        let is_shown = profile.site("of_an_interpreter").samples > 100;
        assert_eq!(is_shown, minor_of(&python) >= 11, "{}", python.display());
    }
}

/// CPython 3.12 and later puts a trampoline before each function for `perf`, and names it in a file: Python's frames are there
/// once, and nothing of the trampolines.
#[test]
fn trampolines_for_perf_are_not_shown_beside_their_functions() {
    for python in interpreters() {
        let path = python.to_string_lossy().into_owned();
        if minor_of(&python) < 12 {
            continue;
        }
        let stacks_of = |options: &[&str], agent: &Agent| {
            let outcome = Run::of(&python)
                .args(options)
                .arg(program())
                .arg("1")
                .observed(agent);
            outcome.assert_success();
            let profile = outcome.profile();
            let pid = profile.report["pid"].as_u64().expect("a pid");
            let stacks = profile.stacks();
            // CPython leaves it.
            let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
            stacks
        };
        let agent = Agent::at_interval("4K").seeded(7);
        let python_frames = |stack: &[String]| {
            let wanted = [
                "<module>",
                "main",
                "site",
                "small_and_kept",
                "sorts",
                "sort_key",
            ];
            let is_python = |frame: &&String| wanted.contains(&frame.as_str());
            stack.iter().filter(is_python).cloned().collect::<Vec<_>>()
        };
        let stacks = stacks_of(&["-X", "perf"], &agent);
        for (stack, _) in &stacks {
            let odd = stack
                .iter()
                .find(|frame| frame.starts_with("py::") || frame.starts_with("(unwind"));
            assert_eq!(odd, None, "{path}: {stack:?}");
            // It allocates itself for a trampoline that it makes; who is called through one does not show it.
            let evaluator = stack
                .iter()
                .position(|frame| frame == "py_trampoline_evaluator");
            let called = evaluator.map_or(&[][..], |at| &stack[at..]);
            assert_eq!(python_frames(called), [""; 0], "{path}: {stack:?}");
        }
        for (leaf, whole) in [
            (
                "small_and_kept",
                &["<module>", "main", "site", "small_and_kept"][..],
            ),
            ("sort_key", &["<module>", "main", "sorts", "sort_key"]),
        ] {
            let (stack, _) = stacks
                .iter()
                .find(|(stack, _)| stack.iter().any(|frame| frame == leaf))
                .expect("a stack");
            assert_eq!(python_frames(stack), whole, "{path}: {stack:?}");
        }
        // Without the interpreter's lock, next to nothing comes from malloc.
        if is_free_threaded(&python) {
            continue;
        }
        // Without the bridge they are all there is of Python.
        let agent = agent.with("ALLOCSAMPLE_RUNTIME", "none");
        let stacks = stacks_of(&["-X", "perf"], &agent);
        let with_names = stacks.iter().filter(|(stack, _)| {
            stack.first().is_some_and(|root| root == "_start")
                && stack.iter().any(|frame| frame.starts_with("py::"))
        });
        assert!(with_names.count() > 10, "{path}");
    }
}

/// A thread that makes objects, and a main thread that waits for a line.
const RUNNING: &str = "
import sys, threading
def grow(kept):
    for i in range(1000):
        kept.append({'a': i, 'b': [i] * 3})
def work(event):
    kept = []
    while not event.is_set():
        grow(kept)
        if len(kept) > 20000:
            kept.clear()
event = threading.Event()
thread = threading.Thread(target=work, args=(event,))
thread.start()
print('ready', flush=True)
for line in sys.stdin:
    if line.startswith('end'):
        break
    print(sum(len(str(i)) for i in range(int(line))), flush=True)
event.set()
thread.join()
sys.exit(3)
";

/// An interpreter that never heard of us is joined while its threads run, left, and joined again.
/// It allocates as without us, until it is told to begin.
#[test]
fn an_interpreter_that_was_started_asleep_is_woken_with_its_small_objects() {
    for python in interpreters() {
        let mut running = Attached::start_as(|room| {
            let mut command = Command::new(&python);
            command
                .args(["-c", RUNNING])
                .env("LD_PRELOAD", room.agent())
                .env("ALLOCSAMPLE_START", "off")
                .env("ALLOCSAMPLE_OUTPUT", room.path("x.allocsample"));
            command
        });
        running.ask("20000");
        let pid = running.pid();
        let output = running.room.output(&["attach", &pid, "--interval", "4K"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        // It hears of it when it allocates.
        running.ask("20000");
        running.ask("200000");
        let (room, status) = running.end(3);
        assert_eq!(status.code(), Some(3), "{status}");
        let profile = Profile::read(&room.path("x.allocsample"));
        let heap = bridge::heap(&profile, "python");
        assert!(heap["samples"].as_f64() > Some(400.0), "{heap}");
        assert!(profile.site("grow").samples > 400, "{}", python.display());
        bridge::assert_audit(&profile);
    }
}

#[test]
fn a_running_interpreter_is_attached_to_with_frames_and_small_objects() {
    for python in interpreters() {
        let mut running = Attached::start_as(|_| {
            let mut command = Command::new(&python);
            command.args(["-c", RUNNING]);
            command
        });
        for interval in ["16K", "4K"] {
            running.attach(&["--interval", interval]);
            // The thread that allocates competes with the one that answers for the interpreter's lock, and may get little of it.
            for _ in 0..4 {
                assert_eq!(running.ask("200000"), "1088890", "{}", python.display());
            }
            let profile = running.detach();
            let what = format!("{} at {interval}", python.display());
            let heap = bridge::heap(&profile, "python");
            assert!(heap["samples"].as_f64() > Some(100.0), "{what}: {heap}");
            assert!(profile.site("grow").samples > 100, "{what}");
            let stacks = profile.stacks();
            let is_whole = |(stack, _): &(Vec<String>, f64)| {
                let place = |name: &str| stack.iter().position(|frame| frame == name);
                place("work").is_some() && place("work") < place("grow")
            };
            assert!(stacks.iter().any(is_whole), "{what}");
            let types = profile.report["types"].as_array().expect("types");
            for name in ["dict", "list", "dict keys"] {
                assert!(
                    types.iter().any(|row| row["type"] == name),
                    "{what}: {name} {types:?}"
                );
            }
            bridge::assert_audit(&profile);
        }
        // Nothing of it is told to a profile that is not to have it.
        running.attach(&["--interval", "16K", "--runtime", "none"]);
        running.ask("2000");
        let profile = running.detach();
        assert_eq!(profile.site("grow").samples, 0);
        assert_eq!(running.ask("10"), "10");
        running.ends_well();
    }
}

/// One that keeps its blocks, so that none of them can be placed elsewhere: which it is, shows when the first is sampled.
#[test]
fn objects_of_an_allocator_that_the_program_brings_are_sampled_in_place() {
    let library = Program::library("python_allocator.c", "libpython_allocator.so", &["-ldl"]);
    let install = format!(
        "import ctypes\nctypes.PyDLL({:?}).install()\n",
        library.path().to_string_lossy()
    );
    for python in interpreters() {
        // Without its lock, CPython finds objects by the pages of its own allocator, and crashes with another one.
        if is_free_threaded(&python) {
            continue;
        }
        let mut running = Attached::start_as(|_| {
            let mut command = Command::new(&python);
            command.args(["-c", &(install.clone() + RUNNING)]);
            command
        });
        running.attach(&["--interval", "4K"]);
        assert_eq!(running.ask("200000"), "1088890", "{}", python.display());
        let profile = running.detach();
        let heap = bridge::heap(&profile, "python");
        let what = python.display();
        assert!(heap["samples"].as_f64() > Some(400.0), "{what}: {heap}");
        assert!(profile.site("grow").samples > 400, "{what}");
        // What it gives back to its own allocator is told.
        let live = heap["live_bytes"].as_f64().expect("bytes");
        let allocated = heap["allocated_bytes"].as_f64().expect("bytes");
        assert!(live < 0.8 * allocated, "{what}: {live} of {allocated}");
        bridge::assert_audit(&profile);
        assert_eq!(running.ask("10"), "10");
        running.ends_well();
    }
}

/// Live bytes of a function, and all that it has allocated.
#[track_caller]
fn live_and_allocated(python: &AtWork, function: &str) -> [f64; 2] {
    let rows = python.query(&format!(
        "SELECT coalesce(sum(bytes * live), 0) AS live, sum(bytes) AS bytes \
        FROM samples JOIN functions USING (function_id) WHERE function = '{function}'"
    ));
    ["live", "bytes"].map(|name| rows[0][name].as_f64().expect("a figure"))
}

#[test]
fn cycles_are_freed_once_the_interpreter_was_asked_to_collect() {
    let program = bridge::program("cycles.py");
    let program = program.to_string_lossy();
    for interpreter in interpreters() {
        let interpreter = interpreter.to_string_lossy();
        let start = |more: &[&str]| {
            let command = [&[&*interpreter, &*program], more].concat();
            AtWork::start(Room::new(), &["--interval", "4K"], &command)
        };
        let python = start(&[]);
        let [live, bytes] = live_and_allocated(&python, "make_cycle");
        assert!(live > 0.5 * bytes, "{interpreter}: {live} of {bytes}");
        python.collect("python");
        let [live, bytes] = live_and_allocated(&python, "make_cycle");
        assert!(live < 0.01 * bytes, "{interpreter}: {live} of {bytes}");
        python.end();
    }
}

#[test]
fn a_collector_that_the_program_has_switched_off_stays_off() {
    // Before 3.10 nobody can be asked whether it is.
    let program = bridge::program("cycles.py");
    let command = ["/usr/bin/python3", &*program.to_string_lossy(), "off"];
    if !Path::new(command[0]).exists() {
        return skip("no Python (Debian: python3)");
    }
    let python = AtWork::start(Room::new(), &["--interval", "4K"], &command);
    let (said, _) = python.ctl(&["gc"]);
    assert!(said.starts_with("python: not collected"), "{said}");
    let [live, bytes] = live_and_allocated(&python, "make_cycle");
    assert!(live > 0.5 * bytes, "{live} of {bytes}");
    python.end();
}
