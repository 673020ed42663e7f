//! Where the profiles of a run go, and which files are profiles of it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::exit::Usage;

const DEFAULT: &str = "allocsample.%n.%p.allocsample";
const SUFFIX: &[u8] = b".allocsample";

/// A path in which `%p` stands for a pid, `%n` for a program's name and `%t` for a time.
#[derive(Clone, Debug)]
pub struct Template {
    path: PathBuf,
    is_default: bool,
}

/// The files that a template could name, as they were at one moment.
#[derive(Debug)]
pub struct Snapshot(HashMap<PathBuf, Identity>);

/// Tells a file from a later one of the same name, and from itself after it was written to.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl Template {
    /// The one asked for, or that of the environment, or the default; made absolute.
    pub fn new(asked_for: Option<&Path>) -> anyhow::Result<Self> {
        let path = asked_for
            .map(|path| path.as_os_str().to_owned())
            .or_else(|| std::env::var_os("ALLOCSAMPLE_OUTPUT").filter(|path| !path.is_empty()))
            .filter(|path| path != DEFAULT);
        let is_default = path.is_none();
        let path = path.unwrap_or_else(|| OsString::from(DEFAULT));
        if path.is_empty() {
            return Err(Usage("--output needs the name of a file".into()).into());
        }
        let directory = std::env::current_dir().context("the working directory is gone")?;
        // A percent sign in our directory's own name is no placeholder.
        let mut escaped = Vec::new();
        for &byte in directory.as_os_str().as_bytes() {
            escaped.extend((byte == b'%').then_some(byte));
            escaped.push(byte);
        }
        let path = PathBuf::from(OsString::from_vec(escaped)).join(path);
        Ok(Self { path, is_default })
    }

    /// Whether the user asked for a file with the pid in its name: one for every process.
    pub fn names_every_process(&self) -> bool {
        let template = self.path.as_os_str().as_bytes();
        !self.is_default && template.windows(2).any(|two| two == b"%p")
    }

    /// The name that the user asked for, if it is the same for every process.
    pub fn only_name(&self) -> Option<PathBuf> {
        fixed_name(self.path.as_os_str()).map(PathBuf::from)
    }

    /// The path for one process, as the agent would make it. `attempt` tells it from paths that exist already.
    pub fn expand(&self, pid: i32, program: &[u8], start_s: u64, attempt: u32) -> PathBuf {
        let template = self.path.as_os_str().as_bytes();
        let (mut rest, suffix) = match template.strip_suffix(SUFFIX) {
            Some(stem) => (stem, SUFFIX),
            None => (template, &b""[..]),
        };
        let mut path = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            let (part, after) = match (byte, after.first()) {
                (b'%', Some(b'p')) => (pid.to_string().into_bytes(), &after[1..]),
                (b'%', Some(b'n')) => (program.to_vec(), &after[1..]),
                (b'%', Some(b't')) => (start_s.to_string().into_bytes(), &after[1..]),
                (b'%', Some(b'%')) => (vec![b'%'], &after[1..]),
                _ => (vec![byte], after),
            };
            path.extend(part);
            rest = after;
        }
        if attempt > 0 {
            path.extend(format!(".{attempt}").into_bytes());
        }
        path.extend(suffix);
        OsString::from_vec(path).into()
    }

    /// The same with a word before the suffix, as in `NAME.go.allocsample`.
    pub fn with_part(&self, part: &str) -> Self {
        let template = self.path.as_os_str().as_bytes();
        let (stem, suffix) = match template.strip_suffix(SUFFIX) {
            Some(stem) => (stem, SUFFIX),
            None => (template, &b""[..]),
        };
        let path = [stem, b".", part.as_bytes(), suffix].concat();
        Self {
            path: OsString::from_vec(path).into(),
            is_default: self.is_default,
        }
    }

    /// What the agent is told.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether profiles can be written there, as far as that can be told before they are.
    pub fn check(&self) -> anyhow::Result<()> {
        let refuse = |why: String| Err(Usage(format!("{}: {why}", self.path.display())).into());
        if self.path.as_os_str().as_bytes().ends_with(b"/") || self.path.is_dir() {
            return refuse("is a directory; name a file, as in out/%n.%p.allocsample".into());
        }
        let named = fixed_name(self.path.as_os_str()).and_then(|name| std::fs::metadata(name).ok());
        if named.is_some_and(|named| !named.is_file()) {
            return refuse("is not a regular file; name another".into());
        }
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // A directory whose name is not known yet cannot be looked at.
        let Some(directory) = fixed_name(directory.as_os_str()).map(PathBuf::from) else {
            return Ok(());
        };
        if !directory.is_dir() {
            let directory = directory.display();
            return refuse(format!(
                "directory {directory} does not exist; create it first"
            ));
        }
        // Permission bits do not tell all (root, read-only and special file systems): a nameless file does.
        if let Err(error) = tempfile::tempfile_in(&directory) {
            let directory = directory.display();
            let why = error.kind();
            return refuse(format!(
                "cannot write into {directory} ({why}); choose another place with --output"
            ));
        }
        Ok(())
    }

    /// Says that the name is taken, by what, if it is a name that will not do for the profile. The agent takes another then.
    pub fn taken(&self) -> Option<String> {
        let name = PathBuf::from(fixed_name(self.path.as_os_str())?);
        let mut ring = name.clone().into_os_string();
        ring.push(".ring");
        let own = rustix::process::geteuid().as_raw();
        [name.clone(), ring.into()].into_iter().find_map(|path| {
            let about = fs::symlink_metadata(&path).ok()?;
            let whose = match about.uid() {
                uid if uid == own => String::new(),
                uid => format!(", of user {uid}"),
            };
            Some(format!(
                "{} already exists{whose}; the profile gets a number, as in {}",
                path.display(),
                numbered(&name).display()
            ))
        })
    }

    /// What the template's files are now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.files().into_iter().collect())
    }

    /// The files that were created or written to since `before`, the oldest first.
    pub fn changed_since(&self, before: &Snapshot) -> Vec<PathBuf> {
        let mut changed = self.files();
        changed.retain(|(path, identity)| before.0.get(path) != Some(identity));
        changed.sort_by(|(a_path, a), (b_path, b)| (a.modified, a_path).cmp(&(b.modified, b_path)));
        changed.into_iter().map(|(path, _)| path).collect()
    }

    fn files(&self) -> Vec<(PathBuf, Identity)> {
        let mut paths = vec![PathBuf::new()];
        let mut components = self.path.components().peekable();
        while let Some(component) = components.next() {
            let name = component.as_os_str();
            // The file itself may have got a number.
            let is_file = components.peek().is_none();
            paths = match fixed_name(name) {
                Some(name) if !is_file => paths.iter().map(|path| path.join(&name)).collect(),
                _ => paths
                    .iter()
                    .flat_map(|directory| matching_entries(directory, name))
                    .collect(),
            };
        }
        paths
            .into_iter()
            .filter_map(|path| {
                let metadata = fs::metadata(&path).ok().filter(Metadata::is_file)?;
                Some((path, Identity::from(&metadata)))
            })
            .collect()
    }
}

/// The next name that the agent tries.
fn numbered(name: &Path) -> PathBuf {
    let name = name.as_os_str().as_bytes();
    let numbered = match name.strip_suffix(SUFFIX) {
        Some(stem) => [stem, b".1", SUFFIX].concat(),
        None => [name, b".1"].concat(),
    };
    OsString::from_vec(numbered).into()
}

/// What a text without placeholders stands for; `None` if it has one.
fn fixed_name(template: &OsStr) -> Option<OsString> {
    let mut name = Vec::new();
    let mut rest = template.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = match (byte, after.first()) {
            (b'%', Some(b'p' | b'n' | b't')) => return None,
            (b'%', Some(b'%')) => &after[1..],
            _ => after,
        };
        name.push(byte);
    }
    Some(OsString::from_vec(name))
}

fn matching_entries(directory: &Path, template: &OsStr) -> Vec<PathBuf> {
    let listed = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let Ok(entries) = fs::read_dir(listed) else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name())
        .filter(|name| matches(template.as_bytes(), name.as_bytes()))
        .map(|name| directory.join(name))
        .collect()
}

/// Whether `name` is what `template` can become: `%p` some digits, `%n` and `%t` anything. Where that name was taken,
/// a number stands before the suffix.
fn matches(template: &[u8], name: &[u8]) -> bool {
    match (template.strip_suffix(SUFFIX), name.strip_suffix(SUFFIX)) {
        (Some(template), Some(name)) => matches_numbered(template, name),
        (Some(_), None) => false,
        (None, _) => matches_numbered(template, name),
    }
}

fn matches_numbered(template: &[u8], name: &[u8]) -> bool {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let (stem, _) = name.split_at(name.len() - digits.count());
    let without_number = stem.strip_suffix(b".").filter(|_| stem.len() < name.len());
    matches_exactly(template, name)
        || without_number.is_some_and(|name| matches_exactly(template, name))
}

fn matches_exactly(template: &[u8], name: &[u8]) -> bool {
    match template {
        [] => name.is_empty(),
        [b'%', b'%', rest @ ..] => name
            .strip_prefix(b"%")
            .is_some_and(|name| matches_exactly(rest, name)),
        [b'%', b'p', rest @ ..] => {
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (1..=digits).any(|length| matches_exactly(rest, &name[length..]))
        }
        [b'%', b'n' | b't', rest @ ..] => {
            (0..=name.len()).any(|length| matches_exactly(rest, &name[length..]))
        }
        [byte, rest @ ..] => name
            .strip_prefix(&[*byte])
            .is_some_and(|name| matches_exactly(rest, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_match_what_they_stand_for() {
        let matches = |template: &str, name: &str| matches(template.as_bytes(), name.as_bytes());
        assert!(matches(DEFAULT, "allocsample.python3.11.4711.allocsample"));
        assert!(!matches(DEFAULT, "allocsample.python3.x.allocsample"));
        assert!(!matches(DEFAULT, "allocsample.a.1.allocsample.ring"));
        assert!(matches("%p%p", "12"));
        assert!(!matches("%p%p", "1"));
        assert!(matches("100%%.%t", "100%.2026"));
        assert!(!matches("x", "xy"));
        // A second file of the same name.
        assert!(matches("x.allocsample", "x.1.allocsample"));
        assert!(!matches("x.allocsample", "x.one.allocsample"));
        assert!(matches("x.prof", "x.prof.12"));
        assert!(!matches("x.prof", "x.prof."));
    }

    #[test]
    fn only_what_changed_belongs_to_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let in_it = |name: &str| directory.path().join(name);
        for old in ["a.1.p", "a.2.p"] {
            fs::write(in_it(old), "old").unwrap();
        }
        let template = Template {
            is_default: false,
            path: in_it("%n.%p.p"),
        };
        let before = template.snapshot();
        assert_eq!(template.changed_since(&before), Vec::<PathBuf>::new());
        fs::write(in_it("a.2.p"), "written to").unwrap();
        fs::write(in_it("b.3.p"), "new").unwrap();
        fs::write(in_it("b.3.q"), "something else").unwrap();
        let mut changed = template.changed_since(&before);
        changed.sort();
        assert_eq!(changed, [in_it("a.2.p"), in_it("b.3.p")]);
    }

    #[test]
    fn placeholders_in_directories_are_followed() {
        let directory = tempfile::tempdir().unwrap();
        let template = Template {
            is_default: false,
            path: directory.path().join("run-%p/%n.p"),
        };
        assert!(template.check().is_ok());
        let before = template.snapshot();
        fs::create_dir(directory.path().join("run-7")).unwrap();
        fs::write(directory.path().join("run-7/x.p"), "").unwrap();
        let found = template.changed_since(&before);
        assert_eq!(found, [directory.path().join("run-7/x.p")]);
    }

    #[test]
    fn a_percent_sign_that_is_none_of_ours_is_itself() {
        let fixed =
            |text: &str| fixed_name(OsStr::new(text)).map(|name| name.into_string().unwrap());
        assert_eq!(fixed("100%%x%"), Some("100%x%".into()));
        assert_eq!(fixed("%%p"), Some("%p".into()));
        assert_eq!(fixed("a%pb"), None);
        let directory = tempfile::tempdir().unwrap();
        let odd = directory.path().join("100%p");
        fs::create_dir(&odd).unwrap();
        let template = Template {
            is_default: false,
            path: directory.path().join("100%%p/x.allocsample"),
        };
        assert!(template.check().is_ok());
        let before = template.snapshot();
        fs::write(odd.join("x.1.allocsample"), "").unwrap();
        assert_eq!(
            template.changed_since(&before),
            [odd.join("x.1.allocsample")]
        );
    }

    #[test]
    fn a_directory_or_a_missing_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let check = |path: PathBuf| {
            Template {
                path,
                is_default: false,
            }
            .check()
            .unwrap_err()
            .to_string()
        };
        assert!(check(directory.path().into()).contains("is a directory"));
        assert!(check(directory.path().join("no/x")).contains("does not exist"));
    }
}
