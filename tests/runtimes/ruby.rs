//! Promise: Ruby's methods and lines are in the stacks of what it allocates, its collections are told of, and the program
//! is as it was.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::attached::Attached;
use crate::support::collected::AtWork;
use crate::support::room::stderr;
use crate::support::{Agent, Outcome, Room, Run, bridge, is_installed, skip, truth};
use serde_json::Value;

/// Every Ruby that is here: the system's, and builds of other versions in target/rubies.
pub(crate) fn rubies() -> Vec<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/rubies");
    let builds = fs::read_dir(own).into_iter().flatten().flatten();
    let mut rubies: Vec<_> = builds
        .map(|build| build.path().join("bin/ruby"))
        .filter(|ruby| ruby.exists())
        .map(|ruby| ruby.to_string_lossy().into_owned())
        .collect();
    rubies.sort();
    if is_installed("ruby") {
        rubies.insert(0, "ruby".to_owned());
    }
    if rubies.is_empty() {
        skip("no Ruby (Debian: ruby)");
    }
    rubies
}

/// Those that compile methods. Not every one is built with the compiler.
pub(crate) fn rubies_with_yjit() -> Vec<String> {
    rubies_with("YJIT")
}

pub(crate) fn rubies_with_zjit() -> Vec<String> {
    rubies_with("ZJIT")
}

fn rubies_with(compiler: &str) -> Vec<String> {
    let compiles = |ruby: &String| {
        let option = format!("--{}", compiler.to_lowercase());
        let check = format!("exit RubyVM::{compiler}.enabled?");
        let output = Command::new(ruby).args([&*option, "-e", &check]).output();
        output.is_ok_and(|output| output.status.success() && output.stderr.is_empty())
    };
    let rubies: Vec<String> = rubies().into_iter().filter(compiles).collect();
    if rubies.is_empty() {
        skip(&format!("no Ruby with {compiler}"));
    }
    rubies
}

/// Whether it is this version or a later one.
pub(crate) fn is_since(ruby: &str, version: &str) -> bool {
    let check = format!("exit Gem::Version.new(RUBY_VERSION) >= Gem::Version.new('{version}')");
    let status = Command::new(ruby).args(["-e", &check]).status();
    status.expect("Ruby").success()
}

fn known_sites(ruby: &str, times: u32, agent: &Agent) -> Outcome {
    let run = Run::of(ruby)
        .arg(bridge::program("known_sites.rb"))
        .arg(times.to_string());
    let outcome = run.unchanged(agent);
    outcome.assert_success();
    outcome
}

pub(crate) fn script(ruby: &str, code: &str) -> Run {
    Run::of(ruby).args(&["-e", code])
}

#[test]
fn each_site_is_within_its_error() {
    for ruby in rubies() {
        for (interval, times) in [("4K", 1), ("64K", 4)] {
            let outcome = known_sites(&ruby, times, &Agent::at_interval(interval).seeded(7));
            bridge::profile_near_truth(&outcome, 5);
        }
    }
}

#[test]
fn methods_and_lines_are_named_and_stand_in_for_the_interpreter() {
    for ruby in rubies() {
        let outcome = known_sites(&ruby, 1, &Agent::at_interval("4K").seeded(7));
        let profile = outcome.profile();
        let file = bridge::program("known_sites.rb");
        bridge::assert_line(&profile, "small_and_freed", &file, "\"a\" * (MORE + 149)");
        bridge::assert_line(&profile, "large_and_kept", &file, "\"d\" * 2999");
        bridge::assert_stack(&profile, &["<main>", "main", "site", "small_and_kept"]);
        bridge::assert_stack(&profile, &["main", "site", "of_a_thread"]);
        let stack = profile.stack_to("large_and_kept");
        let native = stack
            .iter()
            .any(|frame| frame.contains("libruby") || frame.contains("vm_exec"));
        assert!(!native, "{ruby}: {stack:?}");
    }
}

#[test]
fn collections_are_told_as_ruby_counts_them() {
    for ruby in rubies() {
        // The strings make samples, at which Ruby is asked to tell, and the last collection is told of.
        let outcome = script(
            &ruby,
            "'x' * 1_000_000; sleep 0.01; before = [GC.stat(:minor_gc_count), GC.stat(:major_gc_count)];
             5.times { GC.start }; 10.times { GC.start(full_mark: false) }; 200_000.times { 'y' * 50 };
             after = [GC.stat(:minor_gc_count), GC.stat(:major_gc_count)];
             puts after[0] - before[0], after[1] - before[1]; STDOUT.flush; 'z' * 1_000_000; exit!(0)",
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
            "{ruby}: {heap} {counted:?}"
        );
        assert!(
            told("major_collections") >= counted[1] && counted[1] >= 5.0,
            "{ruby}: {heap} {counted:?}"
        );
        assert!(
            told("minor_collections") <= counted[0] + 100.0,
            "{ruby}: {heap} {counted:?}"
        );
        assert!(told("gc_time_s") > 0.0, "{ruby}: {heap}");
    }
}

#[test]
fn the_leak_is_found() {
    for ruby in rubies() {
        let program = bridge::program("leaky.rb");
        let command = [&*ruby, &program.to_string_lossy(), "200000"];
        bridge::assert_leak(&command, "open_session");
    }
}

/// The heap grows where code needs another page of slots, whoever keeps its objects. In compiled code nothing native is on that
/// stack.
#[test]
fn pages_of_slots_are_no_finding_about_the_compiled_method_that_needed_them() {
    for ruby in rubies_with_yjit() {
        let code = "def make_objects(count) = Array.new(count) { Object.new }
             def serve_request(kept) = kept << make_objects(1000)
             kept = []; 400.times { serve_request(kept); sleep 0.002 }";
        let room = Room::new();
        let run = ["run", "-q", "--seed", "7", "-o", "x.allocsample", "--"];
        let program = [&*ruby, "--yjit", "--yjit-call-threshold=2", "-e", code];
        let output = room.output(&[&run[..], &program].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let output = room.output(&["leaks", "x.allocsample", "--format", "json"]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("suspects");
        for suspect in found["suspects"].as_array().expect("suspects") {
            assert!(suspect["heap"] != "mappings", "{ruby}: {suspect}");
        }
    }
}

#[test]
fn threads_forks_fibers_and_moved_objects_are_no_trouble() {
    for ruby in rubies() {
        let outcome = script(
            &ruby,
            "threads = 4.times.map { |i| Thread.new { 5_000.times.map { |j| \"#{i} #{j}\" * 400 }.size } }
             fiber = Fiber.new { loop { Fiber.yield('f' * 5_000) } }
             1_000.times { fiber.resume }
             (GC.verify_compaction_references(toward: :empty, expand_heap: true) rescue
              GC.verify_compaction_references(toward: :empty, double_heap: true)) rescue nil
             Array.new(2_000) { 'g' * 3_000 }
             GC.compact
             pids = 3.times.map { fork { Array.new(5_000) { 'w' * 1_000 }; GC.start; exit!(4) } }
             pids.each { |pid| Process.wait(pid); print $?.exitstatus }
             r = eval('def made_anew; \"e\" * 6_000; end; 500.times { made_anew }')
             puts threads.sum(&:value), r
             warn 'said'
             exit 3",
        )
        .unchanged(&Agent::at_interval("4K").seeded(7));
        assert_eq!(outcome.status.code(), Some(3));
        let profiles = outcome.profiles();
        assert_eq!(profiles.len(), 4, "the program and three children");
        for profile in &profiles {
            let is_of_a_block = |(stack, _): &(Vec<String>, f64)| {
                stack.last().is_some_and(|leaf| leaf.starts_with("block"))
            };
            assert!(profile.stacks().iter().any(is_of_a_block), "{ruby}");
        }
    }
}

/// The last collection is told of when the program ends. Once there were Ractors, Ruby cannot be asked anything in its last hooks:
/// the main thread has no execution context any more.
#[test]
fn a_program_that_had_ractors_ends_as_it_would() {
    for ruby in rubies() {
        let code = "$VERBOSE = nil; Warning[:experimental] = false
             'x' * 1_000_000; sleep 0.01
             Ractor.new { 1 }.then { |it| it.respond_to?(:value) ? it.value : it.take }
             at_exit { puts 'bye' }
             GC.start";
        let outcome = Run::of(&ruby)
            .args(&["--disable=gems", "-e", code])
            .unchanged(&Agent::at_interval("256K").seeded(7));
        outcome.assert_success();
        let profile = outcome.profile();
        let told = bridge::heap(&profile, "ruby")["major_collections"].clone();
        assert!(told.as_f64() > Some(0.0), "{ruby}: {told}");
    }
}

/// Every Ractor has a lock of its own, and threads come and go: one that starts or waits has no frames, or the right ones.
#[test]
fn frames_of_ractors_and_of_threads_that_come_and_go_are_right_or_absent() {
    for ruby in rubies() {
        let outcome = script(
            &ruby,
            "$VERBOSE = nil
             def of_a_ractor; 300.times { 'r' * 5_000 }; end
             def of_a_short_thread; 's' * 5_000; end
             20.times do
               ractors = 4.times.map { Ractor.new { 5.times { of_a_ractor; GC.start if rand < 0.1 } } }
               50.times { Thread.new { of_a_short_thread; sleep 0 } }
               queue = Queue.new
               waiting = Thread.new { queue.pop + 'w' * 5_000 }
               queue << 'q'
               waiting.join
               ractors.each { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
             end
             puts 'done'",
        )
        .unchanged(&Agent::at_interval("4K").seeded(7));
        outcome.assert_success();
        let profile = outcome.profile();
        let known = 20.0 * 4.0 * 5.0 * 300.0 * 5_001.0;
        let bytes = profile.site("of_a_ractor").allocated_bytes;
        assert!(
            (bytes / known - 1.0).abs() < 0.03,
            "{ruby}: {bytes} of {known}"
        );
        for (stack, _) in profile.stacks() {
            let has = |name: &str| stack.iter().any(|frame| frame.contains(name));
            assert!(
                !(has("of_a_ractor") && has("of_a_short_thread")),
                "{ruby}: {stack:?}"
            );
        }
    }
}

/// Ruby 4.1 does not count the objects that ZJIT's code makes, so that there are soon fewer live slots than none: a number that is
/// itself an object, which must not be made in a collection.
#[test]
fn collections_of_compiled_programs_are_reported() {
    for ruby in rubies_with_zjit() {
        let outcome = Run::of(&ruby)
            .args(&["--zjit", "--zjit-call-threshold=2", "-e"])
            .arg(
                "'x' * 1_000_000; sleep 0.01
                 def make_pair = [1, 2]
                 10.times { 30_000.times { make_pair }; GC.start; 'y' * 1_000_000 }
                 puts 'done'",
            )
            .unchanged(&Agent::at_interval("16K").seeded(7));
        outcome.assert_success();
        let profile = outcome.profile();
        let told = bridge::heap(&profile, "ruby")["major_collections"].clone();
        assert!(told.as_f64() >= Some(9.0), "{ruby}: {told}");
    }
}

/// Its code is in no module and keeps no frame pointers. What the compiler itself allocates, for the method that it compiles, is
/// the same in a short run and in a long one.
#[test]
fn compiled_methods_are_named_as_interpreted_ones_are() {
    for ruby in rubies_with_yjit() {
        let outcomes = ["1", "4"].map(|times| {
            let outcome = Run::of(&ruby)
                .args(&["--yjit", "--yjit-call-threshold=2"])
                .arg(bridge::program("known_sites.rb"))
                .arg(times)
                .unchanged(&Agent::at_interval("8K").seeded(7));
            outcome.assert_success();
            outcome
        });
        let [short, long] = outcomes
            .each_ref()
            .map(|outcome| (truth::printed(outcome.text().as_bytes()), outcome.profile()));
        for (name, known) in &long.0 {
            let known = (known.bytes - short.0[name].bytes) as f64;
            let sites = [short.1.site(name), long.1.site(name)];
            let [less, more] = [0, 1].map(|at| sites[at].allocated_bytes);
            let error = sites.map(|site| site.allocated_bytes_stderr);
            let error = error[0].hypot(error[1]);
            assert!(
                (more - less - known).abs() < 4.0 * error,
                "{ruby}: {name}: {more} - {less}, really {known}, standard error {error}"
            );
        }
        bridge::assert_stack(&long.1, &["<main>", "main", "site", "small_and_kept"]);
        for (stack, _) in long.1.stacks() {
            let has = |name: &str| stack.iter().any(|frame| frame == name);
            assert!(
                !(has("site") && has("(unwind failed)")),
                "{ruby}: {stack:?}"
            );
        }
    }
}

const RUNNING: &str = "
def grow(kept)
  1000.times { |i| kept << 'g' * (2000 + i) }
end
def work(done)
  kept = []
  until done.size > 0
    grow(kept)
    kept.clear if kept.size > 5000
  end
end
done = Queue.new
thread = Thread.new { work(done) }
puts 'ready'
STDOUT.flush
STDIN.each_line do |line|
  break if line.start_with?('end')
  puts((1..line.to_i).sum { |i| i.to_s.size })
  STDOUT.flush
end
done << 1
thread.join
exit 3
";

#[test]
fn a_running_program_is_attached_to_with_methods_and_collections() {
    for ruby in rubies() {
        let mut running = Attached::start_as(|_| {
            let mut command = Command::new(&ruby);
            command.args(["-e", RUNNING]);
            command
        });
        for interval in ["64K", "16K"] {
            running.attach(&["--interval", interval]);
            for _ in 0..10 {
                assert_eq!(running.ask("100000"), "488895", "{ruby}");
            }
            let profile = running.detach();
            let what = format!("{ruby} at {interval}");
            assert!(profile.site("grow").samples > 100, "{what}");
            bridge::assert_stack(&profile, &["work", "grow"]);
            let heap = bridge::heap(&profile, "ruby");
            assert!(
                heap["minor_collections"].as_f64() > Some(0.0),
                "{what}: {heap}"
            );
            let time = heap["gc_time_s"].as_f64().expect("a time");
            assert!(time < 30.0, "{what}: of before the attach as well: {heap}");
            bridge::assert_audit(&profile);
        }
        running.attach(&["--interval", "16K", "--runtime", "none"]);
        running.ask("2000");
        let profile = running.detach();
        assert_eq!(profile.site("grow").samples, 0);
        let (_, status) = running.end(3);
        assert_eq!(status.code(), Some(3), "{status}");
    }
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    for ruby in rubies() {
        let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
        let profile = known_sites(&ruby, 1, &agent).profile();
        assert_eq!(profile.site("small_and_kept").samples, 0);
        assert!(!bridge::has_heap(&profile, "ruby"));
    }
}

#[test]
fn garbage_is_freed_once_ruby_was_asked_to_collect() {
    for ruby in rubies() {
        let program = bridge::program("garbage.rb");
        let command = [&*ruby, &*program.to_string_lossy()];
        let at_work = AtWork::start(Room::new(), &["--interval", "4K"], &command);
        at_work.collect("ruby");
        let (live, _) = at_work.survivors("malloc", "make_garbage");
        // The last one may still stand on the stack.
        assert!(live < 0.05 * 3_000_000.0, "{ruby}: {live}");
        let (_room, profile) = at_work.end();
        assert!(profile.site("make_garbage").allocated_bytes > 2_000_000.0);
    }
}
