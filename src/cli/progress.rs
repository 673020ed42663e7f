//! A progress display on a terminal for work that takes more than a second.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const QUIET_FOR: Duration = Duration::from_secs(1);
const EACH: Duration = Duration::from_millis(100);

/// Shows a spinner or a bar on stderr, from one second after its creation to its end; nothing if stderr is not a
/// terminal.
pub struct Progress {
    shown: Option<(Sender<()>, JoinHandle<()>)>,
    read_bytes: Arc<AtomicU64>,
}

impl Progress {
    /// Starts the first second. `what` names the work, as in `adding up`.
    pub fn start(what: impl Into<String>) -> Self {
        Self::of(what.into(), 0)
    }

    /// A bar for reading these files; [`Self::read_bytes`] moves it.
    pub fn reading(paths: &[impl AsRef<Path>]) -> Self {
        let what = match paths {
            [path] => format!("reading {}", path.as_ref().display()),
            paths => format!("reading {} files", paths.len()),
        };
        let lengths = paths.iter().map(std::fs::metadata);
        let bytes = lengths.flatten().map(|metadata| metadata.len()).sum();
        Self::of(what, bytes)
    }

    /// Adds bytes that were read.
    pub fn read_bytes(&self) -> &AtomicU64 {
        &self.read_bytes
    }

    /// A bar if the number of bytes is known, otherwise a spinner.
    fn of(what: String, bytes: u64) -> Self {
        let read_bytes = Arc::new(AtomicU64::new(0));
        if !std::io::stderr().is_terminal() {
            return Self {
                shown: None,
                read_bytes,
            };
        }
        let (end, ended) = mpsc::channel();
        let watched = read_bytes.clone();
        let thread = std::thread::spawn(move || {
            if ended.recv_timeout(QUIET_FOR) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let (bar, template) = match bytes {
                0 => (ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}"),
                bytes => (
                    ProgressBar::new(bytes),
                    "{msg} [{bar:30}] {percent} % {elapsed}",
                ),
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("#>-"));
            }
            bar.set_message(what);
            // Ends when the other side is dropped.
            while ended.recv_timeout(EACH) == Err(RecvTimeoutError::Timeout) {
                match bytes {
                    0 => bar.tick(),
                    _ => bar.set_position(watched.load(Ordering::Relaxed)),
                }
            }
            bar.finish_and_clear();
        });
        Self {
            shown: Some((end, thread)),
            read_bytes,
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.shown.take() {
            drop(end);
            // A display that panicked has nothing to tell.
            let _ = thread.join();
        }
    }
}
