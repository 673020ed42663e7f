//! The machine's side of the hook ABI: all of it.
//!
//! MMTk gives each thread blocks of 32 KiB, in which a `BumpAllocator` allocates from `cursor` up to `limit`. The agent
//! lowers `limit`; the block's real end is kept here.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use mmtk::util::{Address, ObjectReference};

use crate::abi::{self, Gc, Hooks, Nursery, Pending, Resolution};
use crate::object::{self, Kind};

/// The agent, and our heap.
pub struct Agent {
    hooks: &'static Hooks,
    heap: *mut abi::Heap,
}

// SAFETY: the header: any thread may call the functions of the table for a heap.
unsafe impl Send for Agent {}
// SAFETY: as above.
unsafe impl Sync for Agent {}

static AGENT: OnceLock<Option<Agent>> = OnceLock::new();

const PAGES_USED: u32 = 1;

/// Looks for the agent, once; the machine has no threads yet.
pub fn start() {
    AGENT.get_or_init(|| {
        let hooks = abi::find()?;
        let description = abi::HeapDescription {
            size: size_of::<abi::HeapDescription>() as u32,
            kind: abi::KIND_NURSERY,
            name: c"org.example.mmtk".as_ptr(),
            interval: 0,
            flags: 0,
            reserved: 0,
            user: std::ptr::null_mut(),
            walk: std::ptr::null(),
            on_sample: std::ptr::null(),
        };
        // SAFETY: as the header describes it; the strings are copied.
        let heap = unsafe { (hooks.heap_register)(&description) };
        if heap.is_null() {
            return None;
        }
        let names: [(Kind, &CStr); 3] = [
            (Kind::Node, c"Node"),
            (Kind::Text, c"Text"),
            (Kind::Array, c"Array"),
        ];
        for (kind, name) in names {
            // SAFETY: the strings are copied.
            unsafe { (hooks.define_type)(heap, kind as u32, name.as_ptr(), std::ptr::null()) };
        }
        let (name, unit) = (c"used", c"bytes");
        // SAFETY: the strings are copied.
        unsafe { (hooks.define_statistic)(heap, PAGES_USED, name.as_ptr(), unit.as_ptr()) };
        Some(Agent { hooks, heap })
    });
}

fn agent() -> Option<&'static Agent> {
    AGENT.get()?.as_ref()
}

/// What the agent knows of one thread's blocks.
pub struct Block {
    nursery: Nursery,
    is_begun: bool,
    /// The real end of the block; `Address::ZERO` without one.
    end: Address,
    /// Where the cursor stood when the block was left.
    left_at: Address,
}

impl Block {
    /// None.
    pub const fn new() -> Self {
        Self {
            nursery: Nursery::new(),
            is_begun: false,
            end: Address::ZERO,
            left_at: Address::ZERO,
        }
    }

    /// The object at `cursor` failed the limit. The new limit if it fits: it is a sample, and no block is needed.
    pub fn point(&mut self, cursor: Address, bytes: usize, kind: Kind) -> Option<Address> {
        let agent = agent()?;
        if cursor + bytes > self.end {
            return None;
        }
        // SAFETY: the nursery is this thread's, and the object is where the next one goes.
        let limit = unsafe {
            (agent.hooks.nursery_point)(
                agent.heap,
                &mut self.nursery,
                cursor.as_usize(),
                bytes as u64,
                self.end.as_usize(),
                kind as u32,
            )
        };
        // SAFETY: between the cursor and the end of the block.
        Some(unsafe { Address::from_usize(limit) })
    }

    /// The block is left. The limit that MMTk knows of.
    pub fn leave(&mut self, cursor: Address, limit: Address) -> Address {
        if agent().is_none() {
            return limit;
        }
        self.left_at = cursor;
        self.end
    }

    /// A block from `cursor` to `end`, or none (zero) while there is a collection. The limit.
    pub fn enter(&mut self, cursor: Address, end: Address) -> Address {
        let Some(agent) = agent() else {
            return end;
        };
        let hooks = agent.hooks;
        // SAFETY: the nursery is this thread's, or its thread is stopped.
        let limit = unsafe {
            if self.is_begun {
                let (left, free) = (self.left_at.as_usize(), cursor.as_usize());
                (hooks.nursery_sync)(agent.heap, &mut self.nursery, left, free, end.as_usize())
            } else {
                let (free, top) = (cursor.as_usize(), end.as_usize());
                (hooks.nursery_begin)(agent.heap, &mut self.nursery, free, top)
            }
        };
        self.is_begun = true;
        self.end = end;
        self.left_at = cursor;
        // SAFETY: between cursor and end.
        unsafe { Address::from_usize(limit) }
    }

    /// An object outside of all blocks. The new limit.
    pub fn outside(
        &mut self,
        object: ObjectReference,
        bytes: usize,
        kind: Kind,
        cursor: Address,
        limit: Address,
    ) -> Address {
        let Some(agent) = agent() else {
            return limit;
        };
        if !self.is_begun {
            self.enter(Address::ZERO, Address::ZERO);
        }
        let mut new_limit = limit.as_usize();
        // SAFETY: the nursery is this thread's.
        unsafe {
            (agent.hooks.alloc)(
                agent.heap,
                &mut self.nursery,
                object.to_raw_address().as_usize(),
                bytes as u64,
                kind as u32,
                cursor.as_usize(),
                &mut new_limit,
            );
            Address::from_usize(new_limit)
        }
    }

    /// The thread ends.
    pub fn end(&mut self, cursor: Address) {
        if let Some(agent) = agent()
            && self.is_begun
        {
            // SAFETY: the nursery is this thread's.
            unsafe { (agent.hooks.nursery_end)(agent.heap, &mut self.nursery, cursor.as_usize()) };
        }
    }

    /// All is traced and nothing is freed: what became of this thread's young objects.
    pub fn resolve_young(&mut self) {
        if self.is_begun {
            resolve(&mut self.nursery, abi::MINOR);
        }
    }
}

/// The same of the old objects, which only a collection of the whole heap decides upon.
pub fn resolve_old() {
    resolve(std::ptr::null_mut(), abi::MAJOR);
}

fn resolve(nursery: *mut Nursery, list: u32) {
    const BATCH: usize = 64;
    let Some(agent) = agent() else {
        return;
    };
    let (hooks, heap) = (agent.hooks, agent.heap);
    let mut cursor = 0;
    loop {
        let mut pending = [const { std::mem::MaybeUninit::<Pending>::uninit() }; BATCH];
        let first = pending.as_mut_ptr().cast();
        // SAFETY: room for so many; the world is stopped.
        let count = unsafe { (hooks.pending)(heap, nursery, list, first, BATCH, &mut cursor) };
        if count == 0 {
            return;
        }
        let answers: Vec<Resolution> = pending[..count]
            .iter()
            // SAFETY: the agent has written the first `count`.
            .map(|sample| answer(unsafe { sample.assume_init_ref() }, list))
            .collect();
        let number = 1 + COLLECTIONS.load(Ordering::Relaxed);
        // SAFETY: so many answers.
        unsafe { (hooks.resolve)(heap, nursery, list, answers.as_ptr(), count, number) };
    }
}

fn answer(sample: &Pending, list: u32) -> Resolution {
    // SAFETY: an object that MMTk gave out, and that no collection has freed since.
    let address = unsafe { Address::from_usize(sample.address) };
    let object = ObjectReference::from_raw_address(address).expect("samples have addresses");
    let is_alive = object.is_reachable();
    let now = object.get_forwarded_object().unwrap_or(object);
    Resolution {
        id: sample.id,
        slot: sample.slot,
        address: now.to_raw_address().as_usize(),
        content_hash: 0,
        type_id: 0,
        fate: match (is_alive, list) {
            (false, _) => abi::DEAD,
            (true, abi::MINOR) => abi::PROMOTED,
            (true, _) => abi::ALIVE,
        },
    }
}

static COLLECTIONS: AtomicU64 = AtomicU64::new(0);
static BEGIN_NS: AtomicU64 = AtomicU64::new(0);

/// A collection begins: the world is to be stopped.
pub fn collection_begins() {
    if let Some(agent) = agent() {
        // SAFETY: no arguments.
        BEGIN_NS.store(unsafe { (agent.hooks.now_ns)() }, Ordering::Relaxed);
    }
}

/// It has ended, and the world goes on.
pub fn collection_ended(is_minor: bool, used_bytes: usize) {
    let id = 1 + COLLECTIONS.fetch_add(1, Ordering::Relaxed);
    let Some(agent) = agent() else {
        return;
    };
    let values = [u64::from(PAGES_USED), used_bytes as u64];
    let record = Gc {
        size: size_of::<Gc>() as u32,
        kind: if is_minor { abi::MINOR } else { abi::MAJOR },
        id,
        begin_ns: BEGIN_NS.load(Ordering::Relaxed),
        // SAFETY: no arguments.
        end_ns: unsafe { (agent.hooks.now_ns)() },
        statistics: 1,
        reserved: 0,
        values: values.as_ptr(),
    };
    // SAFETY: as the header describes it.
    unsafe { (agent.hooks.gc)(agent.heap, &record) };
}

const _: () = assert!(object::KINDS == 4, "a new kind needs a name above");
