//! What the samples of made-up programs say of their functions.

use allocsample_sampling::Random;

use super::*;
use crate::allocator::fits;

const WRAPPER: u32 = 1;
const CALLERS: u32 = 10;
const MAIN: u32 = 99;

/// Samples of these sizes with this stack.
fn stack(functions: &[u32], sizes: impl IntoIterator<Item = u64>) -> Stack {
    let mut all = Sizes::default();
    for size in sizes {
        let log = (size as f64).log2();
        all.add(Sizes {
            count: 1,
            sum: log,
            squares: log * log,
        });
    }
    Stack {
        functions: functions.to_vec(),
        passed: 0,
        sizes: all,
    }
}

fn is_found(stacks: &[Stack], is_hinted: bool) -> bool {
    let found = found(stacks, &FxHashSet::default(), |_| is_hinted, true);
    found.contains(&WRAPPER)
}

/// A function that allocates for four callers, each of which passes a size of its own.
fn wrapper() -> Vec<Stack> {
    let caller = |number: u32| {
        let sizes = std::iter::repeat_n(48 << number, 20);
        stack(&[WRAPPER, CALLERS + number, MAIN], sizes)
    };
    (0..4).map(caller).collect()
}

#[test]
fn a_function_that_passes_sizes_on_is_a_wrapper() {
    assert!(is_found(&wrapper(), false));
}

#[test]
fn a_function_that_makes_objects_of_one_size_is_none() {
    let caller = |number| {
        stack(
            &[WRAPPER, CALLERS + number, MAIN],
            std::iter::repeat_n(48, 20),
        )
    };
    let stacks: Vec<Stack> = (0..4).map(caller).collect();
    assert!(!is_found(&stacks, false));
    assert!(!is_found(&stacks, true));
}

#[test]
fn a_function_that_calls_others_which_allocate_is_none() {
    let mut stacks = wrapper();
    stacks.push(stack(&[7, WRAPPER, CALLERS, MAIN], [64; 4]));
    assert!(!is_found(&stacks, false));
}

#[test]
fn a_function_with_one_caller_is_none() {
    let stacks = [stack(
        &[WRAPPER, CALLERS, MAIN],
        (0..80).map(|number| 16 << (number % 9)),
    )];
    assert!(!is_found(&stacks, false));
    assert!(!is_found(&stacks, true));
}

#[test]
fn a_name_that_says_so_needs_less_evidence() {
    let caller = |number: u32| stack(&[WRAPPER, CALLERS + number, MAIN], [48 << number; 5]);
    let stacks: Vec<Stack> = (0..2).map(caller).collect();
    assert!(!is_found(&stacks, false));
    assert!(is_found(&stacks, true));
}

#[test]
fn a_function_that_only_wrappers_call_is_part_of_them() {
    let known = FxHashSet::from_iter([CALLERS]);
    let inner = [stack(&[WRAPPER, CALLERS, MAIN], [48])];
    assert_eq!(found(&inner, &known, |_| false, false), [WRAPPER]);
    let shared = [
        stack(&[WRAPPER, CALLERS, MAIN], [48]),
        stack(&[WRAPPER, CALLERS + 1, MAIN], [48]),
    ];
    assert!(found(&shared, &known, |_| false, false).is_empty());
}

#[test]
fn names_fit_patterns() {
    for name in [
        "xmalloc",
        "zmalloc_usable",
        "PyMem_RawMalloc",
        "PyArray_NewFromDescr_int",
        "strdup",
    ] {
        assert!(is_known(name), "{name}");
    }
    for name in [
        "malloc",
        "zmallo",
        "PyMem_RawFree",
        "my_xmalloc",
        "make_node",
    ] {
        assert!(!is_known(name), "{name}");
    }
    // The parts around the star do not overlap.
    assert!(!fits("ab*ba", "aba") && fits("ab*ba", "abba"));
    // Any number of stars.
    assert!(fits("a*b*c", "abc") && fits("a*b*c", "axxbxc") && fits("*b*", "abc"));
    assert!(!fits("a*b*c", "acb") && !fits("a*b*b", "ab") && !fits("*b*", "ac"));
    assert!(fits("a*b*c*d", "abcbcd") && !fits("a*c*b*d", "abcd"));
    for name in [
        "PyDataMem_UserNEW",
        "QTypedArrayData<char>::allocate(long)",
        "caml_stat_alloc_noexc",
        "core.internal.gc.impl.manual.gc.ManualGC.malloc",
        "water.MemoryManager.malloc1",
    ] {
        assert!(is_known(name), "{name}");
    }
    assert!(is_hinted("my_pool_Alloc") && !is_hinted("make_node"));
}

/// Of 200 programs with a wrapper and a factory whose objects have two sizes at random, whoever calls: how often each is
/// taken for a wrapper.
#[test]
fn random_programs_have_their_wrappers_found_and_their_factories_kept() {
    const FACTORY: u32 = 2;
    const PROGRAMS: u64 = 200;
    let (mut wrappers, mut factories) = (0, 0);
    for seed in 1..=PROGRAMS {
        let mut random = Random::from_seed(seed);
        let mut stacks = Vec::new();
        for number in 0..4 + random.below(20) as u32 {
            // What a caller asks for: sizes about one of its own.
            let typical = 16 << random.below(10);
            let samples = 8 + random.below(40);
            let sizes = (0..samples).map(|_| typical + random.below(typical));
            stacks.push(stack(
                &[WRAPPER, CALLERS + number, MAIN],
                sizes.collect::<Vec<_>>(),
            ));
            let sizes = (0..samples).map(|_| if random.below(2) == 0 { 48 } else { 64 });
            stacks.push(stack(
                &[FACTORY, CALLERS + number, MAIN],
                sizes.collect::<Vec<_>>(),
            ));
        }
        let found = found(&stacks, &FxHashSet::default(), |_| false, true);
        wrappers += u64::from(found.contains(&WRAPPER));
        factories += u64::from(found.contains(&FACTORY));
    }
    // Seeds are fixed. A wrapper may have one caller of nine tenths.
    assert!(wrappers * 100 >= 97 * PROGRAMS, "{wrappers}");
    assert!(factories * 100 <= PROGRAMS, "{factories}");
}

#[test]
fn who_makes_an_array_of_swift_is_charged() {
    for wrapper in [
        "swift_slowAlloc",
        "swift_allocObject",
        "swift_allocError",
        "Swift._ContiguousArrayBuffer.init(_uninitializedCount:minimumCapacity:)",
        "specialized static Swift.Array._allocateUninitialized(_:)",
        "specialized Swift.Array.init(repeating:count:)",
        "specialized Swift.Array._createNewBuffer(bufferIsUnique:minimumCapacity:growForAppend:)",
        "static Swift._DictionaryStorage.allocate(capacity:)",
        "specialized Swift._NativeDictionary._copyOrMoveAndResize(capacity:moveElements:)",
        "static Swift.UnsafeMutablePointer.allocate(capacity:)",
    ] {
        assert!(is_known(wrapper), "{wrapper}");
    }
    for maker in [
        "app.Queue.push(_:)",
        "app.Queue.__allocating_init(size:)",
        "Swift.Array<>.doubled()",
        "specialized Swift.Sequence.map<A>(_:)",
    ] {
        assert!(!is_known(maker), "{maker}");
    }
}
