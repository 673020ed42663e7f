//! Promise: objects of V8's heap, functions of JavaScript, deaths and collections are in the profile of Node.js, and the
//! program is as it was.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::collected::{self, AtWork};
use crate::support::profile::{Profile, Site};
use crate::support::room::{stderr, stdout};
use crate::support::{Program, Room, bridge, is_installed, skip, truth};
use serde_json::Value;

/// Every Node.js that is here: the system's, and those that `scripts/setup` has from npm.
fn nodes() -> Vec<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/nodes");
    let releases = fs::read_dir(own).into_iter().flatten().flatten();
    let mut nodes: Vec<_> = releases
        .map(|release| release.path().join("node_modules/node/bin/node"))
        .filter(|node| node.exists())
        .map(|node| node.to_string_lossy().into_owned())
        .collect();
    nodes.sort();
    if is_installed("node") {
        nodes.insert(0, "node".to_owned());
    }
    if nodes.len() < 2 {
        skip("no Node.js of npm, or none of Debian (scripts/setup installs both)");
    }
    nodes
}

/// The system's, for what does not depend on the release.
fn node() -> Option<String> {
    nodes().into_iter().next()
}

/// Runs it as a user does, with and without the agent.
fn profile(node: &str, options: &[&str], arguments: &[&str]) -> (Output, Profile, Room) {
    let room = Room::new();
    let run = ["run", "-q", "--seed", "7", "-o", "x.allocsample"];
    let output = room.output(&[&run, options, &["--", node], arguments].concat());
    let bare = Command::new(node)
        .args(arguments)
        .output()
        .expect("Node.js");
    assert_eq!(
        (stdout(&output), stderr(&output), output.status.code()),
        (stdout(&bare), stderr(&bare), bare.status.code()),
        "{node}"
    );
    let profile = Profile::read(&room.path("x.allocsample"));
    (output, profile, room)
}

/// V8 draws samples too, by numbers that follow from its seed.
fn known_sites(node: &str, options: &[&str]) -> (Output, Profile, Room) {
    let program = bridge::program("known_sites.js");
    let program = program.to_string_lossy();
    profile(
        node,
        options,
        &["--random-seed=1", "--expose-gc", &program, "1"],
    )
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
    for node in nodes() {
        for interval in ["8K", "64K"] {
            assert_sites(&node, interval);
        }
    }
}

#[track_caller]
fn assert_sites(node: &str, interval: &str) {
    let (output, profile, room) = known_sites(node, &["--interval", interval]);
    let charges = charges(&room, OF_THE_PROGRAM);
    let known = truth::printed(&output.stdout);
    assert_eq!(known.len(), 7);
    for (name, known) in known {
        let [bytes, variance, live, live_variance, samples] = charges[&name];
        assert!(samples > 50.0, "{node} {name}: {samples} samples");
        // In new arrays V8 has two words for what it learns of them.
        let slack = 0.005 * known.bytes as f64;
        let difference = (bytes - known.bytes as f64).abs();
        assert!(
            difference <= 4.0 * variance.sqrt() + slack,
            "{node} {interval} {name}: {bytes:.0} bytes of {known:?}"
        );
        // What nobody holds may still stand in a register when the collector comes.
        let slack = slack.max(8.0 * live_variance.sqrt() * f64::from(known.live_bytes == 0));
        let difference = (live - known.live_bytes as f64).abs();
        assert!(
            difference <= 4.0 * live_variance.sqrt() + slack
                && live <= 0.02 * bytes + known.live_bytes as f64 * 2.0,
            "{node} {interval} {name}: {live:.0} bytes live of {known:?}"
        );
    }
    let z = profile.report["audit"]["z"].as_f64().expect("an audit");
    assert!(z.abs() < 4.0, "{node}: audit {z}");
}

#[test]
fn functions_lines_and_collections_are_told() {
    let file = bridge::program("known_sites.js");
    for node in nodes() {
        let (_, profile, _room) = known_sites(&node, &["--interval", "8K"]);
        bridge::assert_line(
            &profile,
            "largeBufferAndKept",
            &file,
            "allocUnsafeSlow(40000)",
        );
        bridge::assert_line(&profile, "arrayAndKept", &file, "new Array(500)");
        for leaf in ["arrayAndKept", "objectAndFreed"] {
            bridge::assert_stack(&profile, &["executeUserEntryPoint", "main", "site", leaf]);
        }
        let stacks = profile.stacks();
        let through_both = stacks.iter().any(|(stack, _)| {
            let at = |name: &str| stack.iter().position(|frame| frame == name);
            at("__libc_start_main_impl") < at("main")
                && at("main") < at("memoryAndFreed")
                && at("main").is_some()
        });
        assert!(
            through_both,
            "{node}: native frames with JavaScript among them"
        );
        let heap = bridge::heap(&profile, "javascript");
        assert!(heap["minor_collections"].as_f64() >= Some(1.0), "{heap}");
        assert!(heap["major_collections"].as_f64() >= Some(2.0), "{heap}");
        assert!(heap["gc_time_s"].as_f64() > Some(0.0), "{heap}");
    }
}

/// V8 decides by the clock when it collects; here the program asks for it.
#[test]
fn the_leak_is_found() {
    let program = bridge::program("leaky.js");
    for node in nodes() {
        let arguments = ["--expose-gc", &*program.to_string_lossy(), "160000"];
        let command = [&[&*node], &arguments[..]].concat();
        bridge::assert_leak(&command, "openSession");
    }
}

/// Where V8 has not looked at the objects late enough, that is said in place of a verdict.
#[test]
fn a_leak_that_no_full_collection_has_looked_at_is_undecided() {
    let program = bridge::program("leaky.js");
    for node in nodes() {
        let room = Room::new();
        let program = [&*program.to_string_lossy(), "320000"];
        let run = ["run", "-q", "--seed", "7", "--interval", "16K"];
        let output = ["-o", "x.allocsample", "--", &node];
        let output = room.output(&[&run[..], &output, &program].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let output = room.output(&["leaks", "x.allocsample", "--format", "json"]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("suspects");
        let sessions = found["suspects"].as_array().expect("suspects").iter();
        let sessions: Vec<_> = sessions
            .filter(|of| of["function"] == "openSession" && of["heap"] == "javascript")
            .map(|of| (of["verdict"].as_str(), of["reason"].as_str()))
            .collect();
        let said = [
            (Some("possible leak"), Some("nothing freed")),
            (Some("undecided"), Some("unexamined")),
        ];
        assert!(
            sessions.len() == 1 && said.contains(&sessions[0]),
            "{node}: {sessions:?}"
        );
    }
}

/// The program of the matrix, in which V8 makes one function of all.
fn known_truth() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/matrix/programs/known_truth.js");
    file.to_string_lossy().into_owned()
}

/// V8 may allocate objects of several functions at once, and would take them all for dead when the first of them dies.
#[test]
fn objects_that_optimized_code_allocates_together_are_live_on_their_own() {
    for node in nodes() {
        let room = Room::new();
        let run = ["run", "-q", "--seed", "7", "--interval", "32K", "-o"];
        let command = ["x.allocsample", "--", &node, "--expose-gc", &known_truth()];
        let mut run = room.command(&[&run[..], &command].concat());
        let output = run.env("KNOWN_TRUTH_OWN", "1").output().expect("Node.js");
        assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
        let own: Value = serde_json::from_slice(&output.stdout).expect("V8's figure");
        let own = own["own_live_bytes"].as_f64().expect("V8's figure");
        let live: f64 = charges(&room, "heap = 'javascript'")
            .values()
            .map(|charge| charge[2])
            .sum();
        assert!(
            (live / own - 1.0).abs() < 0.1,
            "{node}: {live:.0} bytes live, by V8's own figure {own:.0}"
        );
    }
}

/// What the report says where functions that V8 inlines are charged to their callers.
const CHARGED: &str = "note: V8 inlines functions";

/// What it says where V8 draws too few objects.
const TOO_FEW: &str = "Node.js before 22 samples too few of the objects";

fn major_of(node: &str) -> u32 {
    let print = "console.log(process.versions.node.split('.')[0])";
    let output = Command::new(node).args(["-e", print]).output();
    let printed = stdout(&output.expect("Node.js"));
    printed.trim().parse().expect("a number")
}

/// Every site's allocated and live bytes are within four standard errors; the caller's own, beside its arrays, are few.
#[track_caller]
fn assert_apart(room: &Room, sites: &Value, case: &str) {
    let charges = charges(room, "heap = 'javascript'");
    for (name, site) in sites.as_object().expect("sites") {
        let [bytes, variance, live, live_variance, samples] = charges[name];
        assert!(samples > 50.0, "{case} {name}: {samples} samples");
        for (found, variance, known) in [
            (bytes, variance, &site["bytes"]),
            (live, live_variance, &site["live_bytes"]),
        ] {
            let known = known.as_f64().expect("bytes");
            // Of a churning site an object may stand in a register when the collector comes.
            let slack = 0.005 * bytes;
            assert!(
                (found - known).abs() <= 4.0 * variance.sqrt() + slack,
                "{case} {name}: {found:.0} bytes of {known:.0}"
            );
        }
    }
}

/// V8 makes one function of all four, unless it is told not to. Its CPU profiler knows them nevertheless, from V8 12 on. Each has its
/// own objects then, and the leak its name.
#[test]
fn functions_that_v8_inlines_are_named_or_kept_apart() {
    for node in nodes() {
        for inlining in ["named", "charged", "off"] {
            let options = ["--inlining", inlining, "--interval", "16K"];
            let arguments = ["--expose-gc", &known_truth()];
            let room = Room::new();
            let run = ["run", "-q", "--seed", "7", "-o", "x.allocsample"];
            let output = room.output(&[&run[..], &options, &["--", &node], &arguments].concat());
            assert_eq!((output.status.code(), &*stderr(&output)), (Some(7), ""));
            let report = stdout(&room.output(&["report", "x.allocsample"]));
            let is_charged = inlining == "charged";
            assert_eq!(report.contains(CHARGED), is_charged, "{node}: {report}");
            let misses_objects = report.contains(TOO_FEW);
            assert_eq!(misses_objects, major_of(&node) < 22, "{node}: {report}");
            if is_charged {
                continue;
            }
            let truth: Value = serde_json::from_slice(&output.stdout).expect("the truth");
            assert_apart(&room, &truth["sites"], &format!("{node} {inlining}"));
            let leaks = stdout(&room.output(&["leaks", "x.allocsample"]));
            let leak = leaks.find("leakSession").expect(&leaks);
            assert!(
                leaks.find("fillCache").is_none_or(|cache| leak < cache),
                "{leaks}"
            );
        }
    }
}

/// Starts the program, attaches when it is ready, lets it go on, and gives the truth that it prints.
fn attached(node: &str, arguments: &[&str], options: &[&str]) -> (Value, Room) {
    let room = Room::new();
    let mut program = Command::new(node)
        .arg("--expose-gc")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Node.js");
    let mut lines = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("a line"), "ready");
    let pid = program.id().to_string();
    let fixed = [
        "attach",
        &pid,
        "--seed",
        "7",
        "--interval",
        "16K",
        "-o",
        "x.allocsample",
    ];
    let output = room.output(&[&fixed[..], options].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    writeln!(program.stdin.take().expect("a pipe")).expect("it reads");
    let truth = serde_json::from_str(&lines.next().expect("a line").expect("a line"));
    assert_eq!(program.wait().expect("it ends").code(), Some(7));
    (truth.expect("JSON"), room)
}

#[test]
fn a_running_program_is_joined_by_attach() {
    for node in nodes() {
        let (truth, room) = attached(&node, &[&known_truth(), "wait"], &[]);
        assert_apart(&room, &truth["sites"], &node);
    }
}

/// What V8 has compiled before it folds objects of several functions into one. It compiles it again, unless it is to be left alone.
#[test]
fn code_from_before_an_attach_is_compiled_again() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hot_when_attached.js");
    let arguments = [&*source.to_string_lossy()];
    for node in nodes() {
        for inlining in ["named", "recompiled", "charged"] {
            let (truth, room) = attached(&node, &arguments, &["--inlining", inlining]);
            let report = stdout(&room.output(&["report", "x.allocsample"]));
            if inlining == "charged" {
                assert!(report.contains(CHARGED), "{node}: {report}");
                // Otherwise V8 had nothing to compile again.
                let live = charges(&room, "heap = 'javascript'")
                    .get("leakSession")
                    .map_or(0.0, |charge| charge[2]);
                let known = truth["leakSession"]["live_bytes"].as_f64().expect("bytes");
                assert!(live < 0.5 * known, "{node}: {live:.0} bytes of {known:.0}");
            } else {
                assert!(!report.contains("inline"), "{node}: {report}");
                assert_apart(&room, &truth, &format!("{node} {inlining}"));
            }
        }
    }
}

/// Most functions of a program have no name. A row for all of them would say nothing.
#[test]
fn functions_without_a_name_are_told_apart_by_their_place() {
    let program = bridge::program("nameless_functions.js");
    for node in nodes() {
        let (output, _, room) =
            profile(&node, &["--interval", "32K"], &[&program.to_string_lossy()]);
        let charges = charges(&room, OF_THE_PROGRAM);
        let known = truth::printed(&output.stdout);
        assert_eq!(known.len(), 9);
        for (name, known) in known {
            let [bytes, variance, live, ..] = charges[&name];
            // In new arrays V8 has two words for what it learns of them.
            let slack = 0.005 * known.bytes as f64;
            for estimate in [bytes, live] {
                assert!(
                    (estimate - known.bytes as f64).abs() <= 4.0 * variance.sqrt() + slack,
                    "{node} {name}: {bytes:.0} bytes, {live:.0} live, of {known:?}"
                );
            }
        }
        assert!(!charges.contains_key("(anonymous)"), "{node}");
    }
}

/// A worker's heap goes with it, and the next one may get its address.
#[test]
fn workers_that_come_and_go_are_all_sampled_and_leave_nothing_alive() {
    const WORKERS: f64 = 12.0;
    const EACH: f64 = 2000.0 * 1072.0;
    let code = "const { Worker } = require('node:worker_threads');
        const work = `const kept = []; function inWorker() { return new Array(128); }
            for (let i = 0; i < 2000; i++) kept.push(Reflect.apply(inWorker, null, []));`;
        (function next(left) {
            if (left > 0) new Worker(work, { eval: true }).on('exit', () => next(left - 1));
        })(12);";
    for node in nodes() {
        let (_, _, room) = profile(&node, &["--interval", "16K"], &["-e", code]);
        let [bytes, _, live, ..] = charges(&room, "heap = 'javascript'")["inWorker"];
        // Each is joined before its program begins. A standard error is 2.5 %, and V8 allocates some more for the function itself.
        assert!(
            (0.9..1.2).contains(&(bytes / WORKERS / EACH)),
            "{node}: {bytes} bytes"
        );
        assert!(live < EACH, "{node}: {live} bytes live");
    }
}

/// V8's CPU profiler must run before V8 inlines anything into a running loop, because it cannot find that out later. The agent must start
/// it in time at any interval, in workers as well.
#[test]
fn loops_that_are_optimized_as_they_run_have_the_functions_inlined_in_them() {
    const THREADS: f64 = 4.0;
    const EACH: f64 = 100.0 * 2000.0 * 1072.0;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/module_loop.js");
    for node in nodes() {
        for interval in ["64K", "512K", "4M"] {
            let (.., room) = profile(
                &node,
                &["--interval", interval],
                &[&program.to_string_lossy()],
            );
            let [bytes, variance, ..] = charges(&room, "heap = 'javascript'")["inLoop"];
            assert!(
                (bytes - THREADS * EACH).abs() <= 4.0 * variance.sqrt(),
                "{node} {interval}: {bytes:.0} bytes of {:.0}",
                THREADS * EACH
            );
        }
    }
}

/// V8 takes memory for its queue of interrupts from malloc. A request from inside that would spoil the queue.
#[test]
fn v8s_queue_of_interrupts_is_left_alone_while_it_changes() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("c_shim/include");
    let include = format!("-I{}", header.display());
    let addon = Program::library("interrupt_queue.c", "interrupt_queue.node", &[&include]);
    let program = bridge::program("interrupt_queue.js");
    for node in nodes() {
        let room = Room::new();
        let output = room
            .command(&["run", "-q", "-o", "x.allocsample", "--", &node])
            .args([&*program, addon.path()])
            .env("ALLOCSAMPLE_START", "off")
            .output()
            .expect("Node.js");
        assert_eq!(
            (stdout(&output), output.status.code()),
            ("20000\n".to_owned(), Some(0)),
            "{node}: {}",
            stderr(&output)
        );
        assert!(
            charges(&room, "true")
                .values()
                .map(|charge| charge[4])
                .sum::<f64>()
                > 300.0,
            "{node}: the queue's memory was sampled"
        );
    }
}

fn steered_sites(node: &str, count: u32, told: bridge::Told) -> [Site; 3] {
    let room = Room::new();
    let program = bridge::program("steered_sites.js");
    let options = [node, "--random-seed=1", "--expose-gc"];
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

/// Each sample counts by the interval under which it is told, also while that changes. A shorter interval than the first is that of
/// `malloc` alone.
#[test]
fn v8s_heap_follows_the_interval_up_to_the_first() {
    const COUNT: u32 = 100_000;
    const BYTES: f64 = COUNT as f64 * 4048.0;
    for node in nodes() {
        let sites = steered_sites(&node, COUNT, bridge::INTERVALS);
        bridge::assert_follows_to(sites, BYTES, [32e3, 256e3, 32e3]);
        bridge::assert_live(sites, [0.0, BYTES / 10.0, BYTES / 10.0]);
    }
}

#[test]
fn v8s_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const COUNT: u32 = 50_000;
    for node in nodes() {
        let sites = steered_sites(&node, COUNT, bridge::STOP_AND_START);
        // V8 is asked at its collections: what has filled its young space is told still.
        bridge::assert_rests(sites, f64::from(COUNT) * 4048.0, 48e6);
    }
}

/// The same program under V8's own profiler, which draws samples of its own, as `HeapProfiler` in DevTools shows them.
#[test]
fn v8s_own_profiler_says_the_same_of_the_top_sites() {
    let Some(node) = node() else {
        return;
    };
    let (_, _, room) = known_sites(&node, &["--interval", "8K"]);
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
    let output = Command::new(&node)
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
    let throws = "const b = []; for (let i = 0; i < 100000; i++) b.push([i]); throw b.length";
    for node in nodes() {
        let (output, profile, _room) = profile(&node, &["--interval", "16K"], &["-e", code]);
        assert_eq!(output.status.code(), Some(3));
        let heap = bridge::heap(&profile, "javascript");
        assert!(heap["samples"].as_u64() > Some(100), "{heap}");
        let (output, ..) = self::profile(&node, &["--interval", "16K"], &["-e", throws]);
        assert_eq!(output.status.code(), Some(1));
    }
}

/// A heap near its limit starts incremental marking at any allocation, also at ours.
#[test]
fn a_worker_ends_at_its_limit_as_without_us() {
    let program = bridge::program("worker_limits.js");
    let ended = "ERR_WORKER_OUT_OF_MEMORY\n".repeat(3);
    for node in nodes() {
        let arguments = [&*program.to_string_lossy()];
        let (output, profile, _room) = profile(&node, &["--interval", "64K"], &arguments);
        let shown = (stdout(&output), output.status.code());
        assert_eq!(shown, (ended.clone(), Some(0)), "{node}");
        let heap = bridge::heap(&profile, "javascript");
        assert!(heap["samples"].as_u64() > Some(100), "{heap}");
    }
}

#[test]
fn a_program_that_samples_by_itself_goes_first() {
    let code = "const b = []; for (let i = 0; i < 300000; i++) b.push([i]); console.log(b.length)";
    let run = ["run", "-q", "--interval", "16K", "-o", "x.allocsample"];
    for node in nodes() {
        let room = Room::new();
        let node = [
            "--",
            &node,
            "--heap-prof",
            "--heap-prof-name=v8.json",
            "-e",
            code,
        ];
        let output = room.output(&[&run[..], &node].concat());
        assert_eq!(
            (stdout(&output), output.status.code()),
            ("300000\n".to_owned(), Some(0))
        );
        let total: f64 = sums_of_v8(&room.path("v8.json")).values().sum();
        assert!(total > 5e6, "V8's own profile has {total} bytes");
        let report = room.output(&["report", "x.allocsample"]);
        let reason = "--heap-prof uses V8's sampling profiler";
        assert!(stdout(&report).contains(reason), "{}", stdout(&report));
    }
}

/// V8 compares its flags with those that the snapshot was made under.
#[test]
fn a_program_starts_from_its_snapshot() {
    for node in nodes() {
        assert_starts_from_snapshot(&node);
    }
}

#[track_caller]
fn assert_starts_from_snapshot(node: &str) {
    let room = Room::new();
    let main = "const x = 41; require('v8').startupSnapshot.setDeserializeMainFunction(() => console.log(x + 1))";
    fs::write(room.path("main.js"), main).expect("a file");
    let run = |command: &[&str]| {
        let output = room.output(&[&["run", "-q", "--"], command].concat());
        (stdout(&output), stderr(&output), output.status.code())
    };
    let expected = ("42\n".to_owned(), String::new(), Some(0));
    let blob = ["--snapshot-blob", "x.blob"];
    run(&[&[node], &blob[..], &["--build-snapshot", "main.js"]].concat());
    assert_eq!(run(&[&[node], &blob[..], &["main.js"]].concat()), expected);
    let options = format!("NODE_OPTIONS={}", blob.join(" "));
    assert_eq!(run(&["env", &options, node, "main.js"]), expected);
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    let Some(node) = node() else {
        return;
    };
    let (_, profile, _room) = known_sites(&node, &["--interval", "16K", "--runtime", "none"]);
    assert!(!bridge::has_heap(&profile, "javascript"));
    assert_eq!(profile.site("largeBufferAndKept").samples, 0);
}

#[test]
fn a_bounded_cache_is_live_and_nothing_else_once_v8_was_asked_to_collect() {
    let program = bridge::program("bounded_cache.js");
    for node in nodes() {
        let program = [&*program.to_string_lossy()];
        let command = [&[&*node], &program[..]].concat();
        let node = AtWork::start(Room::new(), &["--interval", "16K"], &command);
        node.collect("javascript");
        let (live, error) = node.survivors("javascript", "makeEntry");
        // An entry is an array object and its elements.
        let known = 20_000.0 * 1_072.0;
        assert!(
            (live - known).abs() < 5.0 * error,
            "{command:?}: {live} ± {error}, {known}"
        );
        collected::assert_not_accused(&node.room, "copy.allocsample", "makeEntry");
        node.end();
    }
}
