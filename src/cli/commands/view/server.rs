//! One document over HTTP on 127.0.0.1, for those who know its address.
//!
//! The address holds a random number: other users of the machine, and pages of other origins, cannot guess it. A request
//! under another host's name (a name that was made to point here) is refused. Only one origin may read the document from
//! a script, if any.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Longer requests are none of a browser's.
const MOST_REQUEST_BYTES: u64 = 16 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// The document and its address.
pub struct Server {
    listener: TcpListener,
    url: String,
    document: Arc<Document>,
}

struct Document {
    host: String,
    path: String,
    mime: &'static str,
    /// The origin whose scripts may read it.
    reader: Option<&'static str>,
    body: Vec<u8>,
}

impl Server {
    /// Listens on a port; 0 is any that is free.
    pub fn bind(
        port: u16,
        name: &str,
        mime: &'static str,
        reader: Option<&'static str>,
        body: Vec<u8>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let host = format!("127.0.0.1:{}", listener.local_addr()?.port());
        // The keys of a `RandomState` are random; two of them make 128 bits.
        let random = || RandomState::new().hash_one(name);
        let path = format!("/{:016x}{:016x}/{name}", random(), random());
        Ok(Self {
            listener,
            url: format!("http://{host}{path}"),
            document: Arc::new(Document {
                host,
                path,
                mime,
                reader,
                body,
            }),
        })
    }

    /// Where the document is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Answers requests, each on a thread of its own. Does not return.
    pub fn serve(&self) {
        for stream in self.listener.incoming().flatten() {
            let document = Arc::clone(&self.document);
            // A browser that went away is nobody's concern.
            std::thread::spawn(move || drop(document.answer(stream)));
        }
    }
}

impl Document {
    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut lines = BufReader::new((&stream).take(MOST_REQUEST_BYTES)).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        let mut host = String::new();
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("host")
            {
                value.trim().clone_into(&mut host);
            }
        }
        let head = self.head(&request, &host);
        stream.write_all(head.text.as_bytes())?;
        if head.has_body {
            stream.write_all(&self.body)?;
        }
        stream.flush()
    }

    fn head(&self, request: &str, host: &str) -> Head {
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let refused = |status: &str| Head {
            text: format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
            has_body: false,
        };
        if host != self.host {
            return refused("421 Misdirected Request");
        }
        if path != self.path {
            return refused("404 Not Found");
        }
        let mut permission = String::new();
        if let Some(reader) = self.reader {
            // The second line is for a page of the internet that reads from a private network.
            permission = format!(
                "Access-Control-Allow-Origin: {reader}\r\nAccess-Control-Allow-Private-Network: true\r\nVary: Origin\r\n"
            );
        }
        match method {
            "GET" | "HEAD" => Head {
                text: format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
                     X-Content-Type-Options: nosniff\r\n{permission}Connection: close\r\n\r\n",
                    self.mime,
                    self.body.len()
                ),
                has_body: method == "GET",
            },
            "OPTIONS" => Head {
                text: format!("HTTP/1.1 204 No Content\r\n{permission}Connection: close\r\n\r\n"),
                has_body: false,
            },
            _ => refused("405 Method Not Allowed"),
        }
    }
}

struct Head {
    text: String,
    has_body: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        server
            .document
            .answer(server.listener.accept().unwrap().0)
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn only_who_knows_the_address_gets_the_document() {
        let body = b"the document".to_vec();
        let reader = Some("https://viewer.example");
        let server = Server::bind(0, "x.json", "application/json", reader, body).unwrap();
        let Document { host, path, .. } = &*server.document;
        assert_eq!(server.url(), format!("http://{host}{path}"));
        assert!(host.starts_with("127.0.0.1:"));
        let request = |method: &str, path: &str, host: &str| {
            asked(
                &server,
                &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            )
        };
        let answer = request("GET", path, host);
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nthe document"));
        assert!(answer.contains("Access-Control-Allow-Origin: https://viewer.example\r\n"));
        assert!(request("HEAD", path, host).ends_with("\r\n\r\n"));
        assert!(request("OPTIONS", path, host).starts_with("HTTP/1.1 204 "));
        for (method, path, host, status) in [
            ("GET", "/", &host[..], "404"),
            ("GET", "/../etc/passwd", host, "404"),
            ("GET", path, "evil.example", "421"),
            ("GET", path, "", "421"),
            ("POST", path, host, "405"),
        ] {
            let answer = request(method, path, host);
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
            assert!(!answer.contains("document"));
        }
    }
}
