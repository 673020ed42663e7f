//! Lines of source files that allocate, with those around them, as far as the files are on this machine.
//!
//! A profile says which files: it may come from anywhere, and the page may go anywhere. So a file is shown only if its
//! name is that of a source file, and only around the lines that the profile names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::time::{Duration, UNIX_EPOCH};

use allocsample_profile::{Profile, readable_char};
use serde_json::{Value, json};

use crate::sites::Sites;

/// Lines before and after one that allocates.
const AROUND: usize = 6;
/// Text in all.
const MOST_BYTES: usize = 1 << 20;
const MOST_FILES: usize = 60;
/// A larger file was generated.
const LARGEST_FILE: u64 = 8 << 20;
/// Of a line.
const MOST_COLUMNS: usize = 200;

const EXTENSIONS: &[&str] = &[
    "c", "h", "cc", "cpp", "cxx", "c++", "hh", "hpp", "hxx", "inl", "ipp", "tcc", "rs", "go",
    "zig", "py", "pyx", "pxd", "rb", "lua", "ml", "mli", "java", "kt", "scala", "clj", "js", "mjs",
    "ts", "pl", "pm", "php", "f", "f90", "d", "nim", "cr", "swift", "m", "cs", "ex", "erl", "hs",
    "s",
];

/// The files of the stacks that allocate most, each with excerpts: first line and text.
pub(crate) fn sources(profile: &Profile, sites: &Sites, bytes: &[f64]) -> Vec<Value> {
    let mut is_named = vec![false; sites.places.len()];
    let mut weights = vec![0.0; sites.files.len()];
    // The last site, plus one, that was added to a file: it may be on a stack several times.
    let mut seen = vec![0u32; sites.files.len()];
    for (stamp, (site, bytes)) in (1..).zip(sites.sites.iter().zip(bytes)) {
        for node in sites.path(site.node) {
            let Some(&(file, _)) = sites.places.get(node.place as usize) else {
                continue;
            };
            is_named[node.place as usize] = true;
            if std::mem::replace(&mut seen[file as usize], stamp) != stamp {
                weights[file as usize] += bytes;
            }
        }
    }
    let mut lines: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    let named = sites.places.iter().zip(is_named);
    for (&(file, line), _) in named.filter(|(_, is_named)| *is_named) {
        lines.entry(file).or_default().insert(line as usize);
    }
    let mut order: Vec<u32> = lines.keys().copied().collect();
    order.sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]));
    let mut left = MOST_BYTES;
    let mut sources = Vec::new();
    for file in order {
        if sources.len() == MOST_FILES {
            break;
        }
        let path = &sites.files[file as usize];
        let Some((text, changed_ns)) = read(path) else {
            continue;
        };
        let excerpts = excerpts(&text, &lines[&file]);
        let size: usize = excerpts.iter().map(|(_, text)| text.len()).sum();
        if excerpts.is_empty() || size > left {
            continue;
        }
        left -= size;
        sources.push(json!({
            "file": file,
            // It may no longer be what ran.
            "changed": changed_ns > u128::from(profile.process.start_wall_ns),
            "excerpts": excerpts,
        }));
    }
    sources
}

/// The text of a source file, and when it was changed, in nanoseconds since 1970.
fn read(path: &str) -> Option<(String, u128)> {
    let extension = path.rsplit_once('.')?.1.to_ascii_lowercase();
    if !path.starts_with('/') || !EXTENSIONS.contains(&extension.as_str()) {
        return None;
    }
    // Before it is opened: a pipe would wait for a writer.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > LARGEST_FILE {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut bytes).ok()?;
    let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Some((text, changed.unwrap_or(Duration::ZERO).as_nanos()))
}

/// Lines around the wanted ones: number of the first line, and the text.
fn excerpts(text: &str, wanted: &BTreeSet<usize>) -> Vec<(usize, String)> {
    let all: Vec<&str> = text.lines().collect();
    let mut excerpts: Vec<(usize, String)> = Vec::new();
    let mut next = 1;
    for &line in wanted.iter().filter(|&&line| line <= all.len()) {
        let first = line.saturating_sub(AROUND).max(next);
        let last = (line + AROUND).min(all.len());
        if first > next || excerpts.is_empty() {
            excerpts.push((first, String::new()));
        }
        if let Some((_, text)) = excerpts.last_mut() {
            for line in &all[first - 1..last] {
                let shown = line.chars().take(MOST_COLUMNS);
                text.extend(shown.map(|c| if c == '\t' { c } else { readable_char(c) }));
                text.push('\n');
            }
        }
        next = last + 1;
    }
    excerpts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(lines: usize) -> String {
        (1..=lines).map(|line| format!("line {line}\n")).collect()
    }

    #[test]
    fn excerpts_join_where_they_meet() {
        let at = |lines: &[usize]| -> Vec<(usize, usize)> {
            let wanted = lines.iter().copied().collect();
            let excerpts = excerpts(&numbered(100), &wanted);
            let shape = |(first, text): &(usize, String)| {
                assert!(text.starts_with(&format!("line {first}\n")));
                (*first, text.lines().count())
            };
            excerpts.iter().map(shape).collect()
        };
        assert_eq!(at(&[50]), [(44, 13)]);
        assert_eq!(at(&[1, 100]), [(1, 7), (94, 7)]);
        // The second begins right behind the first, or inside of it.
        assert_eq!(at(&[20, 33]), [(14, 26)]);
        assert_eq!(at(&[20, 22]), [(14, 15)]);
        assert_eq!(at(&[20, 34]), [(14, 13), (28, 13)]);
        // A line that the file does not have: it is another version.
        assert_eq!(at(&[101]), []);
    }

    #[test]
    fn excerpts_hold_no_character_that_acts() {
        let text = "\tint a; // \x1b]0;title\x07\u{202e}\r\n";
        let excerpts = excerpts(text, &BTreeSet::from([1]));
        let expected = "\tint a; // \u{fffd}]0;title\u{fffd}\u{fffd}\n";
        assert_eq!(excerpts, [(1, expected.to_owned())]);
    }

    #[test]
    fn only_source_files_are_read() {
        assert!(read(concat!(env!("CARGO_MANIFEST_DIR"), "/sources.rs")).is_some());
        for other in [
            "/etc/passwd",
            "/proc/self/environ",
            "sources.rs",
            "/dev/zero.c",
            "/etc",
        ] {
            assert!(read(other).is_none(), "{other}");
        }
    }
}
