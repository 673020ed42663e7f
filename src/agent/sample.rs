//! The slow path of malloc: an allocation has borrowed from its thread's counter.

use core::sync::atomic::Ordering;

use allocsample_record::{
    FreeRecord, HeapId, LostReason, RecordKind, SampleFlags, SampleId, SampleRecord, Sampling,
    ThreadId,
};
use allocsample_ring::Priority;
use allocsample_sampling::{GapLaw, SamplePoints, Sampler, Weight};

use crate::agent::{Agent, WorkArea};
use crate::config::Unwind;
use crate::os::clock;
use crate::os::scratch::Zeroed;
use crate::os::thread::{Allocation, ShimThread};
use crate::recording::{self, Recording};
use crate::stack::{Captured, MemoKey, RuleCache, Walk};
use crate::switch::Switch;

impl Agent {
    /// An allocation has borrowed. Any thread, also in a signal handler.
    pub fn on_alloc(&self, thread: &ShimThread, allocation: &Allocation) {
        self.notice_fork();
        if self.switch.get() != Switch::On {
            thread.look_again_later();
            return;
        }
        let epoch = self.epoch();
        if thread.epoch() != epoch {
            // Nothing from before counts: the thread is new, or the agent was off, or this is a forked child.
            thread.look_again_later();
        }
        let (muted, mut points) = thread.mute(allocation.charged);
        if thread.epoch() != epoch {
            let Some(interval) = self.config().interval else {
                return;
            };
            let (number, slot) = self.threads.join(thread);
            let law = match self.config().sampling {
                Sampling::Poisson => GapLaw::Poisson,
                Sampling::Periodic => GapLaw::Periodic,
            };
            muted.join(
                epoch,
                number,
                slot,
                Sampler::new(law, interval, self.seed().thread(number)),
            );
            (self.hooks().on_thread_joined)();
            points = muted.first_alloc(allocation.charged);
        }
        if points.is_sampled() {
            let due = Due {
                thread,
                allocation,
                points,
            };
            let is_published = self
                .areas
                .run(thread.last_area(), |area| self.take_sample(&due, area));
            if is_published.is_none()
                && let Some(recording) = recording::current()
            {
                recording.count_lost(LostReason::NoMemory, 1, self.weight_bytes(&due));
            }
        }
    }

    /// On the area's stack.
    fn take_sample(&self, due: &Due<'_>, area: &mut WorkArea) {
        let Some(recording) = recording::current().or_else(|| self.begin_recording(area)) else {
            self.count_lost_before_recording(self.weight_bytes(due));
            return;
        };
        if !due.thread.is_announced() && recording.announce_thread(due.thread.number()) {
            due.thread.set_announced();
        }
        let captured = self.capture(due, area, recording);
        self.publish(due, area, recording, &captured);
        if recording.has_work() {
            self.set_drain_to_work(recording, captured.may_hold_loader_locks);
        }
    }

    fn capture(&self, due: &Due<'_>, area: &mut WorkArea, recording: &Recording) -> Captured {
        let unwind = self.config().unwind;
        if unwind == Unwind::None {
            return Captured::default();
        }
        let WorkArea {
            cache,
            memo,
            frames,
            full_memo,
            full_frames,
            path,
            ..
        } = area;
        let cache = cache.get_or_insert_with(RuleCache::new_in);
        let frames = frames.get_mut(..self.config().max_depth).unwrap_or(&mut []);
        let mut walk = Walk {
            modules: &self.modules,
            cache,
            memo,
            key: MemoKey {
                thread: due.thread.number(),
                epoch: self.epoch(),
                dlclose_count: self.modules.dlclose_count(),
            },
            only_frame_pointers: unwind == Unwind::FramePointers,
            frames,
        };
        let captured = walk.capture(due.thread, &due.allocation.caller, |module| {
            if module.must_announce(self.epoch()) {
                let record = module.record(path);
                recording.push(RecordKind::Module, record.words(), |words| {
                    record.encode_into(words)
                });
            }
        });
        if unwind == Unwind::Verify && captured.is_rest_known {
            full_memo.forget();
            let found = walk.frames.get(..captured.depth).unwrap_or(&[]);
            let depth = self.config().max_depth;
            let mut full_walk = Walk {
                memo: full_memo,
                frames: full_frames.get_mut(..depth).unwrap_or(&mut []),
                cache: walk.cache,
                ..walk
            };
            let full = full_walk.capture(due.thread, &due.allocation.caller, |_| {});
            let is_same = (full.flags, full.may_hold_loader_locks)
                == (captured.flags, captured.may_hold_loader_locks)
                && full_walk.frames.get(..full.depth) == Some(found);
            self.compared.known.fetch_add(1, Ordering::Relaxed);
            self.compared
                .different
                .fetch_add(u64::from(!is_same), Ordering::Relaxed);
        }
        captured
    }

    fn publish(&self, due: &Due<'_>, area: &WorkArea, recording: &Recording, captured: &Captured) {
        let frames = area.frames.get(..captured.depth).unwrap_or(&[]);
        let words = SampleRecord::words(frames.len());
        let mut reservation = loop {
            match recording.ring.reserve(words, Priority::Sample) {
                Ok(reservation) => break reservation,
                Err(_) if self.wait_for_space(recording, captured.may_hold_loader_locks) => {}
                Err(_) => {
                    recording.count_lost(LostReason::RingFull, 1, self.weight_bytes(due));
                    return;
                }
            }
        };
        let id = reservation.position();
        let mut flags = captured.flags;
        if due.allocation.is_realloc != 0 {
            flags = flags.with(SampleFlags::REALLOC);
        }
        if !self.live.insert(&self.filter, due.allocation.address, id) {
            flags = flags.with(SampleFlags::UNTRACKED);
            recording.count_lost(LostReason::LiveTableFull, 1, self.weight_bytes(due));
        }
        let record = SampleRecord {
            time_ns: clock::monotonic_ns(),
            address: due.allocation.address,
            size: due.allocation.size,
            thread: ThreadId(due.thread.number()),
            heap: HeapId::MALLOC,
            flags,
            points: u32::try_from(due.points.0).unwrap_or(u32::MAX),
            interval: 0,
            thread_bytes: due.thread.total_bytes(),
            frames,
        };
        if record.encode_into(reservation.words_mut()).is_some() {
            reservation.commit(RecordKind::Sample as u8);
        }
    }

    /// What the sample stands for, rounded: for the account of losses only.
    fn weight_bytes(&self, due: &Due<'_>) -> u64 {
        let law = match self.config().sampling {
            Sampling::Poisson => GapLaw::Poisson,
            Sampling::Periodic => GapLaw::Periodic,
        };
        let Some(interval) = self.config().interval else {
            return 0;
        };
        // Saturates, which `as` does from floats.
        Weight::new(law, interval).bytes(due.allocation.size, due.points) as u64
    }

    /// Takes the block out of the live samples; its id plus one, or 0.
    pub fn take_sampled(&self, address: u64) -> u64 {
        self.live.take(&self.filter, address).map_or(0, |id| id + 1)
    }

    /// The block was not freed after all.
    pub fn put_back(&self, address: u64, taken: u64) {
        if !self.live.insert(&self.filter, address, taken - 1)
            && let Some(recording) = recording::current()
        {
            recording.count_lost(LostReason::LiveTableFull, 1, 0);
        }
    }

    /// A sampled block has ended. Any thread, also in a signal handler; waits for space only outside of slow paths.
    pub fn on_free(&self, thread: &ShimThread, taken: u64) {
        let epoch = self.epoch();
        self.notice_fork();
        let Some(recording) = recording::current().filter(|_| epoch == self.epoch()) else {
            return;
        };
        let number = if thread.epoch() == epoch {
            thread.number()
        } else {
            0
        };
        let record = FreeRecord {
            time_ns: clock::monotonic_ns(),
            sample: SampleId(taken - 1),
            thread: ThreadId(number),
        };
        loop {
            if recording.push(RecordKind::Free, FreeRecord::WORDS, |words| {
                record.encode_into(words)
            }) {
                break;
            }
            if thread.is_muted() || !self.wait_for_space(recording, true) {
                recording.count_lost(LostReason::FreeRingFull, 1, 0);
                break;
            }
        }
        if recording.has_work() && !thread.is_muted() {
            // From here we do not know whether locks of libc are held: a thread is woken, never started.
            self.set_drain_to_work(recording, true);
        }
    }

    fn wait_for_space(&self, recording: &Recording, may_hold_loader_locks: bool) -> bool {
        self.set_drain_to_work(recording, may_hold_loader_locks);
        recording.wait_for_space(self.config().on_full)
    }
}

struct Due<'a> {
    thread: &'a ShimThread,
    allocation: &'a Allocation,
    points: SamplePoints,
}

// SAFETY: numbers and bytes may be zero. The unwinder's cache is behind a `LazyCache`, for which zero means absent.
unsafe impl Zeroed for WorkArea {}
