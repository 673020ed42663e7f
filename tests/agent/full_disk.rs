//! Promise: the files of a recording have no more room than they may, and a disk that is full costs the oldest of them, or
//! what was sampled while it was full.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::profile::Profile;
use crate::support::room::{stderr, stdout};
use crate::support::steps::{BLOCKS, LIVE, Steps, alive_after, assert_sound, join, parts, query};
use crate::support::{Program, Room, is_root, skip};

#[test]
fn all_files_together_have_no_more_than_the_largest_size() {
    const STEPS: u64 = 120;
    let options = ["--rotate-every", "1h", "--max-size", "8M"];
    let mut steps = Steps::start(&options, &[]);
    for _ in 0..STEPS {
        steps.step();
    }
    let room = steps.end();
    let mut files = parts(&room, "xsteps");
    files.push(room.path("xsteps.allocsample"));
    let bytes: u64 = files
        .iter()
        .map(|path| fs::metadata(path).expect("a file").len())
        .sum();
    // `run` adds names to the last one at the end.
    assert!(bytes <= (8 << 20) + (64 << 10), "{bytes} in {files:?}");
    // How much of it depends on how large the oldest was, which goes whole.
    assert!(bytes > 64 << 10, "{bytes} in {files:?}");
    let last = room.path("xsteps.allocsample");
    assert_eq!(query(&last, LIVE), alive_after(STEPS));
    let profile = Profile::read(&last);
    assert_eq!(profile.number("lost_samples"), 0.0);
}

#[test]
fn all_files_together_have_no_more_than_the_largest_size_at_any_moment() {
    const STEPS: u64 = 400;
    const RING_BYTES: u64 = 4 << 20;
    const MOST_BYTES: u64 = 8 << 20;
    if !is_root() {
        return skip("only root can mount a disk");
    }
    let room = Room::new();
    room.add(&Program::compiled("steps.c"), "steps");
    fs::create_dir(room.path("disk")).expect("a directory");
    let script = "mount -t tmpfs -o size=64M none disk || exit 77
        exec \"$ALLOCSAMPLE\" run -q -o disk/x.allocsample --interval 1 --rotate-size 1M --max-size 8M -- ./steps";
    let Some(mut steps) = on_a_disk(room, script) else {
        return skip("no disk can be mounted");
    };
    let disk = steps.seen_from_here("disk");
    let is_over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                // All of it at once, whatever is renamed and removed meanwhile.
                let disk = rustix::fs::statvfs(&disk).expect("a disk");
                most = most.max((disk.f_blocks - disk.f_bfree) * disk.f_frsize);
            }
            most
        });
        for _ in 0..STEPS {
            steps.step();
        }
        is_over.store(true, Ordering::Relaxed);
        watch.join().expect("the watch")
    });
    assert!(disk.join("x.allocsample.index").exists(), "{most}");
    // Pages of the ring's header, the index, the directory.
    assert!(most <= MOST_BYTES + RING_BYTES + (64 << 10), "{most}");
    assert!(most > RING_BYTES + MOST_BYTES / 2, "{most}");
    drop(steps.end());
}

/// steps.c by a script that mounts a disk first, which is seen below the program's root alone.
fn on_a_disk(room: Room, script: &str) -> Option<Steps> {
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .current_dir(room.directory())
        .env_remove("LD_PRELOAD")
        .env("ALLOCSAMPLE", crate::support::command())
        .env("ALLOCSAMPLE_LIBRARY", room.agent());
    let mut steps = Steps::of(room, command);
    steps.is_ready().then_some(steps)
}

/// What a script says on stderr that mounts a disk first, and leaves the exit status of the program in `status`: 0.
fn told_on_a_disk(room: &Room, script: &str) -> Option<String> {
    fs::write(room.path("script"), script).expect("a file");
    let output = Command::new("unshare")
        .args(["-m", "sh", "script"])
        .current_dir(room.directory())
        .env("ALLOCSAMPLE", crate::support::command())
        .env("ALLOCSAMPLE_LIBRARY", room.agent())
        .output()
        .expect("unshare");
    let told = stderr(&output);
    if output.status.code() == Some(77) {
        return None;
    }
    let status = fs::read_to_string(room.path("status")).expect("a status");
    assert_eq!(status.trim(), "0", "{told}");
    Some(told)
}

#[test]
fn a_full_disk_costs_the_oldest_files() {
    const STEPS: u64 = 160;
    if !is_root() {
        return skip("only root can mount a small disk");
    }
    let room = Room::new();
    room.add(&Program::compiled("steps.c"), "steps");
    fs::create_dir(room.path("disk")).expect("a directory");
    let lines = "echo; ".repeat(usize::try_from(STEPS).expect("few"));
    // The ring takes 4 MiB of it. A file may have some MiB before a busy machine comes to begin the next one; all of them
    // have more than the disk. What is on it at the end is kept.
    let script = format!(
        "mount -t tmpfs -o size=16M none disk || exit 77
         {{ {lines} }} | \"$ALLOCSAMPLE\" run -q --no-symbolize -o disk/x.allocsample --interval 1 \\
             --rotate-size 128K -- ./steps
         echo $? > status; cp disk/* ."
    );
    if told_on_a_disk(&room, &script).is_none() {
        return skip("no disk can be mounted");
    }
    let last = room.path("x.allocsample");
    assert_eq!(query(&last, LIVE), alive_after(STEPS));
    let files = parts(&room, "x");
    assert!(!files.is_empty(), "{:?}", room.names());
    // The first ones are gone.
    assert!(!files.contains(&room.path("x.part-1.allocsample")));
    assert_sound(&join(&room, "x.allocsample"));
}

#[test]
fn a_disk_that_stays_full_costs_no_totals() {
    if !is_root() {
        return skip("only root can mount a small disk");
    }
    let room = Room::new();
    room.add(&Program::compiled("steps.c"), "steps");
    fs::create_dir(room.path("disk")).expect("a directory");
    // The ring takes 4 MiB of it; names, and what is in the ring, which is more than a page, have no room.
    let script = "mount -t tmpfs -o size=5M none disk || exit 77
        { echo; until [ -e disk/x.allocsample.ring ]; do sleep 0.05; done
          dd if=/dev/zero of=disk/others bs=64k 2> errors; echo; } |
            \"$ALLOCSAMPLE\" run -o disk/x.allocsample --interval 16 -- ./steps
        echo $? > status; cp disk/x* .";
    let Some(told) = told_on_a_disk(&room, script) else {
        return skip("no disk can be mounted");
    };
    assert!(
        told.contains("x.allocsample: cannot be written: No space left"),
        "{told}"
    );
    assert!(
        told.contains("allocated  ") && told.contains("next: allocsample report"),
        "{told}"
    );
    let profile = Profile::read(&room.path("x.allocsample"));
    // A page has 4 KiB, and a sample in it a few bytes.
    assert!(profile.number("samples") > 4096.0 && profile.is_complete());
}

/// Samples that a process has told of, and those that it has lost.
fn told(path: &Path) -> [f64; 2] {
    let profile = Profile::read(path);
    ["samples", "lost_samples"].map(|name| profile.number(name))
}

#[test]
fn a_disk_that_was_full_is_written_to_again_when_there_is_room() {
    const STEPS: u64 = 20;
    if !is_root() {
        return skip("only root can mount a small disk");
    }
    let room = Room::new();
    room.add(&Program::compiled("steps.c"), "steps");
    fs::create_dir(room.path("disk")).expect("a directory");
    // The ring takes 4 MiB of it, and the profile has 192 KiB.
    let script = "mount -t tmpfs -o size=10M none disk || exit 77
        dd if=/dev/zero of=disk/others bs=64k count=93 2> errors || exit 78
        exec \"$ALLOCSAMPLE\" run -q -o disk/x.allocsample --interval 1 --on-full drop -- ./steps";
    let Some(mut steps) = on_a_disk(room, script) else {
        return skip("no disk can be mounted");
    };
    let disk = steps.seen_from_here("disk");
    let profile = disk.join("x.allocsample");
    for _ in 0..STEPS {
        steps.step();
    }
    let [before, lost] = told(&profile);
    assert!(lost > 0.0, "{before}");
    fs::remove_file(disk.join("others")).expect("another's file");
    // Room is looked for every two seconds.
    let flushed = |steps: &Steps| {
        let is_flushed = (0..30).any(|_| steps.ctl_of(&profile, "flush") == "flushed\n");
        assert!(is_flushed, "nothing is written any more");
    };
    flushed(&steps);
    let [then, lost] = told(&profile);
    assert!(then >= before && lost > 0.0, "{before} {then}");
    for _ in 0..4 {
        steps.step();
        flushed(&steps);
    }
    let [after, lost_after] = told(&profile);
    assert!(after >= then + 4.0 * BLOCKS as f64, "{then} {after}");
    assert_eq!(lost_after, lost);
    assert_eq!(Profile::read(&profile).report["audit"]["passed"], true);
    let report = steps
        .room
        .output(&["report", profile.to_str().expect("a path")]);
    let report = stdout(&report);
    assert!(
        report.contains("note: there was no room for the profile"),
        "{report}"
    );
    drop(steps.end());
}
