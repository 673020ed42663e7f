//! Promise: Ruby's methods and lines are in the stacks of what it allocates, its collections are told of, and the program
//! is as it was.

mod support;

use support::collected::AtWork;
use support::{Agent, Outcome, Room, Run, bridge, is_installed, skip};

fn has_ruby() -> bool {
    let has = is_installed("ruby");
    if !has {
        skip("no Ruby (Debian: ruby)");
    }
    has
}

fn known_sites(times: u32, agent: &Agent) -> Outcome {
    let run = Run::of("ruby")
        .arg(bridge::program("known_sites.rb"))
        .arg(times.to_string());
    let outcome = run.unchanged(agent);
    outcome.assert_success();
    outcome
}

fn script(code: &str) -> Run {
    Run::of("ruby").args(&["-e", code])
}

#[test]
fn each_site_is_within_its_error() {
    if !has_ruby() {
        return;
    }
    for (interval, times) in [("4K", 1), ("64K", 4)] {
        let outcome = known_sites(times, &Agent::at_interval(interval).seeded(7));
        bridge::profile_near_truth(&outcome, 5);
    }
}

#[test]
fn methods_and_lines_are_named_and_stand_in_for_the_interpreter() {
    if !has_ruby() {
        return;
    }
    let outcome = known_sites(1, &Agent::at_interval("4K").seeded(7));
    let profile = outcome.profile();
    let file = bridge::program("known_sites.rb");
    bridge::assert_line(&profile, "small_and_freed", &file, "\"a\" * 149");
    bridge::assert_line(&profile, "large_and_kept", &file, "\"d\" * 2999");
    bridge::assert_stack(&profile, &["<main>", "main", "site", "small_and_kept"]);
    bridge::assert_stack(&profile, &["main", "site", "of_a_thread"]);
    let stack = profile.stack_to("large_and_kept");
    let native = stack.iter().any(|frame| frame.contains("libruby"));
    assert!(!native, "{stack:?}");
}

#[test]
fn collections_are_told_as_ruby_counts_them() {
    if !has_ruby() {
        return;
    }
    // The string makes a sample, at which Ruby is asked to tell.
    let outcome = script(
        "'x' * 1_000_000; sleep 0.01; before = [GC.stat(:minor_gc_count), GC.stat(:major_gc_count)];
         5.times { GC.start }; 10.times { GC.start(full_mark: false) }; 200_000.times { 'y' * 50 };
         after = [GC.stat(:minor_gc_count), GC.stat(:major_gc_count)];
         puts after[0] - before[0], after[1] - before[1]; STDOUT.flush; exit!(0)",
    )
    .observed(&Agent::at_interval("16K").seeded(7));
    outcome.assert_success();
    let counted: Vec<f64> = outcome
        .text()
        .lines()
        .map(|line| line.parse().expect("a count"))
        .collect();
    let profile = outcome.profile();
    let heap = bridge::heap(&profile, "ruby");
    let told = |kind: &str| heap[kind].as_f64().expect("a count");
    // Those of Ruby's start come before.
    assert!(
        told("minor_collections") >= counted[0] && counted[0] >= 10.0,
        "{heap} {counted:?}"
    );
    assert!(
        told("major_collections") >= counted[1] && counted[1] >= 5.0,
        "{heap} {counted:?}"
    );
    assert!(
        told("minor_collections") <= counted[0] + 100.0,
        "{heap} {counted:?}"
    );
    assert!(told("gc_time_s") > 0.0, "{heap}");
}

#[test]
fn the_leak_is_found() {
    if has_ruby() {
        let program = bridge::program("leaky.rb");
        let command = ["ruby", &program.to_string_lossy(), "200000"];
        bridge::assert_leak(&command, "open_session");
    }
}

#[test]
fn threads_forks_fibers_and_moved_objects_are_no_trouble() {
    if !has_ruby() {
        return;
    }
    let outcome = script(
        "threads = 4.times.map { |i| Thread.new { 5_000.times.map { |j| \"#{i} #{j}\" * 20 }.size } }
         fiber = Fiber.new { loop { Fiber.yield('f' * 500) } }
         1_000.times { fiber.resume }
         GC.verify_compaction_references(toward: :empty, double_heap: true) rescue nil
         Array.new(2_000) { 'g' * 300 }
         GC.compact
         pids = 3.times.map { fork { Array.new(5_000) { 'w' * 100 }; GC.start; exit!(4) } }
         pids.each { |pid| Process.wait(pid); print $?.exitstatus }
         r = eval('def made_anew; \"e\" * 600; end; 500.times { made_anew }')
         puts threads.sum(&:value), r
         warn 'said'
         exit 3",
    )
    .unchanged(&Agent::at_interval("4K").seeded(7));
    assert_eq!(outcome.status.code(), Some(3));
    let profiles = outcome.profiles();
    assert_eq!(profiles.len(), 4, "the program and three children");
    for profile in &profiles {
        assert!(
            profile
                .stacks()
                .iter()
                .any(|(stack, _)| { stack.last().is_some_and(|leaf| leaf.starts_with("block")) })
        );
    }
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    if !has_ruby() {
        return;
    }
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(1, &agent).profile();
    assert_eq!(profile.site("small_and_kept").samples, 0);
    assert!(!bridge::has_heap(&profile, "ruby"));
}

#[test]
fn garbage_is_freed_once_ruby_was_asked_to_collect() {
    if !has_ruby() {
        return;
    }
    let program = bridge::program("garbage.rb");
    let command = ["ruby", &*program.to_string_lossy()];
    let ruby = AtWork::start(Room::new(), &["--interval", "4K"], &command);
    ruby.collect("ruby");
    let (live, _) = ruby.survivors("malloc", "make_garbage");
    // The last one may still stand on the stack.
    assert!(live < 0.05 * 3_000_000.0, "{live}");
    let (_room, profile) = ruby.end();
    assert!(profile.site("make_garbage").allocated_bytes > 2_000_000.0);
}
