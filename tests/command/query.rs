//! Promise: SQL over a profile answers what the report says, and every recipe of the document works.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::Room;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::totals::cases;
use crate::support::viewers::python_with;
use serde_json::Value;

fn recorded() -> Room {
    let room = Room::new();
    let output = room.record("x.allocsample", &["--seed", "1"], &[]);
    assert!(room.path("x.allocsample").exists(), "{}", stderr(&output));
    room
}

fn json(room: &Room, arguments: &[&str]) -> Value {
    let output = room.output(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Titles and queries of docs/queries.md.
fn recipes() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/queries.md");
    let text = fs::read_to_string(path).unwrap();
    let sections = text.split("\n## ").skip(1);
    let recipe = |section: &str| {
        let title = section.lines().next()?.to_owned();
        let (_, rest) = section.split_once("```sql\n")?;
        let (sql, _) = rest.split_once("```")?;
        Some((title, sql.to_owned()))
    };
    sections.filter_map(recipe).collect()
}

#[test]
fn every_recipe_of_the_document_runs() {
    let room = recorded();
    let recipes = recipes();
    assert!(recipes.len() >= 12, "{}", recipes.len());
    // What this program does not have: a second thread that frees, types, collections; in half its time it may have got nowhere.
    let may_be_empty = [
        "another thread",
        "at a moment",
        "type",
        "Collections",
        "resident",
        "Resident",
        "Mappings",
        "--time-hz",
    ];
    for (title, sql) in recipes {
        let rows = json(&room, &["query", "x.allocsample", &sql, "--format", "json"]);
        let is_empty = rows.as_array().unwrap().is_empty();
        let may_be = may_be_empty.iter().any(|word| title.contains(word));
        assert!(!is_empty || may_be, "{title}");
    }
}

#[test]
fn the_sums_are_the_reports() {
    let room = recorded();
    let (_, sql) = &recipes()[0];
    let row = &json(&room, &["query", "x.allocsample", sql, "--format", "json"])[0];
    let report = json(&room, &["report", "x.allocsample", "--format", "json"]);
    let totals = &report["totals"];
    for (column, total) in [
        ("allocated_bytes", "allocated_bytes"),
        ("stderr", "allocated_bytes_stderr"),
        ("allocations", "allocations"),
        ("live_bytes", "live_bytes"),
    ] {
        let (ours, theirs) = (
            row[column].as_f64().unwrap(),
            totals[total].as_f64().unwrap(),
        );
        assert!(
            (ours - theirs).abs() < 1e-6 * theirs,
            "{column}: {ours} {theirs}"
        );
    }
    let sql = "SELECT function, sum(bytes) AS bytes FROM samples JOIN functions USING (function_id) GROUP BY function";
    let rows = json(&room, &["query", "x.allocsample", sql, "--format", "json"]);
    for row in rows.as_array().unwrap() {
        let functions = report["functions"].as_array().unwrap();
        let found = functions
            .iter()
            .find(|it| it["function"] == row["function"]);
        let theirs = found.unwrap()["self_allocated_bytes"].as_f64().unwrap();
        assert!(
            (row["bytes"].as_f64().unwrap() - theirs).abs() < 0.5,
            "{row}"
        );
    }
}

/// SQLite tells of no column of a table that is joined by its key alone.
#[test]
fn a_table_that_is_only_joined_is_read() {
    let room = recorded();
    let count = |from: &str| {
        let sql = format!("SELECT count(*) AS n FROM samples {from}");
        let rows = json(&room, &["query", "x.allocsample", &sql, "--format", "json"]);
        rows[0]["n"].as_u64().unwrap()
    };
    let samples = count("WHERE stack_id IS NOT NULL");
    assert!(samples > 0);
    assert_eq!(count("JOIN Stacks USING (stack_id)"), samples);
    assert_eq!(
        count("JOIN stacks ON stacks.stack_id = samples.stack_id"),
        samples
    );
}

/// Columns that a query does not name are not filled.
#[test]
fn each_column_is_the_same_alone_and_among_all() {
    let room = recorded();
    let answer = |sql: &str| json(&room, &["query", "x.allocsample", sql, "--format", "json"]);
    let columns = answer("SELECT name, column FROM tables");
    let columns = columns.as_array().unwrap();
    assert!(columns.len() > 50);
    for column in columns {
        let [table, name] = ["name", "column"].map(|key| column[key].as_str().unwrap());
        let alone = answer(&format!("SELECT {name} AS it FROM {table} ORDER BY rowid"));
        let whole = answer(&format!("SELECT * FROM {table} ORDER BY rowid"));
        let [alone, whole] = [&alone, &whole].map(|rows| rows.as_array().unwrap());
        assert_eq!(alone.len(), whole.len());
        for (alone, whole) in alone.iter().zip(whole) {
            assert_eq!(alone["it"], whole[name], "{table}.{name}");
        }
    }
    let natural = answer("SELECT count(*) AS n, sum(depth) AS d FROM samples NATURAL JOIN stacks");
    let named = answer(
        "SELECT count(*) AS n, sum(depth) AS d FROM samples JOIN stacks USING (stack_id, function_id)",
    );
    assert_eq!(natural, named);
    assert!(natural[0]["n"].as_u64() > Some(0));
}

#[test]
fn what_is_no_question_is_one_line_and_status_2() {
    let room = recorded();
    let before = fs::read(room.path("x.allocsample")).unwrap();
    for (sql, what) in [
        ("DELETE FROM samples", "only SELECT is possible"),
        ("ATTACH 'other' AS y", "only SELECT is possible"),
        ("PRAGMA journal_mode = wal", "only SELECT is possible"),
        ("", "there is no query"),
        ("SELECT 1; SELECT 2", "one query at a time"),
        ("SELECT colour FROM samples", "no such column: colour"),
    ] {
        assert_error(&room.output(&["query", "x.allocsample", sql]), 2, what);
    }
    assert_eq!(room.names(), ["leaky", "x.allocsample"]);
    assert_eq!(fs::read(room.path("x.allocsample")).unwrap(), before);
}

#[test]
fn parquet_has_the_same_tables() {
    let room = recorded();
    let output = room.output(&["convert", "x.allocsample", "--to", "parquet"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let tables = "SELECT DISTINCT name FROM tables ORDER BY name";
    let tables = json(
        &room,
        &["query", "x.allocsample", tables, "--format", "json"],
    );
    for table in tables.as_array().unwrap() {
        let name = table["name"].as_str().unwrap();
        assert!(
            room.path("x.parquet")
                .join(format!("{name}.parquet"))
                .exists(),
            "{name}"
        );
    }
    let Some(python) = python_with("duckdb") else {
        return;
    };
    let script = "import duckdb\nprint(*duckdb.connect().execute('''SELECT sum(bytes), sum(bytes) FILTER (WHERE live), count(*),
        (SELECT count(*) FROM 'x.parquet/frames.parquet') FROM 'x.parquet/samples.parquet' ''').fetchone())";
    let output = Command::new(python)
        .args(["-c", script])
        .current_dir(room.directory())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let read: Vec<f64> = stdout(&output)
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    let sql = "SELECT sum(bytes) AS a, sum(bytes * live) AS b, count(*) AS c, (SELECT count(*) FROM frames) AS d FROM samples";
    let row = &json(&room, &["query", "x.allocsample", sql, "--format", "json"])[0];
    for (read, column) in read.iter().zip(["a", "b", "c", "d"]) {
        assert!(
            (read - row[column].as_f64().unwrap()).abs() < 1e-3,
            "{column}"
        );
    }
    assert_eq!(read.len(), 4);
}

/// What a query answers beside what the report says, column by column; NULL is 0.
fn assert_rows(
    case: &crate::support::totals::Case,
    sql: &str,
    theirs: &[Value],
    columns: &[(&str, &str)],
) {
    let rows = json(
        &case.room,
        &["query", "x.allocsample", sql, "--format", "json"],
    );
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), theirs.len(), "{sql}");
    for their in theirs {
        let name = &their[columns[0].1];
        let row = rows.iter().find(|row| &row[columns[0].0] == name);
        let row = row.unwrap_or_else(|| panic!("{sql}: no {name}"));
        for (ours, key) in &columns[1..] {
            let [our, their] = [&row[*ours], &their[*key]].map(|it| it.as_f64().unwrap_or(0.0));
            let tolerance = 1e-6 * their.abs().max(1.0);
            assert!(
                (our - their).abs() <= tolerance,
                "{name}, {ours}: {our} {their}"
            );
        }
    }
}

#[test]
fn every_table_agrees_with_the_report() {
    for case in cases() {
        let list = |key: &str| case.report[key].as_array().unwrap().clone();
        let exact = ("exact_bytes", "allocated_bytes_exact");
        let figures = [
            ("bytes", "allocated_bytes"),
            ("low95", "allocated_bytes_low95"),
            ("high95", "allocated_bytes_high95"),
            ("live", "live_bytes"),
            ("objects", "allocations"),
            ("samples", "samples"),
        ];
        let sums = "sum(bytes) AS bytes, sum(bytes * live) AS live, sum(objects) AS objects, count(sample_id) AS samples,
            limit_low(sum(bytes), sum(bytes_variance), sum(size), max(bytes_allowance)) AS low95,
            limit_high(sum(bytes), sum(bytes_variance), sum(size), max(bytes_allowance)) AS high95";
        let heaps = format!(
            "SELECT heap, max(exact_bytes) AS exact_bytes, {sums} FROM heaps LEFT JOIN samples USING (heap_id) GROUP BY heap_id"
        );
        let columns = [&[("heap", "name"), exact][..], &figures].concat();
        assert_rows(&case, &heaps, &list("heaps"), &columns);
        let sum: f64 = list("heaps")
            .iter()
            .map(|heap| heap["allocated_bytes_exact"].as_f64().unwrap())
            .sum();
        let total = case.total("allocated_bytes_exact");
        assert_eq!(sum, total, "the heaps are the whole");

        let threads = "SELECT thread_id, exact_bytes, muted_bytes, (SELECT sum(bytes) FROM samples WHERE samples.thread_id = threads.thread_id) AS bytes FROM threads";
        let columns = [
            ("thread_id", "id"),
            exact,
            ("muted_bytes", "muted_bytes"),
            ("bytes", "allocated_bytes"),
        ];
        assert_rows(&case, threads, &list("threads"), &columns);

        let modules = "SELECT module, sum(bytes) AS bytes, sum(bytes * live) AS live FROM samples JOIN functions USING (function_id) WHERE module <> '' GROUP BY module";
        let named = list("modules").into_iter().filter(|row| {
            row["allocated_bytes"].as_f64() > Some(0.0) && row["module"] != "[no module]"
        });
        let named: Vec<Value> = named.collect();
        assert_rows(
            &case,
            modules,
            &named,
            &[
                ("module", "module"),
                ("bytes", "allocated_bytes"),
                ("live", "live_bytes"),
            ],
        );

        let typed = "SELECT type, sum(bytes) AS bytes, count(*) AS samples FROM samples JOIN types USING (type_id) GROUP BY type";
        let known = list("types")
            .into_iter()
            .filter(|row| row["type"] != "(unknown)");
        let known: Vec<Value> = known.collect();
        assert_rows(
            &case,
            typed,
            &known,
            &[
                ("type", "type"),
                ("bytes", "allocated_bytes"),
                ("samples", "samples"),
            ],
        );

        let process = "SELECT 1 AS one, exact_bytes, lost_samples, lost_bytes FROM process";
        let mut totals = case.report["totals"].clone();
        totals["one"] = 1.into();
        for key in ["lost_samples", "lost_bytes"] {
            totals[key] = case.report[key].clone();
        }
        assert_rows(
            &case,
            process,
            &[totals],
            &[
                ("one", "one"),
                exact,
                ("lost_samples", "lost_samples"),
                ("lost_bytes", "lost_bytes"),
            ],
        );

        let gc = "SELECT heap, sum(duration_ns) / 1e9 AS total_s, count(*) AS collections FROM gc JOIN heaps USING (heap_id) WHERE gc.kind = 'minor' GROUP BY heap";
        let minor: Vec<Value> = list("gc")
            .into_iter()
            .filter(|row| row["kind"] == "minor")
            .collect();
        assert_rows(
            &case,
            gc,
            &minor,
            &[
                ("heap", "heap"),
                ("total_s", "total_s"),
                ("collections", "collections"),
            ],
        );
    }
}

/// One line, and the status of a failure or of a request that makes no sense.
#[test]
fn queries_that_would_take_all_time_or_memory_are_stopped() {
    let room = Room::new();
    room.record("x.allocsample", &["--seed", "1"], &[]);
    let numbers = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)";
    let endless = format!("{numbers} SELECT max(x) FROM t");
    let blobs = "WITH RECURSIVE t(x) AS (SELECT randomblob(1000000) UNION ALL SELECT randomblob(1000000) FROM t) \
        SELECT count(DISTINCT x) FROM t";
    for (sql, status, what) in [
        (
            &*endless,
            1,
            "no answer after 1 s; allow more time with --timeout",
        ),
        (
            "SELECT zeroblob(1000000000)",
            2,
            "a text of more than 1 MiB",
        ),
        (blobs, 1, ""),
    ] {
        let output = room.output(&["query", "x.allocsample", sql, "--timeout", "1"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{sql}: {said}");
        assert!(
            said.starts_with("error: query: ") && said.contains(what),
            "{sql}: {said}"
        );
        assert_eq!(
            (said.lines().count(), stdout(&output).as_str()),
            (1, ""),
            "{sql}"
        );
    }
    // As much as there may be is reached in a moment, and no clock says when.
    let sorted = format!("{numbers} SELECT x, zeroblob(1000000) AS b FROM t ORDER BY x DESC");
    let output = room.output(&["query", "x.allocsample", &sorted, "--timeout", "0"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let file_bytes = std::fs::metadata(room.path("x.allocsample"))
        .expect("a profile")
        .len();
    let most = 64 + 20 * file_bytes / (1 << 20);
    let expected = format!("error: query: it takes more than {most} MiB of memory; ask for fewer");
    assert!(
        stderr(&output).starts_with(&expected),
        "{}",
        stderr(&output)
    );
    let output = room.output(&["query", "x.allocsample", "SELECT 1", "--timeout", "0"]);
    assert_eq!(output.status.code(), Some(0));
}
