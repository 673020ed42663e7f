//! Promise: the same totals, to the byte of the estimate, come from the report and from every other way out.

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::pprof;
use support::room::{stderr, stdout};
use support::{Program, Room, is_installed, skip};

/// A profile, and what the report says of it.
struct Case {
    room: Room,
    report: Value,
    /// A function that is in some of its stacks and not in others.
    function: &'static str,
}

/// Perl, which allocates in many places; a virtual machine with types, survival and collections; a program whose names
/// would be markup if they could.
fn cases() -> Vec<Case> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/words.pl");
    let script = script.to_str().unwrap();
    let machine = Program::compiled("../vms/main.c");
    let hostile = Program::compiled("hostile_names.c");
    let mut cases = Vec::new();
    if is_installed("perl") {
        cases.push(Case::of("32K", &["perl", script], "Perl_sv_grow"));
    } else {
        skip("perl is not installed: it was not compared");
    }
    for (program, interval, words, function) in [
        (&machine, "8K", &["trees", "12", "20"][..], "hooks_point"),
        (&hostile, "1", &[], "__proto__"),
    ] {
        let path = program.path().to_str().unwrap();
        cases.push(Case::of(interval, &[&[path], words].concat(), function));
    }
    cases
}

impl Case {
    fn of(interval: &str, command: &[&str], function: &'static str) -> Case {
        let room = Room::new();
        let case = |report| Case {
            room,
            report,
            function,
        };
        let case = case(Value::Null).recorded("x", interval, "1", command);
        let output = case
            .room
            .output(&["report", "x.allocsample", "--format", "json"]);
        Case {
            report: serde_json::from_slice(&output.stdout).unwrap(),
            ..case
        }
    }

    fn recorded(self, name: &str, interval: &str, seed: &str, command: &[&str]) -> Case {
        let file = format!("{name}.allocsample");
        let options = [
            "run",
            "--interval",
            interval,
            "--seed",
            seed,
            "-o",
            &file,
            "--",
        ];
        let output = self.room.output(&[&options[..], command].concat());
        assert!(self.room.path(&file).exists(), "{}", stderr(&output));
        self
    }

    fn command(&self) -> Vec<&str> {
        let words = self.report["command"].as_array().unwrap();
        words.iter().map(|word| word.as_str().unwrap()).collect()
    }

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
    cases().iter().for_each(text_formats);
}

fn text_formats(case: &Case) {
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
    let rows = csv_rows(&fs::read_to_string(case.convert("csv", "csv")).unwrap());
    for columns in &rows[1..] {
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

/// Fields of each line; what stands between quotes may hold commas, line breaks and doubled quotes.
fn csv_rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new()]];
    let mut is_quoted = false;
    for (at, character) in text.char_indices() {
        let row = rows.last_mut().unwrap();
        match character {
            '"' => {
                let doubles = is_quoted || text[..at].ends_with('"');
                is_quoted = !is_quoted;
                if doubles && is_quoted {
                    row.last_mut().unwrap().push('"');
                }
            }
            ',' if !is_quoted => row.push(String::new()),
            '\n' if !is_quoted => rows.push(vec![String::new()]),
            _ => row.last_mut().unwrap().push(character),
        }
    }
    // Behind the last line break.
    rows.pop();
    rows
}

#[test]
fn json_formats_add_up_to_the_report() {
    cases().iter().for_each(json_formats);
}

fn json_formats(case: &Case) {
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
    // Malloc's rows are on the first thread, those of each machine's heap on a track of its own.
    let threads = firefox["threads"].as_array().unwrap().iter();
    let tables: Vec<&Value> = threads
        .map(|thread| &thread["nativeAllocations"])
        .filter(|table| table.is_object())
        .collect();
    let (mut allocated, mut alive, mut rows_alive) = (0.0, 0.0, 0.0);
    for rows in &tables {
        let column = |name: &str| -> Vec<f64> {
            let column = rows[name].as_array().unwrap();
            column.iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let (weights, blocks) = (column("weight"), column("memoryAddress"));
        let mut live = HashMap::new();
        for (weight, block) in weights.iter().zip(blocks) {
            *live.entry(block.to_bits()).or_insert(0.0) += weight;
        }
        allocated += weights.iter().filter(|weight| **weight > 0.0).sum::<f64>();
        alive += live.values().sum::<f64>();
        // A row is rounded with what the rows before it left over: live rows are a part of them.
        rows_alive += live.values().filter(|weight| **weight > 0.0).count() as f64;
    }
    let roundings = 2.0 * tables.len() as f64;
    case.assert_same(allocated, case.total("live_bytes"), roundings);
    assert!((alive - case.total("live_bytes")).abs() <= rows_alive);
}

#[test]
fn pprof_adds_up_to_the_report() {
    cases().iter().for_each(pprof);
}

fn pprof(case: &Case) {
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

/// What the browser saw on a page; `None` if there is no browser.
fn browsed(page: &Path, function: &str) -> Option<Value> {
    let browser = ["/usr/bin/chromium", "/usr/bin/google-chrome"];
    let Some(browser) = browser.into_iter().find(|path| Path::new(path).exists()) else {
        skip("chromium is not installed: the page was not opened");
        return None;
    };
    let Some(playwright) = playwright().filter(|_| is_installed("node")) else {
        skip("npm's playwright-core is not installed: the page was not opened");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser.mjs");
    let output = Command::new("node")
        .arg(script)
        .arg(page)
        .arg(function)
        .env("PLAYWRIGHT", playwright)
        .env("CHROMIUM", browser)
        .output()
        .unwrap();
    let seen: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    for what in ["errors", "requests"] {
        assert_eq!(seen[what].as_array().unwrap().len(), 0, "{}", seen[what]);
    }
    // No name became markup or script.
    assert_eq!((&seen["dialogs"], &seen["foreign"]), (&0.into(), &0.into()));
    Some(seen)
}

#[test]
fn the_page_in_a_browser_shows_the_reports_totals_and_obeys() {
    for case in cases() {
        let page = case.convert("html", "html");
        let Some(seen) = browsed(&page, case.function) else {
            return;
        };
        page_shows_totals(&case, &seen);
        page_obeys(&seen);
        page_agrees_with_the_command(&case, &seen);
    }
}

fn number(seen: &Value, name: &str) -> f64 {
    seen[name].as_f64().unwrap()
}

fn numbers(seen: &Value, name: &str) -> Vec<f64> {
    let rows = seen[name].as_array().unwrap().iter();
    rows.map(|row| row.as_f64().unwrap()).collect()
}

fn page_shows_totals(case: &Case, seen: &Value) {
    let number = |name: &str| number(seen, name);
    case.assert_same(number("allocated"), number("live"), 0.01);
    assert!((number("peak") - case.total("peak_live_bytes")).abs() < 0.01);
    assert!((number("freed") + number("live") - number("allocated")).abs() < 0.01);
    // Every table and the heat map add up to the same; so do the two halves of the time.
    let sums = seen["sums"].as_object().unwrap();
    assert!(sums.len() >= 6);
    for (by, sum) in sums {
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
    let heat = numbers(seen, "heat");
    let (all, rows) = heat.split_last().unwrap();
    assert!((all - number("allocated")).abs() < 0.01);
    assert!((rows.iter().sum::<f64>() - all).abs() < 0.01);
    let of_module = numbers(seen, "heatOfModule");
    assert!((of_module.last().unwrap() - heat[0]).abs() < 0.01);
    for sums in ["modules", "kinds", "functions"] {
        assert_eq!(seen["heatIsTables"][sums], true, "{sums}");
    }
    assert!((number("halves") - number("allocated")).abs() < 0.01);
    // Heaps that allocated something are chosen one by one if there are several.
    let heaps = seen["heaps"].as_object().unwrap();
    for heap in case.report["heaps"].as_array().unwrap() {
        let theirs = heap["allocated_bytes"].as_f64().unwrap();
        if let Some(ours) = heaps.get(heap["name"].as_str().unwrap()) {
            assert!((ours.as_f64().unwrap() - theirs).abs() < 0.01, "{heap}");
        }
    }
    let sum: f64 = heaps.values().map(|it| it.as_f64().unwrap()).sum();
    assert!(heaps.is_empty() || (sum - number("allocated")).abs() < 0.01);
}

/// The mouse, the search and the keys do what they say.
fn page_obeys(seen: &Value) {
    let number = |name: &str| number(seen, name);
    assert!(number("half") >= 0.0 && number("half") <= number("allocated"));
    assert!(number("found") > 0.0 && number("found") <= number("allocated"));
    assert_eq!(number("afterEscape"), number("allocated"));
    assert_eq!(seen["views"], seen["tabs"]);
    assert!(number("frames") > 5.0);
    assert!(seen["sortedByName"].as_array().unwrap().len() > 5);
}

fn page_agrees_with_the_command(case: &Case, seen: &Value) {
    let leaks = case
        .room
        .output(&["leaks", "x.allocsample", "--format", "json"]);
    let leaks: Value = serde_json::from_slice(&leaks.stdout).unwrap();
    let suspects = leaks["suspects"].as_array().unwrap();
    let cards = seen["cards"].as_array().unwrap();
    assert_eq!(cards.len(), suspects.len().min(60));
    for (card, suspect) in cards.iter().zip(suspects) {
        assert_eq!(
            (&card[0], &card[2]),
            (&suspect["verdict"], &suspect["sentence"])
        );
        assert_eq!(card[1].as_f64(), suspect["live_bytes"].as_f64());
    }
    let collections = seen["collections"].as_array();
    for heap in case.report["heaps"].as_array().unwrap() {
        let of_heap = |row: &&Value| row[0] == heap["name"];
        let rows = collections.into_iter().flatten().filter(of_heap);
        let (count, seconds) = rows.fold((0, 0.0), |(count, seconds), row| {
            (
                count + row[2].as_u64().unwrap(),
                seconds + row[3].as_f64().unwrap(),
            )
        });
        let theirs = |name: &str| heap[name].as_u64().unwrap();
        assert_eq!(
            count,
            theirs("minor_collections") + theirs("major_collections")
        );
        assert!((seconds - heap["gc_time_s"].as_f64().unwrap()).abs() < 1e-6);
    }
}

#[test]
fn the_page_of_a_comparison_shows_what_diff_says() {
    for case in cases() {
        let command: Vec<String> = case.command().into_iter().map(str::to_owned).collect();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let case = case.recorded("y", "16K", "2", &command);
        let compared = ["diff", "x.allocsample", "y.allocsample"];
        let output = case
            .room
            .output(&[&compared[..], &["--to", "html"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let Some(seen) = browsed(&case.room.path("y.diff.html"), case.function) else {
            return;
        };
        let output = case
            .room
            .output(&[&compared[..], &["--format", "json"]].concat());
        let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
        let total = diff["total"]["difference"].as_f64().unwrap();
        assert!((number(&seen, "difference") - total).abs() < 0.01);
        let theirs = diff["rows"].as_array().unwrap();
        let ours = seen["changes"].as_array().unwrap();
        assert_eq!(ours.len(), theirs.len().min(100));
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert_eq!(ours[0].as_f64(), theirs["difference"].as_f64());
            assert_eq!(ours[1], theirs["significant"]);
        }
        assert!(number(&seen, "changeFrames") > 5.0);
    }
}

/// Duckdb of Python, in an environment that the variable names or in the system's.
fn duckdb() -> Option<PathBuf> {
    let own = std::env::var_os("ALLOCSAMPLE_TEST_PYTHON").map(PathBuf::from);
    let all = own.into_iter().chain([PathBuf::from("/usr/bin/python3")]);
    let has_it = |python: &PathBuf| {
        let output = Command::new(python).args(["-c", "import duckdb"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    all.into_iter().find(has_it)
}

#[test]
fn parquet_adds_up_to_the_report_in_duckdb() {
    let Some(python) = duckdb() else {
        return skip("Python has no duckdb: no Parquet was read");
    };
    for case in cases() {
        let directory = case.convert("parquet", "parquet");
        let script = "import duckdb, json, sys\n\
            sql = f\"SELECT sum(bytes), sum(bytes * live) FROM '{sys.argv[1]}/samples.parquet'\"\n\
            print(json.dumps(duckdb.connect().execute(sql).fetchall()[0]))";
        let output = Command::new(&python)
            .args(["-c", script])
            .arg(directory)
            .output()
            .unwrap();
        let sums: Vec<f64> = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
        case.assert_same(sums[0], sums[1], 0.01);
    }
}
