//! A heap that a virtual machine registered.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use allocsample_record::{Definition, HeapId, HeapKind};
use allocsample_sampling::{Interval, Random, Seed};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::hooks::collect::Pending;
use crate::hooks::on_request::Wanted;
use crate::live::LiveSamples;
use crate::os::leaked::{self, StaticRef};
use crate::os::spin::Spin;
use crate::os::vector::Vector;
use crate::stack::vm::{NativeCode, VmWalk};

const MAX_HEAPS: usize = 255;
const RANGES: usize = 16;

/// The description of a heap by its virtual machine.
pub struct Description<'a> {
    /// How the heap allocates.
    pub kind: HeapKind,
    /// Its name.
    pub name: &'a [u8],
    /// Its own interval, if it has one.
    pub interval: Option<Interval>,
    /// Whether its walker may be called inside malloc.
    pub is_walked_in_malloc: bool,
    /// Whether its walker may also be called inside free.
    pub is_walked_in_free: bool,
    /// Whether its walker may be called on threads without a nursery.
    pub is_walked_everywhere: bool,
    /// Whether its walker may be called in a signal handler.
    pub is_walked_in_ticks: bool,
    /// Whether its collector scans a stopped thread's stack from the stack pointer to the base.
    pub scans_stacks: bool,
    /// Whether its sampled objects are blocks of malloc, which end by `free`.
    pub is_freed_by_malloc: bool,
    /// Whether the machine reports the end of samples by their names ([`Agent::name_of`]).
    pub ends_by_id: bool,
    /// Whether what called its interpreter loop from outside of all modules is none of the program's functions.
    pub loop_has_thunks: bool,
    /// Whether its walker gives whole stacks, with no native frames among them.
    pub is_walk_whole: bool,
    /// How the code in its interpreter ranges relates to the machine's frames.
    pub native_code: NativeCode,
    /// The machine's own functions.
    pub callbacks: Callbacks,
}

/// Functions of the virtual machine.
#[derive(Clone, Copy)]
pub struct Callbacks {
    /// The argument of the callbacks.
    pub user: *mut c_void,
    /// Fills in the machine's frames.
    pub walk: Option<VmWalk>,
    /// Called after each sample.
    pub on_sample: Option<unsafe extern "C" fn(*mut c_void, u64, usize, u64, u32)>,
    /// Called when sampling starts, stops or changes its interval.
    pub on_change: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Requests a collection. A negative result declines it.
    pub collect: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
}

// SAFETY: the pointer is only passed on; the header tells the machine from which threads.
unsafe impl Sync for Callbacks {}

/// See the module.
pub struct Heap {
    pub(crate) id: HeapId,
    pub(crate) kind: HeapKind,
    is_walked_in_malloc: bool,
    is_walked_in_free: bool,
    is_walked_everywhere: bool,
    is_walked_in_ticks: bool,
    pub(crate) loop_has_thunks: bool,
    pub(crate) is_walk_whole: bool,
    pub(crate) native_code: NativeCode,
    pub(crate) callbacks: Callbacks,
    is_freed_by_malloc: bool,
    /// Whether `live` stays empty, because the machine reports ends by the samples' names.
    pub(crate) ends_by_id: bool,
    /// Samples of blocks that are freed by their address, unless they are malloc's blocks.
    live: LiveSamples,
    pub(crate) exact_bytes: AtomicU64,
    pub(crate) samples: AtomicU64,
    is_on: AtomicBool,
    /// The heap was unregistered: it is never on again, and none of its callbacks is called.
    is_gone: AtomicBool,
    samples_by_itself: AtomicBool,
    interval_bytes: AtomicU64,
    interval_index: AtomicU32,
    /// Grows with each change of the three above.
    generation: AtomicU32,
    /// Number of times that all pending samples were given up.
    discards: AtomicU32,
    ranges: [(AtomicU64, AtomicU64); RANGES],
    ranges_used: AtomicU32,
    /// Survivors of minor collections. Locked for a batch at most, by threads that collect.
    old: Spin<Vector<Pending>>,
    /// Number of samples in `old` that are not resolved, for threads that must not lock.
    pub(crate) open: AtomicU64,
    pub(crate) wanted: Wanted,
}

/// Figures of a heap.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Whether it is sampled.
    pub is_on: bool,
    /// The present interval; 0 for none.
    pub interval_bytes: u64,
    /// Bytes allocated while it was sampled, up to the last call of each thread.
    pub exact_bytes: u64,
    /// Samples that were recorded.
    pub samples: u64,
}

impl Heap {
    /// Whether it is asked for the frames of its samples: others get those that malloc's get.
    pub(crate) fn has_frames(&self, thread: &ShimThread) -> bool {
        self.kind != HeapKind::Allocator
            && (self.callbacks.walk.is_some() || thread.shadow_stack() != 0)
    }

    /// Its number in the profile.
    pub fn id(&self) -> HeapId {
        self.id
    }

    /// Its figures now.
    pub fn counters(&self) -> Counters {
        Counters {
            is_on: self.is_on(),
            interval_bytes: self.interval_bytes.load(Ordering::Relaxed),
            exact_bytes: self.exact_bytes.load(Ordering::Relaxed),
            samples: self.samples.load(Ordering::Relaxed),
        }
    }

    /// Whether it is sampled.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether the heap was unregistered.
    pub(crate) fn is_gone(&self) -> bool {
        // Acquire: pairs with the release in `take_back`.
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether the virtual machine draws the samples itself, at an interval of its own.
    pub(crate) fn samples_by_itself(&self) -> bool {
        self.samples_by_itself.load(Ordering::Relaxed)
    }

    pub(crate) fn set_samples_by_itself(&self) {
        self.samples_by_itself.store(true, Ordering::Relaxed);
    }

    /// See the field.
    pub(crate) fn generation(&self) -> u32 {
        // Acquire: pairs with the release in `changed`; who sees it sees the change.
        self.generation.load(Ordering::Acquire)
    }

    /// The present interval, with its number in the profile.
    pub(crate) fn interval(&self) -> (Option<Interval>, u16) {
        (
            Interval::new(self.interval_bytes.load(Ordering::Relaxed)),
            self.interval_index.load(Ordering::Relaxed) as u16,
        )
    }

    /// Number of times that all pending samples were given up.
    pub(crate) fn discards(&self) -> u32 {
        self.discards.load(Ordering::Acquire)
    }

    pub(crate) fn count_discard(&self) {
        self.discards.fetch_add(1, Ordering::Release);
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        let Callbacks {
            user, on_change, ..
        } = self.callbacks;
        if let Some(on_change) = on_change.filter(|_| !self.is_gone()) {
            // SAFETY: the machine's function, with what it wants to be passed; the header says where it is called.
            unsafe { on_change(user) };
        }
    }

    /// Whether `pc` is in an interpreter loop.
    pub(crate) fn is_interpreter(&self, pc: u64) -> bool {
        let used = self.ranges_used.load(Ordering::Relaxed) as usize;
        self.ranges.iter().take(used).any(|(start, end)| {
            // Acquire: pairs with the release in `add_interpreter_range`; the start is there.
            let end = end.load(Ordering::Acquire);
            (start.load(Ordering::Relaxed)..end).contains(&pc)
        })
    }

    /// Switches sampling of a heap on or off, from the next call with each nursery on.
    pub fn switch(&self, is_on: bool) {
        let is_on = is_on && !self.is_gone();
        self.is_on.store(is_on, Ordering::Relaxed);
        self.changed();
    }

    /// Unregisters the heap: it is never sampled again.
    pub fn take_back(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.switch(false);
    }

    /// Adds a range of native code that runs the machine's frames. False: there are too many ranges.
    pub fn add_interpreter_range(&self, start: u64, end: u64) -> bool {
        // Two may come at the same time.
        let index = self.ranges_used.fetch_add(1, Ordering::Relaxed);
        let Some((from, to)) = self.ranges.get(index as usize) else {
            self.ranges_used.fetch_sub(1, Ordering::Relaxed);
            return false;
        };
        // In between it ends at 0, and holds nothing. Release: pairs with `is_interpreter`.
        from.store(start, Ordering::Relaxed);
        to.store(end, Ordering::Release);
        true
    }

    /// Its table of sampled blocks; `None` if they are malloc's blocks.
    pub(crate) fn own_blocks(&self) -> Option<&LiveSamples> {
        (!self.is_freed_by_malloc).then_some(&self.live)
    }

    /// Runs `work` with the old samples.
    pub(crate) fn with_old<R>(&self, work: impl FnOnce(&mut Vector<Pending>) -> R) -> R {
        self.old.with(work)
    }
}

/// All heaps, by number. They are never taken down: a pointer to one stays valid.
pub struct Heaps {
    heaps: [StaticRef<Heap>; MAX_HEAPS],
    used: AtomicU32,
    random_rows: AtomicU32,
    /// The heap that is walked in malloc on every thread; 0 for none.
    everywhere: AtomicU32,
}

impl Heaps {
    /// None.
    pub const fn new() -> Self {
        Self {
            heaps: [const { StaticRef::new() }; MAX_HEAPS],
            used: AtomicU32::new(0),
            random_rows: AtomicU32::new(0),
            everywhere: AtomicU32::new(0),
        }
    }

    /// A random stream for a nursery, different from those of threads.
    pub(crate) fn new_random(&self, seed: Seed) -> Random {
        const NOT_A_THREAD: u32 = 1 << 31;
        seed.thread(NOT_A_THREAD | self.random_rows.fetch_add(1, Ordering::Relaxed))
    }

    /// Heaps that were registered, also those that were unregistered since.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Heap> {
        let used = self.used.load(Ordering::Acquire) as usize;
        self.heaps.iter().take(used).filter_map(StaticRef::get)
    }

    /// The heap with this number.
    pub(crate) fn get(&self, id: HeapId) -> Option<&'static Heap> {
        self.heaps.get(usize::from(id.0).checked_sub(1)?)?.get()
    }

    /// The heap whose walker adds to the stack of a malloc on this thread.
    pub(crate) fn walked_in_malloc(&self, thread: &ShimThread) -> Option<&'static Heap> {
        self.machine_of(thread)
            .filter(|heap| heap.is_walked_in_malloc)
    }

    /// The heap whose walker, or whose shadow stack, adds to the stack of a free on this thread.
    pub(crate) fn walked_in_free(&self, thread: &ShimThread) -> Option<&'static Heap> {
        self.walked_in_malloc(thread)
            .filter(|heap| heap.is_walked_in_free || thread.shadow_stack() != 0)
    }

    /// The heap whose walker adds to the stack of a tick of this thread.
    pub(crate) fn walked_in_ticks(&self, thread: &ShimThread) -> Option<&'static Heap> {
        self.machine_of(thread)
            .filter(|heap| heap.is_walked_in_ticks || thread.shadow_stack() != 0)
    }

    /// Those that add to the stack of a malloc beside the one that was `walked`: a process may run several languages.
    pub(crate) fn others_in_malloc(
        &self,
        walked: Option<&Heap>,
    ) -> impl Iterator<Item = &'static Heap> {
        let walked = walked.map(Heap::id);
        self.all().filter(move |heap| {
            walked.is_some_and(|walked| heap.id != walked)
                && heap.is_walked_everywhere
                && heap.is_walked_in_malloc
                && !heap.is_gone()
        })
    }

    /// The same for the stack of a free.
    pub(crate) fn others_in_free(
        &self,
        walked: Option<&Heap>,
    ) -> impl Iterator<Item = &'static Heap> {
        self.others_in_malloc(walked)
            .filter(|heap| heap.is_walked_in_free)
    }

    /// The same for the stack of a tick.
    pub(crate) fn others_in_ticks(
        &self,
        walked: Option<&Heap>,
    ) -> impl Iterator<Item = &'static Heap> {
        self.others_in_malloc(walked)
            .filter(|heap| heap.is_walked_in_ticks)
    }

    fn machine_of(&self, thread: &ShimThread) -> Option<&'static Heap> {
        // A collector that has no language of its own leaves the thread to the machine that is built on it.
        let is_machine = |heap: &&Heap| heap.is_walked_in_malloc || heap.has_frames(thread);
        match thread.vm_heap() {
            0 => self.walked_everywhere(),
            own => self
                .present(own)
                .filter(is_machine)
                .or_else(|| self.walked_everywhere()),
        }
    }

    fn walked_everywhere(&self) -> Option<&'static Heap> {
        // Acquire: pairs with the release in `register_heap`.
        self.present(self.everywhere.load(Ordering::Acquire))
    }

    fn present(&self, number: u32) -> Option<&'static Heap> {
        self.get(HeapId(u16::try_from(number).ok()?))
            .filter(|heap| !heap.is_gone())
    }

    /// The profile so far is complete: later ones count from zero.
    pub(crate) fn forget_counts(&self) {
        for heap in self.all() {
            heap.exact_bytes.store(0, Ordering::Relaxed);
            heap.samples.store(0, Ordering::Relaxed);
        }
    }

    /// In a forked child: samples and bytes are the parent's.
    pub(crate) fn restart(&self) {
        self.forget_counts();
        for heap in self.all() {
            heap.wanted.forget();
            heap.old.break_lock();
            heap.with_old(Vector::clear);
            heap.open.store(0, Ordering::Relaxed);
        }
    }
}

impl Agent {
    /// Registers a heap; `None` if there are too many or no memory is left.
    pub fn register_heap(&self, description: &Description<'_>) -> Option<&'static Heap> {
        let interval = description.interval.or(self.config().interval);
        let index = self.heaps.used.fetch_add(1, Ordering::AcqRel) as usize;
        let Some(place) = self.heaps.heaps.get(index) else {
            self.heaps.used.fetch_sub(1, Ordering::AcqRel);
            return None;
        };
        let id = HeapId(index as u16 + 1);
        let heap = leaked::leak(Heap {
            id,
            kind: description.kind,
            is_walked_in_malloc: description.is_walked_in_malloc,
            is_walked_in_free: description.is_walked_in_free,
            is_walked_everywhere: description.is_walked_everywhere,
            is_walked_in_ticks: description.is_walked_in_ticks,
            is_freed_by_malloc: description.is_freed_by_malloc,
            ends_by_id: description.ends_by_id
                && description.kind.is_freed_by_address()
                && !description.is_freed_by_malloc,
            loop_has_thunks: description.loop_has_thunks,
            is_walk_whole: description.is_walk_whole,
            native_code: description.native_code,
            callbacks: description.callbacks,
            live: LiveSamples::new(),
            exact_bytes: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            is_on: AtomicBool::new(
                interval.is_some() && self.accounting.control.force().interval.is_some(),
            ),
            is_gone: AtomicBool::new(false),
            samples_by_itself: AtomicBool::new(false),
            interval_bytes: AtomicU64::new(interval.map_or(0, Interval::bytes)),
            interval_index: AtomicU32::new(0),
            generation: AtomicU32::new(1),
            discards: AtomicU32::new(0),
            ranges: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; RANGES],
            ranges_used: AtomicU32::new(0),
            old: Spin::new(Vector::new()),
            open: AtomicU64::new(0),
            wanted: Wanted::new(),
        })?;
        let kind = description.kind as u32;
        self.publisher
            .define_name(Definition::Heap, id, 0, kind, description.name, &[]);
        match description.interval {
            Some(interval) => {
                self.set_interval(heap, interval);
            }
            None => self.publisher.write_interval_of(heap, self.seed()),
        }
        place.set(Some(heap));
        if description.scans_stacks {
            self.stay_on_threads_stacks();
        }
        // The first one is asked about every stack: it is the program's own language. Others are asked where their code is found.
        if description.is_walked_everywhere && self.heaps.walked_everywhere().is_none() {
            // Release: pairs with `walked_everywhere`.
            let number = u32::from(heap.id.0);
            self.heaps.everywhere.store(number, Ordering::Release);
        }
        Some(heap)
    }

    /// Sets the interval of a heap; each nursery adopts it at its next call.
    pub fn set_heap_interval(&self, heap: &Heap, interval: Interval) -> bool {
        let is_set = self.set_interval(heap, interval);
        heap.changed();
        is_set
    }

    fn set_interval(&self, heap: &Heap, interval: Interval) -> bool {
        let Some(index) = self.publisher.interval_of_heaps(interval, self.seed()) else {
            return false;
        };
        heap.interval_bytes
            .store(interval.bytes(), Ordering::Relaxed);
        heap.interval_index
            .store(u32::from(index), Ordering::Relaxed);
        self.publisher.write_interval_of(heap, self.seed());
        true
    }

    /// Applies a change of malloc's interval to a heap. A virtual machine that draws its samples itself keeps its interval.
    pub(crate) fn let_heap_follow(&self, heap: &Heap, interval: Option<Interval>) {
        if let Some(interval) = interval.filter(|_| !heap.samples_by_itself()) {
            self.set_interval(heap, interval);
        }
        heap.switch(interval.is_some());
    }
}
