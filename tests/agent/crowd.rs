//! Promise: whatever anybody does to the agent's controls, and however many do it, the program does not notice.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::profile::Profile;
use crate::support::room::{assert_error, stderr, stdout};
use crate::support::{Program, Room, is_installed, is_root, skip};
use allocsample_profile::request;

/// steady.c under the agent.
struct Steady {
    room: Room,
    child: Child,
}

impl Steady {
    /// Comes back when there is a profile.
    fn start() -> Self {
        let room = Room::new();
        room.add(&Program::compiled("steady.c"), "steady");
        let mut command = Command::new(room.path("steady"));
        let child = command
            .env("LD_PRELOAD", room.agent())
            .env("ALLOCSAMPLE_OUTPUT", room.path("x.allocsample"))
            .env("ALLOCSAMPLE_INTERVAL", "256K")
            .env("ALLOCSAMPLE_SEED", "5")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let steady = Self { room, child };
        while !steady.ring().exists() {
            std::thread::yield_now();
        }
        steady
    }

    fn ring(&self) -> PathBuf {
        self.room.path("x.allocsample.ring")
    }

    fn ring_file(&self) -> File {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(self.ring());
        file.expect("its owner may")
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn ctl(&self, arguments: &[&str]) -> Command {
        let arguments = [&["ctl", "x.allocsample"], arguments].concat();
        self.room.command(&arguments)
    }

    /// It ends as if nobody had been there, and its profile is right.
    fn ends_well(mut self) -> (Room, Profile) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        let mut output = self.child.stdout.take().expect("a pipe");
        output.read_to_string(&mut said).expect("text");
        assert_eq!(said, "well\n");
        let status = self.child.wait().expect("the program");
        assert!(status.success(), "{status}");
        let profile = Profile::read(&self.room.path("x.allocsample"));
        assert!(profile.is_complete(), "{}", profile.report);
        assert_eq!(profile.number("lost_samples"), 0.0);
        let z = profile.report["audit"]["z"].as_f64().expect("a deviation");
        assert!(z.abs() < 5.0, "{z}");
        (self.room, profile)
    }
}

fn word(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).expect("the first page");
    u64::from_le_bytes(bytes)
}

/// Asks as a command does, but for whatever one likes.
fn ask(file: &File, generation: u64, what: u64, value: u64, more: [u64; 4]) {
    let put = |at, value: u64| {
        file.write_all_at(&value.to_le_bytes(), at)
            .expect("the first page");
    };
    put(request::WHAT, what);
    put(request::INTERVAL, value);
    for (at, value) in (request::MORE..).step_by(8).zip(more) {
        put(at, value);
    }
    put(request::GENERATION, generation);
}

#[test]
fn hundreds_of_commands_at_once_are_all_heard() {
    // Each command looks through all processes for the program: what a test takes grows with the square of their number.
    const COMMANDS: u64 = 300;
    let intervals = ["64K", "128K", "256K", "512K", "1M"];
    let steady = Steady::start();
    let commands: Vec<Child> = (0..COMMANDS)
        .zip(intervals.into_iter().cycle())
        .map(|(_, interval)| {
            let mut command = steady.ctl(&["interval", interval]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("a command")
        })
        .collect();
    // Who only looks waits for nobody.
    let status = steady.ctl(&["status"]).output().expect("a command");
    assert_eq!(status.status.code(), Some(0), "{}", stderr(&status));
    assert!(stdout(&status).contains("samples"));
    for mut command in commands {
        let status = command.wait().expect("a command");
        assert!(status.success(), "{status}");
    }
    assert_eq!(word(&steady.ring_file(), request::GENERATION), COMMANDS);
    steady.ends_well();
}

#[test]
fn requests_that_make_no_sense_do_nothing() {
    let steady = Steady::start();
    let file = steady.ring_file();
    let mut generation = 0;
    let mut ask_next = |what, value, more| {
        generation += 1;
        ask(&file, generation, what, value, more);
        while word(&file, request::OBEYED) < generation {
            std::thread::yield_now();
        }
    };
    let all = [u64::MAX; 4];
    for what in [request::FILTER + 1, 200, 1 << 40, u64::MAX] {
        ask_next(what, u64::MAX, all);
    }
    // No interval is that long: nothing is sampled.
    ask_next(request::SET_INTERVAL, u64::MAX, all);
    for thread in [0, 1, u64::MAX] {
        ask_next(request::SELECT_THREAD, thread, all);
    }
    // Sizes that begin behind their end, and names of no letters.
    ask_next(request::FILTER, u64::MAX, [0, u64::MAX, u64::MAX, 7]);
    let mut random = 1_u64;
    for _ in 0..200 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ask_next(request::SELECT_THREAD, random >> 20, [random; 4]);
        ask_next(request::SET_INTERVAL, random >> (random >> 58), [random; 4]);
    }
    ask_next(request::FILTER, 0, [u64::MAX, 0, 0, 0]);
    ask_next(request::SET_INTERVAL, 64 << 10, [0; 4]);
    // From here on nothing that is asked has a larger number.
    ask_next(request::FLUSH, 0, [0; 4]);
    ask(&file, u64::MAX, request::FLUSH, 0, [0; 4]);
    steady.ends_well();
}

#[test]
fn a_command_that_has_stopped_in_the_middle_stops_nobody_for_ever() {
    let steady = Steady::start();
    let file = steady.ring_file();
    file.lock().expect("a turn");
    // Half of a request.
    file.write_all_at(&7_u64.to_le_bytes(), request::WHAT)
        .expect("the first page");
    let output = steady.ctl(&["interval", "64K"]).output();
    assert_error(
        &output.expect("the command"),
        1,
        "other commands are waiting",
    );
    drop(file);
    let output = steady.ctl(&["interval", "64K"]).output();
    let output = output.expect("the command");
    assert_eq!(stdout(&output), "one sample per 64.0 KiB\n");
    steady.ends_well();
}

#[test]
fn another_user_can_neither_look_nor_ask() {
    if !is_root() || !is_installed("setpriv") {
        return skip("another user needs root and setpriv");
    }
    let steady = Steady::start();
    let open = || PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(steady.room.directory(), open()).expect("its owner may");
    crate::support::copy(crate::support::command(), &steady.room.path("allocsample"));
    for what in [steady.pid(), "x.allocsample".to_owned()] {
        for action in [&["status"][..], &["stop"], &["snapshot", "-o", "/tmp/none"]] {
            let output = Command::new("setpriv")
                .args(["--reuid", "65534", "--clear-groups", "--"])
                .arg(steady.room.path("allocsample"))
                .args(["ctl", &what])
                .args(action)
                .current_dir(steady.room.directory())
                .output();
            assert_error(&output.expect("setpriv"), 1, "ermission denied");
        }
    }
    assert_eq!(word(&steady.ring_file(), request::GENERATION), 0);
    steady.ends_well();
}
