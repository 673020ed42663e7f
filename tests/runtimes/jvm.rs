//! Promise: Java's objects, types, methods and lines are in the profile, under every collector, and the program is as it
//! was.

use std::path::PathBuf;
use std::process::Command;

use crate::support::collected::{self, AtWork};
use crate::support::compile::has_java;
use crate::support::profile::{Profile, Site};
use crate::support::room::{stderr, stdout};
use crate::support::{Room, bridge, compile, truth};
use serde_json::Value;

fn collectors() -> Vec<&'static str> {
    let all = [
        "UseSerialGC",
        "UseParallelGC",
        "UseG1GC",
        "UseZGC",
        "UseShenandoahGC",
    ];
    let is_there = |collector: &&str| {
        let output = Command::new("java")
            .args([&format!("-XX:+{collector}"), "-version"])
            .output()
            .expect("java");
        output.status.success()
    };
    all.into_iter().filter(is_there).collect()
}

/// What the program printed, and its profile.
fn known_sites(room: &Room, options: &[&str], java: &[&str], count: &str) -> (Vec<u8>, Profile) {
    // A file that is there is not written over.
    let _ = std::fs::remove_file(room.path("x.allocsample"));
    let run = ["run", "-q", "-o", "x.allocsample"];
    let program = ["KnownSites", count];
    let arguments = [&run, options, &["--", "java"], java, &program].concat();
    let output = room.output(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "nothing but the program's own output");
    let path: PathBuf = room.path("x.allocsample");
    let profile = Profile::read(&path);
    (output.stdout, profile)
}

fn rows<'a>(profile: &'a Profile, table: &str) -> &'a [Value] {
    profile.report[table].as_array().expect("a table")
}

#[test]
fn each_site_is_within_its_error_under_every_collector() {
    if !has_java() {
        return;
    }
    let room = compile::java("KnownSites.java");
    let collectors = collectors();
    assert!(collectors.len() >= 3, "{collectors:?}");
    for collector in collectors {
        let option = format!("-XX:+{collector}");
        let (printed, profile) = known_sites(&room, &["--interval", "32K"], &[&option], "400000");
        let known = truth::printed(&printed);
        assert_eq!(known.len(), 4);
        for (name, known) in known {
            let site = profile.site(&name);
            assert!(site.samples > 100, "{collector} {name}: {}", site.samples);
            // The JVM seeds itself: 5 standard errors are passed by luck once in 40,000 runs of this test.
            let z = truth::z(
                site.allocated_bytes,
                known.bytes as f64,
                site.allocated_bytes_stderr,
            );
            assert!(z.abs() < 5.0, "{collector} {name}: z {z:+.1}");
            if known.live_bytes > 0 {
                let z = truth::z(
                    site.live_bytes,
                    known.live_bytes as f64,
                    site.live_bytes_stderr,
                );
                assert!(z.abs() < 5.0, "{collector} {name}, live: z {z:+.1}");
            } else {
                let alive = site.live_bytes / site.allocated_bytes;
                assert!(alive < 0.05, "{collector} {name}: {alive} not told of");
            }
        }
        let heap = rows(&profile, "heaps")
            .iter()
            .find(|heap| heap["name"] == "java");
        let heap = heap.expect("Java's heap");
        let count = |kind: &str| heap[kind].as_u64().expect("a number");
        let collections = count("minor_collections") + count("major_collections");
        assert!(collections >= 4, "{collector}: {collections}");
    }
}

#[test]
fn types_methods_lines_and_threads_are_named() {
    if !has_java() {
        return;
    }
    let room = compile::java("KnownSites.java");
    let (_, profile) = known_sites(
        &room,
        &["--interval", "32K"],
        &["-XX:+UseSerialGC"],
        "400000",
    );
    let types: Vec<_> = rows(&profile, "types")
        .iter()
        .map(|row| &row["type"])
        .collect();
    assert!(types.iter().any(|name| *name == "byte[]"), "{types:?}");
    assert!(types.iter().any(|name| *name == "long[]"), "{types:?}");
    // What the JVM takes from malloc at the end of a turn, to compile the loop, is of the line above.
    let line = rows(&profile, "lines")
        .iter()
        .filter(|row| row["function"] == "KnownSites.smallFreed")
        .max_by_key(|row| row["self_allocated_bytes"].as_f64().map(f64::to_bits))
        .expect("the method");
    assert_eq!(
        (&line["file"], &line["line"]),
        (&"KnownSites.java".into(), &12.into())
    );
    let threads: Vec<_> = rows(&profile, "threads")
        .iter()
        .map(|row| &row["thread"])
        .collect();
    assert!(
        threads.iter().any(|name| *name == "array-maker"),
        "{threads:?}"
    );
    let stack = profile.stack_to("KnownSites.smallKept");
    assert_eq!(stack[..], ["KnownSites.main", "KnownSites.smallKept"]);
    let z = profile.report["audit"]["z"]
        .as_f64()
        .expect("a deviation of malloc's bytes");
    assert!(z.abs() < 5.0, "{z}");
}

#[test]
fn the_program_is_as_it_was_and_the_bridge_can_be_left_out() {
    if !has_java() {
        return;
    }
    let room = compile::java("KnownSites.java");
    let bare = Command::new("java")
        .args(["KnownSites", "20000"])
        .current_dir(room.directory())
        .output()
        .expect("java");
    let (printed, _) = known_sites(&room, &[], &[], "20000");
    assert_eq!(String::from_utf8_lossy(&printed), stdout(&bare));
    let (printed, profile) = known_sites(&room, &["--runtime", "none"], &[], "20000");
    assert_eq!(String::from_utf8_lossy(&printed), stdout(&bare));
    assert!(
        rows(&profile, "heaps")
            .iter()
            .all(|heap| heap["name"] != "java")
    );
}

/// What Java takes from `malloc` has Java's frames above the native ones.
#[test]
fn native_memory_is_charged_to_the_methods_that_took_it() {
    const BUFFERS: f64 = 40_000.0;
    // Each has a page's alignment no more, and its 3,000 bytes.
    const BYTES: f64 = BUFFERS * 3000.0;
    if !has_java() {
        return;
    }
    let room = compile::java("NativeMemory.java");
    for options in [
        &["-XX:+UseSerialGC"][..],
        &["-XX:+UseG1GC"],
        &["-XX:+UseParallelGC", "-Xint"],
        &["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
    ] {
        let _ = std::fs::remove_file(room.path("x.allocsample"));
        let run = ["run", "-q", "--seed", "7", "--interval", "64K"];
        let command = ["-o", "x.allocsample", "--", "java"];
        let program = ["-XX:MaxDirectMemorySize=1g", "NativeMemory", "20000"];
        let output = room.output(&[&run, &command[..], options, &program].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).starts_with("40000 "), "{}", stdout(&output));
        let profile = Profile::read(&room.path("x.allocsample"));
        let site = profile.site("NativeMemory.direct");
        let stacks = profile.stacks();
        let under = |name: &str| {
            let is_of_malloc = |stack: &[String]| {
                let java = stack.iter().rposition(|frame| frame == name);
                let direct = stack.iter().any(|frame| frame == "Unsafe_AllocateMemory0");
                java.is_some() && direct
            };
            stacks
                .iter()
                .filter(|(stack, _)| is_of_malloc(stack))
                .map(|(_, bytes)| bytes)
                .sum::<f64>()
        };
        let found = under("NativeMemory.direct");
        // 120 MB at 64 KiB: 1,800 samples.
        let z = truth::z(found, BYTES, (BYTES * 65536.0).sqrt());
        assert!(
            z.abs() < 5.0,
            "{options:?}: {found} for {BYTES}, z {z:+.1}, {site:?}"
        );
        assert!(under("NativeMemory.keep") >= found, "{options:?}");
        let compress = stacks.iter().find(|(stack, _)| {
            stack.iter().any(|frame| frame == "NativeMemory.compress")
                && stack.iter().any(|frame| frame.contains("deflateInit2_"))
        });
        assert!(compress.is_some(), "{options:?}");
        // A place has its line from the moment at which the JVM could be asked: never another one.
        let lines = rows(&profile, "lines").iter();
        let lines: Vec<_> = lines
            .filter(|row| row["function"] == "NativeMemory.direct")
            .collect();
        assert!(
            lines.iter().any(|row| row["line"] == 12),
            "{options:?}: {lines:?}"
        );
        assert!(
            (lines.iter()).all(|row| row["line"] == 12 || row["line"].is_null()),
            "{options:?}: {lines:?}"
        );
        // The stack goes from Java's thread to the allocator, and nothing is left open in between.
        let (stack, _) = stacks
            .iter()
            .find(|(stack, _)| {
                stack.iter().any(|frame| frame == "NativeMemory.direct")
                    && stack.iter().any(|frame| frame == "Unsafe_AllocateMemory0")
            })
            .expect("a stack");
        assert!(
            stack[0] == "NativeMemory.main" || stack[0] == "java.lang.Thread.run",
            "{stack:?}"
        );
    }
}

fn steered_sites(count: u32, told: bridge::Told) -> [Site; 3] {
    let room = compile::java("SteeredSites.java");
    let count = count.to_string();
    let command = ["java", "-XX:+UseSerialGC", "SteeredSites", &count];
    let profile = bridge::steered(&room, &command, told);
    ["first", "second", "third"].map(|name| profile.site(&format!("SteeredSites.{name}")))
}

/// Each sample counts by the interval under which it was drawn, also while it changes.
#[test]
fn javas_heap_follows_the_interval() {
    const COUNT: u32 = 200_000;
    if has_java() {
        let sites = steered_sites(COUNT, bridge::INTERVALS);
        bridge::assert_follows(sites, f64::from(COUNT) * 1000.0);
    }
}

#[test]
fn javas_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const COUNT: u32 = 100_000;
    if has_java() {
        let sites = steered_sites(COUNT, bridge::STOP_AND_START);
        bridge::assert_rests(sites, f64::from(COUNT) * 1000.0, 4e6);
    }
}

#[test]
fn a_jvm_is_seen_whoever_starts_it() {
    if !has_java() {
        return;
    }
    let room = compile::java("KnownSites.java");
    let script = "env SOME=thing nice java -XX:+UseSerialGC KnownSites 20000 > printed";
    let run = ["run", "-q", "-o", "%n.%p.allocsample", "--interval", "32K"];
    let output = room.output(&[&run[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "no word of an option");
    let names = room.names();
    let of_java = |name: &&String| name.starts_with("java.") && name.ends_with(".allocsample");
    let java = names.iter().find(of_java).expect("the JVM's profile");
    let profile = Profile::read(&room.path(java));
    let known = truth::printed(&std::fs::read(room.path("printed")).expect("sites"));
    for (name, _) in known {
        assert!(profile.site(&name).samples > 0, "{name}");
    }
    // Its heap has the interval of all, which is told once.
    let intervals = profile.report["intervals"].as_array().expect("intervals");
    assert_eq!(intervals.len(), 1, "{intervals:?}");
    // What others see of it is what was typed.
    let command = profile.report["command"].as_array().expect("words");
    assert_eq!(command.len(), 4, "{command:?}");
}

#[test]
fn the_leak_is_found() {
    if !has_java() {
        return;
    }
    let room = compile::java("Leaky.java");
    let classes = room.directory().to_string_lossy().into_owned();
    let command = ["java", "-cp", &classes, "Leaky", "400000"];
    bridge::assert_leak(&command, "open_session");
}

/// Its launcher takes JVM options in another form.
#[test]
fn the_compiler_is_a_program_too() {
    if !has_java() {
        return;
    }
    let room = Room::new();
    let source = bridge::program("KnownSites.java");
    let source = source.to_string_lossy();
    let output = room.output(&[
        "run",
        "-q",
        "-o",
        "x.allocsample",
        "--",
        "javac",
        "-d",
        ".",
        &source,
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(room.path("KnownSites.class").exists());
    let profile = Profile::read(&room.path("x.allocsample"));
    let stacks = profile.stacks();
    let is_of_compiler = |(stack, _): &&(Vec<String>, f64)| {
        stack
            .iter()
            .any(|frame| frame.starts_with("com.sun.tools.javac"))
    };
    assert!(stacks.iter().filter(is_of_compiler).count() > 5);
}

#[test]
fn a_bounded_cache_is_live_and_nothing_else_once_the_jvm_was_asked_to_collect() {
    if !has_java() {
        return;
    }
    let room = compile::java("BoundedCache.java");
    let java = ["java", "-Xmx512m", "-cp", ".", "BoundedCache"];
    let java = AtWork::start(room, &["--interval", "16K"], &java);
    java.collect("java");
    let (live, error) = java.survivors("java", "makeEntry");
    let known = 20_000.0 * 1_016.0;
    assert!(
        (live - known).abs() < 5.0 * error,
        "{live} ± {error}, {known}"
    );
    collected::assert_not_accused(&java.room, "copy.allocsample", "makeEntry");
    java.end();
}

/// Threads of the JVM that wait for one another do so at safepoints: nothing of ours may stand between them, also at the exit. An
/// answer comes after all deaths that the collection found, so that nothing but the cache is live.
#[test]
fn collections_on_request_and_an_exit_come_through_while_threads_allocate_and_reach_safepoints() {
    const ROUNDS: usize = 3;
    const KNOWN: f64 = 20_000.0 * 1_016.0;
    for jdk in compile::jdks() {
        let compiled = compile::java_by(&jdk.join("bin/javac"), "CollectedUnderLoad.java");
        let classes = compiled.directory().to_string_lossy();
        let java = jdk.join("bin/java");
        let java = java.to_str().expect("a path");
        for collector in collectors() {
            let collector = format!("-XX:+{collector}");
            let program = ["-Xmx256m", "-cp", &classes, "CollectedUnderLoad"];
            let java = [&[java, &collector], &program[..]].concat();
            for _ in 0..ROUNDS {
                let java = AtWork::start(Room::new(), &["--interval", "16K"], &java);
                java.assert_java_keeps(KNOWN, &collector);
                java.end();
            }
        }
    }
}

/// What full collections have found alive of a cache's arrays, what none has looked at, and the standard error of each. `leaks` does
/// not accuse the cache.
fn split_of_cache(room: &Room, java: &[&str], program: &[&str]) -> [(f64, f64); 2] {
    let _from_before = std::fs::remove_file(room.path("x.allocsample"));
    let run = ["run", "-q", "--interval", "32K", "-o", "x.allocsample"];
    let program = [java, &["CacheAndGarbage"], program].concat();
    let output = room.output(&[&run[..], &["--", "java"], &program].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "20000\n");
    let profile = Profile::read(&room.path("x.allocsample"));
    let arrays = rows(&profile, "types").iter();
    let arrays = arrays.clone().find(|row| row["type"] == "byte[]");
    let arrays = arrays.expect("the arrays' type");
    let figure = |name: &str| arrays[name].as_f64().expect("a figure");
    collected::assert_not_accused(room, "x.allocsample", "makeEntry");
    ["live_examined_bytes", "live_unexamined_bytes"]
        .map(|name| (figure(name), figure(&format!("{name}_stderr"))))
}

/// The cache holds 20,000 arrays of 1,016 bytes, and twenty times as many bytes are dropped beside it. A collector that marks while
/// the program runs has looked at what was there when it began, and old entries that it found dead later are not in it any more.
#[test]
fn garbage_that_no_full_collection_has_looked_at_is_told_apart_from_a_cache_under_every_collector()
{
    const KNOWN: f64 = 20_000.0 * 1_016.0;
    // Arrays of the JVM's own classes.
    const OTHERS: f64 = 0.05 * KNOWN;
    if !has_java() {
        return;
    }
    let room = compile::java("CacheAndGarbage.java");
    for collector in collectors() {
        let option = format!("-XX:+{collector}");
        let [(survived, error), (unexamined, _)] =
            split_of_cache(&room, &[&option, "-Xmx96m"], &["300000"]);
        let stops_all = matches!(collector, "UseSerialGC" | "UseParallelGC");
        let least = if stops_all { KNOWN } else { 0.25 * KNOWN };
        assert!(
            survived < KNOWN + OTHERS + 5.0 * error && survived > least - 5.0 * error,
            "{collector}: {survived} ± {error} of {KNOWN}"
        );
        // One that marks while the program runs may have begun after the last array.
        assert!(unexamined > 0.0 || !stops_all, "{collector}");
    }
    // Without its counters the JVM does not tell, and nothing counts as looked at.
    let java = ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx96m"];
    let [(survived, _), (unexamined, _)] = split_of_cache(&room, &java, &["300000"]);
    assert!(
        survived == 0.0 && unexamined > KNOWN / 2.0,
        "{survived}, {unexamined}"
    );
}

/// Of which no collector has a reason to collect again before the program ends.
#[test]
fn what_was_dropped_after_a_collection_is_exactly_what_none_has_looked_at() {
    const CACHE: f64 = 20_000.0 * 1_016.0;
    const DROPPED: f64 = 15_000.0 * 1_016.0;
    // Arrays of the JVM's own classes.
    const OTHERS: f64 = 0.05 * CACHE;
    if !has_java() {
        return;
    }
    let room = compile::java("CacheAndGarbage.java");
    for collector in collectors() {
        let option = format!("-XX:+{collector}");
        let found = split_of_cache(&room, &[&option, "-Xmx1g"], &["40000", "15000"]);
        for ((bytes, error), known) in found.into_iter().zip([CACHE, DROPPED]) {
            assert!(
                bytes > known - 5.0 * error && bytes < known + OTHERS + 5.0 * error,
                "{collector}: {bytes} ± {error} of {known}"
            );
        }
    }
}
