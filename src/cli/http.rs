//! A small HTTP server, for clients that know its secret address.
//!
//! The address contains a random number, which other users of the machine and pages of other origins cannot guess. On
//! loopback, a request under another host's name (a name that was made to point here) is refused.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// No browser sends longer requests.
const MOST_REQUEST_BYTES: u64 = 16 * 1024;
/// How long a request may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Minimum rate at which a client must take its answer, once [`PATIENCE`] is over.
const SLOWEST_BYTES_PER_S: u64 = 64 << 10;
/// Requests that are answered at the same time, each by one thread.
const MOST_AT_ONCE: usize = 16;
/// Connections that wait for one of these threads.
const MOST_WAITING: usize = 16;
/// Refused connections that stay open for a while.
const MOST_REFUSED: usize = 64;
/// Pause after a connection that could not be accepted.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// A request.
#[derive(Debug, Default)]
pub struct Request {
    /// GET, ...
    pub method: String,
    /// The path as it came, without the question mark and the rest.
    pub path: String,
    /// The text after the question mark.
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

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// Status line, such as `200 OK`.
    pub status: &'static str,
    /// Header lines besides those about length and connection.
    pub headers: Vec<(&'static str, String)>,
    /// Left out when only the header is asked for.
    pub body: Arc<Vec<u8>>,
}

impl Response {
    /// A document of this type, which nobody may cache.
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

    /// An answer without a document, perhaps with a line that says why.
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
    /// Listens; port 0 selects a free one.
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

    /// Answers requests, a fixed number of them at the same time. Some more wait, and the rest get a 503. Returns
    /// only if no thread can be started.
    pub fn serve(&self, answer: impl Fn(&Request) -> Response + Send + Sync + 'static) {
        let answer = Arc::new(answer);
        let host = self.is_loopback.then(|| self.host.clone());
        let pool = Pool::start(MOST_AT_ONCE, MOST_WAITING, move |stream: TcpStream| {
            // This fails if the browser has gone away, which is not an error.
            let _ = converse(&stream, host.as_deref(), &*answer);
        });
        let Some(pool) = pool else {
            return;
        };
        let mut refused = Refused::default();
        for stream in self.listener.incoming() {
            match stream {
                Ok(stream) => {
                    if let Err(stream) = pool.give(stream) {
                        refused.add(stream);
                    }
                }
                // Too many open files, for example: another attempt would fail at once.
                Err(_) => std::thread::sleep(AFTER_ERROR),
            }
        }
    }
}

/// Connections that got a refusal and stay open for a while. The kernel resets a connection that is closed before its request
/// was read, and a client may then lose the refusal.
#[derive(Default)]
struct Refused(VecDeque<TcpStream>);

impl Refused {
    /// Refuses a connection without waiting for its request. The buffers of a new connection have room for a refusal, so this
    /// does not block either.
    fn add(&mut self, stream: TcpStream) {
        let mut response = Response::refusal(
            "503 Service Unavailable",
            "too many requests; try again later",
        );
        response.headers.push(("Retry-After", "1".to_owned()));
        let refuse = || {
            stream.set_nonblocking(true)?;
            send(&stream, "GET", &response)?;
            stream.shutdown(Shutdown::Write)
        };
        // This fails if the client has gone away.
        if refuse().is_err() {
            return;
        }
        if self.0.len() == MOST_REFUSED
            && let Some(mut oldest) = self.0.pop_front()
        {
            let _ = oldest.read(&mut [0; MOST_REQUEST_BYTES as usize]);
        }
        self.0.push_back(stream);
    }
}

/// Threads that take jobs in turn.
struct Pool<T>(SyncSender<T>);

impl<T: Send + 'static> Pool<T> {
    /// A pool of this many threads, or fewer if the system refuses more; `None` if it refuses all. At most
    /// `most_waiting` jobs wait.
    fn start(
        threads: usize,
        most_waiting: usize,
        work: impl Fn(T) + Send + Sync + 'static,
    ) -> Option<Self> {
        let (give, take) = sync_channel(most_waiting);
        let take = Arc::new(Mutex::new(take));
        let work = Arc::new(work);
        let start = || {
            let (take, work) = (Arc::clone(&take), Arc::clone(&work));
            std::thread::Builder::new().spawn(move || {
                loop {
                    let next = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(next) = next else { return };
                    // One request that fails must not take a thread away from all others.
                    let _ = catch_unwind(AssertUnwindSafe(|| work(next)));
                }
            })
        };
        let started = (0..threads).map_while(|_| start().ok()).count();
        (started > 0).then_some(Self(give))
    }

    /// Returns the job if too many wait.
    fn give(&self, what: T) -> Result<(), T> {
        self.0.try_send(what).map_err(|error| match error {
            TrySendError::Full(what) | TrySendError::Disconnected(what) => what,
        })
    }
}

/// Reads a request. All of it must arrive before the deadline: sending a byte now and then does not extend it.
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

/// Serves one request. `host` is the only name to answer to.
fn converse(
    stream: &TcpStream,
    host: Option<&str>,
    answer: &impl Fn(&Request) -> Response,
) -> io::Result<()> {
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

fn send(stream: &TcpStream, method: &str, response: &Response) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {}\r\n", response.status);
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let length = response.body.len();
    head.push_str(&format!(
        "Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ));
    let body: &[u8] = match method {
        "HEAD" => &[],
        _ => &response.body,
    };
    let most = Duration::from_secs(body.len() as u64 / SLOWEST_BYTES_PER_S);
    let deadline = Instant::now() + PATIENCE + most;
    send_all(stream, head.as_bytes(), deadline)?;
    send_all(stream, body, deadline)
}

/// Sends everything before the deadline. A client that takes a byte now and then does not extend it.
fn send_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns what a client gets for a request, over a real connection.
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
    fn a_pool_takes_no_more_than_it_has_room_for() {
        let (begun, begins) = sync_channel(1);
        let (end, ends) = sync_channel::<()>(1);
        let ends = Mutex::new(ends);
        let pool = Pool::start(1, 2, move |number: u32| {
            begun.send(number).unwrap();
            let _ = ends.lock().unwrap().recv();
        });
        let pool = pool.unwrap();
        assert_eq!(pool.give(1), Ok(()));
        assert_eq!(begins.recv(), Ok(1));
        // One job is at work, two wait, and one more is returned.
        assert_eq!(
            [2, 3, 4].map(|number| pool.give(number)),
            [Ok(()), Ok(()), Err(4)]
        );
        end.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(2));
        assert_eq!(pool.give(5), Ok(()));
        // Clients that wait for the end of the connection get it.
        drop(end);
        assert_eq!((begins.recv(), begins.recv()), (Ok(3), Ok(5)));
    }

    #[test]
    fn a_thread_of_a_pool_survives_what_fails() {
        let (done, is_done) = sync_channel(2);
        let pool = Pool::start(1, 2, move |number: u32| {
            assert_ne!(number, 1, "on purpose");
            done.send(number).unwrap();
        });
        let pool = pool.unwrap();
        assert_eq!((pool.give(1), pool.give(2)), (Ok(()), Ok(())));
        assert_eq!(is_done.recv(), Ok(2));
    }

    #[test]
    fn a_refusal_waits_for_no_request_and_few_stay_open() {
        let server = server();
        let mut refused = Refused::default();
        let mut clients = Vec::new();
        for _ in 0..MOST_REFUSED + 10 {
            clients.push(TcpStream::connect(server.listener.local_addr().unwrap()).unwrap());
            refused.add(server.listener.accept().unwrap().0);
        }
        assert_eq!(refused.0.len(), MOST_REFUSED);
        // None of these clients has sent anything.
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        }
    }

    #[test]
    fn an_answer_that_nobody_takes_ends() {
        let server = server();
        let client = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
        let (stream, _) = server.listener.accept().unwrap();
        // Too late from the start.
        let sent = send_all(&stream, b"x", Instant::now());
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(client);
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
        // One more byte arrives, too late.
        assert_eq!(read(now), Err(io::ErrorKind::TimedOut));
    }

    #[test]
    fn secrets_differ() {
        let (one, other) = (secret(), secret());
        assert_ne!(one, other);
        assert_eq!(one.len(), 32);
    }
}
