//! Promise: the memory of Java's heap that holds no live object is reported as garbage or free, and not as missing.

use std::process::Command;

use crate::support::compile;
use crate::support::compile::has_java;
use crate::support::room::stderr;
use serde_json::Value;

/// ZGC maps its heap as shared memory, several times, so it is not among them.
const COLLECTORS: [&str; 4] = ["UseSerialGC", "UseParallelGC", "UseG1GC", "UseShenandoahGC"];
const MIB: f64 = (1 << 20) as f64;

fn has_collector(option: &str) -> bool {
    let java = Command::new("java").args([option, "-version"]).output();
    java.expect("java").status.success()
}

/// The heap has 256 MiB, all of it resident, and 20 MiB of that are alive.
#[test]
fn a_large_heap_with_few_live_objects_is_accounted_for_under_every_collector() {
    if !has_java() {
        return;
    }
    let room = compile::java("CacheAndGarbage.java");
    for collector in COLLECTORS {
        let option = format!("-XX:+{collector}");
        if !has_collector(&option) {
            continue;
        }
        let _from_before = std::fs::remove_file(room.path("x.allocsample"));
        let run = ["run", "-o", "x.allocsample", "--", "java", &option];
        let java = ["-XX:+AlwaysPreTouch", "-Xms256m", "-Xmx256m"];
        let output = room.output(&[&run[..], &java, &["CacheAndGarbage", "100000", "0"]].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{collector}: {said}");
        assert!(!said.contains("warning:"), "{collector}: {said}");
        let json = |arguments: &[&str]| -> Value {
            let output = room.output(&[arguments, &["--format", "json", "x.allocsample"]].concat());
            serde_json::from_slice(&output.stdout).expect("JSON")
        };
        let coverage = &json(&["report"])["coverage"];
        let share = coverage["share"].as_f64().expect("a share");
        assert!(share > 0.8, "{collector}: {coverage}");
        let memory = json(&["memory"]);
        let rows = memory["peak"]["rows"].as_array().expect("rows");
        // A reading before the first sample has no live objects.
        let of_row = |name: &str| {
            let row = rows.iter().find(|row| row["name"] == name);
            row.map_or(0.0, |row| {
                row["resident_bytes"].as_f64().expect("bytes") / MIB
            })
        };
        let heap = of_row("java: live objects") + of_row("java: garbage or free");
        // It is read while the JVM touches it, too.
        assert!((200.0..257.0).contains(&heap), "{collector}: {rows:?}");
    }
}
