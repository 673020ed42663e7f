//! Promise: the agent's own walk of Java's stacks finds what the JVM's does, whatever is on them.

use std::path::Path;

use crate::support::room::{stderr, stdout};
use crate::support::{agent_library, compile, skip};
use serde_json::Value;

/// How many stacks were walked as the JVM does, otherwise, when they had new code, and not at all.
fn walked(home: &Path, java: &[&str], kind: &str) -> Option<[u64; 4]> {
    let room = compile::java_by(&home.join("bin/javac"), "Stacks.java");
    let program = home.join("bin/java");
    let program = program.to_str().expect("a name");
    let checked = format!("-agentpath:{}=check", agent_library().display());
    let run = [
        "run",
        "-q",
        "-o",
        "x.allocsample",
        "--interval",
        "4K",
        "--",
        program,
    ];
    let output = room.output(&[&run[..], &[&checked], java, &["Stacks", kind]].concat());
    if !output.status.success()
        && (stdout(&output) + &stderr(&output)).contains("Unrecognized VM option")
    {
        return None;
    }
    assert_eq!(
        output.status.code(),
        Some(0),
        "{java:?} {kind}: {}",
        stderr(&output)
    );
    let query = ["query", "x.allocsample", "--format", "json"];
    let sql = "SELECT marker FROM markers WHERE marker LIKE 'Java''s stacks: %'";
    let rows = room.output(&[&query[..], &[sql]].concat());
    let rows: Value = serde_json::from_slice(&rows.stdout).expect("rows");
    let text = rows[0]["marker"]
        .as_str()
        .expect("what was found")
        .to_owned();
    let numbers: Vec<u64> = text
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    Some(numbers.try_into().expect("four numbers"))
}

/// Each kind of stack, compiled, half compiled and interpreted.
fn assert_walked(kind: &str, least_share: f64) {
    for home in compile::jdks() {
        for java in [
            &[][..],
            &["-XX:+UseSerialGC", "-Xint"],
            &["-XX:+UseParallelGC", "-XX:TieredStopAtLevel=1"],
            // Its heap is a file, of a quarter of the memory by itself: test programs may not write such long ones.
            &["-XX:+UseZGC", "-XX:-TieredCompilation", "-Xmx1g"],
        ] {
            let Some([same, other, new, left]) = walked(&home, java, kind) else {
                continue;
            };
            let told = format!(
                "{} {java:?} {kind}: {same} the same, {other} others, {new} new, {left} left",
                home.display()
            );
            assert_eq!(other, 0, "{told}");
            let all = (same + new + left) as f64;
            assert!(all > 1000.0, "{told}");
            assert!(same as f64 > least_share * all, "{told}");
        }
    }
}

#[test]
fn frames_of_types_that_come_late() {
    assert_walked("shapes", 0.95);
}

/// Frames whose code is given up while a thread is in them.
#[test]
fn frames_whose_code_was_given_up() {
    assert_walked("undone", 0.95);
}

/// Of classes that are unloaded; others come to lie in their place.
#[test]
fn frames_of_classes_that_come_and_go() {
    assert_walked("fleeting", 0.5);
}

#[test]
fn frames_of_many_threads() {
    assert_walked("threads", 0.95);
}

/// Most of which the JVM must be asked for, as the frames of a virtual thread that has waited are elsewhere.
#[test]
fn frames_of_virtual_threads() {
    for home in compile::jdks() {
        if walked_virtual(&home).is_none() {
            skip(&format!("{} has no virtual threads", home.display()));
        }
    }
}

fn walked_virtual(home: &Path) -> Option<()> {
    let release = std::fs::read_to_string(home.join("release")).unwrap_or_default();
    let version = release.split("JAVA_VERSION=\"").nth(1)?;
    let major: u32 = version
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?
        .parse()
        .ok()?;
    if major < 21 {
        return None;
    }
    let [same, other, _, _] = walked(home, &[], "virtual")?;
    assert_eq!(other, 0);
    assert!(same > 100, "{same}");
    Some(())
}
