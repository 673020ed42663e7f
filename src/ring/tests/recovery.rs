//! Recovery from files that no working process leaves.
#![cfg(not(loom))]

mod mapping;

use allocsample_ring::{Priority, RecoverError, Recovered, file_bytes, recover, recover_words};
use mapping::{Mapping, PROFILE_ID};
use proptest::prelude::*;

const HEAD: usize = 64;
const TAIL: usize = 128;
const CONSUMED: usize = 136;
const DATA: usize = file_bytes(0);

/// A file with five records of kinds 1 to 5, three of which lie behind the wrap of a ring of 64 words.
fn file() -> Vec<u8> {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    // SAFETY: the only one.
    let mut consumer = unsafe { ring.consumer() };
    for _ in 0..5 {
        ring.reserve(9, Priority::Sample).unwrap().commit(9);
        consumer.next().unwrap();
    }
    consumer.release();
    for kind in 1..=5 {
        let mut record = ring.reserve(6, Priority::Sample).unwrap();
        record.words_mut().fill(u64::from(kind) << 40);
        record.commit(kind);
    }
    ring.count_lost(2, 3, 4000);
    ring.set_figure(3, 8);
    ring.add_figure(3, 5);
    ring.raise_figure(15, 7);
    ring.raise_figure(15, 6);
    ring.set_figure(16, 1);
    assert_eq!((ring.figures()[3], ring.figures()[15]), (13, 7));
    mapping.file()
}

fn put(file: &mut [u8], at: usize, word: u64) {
    file[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn kinds(recovered: &Recovered) -> Vec<u8> {
    recovered.records.iter().map(|record| record.kind).collect()
}

#[test]
fn everything_that_the_file_says_comes_back() {
    let recovered = recover(&file()).unwrap();
    assert_eq!(recovered.profile_id, PROFILE_ID);
    assert_eq!(recovered.lost[2], (3, 4000));
    let mut figures = [0; 16];
    (figures[3], figures[15]) = (13, 7);
    assert_eq!(recovered.figures, figures);
    assert_eq!((recovered.tail, recovered.head), (50, 85));
    assert!(!recovered.closed);
    assert_eq!(kinds(&recovered), [1, 2, 3, 4, 5]);
    // 50 and 57 lie before the end at 64; 64 is where the second lap begins.
    let positions: Vec<_> = recovered
        .records
        .iter()
        .map(|record| record.position)
        .collect();
    assert_eq!(positions, [50, 57, 64, 71, 78]);
    assert_eq!(recovered.records[3].words, [4 << 40; 6]);
    assert_eq!(recovered.unfinished, 0);
}

#[test]
fn a_file_that_is_no_ring_is_refused_with_the_reason() {
    assert_eq!(recover(&[]), Err(RecoverError::TooShort(0)));
    assert_eq!(recover(&[0; 100_000]), Err(RecoverError::NotARing));
    let mut newer = file();
    put(&mut newer, 8, 3);
    assert_eq!(recover(&newer), Err(RecoverError::Version(3)));
    assert!(RecoverError::Version(3).to_string().contains("version 3"));
    let mut odd = file();
    put(&mut odd, 32, 65);
    assert_eq!(recover(&odd), Err(RecoverError::Geometry(65, DATA as u64)));
    assert_eq!(recover(&file()[..200]), Err(RecoverError::TooShort(200)));
}

#[test]
fn a_record_without_header_is_stepped_over() {
    // The writer of record 3 died between its reservation and its header: all its words are zero.
    let mut damaged = file();
    damaged[DATA..DATA + 7 * 8].fill(0);
    let recovered = recover(&damaged).unwrap();
    assert_eq!(kinds(&recovered), [1, 2, 4, 5]);
    assert_eq!(recovered.unfinished, 1);
}

#[test]
fn a_missing_padding_header_hides_nothing() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    // SAFETY: the only one.
    let mut consumer = unsafe { ring.consumer() };
    for _ in 0..4 {
        ring.reserve(14, Priority::Sample).unwrap().commit(9);
        consumer.next().unwrap();
        consumer.release();
    }
    ring.reserve(6, Priority::Sample).unwrap().commit(1);
    assert_eq!(ring.head(), 64 + 7, "4 words of padding at 60");
    let mut damaged = mapping.file();
    put(&mut damaged, DATA + 60 * 8, 0);
    let recovered = recover(&damaged).unwrap();
    assert_eq!(kinds(&recovered), [1]);
    assert_eq!(recovered.unfinished, 1);
}

#[test]
fn a_process_killed_while_it_released_loses_nothing_and_repeats_nothing() {
    // Everything up to record 3 was read; half of it is zeroed; the tail is not moved yet.
    let mut dying = file();
    put(&mut dying, CONSUMED, 64);
    dying[DATA + 50 * 8..DATA + 55 * 8].fill(0);
    let recovered = recover(&dying).unwrap();
    assert_eq!(kinds(&recovered), [3, 4, 5]);
    assert_eq!(recovered.unfinished, 0);
}

#[test]
fn damaged_counters_do_not_hide_the_records() {
    for (at, word) in [
        (HEAD, 0),
        (HEAD, 3),
        (HEAD, u64::MAX),
        (TAIL, u64::MAX),
        (TAIL, 1 << 50),
        (TAIL, 100),
    ] {
        let mut damaged = file();
        put(&mut damaged, at, word);
        let recovered = recover(&damaged).unwrap();
        assert_eq!(kinds(&recovered), [1, 2, 3, 4, 5], "{at} {word}");
    }
}

#[test]
fn a_huge_capacity_is_not_walked_through() {
    let mut damaged = file();
    put(&mut damaged, 32, 1 << 63);
    put(&mut damaged, HEAD, (1 << 48) - 1);
    put(&mut damaged, TAIL, 0);
    assert!(recover(&damaged).unwrap().unfinished > 0);
    put(&mut damaged, HEAD, 0);
    put(&mut damaged, TAIL, u64::MAX);
    assert!(recover(&damaged).unwrap().records.is_empty());
}

#[test]
fn a_truncated_file_yields_the_records_before_the_cut() {
    let whole = file();
    let mut most = 0;
    for length in (DATA..=whole.len()).rev() {
        let recovered = recover(&whole[..length]).unwrap();
        let words = (length - DATA) as u64 / 8;
        let expected: Vec<u8> = (1..=5)
            .zip([50, 57, 64, 71, 78])
            .filter(|(_, position)| position % 64 + 7 <= words)
            .map(|(kind, _)| kind)
            .collect();
        assert_eq!(kinds(&recovered), expected, "{length}");
        let missing = (50..85).filter(|position| position % 64 >= words).count();
        assert_eq!(recovered.missing_words, missing as u64, "{length}");
        most = most.max(recovered.records.len());
    }
    assert_eq!(most, 5);
    // Two gaps, before the wrap and at the end, and the record that the cut goes through.
    let cut = recover(&whole[..DATA + 10 * 8]).unwrap();
    assert_eq!((kinds(&cut), cut.unfinished), (vec![3], 3));
}

#[test]
fn every_single_damaged_bit_of_the_data_costs_at_most_its_own_record() {
    let whole = file();
    let intact = recover(&whole).unwrap();
    for bit in 0..64 * 64 {
        let mut damaged = whole.clone();
        damaged[DATA + bit / 8] ^= 1 << (bit % 8);
        let recovered = recover(&damaged).unwrap();
        let same = recovered
            .records
            .iter()
            .filter(|record| intact.records.contains(record))
            .count();
        assert!(same >= 4, "bit {bit}");
        assert!(recovered.records.len() <= 5, "bit {bit}");
    }
}

proptest! {
    #[test]
    fn no_damage_makes_recovery_panic(
        damage in prop::collection::vec((prop_oneof![8_usize..320, DATA..DATA + 504], any::<u64>()), 1..40),
        length in 0..file_bytes(64),
        cut: bool,
    ) {
        let mut damaged = file();
        for (at, word) in damage {
            // Sometimes a small value, which is more often believed.
            let word = if word % 3 == 0 { word % 200 } else { word };
            put(&mut damaged, at, word);
        }
        // The version stays readable, so that the rest is looked at.
        put(&mut damaged, 8, 1);
        damaged.truncate(if cut { length } else { usize::MAX });
        if let Ok(recovered) = recover(&damaged) {
            for record in &recovered.records {
                prop_assert!(record.kind != 0 && record.words.len() < 64);
            }
        }
    }

    #[test]
    fn raw_words_of_any_content_are_read_without_panic(
        raw in prop::collection::vec(any::<u8>(), 0..400), from: u64, length in 0..60_u64,
    ) {
        let found = recover_words(from, from.saturating_add(length), &raw);
        prop_assert!(found.records.len() <= raw.len() / 8);
    }
}
