//! Promise: a file that is no profile, or none any more, gets one line from every command that reads profiles, and
//! leaves nothing behind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::Room;
use crate::support::room::{stderr, stdout};
use allocsample_record::{ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, FormatVersion};

/// Commands that read `x.allocsample`, and where they would write.
const COMMANDS: [&[&str]; 19] = [
    &["report", "x.allocsample"],
    &["report", "x.allocsample", "--format", "json"],
    &["report", "x.allocsample", "--by", "site", "--format", "csv"],
    &["report", "x.allocsample", "--tree"],
    &["report", "x.allocsample", "--lifetimes"],
    &["leaks", "x.allocsample"],
    &["leaks", "x.allocsample", "--format", "csv"],
    &["diff", "x.allocsample", "good.allocsample"],
    &[
        "diff",
        "good.allocsample",
        "x.allocsample",
        "--format",
        "json",
    ],
    &["symbolize", "x.allocsample"],
    &[
        "convert",
        "x.allocsample",
        "--to",
        "firefox,pprof,speedscope",
    ],
    &["convert", "x.allocsample", "--to", "collapsed,svg,json,csv"],
    &["convert", "x.allocsample", "--to", "html,parquet"],
    &["convert", "x.allocsample", "--to", "svg", "-o", "-"],
    &["query", "x.allocsample", "SELECT count(*) FROM samples"],
    &["view", "x.allocsample", "--no-open"],
    &["view", "--firefox", "x.allocsample", "--no-open"],
    &["top", "x.allocsample"],
    &["ctl", "x.allocsample", "snapshot", "-o", "y.allocsample"],
];

fn recorded() -> Room {
    let room = Room::new();
    room.record("good.allocsample", &["--seed", "1"], &[]);
    assert!(room.path("good.allocsample").exists());
    room
}

/// A header, then a chunk of events with this payload, as long as it says or not.
fn with_chunk(raw_bytes: u32, stored: &[u8]) -> Vec<u8> {
    let header = FileHeader {
        version: FormatVersion::CURRENT,
        profile_id: 1,
    };
    let chunk = ChunkHeader::for_payload(ChunkKind::Events, raw_bytes, 0..1, &[stored]);
    [&header.encode()[..], &chunk.encode(), stored].concat()
}

/// Files that cannot be used, by what is wrong with them, with what is said of it.
fn malformed(good: &[u8]) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let changed = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 0x40;
        bytes
    };
    let newer = FileHeader {
        version: FormatVersion {
            major: 99,
            minor: 7,
        },
        profile_id: 1,
    };
    let mut long_payload = with_chunk(10, b"payload");
    // The length in the chunk's header: 4 GiB of which nothing is there.
    let at = FILE_HEADER_BYTES + 8;
    long_payload[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    vec![
        ("empty", Vec::new(), "the file is empty"),
        (
            "cut in its header",
            good[..20].to_vec(),
            "ends within its header",
        ),
        (
            "a header alone",
            good[..FILE_HEADER_BYTES].to_vec(),
            "ends after its header",
        ),
        (
            "cut in its first chunk",
            good[..FILE_HEADER_BYTES + 100].to_vec(),
            "chunk 1 is cut short",
        ),
        (
            "cut in a chunk's header",
            good[..FILE_HEADER_BYTES + 5].to_vec(),
            "chunk 1 is cut short",
        ),
        ("a bit of its header", changed(17), "the header is damaged"),
        (
            "a bit of its first chunk",
            changed(FILE_HEADER_BYTES + 90),
            "chunk 1 has a bad checksum",
        ),
        (
            "a bit of a chunk's mark",
            changed(FILE_HEADER_BYTES),
            "chunk 1 is not a chunk",
        ),
        ("a huge stored length", long_payload, "chunk 1 is cut short"),
        (
            "a huge raw length",
            with_chunk(u32::MAX, b"payload"),
            "chunk 1 is malformed",
        ),
        (
            "a chunk of nonsense",
            with_chunk(7, b"\x60nonsense"),
            "chunk 1 is malformed",
        ),
        (
            "newer",
            newer.encode().to_vec(),
            "format 99.7 by a newer allocsample",
        ),
        (
            "text",
            b"a line of text that is long enough to be anything\n".repeat(9),
            "not an allocsample profile",
        ),
        (
            "gzip",
            [&b"\x1f\x8b\x08\0"[..], &[7; 90]].concat(),
            "looks like gzip",
        ),
        (
            "a program",
            [&b"\x7fELF\x02\x01"[..], &[0; 90]].concat(),
            "is an ELF file",
        ),
    ]
}

/// One line that names the file and says what it is, status 1, and nothing written anywhere.
#[track_caller]
fn assert_refused(room: &Room, kind: &str, what: &str) {
    let before = room.names();
    for command in COMMANDS {
        let output = room.output(command);
        let said = stderr(&output);
        let context = format!("{kind}: {command:?}: {said}");
        assert_eq!(output.status.code(), Some(1), "{context}");
        assert_eq!(said.lines().count(), 1, "{context}");
        assert!(said.starts_with("error: x.allocsample: "), "{context}");
        assert!(said.contains(what), "{context}");
        assert_eq!(stdout(&output), "", "{context}");
        assert_eq!(room.names(), before, "{context}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_in_one_line_by_every_command() {
    let room = recorded();
    let good = fs::read(room.path("good.allocsample")).expect("a profile");
    let path = room.path("x.allocsample");
    for (kind, content, what) in malformed(&good) {
        fs::write(&path, &content).expect("a file");
        assert_refused(&room, kind, what);
        let left = fs::read(&path).expect("it is as it was");
        assert_eq!(left, content, "{kind}");
    }
    fs::remove_file(&path).expect("a file");
    assert_refused(&room, "missing", "No such file or directory");
    fs::create_dir(&path).expect("a directory");
    assert_refused(&room, "a directory", "directory");
    fs::remove_dir(&path).expect("a directory");
    symlink("x.allocsample", &path).expect("a link");
    assert_refused(&room, "a link to itself", "symbolic links");
    fs::remove_file(&path).expect("a link");
    // An administrator may read all.
    if !nix::unistd::geteuid().is_root() {
        fs::write(&path, &good).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("a mode");
        assert_refused(&room, "unreadable", "Permission denied");
    }
}

/// What stands before the damage is a profile, and is used; each command says where it ends.
#[test]
fn what_is_damaged_later_is_used_up_to_there() {
    let room = recorded();
    let good = fs::read(room.path("good.allocsample")).expect("a profile");
    let path = room.path("x.allocsample");
    let cut = good[..good.len() - 3].to_vec();
    let mut flipped = good.clone();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    let trailing = [
        &good[..],
        b"and something else that is longer than a header",
    ]
    .concat();
    for (kind, content) in [("cut", cut), ("flipped", flipped), ("trailing", trailing)] {
        for command in COMMANDS {
            // They show a page or a screen until they are told to stop, or need a process.
            if ["view", "top", "ctl", "symbolize"].contains(&command[0]) {
                continue;
            }
            fs::write(&path, &content).expect("a file");
            let output = room.output(command);
            let said = stderr(&output);
            let context = format!("{kind}: {command:?}: {said}");
            assert_eq!(output.status.code(), Some(0), "{context}");
            assert!(said.contains("x.allocsample: chunk"), "{context}");
            assert_eq!(fs::read(&path).expect("a profile"), content, "{context}");
        }
    }
}
