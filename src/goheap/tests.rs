//! Buckets in memory that a test fills, and tables that may be anything.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::buckets::{Buckets, Counts, Unreadable};
use crate::functions::FunctionTable;
use crate::memory::{Memory, Relocated};

/// Words by address.
#[derive(Default)]
struct Words(BTreeMap<u64, u64>);

impl Memory for Words {
    fn read_some(&self, address: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        for place in into.chunks_exact_mut(8) {
            match self.0.get(&(address + done as u64)) {
                Some(word) => place.copy_from_slice(&word.to_le_bytes()),
                None => break,
            }
            done += 8;
        }
        done
    }
}

const HEAD: u64 = 0x1000;
const SIZE: u64 = 48;

#[derive(Clone, Copy, Debug)]
enum Shape {
    WithBytes,
    Counts,
}

impl Words {
    /// Puts a bucket with one frame in front of the list.
    fn add(&mut self, at: u64, shape: Shape, groups: [[u64; 2]; 4]) {
        let next = self.0.get(&HEAD).copied().unwrap_or(0);
        self.0.insert(HEAD, at);
        for (index, word) in [0, next, 1, 77, SIZE, 1, 0x40_0000].into_iter().enumerate() {
            self.0.insert(at + 8 * index as u64, word);
        }
        self.set(at, shape, groups);
    }

    fn set(&mut self, at: u64, shape: Shape, groups: [[u64; 2]; 4]) {
        let words: Vec<u64> = groups
            .iter()
            .flat_map(|&[allocations, frees]| match shape {
                Shape::WithBytes => {
                    vec![allocations, frees, allocations * SIZE, frees * SIZE]
                }
                Shape::Counts => vec![allocations, frees],
            })
            // Something follows.
            .chain([5; 16])
            .take(16)
            .collect();
        for (index, word) in words.into_iter().enumerate() {
            self.0.insert(at + 8 * (7 + index as u64), word);
        }
    }
}

fn counts(allocations: u64, frees: u64, pending: u64) -> Counts {
    Counts {
        allocations,
        frees,
        pending,
    }
}

#[test]
fn both_layouts_are_told_from_the_counts() {
    for shape in [Shape::WithBytes, Shape::Counts] {
        let mut words = Words::default();
        words.add(0x2000, shape, [[7, 3], [2, 1], [0, 0], [4, 0]]);
        words.add(0x3000, shape, [[1, 1], [0, 0], [0, 0], [0, 0]]);
        let mut buckets = Buckets::default();
        buckets.read(&words, HEAD).expect("buckets");
        let all: Vec<Counts> = buckets.all().iter().map(|it| it.counts).collect();
        assert_eq!(all, [counts(7, 3, 6), counts(1, 1, 0)], "{shape:?}");
        assert_eq!(buckets.all()[0].stack, [0x40_0000]);
    }
}

#[test]
fn counts_of_any_collection_are_seen() {
    for shape in [Shape::WithBytes, Shape::Counts] {
        for group in 0..4 {
            let mut groups = [[0; 2]; 4];
            groups[group] = [7, 0];
            let mut words = Words::default();
            words.add(0x2000, shape, groups);
            words.add(0x3000, shape, [[0; 2]; 4]);
            let mut buckets = Buckets::default();
            buckets.read(&words, HEAD).expect("buckets");
            assert_eq!(
                buckets.all()[0].counts,
                counts(7, 0, 0),
                "{shape:?} {group}"
            );
        }
    }
}

#[test]
fn before_the_first_collection_has_ended_everything_counts() {
    for shape in [Shape::WithBytes, Shape::Counts] {
        let mut words = Words::default();
        words.add(0x2000, shape, [[0, 0], [7, 0], [0, 0], [0, 0]]);
        let mut buckets = Buckets::default();
        buckets.read(&words, HEAD).expect("buckets");
        assert_eq!(buckets.all()[0].counts, counts(7, 0, 0));
        // A collection has looked at five of them, and two were allocated meanwhile.
        words.set(0x2000, shape, [[5, 4], [0, 0], [4, 0], [0, 0]]);
        buckets.read(&words, HEAD).expect("buckets");
        assert_eq!(buckets.all()[0].counts, counts(7, 4, 2));
    }
}

#[test]
fn a_bucket_keeps_its_number_when_others_come() {
    let mut words = Words::default();
    words.add(0x9000, Shape::WithBytes, [[1, 0], [0; 2], [0; 2], [0; 2]]);
    let mut buckets = Buckets::default();
    buckets.read(&words, HEAD).expect("buckets");
    words.add(0x2000, Shape::WithBytes, [[2, 0], [0; 2], [0; 2], [0; 2]]);
    words.add(0x5000, Shape::WithBytes, [[3, 0], [0; 2], [0; 2], [0; 2]]);
    buckets.read(&words, HEAD).expect("buckets");
    let all: Vec<u64> = (buckets.all().iter())
        .map(|it| it.counts.allocations)
        .collect();
    assert_eq!(all, [1, 2, 3]);
}

#[test]
fn a_bucket_that_is_being_changed_keeps_its_former_counts() {
    let mut words = Words::default();
    words.add(0x2000, Shape::WithBytes, [[7, 3], [0; 2], [0; 2], [0; 2]]);
    let mut buckets = Buckets::default();
    buckets.read(&words, HEAD).expect("buckets");
    // The count is there, its bytes are not yet.
    words.0.insert(0x2000 + 8 * 7, 8);
    buckets.read(&words, HEAD).expect("buckets");
    assert_eq!(buckets.all()[0].counts, counts(7, 3, 0));
}

#[test]
fn buckets_that_all_stop_to_agree_are_refused() {
    let mut words = Words::default();
    let places = (0x2000..).step_by(0x1000).take(20);
    for at in places.clone() {
        words.add(at, Shape::WithBytes, [[7, 3], [0; 2], [0; 2], [0; 2]]);
    }
    let mut buckets = Buckets::default();
    buckets.read(&words, HEAD).expect("buckets");
    for at in places {
        words.0.insert(at + 8 * 7, 8);
    }
    assert_eq!(buckets.read(&words, HEAD), Err(Unreadable::Layout));
}

#[test]
fn another_layout_is_refused_and_never_read_as_zero() {
    let mut words = Words::default();
    words.add(0x2000, Shape::WithBytes, [[7, 3], [0; 2], [0; 2], [0; 2]]);
    // Neither bytes nor counts: more frees than allocations.
    words.0.insert(0x2000 + 8 * 7, 3);
    words.0.insert(0x2000 + 8 * 8, 1 << 40);
    let read = Buckets::default().read(&words, HEAD);
    assert_eq!(read, Err(Unreadable::Layout));
    // A list of locks that were waited for.
    words.0.insert(0x2000 + 16, 2);
    let read = Buckets::default().read(&words, HEAD);
    assert_eq!(read, Err(Unreadable::Layout));
    words.0.remove(&HEAD);
    let read = Buckets::default().read(&words, HEAD);
    assert_eq!(read, Err(Unreadable::Gone));
}

#[test]
fn a_list_that_does_not_end_is_refused() {
    let mut words = Words::default();
    words.add(0x2000, Shape::WithBytes, [[7, 3], [0; 2], [0; 2], [0; 2]]);
    words.0.insert(0x2000 + 8, 0x2000);
    let read = Buckets::default().read(&words, HEAD);
    assert_eq!(read, Err(Unreadable::TooMany));
}

#[test]
fn words_that_the_loader_is_going_to_write_are_read_as_if_it_had() {
    const BIAS: u64 = 0x5000_0000;
    let mut words = Words::default();
    for at in (0x1000..0x1040).step_by(8) {
        words.0.insert(BIAS + at, 7);
    }
    let relocations = [
        (0xff8, 1),
        (0x1008, 2),
        (0x1010, 3),
        (0x1038, 4),
        (0x1040, 5),
    ];
    let relocated = Relocated {
        memory: &words,
        relocations: &relocations,
        bias: BIAS,
    };
    let all = relocated.words(BIAS + 0x1000, 8).expect("words");
    assert_eq!(all, [7, BIAS + 2, BIAS + 3, 7, 7, 7, 7, BIAS + 4]);
    assert_eq!(relocated.words(BIAS + 0x1010, 1), Some(vec![BIAS + 3]));
    // What is not there does not come to be by a relocation.
    assert_eq!(relocated.words(BIAS + 0x1040, 1), None);
}

/// A header that is right, before anything.
fn table(quantum: u8, is_new: bool, words: [u64; 8], rest: &[u8]) -> Vec<u8> {
    let magic: u32 = if is_new { 0xffff_fff1 } else { 0xffff_fff0 };
    let mut bytes = magic.to_le_bytes().to_vec();
    bytes.extend([0, 0, quantum, 8]);
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(rest);
    bytes
}

proptest! {
    #[test]
    fn any_table_ends_without_panic(
        quantum: u8, is_new: bool, functions in 1_u64..6, offsets in proptest::array::uniform5(0_u64..400),
        rest in proptest::collection::vec(prop_oneof![Just(0_u8), 0_u8..9, any::<u8>()], 0..400), offset: u32,
    ) {
        let [a, b, c, d, e] = offsets;
        let bytes = table(quantum, is_new, [functions, 0, 0, a, b, c, d, e], &rest);
        let Some(table) = FunctionTable::parse(bytes) else {
            return Ok(());
        };
        let _ = (table.extent(), table.named("main.main"));
        for function in table.all() {
            let _ = table.name_of(function);
            for at in [function.entry, function.end - 1, offset] {
                let _ = (table.line(function, at), table.inlined_index(function, at));
            }
            let _ = (table.most_inlined(function), table.inlined_tree(function));
            let _ = table.inlined_name(function, &rest[..rest.len().min(20)]);
        }
        let _ = table.find(offset);
    }

    #[test]
    fn any_words_end_without_panic(words in proptest::collection::vec(prop_oneof![0_u64..9, Just(HEAD), any::<u64>()], 1..60)) {
        let memory = Words((HEAD..).step_by(8).zip(words).collect());
        let mut buckets = Buckets::default();
        let _ = buckets.read(&memory, HEAD);
        let _ = buckets.read(&memory, HEAD);
    }
}
