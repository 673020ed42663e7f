//! Promise: Perl's subs, files and lines are in the stacks of what it allocates, in every kind of code that Perl runs, and the
//! program is as it was.

use std::process::Command;

use crate::support::attached::Attached;
use crate::support::room::stdout;
use crate::support::{Agent, Outcome, Program, Run, bridge, is_installed, skip};

/// The system's, unless the variable names another one.
fn perl() -> Option<String> {
    let perl = std::env::var("ALLOCSAMPLE_TEST_PERL").unwrap_or("perl".to_owned());
    let has = is_installed(&perl);
    if !has {
        skip("no Perl (Debian: perl)");
    }
    has.then_some(perl)
}

fn perl_with_threads() -> Option<String> {
    let perl = perl()?;
    let check = Command::new(&perl)
        .args(["-MConfig", "-e", "exit !$Config{usethreads}"])
        .status();
    let has = check.is_ok_and(|status| status.success());
    if !has {
        skip("Perl is built without threads");
    }
    has.then_some(perl)
}

fn known_sites(perl: &str, times: u32, agent: &Agent) -> Outcome {
    let run = Run::of(perl)
        .arg(bridge::program("known_sites.pl"))
        .arg(times.to_string());
    let outcome = run.unchanged(agent);
    outcome.assert_success();
    outcome
}

fn script(perl: &str, code: &str) -> Run {
    Run::of(perl).args(&["-e", code])
}

#[test]
fn each_site_is_within_its_error() {
    let Some(perl) = perl() else { return };
    for (interval, times) in [("4K", 1), ("64K", 4)] {
        let outcome = known_sites(&perl, times, &Agent::at_interval(interval).seeded(7));
        bridge::profile_near_truth(&outcome, 4);
    }
}

#[test]
fn subs_and_lines_are_named_and_stand_in_for_the_interpreter() {
    let Some(perl) = perl() else { return };
    let outcome = known_sites(&perl, 1, &Agent::at_interval("4K").seeded(7));
    let profile = outcome.profile();
    let file = bridge::program("known_sites.pl");
    bridge::assert_line(&profile, "main::small_and_freed", &file, "$text . \"a\"");
    bridge::assert_line(
        &profile,
        "Some::Package::large_and_kept",
        &file,
        "$text . \"d\"",
    );
    bridge::assert_stack(
        &profile,
        &["(main)", "main::run", "main::site", "main::small_and_kept"],
    );
    let stack = profile.stack_to("main::small_and_kept");
    let native = stack.iter().any(|frame| frame.contains("Perl_"));
    assert!(!native, "{stack:?}");
}

/// The program keeps a string of 300 kB for each of these: at this interval one in 10^32 is not sampled.
#[test]
fn every_kind_of_code_has_its_frames() {
    let Some(perl) = perl() else { return };
    let program = bridge::program("perl/shapes.pl");
    let outcome = Run::of(&perl)
        .arg(&program)
        .unchanged(&Agent::at_interval("4K").seeded(7));
    assert_eq!(outcome.status.code(), Some(3));
    let profile = outcome.profile();
    for names in [
        &["(main)", "main::BEGIN"][..],
        &["(main)", "main::calls", "main::__ANON__[shapes.pl:13]"],
        &["(main)", "main::calls", "main::__ANON__[shapes.pl:14]"],
        &["(main)", "lexical"],
        &["(main)", "main::sorts", "main::by_text"],
        &["(main)", "main::drops", "Destroyed::DESTROY"],
        &["(main)", "main::reads_tied", "Tied::FETCH"],
        &[
            "(main)",
            "main::adds",
            "Overloaded::__ANON__[shapes.pl:34]",
            "Overloaded::plus",
        ],
        &["(main)", "main::AUTOLOAD"],
        &["(main)", "main::is_interrupted", "main::on_signal"],
        &["(main)", "main::calls_goer", "main::went_to"],
        &[
            "(main)",
            "main::catches",
            "main::dies_below",
            "main::on_death",
        ],
        &["(main)", "main::catches"],
        &["(main)", "main::evaluates", "(eval)"],
        &["(main)", "main::evaluates", "(eval)", "main::made"],
        &["(main)", "main::requires", "(require)"],
        &["(main)", "main::requires", "Required::of_a_file"],
        &["(main)", "main::writes", "main::STDERR", "main::of_format"],
        &["(main)", "main::renamed"],
    ] {
        bridge::assert_stack(&profile, names);
    }
    let lines = profile.report["lines"].as_array().expect("lines");
    let has_line = |function: &str, file: &str, line: u32| {
        lines.iter().any(|row| {
            row["function"] == function
                && row["line"] == line
                && row["file"].as_str().is_some_and(|it| it.contains(file))
        })
    };
    assert!(has_line("main::renamed", "elsewhere.pl", 4711), "{lines:?}");
    assert!(has_line("Required::of_a_file", "Required.pm", 3));
    assert!(has_line("main::made", "(eval ", 1));
    assert!(has_line("(require)", "Required.pm", 2));
}

/// A stack of contexts that grows, and one that is dropped at once by `die`.
#[test]
fn the_program_is_as_it_was() {
    let Some(perl) = perl() else { return };
    let code = "
        use strict; use warnings; no warnings 'recursion'; $| = 1;
        sub deep { my ($n) = @_; my @room = (1) x ($n % 7); return $n == 0 ? 0 : 1 + deep($n - 1) }
        print deep(1000 * $_), \"\\n\" for 1 .. 20;
        sub thrown { my ($n) = @_; die { at => 'x' x 5000 } if $n == 0; my @kept = map { \"$_\" } 1 .. 10; thrown($n - 1) }
        for (1 .. 50) { eval { thrown(500) }; print length $@->{at}, \"\\n\" }
        for (1 .. 3) { my $pid = fork; if (!$pid) { my @all = map { 'c' x $_ } 1 .. 2000; exit $_ } waitpid $pid, 0; print $? >> 8 }
        local $SIG{ALRM} = sub { my @all = map { \"a$_\" } 1 .. 1000 };
        for (1 .. 20) { alarm 0; kill ALRM => $$; my %map = map { $_ => \"m$_\" } 1 .. 500 }
        my $count = 0; for (1 .. 2000) { $count += eval \"sub made_$_ { 'y' x $_ } length made_$_()\" } print \"$count\\n\";
        my @sorted = sort { my $text = \"$a $b\"; $a <=> $b } map { $_ * 7919 % 1009 } 1 .. 1000; print \"@sorted[0 .. 5]\\n\";
        (my $text = 'abc' x 1000) =~ s/(b)/uc($1) . 'd'/ge; print length $text, \"\\n\";
        sub END_ { END { my @last = map { \"e$_\" } 1 .. 1000; print \"end\\n\" } }
        sub Late::DESTROY { my @last = map { \"d$_\" } 1 .. 1000; print \"destroyed\\n\" } our $late = bless [], 'Late';
        warn \"said\\n\"; $? = 9; exit 7";
    for interval in ["256", "4K", "512K"] {
        let outcome = script(&perl, code).unchanged(&Agent::at_interval(interval).seeded(7));
        assert_eq!(outcome.status.code(), Some(7));
        assert_eq!(
            outcome.profiles().len(),
            4,
            "the program and three children"
        );
    }
}

/// Each has an interpreter of its own, made by the one that creates the thread.
#[test]
fn every_thread_has_its_own_stack() {
    let Some(perl) = perl_with_threads() else {
        return;
    };
    let code = "
        use strict; use warnings; use threads;
        my $text = 'x' x 4999;
        sub of_first { my $string = $text . 'a'; return \\$string }
        sub of_second { my $string = $text . 'b'; return \\$string }
        sub first { for (1 .. 2000) { of_first() } return 1 }
        sub second { for (1 .. 2000) { of_second() } return 2 }
        my @large = map { \"large $_\" } 1 .. 20000;
        sub creates { return threads->create($_[0]) }
        my @threads = map { creates($_) } (\\&first, \\&second) x 2;
        print $_->join, \"\\n\" for @threads;
        print scalar(@large), \"\\n\"";
    let outcome = script(&perl, code).unchanged(&Agent::at_interval("16K").seeded(7));
    outcome.assert_success();
    let profile = outcome.profile();
    for name in ["first", "second"] {
        let of = format!("main::of_{name}");
        let site = profile.site(&of);
        let known = 4000.0 * 5001.0;
        let deviation = (site.allocated_bytes - known) / site.allocated_bytes_stderr;
        assert!(deviation.abs() < 4.0, "{name}: {deviation}");
        bridge::assert_stack(&profile, &[&format!("main::{name}"), &of]);
    }
    for (stack, _) in profile.stacks() {
        let has = |name: &str| stack.iter().any(|frame| frame == name);
        assert!(!(has("main::first") && has("main::second")), "{stack:?}");
        assert!(!(has("main::first") && has("main::of_second")), "{stack:?}");
    }
    // Copies of all variables, for each thread.
    let cloned = profile.site("main::creates").allocated_bytes;
    assert!(cloned > 4.0 * 1e6, "{cloned}");
}

#[test]
fn the_leak_is_found() {
    let Some(perl) = perl() else { return };
    let program = bridge::program("leaky.pl");
    let command = [&*perl, &program.to_string_lossy(), "300000"];
    bridge::assert_leak(&command, "main::open_session");
}

const RUNNING: &str = "
$| = 1;
my $text = 'x' x 2999;
sub grow { my $string = $text . 'g'; return \\$string }
sub work { my ($count) = @_; my $sum = 0; $sum += length ${ grow() } for 1 .. $count; return $sum }
print \"ready\\n\";
while (my $line = <STDIN>) { last if $line =~ /^end/; print work($line), \"\\n\" }
exit 3;
";

#[test]
fn a_running_program_is_attached_to_with_subs_and_lines() {
    let Some(perl) = perl() else { return };
    let running = Attached::start_as(|_| {
        let mut command = Command::new(&perl);
        command.args(["-e", RUNNING]);
        command
    });
    bridge::assert_joined_by_attach(
        running,
        &bridge::Work {
            stack: &["(main)", "main::work", "main::grow"],
            bytes: 3002.0,
            answer: 3000,
        },
    );
}

#[test]
fn a_program_can_be_profiled_without_the_bridge() {
    let Some(perl) = perl() else { return };
    let agent = Agent::at_interval("4K").with("ALLOCSAMPLE_RUNTIME", "none");
    let profile = known_sites(&perl, 1, &agent).profile();
    assert_eq!(profile.site("main::small_and_kept").samples, 0);
    assert!(!bridge::has_heap(&profile, "perl"));
}

/// The library that Debian's package has beside the program.
pub(crate) fn libperl() -> Option<String> {
    let perl = perl()?;
    let code = "my ($v) = $^V =~ /^v(5[.]\\d+)/; print glob \"/usr/lib/*/libperl.so.$v\"";
    let output = Command::new(perl)
        .args(["-e", code])
        .output()
        .expect("Perl");
    let path = stdout(&output);
    if path.is_empty() {
        skip("no libperl (Debian: libperl5.36)");
    }
    (!path.is_empty()).then_some(path)
}

/// As in PostgreSQL and Apache: the program's own allocations have no frames of Perl, although it has an interpreter.
#[test]
fn a_library_that_is_loaded_late_is_joined_and_only_what_it_runs_has_its_frames() {
    let Some(library) = libperl() else { return };
    let program = Program::compiled_with("perl_embedded.c", &["-ldl"]);
    let code = "my $text = 'x' x 2999; sub made { my $string = $text . 'a'; return \\$string }
         for (1 .. 40) { made() for 1 .. 1000; select undef, undef, undef, 0.01 } print \"done\\n\"";
    let outcome =
        (program.run().args(&[&library, code])).unchanged(&Agent::at_interval("1K").seeded(7));
    outcome.assert_success();
    let profile = outcome.profile();
    let known = 40_000.0 * 3002.0;
    let bytes = profile.site("main::made").allocated_bytes;
    // Those of before the library was met in a stack are not named.
    assert!(
        bytes > 0.3 * known && bytes < 1.05 * known,
        "{bytes} of {known}"
    );
    bridge::assert_stack(&profile, &["main", "(main)", "main::made"]);
    let site = profile.site("main");
    let deviation = (site.allocated_bytes - 2000.0 * 5000.0) / site.allocated_bytes_stderr;
    assert!(deviation.abs() < 4.0, "{deviation}");
}

#[test]
fn a_perl_that_is_not_known_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("perl_stranger.c", "perl", &["-DMINOR=47"]);
    assert!(!bridge::has_heap(&profile, "perl"));
    let line = "functions and lines of Perl are not shown: its bridge did not join (Perl is of a version or a build that is not known)";
    assert!(report.contains(line), "{report}");
}

#[test]
fn a_perl_whose_stacks_are_elsewhere_is_left_alone_and_the_report_says_so() {
    let (profile, report) = bridge::stranger("perl_stranger.c", "perl", &["-DMINOR=36"]);
    assert!(bridge::has_heap(&profile, "perl"));
    let line =
        "functions and lines of Perl are not shown: its stacks are not where this version has them";
    assert!(report.contains(line), "{report}");
}
