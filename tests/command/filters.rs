//! Promise: a filter means the same in every command that reads a profile: all figures are those of `report` with it.

use crate::support::room::{assert_error, stderr, stdout};
use crate::support::totals::Case;
use crate::support::{Program, pprof};
use serde_json::Value;

/// Figures of what a filter leaves.
#[derive(Clone, Copy, Debug)]
struct Figures {
    allocated: f64,
    live: f64,
    samples: f64,
}

impl Figures {
    #[track_caller]
    fn assert_are(self, other: Figures, tolerance: f64, what: &str) {
        for (one, other) in [
            (self.allocated, other.allocated),
            (self.live, other.live),
            (self.samples, other.samples),
        ] {
            let is_known = !one.is_nan();
            // Of floating point: sums are added up in different orders.
            let tolerance = tolerance + 1e-9 * other;
            assert!(
                !is_known || (one - other).abs() <= tolerance,
                "{what}: {self:?}, the report says {other:?}"
            );
        }
    }
}

/// A recording, and the filters that make sense for it.
struct Filtered {
    case: Case,
    filters: Vec<Vec<String>>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Quarters of the time in which samples were taken, as options say moments.
fn quarters(case: &Case) -> [String; 3] {
    let sql = "SELECT time_ns FROM samples ORDER BY time_ns";
    let rows = json(case, &["query", "x.allocsample", sql, "--format", "json"]);
    let rows = rows.as_array().unwrap();
    [1, 2, 3].map(|quarter| {
        let ns = rows[rows.len() * quarter / 4]["time_ns"].as_f64().unwrap();
        format!("{:.9}s", ns / 1e9)
    })
}

/// The kernel's number of the thread that allocated least of those that allocated a tenth of the bytes.
fn a_thread(case: &Case) -> String {
    let bytes = |row: &&Value| row["allocated_bytes"].as_f64().unwrap();
    let threads = case.report["threads"].as_array().unwrap().iter();
    let large = threads.filter(|row| bytes(row) > 0.1 * case.total("allocated_bytes"));
    let least = large.min_by(|a, b| bytes(a).total_cmp(&bytes(b)));
    format!("^{}$", least.expect("a thread")["tid"])
}

fn recorded() -> Vec<Filtered> {
    let machine = Program::compiled("../vms/main.c");
    let parts = Program::compiled("parts.c");
    let path = |program: &Program| program.path().to_str().unwrap().to_owned();
    let machine = Case::of("8K", &[&path(&machine), "threads", "3"], "hooks_point");
    let parts = Case::of("1", &[&path(&parts)], "pass_on");
    let common = |case: &Case| {
        let [early, middle, late] = quarters(case);
        let thread = a_thread(case);
        vec![
            words(&format!("--filter {}", case.function)),
            words(&format!("--since {middle}")),
            words(&format!("--until {middle}")),
            words(&format!("--since {early} --until {late}")),
            words(&format!("--only-thread {thread}")),
            words(&format!("--only-thread {thread} --until {late}")),
            words(&format!(
                "--filter {} --since {early} --only-thread {thread}",
                case.function
            )),
        ]
    };
    let machines = common(&machine).into_iter().chain([
        words("--heap ^malloc$"),
        words("--heap example"),
        words("--only-type Node|Blob"),
        words("--ignore-type Node"),
    ]);
    let machines = machines.collect();
    let of_parts = common(&parts).into_iter().chain([
        words("--only-caller ^pass_on$"),
        words("--at-peak"),
        words("--at-peak --only-thread other"),
        words("--at-peak --filter keep"),
    ]);
    let of_parts = of_parts.collect();
    vec![
        Filtered {
            case: machine,
            filters: machines,
        },
        Filtered {
            case: parts,
            filters: of_parts,
        },
    ]
}

#[track_caller]
fn json(case: &Case, arguments: &[&str]) -> Value {
    let output = case.room.output(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

/// What `report` says is selected.
fn reported(case: &Case, filter: &[&str]) -> Figures {
    let report = json(
        case,
        &[&["report", "x.allocsample", "--format", "json"], filter].concat(),
    );
    let selected = &report["selected"];
    Figures {
        allocated: number(selected, "allocated_bytes"),
        live: number(selected, "live_bytes"),
        samples: number(selected, "samples"),
    }
}

fn queried(case: &Case, filter: &[&str]) -> Figures {
    let sql = "SELECT total(bytes) AS a, total(bytes) FILTER (WHERE live) AS l, count(*) AS n FROM samples";
    let words = ["query", "x.allocsample", sql, "--format", "json"];
    let row = &json(case, &[&words, filter].concat())[0];
    Figures {
        allocated: number(row, "a"),
        live: number(row, "l"),
        samples: number(row, "n"),
    }
}

/// The sum of what `diff` compares. Both sides are the same profile.
fn compared(case: &Case, filter: &[&str]) -> Figures {
    let total = |measure: &str| {
        let words = [
            "diff",
            "x.allocsample",
            "x.allocsample",
            "--all",
            "--format",
            "json",
        ];
        let words = [&words, &["--measure", measure][..], filter].concat();
        let total = json(case, &words)["total"].clone();
        assert_eq!(total["before"], total["after"], "{filter:?}");
        number(&total, "after")
    };
    Figures {
        allocated: total("allocated"),
        live: total("live"),
        samples: f64::NAN,
    }
}

fn convert(case: &Case, format: &str, filter: &[&str]) -> Vec<u8> {
    let words = ["convert", "x.allocsample", "--to", format, "-o", "-"];
    let output = case.room.output(&[&words, filter].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    output.stdout
}

/// With the number of roundings to whole bytes.
fn converted(case: &Case, filter: &[&str]) -> Vec<(&'static str, Figures, f64)> {
    let document: Value = serde_json::from_slice(&convert(case, "json", filter)).unwrap();
    let samples = document["samples"].as_array().unwrap();
    let live = samples.iter().filter(|it| it["end"] == "live");
    let of_json = Figures {
        allocated: samples.iter().map(|it| number(it, "bytes")).sum(),
        live: live.map(|it| number(it, "bytes")).sum(),
        samples: samples.len() as f64,
    };

    let collapsed = |metric: &str| {
        let text = convert(case, "collapsed", &[&["--metric", metric], filter].concat());
        let text = String::from_utf8(text).unwrap();
        let counts = text.lines().map(|line| line.rsplit_once(' ').unwrap().1);
        let counts: Vec<f64> = counts.map(|count| count.parse().unwrap()).collect();
        counts.iter().sum::<f64>()
    };
    let of_collapsed = Figures {
        allocated: collapsed("allocated"),
        live: collapsed("live"),
        samples: f64::NAN,
    };

    let [_, allocated, _, live] = pprof::sums(&convert(case, "pprof", filter));
    let of_pprof = Figures {
        allocated,
        live,
        samples: f64::NAN,
    };

    let speedscope: Value = serde_json::from_slice(&convert(case, "speedscope", filter)).unwrap();
    let sum = |index: usize| -> f64 {
        let weights = speedscope["profiles"][index]["weights"].as_array();
        let weights = weights.into_iter().flatten();
        weights.map(|weight| weight.as_f64().unwrap()).sum()
    };
    let of_speedscope = Figures {
        allocated: sum(0),
        live: sum(1),
        samples: f64::NAN,
    };

    vec![
        ("json", of_json, 0.01),
        ("collapsed", of_collapsed, 1.0),
        ("pprof", of_pprof, 1.0),
        ("speedscope", of_speedscope, 1.0),
    ]
}

#[test]
fn every_filter_means_the_same_in_every_command() {
    for Filtered { case, filters } in recorded() {
        let whole = reported(&case, &[]);
        for filter in &filters {
            let filter: Vec<&str> = filter.iter().map(String::as_str).collect();
            let what = |command: &str| format!("{command} {}", filter.join(" "));
            let expected = reported(&case, &filter);
            assert!(
                expected.samples > 0.0 && expected.samples < whole.samples,
                "{}: {expected:?} of {whole:?}",
                what("report")
            );
            queried(&case, &filter).assert_are(expected, 0.01, &what("query"));
            compared(&case, &filter).assert_are(expected, 0.01, &what("diff"));
            for (format, figures, tolerance) in converted(&case, &filter) {
                let what = what(&format!("convert --to {format}"));
                figures.assert_are(expected, tolerance, &what);
            }
        }
    }
}

/// `leaks` judges what is alive at its horizon, which is a little before the end.
#[test]
fn leaks_lists_the_live_bytes_of_the_report_at_its_horizon() {
    let parts = Program::compiled("parts.c");
    let case = Case::of("1", &[parts.path().to_str().unwrap()], "keep");
    let [early, middle, late] = quarters(&case);
    let mut found = 0;
    for (filter, since, until) in [
        (String::new(), "", ""),
        (format!("--filter {}", case.function), "", ""),
        ("--only-thread other".to_owned(), "", ""),
        ("--only-caller ^keep$".to_owned(), "", ""),
        ("--heap ^malloc$".to_owned(), "", ""),
        (String::new(), early.as_str(), ""),
        (String::new(), "", middle.as_str()),
        (String::new(), early.as_str(), late.as_str()),
        ("--only-thread other".to_owned(), "", late.as_str()),
    ] {
        let mut options: Vec<&str> = filter.split_whitespace().collect();
        if !since.is_empty() {
            options.extend(["--since", since]);
        }
        let mut judged = options.clone();
        if !until.is_empty() {
            judged.extend(["--until", until]);
        }
        let words = ["leaks", "x.allocsample", "--all", "--format", "json"];
        let leaks = json(&case, &[&words, &judged[..]].concat());
        let suspects = leaks["suspects"].as_array().unwrap();
        let live: f64 = suspects.iter().map(|it| number(it, "live_bytes")).sum();
        let horizon = format!("{:.9}s", number(&leaks, "duration_s"));
        options.extend(["--until", &horizon]);
        let expected = reported(&case, &options);
        let is_same = (live - expected.live).abs() <= 0.01;
        assert!(is_same, "leaks {judged:?}: {live}, {expected:?}");
        found += usize::from(live > 0.0);
    }
    assert!(found >= 8, "{found}");
}

/// Both make the page from the same profile; that of all samples is another one.
#[test]
fn the_page_has_only_what_is_selected() {
    let parts = Program::compiled("parts.c");
    let case = Case::of("1", &[parts.path().to_str().unwrap()], "keep");
    let whole = convert(&case, "html", &[]);
    let of_thread = convert(&case, "html", &["--only-thread", "other"]);
    assert!(of_thread.len() < whole.len());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let parts = Program::compiled("parts.c");
    let case = Case::of("4K", &[parts.path().to_str().unwrap()], "keep");
    let output = case.room.output(&["leaks", "x.allocsample", "--at-peak"]);
    assert_error(
        &output,
        2,
        "leaks judges growth over time, and the peak is a moment: use --until TIME, or `report --at-peak`",
    );
    for command in [
        &["report", "x.allocsample"][..],
        &["leaks", "x.allocsample"],
        &["diff", "x.allocsample", "x.allocsample"],
        &["convert", "x.allocsample", "--to", "json"],
        &["view", "x.allocsample"],
        &["query", "x.allocsample", "SELECT 1"],
    ] {
        for (options, line) in [
            (
                &["--since", "2s", "--until", "1s"][..],
                "--since is after --until: nothing is between them",
            ),
            (
                &["--only-type", "("],
                "--only-type '(': not a regular expression: unclosed group",
            ),
            (
                &["--heap", "("],
                "--heap '(': not a regular expression: unclosed group",
            ),
        ] {
            let output = case.room.output(&[command, options].concat());
            assert_error(&output, 2, line);
        }
        let output = case
            .room
            .output(&[command, &["--at-peak", "--until", "1s"]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

/// All of them have the same options, below the same heading.
#[test]
fn help_lists_the_same_filters_everywhere() {
    let room = crate::support::Room::without_agent();
    let filters = |command: &str| {
        let help = stdout(&room.output(&[command, "--help"]));
        let (_, rest) = help.split_once("\nFilters:\n").expect(command);
        let end = rest.find("\n\n\n").unwrap_or(rest.len());
        let heading = rest
            .find(":\n")
            .map_or(end, |at| rest[..at].rfind('\n').unwrap_or(end));
        rest[..heading.min(end)].trim_end().to_owned()
    };
    let of_report = filters("report");
    assert!(of_report.contains("--at-peak") && of_report.contains("--heap"));
    for command in ["leaks", "diff", "convert", "view", "query"] {
        assert_eq!(filters(command), of_report, "{command}");
    }
}
