//! Promise: what `--format json` prints is what docs/schemas says, key by key.

use std::fs;
use std::path::Path;

use crate::support::room::stderr;
use crate::support::totals::cases;
use crate::support::{Program, Room};
use jsonschema::Validator;
use serde_json::{Value, json};

/// The published schema with this name. Readers must allow for new keys; here a key that is not in it is an error.
fn schema(name: &str) -> Validator {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas");
    let text = fs::read_to_string(directory.join(format!("{name}.json"))).expect("a schema");
    let mut schema = serde_json::from_str(&text).expect("JSON");
    forbid_other_keys(&mut schema);
    jsonschema::validator_for(&schema).expect("a valid schema")
}

fn forbid_other_keys(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(forbid_other_keys);
            // Not where the schema describes a key called "properties".
            if object.get("properties").is_some_and(Value::is_object) && object.contains_key("type")
            {
                object.insert("additionalProperties".into(), json!(false));
            }
        }
        Value::Array(all) => all.iter_mut().for_each(forbid_other_keys),
        _ => {}
    }
}

#[track_caller]
fn assert_valid(schema: &Validator, document: &Value, what: &str) {
    let errors: Vec<String> = schema
        .iter_errors(document)
        .take(5)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{what}: {errors:#?}");
}

#[test]
fn json_outputs_follow_their_published_schemas() {
    let commands: [(&str, &[&str]); 19] = [
        ("report", &["report"]),
        ("report", &["report", "--since", "1ms"]),
        ("table", &["report", "--by", "function"]),
        ("table", &["report", "--by", "site"]),
        ("table", &["report", "--by", "line"]),
        ("table", &["report", "--by", "module"]),
        ("table", &["report", "--by", "thread"]),
        ("table", &["report", "--by", "type"]),
        ("table", &["report", "--by", "heap"]),
        ("table", &["report", "--by", "size"]),
        ("table", &["report", "--by", "lifetime"]),
        ("tree", &["report", "--tree"]),
        ("tree", &["report", "--callgraph"]),
        ("lifetimes", &["report", "--lifetimes"]),
        ("redundancy", &["report", "--redundancy"]),
        ("leaks", &["leaks", "--all"]),
        ("diff", &["diff", "x.allocsample"]),
        ("diff", &["diff", "x.allocsample", "--by", "site", "--all"]),
        ("profile", &["convert", "--to", "json", "-o", "-"]),
    ];
    for case in cases() {
        for (name, words) in commands {
            let format: &[&str] = match words[0] {
                "convert" => &[],
                _ => &["--format", "json"],
            };
            let words = [words, &["x.allocsample"], format].concat();
            let output = case.room.output(&words);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            let document = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_valid(&schema(name), &document, &words.join(" "));
        }
        let sql = "SELECT * FROM samples LIMIT 100";
        let words = ["query", "x.allocsample", sql, "--format", "json"];
        let output = case.room.output(&words);
        let document = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_valid(&schema("query"), &document, sql);
    }
}

#[test]
fn a_ledger_follows_its_schema() {
    let room = Room::new();
    let program = Program::compiled_with("memory_of_every_kind.c", &["-lpthread"]);
    room.add(&program, "program");
    let run = ["run", "-q", "-o", "x.allocsample", "--", "./program"];
    assert_eq!(room.output(&run).status.code(), Some(0));
    let own = std::process::id().to_string();
    for what in ["x.allocsample", &own] {
        let output = room.output(&["memory", "--format", "json", what]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let document = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_valid(&schema("memory"), &document, what);
    }
    let diff = ["diff", "--format", "json", "x.allocsample", "x.allocsample"];
    let output = room.output(&diff);
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(document["memory"]["rows"].is_array(), "{document}");
    assert_valid(&schema("diff"), &document, "diff");
}

/// A schema that allows anything would be no promise.
#[test]
fn a_schema_refuses_a_missing_key_a_new_one_and_another_type() {
    let case = cases().pop().expect("a profile");
    let report = schema("report");
    let with = |key: &str, value: Value| {
        let mut document = case.report.clone();
        document["totals"][key] = value;
        document
    };
    assert!(report.is_valid(&case.report));
    assert!(!report.is_valid(&with("new_key", json!(1))));
    assert!(!report.is_valid(&with("live_bytes", json!("many"))));
    let mut without = case.report.clone();
    if let Some(object) = without["totals"].as_object_mut() {
        object.remove("live_bytes");
    }
    assert!(!report.is_valid(&without));
}
