//! Promise: figures that depend on details of the JVM's sampler and collectors are right with every JVM on this machine.

use std::path::Path;
use std::process::Command;

use crate::support::profile::Profile;
use crate::support::room::stderr;
use crate::support::{Room, compile, truth};

const COLLECTORS: [&str; 6] = [
    "UseSerialGC",
    "UseParallelGC",
    "UseConcMarkSweepGC",
    "UseG1GC",
    "UseZGC",
    "UseShenandoahGC",
];

/// The options for a collector; `None`: this JVM does not have it.
fn options(java: &Path, collector: &str) -> Option<[String; 2]> {
    let options = [
        "-XX:+UnlockExperimentalVMOptions".to_owned(),
        format!("-XX:+{collector}"),
    ];
    let asked = Command::new(java).args(&options).arg("-version").output();
    asked.expect("a JVM").status.success().then_some(options)
}

/// The program's output, and its profile.
fn profile(
    room: &Room,
    interval: &str,
    java: &Path,
    options: &[String],
    program: &[&str],
) -> (Vec<u8>, Profile) {
    let _from_before = std::fs::remove_file(room.path("x.allocsample"));
    let run = [
        "run",
        "-q",
        "--interval",
        interval,
        "-o",
        "x.allocsample",
        "--",
    ];
    let java = java.to_str().expect("a path");
    let options = options.iter().map(String::as_str);
    let command: Vec<_> = run
        .into_iter()
        .chain([java])
        .chain(options)
        .chain(program.iter().copied())
        .collect();
    let output = room.output(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    (output.stdout, Profile::read(&room.path("x.allocsample")))
}

/// The large ones of the program take one and a half intervals. JDK 11 samples such objects a sixth too often by itself.
#[test]
fn objects_as_large_as_the_interval_are_within_their_error() {
    let room = compile::java_for_11("KnownSites.java");
    for java in compile::javas() {
        assert_sites(&room, &java, &[], &["KnownSites", "200000"]);
    }
}

/// Every site of the program must be within five standard errors at 64 KiB. The JVM seeds itself: chance exceeds that once in 200,000
/// runs of a test.
#[track_caller]
fn assert_sites(room: &Room, java: &Path, options: &[String], program: &[&str]) {
    let (printed, profile) = profile(room, "64K", java, options, program);
    for (name, known) in truth::printed(&printed) {
        let site = profile.site(&name);
        let z = truth::z(
            site.allocated_bytes,
            known.bytes as f64,
            site.allocated_bytes_stderr,
        );
        let java = java.display();
        assert!(z.abs() < 5.0, "{java} {options:?} {name}: z {z:+.1}");
    }
}

/// Small buffers, which a thread leaves when the next object does not fit: a third of every one stays free.
const SMALL_BUFFERS: [&str; 3] = [
    "-XX:TLABSize=3000",
    "-XX:-ResizeTLAB",
    "-XX:TLABRefillWasteFraction=1",
];

/// The JVM has one generator of random numbers, and every new thread seeds it with an address, which is often that of the last one.
/// It takes the free rest of a buffer for objects.
#[test]
fn threads_that_allocate_little_are_within_their_error() {
    let room = compile::java_for_11("ShortThreads.java");
    for java in compile::javas() {
        for options in [&[][..], &SMALL_BUFFERS] {
            let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
            assert_sites(&room, &java, &options, &["ShortThreads", "1000"]);
        }
    }
}

/// The program ends after `System.gc()`, with 20,000 arrays of 1,016 bytes in a cache.
#[test]
fn a_full_collection_on_request_examines_all_objects_under_every_collector() {
    const KNOWN: f64 = 20_000.0 * 1_016.0;
    let room = compile::java_for_11("CacheAndGarbage.java");
    for java in compile::javas() {
        for collector in COLLECTORS {
            let Some(options) = options(&java, collector) else {
                continue;
            };
            let (_, profile) = profile(
                &room,
                "32K",
                &java,
                &options,
                &["CacheAndGarbage", "40000", "0"],
            );
            let types = profile.report["types"].as_array().expect("types");
            let arrays = types
                .iter()
                .find(|row| row["type"] == "byte[]")
                .expect("arrays");
            let figure = |name: &str| arrays[name].as_f64().expect("a figure");
            let (examined, error) = (
                figure("live_examined_bytes"),
                figure("live_examined_bytes_stderr"),
            );
            // Arrays of the JVM's own classes are among them.
            assert!(
                examined > KNOWN - 5.0 * error && examined < 1.05 * KNOWN + 5.0 * error,
                "{} {collector}: {examined} ± {error} of {KNOWN}",
                java.display()
            );
        }
    }
}

/// 20 MB are alive, and sixty times as many are dropped. JDK 11 keeps objects alive that it is asked about while it marks.
#[test]
fn sampled_garbage_is_collected_in_a_small_heap_under_every_collector() {
    let room = compile::java_for_11("CacheAndGarbage.java");
    for java in compile::javas() {
        for collector in COLLECTORS {
            if let Some([unlock, collector]) = options(&java, collector) {
                let options = [unlock, collector, "-Xmx128m".to_owned()];
                let program = ["CacheAndGarbage", "60000"];
                let (printed, _) = profile(&room, "16K", &java, &options, &program);
                assert_eq!(printed, b"20000\n", "{} {options:?}", java.display());
            }
        }
    }
}
