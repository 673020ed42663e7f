//! A profile as its readers see it: through `report --format json` and `convert`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::command;

/// A report on one profile.
#[derive(Debug)]
pub struct Profile {
    path: PathBuf,
    /// The whole document.
    pub report: Value,
}

/// What the report says about one function, as the site of allocations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Site {
    /// Estimate.
    pub allocated_bytes: f64,
    /// Of the estimate.
    pub allocated_bytes_stderr: f64,
    /// Estimate.
    pub live_bytes: f64,
    /// Of the estimate.
    pub live_bytes_stderr: f64,
    /// Estimate.
    pub allocations: f64,
    /// How many were recorded.
    pub samples: u64,
}

impl Profile {
    /// Has a profile reported on.
    pub fn read(path: &Path) -> Profile {
        Profile::read_with(path, &[])
    }

    /// Has it reported on with more options. Stacks are as they were recorded.
    pub fn read_with(path: &Path, options: &[&str]) -> Profile {
        Self::read_exactly(path, &[&["--all-frames"], options].concat())
    }

    /// Has it reported on with these options alone: stacks are without the frames of a language's runtime.
    pub fn read_exactly(path: &Path, options: &[&str]) -> Profile {
        let output = Command::new(command())
            .args(["report", "--format", "json"])
            .args(options)
            .arg(path)
            .output()
            .expect("the command");
        assert!(
            output.status.success(),
            "report {}: {}",
            path.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("report {}: {error}", path.display()));
        assert_eq!(report["schema"], "allocsample-report/1");
        Profile {
            path: path.to_owned(),
            report,
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A figure of the report by its name at the top.
    #[track_caller]
    pub fn number(&self, name: &str) -> f64 {
        figure(&self.report, name)
    }

    /// A figure of the totals.
    #[track_caller]
    pub fn total(&self, name: &str) -> f64 {
        figure(&self.report["totals"], name)
    }

    /// The row of one of the report's tables in which `key` is `name`.
    #[track_caller]
    pub fn row(&self, table: &str, key: &str, name: &str) -> &Value {
        let rows = self.report[table].as_array().expect("a table");
        rows.iter()
            .find(|row| row[key] == name)
            .unwrap_or_else(|| panic!("no {name} in {rows:?}"))
    }

    /// Whether the report says that the profile was finished.
    pub fn is_complete(&self) -> bool {
        self.report["complete"].as_bool().expect("complete")
    }

    /// What was recorded and what was lost add up to the exact count, within 6 standard errors.
    #[track_caller]
    pub fn is_accounted_for(&self, interval_bytes: f64) {
        let exact = self.total("allocated_bytes_exact");
        let lost = self.number("lost_bytes");
        let found = self.total("allocated_bytes") + lost;
        // Under the Poisson law the error is at most about the root of the bytes times the interval.
        let error = (exact * interval_bytes).sqrt() * (1.0 + lost / exact.max(1.0));
        assert!(
            (found - exact).abs() < 6.0 * error,
            "{found} of {exact}: {}",
            self.path().display()
        );
    }

    /// How the process ended, in the report's words.
    pub fn exit(&self) -> &str {
        self.report["exit"].as_str().unwrap_or_default()
    }

    /// The site in the function of this name; one without samples is all zeros. Code that was loaded several times may
    /// have several rows.
    pub fn site(&self, function: &str) -> Site {
        self.site_in(function, "")
    }

    /// The same for functions in files whose names end so.
    pub fn site_in(&self, function: &str, file_end: &str) -> Site {
        let mut site = Site::default();
        for row in self.report["functions"].as_array().expect("functions") {
            let file = row["file"].as_str().unwrap_or_default();
            if row["function"] != function || !file.ends_with(file_end) {
                continue;
            }
            site.allocated_bytes += figure(row, "self_allocated_bytes");
            site.allocated_bytes_stderr = site
                .allocated_bytes_stderr
                .hypot(figure(row, "self_allocated_bytes_stderr"));
            site.live_bytes += figure(row, "self_live_bytes");
            site.live_bytes_stderr = site
                .live_bytes_stderr
                .hypot(figure(row, "self_live_bytes_stderr"));
            site.allocations += figure(row, "allocations");
            site.samples += row["samples"].as_u64().expect("samples");
        }
        site
    }

    /// Every sampled stack, root first, with its bytes: what `convert --to collapsed` prints.
    pub fn stacks(&self) -> Vec<(Vec<String>, f64)> {
        self.stacks_with(&["--all-frames"])
    }

    /// The same, converted with these options.
    pub fn stacks_with(&self, options: &[&str]) -> Vec<(Vec<String>, f64)> {
        let output = self.path.with_extension("collapsed");
        let converted = Command::new(command())
            .args(["convert", "--to", "collapsed", "--metric", "allocated"])
            .args(options)
            .arg("-o")
            .arg(&output)
            .arg(&self.path)
            .output()
            .expect("the command");
        assert!(
            converted.status.success(),
            "convert {}: {}",
            self.path.display(),
            String::from_utf8_lossy(&converted.stderr)
        );
        let text = fs::read_to_string(&output).expect("collapsed stacks");
        text.lines()
            .map(|line| {
                let (frames, bytes) = line.rsplit_once(' ').expect("a stack and its weight");
                let frames = frames.split(';').map(str::to_owned).collect();
                (frames, bytes.parse().expect("a weight"))
            })
            .collect()
    }

    /// A stack that ends in this function, root first.
    #[track_caller]
    pub fn stack_to(&self, leaf: &str) -> Vec<String> {
        let mut stacks = self.stacks().into_iter().map(|(stack, _)| stack);
        stacks
            .find(|stack| stack.last().is_some_and(|last| last == leaf))
            .unwrap_or_else(|| panic!("no stack ends in {leaf}"))
    }
}

/// A figure of a row, or of any other object of a report.
#[track_caller]
pub fn figure(object: &Value, name: &str) -> f64 {
    object[name]
        .as_f64()
        .unwrap_or_else(|| panic!("no figure {name} in {object}"))
}
