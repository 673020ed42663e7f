//! Promise: the same totals, to the byte of the estimate, come from the report and from every other way out.

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::pprof;
use support::room::{stderr, stdout};
use support::{Room, is_installed, skip};

/// A profile of perl, which allocates in many places, and what the report says of it.
struct Case {
    room: Room,
    report: Value,
}

fn case() -> Option<Case> {
    if !is_installed("perl") {
        skip("perl is not installed: no format was compared");
        return None;
    }
    let room = Room::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/words.pl");
    let options = [
        "run",
        "--interval",
        "32K",
        "--seed",
        "1",
        "-o",
        "x.allocsample",
        "--",
    ];
    let output = room.output(&[&options[..], &["perl", script.to_str().unwrap()]].concat());
    assert!(room.path("x.allocsample").exists(), "{}", stderr(&output));
    let output = room.output(&["report", "x.allocsample", "--format", "json"]);
    let report = serde_json::from_slice(&output.stdout).unwrap();
    Some(Case { room, report })
}

impl Case {
    fn total(&self, name: &str) -> f64 {
        self.report["totals"][name].as_f64().unwrap()
    }

    fn convert(&self, format: &str, extension: &str) -> PathBuf {
        let output = self
            .room
            .output(&["convert", "x.allocsample", "--to", format]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        self.room.path(&format!("x.{extension}"))
    }

    fn json(&self, format: &str, extension: &str) -> Value {
        serde_json::from_slice(&fs::read(self.convert(format, extension)).unwrap()).unwrap()
    }

    /// Allocated and live, rounded to bytes: half a byte for each rounding that a format has to make.
    #[track_caller]
    fn assert_same(&self, allocated: f64, live: f64, roundings: f64) {
        for (name, value) in [("allocated_bytes", allocated), ("live_bytes", live)] {
            let total = self.total(name);
            assert!(
                (value - total).abs() <= 0.5 * roundings,
                "{name}: {value}, the report says {total}"
            );
        }
    }
}

#[test]
fn text_formats_add_up_to_the_report() {
    let Some(case) = case() else { return };
    let sql = "SELECT sum(bytes) AS a, sum(bytes * live) AS l FROM samples";
    let output = case
        .room
        .output(&["query", "x.allocsample", sql, "--format", "json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    case.assert_same(
        rows[0]["a"].as_f64().unwrap(),
        rows[0]["l"].as_f64().unwrap(),
        0.01,
    );

    let (mut allocated, mut live) = (0.0, 0.0);
    for line in fs::read_to_string(case.convert("csv", "csv"))
        .unwrap()
        .lines()
        .skip(1)
    {
        // The last column is quoted and the third has no comma in it here.
        let columns: Vec<&str> = line.splitn(10, ',').collect();
        let bytes: f64 = columns[5].parse().unwrap();
        allocated += bytes;
        live += if columns[7] == "live" { bytes } else { 0.0 };
    }
    case.assert_same(allocated, live, 0.01);

    let collapsed = |metric: &str| -> f64 {
        let arguments = [
            "convert",
            "x.allocsample",
            "--to",
            "collapsed",
            "-o",
            "-",
            "--metric",
            metric,
        ];
        let text = stdout(&case.room.output(&arguments));
        text.lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
            .sum()
    };
    case.assert_same(collapsed("allocated"), collapsed("live"), 2.0);
}

#[test]
fn json_formats_add_up_to_the_report() {
    let Some(case) = case() else { return };
    let json = case.json("json", "json");
    let samples = json["samples"].as_array().unwrap();
    let bytes = |it: &&Value| it["bytes"].as_f64().unwrap();
    let live = samples.iter().filter(|it| it["end"] == "live");
    case.assert_same(
        samples.iter().map(|it| bytes(&it)).sum(),
        live.map(|it| bytes(&it)).sum(),
        0.01,
    );

    let speedscope = case.json("speedscope", "speedscope.json");
    let sum = |index: usize| -> f64 {
        let weights = speedscope["profiles"][index]["weights"].as_array().unwrap();
        weights.iter().map(|weight| weight.as_f64().unwrap()).sum()
    };
    case.assert_same(sum(0), sum(1), 2.0);

    let firefox = case.json("firefox", "firefox.json");
    let rows = &firefox["threads"][0]["nativeAllocations"];
    let column = |name: &str| -> Vec<f64> {
        let column = rows[name].as_array().unwrap();
        column.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let (weights, blocks) = (column("weight"), column("memoryAddress"));
    let mut live = HashMap::new();
    for (weight, block) in weights.iter().zip(blocks) {
        *live.entry(block.to_bits()).or_insert(0.0) += weight;
    }
    let allocated: f64 = weights.iter().filter(|weight| **weight > 0.0).sum();
    // A row is rounded with what the rows before it left over: live rows are a part of them.
    let rows_alive = live.values().filter(|weight| **weight > 0.0).count() as f64;
    case.assert_same(allocated, case.total("live_bytes"), 2.0);
    assert!((live.values().sum::<f64>() - case.total("live_bytes")).abs() <= rows_alive);
}

#[test]
fn pprof_adds_up_to_the_report() {
    let Some(case) = case() else { return };
    let path = case.convert("pprof", "pb.gz");
    let sums = pprof::sums(&std::fs::read(path).unwrap());
    let [_, allocated, _, live] = sums;
    case.assert_same(allocated, live, 2.0);
}

/// Where npm has playwright-core, which drives the browser.
fn playwright() -> Option<String> {
    let own = std::env::var("ALLOCSAMPLE_TEST_PLAYWRIGHT").ok();
    let here = env!("CARGO_MANIFEST_DIR").to_owned();
    let is_there = |directory: &String| {
        Path::new(directory)
            .join("node_modules/playwright-core")
            .is_dir()
    };
    own.into_iter().chain([here]).find(is_there)
}

#[test]
fn the_page_in_a_browser_shows_the_reports_totals_and_obeys() {
    let Some(case) = case() else { return };
    let browser = ["/usr/bin/chromium", "/usr/bin/google-chrome"];
    let Some(browser) = browser.into_iter().find(|path| Path::new(path).exists()) else {
        return skip("chromium is not installed: the page was not opened");
    };
    let Some(playwright) = playwright().filter(|_| is_installed("node")) else {
        return skip("npm's playwright-core is not installed: the page was not opened");
    };
    let page = case.convert("html", "html");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser.mjs");
    let output = Command::new("node")
        .arg(script)
        .arg(page)
        .arg("Perl_sv_grow")
        .env("PLAYWRIGHT", playwright)
        .env("CHROMIUM", browser)
        .output()
        .unwrap();
    let seen: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    for what in ["errors", "requests"] {
        assert_eq!(seen[what].as_array().unwrap().len(), 0, "{}", seen[what]);
    }
    let number = |name: &str| seen[name].as_f64().unwrap();
    case.assert_same(number("allocated"), number("live"), 0.01);
    assert!((number("peak") - case.total("peak_live_bytes")).abs() < 0.01);
    assert!((number("freed") + number("live") - number("allocated")).abs() < 0.01);
    // Every table and the heat map add up to the same; so do the two halves of the time.
    for (by, sum) in seen["sums"].as_object().unwrap() {
        assert!(
            (sum.as_f64().unwrap() - number("allocated")).abs() < 0.01,
            "{by}"
        );
    }
    for function in case.report["functions"].as_array().unwrap() {
        let theirs = function["self_allocated_bytes"].as_f64().unwrap();
        let name = function["function"].as_str().unwrap();
        let ours = seen["functions"][name].as_f64();
        assert!(
            ours.is_some_and(|ours| (ours - theirs).abs() < 0.01),
            "{name}: {ours:?} {theirs}"
        );
    }
    let numbers = |name: &str| -> Vec<f64> {
        let rows = seen[name].as_array().unwrap().iter();
        rows.map(|row| row.as_f64().unwrap()).collect()
    };
    let heat = numbers("heat");
    let (all, rows) = heat.split_last().unwrap();
    assert!((all - number("allocated")).abs() < 0.01);
    assert!((rows.iter().sum::<f64>() - all).abs() < 0.01);
    let of_module = numbers("heatOfModule");
    assert!((of_module.last().unwrap() - heat[0]).abs() < 0.01);
    assert!((number("halves") - number("allocated")).abs() < 0.01);
    // The mouse, the search and the keys do what they say.
    assert!(number("half") > 0.0 && number("half") < number("allocated"));
    assert!(number("found") > 0.0 && number("found") < number("allocated"));
    assert_eq!(number("afterEscape"), number("allocated"));
    assert_eq!(seen["view"], "alive");
    assert!(number("frames") > 5.0);
    let sorted = seen["sortedByName"].as_array().unwrap();
    assert!(sorted.len() > 10);
}
