//! Which process the agent's state belongs to, and which profile of it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use allocsample_sampling::Seed;

use crate::os::memory::ForkCanary;
use crate::os::process;

/// See the module.
pub(crate) struct Identity {
    canary: ForkCanary,
    /// Grows by one in each forked child, and at the end of each profile.
    epoch: AtomicU32,
    pid: AtomicU32,
    /// The process that this one was forked from, if that has a profile; 0 otherwise.
    forked_from: AtomicU32,
    seed: AtomicU64,
}

impl Identity {
    /// No process yet, in epoch 1.
    pub const fn new() -> Self {
        Self {
            canary: ForkCanary::new(),
            epoch: AtomicU32::new(1),
            pid: AtomicU32::new(0),
            forked_from: AtomicU32::new(0),
            seed: AtomicU64::new(0),
        }
    }

    /// The calling process. `seed` is drawn if there is none.
    pub fn begin(&self, seed: Option<u64>) {
        let random = process::random_u128() as u64;
        self.seed.store(seed.unwrap_or(random), Ordering::Relaxed);
        self.pid.store(process::pid(), Ordering::Relaxed);
        self.canary.arm();
    }

    /// The calling process is a forked child, whose parent may have had a profile. `pid` is 0 behind a filter of system
    /// calls, where nobody can ask for it.
    pub fn become_child(&self, pid: u32, has_parent_profile: bool) {
        self.canary.arm();
        let parent = self.pid.swap(pid, Ordering::Relaxed);
        let seed = self.seed().child(pid).process;
        self.seed.store(seed, Ordering::Relaxed);
        let forked_from = if has_parent_profile { parent } else { 0 };
        self.forked_from.store(forked_from, Ordering::Relaxed);
    }

    /// Whether this is a forked child in which [`Self::become_child`] was not called yet, at the price of a load.
    #[inline]
    pub fn is_forked_child(&self) -> bool {
        self.canary.is_forked_child()
    }

    /// The number of the profile, or of the one that would begin now. Threads that joined in another one join again.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins another epoch and returns its number.
    pub fn next_epoch(&self) -> u32 {
        self.epoch.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The process that this state belongs to: in a child of vfork it is the parent.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// See [`Self::become_child`].
    pub fn forked_from(&self) -> Option<u32> {
        match self.forked_from.load(Ordering::Relaxed) {
            0 => None,
            parent => Some(parent),
        }
    }

    /// The seed of all of the process's random numbers.
    pub fn seed(&self) -> Seed {
        Seed {
            process: self.seed.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_points_at_its_parent_only_if_that_has_a_profile() {
        let identity = Identity::new();
        identity.begin(Some(7));
        assert_eq!(identity.forked_from(), None);
        let parent = identity.pid();
        identity.become_child(100, true);
        assert_eq!(
            (identity.pid(), identity.forked_from()),
            (100, Some(parent))
        );
        identity.become_child(200, false);
        assert_eq!((identity.pid(), identity.forked_from()), (200, None));
    }

    #[test]
    fn a_child_draws_other_numbers_than_its_parent_and_its_siblings() {
        let seed_after = |pids: &[u32]| {
            let identity = Identity::new();
            identity.begin(Some(7));
            for &pid in pids {
                identity.become_child(pid, true);
            }
            identity.seed().process
        };
        let seeds = [
            seed_after(&[]),
            seed_after(&[100]),
            seed_after(&[101]),
            seed_after(&[100, 101]),
        ];
        for (at, seed) in seeds.iter().enumerate() {
            assert!(!seeds.iter().skip(at + 1).any(|other| other == seed));
        }
        assert_eq!(seed_after(&[100]), seed_after(&[100]));
    }

    #[test]
    fn an_epoch_never_comes_back() {
        let identity = Identity::new();
        let first = identity.epoch();
        assert_eq!(identity.next_epoch(), first + 1);
        assert_eq!(identity.epoch(), first + 1);
    }
}
