//! Promise: `allocsample memory PID` knows malloc's and CPython's memory that was there before anybody looked, and claims no other.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::Room;
use crate::support::python::interpreters;
use crate::support::room::stderr;
use serde_json::Value;

const MIB: f64 = (1 << 20) as f64;

/// 32 MiB in blocks that malloc maps one by one, and tens of MiB in small objects, of which every third is freed. No large block is
/// freed, since malloc would then have the next ones in its heap.
const HOLDS: &str = "
import sys
arrays = [bytearray(1 << 20) for _ in range(30)] + [bytearray(200 << 10) for _ in range(10)]
for array in arrays:
    array[::4096] = b'x' * (len(array) // 4096)
rows = [{'id': number, 'name': 'row %d' % number, 'of': (number, str(number))} for number in range(60000)]
rows = [row for number, row in enumerate(rows) if number % 3]
print('ready', flush=True)
sys.stdin.read()
";

/// The same, and 24 MiB that it maps itself: numbers, and what looks like the header of a block that is too long. The first page of
/// each half is a file without a path, which is no module.
const MAPS: &str = "
import ctypes, os, sys
file = os.memfd_create('x')
os.ftruncate(file, 4096)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for content in (7, 0x4001002):
    at = libc.mmap(None, 12 << 20, 3, 0x22, -1, 0)
    words = (ctypes.c_uint64 * (12 << 17)).from_address(at)
    for page in range(0, 12 << 17, 512):
        words[page + 1] = content
    assert libc.mmap(at, 4096, 3, 0x12, file, 0) == at
    words[0] = content
";

/// After a line of its input it holds 40 MiB more.
const GROWS: &str = "
print('ready', flush=True)
sys.stdin.readline()
more = [bytearray(1 << 20) for _ in range(40)]
for array in more:
    array[::4096] = b'x' * (len(array) // 4096)
print('ready', flush=True)
sys.stdin.read()
";

/// Ends with its standard input.
struct Resting {
    child: Child,
}

impl Resting {
    fn start(python: &Path, script: &str) -> Self {
        let child = Command::new(python)
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python");
        let mut resting = Self { child };
        resting.wait();
        resting
    }

    /// Until it has done what it was asked for.
    fn wait(&mut self) {
        let mut line = String::new();
        let output = self.child.stdout.as_mut().expect("a pipe");
        BufReader::new(output.by_ref())
            .read_line(&mut line)
            .expect("a line");
        assert_eq!(line, "ready\n");
    }

    fn grow(&mut self) {
        let mut input = self.child.stdin.as_ref().expect("a pipe");
        input.write_all(b"\n").expect("a reader");
        self.wait();
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is resident of a process now.
struct Now(Value);

impl Now {
    fn read(room: &Room, pid: &str) -> Self {
        Self::of_either(room, pid)
    }

    /// The last reading of a profile, or a process as it is now.
    fn of_either(room: &Room, what: &str) -> Self {
        let output = room.output(&["memory", "--format", "json", what]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let mut ledger: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        Self(ledger["last"].take())
    }

    /// MiB of the rows of an account with this beginning of their name.
    fn of(&self, account: &str, name: &str) -> f64 {
        let rows = self.0["rows"].as_array().expect("rows").iter();
        let rows = rows.filter(|row| {
            row["account"] == account && row["name"].as_str().is_some_and(|it| it.starts_with(name))
        });
        let bytes = rows.map(|row| row["resident_bytes"].as_f64().expect("bytes"));
        bytes.sum::<f64>() / MIB
    }

    fn anonymous(&self) -> f64 {
        self.0["anonymous_bytes"].as_f64().expect("bytes") / MIB
    }

    fn assert_adds_up(&self) {
        let rows = self.0["rows"].as_array().expect("rows").iter();
        let bytes = rows.map(|row| row["resident_bytes"].as_f64().expect("bytes"));
        let resident = self.0["resident_bytes"].as_f64().expect("bytes");
        assert!((bytes.sum::<f64>() - resident).abs() < 1e4, "{:#}", self.0);
    }

    fn assert_is_explained(&self, python: &Path) {
        self.assert_adds_up();
        let unexplained = self.of("unexplained", "") + self.of("earlier", "");
        let anonymous = self.anonymous();
        let python = python.display();
        assert!(
            unexplained <= 0.02 * anonymous,
            "{python}: {unexplained} of {anonymous} MiB: {:#}",
            self.0
        );
        // 32 MiB of arrays at least, and some objects that are larger than those in pools.
        let malloc = self.of("malloc", "malloc: live blocks");
        assert!(
            (32.0..60.0).contains(&malloc),
            "{python}: {malloc} MiB of malloc"
        );
        // 40,000 dictionaries of more than 200 bytes, with their strings.
        let objects = self.of("objects", "python: live objects");
        assert!(
            (10.0..50.0).contains(&objects),
            "{python}: {objects} MiB of objects"
        );
        let held = self.of("objects_held", "python: free, or not sampled");
        assert!(held > 1.0, "{python}: {held} MiB are free");
        // Nor is anything behind a module static data that is not.
        let data = self.of("data", "data of modules and files");
        assert!(data < 8.0, "{python}: {data} MiB of static data");
    }
}

#[test]
fn memory_of_a_python_that_nobody_records_is_explained() {
    for python in interpreters() {
        let room = Room::new();
        let program = Resting::start(&python, HOLDS);
        Now::read(&room, &program.pid()).assert_is_explained(&python);
    }
}

#[test]
fn memory_from_before_an_attach_is_explained() {
    for python in interpreters() {
        let room = Room::new();
        let program = Resting::start(&python, HOLDS);
        let pid = program.pid();
        let attached = room.output(&["attach", &pid, "-o", "it.allocsample"]);
        assert_eq!(attached.status.code(), Some(0), "{}", stderr(&attached));
        Now::read(&room, &pid).assert_is_explained(&python);
    }
}

#[test]
fn a_profile_says_which_memory_is_from_before_the_attach() {
    let before_growth = HOLDS
        .strip_suffix("print('ready', flush=True)\nsys.stdin.read()\n")
        .expect("the end of the script");
    let script = format!("{before_growth}{GROWS}");
    for python in interpreters() {
        let room = Room::new();
        let mut program = Resting::start(&python, &script);
        let pid = program.pid();
        let before = Now::read(&room, &pid).anonymous();
        let options = ["attach", &pid, "-o", "it.allocsample", "--interval", "64K"];
        let attached = room.output(&options);
        assert_eq!(attached.status.code(), Some(0), "{}", stderr(&attached));
        program.grow();
        let detached = room.output(&["detach", &pid]);
        assert_eq!(detached.status.code(), Some(0), "{}", stderr(&detached));

        let last = Now::of_either(&room, "it.allocsample");
        last.assert_adds_up();
        let (earlier, unexplained) = (last.of("earlier", ""), last.of("unexplained", ""));
        let what = format!("{}, {before} MiB before: {:#}", python.display(), last.0);
        // The heap of `brk` is malloc's, and static data has a row of its own.
        assert!((0.7 * before..=before).contains(&earlier), "{what}");
        assert!(unexplained <= 0.02 * last.anonymous(), "{what}");
        let malloc = last.of("malloc", "malloc: live blocks");
        assert!((30.0..60.0).contains(&malloc), "{what}");
        let text = room.output(&["memory", "it.allocsample"]);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        let advice = "were mapped before the attach: `allocsample memory PID` recognises";
        assert!(text.contains(advice), "{text}");
    }
}

#[test]
fn memory_that_a_program_maps_itself_is_not_claimed() {
    for python in interpreters() {
        let room = Room::new();
        let program = Resting::start(&python, &format!("{MAPS}{HOLDS}"));
        let now = Now::read(&room, &program.pid());
        now.assert_adds_up();
        let unexplained = now.of("unexplained", "");
        assert!(
            (23.9..25.5).contains(&unexplained),
            "{}: {unexplained} MiB: {:#}",
            python.display(),
            now.0
        );
    }
}
