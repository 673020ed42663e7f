//! Promise: whatever a signal handler does that interrupts the agent, the program goes on as without us, and the profiles
//! are right. reentry.c follows a process by ptrace and has a handler run at chosen instructions.
//!
//! The profiles are read in this process: the command looks up the names of functions, which takes longer than all else.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::support::profile::Profile;
use crate::support::{Agent, Outcome, Program, Run, agent_library, command};

/// All that a handler does: see reentry.c.
const EVERYTHING: &str = "afFexjbnNdt";
/// What the program allocates after the last interruption, and again after a fork; and how large those blocks are.
const AFTERWARDS: u64 = 1000;
const AFTERWARDS_BYTES: u64 = 1001;
const AFTER_A_FORK_BYTES: u64 = 1201;

/// A distance: right after compare-and-exchange instructions.
const AFTER_EXCHANGES: u32 = u32::MAX;

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
    /// On average, in instructions. 0: where a large frame is made. [`AFTER_EXCHANGES`].
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
    fn run(&self) {
        const PROFILES: &str = "../profiles/%n.%p.allocsample";
        // A ring has 1 MiB then, which takes half of the time of one of 4 MiB: every child makes one. Where most of the drawn places
        // are never reached, one process takes more samples until it has come to enough of them.
        let file_bytes = match self.distance {
            AFTER_EXCHANGES => "60000000",
            _ => "1200000",
        };
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
        let distance = match self.distance {
            AFTER_EXCHANGES => "exchanges".to_owned(),
            distance => distance.to_string(),
        };
        let run = run
            .arg(self.count.to_string())
            .arg(self.seed.to_string())
            .arg(distance)
            .args(&[self.actions, self.ending])
            .env("REENTRY_PRELOAD", preload)
            .env("REENTRY_FILE_BYTES", file_bytes)
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
        assert!(outcome.status.success(), "seed {}: {outcome:?}", self.seed);
        self.assert_audits(&outcome);
    }

    #[track_caller]
    fn assert_audits(&self, outcome: &Outcome) {
        let (mut afterwards, mut after_a_fork, mut lost) = (0, 0, 0);
        for path in outcome.profile_paths() {
            let what = format!("seed {}: {}", self.seed, path.display());
            let figures = Figures::read(&path);
            assert!(figures.is_complete, "{what} is not complete");
            // A child that has become /bin/true has allocated nothing.
            let (exact, found) = (figures.exact, figures.found + figures.lost as f64);
            if self.interval_bytes == 1 {
                assert_eq!(found, exact, "{what}");
            } else if exact > 0.0 {
                // As `Profile::is_accounted_for` has it.
                let error = (exact * f64::from(self.interval_bytes)).sqrt();
                let error = error * (1.0 + figures.lost as f64 / exact);
                assert!(
                    (found - exact).abs() < 6.0 * error,
                    "{found} of {exact}: {what}"
                );
            }
            afterwards += figures.afterwards;
            after_a_fork += figures.after_a_fork;
            lost += figures.lost;
        }
        if self.ending == "return" && self.interval_bytes == 1 {
            // A jump out of the first two instructions of malloc is noticed at a fork. After an exec that has failed nobody
            // can say since when the thread was not sampled.
            let is_lost = lost >= AFTERWARDS_BYTES * AFTERWARDS || self.actions.contains('N');
            assert!(
                afterwards == AFTERWARDS || (afterwards == 0 && is_lost),
                "seed {}: {afterwards} of {AFTERWARDS}",
                self.seed
            );
            assert_eq!(
                after_a_fork, AFTERWARDS,
                "seed {}: recording goes on",
                self.seed
            );
        }
    }
}

/// What a profile says of all allocations.
struct Figures {
    is_complete: bool,
    exact: f64,
    found: f64,
    lost: u64,
    /// Samples.
    afterwards: u64,
    /// Samples.
    after_a_fork: u64,
}

impl Figures {
    fn read(path: &Path) -> Self {
        let profile = allocsample_profile::Profile::open(path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let samples = || profile.samples.iter();
        let of_size = |size| samples().filter(|sample| sample.size == size).count() as u64;
        Self {
            is_complete: profile.is_complete(),
            exact: profile.exact_bytes() as f64,
            found: samples().map(|sample| profile.bytes(&sample).value()).sum(),
            lost: profile.lost.samples().1,
            afterwards: of_size(AFTERWARDS_BYTES),
            after_a_fork: of_size(AFTER_A_FORK_BYTES),
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

/// Call-frame information does not lead out of such a place: the walk ended there as if at the root, the slow path was
/// taken for one that a handler had left, and its sample was counted as lost although it was taken.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_slow_path_interrupted_where_it_makes_a_large_frame_is_not_given_up() {
    Interruptions {
        distance: 0,
        // The recording ends, and the next one is begun in such a frame.
        ..Interruptions::of(6, "Nfffff")
    }
    .run();
}

/// The thread begins the recording, which the interrupted slow path then takes for its own: the ring that the child does not
/// inherit, if the slow path was given up.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_child_forked_after_a_failed_exec_and_a_thread_within_the_same_sample_lives() {
    Interruptions {
        distance: 0,
        ..Interruptions::of(200, "Nftf")
    }
    .run();
}

#[test]
fn a_handler_that_leaves_the_agent_by_a_jump_does_not_end_the_recording() {
    Interruptions::of(300, "j").run();
}

/// The head of the ring has moved then, and the record has no header yet.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_jump_right_after_a_reservation_leaves_no_hole_in_the_ring() {
    Interruptions {
        distance: AFTER_EXCHANGES,
        ..Interruptions::of(40, "j")
    }
    .run();
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
    let processors = thread::available_parallelism().map_or(1, |number| number.get() as u32);
    let count: u32 = number("REENTRY_COUNT", 10_000);
    let first_seed = number("REENTRY_SEED", 1);
    let jobs = number("REENTRY_JOBS", processors);
    const AT_A_TIME: u32 = 1000;
    let turns = count.div_ceil(AT_A_TIME);
    let (next, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let take_turns = || {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if turn >= turns {
                return;
            }
            for by in [By::Preload, By::Attach] {
                Interruptions {
                    by,
                    seed: first_seed + turn,
                    distance: [5, 20, 60][turn as usize % 3],
                    interval_bytes: [1, 64][turn as usize % 2],
                    ending: ["return", "_exit", "exec"][turn as usize / 2 % 3],
                    ..Interruptions::of(AT_A_TIME, EVERYTHING)
                }
                .run();
            }
            let done = (done.fetch_add(1, Ordering::Relaxed) + 1) * AT_A_TIME;
            println!("{done} interruptions of {count} by each way");
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(take_turns);
        }
    });
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
