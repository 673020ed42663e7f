//! Profiles with what the report says of them, for the tests that compare other ways out with it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::room::stderr;
use super::{Program, Room, is_installed, skip};

/// A profile, and what the report says of it.
pub struct Case {
    /// Where it is, as `x.allocsample`.
    pub room: Room,
    /// `report --format json`.
    pub report: Value,
    /// A function that is in some of its stacks and not in others.
    pub function: &'static str,
}

/// Perl, which allocates in many places; a virtual machine with types, survival and collections; a program whose names
/// would be markup if they could.
pub fn cases() -> Vec<Case> {
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
    /// What is in a profile of a command.
    pub fn of(interval: &str, command: &[&str], function: &'static str) -> Case {
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

    /// With one more profile of it. Perl's own functions are more than those of the program, so that it is left alone.
    pub fn recorded(self, name: &str, interval: &str, seed: &str, command: &[&str]) -> Case {
        let file = format!("{name}.allocsample");
        let options = [
            "run",
            "--runtime",
            "none",
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

    /// What was run.
    pub fn command(&self) -> Vec<&str> {
        let words = self.report["command"].as_array().unwrap();
        words.iter().map(|word| word.as_str().unwrap()).collect()
    }

    /// One of the report's totals.
    pub fn total(&self, name: &str) -> f64 {
        self.report["totals"][name].as_f64().unwrap()
    }

    /// The profile in a format.
    pub fn convert(&self, format: &str, extension: &str) -> PathBuf {
        let output = self
            .room
            .output(&["convert", "x.allocsample", "--to", format]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        self.room.path(&format!("x.{extension}"))
    }

    /// The same, of JSON.
    pub fn json(&self, format: &str, extension: &str) -> Value {
        serde_json::from_slice(&fs::read(self.convert(format, extension)).unwrap()).unwrap()
    }

    /// What a command prints as JSON.
    pub fn json_of(&self, command: &[&str]) -> Value {
        let output = self.room.output(command);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Allocated and live, rounded to bytes: half a byte for each rounding that a format has to make.
    #[track_caller]
    pub fn assert_same(&self, allocated: f64, live: f64, roundings: f64) {
        for (name, value) in [("allocated_bytes", allocated), ("live_bytes", live)] {
            let total = self.total(name);
            assert!(
                (value - total).abs() <= 0.5 * roundings,
                "{name}: {value}, the report says {total}"
            );
        }
    }
}
