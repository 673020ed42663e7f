//! The events of threads: when they begin, at which fault they signal, and when they end.

use core::sync::atomic::Ordering;

use super::{CHOICES, Choice, MOST_AT_ONCE, Place, SAMPLES_PER_CHOICE, SIGNAL_IS_TAKEN};
use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::os::{memory, process};
use crate::shim::Interrupted;

impl Agent {
    /// Threads that start from now on, and those that have a place, are signalled by this signal.
    pub(crate) fn start_faults(&self, signal: i32) {
        if self.pages.heap.get().is_none() {
            return;
        }
        if signal != libc::SIGSTKFLT {
            return self.pages.refuse(SIGNAL_IS_TAKEN);
        }
        self.pages.signal.store(signal, Ordering::Release);
    }

    /// Ends the events of all threads, for good. No signal of theirs is sent any more.
    pub(crate) fn stop_faults(&self) {
        let pages = &self.pages;
        // In a child of a bare clone, where the parent's rings were there may be anything.
        let is_child = self.identity.is_forked_child();
        if pages.signal.swap(0, Ordering::AcqRel) == 0 || is_child {
            return;
        }
        for (index, place) in pages.places.iter().enumerate() {
            if place.tid.swap(0, Ordering::AcqRel) != 0
                && let Some(ring) = pages.ring(index)
            {
                ring.disarm();
            }
        }
    }

    /// Samples the calling thread from now on.
    pub(crate) fn start_faults_of(&self, thread: &ShimThread) {
        let pages = &self.pages;
        if pages.signal.load(Ordering::Acquire) == 0 {
            return;
        }
        let tid = process::tid();
        let mut places = pages.places.iter().enumerate();
        let found = places.find(|(_, place)| {
            place
                .tid
                .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        let Some((index, place)) = found else {
            pages.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.join(thread);
        thread.set_fault_place(index as u32 + 1);
        place.rest.store(0, Ordering::Relaxed);
        self.draw(thread, index, place);
    }

    /// The calling thread ends.
    pub(crate) fn end_faults_of(&self, thread: &ShimThread) {
        let index = thread.fault_place();
        thread.set_fault_place(0);
        let Some(index) = (index as usize).checked_sub(1) else {
            return;
        };
        let place = self.pages.places.get(index);
        // Not of another thread: in a child of a bare clone all places were free again.
        let place = place.filter(|place| place.tid.load(Ordering::Acquire) == process::tid());
        if let (Some(place), Some(ring)) = (place, self.pages.ring(index)) {
            ring.disarm();
            place.tid.store(0, Ordering::Release);
        }
    }

    /// Draws another n, and waits for a fault of its first row.
    fn draw(&self, thread: &ShimThread, index: usize, place: &Place) {
        let draws = place.draws.fetch_add(1, Ordering::Relaxed);
        let stream = thread.number() ^ draws.rotate_right(10);
        let mut random = self.seed().faults_of_thread(stream);
        let choice = random.below(CHOICES as u64);
        let Some(of_choice) = self.pages.choices.get(choice as usize) else {
            return;
        };
        place.choice.store(choice as u32, Ordering::Relaxed);
        place.left.store(0, Ordering::Relaxed);
        let faults = u64::from(of_choice.faults.load(Ordering::Relaxed));
        let first = 1 + random.below(faults);
        // Below n.
        let rest = place.rest.swap((faults - first) as u32, Ordering::Relaxed);
        self.arm(thread, index, u64::from(rest) + first);
    }

    fn arm(&self, thread: &ShimThread, index: usize, period: u64) {
        let signal = self.pages.signal.load(Ordering::Acquire);
        let Some(ring) = self.pages.ring(index).filter(|_| signal != 0) else {
            return;
        };
        if ring.arm(signal, period).is_err() {
            self.pages.left_out.fetch_add(1, Ordering::Relaxed);
            thread.set_fault_place(0);
            return;
        }
        // Stopped meanwhile: who stopped them may have come before this one was there.
        if self.pages.signal.load(Ordering::Acquire) != signal {
            ring.disarm();
        }
    }

    /// A signal that may be of the calling thread's event has come. False: there was no fault.
    pub fn on_faults(&self, thread: &ShimThread, interrupted: &Interrupted) -> bool {
        let Some(index) = (thread.fault_place() as usize).checked_sub(1) else {
            return false;
        };
        if self.identity.is_forked_child() {
            return false;
        }
        let (Some(place), Some(ring)) = (self.pages.places.get(index), self.pages.ring(index))
        else {
            return false;
        };
        let mut faults = [None; MOST_AT_ONCE];
        let mut count = 0;
        ring.take(|fault| {
            if let Some(free) = faults.get_mut(count) {
                *free = Some(fault);
            }
            count += 1;
        });
        if count == 0 {
            return false;
        }
        // libc's malloc makes its heap smaller past our sbrk.
        let now = memory::heap_end();
        let before = self.pages.heap_end.swap(now, Ordering::Relaxed);
        if now < before {
            self.on_pages(now, before - now, None);
        }
        let choice = place.choice.load(Ordering::Relaxed) as usize;
        if let Some(choice) = self.pages.choices.get(choice) {
            for fault in faults.into_iter().flatten() {
                self.take_fault(thread, interrupted, &fault, choice);
            }
            self.go_on(thread, index, place, choice, count as u32);
        }
        true
    }

    /// After `count` more samples.
    fn go_on(&self, thread: &ShimThread, index: usize, place: &Place, choice: &Choice, count: u32) {
        match place.left.load(Ordering::Relaxed) {
            0 => {
                place.left.store(SAMPLES_PER_CHOICE, Ordering::Relaxed);
                let faults = choice.faults.load(Ordering::Relaxed);
                self.arm(thread, index, u64::from(faults));
            }
            left if left <= count => self.draw(thread, index, place),
            left => place.left.store(left - count, Ordering::Relaxed),
        }
    }
}
