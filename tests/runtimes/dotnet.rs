//! Promise: .NET's objects, their types, methods, deaths and collections are in the profile, and the program is as it was.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::ledger::ledger;
use crate::support::profile::Site;
use crate::support::room::stderr;
use crate::support::{Agent, Outcome, Room, Run, bridge, is_installed, skip};

/// `dotnet`, and Mono's compiler, whose programs run on it.
pub(crate) fn has_dotnet() -> bool {
    // No Debian has .NET.
    if !is_installed("dotnet") {
        skip("no .NET on the PATH (scripts/setup gets it from PyPI)");
        return false;
    }
    let has_compiler = is_installed("mcs");
    if !has_compiler {
        skip("no mcs (Debian: mono-mcs)");
    }
    has_compiler
}

/// A compiled program, which runs on any version of .NET; the room is where it is.
pub(crate) fn compiled(source: &str) -> (Room, PathBuf) {
    let room = Room::new();
    let output = Command::new("mcs")
        .args(["-debug", "-warn:0", "-out:program.exe"])
        .arg(bridge::program(source))
        .current_dir(room.directory())
        .output()
        .expect("mcs");
    assert!(output.status.success(), "{}", stderr(&output));
    let settings = r#"{"runtimeOptions": {
        "framework": {"name": "Microsoft.NETCore.App", "version": "7.0.0"}, "rollForward": "LatestMajor",
        "configProperties": {"System.Globalization.Invariant": true}}}"#;
    std::fs::write(room.path("program.runtimeconfig.json"), settings).expect("settings");
    let program = room.path("program.exe");
    (room, program)
}

/// The directory of a library in Mono's cache, if it is there.
fn in_mono_cache(name: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir(format!("/usr/lib/mono/gac/{name}")).ok()?;
    let mut files: Vec<PathBuf> = versions
        .filter_map(|version| Some(version.ok()?.path().join(format!("{name}.dll"))))
        .collect();
    // Debian has Mono.Cecil 0.11 and the name of an older one, 0.9.
    files.sort();
    files.into_iter().find(|file| file.is_file())
}

/// Writes the PDB of a program that was compiled with its table of lines; false: what is needed for that is not installed.
pub(crate) fn write_pdb(room: &Room, program: &Path) -> bool {
    let libraries = ["Mono.Cecil", "Mono.CompilerServices.SymbolWriter"].map(in_mono_cache);
    let [Some(cecil), Some(writer)] = libraries else {
        skip(
            "no Mono.Cecil (Debian: libmono-cecil-private-cil, libmono-compilerservices-symbolwriter4.0-cil)",
        );
        return false;
    };
    let output = Command::new("mcs")
        .arg("-out:pdb.exe")
        .args([cecil, writer].map(|library| format!("-r:{}", library.display())))
        .arg(bridge::program("PortablePdb.cs"))
        .current_dir(room.directory())
        .output()
        .expect("mcs");
    assert!(output.status.success(), "{}", stderr(&output));
    let output = Command::new("mono")
        .arg(room.path("pdb.exe"))
        .arg(program)
        .output()
        .expect("mono");
    assert!(output.status.success(), "{}", stderr(&output));
    true
}

fn run_of(program: &Path) -> Run {
    // The runtime's file for code is larger than what a test may write.
    Run::of("dotnet")
        .env("DOTNET_EnableWriteXorExecute", "0")
        .arg(program)
}

fn known_sites(times: u32, agent: &Agent) -> Outcome {
    let (_room, program) = compiled("KnownSites.cs");
    let outcome = run_of(&program).arg(times.to_string()).unchanged(agent);
    outcome.assert_success();
    outcome
}

/// From .NET 10 on, the second interval is one at which the runtime draws the samples.
#[test]
fn each_site_is_within_its_error() {
    if !has_dotnet() {
        return;
    }
    for (interval, times) in [("4K", 1), ("128K", 16)] {
        let outcome = known_sites(times, &Agent::at_interval(interval).seeded(7));
        bridge::assert_near_truth(&outcome.profile(), outcome.text().as_bytes(), 5);
    }
}

fn steered_sites(count: u32, told: bridge::Told) -> [Site; 3] {
    let (_room, program) = compiled("SteeredSites.cs");
    let count = count.to_string();
    let program = program.to_string_lossy();
    // For the variable, see `run_of`.
    let command = [
        "env",
        "DOTNET_EnableWriteXorExecute=0",
        "dotnet",
        &*program,
        &count,
    ];
    let profile = bridge::steered(&Room::new(), &command, told);
    ["First", "Second", "Third"].map(|name| profile.site(&format!("SteeredSites.{name}")))
}

#[test]
fn the_heap_follows_the_interval() {
    const COUNT: u32 = 200_000;
    if has_dotnet() {
        let sites = steered_sites(COUNT, bridge::INTERVALS);
        bridge::assert_follows(sites, f64::from(COUNT) * 1000.0);
    }
}

#[test]
fn the_heap_rests_while_it_is_stopped_and_goes_on_when_it_is_started() {
    const COUNT: u32 = 100_000;
    if has_dotnet() {
        let sites = steered_sites(COUNT, bridge::STOP_AND_START);
        bridge::assert_rests(sites, f64::from(COUNT) * 1000.0, 4e6);
    }
}

#[test]
fn types_and_methods_are_named() {
    if !has_dotnet() {
        return;
    }
    let outcome = known_sites(1, &Agent::at_interval("4K").seeded(7));
    let profile = outcome.profile();
    let stack = profile.stack_to("KnownSites.MiddleKept");
    let root = stack.first().expect("a root");
    assert!(root.starts_with("KnownSites.<Site>"), "{stack:?}");
    let types = profile.report["types"].as_array().expect("types");
    for name in ["System.Byte[]", "System.Int64[]", "Node"] {
        let is_there = |row: &&serde_json::Value| row["heap"] == "dotnet" && row["type"] == name;
        assert!(types.iter().any(|row| is_there(&row)), "{name}: {types:?}");
    }
}

#[test]
fn lines_are_those_of_the_pdb() {
    if !has_dotnet() {
        return;
    }
    let (room, program) = compiled("KnownSites.cs");
    if !write_pdb(&room, &program) {
        return;
    }
    let profile = run_of(&program)
        .arg("1")
        .unchanged(&Agent::at_interval("4K").seeded(7))
        .profile();
    let file = bridge::program("KnownSites.cs");
    bridge::assert_line(&profile, "KnownSites.SmallFreed", &file, "new byte[100];");
    bridge::assert_line(&profile, "KnownSites.SmallKept", &file, "new Node();");
}

#[test]
fn a_pdb_of_another_program_gives_no_lines() {
    if !has_dotnet() {
        return;
    }
    let (room, program) = compiled("KnownSites.cs");
    let (other, another) = compiled("Leaky.cs");
    if !write_pdb(&room, &program) || !write_pdb(&other, &another) {
        return;
    }
    std::fs::copy(other.path("program.pdb"), room.path("program.pdb")).expect("a copy");
    let profile = run_of(&program)
        .arg("1")
        .unchanged(&Agent::at_interval("4K").seeded(7))
        .profile();
    let lines = profile.report["lines"].as_array().expect("lines");
    let managed = |row: &&serde_json::Value| row["function"] == "KnownSites.SmallKept";
    let row = lines.iter().find(managed).expect("a row");
    assert!(row["line"].is_null(), "{row}");
}

#[test]
fn collections_are_told_as_the_runtime_counts_them() {
    if !has_dotnet() {
        return;
    }
    let (_room, program) = compiled("Collections.cs");
    let outcome = run_of(&program).observed(&Agent::at_interval("16K").seeded(7));
    outcome.assert_success();
    let counted: Vec<f64> = outcome
        .text()
        .lines()
        .map(|line| line.parse().expect("a count"))
        .collect();
    let profile = outcome.profile();
    let heap = bridge::heap(&profile, "dotnet");
    let told = |kind: &str| heap[kind].as_f64().expect("a count");
    assert_eq!(
        told("minor_collections") + told("major_collections"),
        counted[0],
        "{heap}"
    );
    assert!(told("major_collections") >= 5.0, "{heap}");
    assert!(told("gc_time_s") > 0.0, "{heap}");
}

#[test]
fn the_leak_is_found() {
    if has_dotnet() {
        let (_room, program) = compiled("Leaky.cs");
        let command = ["dotnet", &program.to_string_lossy(), "2000000"];
        let variables = [("DOTNET_EnableWriteXorExecute", "0")];
        bridge::assert_leak_with(&[], &variables, &command, "open_session");
    }
}

/// Three quarters of 64 MiB are garbage after every collection, in regions that the collector keeps.
#[test]
fn the_size_and_the_place_of_the_heap_are_known() {
    if !has_dotnet() {
        return;
    }
    let (room, program) = compiled("KeptHeap.cs");
    let program = program.to_string_lossy();
    let run = ["run", "--interval", "4K", "-o", "it.allocsample", "--"];
    // For the variable, see `run_of`.
    let dotnet = ["env", "DOTNET_EnableWriteXorExecute=0", "dotnet", &*program];
    let output = room.output(&[&run[..], &dotnet].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // A heap whose place is known has garbage or free memory, and otherwise what may be that.
    let ledger = ledger(&room, "it.allocsample");
    let rows = |moment: &str| ledger[moment]["rows"].as_array().expect("rows");
    let of_heap = |row: &&Value| row["name"] == "dotnet: garbage or free";
    let mut moments = ["peak", "last"].into_iter();
    assert!(
        moments.any(|it| rows(it).iter().any(|row| of_heap(&row))),
        "{ledger}"
    );
    let sql = "SELECT value FROM gc_statistics JOIN gc USING (gc_id) WHERE statistic = 'heap' AND kind = 'major'";
    let output = room.output(&["query", "--format", "json", "it.allocsample", sql]);
    let sizes: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let sizes = sizes.as_array().expect("rows").iter();
    let sizes: Vec<f64> = sizes
        .map(|row| row["value"].as_f64().expect("bytes"))
        .collect();
    assert!(sizes.len() >= 3, "{sizes:?}");
    // A quarter of 65,536 objects of 1,024 bytes, their array, and the runtime's own.
    for size in sizes {
        assert!((16.7e6..21e6).contains(&size), "{size}");
    }
}

/// With collections every few hundred KiB, on one heap and on several.
#[test]
fn threads_finalizers_code_that_goes_and_exceptions_are_no_trouble() {
    if !has_dotnet() {
        return;
    }
    let (_room, program) = compiled("TroublesOfNet.cs");
    for server in ["0", "1"] {
        for interval in ["4K", "128K"] {
            let run = run_of(&program)
                .env("DOTNET_gcServer", server)
                .env("DOTNET_GCgen0size", "40000");
            let outcome = run.unchanged(&Agent::at_interval(interval).seeded(7));
            assert_eq!(outcome.status.code(), Some(3), "{}", outcome.complaints());
            let profiles = outcome.profiles();
            assert!(
                profiles.iter().any(|it| bridge::has_heap(it, "dotnet")),
                "server {server}, {interval}"
            );
        }
    }
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    if !has_dotnet() {
        return;
    }
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(1, &agent).profile();
    assert_eq!(profile.site("KnownSites.SmallKept").samples, 0);
    assert!(!bridge::has_heap(&profile, "dotnet"));
}

/// Two cannot be loaded: the program's user has named one.
#[test]
fn another_profiler_is_left_alone() {
    if !has_dotnet() {
        return;
    }
    let (_room, program) = compiled("KnownSites.cs");
    let run = run_of(&program)
        .arg("1")
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", "{00000000-0000-0000-0000-000000000001}")
        .env("CORECLR_PROFILER_PATH", "/nonexistent.so");
    let outcome = run.unchanged(&Agent::at_interval("4K"));
    outcome.assert_success();
    let profile = outcome.profile();
    assert!(!bridge::has_heap(&profile, "dotnet"));
    let warnings = profile.report["warnings"].to_string() + &profile.report["notes"].to_string();
    assert!(warnings.contains("names another profiler"), "{warnings}");
}
