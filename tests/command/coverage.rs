//! Promise: a profile says how much of the process's memory it accounts for.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::support::python::interpreters;
use crate::support::{Program, Room, command, is_installed, skip};
use serde_json::Value;

/// What the commands say of a program that holds 64 MiB.
struct Said {
    /// What the kernel counts, as the program saw it at its peak.
    anonymous_bytes: f64,
    run: String,
    report: String,
    leaks: String,
    sql: String,
    coverage: Value,
}

fn run(how: &str) -> Said {
    let program = Program::compiled("unseen_memory.c");
    run_program(&[program.path().as_os_str(), how.as_ref()])
}

fn run_program(program: &[&OsStr]) -> Said {
    run_sampled("512K", program)
}

fn run_sampled(interval: &str, program: &[&OsStr]) -> Said {
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let ran = Command::new(command())
        .args(["run", "--interval", interval, "--output"])
        .arg(&profile)
        .arg("--")
        .args(program)
        .env("ALLOCSAMPLE_SEED", "7")
        .stdin(std::process::Stdio::null())
        .output()
        .expect("the command");
    let run = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{run}");
    let kib = String::from_utf8_lossy(&ran.stdout);
    let text = |arguments: &[&str]| {
        let said = Command::new(command())
            .args(arguments)
            .arg(&profile)
            .output();
        let said = said.expect("the command");
        assert!(said.status.success(), "{said:?}");
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let json =
        |arguments: &[&str]| -> Value { serde_json::from_str(&text(arguments)).expect("JSON") };
    let coverage = json(&["report", "--format", "json"])["coverage"].clone();
    assert_eq!(json(&["leaks", "--format", "json"])["coverage"], coverage);
    let sql = Command::new(command())
        .args(["query", "--format", "csv"])
        .arg(&profile)
        .arg("SELECT owner, is_sampled, bytes FROM coverage ORDER BY bytes DESC")
        .output();
    Said {
        sql: String::from_utf8_lossy(&sql.expect("the command").stdout).into_owned(),
        anonymous_bytes: kib.trim().parse::<f64>().expect("a figure") * 1024.0,
        report: text(&["report"]),
        leaks: text(&["leaks"]),
        run,
        coverage,
    }
}

/// A text is broken into lines where it is too long for one.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_profile_of_almost_nothing_says_so_in_every_output() {
    let said = run("mmap");
    let Said { coverage, .. } = &said;
    assert_eq!(coverage["low"], true, "{coverage}");
    assert!(coverage["share"].as_f64() < Some(0.1), "{coverage}");
    for text in [&said.run, &said.report, &said.leaks] {
        let text = in_one_line(text);
        assert!(
            // The mappings may have been read while it wrote to the last of them.
            text.contains("of anonymous memory; 6") && text.contains("in mappings without a name"),
            "{text}"
        );
        assert!(
            text.contains("is not in this profile: it comes from another allocator"),
            "{text}"
        );
        assert!(text.contains("of it: mapped by "), "{text}");
        assert!(
            text.contains("; `allocsample memory FILE` shows all rows"),
            "{text}"
        );
        assert!(!text.contains("--interval 4K"), "{text}");
    }
    assert!(!said.leaks.contains("0 leaks"), "{}", said.leaks);
    let rows = &said.sql;
    assert!(rows.contains("mappings without a name,0,"), "{rows}");
    assert!(
        said.leaks.contains("no verdict for the process"),
        "{}",
        said.leaks
    );
}

#[test]
fn a_program_on_malloc_is_accounted_for() {
    let said = run("malloc");
    let Said { coverage, .. } = &said;
    assert_eq!(coverage["low"], false, "{coverage}");
    assert!(coverage["share"].as_f64() > Some(0.9), "{coverage}");
    for text in [&said.run, &said.report, &said.leaks] {
        assert!(text.contains("coverage"), "{text}");
        assert!(!text.contains("is not in this profile"), "{text}");
    }
}

#[test]
fn the_anonymous_memory_is_what_the_kernel_counts_at_the_same_moment() {
    for how in ["mmap", "malloc"] {
        let said = run(how);
        let read = said.coverage["peak_anonymous_bytes"]
            .as_f64()
            .expect("a figure");
        let off = (read - said.anonymous_bytes).abs() / said.anonymous_bytes;
        assert!(off < 0.05, "{how}: {read} is not {}", said.anonymous_bytes);
    }
}

/// The list of mappings has to be of the last 200 ms.
#[test]
fn a_program_that_ends_200_ms_after_its_peak_has_its_mappings_named() {
    let program = Program::compiled("ends_after_peak.c");
    for [wait_ms, growth_ms] in [["0", "0"], ["300", "200"], ["700", "50"], ["2000", "600"]] {
        let program = [
            program.path().as_os_str(),
            wait_ms.as_ref(),
            growth_ms.as_ref(),
        ];
        let said = run_program(&program);
        let rest = &said.coverage["unseen"][0];
        assert_eq!(rest["name"], "mappings without a name", "{}", said.coverage);
        // Of 64 MiB; on a busy machine the last list may be older than the last of its growth.
        assert!(rest["bytes"].as_f64() > Some(30e6), "{}", said.coverage);
    }
}

#[test]
fn a_runtime_without_its_bridge_is_named_in_every_output() {
    if !is_installed("node") {
        return skip("no Node.js (Debian: nodejs)");
    }
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let ran = Command::new(command())
        .args(["run", "--runtime", "none", "--output"])
        .arg(&profile)
        .args(["--", "node", "-e", "console.log(1)"])
        .output()
        .expect("the command");
    let said = |arguments: &[&str]| {
        let said = Command::new(command())
            .args(arguments)
            .arg(&profile)
            .output();
        String::from_utf8_lossy(&said.expect("the command").stdout).into_owned()
    };
    for text in [
        String::from_utf8_lossy(&ran.stderr).into_owned(),
        said(&["report"]),
        said(&["report", "--format", "json"]),
        said(&["leaks"]),
        said(&["leaks", "--format", "json"]),
    ] {
        let text = in_one_line(&text);
        assert!(
            text.contains(
                "the JavaScript heap is not sampled: its bridge did not join (--runtime none)"
            ),
            "{text}"
        );
    }
}

/// Its arenas are its own, and its samples are malloc's blocks. It prints its memory as the C program does. At 8 KiB the
/// share has a standard error of 1.4 %, and was 0.76 to 0.99.
#[test]
fn cpythons_arenas_are_accounted_for_in_every_version() {
    const HOLDS: &str = "
import time
kept = [str(number) + 'x' * 200 for number in range(150_000)]
time.sleep(0.5)
print([line.split()[1] for line in open('/proc/self/smaps_rollup') if line.startswith('Anonymous:')][0])
";
    for python in interpreters() {
        let said = run_sampled("8K", &[python.as_os_str(), "-c".as_ref(), HOLDS.as_ref()]);
        let share = said.coverage["share"].as_f64();
        assert!(share > Some(0.7), "{}: {}", python.display(), said.coverage);
        assert!(!said.run.contains("not in this profile"), "{}", said.run);
    }
}

/// A command's output about a profile, in one line.
fn said(arguments: &[&str], profile: &std::path::Path) -> String {
    let said = Command::new(command())
        .args(arguments)
        .arg(profile)
        .output();
    in_one_line(&String::from_utf8_lossy(&said.expect("the command").stdout))
}

/// All that is said of a profile: report, leaks, as text and as JSON, and the page.
fn all_that_is_said(profile: &std::path::Path) -> Vec<String> {
    let page = profile.with_extension("html");
    let made = Command::new(command())
        .args(["convert", "--to", "html", "-o"])
        .args([&page, profile])
        .output();
    assert!(made.expect("the command").status.success());
    vec![
        said(&["report"], profile),
        said(&["report", "--format", "json"], profile),
        said(&["leaks"], profile),
        said(&["leaks", "--format", "json"], profile),
        in_one_line(&std::fs::read_to_string(page).expect("a page")),
    ]
}

/// CI has none that it does not support, and Perl without its bridge.
#[test]
fn a_runtime_without_its_bridge_is_named_with_its_version() {
    if !is_installed("perl") {
        return skip("no perl");
    }
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let program = "my @k; push @k, \"x\" x 100 . $_ for 1..100000; print $^V";
    let ran = Command::new(command())
        .args(["run", "--runtime", "none", "--output"])
        .arg(&profile)
        .args(["--", "perl", "-e", program])
        .output()
        .expect("the command");
    let version = String::from_utf8_lossy(&ran.stdout).into_owned();
    let version = version.trim_start_matches('v');
    let run = in_one_line(&String::from_utf8_lossy(&ran.stderr));
    let line = format!("Perl {version}: its memory is sampled, but functions and lines");
    for text in all_that_is_said(&profile).into_iter().chain([run]) {
        assert!(text.contains(&line), "{line}: {text}");
    }
}

#[test]
fn a_jvm_that_is_left_alone_at_an_attach_is_said_to_be_missing_with_its_version() {
    if !is_installed("java") {
        return skip("no java (Debian: default-jdk-headless)");
    }
    let room = Room::new();
    let source = room.directory().join("H.java");
    let holds = "class H { static byte[][] all = new byte[300000][]; public static void main(String[] a) throws Exception { for (int i = 0; i < all.length; i++) all[i] = new byte[200]; System.out.println(System.getProperty(\"java.version\")); System.in.read(); } }";
    std::fs::write(&source, holds).expect("room");
    let mut java = Command::new("java")
        .arg(&source)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("java");
    let mut version = String::new();
    let out = java.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut version).expect("a line");
    let profile = room.directory().join("it.allocsample");
    let pid = java.id().to_string();
    let attached = Command::new(command())
        .args(["attach", &pid, "--interval", "1", "--runtime", "none"])
        .arg("--output")
        .arg(&profile)
        .output()
        .expect("the command");
    drop(java.stdin.take());
    let ended = java.wait().expect("java");
    assert!(attached.status.success() && ended.success(), "{attached:?}");
    let line = format!(
        "the JVM {}: the Java heap is not sampled: its bridge did not join (--runtime none)",
        version.trim()
    );
    for text in all_that_is_said(&profile) {
        assert!(text.contains(&line), "{line}: {text}");
        assert!(!text.contains("0 leaks"), "{text}");
    }
}

/// A program that was told to hold 64 MiB of `mmap` and to wait for a line.
struct Waiting {
    child: std::process::Child,
    room: Room,
}

impl Waiting {
    fn start(preloads: bool) -> Self {
        let room = Room::new();
        let program = Program::compiled("unseen_memory.c");
        let mut command = Command::new(program.path());
        command
            .args(["mmap", "wait"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        if preloads {
            command
                .env("LD_PRELOAD", crate::support::agent_library())
                .env("ALLOCSAMPLE_INTERVAL", "1")
                .env(
                    "ALLOCSAMPLE_OUTPUT",
                    room.directory().join("it.allocsample"),
                );
        }
        let mut child = command.spawn().expect("the program");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
        Self { child, room }
    }

    fn profile(&self) -> std::path::PathBuf {
        self.room.directory().join("it.allocsample")
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("the program").success());
    }
}

/// It has no thread of ours yet, and nobody watches it.
#[test]
fn a_running_process_has_its_mappings_read_when_its_profile_is() {
    let mut waiting = Waiting::start(true);
    let report = said(&["report"], &waiting.profile());
    let leaks = said(&["leaks"], &waiting.profile());
    waiting.end();
    for text in [report, leaks] {
        assert!(text.contains("in mappings without a name"), "{text}");
        assert!(text.contains("warning: 6"), "{text}");
    }
}

/// Its last act is to read how much memory it has.
#[test]
fn a_preloaded_program_that_nobody_watched_has_its_coverage() {
    let mut waiting = Waiting::start(true);
    waiting.end();
    for command in ["report", "leaks"] {
        let text = said(&[command], &waiting.profile());
        assert!(text.contains("of anonymous memory"), "{text}");
        assert!(text.contains("is not in this profile"), "{text}");
    }
}

#[test]
fn after_attach_and_detach_the_profile_has_its_coverage() {
    let mut waiting = Waiting::start(false);
    let pid = waiting.child.id().to_string();
    let attached = Command::new(command())
        .args(["attach", &pid, "--interval", "1", "--output"])
        .arg(waiting.profile())
        .output()
        .expect("the command");
    let detached = Command::new(command()).args(["detach", &pid]).output();
    waiting.end();
    assert!(attached.status.success(), "{attached:?}");
    assert!(detached.expect("the command").status.success());
    let report = said(&["report"], &waiting.profile());
    assert!(report.contains("of anonymous memory"), "{report}");
    assert!(report.contains("allocated before the attach"), "{report}");
}

/// As tcmalloc is, it stands before ours, and has the brk heap.
#[test]
fn a_malloc_inside_the_program_is_not_accounted_for() {
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let program = Program::compiled("malloc_on_brk.c");
    let run = summary(&profile, &[], &[program.path().as_os_str()]);
    for text in all_that_is_said(&profile).into_iter().chain([run]) {
        assert!(text.contains("the brk heap"), "{text}");
        assert!(
            text.contains("brings its own malloc in front of ours"),
            "{text}"
        );
        assert!(!text.contains("0 leaks"), "{text}");
    }
}

/// A JVM that allocates 20 MB at each line of its input and keeps them.
struct Jvm {
    child: std::process::Child,
    output: std::io::BufReader<std::process::ChildStdout>,
    room: Room,
}

impl Jvm {
    fn start() -> Self {
        const KEEPS: &str = "class K { static java.util.List<byte[]> all = new java.util.ArrayList<>(); public static void main(String[] a) throws Exception { System.out.println(\"ready\"); while (System.in.read() == '\\n') { for (int i = 0; i < 20000; i++) all.add(new byte[1000]); System.out.println(all.size()); } } }";
        let room = Room::new();
        let source = room.directory().join("K.java");
        std::fs::write(&source, KEEPS).expect("room");
        let mut child = Command::new("java")
            .arg(&source)
            .current_dir(room.directory())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("java");
        let output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut jvm = Self {
            child,
            output,
            room,
        };
        jvm.hear();
        jvm
    }

    fn hear(&mut self) {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.output, &mut line).expect("a line");
        assert!(!line.is_empty(), "the JVM has ended");
    }

    fn allocate(&mut self) {
        let mut input = self.child.stdin.as_ref().expect("a pipe");
        std::io::Write::write_all(&mut input, b"\n").expect("a JVM that reads");
        self.hear();
    }

    /// The JVM's own command prints the code that the agent returns.
    #[track_caller]
    fn load_agent(&self, options: &[&str], code: u32) {
        let loaded = Command::new("jcmd")
            .args([&self.child.id().to_string(), "JVMTI.agent_load"])
            .arg(crate::support::agent_library())
            .args(options)
            .current_dir(self.room.directory())
            .output()
            .expect("jcmd");
        let said = String::from_utf8_lossy(&loaded.stdout).into_owned();
        assert!(said.contains(&format!("return code: {code}")), "{loaded:?}");
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("the JVM").success());
    }
}

#[test]
fn the_heap_of_a_jvm_that_was_attached_to_is_not_missed() {
    if !is_installed("jcmd") {
        return skip("no jcmd (Debian: default-jdk-headless)");
    }
    let mut jvm = Jvm::start();
    let profile = jvm.room.directory().join("it.allocsample");
    let pid = jvm.child.id().to_string();
    let attached = Command::new(command())
        .args(["attach", &pid, "--interval", "16K", "--output"])
        .arg(&profile)
        .output()
        .expect("the command");
    assert!(attached.status.success(), "{attached:?}");
    jvm.allocate();
    let detached = Command::new(command()).args(["detach", &pid]).output();
    assert!(detached.expect("the command").status.success());
    // Nobody records any more: the JVM has to go on all the same.
    jvm.load_agent(&[], 0);
    jvm.allocate();
    jvm.end();
    let report = said(&["report"], &profile);
    assert!(report.contains("byte[] [java]"), "{report}");
    for text in all_that_is_said(&profile) {
        assert!(!text.contains("the Java heap is not sampled"), "{text}");
        assert!(!text.contains("brings its own malloc"), "{text}");
    }
}

/// Its own command brings the agent in too late for `malloc`.
#[test]
fn a_jvm_that_loads_the_agent_is_said_to_lack_what_malloc_serves() {
    if !is_installed("jcmd") {
        return skip("no jcmd (Debian: default-jdk-headless)");
    }
    let mut jvm = Jvm::start();
    jvm.load_agent(&[], 0);
    for _ in 0..4 {
        jvm.allocate();
    }
    jvm.end();
    // The agent names its profile itself, in the JVM's working directory.
    let name = format!("allocsample.java.{}.allocsample", jvm.child.id());
    let profile = jvm.room.directory().join(name);
    for text in all_that_is_said(&profile) {
        assert!(
            text.contains("no malloc blocks are in this profile"),
            "{text}"
        );
        assert!(!text.contains("brings its own malloc"), "{text}");
        assert!(!text.contains("0 leaks"), "{text}");
    }
}

/// 20 MB of arrays are some 1,240 samples at 16 KiB, and some 40 at 512 KiB.
#[test]
fn a_jvm_loads_the_agent_with_an_interval() {
    if !is_installed("jcmd") {
        return skip("no jcmd (Debian: default-jdk-headless)");
    }
    let mut jvm = Jvm::start();
    for unknown in [
        "interval=64X",
        "interval=0",
        "interval",
        "intervals=1K",
        "check,fast",
    ] {
        jvm.load_agent(&[unknown], 2);
    }
    let name = format!("allocsample.java.{}.allocsample", jvm.child.id());
    let profile = jvm.room.directory().join(name);
    let mut before = 0;
    // Loaded again, it takes another one. A thread hears of it at its next sample: once after 1 MiB on average, and after more than
    // 10 MiB in one of 20,000 runs.
    for (options, least, most) in [
        ("interval=16K", 1_000, 1_500),
        ("interval=1M,", 0, 60),
        ("check,interval=16384", 600, 1_500),
    ] {
        jvm.load_agent(&[&format!("\"{options}\"")], 0);
        jvm.allocate();
        let ctl = Command::new(command())
            .args(["ctl", &jvm.child.id().to_string(), "flush"])
            .output();
        assert!(ctl.expect("the command").status.success());
        let count = || {
            let sql = "SELECT count(*) FROM samples JOIN heaps USING (heap_id) WHERE heap = 'java'";
            let counted = Command::new(command())
                .args(["query", "--format", "csv"])
                .arg(&profile)
                .arg(sql)
                .output()
                .expect("the command");
            let text = String::from_utf8_lossy(&counted.stdout).into_owned();
            let number = text.lines().last().and_then(|line| line.parse().ok());
            number.unwrap_or_else(|| panic!("{counted:?}"))
        };
        let before_round = std::mem::replace(&mut before, count());
        let samples: i32 = before - before_round;
        assert!((least..most).contains(&samples), "{options}: {samples}");
    }
    jvm.end();
}

/// The summary that `run` prints for a command, on one line.
fn summary(profile: &Path, options: &[&str], program: &[&OsStr]) -> String {
    let ran = Command::new(command())
        .arg("run")
        .args(options)
        .arg("--output")
        .arg(profile)
        .arg("--")
        .args(program)
        .output()
        .expect("the command");
    in_one_line(&String::from_utf8_lossy(&ran.stderr))
}

/// Its allocator's symbols are those of a jemalloc that is linked in.
#[test]
fn an_allocator_in_the_program_is_named_as_the_likely_owner() {
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let program = Program::compiled("jemalloc_inside.c");
    let run = summary(&profile, &[], &[program.path().as_os_str()]);
    let name = program.path().file_name().expect("a name");
    let owner = format!("{} (its own jemalloc)", name.to_string_lossy());
    for text in all_that_is_said(&profile).into_iter().chain([run]) {
        assert!(text.contains("likely"), "{text}");
        assert!(text.contains(&owner), "{text}");
    }
}

#[test]
fn without_a_profile_the_programs_memory_is_said_to_be_elsewhere() {
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let program = Program::compiled("unseen_memory.c");
    let shell = ["sh", "-c", "exec \"$0\" mmap; true"].map(OsStr::new);
    let words = [&shell[..], &[program.path().as_os_str()]].concat();
    let run = summary(&profile, &["--interval", "1G"], &words);
    assert!(!run.contains("--interval"), "{run}");
    assert!(run.contains("in mappings without a name"), "{run}");
}

/// Go programs end this way.
#[test]
fn a_program_that_exits_by_a_raw_system_call_has_its_coverage() {
    let room = Room::new();
    let profile = room.directory().join("it.allocsample");
    let program = Program::compiled("leaves_silently.c");
    let run = summary(&profile, &[], &[program.path().as_os_str()]);
    // The mappings may have been read while it wrote to the last of them.
    assert!(run.contains("of anonymous memory; 6"), "{run}");
}
