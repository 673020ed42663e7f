//! Promise: nothing is lost silently, however a process ends, multiplies or runs out of room.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::support::profile::{Profile, Site};
use crate::support::{Agent, Program, Run, is_root, skip, truth};

const BLOCKS: u64 = 1000;
const KEPT_BYTES: f64 = 10.0 * 4096.0;

/// Runs exits.c through a door; status and output must be unchanged, and all 1000 blocks in the first process's profile.
#[track_caller]
fn leaves_by(door: &str) -> (Profile, crate::support::Outcome) {
    let run = Program::compiled("exits.c").run().arg(door);
    let outcome = run.unchanged(&Agent::at_interval(1));
    let full = |site: &Site| {
        site.samples == BLOCKS && site.allocations == BLOCKS as f64 && site.live_bytes == KEPT_BYTES
    };
    let mut profiles = outcome.profiles();
    let at = profiles
        .iter()
        .position(|profile| full(&profile.site("allocated_before_the_end")));
    let sites: Vec<Site> = profiles
        .iter()
        .map(|profile| profile.site("allocated_before_the_end"))
        .collect();
    let at = at.unwrap_or_else(|| panic!("{door}: no profile has all blocks: {sites:?}"));
    (profiles.swap_remove(at), outcome)
}

/// Tests for doors after which the profile is complete, and for those after which it cannot be.
macro_rules! doors {
    ($($test:ident: $door:literal, complete: $complete:literal;)*) => {
        $(#[test]
        fn $test() {
            let (profile, _outcome) = leaves_by($door);
            assert_eq!(profile.is_complete(), $complete, "{}: {}", $door, profile.exit());
        })*
    };
}

doors! {
    return_from_main_loses_nothing: "return", complete: true;
    exit_loses_nothing: "exit", complete: true;
    immediate_exit_loses_nothing: "_exit", complete: true;
    c99_immediate_exit_loses_nothing: "_Exit", complete: true;
    quick_exit_loses_nothing: "quick_exit", complete: true;
    abort_loses_nothing: "abort", complete: true;
    exit_while_threads_sleep_loses_nothing: "exit_with_threads", complete: true;
    exit_in_a_thread_loses_nothing: "exit_in_thread", complete: true;
    immediate_exit_in_a_thread_loses_nothing: "_exit_in_thread", complete: true;
    abort_in_a_thread_loses_nothing: "abort_in_thread", complete: true;
    pthread_exit_of_main_alone_ends_the_process: "pthread_exit_alone", complete: true;
    pthread_exit_of_main_before_others_ends_with_the_last: "last_thread", complete: true;
    raw_exit_of_main_alone_ends_the_process: "raw_exit_alone", complete: true;
    raw_exit_of_main_beside_the_agents_thread_ends_the_process: "raw_exit_beside_agent", complete: true;
    raw_exit_of_main_before_others_ends_with_the_last: "raw_exit_before_last_thread", complete: true;
    exit_after_main_has_gone_loses_nothing: "exit_after_main", complete: true;
    handled_sigterm_loses_nothing: "sigterm_handled", complete: true;
    raw_exit_group_loses_nothing: "exit_group", complete: true;
    sigterm_loses_nothing: "sigterm", complete: false;
    sigint_loses_nothing: "sigint", complete: false;
    sighup_loses_nothing: "sighup", complete: false;
    sigkill_loses_nothing: "sigkill", complete: false;
    sigsegv_loses_nothing: "sigsegv", complete: false;
    sigfpe_loses_nothing: "sigfpe", complete: false;
}

#[test]
fn exec_loses_nothing() {
    let (profile, _outcome) = leaves_by("exec");
    assert!(
        profile.is_complete() && profile.exit().contains("exec"),
        "{}",
        profile.exit()
    );
}

#[test]
fn an_exec_that_fails_goes_on_and_the_next_program_has_a_profile_of_its_own() {
    let (_profile, outcome) = leaves_by("exec_that_fails_first");
    let full = outcome
        .profiles()
        .iter()
        .filter(|profile| profile.site("allocated_before_the_end").samples == BLOCKS)
        .count();
    assert_eq!(full, 2, "the program before and after exec");
}

#[track_caller]
fn family(way: &str) -> Vec<Profile> {
    let run = Program::compiled("fork_family.c").run().arg(way);
    run.unchanged(&Agent::at_interval(64)).assert_success();
    let outcome = run.unchanged(&Agent::at_interval(1));
    outcome.assert_success().profiles()
}

/// Number of profiles in which a function allocated exactly so often.
fn profiles_with(profiles: &[Profile], function: &str, allocations: u64) -> usize {
    profiles
        .iter()
        .filter(|profile| profile.site(function).samples == allocations)
        .count()
}

#[test]
fn threads_may_allocate_while_others_fork_and_each_child_has_its_own_profile() {
    let profiles = family("threads");
    assert_eq!(profiles_with(&profiles, "allocated_in_the_child", 500), 50);
    // What the parent allocated is in the parent's profile only.
    assert_eq!(profiles_with(&profiles, "allocated_in_the_parent", 50), 1);
}

#[test]
fn grandchildren_have_profiles_of_their_own() {
    let profiles = family("grandchildren");
    assert_eq!(profiles_with(&profiles, "allocated_in_the_parent", 500), 5);
}

#[test]
fn vfork_disturbs_nobody() {
    let profiles = family("vfork");
    assert_eq!(profiles_with(&profiles, "allocated_in_the_parent", 50), 1);
}

#[test]
fn posix_spawn_disturbs_nobody() {
    let profiles = family("spawn");
    assert_eq!(
        profiles_with(&profiles, "allocated_in_the_parent", 51 - 1),
        1
    );
}

#[test]
fn system_and_popen_disturb_nobody() {
    let profiles = family("system");
    assert_eq!(profiles_with(&profiles, "allocated_in_the_parent", 20), 1);
}

#[test]
fn children_that_the_c_library_never_heard_of_do_not_write_into_their_parents_profile() {
    let profiles = family("clone");
    assert_eq!(profiles_with(&profiles, "allocated_in_the_parent", 50), 1);
    for profile in profiles {
        let both = profile.site("allocated_in_the_parent").samples > 0
            && profile.site("allocated_in_the_child").samples > 0;
        assert!(!both, "two processes in {}", profile.path().display());
    }
}

#[test]
fn children_may_be_ignored() {
    let run = Program::compiled("fork_family.c")
        .run()
        .arg("grandchildren");
    let outcome = run.unchanged(&Agent::at_interval(1).with("ALLOCSAMPLE_CHILDREN", "ignore"));
    assert_eq!(
        outcome.profile().site("allocated_in_the_parent").samples,
        500
    );
}

#[test]
fn sigkill_in_the_middle_of_full_load_leaves_a_profile_within_the_bounds() {
    for threads in ["1", "8"] {
        let program = Program::compiled("known_sites.cpp");
        // About 2 GB in all if it were left alone; thread 0 kills the process after its first 300 MB.
        let kilobytes = if threads == "1" { "300000" } else { "2400000" };
        let run = program.run().args(&[
            "--threads",
            threads,
            "--kilobytes",
            kilobytes,
            "--kill-after-kilobytes",
            "300000",
            "--truth",
            "truth",
        ]);
        let outcome = run.observed(&Agent::at_interval("64K").seeded(1));
        assert_eq!(outcome.status.signal(), Some(9), "{}", outcome.complaints());
        let known = truth::left_behind(&outcome.work().join("truth"));
        let profile = outcome.profile();
        assert!(!profile.is_complete());
        assert_eq!(profile.number("lost_samples"), 0.0);
        let threads: f64 = threads.parse().expect("a number");
        // One block of each thread may be on its way between the allocation and its entry in the truth.
        let block = |site: &str| match site {
            "site_huge" => f64::from(3 << 20),
            "site_of_256_kb" => f64::from(256 << 10),
            "site_growing_realloc" => 140_000.0,
            "site_leak" => 20_000.0,
            "site_freed_elsewhere" => 6_000.0,
            _ => 9_000.0,
        };
        // A block on its way is as heavy in the estimate as what it stands for.
        let deviations = truth::deviations(&profile, &known, 4.0, |site| {
            threads * block(site).max(65536.0)
        });
        assert!(deviations.is_empty(), "{threads} threads: {deviations:#?}");
    }
}

#[test]
fn a_full_disk_is_counted_and_said() {
    if !is_root() {
        skip("only root can mount a small disk");
        return;
    }
    let program = Program::compiled("disk_filler.c");
    let bare = program.run().bare();
    // A disk of one megabyte that is seen by this process and its children only; what is on it at the end is kept.
    let script = "mount -t tmpfs -o size=1M none ../profiles || exit 77
        LD_PRELOAD=$AGENT ALLOCSAMPLE_INTERVAL=64 ALLOCSAMPLE_OUTPUT=../profiles/%n.%p.allocsample \"$PROGRAM\"
        status=$?; cp ../profiles/* .; exit $status";
    let outcome = Run::of("unshare")
        .args(&["--mount", "sh", "-c", script])
        .env("AGENT", crate::support::agent_library())
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
    assert!(
        outcome.complaints().lines().count() <= 1,
        "{}",
        outcome.complaints()
    );
    let left: Vec<_> = fs::read_dir(outcome.work())
        .expect("what was on it")
        .map(|entry| entry.expect("a file").path())
        .collect();
    let profile = left.iter().find(|path| {
        path.extension()
            .is_some_and(|ending| ending == "allocsample")
    });
    let Some(profile) = profile else {
        assert_eq!(
            outcome.complaints().lines().count(),
            1,
            "no profile, and no word about it"
        );
        return;
    };
    let profile = crate::support::profile::Profile::read(profile);
    assert!(profile.number("lost_bytes") > 0.0, "{}", profile.report);
}

#[test]
fn a_file_size_limit_is_counted_and_the_limits_signal_stays_with_the_program() {
    // The profile may have 256 KiB, its ring file included: too little for either.
    let script = "ulimit -f 256; exec \"$0\"";
    let program = Program::compiled("disk_filler.c");
    let run = Run::of("/bin/sh").args(&["-c", script]).arg(program.path());
    let bare = run.bare();
    let outcome = run.observed(&Agent::at_interval(64));
    assert_eq!(
        (outcome.status, outcome.text()),
        (bare.status, bare.text()),
        "{}",
        outcome.complaints()
    );
    let told = outcome.complaints().contains("allocsample: ");
    let counted = outcome
        .profiles()
        .iter()
        .any(|profile| profile.number("lost_bytes") > 0.0);
    assert!(
        told || counted,
        "neither said nor counted: {}",
        outcome.complaints()
    );
}

#[test]
fn a_profile_cut_at_any_place_is_readable_up_to_there() {
    let outcome = Program::compiled("hello.c")
        .run()
        .observed(&Agent::at_interval(64));
    let [path] = &outcome.profile_paths()[..] else {
        panic!("one profile expected");
    };
    let bytes = fs::read(path).expect("a profile");
    let cut = outcome.work().join("cut.allocsample");
    let report = |path: &Path| {
        Run::of(crate::support::command())
            .args(&["report", "--format", "json"])
            .arg(path)
            .bare()
    };
    let mut before = 0;
    for part in 0..=16 {
        let length = bytes.len() * part / 16;
        fs::write(&cut, &bytes[..length]).expect("a cut profile");
        let told = report(&cut);
        match told.status.code() {
            Some(0) => {
                assert!(part > 0, "nothing cannot be reported on");
                let report: serde_json::Value =
                    serde_json::from_slice(&told.stdout).expect("a report");
                let samples = report["samples"].as_u64().expect("a number");
                assert!(samples >= before, "{samples} after {before}");
                before = samples;
            }
            Some(1) => assert_eq!(
                told.complaints().lines().count(),
                1,
                "{}",
                told.complaints()
            ),
            other => panic!("{other:?} at {length} bytes: {}", told.complaints()),
        }
    }
    assert_eq!(report(path).status.code(), Some(0));
    // A block of 4 KiB is missed with a probability of exp(-64).
    assert!(before >= 1000, "{before}");
}
