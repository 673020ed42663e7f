//! Promise: what a running process has recorded can be fetched by scrapers, by those who know the secret alone.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::support::room::{Room, assert_error, stderr};
use crate::support::running::{BYTES, Running};
use crate::support::{pprof, truth};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `allocsample serve`, until it is dropped.
struct Served {
    child: Child,
    /// Of the address that it printed: host and path.
    host: String,
    path: String,
}

impl Served {
    fn start(room: &Room, arguments: &[&str]) -> Self {
        let arguments = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
        let mut child = room
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command");
        let mut url = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut url).expect("a line");
        let rest = url.trim().strip_prefix("http://").expect("an address");
        let (host, path) = rest.split_once('/').expect("a path");
        Self {
            child,
            host: host.to_owned(),
            path: format!("/{path}"),
        }
    }

    /// Status and body.
    fn get(&self, path: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.host).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let body = answer.split_off(end.expect("the end of the header") + 4);
        let head = String::from_utf8(answer).expect("text");
        (head[9..12].to_owned(), body)
    }

    /// The status of the page, if the connection is not closed without one.
    fn status(&self) -> Option<String> {
        let mut stream = TcpStream::connect(&self.host).ok()?;
        let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", self.path, self.host);
        stream.write_all(request.as_bytes()).ok()?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).ok()?;
        Some(String::from_utf8_lossy(&head[9..]).into_owned())
    }

    fn below(&self, what: &str) -> (String, Vec<u8>) {
        self.get(&format!("{}{what}", self.path))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_running_process_is_scraped() {
    let mut running = Running::start(&["--interval", "64K"]);
    running.phase();
    let served = Served::start(&running.room, &["x.allocsample"]);
    let (status, body) = served.below("debug/pprof/heap");
    assert_eq!(status, "200");
    let [_, allocated, _, _] = pprof::sums(&body);
    // What is in the ring is read too: 6,100 samples of one size, so a standard error of 1.3 %.
    let bytes = f64::from(BYTES);
    assert!(
        truth::z(allocated, bytes, 0.013 * bytes).abs() < 4.0,
        "{allocated}"
    );

    // Nothing happens in the second that is asked for, and what is in use is told all the same.
    let (status, body) = served.below("x.allocsample/debug/pprof/allocs?seconds=1");
    assert_eq!(status, "200");
    let [_, in_a_second, _, _] = pprof::sums(&body);
    assert_eq!(in_a_second, 0.0);

    let (status, page) = served.below("");
    let page = String::from_utf8(page).expect("text");
    assert_eq!(status, "200");
    assert!(page.contains("/x.allocsample/debug/pprof/heap\""), "{page}");
    let (status, picture) = served.below("x.allocsample/flamegraph.svg");
    assert_eq!(status, "200");
    assert!(
        String::from_utf8(picture)
            .expect("text")
            .contains("phase_first")
    );
    let (status, html) = served.below("x.allocsample/");
    assert_eq!(status, "200");
    assert!(html.starts_with(b"<!doctype html>") || html.starts_with(b"<!DOCTYPE html>"));

    for (path, expected) in [
        ("/".to_owned(), "404"),
        ("/debug/pprof/heap".to_owned(), "404"),
        (format!("{}other/debug/pprof/heap", served.path), "404"),
        (format!("{}x.allocsample/etc", served.path), "404"),
        (format!("{}debug/pprof/heap?seconds=x", served.path), "400"),
    ] {
        assert_eq!(served.get(&path).0, expected, "{path}");
    }
    for _ in 0..3 {
        running.phase();
    }
    running.end();
}

#[test]
fn processes_are_found_and_the_secret_stays() {
    let mut running = Running::start(&["--interval", "64K"]);
    running.phase();
    let pids = {
        let served = Served::start(&running.room, &["--secret", "secret"]);
        let (status, page) = served.below("");
        assert_eq!(status, "200");
        let page = String::from_utf8(page).expect("text");
        // Other tests' processes may be there too.
        let row = page
            .lines()
            .find(|line| line.contains("./phases"))
            .map(str::to_owned);
        let row = row.unwrap_or_else(|| panic!("{page}"));
        let first = served.path.clone();
        (row, first)
    };
    let again = Served::start(&running.room, &["--secret", "secret"]);
    assert_eq!(again.path, pids.1);
    let link = pids.0.split('"').nth(1).expect("a link").to_owned();
    let (status, body) = again.get(&format!("{link}debug/pprof/heap"));
    assert_eq!(status, "200");
    assert!(pprof::sums(&body)[1] > 0.0);
    for _ in 0..3 {
        running.phase();
    }
    running.end();
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    let room = Room::without_agent();
    let output = room.output(&["serve", "nothing.allocsample"]);
    assert_error(&output, 1, "nothing.allocsample");
    let output = room.output(&["serve", "4000000000"]);
    assert!(!output.status.success(), "{}", stderr(&output));
    let output = room.output(&["serve", "--listen", "nowhere"]);
    assert_error(&output, 2, "nowhere");
}

/// A thousand connections that say nothing get a few threads, and do not keep others from an answer for good.
#[test]
fn many_connections_take_few_threads() {
    const CONNECTIONS: usize = 2000;
    const BATCH: usize = 100;
    let room = Room::new();
    room.record("x.allocsample", &["--seed", "1"], &[]);
    let served = Served::start(&room, &["x.allocsample"]);
    // They are files of ours as well.
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, most).expect("a higher limit");
    // The kernel's queue holds a batch. The last connection of a batch waits for its refusal, so that the queue is empty
    // again. (On a very slow machine it may get a thread, because the connections before it have timed out.)
    let (mut silent, mut refused) = (Vec::new(), 0);
    'connecting: for _ in 0..CONNECTIONS / BATCH {
        for _ in 0..BATCH {
            match TcpStream::connect(&served.host) {
                Ok(stream) => silent.push(stream),
                Err(_) => break 'connecting,
            }
        }
        let mut answer = String::new();
        let mut last = silent.last().expect("a connection");
        // Far longer than a request may take to arrive.
        let longest = Some(Duration::from_secs(120));
        last.set_read_timeout(longest).expect("a timeout");
        let read = last.read_to_string(&mut answer);
        let is_kept = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!is_kept, "a silent connection is kept");
        if answer.starts_with("HTTP/1.1 503 ") {
            refused += 1;
        }
    }
    assert!(silent.len() > 500, "{}", silent.len());
    assert!(refused > 0);
    let about = |what: &str| format!("/proc/{}/{what}", served.child.id());
    let threads = fs::read_dir(about("task")).expect("its threads").count();
    assert!(threads <= 24, "{threads}");
    let files = fs::read_dir(about("fd")).expect("its files").count();
    assert!(files <= 128, "{files}");
    drop(silent);
    // The threads see that nobody is there any more, one by one.
    let answered = (0..1000).any(|_| served.status().as_deref() == Some("200"));
    assert!(answered);
}
