//! Time samples: the stack of a thread whenever it has used the CPU for another period.
//!
//! Each thread has a timer on its own CPU time, so ticks count time exactly, whatever else runs. A tick is a signal handler
//! and may interrupt anything: the program inside malloc, the loader, a handler, or the agent. It touches nothing that an
//! interrupted slow path uses. A tick in a slow path is not recorded but counted as time of the agent, and no sample is taken
//! while a tick is recorded. So the two kinds never nest.
//!
//! ```text
//! thread starts: join, timer     tick: guard -> work area -> stack -> ring     thread ends: timer away, stack away
//! ```

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use allocsample_record::{Figure, RecordKind, SampleFlags, ThreadId, TickRecord};
use allocsample_ring::Priority;

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::capture::WorkArea;
use crate::os::timer::{self, Ticking, Timer};
use crate::os::{clock, process};
use crate::recording::{self, DrainState, Recording};
use crate::shim::Interrupted;
use crate::stack::{Captured, From};
use crate::switch::Switch;

/// Maximum number of threads that have a timer at the same time.
const PLACES: usize = 4096;

/// The timers of all threads.
pub struct Ticks {
    /// 0 while there are none.
    signal: AtomicI32,
    mark: AtomicU64,
    /// A thread's tid (upper half) and its timer plus one, 0 if it has none just now; 0 for nobody.
    places: [AtomicU64; PLACES],
    /// CPU time of the agent, and CPU time that was not recorded, from before there was a recording.
    before_ns: [AtomicU64; 2],
}

impl Ticks {
    /// None.
    pub const fn new() -> Self {
        Self {
            signal: AtomicI32::new(0),
            mark: AtomicU64::new(0),
            places: [const { AtomicU64::new(0) }; PLACES],
            before_ns: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Forgets all timers, in a forked child: it inherits neither the timers nor the other threads.
    pub(crate) fn forget(&self) {
        for place in &self.places {
            place.store(0, Ordering::Relaxed);
        }
        for before in &self.before_ns {
            before.store(0, Ordering::Relaxed);
        }
    }

    /// Writes the period, and the time that could not be recorded before there was a recording.
    pub(crate) fn begin_recording(&self, recording: &Recording, period_ns: Option<u64>) {
        let ring = &recording.ring;
        let figures = [Figure::TicksInAgentNs, Figure::TicksNotRecordedNs];
        for (figure, before) in figures.into_iter().zip(&self.before_ns) {
            ring.add_figure(figure as usize, before.swap(0, Ordering::Relaxed));
        }
        ring.set_figure(Figure::TickPeriodNs as usize, period_ns.unwrap_or(0));
    }

    fn take_place(&self, tid: u32) -> Option<&AtomicU64> {
        self.places.iter().find(|place| {
            let (from, to) = (0, u64::from(tid) << 32);
            place.load(Ordering::Relaxed) == 0
                && place
                    .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Creates the timer of a place that has a thread but no timer. If the thread ends meanwhile, or all timers do, one of the
    /// two sides notices that the place has changed.
    fn start(&self, place: &AtomicU64, first_ns: u64, period_ns: u64) {
        // Again if they were stopped meanwhile, without this one: they may have been started again.
        while self.try_to_start(place, first_ns, period_ns) {}
    }

    /// True: another signal than at the beginning is in use.
    fn try_to_start(&self, place: &AtomicU64, first_ns: u64, period_ns: u64) -> bool {
        let before = place.load(Ordering::Acquire);
        let signal = self.signal.load(Ordering::Acquire);
        let tid = (before >> 32) as u32;
        if signal == 0 || tid == 0 || before as u32 != 0 {
            return false;
        }
        let ticking = Ticking {
            signal,
            mark: self.mark.load(Ordering::Relaxed),
            first_ns,
            period_ns,
        };
        let Some(timer) = timer::start(tid, &ticking) else {
            return false;
        };
        let with_timer = before | u64::from(timer.0 + 1);
        let is_kept = place
            .compare_exchange(before, with_timer, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if !is_kept {
            timer::stop(timer);
            return false;
        }
        let is_stale = self.signal.load(Ordering::Acquire) != signal;
        if is_stale {
            stop_place(place, before);
        }
        is_stale
    }
}

/// Leaves `to` in the place, and ends the timer that was there.
fn stop_place(place: &AtomicU64, to: u64) {
    let before = place.swap(to, Ordering::AcqRel) as u32;
    if let Some(timer) = before.checked_sub(1) {
        timer::stop(Timer(timer));
    }
}

impl Agent {
    fn tick_period_ns(&self) -> u64 {
        self.config().tick_period_ns.unwrap_or(0)
    }

    /// Starts the timers of all threads. Their ticks come by `signal` and carry `mark`.
    pub fn start_ticks(&self, signal: i32, mark: u64) {
        self.ticks.mark.store(mark, Ordering::Relaxed);
        // Release: pairs with the acquire in `start`; who sees the signal sees the mark.
        self.ticks.signal.store(signal, Ordering::Release);
        let period_ns = self.tick_period_ns();
        for place in &self.ticks.places {
            self.ticks.start(place, period_ns, period_ns);
        }
        self.start_faults(signal);
    }

    /// Stops the timers of all threads, until they are started again.
    pub fn stop_ticks(&self) {
        self.ticks.signal.store(0, Ordering::Release);
        for place in &self.ticks.places {
            let tid = place.load(Ordering::Acquire) >> 32;
            if tid != 0 {
                stop_place(place, tid << 32);
            }
        }
        self.stop_faults();
    }

    /// The calling thread begins, or a forked child begins with it. `signal_stack` is given back at its end.
    pub fn on_thread_start(&self, thread: &ShimThread, signal_stack: u64) {
        if signal_stack != 0 {
            thread.set_signal_stack(signal_stack);
        }
        let period_ns = self.tick_period_ns();
        // Behind a filter of system calls there is no signal, and no call may be made.
        let is_off = self.ticks.signal.load(Ordering::Acquire) == 0;
        if is_off || self.switch.get() != Switch::On || thread.is_muted() {
            return;
        }
        self.start_faults_of(thread);
        if period_ns == 0 {
            return;
        }
        if let Some(place) = self.ticks.take_place(process::tid()) {
            // Without a number a tick has no owner, and joining is nothing for a signal handler.
            self.join(thread);
            thread.set_tick_place(core::ptr::from_ref(place).addr() as u64);
            // Anywhere in the first period: a thread that ends soon has a tick with the probability that it is due.
            let mut random = self.seed().ticks_of_thread(thread.number());
            let first_ns = 1 + random.below(period_ns);
            self.ticks.start(place, first_ns, period_ns);
        }
    }

    /// The calling thread ends. Returns its signal stack, or 0.
    pub(crate) fn end_ticks_of(&self, thread: &ShimThread) -> u64 {
        self.end_faults_of(thread);
        let address = thread.take_tick_place();
        if address == 0 {
            return thread.take_signal_stack();
        }
        let mut places = self.ticks.places.iter();
        let place = places
            .find(|place| core::ptr::from_ref(*place).addr() as u64 == address)
            // Not of another thread: in a child of a bare clone all places were free again.
            .filter(|place| place.load(Ordering::Acquire) >> 32 == u64::from(process::tid()));
        if let Some(place) = place {
            stop_place(place, 0);
        }
        thread.take_signal_stack()
    }

    /// Records that the thread has used the CPU for `periods` more periods. In a signal handler.
    pub fn on_tick(&self, thread: &ShimThread, interrupted: &Interrupted, periods: u64) {
        let is_stopped = self.accounting.control.force().interval.is_none();
        if self.switch.get() != Switch::On || is_stopped || !thread.is_enabled() {
            return;
        }
        let cpu_ns = self.tick_period_ns().saturating_mul(periods);
        let Some(_guard) = thread.tick() else {
            self.count_lost_tick(Figure::TicksInAgentNs, cpu_ns);
            return;
        };
        let is_recorded = thread.epoch() == self.epoch()
            && self
                .capture
                .in_area_aside(thread, |area| {
                    self.take_tick(thread, interrupted, cpu_ns, area)
                })
                .unwrap_or(false);
        if !is_recorded {
            self.count_lost_tick(Figure::TicksNotRecordedNs, cpu_ns);
        }
    }

    fn count_lost_tick(&self, figure: Figure, cpu_ns: u64) {
        match recording::current() {
            Some(recording) => recording.ring.add_figure(figure as usize, cpu_ns),
            None => {
                let [in_agent, not_recorded] = &self.ticks.before_ns;
                let before = match figure {
                    Figure::TicksInAgentNs => in_agent,
                    _ => not_recorded,
                };
                before.fetch_add(cpu_ns, Ordering::Relaxed);
            }
        }
    }

    /// Captures and records a tick, on the area's stack. False: it was neither recorded nor counted.
    fn take_tick(
        &self,
        thread: &ShimThread,
        interrupted: &Interrupted,
        cpu_ns: u64,
        area: &mut WorkArea,
    ) -> bool {
        let Some(recording) = recording::current().or_else(|| self.begin_recording(area)) else {
            return false;
        };
        self.announce_in(thread, recording);
        let from = From::Interrupted(*interrupted);
        let mut captured = self.capture.walk(thread, &from, area, recording);
        let may_start_drain =
            self.wants_drain(recording) && self.capture.may_start_thread(area, &captured);
        // The entry of malloc, before anything of it is ours alone.
        self.capture.strip_own(area, &mut captured);
        if let Some(heap) = self.heaps.walked_in_ticks(thread) {
            self.capture
                .add_vm_frames(thread, heap, area, &mut captured);
            let others = self.heaps.others_in_ticks(Some(heap));
            (self.capture).add_frames_of_others(thread, others, area, &mut captured);
        }
        self.publish_tick(thread, cpu_ns, area, recording, &captured);
        if may_start_drain {
            self.publisher.set_drain_to_work(recording, false);
        }
        true
    }

    /// Whether the drain thread is needed and does not exist. Samples would start it, but there may be none.
    pub(crate) fn wants_drain(&self, recording: &Recording) -> bool {
        let is_wanted_early =
            self.config().is_attended() || recording.is_asked() || recording.is_module_awaited();
        recording.drain_state() == DrainState::None && (is_wanted_early || recording.has_work())
    }

    fn publish_tick(
        &self,
        thread: &ShimThread,
        cpu_ns: u64,
        area: &WorkArea,
        recording: &Recording,
        captured: &Captured,
    ) {
        let frames = area.captured(captured);
        let record = TickRecord {
            time_ns: clock::monotonic_ns(),
            cpu_ns,
            thread: ThreadId(thread.number()),
            flags: SampleFlags(captured.flags.0),
            frames,
        };
        let words = TickRecord::words(frames.len());
        // No waiting in a signal handler: the drain thread may need what was interrupted.
        let Ok(mut reservation) = recording.ring.reserve(words, Priority::Sample) else {
            let ring = &recording.ring;
            return ring.add_figure(Figure::TicksRingFullNs as usize, cpu_ns);
        };
        // As long as it says.
        let _ = record.encode_into(reservation.words_mut());
        let used_words = reservation.used_words();
        reservation.commit(RecordKind::Tick as u8);
        recording.nudge_if_due(used_words);
    }
}

#[cfg(test)]
mod tests;
