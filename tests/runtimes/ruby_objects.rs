//! Promise: with `--objects` the objects in slots of Ruby's heap are in the profile, from where they are made to their death,
//! wherever compaction moves them. The program is as it was, and nobody is called without the option.

use std::collections::BTreeMap;
use std::process::Command;

use crate::ruby::{is_since, rubies, rubies_with_yjit, rubies_with_zjit, script};
use crate::support::attached::Attached;
use crate::support::collected::AtWork;
use crate::support::profile::Profile;
use crate::support::room::stderr;
use crate::support::{Agent, Room, Run, bridge};
use serde_json::Value;

const TRUE_SITES: usize = 5;

fn with_objects(interval: &str) -> Agent {
    let agent = Agent::at_interval(interval).seeded(7);
    agent.with("ALLOCSAMPLE_OBJECTS", "on")
}

/// What one function has made in Ruby's heap.
#[derive(Clone, Debug, Default)]
struct Slots {
    samples: u64,
    bytes: f64,
    error: f64,
    live_bytes: f64,
    live_error: f64,
    most_of_type: String,
}

fn slots(profile: &Profile) -> BTreeMap<String, Slots> {
    let sql = "SELECT function, type, count(*) AS samples, sum(bytes) AS bytes, sum(bytes_variance) AS variance, \
        coalesce(sum(bytes) FILTER (WHERE live), 0) AS live, \
        coalesce(sum(bytes_variance) FILTER (WHERE live), 0) AS live_variance \
        FROM samples JOIN functions USING (function_id) LEFT JOIN types USING (type_id) JOIN heaps USING (heap_id) \
        WHERE heap = 'ruby' GROUP BY function, type ORDER BY bytes";
    let path = profile.path().to_string_lossy().into_owned();
    let output = Room::new().output(&["query", "--format", "json", &path, sql]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("rows");
    let mut all: BTreeMap<String, Slots> = BTreeMap::new();
    for row in rows {
        let figure = |name: &str| row[name].as_f64().expect("a figure");
        let name = row["function"].as_str().unwrap_or_default();
        let site = all.entry(name.to_owned()).or_default();
        site.samples += row["samples"].as_u64().expect("a number");
        site.bytes += figure("bytes");
        site.live_bytes += figure("live");
        site.error = site.error.hypot(figure("variance").sqrt());
        site.live_error = site.live_error.hypot(figure("live_variance").sqrt());
        // They come by size.
        site.most_of_type = row["type"].as_str().unwrap_or_default().to_owned();
    }
    all
}

/// Every site's slots are as the program has printed.
#[track_caller]
fn assert_near_truth(profile: &Profile, printed: &str, what: &str) {
    let truth: Value = serde_json::from_str(printed).expect("the truth");
    let truth = truth.as_object().expect("sites");
    let found = slots(profile);
    assert_eq!(truth.len(), TRUE_SITES);
    for (name, known) in truth {
        let figure = |name: &str| known[name].as_f64().expect("a figure");
        let site = found.get(name).cloned().unwrap_or_default();
        assert!(site.samples > 100, "{what}: {name}: {site:?}");
        let away = (site.bytes - figure("bytes")).abs();
        assert!(away < 4.0 * site.error, "{what}: {name}: {site:?}, {known}");
        let away = (site.live_bytes - figure("live_bytes")).abs();
        // One may still be referred to by a register or the stack.
        let allowed = 4.0 * site.live_error + 3.0 * 2048.0 * f64::from(site.live_error == 0.0);
        assert!(away <= allowed, "{what}: {name}: {site:?}, {known}");
        assert_eq!(site.most_of_type, known["type"], "{what}: {name}");
    }
}

#[test]
fn each_site_of_small_objects_is_within_its_error_though_compaction_moves_them() {
    for ruby in rubies() {
        let run = Run::of(&ruby)
            .arg(bridge::program("ruby_objects.rb"))
            .arg("100000");
        let outcome = run.unchanged(&with_objects("2K"));
        outcome.assert_success();
        let profile = outcome.profile();
        assert_near_truth(&profile, &outcome.text(), &ruby);
        bridge::assert_audit(&profile);
        let file = bridge::program("ruby_objects.rb");
        bridge::assert_line(&profile, "kept_points", &file, "Point.new(at, at)");
        bridge::assert_stack(&profile, &["<main>", "main", "site", "kept_points"]);
    }
}

#[test]
fn each_site_of_small_objects_of_compiled_methods_is_within_its_error() {
    for ruby in rubies_with_yjit() {
        let outcome = Run::of(&ruby)
            .args(&["--yjit", "--yjit-call-threshold=2"])
            .arg(bridge::program("ruby_objects.rb"))
            .arg("100000")
            .unchanged(&with_objects("2K"));
        outcome.assert_success();
        assert_near_truth(&outcome.profile(), &outcome.text(), &ruby);
    }
}

#[test]
fn without_the_option_no_object_is_sampled() {
    for ruby in rubies() {
        let outcome = Run::of(&ruby)
            .arg(bridge::program("ruby_objects.rb"))
            .arg("20000")
            .unchanged(&Agent::at_interval("2K").seeded(7));
        outcome.assert_success();
        let found = slots(&outcome.profile());
        assert!(found.is_empty(), "{ruby}: {found:?}");
    }
}

/// The numbers of event hooks, as Ruby counts them.
#[test]
fn without_the_option_ruby_has_no_hook_of_ours() {
    for ruby in rubies() {
        let code = "100.times { 'x' * 100_000; Object.new }; puts TracePoint.stat.values.inspect";
        let agent = Agent::at_interval("16K").seeded(7);
        let outcome = script(&ruby, code).unchanged(&agent);
        outcome.assert_success();
        // From 4.0 on these numbers are without the hooks of internal events.
        if !is_since(&ruby, "4.0") {
            let with_hooks = script(&ruby, code).observed(&with_objects("16K"));
            assert_ne!(outcome.text(), with_hooks.text(), "{ruby}");
        }
    }
}

/// Interval 1 makes a sample of every object, and every mistake comes out. Others use the same events, or cause collections in them.
#[test]
fn other_tracers_stress_and_compaction_see_what_they_would() {
    for ruby in rubies() {
        let outcome = script(
            &ruby,
            "require 'objspace'
             class Kept; def initialize(at) = @at = at; end
             calls = 0
             tracer = TracePoint.new(:call, :c_call, :raise) { calls += 1 }
             made = ObjectSpace.trace_object_allocations do
               tracer.enable { 2_000.times.map { |at| Kept.new(at) } }
             end
             puts made.size, calls, ObjectSpace.allocation_sourceline(made[7]).inspect
             GC.stress = true
             20.times { |at| made << Kept.new(at.to_s) }
             GC.stress = false
             GC.auto_compact = true if GC.respond_to?(:auto_compact=)
             5.times { made.shift(200); GC.start }
             (GC.verify_compaction_references(toward: :empty, expand_heap: true) rescue
              GC.verify_compaction_references(toward: :empty, double_heap: true)) rescue nil
             made.shift(200)
             3.times { GC.start }
             puts made.size, made.last.instance_variable_get(:@at)
             begin; Object.new.singleton_class.allocate; rescue => error; puts error.class; end
             puts Class.new { def initialize = @a = 1 }.new.instance_variables.inspect
             warn 'said'
             exit 3",
        )
        .unchanged(&with_objects("1"));
        assert_eq!(outcome.status.code(), Some(3), "{ruby}");
        let profile = outcome.profile();
        let made = slots(&profile).values().map(|site| site.bytes).sum::<f64>();
        assert!(made > 2_000.0 * 40.0, "{ruby}: {made}");
        bridge::assert_audit(&profile);
    }
}

#[test]
fn children_have_the_objects_that_they_make() {
    for ruby in rubies() {
        let outcome = script(
            &ruby,
            "class Inherited; end
             class Own; end
             def make_inherited = Array.new(20_000) { Inherited.new }
             def make_own = Array.new(20_000) { Own.new }
             kept = make_inherited
             pid = fork { own = make_own; kept = nil; 3.times { GC.start }; GC.compact; puts own.size; exit!(4) }
             Process.wait(pid)
             puts $?.exitstatus
             exit!(0)",
        )
        .unchanged(&with_objects("2K"));
        outcome.assert_success();
        let profiles = outcome.profiles();
        let known = 20_000.0 * least_slot(&ruby);
        let makers: Vec<_> = profiles
            .iter()
            .filter_map(|profile| {
                slots(profile)
                    .get("make_own")
                    .cloned()
                    .or_else(|| block_of(profile, "make_own"))
            })
            .collect();
        assert_eq!(makers.len(), 1, "{ruby}");
        let site = &makers[0];
        assert!(
            (site.live_bytes - known).abs() < 4.0 * site.live_error,
            "{ruby}: {site:?}"
        );
    }
}

/// A block has the name of its method, after words that depend on the version.
fn block_of(profile: &Profile, method: &str) -> Option<Slots> {
    let mut all = slots(profile).into_iter();
    all.find(|(name, site)| {
        name.starts_with("block in") && name.ends_with(method) && site.samples > 20
    })
    .map(|(_, site)| site)
}

/// The bytes of an object without variables.
fn least_slot(ruby: &str) -> f64 {
    let code = "require 'objspace'; class Least; end; print ObjectSpace.memsize_of(Least.new)";
    let output = Command::new(ruby).args(["-e", code]).output();
    let printed = output.expect("Ruby").stdout;
    let printed = String::from_utf8(printed).expect("a number");
    printed.parse().expect("a number")
}

/// Up to Ruby 3.4 another Ractor's collections report no deaths.
#[test]
fn objects_are_no_longer_sampled_once_there_are_ractors_and_the_profile_says_so() {
    for ruby in rubies() {
        if is_since(&ruby, "4.0") {
            continue;
        }
        let outcome = script(
            &ruby,
            "$VERBOSE = nil
             class Shared; end
             def of_main = 10_000.times { Shared.new }
             def of_a_ractor = 10_000.times { Shared.new }
             of_main
             ractors = 3.times.map { Ractor.new { 3.times { of_a_ractor; GC.start } } }
             ractors.each { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
             of_main
             puts 'done'",
        )
        .unchanged(&with_objects("2K"));
        outcome.assert_success();
        let profile = outcome.profile();
        let notes = profile.report.to_string();
        let is_told = notes.contains("the program uses Ractors");
        assert!(is_told, "{ruby}: {notes}");
        let of_ractors = block_of(&profile, "of_a_ractor");
        assert!(of_ractors.is_none(), "{ruby}: {of_ractors:?}");
        // What was made before is there.
        let found = slots(&profile);
        assert!(found.keys().any(|name| name.ends_with("of_main")), "{ruby}");
    }
}

/// From Ruby 4.0 on the objects of all Ractors are reported, and so are their deaths.
#[test]
fn objects_of_all_ractors_are_sampled_where_ruby_reports_them() {
    for ruby in rubies() {
        if !is_since(&ruby, "4.0") {
            continue;
        }
        let outcome = script(
            &ruby,
            "$VERBOSE = nil
             class Shared; end
             def of_a_ractor = Shared.new
             def kept_by_a_ractor = Shared.new
             'x' * 1_000_000; sleep 0.01; 'x' * 1_000_000
             Shared.new
             ractors = 4.times.map do
               Ractor.new do
                 kept = Array.new(5_000) { kept_by_a_ractor }
                 40_000.times { of_a_ractor }
                 GC.start
                 Ractor.main << 1
                 Ractor.receive
                 kept.size
               end
             end
             4.times { Ractor.receive }
             3.times { GC.start }
             STDOUT.puts 'done'
             STDOUT.flush
             exit!(0)",
        )
        .unchanged(&with_objects("2K"));
        outcome.assert_success();
        let profile = outcome.profile();
        let found = slots(&profile);
        let least = least_slot(&ruby);
        for (name, made, live) in [
            ("of_a_ractor", 160_000.0, 0.0),
            ("kept_by_a_ractor", 20_000.0, 20_000.0),
        ] {
            let site = found.get(name).cloned().unwrap_or_default();
            let away = (site.bytes - made * least).abs();
            assert!(away < 4.0 * site.error, "{ruby}: {name}: {site:?}");
            // The last one of each Ractor may still stand on its stack.
            let away = (site.live_bytes - live * least).abs();
            let allowed = 4.0 * site.live_error.max(2048.0);
            assert!(away <= allowed, "{ruby}: {name}: {site:?}");
        }
        bridge::assert_audit(&profile);
    }
}

/// While Ractors allocate, hooks come and go with `attach` and `detach`.
#[test]
fn ractors_allocate_while_objects_are_attached_to_and_detached_from() {
    for ruby in rubies() {
        let code = "$VERBOSE = nil
             class Shared; end
             ractors = 3.times.map { Ractor.new { loop { 1_000.times { Shared.new } } } }
             puts 'ready'
             STDOUT.flush
             STDIN.each_line do |line|
               break if line.start_with?('end')
               'y' * 3_000_000
               puts line
               STDOUT.flush
             end
             STDOUT.flush
             exit!(3)";
        let mut running = Attached::start_as(|_| {
            let mut command = Command::new(&ruby);
            command.args(["-e", code]);
            command
        });
        for _ in 0..8 {
            running.attach(&["--interval", "64K", "--objects"]);
            for _ in 0..3 {
                assert_eq!(running.ask("more"), "more", "{ruby}");
            }
            bridge::assert_audit(&running.detach());
        }
        let (_, status) = running.end(3);
        assert_eq!(status.code(), Some(3), "{ruby}: {status}");
    }
}

/// From Ruby 4.1 on ZJIT's code makes objects that Ruby reports to nobody.
#[test]
fn objects_are_not_sampled_where_zjit_makes_them_and_the_profile_says_so() {
    for ruby in rubies_with_zjit() {
        if !is_since(&ruby, "4.1") {
            continue;
        }
        for options in [&["--zjit"] as &[&str], &[]] {
            let run = Run::of(&ruby).args(options).args(&[
                "-e",
                "'x' * 1_000_000; RubyVM::ZJIT.enable unless RubyVM::ZJIT.enabled?; 'x' * 1_000_000; Object.new; GC.start",
            ]);
            let outcome = run.unchanged(&with_objects("2K"));
            outcome.assert_success();
            let notes = outcome.profile().report.to_string();
            assert!(notes.contains("while ZJIT is on"), "{ruby}: {notes}");
        }
    }
}

#[test]
fn the_leak_of_small_objects_is_found_and_the_cache_is_not_accused() {
    for ruby in rubies() {
        let program = bridge::program("leaky_objects.rb");
        let command = [&*ruby, &program.to_string_lossy(), "200000"];
        bridge::assert_leak_with(&["--objects"], &[], &command, "open_session");
    }
}

const RUNNING: &str = "
class Job; end
def make_jobs(kept)
  kept << Job.new
end
puts 'ready'
STDOUT.flush
kept = []
STDIN.each_line do |line|
  break if line.start_with?('end')
  case line
  when /make (\\d+)/ then $1.to_i.times { make_jobs(kept) }
  when /drop/ then kept.clear; 'x' * 5_000_000; 3.times { GC.start }
  end
  'y' * 3_000_000
  puts kept.size
  STDOUT.flush
end
exit 3
";

#[test]
fn a_running_program_is_attached_to_with_and_without_objects() {
    for ruby in rubies() {
        let mut running = Attached::start_as(|_| {
            let mut command = Command::new(&ruby);
            command.args(["-e", RUNNING]);
            command
        });
        let attach = |running: &mut Attached, options: &[&str]| {
            running.attach(&[&["--interval", "2K"], options].concat());
            // The first sample of malloc's has Ruby report its objects.
            for _ in 0..3 {
                running.ask("nothing");
            }
        };
        let mut total = 0;
        for options in [&[] as &[&str], &["--objects"], &[], &["--objects"]] {
            let what = format!("{ruby}, attached with {options:?}");
            attach(&mut running, options);
            total += 20_000;
            assert_eq!(running.ask("make 20000"), total.to_string(), "{what}");
            let has_objects = !options.is_empty();
            if has_objects && total > 40_000 {
                assert_eq!(running.ask("drop"), "0", "{what}");
                total = 0;
            }
            let profile = running.detach();
            let site = slots(&profile)
                .get("make_jobs")
                .cloned()
                .unwrap_or_default();
            if !has_objects {
                assert_eq!(site.samples, 0, "{what}: {site:?}");
                continue;
            }
            let known = 20_000.0 * least_slot(&ruby);
            assert!(
                (site.bytes - known).abs() < 4.0 * site.error,
                "{what}: {site:?}"
            );
            let known_live = if total == 0 { 0.0 } else { known };
            let away = (site.live_bytes - known_live).abs();
            assert!(
                away <= 4.0 * site.live_error.max(2048.0),
                "{what}: {site:?}"
            );
            bridge::assert_audit(&profile);
        }
        let (_, status) = running.end(3);
        assert_eq!(status.code(), Some(3), "{status}");
    }
}

#[test]
fn dead_objects_are_gone_once_ruby_was_asked_to_collect() {
    for ruby in rubies() {
        let program = bridge::program("garbage_objects.rb");
        let command = [&*ruby, &*program.to_string_lossy()];
        let at_work = AtWork::start(Room::new(), &["--interval", "2K", "--objects"], &command);
        at_work.collect("ruby");
        let (live, _) = at_work.survivors("ruby", "make_garbage");
        // The last one may still stand on the stack.
        assert!(live < 0.05 * 400_000.0, "{ruby}: {live}");
        let (_room, profile) = at_work.end();
        let site = slots(&profile)["make_garbage"].clone();
        assert!(site.bytes > 300_000.0, "{ruby}: {site:?}");
    }
}
