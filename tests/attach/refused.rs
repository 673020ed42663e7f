//! Promise: where the agent cannot go, one line says why, and the process is left as it was.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::attached::{Attached, is_in_state};
use crate::support::profile::Profile;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::{Program, Room, is_installed, is_root, skip};
use rustix::process::{Pid, Resource, Rlimit, getrlimit};

#[test]
fn a_filter_of_system_calls_is_respected_unless_told_otherwise() {
    let mut running = Attached::start();
    running.ask("seccomp");
    let pid = running.pid();
    running.fails(&["attach", &pid], "it runs under a seccomp filter");
    running.attach(&["--despite-seccomp", "--interval", "1K"]);
    running.ask("allocate first 1000 500");
    running.fails(&["detach", &pid], "--despite-seccomp");
    let output = running.room.output(&["detach", &pid, "--despite-seccomp"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    running.ask("free");
    running.ends_well();
}

#[test]
fn a_process_without_room_for_thread_local_memory_is_told_so() {
    let mut running = Attached::start();
    // Each takes 256 bytes of the loader's reserve, until one finds no room: then there is less left than we need.
    let mut at = 0;
    loop {
        let name = format!("libtls{at}.so");
        let library = Program::library("big_tls_library.c", &name, &["-DINITIAL_EXEC"]);
        if running.ask(&format!("try {}", library.path().display())) != "done" {
            break;
        }
        at += 1;
        assert!(at < 100, "there is always room");
    }
    let output = running.room.output(&["attach", &running.pid()]);
    assert_error(
        &output,
        1,
        "no static thread-local memory left, of which the agent needs",
    );
    running.ask("churn 100");
    running.ends_well();
}

#[test]
fn what_stands_in_the_way_is_said_in_one_line() {
    let mut running = Attached::start();
    let pid = running.pid();
    running.fails(&["detach", &pid], "it has not loaded the agent");
    running.fails(
        &["attach", &pid, "-o", "/no/such/place/x.allocsample"],
        "/no/such/place: no such directory",
    );
    running.fails(
        &["attach", &pid, "-o", "/proc/x.allocsample"],
        "/proc: the profile cannot be created",
    );
    running.fails(&["attach", "1073741824"], "there is no such process");
    // After a refusal it can be done right, and once.
    running.attach(&[]);
    running.fails(&["attach", &pid], "already attached");
    running.detach();
    running.fails(&["detach", &pid], "not attached");
    assert_error(
        &running.room.output(&["attach", "pid"]),
        2,
        "invalid value 'pid'",
    );
    assert_error(
        &running.room.output(&["attach", &pid, "--interval", "0"]),
        2,
        "ambiguous",
    );
    running.ask("churn 100");
    running.ends_well();
}

#[test]
fn a_stopped_or_traced_process_is_left_alone() {
    let running = Attached::start();
    let pid = running.pid();
    let send = |signal: &str| {
        let sent = Command::new("kill").args([signal, pid.as_str()]).status();
        assert!(sent.expect("kill").success());
    };
    send("-STOP");
    let is_stopped = || is_in_state(&pid, 'T');
    while !is_stopped() {
        std::thread::yield_now();
    }
    running.fails(&["attach", &pid], "it is stopped");
    send("-CONT");
    while is_stopped() {
        std::thread::yield_now();
    }
    if is_installed("strace") {
        let tracer = Command::new("strace")
            .args(["-qq", "-o", "/dev/null", "-p", &pid])
            .spawn();
        let mut tracer = tracer.expect("strace");
        let is_traced = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process");
            !status.contains("TracerPid:\t0")
        };
        while !is_traced() {
            std::thread::yield_now();
        }
        running.fails(&["attach", &pid], "it is being traced by process");
        tracer.kill().expect("strace");
        tracer.wait().expect("strace");
        while is_traced() {
            std::thread::yield_now();
        }
    }
    running.attach(&[]);
    running.ends_well();
}

#[test]
fn a_static_program_is_told_apart() {
    let room = Room::new();
    room.add(
        &Program::compiled_with("attached.c", &["-static"]),
        "attached",
    );
    let mut child = Command::new(room.path("attached"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("ready");
    let pid = child.id().to_string();
    assert_error(&room.output(&["attach", &pid]), 1, "linked statically");
    drop(child.stdin.take());
    assert!(child.wait().expect("the program").success());
}

/// As Debian's musl is: one file, `libc.so`, is the loader and the library. glibc's loader plays it for a program that needs no
/// library.
#[test]
fn a_dynamic_program_of_another_libc_is_not_called_static() {
    const SOURCE: &str = "
void _start(void) {
    long result = 1;
    asm volatile(\"syscall\" : \"+a\"(result) : \"D\"(1), \"S\"(\"!\\n\"), \"d\"(2) : \"rcx\", \"r11\", \"memory\");
    for (;;) {
        result = 34; /* pause */
        asm volatile(\"syscall\" : \"+a\"(result) : : \"rcx\", \"r11\", \"memory\");
    }
}
";
    let loader = std::path::Path::new("/lib64/ld-linux-x86-64.so.2");
    if !loader.exists() {
        return skip("not x86-64");
    }
    let room = Room::new();
    fs::copy(loader, room.path("libc.so")).expect("room");
    fs::write(room.path("it.c"), SOURCE).expect("room");
    let flag = format!("-Wl,--dynamic-linker={}", room.path("libc.so").display());
    let compiled = Command::new("cc")
        .args(["-nostdlib", "-pie", "-fpie", &flag, "-o"])
        .args([room.path("it"), room.path("it.c")])
        .status();
    assert!(compiled.expect("a compiler").success());
    let mut child = Command::new(room.path("it"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("ready");
    let refused = room.output(&["attach", &child.id().to_string()]);
    child.kill().expect("the program");
    child.wait().expect("the program");
    assert_error(&refused, 1, "libc.so; the agent needs glibc");
}

#[test]
fn a_process_of_another_user_is_refused() {
    if !is_root() || !is_installed("setpriv") {
        return skip("another user needs root and setpriv");
    }
    let running = Attached::start();
    // The command as somebody who may not.
    let command: PathBuf = crate::support::command().to_owned();
    let readable = tempfile::tempdir().expect("a directory");
    let copy = readable.path().join("allocsample");
    crate::support::copy(&command, &copy);
    let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(readable.path(), open).expect("permissions");
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["attach", &running.pid()])
        .current_dir("/")
        .output()
        .expect("setpriv");
    assert_error(&output, 1, "it belongs to another user");
    running.ends_well();
}

/// Whatever it is looking for in the process at that moment.
#[test]
fn a_process_that_ends_during_the_attach_is_said_to_have_ended() {
    const TRIES: u32 = 40;
    let room = Room::new();
    for attempt in 0..TRIES {
        // An attach takes some 20 ms: from before it begins to after it is done.
        let delay = format!("{}", f64::from(attempt) * 0.001);
        let mut program = Command::new("sleep").arg(delay).spawn().expect("sleep");
        let output = room.output(&["attach", &program.id().to_string()]);
        program.wait().expect("its end");
        let said = stderr(&output);
        let is_expected = [
            "it ended meanwhile",
            "it has ended",
            "there is no such process",
        ]
        .iter()
        .any(|reason| said.contains(reason));
        assert!(output.status.success() || is_expected, "{said}");
    }
}

/// What a command says in a directory, on stdout and on stderr.
#[track_caller]
fn said_in(directory: &Path, room: &Room, arguments: &[&str]) -> (String, String) {
    let output = room.command(arguments).current_dir(directory).output();
    let output = output.expect("the command");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    (stdout(&output), stderr(&output))
}

/// systemd's `PrivateTmp` gives a service a /tmp of its own below the root that all share. A profile there is not at this path for us.
#[test]
fn a_directory_of_the_processs_own_at_the_same_path_is_not_taken_for_ours() {
    if !is_root() || !is_installed("unshare") {
        return skip("mount namespaces need root and unshare");
    }
    let mut running = Attached::start_as(|room| {
        let own = room.path("own");
        fs::create_dir(&own).expect("the room");
        let script = format!(
            "mount -t tmpfs none '{}' && exec '{}'",
            own.display(),
            room.path("attached").display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        command
    });
    let pid = running.pid();
    let (shared, own) = (
        running.room.directory().to_owned(),
        running.room.path("own"),
    );
    // Its directory as the process names it.
    let named = own.join("x.allocsample");
    let attach = ["attach", &pid, "--interval", "1K"];
    let there = [&attach[..], &["-o", named.to_str().expect("text")]].concat();
    let (said, remark) = said_in(&shared, &running.room, &there);
    let expected = format!("process {pid}: /proc/{pid}/root{}\n", named.display());
    assert_eq!(said, expected);
    assert!(
        remark.contains("that path ends with the process"),
        "{remark}"
    );
    running.ask("allocate first 1000 500");
    let (said, remark) = said_in(&shared, &running.room, &["detach", &pid]);
    assert!(remark.contains("copy the profile"), "{remark}");
    let (path, _) = said.split_once(": ").expect("a path");
    assert!(Profile::read(Path::new(path)).site("first").samples > 0);
    // From this directory, which it cannot see, the profile goes to its own.
    let (said, remark) = said_in(&own, &running.room, &attach);
    assert_eq!(remark, "");
    let profile = said.trim_end().rsplit(": ").next().expect("a path");
    assert_eq!(Path::new(profile).parent(), Some(shared.as_path()));
    said_in(&own, &running.room, &["detach", &pid]);
    running.ends_well();
}

/// The agent would fit, and leave the program nothing.
#[test]
fn a_limit_that_the_agent_would_exhaust_keeps_it_out() {
    let mut running = Attached::start();
    let pid = Pid::from_raw(running.pid().parse().expect("a number"));
    assert!(pid.is_some());
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid()));
    let status = status.expect("the process");
    let limits = [
        (Resource::As, "VmSize:", "address space", "--as"),
        (Resource::Data, "VmData:", "data", "--data"),
    ];
    for (resource, used, what, option) in limits {
        let used = status.lines().find_map(|line| line.strip_prefix(used));
        let used = used.and_then(|size| size.split_whitespace().next());
        let used_kib: u64 = used.expect("a size").parse().expect("a number");
        let maximum = getrlimit(resource).maximum;
        let set = |current| {
            let limit = Rlimit { current, maximum };
            rustix::process::prlimit(pid, resource, limit).expect("a limit")
        };
        let before = set(Some((used_kib + (40 << 10)) << 10));
        let (maps, descriptors) = (running.mapped_files(), running.entries("fd"));
        let refused = running.room.output(&["attach", &running.pid()]);
        assert_error(&refused, 1, &format!("its limit of {what} leaves it"));
        assert!(stderr(&refused).contains(&format!("{option}=SOFT:HARD")));
        assert_eq!(running.mapped_files(), maps);
        assert_eq!(running.entries("fd"), descriptors);
        // 32 MiB are there for the program.
        running.ask("allocate first 32 1048576");
        running.ask("free");
        set(before.current);
    }
    running.attach(&[]);
    running.detach();
    running.ends_well();
}

#[test]
fn a_directory_that_the_process_cannot_write_to_comes_with_a_remedy() {
    if !is_root() || !is_installed("setpriv") {
        return skip("another user needs root and setpriv");
    }
    let readable: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let running = Attached::start_as(|room| {
        fs::set_permissions(room.directory(), readable).expect("permissions");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups"]);
        command.arg(room.path("attached"));
        command
    });
    running.fails(
        &["attach", &running.pid()],
        "its user may not create files there; name a file with -o that the process itself can create",
    );
    running.ends_well();
}

/// The first process of a server often only starts those that work.
#[test]
fn children_that_run_the_same_program_are_named_at_an_attach() {
    let mut running = Attached::start();
    let attach = |running: &Attached| {
        let output = running.room.output(&["attach", &running.pid()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    assert_eq!(attach(&running), "");
    running.detach();
    let child = running.ask("worker");
    // It has the agent from its parent, which was attached to before.
    let output = running.room.output(&["ctl", &child, "status"]);
    assert_error(&output, 1, "was forked from a process with the agent");
    let said = attach(&running);
    assert!(
        said.contains(&format!(
            "a child runs the same program, and is not in this profile: {child} ("
        )) && said.contains("attach to it"),
        "{said}"
    );
    running.detach();
    running.ends_well();
}
