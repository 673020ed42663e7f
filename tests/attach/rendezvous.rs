//! Promise: what the C library does to all threads of a process, or under locks of its own, neither waits for the command nor
//! for what it has started in the process.

use crate::support::attached::Attached;
use crate::support::rendezvous::come_and_go;

#[test]
fn a_change_of_user_asks_every_thread_and_each_answers() {
    come_and_go(&["ids"], 15);
}

#[test]
fn two_threads_that_change_users_beside_new_threads_go_on() {
    come_and_go(&["ids", "ids", "threads"], 3);
}

/// Not of cancelled threads beside changes of users: glibc 2.36 has them wait for each other forever, also without an agent: this program
/// hung within a minute.
#[test]
fn all_rendezvous_at_once_go_on() {
    come_and_go(&["cancel", "threads", "fork", "load"], 3);
    come_and_go(&["threads", "fork", "load", "ids"], 3);
}

#[test]
fn a_change_of_user_that_waits_for_a_thread_behind_the_loader_is_freed() {
    let mut running = Attached::start_other("awaits_a_thread.c", &[]);
    running.attach(&[]);
    assert_eq!(running.ask("turn"), "done");
    running.detach();
    running.ends_well();
}
