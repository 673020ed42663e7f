//! The command's side of its promises: one line about each error, the statuses of a shell, and a program that runs
//! under `run` as it runs alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A working directory, with a library that every program can load in the place of the agent: what is tested here is
/// the command.
struct Room {
    directory: TempDir,
}

impl Room {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        compile(
            "int allocsample_stand_in;",
            &directory.path().join("agent.so"),
            &["-shared", "-fPIC"],
        );
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_allocsample"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_remove("LD_PRELOAD")
            .env("ALLOCSAMPLE_LIBRARY", self.path("agent.so"))
            .stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs `sh -c script` under `run`.
    fn script(&self, script: &str) -> Output {
        self.output(&["run", "--", "sh", "-c", script])
    }
}

fn compile(source: &str, output: &Path, flags: &[&str]) {
    let file = output.with_extension("c");
    fs::write(&file, source).unwrap();
    let status = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(output)
        .arg(&file)
        .status();
    assert!(status.unwrap().success());
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn assert_usage_error(output: &Output, what: &str) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.contains(what),
        "{stderr}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn what_makes_no_sense_is_one_line_and_status_2() {
    let room = Room::new();
    for (arguments, what) in [
        (&[][..], "no command given; see `allocsample --help`"),
        (
            &["frobnicate"],
            "unrecognized subcommand 'frobnicate'; see `allocsample --help`",
        ),
        (&["runn"], "a similar subcommand exists: 'run'"),
        (&["run"], "see `allocsample run --help`"),
        (
            &["run", "--interval", "0", "--", "true"],
            "use 1 to record every allocation, or off",
        ),
        (
            &["run", "--interval", "banana", "--", "true"],
            "invalid value 'banana' for '--interval",
        ),
        (
            &["run", "--sampling", "often", "--", "true"],
            "possible values: poisson, periodic",
        ),
        (
            &["run", "--seed", "x", "--", "true"],
            "invalid value 'x' for '--seed",
        ),
        (
            &["run", "--max-depth", "0", "--", "true"],
            "invalid value '0' for '--max-depth",
        ),
        (
            &["run", "-o", "no/such/x", "--", "true"],
            "there is no directory",
        ),
        (&["run", "-o", ".", "--", "true"], "is a directory"),
        (&["run", "-o", "", "--", "true"], "--output"),
    ] {
        assert_usage_error(&room.output(arguments), what);
    }
}

#[test]
fn nothing_runs_when_the_profile_could_not_be_written() {
    let room = Room::new();
    let arguments = ["run", "-o", "/proc/x.allocsample", "--", "touch", "ran"];
    let output = room.output(&arguments);
    assert_usage_error(&output, "cannot write into /proc");
    assert!(!room.path("ran").exists());
}

#[test]
fn every_command_has_help_with_an_example() {
    let room = Room::new();
    for arguments in [&["--help"][..], &["run", "--help"]] {
        let output = room.output(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Example"), "{arguments:?}");
    }
}

#[test]
fn a_missing_library_is_one_line_that_says_what_to_do() {
    let room = Room::new();
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

#[test]
fn the_status_is_the_programs() {
    let room = Room::new();
    for status in [0, 1, 7, 126, 255] {
        let output = room.script(&format!("exit {status}"));
        assert_eq!(output.status.code(), Some(status));
    }
}

#[test]
fn a_program_that_is_missing_or_cannot_be_run_has_a_shells_status() {
    let room = Room::new();
    fs::write(room.path("data"), "not a program").unwrap();
    fs::write(room.path("orphan"), "#!/no/interpreter\n").unwrap();
    fs::set_permissions(room.path("orphan"), fs::Permissions::from_mode(0o755)).unwrap();
    for (program, status, what) in [
        ("no-such-program", 127, "no-such-program: command not found"),
        ("./no-such-program", 127, "./no-such-program: no such file"),
        (
            "./orphan",
            127,
            "./orphan: its interpreter or loader does not exist",
        ),
        ("./data", 126, "./data: permission denied"),
        ("/", 126, "/: is a directory"),
    ] {
        let output = room.output(&["run", "--", program]);
        assert_eq!(output.status.code(), Some(status), "{program}");
        assert_eq!(stderr(&output), format!("allocsample: {what}\n"));
    }
}

#[test]
fn a_script_without_an_interpreter_line_runs_as_in_a_shell() {
    let room = Room::new();
    fs::write(room.path("script"), "echo \"$0 $1\"; exit 5\n").unwrap();
    fs::set_permissions(room.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = room.output(&["run", "--", "./script", "x"]);
    assert_eq!(stdout(&output), "./script x\n");
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn death_by_a_signal_is_passed_on_without_a_core_of_ours() {
    let room = Room::new();
    for signal in [1, 2, 3, 6, 9, 11, 13, 15] {
        let output = room.script(&format!("kill -{signal} $$"));
        assert_eq!(output.status.signal(), Some(signal), "{}", stderr(&output));
        assert!(!output.status.core_dumped());
    }
}

#[test]
fn input_and_output_pass_through_untouched() {
    let room = Room::new();
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
    let room = Room::new();
    let look = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd";
    for prepare in [
        "trap '' PIPE HUP INT",
        "trap '' TERM",
        "exec <&-",
        "exec 2>&-",
        ":",
    ] {
        let alone = format!("{prepare}; sh -c \"{look}\"");
        let bin = env!("CARGO_BIN_EXE_allocsample");
        let under = format!("{prepare}; '{bin}' run --quiet -- sh -c \"{look}\"");
        let outputs = [alone, under].map(|script| {
            let mut command = Command::new("sh");
            command
                .args(["-c", &script])
                .current_dir(room.directory.path());
            command.env("ALLOCSAMPLE_LIBRARY", room.path("agent.so"));
            stdout(&command.output().unwrap())
        });
        assert!(outputs[0].contains("SigIgn"));
        assert_eq!(outputs[0], outputs[1], "{prepare}");
    }
}

#[test]
fn signals_that_are_sent_to_us_reach_the_program() {
    let room = Room::new();
    for signal in ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2"] {
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
    let room = Room::new();
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
    let here = fs::canonicalize(room.directory.path()).unwrap();
    let (agent, here) = (room.path("agent.so"), here.display());
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
    let room = Room::new();
    let odd = room.path("a b:c");
    fs::create_dir(&odd).unwrap();
    fs::copy(room.path("agent.so"), odd.join("agent.so")).unwrap();
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
    let room = Room::new();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n\
                  int main(void) { puts(getenv(\"LD_PRELOAD\") ? \"preload\" : \"none\"); return 3; }";
    compile(source, &room.path("static"), &["-static"]);
    compile(source, &room.path("static-pie"), &["-static-pie"]);
    compile(source, &room.path("dynamic"), &[]);
    fs::write(
        room.path("script"),
        format!("#!{}\n", room.path("static").display()),
    )
    .unwrap();
    fs::set_permissions(room.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let why = "is statically linked: LD_PRELOAD cannot reach it, it runs without a profile";
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
    let room = Room::new();
    let flags = ["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"];
    compile("int main(void) { return 0; }", &room.path("musl"), &flags);
    let output = room.output(&["run", "--", "./musl"]);
    let stderr = stderr(&output);
    let mut lines = stderr.lines();
    assert_eq!(
        lines.next(),
        Some(
            "allocsample: ./musl uses /lib/ld-musl-x86_64.so.1 instead of glibc's loader: the agent does not fit into \
             it, it runs without a profile"
        )
    );
}

#[test]
fn a_setuid_program_is_named_to_those_for_whom_it_is_one() {
    let room = Room::new();
    let program = room.path("setuid");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&program).unwrap());
    let mut command = room.command(&["run", "--", "./setuid"]);
    let expected = if owner == 0 {
        // Root tests as somebody else.
        fs::set_permissions(room.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        command.uid(65534);
        "allocsample: ./setuid is setuid: the loader ignores LD_PRELOAD for it, it runs without a profile\n"
    } else {
        "allocsample: no profile"
    };
    let output = command.output().unwrap();
    assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_run_without_a_profile_says_why() {
    let room = Room::new();
    for (options, why) in [
        (
            &["--interval", "off"][..],
            "no profile: the interval is off",
        ),
        (
            &["--start", "off"],
            "no profile: sampling was off from the start",
        ),
        (
            &[],
            "no profile: the program ended (status 0) before its first sample",
        ),
    ] {
        let output = room.output(&[&["run"], options, &["--", "true"]].concat());
        let stderr = stderr(&output);
        assert!(
            stderr.starts_with(&format!("allocsample: {why}")),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
