//! Readings and calls made for the purpose.

use super::*;
use crate::Width;
use allocsample_heapwalk::{Content, Contents, Known};
use allocsample_profile::{
    IntervalInfo, Mapped, MappingCall, MappingChange, Sample, SampleFlags, Sampling, ThreadId,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn mapping(start: u64, mib: u64, resident_mib: u64, name: u32, flags: u8) -> MemoryMapping {
    MemoryMapping {
        start,
        bytes: mib * MIB,
        anonymous_bytes: resident_mib * MIB,
        resident_bytes: resident_mib * MIB,
        name,
        flags,
        ..MemoryMapping::default()
    }
}

pub(crate) fn call(change: MappingChange, start: u64, mib: u64) -> MappingCall {
    let mapped = Mapped {
        time_ns: 1,
        start,
        bytes: mib * MIB,
        thread: ThreadId(1),
        change,
        protection: 3,
        flags: 0x22,
        stack_flags: SampleFlags::default(),
    };
    MappingCall::new(mapped, StackId::EMPTY)
}

fn profile(names: &[&str], mappings: Vec<MemoryMapping>, calls: Vec<MappingCall>) -> Profile {
    let mut profile = Profile::default();
    (profile.notes).push((Note::NextAllocator, "/lib/libc.so.6".to_owned()));
    let sum = |of: fn(&MemoryMapping) -> u64| mappings.iter().map(of).sum();
    profile.memory.push(MemoryMap {
        totals: MemoryTotals {
            time_ns: 5,
            resident_bytes: sum(|it| it.resident_bytes),
            anonymous_bytes: sum(|it| it.anonymous_bytes),
            peak_resident_bytes: 0,
        },
        names: names.iter().map(|name| name.as_bytes().to_vec()).collect(),
        mappings,
        group: Vec::new(),
    });
    profile.mappings = calls;
    profile
}

/// A process that was read from outside, with this memory.
fn read_with(known: Vec<Known>) -> Walked {
    Walked {
        time_ns: 5,
        heap: None,
        contents: Contents {
            known,
            is_cut_short: false,
        },
    }
}

fn known(start: u64, mib: u64, live_mib: u64, content: Content) -> Known {
    Known {
        start,
        end: start + mib * MIB,
        content,
        resident_bytes: mib * MIB,
        live_bytes: live_mib * MIB,
    }
}

fn mib(ledger: &Ledger, account: Account) -> f64 {
    ledger.of_account(account) / MIB as f64
}

#[test]
fn every_kind_of_memory_has_its_row() {
    let names = [
        "",
        "[heap]",
        "[stack]",
        "/lib/libx.so",
        "/memfd:x (deleted)",
        "/tmp/a.allocsample.ring",
    ];
    let file = |start, name| MemoryMapping {
        anonymous_bytes: MIB,
        ..mapping(start, 4, 4, name, 0)
    };
    // Not at multiples of 64 MiB, where malloc puts its arenas.
    let at = |number: u64| (number << 32) + 8 * MIB;
    let mappings = vec![
        mapping(at(1), 8, 8, 1, 0),
        mapping(at(2), 1, 1, 2, 0),
        file(at(3), 3),
        MemoryMapping {
            anonymous_bytes: 0,
            ..mapping(at(4), 2, 2, 4, 0)
        },
        MemoryMapping {
            anonymous_bytes: 0,
            ..mapping(at(5), 4, 3, 5, 0)
        },
        mapping(at(6), 16, 10, 0, 0),
        mapping(at(7), 8, 1, 0, MemoryMapping::BEHIND_GUARD),
        mapping(at(8) - 4 * MIB, 2, 2, 0, MemoryMapping::BEHIND_GUARD),
        mapping(at(8), 5, 5, 0, 0),
        mapping(at(9), 7, 7, 0, 0),
    ];
    let calls = vec![
        call(MappingChange::Map, at(6), 16),
        call(MappingChange::Thread, at(7) + 7 * MIB, 0),
        call(MappingChange::Own, at(9), 7),
        call(MappingChange::Map, at(4), 2),
    ];
    let profile = profile(&names, mappings, calls);
    let ledger = Ledger::of(&profile, &profile.memory[0]);
    let of = |account| mib(&ledger, account);
    assert_eq!(of(Account::MallocHeld), 8.0);
    assert_eq!(of(Account::Stacks), 2.0);
    assert_eq!((of(Account::Data), of(Account::Files)), (1.0, 3.0));
    assert_eq!(of(Account::Shared), 2.0);
    assert_eq!(of(Account::Agent), 10.0);
    assert_eq!(of(Account::Mapped), 10.0);
    assert_eq!(of(Account::Unexplained), 7.0);
    // Threads may be older than the recording.
    let mut attached = profile.clone();
    attached.notes.push((Note::Attached, String::new()));
    let ledger_of_attached = Ledger::of(&attached, &attached.memory[0]);
    assert_eq!(mib(&ledger_of_attached, Account::Stacks), 4.0);
    // A malloc of the program's own may have guard pages.
    let elsewhere = (Note::MallocIsElsewhere, "/usr/bin/server".to_owned());
    attached.notes.push(elsewhere);
    let ledger_of_attached = Ledger::of(&attached, &attached.memory[0]);
    assert_eq!(mib(&ledger_of_attached, Account::Stacks), 2.0);
    let shared = (ledger.rows.iter()).find(|row| row.account == Account::Shared);
    assert_eq!(
        shared.expect("a row").sites[0].resident_bytes,
        (2 * MIB) as f64
    );
    let mapped = (ledger.rows.iter()).find(|row| row.account == Account::Mapped);
    let mapped = mapped.expect("a row");
    assert_eq!(mapped.name, "mapped by mmap, without a stack");
    assert_eq!((mapped.sites.len(), mapped.sites[0].calls), (1, 1));
    assert_eq!(mapped.sites[0].mapped_bytes, (16 * MIB) as f64);
}

#[test]
fn of_a_mapping_that_is_claimed_in_part_the_rest_is_unexplained() {
    let start = 1 << 40;
    let calls = vec![call(MappingChange::Map, start, 1)];
    let profile = profile(&[""], vec![mapping(start, 4, 2, 0, 0)], calls);
    let ledger = Ledger::of(&profile, &profile.memory[0]);
    assert_eq!(mib(&ledger, Account::Mapped), 0.5);
    assert_eq!(mib(&ledger, Account::Unexplained), 1.5);
}

/// The kernel joins the mapping of a large block with those beside it.
#[test]
fn a_block_of_malloc_takes_no_part_in_the_division_of_what_is_beside_it() {
    // Not where an arena of glibc's could begin.
    let start = (1 << 40) + MIB;
    for (mapped_mib, resident_mib, unexplained_mib) in [(3, 4, 0.0), (3, 2, 0.0), (2, 4, 1.0)] {
        let calls = vec![call(MappingChange::Map, start, mapped_mib)];
        let mappings = vec![mapping(start, 4, resident_mib, 0, 0)];
        let mut profile = profile(&[""], mappings, calls);
        profile.intervals.push(allocsample_profile::IntervalInfo {
            time_ns: 0,
            sampling: allocsample_profile::Sampling::Poisson,
            interval_bytes: 1,
            seed: 1,
        });
        profile.samples.push(allocsample_profile::Sample {
            time_ns: 1,
            address: start + 3 * MIB,
            size: MIB,
            points: 1,
            ..allocsample_profile::Sample::default()
        });
        let ledger = Ledger::of(&profile, &profile.memory[0]);
        let unexplained = mib(&ledger, Account::Unexplained);
        assert!((unexplained - unexplained_mib).abs() < 0.001, "{ledger:?}");
        let mapped = mib(&ledger, Account::Mapped);
        let rest = resident_mib as f64 - 1.0 - unexplained_mib;
        assert!((mapped - rest).abs() < 0.001, "{ledger:?}");
    }
}

#[test]
fn memory_that_was_there_when_the_recording_began_late_is_earlier() {
    let start = 1 << 40;
    // Of 8 MiB two were unmapped since, and a call has mapped another one there. Behind it the kernel has joined 4 MiB.
    let first = vec![mapping(start, 8, 8, 0, 0)];
    let calls = vec![
        call(MappingChange::Unmap, start, 2),
        call(MappingChange::Map, start, 1),
    ];
    let mut profile = profile(&[""], first, calls);
    let mut last = profile.memory[0].clone();
    last.totals.time_ns = 10;
    let mapped = mapping(start, 1, 1, 0, 0);
    last.mappings = vec![mapped, mapping(start + 2 * MIB, 10, 10, 0, 0)];
    profile.memory.push(last);
    let of = |profile: &Profile| {
        let ledger = Ledger::of(profile, &profile.memory[1]);
        [Account::Mapped, Account::Earlier, Account::Unexplained].map(|it| mib(&ledger, it))
    };
    assert_eq!(of(&profile), [1.0, 0.0, 10.0]);
    for note in [Note::Attached, Note::ForkedFrom] {
        let mut late = profile.clone();
        late.notes.push((note, String::new()));
        assert_eq!(of(&late), [1.0, 6.0, 4.0]);
    }
}

#[test]
fn the_unexplained_share_is_printed_for_the_peak_and_for_the_last_reading() {
    let start = 1 << 40;
    let mut profile = profile(
        &["", "/lib/x"],
        vec![mapping(start, 40, 40, 0, 0)],
        Vec::new(),
    );
    let file = vec![mapping(start + 40 * MIB, 60, 60, 1, 0)];
    profile.memory[0].mappings.extend(file);
    profile.memory[0].totals.anonymous_bytes = 100 * MIB;
    profile.memory[0].totals.resident_bytes = 100 * MIB;
    let print = |profile: &Profile| {
        let (peak, last) = Ledger::peak_and_last(profile, None).expect("a reading");
        let mut out = Vec::new();
        let options = text::Options::new(Width::new(None));
        text::write(profile, &peak, &last, &options, &mut out).expect("text");
        String::from_utf8(out).expect("text")
    };
    let one = print(&profile);
    assert!(
        one.contains("unexplained: 40.0% of anonymous memory"),
        "{one}"
    );
    let mut later = profile.memory[0].clone();
    later.totals.time_ns += 10;
    later.totals.anonymous_bytes = 50 * MIB;
    later.totals.resident_bytes = 50 * MIB;
    later.mappings = vec![
        mapping(start, 2, 2, 0, 0),
        mapping(start + 40 * MIB, 48, 48, 1, 0),
    ];
    profile.memory.push(later);
    let two = print(&profile);
    let shares = "unexplained: 40.0% (peak) and 4.0% (last) of anonymous memory";
    assert!(two.contains(shares), "{two}");
}

/// Of 16 MiB in one mapping, 12 are resident: 4 in a block, 2 in pools, and 6 that a call has mapped.
#[test]
fn memory_that_is_known_by_its_content_is_its_allocators_and_the_rest_the_calls() {
    let start = 1 << 40;
    let calls = vec![call(MappingChange::Map, start + 6 * MIB, 10)];
    let mappings = vec![mapping(start, 16, 12, 0, 0)];
    let mut profile = profile(&[""], mappings, calls);
    let all = vec![
        known(start, 4, 4, Content::MallocBlock),
        known(start + 4 * MIB, 2, 1, Content::PythonPool),
    ];
    let of = |profile: &Profile| {
        let walked = read_with(all.clone());
        let ledger = Ledger::of_walked(profile, &profile.memory[0], walked);
        for (account, expected) in [
            (Account::Malloc, 4.0),
            (Account::MallocHeld, 0.0),
            (Account::Objects, 1.0),
            (Account::ObjectsHeld, 1.0),
            (Account::Mapped, 6.0),
            (Account::Unexplained, 0.0),
        ] {
            assert!(
                (mib(&ledger, account) - expected).abs() < 1e-6,
                "{account:?}"
            );
        }
        ledger
    };
    let ledger = of(&profile);
    let live = ledger.of_row(Account::Objects, "python: live objects");
    assert_eq!(live, MIB as f64);
    // A sample of the block is not counted once more, and it is no estimate.
    profile.intervals.push(IntervalInfo {
        time_ns: 0,
        sampling: Sampling::Poisson,
        interval_bytes: 1 << 20,
        seed: 1,
    });
    profile.samples.push(Sample {
        address: start + 16,
        size: 4 * MIB - 4096,
        ..Sample::default()
    });
    assert!(mib(&Ledger::of(&profile, &profile.memory[0]), Account::Malloc) > 3.0);
    let ledger = of(&profile);
    let malloc = ledger
        .rows
        .iter()
        .find(|row| row.account == Account::Malloc);
    assert_eq!(malloc.expect("a row").stderr_bytes, None);
}

#[test]
fn a_reading_of_an_earlier_version_has_its_files_in_one_row() {
    let mut profile = profile(&["[heap]"], vec![mapping(MIB, 4, 4, 0, 0)], Vec::new());
    profile.memory[0].totals.resident_bytes += 3 * MIB;
    let ledger = Ledger::of(&profile, &profile.memory[0]);
    assert_eq!(mib(&ledger, Account::Files), 3.0);
}

proptest! {
    /// Whatever is mapped, claimed and resident.
    #[test]
    fn the_rows_add_up_to_what_is_resident(
        parts in proptest::collection::vec((0..6_u32, 1..9_u64, any::<[u8; 2]>(), 0..4_u8), 0..12),
        calls in proptest::collection::vec((0..40_u64, 1..9_u64, 0..MappingChange::ALL.len()), 0..20),
        contents in proptest::collection::vec((0..3_u64, 1..4_u64, any::<bool>(), 0..4_u64), 0..12),
    ) {
        let names = ["", "[heap]", "[stack]", "/lib/libx.so", "/memfd:x (deleted)", "[vdso]"];
        let mut start = 1 << 30;
        let mut mappings = Vec::new();
        for (name, length, [resident, anonymous], flags) in parts {
            let resident_bytes = length * MIB * u64::from(resident) / 255;
            let anonymous_bytes = resident_bytes * u64::from(anonymous) / 255;
            mappings.push(MemoryMapping {
                resident_bytes, anonymous_bytes, ..mapping(start, length, 0, name, flags)
            });
            start += length * MIB;
        }
        let change = |number: usize| MappingChange::ALL[number];
        let calls: Vec<MappingCall> = calls.into_iter()
            .map(|(at, length, number)| call(change(number), (1 << 30) + at * MIB, length))
            .collect();
        let profile = profile(&names, mappings, calls);
        // What is known may also be wrong by now.
        let mut start = 1 << 30;
        let contents = contents.into_iter().map(|(gap, length, is_block, live)| {
            let content = if is_block { Content::MallocBlock } else { Content::PythonPool };
            let known = known(start + gap * MIB, length, live.min(length), content);
            start = known.end;
            known
        });
        let read = read_with(contents.collect());
        let map = &profile.memory[0];
        for ledger in [Ledger::of(&profile, map), Ledger::of_walked(&profile, map, read)] {
            let sum: f64 = ledger.rows.iter().map(|row| row.resident_bytes).sum();
            let resident = profile.memory[0].totals.resident_bytes as f64;
            prop_assert!((sum - resident).abs() < 1.0, "{sum} {resident} {:?}", ledger.rows);
            for row in &ledger.rows {
                prop_assert!(row.resident_bytes >= row.anonymous_bytes);
                prop_assert!(row.anonymous_bytes >= 0.0);
                let of_sites: f64 = row.sites.iter().map(|site| site.resident_bytes).sum();
                prop_assert!(of_sites <= row.resident_bytes + 1.0);
            }
        }
    }
}
