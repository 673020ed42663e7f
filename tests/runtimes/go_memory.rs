//! Promise: what a Go heap keeps is the heap's memory, however little is alive in it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::ledger::{accounts, assert_adds_up, ledger};
use crate::support::{Program, Room, compile, skip};

const SOURCE: &str = "go_garbage.go";

#[test]
fn a_go_heap_keeps_its_memory_after_a_collection() {
    if !compile::can_compile(SOURCE) {
        skip("no Go (Debian: golang-go)");
        return;
    }
    let room = Room::new();
    room.add(&Program::compiled_with(SOURCE, &[]), "program");
    let begun = Instant::now();
    let mut running = room
        .command(&["run", "-q", "-o", "it.allocsample", "--", "./program"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a command");
    let mut line = String::new();
    let output = running.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let collected_s = begun.elapsed().as_secs_f64();
    // Leaves time for a reading after the collection: the command reads about every 100 ms in the first seconds.
    sleep(Duration::from_secs(1));
    drop(running.stdin.take());
    assert!(running.wait().expect("an end").success());

    let ledger = ledger(&room, "it.allocsample");
    for moment in ["peak", "last"] {
        assert_adds_up(&ledger[moment]);
        let mib = accounts(&ledger[moment]);
        let of = |account: &str| mib.get(account).copied().unwrap_or(0.0);
        // 40 of 2,000 blocks of 61,440 bytes stay live. The runtime returns the others in the background, at a pace of its own.
        let heap = of("objects") + of("objects_held");
        let anonymous = ledger[moment]["anonymous_bytes"].as_f64();
        let anonymous = anonymous.expect("bytes") / f64::from(1 << 20);
        assert!(heap > 40.0 && heap > 0.95 * anonymous, "{mib:?}");
        assert!(of("unexplained") < 4.0, "{mib:?}");
        // Before the collection all of them count as live.
        let is_collected = ledger[moment]["time_s"].as_f64() > Some(collected_s);
        assert!(!is_collected || of("objects") < 20.0, "{mib:?}");
    }
}
