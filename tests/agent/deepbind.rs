//! Promise: libraries that a program opens with `RTLD_DEEPBIND`, whose calls are bound to libc, are sampled as all others.

use std::process::Command;

use crate::support::Program;
use crate::support::attached::Attached;
use crate::support::profile::Profile;

/// Of each block in deep.c.
const BYTES: u64 = 256;

/// How a linker binds the slots of a library, and whether they are read-only later.
const BINDINGS: [&str; 2] = ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro"];

/// One that depends on nothing but libc.
fn lone_library(name: &str, binding: &str) -> Program {
    Program::library("deep_library.c", name, &[binding])
}

#[track_caller]
fn assert_site(profile: &Profile, function: &str, blocks: u64, bytes: u64, live_bytes: u64) {
    let site = profile.site(function);
    assert_eq!(
        (site.samples, site.allocated_bytes, site.live_bytes),
        (blocks, bytes as f64, live_bytes as f64),
        "{function}"
    );
}

/// One for each thread.
fn lone_libraries(binding: &str) -> [Program; 4] {
    let names = ["libdeep1.so", "libdeep2.so", "libdeep3.so", "libdeep4.so"];
    names.map(|name| lone_library(name, binding))
}

/// How often a thread opens its library, times the blocks that it has it allocate then, for four of them.
const BLOCKS_OF_THREADS: u64 = 4 * 40 * 12;

#[test]
fn libraries_that_many_threads_open_at_once_after_an_attach_are_sampled_from_their_first_call_on() {
    const TURNS: u64 = 3;
    for binding in BINDINGS {
        let libraries = lone_libraries(binding);
        let mut running = Attached::start_by("deep.c", &[], |room| {
            let mut command = Command::new(room.path("attached"));
            let paths = libraries.iter().map(|library| library.path());
            command.arg("attached").args(paths);
            command
        });
        running.attach(&["--interval", "1", "--on-full", "wait"]);
        for _ in 0..TURNS {
            assert_eq!(running.ask("again"), "done");
        }
        let profile = running.detach();
        let blocks = TURNS * BLOCKS_OF_THREADS;
        assert_site(&profile, "deep_allocates", blocks, blocks * BYTES, 0);
        running.ends_well();
    }
}
