//! Promise: what a running process has recorded can be fetched by scrapers, by those who know the secret alone.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use support::room::{Room, assert_error, stderr};
use support::running::{BYTES, Running};
use support::{pprof, truth};

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
