//! Promise: what a running process records reaches a server, each byte once, also when the server was away.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Stdio};

use crate::support::room::{Room, assert_error};
use crate::support::running::{BYTES, Running};
use crate::support::{pprof, truth};

/// A server of ours, and `allocsample push` to it.
struct Pushing {
    listener: TcpListener,
    child: Child,
}

/// What came.
struct Pushed {
    head: String,
    labels: Vec<(String, String)>,
    sums: [f64; 4],
}

impl Pushing {
    fn start(room: &Room, arguments: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let arguments = [&["push", "x.allocsample", "--to", &url], arguments].concat();
        let child = room
            .command(&arguments)
            .env("ALLOCSAMPLE_PUSH_PASSWORD", "secret")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command");
        Self { listener, child }
    }

    /// Takes the next push and answers it.
    fn next(&self, status: &str) -> Pushed {
        let (stream, _) = self.listener.accept().expect("a push");
        let mut input = BufReader::new(&stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            input.read_line(&mut head).expect("a line");
        }
        let length = head.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length: ")
                .map(str::to_owned)
        });
        let mut body = vec![0; length.expect("a length").parse().expect("a number")];
        input.read_exact(&mut body).expect("the body");
        let answer =
            format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nwhy");
        (&stream).write_all(answer.as_bytes()).expect("it reads");

        let series = pprof::fields(&body);
        let [(1, series)] = series.as_slice() else {
            panic!("{} series", series.len());
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let (mut labels, mut sums) = (Vec::new(), None);
        for (field, content) in pprof::fields(series) {
            let parts = pprof::fields(content);
            match (field, parts.as_slice()) {
                (1, [(1, name), (2, value)]) => labels.push((text(name), text(value))),
                (2, [(1, profile)]) => sums = Some(pprof::sums(profile)),
                other => panic!("{other:?}"),
            }
        }
        Pushed {
            head,
            labels,
            sums: sums.expect("a profile"),
        }
    }
}

#[track_caller]
fn assert_is(found: f64, bytes: f64) {
    // Blocks of 1,000 bytes at 64 KiB: each of n samples stands for 66 KB, so a standard error of 1 / sqrt(n).
    let error = bytes / (bytes / 66_036.0).sqrt();
    let z = truth::z(found, bytes, error);
    assert!(z.abs() < 4.0, "{found} for {bytes}, z {z:+.1}");
}

#[test]
fn each_push_has_what_came_since_the_last_one_that_was_accepted() {
    let mut running = Running::start(&["--interval", "64K"]);
    let bytes = f64::from(BYTES);
    running.phase();
    let pushing = Pushing::start(
        &running.room,
        &[
            "--every", "1", "--label", "env=test", "--user", "me", "--tenant", "t1",
        ],
    );
    let first = pushing.next("200 OK");
    // The last moments before a push come with the next one.
    let mut sum = first.sums[1];
    while sum < 0.8 * bytes {
        sum += pushing.next("200 OK").sums[1];
    }
    assert_is(sum, bytes);
    assert!(
        first
            .head
            .starts_with("POST /push.v1.PusherService/Push HTTP/1.1\r\n")
    );
    let head = first.head.to_lowercase();
    for line in [
        "content-type: application/proto\r\n",
        "authorization: basic bwu6c2vjcmv0\r\n",
        "x-scope-orgid: t1\r\n",
    ] {
        assert!(head.contains(line), "{head}");
    }
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        first.labels,
        [
            label("__name__", "memory"),
            label("service_name", "phases"),
            label("env", "test")
        ]
    );

    // The server refuses: the next push has what was in the refused one, and what came since.
    running.phase();
    let mut refused = pushing.next("503 Service Unavailable").sums[1];
    while refused == 0.0 {
        // One that was on its way before the phase had ended.
        refused = pushing.next("503 Service Unavailable").sums[1];
    }
    running.phase();
    let mut sum = 0.0;
    // A push may fall into the middle of the phase: the next ones have the rest.
    loop {
        let more = pushing.next("200 OK").sums[1];
        sum += more;
        if sum > 1.8 * bytes && more == 0.0 {
            break;
        }
    }
    // The program keeps a block of 64 MiB from the second phase to the third; it is a sample for certain.
    assert_is(sum - f64::from(64 << 20), 2.0 * bytes);

    running.phase();
    // The server is still asked while the process ends, and once after.
    let answering = std::thread::spawn(move || {
        let mut last = Vec::new();
        pushing.listener.set_nonblocking(true).expect("a socket");
        let Pushing {
            listener,
            mut child,
        } = pushing;
        loop {
            if child.try_wait().expect("a child").is_some() {
                return (child.wait_with_output().expect("output"), last);
            }
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).expect("a socket");
                last.push(answer_blindly(stream));
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    let _room = running.end();
    let (output, answered) = answering.join().expect("no panic");
    assert!(output.status.success(), "{output:?}");
    assert!(!answered.is_empty());
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        said.contains("503 Service Unavailable why; trying again"),
        "{said}"
    );
    assert!(said.contains("accepted again"), "{said}");
}

fn answer_blindly(mut stream: std::net::TcpStream) -> usize {
    let mut input = BufReader::new(stream.try_clone().expect("a socket"));
    let (mut length, mut line) = (0, String::new());
    while line != "\r\n" {
        line.clear();
        input.read_line(&mut line).expect("a line");
        if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().expect("a number");
        }
    }
    input.read_exact(&mut vec![0; length]).expect("the body");
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    stream.write_all(answer).expect("it reads");
    length
}

#[test]
fn what_cannot_be_pushed_is_said_in_one_line() {
    let room = Room::new();
    room.record("x.allocsample", &[], &[]);
    let push = |arguments: &[&str]| {
        room.output(&[&["push", "x.allocsample", "--once", "--to"], arguments].concat())
    };
    // Nobody listens on port 1.
    assert_error(&push(&["http://127.0.0.1:1"]), 1, "http://127.0.0.1:1");
    assert_error(&push(&["127.0.0.1:1"]), 2, "expected http://");
    assert_error(&push(&["http://x", "--label", "a-b=c"]), 2, "NAME=VALUE");
    assert_error(
        &push(&["http://x", "--user", "me"]),
        1,
        "ALLOCSAMPLE_PUSH_PASSWORD",
    );
}
