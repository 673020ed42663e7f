//! Requests to an agent whose process has not taken a sample yet, and so has no ring.
//!
//! The request is left in a file in the process's `/tmp`. When a slow path of one of the process's threads sees the
//! file, the agent begins its recording and takes the request.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use allocsample_profile::{WAITING_DIRECTORY, WAITING_NAME, WaitingRequest, start_ticks};
use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::request::{self, Asked, Wait};
use crate::exit::{self, Ending};
use crate::output_file;
use crate::running::{self, Found};

/// Leaves the request, waits a little for the process to take it, and prints the line from `told`.
pub fn request(pid: u32, asked: &Asked, told: &str) -> anyhow::Result<Ending> {
    let place = Place::of(pid)?;
    place.refuse_if_another_waits(pid, asked)?;
    place.leave(asked)?;
    let mut wait = Wait::new();
    while wait.goes_on(|| Some(pid)) {
        if !place.path.exists() {
            return is_taken(pid, told);
        }
        // The process may have taken its first sample just before the file existed; it then never looks for the file.
        if let Ok(Found::Profile(path)) = running::find(&pid.to_string()) {
            match fs::remove_file(&place.path) {
                Ok(()) => return request::request(&path, asked, || Ok(told.to_owned())),
                Err(error) if error.kind() == ErrorKind::NotFound => return is_taken(pid, told),
                Err(error) => return Err(error).with_context(|| place.name()),
            }
        }
    }
    if !Path::new(&format!("/proc/{pid}")).exists() {
        let _gone_with_it = fs::remove_file(&place.path);
        bail!("process {pid}: it has ended");
    }
    exit::remark(request::later(Some(pid)));
    Ok(Ending::SUCCESS)
}

/// The agent has put the request into its ring as the first one.
fn is_taken(pid: u32, told: &str) -> anyhow::Result<Ending> {
    let Found::Profile(path) = running::find(&pid.to_string())? else {
        bail!("process {pid}: another command removed the request; try again");
    };
    if !request::is_first_obeyed(&path)? {
        exit::remark(request::later(Some(pid)));
        return Ok(Ending::SUCCESS);
    }
    output_file::write_stdout(|out| Ok(writeln!(out, "{told}")?))?;
    Ok(Ending::SUCCESS)
}

struct Place {
    /// Path through the descriptor of the open directory.
    path: PathBuf,
    /// Path in our own file system.
    shown: String,
    /// Keeps `path` valid.
    _directory: OwnedFd,
    start_ticks: u64,
    /// The user that the process runs as.
    owner: (u32, u32),
}

impl Place {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let context = || format!("process {pid}");
        let process = format!("/proc/{pid}");
        let stat = fs::read(format!("{process}/stat")).with_context(context)?;
        let start_ticks = start_ticks(&stat).with_context(context)?;
        let inner = running::number_inside(pid, pid).with_context(context)?;
        let owner = fs::metadata(&process).with_context(context)?;
        let root = fs::File::open(format!("{process}/root")).with_context(context)?;
        // A link in the process's root leads to a place in that root, even if it is absolute.
        let directory = rustix::fs::openat2(
            &root,
            WAITING_DIRECTORY,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
        .with_context(|| format!("process {pid}: {WAITING_DIRECTORY}"))?;
        Ok(Self {
            path: PathBuf::from(format!(
                "/proc/self/fd/{}/{WAITING_NAME}{inner}",
                directory.as_raw_fd()
            )),
            shown: format!("{process}/root{WAITING_DIRECTORY}{WAITING_NAME}{inner}"),
            _directory: directory,
            start_ticks,
            owner: (owner.uid(), owner.gid()),
        })
    }

    fn name(&self) -> String {
        self.shown.clone()
    }

    fn refuse_if_another_waits(&self, pid: u32, asked: &Asked) -> anyhow::Result<()> {
        let before = fs::read(&self.path).unwrap_or_default();
        match WaitingRequest::decode(&before) {
            Some(before)
                if before.start_ticks == self.start_ticks
                    && !asked.replaces(before.what, before.value) =>
            {
                bail!(
                    "process {pid}: an earlier request is still pending, because the program has not allocated since; try again later"
                )
            }
            _ => Ok(()),
        }
    }

    /// Written aside first: the agent sees a complete file or none.
    fn leave(&self, asked: &Asked) -> anyhow::Result<()> {
        let request = WaitingRequest {
            start_ticks: self.start_ticks,
            what: asked.what,
            value: asked.value,
            more: asked.more,
        };
        let aside = PathBuf::from(format!("{}.{}", self.path.display(), std::process::id()));
        let written = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)
            .and_then(|mut file| {
                file.write_all(&request.encode())?;
                // The agent accepts requests only from its own user and root.
                if file.metadata()?.uid() != self.owner.0 {
                    fchown(&file, Some(self.owner.0), Some(self.owner.1))?;
                }
                fs::rename(&aside, &self.path)
            });
        written
            .inspect_err(|_| {
                let _nothing_more_to_do = fs::remove_file(&aside);
            })
            .with_context(|| self.name())
    }
}
