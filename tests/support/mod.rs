//! What the end-to-end tests share: compiling a test program, running it with and without the agent, reading what came out.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test file uses a part of this"
)]

pub mod allocators;
pub mod attached;
pub mod bridge;
pub mod collected;
pub mod compile;
pub mod directory;
pub mod embedded;
pub mod hostile;
pub mod ledger;
pub mod pprof;
pub mod profile;
pub mod python;
pub mod regrtest;
pub mod rendezvous;
pub mod room;
pub mod run;
pub mod running;
mod skip;
pub mod steps;
pub mod talking;
pub mod totals;
pub mod truth;
pub mod viewers;
mod wait;

pub use compile::Program;
pub use room::Room;
pub use run::{Agent, Outcome, Run};
pub use skip::skip;
pub use wait::wait_until;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The command under test.
pub fn command() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_allocsample"))
}

/// The agent under test: cargo builds it for the tests because the root package has it as a dev-dependency.
pub fn agent_library() -> PathBuf {
    let profile = command().parent().expect("a directory");
    let library = profile.join("deps/liballocsample.so");
    assert!(library.exists(), "{} has not been built", library.display());
    library
}

/// Copies a file that will be run, in a process of its own: a child that another test's thread forks
/// at this moment would hold our descriptor open for writing until it has called exec, and a file
/// that is open for writing cannot be run (ETXTBSY).
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// Where this test process may leave things.
pub fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Whether a program can be found.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Whether the tests run as root, as some limits and mounts need.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
