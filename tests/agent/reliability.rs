//! Promise: whatever befalls a process, it behaves as without us, and its profile holds all up to the event: each sample
//! that was due is in it or counted as lost. docs/reliability.md lists the faults with the test of each.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use crate::support::profile::Profile;
use crate::support::room::assert_error;
use crate::support::{Agent, Outcome, Program, Run, agent_library, is_root, skip};
use serde_json::Value;

const BEFORE: u64 = 1000;
const AFTER: u64 = 30_000;
const KEPT_BYTES: f64 = 10.0 * 1024.0;

fn every() -> Agent {
    Agent::at_interval(1)
}

/// Runs faults.c into a fault, with and without the agent: nothing may differ. `None`: this machine forbids the fault.
#[track_caller]
fn meets(fault: &str, agent: &Agent) -> Option<Outcome> {
    let run = Program::compiled("faults.c").run().arg(fault);
    let bare = run.bare();
    if bare.status.code() == Some(77) {
        skip(&format!("{fault} is not possible here"));
        return None;
    }
    let outcome = run.observed(agent);
    outcome.assert_same_as(&bare);
    Some(outcome)
}

/// The profile with everything from before the fault in it.
#[track_caller]
fn with_all_before(outcome: &Outcome) -> Profile {
    let full = |profile: &Profile| {
        let site = profile.site("allocated_before_the_fault");
        site.samples == BEFORE && site.live_bytes == KEPT_BYTES
    };
    let mut found = outcome.profiles();
    found.retain(full);
    assert_eq!(found.len(), 1, "profiles with all {BEFORE} samples");
    found.remove(0)
}

/// What a program did after a fault that it survived is in the same profile, and nothing of it was lost.
#[track_caller]
fn survives(fault: &str) {
    let Some(outcome) = meets(fault, &every()) else {
        return;
    };
    let profile = with_all_before(&outcome);
    let after = profile.site("allocated_after_the_fault").samples;
    let lost = profile.number("lost_samples");
    assert_eq!((after % AFTER, lost), (0, 0.0), "{fault}");
    assert!(after > 0 && profile.is_complete(), "{fault}: {after}");
}

#[test]
fn a_stack_overflow_loses_nothing() {
    let outcome = meets("stack_overflow", &every()).expect("possible");
    assert_eq!(outcome.status.signal(), Some(11));
    let profile = with_all_before(&outcome);
    // 8 MiB of some 300 bytes each: tens of thousands of calls deep.
    let fallen = profile.site("allocated_after_the_fault").samples;
    assert!(fallen > 10_000, "{fallen}");
    assert_eq!(profile.number("lost_samples"), 0.0);
}

#[test]
fn a_handled_stack_overflow_loses_nothing() {
    let outcome = meets("stack_overflow_handled", &every()).expect("possible");
    assert_eq!(outcome.status.code(), Some(31));
    let profile = with_all_before(&outcome);
    assert_eq!(profile.site("allocated_in_the_handler").samples, 100);
    assert!(profile.is_complete());
}

#[test]
fn a_crash_inside_a_signal_handler_loses_nothing() {
    for (fault, signal) in [("crash_in_handler", 11), ("abort_in_handler", 6)] {
        let outcome = meets(fault, &every()).expect("possible");
        assert_eq!(outcome.status.signal(), Some(signal), "{fault}");
        let profile = with_all_before(&outcome);
        let handled = profile.site("allocated_in_the_handler").samples;
        assert_eq!(handled, 100, "{fault}");
    }
}

#[test]
fn a_daemon_that_forks_twice_and_closes_everything_has_its_profile() {
    let outcome = meets("daemon", &every()).expect("possible");
    with_all_before(&outcome);
    let daemons: Vec<Profile> = outcome
        .profiles()
        .into_iter()
        .filter(|profile| profile.site("allocated_after_the_fault").samples > 0)
        .collect();
    let [daemon] = &daemons[..] else {
        panic!("{} profiles of the daemon", daemons.len());
    };
    assert_eq!(daemon.site("allocated_after_the_fault").samples, AFTER);
    assert!(daemon.is_complete() && daemon.number("lost_samples") == 0.0);
}

#[test]
fn a_process_that_gives_up_root_goes_on_with_its_profile() {
    if is_root() {
        survives("setuid");
    } else {
        skip("only root can become somebody else");
    }
}

#[test]
fn a_process_in_a_new_root_goes_on_with_its_profile() {
    if is_root() {
        survives("chroot");
    } else {
        skip("only root can change its root");
    }
}

#[test]
fn a_process_that_enters_other_namespaces_goes_on_with_its_profile() {
    if is_root() {
        survives("setns");
        survives("setns_user");
    } else {
        skip("only root can enter namespaces");
    }
}

#[test]
fn a_process_that_changes_its_directory_goes_on_with_its_profile() {
    let agent = every().with("ALLOCSAMPLE_OUTPUT", "../profiles/%n.%p.allocsample");
    let outcome = meets("chdir", &agent).expect("possible");
    let profile = with_all_before(&outcome);
    let after = profile.site("allocated_after_the_fault").samples;
    assert_eq!((after, profile.number("lost_samples")), (AFTER, 0.0));
}

#[test]
fn a_filter_that_kills_at_each_unknown_system_call_does_not_kill_because_of_us() {
    for (way, how) in [
        ("alone", "prctl"),
        ("fork", "prctl"),
        ("alone", "prctl_by_number"),
        ("alone", "seccomp"),
        ("alone", "listener"),
        ("alone", "all_threads"),
        ("fork", "all_threads"),
        ("alone", "all_threads_after_one"),
    ] {
        let run = Program::compiled("seccomp_kill.c").run().arg(way).arg(how);
        let bare = run.bare();
        let outcome = run.observed(&Agent::at_interval(64).seeded(7));
        outcome.assert_same_as(&bare);
        assert_eq!(outcome.status.code(), Some(3), "{way} by {how}");
        // A child behind the filter can make no files.
        let profile = outcome.profile();
        assert!(profile.is_complete(), "its exit is in the ring");
        let before = profile.site("allocated_before_the_filter");
        let behind = profile.site("allocated_behind_the_filter");
        assert!(before.samples > 0 && behind.samples > 0, "{way} by {how}");
        profile.is_accounted_for(64.0);
        let notes = profile.report["notes"].to_string();
        assert!(notes.contains("a system call filter"), "{notes}");
    }
}

#[test]
fn what_a_program_forbids_itself_is_not_done_by_us() {
    for way in ["clock", "strict", "filter", "files", "rights", "asks"] {
        let run = Program::compiled("forbids.c").run().arg(way);
        let bare = run.bare();
        assert!(matches!(bare.status.code(), Some(4..=8)), "{way}: {bare:?}");
        // With the first sample before it, before or after it (3 MB are allocated each time), and with no agent at work.
        for interval in ["1", "64K", "3M", "off"] {
            // Where a block lies decides whether its sample is timed.
            for seed in 0..16 {
                let mut agent = Agent::at_interval(interval).seeded(seed);
                if seed % 2 == 1 {
                    agent = agent.with("ALLOCSAMPLE_TIME_HZ", 10_000);
                }
                let outcome = run.observed(&agent);
                assert_eq!(outcome.status, bare.status, "{way} at {interval}, {seed}");
            }
        }
    }
    // What was recorded before the program forbade itself nearly everything is whole.
    let run = Program::compiled("forbids.c").run().arg("strict");
    let profile = run.observed(&Agent::at_interval(1)).profile();
    assert_eq!(profile.site("allocate").samples, 1000);
    assert!(profile.exit().contains("detach"), "{}", profile.exit());
    // Stacks behind a filter are whole, though nothing was sampled before.
    let run = Program::compiled("forbids.c").run().arg("filter");
    let outcome = run.observed(&Agent::at_interval("3M").seeded(0));
    let stack = outcome.profile().stack_to("allocate");
    assert!(stack.contains(&"main".to_owned()), "{stack:?}");
}

#[test]
fn calls_of_seccomp_that_the_kernel_refuses_end_no_recording() {
    let run = Program::compiled("forbids.c").run().arg("asks");
    let outcome = run.observed(&Agent::at_interval(1));
    let profile = outcome.profile();
    // Before them and after them.
    assert_eq!(profile.site("allocate").samples, 2000);
    assert!(profile.exit().contains("exit"), "{}", profile.exit());
    let notes = profile.report["notes"].to_string();
    assert!(!notes.contains("a system call filter"), "{notes}");
}

#[test]
fn a_ring_that_was_cut_short_is_told() {
    // All that it samples stays in its ring.
    let run = Program::compiled("forbids.c").run().arg("filter");
    let outcome = run.observed(&Agent::at_interval(1));
    let whole = outcome.profile();
    let ring = whole.path().with_added_extension("ring");
    let bytes = fs::read(&ring).expect("a ring");
    let half_of_records = whole.number("samples") / 2.0 * 8.0 * 8.0;
    let kept = 4096 + half_of_records as usize;
    fs::write(&ring, &bytes[..kept]).expect("a shorter one");
    let cut = outcome.profile();
    assert!(cut.number("samples") < whole.number("samples"));
    let error = cut.report["recovery"]["ring_error"].to_string();
    assert!(error.contains("cut short"), "{error}");
}

#[test]
fn a_fork_in_a_process_of_64_threads_loses_nothing() {
    // 63 threads that do nothing but allocate: not each byte.
    let outcome = meets("fork_among_threads", &Agent::at_interval("16K")).expect("possible");
    let profiles = outcome.profiles();
    assert_eq!(profiles.len(), 11, "the parent's and ten children's");
    for profile in &profiles {
        assert!(profile.is_complete(), "{}", profile.path().display());
        profile.is_accounted_for(16384.0);
    }
}

#[test]
fn ten_thousand_threads_are_all_in_the_profile() {
    const THREADS: u64 = 10_000;
    let Some(outcome) = meets("many_threads", &every()) else {
        return;
    };
    let profile = with_all_before(&outcome);
    let site = profile.site("allocated_after_the_fault");
    let lost = profile.number("lost_samples");
    assert_eq!((site.samples, lost), (2 * THREADS, 0.0));
    assert_eq!(site.live_bytes, 0.0);
}

#[test]
fn loading_and_unloading_takes_no_more_memory_with_time() {
    // What a library is called, and its build id, make it another one: each takes the place of the one before.
    let libraries: Vec<Program> = ["libone.so", "libtwo.so", "libthree.so"]
        .into_iter()
        .map(|name| Program::library("plugin.c", name, &[&format!("-Wl,-soname,{name}")]))
        .collect();
    let loads = std::env::var("ALLOCSAMPLE_TEST_LOADS").unwrap_or_else(|_| "6000".to_owned());
    // glibc's own blocks come and go, too.
    const MOST_GROWTH_KB: &str = "1500";
    let mut run = Program::compiled("module_churn.c")
        .run()
        .args(&[&loads, MOST_GROWTH_KB])
        .patience(3600);
    for library in &libraries {
        run = run.arg(library.path());
    }
    // Each load is a few hundred samples through new code.
    let outcome = run.unchanged(&Agent::at_interval(1));
    let profile = outcome.assert_success().profile();
    let loads: u64 = loads.parse().expect("a number");
    let samples = profile.site("plugin_allocates").samples;
    assert_eq!((samples, profile.number("lost_samples")), (loads, 0.0));
}

#[test]
fn a_disk_that_stops_answering_stops_nobody() {
    let program = Program::compiled("disk_filler.c");
    let stalled = Program::compiled("stalled_writer.c");
    let bare = program.run().bare();
    // Also where frees have filled what samples leave of the ring: there is room for the end all the same.
    for words in [["300", ""], ["0", ""], ["0", "keep"]] {
        let [milliseconds, keep] = words;
        let run = Run::of(stalled.path())
            .arg(milliseconds)
            .arg(program.path());
        let run = match keep {
            "" => run,
            keep => run.arg(keep),
        };
        let run = run
            .env("STALLED_PRELOAD", agent_library())
            .env("ALLOCSAMPLE_INTERVAL", "64")
            .env("ALLOCSAMPLE_OUTPUT", "x.allocsample");
        let outcome = run.bare();
        if outcome.complaints() == "not stalled\n" {
            skip("no thread can be stopped here");
            return;
        }
        assert_eq!(
            (outcome.status, outcome.text(), outcome.complaints()),
            (bare.status, bare.text(), "stalled\n".to_owned())
        );
        let profile = Profile::read(&outcome.work().join("x.allocsample"));
        assert!(profile.is_complete(), "its exit is in the ring at least");
        assert!(profile.number("lost_bytes") > 0.0);
        profile.is_accounted_for(64.0);
    }
}

#[test]
fn a_read_only_disk_costs_the_profile_and_a_line() {
    if !is_root() {
        skip("only root can mount");
        return;
    }
    let program = Program::compiled("faults.c");
    let bare = program.run().arg("chdir").bare();
    let script = "mount -t tmpfs -o ro none ../profiles || exit 77
        LD_PRELOAD=$AGENT ALLOCSAMPLE_OUTPUT=$PWD/../profiles/x.allocsample exec \"$PROGRAM\" chdir";
    let outcome = Run::of("unshare")
        .args(&["--mount", "sh", "-c", script])
        .env("AGENT", agent_library())
        .env("PROGRAM", program.path())
        .bare();
    if outcome.status.code() == Some(77) {
        skip("no file systems can be mounted here");
        return;
    }
    assert_eq!(
        (outcome.status, outcome.text()),
        (bare.status, bare.text()),
        "{}",
        outcome.complaints()
    );
    let complaints = outcome.complaints();
    assert!(
        complaints.lines().count() == 1 && complaints.contains("the file system is read-only"),
        "{complaints}"
    );
}

/// The function whose site is the first suspect.
fn first_suspect(profile: &Path) -> Value {
    let found = Run::of(crate::support::command())
        .args(&["leaks", "--format", "json"])
        .arg(profile)
        .bare();
    let found: Value = serde_json::from_slice(&found.assert_success().stdout).expect("suspects");
    found["suspects"][0].clone()
}

/// A process has died of its leak: report and leaks name it.
#[track_caller]
fn names_the_leak(profile: &Path) {
    let report = Profile::read(profile);
    assert_eq!(report.number("lost_samples"), 0.0);
    let live = |function: &str| {
        let rows = report.report["functions"].as_array().expect("functions");
        let row = rows.iter().find(|row| row["function"] == function);
        row.map_or(0.0, |row| {
            row["total_live_bytes"].as_f64().expect("a number")
        })
    };
    let leaked = live("leak_session");
    assert!(
        leaked > 0.9 * report.total("live_bytes") && leaked > 50.0 * live("serve_request"),
        "{leaked} of {}",
        report.total("live_bytes")
    );
    let suspect = first_suspect(profile);
    assert_eq!(suspect["verdict"], "possible leak", "{suspect}");
    let stack = suspect["stack"].as_array().expect("frames");
    assert!(
        stack.iter().any(|frame| frame == "leak_session"),
        "{suspect}"
    );
}

#[test]
fn a_process_that_leaks_until_its_limit_ends_it_leaves_a_profile_that_names_the_leak() {
    let run = Program::compiled("leak_until_death.c")
        .run()
        .args(&["400", "abort"]);
    let bare = run.bare();
    let outcome = run.observed(&Agent::at_interval("64K").seeded(1));
    outcome.assert_same_as(&bare);
    assert_eq!(outcome.status.signal(), Some(6));
    names_the_leak(&outcome.profile_paths()[0]);
}

/// A group of processes with a limit of memory, of either version of the kernel's interface.
struct MemoryGroup {
    directory: PathBuf,
}

impl MemoryGroup {
    fn new(bytes: u64) -> Option<Self> {
        let name = format!("allocsample-test-{}", std::process::id());
        for (root, limit) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let directory = Path::new(root).join(&name);
            if fs::create_dir(&directory).is_err() {
                continue;
            }
            let group = Self { directory };
            // What is to be killed must not be swapped out instead; where there is no swap the file is missing.
            let _ = fs::write(group.directory.join("memory.swap.max"), "0");
            let _ = fs::write(group.directory.join("memory.swappiness"), "0");
            if fs::write(group.directory.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its last process is being reaped by init at most: what is left behind is an empty group.
        let _ = fs::remove_dir(&self.directory);
    }
}

#[test]
fn the_victim_of_the_oom_killer_leaves_a_profile_that_names_the_leak() {
    let Some(group) = MemoryGroup::new(200 << 20).filter(|_| is_root()) else {
        skip("memory cannot be limited by a control group here");
        return;
    };
    let program = Program::compiled("leak_until_death.c");
    let script = "echo $$ > \"$GROUP/cgroup.procs\" && exec \"$0\" 0 touch";
    let run = Run::of("/bin/sh")
        .args(&["-c", script])
        .arg(program.path())
        .env("GROUP", &group.directory);
    let outcome = run.observed(&Agent::at_interval("64K").seeded(1));
    assert_eq!(
        (outcome.status.signal(), outcome.text()),
        (Some(9), String::new()),
        "{}",
        outcome.complaints()
    );
    let paths = outcome.profile_paths();
    let of_program = paths.iter().find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("leak_until_death"))
    });
    names_the_leak(of_program.expect("its profile"));
}

#[test]
fn a_tail_that_never_reached_the_disk_costs_only_itself() {
    let outcome = Program::compiled("faults.c")
        .run()
        .arg("chdir")
        .observed(&every());
    let path = &outcome.profile_paths()[0];
    let whole = fs::read(path).expect("a profile");
    let all = Profile::read(path).number("samples");
    // Behind the file's header, by the length in its own.
    let stored = u32::from_le_bytes(whole[72..76].try_into().expect("four bytes"));
    let first_chunk_ends = 64 + 40 + stored as usize;
    let mut most = 0.0;
    for part in 1..=8 {
        // After a power failure a file has its length, and zeros where its last blocks were to be.
        let kept = whole.len() * part / 8;
        let mut bytes = whole.clone();
        bytes[kept..].fill(0);
        let lost_tail = outcome.work().join("tail.allocsample");
        fs::write(&lost_tail, &bytes).expect("a profile");
        if kept < first_chunk_ends {
            let mut command = std::process::Command::new(crate::support::command());
            let output = command.arg("report").arg(&lost_tail).output();
            assert_error(
                &output.expect("the command"),
                1,
                "nothing can be read from it",
            );
            continue;
        }
        let read = Profile::read(&lost_tail);
        let samples = read.number("samples");
        assert!(samples >= most && samples <= all, "{samples} of {all}");
        assert_eq!(read.is_complete(), part == 8);
        most = samples;
    }
    assert_eq!(most, all);
    assert!(first_chunk_ends < whole.len(), "more than one chunk");
}
