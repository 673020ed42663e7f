//! `/tmp/perf-PID.map`: what a JIT compiler calls its code. Lines of `start size name`, numbers in hexadecimal.

use std::collections::BTreeMap;
use std::path::Path;

use allocsample_record::readable;

use super::maps::{began_ns, read_trusted};

/// Code ranges and their names, which do not overlap: a later line replaces all that it touches: the compiler has used
/// that memory again, so the code that was there is gone.
#[derive(Default)]
pub(super) struct PerfMap {
    by_start: BTreeMap<u64, (u64, String)>,
}

impl PerfMap {
    /// The map of the process `pid`, whose profile was begun at `start_wall_ns` (CLOCK_REALTIME).
    pub(super) fn read(pid: u32, start_wall_ns: u64) -> Self {
        let path = format!("/tmp/perf-{pid}.map");
        Self::read_file(Path::new(&path), began_ns(pid, start_wall_ns))
    }

    fn read_file(path: &Path, began_ns: u64) -> Self {
        let bytes = read_trusted(path, began_ns).unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    fn parse(text: &str) -> Self {
        let mut map = Self::default();
        for (start, end, name) in text.lines().filter_map(parse_line) {
            map.insert(start, end, name);
        }
        map
    }

    fn insert(&mut self, start: u64, end: u64, name: String) {
        if start >= end {
            return;
        }
        // Ranges do not overlap, so those that begin before the end of the new one are behind each other.
        while let Some((&other, &(other_end, _))) = self.by_start.range(..end).next_back()
            && other_end > start
        {
            self.by_start.remove(&other);
        }
        self.by_start.insert(start, (end, name));
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
    Some((
        start,
        start.checked_add(size)?,
        readable(name.trim().as_bytes()).into_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::maps::{FILE_CLOCK_TICK_NS, modified_ns};
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

    #[test]
    fn the_map_of_an_earlier_process_is_not_believed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf-1.map");
        fs::write(&path, "1000 10 f\n").unwrap();
        let written = modified_ns(&fs::metadata(&path).unwrap());
        let name_since = |began| {
            PerfMap::read_file(&path, began)
                .name(0x1000)
                .map(str::to_owned)
        };
        assert_eq!(name_since(written), Some("f".to_owned()));
        assert_eq!(name_since(written + 2 * FILE_CLOCK_TICK_NS), None);
    }

    #[test]
    fn code_that_was_overwritten_in_part_is_gone() {
        let map =
            PerfMap::parse("1000 100 old\n1200 80 other\n10f0 200 new\n2000 10 far\n3000 0 none\n");
        assert_eq!(map.name(0x1000), None);
        assert_eq!(map.name(0x10ef), None);
        assert_eq!(map.name(0x10f0), Some("new"));
        assert_eq!(map.name(0x1240), Some("new"));
        assert_eq!(map.name(0x12f0), None);
        assert_eq!(map.name(0x2000), Some("far"));
        assert_eq!(map.name(0x3000), None);
    }
}
