//! Which sampling is in force, and who may change it: somebody outside, or the drain thread that keeps a budget.
//!
//! A request from outside lies in the first page of the ring, which is a file that only the same user may write. No
//! socket, no thread, no signal: the slow path looks there, at each sample and at least once a mebibyte of each thread,
//! and whoever finds a new request puts it in force. The other threads adopt it at their next slow path.
//!
//! An interval and its number in the profile are written to a place once, and never changed; what is in force is one word
//! that names the place. So whoever reads it gets both of the same change.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_record::Note;
use allocsample_ring::request;
use allocsample_sampling::Interval;

use crate::agent::Agent;
use crate::os::slow_path::SlowPath;
use crate::os::spin::Spin;
use crate::os::thread::{Caller, Force, ShimThread};
use crate::recording::{self, Recording};
use crate::selection::Filter;

/// Intervals that can be told apart in one profile. A controller needs 157 (`allocsample_sampling::Controller`); the rest
/// is for people.
const PLACES: usize = 1024;
/// How many turns of other threads we wait for one that changes the interval, until the change is left to the next look.
const CHANGE_TURNS: u32 = 1000;

struct Place {
    /// 0 is "stopped".
    interval_bytes: AtomicU64,
    /// Its number in the profile.
    index: AtomicU32,
}

/// The sampling that is in force.
pub struct Control {
    /// The last request that was seen.
    seen: AtomicU64,
    places: [Place; PLACES],
    /// Places that are filled. Changed under the lock.
    used: AtomicU32,
    /// The number of the change (upper 48 bits) and of the place (lower 16).
    force: AtomicU64,
    /// The last interval at which samples were taken; 0 for none.
    before: AtomicU64,
    changing: Spin<()>,
}

impl Control {
    /// Stopped.
    pub const fn new() -> Self {
        Self {
            seen: AtomicU64::new(0),
            places: [const {
                Place {
                    interval_bytes: AtomicU64::new(0),
                    index: AtomicU32::new(0),
                }
            }; PLACES],
            used: AtomicU32::new(0),
            force: AtomicU64::new(0),
            before: AtomicU64::new(0),
            changing: Spin::new(()),
        }
    }

    /// As the settings say; `None` is stopped. At the start, and in a forked child, where no other thread is.
    pub fn reset(&self, interval: Option<Interval>) {
        self.changing.break_lock();
        self.seen.store(0, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        self.before.store(0, Ordering::Relaxed);
        // A profile says its first interval as number 0, also if sampling is stopped.
        if let Some(place) = self.fill(interval.map_or(0, Interval::bytes), 0) {
            self.set(place);
        }
    }

    /// The place of an interval that was in force before.
    fn place_of(&self, interval_bytes: u64) -> Option<(u64, u16)> {
        let used = self.used.load(Ordering::Relaxed) as usize;
        let mut filled = (0..).zip(self.places.iter().take(used));
        let (number, place) = filled.find(|(number, place)| {
            // The first interval of a profile is never "stopped", even if the place says so.
            let is_told = *number > 0 || interval_bytes > 0;
            is_told && place.interval_bytes.load(Ordering::Relaxed) == interval_bytes
        })?;
        Some((number, place.index.load(Ordering::Relaxed) as u16))
    }

    fn fill(&self, interval_bytes: u64, index: u16) -> Option<u64> {
        let number = self.used.load(Ordering::Relaxed);
        let place = self.places.get(number as usize)?;
        place
            .interval_bytes
            .store(interval_bytes, Ordering::Relaxed);
        place.index.store(u32::from(index), Ordering::Relaxed);
        self.used.store(number + 1, Ordering::Relaxed);
        Some(u64::from(number))
    }

    fn set(&self, place: u64) {
        let before = self.force.load(Ordering::Relaxed);
        // Release: who sees the word sees the place that it names.
        self.force
            .store(((before >> 16) + 1) << 16 | place, Ordering::Release);
    }

    /// The interval that is in force, or was before sampling was stopped.
    pub fn interval_before(&self) -> Option<Interval> {
        let now = self.force().interval;
        now.or_else(|| Interval::new(self.before.load(Ordering::Relaxed)))
    }

    /// Now.
    pub fn force(&self) -> Force {
        let force = self.force.load(Ordering::Acquire);
        let place = self.places.get(force as usize & 0xffff);
        Force {
            interval: place
                .and_then(|place| Interval::new(place.interval_bytes.load(Ordering::Relaxed))),
            index: place.map_or(0, |place| place.index.load(Ordering::Relaxed) as u16),
            // The lower half tells changes apart long enough.
            change: (force >> 16) as u32,
        }
    }
}

impl Agent {
    /// Looks for a request, and lets the thread adopt what is in force. Its own allocation has been dealt with.
    pub(crate) fn obey_requests(&self, thread: &ShimThread, slow_path: &SlowPath<'_>) {
        if let Some(recording) = recording::current() {
            let (generation, what, interval) = recording.ring.request();
            let seen = self.control.seen.load(Ordering::Relaxed);
            // One thread applies it.
            if generation > seen
                && (self.control.seen)
                    .compare_exchange(seen, generation, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                self.obey(recording, generation, what, interval);
            }
        }
        self.select(thread, slow_path);
        let force = self.control.force();
        if thread.change() != force.change {
            slow_path.adopt(&force);
        }
    }

    /// The same on a thread whose machine allocates, while malloc may be silent: only if something was asked for.
    pub fn obey_if_asked(&self, thread: &ShimThread) {
        let is_asked = recording::current().is_some_and(|recording| {
            recording.ring.request().0 > self.control.seen.load(Ordering::Relaxed)
        });
        if is_asked && let Some((slow_path, _)) = self.enter(thread, 0, &Caller::UNKNOWN) {
            self.obey_requests(thread, &slow_path);
        }
    }

    /// Apart, so that what is always on the program's stack stays small.
    #[cold]
    #[inline(never)]
    fn obey(&self, recording: &Recording, generation: u64, what: u64, value: u64) {
        match what {
            request::SET_INTERVAL => {
                self.apply_interval(recording, Interval::new(value), |_| true);
            }
            request::START => {
                let before = self.control.interval_before();
                let interval = before.or(self.config().interval);
                self.apply_interval(recording, interval, |_| true);
            }
            request::COLLECT => self.ask_to_collect(recording, generation),
            request::SELECT_THREAD => {
                let tid = u32::try_from(value >> 1).unwrap_or(0);
                if !self.select_thread(recording, tid, value & 1 != 0) {
                    recording.note(
                        Note::Selection,
                        b"as before: too many threads are told apart",
                    );
                }
            }
            request::FILTER => {
                let [most_bytes, low, high, _] = recording.ring.request_more();
                let filter = Filter {
                    least_bytes: value,
                    most_bytes,
                    name: [low, high],
                };
                self.set_filter(recording, &filter);
            }
            // The drain thread obeys when it has done it. If it does not run yet, the next sample starts it.
            request::FLUSH | request::SNAPSHOT | request::ROTATE | request::RESET => {
                return recording.ask_for_file_work(what, generation);
            }
            // A request that this version does not know, from a newer command or a foreign writer.
            _ => {}
        }
        recording.ring.obey(generation);
    }

    /// The interval of malloc that is in force now; `None` while sampling is stopped.
    pub fn interval_in_force(&self) -> Option<Interval> {
        self.control.force().interval
    }

    /// For a controller: puts another interval in force (`None` stops sampling), unless it is not `from` any more that is
    /// in force. Any thread.
    pub fn change_interval(
        &self,
        recording: &Recording,
        from: Interval,
        to: Option<Interval>,
    ) -> bool {
        self.apply_interval(recording, to, |now| now == Some(from))
    }

    /// Puts an interval in force if the present one is `right`.
    pub(crate) fn apply_interval(
        &self,
        recording: &Recording,
        interval: Option<Interval>,
        right: impl FnOnce(Option<Interval>) -> bool,
    ) -> bool {
        let control = &self.control;
        let changed = control.changing.with_patience(CHANGE_TURNS, |()| {
            if !right(control.force().interval) {
                return false;
            }
            if let Some(now) = control.force().interval {
                control.before.store(now.bytes(), Ordering::Relaxed);
            }
            let bytes = interval.map_or(0, Interval::bytes);
            let known = control.place_of(bytes);
            // Written even if it is known: it says when sampling went on.
            let index = self.write_interval(recording, interval, known.map(|(_, index)| index));
            let place = match (known, index) {
                (Some((place, _)), _) => Some(place),
                (None, Some(index)) => control.fill(bytes, index),
                (None, None) => None,
            };
            place.map(|place| control.set(place)).is_some()
        });
        if changed != Some(true) {
            return false;
        }
        for heap in self.heaps.all() {
            self.let_heap_follow(heap, interval);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    #[test]
    fn an_interval_always_comes_with_its_own_number() {
        static CONTROL: Control = Control::new();
        static DONE: AtomicBool = AtomicBool::new(false);
        CONTROL.reset(Interval::new(1000));
        let reader = std::thread::spawn(|| {
            let mut last = 0;
            while !DONE.load(Ordering::Relaxed) {
                let force = CONTROL.force();
                let bytes = force.interval.unwrap().bytes();
                assert_eq!(bytes, 1000 + u64::from(force.index));
                assert!(force.change >= last);
                last = force.change;
            }
        });
        for round in 0..20_000_u64 {
            let bytes = 1000 + round * 7919 % 500;
            let index = u16::try_from(bytes - 1000).unwrap();
            let known = CONTROL.place_of(bytes).map(|(place, _)| place);
            CONTROL.set(known.or_else(|| CONTROL.fill(bytes, index)).unwrap());
        }
        DONE.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    }

    #[test]
    fn stopped_is_a_place_too() {
        let control = Control::new();
        control.reset(None);
        assert_eq!(control.force().interval, None);
        let place = control.fill(4096, 3).unwrap();
        control.set(place);
        let force = control.force();
        assert_eq!((force.interval, force.index), (Interval::new(4096), 3));
        control.reset(Interval::new(7));
        assert_eq!(control.force().interval, Interval::new(7));
        assert_eq!(control.place_of(4096), None);
    }
}
