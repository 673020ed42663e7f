//! A sign of life on a terminal when something takes more than a second.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const QUIET_FOR: Duration = Duration::from_secs(1);

/// Shows a spinner on stderr from the second second of its life to its end; nothing if stderr is no terminal.
pub struct Progress {
    spinner: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins the wait for the first second. `what` is what we are doing, as in `reading app.allocsample`.
    pub fn start(what: impl Into<String>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { spinner: None };
        }
        let what = what.into();
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            if ended.recv_timeout(QUIET_FOR) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let spinner = ProgressBar::new_spinner().with_message(what);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(Duration::from_millis(100));
            // Ends when the other side is dropped.
            let _ = ended.recv();
            spinner.finish_and_clear();
        });
        Self {
            spinner: Some((end, thread)),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.spinner.take() {
            drop(end);
            // A spinner that panicked has nothing to tell.
            let _ = thread.join();
        }
    }
}
