//! Promise: a command writes what it was asked to write, and no file that somebody else has put in its way.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use crate::support::Room;
use crate::support::room::{assert_error, stderr};

/// Every command that writes files, with `out` for the file.
const WRITERS: [&[&str]; 9] = [
    &["convert", "x.allocsample", "--to", "svg", "-o", "out"],
    &["convert", "x.allocsample", "--to", "html", "-o", "out"],
    &["convert", "x.allocsample", "--to", "pprof", "-o", "out"],
    &["convert", "x.allocsample", "--to", "csv", "-o", "out.gz"],
    &["convert", "x.allocsample", "--to", "parquet", "-o", "out"],
    &[
        "diff",
        "x.allocsample",
        "x.allocsample",
        "--to",
        "html",
        "-o",
        "out",
    ],
    &["join", "x.allocsample", "-o", "out"],
    &["ctl", "x.allocsample", "snapshot", "-o", "out"],
    &["serve", "x.allocsample", "--secret", "out"],
];

#[test]
fn no_output_follows_a_link() {
    let room = Room::new();
    room.record("x.allocsample", &["--seed", "1"], &[]);
    for command in WRITERS {
        let output = command.last().expect("a name");
        let context = format!("{command:?}");
        // To a file that is there, and to one that a command could make.
        for is_there in [true, false] {
            let target = room.path("target");
            if is_there {
                fs::write(&target, "somebody's").expect("a file");
            }
            symlink(&target, room.path(output)).expect("a link");
            let ran = room.output(command);
            assert_eq!(ran.status.code(), Some(1), "{context}: {}", stderr(&ran));
            assert_eq!(
                stderr(&ran).lines().count(),
                1,
                "{context}: {}",
                stderr(&ran)
            );
            let left = fs::read_to_string(&target).ok();
            assert_eq!(
                left.as_deref(),
                is_there.then_some("somebody's"),
                "{context}"
            );
            let link = fs::symlink_metadata(room.path(output)).expect("a link");
            assert!(link.is_symlink(), "{context}");
            fs::remove_file(room.path(output)).expect("a link");
            let _ = fs::remove_file(&target);
        }
    }
    assert_eq!(room.names(), ["leaky", "x.allocsample"]);
}

/// The command runs as root in a directory where everybody may write, and somebody has put a link where its output goes.
#[test]
fn root_does_not_write_through_another_users_link_in_a_shared_directory() {
    const NOBODY: Option<u32> = Some(65534);
    if !crate::support::is_root() {
        return crate::support::skip("links of another user need root");
    }
    let room = Room::new();
    room.record("x.allocsample", &["--seed", "1"], &[]);
    let shared = room.path("shared");
    fs::create_dir(&shared).expect("a directory");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("its mode");
    let target = room.path("target");
    fs::write(&target, "root's").expect("a file");
    let link = shared.join("out.svg");
    symlink(&target, &link).expect("a link");
    lchown(&link, NOBODY, NOBODY).expect("its owner");
    let output = link.display().to_string();
    let ran = room.output(&["convert", "x.allocsample", "--to", "svg", "-o", &output]);
    assert_eq!(ran.status.code(), Some(1));
    assert_error(&ran, 1, "is a symbolic link, which outputs do not follow");
    assert_eq!(fs::read_to_string(&target).expect("the target"), "root's");
    // A file of the other user's is replaced, and not written to: he would read what is in it.
    fs::remove_file(&link).expect("the link");
    fs::write(&link, "nobody's").expect("a file");
    chown(&link, NOBODY, NOBODY).expect("its owner");
    let mut open = fs::File::open(&link).expect("their file");
    let ran = room.output(&["convert", "x.allocsample", "--to", "svg", "-o", &output]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    let about = fs::metadata(&link).expect("the output");
    assert_eq!((about.uid(), about.mode() & 0o777), (0, 0o600));
    let mut seen = String::new();
    open.read_to_string(&mut seen).expect("text");
    assert_eq!(seen, "nobody's");
}

#[test]
fn outputs_are_for_their_owner_alone() {
    let room = Room::new();
    room.record("x.allocsample", &["--seed", "1"], &[]);
    for command in WRITERS
        .iter()
        .filter(|it| !["serve", "ctl"].contains(&it[0]))
    {
        let output = room.path(command.last().expect("a name"));
        let ran = room.output(command);
        assert_eq!(ran.status.code(), Some(0), "{command:?}: {}", stderr(&ran));
        let mode = fs::metadata(&output)
            .expect("an output")
            .permissions()
            .mode()
            & 0o777;
        let expected = if output.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{command:?}");
        let _ = fs::remove_file(&output);
        let _ = fs::remove_dir_all(&output);
    }
}

/// Where files may be created, and why there.
const CREATORS: [&str; 8] = [
    // What every command writes.
    "src/cli/output_file.rs",
    // Opens the library that it has written by `output_file.rs`, to compare it.
    "src/cli/commands/run/embedded.rs",
    // Copies of profiles, in a directory that `output_file.rs` made.
    "src/profile/new_file.rs",
    // The profile of a process that is read from outside, which must not exist.
    "src/goheap/profile.rs",
    // One word of such a process's memory.
    "src/goheap/memory.rs",
    // The profile that was read, after a look at its identity.
    "src/profile/finish.rs",
    // The ring of a running process, after a look at its first bytes.
    "src/cli/commands/ctl/request.rs",
    // A request for the agent, beside its process's other files, and renamed over its own of before.
    "src/cli/commands/ctl/waiting.rs",
];

/// What creates a file, or opens one to write to it.
const CREATING: [&str; 9] = [
    "File::create",
    "fs::write(",
    "fs::copy(",
    "OpenOptions",
    "File::options",
    "create_new(true)",
    "create_dir",
    "fs::rename(",
    ".write(true)",
];

/// The agent's rooms have a way of their own, without the standard library: `agent/os/file.rs`. `linking` runs in build scripts.
const ELSEWHERE: [&str; 6] = [
    "src/agent",
    "src/boundary",
    "src/drain",
    "src/preload",
    "src/attach",
    "src/linking",
];

#[test]
fn files_are_created_in_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    find_sources(&root.join("src"), &mut sources);
    assert!(sources.len() > 100, "{}", sources.len());
    let mut found = Vec::new();
    for source in sources {
        let name = source
            .strip_prefix(root)
            .expect("below")
            .to_string_lossy()
            .into_owned();
        let is_exempt = CREATORS.contains(&&*name)
            || ELSEWHERE.iter().any(|room| name.starts_with(room))
            || name.contains("/tests/")
            || name.ends_with("/tests.rs");
        if is_exempt {
            continue;
        }
        let text = fs::read_to_string(&source).expect("a source");
        // Unit tests stand at the end of their file.
        let code = text
            .split("#[cfg(test)]\nmod tests")
            .next()
            .expect("a part");
        for (number, line) in (1..).zip(code.lines()) {
            if CREATING.iter().any(|what| line.contains(what)) {
                found.push(format!("{name}:{number}: {}", line.trim()));
            }
        }
    }
    assert!(
        found.is_empty(),
        "write through src/cli/output_file.rs:\n{}",
        found.join("\n")
    );
}

fn find_sources(directory: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            find_sources(&path, sources);
        } else if path.extension().is_some_and(|it| it == "rs") {
            sources.push(path);
        }
    }
}
