//! Promise: blocks of the Boehm-Demers-Weiser collector, their deaths and collections are in the profile, and the program is as it
//! was. Guile's sites are in guile.rs.

use crate::support::attached::Attached;
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

/// attached_libgc.c, linked with these flags. Its slots are bound at the first call, or at the start and then read-only.
fn running(flags: &[&str]) -> Attached {
    Attached::start_by(
        "attached_libgc.c",
        &[&["-lgc", "-pthread", "-ldl", "-rdynamic"], flags].concat(),
        |room| std::process::Command::new(room.path("attached")),
    )
}

#[test]
fn a_running_program_is_joined_by_each_attach() {
    if !has_libgc() {
        return;
    }
    for flags in [&["-Wl,-z,lazy"][..], &["-Wl,-z,now,-z,relro"]] {
        let work = bridge::Work {
            stack: &["main", "work", "grow"],
            bytes: 1008.0,
            answer: 1,
        };
        bridge::assert_joined_by_attach(running(flags), &work);
    }
}

#[test]
fn deaths_and_collections_after_an_attach_are_told() {
    if !has_libgc() {
        return;
    }
    let mut running = running(&[]);
    running.attach(&["--interval", "16K"]);
    // The one block of before is also kept, and in no figure.
    assert_eq!(running.ask("keep 20000"), "kept");
    assert_eq!(running.ask("40000"), "40000");
    assert_eq!(running.ask("events"), "0 0");
    let profile = running.detach();
    let heap = bridge::heap(&profile, "libgc");
    assert!(heap["major_collections"].as_f64() >= Some(3.0), "{heap}");
    let known = 20_000.0 * 1008.0;
    for (name, live) in [("keep_one", known), ("grow", 0.0)] {
        let site = profile.site(name);
        let error = 4.0 * site.live_bytes_stderr + 0.01 * known;
        assert!((site.live_bytes - live).abs() < error, "{name}: {site:?}");
    }
    // Links of the first recording are still there.
    running.attach(&["--interval", "16K"]);
    assert_eq!(running.ask("drop"), "dropped");
    assert_eq!(running.ask("keep 10000"), "kept");
    assert_eq!(running.ask("events"), "0 0");
    let profile = running.detach();
    let site = profile.site("keep_one");
    let error = 4.0 * site.live_bytes_stderr + 0.01 * known;
    assert!((site.live_bytes - known / 2.0).abs() < error, "{site:?}");
    running.ends_well();
}

/// Megabytes, which libgc would read in each collection.
#[test]
fn the_agents_own_data_is_not_searched_for_references() {
    if !has_libgc() {
        return;
    }
    let mut running = running(&[]);
    for _ in 0..2 {
        running.attach(&["--interval", "16K"]);
        assert_eq!(running.ask("4000"), "4000");
        assert_eq!(running.ask("roots"), "0");
        running.detach();
    }
    running.ends_well();
}

#[test]
fn the_programs_own_callback_is_called_and_given_back() {
    if !has_libgc() {
        return;
    }
    let mut running = running(&[]);
    assert_eq!(running.ask("callback first"), "set");
    assert_eq!(running.ask("events"), "1 0");
    running.attach(&["--interval", "16K"]);
    assert_eq!(running.ask("4000"), "4000");
    assert_eq!(running.ask("which"), "first");
    let before = events(&running.ask("events"));
    assert!(before[0] > 1 && before[1] == 0, "{before:?}");
    assert_eq!(running.ask("callback second"), "set");
    assert_eq!(running.ask("which"), "second");
    assert_eq!(events(&running.ask("events")), [before[0], 1]);
    let profile = running.detach();
    let heap = bridge::heap(&profile, "libgc");
    assert!(heap["major_collections"].as_f64() >= Some(2.0), "{heap}");
    assert_eq!(running.ask("which"), "second");
    assert_eq!(events(&running.ask("events")), [before[0], 2]);
    // Also one that was set while nobody was there.
    assert_eq!(running.ask("callback first"), "set");
    running.attach(&["--interval", "16K"]);
    assert_eq!(running.ask("4000"), "4000");
    let before = events(&running.ask("events"));
    assert_eq!(before[1], 2);
    assert_eq!(running.ask("callback none"), "set");
    assert_eq!(running.ask("which"), "none");
    let profile = running.detach();
    assert!(bridge::has_heap(&profile, "libgc"));
    assert_eq!(events(&running.ask("events")), before);
    running.ends_well();
}

/// How often each callback was called.
fn events(answer: &str) -> [u32; 2] {
    let mut numbers = answer
        .split(' ')
        .map(|number| number.parse().expect("a number"));
    [(); 2].map(|()| numbers.next().expect("two numbers"))
}

/// Lists of all sizes, which their threads check, while slots change and change back, and the collector stops the threads within samples.
#[test]
fn threads_under_load_do_not_notice_attaches_and_detaches() {
    if !has_libgc() {
        return;
    }
    let mut running = running(&[]);
    assert_eq!(running.ask("slots"), "libgc's");
    assert_eq!(running.ask("threads 3"), "started");
    for cycle in 0..10 {
        running.attach(&["--interval", if cycle % 2 == 0 { "4K" } else { "256K" }]);
        assert_eq!(running.ask("well"), "well");
        assert_eq!(running.ask("slots"), "another's");
        assert_eq!(running.ask("events"), "0 0");
        let profile = running.detach();
        let heap = bridge::heap(&profile, "libgc");
        assert!(heap["major_collections"].as_f64() >= Some(1.0), "{heap}");
        assert_eq!(running.ask("slots"), "libgc's");
        assert_eq!(running.ask("well"), "well");
    }
    running.ends_well();
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
