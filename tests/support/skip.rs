//! Counts tests that can show nothing on this machine. Unit tests include it, too, some of them without the prelude.

use std::{eprintln, format};

/// Says that a test could not show anything here, and why: on stderr, which cargo hides, and in the file that
/// SKIPPED_TESTS_FILE names, whose lines scripts/check prints at its end.
pub fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
    let Some(list) = std::env::var_os("SKIPPED_TESTS_FILE") else {
        return;
    };
    let thread = std::thread::current();
    let line = format!(
        "{}: {why}\n",
        thread.name().unwrap_or("a test").replace('\n', " ")
    );
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&list);
    // One write: lines of tests that run at the same time do not mix.
    let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()));
    assert!(written.is_ok(), "the list of skipped tests: {written:?}");
}
