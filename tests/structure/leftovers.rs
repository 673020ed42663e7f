//! Promise: tests leave nothing behind, and a failed test leaves little.

use std::fs::{self, File};
use std::process::Command;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::Run;
use crate::support::directory::{Directory, FAILED, MOST_FAILURES, MOST_KEPT_BYTES, sweep};

#[test]
fn a_directory_is_removed_with_its_owner() {
    let directory = Directory::new();
    let path = directory.to_owned();
    fs::write(path.join("work/file"), "content").expect("a file");
    drop(directory);
    assert!(!path.exists());
    let outcome = Run::of("true").bare();
    let work = outcome.work();
    assert!(work.exists());
    drop(outcome);
    assert!(!work.exists());
}

#[test]
fn a_failed_test_keeps_its_short_files_only() {
    let path = thread::spawn(|| {
        let directory = Directory::new();
        let path = directory.to_owned();
        let long = File::create(path.join("profiles/long")).expect("a file");
        long.set_len(MOST_KEPT_BYTES + 1).expect("a long file");
        fs::write(path.join("profiles/short"), "content").expect("a file");
        std::panic::panic_any(path);
    });
    let failure = path.join().expect_err("a failed test");
    let path = failure.downcast::<std::path::PathBuf>().expect("a path");
    assert!(path.join("profiles/short").exists());
    assert!(!path.join("profiles/long").exists());
    let mark = fs::read_to_string(path.join(FAILED)).expect("a mark");
    assert!(mark.contains("profiles/long"), "{mark}");
    fs::remove_dir_all(*path).expect("the directory");
}

#[test]
fn the_next_test_process_removes_what_no_failed_test_needs() {
    let room = tempfile::tempdir().expect("a directory");
    // A process that has ended, and is waited for: its number is free.
    let mut ended = Command::new("true").spawn().expect("a process");
    ended.wait().expect("its end");
    let make = |pid: u32, number: usize, has_failed: bool| {
        let path = room.path().join(format!("{pid}.{number}"));
        fs::create_dir(&path).expect("a directory");
        if has_failed {
            let mark = File::create(path.join(FAILED)).expect("a mark");
            let time = UNIX_EPOCH + Duration::from_secs(1 + number as u64);
            mark.set_modified(time).expect("its time");
        }
        path
    };
    let killed = make(ended.id(), 0, false);
    let running = make(std::process::id(), 0, false);
    let failures: Vec<_> = (1..=MOST_FAILURES + 3)
        .map(|number| make(ended.id(), number, true))
        .collect();
    sweep(room.path());
    assert!(!killed.exists());
    assert!(running.exists());
    let (old, recent) = failures.split_at(3);
    assert!(old.iter().all(|path| !path.exists()));
    assert!(recent.iter().all(|path| path.exists()));
}

#[test]
fn a_program_under_test_cannot_fill_the_disk_with_one_file() {
    let outcome = Run::of("/bin/sh").args(&["-c", "ulimit -f"]).bare();
    // In blocks of 512 bytes.
    let blocks: u64 = outcome.text().trim().parse().expect("a limit");
    assert!(blocks <= (4 << 30) / 512, "{blocks}");
}
