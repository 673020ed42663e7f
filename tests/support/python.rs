//! The CPythons of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::skip;

/// Minor versions of Python 3 that are looked for.
const MINORS: std::ops::RangeInclusive<u32> = 8..=20;

/// Those that the variable names, separated by commas, in place of all others.
fn named() -> Option<Vec<PathBuf>> {
    let named = std::env::var("ALLOCSAMPLE_TEST_PYTHONS").ok()?;
    Some(named.split(',').map(PathBuf::from).collect())
}

/// The system's interpreters, and those that pyenv has built, or those that are named.
pub fn interpreters() -> Vec<PathBuf> {
    if let Some(named) = named() {
        return named;
    }
    let mut found: Vec<PathBuf> = MINORS
        .map(|minor| PathBuf::from(format!("/usr/bin/python3.{minor}")))
        .filter(|path| path.exists())
        .collect();
    let home = std::env::var_os("HOME").unwrap_or_default();
    let versions = Path::new(&home).join(".pyenv/versions");
    for minor in MINORS {
        let prefix = format!("3.{minor}.");
        let directories = fs::read_dir(&versions).into_iter().flatten().flatten();
        let mut names: Vec<_> = directories.map(|entry| entry.file_name()).collect();
        names.sort();
        if let Some(name) = names
            .iter()
            .find(|name| name.to_string_lossy().starts_with(&prefix))
        {
            let python = versions.join(name).join("bin/python3");
            if python.exists() {
                found.push(python);
            }
        }
    }
    if found.is_empty() {
        skip("no Python (Debian: python3)");
    }
    found
}

/// What an interpreter prints for an expression over `sys` and `sysconfig`.
fn said_by(python: &Path, expression: &str) -> String {
    let print = format!("import sys, sysconfig; print({expression})");
    let output = Command::new(python).args(["-c", &print]).output();
    let text = output.ok().and_then(|it| String::from_utf8(it.stdout).ok());
    text.expect("an interpreter").trim().to_owned()
}

/// The minor version of one of these.
pub fn minor_of(python: &Path) -> u32 {
    let minor = said_by(python, "sys.version_info.minor");
    minor.parse().expect("a version")
}

/// Whether it was built without the interpreter's lock.
pub fn is_free_threaded(python: &Path) -> bool {
    said_by(python, "sysconfig.get_config_var('Py_GIL_DISABLED')") == "1"
}

/// Those of the environments that scripts/setup makes which have this package, or those that are named and have it.
pub fn interpreters_with(package: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = (named().unwrap_or_else(of_environments).into_iter())
        .filter(|python| {
            let import = format!("import {package}");
            let mut command = Command::new(python);
            let status = command.args(["-c", &import]).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        })
        .collect();
    found.sort();
    if found.is_empty() {
        skip(&format!("no Python with {package} (scripts/setup)"));
    }
    found
}

fn of_environments() -> Vec<PathBuf> {
    let environments = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python");
    let directories = fs::read_dir(environments).into_iter().flatten().flatten();
    directories
        .map(|entry| entry.path().join("bin/python3"))
        .collect()
}
