//! `/tmp/perf-PID.map`: what a JIT compiler calls its code. Lines of `start size name`, numbers in hexadecimal.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// Code ranges and their names; a later line replaces what it overlaps at its start.
#[derive(Default)]
pub(super) struct PerfMap {
    by_start: BTreeMap<u64, (u64, String)>,
}

impl PerfMap {
    /// The map of a process, from `/tmp`. Anybody can write there: only a file of our own user, or of root, is read.
    pub(super) fn read(pid: u32) -> Self {
        let path = format!("/tmp/perf-{pid}.map");
        let own = std::fs::metadata("/proc/self").map(|own| own.uid()).ok();
        let is_trusted = std::fs::symlink_metadata(&path)
            .is_ok_and(|file| file.is_file() && (file.uid() == 0 || Some(file.uid()) == own));
        if !is_trusted {
            return Self::default();
        }
        std::fs::read(&path).map_or_else(
            |_| Self::default(),
            |bytes| Self::parse(&String::from_utf8_lossy(&bytes)),
        )
    }

    fn parse(text: &str) -> Self {
        let by_start = text
            .lines()
            .filter_map(parse_line)
            .map(|(start, end, name)| (start, (end, name)))
            .collect();
        Self { by_start }
    }

    /// The name of the code at `address`.
    pub(super) fn name(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.by_start.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }
}

fn parse_line(line: &str) -> Option<(u64, u64, String)> {
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let (start, size) = (hex(start)?, hex(size)?);
    Some((start, start.checked_add(size)?, name.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entry_wins_and_sizes_count() {
        let map = PerfMap::parse(
            "1000 10 first\n0x2000 20 LazyCompile:~f a.js:1\n1000 8 second\nbroken\n",
        );
        assert_eq!(map.name(0x1007), Some("second"));
        assert_eq!(map.name(0x1008), None);
        assert_eq!(map.name(0x201f), Some("LazyCompile:~f a.js:1"));
        assert_eq!(map.name(0xfff), None);
    }
}
