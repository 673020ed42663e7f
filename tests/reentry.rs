//! Promise: whatever a signal handler does that interrupts the agent, the program goes on as without us, and the profiles
//! are right. reentry.c follows a process by single steps and has a handler run at chosen instructions.

mod support;

use std::path::Path;

use support::profile::Profile;
use support::{Agent, Outcome, Program, Run, agent_library, command};

/// All that a handler does: see reentry.c.
const EVERYTHING: &str = "afFexjbnNdt";
/// What the program allocates after the last interruption, and again after a fork.
const AFTERWARDS: u64 = 1000;

/// How the agent comes into the process.
#[derive(Clone, Copy)]
enum By {
    Preload,
    Attach,
}

/// Interruptions by handlers that do `actions`.
struct Interruptions {
    by: By,
    count: u32,
    actions: &'static str,
    /// On average, in instructions.
    distance: u32,
    interval_bytes: u32,
    seed: u32,
    /// How the process ends: by `return`, or in the last handler by `_exit` or `exec`.
    ending: &'static str,
}

impl Interruptions {
    fn of(count: u32, actions: &'static str) -> Self {
        Self {
            by: By::Preload,
            count,
            actions,
            distance: 20,
            interval_bytes: 1,
            seed: 1,
            ending: "return",
        }
    }

    /// The process and its children must end well, and leave profiles that add up.
    #[track_caller]
    fn run(&self) -> Outcome {
        const PROFILES: &str = "../profiles/%n.%p.allocsample";
        // One that handlers may call while they interrupt it.
        let allocator = Program::library("bump_allocator.c", "libbump.so", &[]);
        let preload = match self.by {
            By::Preload => format!(
                "{}:{}",
                agent_library().display(),
                allocator.path().display()
            ),
            By::Attach => allocator.path().display().to_string(),
        };
        let interval = self.interval_bytes.to_string();
        let run = Program::compiled("reentry.c").run().arg("step");
        let run = [self.count, self.seed, self.distance]
            .iter()
            .fold(run, |run, number| run.arg(number.to_string()))
            .args(&[self.actions, self.ending])
            .env("REENTRY_PRELOAD", preload)
            .env("ALLOCSAMPLE_OUTPUT", PROFILES)
            .env("ALLOCSAMPLE_ON_FULL", "wait")
            .env("ALLOCSAMPLE_INTERVAL", &interval)
            .env("ALLOCSAMPLE_LIBRARY", agent_library())
            .patience(600);
        let outcome = match self.by {
            By::Preload => run,
            By::Attach => {
                run.arg(command())
                    .args(&["attach", "PID", "--interval", &interval, "-o", PROFILES])
            }
        }
        .bare();
        assert!(outcome.status.success(), "{outcome:?}");
        self.assert_audits(&outcome);
        outcome
    }

    #[track_caller]
    fn assert_audits(&self, outcome: &Outcome) {
        let profiles = outcome.profiles();
        for profile in &profiles {
            assert!(profile.is_complete(), "{}", profile.path().display());
            // A child that has become /bin/true has allocated nothing.
            let exact = profile.total("allocated_bytes_exact");
            if self.interval_bytes == 1 {
                let found = profile.total("allocated_bytes") + profile.number("lost_bytes");
                assert_eq!(found, exact, "{}", profile.path().display());
            } else if exact > 0.0 {
                profile.is_accounted_for(f64::from(self.interval_bytes));
            }
        }
        if self.ending == "return" && self.interval_bytes == 1 {
            let samples = |site| -> u64 {
                let samples = |profile: &Profile| profile.site(site).samples;
                profiles.iter().map(samples).sum()
            };
            let lost: f64 = profiles
                .iter()
                .map(|profile| profile.number("lost_bytes"))
                .sum();
            let (found, is_lost) = (
                samples("allocated_afterwards"),
                lost >= 100.0 * AFTERWARDS as f64,
            );
            assert!(
                found == AFTERWARDS || (found == 0 && is_lost),
                "{found} of {AFTERWARDS}"
            );
            assert_eq!(
                samples("allocated_after_a_fork"),
                AFTERWARDS,
                "recording goes on"
            );
        }
    }
}

#[test]
fn a_child_forked_inside_the_agent_returns_from_the_handler_and_lives() {
    Interruptions::of(200, "f").run();
}

#[test]
fn a_child_forked_inside_the_agent_that_leaves_at_once_does_no_harm_to_its_parent() {
    // Its handlers allocate, too: nothing of that may seem to be sampled.
    Interruptions::of(300, "ea").run();
}

#[test]
fn a_handler_that_leaves_the_agent_by_a_jump_does_not_end_the_recording() {
    Interruptions::of(300, "j").run();
}

#[test]
fn handlers_that_do_anything_anywhere_leave_the_program_and_its_profiles_right() {
    for (ending, interval_bytes) in [("return", 1), ("_exit", 64), ("exec", 64)] {
        Interruptions {
            ending,
            interval_bytes,
            ..Interruptions::of(100, EVERYTHING)
        }
        .run();
    }
}

#[test]
fn handlers_that_do_anything_anywhere_do_no_harm_after_an_attach() {
    for (ending, interval_bytes) in [("return", 1), ("_exit", 64), ("exec", 64)] {
        Interruptions {
            by: By::Attach,
            ending,
            interval_bytes,
            ..Interruptions::of(100, EVERYTHING)
        }
        .run();
    }
}

/// `scripts/fuzz-reentry` runs this.
#[test]
#[ignore = "runs for as long as REENTRY_COUNT says"]
fn fuzz_for_many_interruptions() {
    let number = |name, otherwise| {
        std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (count, first_seed): (u32, u32) =
        (number("REENTRY_COUNT", 10_000), number("REENTRY_SEED", 1));
    const AT_A_TIME: u32 = 1000;
    for turn in 0..count.div_ceil(AT_A_TIME) {
        for by in [By::Preload, By::Attach] {
            let seed = first_seed + turn;
            Interruptions {
                by,
                seed,
                distance: [5, 20, 60][turn as usize % 3],
                interval_bytes: [1, 64][turn as usize % 2],
                ending: ["return", "_exit", "exec"][turn as usize / 2 % 3],
                ..Interruptions::of(AT_A_TIME, EVERYTHING)
            }
            .run();
        }
        println!(
            "{} interruptions of {count} by each way",
            (turn + 1) * AT_A_TIME
        );
    }
}

const TIMES: u64 = 1000;

fn goes_on_after(what: &str) -> Outcome {
    let run: Run = Program::compiled("goes_on.c").run().arg(what);
    run.unchanged(&Agent::at_interval(1))
}

/// One profile with all that was allocated before and after.
#[track_caller]
fn is_one_profile_after(what: &str) {
    let profile = goes_on_after(what).profile();
    for site in ["allocated_before", "allocated_after"] {
        assert_eq!(profile.site(site).samples, TIMES, "{site}");
    }
    assert!(profile.is_complete());
    profile.is_accounted_for(1.0);
}

#[test]
fn an_exec_of_a_missing_program_leaves_one_profile() {
    is_one_profile_after("missing");
}

#[test]
fn a_search_of_path_that_finds_nothing_leaves_one_profile() {
    is_one_profile_after("search");
}

#[test]
fn an_abort_that_its_handler_leaves_does_not_end_the_recording() {
    is_one_profile_after("abort");
}

#[test]
fn an_exec_that_only_the_kernel_refuses_leaves_two_right_profiles() {
    let outcome = goes_on_after("unknown_format");
    let profiles = outcome.profiles();
    assert_eq!(profiles.len(), 2, "{outcome:?}");
    for site in ["allocated_before", "allocated_after"] {
        let samples = |profile: &Profile| profile.site(site).samples;
        assert_eq!(profiles.iter().map(samples).max(), Some(TIMES), "{site}");
        assert_eq!(profiles.iter().map(samples).min(), Some(0), "{site}");
    }
    for profile in &profiles {
        assert!(profile.is_complete(), "{}", Path::display(profile.path()));
        profile.is_accounted_for(1.0);
    }
}
