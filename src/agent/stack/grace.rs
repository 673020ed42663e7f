//! When memory that a walk may still look at can be used again.
//!
//! Walks enter and leave; what is taken out of their sight gets the number of the present phase. A phase ends when no
//! walk is left of the one before it, so that two phases later nobody can have seen what was taken away. Walks are
//! counted in two counters in turn: a walk costs two additions, and never waits. There are several pairs of counters, so
//! that threads which walk at the same time do not write the same cache line.

use core::sync::atomic::{AtomicU32, Ordering};

/// See the module. All orderings are sequentially consistent: a walk that is counted in a phase must see everything that
/// was done before that phase began, and who ends a phase must see every walk that is counted in it.
pub(super) struct Grace {
    phase: AtomicU32,
    lanes: [Lane; LANES],
}

const LANES: usize = 16;

/// Walks in even and in odd phases. A cache line of its own.
#[repr(align(64))]
struct Lane([AtomicU32; 2]);

/// A walk, while it exists.
pub(super) struct Entered<'a> {
    counter: Option<&'a AtomicU32>,
}

/// When something was taken out of sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase(u32);

impl Grace {
    pub(super) const fn new() -> Self {
        Self {
            phase: AtomicU32::new(0),
            lanes: [const { Lane([AtomicU32::new(0), AtomicU32::new(0)]) }; LANES],
        }
    }

    /// A walk of this thread begins.
    pub(super) fn enter(&self, thread: u32) -> Entered<'_> {
        let lane = self.lanes.get(thread as usize % LANES);
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            let counter = lane.and_then(|Lane(walking)| walking.get(phase as usize % 2));
            if let Some(counter) = counter {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            let entered = Entered { counter };
            // Otherwise the phase may have ended without a look at this walk.
            if self.phase.load(Ordering::SeqCst) == phase {
                return entered;
            }
        }
    }

    /// The present phase, for something that was just taken out of sight.
    pub(super) fn now(&self) -> Phase {
        Phase(self.phase.load(Ordering::SeqCst))
    }

    /// Ends the phase if it can be ended. One caller at a time.
    pub(super) fn advance(&self) {
        let phase = self.phase.load(Ordering::SeqCst);
        let next = phase.wrapping_add(1);
        let is_left = |Lane(walking): &Lane| {
            let counter = walking.get(next as usize % 2);
            counter.is_some_and(|walking| walking.load(Ordering::SeqCst) > 0)
        };
        if !self.lanes.iter().any(is_left) {
            self.phase.store(next, Ordering::SeqCst);
        }
    }

    /// Whether no walk can see any more what was taken out of sight then.
    pub(super) fn is_over(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::SeqCst).wrapping_sub(phase.0) >= 2
    }

    /// In a forked child, where the walks of other threads do not exist.
    pub(super) fn restart(&self) {
        for walking in self.lanes.iter().flat_map(|Lane(walking)| walking) {
            walking.store(0, Ordering::SeqCst);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.counter {
            // Not below zero: a forked child may have set it to 0 meanwhile.
            let _ = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |walking| {
                walking.checked_sub(1)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_a_walk_may_have_seen_is_kept_until_it_ends() {
        let grace = Grace::new();
        let walk = grace.enter(1);
        let taken_away = grace.now();
        for _ in 0..10 {
            grace.advance();
        }
        assert!(!grace.is_over(taken_away));
        drop(walk);
        let later = grace.enter(2);
        grace.advance();
        grace.advance();
        // The later walk may hold up the phases, but began when it was gone.
        drop(later);
        grace.advance();
        assert!(grace.is_over(taken_away));
    }

    /// Whatever the thread's number, and however many phases there were.
    #[test]
    fn every_walk_is_counted() {
        let grace = Grace::new();
        for thread in [0, 1, 15, 16, 17, 255, 256, 4711, u32::MAX] {
            let walk = grace.enter(thread);
            let taken_away = grace.now();
            (0..5).for_each(|_| grace.advance());
            assert!(!grace.is_over(taken_away), "{thread}");
            drop(walk);
            grace.advance();
            assert!(grace.is_over(taken_away), "{thread}");
            // As if nobody had walked for long.
            (0..3).for_each(|_| grace.advance());
        }
    }

    /// The writer leaves the readers alone after so many turns: each of its turns may have them begin anew.
    #[test]
    fn a_place_is_used_again_only_when_no_walk_can_read_it() {
        const PLACES: usize = 3;
        const READERS: u32 = 3;
        const WALKS: u32 = 5_000;
        const TURNS: u32 = 20_000;
        static GRACE: Grace = Grace::new();
        static CURRENT: AtomicU32 = AtomicU32::new(0);
        static IN_USE: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
        let in_use = |place: usize| IN_USE.get(place).unwrap();
        in_use(0).store(1, Ordering::SeqCst);
        let readers: Vec<_> = (0..READERS)
            .map(|thread| {
                std::thread::spawn(move || {
                    let mut reads_of_others = 0;
                    for _ in 0..WALKS {
                        let _walk = GRACE.enter(thread);
                        let place = CURRENT.load(Ordering::Acquire) as usize;
                        for _ in 0..50 {
                            reads_of_others += 1 - in_use(place).load(Ordering::Relaxed);
                        }
                    }
                    reads_of_others
                })
            })
            .collect();
        let mut retired: Vec<(usize, Phase)> = Vec::new();
        let mut free: Vec<usize> = std::vec![1, 2];
        let mut replaced = 0;
        let mut turn = || {
            GRACE.advance();
            retired.retain(|&(place, phase)| {
                let is_over = GRACE.is_over(phase);
                if is_over {
                    in_use(place).store(0, Ordering::SeqCst);
                    free.push(place);
                }
                !is_over
            });
            if let Some(place) = free.pop() {
                in_use(place).store(1, Ordering::SeqCst);
                let before = CURRENT.swap(place as u32, Ordering::SeqCst);
                retired.push((before as usize, GRACE.now()));
                replaced += 1;
            }
            replaced
        };
        for _ in 0..TURNS {
            turn();
            std::thread::yield_now();
        }
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 0);
        }
        // Without readers each place comes round after two phases.
        let before = turn();
        let after = (0..30).map(|_| turn()).last().unwrap();
        assert!(after >= before + 10, "{before} {after}");
    }
}
