//! Programs whose threads do, all the time, what the C library does to all threads (`tests/programs/rendezvous.c`).

use super::Program;
use super::attached::Attached;
use super::room::stderr;

/// Threads and descriptors, without those that the program itself has for a moment.
fn least(running: &Attached) -> (usize, usize) {
    let looks = || (0..500).map(|_| (running.entries("task"), running.entries("fd")));
    let threads = looks().map(|(threads, _)| threads).min();
    let descriptors = looks().map(|(_, descriptors)| descriptors).min();
    (threads.unwrap_or(0), descriptors.unwrap_or(0))
}

/// Attaches and detaches while each of these goes on in a thread of its own. The program ends itself if one does not. On a busy
/// machine several loops starve `attach` of the locks that it needs: it gives up, and is tried again.
pub fn come_and_go(work: &[&str], cycles: usize) {
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
