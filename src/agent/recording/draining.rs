//! How the drain thread is started, woken and asked, and how threads wait for it.

use core::sync::atomic::{Ordering, fence};

use super::Recording;
use crate::config::OnFull;
use crate::os;
use crate::os::clock::Patience;
use crate::os::futex;

/// Bits of a request that say what is wanted.
const ASKED_BITS: u32 = 8;

/// State of the drain thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DrainState {
    /// Never started, or stopped for a while.
    None = 0,
    /// Being started by some thread.
    Starting = 1,
    /// At work: the profile is open.
    Running = 2,
    /// It has written everything and is ending.
    Done = 3,
    /// It could not be started, or could not write.
    Failed = 4,
}

impl DrainState {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Starting,
            2 => Self::Running,
            3 => Self::Done,
            _ => Self::Failed,
        }
    }
}

/// A request to the drain thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DrainRequest {
    /// Drain whenever enough has gathered.
    Work = 0,
    /// Drain everything and end, but leave the ring: it is to be used again.
    Pause = 1,
    /// Drain everything, remove the ring and end.
    Finish = 2,
}

impl Recording {
    /// Whether there is enough in the ring to be worth draining.
    pub fn has_work(&self) -> bool {
        self.is_worth_draining(self.ring.used_words())
    }

    /// Whether this many words in the ring are worth draining.
    pub fn is_worth_draining(&self, used_words: u64) -> bool {
        let enough = self.enough_words.load(Ordering::Relaxed);
        used_words >= enough.min(self.ring.capacity_words() / 4)
    }

    /// From now on this many words in the ring wake the drain thread, if that is less than a quarter of it. A controller must
    /// notice a burst before it uses up the budget.
    pub fn drain_from(&self, words: u64) {
        self.enough_words.store(words, Ordering::Relaxed);
    }

    /// Wakes the drain thread if it sleeps. There is work for it until it has caught up: without the flag, each sample
    /// and each free until then would be a system call.
    pub fn nudge_drain(&self) {
        // Either we see that it sleeps, or it sees our record: see `sleep_until_work`.
        fence(Ordering::SeqCst);
        if self.is_drain_asleep.load(Ordering::Relaxed)
            && self.is_drain_asleep.swap(false, Ordering::Relaxed)
        {
            self.wake_drain();
        }
    }

    /// Sleeps until there is work, or the counter differs from `wake`. Only the drain thread calls this.
    pub fn sleep_until_work(&self, wake: u32, timeout_ms: Option<u32>) {
        self.is_drain_asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `nudge_drain`.
        fence(Ordering::SeqCst);
        if !self.has_work() {
            futex::wait(&self.wake, wake, timeout_ms);
        }
        self.is_drain_asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes the drain thread, which finds out by itself what to do.
    pub fn wake_drain(&self) {
        // Release: pairs with the drain thread's acquire; it sees the request.
        self.wake.fetch_add(1, Ordering::Release);
        if !os::is_filtered() {
            futex::wake_all(&self.wake);
        }
    }

    /// As [`Self::wake_drain`], before a filter of system calls forbids it: from here on the drain thread polls.
    pub fn wake_drain_for_the_last_time(&self) {
        self.wake.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.wake);
    }

    /// Waits until the drain thread has given space back, if the settings say so and it can. False: do not wait (again).
    pub fn wait_for_space(&self, on_full: OnFull) -> bool {
        /// A drain thread without progress for this long is stuck.
        const PATIENCE_MS: u32 = 10_000;
        let before = self.space.load(Ordering::Acquire);
        if on_full == OnFull::Drop
            || os::is_filtered()
            || self.given_up_at.load(Ordering::Relaxed) == before
        {
            return false;
        }
        self.wake_drain();
        let patience = Patience::of_ms(PATIENCE_MS);
        while self.space.load(Ordering::Acquire) == before {
            let is_at_work = matches!(
                self.drain_state(),
                DrainState::Starting | DrainState::Running
            );
            // Not in a child of a signal handler's that goes on here.
            let can_come = is_at_work && self.is_current();
            if !can_come {
                return false;
            }
            let Some(left_ms) = patience.left_ms() else {
                // Nobody else waits for it until it moves.
                self.given_up_at.store(before, Ordering::Relaxed);
                return false;
            };
            futex::wait(&self.space, before, Some(left_ms));
        }
        true
    }

    /// Leaves a request about the files to the drain thread: one of `allocsample_ring::request`'s numbers, and its
    /// generation, 0 for one from inside. Any thread, also in a signal handler.
    pub(crate) fn ask_for_file_work(&self, what: u64, generation: u64) {
        // Of two that nobody has taken yet the one that does more: a flush, a copy, a new file, a new beginning.
        let of = |before: u64| {
            let what = what.max(before & ((1 << ASKED_BITS) - 1));
            let generation = generation.max(before >> ASKED_BITS);
            Some(generation << ASKED_BITS | what)
        };
        let _always = (self.asked).fetch_update(Ordering::AcqRel, Ordering::Acquire, of);
        self.wake_drain();
    }

    /// Whether there is a request about the files.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != 0
    }

    /// Takes the request about the files: its kind and generation. Only the drain thread calls this.
    pub fn take_asked(&self) -> Option<(u64, u64)> {
        match self.asked.swap(0, Ordering::Acquire) {
            0 => None,
            asked => Some((asked & ((1 << ASKED_BITS) - 1), asked >> ASKED_BITS)),
        }
    }

    /// A stack has run through a module that a bridge waits for, which starts at this address: the drain thread should look at it
    /// before all others. Of several the last one is kept; the others have their turn later.
    pub fn await_module(&self, start: u64) {
        self.awaited_module.store(start, Ordering::Relaxed);
    }

    /// Whether there is such a module that the drain thread has not looked at.
    pub(crate) fn is_module_awaited(&self) -> bool {
        self.awaited_module.load(Ordering::Relaxed) != 0
    }

    /// Takes that module. Only the drain thread calls this.
    pub fn take_awaited_module(&self) -> Option<u64> {
        let start = self.awaited_module.swap(0, Ordering::Relaxed);
        (start != 0).then_some(start)
    }

    /// Whether the drain thread runs.
    pub fn drain_state(&self) -> DrainState {
        DrainState::from_number(self.state.load(Ordering::Acquire))
    }

    /// Takes the right to start the drain thread, which has the ring from here on.
    pub fn claim_drain_start(&self) -> bool {
        let (from, to) = (DrainState::None as u32, DrainState::Starting as u32);
        let is_claimed = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if is_claimed {
            self.is_held_by_drain();
        }
        is_claimed
    }

    /// Sets the state. Called by the drain thread, or by the thread that failed to start it.
    pub fn set_drain_state(&self, state: DrainState) {
        self.state.store(state as u32, Ordering::Release);
        futex::wake_all(&self.state);
    }

    /// Waits until the drain thread, if it is being started, has opened the profile or has failed to.
    pub fn wait_for_drain_start(&self) {
        let patience = Patience::of_ms(2_000);
        while self.drain_state() == DrainState::Starting && self.is_current() {
            let Some(left_ms) = patience.left_ms() else {
                return;
            };
            futex::wait(&self.state, DrainState::Starting as u32, Some(left_ms));
        }
    }

    /// The present request to the drain thread.
    pub fn drain_request(&self) -> DrainRequest {
        match self.request.load(Ordering::Acquire) {
            0 => DrainRequest::Work,
            1 => DrainRequest::Pause,
            _ => DrainRequest::Finish,
        }
    }

    /// Asks the drain thread for something and waits until it has gone, as long as it moves: it may stand still for
    /// `patience_ms`. True if it has done it.
    pub fn ask_drain(&self, request: DrainRequest, patience_ms: u32) -> bool {
        if os::is_filtered() {
            // What is in the ring at the end is in a file.
            return request == DrainRequest::Pause && self.pause_drain_silently(patience_ms);
        }
        self.request.store(request as u32, Ordering::Release);
        let mut patience = Patience::of_ms(patience_ms);
        let mut moved = self.space.load(Ordering::Relaxed);
        loop {
            let now_moved = self.space.load(Ordering::Relaxed);
            if now_moved != moved {
                moved = now_moved;
                patience = Patience::of_ms(patience_ms);
            }
            if !self.is_current() {
                return false;
            }
            match self.drain_state() {
                DrainState::Done => return true,
                DrainState::None | DrainState::Failed => return false,
                DrainState::Starting | DrainState::Running if patience.left_ms().is_none() => {
                    return false;
                }
                state => {
                    self.wake_drain();
                    futex::wait(&self.state, state as u32, Some(100));
                }
            }
        }
    }

    /// Behind a filter, where we neither wake nor sleep: the drain thread looks by itself every few milliseconds.
    fn pause_drain_silently(&self, patience_ms: u32) -> bool {
        self.request
            .store(DrainRequest::Pause as u32, Ordering::Release);
        self.wake_drain();
        let patience = Patience::of_ms(patience_ms);
        while matches!(
            self.drain_state(),
            DrainState::Starting | DrainState::Running
        ) && self.is_current()
            && patience.left_ms().is_some()
        {
            core::hint::spin_loop();
        }
        self.drain_state() == DrainState::Done
    }

    /// The main thread has called `pthread_exit`: the process now ends with its last thread.
    pub fn main_has_exited(&self) {
        self.main_exited.store(1, Ordering::Relaxed);
        self.wake_drain();
    }

    /// Whether [`Self::main_has_exited`].
    pub fn has_main_exited(&self) -> bool {
        self.main_exited.load(Ordering::Relaxed) != 0
    }

    /// After [`DrainRequest::Pause`]: a drain thread may be started again, or goes on if it has not paused.
    pub fn allow_drain_again(&self) {
        self.request
            .store(DrainRequest::Work as u32, Ordering::Release);
        if self.drain_state() == DrainState::Done {
            self.set_drain_state(DrainState::None);
        }
    }
}
