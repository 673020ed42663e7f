//! Promise: the same totals, to the byte of the estimate, come from the report and from every other way out.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::pprof;
use crate::support::room::{stderr, stdout};
use crate::support::totals::{Case, cases};
use crate::support::{is_installed, skip, viewers};
use serde_json::Value;

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

/// What the browser saw on a page; `None` if there is no browser.
fn browsed(page: &Path, function: &str) -> Option<Value> {
    let seen = viewers::seen("browser.mjs", "playwright-core", true, page, &[function])?;
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
        page_answers(&case, &seen);
        page_shows_totals(&case, &seen);
        page_has_addresses(&seen);
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

/// It starts with what is held, by the figures of `report` and `leaks`.
fn page_answers(case: &Case, seen: &Value) {
    let has_ended = !case.report["exit"].is_null();
    let (measure, total) = match has_ended {
        true => ("peak", case.total("peak_live_bytes")),
        false => ("live", case.total("live_bytes")),
    };
    let start = &seen["start"];
    assert_eq!(start["view"], "overview");
    assert_eq!(start["measure"], measure);
    assert!((number(start, "shown") - total).abs() < 0.01);
    let headline = |name: &str| -> f64 {
        let text = seen["headline"][name].as_str().unwrap();
        text.parse().unwrap()
    };
    assert_eq!(headline("bytes"), total);
    assert_eq!(seen["coverage"], case.report["coverage"]["share"]);
    let leaks = case.json_of(&["leaks", "x.allocsample", "--format", "json"]);
    let grown = leaks["process"]["live_bytes_per_s"].as_f64().unwrap();
    assert_eq!(headline("growth"), grown);

    // A site: the functions from the one that is charged to the root.
    let mut table = vec![
        "report",
        "x.allocsample",
        "--by",
        "site",
        "--format",
        "json",
    ];
    if has_ended {
        table.push("--at-peak");
    }
    let table = case.json_of(&table);
    let mut theirs: HashMap<Vec<&str>, f64> = HashMap::new();
    for row in table["rows"].as_array().unwrap() {
        let stack = row["stack"].as_array().unwrap();
        let names = stack.iter().map(|name| name.as_str().unwrap());
        let charged = row["charged"].as_u64().unwrap() as usize;
        let bytes = row["live_bytes"].as_f64().unwrap();
        *theirs.entry(names.skip(charged).collect()).or_default() += bytes;
    }
    theirs.retain(|_, bytes| *bytes > 0.0);
    let ours = seen["overview"].as_array().unwrap();
    assert_eq!(ours.len(), theirs.len());
    for row in ours {
        let names = row["functions"].as_array().unwrap().iter();
        let names: Vec<&str> = names.map(|name| name.as_str().unwrap()).collect();
        let bytes = number(row, "bytes");
        assert!((bytes - theirs[&names]).abs() < 0.01, "{names:?}: {bytes}");
    }
    let mut sizes: Vec<f64> = theirs.into_values().collect();
    sizes.sort_by(|a, b| b.total_cmp(a));
    let largest = &sizes[..headline("sites") as usize];
    let share = |sizes: &[f64]| sizes.iter().sum::<f64>() / total;
    assert!((share(largest) - headline("share")).abs() < 1e-6);
    if largest.len() < 100 {
        assert!(share(largest) >= 0.8 && share(&largest[1..]) < 0.8);
    }
    let shown = numbers(seen, "overviewRows");
    assert!(shown.iter().zip(&sizes).all(|(a, b)| (a - b).abs() < 0.01));
}

/// An address shows the same to everybody; back and forward go through them.
fn page_has_addresses(seen: &Value) {
    let links = &seen["links"];
    let addresses = links["addresses"].as_array().unwrap();
    for pair in addresses.windows(2) {
        assert_ne!(pair[0], pair[1], "a step that the address lacks");
    }
    for list in ["differing", "backwards", "forwards"] {
        assert_eq!(links[list], Value::Array(Vec::new()), "{list}");
    }
    assert_eq!(links["odd"][0], "overview");
}

fn page_shows_totals(case: &Case, seen: &Value) {
    let number = |name: &str| number(seen, name);
    case.assert_same(number("allocated"), number("live"), 0.01);
    let peak = case.total("peak_live_bytes");
    assert!((number("peak") - peak).abs() < 0.01);
    assert!((number("chartAtPeak") - peak).abs() < 0.01);
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
    let leaks = case.json_of(&["leaks", "x.allocsample", "--format", "json"]);
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
    let is_found = |suspect: &&Value| {
        let verdict = suspect["verdict"].as_str().unwrap();
        ["leak", "possible leak", "growing"].contains(&verdict)
    };
    let found = suspects.iter().filter(is_found).count();
    let header = &seen["leakHeader"];
    assert_eq!(header[0].as_u64(), Some(found as u64), "{header}");
    let says_none = header[1].as_str().unwrap().contains("none found");
    assert!(found == 0 || !says_none, "{header}");
    for shown in seen["cardFrames"].as_array().unwrap() {
        assert_eq!(shown[0], "flame");
        assert!(shown[1].as_f64() > Some(0.0), "a card opens an empty view");
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

/// What is inside is compressed; a browser that cannot decompress it says so.
#[test]
fn a_large_page_is_packed_and_says_what_it_needs() {
    if !is_installed("perl") {
        return skip("perl is not installed");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/words.pl");
    let case = Case::of("1K", &["perl", script.to_str().unwrap()], "Perl_sv_grow");
    let page = case.convert("html", "html");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("id=\"profile\" data-packed=\"deflate\">"));
    let Some(seen) = viewers::seen("packed.mjs", "playwright-core", true, &page, &[]) else {
        return;
    };
    assert_eq!(seen["errors"], Value::Array(Vec::new()));
    assert_eq!(
        number(&seen["today"], "bytes"),
        case.total("peak_live_bytes")
    );
    let said = seen["old"]["text"].as_str().unwrap();
    assert!(
        said.contains("DecompressionStream") && said.contains("Firefox 113"),
        "{said}"
    );
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
        assert_ledgers_are_compared(&seen, &diff["memory"]);
    }
}

/// `null`: a process was too small for a list of its mappings.
fn assert_ledgers_are_compared(seen: &Value, memory: &Value) {
    if memory.is_null() {
        assert!(seen["ledgerChanges"].as_array().is_none_or(Vec::is_empty));
        return;
    }
    assert_eq!(
        number(seen, "residentDifference"),
        number(&memory["resident_bytes"], "difference")
    );
    let theirs = memory["rows"].as_array().expect("rows");
    let ours = seen["ledgerChanges"].as_array().expect("rows");
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours[0], theirs["name"]);
        assert_eq!(ours[1].as_f64(), theirs["difference"].as_f64());
    }
}

#[test]
fn parquet_adds_up_to_the_report_in_duckdb() {
    let Some(python) = viewers::python_with("duckdb") else {
        return;
    };
    for case in cases() {
        let directory = case.convert("parquet", "parquet");
        let script = "import duckdb, json, sys\n\
            sql = f\"SELECT sum(bytes), sum(bytes) FILTER (WHERE live) FROM '{sys.argv[1]}/samples.parquet'\"\n\
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
