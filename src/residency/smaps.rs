//! Reads `smaps`: mapping by mapping, so that a process with a hundred thousand of them needs no memory for the text.

use std::collections::HashMap;
use std::io::{self, BufRead};

use allocsample_record::{MemoryMap, MemoryMapping};

use crate::static_data::{Modules, Place};

/// Of so many mappings each is kept; the smallest of those beyond are added up by name.
const MOST_MAPPINGS: usize = 2_000;
/// Smaller ones are added up by name.
const LEAST_BYTES: u64 = 64 << 10;
/// The same for what may be the stack of a thread: of most a few pages are touched, and there may be many.
const LEAST_STACK_BYTES: u64 = 8 << 10;
/// A guard below a stack is a page, or some of them.
const LARGEST_GUARD_BYTES: u64 = 1 << 20;

/// The sums and the mappings in a text as `/proc/PID/smaps` has it, with what is in the files. The time and the peak are left at 0.
pub(crate) fn read_map(text: &mut dyn BufRead, modules: &mut Modules) -> io::Result<MemoryMap> {
    let mut reading = Reading::of(modules);
    let mut line = Vec::new();
    loop {
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        reading.line(line.trim_ascii_end());
    }
    Ok(reading.finish())
}

struct Reading<'a> {
    modules: &'a mut Modules,
    map: MemoryMap,
    numbers: HashMap<Vec<u8>, u32>,
    current: Option<MemoryMapping>,
    /// Where the static data in the current mapping ends, if other memory follows in it.
    static_end: Option<u64>,
    before: Before,
    /// The last mapping of the beginning of a file: number of the file's name, and address.
    image: Option<(u32, u64)>,
}

/// What lies directly below the mapping that comes next.
#[derive(Default)]
struct Before {
    end: u64,
    bytes: u64,
    is_accessible: bool,
    /// If it is the writable part of one that is not shared, or behind that.
    file: Option<Above>,
}

/// A file that static data may follow.
#[derive(Clone, Copy)]
struct Above {
    /// Number of its name.
    name: u32,
    place: Place,
    /// The address that maps the beginning of the file, if any.
    image: Option<u64>,
}

impl<'a> Reading<'a> {
    fn of(modules: &'a mut Modules) -> Self {
        Self {
            modules,
            map: MemoryMap::default(),
            numbers: HashMap::new(),
            current: None,
            static_end: None,
            before: Before::default(),
            image: None,
        }
    }

    fn line(&mut self, line: &[u8]) {
        // Of 24 lines of a mapping one begins with an address, and four others matter: Rss, Anonymous, AnonHugePages, Swap.
        if let Some(b'B'..=b'Q' | b'T'..=b'Z') = line.first() {
            return;
        }
        if let Some(mapping) = self.mapping(line) {
            self.current = Some(mapping);
            return;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        if let Some(kib) = figure(line, b"Rss:") {
            current.resident_bytes = kib << 10;
        } else if let Some(kib) = figure(line, b"Anonymous:") {
            current.anonymous_bytes = kib << 10;
        } else if let Some(kib) = figure(line, b"AnonHugePages:") {
            current.huge_bytes = kib << 10;
        } else if let Some(kib) = figure(line, b"Swap:") {
            current.swapped_bytes = kib << 10;
        }
    }

    /// `start-end rwxp offset device inode    name`, where the name may be missing.
    fn mapping(&mut self, line: &[u8]) -> Option<MemoryMapping> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let (start, end) = range(fields.next()?)?;
        let rights = fields.next()?;
        let offset = std::str::from_utf8(fields.next()?).ok()?;
        let offset = u64::from_str_radix(offset, 16).ok()?;
        let name = fields.nth(2).unwrap_or_default().trim_ascii_start();
        let is_file = name.first() == Some(&b'/');
        let number = self.number(name);
        let mut flags = 0;
        let before = std::mem::take(&mut self.before);
        let mut named = number;
        let is_writable = rights.get(1) == Some(&b'w');
        // Only behind its writable part has a file static data without initial values. A loader shares none of it. The program may
        // have protected the end of that part.
        let is_part_of_above =
            (before.file).is_some_and(|above| before.end == start && above.name == number);
        let is_above = is_file && (is_writable || is_part_of_above) && rights.get(3) == Some(&b'p');
        let place = Place { start, offset };
        if is_file && offset == 0 {
            self.image = Some((number, start));
        }
        let image = self.image.filter(|(file, _)| *file == number);
        let mut file = is_above.then_some(Above {
            name: number,
            place,
            image: image.map(|(_, at)| at),
        });
        let mut static_end = None;
        if before.end == start && name.is_empty() {
            if let Some(above) = before.file {
                let data_end = self.data_end(&above, end - start);
                if data_end.is_none_or(|it| it > start) {
                    flags |= MemoryMapping::BEHIND_FILE;
                    named = above.name;
                    static_end = data_end.filter(|it| *it < end);
                    // Of a large one the loader makes two: with other rights in between.
                    file = Some(above).filter(|_| static_end.is_none());
                }
            } else if !before.is_accessible && before.bytes <= LARGEST_GUARD_BYTES {
                flags |= MemoryMapping::BEHIND_GUARD;
            }
        }
        if rights.get(2) == Some(&b'x') {
            flags |= MemoryMapping::EXECUTABLE;
        }
        self.before = Before {
            end,
            bytes: end - start,
            is_accessible: rights.starts_with(b"r") || is_writable,
            file,
        };
        // Its own begins when that of the mapping before is no longer needed.
        self.end_mapping();
        self.static_end = static_end;
        Some(MemoryMapping {
            start,
            bytes: end - start,
            name: named,
            flags,
            ..MemoryMapping::default()
        })
    }

    /// Where the static data of a file ends, if it matters in a mapping of this length.
    fn data_end(&mut self, file: &Above, bytes: u64) -> Option<u64> {
        if bytes < LEAST_BYTES {
            return None;
        }
        let name = self.map.names.get(file.name as usize)?;
        self.modules
            .end_of_static_data(name, file.place, file.image)
    }

    fn number(&mut self, name: &[u8]) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = u32::try_from(self.map.names.len()).unwrap_or(u32::MAX);
        self.map.names.push(name.to_vec());
        self.numbers.insert(name.to_vec(), number);
        number
    }

    fn end_mapping(&mut self) {
        let Some(mapping) = self.current.take() else {
            return;
        };
        self.map.totals.resident_bytes += mapping.resident_bytes;
        self.map.totals.anonymous_bytes += mapping.anonymous_bytes;
        if let Some(end) = self.static_end.take() {
            let (data, other) = self.split(&mapping, end);
            self.keep(data);
            self.keep(other);
        } else {
            self.keep(mapping);
        }
    }

    /// Divides a mapping into static data and what follows. Static data is small as a rule, so huge and swapped pages go to the rest
    /// as far as they can.
    fn split(&mut self, mapping: &MemoryMapping, at: u64) -> (MemoryMapping, MemoryMapping) {
        let bytes = at - mapping.start;
        let present = self.modules.present_bytes(mapping.start, at);
        let resident = present.unwrap_or(bytes).min(mapping.resident_bytes);
        let other_bytes = mapping.bytes - bytes;
        let other_swapped = mapping.swapped_bytes.min(other_bytes);
        let anonymous = resident.min(mapping.anonymous_bytes);
        let other_anonymous = mapping.anonymous_bytes - anonymous;
        let other_huge = mapping.huge_bytes.min(other_anonymous);
        let data = MemoryMapping {
            bytes,
            resident_bytes: resident,
            anonymous_bytes: anonymous,
            swapped_bytes: mapping.swapped_bytes - other_swapped,
            huge_bytes: mapping.huge_bytes - other_huge,
            ..*mapping
        };
        let other = MemoryMapping {
            start: at,
            bytes: other_bytes,
            resident_bytes: mapping.resident_bytes - resident,
            anonymous_bytes: other_anonymous,
            swapped_bytes: other_swapped,
            huge_bytes: other_huge,
            name: self.number(b""),
            flags: mapping.flags & !MemoryMapping::BEHIND_FILE,
        };
        (data, other)
    }

    fn keep(&mut self, mapping: MemoryMapping) {
        let is_code =
            mapping.is(MemoryMapping::EXECUTABLE) && self.map.name(&mapping).first() == Some(&b'/');
        if mapping.resident_bytes > 0 || mapping.swapped_bytes > 0 || is_code {
            self.map.mappings.push(mapping);
        }
    }

    fn finish(mut self) -> MemoryMap {
        self.end_mapping();
        let mut kept = std::mem::take(&mut self.map.mappings);
        let is_small = |it: &MemoryMapping| {
            let is_stack = it.is(MemoryMapping::BEHIND_GUARD);
            it.resident_bytes
                < if is_stack {
                    LEAST_STACK_BYTES
                } else {
                    LEAST_BYTES
                }
        };
        kept.sort_unstable_by_key(|it| {
            (is_small(it), std::cmp::Reverse(it.resident_bytes), it.start)
        });
        let large = kept.partition_point(|it| !is_small(it));
        let small = kept.split_off(large.min(MOST_MAPPINGS));
        let mut sums: HashMap<(u32, u8), MemoryMapping> = HashMap::new();
        for mapping in small {
            let sum = sums
                .entry((mapping.name, mapping.flags))
                .or_insert_with(|| MemoryMapping {
                    name: mapping.name,
                    flags: mapping.flags,
                    ..MemoryMapping::default()
                });
            sum.bytes += mapping.bytes;
            sum.anonymous_bytes += mapping.anonymous_bytes;
            sum.resident_bytes += mapping.resident_bytes;
            sum.swapped_bytes += mapping.swapped_bytes;
            sum.huge_bytes += mapping.huge_bytes;
        }
        kept.extend(sums.into_values());
        kept.sort_unstable_by_key(|it| (it.start, it.name, it.flags));
        self.map.mappings = kept;
        self.drop_unused_names();
        self.map
    }

    fn drop_unused_names(&mut self) {
        let mut renumbered = vec![None; self.map.names.len()];
        let mut names = Vec::new();
        for mapping in &mut self.map.mappings {
            let Some(place) = renumbered.get_mut(mapping.name as usize) else {
                continue;
            };
            mapping.name = *place.get_or_insert_with(|| {
                names.push(std::mem::take(&mut self.map.names[mapping.name as usize]));
                u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
            });
        }
        self.map.names = names;
    }
}

fn range(field: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = std::str::from_utf8(field).ok()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    (start <= end).then_some((start, end))
}

fn figure(line: &[u8], label: &[u8]) -> Option<u64> {
    let rest = std::str::from_utf8(line.strip_prefix(label)?).ok()?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d000000000-55d000001000 r-xp 00000000 fe:00 123        /usr/bin/a program
Rss:                   4 kB
Anonymous:             0 kB
55d000001000-55d000002000 rw-p 00001000 fe:00 123        /usr/bin/a program
Rss:                   4 kB
Anonymous:             4 kB
55d000002000-55d000102000 rw-p 00000000 00:00 0
Rss:                 512 kB
Anonymous:           512 kB
55d010000000-55d010400000 rw-p 00000000 00:00 0          [heap]
Rss:                4096 kB
Anonymous:          4096 kB
7f0000000000-7f0000001000 ---p 00000000 00:00 0
Rss:                   0 kB
Anonymous:             0 kB
7f0000001000-7f0000801000 rw-p 00000000 00:00 0
Rss:                 100 kB
Anonymous:           100 kB
VmFlags: rd wr mr mw me ac sd
7f0001000000-7f0001001000 r--p 00000000 fe:00 124        /usr/lib/cache
Rss:                   4 kB
Anonymous:             0 kB
7f0001001000-7f0001101000 rw-p 00000000 00:00 0
Rss:                1024 kB
Anonymous:          1024 kB
7f1000000000-7f1000800000 rw-s 00000000 00:01 7          /memfd:x (deleted)
Rss:                8192 kB
Anonymous:             0 kB
";

    fn read(text: &str) -> MemoryMap {
        // No file of it is there.
        let mut modules = Modules::of("/nothing", 4096);
        read_map(&mut text.as_bytes(), &mut modules).expect("text")
    }

    #[test]
    fn mappings_are_told_apart_by_what_they_hold() {
        let map = read(TEXT);
        assert_eq!(map.totals.resident_bytes, 13_936 << 10);
        assert_eq!(map.totals.anonymous_bytes, 5736 << 10);
        let of = |name: &[u8], flags: u8| -> Vec<u64> {
            let wanted = |it: &&MemoryMapping| map.name(it) == name && it.flags == flags;
            let found = map.mappings.iter().filter(wanted);
            found.map(|it| it.anonymous_bytes >> 10).collect()
        };
        assert_eq!(of(b"/usr/bin/a program", MemoryMapping::EXECUTABLE), [0]);
        assert_eq!(of(b"/usr/bin/a program", 0), [4]);
        assert_eq!(of(b"/usr/bin/a program", MemoryMapping::BEHIND_FILE), [512]);
        assert_eq!(of(b"[heap]", 0), [4096]);
        assert_eq!(of(b"", MemoryMapping::BEHIND_GUARD), [100]);
        // Behind a file that cannot be written: it only lies beside it.
        assert_eq!(of(b"", 0), [1024]);
        // Shared memory is nobody's anonymous memory.
        assert_eq!(of(b"/memfd:x (deleted)", 0), [0]);
        let resident: u64 = map.mappings.iter().map(|it| it.resident_bytes).sum();
        assert_eq!(resident, map.totals.resident_bytes);
    }

    /// The anonymous KiB of every mapping with this name in a process that has mapped a module with three pages of zeros.
    fn behind_a_module(text: &str, file: &[u8]) -> Vec<(String, u64, u8)> {
        let root = tempfile::tempdir().expect("directory");
        let library = root.path().join("root/x.so");
        std::fs::create_dir(root.path().join("root")).expect("directory");
        std::fs::write(library, file).expect("file");
        let mut modules = Modules::of(root.path().to_str().expect("UTF-8"), 4096);
        let map = read_map(&mut text.as_bytes(), &mut modules).expect("text");
        let sum: u64 = map.mappings.iter().map(|it| it.anonymous_bytes).sum();
        assert_eq!(sum, map.totals.anonymous_bytes);
        let row = |it: &MemoryMapping| {
            let name = String::from_utf8_lossy(map.name(it)).into_owned();
            (name, it.anonymous_bytes >> 10, it.flags)
        };
        map.mappings.iter().map(row).collect()
    }

    const BEHIND: &str = "\
7f0000006000-7f0000008000 rw-p 00005000 fe:00 123        /x.so
Rss:                   8 kB
Anonymous:             8 kB
7f0000008000-7f0000408000 rw-p 00000000 00:00 0
Rss:                4000 kB
Anonymous:          4000 kB
7f0000408000-7f0000508000 rwxp 00000000 00:00 0
Rss:                 100 kB
Anonymous:           100 kB
";

    #[test]
    fn memory_behind_the_end_of_static_data_is_not_static() {
        let module = crate::static_data::tests::module_with_zeros();
        let row = |name: &str, kib, flags| (name.to_owned(), kib, flags);
        let behind = MemoryMapping::BEHIND_FILE;
        let divided = [
            row("/x.so", 8, 0),
            row("/x.so", 12, behind),
            row("", 3988, 0),
            row("", 100, MemoryMapping::EXECUTABLE),
        ];
        let mut found = behind_a_module(BEHIND, &module);
        found.sort_by_key(|it| divided.iter().position(|row| row == it));
        assert_eq!(found, divided);
        // Shared, it is no module; nor is a file of another kind.
        let nameless = |rows: &[(String, u64, u8)]| -> u64 {
            let nameless = rows.iter().filter(|row| row.0.is_empty());
            nameless.map(|row| row.1).sum()
        };
        let shared = BEHIND.replace("rw-p 00005000", "rw-s 00005000");
        assert_eq!(nameless(&behind_a_module(&shared, &module)), 4100);
        assert_eq!(nameless(&behind_a_module(BEHIND, b"text")), 4100);
        // Without an answer it may all be static.
        let code = MemoryMapping::EXECUTABLE;
        for cut in [&module[..100], &module[..6]] {
            let found = behind_a_module(BEHIND, cut);
            assert_eq!(nameless(&found), 0, "{found:?}");
            assert!(found.contains(&row("/x.so", 4000, behind)), "{found:?}");
            assert!(found.contains(&row("/x.so", 100, behind | code)));
        }
    }

    /// As MariaDB does with its settings.
    #[test]
    fn static_data_may_follow_pages_that_the_program_has_protected() {
        let (writable, rest) = BEHIND.split_at(BEHIND.find("7f0000008000-").expect("a line"));
        let lower = writable.replace("-7f0000008000", "-7f0000007000");
        let upper = (writable.replace("7f0000006000-", "7f0000007000-"))
            .replace("rw-p 00005000", "r--p 00006000");
        let half = |text: &str| text.replace(" 8 kB", " 4 kB");
        let text = half(&lower) + &half(&upper) + rest;
        let module = crate::static_data::tests::module_with_zeros();
        let found = behind_a_module(&text, &module);
        let static_data = ("/x.so".to_owned(), 12, MemoryMapping::BEHIND_FILE);
        assert!(found.contains(&static_data), "{found:?}");
        // Only if they belong to the same file.
        let of_another = text.replace(
            "00006000 fe:00 123        /x.so",
            "00006000 fe:00 124        /y.so",
        );
        let found = behind_a_module(&of_another, &module);
        assert!(
            found
                .iter()
                .all(|row| row.2 & MemoryMapping::BEHIND_FILE == 0)
        );
    }

    #[test]
    fn a_file_without_a_path_is_read_where_it_is_mapped() {
        let text = "\
10000-11000 r-xp 00000000 00:01 7                        /memfd:x (deleted)
Rss:                   4 kB
Anonymous:             0 kB
16000-18000 rw-p 00005000 00:01 7                        /memfd:x (deleted)
Rss:                   8 kB
Anonymous:             8 kB
18000-408000 rw-p 00000000 00:00 0
Rss:                4000 kB
Anonymous:          4000 kB
";
        let nameless = |memory: &[u8], text: &str| -> u64 {
            let process = tempfile::tempdir().expect("directory");
            let mut bytes = vec![0; 0x1_0000];
            bytes.extend(memory);
            std::fs::write(process.path().join("mem"), bytes).expect("file");
            let mut modules = Modules::of(process.path().to_str().expect("UTF-8"), 4096);
            let map = read_map(&mut text.as_bytes(), &mut modules).expect("text");
            let rows = map.mappings.iter().filter(|it| map.name(it).is_empty());
            rows.map(|it| it.anonymous_bytes >> 10).sum()
        };
        let module = crate::static_data::tests::module_with_zeros();
        assert_eq!(nameless(&module, text), 3988);
        assert_eq!(nameless(&[0; 4096], text), 4000);
        // Without an answer it may all be static.
        assert_eq!(nameless(&module[..100], text), 0);
        assert_eq!(nameless(&[], text), 0);
        let of_another = text.replacen("/memfd:x", "/memfd:y", 1);
        assert_eq!(nameless(&module, &of_another), 0);
    }

    #[test]
    fn stacks_of_threads_are_kept_where_other_mappings_of_their_size_are_added_up() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for number in 0..100_u64 {
            let guard = 0x7000_0000_0000 + number * 0x100_0000;
            let stack = guard + 0x1000;
            let _ = writeln!(text, "{guard:x}-{stack:x} ---p 0 00:00 0\nRss: 0 kB");
            let end = stack + 0x80_0000;
            let _ = writeln!(
                text,
                "{stack:x}-{end:x} rw-p 0 00:00 0\nRss: 12 kB\nAnonymous: 12 kB"
            );
            let far = end + 0x10_0000;
            let _ = writeln!(
                text,
                "{far:x}-{:x} rw-p 0 00:00 0\nRss: 12 kB\nAnonymous: 12 kB",
                far + 0x4000
            );
        }
        let map = read(&text);
        let stacks = map.mappings.iter().filter(|it| it.start != 0);
        assert!(stacks.clone().all(|it| it.is(MemoryMapping::BEHIND_GUARD)));
        assert_eq!((stacks.count(), map.mappings.len()), (100, 101));
    }

    #[test]
    fn swapped_and_huge_pages_are_told() {
        let text = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                2048 kB
Anonymous:          2048 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:        0 kB
Swap:                 12 kB
SwapPss:              12 kB
VmFlags: rd wr mr mw me ac sd
7f1000000000-7f1000001000 rw-p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             4 kB
Swap:                  0 kB
";
        let of = |it: &MemoryMapping| {
            (
                it.resident_bytes >> 10,
                it.huge_bytes >> 10,
                it.swapped_bytes >> 10,
            )
        };
        let all: Vec<_> = read(text).mappings.iter().map(of).collect();
        // The small one is a sum of its kind, which lies nowhere and comes first.
        assert_eq!(all, [(4, 0, 0), (2048, 2048, 12)]);
    }

    #[test]
    fn of_many_mappings_the_small_ones_are_added_up() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for number in 0..10_000_u64 {
            let start = 0x7000_0000_0000 + number * 0x100_0000;
            let kib = if number < 100 { 1000 } else { 100 };
            let _ = writeln!(text, "{start:x}-{:x} rw-p 0 00:00 0", start + 0x10_0000);
            let _ = writeln!(text, "Rss: {kib} kB\nAnonymous: {kib} kB");
        }
        let map = read(&text);
        assert!(
            map.mappings.len() <= MOST_MAPPINGS + 1,
            "{}",
            map.mappings.len()
        );
        let all: u64 = map.mappings.iter().map(|it| it.anonymous_bytes).sum();
        assert_eq!(all, map.totals.anonymous_bytes);
        let large = map
            .mappings
            .iter()
            .filter(|it| it.anonymous_bytes == 1000 << 10);
        assert_eq!(large.count(), 100);
    }
}
