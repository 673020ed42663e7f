//! Promise: objects of V8's heap, functions of JavaScript, deaths and collections are in the profile of Node.js, and the
//! program is as it was.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::collected::{self, AtWork};
use support::profile::{Profile, Site};
use support::room::{stderr, stdout};
use support::{Room, bridge, is_installed, skip, truth};

fn has_node() -> bool {
    let has = is_installed("node");
    if !has {
        skip("no Node.js (Debian: nodejs)");
    }
    has
}

/// Runs it as a user does, with and without the agent.
fn profile(options: &[&str], arguments: &[&str]) -> (Output, Profile, Room) {
    let room = Room::new();
    let run = ["run", "-q", "--seed", "7", "-o", "x.allocsample"];
    let output = room.output(&[&run, options, &["--", "node"], arguments].concat());
    let bare = Command::new("node")
        .args(arguments)
        .output()
        .expect("Node.js");
    assert_eq!(
        (stdout(&output), stderr(&output), output.status.code()),
        (stdout(&bare), stderr(&bare), bare.status.code())
    );
    let profile = Profile::read(&room.path("x.allocsample"));
    (output, profile, room)
}

/// V8 draws samples too, by numbers that follow from its seed.
fn known_sites(options: &[&str]) -> (Output, Profile, Room) {
    let program = bridge::program("known_sites.js");
    let program = program.to_string_lossy();
    profile(options, &["--random-seed=1", "--expose-gc", &program, "1"])
}

/// What each function was charged with: bytes, and their variance; the same of what lives; samples.
type Charges = BTreeMap<String, [f64; 5]>;

/// V8's objects, and the blocks of malloc's that are as large as those which the program asks for: the function that runs while
/// V8 collects or compiles is charged for what that takes.
const OF_THE_PROGRAM: &str = "heap = 'javascript' OR size >= 16000";

/// Of the samples for which the condition holds.
fn charges(room: &Room, condition: &str) -> Charges {
    let sql = format!(
        "SELECT function, sum(bytes) AS bytes, sum(bytes * (bytes - size)) AS variance, \
        sum(bytes * live) AS live, sum(bytes * (bytes - size) * live) AS live_variance, count(*) AS samples \
        FROM samples JOIN functions USING (function_id) JOIN heaps USING (heap_id) \
        WHERE {condition} GROUP BY function"
    );
    let output = room.output(&["query", "x.allocsample", "--format", "json", &sql]);
    let rows: Value = serde_json::from_slice(&output.stdout).expect("rows");
    let names = ["bytes", "variance", "live", "live_variance", "samples"];
    rows.as_array()
        .expect("rows")
        .iter()
        .map(|row| {
            let figures = names.map(|name| row[name].as_f64().expect("a figure"));
            (
                row["function"].as_str().expect("a name").to_owned(),
                figures,
            )
        })
        .collect()
}

#[test]
fn each_site_is_within_its_error_and_has_its_line() {
    if !has_node() {
        return;
    }
    for interval in ["8K", "64K"] {
        let (output, profile, room) = known_sites(&["--interval", interval]);
        let charges = charges(&room, OF_THE_PROGRAM);
        let known = truth::printed(&output.stdout);
        assert_eq!(known.len(), 7);
        for (name, known) in known {
            let [bytes, variance, live, live_variance, samples] = charges[&name];
            assert!(samples > 50.0, "{name}: {samples} samples");
            // In new arrays V8 has two words for what it learns of them.
            let slack = 0.005 * known.bytes as f64;
            let difference = (bytes - known.bytes as f64).abs();
            assert!(
                difference <= 4.0 * variance.sqrt() + slack,
                "{interval} {name}: {bytes:.0} bytes of {known:?}"
            );
            // What nobody holds may still stand in a register when the collector comes.
            let slack = slack.max(8.0 * live_variance.sqrt() * f64::from(known.live_bytes == 0));
            let difference = (live - known.live_bytes as f64).abs();
            assert!(
                difference <= 4.0 * live_variance.sqrt() + slack
                    && live <= 0.02 * bytes + known.live_bytes as f64 * 2.0,
                "{interval} {name}: {live:.0} bytes live of {known:?}"
            );
        }
        let z = profile.report["audit"]["z"].as_f64().expect("an audit");
        assert!(z.abs() < 4.0, "audit {z}");
    }
}

#[test]
fn functions_lines_and_collections_are_told() {
    if !has_node() {
        return;
    }
    let (_, profile, _room) = known_sites(&["--interval", "8K"]);
    let file = bridge::program("known_sites.js");
    bridge::assert_line(
        &profile,
        "largeBufferAndKept",
        &file,
        "allocUnsafeSlow(40000)",
    );
    bridge::assert_line(&profile, "arrayAndKept", &file, "new Array(500)");
    for leaf in ["arrayAndKept", "objectAndFreed"] {
        bridge::assert_stack(&profile, &["Module._load", "main", "site", leaf]);
    }
    let stacks = profile.stacks();
    let through_both = stacks.iter().any(|(stack, _)| {
        let at = |name: &str| stack.iter().position(|frame| frame == name);
        at("__libc_start_main_impl") < at("main")
            && at("main") < at("memoryAndFreed")
            && at("main").is_some()
    });
    assert!(through_both, "native frames with JavaScript among them");
    let heap = bridge::heap(&profile, "javascript");
    assert!(heap["minor_collections"].as_f64() >= Some(1.0), "{heap}");
    assert!(heap["major_collections"].as_f64() >= Some(2.0), "{heap}");
    assert!(heap["gc_time_s"].as_f64() > Some(0.0), "{heap}");
}

#[test]
fn the_leak_is_found() {
    if has_node() {
        let program = bridge::program("leaky.js");
        let command = ["node", &program.to_string_lossy(), "60000"];
        bridge::assert_leak(&command, "openSession");
    }
}

fn steered_sites(count: u32, told: bridge::Told) -> [Site; 3] {
    let room = Room::new();
    let program = bridge::program("steered_sites.js");
    let options = ["node", "--random-seed=1", "--expose-gc"];
    let arguments = [&*program.to_string_lossy(), &count.to_string()];
    bridge::steered(&room, &[&options[..], &arguments].concat(), told);
    // What V8 takes from malloc meanwhile is charged to the same functions.
    let charges = charges(&room, "heap = 'javascript'");
    ["first", "second", "third"].map(|name| {
        let [bytes, variance, live, live_variance, samples] = charges[name];
        Site {
            allocated_bytes: bytes,
            allocated_bytes_stderr: variance.sqrt(),
            live_bytes: live,
            live_bytes_stderr: live_variance.sqrt(),
            samples: samples as u64,
            ..Site::default()
        }
    })
}

/// Each sample counts by the interval under which it is told, also while that changes, and deaths are told of objects that were
/// drawn under each.
#[test]
fn v8s_heap_follows_the_interval() {
    const COUNT: u32 = 100_000;
    const BYTES: f64 = COUNT as f64 * 4048.0;
    if !has_node() {
        return;
    }
    let sites = steered_sites(COUNT, bridge::INTERVALS);
    bridge::assert_follows(sites, BYTES);
    bridge::assert_live(sites, [0.0, BYTES / 10.0, BYTES / 10.0]);
}

#[test]
fn v8s_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const COUNT: u32 = 50_000;
    if has_node() {
        let sites = steered_sites(COUNT, bridge::STOP_AND_START);
        // V8 is asked at its collections: what has filled its young space is told still.
        bridge::assert_rests(sites, f64::from(COUNT) * 4048.0, 48e6);
    }
}

/// The same program under V8's own profiler, which draws samples of its own, as `HeapProfiler` in DevTools shows them.
#[test]
fn v8s_own_profiler_says_the_same_of_the_top_sites() {
    if !has_node() {
        return;
    }
    let (_, _, room) = known_sites(&["--interval", "8K"]);
    let charges = charges(&room, OF_THE_PROGRAM);
    let code = format!(
        "process.argv[2] = '1';
        const session = new (require('node:inspector').Session)();
        session.connect();
        session.post('HeapProfiler.startSampling', {{ samplingInterval: 8192,
            includeObjectsCollectedByMajorGC: true, includeObjectsCollectedByMinorGC: true }});
        process.reallyExit = () => session.post('HeapProfiler.stopSampling', (_, found) =>
            require('node:fs').writeFileSync('v8.json', JSON.stringify(found.profile)));
        require({:?})",
        bridge::program("known_sites.js")
    );
    let output = Command::new("node")
        .args(["--random-seed=2", "--expose-gc", "-e", &code])
        .current_dir(room.directory())
        .output()
        .expect("Node.js");
    assert!(output.status.success(), "{}", stderr(&output));
    let sums = sums_of_v8(&room.path("v8.json"));
    for name in ["arrayAndKept", "largeArrayAndFreed", "objectAndFreed"] {
        let [ours, variance, ..] = charges[name];
        // Both are drawn, each on its own.
        let error = (2.0 * variance).sqrt();
        let theirs = sums[name];
        assert!(
            (ours - theirs).abs() < 4.0 * error + 0.005 * ours,
            "{name}: {ours} here, {theirs} there, error {error}"
        );
    }
}

/// Bytes by function in a profile of V8's.
fn sums_of_v8(path: &Path) -> BTreeMap<String, f64> {
    let text = fs::read(path).expect("V8's profile");
    let v8: Value = serde_json::from_slice(&text).expect("V8's profile");
    let mut sums = BTreeMap::new();
    sum_nodes(&v8["head"], &mut sums);
    sums
}

fn sum_nodes(node: &Value, sums: &mut BTreeMap<String, f64>) {
    let name = node["callFrame"]["functionName"].as_str().expect("a name");
    let bytes = node["selfSize"].as_f64().expect("a size");
    *sums.entry(name.to_owned()).or_default() += bytes;
    for child in node["children"].as_array().expect("children") {
        sum_nodes(child, sums);
    }
}

#[test]
fn workers_errors_and_children_are_no_trouble() {
    if !has_node() {
        return;
    }
    let code = "const { Worker, isMainThread, parentPort } = require('node:worker_threads');
        const work = 'let all = []; for (let i = 0; i < 20000; i++) all.push({ i, a: [i] });' +
            'require(\"node:worker_threads\").parentPort.postMessage(all.length)';
        let sum = 0, left = 4;
        for (let i = 0; i < 4; i++) new Worker(work, { eval: true }).on('message', n => {
            sum += n;
            if (--left === 0) {
                const { execFileSync } = require('node:child_process');
                console.log(sum, execFileSync(process.execPath, ['-e', 'console.log([1, 2].length)']).toString());
                console.error('said');
                process.exitCode = 3;
            }
        });";
    let (output, profile, _room) = profile(&["--interval", "16K"], &["-e", code]);
    assert_eq!(output.status.code(), Some(3));
    let heap = bridge::heap(&profile, "javascript");
    assert!(heap["samples"].as_u64() > Some(100), "{heap}");
    let code = "const b = []; for (let i = 0; i < 100000; i++) b.push([i]); throw b.length";
    let (output, ..) = crate::profile(&["--interval", "16K"], &["-e", code]);
    assert_eq!(output.status.code(), Some(1));
}

/// A heap near its limit starts incremental marking at any allocation, also at ours.
#[test]
fn a_worker_ends_at_its_limit_as_without_us() {
    if !has_node() {
        return;
    }
    let program = bridge::program("worker_limits.js");
    let ended = "ERR_WORKER_OUT_OF_MEMORY\n".repeat(3);
    let (output, profile, _room) = profile(&["--interval", "64K"], &[&program.to_string_lossy()]);
    assert_eq!((stdout(&output), output.status.code()), (ended, Some(0)));
    let heap = bridge::heap(&profile, "javascript");
    assert!(heap["samples"].as_u64() > Some(100), "{heap}");
}

#[test]
fn a_program_that_samples_by_itself_goes_first() {
    if !has_node() {
        return;
    }
    let room = Room::new();
    let code = "const b = []; for (let i = 0; i < 300000; i++) b.push([i]); console.log(b.length)";
    let output = room.output(&[
        "run",
        "-q",
        "--interval",
        "16K",
        "-o",
        "x.allocsample",
        "--",
        "node",
        "--heap-prof",
        "--heap-prof-name=v8.json",
        "-e",
        code,
    ]);
    assert_eq!(
        (stdout(&output), output.status.code()),
        ("300000\n".to_owned(), Some(0))
    );
    let total: f64 = sums_of_v8(&room.path("v8.json")).values().sum();
    assert!(total > 5e6, "V8's own profile has {total} bytes");
    assert!(room.path("x.allocsample").exists());
}

/// V8 compares its flags with those that the snapshot was made under.
#[test]
fn a_program_starts_from_its_snapshot() {
    if !has_node() {
        return;
    }
    let room = Room::new();
    let main = "const x = 41; require('v8').startupSnapshot.setDeserializeMainFunction(() => console.log(x + 1))";
    fs::write(room.path("main.js"), main).expect("a file");
    let run = |command: &[&str]| {
        let output = room.output(&[&["run", "-q", "--"], command].concat());
        (stdout(&output), stderr(&output), output.status.code())
    };
    let expected = ("42\n".to_owned(), String::new(), Some(0));
    let blob = ["--snapshot-blob", "x.blob"];
    run(&[&["node"], &blob[..], &["--build-snapshot", "main.js"]].concat());
    assert_eq!(
        run(&[&["node"], &blob[..], &["main.js"]].concat()),
        expected
    );
    let options = format!("NODE_OPTIONS={}", blob.join(" "));
    assert_eq!(run(&["env", &options, "node", "main.js"]), expected);
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    if !has_node() {
        return;
    }
    let (_, profile, _room) = known_sites(&["--interval", "16K", "--runtime", "none"]);
    assert!(!bridge::has_heap(&profile, "javascript"));
    assert_eq!(profile.site("largeBufferAndKept").samples, 0);
}

#[test]
fn a_bounded_cache_is_live_and_nothing_else_once_v8_was_asked_to_collect() {
    if !has_node() {
        return;
    }
    let program = bridge::program("bounded_cache.js");
    // V8 charges a function that it has inlined to its caller.
    let command = ["node", "--no-turbo-inlining", &*program.to_string_lossy()];
    let node = AtWork::start(Room::new(), &["--interval", "16K"], &command);
    node.collect("javascript");
    let (live, error) = node.survivors("javascript", "makeEntry");
    // An entry is an array object and its elements.
    let known = 20_000.0 * 1_072.0;
    assert!(
        (live - known).abs() < 5.0 * error,
        "{live} ± {error}, {known}"
    );
    collected::assert_not_accused(&node.room, "copy.allocsample", "makeEntry");
    node.end();
}
