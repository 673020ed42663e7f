//! Which stack nodes are in the profile already: as many as fit into a bounded table.
//!
//! A node that was forgotten is written again, and all that are below it with it, for a node is told apart by its parent's
//! number. So those that are asked for again and again, near the roots, stay; and a table that forgets much grows.

use allocsample_record::{StackId, StackNode};

/// Nodes in a bucket.
const WAYS: usize = 3;
const FIRST_BUCKETS: usize = 1 << 6;
/// 2 MiB, and 98,304 nodes: what a program of a million lines is found in at any one time, and what fits into the
/// cache of a processor that another program wants to use too.
const CACHED_BUCKETS: usize = 1 << 15;
/// 32 MiB, and one and a half million nodes. With 2 MiB, ten million samples at a million sites took 332 MB and a minute to read,
/// because each node was written 37 times.
const MOST_BUCKETS: usize = 1 << 19;
/// A table as large as the cache, or larger, doubles after it has forgotten so many times the nodes that it holds: its memory
/// follows what it would cost on the disk.
const FORGOTTEN_TO_GROW: usize = 1;

/// A cache line. Number 0 is an empty place.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    offsets: [u64; WAYS],
    modules: [u32; WAYS],
    parents: [u32; WAYS],
    numbers: [u32; WAYS],
    /// A bit for each way that was found since the last one had to go.
    found: u32,
}

impl Bucket {
    fn node(&self, way: usize) -> Option<(StackNode, StackId)> {
        let number = *self.numbers.get(way).filter(|number| **number != 0)?;
        let node = StackNode {
            parent: StackId(*self.parents.get(way)?),
            location: allocsample_record::Location {
                module: allocsample_record::ModuleId(*self.modules.get(way)?),
                offset: *self.offsets.get(way)?,
            },
        };
        Some((node, StackId(number)))
    }

    #[inline]
    fn find(&mut self, node: StackNode) -> Option<StackId> {
        let is_it = |&way: &usize| {
            self.offsets[way] == node.location.offset
                && self.parents[way] == node.parent.0
                && self.modules[way] == node.location.module.0
                && self.numbers[way] != 0
        };
        let way = (0..WAYS).find(is_it)?;
        self.found |= 1 << way;
        Some(StackId(self.numbers[way]))
    }

    /// The last place is the last to be taken.
    fn is_full(&self) -> bool {
        self.numbers[WAYS - 1] != 0
    }

    /// In an empty place, or in that of the oldest of those that nobody asked for since the last one had to go.
    fn insert(&mut self, node: StackNode, number: StackId) {
        let key = |&way: &usize| (self.found >> way & 1, self.numbers.get(way));
        let way = (0..WAYS).min_by_key(key).unwrap_or(0);
        if self.is_full() {
            self.found = 0;
        }
        self.offsets[way] = node.location.offset;
        self.modules[way] = node.location.module.0;
        self.parents[way] = node.parent.0;
        self.numbers[way] = number.0;
    }
}

/// Numbers of nodes. One that was forgotten is written to the profile again, under another number, as are those below it;
/// readers take equal nodes for one. So the memory of a program that never has the same stack twice is bounded.
pub(crate) struct NodeTable {
    buckets: Vec<Bucket>,
    used: usize,
    /// Since the table has its size.
    forgotten: usize,
    most_buckets: usize,
}

impl Default for NodeTable {
    fn default() -> Self {
        Self {
            buckets: vec![Bucket::default(); FIRST_BUCKETS],
            used: 0,
            forgotten: 0,
            most_buckets: MOST_BUCKETS,
        }
    }
}

impl NodeTable {
    /// The node's number, if the table knows it.
    pub(crate) fn find(&mut self, node: StackNode) -> Option<StackId> {
        let [first, second] = self.choices(node);
        let bucket = &mut self.buckets[first];
        // Only if the first is full can it be in the second: no place ever becomes empty.
        match bucket.find(node) {
            None if bucket.is_full() => self.buckets[second].find(node),
            found => found,
        }
    }

    /// Remembers the number of a node that the table does not know.
    pub(crate) fn add(&mut self, node: StackNode, number: StackId) {
        if self.should_grow() {
            self.grow();
        }
        self.insert(node, number);
    }

    fn should_grow(&self) -> bool {
        let buckets = self.buckets.len();
        let wants_to = if buckets < CACHED_BUCKETS {
            self.used > buckets
        } else {
            self.forgotten > FORGOTTEN_TO_GROW * WAYS * buckets
        };
        wants_to && buckets < self.most_buckets
    }

    fn insert(&mut self, node: StackNode, number: StackId) {
        let [first, second] = self.choices(node);
        let are_full = [first, second].map(|index| self.buckets[index].is_full());
        self.used += usize::from(are_full != [true, true]);
        self.forgotten += usize::from(are_full == [true, true]);
        let index = if are_full == [true, false] {
            second
        } else {
            first
        };
        self.buckets[index].insert(node, number);
    }

    /// The two buckets where a node may be.
    fn choices(&self, node: StackNode) -> [usize; 2] {
        // Two multiplications with odd constants (of the fractions of the golden ratio and of the square root of 2); the
        // upper bits depend on everything.
        let location = node.location.offset ^ u64::from(node.location.module.0).rotate_right(16);
        let mixed = location.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(node.parent.0);
        let hash = mixed.wrapping_mul(0x6a09_e667_f3bc_c909);
        // Their number is a power of two, of at most 21 bits.
        let mask = self.buckets.len() - 1;
        [(hash >> 43) as usize & mask, (hash >> 22) as usize & mask]
    }

    fn grow(&mut self) {
        let larger = vec![Bucket::default(); self.buckets.len() * 2];
        let old = std::mem::replace(&mut self.buckets, larger);
        self.used = 0;
        self.forgotten = 0;
        for bucket in &old {
            for (node, number) in (0..WAYS).filter_map(|way| bucket.node(way)) {
                self.insert(node, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_record::{Location, ModuleId};

    fn node(parent: u32, offset: u64) -> StackNode {
        StackNode {
            parent: StackId(parent),
            location: Location {
                module: ModuleId(1),
                offset,
            },
        }
    }

    /// The node's number; a new one, from `write`, if the table does not know it.
    fn intern(
        table: &mut NodeTable,
        node: StackNode,
        write: impl FnOnce(StackNode) -> StackId,
    ) -> StackId {
        table.find(node).unwrap_or_else(|| {
            let number = write(node);
            table.add(node, number);
            number
        })
    }

    /// Asks for `count` nodes in turn, `rounds` times; how many were written each time.
    fn written(table: &mut NodeTable, count: u32, rounds: usize) -> Vec<u32> {
        let mut last = 0;
        let round = |_| {
            let before = last;
            for index in 0..count {
                intern(table, node(index % 1000, u64::from(index) * 5), |_| {
                    last += 1;
                    StackId(last)
                });
            }
            last - before
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn nodes_that_fit_are_written_once() {
        let mut table = NodeTable::default();
        let times = written(&mut table, 20_000, 3);
        assert_eq!(times[0], 20_000);
        // Both buckets of a few are full.
        assert!(times[1] < 200, "{times:?}");
        assert!(times[2] < 200, "{times:?}");
    }

    /// A stack of twenty frames of a binary tree, of which so few fit that whoever forgets its root forgets all.
    #[test]
    fn what_is_asked_for_again_and_again_stays() {
        let mut table = NodeTable {
            most_buckets: CACHED_BUCKETS,
            ..NodeTable::default()
        };
        let (mut last, mut state) = (0_u32, 1_u64);
        const STACKS: u32 = 400_000;
        for _ in 0..STACKS {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let mut parent = StackId::EMPTY;
            for depth in 0..20 {
                let asked = node(parent.0, 0x1000 + 5 * (state >> (40 + depth) & 1));
                parent = intern(&mut table, asked, |_| {
                    last += 1;
                    StackId(last)
                });
            }
        }
        // Sixteen levels fit; without a second chance for those that are found it is ten nodes a stack.
        assert!(last < 8 * STACKS, "{last}");
    }

    #[test]
    fn memory_is_bounded_and_no_number_is_ever_wrong() {
        let mut table = NodeTable {
            most_buckets: 2 * CACHED_BUCKETS,
            ..NodeTable::default()
        };
        let mut nodes = Vec::new();
        let mut state = 1_u64;
        for _ in 0..1_000_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let asked = node((state >> 60) as u32, state >> 44);
            let number = intern(&mut table, asked, |node| {
                nodes.push(node);
                StackId(nodes.len() as u32)
            });
            assert_eq!(nodes[number.0 as usize - 1], asked);
        }
        assert!(table.forgotten > 0, "some had to go");
        assert_eq!(table.buckets.len(), 2 * CACHED_BUCKETS);
        assert_eq!(size_of::<Bucket>() * CACHED_BUCKETS, 2 << 20);
        assert_eq!(size_of::<Bucket>() * MOST_BUCKETS, 32 << 20);
    }
}
