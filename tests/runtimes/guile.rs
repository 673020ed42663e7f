//! Promise: Guile's procedures are in the stacks of what Guile allocates, with files and lines, where its code is compiled, by its JIT
//! or not, and the program is as it was.

use std::path::PathBuf;
use std::process::Command;

use crate::support::attached::Attached;
use crate::support::{Agent, Outcome, Room, Run, bridge, is_installed, skip};

fn has_guile() -> bool {
    let has = is_installed("guile");
    if !has {
        skip("no Guile (Debian: guile-3.0)");
    }
    has
}

fn agent(interval: &str) -> Agent {
    Agent::at_interval(interval).seeded(7)
}

/// Compiles a program for the room that it runs in. Level 0 leaves procedures where they are. Debian has `guild compile` in
/// another package than Guile, which brings its compiler along.
fn compiled(room: &Room, source: &std::path::Path, level: u32) -> PathBuf {
    let made = room.path("compiled.go");
    let code = format!(
        "((@ (system base compile) compile-file) \"{}\" #:output-file \"{}\" #:optimization-level {level})",
        source.display(),
        made.display()
    );
    let output = Command::new("guile")
        .args(["--no-auto-compile", "-c", &code])
        .output()
        .expect("guile");
    assert!(output.status.success(), "{output:?}");
    made
}

/// Guile, which loads the file and hands it an argument.
fn guile(file: &std::path::Path, argument: &str) -> Run {
    let code = format!("(set-program-arguments (list \"x\" \"{argument}\"))");
    Run::of("/usr/bin/guile").args(&[
        "--no-auto-compile",
        "-c",
        &format!("{code} (load-compiled \"{}\")", file.display()),
    ])
}

fn known_sites(times: u32, agent: &Agent, jit: &str) -> Outcome {
    let room = Room::new();
    let file = compiled(&room, &bridge::program("guile/known_sites.scm"), 2);
    let run = guile(&file, &times.to_string()).env("GUILE_JIT_THRESHOLD", jit);
    let outcome = run.unchanged(agent);
    outcome.assert_success();
    outcome
}

/// Compiled by the JIT after some calls, never, and at once.
#[test]
fn each_site_is_within_its_error() {
    if !has_guile() {
        return;
    }
    for (interval, times, jit) in [("16K", 4, "1000"), ("8K", 1, "-1"), ("32K", 4, "0")] {
        let outcome = known_sites(times, &agent(interval), jit);
        let profile = bridge::profile_near_truth(&outcome, 4);
        let heap = bridge::heap(&profile, "libgc");
        assert!(heap["major_collections"].as_f64() >= Some(3.0), "{heap}");
    }
}

#[test]
fn every_kind_of_code_has_its_frames() {
    if !has_guile() {
        return;
    }
    let source = bridge::program("guile/shapes.scm");
    let room = Room::new();
    let file = compiled(&room, &source, 0);
    let outcome = guile(&file, "").unchanged(&agent("16K"));
    assert_eq!(outcome.status.code(), Some(3));
    let profile = outcome.profile();
    let stacks = profile.stacks_with(&[]);
    for names in [
        &["(top level)", "main", "plain"][..],
        &["main", "again", "again", "again"],
        &["main", "outer"],
        &["main", "lambdas", "map1", "lambda[shapes.scm:29]"],
        &["main", "folds", "fold", "lambda[shapes.scm:37]"],
        &["main", "objects", "lambda[shapes.scm:44]"],
        &["main", "catches", "throws"],
        &["main", "winds", "lambda[shapes.scm:63]"],
        &["main", "prompts", "yields"],
        &["main", "escapes", "for-each", "lambda[shapes.scm:85]"],
        &["main", "forces"],
        &["main", "sorts", "lambda[shapes.scm:93]"],
        &["in-thread"],
        &["main", "bytes"],
    ] {
        bridge::assert_in_order(&stacks, names);
    }
    for (function, text) in [
        ("plain", "'plain"),
        ("throws", "'thrown"),
        ("yields", "'yielded"),
        ("in-thread", "'thread"),
        ("bytes", "make-string"),
    ] {
        bridge::assert_line(&profile, function, &source, text);
    }
}

/// Continuations that are called again, errors out of many levels, code that is made at run time, and a child. Threads have a test in
/// libgc.rs: Guile 3.0.8 itself fails now and then with threads after all this.
#[test]
fn the_program_is_as_it_was() {
    if !has_guile() {
        return;
    }
    let code = "
        (use-modules (srfi srfi-1))
        (define status
          (let ((pid (primitive-fork)))
            (if (zero? pid)
                (begin (iota 200000) (gc) (primitive-_exit 4))
                (status:exit-val (cdr (waitpid pid))))))
        (define (deep n) (if (zero? n) 0 (+ 1 (deep (- n 1)))))
        (for-each (lambda (n) (display (deep n)) (newline)) '(100 10000))
        (define again #f)
        (define count 0)
        (display (+ 1 (call/cc (lambda (k) (set! again k) 1))))
        (newline)
        (set! count (+ count 1))
        (when (< count 20) (again count))
        (define (thrown n) (if (zero? n) (error (make-string 3000 #\\x)) (+ 1 (thrown (- n 1)))))
        (for-each (lambda (_) (display (catch #t (lambda () (thrown 100)) (lambda (key . rest) key)))) (iota 20))
        (newline)
        (for-each (lambda (i) (eval `(begin (define (made x) (make-vector 100 x)) (made ,i)) (current-module))) (iota 100))
        (display status)
        (newline)
        (gc)
        (exit 7)";
    for interval in ["4K", "512K"] {
        let run = Run::of("/usr/bin/guile").args(&["--no-auto-compile", "-c", code]);
        let outcome = run.unchanged(&agent(interval));
        assert_eq!(outcome.status.code(), Some(7));
    }
}

#[test]
fn the_leak_is_found() {
    if !has_guile() {
        return;
    }
    let room = Room::new();
    let file = compiled(&room, &bridge::program("guile/leaky.scm"), 0);
    let code = format!(
        "(set-program-arguments (list \"x\" \"40000\")) (load-compiled \"{}\")",
        file.display()
    );
    bridge::assert_leak(&["guile", "--no-auto-compile", "-c", &code], "open_session");
}

#[test]
fn a_line_is_that_of_a_whole_reading_wherever_a_search_begins() {
    bridge::assert_part_prints("guile_lines.c", "lines\n");
}

/// Starts a program that calls `grow`, whose definition this is, as often as every line of its input says. Without a threshold the
/// JIT has Guile's own.
fn start_growing(grow: &str, level: u32, jit_threshold: Option<&str>) -> Attached {
    let text = format!(
        "(use-modules (ice-9 rdelim))
(define last #f)
{grow}
(define (work count) (let loop ((i 0)) (when (< i count) (grow) (loop (+ i 1)))) count)
(display \"ready\\n\")
(force-output)
(let loop ((line (read-line)))
  (unless (or (eof-object? line) (string-prefix? \"end\" line))
    (display (work (string->number line)))
    (newline)
    (force-output)
    (loop (read-line))))
(exit 3)
"
    );
    Attached::start_as(|room| {
        let source = room.path("growing.scm");
        std::fs::write(&source, text).expect("the program");
        let file = compiled(room, &source, level);
        let code = format!("(load-compiled \"{}\")", file.display());
        let mut command = Command::new("guile");
        command.args(["--no-auto-compile", "-c", &code]);
        command.envs(jit_threshold.map(|calls| ("GUILE_JIT_THRESHOLD", calls)));
        command
    })
}

#[test]
fn a_running_program_is_attached_to_with_procedures_in_its_stacks() {
    if !has_guile() {
        return;
    }
    // Compiled by the C library, in blocks of malloc's.
    let grow = "(define (grow) (set! last (make-regexp \"a[b-f]*g\")))";
    let mut running = start_growing(grow, 0, None);
    for interval in ["64K", "16K"] {
        running.attach(&["--interval", interval]);
        assert_eq!(running.ask("8000"), "8000");
        let profile = running.detach();
        let site = profile.site("grow");
        assert!(site.samples > 100, "{interval}: {site:?}");
        bridge::assert_stack(&profile, &["work", "grow"]);
        bridge::assert_audit(&profile);
        assert_eq!(running.ask("200"), "200");
    }
    running.attach(&["--interval", "16K", "--runtime", "none"]);
    running.ask("200");
    let profile = running.detach();
    assert_eq!(profile.site("grow").samples, 0);
    assert_eq!(running.end(3).1.code(), Some(3));
}

/// Compiled by the JIT after some calls, never, and at once.
#[test]
fn objects_of_a_running_program_are_sampled_after_each_attach() {
    if !has_guile() {
        return;
    }
    for jit in ["1000", "-1", "0"] {
        // Set again, so that it is not inlined.
        let grow = "(define (grow) (set! last (make-vector 499 0)))\n(set! grow grow)";
        let running = start_growing(grow, 2, Some(jit));
        let work = bridge::Work {
            stack: &["work", "grow"],
            bytes: 4000.0,
            answer: 1,
        };
        bridge::assert_joined_by_attach(running, &work);
    }
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    if !has_guile() {
        return;
    }
    let agent = agent("16K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(1, &agent, "1000").profile();
    assert_eq!(profile.site("small_and_kept").samples, 0);
    assert!(!bridge::has_heap(&profile, "guile"));
}

#[test]
fn a_guile_of_another_version_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("guile_stranger.c", "guile", &[]);
    assert!(!bridge::has_heap(&profile, "guile"));
    let line = "procedures of Guile are not shown: its bridge did not join (Guile is of a version that is not known)";
    assert!(report.contains(line), "{report}");
}

#[test]
fn a_guile_whose_threads_are_others_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("guile_stranger.c", "guile", &["-DHAS_ALL"]);
    assert!(bridge::has_heap(&profile, "guile"));
    let line = "procedures of Guile are not shown: its threads are not what known versions have";
    assert!(report.contains(line), "{report}");
}

#[test]
fn a_running_guile_of_another_version_is_left_alone_and_the_report_says_so() {
    let mut running = Attached::start_by(
        "attached.c",
        &["-rdynamic", "-Wl,--defsym=scm_boot_guile=main"],
        |room| {
            std::fs::rename(room.path("attached"), room.path("guile")).expect("the program");
            Command::new(room.path("guile"))
        },
    );
    for _ in 0..2 {
        let path = running.attach(&["--interval", "4K"]);
        running.ask("churn 1000");
        running.detach();
        let report = running.done(&["report", &path.to_string_lossy()]);
        let line = "procedures of Guile are not shown: its bridge did not join (Guile is of a version that is not known)";
        assert!(report.contains(line), "{report}");
    }
    running.ends_well();
}
