//! Promise: Tcl's procedures and methods are in the stacks of what it allocates, with files and lines, in every kind of code that Tcl
//! runs, its own blocks are counted one by one, and the program is as it was.

use std::process::Command;

use crate::support::attached::Attached;
use crate::support::profile::Profile;
use crate::support::{Agent, Outcome, Program, Room, Run, bridge, is_installed, skip, truth};

/// The system's Tcl, unless the variable names another one.
fn tclsh() -> Option<String> {
    let tclsh = std::env::var("ALLOCSAMPLE_TEST_TCLSH").unwrap_or("tclsh".to_owned());
    if !is_installed(&tclsh) {
        skip("no Tcl (Debian: tcl)");
        return None;
    }
    Some(tclsh)
}

fn agent(interval: &str) -> Agent {
    Agent::at_interval(interval).seeded(7)
}

fn known_sites(tclsh: &str, times: u32, agent: &Agent) -> Outcome {
    let program = bridge::program("known_sites.tcl");
    let program = program.to_string_lossy();
    let outcome = Run::of(tclsh)
        .args(&[&program, &times.to_string()])
        .unchanged(agent);
    outcome.assert_success();
    outcome
}

/// The program reads its script from a file.
fn script(tclsh: &str, code: &str, agent: &Agent) -> Outcome {
    let room = Room::new();
    let file = room.path("script.tcl");
    std::fs::write(&file, code).expect("the script");
    Run::of(tclsh)
        .args(&[&file.to_string_lossy()])
        .unchanged(agent)
}

/// Of the heap that has the blocks of Tcl's own allocator.
fn blocks_of_tcl(profile: &Profile) -> &str {
    let heaps = profile.report["heaps"].as_array().expect("heaps");
    let mut names = heaps.iter().filter_map(|heap| heap["name"].as_str());
    names
        .find(|name| name.starts_with("Tcl_Alloc in "))
        .expect("a heap")
}

#[test]
fn each_site_is_within_its_error() {
    let Some(tclsh) = tclsh() else { return };
    for (interval, times) in [("4K", 1), ("32K", 4)] {
        let outcome = known_sites(&tclsh, times, &agent(interval));
        bridge::profile_near_truth(&outcome, 4);
    }
}

/// A small block comes from a chunk that some other procedure needed: it is charged to the one that it was allocated for.
#[test]
fn the_blocks_of_tcls_own_allocator_are_a_heap_and_are_counted_once() {
    let Some(tclsh) = tclsh() else { return };
    let profile = known_sites(&tclsh, 1, &agent("4K")).profile();
    let name = blocks_of_tcl(&profile);
    let exact = bridge::heap(&profile, name)["allocated_bytes_exact"].as_f64();
    let malloc = bridge::heap(&profile, "malloc")["allocated_bytes_exact"].as_f64();
    assert!(
        exact > Some(21_632_200.0) && exact < Some(25e6),
        "{exact:?}"
    );
    // Tcl's values, and what libc allocates itself.
    assert!(malloc < Some(5e6), "{malloc:?}");
}

/// The program keeps a string of 300 kB for each of these: at this interval one in 10^32 is not sampled.
#[test]
fn every_kind_of_code_has_its_frames() {
    let Some(tclsh) = tclsh() else { return };
    let file = bridge::program("tcl/shapes.tcl");
    let run = Run::of(&tclsh).args(&[&file.to_string_lossy()]);
    let outcome = run.unchanged(&agent("4K"));
    assert_eq!(outcome.status.code(), Some(3));
    let profile = outcome.profile();
    let stacks = profile.stacks();
    for names in [
        &["(top level)", "plain"][..],
        &["(top level)", "appends"],
        &["(top level)", "outer::evaluates", "outer::inner::spaced"],
        &["(top level)", "again", "again", "again", "again"],
        &["objects", "Shape.constructor"],
        &["objects", "Square.both", "Shape.both", "Shape.grow"],
        &["objects", "Square.both"],
        &["objects", "Shape.destructor"],
        &["lambdas", "lambda[shapes.tcl:55]"],
        &["consumes", "generator"],
        &["calls_up", "up", "keep_here"],
        &["sorts", "compare"],
        &["traced", "on_write"],
        &["(top level)", "later"],
        &["(top level)", "renewed"],
        &["children", "(top level)", "in_child"],
        &["children", "aliased"],
        &["catches", "fails"],
        &["(top level)", "texts"],
        &["(top level)"],
    ] {
        bridge::assert_in_order(&stacks, names);
    }
    for (function, text) in [
        ("plain", "plain1"),
        ("appends", "append other"),
        ("outer::inner::spaced", "repeat s $size"),
        ("Shape.grow", "method grow"),
        ("Square.both", "next $size; keep"),
        ("lambda[shapes.tcl:55]", "string repeat l"),
        ("generator", "yield ["),
        ("compare", "repeat k"),
        ("in_child", "proc in_child"),
    ] {
        bridge::assert_line(&profile, function, &file, text);
    }
}

/// Errors out of many levels, coroutines that are deleted while they wait, interpreters that are deleted while they run, threads, events,
/// redefinition, deep recursion, and children.
#[test]
fn the_program_is_as_it_was() {
    let Some(tclsh) = tclsh() else { return };
    let code = r#"
        proc deep {n} { set room [string repeat x [expr {$n % 300}]]; if {$n == 0} { return 0 }; expr {1 + [deep [expr {$n - 1}]]} }
        foreach n {60 120 300} { puts [deep $n] }
        proc thrown {n} { if {$n == 0} { error [string repeat x 3000] }; thrown [expr {$n - 1}] }
        for {set i 0} {$i < 20} {incr i} { catch {thrown 100} message; puts [string length $message] }
        proc endless {} { endless }
        puts [catch endless]
        proc waits {} { set kept [string repeat w 5000]; while 1 { yield [append kept x] } }
        for {set i 0} {$i < 200} {incr i} { coroutine c$i waits; c$i; if {$i % 2} { rename c$i {} } }
        for {set i 0} {$i < 20} {incr i} {
            interp create child
            child alias stop interp delete child
            catch { child eval { set x [string repeat y 4000]; stop; set x } }
            catch { interp delete child }
        }
        for {set i 0} {$i < 300} {incr i} { proc made {x} "list \[string repeat $i 100\] \$x"; made $i; apply "x {list $i \$x}" 1 }
        set done 0
        proc event {n} { if {$n == 0} { set ::done 1 } else { after 0 event [expr {$n - 1}] } }
        event 200
        vwait done
        oo::class create Thing { method die {} { my destroy; string repeat z 3000 } }
        for {set i 0} {$i < 100} {incr i} { puts -nonewline [string length [[Thing new] die]] }
        puts ""
        puts [string length [regsub -all {a(b*)} [string repeat abbb 3000] {\1}]]
        puts [llength [lsort -unique -dictionary [split [string repeat "q w e r t z " 3000]]]]
        puts [string trim [exec [info nameofexecutable] << {puts [string length [string repeat in_child 1000]]}]]
        if {![catch {package require Thread}]} {
            set threads {}
            for {set i 0} {$i < 4} {incr i} {
                lappend threads [thread::create -joinable {
                    proc work {} { for {set i 0} {$i < 3000} {incr i} { set kept($i) [string repeat t $i] } }
                    work
                }]
            }
            foreach thread $threads { thread::join $thread }
        }
        puts stderr said
        exit 7"#;
    for interval in ["4K", "512K"] {
        let outcome = script(&tclsh, code, &agent(interval));
        assert_eq!(outcome.status.code(), Some(7));
    }
}

#[test]
fn every_thread_has_the_frames_of_its_own_interpreter() {
    let Some(tclsh) = tclsh() else { return };
    let code = r#"
        package require Thread
        proc in_main {n} { for {set i 0} {$i < $n} {incr i} { lappend kept [string repeat m 1999] } }
        set thread [thread::create -joinable {
            proc in_thread {n} { for {set i 0} {$i < $n} {incr i} { lappend kept [string repeat t 1999] } }
            in_thread 3000
        }]
        in_main 5000
        thread::join $thread"#;
    let outcome = script(&tclsh, code, &agent("16K"));
    if !outcome.status.success() {
        skip("no package Thread for Tcl (Debian: tcl-thread)");
        return;
    }
    let profile = outcome.profile();
    for (name, count) in [("in_main", 5000.0), ("in_thread", 3000.0)] {
        let site = profile.site(name);
        // The list grows beside the strings.
        let grown = 8.0 * 2.0 * count * 3.0;
        let difference = site.allocated_bytes - count * 2000.0;
        let error = 4.0 * site.allocated_bytes_stderr;
        assert!(
            difference > -error && difference < error + grown,
            "{name}: {site:?}"
        );
    }
}

#[test]
fn the_leak_is_found() {
    let Some(tclsh) = tclsh() else { return };
    let program = bridge::program("leaky.tcl");
    bridge::assert_leak(
        &[&tclsh, &program.to_string_lossy(), "40000"],
        "open_session",
    );
}

const RUNNING: &str = r#"
proc grow {} { string repeat g 2999 }
proc work {count} { set sum 0; for {set i 0} {$i < $count} {incr i} { incr sum [string length [grow]] }; return $sum }
puts ready
flush stdout
while {[gets stdin line] >= 0 && ![string match end* $line]} {
    puts [work $line]
    flush stdout
}
exit 3
"#;

#[test]
fn a_running_program_is_attached_to_with_procedures() {
    let Some(tclsh) = tclsh() else { return };
    let running = Attached::start_as(|room| {
        let file = room.path("running.tcl");
        std::fs::write(&file, RUNNING).expect("the script");
        let mut command = Command::new(&tclsh);
        command.arg(file);
        command
    });
    bridge::assert_joined_by_attach(
        running,
        &bridge::Work {
            stack: &["(top level)", "work", "grow"],
            bytes: 3000.0,
            answer: 2999,
        },
    );
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    let Some(tclsh) = tclsh() else { return };
    let agent = agent("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(&tclsh, 1, &agent).profile();
    assert_eq!(profile.site("small_and_kept").samples, 0);
    assert!(!bridge::has_heap(&profile, "tcl"));
}

#[test]
fn a_tcl_of_a_version_that_is_not_known_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("tcl_stranger.c", "tclsh", &["-DMINOR=5"]);
    assert!(!bridge::has_heap(&profile, "tcl"));
    let line = "procedures of Tcl are not shown: its bridge did not join (Tcl is of a version that is not known)";
    assert!(report.contains(line), "{report}");
}

/// A copy of the system's library that says to be 8.7, in the room; `None`: there is none whose code is as it was expected.
fn later_tcl(room: &Room) -> Option<()> {
    const NAME: &str = "libtcl8.6.so";
    // movl $8, (%rdi); test %rsi, %rsi; je; movl $6, (%rsi)
    const MINOR: &[u8] = b"\xc7\x07\x08\0\0\0\x48\x85\xf6\x74\x06\xc7\x06\x06\0\0\0";
    let library = std::fs::read(format!("/usr/lib/x86_64-linux-gnu/{NAME}"));
    let Ok(mut library) = library else {
        skip("no libtcl8.6.so (Debian: libtcl8.6)");
        return None;
    };
    let Some(at) = library.windows(MINOR.len()).position(|it| it == MINOR) else {
        skip("libtcl8.6.so tells its version in another way");
        return None;
    };
    library[at + 13] = 7;
    std::fs::write(room.path(NAME), library).expect("the library");
    Some(())
}

/// Its first samples are a trial, and have native frames.
#[test]
fn a_later_tcl_with_the_same_stacks_is_shown_from_where_they_were_verified() {
    let room = Room::new();
    if tclsh().is_none() || later_tcl(&room).is_none() {
        return;
    }
    let program = bridge::program("known_sites.tcl");
    let outcome = Run::of("tclsh8.6")
        .args(&[&program.to_string_lossy(), "4"])
        .env("LD_LIBRARY_PATH", room.directory())
        .unchanged(&agent("4K"));
    outcome.assert_success();
    let profile = outcome.profile();
    let known = truth::printed(outcome.text().as_bytes());
    assert_eq!(known.len(), 4);
    for (name, known) in known {
        let site = profile.site(&name);
        let known = known.bytes as f64;
        let most = known + 4.0 * site.allocated_bytes_stderr;
        assert!(
            site.allocated_bytes > 0.5 * known && site.allocated_bytes < most,
            "{name}: {site:?}, {known}"
        );
    }
    bridge::assert_audit(&profile);
}

#[test]
fn a_later_tcl_with_other_stacks_is_left_alone_and_the_report_says_so() {
    let flags = ["-DMINOR=7", "-DPLAUSIBLE"];
    let (profile, report) = bridge::stranger("tcl_stranger.c", "tclsh", &flags);
    assert!(bridge::has_heap(&profile, "tcl"));
    let line = "procedures of Tcl are not shown: this version is not known, and was not found to be like known ones";
    assert!(report.contains(line), "{report}");
}

#[test]
fn a_tcl_whose_interpreters_are_others_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("tcl_stranger.c", "tclsh", &["-DMINOR=6"]);
    assert!(bridge::has_heap(&profile, "tcl"));
    let line = "procedures of Tcl are not shown: its interpreters are not what this version has";
    assert!(report.contains(line), "{report}");
}

/// The program's own allocations have no frames of Tcl, although an interpreter waits in the same thread.
#[test]
fn a_library_that_is_loaded_late_is_joined_and_only_what_it_runs_has_its_frames() {
    if tclsh().is_none() {
        return;
    }
    let program = Program::compiled_with("tcl_embedded.c", &["-ldl"]);
    let outcome = program.run().unchanged(&agent("1K"));
    if outcome.status.code() == Some(77) {
        skip("no libtcl8.6.so (Debian: libtcl8.6)");
        return;
    }
    outcome.assert_success();
    let profile = outcome.profile();
    let bytes = profile.site("made").allocated_bytes;
    let known = 40_000.0 * 3000.0;
    // Those of before the library was met in a stack have no frames.
    assert!(
        bytes > 0.3 * known && bytes < 1.05 * known,
        "{bytes} of {known}"
    );
    bridge::assert_stack(&profile, &["main", "(top level)", "made"]);
    let site = profile.site("main");
    let deviation = (site.allocated_bytes - 20_000.0 * 5000.0) / site.allocated_bytes_stderr;
    assert!(deviation.abs() < 4.0, "{deviation}");
}
