//! Which version of a package a function belongs to, as the installed files say.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use allocsample_profile::{Frame, Profile};

use crate::jars::Jars;
use crate::origin::{Origin, class_of};

/// Versions of packages, as the directories say in which they are installed.
#[derive(Debug, Default)]
pub struct Versions {
    /// By directory and package; `None` for one whose version is not known.
    known: HashMap<(String, String), Option<String>>,
}

impl Versions {
    /// `aiohttp 3.9.1`, if a function belongs to an installed package that has not changed since the profile began.
    pub fn package(&mut self, profile: &Profile, jars: &Jars, frame: &Frame) -> Option<String> {
        if frame.module == "java" {
            return jars.package(class_of(frame)?);
        }
        let start = UNIX_EPOCH + Duration::from_nanos(profile.process.start_wall_ns);
        let file = frame.file.as_deref()?;
        let (directory, name) = Origin::of(file).installed?;
        let key = (directory.to_owned(), name.to_owned());
        let version = self.known.entry(key).or_insert_with(|| {
            // Another machine's, or another version by now.
            is_unchanged(Path::new(file), start).then(|| version(Path::new(directory), name))?
        });
        Some(format!("{name} {}", version.as_ref()?))
    }
}

/// Whether a file was as it is at a moment.
pub(crate) fn is_unchanged(file: &Path, since: SystemTime) -> bool {
    let about = std::fs::metadata(file);
    let modified = about.and_then(|about| {
        about
            .modified()
            .map(|time| about.is_file() && time <= since)
    });
    modified.unwrap_or(false)
}

/// The version of a package in a directory of them.
fn version(directory: &Path, name: &str) -> Option<String> {
    let manifest = directory.join(name).join("package.json");
    if let Ok(manifest) = std::fs::read(manifest) {
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).ok()?;
        return Some(manifest.get("version")?.as_str()?.to_owned());
    }
    let plain = |name: &str| name.to_lowercase().replace(['-', '.'], "_");
    let module = name.strip_suffix(".py").unwrap_or(name);
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let installed = entries.filter_map(|entry| {
        let file_name = entry.file_name();
        let stem = file_name.to_str()?.strip_suffix(".dist-info")?;
        let (name, version) = stem.rsplit_once('-')?;
        Some((entry.path(), plain(name), version.to_owned()))
    });
    let mut others = Vec::new();
    for (path, distribution, version) in installed {
        if distribution == plain(module) {
            return Some(version);
        }
        others.push((path, version));
    }
    // A distribution may be called otherwise than what is imported: PyYAML has `yaml`.
    let provides = |path: &Path| {
        let names = std::fs::read_to_string(path.join("top_level.txt")).unwrap_or_default();
        let record = || std::fs::read_to_string(path.join("RECORD")).unwrap_or_default();
        names.lines().any(|line| line.trim() == module)
            || record().lines().any(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['/', ',']))
            })
    };
    let found = others.into_iter().find(|(path, _)| provides(path));
    found.map(|(_, version)| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_what_is_installed() {
        let directory = tempfile::tempdir().unwrap();
        let packages = directory.path().join("site-packages");
        let write = |name: &str, text: &str| {
            let path = packages.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("aiohttp/web_app.py", "");
        write("aiohttp-3.9.1.dist-info/METADATA", "");
        write("yaml/__init__.py", "");
        write("PyYAML-6.0.1.dist-info/top_level.txt", "_yaml\nyaml\n");
        let in_file = |path: std::path::PathBuf| Frame {
            function: "f".into(),
            file: path.to_str().map(str::to_owned),
            line: 1,
            module: "python".into(),
            is_symbolized: true,
            file_end: None,
        };
        let frame = |name: &str| in_file(packages.join(name));
        let mut profile = Profile::default();
        let jars = Jars::default();
        // The file is younger than that.
        let none = Versions::default().package(&profile, &jars, &frame("aiohttp/web_app.py"));
        assert_eq!(none, None);
        profile.process.start_wall_ns = u64::MAX / 2;
        let mut versions = Versions::default();
        let mut package = |name| versions.package(&profile, &jars, &frame(name));
        assert_eq!(
            package("aiohttp/web_app.py").as_deref(),
            Some("aiohttp 3.9.1")
        );
        assert_eq!(package("yaml/__init__.py").as_deref(), Some("yaml 6.0.1"));
        assert_eq!(package("other/__init__.py"), None);
        let modules = directory.path().join("node_modules/pkg");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::write(modules.join("package.json"), r#"{"version": "4.2.0"}"#).unwrap();
        std::fs::write(modules.join("i.js"), "").unwrap();
        let package = versions.package(&profile, &jars, &in_file(modules.join("i.js")));
        assert_eq!(package.as_deref(), Some("pkg 4.2.0"));
    }
}
