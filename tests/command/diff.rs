//! Promise: `allocsample diff` shows what changed, and calls nothing a change that sampling explains.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::support::room::{assert_error, stderr, stdout};
use crate::support::{Program, Room};
use serde_json::Value;

/// Records the phases of that many bytes each.
fn record(room: &Room, name: &str, bytes: u32, seed: u32) {
    record_with(room, name, bytes, seed, &["--interval", "128K"]);
}

fn record_with(room: &Room, name: &str, bytes: u32, seed: u32, options: &[&str]) {
    let (bytes, seed) = (bytes.to_string(), seed.to_string());
    let mut child = room
        .command(
            &[
                &["run", "-q", "--seed", &seed, "-o", name],
                options,
                &["--", "./phases", &bytes],
            ]
            .concat(),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the command");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"\n\n\n\n").expect("the program listens");
    drop(input);
    assert!(child.wait().expect("the program").success());
}

fn room() -> Room {
    let room = Room::new();
    room.add(&Program::compiled("phases.c"), "phases");
    room
}

fn diff(room: &Room, arguments: &[&str]) -> Value {
    let output = room.output(&[&["diff", "--format", "json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let diff: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(diff["schema"], "allocsample-diff/1");
    diff
}

fn significant(diff: &Value) -> Vec<String> {
    let rows = diff["rows"].as_array().expect("rows").iter();
    rows.filter(|row| row["significant"] == true)
        .map(|row| row["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// Twelve comparisons of equal runs, each with a false discovery rate of 5 %: four false alarms happen once in 450 times,
/// and the seeds are fixed.
#[test]
fn runs_of_one_program_do_not_differ() {
    let room = room();
    for seed in 1..=4 {
        record(&room, &format!("{seed}.allocsample"), 100_000_000, seed);
    }
    let mut false_alarms = 0;
    for (before, after) in [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)] {
        let (before, after) = (
            format!("{before}.allocsample"),
            format!("{after}.allocsample"),
        );
        for by in ["function", "site"] {
            let found = significant(&diff(&room, &[&before, &after, "--by", by]));
            false_alarms += usize::from(!found.is_empty());
        }
    }
    assert!(false_alarms < 4, "{false_alarms}");
}

/// Twelve comparisons of equal runs whose intervals differ by 4 and 16: each side's own error would be wrong here.
#[test]
fn equal_runs_at_other_intervals_do_not_differ() {
    let room = room();
    for seed in 1..=3 {
        let name = |interval: &str| format!("{interval}.{seed}.allocsample");
        for interval in ["128K", "512K", "2M"] {
            let options = ["--interval", interval];
            record_with(&room, &name(interval), 50_000_000, seed, &options);
        }
    }
    let mut false_alarms = 0;
    for (one, other) in [
        ("128K", "512K"),
        ("128K", "2M"),
        ("2M", "512K"),
        ("2M", "128K"),
    ] {
        for seed in 1..=3 {
            let (before, after) = (
                format!("{one}.{seed}.allocsample"),
                format!("{other}.{}.allocsample", seed % 3 + 1),
            );
            let found = significant(&diff(&room, &[&before, &after, "--by", "site"]));
            false_alarms += usize::from(!found.is_empty());
        }
    }
    assert!(false_alarms < 4, "{false_alarms}");
}

#[test]
fn of_periodic_profiles_nothing_is_called_noise() {
    let room = room();
    let options = ["--interval", "128K", "--sampling", "periodic"];
    record_with(&room, "a.allocsample", 20_000_000, 1, &options);
    record_with(&room, "b.allocsample", 30_000_000, 2, &options);
    let text = room.output(&["diff", "a.allocsample", "b.allocsample", "--by", "site"]);
    let text = stdout(&text);
    assert!(
        text.contains("which of these changes are noise is not known"),
        "{text}"
    );
    assert!(!text.contains("did not change"), "{text}");
    assert!(text.contains("allocate"), "{text}");
    let json = diff(&room, &["a.allocsample", "b.allocsample"]);
    assert!(json["total"]["p_value"].is_null() && json["total"]["z"].is_null());
}

#[test]
fn where_every_allocation_is_recorded_each_change_is_certain() {
    let room = room();
    let options = ["--interval", "1"];
    record_with(&room, "a.allocsample", 2_000_000, 1, &options);
    record_with(&room, "b.allocsample", 2_100_000, 2, &options);
    let json = diff(&room, &["a.allocsample", "b.allocsample"]);
    assert_eq!(json["total"]["p_value"], 0.0);
    // Infinite, which JSON cannot say.
    assert_eq!(json["total"]["z"].as_f64(), Some(f64::MAX));
    let same = diff(&room, &["a.allocsample", "a.allocsample"]);
    assert_eq!(
        (&same["total"]["z"], &same["total"]["p_value"]),
        (&0.0.into(), &1.0.into())
    );
}

#[test]
fn what_grew_is_shown_with_its_size_and_not_what_stayed() {
    let room = room();
    record(&room, "a.allocsample", 200_000_000, 1);
    record(&room, "b.allocsample", 300_000_000, 2);
    let sites = diff(&room, &["a.allocsample", "b.allocsample", "--by", "site"]);
    let grown = significant(&sites);
    assert_eq!(grown.len(), 4, "each phase is a site: {grown:?}");
    let row = &sites["rows"][0];
    let number = |row: &Value, key: &str| row[key].as_f64().expect("a number");
    let error = number(row, "before_stderr").hypot(number(row, "after_stderr"));
    assert!(
        (number(row, "difference") - 100e6).abs() < 4.0 * error,
        "{row}"
    );
    // The large block is one, of the same size, in both.
    let rows = sites["rows"].as_array().expect("rows");
    let large = rows.iter().find(|row| row["name"] == "keep_large");
    assert_eq!(number(large.expect("the block"), "difference"), 0.0);

    // For each byte that was asked for nothing has changed.
    let files = ["a.allocsample", "b.allocsample"];
    let per_count = ["--per-count", "200,300", "--filter", "phase_"];
    let same = diff(&room, &[&files[..], &per_count].concat());
    assert_eq!(significant(&same), Vec::<String>::new());
    assert_eq!(same["per"], "count");

    let text = room.output(&[&["diff"], &files[..]].concat());
    let text = stdout(&text);
    assert!(text.starts_with("allocated bytes: "), "{text}");
    assert!(text.contains("allocate [phases]"), "{text}");
    let is_near_half =
        |text: &str| (45..=55).any(|percent| text.contains(&format!("(+{percent} %)")));
    assert!(is_near_half(&text), "{text}");
    assert!(!text.contains("keep_large"), "{text}");
    assert!(
        text.contains("did not change by more than sampling does"),
        "{text}"
    );
}

/// A copy of the program in a directory of its own, with some lines before its first, recorded.
fn record_checkout(room: &Room, name: &str, lines_before: usize, seed: u32) {
    let directory = room.path(name);
    std::fs::create_dir_all(directory.join("src")).expect("a directory");
    let source =
        std::fs::read_to_string(crate::support::bridge::program("phases.c")).expect("a source");
    let source = "\n".repeat(lines_before) + &source;
    let path = directory.join("src/phases.c");
    std::fs::write(&path, source).expect("a copy");
    let program = room.path("phases");
    let compiler = Command::new("cc")
        .args(["-g", "-O1", "-o"])
        .args([&program, &path])
        .status();
    assert!(compiler.expect("a compiler").success());
    record(room, &format!("{name}.allocsample"), 100_000_000, seed);
}

/// Debug information has absolute paths, and an edit moves the lines below it.
#[test]
fn lines_of_two_checkouts_are_the_same_lines() {
    let room = Room::new();
    for (seed, (name, lines_before)) in (1..).zip([("one", 0), ("two", 0), ("edited", 7)]) {
        record_checkout(&room, name, lines_before, seed);
    }
    for other in ["two.allocsample", "edited.allocsample"] {
        let by_line = diff(&room, &["one.allocsample", other, "--by", "line"]);
        assert_eq!(significant(&by_line), Vec::<String>::new(), "{by_line}");
        let rows = by_line["rows"].as_array().expect("rows");
        let allocate = rows.iter().find(|row| row["name"] == "allocate");
        let allocate = allocate.expect("the line that allocates");
        assert!(allocate["before"].as_f64() > Some(3e8), "{allocate}");
        assert!(allocate["after"].as_f64() > Some(3e8), "{allocate}");
    }
}

/// Runs whose interval was changed on the way, compared with runs whose interval was not.
#[test]
fn an_interval_changed_during_a_run_is_not_a_change_of_the_program() {
    let room = room();
    let mut false_alarms = 0;
    for seed in 1..=4 {
        let name = |kind: &str| format!("{kind}.{seed}.allocsample");
        let options = ["--interval", "64K"];
        record_with(&room, &name("constant"), 100_000_000, seed, &options);
        record_with_change(&room, &name("changed"), 100_000_000, seed + 10, "2M");
        record_with_change(&room, &name("grown"), 150_000_000, seed + 20, "2M");
        let files = [name("constant"), name("changed"), name("grown")];
        let compare = |after: &str| diff(&room, &[&files[0], after, "--by", "site"]);
        false_alarms += significant(&compare(&files[1])).len();
        // The phases before the change are found to have grown.
        let grown = significant(&compare(&files[2]));
        assert!(grown.len() >= 2, "seed {seed}: {grown:?}");
    }
    // 20 rows at a false discovery rate of 5 %.
    assert!(false_alarms <= 2, "{false_alarms}");
}

/// The interval changes after the second phase.
fn record_with_change(room: &Room, name: &str, bytes: u32, seed: u32, interval: &str) {
    let (bytes, seed) = (bytes.to_string(), seed.to_string());
    let run = [
        "run",
        "-q",
        "--interval",
        "64K",
        "--seed",
        &seed,
        "-o",
        name,
    ];
    let mut child = room
        .command(&[&run[..], &["--", "./phases", &bytes]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command");
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    for phase in 0..4 {
        if phase == 2 {
            let changed = room.output(&["ctl", name, "interval", interval]);
            assert_eq!(changed.status.code(), Some(0), "{}", stderr(&changed));
        }
        input.write_all(b"\n").expect("the program listens");
        let mut done = String::new();
        output.read_line(&mut done).expect("an answer");
        assert_eq!(done, "done\n");
    }
    drop(input);
    assert!(child.wait().expect("the program").success());
}

/// The program's own variation, 20 % from run to run, is no change; with one run a side nobody can know that.
#[test]
fn replicates_tell_a_change_from_the_variation_between_runs() {
    let room = room();
    let runs = [
        ("a1", 90),
        ("a2", 120),
        ("a3", 100),
        ("b1", 115),
        ("b2", 85),
        ("b3", 105),
        ("c1", 290),
        ("c2", 310),
        ("c3", 330),
    ];
    for (seed, (name, megabytes)) in (1..).zip(runs) {
        record(
            &room,
            &format!("{name}.allocsample"),
            megabytes * 1_000_000,
            seed,
        );
    }
    let group = |side: &str| [1, 2, 3].map(|run| format!("{side}{run}.allocsample"));
    let compare = |before: &str, after: &str| {
        let (before, after) = (group(before), group(after));
        let files = before.iter().map(String::as_str).chain(["--"]);
        let files: Vec<&str> = files.chain(after.iter().map(String::as_str)).collect();
        (
            diff(&room, &files),
            stdout(&room.output(&[&["diff"], &files[..]].concat())),
        )
    };
    let (same, text) = compare("a", "b");
    assert_eq!(significant(&same), Vec::<String>::new());
    assert_eq!(
        (&same["runs_before"], &same["runs_after"]),
        (&3.into(), &3.into())
    );
    assert!(text.contains("means of 3 and 3 runs"), "{text}");
    assert!(
        text.contains("smallest detectable change of the total"),
        "{text}"
    );
    assert!(
        text.contains("sampling and the differences between runs"),
        "{text}"
    );
    let (tripled, _) = compare("a", "c");
    assert!(
        significant(&tripled).contains(&"allocate".to_owned()),
        "{tripled}"
    );
    // One run a side: the same variation is called a change, with a word on what the error lacks.
    let text = stdout(&room.output(&["diff", "a1.allocsample", "a2.allocsample"]));
    assert!(text.contains("not the variation between runs"), "{text}");
    assert!(text.contains("allocate [phases]"), "{text}");
}

#[test]
fn mistakes_get_a_line_and_a_status() {
    let room = room();
    record(&room, "a.allocsample", 10_000_000, 1);
    let diff = |arguments: &[&str]| room.output(&[&["diff", "a.allocsample"], arguments].concat());
    assert_error(&diff(&["none.allocsample"]), 1, "none.allocsample");
    assert_error(
        &diff(&["a.allocsample", "--per-count", "1"]),
        2,
        "two numbers above 0",
    );
    let both = "a.allocsample";
    assert_error(&diff(&[]), 2, "expected two profiles");
    assert_error(&diff(&[both, both]), 2, "expected two profiles");
    assert_error(
        &diff(&["--to", "html", "--", both, both]),
        2,
        "--to compares two profiles",
    );
    assert_error(
        &diff(&["a.allocsample", "--filter", "("]),
        2,
        "not a regular expression",
    );
}

/// Two programs of 64 MiB each, from malloc and from mmap.
#[test]
fn the_ledger_names_the_row_that_grew() {
    let room = Room::new();
    room.add(&Program::compiled("unseen_memory.c"), "program");
    for (how, seed) in [("malloc", "1"), ("malloc", "2"), ("mmap", "3")] {
        let name = format!("{how}-{seed}.allocsample");
        let run = [
            "run",
            "-q",
            "--seed",
            seed,
            "-o",
            &name,
            "--",
            "./program",
            how,
        ];
        assert_eq!(room.output(&run).status.code(), Some(0));
    }
    let [malloc, again, mmap] =
        ["malloc-1", "malloc-2", "mmap-3"].map(|it| format!("{it}.allocsample"));
    let memory = diff(&room, &[&malloc, &mmap])["memory"].clone();
    assert_eq!(memory["grew_most"], "mapped by program", "{memory}");
    let rows = memory["rows"].as_array().expect("rows");
    let of = |value: &Value| value["difference"].as_f64().expect("bytes");
    let sum: f64 = rows.iter().map(of).sum();
    assert!(
        (sum - of(&memory["resident_bytes"])).abs() < 1.0,
        "{memory}"
    );
    let row = |account: &str| {
        let row = rows.iter().find(|row| row["account"] == account);
        of(row.expect(account)) / f64::from(1 << 20)
    };
    let (mapped, live) = (row("mapped"), row("malloc"));
    // The mappings may have been read while it wrote to the last of them.
    assert!((58.0..64.5).contains(&mapped), "{memory}");
    assert!((-70.0..-50.0).contains(&live), "{memory}");
    // Equal runs differ by the luck of sampling alone, and nothing is named.
    let equal = diff(&room, &[&malloc, &again])["memory"].clone();
    assert_eq!(equal["grew_most"], Value::Null, "{equal}");
    let text = stdout(&room.output(&["diff", &malloc, &mmap]));
    assert!(
        text.contains("\nresident memory at its largest reading: "),
        "{text}"
    );
    assert!(
        text.contains("\ngrew most: mapped by program, by 6"),
        "{text}"
    );
    let selected = stdout(&room.output(&["diff", "--heap", "malloc", &malloc, &mmap]));
    assert!(
        selected.contains("is not compared: a part of the samples"),
        "{selected}"
    );
}

#[test]
fn a_profile_without_readings_is_said_to_have_none() {
    let room = room();
    record(&room, "a.allocsample", 1_000_000, 1);
    let output = room.output(&["diff", "a.allocsample", "a.allocsample"]);
    let text = stdout(&output);
    assert!(
        text.contains("resident memory is not compared: 2 profiles have no list"),
        "{text}"
    );
    let memory = &diff(&room, &["a.allocsample", "a.allocsample"])["memory"];
    assert_eq!(*memory, Value::Null);
}
