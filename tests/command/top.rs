//! Promise: `allocsample top` shows in a terminal where the memory of a running process goes and which rows grow, and leaves the
//! terminal as it was.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use crate::support::talking::Talking;
use crate::support::{Program, Room, command, is_installed, skip};

const ROWS: usize = 30;
const COLUMNS: usize = 120;

/// What a terminal shows: as much of one as `top` uses.
struct Terminal {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// A sequence or character that is not complete yet.
    rest: Vec<u8>,
    /// Modes that were set and not reset.
    modes: Vec<String>,
}

impl Terminal {
    fn new() -> Self {
        Self {
            cells: vec![vec![' '; COLUMNS]; ROWS],
            row: 0,
            column: 0,
            rest: Vec::new(),
            modes: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.rest);
        let whole = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("valid"),
        };
        let mut text = whole;
        while let Some(first) = text.chars().next() {
            if first != '\x1b' {
                self.print(first);
                text = &text[first.len_utf8()..];
                continue;
            }
            let Some(body) = text.strip_prefix("\x1b[") else {
                break;
            };
            let Some(end) = body.find(|it: char| it.is_ascii_alphabetic()) else {
                break;
            };
            self.obey(&body[..end], &body[end..=end]);
            text = &body[end + 1..];
        }
        let done = whole.len() - text.len();
        self.rest = bytes[done..].to_vec();
    }

    fn print(&mut self, character: char) {
        match character {
            '\r' => self.column = 0,
            '\n' => self.row = (self.row + 1).min(ROWS - 1),
            _ if self.column < COLUMNS => {
                self.cells[self.row][self.column] = character;
                self.column += 1;
            }
            _ => {}
        }
    }

    fn obey(&mut self, parameters: &str, action: &str) {
        match action {
            "H" => {
                let mut numbers = parameters.split(';').map(|it| it.parse().unwrap_or(1));
                let mut place = |most: usize| numbers.next().unwrap_or(1).clamp(1, most) - 1;
                (self.row, self.column) = (place(ROWS), place(COLUMNS));
            }
            "J" => self.cells = vec![vec![' '; COLUMNS]; ROWS],
            "h" => self.modes.push(parameters.to_owned()),
            "l" => self.modes.retain(|mode| mode != parameters),
            _ => {}
        }
    }

    fn lines(&self) -> Vec<String> {
        let lines = self.cells.iter().map(|row| row.iter().collect::<String>());
        lines.map(|line| line.trim_end().to_owned()).collect()
    }
}

/// `top` in a terminal of its own, which util-linux's `script` makes.
struct Watching {
    child: Child,
    keys: ChildStdin,
    terminal: Arc<Mutex<Terminal>>,
    reader: JoinHandle<()>,
}

impl Watching {
    fn start(room: &Room) -> Option<Self> {
        Self::start_at(room, &format!("rows {ROWS} cols {COLUMNS}"))
    }

    /// In a terminal of a size, as `stty` takes it.
    fn start_at(room: &Room, size: &str) -> Option<Self> {
        if !is_installed("script") {
            skip("no terminal for `top` (Debian: bsdutils)");
            return None;
        }
        let script = format!(
            "stty {size}; stty -a > before; sh -c 'echo $$ > pid; exec \"{}\" top x.allocsample'; echo $? > status; stty -a > after",
            command().display()
        );
        let mut child = std::process::Command::new("script")
            .args(["--quiet", "--flush", "--command", &script, "/dev/null"])
            .current_dir(room.directory())
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script");
        let mut output = child.stdout.take().expect("a pipe");
        let terminal = Arc::new(Mutex::new(Terminal::new()));
        let shown = Arc::clone(&terminal);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = output.read(&mut buffer) {
                shown.lock().expect("a terminal").take(&buffer[..bytes]);
            }
        });
        Some(Self {
            keys: child.stdin.take().expect("a pipe"),
            child,
            terminal,
            reader,
        })
    }

    /// Waits until the screen is as it should be.
    #[track_caller]
    fn until(&self, is_it: impl Fn(&[String]) -> bool) -> Vec<String> {
        const ATTEMPTS: usize = 1200;
        let lines = || self.terminal.lock().expect("a terminal").lines();
        for _ in 0..ATTEMPTS {
            let lines = lines();
            if is_it(&lines) {
                return lines;
            }
            sleep(Duration::from_millis(100));
        }
        panic!("the screen stays:\n{}", lines().join("\n"));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it listens");
    }

    /// `top` has been asked to end: the terminal is as it was before.
    #[track_caller]
    fn assert_restored(self, room: &Room) {
        self.assert_restored_with(room, "0\n");
    }

    /// The same, with an exit status as a shell has it.
    #[track_caller]
    fn assert_restored_with(mut self, room: &Room, status: &str) {
        let read = |name: &str| std::fs::read_to_string(room.path(name)).expect("a file");
        // Its input stays open: `top` ends by itself.
        assert!(self.child.wait().expect("script").success());
        drop(self.keys);
        self.reader.join().expect("the reader");
        assert_eq!(read("status"), status);
        assert!(read("before").contains("icanon"), "{}", read("before"));
        assert_eq!(read("before"), read("after"));
        // The other screen, the keyboard's modes: what was set is reset, and the cursor is there.
        let modes = self.terminal.lock().expect("a terminal").modes.clone();
        let left: Vec<&String> = modes.iter().filter(|mode| *mode != "?25").collect();
        assert_eq!(left, Vec::<&String>::new());
        assert!(modes.contains(&"?25".to_owned()), "{modes:?}");
    }
}

fn started() -> Talking {
    let room = Room::new();
    room.add(&Program::compiled("holds_more.c"), "program");
    let mut program = Talking::start(room, &["--interval", "64K"], &["./program"]);
    program.ask("blocks 24");
    program
}

/// The figure before a label, in MiB.
fn mib_before(line: &str, label: &str) -> f64 {
    let before = line.split(label).next().expect("text");
    let words: Vec<&str> = before.split_whitespace().collect();
    let [.., number, unit] = words[..] else {
        panic!("no figure before {label}: {line}");
    };
    assert_eq!(unit, "MiB", "{line}");
    number.trim_start_matches('+').parse().expect(line)
}

fn line_with<'a>(lines: &'a [String], text: &str) -> Option<&'a String> {
    lines.iter().find(|line| line.contains(text))
}

#[test]
fn rows_coverage_and_growth_of_a_running_process_are_shown() {
    let mut program = started();
    let Some(mut watching) = Watching::start(&program.room) else {
        return;
    };
    let lines = watching.until(|lines| line_with(lines, "keep_blocks").is_some());
    assert!(lines[0].starts_with("running, "), "{lines:#?}");
    assert!(lines[0].contains("x.allocsample (pid "), "{lines:#?}");
    let row = line_with(&lines, "keep_blocks").expect("a row");
    let live = row.split_whitespace().next().expect("a figure");
    let live: f64 = live.parse().expect("a number");
    // 24 MiB at 64 KiB: 384 samples, a standard error of 5 %.
    assert!((live - 24.0).abs() < 5.0, "{row}");
    let resident = line_with(&lines, "RSS ").expect("the resident memory");
    assert!(resident.contains("coverage 9"), "{resident}");
    // Both kinds of memory grow while it looks on.
    program.ask("blocks 32");
    program.ask("map 40");
    let has_grown = |lines: &[String]| {
        let growth = line_with(lines, ": RSS +");
        growth.is_some_and(|line| mib_before(line.split("RSS").nth(1).expect("text"), "▲") > 64.0)
    };
    let lines = watching.until(has_grown);
    let growth = line_with(&lines, ": RSS +").expect("growth");
    let mapped = mib_before(growth, "mapped by program");
    let blocks = mib_before(growth, "malloc: live blocks");
    assert!((mapped - 40.0).abs() < 0.5, "{growth}");
    assert!((blocks - 32.0).abs() < 8.0, "{growth}");
    let resident = line_with(&lines, "RSS ").expect("the resident memory");
    // The mapping is known, but no sampled heap's.
    assert!(resident.contains("coverage 5") || resident.contains("coverage 6"));
    assert!(resident.contains("unexplained 0."), "{resident}");
    watching.press("s");
    watching.until(|lines| line_with(lines, "site").is_some_and(|it| it.contains("growth/s")));
    watching.press("q");
    watching.assert_restored(&program.room);
    program.end();
}

#[test]
fn the_last_reading_stays_when_the_process_ends_and_control_c_quits() {
    let program = started();
    let Some(mut watching) = Watching::start(&program.room) else {
        return;
    };
    watching.until(|lines| line_with(lines, "keep_blocks").is_some());
    let (room, _profile) = program.end();
    let lines = watching.until(|lines| lines[0].starts_with("ended, "));
    assert!(line_with(&lines, "keep_blocks").is_some(), "{lines:#?}");
    watching.press("\x03");
    watching.assert_restored(&room);
}

#[test]
fn a_terminal_that_says_no_size_shows_the_table() {
    let program = started();
    let Some(mut watching) = Watching::start_at(&program.room, "rows 0 cols 0") else {
        return;
    };
    watching.until(|lines| line_with(lines, "keep_blocks").is_some());
    watching.press("q");
    watching.assert_restored(&program.room);
    program.end();
}

#[test]
fn a_signal_that_ends_the_command_leaves_the_terminal_as_it_was() {
    for (signal, status) in [("TERM", "143\n"), ("INT", "130\n"), ("HUP", "129\n")] {
        let program = started();
        let Some(watching) = Watching::start(&program.room) else {
            return;
        };
        watching.until(|lines| line_with(lines, "keep_blocks").is_some());
        let pid = std::fs::read_to_string(program.room.path("pid")).expect("a file");
        let kill = ["-s", signal, pid.trim()];
        let killed = std::process::Command::new("kill").args(kill).status();
        assert!(killed.expect("kill").success());
        watching.assert_restored_with(&program.room, status);
        program.end();
    }
}
