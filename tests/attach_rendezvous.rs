//! Promise: what the C library does to all threads of a process, or under locks of its own, neither waits for the command nor
//! for what it has started in the process.
#![cfg(target_arch = "x86_64")]

mod support;

use std::process::Command;

use support::Program;
use support::attached::{Attached, Ends};
use support::room::stderr;

/// Threads and descriptors, without those that the program itself has for a moment.
fn least(running: &Attached) -> (usize, usize) {
    let looks = || (0..500).map(|_| (running.entries("task"), running.entries("fd")));
    let threads = looks().map(|(threads, _)| threads).min();
    let descriptors = looks().map(|(_, descriptors)| descriptors).min();
    (threads.unwrap_or(0), descriptors.unwrap_or(0))
}

/// Attaches and detaches while each of these goes on in a thread of its own. The program ends itself if one does not. On a busy
/// machine several loops starve `attach` of the locks that it needs: it gives up, and is tried again.
fn come_and_go(work: &[&str], cycles: usize) {
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let plugin = plugin.path().to_str().expect("a path");
    let mut running = Attached::start_other("rendezvous.c", &[&[plugin], work].concat());
    let pid = running.pid();
    let before = least(&running);
    for _ in 0..cycles {
        for command in [
            ["attach", &pid, "--interval=16K"],
            ["detach", &pid, "--no-symbolize"],
        ] {
            let output = running.insist(&command);
            assert!(output.status.success(), "{}", stderr(&output));
            assert_eq!(running.ask("turn"), "done");
        }
    }
    // There can be fewer: what comes and goes may have been there at each of the first looks. On a busy machine all looks of one
    // moment can see the same threads.
    let mut after = least(&running);
    for _ in 0..200 {
        if after.0 <= before.0 && after.1 <= before.1 {
            break;
        }
        assert_eq!(running.ask("turn"), "done");
        let now = least(&running);
        after = (after.0.min(now.0), after.1.min(now.1));
    }
    assert!(
        after.0 <= before.0 && after.1 <= before.1,
        "{before:?}, then {after:?}"
    );
    let regions = running.mapped_files();
    let regions = regions
        .iter()
        .filter(|path| path.contains("allocsample-attach"));
    assert_eq!(regions.count(), 0);
    running.ends_well();
}

#[test]
fn a_change_of_user_asks_every_thread_and_each_answers() {
    come_and_go(&["ids"], 15);
}

#[test]
fn two_threads_that_change_users_beside_new_threads_go_on() {
    come_and_go(&["ids", "ids", "threads"], 3);
}

#[test]
fn all_rendezvous_at_once_go_on() {
    come_and_go(&["cancel", "threads", "fork", "load", "ids"], 3);
}

/// Threads that starve for a lock are asked to change their user meanwhile, and stop for a tracer that starves as well.
#[test]
fn threads_that_starve_beside_busy_processes_go_on() {
    let processors = std::thread::available_parallelism()
        .expect("a number")
        .get();
    let busy = || {
        Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
    };
    let busy: Vec<Ends> = (0..3 * processors)
        .map(|_| Ends(busy().expect("sh")))
        .collect();
    come_and_go(&["ids"], 4);
    come_and_go(&["ids", "ids", "threads"], 2);
    drop(busy);
}

#[test]
fn a_change_of_user_that_waits_for_a_thread_behind_the_loader_is_freed() {
    let mut running = Attached::start_other("awaits_a_thread.c", &[]);
    running.attach(&[]);
    assert_eq!(running.ask("turn"), "done");
    running.detach();
    running.ends_well();
}
