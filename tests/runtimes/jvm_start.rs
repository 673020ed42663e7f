//! Promise: a profile has what a Java program allocates first.

use crate::support::profile::Profile;
use crate::support::{Room, compile};

/// The main thread has a buffer of up to 2 MB before the JVM begins to sample, and these objects fit into it.
#[test]
fn the_first_objects_of_main_are_sampled_under_every_collector() {
    const KNOWN: f64 = 300.0 * 1_016.0;
    const INTERVAL: f64 = 2_048.0;
    for jdk in compile::jdks() {
        let compiled = compile::java_by(&jdk.join("bin/javac"), "FirstObjects.java");
        let classes = compiled.directory().to_string_lossy();
        let java = jdk.join("bin/java");
        let java = java.to_str().expect("a path");
        for collector in ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseG1GC"] {
            let room = Room::new();
            let program = [java, collector, "-cp", &classes, "FirstObjects"];
            let run = [
                "run",
                "-q",
                "--interval",
                "2K",
                "--seed",
                "7",
                "-o",
                "x.allocsample",
                "--",
            ];
            let output = room.output(&[&run[..], &program].concat());
            assert_eq!(output.stdout, b"300\n", "{program:?}");
            let profile = Profile::read(&room.path("x.allocsample"));
            let bytes = profile.site("FirstObjects.first").allocated_bytes;
            let error = (KNOWN * INTERVAL).sqrt();
            // The first gap of the thread may still be one of the JVM's own, and counts as one of ours.
            assert!(
                (bytes - KNOWN).abs() < 5.0 * error + 2.0 * INTERVAL,
                "{program:?}: {bytes}, {KNOWN}"
            );
        }
    }
}
