//! What one thread sees of a ring.
#![cfg(not(loom))]

mod mapping;

use allocsample_ring::{Collecting, Priority, RingFull, Stretch, recover_words, request};
use mapping::{Mapping, PROFILE_ID};

#[test]
fn records_come_out_in_order_with_their_kind_and_position() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    let mut first = ring.reserve(3, Priority::Sample).unwrap();
    assert_eq!(first.words_mut(), [0; 3]);
    first.words_mut().copy_from_slice(&[7, 8, 9]);
    let second = ring.reserve(0, Priority::Sample).unwrap();
    assert_eq!((first.position(), second.position()), (0, 4));
    assert_eq!((first.used_words(), second.used_words()), (4, 5));
    second.commit(5);
    // SAFETY: the only one.
    let mut consumer = unsafe { ring.consumer() };
    assert!(consumer.next().is_none(), "the first is not committed");
    first.commit(4);
    let record = consumer.next().unwrap();
    assert_eq!(
        (record.position, record.kind, record.words),
        (0, 4, &[7, 8, 9][..])
    );
    let record = consumer.next().unwrap();
    assert_eq!(
        (record.position, record.kind, record.words),
        (4, 5, &[][..])
    );
    assert!(consumer.next().is_none());
    assert_eq!(consumer.position(), 5);
    assert_eq!((ring.tail(), ring.head(), ring.used_words()), (0, 5, 5));
    consumer.release();
    assert_eq!((ring.tail(), ring.head(), ring.used_words()), (5, 5, 0));
}

#[test]
fn samples_leave_an_eighth_for_what_is_essential_and_that_a_64th_for_the_end() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    while let Ok(record) = ring.reserve(3, Priority::Sample) {
        record.commit(1);
    }
    assert_eq!(ring.used_words(), 56);
    while let Ok(record) = ring.reserve(1, Priority::Essential) {
        record.commit(2);
    }
    assert_eq!(ring.used_words(), 62);
    ring.reserve(1, Priority::Last).unwrap().commit(3);
    assert_eq!(ring.used_words(), 64);
    assert_eq!(ring.reserve(0, Priority::Sample).err(), Some(RingFull));
    assert!(RingFull.to_string().contains("no room"));
    // SAFETY: the only one.
    let mut consumer = unsafe { ring.consumer() };
    let mut kinds = Vec::new();
    while let Some(record) = consumer.next() {
        kinds.push(record.kind);
    }
    assert_eq!(kinds, [[1; 14].as_slice(), &[2; 3], &[3]].concat());
    assert!(ring.reserve(0, Priority::Last).is_err(), "not released yet");
    consumer.release();
    assert!(ring.reserve(0, Priority::Essential).is_ok());
}

#[test]
fn a_quarter_of_the_capacity_always_fits_when_empty_and_more_never_does() {
    for offset in 0..64 {
        let mapping = Mapping::new(64);
        let ring = mapping.ring();
        // SAFETY: the only one.
        let mut consumer = unsafe { ring.consumer() };
        for _ in 0..offset {
            ring.reserve(0, Priority::Sample).unwrap().commit(1);
            consumer.next().unwrap();
            consumer.release();
        }
        assert_eq!(ring.tail(), offset);
        assert!(ring.reserve(16, Priority::Essential).is_err());
        assert!(ring.reserve(usize::MAX, Priority::Essential).is_err());
        let mut record = ring.reserve(15, Priority::Sample).unwrap();
        assert_eq!(record.words_mut(), [0; 15], "left over from the last lap");
        record.words_mut().fill(u64::MAX);
        record.commit(1);
        assert_eq!(consumer.next().unwrap().words, [u64::MAX; 15]);
    }
}

#[test]
fn an_abandoned_record_holds_nobody_up() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    let mut abandoned = ring.reserve(4, Priority::Sample).unwrap();
    abandoned.words_mut().fill(3);
    drop(abandoned);
    ring.reserve(1, Priority::Sample).unwrap().commit(9);
    // SAFETY: the only one.
    let mut consumer = unsafe { ring.consumer() };
    assert_eq!(consumer.next().unwrap().kind, 9);
}

#[test]
fn a_forgotten_record_can_be_abandoned_until_it_is_committed() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    let mut forgotten = ring.reserve(4, Priority::Sample).unwrap();
    forgotten.words_mut().fill(3);
    let position = forgotten.position();
    core::mem::forget(forgotten);
    ring.reserve(1, Priority::Sample).unwrap().commit(9);
    // SAFETY: the only one.
    let mut consumer = unsafe { ring.consumer() };
    assert!(consumer.next().is_none(), "it holds up the next");
    ring.abandon(position, 4);
    assert_eq!(consumer.next().unwrap().kind, 9);
    ring.abandon(position + 5, 1);
    consumer.release();
    ring.abandon(position, 4);
    ring.reserve(1, Priority::Sample).unwrap().commit(8);
    assert_eq!(consumer.next().unwrap().kind, 8);
}

#[test]
fn a_consumer_that_did_not_release_leaves_the_records_to_the_next() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    ring.reserve(1, Priority::Sample).unwrap().commit(9);
    for _ in 0..3 {
        // SAFETY: the last one is gone.
        let mut consumer = unsafe { ring.consumer() };
        assert_eq!(consumer.next().unwrap().position, 0);
    }
}

#[test]
fn losses_are_counted_by_reason() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    ring.count_lost(1, 1, 100);
    ring.count_lost(1, 2, 50);
    ring.count_lost(4, 1, 7);
    ring.count_lost(99, 1, 3);
    assert_eq!(
        ring.lost(),
        [(1, 3), (3, 150), (0, 0), (0, 0), (1, 7), (0, 0), (0, 0)]
    );
    assert_eq!(ring.id(), PROFILE_ID as u64);
    assert!(!ring.is_closed());
    ring.close();
    assert!(ring.is_closed());
}

#[test]
fn a_request_and_its_progress_are_where_the_command_looks() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    let word = |at: u64| {
        let at = at as usize;
        let file = mapping.file();
        u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
    };
    assert_eq!(ring.request(), (0, 0, 0));
    ring.ask(request::FILTER, 70, [71, 72, 73, 74]);
    assert_eq!(ring.request(), (1, request::FILTER, 70));
    assert_eq!(ring.request_more(), [71, 72, 73, 74]);
    let places = [request::GENERATION, request::WHAT, request::INTERVAL];
    assert_eq!(places.map(word), [1, request::FILTER, 70]);
    let more = [0, 8, 16, 24].map(|offset| word(request::MORE + offset));
    assert_eq!(more, [71, 72, 73, 74]);
    ring.ask(request::COLLECT, 0, [0; 4]);
    assert_eq!(ring.request(), (2, request::COLLECT, 0));
    ring.set_collecting(5, 2, Collecting::Done);
    ring.set_collecting(256, 2, Collecting::Done);
    let state = |heap: u64| Collecting::from_word(word(request::COLLECTING + 8 * heap), 2);
    assert_eq!([4, 5, 6].map(state), [None, Some(Collecting::Done), None]);
    assert_eq!(word(request::OBEYED), 0);
    ring.set_obeyed(2);
    // A slower thread.
    ring.set_obeyed(1);
    assert_eq!(word(request::OBEYED), 2);
}

#[test]
fn what_is_pending_is_seen_and_copied_with_padding_and_unfinished_records() {
    let mapping = Mapping::new(64);
    let ring = mapping.ring();
    {
        // SAFETY: the only one.
        let mut consumer = unsafe { ring.consumer() };
        for _ in 0..5 {
            ring.reserve(9, Priority::Sample).unwrap().commit(9);
            consumer.next().unwrap();
        }
        consumer.release();
    }
    let mut first = ring.reserve(2, Priority::Sample).unwrap();
    first.words_mut().copy_from_slice(&[7, 8]);
    first.commit(1);
    // 11 words are left before the end.
    let mut open = ring.reserve(12, Priority::Sample).unwrap();
    open.words_mut().fill(5);
    ring.reserve(0, Priority::Sample).unwrap().commit(2);
    assert_eq!((ring.pending_from(), ring.head()), (50, 78));
    let payload = [7, 8].as_slice();
    let expected = [
        Stretch::Record { kind: 1, payload },
        Stretch::Padding(11),
        Stretch::Unfinished(13),
        Stretch::Record {
            kind: 2,
            payload: &[],
        },
    ];
    // SAFETY: the consumer is gone; from the tail to the head.
    let pending: Vec<_> = unsafe { ring.pending(50, 78) }.collect();
    assert_eq!(pending, expected);
    let words = pending.iter().map(Stretch::words).collect::<Vec<_>>();
    assert_eq!(words, [3, 11, 13, 1]);
    // SAFETY: as above.
    let some: Vec<_> = unsafe { ring.pending(50, 53) }.collect();
    assert_eq!(some, expected[..1]);
    let mut copy = [u64::MAX; 64];
    // SAFETY: as above.
    assert_eq!(unsafe { ring.copy_pending(50, &mut copy) }, 78);
    assert!(copy[15..27].iter().all(|&word| word == 0), "unfinished");
    assert_eq!(copy[28..], [u64::MAX; 36]);
    let raw: Vec<u8> = copy.iter().flat_map(|word| word.to_le_bytes()).collect();
    let found = recover_words(50, 78, &raw);
    let kinds: Vec<_> = found.records.iter().map(|record| record.kind).collect();
    assert_eq!((kinds, found.unfinished), (vec![1, 2], 1));
    assert_eq!(found.records[0].words, [7, 8]);
    // A copy that ends where a record ends lacks nothing.
    let found = recover_words(50, u64::MAX, &raw[..24]);
    let counts = (found.records.len(), found.unfinished, found.missing_words);
    assert_eq!(counts, (1, 0, 0));
    // A record that reaches further than what is asked for is not whole.
    let found = recover_words(50, 52, &raw);
    assert_eq!((found.records.len(), found.unfinished), (0, 1));
    for (room, reached) in [(2, 50), (3, 53), (13, 53), (14, 64), (27, 77)] {
        // SAFETY: as above.
        let position = unsafe { ring.copy_pending(50, &mut copy[..room]) };
        assert_eq!(position, reached, "{room}");
    }
    drop(open);
}
