//! Promise: an attach brings the heap of a running JVM in, and a detach leaves it.

use std::path::Path;
use std::process::Command;

use crate::support::attached::Attached;
use crate::support::profile::Profile;
use crate::support::{Program, compile, is_installed, skip, truth};

/// `Monitored.arraysOfPhase` makes objects of as many bytes.
const BYTES: f64 = 1000.0;

pub(super) fn start(home: &Path, options: &[&str]) -> Attached {
    let room = compile::java_by(&home.join("bin/javac"), "Monitored.java");
    let mut command = Command::new(home.join("bin/java"));
    command.args(options).arg("Monitored");
    Attached::start_in(room, command)
}

fn total(profile: &Profile, method: &str) -> f64 {
    let name = format!("Monitored.{method}");
    let functions = profile.report["functions"].as_array().expect("functions");
    let row = functions.iter().find(|row| row["function"] == *name);
    row.map_or(0.0, |row| {
        row["total_allocated_bytes"].as_f64().expect("bytes")
    })
}

#[track_caller]
fn assert_total(profile: &Profile, method: &str, count: u32) {
    let truth = f64::from(count) * BYTES;
    let interval = profile.report["interval_bytes"].as_f64().expect("bytes");
    // A thread that was there before the attach begins with a gap of the JVM's own interval.
    let first_gap = 512.0 * 1024.0;
    let error = (truth * interval + first_gap * first_gap).sqrt();
    let z = truth::z(total(profile, method), truth, error);
    assert!(z.abs() < 5.0, "{method}: z {z:+.1}");
}

#[test]
fn objects_between_attach_and_detach_are_estimated_and_no_others() {
    let collectors = ["-XX:+UseG1GC", "-XX:+UseSerialGC"];
    for (java, collector) in compile::jdks().iter().zip(collectors.iter().cycle()) {
        let mut running = start(java, &[collector, "-Xmx256m"]);
        running.ask("early 50000");
        running.attach(&["--interval", "64K"]);
        running.ask("second 200000");
        let profile = running.detach();
        assert_eq!(total(&profile, "early"), 0.0);
        assert_total(&profile, "second", 200_000);
        // Nobody records now, and the next profile begins with nothing.
        running.ask("early 50000");
        running.attach(&["--interval", "32K"]);
        running.ask("fourth 200000");
        let profile = running.detach();
        assert_eq!(total(&profile, "early"), 0.0);
        assert_eq!(total(&profile, "second"), 0.0);
        assert_total(&profile, "fourth", 200_000);
        let (_room, status) = running.end_of_input();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

#[test]
fn threads_that_allocate_do_not_notice_an_attach_or_a_detach() {
    for java in compile::jdks() {
        let mut running = start(&java, &["-Xmx256m"]);
        running.ask("begin 3");
        for _ in 0..3 {
            running.attach(&["--interval", "16K"]);
            running.ask("threads 200");
            let profile = running.detach();
            assert!(total(&profile, "deep") > 0.0);
            running.ask("threads 50");
        }
        running.ask("end");
        let (_room, status) = running.end_of_input();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

/// Only one agent can have the sampler.
#[test]
fn a_detach_gives_the_sampler_of_the_jvm_back() {
    let Some(java) = compile::jdks().pop() else {
        return;
    };
    if !is_installed("jcmd") {
        return skip("no jcmd (Debian: default-jdk-headless)");
    }
    let other = Program::library("takes_sampling.c", "libtakes_sampling.so", &[]);
    let mut running = start(&java, &[]);
    running.attach(&["--interval", "64K"]);
    running.ask("second 5000");
    running.detach();
    let loaded = Command::new("jcmd")
        .args([&running.pid(), "JVMTI.agent_load"])
        .arg(other.path())
        .output();
    assert!(loaded.expect("jcmd").status.success());
    assert_eq!(running.answer(), "sampler: taken");
    // Now the agent is the one that comes too late, and says so.
    running.attach(&["--interval", "64K"]);
    running.ask("third 50000");
    let profile = running.detach();
    assert_eq!(total(&profile, "third"), 0.0);
    let (room, status) = running.end_of_input();
    assert_eq!(status.code(), Some(0), "{status}");
    let markers = "SELECT count(*) FROM markers WHERE marker LIKE 'another agent samples%'";
    let path = profile.path().to_str().expect("a path");
    let said = room.output(&["query", path, markers]);
    assert!(String::from_utf8_lossy(&said.stdout).contains('1'));
}
