//! Promise: what the C library does to all threads of a process, or under locks of its own, neither waits for the command nor
//! for what it has started in the process.
#![cfg(target_arch = "x86_64")]

mod support;

use support::Program;
use support::attached::Attached;

/// Attaches and detaches while each of these goes on in a thread of its own. The program ends itself if one does not.
fn come_and_go(work: &[&str], cycles: usize) {
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let plugin = plugin.path().to_str().expect("a path");
    let mut running = Attached::start_other("rendezvous.c", &[&[plugin], work].concat());
    let pid = running.pid();
    for _ in 0..cycles {
        running.attach(&["--interval", "16K"]);
        assert_eq!(running.ask("turn"), "done");
        running.done(&["detach", &pid, "--no-symbolize"]);
        assert_eq!(running.ask("turn"), "done");
    }
    running.ends_well();
}

#[test]
fn a_change_of_user_asks_every_thread_and_each_answers() {
    come_and_go(&["ids"], 15);
}
