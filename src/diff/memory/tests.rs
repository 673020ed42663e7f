use super::*;
use allocsample_profile::{MemoryMap, MemoryMapping, MemoryTotals, Note};

const MIB: u64 = 1 << 20;

/// A process whose heap of `brk` and whose mapping without a name are so large, first by half and then entirely.
fn profile(heap_mib: u64, mapping_mib: u64) -> Profile {
    let mut profile = Profile::default();
    (profile.notes).push((Note::NextAllocator, "/lib/libc.so.6".to_owned()));
    for (time_ns, unit) in [(5, MIB / 2), (9, MIB)] {
        let mapping = |start, length, name| MemoryMapping {
            start,
            bytes: length * MIB,
            anonymous_bytes: length * unit,
            resident_bytes: length * unit,
            name,
            ..MemoryMapping::default()
        };
        let bytes = (heap_mib + mapping_mib) * unit;
        profile.memory.push(MemoryMap {
            totals: MemoryTotals {
                time_ns,
                resident_bytes: bytes,
                anonymous_bytes: bytes,
                peak_resident_bytes: 0,
            },
            names: vec![b"[heap]".to_vec(), Vec::new()],
            mappings: vec![
                mapping(1 << 32, heap_mib, 0),
                mapping(1 << 40, mapping_mib, 1),
            ],
            group: Vec::new(),
        });
    }
    profile
}

fn compared(before: &[Profile], after: &[Profile], measure: Measure) -> MemoryChange {
    let (before, after): (Vec<&Profile>, Vec<&Profile>) =
        (before.iter().collect(), after.iter().collect());
    MemoryChange::of_runs(&before, &after, measure).expect("readings")
}

fn mib(bytes: f64) -> f64 {
    bytes / MIB as f64
}

#[test]
fn the_rows_add_up_to_the_change_and_the_one_that_grew_most_is_named() {
    let heaps = [0, 1, 8, 40];
    let all = || heaps.iter().flat_map(|&a| heaps.map(|b| (a, b)));
    let sides = all().flat_map(|before| all().map(move |after| (before, after)));
    for (before, after) in sides.filter(|(a, b)| *a != (0, 0) && *b != (0, 0)) {
        let side = |(heap, mapping)| [profile(heap, mapping)];
        let memory = compared(&side(before), &side(after), Measure::Allocated);
        let sum: f64 = memory.rows.iter().map(|it| it.change.difference()).sum();
        assert!((sum - memory.resident.difference()).abs() < 1.0);
        let growth = [
            (after.0 as f64 - before.0 as f64, Account::MallocHeld),
            (after.1 as f64 - before.1 as f64, Account::Unexplained),
        ];
        let most = growth.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let (bytes, account) = most.expect("two rows");
        match memory.grew_most() {
            Some(row) => {
                assert_eq!(mib(row.change.difference()), bytes);
                assert!(row.account == account || growth[0].0 == growth[1].0);
            }
            None => assert!(bytes <= 0.0, "{before:?} {after:?}"),
        }
    }
}

#[test]
fn live_bytes_go_with_the_last_reading_and_others_with_the_largest() {
    let with_peak = |heap| {
        let mut profile = profile(heap, 4);
        // The larger reading comes first.
        profile.memory.swap(0, 1);
        [profile]
    };
    let resident = |measure| {
        let memory = compared(&with_peak(20), &with_peak(28), measure);
        (
            memory.moment,
            mib(memory.resident.before.value()),
            mib(memory.resident.after.value()),
        )
    };
    assert_eq!(resident(Measure::Live), (Moment::Last, 12.0, 16.0));
    assert_eq!(resident(Measure::Allocated), (Moment::Largest, 24.0, 32.0));
}

#[test]
fn a_difference_within_the_spread_of_the_runs_is_noise() {
    let side = |heaps: [u64; 3]| heaps.map(|heap| profile(heap, 4));
    let scattered = compared(&side([8, 16, 12]), &side([10, 20, 12]), Measure::Allocated);
    let row = &scattered.rows[0];
    assert_eq!(
        (row.account, mib(row.change.difference())),
        (Account::MallocHeld, 2.0)
    );
    assert!(row.is_noise() && scattered.grew_most().is_none());
    let steady = compared(&side([11, 12, 13]), &side([21, 22, 23]), Measure::Allocated);
    let row = steady.grew_most().expect("a row");
    assert_eq!(
        (row.account, mib(row.change.difference())),
        (Account::MallocHeld, 10.0)
    );
    // What one run a side has is what the kernel counted.
    let single = compared(&[profile(12, 4)], &[profile(14, 4)], Measure::Allocated);
    assert_eq!(single.grew_most().expect("a row").change.p_value, None);
}

#[test]
fn an_error_of_sampling_is_an_error_of_the_difference() {
    let mut sum = Sum::new(1, 1);
    sum.add(0, false, 100.0, Some(30.0));
    sum.add(0, true, 150.0, Some(40.0));
    let change = sum.change();
    assert_eq!(change.z, Some(1.0));
    // One standard deviation of a normal distribution.
    assert!((change.p_value.expect("a value") - 0.3173).abs() < 1e-4);
    let mut exact = Sum::new(1, 1);
    exact.add(0, true, 150.0, Some(0.0));
    assert_eq!(exact.change().p_value, Some(0.0));
}

#[test]
fn without_a_list_of_mappings_nothing_is_compared() {
    let mut without = profile(8, 8);
    without
        .memory
        .iter_mut()
        .for_each(|map| map.mappings.clear());
    let with = profile(8, 8);
    let reason = |before: &[&Profile], after: &[&Profile]| {
        MemoryChange::of_runs(before, after, Measure::Allocated).err()
    };
    let none = |profiles, is_after| Some(NotCompared::NoReadings { profiles, is_after });
    assert_eq!(reason(&[&with], &[&without]), none(1, true));
    assert_eq!(reason(&[&with, &without], &[&without]), none(2, false));
    let mut narrowed = with.clone();
    narrowed.narrowed = Some(Default::default());
    assert_eq!(reason(&[&narrowed], &[&with]), Some(NotCompared::Narrowed));
    assert_eq!(reason(&[&with], &[&with]), None);
}

#[test]
fn a_peak_between_the_readings_is_said_to_be_missing() {
    let mut peaked = profile(40, 60);
    let steady = profile(40, 60);
    let missed = |before: &Profile, after: &Profile, measure| {
        let memory = compared(
            std::slice::from_ref(before),
            std::slice::from_ref(after),
            measure,
        );
        (
            memory.missed_bytes.map(|it| it / MIB),
            memory.misses_a_peak(),
        )
    };
    let allocated = Measure::Allocated;
    assert_eq!(missed(&steady, &steady, allocated), ([0, 0], false));
    peaked.memory[1].totals.peak_resident_bytes = 104 * MIB;
    assert_eq!(missed(&steady, &peaked, allocated), ([0, 4], false));
    // A reading of the sums alone knows it, too.
    let mut totals = peaked.memory[1].totals;
    totals.resident_bytes = 110 * MIB;
    peaked.memory.push(MemoryMap {
        totals,
        ..MemoryMap::default()
    });
    assert_eq!(missed(&steady, &peaked, allocated), ([0, 10], true));
    // The last readings are not of the peak.
    assert_eq!(missed(&steady, &peaked, Measure::Live), ([0, 10], false));
}

#[test]
fn csv_has_the_rows_of_the_ledger_behind_those_of_allocations_with_their_account() {
    let (before, after) = (profile(40, 60), profile(41, 90));
    let memory = compared(
        std::slice::from_ref(&before),
        std::slice::from_ref(&after),
        Measure::Allocated,
    );
    let diff = crate::Diff::of(
        &before,
        &after,
        allocsample_report::By::Function,
        Measure::Allocated,
        crate::Per::Run,
    );
    let printed = |memory: Option<&MemoryChange>| {
        let mut out = Vec::new();
        crate::csv::diff(&diff, memory, &mut out).expect("memory to write to");
        String::from_utf8(out).expect("text")
    };
    assert_eq!(printed(None).lines().count(), 1);
    let text = printed(Some(&memory));
    // From the end: names contain commas.
    let lines: Vec<Vec<&str>> = text.lines().map(|it| it.rsplit(',').collect()).collect();
    let at = |name: &str| {
        let found = lines[0].iter().position(|it| *it == name);
        found.expect(name)
    };
    let rows: Vec<[&str; 3]> = lines[1..]
        .iter()
        .map(|it| {
            [
                it[at("account")],
                it[at("difference")],
                it[at("significant")],
            ]
        })
        .collect();
    assert_eq!(
        rows,
        [
            ["unexplained", "31457280", "true"],
            // 1 MiB is less than a hundredth of 131 MiB.
            ["malloc_held", "1048576", "false"],
        ],
        "{text}"
    );
}
