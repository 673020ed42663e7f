//! One document over HTTP on 127.0.0.1. Only one origin may read it from a script, if any.

use std::io;
use std::sync::Arc;

use crate::http::{self, Request, Response};

/// The document and its address.
pub struct Server {
    http: http::Server,
    document: Document,
}

#[derive(Clone)]
struct Document {
    path: String,
    mime: &'static str,
    /// The origin whose scripts may read it.
    reader: Option<&'static str>,
    body: Arc<Vec<u8>>,
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
        Ok(Self {
            http: http::Server::bind(([127, 0, 0, 1], port).into())?,
            document: Document {
                path: format!("/{}/{name}", http::secret()),
                mime,
                reader,
                body: Arc::new(body),
            },
        })
    }

    /// Where the document is.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.http.host(), self.document.path)
    }

    /// Answers requests. Does not return.
    pub fn serve(&self) {
        let document = self.document.clone();
        self.http.serve(move |request| document.answer(request));
    }
}

impl Document {
    fn answer(&self, request: &Request) -> Response {
        if request.path != self.path {
            return Response::refusal("404 Not Found", "");
        }
        let mut response = match request.method.as_str() {
            "GET" | "HEAD" => Response::document(self.mime, self.body.clone()),
            "OPTIONS" => Response::refusal("204 No Content", ""),
            _ => return Response::refusal("405 Method Not Allowed", ""),
        };
        if let Some(reader) = self.reader {
            // The second line is for a page of the internet that reads from a private network.
            response.headers.extend([
                ("Access-Control-Allow-Origin", reader.to_owned()),
                ("Access-Control-Allow-Private-Network", "true".to_owned()),
                ("Vary", "Origin".to_owned()),
            ]);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::asked;

    #[test]
    fn only_who_knows_the_address_gets_the_document() {
        let body = b"the document".to_vec();
        let reader = Some("https://viewer.example");
        let server = Server::bind(0, "x.json", "application/json", reader, body).unwrap();
        let (host, path) = (server.http.host(), &server.document.path[..]);
        assert_eq!(server.url(), format!("http://{host}{path}"));
        assert!(host.starts_with("127.0.0.1:"));
        let request = |method: &str, path: &str, host: &str| {
            asked(
                &server.http,
                &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
                &|request: &Request| server.document.answer(request),
            )
        };
        let answer = request("GET", path, host);
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nthe document"));
        assert!(answer.contains("Access-Control-Allow-Origin: https://viewer.example\r\n"));
        assert!(request("HEAD", path, host).ends_with("\r\n\r\n"));
        assert!(request("OPTIONS", path, host).starts_with("HTTP/1.1 204 "));
        for (method, path, host, status) in [
            ("GET", "/", host, "404"),
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
