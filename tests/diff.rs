//! Promise: `allocsample diff` shows what changed, and calls nothing a change that sampling explains.

mod support;

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use support::room::{assert_error, stderr, stdout};
use support::{Program, Room};

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
    assert_error(
        &diff(&["a.allocsample", "--filter", "("]),
        2,
        "not a regular expression",
    );
}
