//! Decides when a ring can be unmapped: it may be used by the program, the drain thread, and children forked inside the agent.
//!
//! A ring is mapped until both the program and the drain thread have let go of it. The program lets go when the recording
//! ends; a drain thread that waits for a disk keeps the ring until it has written it. Then memory takes the ring's place: a
//! thread that is still at a record writes it there, and nobody reads it.
//!
//! A child of fork does not inherit rings, but may go on in a slow path that uses one: of this recording or of one that ended
//! while a signal handler had interrupted the slow path. So it finds memory in the place of every ring that its parent had
//! mapped ([`leave_rings`]), and only then runs the agent's code.

use core::ptr::from_ref;
use core::sync::atomic::Ordering;

use super::{DrainState, Recording};
use crate::os::clock;
use crate::os::leaked::{Retired, StaticRef};
use crate::os::memory;

/// Maximum number of mapped rings that are tracked. More exist only if as many drain threads wait for a disk.
const MOST: usize = 64;

/// Recordings that ended: a later one takes the memory of one, and the addresses of its ring, so that a process which is
/// attached to again and again does not grow.
pub(super) static RETIRED: Retired<Recording> = Retired::new();

/// Recordings whose ring is mapped.
static MAPPED: [StaticRef<Recording>; MOST] = [const { StaticRef::new() }; MOST];

fn mapped() -> impl Iterator<Item = &'static Recording> {
    MAPPED.iter().filter_map(StaticRef::get)
}

/// From now on forked children find the rings where they are: a thread forks in a signal handler that has interrupted a slow
/// path, and goes on there in the child. They put memory in their place, see [`leave_rings`].
pub(crate) fn bequeath_rings() {
    for recording in mapped() {
        let (base, bytes) = recording.ring_place;
        memory::inherit(base, bytes);
        recording.is_bequeathed.store(true, Ordering::Release);
    }
}

/// In a forked child: what a slow path that goes on still writes to a ring goes nowhere. Only while it has a single thread.
pub(crate) fn leave_rings() {
    for place in &MAPPED {
        let Some(recording) = place.get() else {
            continue;
        };
        let (base, bytes) = recording.ring_place;
        if recording.is_bequeathed.load(Ordering::Acquire) {
            // SAFETY: our own mapping, which this process has got from its parent and of which it uses nothing.
            unsafe { memory::replace_by_zeros(base, bytes) };
        } else {
            memory::fill_hole(base, bytes);
        }
        place.set(None);
    }
}

/// The recording whose drain thread has this number, while that works.
pub fn with_drain_thread(tid: u32) -> Option<&'static Recording> {
    mapped().find(|recording| {
        let is_at_work = matches!(
            recording.drain_state(),
            DrainState::Starting | DrainState::Running
        );
        is_at_work && recording.drain_tid() == tid
    })
}

impl Recording {
    /// From now on forked children find memory in the place of its ring.
    pub(super) fn is_mapped(&'static self) {
        // Without a place for it, children that go on inside the agent find none.
        let _none = (MAPPED.iter()).find(|place| core::ptr::eq(place.set_if_empty(self), self));
    }

    /// The drain thread is about to begin, which lets go when it ends.
    pub(super) fn is_held_by_drain(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// The program is done with the recording, or the drain thread is gone (or could not begin). The last of them gives the
    /// ring's file back, and what the ring takes of memory.
    pub fn let_go(&self) {
        // Acquire and release: what the other one has written is in the ring before it is replaced.
        if self.holders.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (base, bytes) = self.ring_place;
        // SAFETY: our own mapping, which stays readable and writable, and in which nobody relies on what is there: the
        // recording is no longer the current one, and its drain thread reads it no more.
        unsafe { memory::replace_by_zeros(base, bytes) };
        let is_it = |place: &&StaticRef<Self>| {
            place
                .get()
                .is_some_and(|mapped| core::ptr::eq(from_ref(mapped), self))
        };
        if let Some(place) = MAPPED.iter().find(is_it) {
            place.set(None);
        }
        RETIRED.retire(self, clock::monotonic_ns());
    }

    /// Tid of the drain thread; 0 if none has begun.
    pub fn drain_tid(&self) -> u32 {
        self.drain_tid.load(Ordering::Acquire)
    }

    /// Sets the tid of the drain thread.
    pub fn set_drain_tid(&self, tid: u32) {
        self.drain_tid.store(tid, Ordering::Release);
    }

    /// Sets the pthread_t of the drain thread, which must be joined or detached.
    pub fn set_drain_thread(&self, thread: u64) {
        self.drain_thread.store(thread, Ordering::Release);
    }

    /// Returns and clears the pthread_t of the drain thread, to join or detach it; 0 if there is none.
    pub fn take_drain_thread(&self) -> u64 {
        self.drain_thread.swap(0, Ordering::AcqRel)
    }
}
