//! Promise: a process may run several languages, each in a library that it loads late, and every one has its functions in the stacks.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::perl::libperl;
use crate::support::profile::Profile;
use crate::support::python::{interpreters, minor_of};
use crate::support::room::stdout;
use crate::support::{Agent, Outcome, Program, Run, bridge, skip, truth};

/// An interpreter's library and the folder of its modules.
struct Library {
    path: String,
    home: String,
    minor: u32,
}

fn library_of(python: &Path) -> Option<Library> {
    let code = "import os, sys, sysconfig as s; print(os.path.join(s.get_config_var('LIBDIR'), s.get_config_var('INSTSONAME'))); print(sys.base_prefix)";
    let output = Command::new(python).args(["-c", code]).output().ok()?;
    let text = stdout(&output);
    let mut lines = text.lines();
    let (path, home) = (lines.next()?.to_owned(), lines.next()?.to_owned());
    let is_library = path.contains(".so") && PathBuf::from(&path).exists();
    let minor = minor_of(python);
    is_library.then_some(Library { path, home, minor })
}

/// The interpreters that come with a shared library.
fn libraries() -> Vec<Library> {
    let found: Vec<_> = (interpreters().iter())
        .filter_map(|python| library_of(python))
        .collect();
    if found.is_empty() {
        skip("no shared library of Python (Debian: libpython3-dev)");
    }
    found
}

/// 16,000 calls, 3,000 bytes each. The sleeps let the agent's thread look at the library.
const IN_PYTHON: &str = "import time
def made():
    return bytearray(2999)
def work():
    for i in range(40):
        for j in range(400):
            made()
        time.sleep(0.01)
work()
";
const IN_PERL: &str =
    "my $text = 'x' x 2999; sub made { my $string = $text . 'a'; return \\$string }
    for (1 .. 40) { made() for 1 .. 400; select undef, undef, undef, 0.01 } print \"done\\n\"";
const KNOWN_BYTES: f64 = 16_000.0 * 3000.0;

/// At this interval the ring is never filled by a quarter, which is when the agent's thread starts by itself.
fn recorded(run: Run) -> Outcome {
    let outcome = run.unchanged(&Agent::at_interval("32K").seeded(7));
    outcome.assert_success();
    outcome
}

#[track_caller]
fn assert_most_is_named(profile: &Profile, function: &str) {
    let bytes = profile.site(function).allocated_bytes;
    // Those of before the first look have native frames.
    assert!(
        bytes > 0.3 * KNOWN_BYTES && bytes < 1.2 * KNOWN_BYTES,
        "{function}: {bytes} of {KNOWN_BYTES}"
    );
}

/// These functions are in a stack in this order, with others between and behind them.
#[track_caller]
fn assert_calls(profile: &Profile, names: &[&str]) {
    let stacks = profile.stacks();
    let found = stacks.iter().any(|(stack, _)| {
        let mut rest = names.iter().peekable();
        for frame in stack {
            rest.next_if(|name| frame == **name);
        }
        rest.peek().is_none()
    });
    assert!(found, "no stack {names:?}");
}

/// As in Apache, uWSGI and PostgreSQL, which open libpython with a plugin.
#[test]
fn a_python_that_is_loaded_late_is_joined_at_its_first_stack_in_every_version() {
    let program = Program::compiled_with("languages_embedded.c", &["-ldl"]);
    for library in libraries() {
        let run = program.run().args(&[&library.path, IN_PYTHON]);
        let outcome = recorded(run.env("PYTHONHOME", &library.home));
        let profile = outcome.profile();
        assert!(bridge::has_heap(&profile, "python"), "{}", library.path);
        assert_most_is_named(&profile, "made");
        assert_calls(&profile, &["main", "<module>", "work", "made"]);
        // What the program itself allocates has no frames of Python, also after the library was closed.
        let site = profile.site("allocate");
        let known = 2.0 * 2000.0 * 5000.0;
        let z = truth::z(site.allocated_bytes, known, site.allocated_bytes_stderr);
        assert!(z.abs() < 4.0, "{}: {z:+.1}", library.path);
    }
}

/// As in WeeChat, and in Apache with mod_wsgi.
#[test]
fn a_sub_interpreter_has_its_functions_from_3_11_on() {
    let program = Program::compiled_with("languages_embedded.c", &["-ldl"]);
    for library in libraries().into_iter().filter(|it| it.minor >= 11) {
        let run = (program.run()).args(&[&library.path, IN_PYTHON, "in a sub-interpreter"]);
        let outcome = recorded(run.env("PYTHONHOME", &library.home));
        let profile = outcome.profile();
        assert_most_is_named(&profile, "made");
        assert_calls(&profile, &["main", "<module>", "work", "made"]);
    }
}

/// As in PostgreSQL with functions in both languages, and in vim.
#[test]
fn every_language_of_a_process_has_its_functions_in_a_stack_that_runs_through_both() {
    let (libraries, Some(perl)) = (libraries(), libperl()) else {
        return;
    };
    let program = Program::compiled_with("languages_embedded.c", &["-ldl"]);
    for library in libraries {
        let code = format!("{IN_PYTHON}def calls():\n    other()\ncalls()\nwork()\n");
        let run = program.run().args(&[&library.path, &code, &perl, IN_PERL]);
        let outcome = recorded(run.env("PYTHONHOME", &library.home));
        let profile = outcome.profile();
        assert_most_is_named(&profile, "main::made");
        bridge::assert_stack(
            &profile,
            &[
                "main",
                "<module>",
                "calls",
                "run_perl",
                "(main)",
                "main::made",
            ],
        );
        assert_calls(&profile, &["main", "<module>", "work", "made"]);
    }
}
