//! Stacks as nodes of a tree. Each node is written once, and again if the table of nodes has forgotten it.

use allocsample_record::{
    AddressSpace, ChunkEncoder, CodeRecord, ModuleAgainRecord, ModuleId, ModuleRecord,
    ModuleUnloadRecord, StackId, StackNode, ThreadId,
};
use rustc_hash::FxHashMap;

use crate::nodes::{Node, NodeTable};
use crate::places::{Place, Places};

/// Turns addresses into locations and stacks into numbers.
#[derive(Default)]
pub struct StackInterner {
    space: AddressSpace,
    /// Numbers of the modules that have a build id.
    modules: FxHashMap<ModuleKey, ModuleId>,
    nodes: NodeTable,
    /// The numbers of locations in `nodes`.
    places: Places,
    /// Locations of addresses under the present map of modules; at most [`ADDRESSES`].
    addresses: FxHashMap<u64, Place>,
    /// Recently seen frames under the present map of modules, at the places that [`recent_index`] gives.
    recent: Vec<Recent>,
    /// The last stack of each thread, root first: its next sample only contains the frames that differ.
    last: FxHashMap<ThreadId, Vec<StackId>>,
}

/// A frame by its address; [`StackId::EMPTY`] is an empty place.
#[derive(Clone, Copy, Default)]
struct Recent {
    address: u64,
    parent: StackId,
    number: StackId,
}

/// Number of places for recently seen frames: 64 KiB.
const RECENT: usize = 1 << 12;

fn recent_index(parent: StackId, address: u64) -> usize {
    // The fractional parts of the golden ratio and of the square root of 2, made odd: every bit of the input affects
    // the upper bits of the product.
    let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(parent.0);
    let hash = mixed.wrapping_mul(0x6a09_e667_f3bc_c909);
    (hash >> 52) as usize % RECENT
}

/// The identity of a module: path, build id, size, and the offset at which it begins.
type ModuleKey = (Box<[u8]>, Box<[u8]>, u64, u64);

/// Maximum number of remembered addresses (1 MiB); then all are forgotten.
const ADDRESSES: usize = 1 << 16;

impl StackInterner {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The last stack of each thread that runs.
    pub fn last_stacks(&self) -> impl Iterator<Item = (ThreadId, StackId)> + '_ {
        let leaf = |(&thread, stack): (_, &Vec<StackId>)| Some((thread, *stack.last()?));
        self.last.iter().filter_map(leaf)
    }

    /// Begins a new file with the same modules. `numbers` maps the last file's nodes, in their order, to nodes of the
    /// new file, which include the last stacks.
    pub fn begin_file(&mut self, numbers: &[StackId]) {
        self.nodes = NodeTable::default();
        self.recent.clear();
        for number in self.last.values_mut().flatten() {
            let index = (number.0 as usize).checked_sub(1);
            let new = index.and_then(|index| numbers.get(index));
            *number = new.copied().unwrap_or_default();
        }
    }

    /// Records that a module was mapped. Returns the module's record if the profile has it already.
    pub fn map(&mut self, module: &ModuleRecord<'_>) -> Option<ModuleAgainRecord> {
        self.forget_addresses();
        let key = (
            Box::from(module.path),
            Box::from(module.build_id),
            module.end.wrapping_sub(module.start),
            module.start.wrapping_sub(module.bias),
        );
        let is_known = !module.build_id.is_empty();
        if let Some(&number) = self.modules.get(&key).filter(|_| is_known) {
            let again = ModuleAgainRecord {
                module: number,
                start: module.start,
                end: module.end,
                bias: module.bias,
            };
            self.space.map_again(&again);
            return Some(again);
        }
        let number = self.space.map(module);
        if is_known {
            self.modules.insert(key, number);
        }
        None
    }

    /// Records that a module was unmapped.
    pub fn unmap(&mut self, module: &ModuleUnloadRecord) {
        self.forget_addresses();
        self.space.unmap(module);
    }

    /// Records that compiled code was made, moved or dropped.
    pub fn change_code(&mut self, code: &CodeRecord) {
        self.forget_addresses();
        self.space.change_code(code);
    }

    /// Forgets addresses, which may belong to other locations now. The last stacks stay: a thread shares only frames
    /// whose code it has found unchanged.
    fn forget_addresses(&mut self) {
        self.addresses.clear();
        self.recent.clear();
    }

    /// Forgets places and nodes. Nodes are then written again; numbers that this file uses stay valid.
    fn forget_places(&mut self) {
        self.addresses.clear();
        self.places = Places::default();
        self.nodes = NodeTable::default();
    }

    /// Forgets the last stack of a thread that has ended.
    pub fn end_thread(&mut self, thread: ThreadId) {
        self.last.remove(&thread);
    }

    /// Whether at least `shared` frames of the thread's last stack are known, counted from the root.
    pub fn knows(&self, thread: ThreadId, shared: usize) -> bool {
        shared <= self.last.get(&thread).map_or(0, Vec::len)
    }

    /// The first `shared` frames of the thread's last stack, counted from the root; `None` if it is not known so far.
    pub fn last_stack_to(&self, thread: ThreadId, shared: usize) -> Option<StackId> {
        let Some(index) = shared.checked_sub(1) else {
            return Some(StackId::EMPTY);
        };
        self.last.get(&thread)?.get(index).copied()
    }

    /// Returns the number of a stack that is not the last one of a thread, such as a tick's: these addresses, leaf
    /// first, on top of `below`. Adds new nodes to `encoder`.
    pub fn intern_below(
        &mut self,
        below: StackId,
        frames: &[u64],
        encoder: &mut ChunkEncoder,
    ) -> StackId {
        self.descend(below, frames, encoder, |_| {})
    }

    /// Returns the number of a thread's stack: these return addresses, leaf first, on top of the first `shared`
    /// frames of the thread's last stack. Adds new nodes to `encoder`.
    pub fn intern(
        &mut self,
        thread: ThreadId,
        shared: usize,
        frames: &[u64],
        encoder: &mut ChunkEncoder,
    ) -> StackId {
        let mut last = std::mem::take(self.last.entry(thread).or_default());
        last.truncate(shared);
        last.reserve(frames.len());
        let below = last.last().copied().unwrap_or_default();
        let stack = self.descend(below, frames, encoder, |number| last.push(number));
        self.last.insert(thread, last);
        stack
    }

    /// Returns the stack with these addresses, leaf first, on top of another one. Passes the number of every stack on
    /// the way to the callback.
    fn descend(
        &mut self,
        below: StackId,
        frames: &[u64],
        encoder: &mut ChunkEncoder,
        mut on_number: impl FnMut(StackId),
    ) -> StackId {
        self.recent.resize_with(RECENT, Recent::default);
        if self.addresses.len() > ADDRESSES {
            self.addresses.clear();
        }
        if self.places.is_full() {
            self.forget_places();
        }
        let mut parent = below;
        // A new node has no nodes below it yet.
        let mut is_parent_new = false;
        for &address in frames.iter().rev() {
            let place = &mut self.recent[recent_index(parent, address)];
            let is_known = (place.address, place.parent) == (address, parent);
            if is_parent_new || !is_known || place.number == StackId::EMPTY {
                let place_of = || self.places.number(self.space.locate(address));
                let at = *self.addresses.entry(address).or_insert_with(place_of);
                let node = Node { parent, place: at };
                let known = if is_parent_new {
                    None
                } else {
                    self.nodes.find(node)
                };
                is_parent_new = known.is_none();
                let number = known.unwrap_or_else(|| {
                    let location = self.places.location(at);
                    let number = encoder.node(StackNode { parent, location });
                    self.nodes.add(node, number);
                    number
                });
                *place = Recent {
                    address,
                    parent,
                    number,
                };
            }
            parent = place.number;
            on_number(parent);
        }
        parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::{ChunkDecoder, Event};

    #[test]
    fn equal_prefixes_share_their_nodes() {
        let mut encoder = ChunkEncoder::new(0);
        let mut interner = StackInterner::new();
        let mut intern = |thread, shared, frames: &[u64]| {
            interner.intern(ThreadId(thread), shared, frames, &mut encoder)
        };
        let first = intern(1, 0, &[30, 20, 10]);
        let second = intern(1, 2, &[40]);
        assert_eq!((first, second), (StackId(3), StackId(4)));
        // The other thread's stack is its own.
        assert_eq!(intern(2, 0, &[20, 10]), StackId(2));
        assert_eq!(intern(1, 2, &[30]), first);
        assert_eq!(intern(2, 2, &[40]), second);
        assert_eq!(intern(1, 3, &[]), first);
        assert_eq!(intern(1, 0, &[]), StackId::EMPTY);
        assert!(interner.knows(ThreadId(2), 3) && !interner.knows(ThreadId(2), 4));
        let below = interner.last_stack_to(ThreadId(2), 2).unwrap();
        assert_eq!(interner.intern_below(below, &[40], &mut encoder), second);
        assert_eq!(interner.last_stack_to(ThreadId(2), 0), Some(StackId::EMPTY));
        assert_eq!(interner.last_stack_to(ThreadId(2), 4), None);
        assert!(interner.knows(ThreadId(2), 3));
        interner.end_thread(ThreadId(2));
        assert!(!interner.knows(ThreadId(2), 1));
        assert_eq!(ChunkDecoder::new(&encoder.take(), 0).count(), 4);
    }

    #[test]
    fn a_module_that_is_loaded_again_has_the_same_stacks() {
        let mut encoder = ChunkEncoder::new(0);
        let mut interner = StackInterner::new();
        let module = |path, build_id, start| ModuleRecord {
            start,
            end: start + 100,
            bias: start,
            build_id,
            path,
        };
        assert_eq!(interner.map(&module(b"/a", b"1", 100)), None);
        let first = interner.intern(ThreadId(1), 0, &[150], &mut encoder);
        assert_eq!(interner.map(&module(b"/a", b"2", 100)), None);
        let other = interner.intern(ThreadId(1), 0, &[150], &mut encoder);
        let again = interner.map(&module(b"/a", b"1", 300)).unwrap();
        assert_eq!((again.module, again.start), (ModuleId(1), 300));
        assert_eq!(interner.intern(ThreadId(1), 0, &[350], &mut encoder), first);
        assert_ne!(first, other);
        // A module without a build id cannot be recognised when it is mapped again.
        assert_eq!(interner.map(&module(b"/b", b"", 100)), None);
        assert_eq!(interner.map(&module(b"/b", b"", 100)), None);
    }

    #[test]
    fn an_address_means_the_module_that_is_mapped_now() {
        let mut encoder = ChunkEncoder::new(0);
        let mut interner = StackInterner::new();
        let module = ModuleRecord {
            start: 100,
            end: 200,
            bias: 100,
            build_id: &[],
            path: b"/a",
        };
        interner.map(&module);
        let in_first = interner.intern(ThreadId(1), 0, &[150], &mut encoder);
        interner.map(&ModuleRecord {
            path: b"/b",
            ..module
        });
        let in_second = interner.intern(ThreadId(1), 0, &[150], &mut encoder);
        assert_ne!(in_first, in_second);
        let raw = encoder.take();
        let modules: Vec<_> = ChunkDecoder::new(&raw, 0)
            .map(|event| match event {
                Event::Node(node) => node.location.module,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(modules, [ModuleId(1), ModuleId(2)]);
    }

    #[test]
    fn an_address_of_an_unmapped_module_belongs_to_none() {
        let mut encoder = ChunkEncoder::new(0);
        let mut interner = StackInterner::new();
        let module = ModuleRecord {
            start: 100,
            end: 200,
            bias: 100,
            build_id: &[1],
            path: b"/a",
        };
        interner.map(&module);
        let before = interner.intern(ThreadId(1), 0, &[150], &mut encoder);
        interner.unmap(&ModuleUnloadRecord {
            time_ns: 1,
            start: 100,
        });
        let after = interner.intern(ThreadId(1), 0, &[150], &mut encoder);
        assert_ne!(before, after);
        let raw = encoder.take();
        let modules: Vec<_> = ChunkDecoder::new(&raw, 0)
            .map(|event| match event {
                Event::Node(node) => node.location.module,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(modules, [ModuleId(1), ModuleId::NONE]);
    }

    #[test]
    fn more_places_than_there_is_room_for_are_forgotten_and_found_again() {
        let mut encoder = ChunkEncoder::new(0);
        let mut interner = StackInterner::new();
        let first = interner.intern(ThreadId(1), 0, &[1], &mut encoder);
        let mut address = 1_000_000;
        while !interner.places.is_full() {
            let frames: Vec<u64> = (address..address + 4096).collect();
            address += 4096;
            interner.intern(ThreadId(2), 0, &frames, &mut encoder);
            // So are addresses, and earlier.
            let addresses = interner.addresses.len();
            let interned = address as usize - 1_000_000;
            assert!(addresses <= ADDRESSES + 4096);
            assert!(addresses == interned + 1 || interned > ADDRESSES);
        }
        assert!(address < 2_000_000);
        let again = interner.intern(ThreadId(1), 0, &[1], &mut encoder);
        assert!(!interner.places.is_full());
        // It is written again; the stack of a thread stays what it was.
        assert_ne!(again, first);
        assert_eq!(interner.intern(ThreadId(1), 1, &[], &mut encoder), again);
    }

    #[test]
    fn even_address_0_is_a_frame() {
        let mut encoder = ChunkEncoder::new(0);
        let mut interner = StackInterner::new();
        let stack = interner.intern(ThreadId(1), 0, &[0], &mut encoder);
        assert_ne!(stack, StackId::EMPTY);
    }
}
