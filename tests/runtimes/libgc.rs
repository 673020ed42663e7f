//! Promise: blocks of the Boehm-Demers-Weiser collector, their deaths and collections are in the profile, and the program is as it
//! was. Guile's sites are in guile.rs.

use crate::support::{Agent, Outcome, Program, Room, Run, bridge, is_installed, skip, truth};

fn has_libgc() -> bool {
    let has = ["/usr/include/gc.h", "/usr/include/gc/gc.h"]
        .iter()
        .any(|header| std::path::Path::new(header).exists());
    if !has {
        skip("no libgc (Debian: libgc-dev)");
    }
    has
}

fn has_guile() -> bool {
    let has = is_installed("guile");
    if !has {
        skip("no Guile (Debian: guile-3.0)");
    }
    has
}

fn program() -> Program {
    Program::compiled_with("known_sites_libgc.c", &["-lgc", "-pthread"])
}

fn known_sites(arguments: &[&str], agent: &Agent) -> Outcome {
    let outcome = program().run().args(arguments).unchanged(agent);
    outcome.assert_success();
    outcome
}

#[test]
fn each_site_is_within_its_error() {
    if !has_libgc() {
        return;
    }
    for (interval, arguments) in [
        ("4K", &["1"][..]),
        ("64K", &["8"]),
        ("16K", &["2", "thread"]),
    ] {
        let outcome = known_sites(arguments, &Agent::at_interval(interval));
        let profile = outcome.profile();
        let known = truth::printed(outcome.text().as_bytes());
        assert_eq!(known.len(), 6);
        for (name, known) in known {
            let site = profile.site(&name);
            assert!(site.samples > 50, "{name}: {site:?}");
            let z = truth::z(
                site.allocated_bytes,
                known.bytes as f64,
                site.allocated_bytes_stderr,
            );
            assert!(z.abs() < 4.0, "{interval} {name}: z {z:+.1}");
            // The collector takes numbers for references: a few of the dead seem to live.
            let spared = 0.01 * known.bytes as f64;
            let error = 4.0 * site.live_bytes_stderr + spared;
            let difference = (site.live_bytes - known.live_bytes as f64).abs();
            assert!(difference < error, "{interval} {name}: {site:?}");
        }
        let z = profile.report["audit"]["z"].as_f64().expect("an audit");
        assert!(z.abs() < 4.0, "audit {z}");
    }
}

#[test]
fn collections_and_stacks_are_told() {
    if !has_libgc() {
        return;
    }
    let outcome = known_sites(&["1"], &Agent::at_interval("4K"));
    let profile = outcome.profile();
    let heap = bridge::heap(&profile, "libgc");
    assert!(heap["major_collections"].as_f64() >= Some(3.0), "{heap}");
    assert!(heap["gc_time_s"].as_f64() > Some(0.0), "{heap}");
    let stacks = profile.stacks();
    let is_whole = stacks.iter().any(|(stack, _)| {
        let at = |name: &str| stack.iter().position(|frame| frame == name);
        at("main").is_some() && at("main") < at("small_and_dropped")
    });
    assert!(is_whole, "no stack from main to small_and_dropped");
    for (stack, _) in &stacks {
        let ours = stack.iter().any(|frame| frame.contains("liballocsample"));
        assert!(!ours, "{stack:?}");
    }
}

/// The second opinion: what libgc itself has counted.
#[test]
fn the_total_is_what_libgc_has_counted() {
    if !has_libgc() {
        return;
    }
    let outcome = program()
        .run()
        .args(&["1", "", "total"])
        .observed(&Agent::at_interval("64K"));
    outcome.assert_success();
    let counted: f64 = outcome.complaints().trim().parse().expect("a number");
    let profile = outcome.profile();
    let exact = bridge::heap(&profile, "libgc")["allocated_bytes_exact"]
        .as_f64()
        .expect("bytes");
    // libgc rounds up what is larger than half a page, and keeps a few words for each sampled block.
    let ratio = exact / counted;
    assert!((0.97..1.01).contains(&ratio), "{exact} of {counted}");
}

#[test]
fn the_leak_is_found() {
    if has_libgc() {
        let program = Program::compiled_with("leaky_libgc.c", &["-lgc"]);
        let room = Room::new();
        room.add(&program, "leaky");
        let path = program.path().to_string_lossy();
        bridge::assert_leak(&[&path, "40000"], "open_session");
    }
}

#[test]
fn forks_callbacks_and_guiles_threads_are_no_trouble() {
    if !has_guile() {
        return;
    }
    // The fork first: Guile warns of one while it still has threads.
    let code = "(use-modules (ice-9 threads))
        (define (work n) (let loop ((i 0) (all '())) (if (< i n) (loop (+ i 1) (cons i all)) (length all))))
        (define status
          (let ((pid (primitive-fork)))
            (if (zero? pid)
                (begin (work 200000) (gc) (primitive-_exit 4))
                (status:exit-val (cdr (waitpid pid))))))
        (define threads (map (lambda (_) (call-with-new-thread (lambda () (work 100000)))) (iota 4)))
        (define sum (apply + (map join-thread threads)))
        (display (list sum status))
        (newline)
        (add-hook! after-gc-hook (lambda () #t))
        (gc)
        (exit 3)";
    // Several times: threads are to be stopped within samples, also where nobody looks at libgc's heap.
    for runtime in ["auto", "none"].repeat(3) {
        let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", runtime);
        let outcome = Run::of("/usr/bin/guile")
            .args(&["--no-auto-compile", "-c", code])
            .unchanged(&agent);
        assert_eq!(outcome.text().trim(), "(400000 4)");
    }
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    if !has_libgc() {
        return;
    }
    let agent = Agent::at_interval("16K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(&["1"], &agent).profile();
    assert!(!bridge::has_heap(&profile, "libgc"));
}
