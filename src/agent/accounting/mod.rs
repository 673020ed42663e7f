//! What threads allocate, exactly, and which of it is sampled.
//!
//! ```text
//! thread.rs      the state of one thread: counter, totals, sampler
//! slow_path.rs   the right to change that state
//! threads.rs     all threads, and the totals of those that have ended
//! control.rs     the interval that is in force
//! selection.rs   which threads and sizes are sampled
//! ```

pub mod control;
pub mod selection;
pub mod slow_path;
pub mod thread;
pub mod threads;

use allocsample_sampling::Interval;

use control::Control;
use selection::Selection;
use threads::Threads;

/// The accounts of all threads.
pub(crate) struct Accounting {
    pub control: Control,
    pub threads: Threads,
    pub selection: Selection,
}

impl Accounting {
    /// No thread, and sampling is stopped.
    pub const fn new() -> Self {
        Self {
            control: Control::new(),
            threads: Threads::new(),
            selection: Selection::new(),
        }
    }

    /// A profile begins: everything is sampled at this interval (`None`: nothing is).
    pub fn begin(&self, interval: Option<Interval>) {
        self.control.reset(interval);
        self.selection.clear();
    }

    /// In a forked child, in which the threads of the parent do not exist.
    pub fn restart(&self, interval: Option<Interval>) {
        self.threads.clear();
        self.begin(interval);
    }
}
