//! The state of the agent: off, on, failed or finished.

use core::sync::atomic::{AtomicU32, Ordering};

/// The agent's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Switch {
    /// Allocations pass through uncounted.
    Off = 0,
    /// Sampling.
    On = 1,
    /// Something went wrong and was reported; off for good.
    Failed = 2,
    /// The process is ending and everything is written.
    Finished = 3,
}

/// The state of the agent, shared by all threads.
pub struct SwitchCell(AtomicU32);

impl SwitchCell {
    /// Off.
    pub const fn new() -> Self {
        Self(AtomicU32::new(Switch::Off as u32))
    }

    /// The state.
    pub fn get(&self) -> Switch {
        // Acquire: pairs with `set`; who sees On sees the configuration.
        match self.0.load(Ordering::Acquire) {
            0 => Switch::Off,
            1 => Switch::On,
            2 => Switch::Failed,
            _ => Switch::Finished,
        }
    }

    /// Changes the state.
    pub fn set(&self, state: Switch) {
        self.0.store(state as u32, Ordering::Release);
    }

    /// Changes the state if it is `from`; true if it was.
    pub fn change(&self, from: Switch, to: Switch) -> bool {
        self.0
            .compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}
