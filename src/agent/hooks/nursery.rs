//! The allocations of one thread in one heap.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use allocsample_record::{Definition, HeapKind, LostReason, SampleFlags, SampleId};
use allocsample_sampling::{Interval, Nursery, Overflow, SamplePoints, Sampler};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::hooks::collect::Pending;
use crate::hooks::heap::Heap;
use crate::os::stack_room::make_room;
use crate::os::vector::Vector;
use crate::sample::{Due, weight_bytes};
use crate::shim::Caller;
use crate::stack::vm::RawFrame;
use crate::switch::Switch;

/// Mirror of `allocsample_nursery`: memory of the machine, all zero until the first `nursery_begin`.
#[repr(C)]
pub struct HookSlot {
    is_begun: Cell<u32>,
    /// A call is under way on this thread, further up its stack.
    is_busy: Cell<u32>,
    state: UnsafeCell<MaybeUninit<NurseryState>>,
}

const _: () = assert!(
    size_of::<HookSlot>() <= 320,
    "allocsample.h has 40 words for it"
);
const _: () = assert!(align_of::<HookSlot>() <= 8);

/// The state of one thread's nursery, in memory of the virtual machine.
pub(crate) struct NurseryState {
    nursery: Nursery,
    sampler: Sampler,
    /// Samples that no minor collection has looked at, by ascending id.
    pub(crate) young: Vector<Pending>,
    /// Number of the heap's discards that were applied.
    pub(crate) discards: u32,
    /// The part of `nursery.bytes()` that was added to the heap's exact bytes.
    counted_bytes: u64,
    epoch: u32,
    generation: u32,
    interval_index: u16,
    is_enabled: bool,
    /// The sampler is that of a parent process, up to the first object.
    is_inherited: bool,
}

/// An object that is being allocated.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Its address.
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Number of its type, 0 if it is not known.
    pub type_id: u32,
}

/// How an object came to be a sample that a machine has drawn itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drawn {
    /// The interval; the heap's if `None`.
    pub at: Option<Interval>,
    /// When it was allocated, CLOCK_MONOTONIC in nanoseconds; now if `None`.
    pub time_ns: Option<u64>,
}

impl HookSlot {
    /// Runs `work` with the state, unless it was not begun or a call is under way already.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut NurseryState) -> R) -> Option<R> {
        make_room();
        if self.is_begun.get() == 0 || self.is_busy.get() != 0 {
            return None;
        }
        self.is_busy.set(1);
        // SAFETY: begun, so initialised; only the owning thread is here (the header's rule), once, as `is_busy` tells.
        let result = work(unsafe { (*self.state.get()).assume_init_mut() });
        self.is_busy.set(0);
        Some(result)
    }
}

impl NurseryState {
    /// Adopts changes of the heap's switch and interval, and a fork. `free` is the present position of the nursery.
    fn refresh(&mut self, agent: &Agent, heap: &Heap, free: u64) {
        if self.is_inherited {
            // The random numbers are the parent's.
            self.is_inherited = false;
            let (interval, _) = heap.interval();
            if let Some(interval) = interval {
                let random = agent.heaps.new_random(agent.seed());
                self.sampler = Sampler::new(agent.setup.law(), interval, random);
            }
            self.generation = 0;
        }
        let generation = heap.generation();
        if self.generation != generation {
            self.generation = generation;
            let (interval, index) = heap.interval();
            match interval {
                Some(interval) if index != self.interval_index => {
                    self.nursery.on_interval(&mut self.sampler, free, interval);
                    self.interval_index = index;
                }
                _ => {}
            }
            self.switch(heap, free);
        }
    }

    fn switch(&mut self, heap: &Heap, free: u64) {
        let has_interval = heap.interval().0.is_some();
        if heap.is_on() && self.is_enabled && has_interval {
            self.nursery.switch_on(&mut self.sampler, free);
        } else {
            self.nursery.switch_off(&mut self.sampler, free);
        }
    }

    fn limit(&self) -> u64 {
        self.nursery.limit(&self.sampler).0
    }

    fn count_bytes(&mut self, heap: &Heap) {
        let bytes = self.nursery.bytes();
        heap.exact_bytes
            .fetch_add(bytes.wrapping_sub(self.counted_bytes), Ordering::Relaxed);
        self.counted_bytes = bytes;
    }
}

impl Agent {
    /// Begins a nursery at `free` up to `top`, or moves it there. Returns the limit.
    pub fn nursery_begin(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        slot: &HookSlot,
        free: u64,
        top: u64,
    ) -> u64 {
        if heap.kind != HeapKind::Allocator {
            thread.set_vm_heap(u32::from(heap.id.0));
        }
        if slot.is_begun.get() != 0 {
            return self.nursery_sync(thread, heap, slot, free, free, top);
        }
        let (Some(interval), interval_index) = heap.interval() else {
            return top;
        };
        let random = self.heaps.new_random(self.seed());
        let state = NurseryState {
            nursery: Nursery::new(free, top),
            sampler: Sampler::new(self.setup.law(), interval, random),
            young: Vector::new(),
            discards: heap.discards(),
            counted_bytes: 0,
            epoch: self.epoch(),
            generation: 0,
            interval_index,
            is_enabled: true,
            is_inherited: false,
        };
        // SAFETY: not begun: nobody looks at the state. What it holds needs no drop.
        unsafe { (*slot.state.get()).write(state) };
        slot.is_begun.set(1);
        slot.with(|state| {
            state.refresh(self, heap, free);
            state.limit()
        })
        .unwrap_or(top)
    }

    /// Called before each use of a nursery: its pending samples may be a parent's, or may have been given up. The limit stays,
    /// so that the object at hand is a sample if it was to be one.
    pub(crate) fn renew(&self, heap: &Heap, state: &mut NurseryState) {
        self.notice_fork();
        let epoch = self.epoch();
        if state.epoch != epoch {
            state.epoch = epoch;
            state.is_inherited = true;
            state.young.clear();
            state.counted_bytes = state.nursery.bytes();
            state.discards = heap.discards();
        }
        heap.give_up_young(&self.publisher, state);
    }

    /// Handles an object that is beyond the limit and fits below `top`. Returns the new limit.
    pub fn nursery_point(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        slot: &HookSlot,
        object: Object,
        top: u64,
        caller: &Caller,
    ) -> u64 {
        slot.with(|state| {
            self.renew(heap, state);
            // As if nothing had changed before this object: its sample point was there already.
            let limit =
                match state
                    .nursery
                    .on_overflow(&mut state.sampler, object.address, object.size)
                {
                    Overflow::Continue(points, _) => {
                        if points.is_sampled() {
                            self.sample_object(thread, heap, state, &object, points, caller);
                        }
                        state.refresh(self, heap, object.address + object.size);
                        state.limit()
                    }
                    // The machine's top and ours differ; it decides.
                    Overflow::Collect => top,
                };
            state.count_bytes(heap);
            limit
        })
        .unwrap_or(top)
    }

    /// Moves a nursery that stood at `old_free` to `free` up to `top`. Returns the limit.
    pub fn nursery_sync(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        slot: &HookSlot,
        old_free: u64,
        free: u64,
        top: u64,
    ) -> u64 {
        self.apply_requests_while_off(thread, heap);
        slot.with(|state| {
            state
                .nursery
                .on_collected(&mut state.sampler, old_free, free, top);
            self.renew(heap, state);
            state.young.retain(|pending| !pending.is_resolved());
            state.refresh(self, heap, free);
            state.count_bytes(heap);
            state.limit()
        })
        .unwrap_or(top)
    }

    /// Turns sampling of one thread on or off. Returns the limit; `None` if the slot was never begun.
    pub fn nursery_enable(
        &self,
        heap: &Heap,
        slot: &HookSlot,
        free: u64,
        is_on: bool,
    ) -> Option<u64> {
        slot.with(|state| {
            self.renew(heap, state);
            state.is_enabled = is_on;
            state.refresh(self, heap, free);
            state.switch(heap, free);
            state.count_bytes(heap);
            state.limit()
        })
    }

    /// Ends the nursery of a thread; its young samples become old ones.
    pub fn nursery_end(&self, heap: &Heap, slot: &HookSlot, free: u64) {
        slot.with(|state| {
            self.renew(heap, state);
            state.nursery.switch_off(&mut state.sampler, free);
            state.count_bytes(heap);
            let left = state.young.as_slice();
            heap.with_old(|old| {
                for &pending in left.iter().filter(|pending| !pending.is_resolved()) {
                    heap.keep_old(&self.publisher, old, pending.late());
                }
            });
            state.young.release();
        });
        slot.is_begun.set(0);
    }

    /// Handles an object outside of the nursery, which stands at `free`. Returns the sample, if any, and the limit.
    pub fn alloc_outside(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        slot: &HookSlot,
        object: Object,
        free: u64,
        caller: &Caller,
    ) -> (Option<SampleId>, Option<u64>) {
        self.apply_requests_while_off(thread, heap);
        slot.with(|state| {
            self.renew(heap, state);
            let (points, _) = state
                .nursery
                .on_alloc_outside(&mut state.sampler, free, object.size);
            let id = points
                .is_sampled()
                .then(|| self.sample_object(thread, heap, state, &object, points, caller))
                .flatten();
            state.refresh(self, heap, free);
            state.count_bytes(heap);
            (id, Some(state.limit()))
        })
        .unwrap_or_default()
    }

    /// Looks for requests while sampling of the heap is off. Otherwise they are looked for at each sample, so a thread that
    /// never calls malloc would not notice that sampling is to start again.
    fn apply_requests_while_off(&self, thread: &ShimThread, heap: &Heap) {
        if !heap.is_on() {
            self.apply_new_request(thread);
        }
    }

    fn sample_object(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        state: &mut NurseryState,
        object: &Object,
        points: SamplePoints,
        caller: &Caller,
    ) -> Option<SampleId> {
        // A machine may take nothing from malloc. What is obeyed here holds from the next point on.
        self.apply_new_request(thread);
        // One that the machine has taken back: the point was there already, but nobody may be asked or told.
        let is_gone = heap.is_gone();
        let is_allocator = heap.kind == HeapKind::Allocator;
        let own = (!is_gone && !is_allocator).then_some(heap);
        let due = Due {
            thread,
            address: object.address,
            size: object.size,
            points,
            heap: heap.id,
            // The one that drew it: the heap's may be another by now.
            interval: (Some(state.sampler.interval()), state.interval_index),
            flags: SampleFlags::default(),
            type_id: object.type_id,
            caller: *caller,
            owner: (!is_gone).then_some(heap),
            walked: match heap.has_frames(thread) {
                true => own,
                false => self.heaps.walked_in_malloc(thread).or(own),
            },
            stack: None,
            // The entry of an allocator that calls us is no machine's code, which would be left out.
            has_own_frame: is_allocator,
            time_ns: None,
        };
        let id = self.record_object(heap, &due)?;
        if is_gone {
            return None;
        }
        let pending = Pending::new(id, object);
        let is_tracked = match heap.kind {
            HeapKind::Malloc | HeapKind::External | HeapKind::Collected | HeapKind::Allocator => {
                heap.ends_by_id || self.blocks.of(heap).insert(object.address, id.0)
            }
            HeapKind::Nursery | HeapKind::Traced => state.young.push(pending),
            // Of no machine.
            HeapKind::Pages => false,
        };
        if !is_tracked {
            self.publisher.count_lost(LostReason::LiveTableFull, 1, 0);
        }
        if let Some(on_sample) = heap.callbacks.on_sample {
            let user = heap.callbacks.user;
            // SAFETY: the machine's own function with its own pointer, called as the header says.
            unsafe {
                on_sample(
                    user,
                    self.name_of(heap, id),
                    object.address as usize,
                    object.size,
                    object.type_id,
                )
            };
        }
        Some(id)
    }

    fn record_object(&self, heap: &Heap, due: &Due<'_>) -> Option<SampleId> {
        let id = self.on_heap_sample(due)?;
        heap.samples.fetch_add(1, Ordering::Relaxed);
        Some(id)
    }

    /// Records an object that the machine itself has drawn, with its whole stack, leaf first. The interval is `drawn_at`, or
    /// that of the heap, which keeps it from now on.
    pub fn heap_sampled(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        object: Object,
        stack: &[RawFrame],
        drawn: Drawn,
        caller: &Caller,
    ) -> Option<SampleId> {
        self.apply_new_request(thread);
        // What happened earlier did so while it was on.
        let is_on = heap.is_on() || drawn.time_ns.is_some();
        if !is_on || !heap.kind.is_freed_by_address() {
            return None;
        }
        if drawn.at.is_none() {
            heap.set_samples_by_itself();
        }
        if !self.accounting.selection.selects(thread) {
            return None;
        }
        let (interval, index) = match drawn.at {
            // By its number in the profile: the heap's own may change while we look.
            Some(interval) => (
                Some(interval),
                self.publisher.interval_of_heaps(interval, self.seed()),
            ),
            None => {
                let (interval, index) = heap.interval();
                (interval, Some(index))
            }
        };
        let due = Due {
            thread,
            address: object.address,
            size: object.size,
            points: SamplePoints(1),
            heap: heap.id,
            interval: (interval, index.unwrap_or(0)),
            flags: SampleFlags::default(),
            type_id: object.type_id,
            caller: *caller,
            owner: Some(heap),
            walked: Some(heap),
            stack: Some(stack),
            has_own_frame: false,
            time_ns: drawn.time_ns,
        };
        if index.is_none() {
            // Of 65,536 intervals each has got its number: without one nobody could say what this one stands for.
            self.publisher.count_lost(
                LostReason::NoMemory,
                1,
                weight_bytes(&due, self.setup.law()),
            );
            return None;
        }
        let id = self.record_object(heap, &due)?;
        if !heap.ends_by_id && !self.blocks.of(heap).insert(object.address, id.0) {
            self.publisher.count_lost(LostReason::LiveTableFull, 1, 0);
        }
        Some(id)
    }

    /// Records the name that the machine has for the calling thread.
    pub fn name_thread(&self, thread: &ShimThread, name: &[u8]) -> bool {
        if self.switch.get() != Switch::On || !self.announce(thread) {
            return false;
        }
        let heap = allocsample_record::HeapId::MALLOC;
        self.publisher
            .define_name(Definition::Thread, heap, thread.number(), 0, name, &[])
    }
}
