//! Promise: nobody notices. Output, status, environment, descriptors, signals, limits and namespaces of a program are
//! what they are without the agent.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::directory::Directory;
use crate::support::{Agent, Program, Run, agent_library, is_root, skip};

const INTERVAL: f64 = 4096.0;

fn often() -> Agent {
    Agent::at_interval(INTERVAL)
}

#[track_caller]
fn unchanged(run: &Run) -> crate::support::Outcome {
    let outcome = run.unchanged(&often());
    outcome.assert_success();
    outcome
}

#[test]
fn a_malloc_of_the_programs_own_finds_its_settings_when_it_is_first_called() {
    let program = Program::compiled("own_malloc_with_settings.c");
    let outcome = unchanged(&program.run().env("TOY_SETTING", "1"));
    assert_eq!(outcome.text(), "read\n");
}

#[test]
fn the_environment_is_as_the_user_set_it() {
    let program = Program::compiled("environment.c");
    let other = Program::library("big_tls_library.c", "libother.so", &[]);
    for way in ["print", "inherit", "system"] {
        let outcome = program
            .run()
            .arg(way)
            .preload_after_agent(other.path())
            .observed(&often());
        let text = outcome.assert_success().text();
        let preload = format!(
            "LD_PRELOAD={}:{}",
            agent_library().display(),
            other.path().display()
        );
        assert!(text.lines().any(|line| line == preload), "{way}: {text}");
        assert!(
            text.lines().any(|line| line == "ALLOCSAMPLE_INTERVAL=4096"),
            "{way}: {text}"
        );
        // Nothing is added: all other variables are those of a run without the agent.
        let is_ours = |line: &&str| {
            line.starts_with("ALLOCSAMPLE_")
                || line.starts_with("LD_PRELOAD=")
                || line.starts_with("PWD=")
        };
        let bare = program.run().arg(way).bare();
        let without = |text: &str| -> Vec<String> {
            let mut lines: Vec<String> = text
                .lines()
                .filter(|line| !is_ours(line))
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        assert_eq!(
            without(&text),
            without(&bare.assert_success().text()),
            "{way}"
        );
    }
}

#[test]
fn a_program_that_gives_its_children_an_environment_decides_alone() {
    let program = Program::compiled("environment.c");
    unchanged(&program.run().arg("own"));
    let changed = program.run().arg("changed").observed(&often());
    let text = changed.assert_success().text();
    assert!(!text.contains("LD_PRELOAD"), "{text}");
    let spawned = program.run().arg("spawn").observed(&often());
    let text = spawned.assert_success().text();
    assert!(text.starts_with("SPAWNED=1\nLD_PRELOAD=\n"), "{text}");
}

#[test]
fn the_users_own_preload_reaches_children_and_grandchildren() {
    let hostile = Program::library("hostile_constructor.c", "libhostile.so", &[]);
    let shell = Run::of("/bin/sh").args(&["-c", "grep -c libhostile /proc/self/maps >/dev/null && sh -c 'grep -q libhostile /proc/self/maps && echo both'"]);
    let outcome = unchanged(&shell.preload_after_agent(hostile.path()));
    assert_eq!(outcome.text(), "both\n");
}

#[test]
fn blanks_and_colons_in_the_path_of_the_library_do_not_split_the_preload() {
    let room = Directory::new();
    let directory = room.join("a blank: and a colon");
    fs::create_dir_all(&directory).expect("a directory");
    let command = directory.join("allocsample");
    crate::support::copy(crate::support::command(), &command);
    fs::copy(agent_library(), directory.join("liballocsample.so")).expect("a copy of the agent");
    let hello = Program::compiled("hello.c");
    let outcome = Run::of(&command)
        .args(&[
            "run",
            "--interval",
            "4096",
            "-o",
            "../profiles/%n.%p.allocsample",
            "--",
        ])
        .arg(hello.path())
        .bare();
    assert_eq!(outcome.assert_success().text(), "hello\n");
    assert_eq!(outcome.profile_paths().len(), 1, "{}", outcome.complaints());
    assert!(outcome.profile().site("allocate_and_greet").samples > 100);
}

#[test]
fn a_program_that_closes_or_replaces_all_descriptors_keeps_its_files_to_itself() {
    let program = Program::compiled("descriptors.c");
    for way in ["close_range", "close_all", "take_over", "numbers"] {
        let run = program.run().args(&[way, "own.txt"]);
        let bare = run.bare();
        let observed = unchanged(&run);
        let content = |outcome: &crate::support::Outcome| {
            fs::read_to_string(outcome.work().join("own.txt")).expect("its file")
        };
        assert_eq!(content(&observed), content(&bare), "{way}");
        let entries = fs::read_dir(observed.work())
            .expect("its directory")
            .count();
        assert_eq!(entries, 1, "{way}: files that are not the program's");
        let profile = observed.profile();
        assert!(
            profile.is_complete()
                && profile.site("churn").samples + profile.site("main").samples > 0,
            "{way}"
        );
    }
}

#[test]
fn errors_of_the_loader_are_the_programs_own() {
    let run = Program::compiled("own_errors.c").run();
    let outcome = run.unchanged(&Agent::at_interval(1.0));
    assert_eq!(outcome.text(), "none\none\n");
}

#[test]
fn every_signal_is_the_programs_own() {
    unchanged(&Program::compiled("own_signals.c").run());
}

#[test]
fn a_single_threaded_program_stays_single_threaded_for_the_kernel() {
    let outcome = unchanged(&Program::compiled("user_namespace.c").run());
    outcome.profile().is_accounted_for(INTERVAL);
}

#[test]
fn a_program_behind_a_system_call_filter_runs_on() {
    let outcome = unchanged(&Program::compiled("seccomp.c").run());
    outcome.profile().is_accounted_for(INTERVAL);
}

#[test]
fn a_system_call_by_number_is_what_libc_makes_of_it() {
    unchanged(&Program::compiled("system_calls.c").run());
}

#[test]
fn dlopen_looks_in_the_runpath_of_its_caller() {
    let hidden = Program::library("plugin.c", "libfoundbyname.so", &[]);
    let directory = hidden.path().parent().expect("a directory");
    let runpath = format!("-Wl,--enable-new-dtags,-rpath,{}", directory.display());
    let caller = Program::library("runpath_caller.c", "libcaller.so", &[&runpath]);
    let program = Program::compiled_with("runpath.c", &[caller.path().to_str().expect("a path")]);
    unchanged(&program.run().arg("libfoundbyname.so"));
}

#[test]
fn loading_and_unloading_in_one_thread_does_not_stop_samples_in_seven_others() {
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let other = Program::library("plugin.c", "libotherplugin.so", &[]);
    let run = Program::compiled("dlopen_storm.c")
        .run()
        .arg(plugin.path())
        .arg(other.path());
    let outcome = unchanged(&run);
    let profile = outcome.profile();
    assert!(profile.site("allocated_in_the_storm").samples > 1000);
    profile.is_accounted_for(INTERVAL);
    run.unchanged(&Agent::at_interval(64)).assert_success();
}

#[test]
fn exceptions_fly_through_frames_that_are_being_sampled() {
    let library = Program::library("exceptions_library.cpp", "libthrower.so", &[]);
    let run = Program::compiled("exceptions.cpp")
        .run()
        .arg(library.path());
    unchanged(&run);
    run.unchanged(&Agent::at_interval(64)).assert_success();
}

#[test]
fn coroutines_may_allocate_on_stacks_that_are_unmapped_later() {
    let run = Program::compiled("coroutines.c").run();
    unchanged(&run);
    run.unchanged(&Agent::at_interval(1)).assert_success();
}

#[test]
fn another_profilers_stacks_reach_main_through_the_agents() {
    let run = Program::compiled_with("other_profiler.c", &["-rdynamic"]).run();
    run.unchanged(&Agent::at_interval(1)).assert_success();
}

#[test]
fn a_hundred_thousand_frames_are_no_trouble() {
    let run = Program::compiled("deep_stacks.c").run();
    unchanged(&run);
    run.unchanged(&Agent::at_interval(1)).assert_success();
}

#[test]
fn limits_that_a_program_sets_itself_stop_the_agent_and_not_the_program() {
    let program = Program::compiled("limits.c");
    for limit in ["fsize", "as", "nofile", "nproc"] {
        if limit == "nproc" && !is_root() {
            skip("only root can become a user without processes");
            continue;
        }
        eprintln!("{limit}");
        let outcome = unchanged(&program.run().args(&[limit, "inside"]));
        outcome.profile().is_accounted_for(INTERVAL);
    }
}

#[test]
fn limits_from_before_the_start_cost_the_profile_at_most() {
    let program = Program::compiled("limits.c");
    for limit in ["fsize", "as", "nofile", "nproc"] {
        if limit == "nproc" && !is_root() {
            skip("only root can become a user without processes");
            continue;
        }
        let run = program.run().args(&[limit, "before"]);
        let bare = run.bare();
        let observed = run.observed(&often());
        assert_eq!(
            (observed.status, observed.text()),
            (bare.assert_success().status, bare.text()),
            "{limit}"
        );
        // If it cannot work it says so, in one line.
        assert!(
            observed.complaints().lines().count() <= 1,
            "{limit}: {}",
            observed.complaints()
        );
        let seen = observed.profile_paths().len();
        assert!(
            seen > 0 || observed.complaints().starts_with("allocsample: "),
            "{limit}: {}",
            observed.complaints()
        );
    }
}

#[test]
fn a_setting_that_cannot_be_understood_is_named_in_one_line() {
    let hello = Program::compiled("hello.c").run();
    let bare = hello.bare();
    for (name, value) in [
        ("ALLOCSAMPLE_INTERVAL", "0"),
        ("ALLOCSAMPLE_INTERVAL", "often"),
        ("ALLOCSAMPLE_INTERVAL", "-5"),
        ("ALLOCSAMPLE_INTERVAL", "99999999999999999999"),
        ("ALLOCSAMPLE_SAMPLING", "uniform"),
        ("ALLOCSAMPLE_SEED", "dice"),
        ("ALLOCSAMPLE_UNWIND", "guess"),
        ("ALLOCSAMPLE_MAX_DEPTH", "deep"),
        ("ALLOCSAMPLE_CHILDREN", "some"),
        ("ALLOCSAMPLE_ON_FULL", "burst"),
    ] {
        let outcome = hello.observed(&Agent::at_interval(4096).with(name, value));
        assert_eq!(
            (outcome.status, outcome.text()),
            (bare.status, bare.text()),
            "{name}={value}"
        );
        let complaint = outcome.complaints();
        assert_eq!(complaint.lines().count(), 1, "{name}={value}: {complaint}");
        assert!(
            complaint.contains(name) && complaint.contains(value),
            "{name}={value}: {complaint}"
        );
        assert!(outcome.profile_paths().is_empty(), "{name}={value}");
    }
    let zero = hello.observed(&Agent::at_interval(0)).complaints();
    assert!(
        zero.contains('1') && zero.contains("off"),
        "0 should lead to 1 or off: {zero}"
    );
}

#[test]
fn a_variable_that_is_no_setting_is_named_in_the_profile_and_not_on_the_terminal() {
    let run = Program::compiled("hello.c").run();
    let outcome = run.unchanged(&often().with("ALLOCSAMPLE_INTERVALL", "1"));
    let notes = outcome.assert_success().profile().report["notes"].to_string();
    assert!(
        notes.contains("ALLOCSAMPLE_INTERVALL is not a setting"),
        "{notes}"
    );
    let notes = unchanged(&run).profile().report["notes"].to_string();
    assert!(!notes.contains("is not a setting"), "{notes}");
}

#[test]
fn a_directory_that_cannot_be_written_is_named_in_one_line() {
    let hello = Program::compiled("hello.c").run();
    let bare = hello.bare();
    let directory = Directory::new();
    let file = directory.join("a file");
    fs::write(&file, "").expect("a file");
    let mut places: Vec<PathBuf> =
        vec!["/no/such/place".into(), file.join("below"), "/proc".into()];
    let closed = directory.join("closed");
    fs::create_dir(&closed).expect("a directory");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).expect("a closed directory");
    if !is_root() {
        places.push(closed);
    }
    for place in places {
        let outcome = hello
            .observed(&often().with("ALLOCSAMPLE_OUTPUT", place.join("x.allocsample").display()));
        assert_eq!(
            (outcome.status, outcome.text()),
            (bare.status, bare.text()),
            "{}",
            place.display()
        );
        assert_eq!(
            outcome.complaints().lines().count(),
            1,
            "{}: {}",
            place.display(),
            outcome.complaints()
        );
        assert!(
            outcome.complaints().contains(&*place.to_string_lossy()),
            "{}",
            outcome.complaints()
        );
    }
}

#[test]
fn off_means_off() {
    let outcome = Program::compiled("hello.c")
        .run()
        .observed(&Agent::at_interval("off"));
    assert_eq!(outcome.assert_success().text(), "hello\n");
    assert_eq!(outcome.complaints(), "");
    assert!(outcome.profile_paths().is_empty());
}

#[test]
fn profiles_go_where_the_template_says() {
    let outcome = Program::compiled("hello.c")
        .run()
        .observed(&often().with("ALLOCSAMPLE_OUTPUT", "here-%n-%p.allocsample"));
    outcome.assert_success();
    let names: Vec<PathBuf> = fs::read_dir(outcome.work())
        .expect("files")
        .map(|entry| entry.expect("a file").path())
        .collect();
    let [only] = &names[..] else {
        panic!("one file expected, not {names:?}");
    };
    let name = Path::new(only)
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let pid = name
        .strip_prefix("here-hello-")
        .and_then(|rest| rest.strip_suffix(".allocsample"));
    assert!(pid.is_some_and(|pid| pid.parse::<u32>().is_ok()), "{name}");
}

#[test]
fn what_is_written_is_for_nobody_else() {
    // A ring is there for as long as the program runs, and stays when it is killed.
    for (program, argument) in [("hello.c", ""), ("exits.c", "sigkill")] {
        let outcome = Program::compiled(program)
            .run()
            .arg(argument)
            .observed(&often());
        let paths = outcome.profile_paths();
        let rings = paths.iter().map(|path| {
            let mut ring = path.clone().into_os_string();
            ring.push(".ring");
            PathBuf::from(ring)
        });
        let written: Vec<PathBuf> = rings
            .filter(|ring| ring.exists())
            .chain(paths.iter().cloned())
            .collect();
        assert_eq!(written.len(), if argument.is_empty() { 1 } else { 2 });
        for path in written {
            let mode = fs::metadata(&path).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
    }
}

#[test]
fn a_program_with_more_rights_than_its_caller_is_left_alone() {
    const OTHER_GROUP: u32 = 65534;
    if !is_root() {
        return skip("only root can give a program the rights of another group");
    }
    let room = crate::support::Room::new();
    // The loader does not preload into such a program: it is linked with us.
    let library = agent_library();
    let flags = ["-Wl,--no-as-needed", library.to_str().expect("a path")];
    room.add(&Program::compiled_with("hello.c", &flags), "hello");
    crate::support::copy(Path::new("/usr/bin/id"), &room.path("id"));
    let run = |name: &str| {
        let output = Command::new(room.path(name))
            .env("ALLOCSAMPLE_OUTPUT", room.path("x.allocsample"))
            .env("ALLOCSAMPLE_INTERVAL", "1")
            .arg("-g")
            .output();
        let output = output.expect("the program");
        assert_eq!(crate::support::room::stderr(&output), "");
        crate::support::room::stdout(&output)
    };
    assert_eq!(run("hello"), "hello\n");
    assert!(room.path("x.allocsample").exists());
    fs::remove_file(room.path("x.allocsample")).expect("a profile");
    for name in ["hello", "id"] {
        std::os::unix::fs::chown(room.path(name), None, Some(OTHER_GROUP)).expect("root may");
        let mode = fs::Permissions::from_mode(0o2755);
        fs::set_permissions(room.path(name), mode).expect("its owner may");
    }
    if run("id").trim() != OTHER_GROUP.to_string() {
        return skip("programs get no rights by their files here");
    }
    assert_eq!(run("hello"), "hello\n");
    assert!(!room.path("x.allocsample").exists());
}

/// A collector that stops threads so takes all from their stack pointers up for their stacks. By the signals of libgc, of older and of
/// newer runtimes of D.
#[test]
fn a_thread_that_a_collector_may_stop_is_on_its_own_stack() {
    let program = Program::compiled_with("stops_threads.c", &["-pthread"]);
    let [power, cpu, first, second] = [libc::SIGPWR, libc::SIGXCPU, libc::SIGUSR1, libc::SIGUSR2];
    for signals in [[power, cpu], [second, first], [0, 0]] {
        let arguments = signals.map(|it| it.to_string());
        let arguments = arguments.each_ref().map(String::as_str);
        let run = program.run().args(&arguments);
        // Every block is sampled.
        run.observed(&Agent::at_interval(1)).assert_success();
    }
}
