//! `allocsample serve`: profiles of running processes over HTTP.

mod page;
mod secret;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use allocsample_export::{Format, Metric, Options};
use anyhow::Context;

use crate::args;
use crate::commands::convert;
use crate::exit::{self, Ending};
use crate::growing::GrowingProfile;
use crate::http::{Request, Response, Server};
use crate::output_format::OutputFormat;
use crate::{output_file, running};

/// Maximum of `?seconds=`: a scraper gives up before that.
const LONGEST_PERIOD_S: u64 = 3600;

/// Serves until it is interrupted.
pub fn run(arguments: &args::Serve) -> anyhow::Result<Ending> {
    let named: Vec<(String, PathBuf)> = arguments
        .what
        .iter()
        .map(|what| Ok((name_of(what), running::profile_of(what)?)))
        .collect::<anyhow::Result<_>>()?;
    for (_, path) in &named {
        // A mistake is reported here, in one line, rather than in the browser.
        GrowingProfile::new(path.clone()).read()?;
    }
    let secret = match &arguments.secret {
        Some(path) => secret::of_file(path)?,
        None => crate::http::secret(),
    };
    let server = Server::bind(arguments.listen).with_context(|| arguments.listen.to_string())?;
    output_file::write_stdout(|out| Ok(writeln!(out, "http://{}/{secret}/", server.host())?))?;
    exit::remark("serving until Ctrl-C");
    let served = Served {
        prefix: format!("/{secret}"),
        named,
        open: Mutex::default(),
    };
    server.serve(move |request| served.answer(request));
    Ok(Ending::SUCCESS)
}

/// The name of a process in addresses: its pid, or the name of its profile.
fn name_of(what: &str) -> String {
    let file = what.rsplit('/').next().unwrap_or(what);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '~');
    file.chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect()
}

struct Served {
    prefix: String,
    /// The processes in the arguments; empty for every process that can be found.
    named: Vec<(String, PathBuf)>,
    /// Profiles that were read before, kept for their names.
    open: Mutex<HashMap<PathBuf, Arc<Mutex<GrowingProfile>>>>,
}

impl Served {
    fn answer(&self, request: &Request) -> Response {
        let Some(path) = request.path.strip_prefix(&self.prefix) else {
            return Response::refusal("404 Not Found", "");
        };
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return Response::refusal("405 Method Not Allowed", "");
        }
        let processes = self.processes();
        let not_there = |why: &str| Response::refusal("404 Not Found", why);
        let (name, what) = match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            None if matches!(path, "" | "/") => {
                return Response::document(
                    page::MIME,
                    page::of(&self.prefix, &processes).into_bytes(),
                );
            }
            // Scrapers expect this path at the root of the address that they were given.
            Some(("debug", what)) => match processes.as_slice() {
                [(name, _)] => (name.as_str(), format!("debug/{what}")),
                _ => return not_there("there is not exactly one process: put a pid before /debug"),
            },
            Some((name, what)) => (name, what.to_owned()),
            None => return not_there(""),
        };
        let Some((_, file)) = processes.iter().find(|(other, _)| other == name) else {
            return not_there(&format!("{name}: no such process writes a profile"));
        };
        self.document(file.clone(), &what, request)
            .unwrap_or_else(|error| {
                Response::refusal("500 Internal Server Error", &format!("{error:#}"))
            })
    }

    fn processes(&self) -> Vec<(String, PathBuf)> {
        if !self.named.is_empty() {
            return self.named.clone();
        }
        running::all()
            .into_iter()
            .map(|(pid, path)| (pid.to_string(), path))
            .collect()
    }

    fn document(&self, file: PathBuf, what: &str, request: &Request) -> anyhow::Result<Response> {
        let profile = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|path, _| path.exists());
            open.entry(file.clone())
                .or_insert_with(|| Arc::new(Mutex::new(GrowingProfile::new(file))))
                .clone()
        };
        let read = |since_ns| {
            profile
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .read_since(since_ns)
        };
        let mut options = Options::default();
        let (format, mime) = match what {
            "" => (OutputFormat::Html, page::MIME),
            "debug/pprof/heap" | "debug/pprof/allocs" => (
                OutputFormat::Export(Format::Pprof),
                "application/octet-stream",
            ),
            "flamegraph.svg" => (OutputFormat::Export(Format::Svg), "image/svg+xml"),
            "live.svg" => {
                options.metric = Metric::Live;
                (OutputFormat::Export(Format::Svg), "image/svg+xml")
            }
            _ => return Ok(Response::refusal("404 Not Found", "")),
        };
        if let Some(seconds) = request.parameter("seconds") {
            let Some(seconds) = seconds.parse().ok().filter(|s| *s <= LONGEST_PERIOD_S) else {
                let why = format!("seconds={seconds}: expected 0 to {LONGEST_PERIOD_S}");
                return Ok(Response::refusal("400 Bad Request", &why));
            };
            options.allocated_since_ns = read(u64::MAX)?.process.end_ns + 1;
            std::thread::sleep(Duration::from_secs(seconds));
        }
        let mut body = Vec::new();
        // The process may have continued in another file meanwhile.
        let since_ns = match options.allocated_since_ns {
            0 => u64::MAX,
            since_ns => since_ns,
        };
        convert::fill(&read(since_ns)?, format, &options, &mut body)?;
        Ok(Response::document(mime, body))
    }
}
