//! Promise: a program under `run` is started as a shell starts it, runs as it runs alone, and ends as it ends alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use crate::support::room::{assert_error, stderr, stdout};
use crate::support::{Program, Room, command, is_root};
use nix::sys::signal::{self, SigHandler, Signal};

#[test]
fn the_status_is_the_programs() {
    let room = Room::without_agent();
    for status in [0, 1, 7, 126, 255] {
        let output = room.script(&format!("exit {status}"));
        assert_eq!(output.status.code(), Some(status));
    }
}

#[test]
fn a_program_that_is_missing_or_cannot_be_run_has_a_shells_status() {
    let room = Room::without_agent();
    fs::write(room.path("data"), "not a program").unwrap();
    room.write_executable("orphan", "#!/no/interpreter\n");
    for (program, status, what) in [
        ("no-such-program", 127, "no-such-program: command not found"),
        ("./no-such-program", 127, "./no-such-program: no such file"),
        (
            "./orphan",
            127,
            "./orphan: its interpreter or loader does not exist",
        ),
        (
            "./data",
            126,
            "./data: permission denied: it is not executable",
        ),
        ("/", 126, "/: is a directory"),
    ] {
        let output = room.output(&["run", "--", program]);
        assert_eq!(output.status.code(), Some(status), "{program}");
        assert_eq!(stderr(&output), format!("error: {what}\n"));
    }
}

#[test]
fn a_script_without_an_interpreter_line_runs_as_in_a_shell() {
    let room = Room::without_agent();
    room.write_executable("script", "echo \"$0 $1\"; exit 5\n");
    let output = room.output(&["run", "--", "./script", "x"]);
    assert_eq!(stdout(&output), "./script x\n");
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn the_status_is_known_where_sigchld_is_ignored() {
    let room = Room::without_agent();
    let run = format!(
        "trap '' CHLD; exec '{}' run --quiet --",
        command().display()
    );
    for (program, status) in [("sh -c 'exit 9'", 9), ("no-such-program", 127)] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{run} {program}")]);
        command.env("ALLOCSAMPLE_LIBRARY", room.agent());
        let output = command.current_dir(room.directory()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
    }
}

#[test]
fn death_by_a_signal_is_passed_on_without_a_core_of_ours() {
    // What runs in the background of a shell ignores these, and so do its children.
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: no handler is installed.
        unsafe { signal::signal(signal, SigHandler::SigDfl) }.expect("a signal");
    }
    let room = Room::without_agent();
    for signal in [1, 2, 3, 6, 9, 11, 13, 15] {
        let output = room.script(&format!("kill -{signal} $$"));
        assert_eq!(output.status.signal(), Some(signal), "{}", stderr(&output));
        assert!(!output.status.core_dumped());
    }
}

#[test]
fn input_and_output_pass_through_untouched() {
    let room = Room::without_agent();
    let script = "cat; echo out; echo err >&2";
    let mut command = room.command(&["run", "--quiet", "--", "sh", "-c", script]);
    fs::write(room.path("in"), "input\n").unwrap();
    let output = command
        .stdin(fs::File::open(room.path("in")).unwrap())
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "input\nout\n");
    assert_eq!(stderr(&output), "err\n");
}

#[test]
fn dispositions_mask_and_closed_descriptors_are_what_the_shell_gave() {
    let room = Room::without_agent();
    let look = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd";
    for prepare in [
        "trap '' PIPE HUP INT",
        "trap '' TERM",
        "trap '' CHLD USR1",
        "exec <&-",
        "exec 2>&-",
        ":",
    ] {
        let alone = format!("{prepare}; sh -c \"{look}\"");
        let under = format!(
            "{prepare}; '{}' run --quiet -- sh -c \"{look}\"",
            command().display()
        );
        let outputs = [alone, under].map(|script| {
            let mut command = Command::new("sh");
            command.args(["-c", &script]).current_dir(room.directory());
            command.env("ALLOCSAMPLE_LIBRARY", room.agent());
            stdout(&command.output().unwrap())
        });
        assert!(outputs[0].contains("SigIgn"));
        assert_eq!(outputs[0], outputs[1], "{prepare}");
    }
}

/// Whether this process ignores a signal, as its children then do.
fn is_ignored_here(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (number - 1) & 1 == 1
}

#[test]
fn signals_that_are_sent_to_us_reach_the_program() {
    let room = Room::without_agent();
    for (number, signal) in [
        (1, "HUP"),
        (2, "INT"),
        (3, "QUIT"),
        (15, "TERM"),
        (10, "USR1"),
        (12, "USR2"),
    ] {
        // A shell cannot trap what was ignored when it started, as HUP is under nohup.
        if is_ignored_here(number) {
            eprintln!("SKIPPED: SIG{signal} is ignored where this test was started");
            continue;
        }
        // The program's parent is the command: it sends the signal there, and waits for it to come back.
        let script = format!(
            "trap 'exit 33' {signal}; kill -{signal} $PPID; while :; do read x < fifo; done"
        );
        let _ = fs::remove_file(room.path("fifo"));
        assert!(
            Command::new("mkfifo")
                .arg(room.path("fifo"))
                .status()
                .unwrap()
                .success()
        );
        let output = room.script(&script);
        assert_eq!(
            output.status.code(),
            Some(33),
            "{signal}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn only_options_that_were_given_are_set() {
    let room = Room::without_agent();
    let mut command = room.command(&[
        "run",
        "-o",
        "x.%p",
        "--interval",
        "64K",
        "--sampling",
        "periodic",
        "--seed",
        "5",
        "--unwind",
        "dwarf",
        "--max-depth",
        "9",
        "--",
        "env",
    ]);
    command
        .env("LD_PRELOAD", "libm.so.6")
        .env("ALLOCSAMPLE_START", "off")
        .env("ALLOCSAMPLE_SEED", "4");
    let output = stdout(&command.output().unwrap());
    let mut variables: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("ALLOCSAMPLE_") || line.starts_with("LD_PRELOAD"))
        // Its value is the command's own pid.
        .filter(|line| !line.starts_with("ALLOCSAMPLE_RUN_PID="))
        .collect();
    variables.sort_unstable();
    let here = fs::canonicalize(room.directory()).unwrap();
    let (agent, here) = (room.agent(), here.display());
    let expected = [
        "ALLOCSAMPLE_INTERVAL=64K".into(),
        format!("ALLOCSAMPLE_LIBRARY={}", agent.display()),
        "ALLOCSAMPLE_MAX_DEPTH=9".into(),
        format!("ALLOCSAMPLE_OUTPUT={here}/x.%p"),
        "ALLOCSAMPLE_SAMPLING=periodic".into(),
        "ALLOCSAMPLE_SEED=5".into(),
        "ALLOCSAMPLE_START=off".into(),
        "ALLOCSAMPLE_UNWIND=dwarf".into(),
        format!("LD_PRELOAD={}:libm.so.6", agent.display()),
    ];
    assert_eq!(variables, expected);
}

#[test]
fn a_library_under_an_odd_path_is_loaded_through_a_link_that_goes_away() {
    let room = Room::without_agent();
    let odd = room.path("a b:c");
    fs::create_dir(&odd).unwrap();
    fs::copy(room.agent(), odd.join("agent.so")).unwrap();
    let mut command = room.command(&[
        "run",
        "--quiet",
        "--",
        "sh",
        "-c",
        "echo $LD_PRELOAD; grep -c agent.so /proc/$$/maps",
    ]);
    let output = command
        .env("ALLOCSAMPLE_LIBRARY", odd.join("agent.so"))
        .output()
        .unwrap();
    let stdout = stdout(&output);
    let (link, mapped) = stdout.split_once('\n').unwrap();
    assert!(mapped.trim().parse::<u32>().unwrap() > 0);
    assert!(!link.contains([' ']) && !link.contains("c/agent"));
    assert!(!Path::new(link).exists() && !Path::new(link).parent().unwrap().exists());
    assert_eq!(stderr(&output), "");
}

#[test]
fn programs_that_cannot_be_reached_run_unharmed_after_one_line() {
    let room = Room::without_agent();
    for (name, flags) in [
        ("static", &["-static"][..]),
        ("static-pie", &["-static-pie"]),
        ("dynamic", &[]),
    ] {
        room.add(&Program::compiled_with("preloaded.c", flags), name);
    }
    let interpreted = format!("#!{}\n", room.path("static").display());
    room.write_executable("script", interpreted);
    let why = "is statically linked: LD_PRELOAD cannot reach it; it runs without a profile";
    for (program, named) in [("static", "./static"), ("static-pie", "./static-pie")] {
        let output = room.output(&["run", "--", &format!("./{program}")]);
        assert_eq!(stderr(&output), format!("allocsample: {named} {why}\n"));
        assert_eq!(stdout(&output), "none\n");
        assert_eq!(output.status.code(), Some(3));
    }
    let output = room.output(&["run", "--", "./script"]);
    let named = room.path("static");
    assert_eq!(
        stderr(&output),
        format!("allocsample: {} {why}\n", named.display())
    );
    assert_eq!(output.status.code(), Some(3));
    let output = room.output(&["run", "--", "./dynamic"]);
    assert_eq!(stdout(&output), "preload\n");
    assert!(!stderr(&output).contains("without a profile"));
}

#[test]
fn another_loader_is_recognised_by_its_name() {
    let room = Room::without_agent();
    let flags = ["-Wl,--dynamic-linker=/lib/ld-other.so.1"];
    room.add(&Program::compiled_with("preloaded.c", &flags), "other");
    let output = room.output(&["run", "--", "./other"]);
    let stderr = stderr(&output);
    let mut lines = stderr.lines();
    assert_eq!(
        lines.next(),
        Some(
            "allocsample: ./other uses /lib/ld-other.so.1, which is neither glibc's loader nor musl's: the agent does \
             not fit into it; it runs without a profile"
        )
    );
}

#[test]
fn a_setuid_program_is_named_to_those_for_whom_it_is_one() {
    let room = Room::without_agent();
    let program = room.path("setuid");
    crate::support::copy(Path::new("/bin/true"), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut command = room.command(&["run", "--", "./setuid"]);
    let expected = if is_root() {
        // Root tests as somebody else.
        fs::set_permissions(room.directory(), fs::Permissions::from_mode(0o777)).unwrap();
        command.uid(65534);
        "allocsample: ./setuid is setuid: the loader ignores LD_PRELOAD for it; it runs without a profile\n"
    } else {
        "allocsample: no profile"
    };
    let output = command.output().unwrap();
    assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn nothing_runs_when_the_profile_could_not_be_written() {
    let room = Room::without_agent();
    let arguments = ["run", "-o", "/proc/x.allocsample", "--", "touch", "ran"];
    let output = room.output(&arguments);
    assert_error(&output, 2, "cannot write into /proc");
    assert!(!room.path("ran").exists());
}

#[test]
fn a_missing_library_is_one_line_that_says_what_to_do() {
    let room = Room::without_agent();
    let mut command = room.command(&["run", "--", "touch", "ran"]);
    let output = command
        .env("ALLOCSAMPLE_LIBRARY", "/nowhere/agent.so")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "error: /nowhere/agent.so: no such file; ALLOCSAMPLE_LIBRARY must name liballocsample.so\n"
    );
    assert!(!room.path("ran").exists());
}

/// Sanitizers have a malloc of their own, and refuse to run behind another one.
#[test]
fn a_program_built_with_a_sanitizer_runs_as_it_does_alone() {
    let room = Room::new();
    let kinds: [(&[&str], &str); 6] = [
        (&["-fsanitize=address"], "AddressSanitizer"),
        (&["-fsanitize=thread"], "ThreadSanitizer"),
        (&["-fsanitize=leak"], "LeakSanitizer"),
        // Runtimes that are part of the program: clang's are, with names, and gcc's can be, without.
        (&["-DWITH_A_RUNTIME", "-rdynamic"], "AddressSanitizer"),
        (
            &["-fsanitize=address", "-static-libasan", "-s"],
            "a sanitizer",
        ),
        (
            &["-fsanitize=thread", "-static-libtsan", "-s"],
            "a sanitizer",
        ),
    ];
    for (flags, name) in kinds {
        let Some(program) = Program::compiled_if_possible("sanitized.c", flags) else {
            crate::support::skip(&format!("no runtime for {flags:?}"));
            continue;
        };
        let name_here = format!("with{}", flags.concat().replace('=', "-"));
        room.add(&program, &name_here);
        let program = format!("./{name_here}");
        let output = room.output(&["run", "-o", "x.allocsample", "--", &program]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(7), "{flags:?}: {said}");
        assert_eq!(stdout(&output), "it runs\n", "{flags:?}");
        let expected = format!(
            "allocsample: {program} runs with {name}, which replaces malloc itself; it runs without a profile\n"
        );
        assert_eq!(said, expected, "{flags:?}");
        assert!(!room.path("x.allocsample").exists());
    }
}

/// The user preloads it for the sake of a library: an interpreter's extension, for example. It has to come first.
#[test]
fn a_program_that_gets_a_sanitizer_from_the_user_runs_without_a_profile() {
    let room = Room::new();
    let compiler = Command::new("gcc")
        .arg("-print-file-name=libasan.so")
        .output();
    let library = compiler.map(|output| stdout(&output).trim().to_owned());
    let Some(library) = library.ok().filter(|path| path.starts_with('/')) else {
        return crate::support::skip("no gcc, or no libasan.so");
    };
    room.add(&Program::compiled("sanitized.c"), "plain");
    let output = room
        .command(&["run", "-o", "x.allocsample", "--", "./plain"])
        .env("LD_PRELOAD", &library)
        // The command is not what is to be examined.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .output()
        .expect("the command");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "it runs\n");
    let expected = "allocsample: ./plain runs with AddressSanitizer, which replaces malloc itself; it runs without a profile\n";
    assert_eq!(stderr(&output), expected);
}

/// It is the loader that says so, once, as it does without us.
#[test]
fn a_preloaded_library_of_the_users_that_is_missing_does_not_prevent_the_profile() {
    let room = Room::new();
    room.add(&Program::compiled("sanitized.c"), "plain");
    let output = room
        .command(&["run", "-o", "x.allocsample", "--", "./plain"])
        .env("LD_PRELOAD", "/nonexistent/libusers.so")
        .output()
        .expect("the command");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(!said.contains("without a profile"), "{said}");
    assert!(room.path("x.allocsample").exists());
}

/// The loader would say so on the program's stderr, or not run it at all.
#[test]
fn a_library_that_the_loader_does_not_take_is_left_out() {
    let room = Room::without_agent();
    // It is where the linker finds it and the loader does not look.
    let missing = Program::library("stand_in.c", "libmissing.so", &["-DMISSING"]);
    let directory = format!("-L{}", missing.path().parent().unwrap().display());
    let needs = ["-Wl,--no-as-needed", &directory, "-lmissing"];
    let agent = Program::library("stand_in.c", "libneeding.so", &needs);
    fs::write(room.path("text"), "no library").unwrap();
    for (library, why) in [
        (
            agent.path().to_owned(),
            "(libmissing.so: cannot open shared object file: No such file or directory)",
        ),
        (room.path("text"), "(file too short)"),
    ] {
        let mut command =
            room.command(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 9"]);
        let output = command
            .env("ALLOCSAMPLE_LIBRARY", &library)
            .output()
            .unwrap();
        let said = stderr(&output);
        assert_eq!(
            (output.status.code(), &*stdout(&output)),
            (Some(9), "out\n"),
            "{said}"
        );
        let (first, rest) = said.split_once('\n').unwrap();
        assert!(
            first.contains(why) && first.ends_with("it runs without a profile"),
            "{said}"
        );
        assert_eq!(rest, "err\n");
    }
}

/// In a directory that others write to, somebody else's file may have the name.
#[test]
fn a_ring_that_is_there_already_costs_a_name_and_no_profile() {
    let room = Room::new();
    let ring = room.path("x.allocsample.ring");
    fs::write(&ring, "somebody's").unwrap();
    let is_foreign = is_root();
    if is_foreign {
        std::os::unix::fs::chown(&ring, Some(65534), Some(65534)).unwrap();
    }
    let output = room.record("x.allocsample", &[], &[]);
    let said = stderr(&output);
    let whose = if is_foreign { ", of user 65534" } else { "" };
    assert!(
        said.contains(&format!(
            "x.allocsample.ring already exists{whose}; the profile gets a number"
        )),
        "{said}"
    );
    let report = room.output(&["report", "x.1.allocsample"]);
    assert_eq!(report.status.code(), Some(0), "{}", stderr(&report));
    assert_eq!(fs::read_to_string(&ring).unwrap(), "somebody's");
    assert!(!room.path("x.allocsample").exists());
}
