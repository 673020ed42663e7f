//! Promise: `allocsample leaks` names the leak of a real program, and nothing else.

mod support;

use serde_json::Value;
use support::room::{assert_error, stderr, stdout};
use support::{Program, Room};

/// A million requests in half a second.
fn recorded(seed: u64) -> Room {
    let room = Room::new();
    room.add(&Program::compiled("leaks.c"), "leaks");
    let seed = seed.to_string();
    let output = room.output(&[
        "run",
        "--seed",
        &seed,
        "-o",
        "x.allocsample",
        "--",
        "./leaks",
        "1000000",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    room
}

fn suspects(room: &Room, options: &[&str]) -> Vec<Value> {
    let arguments = [&["leaks", "x.allocsample", "--format", "json"], options].concat();
    let output = room.output(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["schema"], "allocsample-leaks/1");
    found["suspects"].as_array().unwrap().clone()
}

fn is_from(suspect: &Value, function: &str) -> bool {
    let stack = suspect["stack"].as_array().unwrap();
    stack.iter().any(|name| name == function)
}

#[test]
fn each_kind_of_site_has_its_verdict() {
    for seed in 1..=5 {
        let room = recorded(seed);
        let found = suspects(&room, &[]);
        for (function, verdict) in [
            ("leak_session", "leak"),
            ("keep_until_exit", "growing"),
            ("fill_cache", "cache-like"),
            ("build_table", "start-up"),
        ] {
            let site = found
                .iter()
                .find(|suspect| is_from(suspect, function))
                .unwrap_or_else(|| panic!("seed {seed}: {function} is not found"));
            assert_eq!(site["verdict"], verdict, "seed {seed}, {function}: {site}");
        }
        let leaks = found.iter().filter(|site| site["verdict"] == "leak");
        assert_eq!(leaks.count(), 1, "seed {seed}");
        assert!(is_from(&found[0], "leak_session"), "worst first");

        let leak = &found[0];
        let number = |name: &str| leak[name].as_f64().unwrap();
        // 64 bytes a request; the limit of 5 standard errors fails once in a million.
        let error = number("live_bytes_stderr");
        assert!(
            (number("live_bytes_at_end") - 64e6).abs() < 5.0 * error,
            "{leak}"
        );
        assert_eq!(number("never_freed_share"), 1.0);
        assert!(number("growth_p_value") < 0.001);

        // The one that the last thread frees is gone at the end, and that thread is named.
        let freed = found.iter().find(|site| is_from(site, "keep_until_exit"));
        let freed = freed.unwrap();
        assert_eq!(freed["live_bytes_at_end"], 0.0);
        assert_eq!(freed["freed_by"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn people_get_the_suspects_and_with_all_the_rest() {
    let room = recorded(1);
    let text = |arguments: &[&str]| {
        let output = room.output(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let short = text(&["leaks", "x.allocsample"]);
    assert!(short.contains("1 leak, 1 growing"), "{short}");
    assert!(short.contains("Nothing that is allocated here is freed"));
    assert!(short.contains("freed only when it ends, by a thread"));
    assert!(!short.contains("< build_table"));
    assert!(!short.contains('\x1b'), "no colours in a pipe");
    let long = text(&["leaks", "x.allocsample", "--all"]);
    assert!(long.contains("< build_table"), "{long}");
    let one = text(&["leaks", "x.allocsample", "--all", "--top", "1"]);
    assert!(one.contains("more; --top N shows more"), "{one}");
    assert!(suspects(&room, &["--filter", "fill_cache"]).len() == 1);
    assert!(suspects(&room, &["--filter", "no such function"]).is_empty());
}

#[test]
fn mistakes_get_a_line_and_a_status() {
    let room = recorded(1);
    assert_error(
        &room.output(&["leaks", "x.allocsample", "--filter", "("]),
        2,
        "not a regular expression",
    );
    assert_error(
        &room.output(&["leaks", "none.allocsample"]),
        1,
        "none.allocsample",
    );
}
