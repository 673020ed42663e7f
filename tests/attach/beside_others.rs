//! Promise: debuggers and other profilers may look at a process that is attached to, or change it, and it goes on.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::support::attached::Attached;
use crate::support::room::stderr;
use crate::support::{is_installed, skip};

/// What a debugger prints. One that waits for ever is ended, with a status of its own.
fn output_of(words: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "120"])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("timeout")
}

#[track_caller]
fn assert_stack_to_main(output: &Output, when: &str) {
    assert_eq!(output.status.code(), Some(0), "{when}: {}", stderr(output));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("liballocsample.so"), "{when}: {told}");
    assert!(told.contains(" main ("), "{when}: {told}");
}

#[test]
fn a_debugger_comes_and_goes_during_an_attach_and_after_it() {
    if !is_installed("gdb") {
        return skip("gdb is not installed (Debian: gdb)");
    }
    let mut running = Attached::start();
    running.ask("allocate first 100 500");
    let pid = running.pid();
    let look = |when: &str| {
        let output = output_of(&[
            "gdb",
            "-batch",
            "-nx",
            "-p",
            &pid,
            "-ex",
            "info sharedlibrary",
            "-ex",
            "bt",
            "-ex",
            "detach",
        ]);
        assert_stack_to_main(&output, when);
    };
    running.attach(&["--interval", "1K"]);
    look("attached");
    running.ask("allocate second 2000 500");
    let profile = running.detach();
    assert!(profile.site("second").samples > 0);
    look("detached");
    running.ask("free");
    running.ends_well();
}

#[test]
fn a_core_file_of_an_attached_process_is_read_by_a_debugger() {
    for program in ["gdb", "gcore"] {
        if !is_installed(program) {
            return skip(&format!("{program} is not installed (Debian: gdb)"));
        }
    }
    let mut running = Attached::start();
    running.attach(&["--interval", "1K"]);
    running.ask("allocate first 1000 500");
    let pid = running.pid();
    let prefix = running.room.path("core");
    let prefix = prefix.to_str().expect("a path");
    let saved = output_of(&["gcore", "-o", prefix, &pid]);
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
    let core = format!("{prefix}.{pid}");
    let program = running.room.path("attached");
    let program = program.to_str().expect("a path");
    let output = output_of(&[
        "gdb",
        "-batch",
        "-nx",
        program,
        &core,
        "-ex",
        "info sharedlibrary",
        "-ex",
        "bt",
    ]);
    assert_stack_to_main(&output, "core file");
    running.ask("allocate second 2000 500");
    assert!(running.detach().site("second").samples > 0);
    running.ends_well();
}

/// As another profiler's hook in the slot of `free` has it, or a pointer that was copied before.
#[test]
fn a_block_freed_past_us_ends_when_its_address_is_sampled_again() {
    const BLOCK: f64 = 100.0;
    let mut running = Attached::start();
    running.attach(&["--interval", "1"]);
    running.ask("bypass 5000 100");
    let status =
        fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("the process");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|size| size.split_whitespace().next());
    let kib: u64 = size.expect("a size").parse().expect("a number");
    assert!(kib < 4 << 20, "{kib} KiB of address space");
    let profile = running.detach();
    let site = profile.site("bypassing");
    assert_eq!(site.samples, 5000);
    assert!(site.live_bytes <= 2.0 * BLOCK, "{site:?}");
    running.ends_well();
}
