//! Stacks as nodes of a tree, each written once (or again after it was forgotten).

use allocsample_record::{
    AddressSpace, ChunkEncoder, CodeRecord, Location, ModuleAgainRecord, ModuleId, ModuleRecord,
    ModuleUnloadRecord, StackId, StackNode, ThreadId,
};
use rustc_hash::FxHashMap;

use crate::nodes::NodeTable;

/// Turns addresses into locations and stacks into numbers.
#[derive(Default)]
pub struct StackInterner {
    space: AddressSpace,
    /// Numbers of the modules that have a build id.
    modules: FxHashMap<ModuleKey, ModuleId>,
    nodes: NodeTable,
    /// Locations of addresses under the present map of modules; at most [`LOCATIONS`].
    locations: FxHashMap<u64, Location>,
    /// Last stacks, root first, in places by thread: the next one usually shares most of its frames, which then need no
    /// look-up.
    last: Vec<Vec<(u64, StackId)>>,
}

/// What makes two modules the same: path, build id, size, and where in itself it begins.
type ModuleKey = (Box<[u8]>, Box<[u8]>, u64, u64);

/// Addresses that are remembered before all are forgotten: 2 MiB of them.
const LOCATIONS: usize = 1 << 16;

/// Threads whose last stack is kept; those with the same remainder share a place.
const LAST_STACKS: usize = 64;

impl StackInterner {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new file begins: it has no stacks yet, and the same modules.
    pub fn begin_file(&mut self) {
        self.nodes = NodeTable::default();
        self.last.clear();
    }

    /// A module was mapped. If the profile knows it already, the record of that is returned.
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

    /// A module is gone.
    pub fn unmap(&mut self, module: &ModuleUnloadRecord) {
        self.forget_addresses();
        self.space.unmap(module);
    }

    /// Compiled code was made, moved or dropped.
    pub fn change_code(&mut self, code: &CodeRecord) {
        self.forget_addresses();
        self.space.change_code(code);
    }

    /// An address may mean another location now.
    fn forget_addresses(&mut self) {
        self.locations.clear();
        self.last.clear();
    }

    /// The number of a thread's stack of return addresses, leaf first; new nodes are added to `encoder`.
    pub fn intern(
        &mut self,
        thread: ThreadId,
        frames: &[u64],
        encoder: &mut ChunkEncoder,
    ) -> StackId {
        self.last.resize_with(LAST_STACKS, Vec::new);
        if self.locations.len() > LOCATIONS {
            self.locations.clear();
        }
        let last = &mut self.last[thread.0 as usize % LAST_STACKS];
        let from_root = || frames.iter().rev().copied();
        let shared = last
            .iter()
            .zip(from_root())
            .take_while(|((address, _), frame)| address == frame)
            .count();
        last.truncate(shared);
        let mut parent = last.last().map_or(StackId::EMPTY, |&(_, id)| id);
        for address in from_root().skip(shared) {
            let location = *self
                .locations
                .entry(address)
                .or_insert_with(|| self.space.locate(address));
            let node = StackNode { parent, location };
            parent = self.nodes.intern(node, |node| encoder.node(node));
            last.push((address, parent));
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
        let first = interner.intern(ThreadId(1), &[30, 20, 10], &mut encoder);
        let second = interner.intern(ThreadId(1), &[40, 20, 10], &mut encoder);
        assert_eq!(
            interner.intern(ThreadId(1), &[30, 20, 10], &mut encoder),
            first
        );
        assert_eq!((first, second), (StackId(3), StackId(4)));
        assert_eq!(
            interner.intern(ThreadId(1), &[], &mut encoder),
            StackId::EMPTY
        );
        // Another thread in the same place, and one that has seen nothing yet.
        for thread in [ThreadId(1 + LAST_STACKS as u32), ThreadId(2)] {
            assert_eq!(interner.intern(thread, &[40, 20, 10], &mut encoder), second);
        }
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
        let first = interner.intern(ThreadId(1), &[150], &mut encoder);
        assert_eq!(interner.map(&module(b"/a", b"2", 100)), None);
        let other = interner.intern(ThreadId(1), &[150], &mut encoder);
        let again = interner.map(&module(b"/a", b"1", 300)).unwrap();
        assert_eq!((again.module, again.start), (ModuleId(1), 300));
        assert_eq!(interner.intern(ThreadId(1), &[350], &mut encoder), first);
        assert_ne!(first, other);
        // Without a build id nobody knows.
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
        let in_first = interner.intern(ThreadId(1), &[150], &mut encoder);
        interner.map(&ModuleRecord {
            path: b"/b",
            ..module
        });
        let in_second = interner.intern(ThreadId(1), &[150], &mut encoder);
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
}
