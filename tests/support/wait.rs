//! Waiting for a state that another process reaches soon.

use std::time::{Duration, Instant};

/// Waits until it is there. Panics after two minutes.
#[track_caller]
pub fn wait_until(what: &str, is_there: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        assert!(begin.elapsed() < Duration::from_secs(120), "no {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
