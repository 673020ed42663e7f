//! Promise: a sample below a deep stack of R does not take a system call for every object that it reads.

use std::fs;
use std::process::Command;

use crate::support::profile::Profile;
use crate::support::room::stdout;
use crate::support::{Room, bridge, is_installed, skip};

/// A walk of this stack reads some 150 lines of R's memory. The next one has nearly all of them by one call.
#[test]
fn a_deep_stack_is_read_with_a_few_system_calls() {
    const MOST: u64 = 20;
    if !is_installed("R") || !is_installed("strace") {
        return skip("no R (Debian: r-base-core), or no strace");
    }
    let output = Command::new("R").arg("RHOME").output().expect("R");
    let home = stdout(&output).trim().to_owned();
    let room = Room::new();
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o", "calls", "-e", "trace=process_vm_readv"])
        .arg("-E")
        .arg(format!("LD_PRELOAD={}", room.agent().display()))
        .args(["-E", "ALLOCSAMPLE_OUTPUT=x.allocsample"])
        .args(["-E", "ALLOCSAMPLE_INTERVAL=64K"])
        .arg("-E")
        .arg(format!("LD_LIBRARY_PATH={home}/lib"))
        .arg(format!("{home}/bin/exec/R"))
        .args(["--no-echo", "--vanilla"])
        .arg(format!("--file={}", bridge::program("deep.R").display()))
        .env("R_HOME", &home)
        .current_dir(room.directory())
        .output()
        .expect("strace");
    assert_eq!(stdout(&output), "done\n");
    let calls = fs::read_to_string(room.path("calls")).expect("what strace saw");
    let calls = u64::try_from(calls.lines().count()).expect("a number");
    let profile = Profile::read(&room.path("x.allocsample"));
    let samples = profile.report["samples"].as_u64().expect("samples");
    assert!(samples > 1_000, "{samples} samples");
    assert!(
        calls < MOST * samples,
        "{calls} calls for {samples} samples"
    );
}
