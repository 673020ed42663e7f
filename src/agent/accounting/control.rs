//! The interval at which malloc is sampled now.
//!
//! Every place holds an interval and its number in the profile. It is written once and never changed. One word names the
//! place in force, so a reader always gets an interval together with its own number.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_sampling::Interval;

use super::thread::Force;
use crate::os::spin::Spin;

/// Maximum number of different intervals in one profile. A controller needs 157 (`allocsample_sampling::Controller`); the rest
/// is for requests.
const PLACES: usize = 1024;
/// Number of times that a thread yields while another one changes the interval, before it leaves its own change to the next
/// slow path.
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

    /// Resets everything to this interval (`None`: sampling is stopped). At the start, and in a forked child, where no other
    /// thread exists.
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
            let is_real = *number > 0 || interval_bytes > 0;
            is_real && place.interval_bytes.load(Ordering::Relaxed) == interval_bytes
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
        // Release: a reader of the word also sees the place that it names.
        self.force
            .store(((before >> 16) + 1) << 16 | place, Ordering::Release);
    }

    /// The interval that is in force, or was before sampling was stopped.
    pub fn interval_before(&self) -> Option<Interval> {
        let now = self.force().interval;
        now.or_else(|| Interval::new(self.before.load(Ordering::Relaxed)))
    }

    /// Whether a request from outside is newer than all that were taken.
    pub fn is_new(&self, generation: u64) -> bool {
        generation > self.seen.load(Ordering::Relaxed)
    }

    /// Takes a request if it is new. True for one thread only, which is to apply it.
    pub fn take(&self, generation: u64) -> bool {
        let seen = self.seen.load(Ordering::Relaxed);
        generation > seen
            && (self.seen)
                .compare_exchange(seen, generation, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Puts an interval in force (`None`: sampling stops) if the present one is `right`. `record` writes it to the profile,
    /// under the number that it has had before if any, and returns its number. False: nothing has changed.
    pub fn change(
        &self,
        interval: Option<Interval>,
        right: impl FnOnce(Option<Interval>) -> bool,
        record: impl FnOnce(Option<u16>) -> Option<u16>,
    ) -> bool {
        let changed = self.changing.with_patience(CHANGE_TURNS, |()| {
            if !right(self.force().interval) {
                return false;
            }
            if let Some(now) = self.force().interval {
                self.before.store(now.bytes(), Ordering::Relaxed);
            }
            let bytes = interval.map_or(0, Interval::bytes);
            let known = self.place_of(bytes);
            // Recorded even if it is known: the record says when sampling went on.
            let index = record(known.map(|(_, index)| index));
            let place = match (known, index) {
                (Some((place, _)), _) => Some(place),
                (None, Some(index)) => self.fill(bytes, index),
                (None, None) => None,
            };
            place.map(|place| self.set(place)).is_some()
        });
        changed == Some(true)
    }

    /// The sampling that is in force.
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
    fn the_first_interval_of_a_profile_is_never_that_of_a_stop() {
        let control = Control::new();
        control.reset(None);
        assert_eq!(control.place_of(0), None);
        control.reset(Interval::new(1000));
        assert_eq!(control.place_of(1000), Some((0, 0)));
        assert_eq!(control.place_of(0), None);
        assert_eq!(control.fill(0, 1), Some(1));
        assert_eq!(control.place_of(0), Some((1, 1)));
        assert_eq!(control.place_of(2000), None);
    }

    #[test]
    fn a_request_is_taken_once() {
        let control = Control::new();
        control.reset(Interval::new(1000));
        assert!(control.is_new(1) && control.take(1));
        assert!(!control.is_new(1) && !control.take(1));
        // An older one that is read late changes nothing.
        assert!(control.take(5) && !control.take(4));
        control.reset(Interval::new(1000));
        assert!(control.is_new(1));
    }

    #[test]
    fn an_interval_that_comes_back_keeps_its_number() {
        let control = Control::new();
        control.reset(Interval::new(1000));
        let change = |bytes, index| {
            let mut known = None;
            let is_changed = control.change(
                Interval::new(bytes),
                |_| true,
                |number| {
                    known = number;
                    number.or(Some(index))
                },
            );
            assert!(is_changed);
            known
        };
        assert_eq!(change(2000, 7), None);
        assert_eq!(change(1000, 8), Some(0));
        assert_eq!(change(2000, 9), Some(7));
        assert_eq!(
            (control.force().interval, control.force().index),
            (Interval::new(2000), 7)
        );
    }

    #[test]
    fn a_change_that_is_refused_or_not_recorded_leaves_the_interval() {
        let control = Control::new();
        control.reset(Interval::new(1000));
        let is = |bytes| move |now: Option<Interval>| now == Interval::new(bytes);
        assert!(!control.change(Interval::new(2000), is(3000), |_| Some(1)));
        assert!(!control.change(Interval::new(2000), is(1000), |_| None));
        assert_eq!(control.force().interval, Interval::new(1000));
    }

    #[test]
    fn an_interval_that_was_stopped_is_known_until_it_goes_on() {
        let control = Control::new();
        control.reset(Interval::new(1000));
        assert!(control.change(None, |_| true, |_| Some(1)));
        assert_eq!(control.force().interval, None);
        assert_eq!(control.interval_before(), Interval::new(1000));
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
