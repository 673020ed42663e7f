//! `allocsample view`: a profile in the browser, served on loopback.

mod server;

use std::process::{Command, Stdio};

use allocsample_diff::Per;
use allocsample_export::Format;
use allocsample_profile::{Profile, align_function_names};
use allocsample_view::Against;
use anyhow::Context;

use crate::args::View;
use crate::exit::{self, Ending};
use crate::filter::Selected;
use crate::output_format::OutputFormat;
use crate::progress::Progress;
use crate::{commands::convert, memory, output_file, profiles};
use server::Server;

/// Where the Firefox Profiler lives; it runs in the browser and fetches the profile from us.
const FIREFOX_PROFILER: &str = "https://profiler.firefox.com";

/// Serves the profile until it is interrupted.
pub fn run(arguments: &View) -> anyhow::Result<Ending> {
    let selected = Selected::by(&arguments.narrow)?;
    let mut profile = profiles::open(&arguments.file)?;
    let mut before = match &arguments.against {
        Some(before) => Some(profiles::open(before)?),
        None => None,
    };
    let mut profiles: Vec<&mut Profile> = before.iter_mut().chain([&mut profile]).collect();
    align_function_names(&mut profiles);
    profiles.into_iter().for_each(|it| selected.narrow(it));
    let (format, mime, name, reader) = if arguments.firefox {
        let format = OutputFormat::Export(Format::Firefox);
        (
            format,
            "application/json",
            "profile.json",
            Some(FIREFOX_PROFILER),
        )
    } else {
        (
            OutputFormat::Html,
            "text/html; charset=utf-8",
            "index.html",
            None,
        )
    };
    let mut body = Vec::new();
    {
        let _progress = Progress::start("preparing the page");
        match &before {
            Some(before) => {
                let earlier = Against {
                    before,
                    per: Per::Run,
                };
                allocsample_view::write(&profile, Some(&earlier), &mut body)?;
            }
            None => convert::fill(
                &profile,
                format,
                &convert::options(&profile, None),
                &mut body,
            )?,
        }
    }
    drop(profile);
    memory::lift();
    let server = Server::bind(arguments.port, name, mime, reader, body).context("127.0.0.1")?;
    let url = match reader {
        Some(reader) => format!("{reader}/from-url/{}", percent_encoded(&server.url())),
        None => server.url(),
    };
    output_file::write_stdout(|out| Ok(writeln!(out, "{url}")?))?;
    exit::remark("serving until Ctrl-C");
    if !arguments.no_open {
        open(&url);
    }
    server.serve();
    Ok(Ending::SUCCESS)
}

/// Best effort: the address was printed. The browser's chatter is not ours.
pub fn open(what: impl AsRef<std::ffi::OsStr>) {
    let _ = Command::new("xdg-open")
        .arg(what)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
}

fn percent_encoded(url: &str) -> String {
    url.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_fits_into_another() {
        let encoded = percent_encoded("http://127.0.0.1:8000/a1/profile.json");
        assert_eq!(encoded, "http%3A%2F%2F127.0.0.1%3A8000%2Fa1%2Fprofile.json");
    }
}
