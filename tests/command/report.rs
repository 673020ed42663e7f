//! Promise: `allocsample report` answers what it is asked, and every table adds up to the total.

use std::collections::HashMap;

use crate::support::profile::figure;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::{Program, Room};
use serde_json::Value;

/// leaky at interval 1: 1,000 blocks of 3,000 bytes that it keeps, and 1,000 of 5,000 that it frees.
fn leaky() -> Room {
    let room = Room::new();
    room.add(&Program::compiled("leaky.c"), "leaky");
    let run = ["run", "-q", "--interval", "1", "-o", "x.allocsample"];
    room.output(&[&run[..], &["--", "./leaky"]].concat());
    room
}

/// The virtual machine that hosts the hook ABI, at interval 1.
fn machine() -> Room {
    let room = Room::new();
    room.add(&Program::compiled("../vms/main.c"), "vm");
    let run = ["run", "-q", "--interval", "1", "-o", "x.allocsample"];
    let output = room.output(&[&run[..], &["--", "./vm", "known", "20000"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    room
}

fn text(room: &Room, options: &[&str]) -> String {
    let output = room.output(&[&["report", "x.allocsample"], options].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

fn json(room: &Room, options: &[&str]) -> Value {
    let text = text(room, &[options, &["--format", "json"]].concat());
    serde_json::from_str(&text).expect("JSON")
}

/// Rows of a table by name, with a figure of each.
fn rows(table: &Value, name: &str, key: &str) -> HashMap<String, f64> {
    let rows = table["rows"].as_array().expect("rows").iter();
    rows.map(|row| {
        let name = row[name].as_str().expect("a name").to_owned();
        (name, figure(row, key))
    })
    .collect()
}

const TABLES: [&str; 9] = [
    "function", "site", "line", "module", "thread", "type", "heap", "size", "lifetime",
];

#[test]
fn every_table_adds_up_to_the_total() {
    for room in [leaky(), machine()] {
        let whole = json(&room, &[]);
        for by in TABLES {
            let table = json(&room, &["--by", by]);
            assert_eq!(table["schema"], "allocsample-table/1");
            let rows = table["rows"].as_array().expect("rows");
            assert_eq!(rows.len() as f64, figure(&table, "row_count"), "{by}");
            let has_total = ["function", "line"].contains(&by);
            for (in_row, in_total) in [
                ("allocated_bytes", "allocated_bytes"),
                ("live_bytes", "live_bytes"),
                ("peak_live_bytes", "peak_live_bytes"),
                ("allocations", "allocations"),
            ] {
                let key = match has_total && in_row != "allocations" {
                    true => format!("self_{in_row}"),
                    false => in_row.to_owned(),
                };
                let sum: f64 = rows.iter().map(|row| figure(row, &key)).sum();
                let total = figure(&whole["totals"], in_total);
                assert!(
                    (sum - total).abs() < 1e-6 * total.max(1.0),
                    "{by} {in_row}: {sum} {total}"
                );
            }
            // The same in the other form, but for the errors of rounding.
            let csv = text(&room, &["--by", by, "--format", "csv"]);
            assert_eq!(csv.lines().count(), rows.len() + 1, "{by}: {csv}");
            assert!(csv.starts_with(&format!("{by},module,file,line,allocated_bytes,")));
        }
    }
}

#[test]
fn sizes_lifetimes_and_types_are_those_of_the_program() {
    let room = leaky();
    let sizes = json(&room, &["--by", "size", "--filter", "^make$"]);
    let by_size = rows(&sizes, "size", "allocated_bytes");
    let known = [
        ("over 2 KiB to 4 KiB".to_owned(), 3e6),
        ("over 4 KiB to 8 KiB".to_owned(), 5e6),
    ];
    assert_eq!(by_size, HashMap::from(known));
    let lifetimes = json(&room, &["--by", "lifetime", "--filter", "^make$"]);
    let by_lifetime = rows(&lifetimes, "lifetime", "allocated_bytes");
    assert_eq!(by_lifetime["not freed"], 3e6);
    let freed: f64 = by_lifetime.values().sum::<f64>() - 3e6;
    assert_eq!(freed, 5e6);

    let room = machine();
    let types = json(&room, &["--by", "type"]);
    let by_type = rows(&types, "type", "allocations");
    assert!(by_type["Node"] >= 20_000.0, "{by_type:?}");
    let report = json(&room, &[]);
    let listed = report["types"].as_array().expect("types");
    for row in listed {
        let name = row["type"].as_str().expect("a name");
        assert_eq!(by_type[name], figure(row, "allocations"), "{name}");
    }
    let gc = &report["gc"][0];
    assert_eq!(gc["kind"], "minor");
    assert!(figure(gc, "collections") > 0.0 && figure(gc, "share_of_run") < 1.0);
    let mean = figure(gc, "total_s") / figure(gc, "collections");
    assert!((figure(gc, "mean_s") - mean).abs() < 1e-12);
    let said = text(&room, &[]);
    let is_of_heap =
        |line: &str| line.starts_with("org.example.vm: ") && line.contains(" minor GC");
    assert!(said.lines().any(is_of_heap), "{said}");
}

#[test]
fn a_part_is_shown_with_its_share_of_the_whole() {
    let room = leaky();
    let kept = json(&room, &["--by", "function", "--filter", "^keep$"]);
    assert_eq!(figure(&kept["selected"], "allocated_bytes"), 3e6);
    assert_eq!(figure(&kept["selected"], "live_bytes"), 3e6);
    assert_eq!(figure(&kept["selected"], "allocations"), 1000.0);
    assert_eq!(figure(&kept["selected"], "allocated_bytes_stderr"), 0.0);
    let said = text(&room, &["--filter", "^keep$"]);
    assert!(said.contains("shown      2.9 MiB of 7."), "{said}");
    assert!(!text(&room, &[]).contains("shown  "));

    // `make` is charged; `keep` calls it, and so does main. `make` itself calls nothing that is charged.
    let called = |name: &str| {
        let table = json(&room, &["--by", "function", "--only-caller", name]);
        figure(&table["selected"], "allocated_bytes")
    };
    assert_eq!(
        (called("^keep$"), called("^churn$"), called("^make$")),
        (3e6, 5e6, 0.0)
    );
    let thread = |name: &str| {
        let table = json(&room, &["--by", "thread", "--only-thread", name]);
        figure(&table["selected"], "allocated_bytes")
    };
    assert!(thread("leaky") >= 8e6);
    assert_eq!(thread("^nobody$"), 0.0);

    // All that exists half-way, and what comes later, are the whole.
    let whole = json(&room, &[]);
    let middle = format!("{}s", figure(&whole, "duration_s") / 2.0);
    let part = |option: &str| {
        let table = json(&room, &["--by", "heap", option, &middle]);
        figure(&table["selected"], "samples")
    };
    let (before, after) = (part("--until"), part("--since"));
    assert_eq!(before + after, figure(&whole, "samples"));

    let at_peak = json(&room, &["--by", "function", "--at-peak"]);
    let peak = figure(&whole["totals"], "peak_live_bytes");
    assert_eq!(figure(&at_peak["selected"], "live_bytes"), peak);
}

#[test]
fn types_can_be_chosen_and_followed_to_their_callers() {
    let room = machine();
    let types = json(&room, &["--by", "type"]);
    let bytes = rows(&types, "type", "allocated_bytes");
    let selected = |options: &[&str]| {
        let table = json(&room, &[&["--by", "type"], options].concat());
        figure(&table["selected"], "allocated_bytes")
    };
    let all: f64 = bytes.values().sum();
    assert_eq!(selected(&["--only-type", "^Node$"]), bytes["Node"]);
    assert_eq!(selected(&["--ignore-type", "^Node$"]), all - bytes["Node"]);

    let allocated = ["--sort", "allocated"];
    let json = |room: &Room, options: &[&str]| json(room, &[options, &allocated].concat());
    let up = json(&room, &["--callgraph", "--type", "Node"]);
    assert_eq!(up["schema"], "allocsample-tree/1");
    let sum: f64 = up["tree"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| figure(node, "value"))
        .sum();
    assert_eq!(sum, bytes["Node"]);
    // Where a way begins that leads down to them.
    let down = json(&room, &["--tree", "--only-type", "^Node$"]);
    let root = down["tree"][0]["function"].as_str().expect("a name");
    let from = json(&room, &["--callgraph", "--type", "Node", "--from", root]);
    assert_eq!(from["tree"][0]["function"], root);
    let missing = room.output(&["report", "x.allocsample", "--callgraph", "--type", "Nobody"]);
    assert_error(&missing, 1, "there is no type Nobody");
}

#[test]
fn growth_is_what_the_second_half_added() {
    let room = leaky();
    let table = json(&room, &["--by", "site", "--sort", "growth"]);
    let first = &table["rows"][0];
    assert_eq!(
        first["stack"][first["charged"].as_u64().expect("an index") as usize],
        "make"
    );
    // Some of the thousand blocks were kept after the middle of the run.
    let growth = figure(first, "growth_bytes");
    assert!(
        (0.0..=3e6).contains(&growth) && growth % 3000.0 == 0.0,
        "{growth}"
    );
    let sum: f64 = table["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| figure(row, "growth_bytes"))
        .sum();
    assert!(sum <= figure(&table["selected"], "live_bytes"));
}

#[test]
fn lifetimes_tell_what_was_freed_from_what_was_not() {
    let room = leaky();
    let answer = json(&room, &["--lifetimes", "--filter", "^make$"]);
    assert_eq!(answer["schema"], "allocsample-lifetimes/1");
    let all = &answer["all"];
    assert_eq!(figure(all, "allocated_bytes"), 8e6);
    assert_eq!(figure(all, "not_freed_bytes"), 3e6);
    for classes in ["by_seconds", "by_bytes"] {
        let classes = all[classes].as_array().expect("classes").iter();
        let sum: f64 = classes.map(|class| figure(class, "bytes")).sum();
        assert_eq!(sum, 5e6);
    }
    // malloc's blocks are not collected.
    assert_eq!(all["quantiles_collections"], Value::Null);
    // Freed at once: nothing was allocated meanwhile.
    assert_eq!(all["quantiles_bytes"], serde_json::json!([0.0, 0.0, 0.0]));
    let sites = answer["sites"].as_array().expect("sites");
    assert_eq!(sites.len(), 2, "{sites:?}");
    let csv = text(&room, &["--lifetimes", "--format", "csv"]);
    assert!(
        csv.starts_with(
            "of,name,unit,from,to,bytes,bytes_stderr,bytes_low95,bytes_high95,samples\nall,,s,0,"
        ),
        "{csv}"
    );
    let said = text(&room, &["--lifetimes"]);
    assert!(said.contains("allocated meanwhile"), "{said}");
}

#[test]
fn a_program_that_ended_is_ranked_by_what_it_held_at_its_peak() {
    let room = leaky();
    let said = text(&room, &["--by", "site"]);
    assert!(
        said.contains("measure    bytes held: live at the peak"),
        "{said}"
    );
    // What is freed at once comes first only of all that was allocated.
    let is_kept_first = |said: &str| said.find("keep") < said.find("churn");
    assert!(is_kept_first(&said), "{said}");
    let allocated = text(&room, &["--by", "site", "--sort", "allocated"]);
    assert!(!is_kept_first(&allocated), "{allocated}");
    let tree = text(&room, &["--tree"]);
    assert!(tree.contains("keep") && !tree.contains("churn"), "{tree}");
    // Nothing grows by 0 B, and no function where the process starts grows by itself.
    let growth = text(&room, &["--sort", "growth"]);
    let rows = growth
        .lines()
        .filter(|line| line.contains(" 0 B ") || line.contains("_start"));
    assert_eq!(rows.count(), 0, "{growth}");
}

#[test]
fn paths_without_a_branch_are_one_line_of_the_tree() {
    let room = leaky();
    let tree = ["--tree", "--filter", "^make$", "--sort", "allocated"];
    let tree = text(&room, &tree);
    let branches: Vec<&str> = tree.lines().filter(|line| line.contains("make")).collect();
    assert_eq!(branches.len(), 2, "{tree}");
    assert!(branches[0].contains("churn > make"), "{tree}");
    assert!(branches[1].contains("keep > make"), "{tree}");
    assert!(tree.contains(" > main\n"), "{tree}");
    let csv = text(&room, &["--tree", "--format", "csv"]);
    assert!(
        csv.starts_with("depth,function,value,stderr,low95,high95,samples\n1,"),
        "{csv}"
    );
    // No colours and no bars in a pipe.
    assert!(!tree.contains('\x1b') && !tree.contains('█'));
}

#[test]
fn leaks_and_diff_print_csv() {
    let room = leaky();
    for (command, start) in [
        (
            &["leaks", "x.allocsample"][..],
            "verdict,sentence,function,",
        ),
        (
            &["diff", "x.allocsample", "x.allocsample"],
            "name,module,file,line,stack,before,",
        ),
    ] {
        let output = room.output(&[command, &["--format", "csv"]].concat());
        let text = stdout(&output);
        assert!(text.starts_with(start), "{text}{}", stderr(&output));
        assert!(text.contains("make"), "{text}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let room = Room::without_agent();
    for (options, what) in [
        (&["--since", "soon"][..], "expected a time as in 10s"),
        (
            &["--since", "2s", "--until", "1s"],
            "nothing is between them",
        ),
        (
            &["--only-type", "("],
            "--only-type '(': not a regular expression",
        ),
        (&["--from", "main"], "--callgraph"),
        (&["--at-peak", "--until", "1s"], "cannot be used with"),
        (
            &["--summary", "--format", "csv"],
            "--summary prints text only",
        ),
        (&["--lifetimes", "--sort", "live"], "cannot be used with"),
    ] {
        let output = room.output(&[&["report", "x"], options].concat());
        assert_error(&output, 2, what);
    }
}

/// A machine that hashes what its objects hold; its first line says what there is.
fn twins(interval: &str) -> Room {
    let room = Room::new();
    room.add(&Program::compiled("../vms/twins.c"), "twins");
    let run = ["run", "-q", "--seed", "5", "--interval", interval, "-o"];
    let output = room.output(&[&run[..], &["x.allocsample", "--", "./twins"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    room
}

#[test]
fn objects_that_hold_the_same_are_told() {
    let room = twins("1");
    let answer = json(&room, &["--redundancy"]);
    assert_eq!(answer["schema"], "allocsample-redundancy/1");
    let figures = |row: &Value| {
        [
            "hashed_samples",
            "distinct_samples",
            "hashed_bytes",
            "repeated_bytes_at_least",
        ]
        .map(|key| figure(row, key))
    };
    let [texts, number] = [
        [1000.0, 109.0, 32_000.0, 891.0 * 32.0],
        [50.0, 9.0, 1600.0, 41.0 * 32.0],
    ];
    // A number is no text, whatever both hold.
    assert_eq!(
        figures(&answer["all"]),
        [1050.0, 118.0, 33_600.0, 932.0 * 32.0]
    );
    let types = answer["types"].as_array().expect("types");
    assert_eq!(
        (types.len(), figures(&types[0]), figures(&types[1])),
        (2, texts, number)
    );
    assert_eq!(types[0]["type"], "Text [org.example.twins]");
    assert_eq!(figure(&types[0], "distinct_share"), 0.109);
    let pairs = 9.0 * 100.0 * 99.0 / (1000.0 * 999.0);
    assert!((figure(&types[0], "alike") - pairs).abs() < 1e-9);
    let of_sites: f64 = answer["sites"]
        .as_array()
        .expect("sites")
        .iter()
        .map(|it| figure(it, "hashed_samples"))
        .sum();
    assert_eq!(of_sites, 1050.0);
    // Of a part, and in the other forms.
    let numbers = json(&room, &["--redundancy", "--only-type", "^Number$"]);
    assert_eq!(figures(&numbers["all"]), number);
    let csv = text(&room, &["--redundancy", "--format", "csv"]);
    assert!(
        csv.contains("type,Text [org.example.twins],1000,109,0.109,32000,28512,"),
        "{csv}"
    );
    let printed = text(&room, &["--redundancy"]);
    assert!(
        printed.contains("1,000       109     10.9%     8.9%"),
        "{printed}"
    );
}

#[test]
fn sampling_sees_less_that_is_the_same_and_never_more() {
    let answer = json(&twins("256"), &["--redundancy", "--only-type", "^Text$"]);
    let all = &answer["all"];
    // An eighth of the objects: some 117 samples.
    assert!(
        (80.0..160.0).contains(&figure(all, "hashed_samples")),
        "{all}"
    );
    assert!(figure(all, "distinct_share") > 0.109);
    assert!(figure(all, "repeated_bytes_at_least") < 891.0 * 32.0);
    assert!((figure(all, "alike") - 0.089).abs() < 0.03, "{all}");
}

#[test]
fn without_hashes_redundancy_says_so() {
    let room = machine();
    assert!(text(&room, &["--redundancy"]).contains("no object has a hash of its content"));
    let answer = json(&room, &["--redundancy"]);
    assert_eq!(
        (&answer["all"]["hashed_samples"], &answer["types"]),
        (&0.into(), &Value::Array(Vec::new()))
    );
}
