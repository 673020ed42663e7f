//! A bounded table of the stack nodes that are in the profile already.
//!
//! A node that was forgotten is written again, and all that are below it with it, for a node is told apart by its parent's
//! number. So those that are asked for again and again, near the roots, stay; and a table that forgets much grows.

use allocsample_record::StackId;

use crate::places::Place;

/// A frame below its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// The caller's stack.
    pub(crate) parent: StackId,
    /// Where it is.
    pub(crate) place: Place,
}

/// Nodes in a bucket.
const WAYS: usize = 5;
const FIRST_BUCKETS: usize = 1 << 6;
/// 2 MiB, and 163,840 nodes: what a program of a million lines is found in at any one time, and what fits into the
/// cache of a processor that another program wants to use too.
const CACHED_BUCKETS: usize = 1 << 15;
/// 64 MiB, and five million nodes, of a program that has so many: ten million samples at a million sites, of which each node is
/// written once, or twice. With 2 MiB it was 37 times, which took 332 MB and a minute to read.
const MOST_BUCKETS: usize = 1 << 20;
/// A table as large as the cache, or larger, doubles after it has forgotten this part of the nodes that it holds: its memory
/// follows what it would cost on the disk.
const FORGOTTEN_TO_GROW: f64 = 0.25;

/// A cache line. Number 0 is an empty place.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    parents: [u32; WAYS],
    places: [u32; WAYS],
    numbers: [u32; WAYS],
    /// A bit for each way that was found since the bits were last cleared.
    found: u32,
}

impl Bucket {
    fn node(&self, way: usize) -> Option<(Node, StackId)> {
        let number = *self.numbers.get(way).filter(|number| **number != 0)?;
        let node = Node {
            parent: StackId(*self.parents.get(way)?),
            place: Place(*self.places.get(way)?),
        };
        Some((node, StackId(number)))
    }

    #[inline]
    fn find(&mut self, node: Node) -> Option<StackId> {
        let is_it = |&way: &usize| {
            self.parents[way] == node.parent.0
                && self.places[way] == node.place.0
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

    /// Whether each of its nodes was found since the bits were last cleared.
    fn is_all_found(&self) -> bool {
        self.found == (1 << WAYS) - 1
    }

    /// In an empty place, or in that of the oldest of those that nobody asked for: callers that were written again are
    /// among those, and all that is below them.
    fn insert(&mut self, node: Node, number: StackId) {
        let key = |&way: &usize| (self.found >> way & 1, self.numbers.get(way));
        let way = (0..WAYS).min_by_key(key).unwrap_or(0);
        if self.is_all_found() {
            self.found = 0;
        }
        self.put(way, node, number);
    }

    fn put(&mut self, way: usize, node: Node, number: StackId) {
        self.parents[way] = node.parent.0;
        self.places[way] = node.place.0;
        self.numbers[way] = number.0;
    }
}

/// Numbers of nodes. One that was forgotten is written to the profile again, under another number, as are those below it;
/// readers take equal nodes for one. So the memory of a program that never has the same stack twice is bounded.
pub(crate) struct NodeTable {
    buckets: Vec<Bucket>,
    used: usize,
    /// Number of nodes forgotten since the table was last resized.
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
    pub(crate) fn find(&mut self, node: Node) -> Option<StackId> {
        let [first, second] = self.choices(node);
        let bucket = &mut self.buckets[first];
        // Only if the first is full can it be in the second: no place ever becomes empty.
        match bucket.find(node) {
            None if bucket.is_full() => self.buckets[second].find(node),
            found => found,
        }
    }

    /// Remembers the number of a node that the table does not know.
    pub(crate) fn add(&mut self, node: Node, number: StackId) {
        if self.should_grow() {
            self.grow();
        }
        self.insert(node, number);
    }

    fn should_grow(&self) -> bool {
        let buckets = self.buckets.len();
        let wants_to = if buckets < CACHED_BUCKETS {
            self.used > 2 * buckets
        } else {
            self.forgotten as f64 > FORGOTTEN_TO_GROW * (WAYS * buckets) as f64
        };
        wants_to && buckets < self.most_buckets
    }

    fn insert(&mut self, node: Node, number: StackId) {
        let [first, second] = self.choices(node);
        if !self.buckets[first].is_full() {
            self.used += 1;
            self.buckets[first].insert(node, number);
        } else if !self.buckets[second].is_full() {
            self.used += 1;
            self.buckets[second].insert(node, number);
        } else if let Some((bucket, way)) = self.make_room(first).or_else(|| self.make_room(second))
        {
            self.used += 1;
            self.buckets[bucket].put(way, node, number);
        } else {
            self.forgotten += 1;
            let is_first = !self.buckets[first].is_all_found();
            let bucket = if is_first { first } else { second };
            self.buckets[bucket].insert(node, number);
        }
    }

    /// Moves a node of a full bucket to the other one that it may be in, if there is room; returns where it was. So the
    /// table is nearly full before it forgets anything; without this it forgets one in thirty when a fifth is free.
    fn make_room(&mut self, bucket: usize) -> Option<(usize, usize)> {
        (0..WAYS).find_map(|way| {
            let (node, number) = self.buckets[bucket].node(way)?;
            // Its second: the first was full when it came here, and still is.
            let [_, other] = self.choices(node);
            if self.buckets[other].is_full() {
                return None;
            }
            self.buckets[other].insert(node, number);
            self.buckets[bucket].found &= !(1 << way);
            Some((bucket, way))
        })
    }

    /// The two buckets where a node may be.
    fn choices(&self, node: Node) -> [usize; 2] {
        // Two multiplications with odd constants (of the fractions of the golden ratio and of the square root of 2); the
        // upper bits depend on everything.
        let key = u64::from(node.place.0) << 32 | u64::from(node.parent.0);
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (mixed ^ mixed >> 32).wrapping_mul(0x6a09_e667_f3bc_c909);
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

    fn node(parent: u32, place: u32) -> Node {
        Node {
            parent: StackId(parent),
            place: Place(place),
        }
    }

    /// The node's number; a new one, from `write`, if the table does not know it.
    fn intern(table: &mut NodeTable, node: Node, write: impl FnOnce(Node) -> StackId) -> StackId {
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
                intern(table, node(index % 1000, index), |_| {
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
        assert_eq!(times, [20_000, 0, 0]);
    }

    #[test]
    fn a_table_is_nearly_full_before_it_forgets() {
        let mut table = NodeTable {
            most_buckets: FIRST_BUCKETS,
            ..NodeTable::default()
        };
        let places = (FIRST_BUCKETS * WAYS) as u32;
        assert_eq!(written(&mut table, places * 85 / 100, 2)[1], 0);
        assert_eq!(table.forgotten, 0);
        assert!(written(&mut table, 2 * places, 2)[1] > places);
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
                let asked = node(parent.0, (state >> (40 + depth) & 1) as u32);
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
            let asked = node((state >> 60) as u32, (state >> 44) as u32);
            let number = intern(&mut table, asked, |node| {
                nodes.push(node);
                StackId(nodes.len() as u32)
            });
            assert_eq!(nodes[number.0 as usize - 1], asked);
        }
        assert!(table.forgotten > 0, "some had to go");
        assert_eq!(table.buckets.len(), 2 * CACHED_BUCKETS);
        assert_eq!(size_of::<Bucket>() * CACHED_BUCKETS, 2 << 20);
        assert_eq!(size_of::<Bucket>() * MOST_BUCKETS, 64 << 20);
    }
}
