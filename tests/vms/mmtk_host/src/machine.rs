//! The binding: what MMTk must know of this machine, and how its threads stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};

use mmtk::scheduler::GCWorker;
use mmtk::util::opaque_pointer::{OpaquePointer, VMMutatorThread, VMThread, VMWorkerThread};
use mmtk::util::{Address, ObjectReference};
use mmtk::vm::slot::{SimpleSlot, Slot, UnimplementedMemorySlice};
use mmtk::vm::{
    ActivePlan, Collection, GCThreadContext, ObjectTracerContext, ReferenceGlue, RootsWorkFactory,
    Scanning, SlotVisitor, VMBinding,
};
use mmtk::{MMTK, Mutator, memory_manager};

use crate::hooks;
use crate::object::{Header, Model, slot};
use crate::thread::Thread;

/// The machine.
#[derive(Default)]
pub struct Machine;

impl VMBinding for Machine {
    type VMObjectModel = Model;
    type VMScanning = Machine;
    type VMCollection = Machine;
    type VMActivePlan = Machine;
    type VMReferenceGlue = Machine;
    type VMSlot = SimpleSlot;
    type VMMemorySlice = UnimplementedMemorySlice;

    const MIN_ALIGNMENT: usize = size_of::<usize>();
    const USE_ALLOCATION_OFFSET: bool = false;
}

static MMTK_INSTANCE: OnceLock<Box<MMTK<Machine>>> = OnceLock::new();

/// Starts MMTk with these options.
pub fn start(options: &[(&str, &str)]) {
    let mut builder = mmtk::MMTKBuilder::new();
    for (name, value) in options {
        assert!(
            memory_manager::process(&mut builder, name, value),
            "{name}={value}"
        );
    }
    MMTK_INSTANCE.get_or_init(|| memory_manager::mmtk_init(&builder));
    memory_manager::initialize_collection(mmtk(), VMThread::UNINITIALIZED);
}

pub fn mmtk() -> &'static MMTK<Machine> {
    MMTK_INSTANCE.get().expect("started")
}

/// Collections so far.
pub static MINOR_COLLECTIONS: AtomicU64 = AtomicU64::new(0);
/// Collections of the whole heap so far.
pub static MAJOR_COLLECTIONS: AtomicU64 = AtomicU64::new(0);

// ---- stopping ----

/// Threads run until the next slow path of theirs.
struct World {
    is_stopping: bool,
    running: usize,
    collections: u64,
    /// Addresses of all threads.
    threads: Vec<usize>,
}

static WORLD: Mutex<World> = Mutex::new(World {
    is_stopping: false,
    running: 0,
    collections: 0,
    threads: Vec::new(),
});
static CHANGED: Condvar = Condvar::new();
/// `World::is_stopping`, for a look without the lock.
static IS_STOPPING: AtomicBool = AtomicBool::new(false);

fn world() -> MutexGuard<'static, World> {
    WORLD.lock().expect("no thread panics with it")
}

fn wait_while(
    world: MutexGuard<'static, World>,
    is_closed: impl Fn(&World) -> bool,
) -> MutexGuard<'static, World> {
    CHANGED
        .wait_while(world, |world| is_closed(world))
        .expect("no thread panics with it")
}

/// A thread begins.
pub fn join(thread: &mut Thread) {
    let mut world = wait_while(world(), |world| world.is_stopping);
    world.running += 1;
    world.threads.push(std::ptr::from_mut(thread) as usize);
}

/// A thread ends; `last` is what it does while no collection can begin.
pub fn part(thread: &mut Thread, last: impl FnOnce(&mut Thread)) {
    stop_here();
    let mut world = world();
    last(thread);
    let address = std::ptr::from_mut(thread) as usize;
    world.threads.retain(|&other| other != address);
    world.running -= 1;
    CHANGED.notify_all();
}

/// Waits if the world is to be stopped.
pub fn stop_here() {
    // Acquire: pairs with the store in `stop_all_mutators`; the lock tells all else.
    if IS_STOPPING.load(Ordering::Acquire) {
        let mut world = world();
        world.running -= 1;
        CHANGED.notify_all();
        world = wait_while(world, |world| world.is_stopping);
        world.running += 1;
    }
}

/// All threads, while they are stopped.
fn stopped_threads() -> impl Iterator<Item = &'static mut Thread> {
    let addresses = world().threads.clone();
    addresses.into_iter().map(|address| {
        // SAFETY: threads leave the list before they end, and are stopped: nobody else looks at them.
        unsafe { &mut *(address as *mut Thread) }
    })
}

impl Collection<Machine> for Machine {
    fn stop_all_mutators<F: FnMut(&'static mut Mutator<Machine>)>(_: VMWorkerThread, mut visit: F) {
        hooks::collection_begins();
        let mut world = world();
        world.is_stopping = true;
        IS_STOPPING.store(true, Ordering::Release);
        drop(wait_while(world, |world| world.running > 0));
        for thread in stopped_threads() {
            thread.lose_block();
            visit(thread.mutator());
        }
    }

    fn resume_mutators(_: VMWorkerThread) {
        let is_minor = is_nursery_collection();
        let counter = if is_minor {
            &MINOR_COLLECTIONS
        } else {
            &MAJOR_COLLECTIONS
        };
        counter.fetch_add(1, Ordering::Relaxed);
        hooks::collection_ended(is_minor, memory_manager::used_bytes(mmtk()));
        let mut world = world();
        world.is_stopping = false;
        world.collections += 1;
        IS_STOPPING.store(false, Ordering::Release);
        CHANGED.notify_all();
    }

    fn block_for_gc(_: VMMutatorThread) {
        let mut world = world();
        // The collection cannot have happened: it waits for this thread.
        let collections = world.collections;
        world.running -= 1;
        CHANGED.notify_all();
        world = wait_while(world, |world| {
            world.collections == collections || world.is_stopping
        });
        world.running += 1;
    }

    fn spawn_gc_thread(_: VMThread, context: GCThreadContext<Machine>) {
        let GCThreadContext::Worker(worker) = context;
        std::thread::spawn(move || {
            let tls = VMWorkerThread(VMThread(OpaquePointer::from_address(Address::from_ref(
                &*worker,
            ))));
            memory_manager::start_worker(mmtk(), tls, worker);
        });
    }
}

fn is_nursery_collection() -> bool {
    mmtk()
        .get_plan()
        .generational()
        .is_some_and(|plan| plan.is_current_gc_nursery())
}

// ---- roots and references ----

impl Scanning<Machine> for Machine {
    fn scan_object<V: SlotVisitor<SimpleSlot>>(
        _: VMWorkerThread,
        object: ObjectReference,
        visitor: &mut V,
    ) {
        for index in 0..Header::of(object).references() {
            visitor.visit_slot(slot(object, index));
        }
    }

    fn notify_initial_thread_scan_complete(_: bool, _: VMWorkerThread) {}

    fn scan_roots_in_mutator_thread(
        _: VMWorkerThread,
        mutator: &'static mut Mutator<Machine>,
        mut factory: impl RootsWorkFactory<SimpleSlot>,
    ) {
        let thread = Thread::of(mutator.mutator_tls);
        factory.create_process_roots_work(thread.root_slots());
    }

    fn scan_vm_specific_roots(_: VMWorkerThread, _: impl RootsWorkFactory<SimpleSlot>) {}

    fn supports_return_barrier() -> bool {
        false
    }

    fn prepare_for_roots_re_scanning() {}

    /// All is traced, nothing is freed: the moment to ask who lives.
    fn process_weak_refs(_: &mut GCWorker<Machine>, _: impl ObjectTracerContext<Machine>) -> bool {
        for thread in stopped_threads() {
            thread.block.resolve_young();
        }
        if !is_nursery_collection() {
            hooks::resolve_old();
        }
        false
    }
}

impl ActivePlan<Machine> for Machine {
    fn is_mutator(thread: VMThread) -> bool {
        let address = thread.0.to_address().as_usize();
        world().threads.contains(&address)
    }

    fn mutator(thread: VMMutatorThread) -> &'static mut Mutator<Machine> {
        Thread::of(thread).mutator()
    }

    fn mutators<'a>() -> Box<dyn Iterator<Item = &'a mut Mutator<Machine>> + 'a> {
        Box::new(stopped_threads().map(|thread| thread.mutator()))
    }

    fn number_of_mutators() -> usize {
        world().threads.len()
    }
}

impl ReferenceGlue<Machine> for Machine {
    type FinalizableType = ObjectReference;

    fn clear_referent(_: ObjectReference) {}

    fn get_referent(_: ObjectReference) -> Option<ObjectReference> {
        None
    }

    fn set_referent(_: ObjectReference, _: ObjectReference) {}

    fn enqueue_references(_: &[ObjectReference], _: VMWorkerThread) {}
}

/// Stores a reference into an object, with MMTk's barrier.
pub fn store(
    mutator: &mut Mutator<Machine>,
    object: ObjectReference,
    index: usize,
    target: ObjectReference,
) {
    let place = slot(object, index);
    place.store(target);
    memory_manager::object_reference_write_post(mutator, object, place, Some(target));
}
