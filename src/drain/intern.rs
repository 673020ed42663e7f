//! Stacks as nodes of a tree, each written once.

use allocsample_record::{
    AddressSpace, ChunkEncoder, Location, ModuleId, ModuleRecord, ModuleUnloadRecord, StackId,
    StackNode,
};
use rustc_hash::FxHashMap;

/// Turns addresses into locations and stacks into numbers.
#[derive(Default)]
pub struct StackInterner {
    space: AddressSpace,
    nodes: FxHashMap<StackNode, StackId>,
    /// Locations of addresses under the present map of modules.
    locations: FxHashMap<u64, Location>,
}

impl StackInterner {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A module was mapped.
    pub fn map(&mut self, module: &ModuleRecord<'_>) -> ModuleId {
        self.locations.clear();
        self.space.map(module)
    }

    /// A module is gone.
    pub fn unmap(&mut self, module: &ModuleUnloadRecord) {
        self.locations.clear();
        self.space.unmap(module);
    }

    /// The number of a stack of return addresses, leaf first; new nodes are added to `encoder`.
    pub fn intern(&mut self, frames: &[u64], encoder: &mut ChunkEncoder) -> StackId {
        frames
            .iter()
            .rev()
            .fold(StackId::EMPTY, |parent, &address| {
                let location = *self
                    .locations
                    .entry(address)
                    .or_insert_with(|| self.space.locate(address));
                let node = StackNode { parent, location };
                *self.nodes.entry(node).or_insert_with(|| encoder.node(node))
            })
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
        let first = interner.intern(&[30, 20, 10], &mut encoder);
        let second = interner.intern(&[40, 20, 10], &mut encoder);
        assert_eq!(interner.intern(&[30, 20, 10], &mut encoder), first);
        assert_eq!((first, second), (StackId(3), StackId(4)));
        assert_eq!(interner.intern(&[], &mut encoder), StackId::EMPTY);
        assert_eq!(ChunkDecoder::new(&encoder.take(), 0).count(), 4);
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
        let in_first = interner.intern(&[150], &mut encoder);
        interner.map(&ModuleRecord {
            path: b"/b",
            ..module
        });
        let in_second = interner.intern(&[150], &mut encoder);
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
