//! Readings made for the purpose.

use super::*;
use crate::Ledger;
use allocsample_profile::{
    Heap, HeapId, HeapKind, Inspected, Location, Mapped, MappingCall, MappingChange, Module,
    ModuleId, Sample, SampleFlags, StackId, StackNode, ThreadId,
};

mod agent;
mod suspects;

const MIB: u64 = 1 << 20;

fn mapping(start: u64, mib: u64, name: u32, flags: u8) -> MemoryMapping {
    MemoryMapping {
        start,
        bytes: mib * MIB,
        anonymous_bytes: mib * MIB,
        resident_bytes: mib * MIB,
        name,
        flags,
        ..MemoryMapping::default()
    }
}

/// One reading of a process whose brk heap has 16 MiB, and an allocator that nobody sees 284 MiB.
fn blind() -> Profile {
    let mut profile = Profile::default();
    profile
        .notes
        .push((Note::NextAllocator, "/lib/libc.so.6".to_owned()));
    let totals = MemoryTotals {
        time_ns: 5,
        resident_bytes: 310 * MIB,
        anonymous_bytes: 301 * MIB,
        peak_resident_bytes: 0,
    };
    profile.memory.push(MemoryMap {
        totals,
        names: vec![b"[heap]".to_vec(), Vec::new(), b"/lib/libx.so".to_vec()],
        mappings: vec![
            mapping(MIB, 16, 0, 0),
            mapping(1 << 40, 284, 1, 0),
            mapping(1 << 41, 1, 2, MemoryMapping::BEHIND_FILE),
        ],
        group: Vec::new(),
    });
    profile
}

fn with_allocator(mut profile: Profile, path: &str, allocator: &str) -> Profile {
    profile.inspected.push(Inspected {
        path: path.to_owned(),
        allocator: allocator.to_owned(),
        ..Inspected::default()
    });
    profile
}

#[test]
fn an_allocator_inside_a_module_is_named_where_it_is_the_only_one() {
    let one = with_allocator(blind(), "/lib/_polars_runtime.so", "jemalloc");
    let coverage = Coverage::of(&one).expect("a reading");
    assert!(
        coverage.line().ends_with(
            "284 MiB in mappings without a name, most likely of _polars_runtime.so (its own jemalloc)"
        ),
        "{}",
        coverage.line()
    );
    assert_eq!(
        coverage.warning().as_deref(),
        Some(
            "warning: 285 MiB of the process's memory is not in this profile: it most likely belongs to _polars_runtime.so (its own jemalloc); try `--embedded`; `allocsample memory FILE` shows all rows"
        )
    );
    // Of two nobody knows which.
    let two = with_allocator(one, "/lib/libarrow.so", "mimalloc");
    let coverage = Coverage::of(&two).expect("a reading");
    assert!(!coverage.line().contains("likely"), "{}", coverage.line());
    let warning = coverage.warning().expect("a warning");
    assert!(
        warning.contains(
            "(_polars_runtime.so has jemalloc, libarrow.so has mimalloc); try `--embedded`"
        ),
        "{warning}"
    );
    // That of `malloc` is sampled.
    let sampled = with_allocator(blind(), "/lib/libc.so.6", "jemalloc");
    assert_eq!(Coverage::of(&sampled).expect("a reading").allocators, []);
}

#[test]
fn where_ruby_may_have_what_is_missing_the_warning_names_the_option_that_samples_its_objects() {
    let mut profile = blind();
    profile.inspected.push(Inspected {
        path: "/lib/libruby-3.1.so.3.1".to_owned(),
        runtime: "Ruby".to_owned(),
        version: "3.1.2".to_owned(),
        ..Inspected::default()
    });
    let warning = |profile: &Profile| {
        let coverage = Coverage::of(profile).expect("a reading");
        coverage.warning().expect("a warning")
    };
    let advice = "`--objects` samples Ruby's objects as well";
    // Its bridge did not join.
    assert!(!warning(&profile).contains(advice));
    let heap = Heap {
        name: "ruby".to_owned(),
        kind: Some(HeapKind::Traced),
        ..Heap::default()
    };
    profile.vm.heaps.insert(HeapId(1), heap);
    assert!(warning(&profile).contains(advice), "{}", warning(&profile));
    let heap = profile.vm.heaps.get_mut(&HeapId(1)).expect("a heap");
    heap.kind = Some(HeapKind::Collected);
    assert!(!warning(&profile).contains(advice));
}

/// The data of a program's libraries may be most of its memory, and malloc's free memory nearly all of the rest.
#[test]
fn without_a_list_of_mappings_near_the_peak_the_warning_does_not_blame_another_allocator_alone() {
    let mut profile = blind();
    let listed = Coverage::of(&profile).expect("a reading");
    let unlisted = "no list of mappings was read near the peak, so this includes";
    assert!(!listed.warning().expect("a warning").contains(unlisted));
    // Two thirds of the peak are not near it.
    profile.memory[0].totals.anonymous_bytes = 200 * MIB;
    profile.memory.push(MemoryMap {
        totals: MemoryTotals {
            time_ns: 9,
            resident_bytes: 310 * MIB,
            anonymous_bytes: 300 * MIB,
            peak_resident_bytes: 0,
        },
        ..MemoryMap::default()
    });
    let warning = Coverage::of(&profile).expect("a reading").warning();
    assert!(
        warning.as_ref().is_some_and(|it| it.contains(unlisted)),
        "{warning:?}"
    );
}

#[test]
fn an_allocator_that_could_not_be_joined_says_why_and_the_option_is_not_advised_again() {
    let mut profile = with_allocator(blind(), "/usr/bin/server", "mimalloc");
    profile.notes.push((Note::Embedded, String::new()));
    let warning = |profile: &Profile| {
        let coverage = Coverage::of(profile).expect("a reading");
        coverage.warning().expect("a warning")
    };
    let unknown = warning(&profile);
    assert!(
        unknown.contains(
            "; `--embedded` cannot sample mimalloc in server: no symbols and no debug file, "
        ),
        "{unknown}"
    );
    let why = "mimalloc in server: mi_free is too short".to_owned();
    profile.notes.push((Note::NotJoined, why));
    let known = warning(&profile);
    assert!(
        known.contains("; `--embedded` left mimalloc in server alone: mi_free is too short; "),
        "{known}"
    );
    // A file that nobody has inspected, because no recorded stack has run through it.
    let why = "mimalloc in libtoy.so: it is one allocator too many".to_owned();
    profile.notes.push((Note::NotJoined, why));
    let both = warning(&profile);
    let said = "; `--embedded` left mimalloc in server alone: mi_free is too short; `--embedded` left mimalloc in libtoy.so alone: it is one allocator too many; ";
    assert!(both.contains(said), "{both}");
    for text in [unknown, known] {
        assert!(!text.contains("try `--embedded`"), "{text}");
        assert!(
            text.contains("; `run --pages` shows who touches it"),
            "{text}"
        );
    }
}

#[test]
fn an_allocator_with_a_heap_in_the_profile_is_no_owner_of_the_rest() {
    let profile = with_python(200);
    let mut profile = with_allocator(profile, "/lib/libarrow.so", "jemalloc and mimalloc");
    for heap in profile.vm.heaps.values_mut() {
        heap.name = "jemalloc in libarrow.so".to_owned();
        heap.kind = Some(HeapKind::Allocator);
    }
    let coverage = Coverage::of(&profile).expect("a reading");
    let left = [("libarrow.so".to_owned(), "mimalloc".to_owned())];
    assert_eq!(coverage.allocators, left);
    assert!(coverage.is_low(), "{}", coverage.line());
    // Its blocks account for the mapping that they fill, free ones in it too.
    let sample = Sample {
        address: 1 << 40,
        ..profile.samples.at(0)
    };
    profile.samples.set(0, sample);
    let coverage = Coverage::of(&profile).expect("a reading");
    assert!(!coverage.is_low(), "{}", coverage.line());
    assert_eq!(coverage.seen_bytes, 300.0 * MIB as f64);
    assert_eq!(coverage.unreconciled, [""; 0]);
}

#[test]
fn an_allocator_with_more_live_bytes_than_are_mapped_accounts_for_nothing() {
    let mut profile = with_python(200);
    for heap in profile.vm.heaps.values_mut() {
        heap.name = "jemalloc in own".to_owned();
        heap.kind = Some(HeapKind::Allocator);
    }
    let in_the_mapping = |number: u64| Sample {
        address: (1 << 40) + number,
        ..profile.samples.at(0)
    };
    let samples = [in_the_mapping(0), in_the_mapping(4096)];
    profile.samples.set(0, samples[0]);
    profile.samples.push(samples[1]);
    let coverage = Coverage::of(&profile).expect("a reading");
    assert_eq!(coverage.seen_bytes, 16.0 * MIB as f64);
    assert_eq!(
        coverage.unreconciled,
        [
            "warning: jemalloc in own does not reconcile: its samples stand for 400 MiB where 284 MiB are mapped; the process's memory is divided by mappings instead"
        ]
    );
}

#[test]
fn what_an_allocator_has_mapped_is_its_own_however_little_is_alive() {
    let mut profile = with_python(1);
    for heap in profile.vm.heaps.values_mut() {
        heap.name = "tcmalloc in server".to_owned();
        heap.kind = Some(HeapKind::Allocator);
    }
    let block = Sample {
        address: (1 << 40) + 4096,
        ..profile.samples.at(0)
    };
    profile.samples.set(0, block);
    let seen = |profile: &Profile| Coverage::of(profile).expect("a reading").seen_bytes;
    assert_eq!(seen(&profile), 17.0 * MIB as f64);
    // Another file's memory, and memory without a block, are not its own.
    let mut others = profile.clone();
    mapped_by(&mut others, "/lib/libother.so", 1 << 40, 84);
    mapped_by(&mut others, "/usr/bin/server", (1 << 40) + 84 * MIB, 200);
    assert_eq!(seen(&others), 17.0 * MIB as f64);
    mapped_by(&mut profile, "/usr/bin/server", 1 << 40, 84);
    mapped_by(&mut profile, "/usr/bin/server", (1 << 40) + 84 * MIB, 200);
    assert_eq!(seen(&profile), 100.0 * MIB as f64);
}

#[test]
fn memory_of_another_allocator_is_not_accounted_for() {
    let coverage = Coverage::of(&blind()).expect("a reading");
    assert!(coverage.is_low());
    assert_eq!(
        coverage.line(),
        "coverage   5 %: the sampled heaps account for 16.0 MiB of 301 MiB of anonymous memory; 284 MiB in mappings without a name"
    );
    let warning = coverage.warning().expect("a warning");
    assert!(
        warning.ends_with(
            "or mmap; `run --pages` shows who touches it; `allocsample memory FILE` shows all rows"
        ),
        "{warning}"
    );
    let mut with_pages = blind();
    with_pages.pages.heap = Some((HeapId(9), Heap::default()));
    let warning = Coverage::of(&with_pages).expect("a reading").warning();
    let warning = warning.expect("a warning");
    assert!(
        warning.contains("; `report FILE --heap pages` shows who touched it"),
        "{warning}"
    );
    // A list of mappings is what that command needs.
    let mut without_list = blind();
    for map in &mut without_list.memory {
        map.mappings.clear();
    }
    let coverage = Coverage::of(&without_list).expect("a reading");
    let warning = coverage.warning().expect("a warning");
    assert!(!warning.contains("memory FILE"), "{warning}");
}

/// As tcmalloc has it where it is linked into the program.
#[test]
fn the_brk_heap_of_a_malloc_in_the_program_is_not_accounted_for() {
    let mut profile = with_allocator(blind(), "/usr/bin/server", "tcmalloc");
    let map = profile.memory.first_mut().expect("a reading");
    map.mappings = vec![mapping(MIB, 301, 0, 0)];
    assert!(!Coverage::of(&profile).expect("a reading").is_low());
    let elsewhere = (Note::MallocIsElsewhere, "/usr/bin/server".to_owned());
    profile.notes.push(elsewhere);
    let coverage = Coverage::of(&profile).expect("a reading");
    assert_eq!(
        coverage.line(),
        "coverage   0 %: the sampled heaps account for 0 B of 301 MiB of anonymous memory; 301 MiB in the brk heap, most likely of server (its own tcmalloc)"
    );
    assert!(coverage.is_low());
}

/// An Envoy's malloc is its own, and it has a LuaJIT that it seldom uses.
#[test]
fn an_unsampled_malloc_that_nobody_knows_is_no_less_likely_than_a_runtime() {
    let mut profile = blind();
    profile.inspected.push(Inspected {
        path: "/usr/bin/server".to_owned(),
        runtime: "LuaJIT".to_owned(),
        version: "2.1".to_owned(),
        ..Inspected::default()
    });
    let likely = |profile: &Profile| Coverage::of(profile).expect("a reading").likely;
    assert_eq!(likely(&profile).as_deref(), Some("LuaJIT (its own heap)"));
    let elsewhere = (Note::MallocIsElsewhere, "/usr/bin/server".to_owned());
    profile.notes.push(elsewhere);
    assert_eq!(likely(&profile), None);
    profile.inspected.clear();
    assert_eq!(likely(&profile).as_deref(), Some("server (its own malloc)"));
    // A JVM that has loaded the agent knows where libc is.
    profile.notes.pop();
    let libc = (Note::MallocIsElsewhere, "/lib/libc.so.6".to_owned());
    profile.notes.push(libc);
    assert_eq!(likely(&profile), None);
}

/// Python's arenas lie in the unnamed mapping, its samples in the brk heap.
fn with_python(live_mib: u64) -> Profile {
    let mut profile = blind();
    let heap = HeapId(1);
    let python = allocsample_profile::Heap {
        name: "python".to_owned(),
        kind: None,
        exact_bytes: 0,
    };
    profile.vm.heaps.insert(heap, python);
    profile.intervals.push(allocsample_profile::IntervalInfo {
        time_ns: 0,
        sampling: allocsample_profile::Sampling::Poisson,
        interval_bytes: 1,
        seed: 1,
    });
    profile.samples.push(Sample {
        time_ns: 1,
        address: MIB + 64,
        size: live_mib * MIB,
        heap,
        points: 1,
        ..Sample::default()
    });
    profile
}

#[test]
fn objects_in_blocks_of_malloc_count_once_where_no_mappings_were_read() {
    let mut profile = with_python(40);
    profile.memory[0].mappings.clear();
    let object = profile.samples.at(0);
    profile.backing.samples.push(Sample {
        size: 60 * MIB,
        ..object
    });
    let coverage = Coverage::of(&profile).expect("a reading");
    assert!((coverage.seen_bytes / MIB as f64 - 60.0).abs() < 0.1);
    profile.backing.samples.clear();
    let coverage = Coverage::of(&profile).expect("a reading");
    assert!((coverage.seen_bytes / MIB as f64 - 40.0).abs() < 0.1);
}

/// As numpy's arrays lie, whose pages behind the first are advised to be huge.
#[test]
fn a_block_in_several_mappings_counts_in_each() {
    let mut profile = with_python(150);
    profile.vm.heaps.clear();
    let mut sample = profile.samples.at(0);
    sample.heap = HeapId::MALLOC;
    sample.address = (1 << 40) - 4096;
    sample.size = 200 * MIB + 4096;
    profile.samples.set(0, sample);
    let coverage = Coverage::of(&profile).expect("a reading");
    assert!((coverage.seen_bytes / MIB as f64 - 216.0).abs() < 0.1);
}

#[test]
fn objects_that_are_known_by_keys_have_their_place_where_there_is_room() {
    let mut profile = with_python(150);
    for heap in profile.vm.heaps.values_mut() {
        heap.name = "mono".to_owned();
    }
    let sample = Sample {
        address: 128,
        ..profile.samples.at(0)
    };
    profile.samples.set(0, sample);
    let map = profile.memory.first_mut().expect("a reading");
    // Small ones together are at no address, not even at that of a key.
    map.mappings.insert(0, mapping(0, 1, 1, 0));
    let coverage = Coverage::of(&profile).expect("a reading");
    assert!(!coverage.is_low(), "{}", coverage.line());
}

#[test]
fn arenas_are_pythons_where_its_objects_could_fill_them() {
    let coverage = Coverage::of(&with_python(150)).expect("a reading");
    assert!(!coverage.is_low(), "{}", coverage.line());
    // A hundredth is no reason to take the rest for arenas.
    let coverage = Coverage::of(&with_python(3)).expect("a reading");
    assert!(coverage.is_low());
    assert_eq!(coverage.seen_bytes, 19.0 * MIB as f64);
}

/// As libcublasLt has it: 90 MiB behind its file, which its constructors write to.
#[test]
fn zeroed_data_of_a_library_is_not_pythons() {
    for (is_attached, arena_mib) in [(false, 40), (false, 0), (true, 40)] {
        let mut profile = with_python(150);
        let start = 1 << 41;
        profile.memory[0].mappings[2] =
            mapping(start, 90 + arena_mib, 2, MemoryMapping::BEHIND_FILE);
        profile.memory[0].totals.anonymous_bytes = (390 + arena_mib) * MIB;
        mapped_by(&mut profile, "/lib/libpython3.so", 1 << 40, 284);
        mapped_by(
            &mut profile,
            "/lib/libpython3.so",
            start + 90 * MIB,
            arena_mib,
        );
        profile.inspected.push(Inspected {
            path: "/lib/libpython3.so".to_owned(),
            runtime: "CPython".to_owned(),
            ..Inspected::default()
        });
        if is_attached {
            profile.notes.push((Note::Attached, String::new()));
        }
        let ledger = Ledger::of(&profile, &profile.memory[0]);
        let mib = |account| ledger.of_account(account) / MIB as f64;
        let objects = mib(Account::Objects) + mib(Account::ObjectsHeld);
        let said = format!("{is_attached} {arena_mib} {objects} {:?}", ledger.rows);
        assert!((mib(Account::Data) - 90.0).abs() < 0.01, "{said}");
        assert!(
            (objects - (374 + arena_mib) as f64 + 90.0).abs() < 0.01,
            "{said}"
        );
        let seen = Coverage::of(&profile).expect("a reading").seen_bytes / MIB as f64;
        assert!(
            (seen - (390 + arena_mib) as f64 + 90.0).abs() < 0.01,
            "{said} {seen}"
        );
    }
}

/// A call of this module's has mapped memory.
fn mapped_by(profile: &mut Profile, path: &str, start: u64, mib: u64) {
    profile.modules.push(Module {
        path: path.to_owned(),
        build_id: Vec::new(),
        start: 0,
        end: 0,
        bias: 0,
    });
    let module = ModuleId(u32::try_from(profile.modules.len()).expect("few modules"));
    let location = Location { module, offset: 0 };
    let parent = StackId::EMPTY;
    let stack = profile.stacks.push(StackNode { parent, location });
    let mapped = Mapped {
        time_ns: 1,
        start,
        bytes: mib * MIB,
        thread: ThreadId(1),
        change: MappingChange::Map,
        protection: 3,
        flags: 0x22,
        stack_flags: SampleFlags::default(),
    };
    profile.mappings.push(MappingCall::new(mapped, stack));
}

/// Of a mapping of 284 MiB, which the kernel has joined, another library has mapped the end.
#[test]
fn what_others_have_mapped_is_not_pythons() {
    for others_mib in [0, 100, 142, 283, 284] {
        for (runtime, allocator) in [("CPython", ""), ("CPython", "mimalloc"), ("", "mimalloc")] {
            let mut profile = with_python(100);
            let own_mib = 284 - others_mib;
            mapped_by(&mut profile, "/lib/libpython3.so", 1 << 40, own_mib);
            let end = (1 << 40) + own_mib * MIB;
            mapped_by(&mut profile, "/lib/libarrow.so", end, others_mib);
            profile.inspected.push(Inspected {
                path: "/lib/libpython3.so".to_owned(),
                runtime: runtime.to_owned(),
                ..Inspected::default()
            });
            let profile = with_allocator(profile, "/lib/libarrow.so", allocator);
            let ledger = Ledger::of(&profile, &profile.memory[0]);
            let mib = |row: &LedgerRow| row.resident_bytes / MIB as f64;
            let mut rows = ledger.rows.iter();
            let others = rows.find(|row| row.name.starts_with("mapped by libarrow.so"));
            let others = others.map_or(0.0, mib);
            assert!((others - others_mib as f64).abs() < 0.01, "{ledger:?}");
            // With the data of libx.so.
            use Account::{Data, Mapped, Objects, ObjectsHeld};
            let accounts = [Objects, ObjectsHeld, Mapped, Data];
            let sum: f64 = accounts.map(|it| ledger.of_account(it)).iter().sum();
            assert!((sum / MIB as f64 - 285.0).abs() < 0.01, "{ledger:?}");
            let coverage = Coverage::of(&profile).expect("a reading");
            let seen_mib = coverage.seen_bytes / MIB as f64;
            assert!(seen_mib <= (17 + own_mib) as f64 + 0.01, "{coverage:?}");
        }
    }
}

/// A large block of malloc's may lie beside arenas, and the kernel joins the two.
#[test]
fn arenas_beside_a_block_of_malloc_are_pythons() {
    let mut profile = with_python(100);
    // Not where an arena of glibc's could begin.
    let start = (1 << 40) + MIB;
    profile.memory[0].mappings[1].start = start;
    mapped_by(&mut profile, "/lib/libpython3.so", start, 250);
    profile.inspected.push(Inspected {
        path: "/lib/libpython3.so".to_owned(),
        runtime: "CPython".to_owned(),
        ..Inspected::default()
    });
    profile.samples.push(Sample {
        address: start + 260 * MIB,
        size: 20 * MIB,
        heap: HeapId::MALLOC,
        ..profile.samples.at(0)
    });
    let ledger = Ledger::of(&profile, &profile.memory[0]);
    let of = |account| (ledger.of_account(account) / MIB as f64).round();
    // Without the data of libx.so.
    assert_eq!(of(Account::Objects) + of(Account::ObjectsHeld), 250.0);
    assert_eq!(of(Account::Malloc), 20.0);
    // The rest of a mapping is divided by the lengths of its parts.
    assert_eq!(of(Account::Mapped) + of(Account::Unexplained), 14.0);
}

/// The same of a runtime whose objects are known by keys, as libgc's are: any library may map for it, and a thread's stack is not its.
#[test]
fn a_heap_beside_a_block_of_malloc_is_its_runtimes() {
    for (name, is_glibc) in [("libc.so.6", true), ("libjemalloc.so.2", false)] {
        let mut profile = with_python(100);
        for heap in profile.vm.heaps.values_mut() {
            heap.name = "libgc".to_owned();
        }
        let object = Sample {
            address: !0x7f12_3456_7890,
            ..profile.samples.at(0)
        };
        profile.samples.set(0, object);
        profile.notes = vec![(Note::NextAllocator, format!("/lib/{name}"))];
        // Not where an arena of glibc's could begin.
        let start = (1 << 40) + MIB;
        profile.memory[0].mappings[1].start = start;
        mapped_by(&mut profile, "/lib/libgc.so.1", start, 250);
        mapped_by(&mut profile, "/lib/libgc.so.1", start + 250 * MIB, 8);
        let stack = profile.mappings.last_mut().expect("two calls");
        stack.mapped.change = MappingChange::Thread;
        profile.samples.push(Sample {
            address: start + 260 * MIB,
            size: 20 * MIB,
            heap: HeapId::MALLOC,
            ..object
        });
        let ledger = Ledger::of(&profile, &profile.memory[0]);
        let objects = ledger.of_account(Account::Objects) + ledger.of_account(Account::ObjectsHeld);
        let expected = if is_glibc { 250.0 } else { 0.0 };
        assert_eq!(
            (objects / MIB as f64).round(),
            expected,
            "{name}: {ledger:?}"
        );
        let malloc = ledger.of_row(Account::Malloc, "malloc: live blocks");
        assert_eq!((malloc / MIB as f64).round(), 20.0, "{name}: {ledger:?}");
    }
}

#[test]
fn arenas_that_are_nearly_empty_are_pythons() {
    // In one piece it is what a program has mapped for itself.
    for (pieces, arenas_mib) in [(1, 0.0_f64), (250, 250.0)] {
        let mut profile = with_python(3);
        for piece in 0..pieces {
            let mib = 250 / pieces;
            mapped_by(
                &mut profile,
                "/lib/libpython3.so",
                (1 << 40) + piece * mib * MIB,
                mib,
            );
        }
        profile.inspected.push(Inspected {
            path: "/lib/libpython3.so".to_owned(),
            runtime: "CPython".to_owned(),
            ..Inspected::default()
        });
        let ledger = Ledger::of(&profile, &profile.memory[0]);
        let mib = |account| ledger.of_account(account) / MIB as f64;
        let (live, held) = (mib(Account::Objects), mib(Account::ObjectsHeld));
        assert!((live - 3.0).abs() < 0.01, "{ledger:?}");
        assert!(
            (live + held - arenas_mib.max(3.0)).abs() < 0.01,
            "{ledger:?}"
        );
        let coverage = Coverage::of(&profile).expect("a reading");
        assert_eq!(coverage.is_low(), pieces == 1, "{}", coverage.line());
        // Everything may be gone.
        profile.samples = Default::default();
        let ledger = Ledger::of(&profile, &profile.memory[0]);
        let held = ledger.of_account(Account::ObjectsHeld) / MIB as f64;
        assert!((held - arenas_mib).abs() < 0.01, "{ledger:?}");
    }
}

/// A collection frees most of what a heap had at the reading before, and the heap is where it was.
#[test]
fn the_heap_of_objects_without_addresses_stays_theirs_after_a_collection() {
    let mut profile = with_python(150);
    for heap in profile.vm.heaps.values_mut() {
        heap.name = "java".to_owned();
    }
    let mut garbage = profile.samples.at(0);
    garbage.address = 1 << 62;
    garbage.freed_ns = std::num::NonZeroU64::new(7);
    profile.samples.set(0, garbage);
    profile.samples.push(Sample {
        address: 1 << 61,
        size: 10 * MIB,
        freed_ns: None,
        ..garbage
    });
    let mut later = profile.memory[0].clone();
    later.totals.time_ns = 9;
    later.totals.resident_bytes -= 80 * MIB;
    later.mappings[1].anonymous_bytes -= 80 * MIB;
    profile.memory.push(later);
    let mib_of_last = |profile: &Profile, account| {
        let ledger = Ledger::of(profile, profile.memory.last().expect("a reading"));
        (ledger.of_account(account) / MIB as f64).round()
    };
    assert_eq!(mib_of_last(&profile, Account::Objects), 10.0);
    assert_eq!(mib_of_last(&profile, Account::ObjectsHeld), 194.0);
    // Without the reading before, most of it may be anybody's.
    profile.memory.remove(0);
    assert_eq!(mib_of_last(&profile, Account::Objects), 10.0);
    assert_eq!(mib_of_last(&profile, Account::ObjectsHeld), 0.0);
}

/// There mimalloc has objects and nothing else.
#[test]
fn the_mapping_of_a_sample_is_pythons_where_there_is_no_lock_of_the_interpreter() {
    let mut profile = with_python(3);
    let sample = Sample {
        address: (1 << 40) + 64,
        ..profile.samples.at(0)
    };
    profile.samples.set(0, sample);
    assert!(Coverage::of(&profile).expect("a reading").is_low());
    profile.inspected.push(Inspected {
        path: "/usr/bin/python3.14t".to_owned(),
        runtime: "free-threaded CPython".to_owned(),
        version: "3.14.0".to_owned(),
        ..Inspected::default()
    });
    let coverage = Coverage::of(&profile).expect("a reading");
    assert_eq!(coverage.seen_bytes, 300.0 * MIB as f64);
}

/// A third of the samples' bytes are in process heaps, and the rest of the mapping is kept.
#[test]
fn the_mapping_of_a_sample_is_erlangs_and_has_a_row_for_each_allocator() {
    let mut profile = with_python(2);
    for heap in profile.vm.heaps.values_mut() {
        heap.name = "erlang".to_owned();
    }
    let heap = profile.samples.at(0).heap;
    for (number, name) in [(1, "eheap_alloc: old_heap"), (2, "binary_alloc: binary")] {
        let (name, detail) = (name.to_owned(), String::new());
        let known = allocsample_profile::Type { name, detail };
        profile.vm.types.insert((heap, number), known);
    }
    let mut sample = profile.samples.at(0);
    sample.address = (1 << 40) + 64;
    sample.type_id = 2;
    profile.samples.set(0, sample);
    profile.samples.push(Sample {
        address: (1 << 40) + 9 * MIB,
        size: MIB,
        type_id: 1,
        ..sample
    });
    let coverage = Coverage::of(&profile).expect("a reading");
    assert_eq!(coverage.seen_bytes, 300.0 * MIB as f64);
    let ledger = Ledger::of(&profile, &profile.memory[0]);
    let rows: Vec<(&str, f64)> = (ledger.rows.iter())
        .filter(|row| row.name.starts_with("erlang"))
        .map(|row| (&*row.name, (row.resident_bytes / MIB as f64).round()))
        .collect();
    let expected = [
        ("erlang: binaries (binary_alloc)", 2.0),
        ("erlang: process heaps (eheap_alloc)", 1.0),
        ("erlang: free, or not sampled", 281.0),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn a_small_process_is_not_warned_about() {
    let mut profile = blind();
    for map in &mut profile.memory {
        map.totals.anonymous_bytes /= 100;
        for mapping in &mut map.mappings {
            mapping.anonymous_bytes /= 100;
        }
    }
    let coverage = Coverage::of(&profile).expect("a reading");
    assert!(coverage.share() < 0.1 && !coverage.is_low());
    assert_eq!(Coverage::of(&Profile::default()), None);
}

#[test]
fn shared_memory_that_goes_before_the_end_is_not_taken_for_a_peak() {
    let reading = |resident, anonymous, peak| MemoryMap {
        totals: MemoryTotals {
            time_ns: 5,
            resident_bytes: resident * MIB,
            anonymous_bytes: anonymous * MIB,
            peak_resident_bytes: peak * MIB,
        },
        ..MemoryMap::default()
    };
    let mut profile = Profile::default();
    profile.memory.push(reading(130, 108, 0));
    // The server has let go of 20 MiB that it shared.
    profile.memory.push(reading(8, 6, 160));
    let peak = |profile: &Profile| Coverage::of(profile).expect("a reading").peak_bytes;
    assert_eq!(peak(&profile), (160 - 22) as f64 * MIB as f64);
    // A reading knows more than a sum of others.
    profile.memory.push(reading(180, 139, 160));
    assert_eq!(peak(&profile), 139.0 * MIB as f64);
}
