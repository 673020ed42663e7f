//! The CPythons of this machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::skip;

/// The system's interpreter, and those that pyenv has built.
pub fn interpreters() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = ["/usr/bin/python3"]
        .map(PathBuf::from)
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    let home = std::env::var_os("HOME").unwrap_or_default();
    let versions = Path::new(&home).join(".pyenv/versions");
    for minor in 8..=13 {
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
