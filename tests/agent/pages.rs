//! Promise: sampled page faults show who made memory resident, whatever its allocator, within their standard error; and no program
//! notices.

use std::path::Path;

use crate::support::profile::{Profile, figure};
use crate::support::{Agent, Outcome, Program, skip};

const PAGE_BYTES: f64 = 4096.0;
const SITES: [&str; 4] = ["touch_little", "touch_more", "touch_much", "leak_on_thread"];

fn sampling_pages() -> Agent {
    Agent::by_default().with("ALLOCSAMPLE_PAGES", "256K")
}

/// The pages of a profile as a heap.
fn pages_of(path: &Path) -> Profile {
    Profile::read_with(path, &["--heap", "pages", "--no-skip"])
}

fn notes(profile: &Profile) -> String {
    let notes = profile.report["notes"].as_array().expect("notes");
    let notes = notes.iter().filter_map(|note| note.as_str());
    notes.collect::<Vec<_>>().join("\n")
}

/// Whether the machine lets processes count their page faults; skips the test otherwise.
fn is_possible() -> bool {
    let outcome = Program::compiled("touches_pages.c")
        .run()
        .args(&["plain", "1"])
        .observed(&sampling_pages());
    let notes = notes(&outcome.profile());
    let is_refused = notes.contains("page faults are not sampled");
    if is_refused {
        skip("the kernel lets nobody count page faults");
    }
    !is_refused
}

/// What the program printed: resident pages of every function, in bytes.
fn truth(outcome: &Outcome, function: &str) -> f64 {
    let text = outcome.text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(function)?.strip_prefix(' '));
    let pages: f64 = line.expect("a line").parse().expect("pages");
    pages * PAGE_BYTES
}

/// Every function's live pages, within 4 standard errors, and nothing of those that keep nothing.
#[track_caller]
fn assert_sites(outcome: &Outcome, pages: &Profile) {
    for function in SITES {
        let (truth, site) = (truth(outcome, function), pages.site(function));
        assert!(
            (site.live_bytes - truth).abs() <= 4.0 * site.live_bytes_stderr,
            "{function}: {truth} {site:?}"
        );
        // One in 64 pages, and no error that would allow for anything.
        let expected_stderr = (truth * 64.0 * PAGE_BYTES).sqrt();
        assert!(site.live_bytes_stderr < 2.0 * expected_stderr, "{site:?}");
    }
    for function in ["touch_and_give_back", "touch_and_unmap", "only_read"] {
        assert_eq!(pages.site(function).live_bytes, 0.0, "{function}");
        assert!(pages.site(function).samples > 0, "{function}");
    }
}

#[test]
fn pages_are_charged_to_those_who_touched_them_first_and_kept_them() {
    if !is_possible() {
        return;
    }
    let program = Program::compiled("touches_pages.c");
    for seed in 1..=3 {
        let outcome = program
            .run()
            .args(&["plain", "4"])
            .observed(&sampling_pages().seeded(seed));
        let profile = outcome.profile();
        assert_sites(&outcome, &pages_of(profile.path()));
        // The kernel's own count is within the error.
        let audit = notes(&profile);
        assert!(
            audit.contains("sampled page faults, where the kernel counts"),
            "{audit}"
        );
    }
}

/// The same memory twice would make every sum wrong.
#[test]
fn pages_are_in_no_sum_with_other_heaps() {
    if !is_possible() {
        return;
    }
    let outcome = Program::compiled("touches_pages.c")
        .run()
        .args(&["plain", "4"])
        .observed(&sampling_pages().with("ALLOCSAMPLE_INTERVAL", "1K"));
    let profile = outcome.profile();
    assert!(
        profile.total("peak_live_bytes") < 1e6,
        "{:?}",
        profile.report["totals"]
    );
    let heaps = profile.report["heaps"].to_string();
    assert!(!heaps.contains("pages"), "{heaps}");
    let pages = pages_of(profile.path());
    let kept: f64 = SITES.iter().map(|site| truth(&outcome, site)).sum();
    let (live, error) = (
        figure(&pages.report["totals"], "live_bytes"),
        figure(&pages.report["totals"], "live_bytes_stderr"),
    );
    // What the program has besides: libc, stacks, the agent.
    assert!(
        (live - kept - 1.5e6).abs() < 4.0 * error + 1.5e6,
        "{live} {error} {kept}"
    );
}

#[test]
fn programs_with_masks_handlers_and_stacks_of_their_own_do_not_notice() {
    if !is_possible() {
        return;
    }
    let program = Program::compiled("touches_pages.c");
    for mode in ["blocked", "stack", "exec", "fork", "killed", "handler"] {
        let outcome = program
            .run()
            .args(&[mode, "2"])
            .unchanged(&sampling_pages().seeded(11));
        let profiles = outcome.profile_paths();
        let largest = profiles
            .iter()
            .map(|path| Profile::read(path))
            .max_by(|a, b| {
                let samples = |profile: &Profile| pages_of(profile.path()).number("samples");
                samples(a).total_cmp(&samples(b))
            })
            .expect("a profile");
        let (pages, notes) = (pages_of(largest.path()), notes(&largest));
        match mode {
            "handler" => {
                assert!(
                    notes.contains("the program uses SIGSTKFLT itself"),
                    "{notes}"
                );
                assert_eq!(pages.site("touch_much").samples, 0);
            }
            // Nobody looked at its pages at the end; and on its own stack the program touches more than it prints.
            "killed" => {
                let site = pages.site("touch_much");
                let difference = site.live_bytes - truth(&outcome, "touch_much");
                assert!(difference.abs() <= 4.0 * site.live_bytes_stderr, "{site:?}");
            }
            "stack" => assert!(pages.site("touch_little").samples > 0),
            _ => assert_sites(&outcome, &pages),
        }
    }
}

#[test]
fn where_the_kernel_refuses_the_profile_says_so() {
    let program = Program::compiled("touches_pages.c");
    let path = program.path().to_str().expect("a path");
    let outcome = Program::compiled("denies_perf.c")
        .run()
        .args(&[path, "plain", "1"])
        .unchanged(&sampling_pages());
    let said = (outcome.profile_paths().iter()).any(|path| {
        let notes = notes(&Profile::read(path));
        notes.contains("page faults are not sampled: the kernel refuses perf events")
    });
    assert!(said);
}

/// A filter that ends the process at the first system call of ours.
#[test]
fn a_filter_that_kills_finds_nothing_to_kill() {
    for way in ["alone", "fork"] {
        let run = Program::compiled("seccomp_kill.c")
            .run()
            .args(&[way, "prctl"]);
        run.observed(&sampling_pages()).assert_same_as(&run.bare());
    }
}
