//! A bounded table of the stack nodes that are in the profile already.
//!
//! A forgotten node is written again under a new number, and so are all nodes below it, because a node is identified
//! by its parent's number. The table therefore keeps nodes that are often asked for, near the roots, and grows when
//! it forgets too many.

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
/// 2 MiB, for 163,840 nodes. That is enough for the part of a million-line program that runs at one time, and leaves
/// room in the CPU's cache for the program.
const CACHED_BUCKETS: usize = 1 << 15;
/// 64 MiB, for five million nodes. With ten million samples at a million sites, every node is then written once or
/// twice. With 2 MiB it was 37 times: 332 MB, which took a minute to read.
const MOST_BUCKETS: usize = 1 << 20;
/// A table as large as the cache, or larger, doubles when it has forgotten this share of its nodes. Its memory thus
/// follows the disk space that it saves.
const FORGOTTEN_TO_GROW: f64 = 0.25;

/// A cache line. Number 0 is an empty place.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    parents: [u32; WAYS],
    places: [u32; WAYS],
    numbers: [u32; WAYS],
    /// One bit per place: whether its node was found since the bits were last cleared.
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

    /// The last place is filled last.
    fn is_full(&self) -> bool {
        self.numbers[WAYS - 1] != 0
    }

    /// Whether each of its nodes was found since the bits were last cleared.
    fn is_all_found(&self) -> bool {
        self.found == (1 << WAYS) - 1
    }

    /// Takes an empty place, or that of the oldest node that was not found again. Forgetting a caller forgets the
    /// nodes below it, since the caller gets a new number.
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

/// Numbers of nodes, in bounded memory even if a program never repeats a stack. A forgotten node is written to the
/// profile again under another number, as are those below it; readers treat equal nodes as one.
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
        // A node is in the second bucket only if the first is full: no place ever becomes empty.
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

    /// Moves a node of a full bucket to its other bucket, if that has room; returns the place it left. The table is
    /// thus nearly full before it forgets anything. Without this it forgets one node in thirty when a fifth of it is
    /// still empty.
    fn make_room(&mut self, bucket: usize) -> Option<(usize, usize)> {
        (0..WAYS).find_map(|way| {
            let (node, number) = self.buckets[bucket].node(way)?;
            // This bucket is its second one: the first was full when the node came, and still is.
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

    /// Stacks of twenty frames of a binary tree. So few fit that forgetting the root would forget all.
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
        // Sixteen levels fit. Without a second chance for nodes that are found again, ten nodes per stack are
        // rewritten.
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

    #[test]
    fn a_bucket_gives_up_the_oldest_node_that_was_not_found_again() {
        let mut bucket = Bucket::default();
        for number in 1..=5 {
            assert!(!bucket.is_full());
            bucket.insert(node(0, number), StackId(number));
        }
        assert!(bucket.is_full() && !bucket.is_all_found());
        let has = |bucket: &mut Bucket, place| bucket.find(node(0, place)).map(|it| it.0);
        assert_eq!(has(&mut bucket, 1), Some(1));
        bucket.insert(node(0, 6), StackId(6));
        assert_eq!(
            [1, 2, 3].map(|place| has(&mut bucket, place)),
            [Some(1), None, Some(3)]
        );
        assert_eq!(
            [4, 5, 6].map(|place| has(&mut bucket, place)),
            [4, 5, 6].map(Some)
        );
        // All of them were found by now, so the oldest goes, and all have to be found again.
        assert!(bucket.is_all_found());
        bucket.insert(node(0, 7), StackId(7));
        assert_eq!((bucket.found, has(&mut bucket, 1)), (0, None));
        // Another parent, another place: another node.
        assert_eq!(bucket.find(node(1, 7)), None);
    }

    #[test]
    fn a_small_table_grows_when_two_fifths_are_used_and_a_large_one_when_it_forgets() {
        let should_grow = |buckets, used, forgotten| {
            let table = NodeTable {
                buckets: vec![Bucket::default(); buckets],
                used,
                forgotten,
                most_buckets: 2 * CACHED_BUCKETS,
            };
            table.should_grow()
        };
        assert!(!should_grow(FIRST_BUCKETS, 128, 1000));
        assert!(should_grow(FIRST_BUCKETS, 129, 0));
        // A quarter of 163,840 nodes.
        assert!(!should_grow(CACHED_BUCKETS, 163_840, 40_960));
        assert!(should_grow(CACHED_BUCKETS, 163_840, 40_961));
        assert!(!should_grow(2 * CACHED_BUCKETS, 327_680, 200_000));
    }

    #[test]
    fn every_node_is_either_in_the_table_or_forgotten() {
        let mut table = NodeTable {
            most_buckets: FIRST_BUCKETS,
            ..NodeTable::default()
        };
        for index in 0..100 {
            table.add(node(index, index), StackId(index + 1));
        }
        assert_eq!((table.used, table.forgotten), (100, 0));
        for index in 100..2000 {
            table.add(node(index, index), StackId(index + 1));
        }
        assert_eq!((table.used, table.forgotten), (320, 1680));
        let mut found = (0..2000).filter(|&index| table.find(node(index, index)).is_some());
        assert_eq!(found.by_ref().count(), 320);
    }
}
