//! Promise: R's functions are in the stacks of what it allocates, with files and lines where R keeps its sources, in every kind of
//! code that R runs, and the program is as it was.

use std::process::Command;

use crate::support::attached::Attached;
use crate::support::profile::Profile;
use crate::support::room::stdout;
use crate::support::{Agent, Outcome, Program, Run, bridge, is_installed, skip};

/// The directory of the system's R, unless the variable names another R.
fn home() -> Option<String> {
    let r = std::env::var("ALLOCSAMPLE_TEST_R").unwrap_or("R".to_owned());
    if !is_installed(&r) {
        skip("no R (Debian: r-base-core)");
        return None;
    }
    let output = Command::new(r).arg("RHOME").output().expect("R");
    Some(stdout(&output).trim().to_owned())
}

/// R itself: `R` and `Rscript` are shell scripts that start it.
fn r(home: &str, arguments: &[&str]) -> Run {
    Run::of(format!("{home}/bin/exec/R"))
        .args(&["--no-echo", "--vanilla"])
        .args(arguments)
        .env("R_HOME", home)
        .env("LD_LIBRARY_PATH", format!("{home}/lib"))
}

fn agent(interval: &str) -> Agent {
    Agent::at_interval(interval).seeded(7)
}

/// R's own profile: it starts programs such as `uname`.
#[track_caller]
fn profile(outcome: &Outcome) -> Profile {
    let mut profiles = outcome.profiles();
    profiles.sort_by_key(|it| std::cmp::Reverse(it.report["samples"].as_u64()));
    profiles.swap_remove(0)
}

fn known_sites(home: &str, times: u32, agent: &Agent) -> Outcome {
    let file = format!("--file={}", bridge::program("known_sites.R").display());
    let outcome = r(home, &[&file, "--args", &times.to_string()]).unchanged(agent);
    outcome.assert_success();
    outcome
}

fn script(home: &str, code: &str) -> Run {
    r(home, &["-e", code])
}

/// The program is read in the only way that keeps its file and lines.
fn sourced(home: &str, program: &str) -> Run {
    let file = bridge::program(program);
    let code = format!("source('{}', keep.source = TRUE)", file.display());
    script(home, &code)
}

/// A stack of these functions, without R's own native ones.
#[track_caller]
fn assert_in_order(profile: &Profile, names: &[&str]) {
    bridge::assert_in_order(&profile.stacks_with(&[]), names);
}

#[test]
fn each_site_is_within_its_error() {
    let Some(home) = home() else { return };
    for (interval, times) in [("4K", 1), ("32K", 2)] {
        let outcome = known_sites(&home, times, &agent(interval));
        let profile = profile(&outcome);
        bridge::assert_near_truth(&profile, outcome.text().as_bytes(), 4);
        bridge::assert_audit(&profile);
    }
}

#[test]
fn functions_stand_in_for_the_evaluator() {
    let Some(home) = home() else { return };
    let outcome = known_sites(&home, 1, &agent("4K"));
    let profile = profile(&outcome);
    assert_in_order(&profile, &["(top level)", "run", "site", "small_and_kept"]);
    let stacks = profile.stacks_with(&[]);
    let mut stacks = stacks.iter().map(|(stack, _)| stack);
    let is_of_site = |stack: &&Vec<String>| stack.iter().any(|frame| frame == "site");
    let stack = stacks.find(is_of_site).expect("a stack");
    let native = stack.iter().any(|frame| frame.contains("Rf_"));
    assert!(!native, "{stack:?}");
}

/// The program keeps a vector of 300 kB for each of these: at this interval one in 10^32 is not sampled.
#[test]
fn every_kind_of_code_has_its_frames() {
    let Some(home) = home() else { return };
    let outcome = sourced(&home, "r/shapes.R").unchanged(&agent("4K"));
    assert_eq!(outcome.status.code(), Some(3));
    let profile = profile(&outcome);
    for names in [
        &[
            "(top level)",
            "base::source",
            "base::eval",
            "shapes",
            "plain",
        ][..],
        &["shapes", "calls", "base::lapply", "FUN[shapes.R:8]"],
        &[
            "shapes",
            "calls",
            "base::do.call",
            "<anonymous>[shapes.R:9]",
        ],
        &["shapes", "calls", "<anonymous>[shapes.R:10]"],
        &["shapes", "calls", "base::Reduce", "f"],
        &["shapes", "again", "again", "again"],
        &["shapes", "area", "area.square"],
        &["shapes", "edge", "edge"],
        &["shapes", "counter$grow"],
        &["shapes", "%more%"],
        &["shapes", "size<-"],
        &["shapes", "in_argument"],
        &[
            "shapes",
            "caught",
            "base::tryCatch",
            "<anonymous>[shapes.R:30]",
        ],
        &["shapes", "caught", "base::tryCatch"],
        &["shapes", "cleans"],
        &["shapes", "outer_one", "inner_one"],
        &["shapes", "evaluates", "base::eval"],
        &["shapes", "interpreted"],
        &["shapes", "deep", "deep", "deep", "deep"],
        &["shapes", "builtin"],
        &["shapes", "of_package", "stats::filter"],
        &["shapes", "shared$member"],
    ] {
        assert_in_order(&profile, names);
    }
    let file = bridge::program("r/shapes.R");
    bridge::assert_line(&profile, "plain", &file, "kept$plain");
    bridge::assert_line(&profile, "size<-", &file, "kept$replaced");
    bridge::assert_line(&profile, "counter$grow", &file, "kept$grown");
    bridge::assert_line(&profile, "interpreted", &file, "kept$interpreted");
}

/// Jumps out of many contexts at once, collections, handlers, deep recursion, children, and code that is compiled and is not.
#[test]
fn the_program_is_as_it_was() {
    let Some(home) = home() else { return };
    let code = r#"
        deep <- function(n) { room <- numeric(n %% 40); if (n == 0) 0 else 1 + deep(n - 1) }
        for (i in 1:5) cat(deep(60 * i), "\n")
        thrown <- function(n) if (n == 0) stop(strrep("x", 3000)) else { kept <- as.list(1:10); thrown(n - 1) }
        for (i in 1:20) cat(nchar(tryCatch(thrown(100), error = conditionMessage)), "\n")
        left <- function() { for (i in 1:100) { x <- numeric(100); if (i == 50) return(i) } }
        cat(sum(vapply(1:200, function(i) left(), 0)), "\n")
        tryCatch({ on.exit(cat("never\n")); warning("w") }, warning = function(w) cat("warned\n"), finally = cat("finally\n"))
        endless <- function() endless()
        cat(class(tryCatch(endless(), error = function(e) e))[1] != "", "\n")
        old <- compiler::enableJIT(0)
        slow <- function(n) { x <- 0; for (i in 1:n) { y <- numeric(50) + i; x <- x + y[1] }; x }
        cat(slow(2000), "\n")
        invisible(compiler::enableJIT(old))
        made <- 0
        for (i in 1:300) made <- made + eval(parse(text = sprintf("(function(x) { y <- numeric(100) + x; y[1] + %d })(1)", i)))
        cat(made, "\n")
        reg.finalizer(new.env(), function(e) { x <- numeric(1000); cat("finalized\n") }, onexit = TRUE)
        results <- parallel::mclapply(1:3, function(i) { x <- lapply(1:500, function(j) numeric(j) + i); length(x) + i }, mc.cores = 2)
        cat(unlist(results), "\n")
        message("said")
        quit(status = 7)"#;
    for interval in ["4K", "512K"] {
        let outcome = script(&home, code).unchanged(&agent(interval));
        assert_eq!(outcome.status.code(), Some(7));
    }
}

#[test]
fn forked_workers_have_profiles_with_functions() {
    let Some(home) = home() else { return };
    let code = "
        x <- numeric(625)
        in_worker <- function(i) { for (j in 1:2000) y <- x + j; i }
        results <- parallel::mclapply(1:2, function(i) in_worker(i), mc.cores = 2)
        cat(unlist(results))";
    let outcome = script(&home, code).unchanged(&Agent::at_interval("16K").seeded(7));
    outcome.assert_success();
    let profiles = outcome.profiles();
    let of_workers = |profile: &&Profile| profile.site("in_worker").samples > 0;
    let workers: Vec<_> = profiles.iter().filter(of_workers).collect();
    assert_eq!(workers.len(), 2, "of {}", profiles.len());
    for profile in workers {
        let site = profile.site("in_worker");
        let deviation = (site.allocated_bytes - 2000.0 * 5048.0) / site.allocated_bytes_stderr;
        assert!(deviation.abs() < 4.0, "{deviation}");
        assert_in_order(profile, &["parallel::mclapply", "in_worker"]);
    }
}

#[test]
fn the_leak_is_found() {
    let Some(home) = home() else { return };
    let program = format!("--file={}", bridge::program("leaky.R").display());
    let r = format!("{home}/bin/exec/R");
    let command = [&*r, "--no-echo", "--vanilla", &program, "--args", "100000"];
    let variables = [
        ("R_HOME", &*home),
        ("LD_LIBRARY_PATH", &format!("{home}/lib")),
    ];
    bridge::assert_leak_with(&[], &variables, &command, "open_session");
}

const RUNNING: &str = r#"
x <- numeric(375)
grow <- function() x + 1
work <- function(count) { sum <- 0; for (i in 1:count) sum <- sum + length(grow()); sum }
input <- file("stdin")
open(input)
cat("ready\n")
while (TRUE) {
  line <- readLines(input, 1)
  if (startsWith(line, "end")) break
  cat(work(as.numeric(line)), "\n", sep = "")
}
quit(status = 3)
"#;

#[test]
fn a_running_program_is_attached_to_with_functions() {
    let Some(home) = home() else { return };
    let running = Attached::start_as(|_| {
        let mut command = Command::new(format!("{home}/bin/exec/R"));
        command
            .args(["--no-echo", "--vanilla", "-e", RUNNING])
            .env("R_HOME", &home)
            .env("LD_LIBRARY_PATH", format!("{home}/lib"));
        command
    });
    bridge::assert_joined_by_attach(
        running,
        &bridge::Work {
            stack: &["(top level)", "base::cat", "work", "grow"],
            bytes: 3048.0,
            answer: 375,
        },
    );
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    let Some(home) = home() else { return };
    let agent = agent("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let outcome = known_sites(&home, 1, &agent);
    let profile = profile(&outcome);
    assert_eq!(profile.site("small_and_kept").samples, 0);
    assert!(!bridge::has_heap(&profile, "r"));
}

/// The same, where R is a library as well.
fn home_of_library() -> Option<String> {
    let home = home()?;
    let has = std::path::Path::new(&home).join("lib/libR.so").exists();
    if !has {
        skip("R is built without libR.so");
    }
    has.then_some(home)
}

/// The program's own allocations have no frames of R, although R waits in the same thread.
#[test]
fn a_library_that_is_loaded_late_is_joined_and_only_what_it_runs_has_its_frames() {
    let Some(home) = home_of_library() else {
        return;
    };
    let program = Program::compiled_with("r_embedded.c", &["-ldl"]);
    let code = "{ x <- numeric(375); made <- function() x + 1
         for (i in 1:40) { for (j in 1:1000) made(); Sys.sleep(0.01) }; cat('done\\n') }";
    let outcome = (program.run().args(&[&home, code])).unchanged(&agent("1K"));
    outcome.assert_success();
    let profile = profile(&outcome);
    let known = 40_000.0 * 3048.0;
    let bytes = profile.site("made").allocated_bytes;
    // Those of before a quarter of the ring was full may not be named.
    assert!(
        bytes > 0.3 * known && bytes < 1.05 * known,
        "{bytes} of {known}"
    );
    assert_in_order(&profile, &["main", "made"]);
    let site = profile.site("main");
    let deviation = (site.allocated_bytes - 2000.0 * 5000.0) / site.allocated_bytes_stderr;
    assert!(deviation.abs() < 4.0, "{deviation}");
}

#[test]
fn an_r_without_a_variable_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("r_stranger.c", "R", &[]);
    assert!(!bridge::has_heap(&profile, "r"));
    let line = "functions of R are not shown: its bridge did not join (R lacks a variable that known versions have)";
    assert!(report.contains(line), "{report}");
}

#[test]
fn an_r_whose_contexts_are_others_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("r_stranger.c", "R", &["-DHAS_ALL"]);
    assert!(bridge::has_heap(&profile, "r"));
    let line = "functions of R are not shown: its contexts are not where known versions have them";
    assert!(report.contains(line), "{report}");
}
