//! Promise: on a busy machine, where threads starve for locks and for their turn, `attach` and `detach` freeze no program.

use std::process::Command;

use crate::support::attached::Ends;
use crate::support::rendezvous::come_and_go;

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
