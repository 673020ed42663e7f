//! Decides when a recording continues in another file, names the files, and deletes old ones.
//!
//! The current file always has the profile's own name, `app.allocsample`; a complete one is called
//! `app.part-N.allocsample`, N from 1. At every moment a file with the profile's name exists, complete except for
//! what is in the ring: the next file is prepared aside, the current one gets its second name, and one call puts the
//! next in its place.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use allocsample_agent::config::Config;

const SUFFIX: &[u8] = b".allocsample";
/// After a failure the next attempt waits this long.
const RETRY_NS: u64 = 10_000_000_000;
/// Names that others may have taken.
const ATTEMPTS: u32 = 1000;

/// A file that is complete.
#[derive(Clone, Debug)]
struct Part {
    number: u32,
    path: PathBuf,
    bytes: u64,
    begin_wall_ns: u64,
    end_wall_ns: u64,
}

/// Time and size at the end of the present file.
#[derive(Clone, Copy, Debug)]
pub struct Border {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// CLOCK_REALTIME.
    pub wall_ns: u64,
    /// Bytes of the finished file.
    pub bytes: u64,
}

/// The state of a rotation; see the module.
#[derive(Clone, Debug)]
pub struct Rotation {
    path: PathBuf,
    every_ns: Option<u64>,
    size_bytes: Option<u64>,
    keep: Option<usize>,
    most_bytes: Option<u64>,
    /// Number of the present file, and when it began.
    number: u32,
    begin_ns: u64,
    begin_wall_ns: u64,
    /// Length of the present file's first facts in bytes, and the ring position at which it began.
    first_bytes: u64,
    first_position: u64,
    /// Complete files, oldest first.
    parts: VecDeque<Part>,
    /// Number of complete files that were deleted.
    deleted: u64,
    retry_ns: u64,
    /// Whether a failure was reported in the profile.
    pub is_reported: bool,
}

impl Rotation {
    /// The rotation of a recording whose first file has just begun.
    pub fn new(config: &Config, path: &Path, time_ns: u64, wall_ns: u64) -> Self {
        Self {
            path: path.to_owned(),
            every_ns: config
                .rotate_every_ms
                .map(|ms| ms.saturating_mul(1_000_000)),
            size_bytes: config.rotate_size_bytes,
            keep: config.keep_parts.map(|keep| keep as usize),
            most_bytes: config.max_size_bytes,
            number: 1,
            begin_ns: time_ns,
            begin_wall_ns: wall_ns,
            first_bytes: 0,
            first_position: 0,
            parts: VecDeque::new(),
            deleted: 0,
            retry_ns: 0,
            is_reported: false,
        }
    }

    /// The number of the present file, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it is time for another file. A file without records since it began continues.
    pub fn is_due(&self, time_ns: u64, length: u64, position: u64) -> bool {
        if position == self.first_position || time_ns < self.retry_ns {
            return false;
        }
        let is_old = (self.every_ns).is_some_and(|every| time_ns - self.begin_ns >= every);
        let is_long = (self.size_bytes).is_some_and(|size| length - self.first_bytes >= size);
        is_old || is_long
    }

    /// Time until the next file is due by its age.
    pub fn patience_ms(&self, time_ns: u64) -> Option<u32> {
        let due_ns = (self.begin_ns + self.every_ns?).max(self.retry_ns);
        let ms = due_ns.saturating_sub(time_ns).div_ceil(1_000_000);
        // Zero would make the thread spin if there is nothing to begin another file for.
        const LEAST_MS: u64 = 100;
        Some(u32::try_from(ms.max(LEAST_MS)).unwrap_or(u32::MAX))
    }

    /// Postpones the next attempt after a failure.
    pub fn put_off(&mut self, time_ns: u64) {
        self.retry_ns = time_ns + RETRY_NS;
    }

    /// Path under which the next file is prepared.
    pub fn aside(&self) -> PathBuf {
        named(&self.path, b".next")
    }

    /// Puts the next file, complete at [`Self::aside`], in the place of the current one, which keeps its own part
    /// name if `keeps`. Both are synced to disk first, so that the name leads to a complete file even after a power
    /// failure. `first_bytes` is the length of the next file, `position` the ring position at which it begins.
    pub fn change(
        &mut self,
        border: &Border,
        first_bytes: u64,
        position: u64,
        keeps: bool,
    ) -> std::io::Result<()> {
        let path = match keeps {
            true => Some(self.give_second_name()?),
            false => None,
        };
        if let Err(error) = std::fs::rename(self.aside(), &self.path) {
            if let Some(path) = path {
                // If the first name has disappeared as well, nothing is lost: the file has this name.
                match self.path.exists() {
                    true => drop(std::fs::remove_file(&path)),
                    false => drop(std::fs::rename(&path, &self.path)),
                }
            }
            return Err(error);
        }
        if let Some(path) = path {
            self.parts.push_back(Part {
                number: self.number,
                path,
                bytes: border.bytes,
                begin_wall_ns: self.begin_wall_ns,
                end_wall_ns: border.wall_ns,
            });
        }
        self.number += 1;
        self.begin_ns = border.time_ns;
        self.begin_wall_ns = border.wall_ns;
        self.first_bytes = first_bytes;
        self.first_position = position;
        self.retry_ns = 0;
        while self.keep.is_some_and(|keep| self.parts.len() > keep) && self.drop_oldest() {}
        self.write_index();
        sync_directory(&self.path);
        Ok(())
    }

    /// A path for a copy of the present file.
    pub fn copy_path(&self) -> PathBuf {
        let path = |number| beside(&self.path, format!(".snapshot-{number}").as_bytes());
        (1..ATTEMPTS)
            .map(path)
            .find(|path| !path.exists())
            .unwrap_or_else(|| path(ATTEMPTS))
    }

    fn give_second_name(&self) -> std::io::Result<PathBuf> {
        for attempt in 0..ATTEMPTS {
            let mut name = format!(".part-{}", self.number);
            if attempt > 0 {
                name.push_str(&format!("-{attempt}"));
            }
            let path = beside(&self.path, name.as_bytes());
            match std::fs::hard_link(&self.path, &path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                // A file system without hard links: for a moment no file has the profile's name.
                Err(_) if !path.exists() => {
                    return std::fs::rename(&self.path, &path).map(|()| path);
                }
                Err(error) => return Err(error),
            }
        }
        Err(std::io::Error::from(std::io::ErrorKind::AlreadyExists))
    }

    /// Deletes the oldest complete file; false if there is none.
    pub fn drop_oldest(&mut self) -> bool {
        let Some(part) = self.parts.pop_front() else {
            return false;
        };
        // Somebody else may have removed it.
        drop(std::fs::remove_file(&part.path));
        self.deleted += 1;
        true
    }

    /// Whether the present file contains records beyond its first facts.
    pub fn has_grown(&self, position: u64) -> bool {
        position != self.first_position
    }

    /// Maximum length of the current file, given the length of the complete ones.
    pub fn room(&self) -> Option<u64> {
        let parts: u64 = self.parts.iter().map(|part| part.bytes).sum();
        self.most_bytes.map(|most| most.saturating_sub(parts))
    }

    /// Bytes of the complete files.
    pub fn parts_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Writes the index, which is for people and scripts. Readers look at the files themselves, so errors are ignored.
    fn write_index(&self) {
        let aside = named(&self.path, b".index.next");
        drop(std::fs::remove_file(&aside));
        let write = || -> std::io::Result<()> {
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = std::fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&aside)?;
            file.write_all(&self.index())?;
            std::fs::rename(&aside, named(&self.path, b".index"))
        };
        if write().is_err() {
            drop(std::fs::remove_file(&aside));
        }
    }

    fn index(&self) -> Vec<u8> {
        let mut text = Vec::from(*b"#number\tbegin_unix_ns\tend_unix_ns\tbytes\tfile\n");
        let name = |path: &Path| path.file_name().unwrap_or_default().as_bytes().to_vec();
        for part in &self.parts {
            let Part {
                number,
                bytes,
                begin_wall_ns,
                end_wall_ns,
                ..
            } = part;
            let line = format!("{number}\t{begin_wall_ns}\t{end_wall_ns}\t{bytes}\t");
            text.extend_from_slice(line.as_bytes());
            text.extend_from_slice(&name(&part.path));
            text.push(b'\n');
        }
        let line = format!("{}\t{}\t-\t-\t", self.number, self.begin_wall_ns);
        text.extend_from_slice(line.as_bytes());
        text.extend_from_slice(&name(&self.path));
        text.push(b'\n');
        text
    }
}

/// Syncs the directory of a file, so that its name survives a power failure. Without that the files survive under their old
/// names.
fn sync_directory(path: &Path) {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = std::fs::File::open(parent.unwrap_or(Path::new(".")));
    drop(directory.and_then(|directory| directory.sync_all()));
}

/// `app.allocsample` and `.part-1` give `app.part-1.allocsample`.
fn beside(path: &Path, what: &[u8]) -> PathBuf {
    let path = path.as_os_str().as_bytes();
    let (stem, suffix) = match path.strip_suffix(SUFFIX) {
        Some(stem) => (stem, SUFFIX),
        None => (path, &b""[..]),
    };
    PathBuf::from(std::ffi::OsString::from_vec([stem, what, suffix].concat()))
}

fn named(path: &Path, ending: &[u8]) -> PathBuf {
    let bytes = [path.as_os_str().as_bytes(), ending].concat();
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests;
