//! Promise: a JVM that counts its native memory is asked for it, and no other JVM is disturbed.

use serde_json::Value;

use super::jvm_attach::start;
use crate::support::attached::Attached;
use crate::support::compile;

const COUNTS: &str = "-XX:NativeMemoryTracking=summary";

/// What it prints after the command has asked: a JVM that was disturbed prints its threads.
#[track_caller]
fn ends_undisturbed(mut running: Attached) {
    assert_eq!(running.ask("early 10"), "done");
    let (_room, status) = running.end_of_input();
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn native_memory_is_the_jvms_own_count() {
    const HEAP_BYTES: u64 = 64 << 20;
    for java in compile::jdks() {
        let running = start(&java, &[COUNTS, "-Xmx64m", "-XX:+UseSerialGC"]);
        let pid = running.pid();
        let asked = ["memory", &pid, "--jvm", "--format", "json"];
        // The second time, the JVM listens already.
        for _ in 0..2 {
            let output = running.room.output(&asked);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let categories = answer["jvm_native_memory"].as_array().expect("a list");
            let of = |name: &str, figure: &str| {
                let found = categories.iter().find(|it| it["name"] == *name);
                found.expect(name)[figure].as_u64().expect("bytes")
            };
            assert_eq!(of("Java Heap", "reserved_bytes"), HEAP_BYTES);
            assert!(of("Java Heap", "committed_bytes") <= HEAP_BYTES);
            assert!(of("Code", "committed_bytes") > 1 << 20);
        }
        let text = running.room.output(&["memory", &pid, "--jvm"]);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        let line = text.lines().find(|line| line.ends_with("  Java Heap"));
        assert!(line.expect(&text).contains("64.0 MiB"), "{text}");
        // Its own line of what is resident is still there.
        assert!(text.contains(" resident; unexplained: "), "{text}");
        ends_undisturbed(running);
    }
}

#[test]
fn jvms_that_cannot_be_asked_are_left_alone() {
    for java in compile::jdks().iter().take(1) {
        for (options, why) in [
            (
                &["-Xmx64m"][..],
                "start it with -XX:NativeMemoryTracking=summary",
            ),
            (
                &[COUNTS, "-XX:+DisableAttachMechanism"],
                "the JVM does not let anybody attach",
            ),
        ] {
            let running = start(java, options);
            running.fails(&["memory", &running.pid(), "--jvm"], why);
            let cwd = running.room.path(".");
            let left = std::fs::read_dir(&cwd).expect("its directory");
            let left = left.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            assert_eq!(left.filter(|name| name.starts_with(".attach")).count(), 0);
            ends_undisturbed(running);
        }
    }
}

#[test]
fn only_a_running_jvm_has_categories() {
    let running = Attached::start();
    running.fails(&["memory", &running.pid(), "--jvm"], "it is no JVM");
    let output = running.room.output(&["memory", "x.allocsample", "--jvm"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    running.ends_well();
}
