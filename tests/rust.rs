//! Promise: a Rust program whose allocator is wrapped by `allocsample_global::Sampled` is profiled as any other one, without a
//! preloaded library.
//!
//! The program is this test's own executable, started again with the name of a behaviour in `BEHAVIOUR`.

mod support;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use allocsample_global::Sampled;
use mimalloc::MiMalloc;
use serde_json::json;
use support::truth::{self, Known, Truth};
use support::{Agent, Outcome, Run};

#[global_allocator]
static ALLOCATOR: Sampled<MiMalloc> = Sampled::new(MiMalloc);

const BEHAVIOUR: &str = "BEHAVIOUR";

/// Not a test: what the started executable does. A test by itself, it does nothing.
#[test]
fn behaviour() {
    match std::env::var(BEHAVIOUR).as_deref() {
        Ok("sites") => known_sites(),
        Ok("forks") => forks(),
        Ok("tells the time") => tell_the_time(),
        Ok("exits") => {
            black_box(Vec::leak(vec![1_u8; 1 << 20]));
            std::process::exit(3)
        }
        Err(_) => {}
        Ok(other) => panic!("{other}"),
    }
}

/// This executable, to behave so.
fn program(behaviour: &str) -> Run {
    let executable = std::env::current_exe().expect("an executable");
    Run::of(executable)
        .args(&["--exact", "behaviour", "--test-threads", "1"])
        .env(BEHAVIOUR, behaviour)
        .with_agent_inside()
}

/// What the sites did, from the file in which the program left it.
fn truth_of(outcome: &Outcome) -> Truth {
    let text = std::fs::read(outcome.work().join("truth.json")).expect("the truth");
    truth::printed(&text)
}

const THREADS: usize = 4;
const ROUNDS: usize = 3_000;

#[unsafe(no_mangle)]
#[inline(never)]
fn site_of_vectors(round: usize) -> Vec<u8> {
    black_box(Vec::with_capacity(500 + round % 3_000))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn site_of_boxes() -> Box<[u64; 32]> {
    black_box(Box::new([1; 32]))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn site_of_zeros(round: usize) -> Vec<u8> {
    black_box(vec![0; 1_000 + round % 1_000])
}

#[unsafe(no_mangle)]
#[inline(never)]
fn site_of_leaks() -> &'static [u8] {
    black_box(Vec::leak(black_box(vec![1; 700])))
}

/// Reallocated until it has 16 KiB; returns the bytes and the number of all its blocks.
#[unsafe(no_mangle)]
#[inline(never)]
fn site_of_growth() -> (usize, u64) {
    let mut grown: Vec<u8> = Vec::with_capacity(64);
    let (mut bytes, mut blocks) = (grown.capacity(), 1);
    while grown.capacity() < 16_384 {
        grown.resize(grown.capacity(), 0);
        grown.reserve_exact(grown.capacity());
        black_box(&mut grown);
        bytes += grown.capacity();
        blocks += 1;
    }
    (bytes, blocks)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn site_freed_elsewhere() -> Vec<u8> {
    black_box(Vec::with_capacity(900))
}

/// Each thread allocates at all sites; what it knows of them.
fn work(freed_elsewhere: &mpsc::Sender<Vec<u8>>) -> BTreeMap<&'static str, Known> {
    let mut known: BTreeMap<&'static str, Known> = BTreeMap::new();
    let mut count = |site, bytes: usize, blocks: u64, is_live: bool| {
        let known = known.entry(site).or_default();
        known.bytes += bytes as u64;
        known.allocations += blocks;
        if is_live {
            known.live_bytes += bytes as u64;
            known.live_blocks += blocks;
        }
    };
    for round in 0..ROUNDS {
        count(
            "site_of_vectors",
            site_of_vectors(round).capacity(),
            1,
            false,
        );
        count("site_of_boxes", size_of_val(&*site_of_boxes()), 1, false);
        count("site_of_zeros", site_of_zeros(round).capacity(), 1, false);
        count("site_of_leaks", site_of_leaks().len(), 1, true);
        if round % 8 == 0 {
            let (bytes, blocks) = site_of_growth();
            count("site_of_growth", bytes, blocks, false);
        }
        let block = site_freed_elsewhere();
        count("site_freed_elsewhere", block.capacity(), 1, false);
        freed_elsewhere.send(block).expect("a receiver");
    }
    known
}

fn known_sites() {
    let (sender, receiver) = mpsc::channel::<Vec<u8>>();
    let frees = thread::spawn(move || receiver.into_iter().for_each(drop));
    let workers: Vec<_> = (0..THREADS)
        .map(|_| {
            let sender = sender.clone();
            thread::spawn(move || work(&sender))
        })
        .collect();
    drop(sender);
    let mut all: BTreeMap<&str, Known> = BTreeMap::new();
    for worker in workers {
        for (site, known) in worker.join().expect("a worker") {
            let sum = all.entry(site).or_default();
            sum.bytes += known.bytes;
            sum.allocations += known.allocations;
            sum.live_bytes += known.live_bytes;
            sum.live_blocks += known.live_blocks;
        }
    }
    frees.join().expect("the thread that frees");
    let sites: serde_json::Map<String, serde_json::Value> = all
        .iter()
        .map(|(site, known)| {
            let figures = json!({
                "bytes": known.bytes, "allocations": known.allocations,
                "live_bytes": known.live_bytes, "live_blocks": known.live_blocks,
            });
            ((*site).to_owned(), figures)
        })
        .collect();
    std::fs::write("truth.json", serde_json::to_vec(&sites).expect("JSON")).expect("the truth");
}

#[test]
fn sites_of_a_wrapped_mimalloc_are_within_four_standard_errors() {
    for interval in ["4K", "64K"] {
        let outcome = program("sites").observed(&Agent::at_interval(interval).seeded(20));
        outcome.assert_success();
        let known = truth_of(&outcome);
        let profile = outcome.profile();
        assert_eq!(profile.number("lost_samples"), 0.0);
        let deviations = truth::deviations(&profile, &known, 4.0, |_| 0.0);
        assert!(deviations.is_empty(), "{deviations:#?}");
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn site_of_parent() -> &'static [u8] {
    black_box(Vec::leak(black_box(vec![1; 1 << 20])))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn site_of_child() -> &'static [u8] {
    black_box(Vec::leak(black_box(vec![1; 1 << 21])))
}

fn forks() {
    site_of_parent();
    // SAFETY: the wrapped allocator can be used in a child, and so can what it calls here.
    match unsafe { nix::unistd::fork() }.expect("a child") {
        nix::unistd::ForkResult::Child => {
            site_of_child();
            // In a child the drain thread of the parent does not exist: threads and their ends are new.
            thread::spawn(site_of_child).join().expect("a thread");
            std::process::exit(7);
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).expect("its status");
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 7));
            site_of_parent();
        }
    }
}

#[test]
fn parent_and_forked_child_have_a_profile_each() {
    let outcome = program("forks").observed(&Agent::at_interval("16K").seeded(1));
    outcome.assert_success();
    let profiles = outcome.profiles();
    assert_eq!(profiles.len(), 2);
    let sites = ["site_of_parent", "site_of_child"];
    let mut found: Vec<[f64; 2]> = profiles
        .iter()
        .map(|profile| {
            assert!(profile.is_complete());
            sites.map(|site| (profile.site(site).allocated_bytes / f64::from(1 << 20)).round())
        })
        .collect();
    found.sort_by(|a, b| a[0].total_cmp(&b[0]));
    // Every block is larger than 64 intervals, so it is sampled, and its figure is its size.
    assert_eq!(found, [[0.0, 4.0], [2.0, 0.0]]);
}

#[test]
fn exit_status_and_output_stay_and_the_profile_is_complete() {
    let outcome = program("exits").unchanged(&Agent::at_interval("64K"));
    assert_eq!(outcome.status.code(), Some(3));
    assert!(outcome.profile().is_complete());
}

#[test]
fn nothing_is_written_unless_it_is_asked_for() {
    let outcome = program("sites").bare();
    outcome.assert_success();
    assert_eq!(outcome.profile_paths(), [] as [PathBuf; 0]);
    let off = Agent::at_interval("off");
    assert_eq!(program("sites").observed(&off).profile_paths().len(), 0);
}

/// The library that this test is linked with, for programs that the compiler links in another way.
fn wrapper_library() -> PathBuf {
    let directory = support::command()
        .parent()
        .expect("a directory")
        .join("deps");
    let files = std::fs::read_dir(&directory).expect("the libraries");
    let built = files.filter_map(|file| {
        let path = file.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let is_it = name.starts_with("liballocsample_global-") && name.ends_with(".rlib");
        is_it.then(|| Some((path.metadata().ok()?.modified().ok()?, path)))?
    });
    built.max().expect("the library, built for this test").1
}

fn compiled(options: &[&str], into: &Path) -> PathBuf {
    let program = into.join("wrapped_system");
    let library = wrapper_library();
    let mut external = std::ffi::OsString::from("allocsample_global=");
    external.push(&library);
    let mut dependencies = std::ffi::OsString::from("dependency=");
    dependencies.push(library.parent().expect("a directory"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/wrapped_system.rs");
    let output = Command::new("rustc")
        .args(["--edition", "2021", "-O", "-g"])
        .args(options)
        .arg("--extern")
        .arg(external)
        .arg("-L")
        .arg(dependencies)
        .arg("-o")
        .args([&program, &source])
        .output()
        .expect("rustc");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    program
}

/// `run` finds the agent inside of the program, and preloads nothing.
#[test]
fn run_profiles_static_and_dynamic_programs_that_contain_the_agent() {
    let links: [&[&str]; 3] = [
        &[],
        &["-C", "target-feature=+crt-static"],
        &[
            "-C",
            "target-feature=+crt-static",
            "-C",
            "relocation-model=static",
        ],
    ];
    for link in links {
        let directory = tempfile::tempdir().expect("a directory");
        let program = compiled(link, directory.path());
        let path = directory.path().join("app.allocsample");
        let output = Command::new(support::command())
            .args(["run", "--interval", "16K", "--output"])
            .arg(&path)
            .arg("--")
            .arg(&program)
            .output()
            .expect("the command");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{link:?}: {said}");
        let known = truth::printed(&output.stdout);
        let profile = support::profile::Profile::read(&path);
        assert!(profile.is_complete());
        let deviations = truth::deviations(&profile, &known, 4.0, |_| 0.0);
        assert!(deviations.is_empty(), "{link:?}: {deviations:#?}");
        let is_whole = |stack: &[String]| {
            let has = |end: &str| stack.iter().any(|name| name.ends_with(end));
            let begins = stack
                .iter()
                .any(|name| name.starts_with("__libc_start_main"));
            begins && has("::main") && has("site_of_blocks")
        };
        assert!(
            profile.stacks().iter().any(|(stack, _)| is_whole(stack)),
            "{link:?}"
        );
    }
}

/// Two agents in one process would write two profiles of the same blocks.
#[test]
fn a_preloaded_agent_takes_precedence() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = Run::of(compiled(&[], directory.path()));
    let outcome = program.observed(&Agent::at_interval("16K").seeded(3));
    assert_eq!(outcome.status.code(), Some(5));
    let known = truth::printed(&outcome.stdout);
    let deviations = truth::deviations(&outcome.profile(), &known, 4.0, |_| 0.0);
    assert!(deviations.is_empty(), "{deviations:#?}");
}

fn tell_the_time() {
    let now = || {
        let since = std::time::UNIX_EPOCH.elapsed().expect("a time after 1970");
        u64::try_from(since.as_nanos()).expect("a time before 2554")
    };
    // The profile begins with its first sample.
    drop(black_box(vec![1_u8; 1 << 20]));
    let before = now();
    drop(black_box(vec![1_u8; 3_333_333]));
    let text = json!({ "before": before, "after": now() }).to_string();
    std::fs::write("times.json", text).expect("the times");
}

/// Who knows when something happened in the program finds it at that time in the profile.
#[test]
fn times_of_samples_convert_to_the_wall_clock() {
    let outcome = program("tells the time").observed(&Agent::at_interval("16K"));
    outcome.assert_success();
    let text = std::fs::read(outcome.work().join("times.json")).expect("the times");
    let times: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let sql = "SELECT start_unix_ns + time_ns AS taken, start_unix_ns + freed_ns AS freed FROM samples, process \
               WHERE size = 3333333";
    let output = Command::new(support::command())
        .args(["query", "--format", "json"])
        .arg(&outcome.profile_paths()[0])
        .arg(sql)
        .output()
        .expect("the command");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let order = [
        &times["before"],
        &rows[0]["taken"],
        &rows[0]["freed"],
        &times["after"],
    ];
    let order = order.map(|time| time.as_i64().expect("a time"));
    // The clocks are read one after the other.
    const SLACK_NS: i64 = 100_000;
    assert!(
        order[0] - SLACK_NS < order[1] && order[2] < order[3] + SLACK_NS,
        "{order:?}"
    );
}
