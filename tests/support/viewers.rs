//! Other people's programs that read what we write. `scripts/setup` puts them into `target/viewers`; variables may name
//! other places.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::room::stderr;
use super::skip;

/// Where npm's packages are: a directory with `node_modules`.
fn packages_with(package: &str) -> Option<PathBuf> {
    let own = ["ALLOCSAMPLE_TEST_VIEWERS", "ALLOCSAMPLE_TEST_PLAYWRIGHT"];
    let own = own.into_iter().filter_map(std::env::var_os);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/viewers");
    let all = own.map(PathBuf::from).chain([here]);
    let package = Path::new("node_modules").join(package);
    all.into_iter().find(|it| it.join(&package).is_dir())
}

/// What a script of tests/viewers that needs a package of npm, and a browser perhaps, prints of a file. `None`, which is
/// said, where one of them is not there.
pub fn seen(
    script: &str,
    package: &str,
    needs_browser: bool,
    file: &Path,
    words: &[&str],
) -> Option<Value> {
    // Older ones cannot run what the packages are written in.
    let node = Command::new("node").arg("--version").output().ok();
    let version = node.and_then(|output| String::from_utf8(output.stdout).ok());
    let major = version.and_then(|it| it.trim().strip_prefix('v')?.split('.').next()?.parse().ok());
    if major.is_none_or(|major: u32| major < 20) {
        skip(&format!(
            "{script}: Node.js 20 or later is not installed (scripts/setup does it)"
        ));
        return None;
    }
    let Some(packages) = packages_with(package) else {
        skip(&format!(
            "{script}: npm's {package} is not installed (scripts/setup does it)"
        ));
        return None;
    };
    let browsers = ["/usr/bin/chromium", "/usr/bin/google-chrome"];
    let browser = browsers.into_iter().find(|path| Path::new(path).exists());
    if needs_browser && browser.is_none() {
        skip(&format!("{script}: no browser (Debian: chromium)"));
        return None;
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/viewers");
    let output = Command::new("node")
        .arg(directory.join(script))
        .arg(file)
        .args(words)
        .env("VIEWERS", packages)
        .env("CHROMIUM", browser.unwrap_or_default())
        .output()
        .expect("node");
    let seen = serde_json::from_slice(&output.stdout);
    Some(seen.unwrap_or_else(|error| panic!("{script}: {error}: {}", stderr(&output))))
}

/// A Python that has a package: that of `ALLOCSAMPLE_TEST_PYTHON`, or that of `scripts/setup`, or the system's.
pub fn python_with(package: &str) -> Option<PathBuf> {
    let own = std::env::var_os("ALLOCSAMPLE_TEST_PYTHON").map(PathBuf::from);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/viewers/python/bin/python3");
    let has_it = |python: &PathBuf| {
        let import = format!("import {package}");
        let output = Command::new(python).args(["-c", &import]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let mut all = own
        .into_iter()
        .chain([here, PathBuf::from("/usr/bin/python3")]);
    let found = all.find(has_it);
    if found.is_none() {
        skip(&format!(
            "Python has no {package} (scripts/setup installs it)"
        ));
    }
    found
}
