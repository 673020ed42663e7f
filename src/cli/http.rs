//! A small HTTP server, for those who know its address.
//!
//! The address holds a random number: other users of the machine, and pages of other origins, cannot guess it. On
//! loopback a request under another host's name (a name that was made to point here) is refused.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longer requests are none of a browser's.
const MOST_REQUEST_BYTES: u64 = 16 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests that are answered at the same time; more are told to come back.
const MOST_AT_ONCE: usize = 16;

/// What is asked for.
#[derive(Debug, Default)]
pub struct Request {
    /// GET, ...
    pub method: String,
    /// As it came, without what follows a question mark.
    pub path: String,
    /// What followed it.
    pub query: String,
}

impl Request {
    /// The value of `name=value` in the query, as it came.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(key, value)| (key == name).then_some(value))
    }
}

/// What it is answered with.
#[derive(Debug)]
pub struct Response {
    /// As in `200 OK`.
    pub status: &'static str,
    /// Lines of the header besides those about length and connection.
    pub headers: Vec<(&'static str, String)>,
    /// Left out when only the header is asked for.
    pub body: Arc<Vec<u8>>,
}

impl Response {
    /// A document of this type, not to be kept by anybody.
    pub fn document(mime: &str, body: impl Into<Arc<Vec<u8>>>) -> Self {
        Self {
            status: "200 OK",
            headers: vec![
                ("Content-Type", mime.to_owned()),
                ("Cache-Control", "no-store".to_owned()),
                ("X-Content-Type-Options", "nosniff".to_owned()),
            ],
            body: body.into(),
        }
    }

    /// No document, and perhaps a line that says why.
    pub fn refusal(status: &'static str, why: &str) -> Self {
        let mut body = why.to_owned().into_bytes();
        let mut headers = Vec::new();
        if !body.is_empty() {
            body.push(b'\n');
            headers.push(("Content-Type", "text/plain; charset=utf-8".to_owned()));
        }
        Self {
            status,
            headers,
            body: Arc::new(body),
        }
    }
}

/// A socket that listens.
pub struct Server {
    listener: TcpListener,
    host: String,
    is_loopback: bool,
}

impl Server {
    /// Listens; port 0 is any that is free.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let bound = listener.local_addr()?;
        Ok(Self {
            listener,
            host: bound.to_string(),
            is_loopback: bound.ip().is_loopback(),
        })
    }

    /// Address and port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Answers requests, each on a thread of its own. Does not return.
    pub fn serve(&self, answer: impl Fn(&Request) -> Response + Send + Sync + 'static) {
        let answer = Arc::new(answer);
        let at_once = Arc::new(AtomicUsize::new(0));
        let host = self.is_loopback.then(|| self.host.clone());
        for stream in self.listener.incoming().flatten() {
            let (answer, host) = (answer.clone(), host.clone());
            let seat = Seat::take(&at_once);
            let work = move || {
                // A browser that went away is nobody's concern.
                let _ = match seat.number > MOST_AT_ONCE {
                    true => send(
                        &stream,
                        "GET",
                        &Response::refusal("503 Service Unavailable", ""),
                    ),
                    false => converse(&stream, host.as_deref(), &*answer),
                };
            };
            // Without a thread the caller's connection is closed: that says it too.
            drop(std::thread::Builder::new().spawn(work));
        }
    }
}

/// A place among those who are answered, free again when it is dropped: with the answer, or with a thread that could not be
/// started.
struct Seat {
    taken: Arc<AtomicUsize>,
    /// From 1.
    number: usize,
}

impl Seat {
    fn take(taken: &Arc<AtomicUsize>) -> Self {
        Self {
            number: taken.fetch_add(1, Ordering::Relaxed) + 1,
            taken: taken.clone(),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request as it comes in, all of it before the deadline: who sends a byte now and then has no seat for long.
struct Incoming<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Incoming<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Thirty-two digits that nobody can guess: the keys of a `RandomState` are random, and two of them make 128 bits.
pub fn secret() -> String {
    let random = || RandomState::new().hash_one("address");
    format!("{:016x}{:016x}", random(), random())
}

/// One request and its answer. `host`: the only name to answer to.
fn converse(
    stream: &TcpStream,
    host: Option<&str>,
    answer: &impl Fn(&Request) -> Response,
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let incoming = Incoming {
        stream,
        deadline: Instant::now() + PATIENCE,
    };
    let mut lines = BufReader::new(incoming.take(MOST_REQUEST_BYTES)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut asked_host = String::new();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("host")
        {
            value.trim().clone_into(&mut asked_host);
        }
    }
    let mut words = first.split(' ');
    let method = words.next().unwrap_or("").to_owned();
    let target = words.next().unwrap_or("");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
    };
    let response = match host {
        Some(host) if asked_host != host => Response::refusal("421 Misdirected Request", ""),
        _ => answer(&request),
    };
    send(stream, &request.method, &response)
}

fn send(mut stream: &TcpStream, method: &str, response: &Response) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {}\r\n", response.status);
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let length = response.body.len();
    head.push_str(&format!(
        "Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ));
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(&response.body)?;
    }
    stream.flush()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// What a request gets from an answer, over a real connection.
    pub fn asked(server: &Server, request: &str, answer: &impl Fn(&Request) -> Response) -> String {
        let mut stream = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let (accepted, _) = server.listener.accept().unwrap();
        converse(&accepted, Some(server.host()), answer).unwrap();
        drop(accepted);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn server() -> Server {
        Server::bind(([127, 0, 0, 1], 0).into()).unwrap()
    }

    fn echo(request: &Request) -> Response {
        let text = format!("{} {}", request.path, request.parameter("b").unwrap_or("-"));
        Response::document("text/plain", text.into_bytes())
    }

    #[test]
    fn requests_are_taken_apart() {
        let server = server();
        let request = |target: &str, host: &str| {
            let text = format!("GET {target} HTTP/1.1\r\nhOST: {host}\r\n\r\n");
            asked(&server, &text, &echo)
        };
        let host = server.host();
        assert!(request("/x?a=1&b=2", host).ends_with("\r\n\r\n/x 2"));
        assert!(request("/x?ab=1", host).ends_with("\r\n\r\n/x -"));
        assert!(request("/x", "evil.example").starts_with("HTTP/1.1 421 "));
        assert!(asked(&server, "\r\n\r\n", &echo).starts_with("HTTP/1.1 421 "));
    }

    #[test]
    fn a_seat_is_free_again_when_it_is_given_up() {
        let taken = Arc::default();
        let first = Seat::take(&taken);
        drop(Seat::take(&taken));
        assert_eq!((first.number, Seat::take(&taken).number), (1, 2));
        drop(first);
        assert_eq!(Seat::take(&taken).number, 1);
    }

    #[test]
    fn a_request_that_is_not_there_in_time_is_none() {
        let server = server();
        let mut client = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GE").unwrap();
        let (stream, _) = server.listener.accept().unwrap();
        let read = |deadline| {
            let mut incoming = Incoming {
                stream: &stream,
                deadline,
            };
            incoming.read(&mut [0]).map_err(|error| error.kind())
        };
        let now = Instant::now();
        assert_eq!(read(now + Duration::from_secs(600)), Ok(1));
        // One more byte has come, and it is too late.
        assert_eq!(read(now), Err(io::ErrorKind::TimedOut));
    }

    #[test]
    fn secrets_differ() {
        let (one, other) = (secret(), secret());
        assert_ne!(one, other);
        assert_eq!(one.len(), 32);
    }
}
