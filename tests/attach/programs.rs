//! Promise: programs that nobody made for a test are attached to at full load, and answer every request.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::profile::Profile;
use crate::support::room::{Room, stderr, stdout};
use crate::support::{is_installed, skip};

/// Ends with the test, whatever comes.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Both can fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn done(room: &Room, arguments: &[&str]) -> String {
    let output = room.output(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

/// Ends the profile, and reads it.
#[track_caller]
fn detach(room: &Room, pid: &str) -> Profile {
    let said = done(room, &["detach", pid, "--no-symbolize"]);
    let (path, _) = said.split_once(": ").expect("a path");
    let profile = Profile::read(Path::new(path));
    assert!(profile.is_complete(), "{}", profile.report);
    profile
}

#[test]
fn an_interpreter_is_attached_to_between_two_lines() {
    const PYTHON: &str = "/usr/bin/python3";
    if !Path::new(PYTHON).exists() {
        return skip("python3 is not installed");
    }
    let script = "
import sys
kept = []
print('ready', flush=True)
for line in sys.stdin:
    kept.append([bytearray(100_000) for _ in range(int(line))])
    assert all(len(block) == 100_000 and not any(block[:100]) for block in kept[-1])
    if len(kept) > 2:
        kept.pop(0)
    print('done', flush=True)
";
    let room = Room::new();
    let child = Command::new(PYTHON)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut python = Server(child.expect("python3"));
    let pid = python.0.id().to_string();
    let mut input = python.0.stdin.take().expect("a pipe");
    let mut output = BufReader::new(python.0.stdout.take().expect("a pipe"));
    let mut answer = |expected: &str| {
        let mut line = String::new();
        output.read_line(&mut line).expect("an answer");
        assert_eq!(line.trim_end(), expected);
    };
    answer("ready");
    for turn in 0..3 {
        writeln!(input, "200").expect("it listens");
        answer("done");
        done(&room, &["attach", &pid, "--interval", "16K", "--seed", "5"]);
        writeln!(input, "500").expect("it listens");
        answer("done");
        let profile = detach(&room, &pid);
        // 500 blocks of 100,000 bytes, and what else Python needs; all that is left of before was freed unseen.
        let (bytes, error) = (
            profile.total("allocated_bytes"),
            profile.total("allocated_bytes_stderr"),
        );
        assert!(
            (bytes - 50e6).abs() < 4.0 * error + 1e6,
            "turn {turn}: {bytes} ± {error}"
        );
    }
    drop(input);
    assert!(python.0.wait().expect("python3").success());
}

#[test]
fn a_server_answers_every_request_meanwhile() {
    for program in ["redis-server", "redis-benchmark", "redis-cli"] {
        if !is_installed(program) {
            return skip(&format!("{program} is not installed"));
        }
    }
    let room = Room::new();
    let socket = room.path("socket");
    let socket = socket.to_str().expect("a path");
    let server = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no"])
        .args(["--unixsocket", socket, "--dir"])
        .arg(room.directory())
        .stdout(Stdio::null())
        .spawn();
    let mut server = Server(server.expect("redis-server"));
    let pid = server.0.id().to_string();
    let ask = |words: &[&str]| {
        let output = Command::new("redis-cli")
            .args(["-s", socket])
            .args(words)
            .output()
            .expect("redis-cli");
        stdout(&output).trim().to_owned()
    };
    while ask(&["ping"]) != "PONG" {
        std::thread::sleep(Duration::from_millis(10));
    }
    let descriptors = || {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
        entries.expect("the server").count()
    };
    let before = descriptors();
    let load = Command::new("redis-benchmark")
        .args(["-s", socket, "-q", "-n", "60000", "-c", "20", "-d", "200"])
        .args([
            "-r",
            "1000",
            "-t",
            "set,get,lpush,lrange_100,incr,sadd,hset",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut load = Server(load.expect("redis-benchmark"));
    let mut samples = 0.0;
    let mut turns = 0;
    while load.0.try_wait().expect("a child").is_none() || turns < 2 {
        done(&room, &["attach", &pid, "--interval", "16K"]);
        for interval in ["64K", "4K"] {
            done(&room, &["ctl", &pid, "interval", interval]);
        }
        samples += detach(&room, &pid).number("samples");
        turns += 1;
    }
    assert!(load.0.wait().expect("redis-benchmark").success());
    assert!(samples > 0.0);
    let mut complaints = String::new();
    let errors = load.0.stderr.take().expect("a pipe");
    std::io::Read::read_to_string(&mut BufReader::new(errors), &mut complaints).expect("text");
    assert_eq!(complaints, "");
    assert_eq!(ask(&["ping"]), "PONG");
    // Connections of the load are closed a moment after it has ended.
    while descriptors() > before {
        std::thread::sleep(Duration::from_millis(10));
    }
    ask(&["shutdown", "nosave"]);
    assert!(server.0.wait().expect("redis-server").success());
}

/// The loader waits for a library that comes through a pipe, and has not mapped the C library yet.
#[test]
fn a_program_that_is_still_being_loaded_is_waited_for() {
    let room = Room::new();
    let pipe = room.path("library.so");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let mut program = Server(
        Command::new("cat")
            .env("LD_PRELOAD", &pipe)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("cat"),
    );
    let pid = program.0.id();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    while !maps().contains("ld-linux") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!maps().contains("libc.so.6"));
    let attach = [
        "attach",
        &pid.to_string(),
        "--seconds",
        "1",
        "-o",
        "it.allocsample",
    ];
    let attach = room
        .command(&attach)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command");
    // So that it finds the program there.
    std::thread::sleep(Duration::from_millis(300));
    let library = std::fs::File::options().write(true).open(&pipe);
    drop(library.expect("the loader reads it"));
    let attached = attach.wait_with_output().expect("the command");
    assert_eq!(attached.status.code(), Some(0), "{}", stderr(&attached));
    drop(program.0.stdin.take());
    assert!(program.0.wait().expect("it ends").success());
}
