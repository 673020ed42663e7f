//! Finds a program's own wrappers of the allocator, such as `zmalloc` or `xmalloc`, so that their callers are charged.
//!
//! Some wrappers are known by name. The others show in the samples: a wrapper does nothing but allocate, so it appears in
//! stacks right above the allocator and nowhere else; it has several callers; and the size of a block depends on the caller,
//! because the wrapper passes its argument on. A function that allocates objects of its own fails the last test.

use allocsample_profile::{Charging, HeapId, StackId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::allocator::Part;
use crate::frames::{FrameId, Frames};

/// Names of well-known wrappers. A `*` stands for any text.
const KNOWN: &[&str] = &[
    // The C library.
    "strdup",
    "__strdup",
    "strndup",
    "__strndup",
    "wcsdup",
    "asprintf",
    "vasprintf",
    "__asprintf*",
    "__vasprintf*",
    // GNU programs, git.
    "xmalloc*",
    "do_xmalloc",
    "xcalloc",
    "xzalloc",
    "xrealloc*",
    "x2realloc",
    "x2nrealloc",
    "xnmalloc",
    "xnrealloc",
    "xpalloc",
    "ximalloc",
    "xstrdup",
    "xstrndup",
    "xmemdup*",
    // redis and valkey.
    "zmalloc*",
    "zcalloc*",
    "zrealloc*",
    "ztrymalloc*",
    "ztrycalloc*",
    "ztryrealloc*",
    "zstrdup",
    "valkey_malloc*",
    "valkey_calloc*",
    "valkey_realloc*",
    // Perl.
    "Perl_safesysmalloc",
    "Perl_safesyscalloc",
    "Perl_safesysrealloc",
    // R.
    "Rf_allocVector",
    "Rf_allocVector3",
    "R_alloc",
    "R_chk_calloc",
    "R_chk_realloc",
    // PostgreSQL.
    "palloc*",
    "repalloc*",
    "pstrdup",
    "pnstrdup",
    "pg_malloc*",
    "pg_realloc",
    "pg_strdup",
    "MemoryContextAlloc*",
    "MemoryContextStrdup",
    "AllocSetAlloc*",
    "AllocSetRealloc",
    "GenerationAlloc*",
    "SlabAlloc*",
    // SQLite.
    "sqlite3MemMalloc",
    "sqlite3MemRealloc",
    "sqlite3Malloc*",
    "sqlite3Realloc",
    "sqlite3_malloc*",
    "sqlite3_realloc*",
    "sqlite3DbMalloc*",
    "sqlite3DbRealloc*",
    "sqlite3DbStrDup",
    "sqlite3DbStrNDup",
    // GLib, Qt, Tcl, PHP.
    "g_malloc*",
    "g_realloc*",
    "g_try_malloc*",
    "g_try_realloc*",
    "g_slice_alloc*",
    "g_strdup",
    "g_strndup",
    "g_memdup*",
    "QArrayData::allocate*",
    "QArrayData::reallocate*",
    "QTypedArrayData<*>::allocate*",
    "QTypedArrayData<*>::reallocate*",
    "Tcl_Alloc",
    "Tcl_AttemptAlloc",
    "Tcl_Realloc",
    "Tcl_AttemptRealloc",
    "TclpAlloc",
    "TclpRealloc",
    "TclThreadAllocObj",
    "__zend_malloc",
    "__zend_calloc",
    "__zend_realloc",
    "_emalloc*",
    "_ecalloc*",
    "_erealloc*",
    "_estrdup*",
    "_estrndup*",
    "_safe_emalloc*",
    "_safe_malloc*",
    "_safe_realloc*",
    // Apache, nginx, OpenSSL, FFmpeg.
    "apr_palloc*",
    "apr_pcalloc*",
    "apr_allocator_alloc",
    "apr_pstrdup",
    "apr_pstrndup",
    "ngx_alloc",
    "ngx_calloc",
    "ngx_memalign",
    "ngx_palloc*",
    "ngx_pnalloc",
    "ngx_pcalloc",
    "CRYPTO_malloc",
    "CRYPTO_zalloc",
    "CRYPTO_realloc",
    "CRYPTO_clear_realloc",
    "CRYPTO_aligned_alloc",
    "CRYPTO_strdup",
    "CRYPTO_strndup",
    "CRYPTO_memdup",
    "av_malloc*",
    "av_calloc",
    "av_realloc*",
    "av_memdup",
    "av_strdup",
    // Runtimes.
    "uv__malloc",
    "uv__calloc",
    "uv__realloc",
    "uv__strdup",
    "PyMem_Malloc",
    "PyMem_Calloc",
    "PyMem_Realloc",
    "PyMem_Raw*alloc",
    "_PyMem_Raw*alloc",
    "PyObject_Malloc",
    "PyObject_Calloc",
    "PyObject_Realloc",
    "_PyObject_Malloc",
    "_PyObject_Calloc",
    "_PyObject_Realloc",
    "PyDataMem_*NEW*",
    "ruby_xmalloc*",
    "ruby_xcalloc*",
    "ruby_xrealloc*",
    "objspace_xmalloc*",
    "objspace_xcalloc*",
    "objspace_xrealloc*",
    "luaM_malloc_",
    "luaM_realloc_",
    "luaM_saferealloc_",
    "luaM_growaux_",
    "lj_alloc_malloc",
    "lj_alloc_realloc",
    "lj_mem_realloc",
    "lj_mem_newgco",
    "scm_malloc",
    "scm_calloc",
    "scm_realloc",
    "scm_gc_malloc*",
    "__crystal_malloc*",
];

/// Words in the names of functions that allocate for others, in lower case.
const HINTS: &[&str] = &["alloc", "strdup", "strndup", "memdup", "newmem", "getmem"];

/// Of more nodes of stacks than these, a part is looked at: more would not change the verdict.
const NODES: u32 = 300_000;
/// Wrappers that call wrappers.
const LEVELS: usize = 6;

/// Whether a well-known wrapper has this name.
pub(crate) fn is_known(function: &str) -> bool {
    KNOWN.iter().any(|pattern| matches(pattern, function))
}

/// Whether a name fits a pattern in which at most one `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// What the samples say of a function right above the allocator.
#[derive(Default)]
struct Evidence {
    /// Samples in which it is right above the allocator.
    samples: u64,
    /// Samples in which it is in the stack, and not right above the allocator.
    elsewhere: u64,
    callers: FxHashMap<u32, Sizes>,
}

/// Logarithms of sizes, to base 2: how many, their sum, the sum of their squares.
#[derive(Clone, Copy, Default)]
struct Sizes {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Sizes {
    fn add(&mut self, other: Sizes) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// Sum of the squared distances from the mean.
    fn spread(self) -> f64 {
        (self.squares - self.sum * self.sum / self.count as f64).max(0.0)
    }
}

impl Evidence {
    /// Whether only wrappers call this: then it is part of them.
    fn is_part_of(&self, wrappers: &FxHashSet<u32>) -> bool {
        let callers = self
            .callers
            .iter()
            .filter(|(caller, _)| wrappers.contains(caller));
        let by_wrappers: u64 = callers.map(|(_, sizes)| sizes.count).sum();
        by_wrappers > 0 && (self.samples - by_wrappers + self.elsewhere) * 50 <= self.samples
    }

    /// Whether this is a wrapper. `is_hinted`: its name says that it allocates.
    fn is_of_wrapper(&self, is_hinted: bool) -> bool {
        let (samples, callers, largest_share) = match is_hinted {
            true => (10, 2, 0.98),
            false => (50, 3, 0.9),
        };
        if self.samples < samples || self.elsewhere * 50 > self.samples {
            return false;
        }
        // Callers of which there are one or two samples say nothing of their sizes.
        let all: Vec<Sizes> = self
            .callers
            .values()
            .copied()
            .filter(|it| it.count >= 3)
            .collect();
        let mut total = Sizes::default();
        all.iter().for_each(|sizes| total.add(*sizes));
        let largest = all.iter().map(|sizes| sizes.count).max().unwrap_or(0);
        if all.len() < callers || largest as f64 > largest_share * total.count as f64 {
            return false;
        }
        // The square of an eighth of a doubling: all are of one size, but for rounding.
        const ONE_SIZE: f64 = 1.0 / 64.0;
        // Sizes differ by a doubling, as arguments do.
        const ANY_SIZE: f64 = 1.0;
        let spread = total.spread();
        let variance = spread / total.count as f64;
        if variance < ONE_SIZE {
            return false;
        }
        let within: f64 = all.iter().map(|sizes| sizes.spread()).sum();
        let freedom = (total.count - 1) as f64 / (total.count as f64 - all.len() as f64);
        // Adjusted for the number of callers, as is usual: many callers explain much by chance.
        let explained = 1.0 - within / spread * freedom;
        is_hinted || variance >= ANY_SIZE || explained >= 0.3
    }
}

/// The samples of one stack.
struct Stack {
    /// Functions, leaf first.
    functions: Vec<u32>,
    /// How many of them are passed over.
    passed: usize,
    sizes: Sizes,
}

/// A function that is passed over.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// Its name.
    pub function: String,
    /// Samples of malloc that it was passed over in.
    pub samples: u64,
    /// Of so many.
    pub of_samples: u64,
}

/// The line of the report about functions that are passed over, if there are any.
pub fn line(skipped: &[Skipped]) -> Option<String> {
    const NAMED: usize = 3;
    // One in 200 samples changes no row that anybody looks at.
    let worth = |it: &&Skipped| it.samples * 200 >= it.of_samples;
    let names: Vec<&str> = skipped
        .iter()
        .filter(worth)
        .map(|it| it.function.as_str())
        .collect();
    let more = match names.len().checked_sub(NAMED) {
        None | Some(0) => String::new(),
        Some(1) => " and 1 more wrapper of the allocator".to_owned(),
        Some(more) => format!(" and {more} more wrappers of the allocator"),
    };
    let named = &names[..names.len().min(NAMED)];
    let named = named.join(", ");
    (!names.is_empty())
        .then(|| format!("charged    callers of {named}{more} (--no-skip charges the wrappers)"))
}

/// Makes allocators of the frames of wrappers, and returns the functions that are passed over in any stack, those of most
/// samples first.
pub(crate) fn skip(frames: &Frames<'_>, parts: &mut [Part], charging: &Charging) -> Vec<Skipped> {
    let keys = frames.keys(|frame| (frame.function.as_str(), frame.module.as_str()));
    let name = |function: u32| {
        frames
            .frame(keys.first[function as usize])
            .function
            .as_str()
    };
    let functions = 0..u32::try_from(keys.first.len()).expect("frames have numbers of 32 bits");
    let is_named = |function: u32| {
        charging
            .allocators
            .as_ref()
            .is_some_and(|it| it.is_match(name(function)))
    };
    let is_skipped = |function: &u32| {
        charging.skips_wrappers && is_known(name(*function)) || is_named(*function)
    };
    let mut wrappers: FxHashSet<u32> = functions.filter(is_skipped).collect();
    let mut stacks = stacks(frames, parts, |frame| keys.of_frame[frame.index()]);
    let of_samples = stacks.iter().map(|stack| stack.sizes.count).sum();
    let mut passed: FxHashMap<u32, u64> = FxHashMap::default();
    for level in 0..LEVELS {
        for stack in &mut stacks {
            let own = &stack.functions[stack.passed..];
            for function in own.iter().take_while(|it| wrappers.contains(it)) {
                *passed.entry(*function).or_default() += stack.sizes.count;
                stack.passed += 1;
            }
        }
        let found = match charging.skips_wrappers {
            // Only names go on behind a wrapper that the samples alone show: containers and factories come next.
            true => found(
                &stacks,
                &wrappers,
                |function| is_hinted(name(function)),
                level == 0,
            ),
            false => Vec::new(),
        };
        if found.is_empty() {
            break;
        }
        wrappers.extend(found);
    }
    for (frame, part) in frames.ids().zip(parts) {
        if wrappers.contains(&keys.of_frame[frame.index()]) {
            *part = Part::Allocator;
        }
    }
    let skipped = passed.into_iter().map(|(function, samples)| Skipped {
        function: name(function).to_owned(),
        samples,
        of_samples,
    });
    let mut skipped: Vec<Skipped> = skipped.collect();
    skipped.sort_by(|a, b| {
        b.samples
            .cmp(&a.samples)
            .then_with(|| a.function.cmp(&b.function))
    });
    skipped
}

/// Stacks of malloc's samples that no virtual machine's language is in: there, the language is charged anyway.
fn stacks(frames: &Frames<'_>, parts: &[Part], function_of: impl Fn(FrameId) -> u32) -> Vec<Stack> {
    let profile = frames.profile;
    let nodes = profile.stacks.count();
    let step = nodes.div_ceil(NODES).max(1);
    // By the number of the stack divided by `step`.
    let mut sizes = vec![Sizes::default(); (nodes / step) as usize + 1];
    for sample in &profile.samples {
        let is_looked_at = sample.heap == HeapId::MALLOC && sample.stack.0 % step == 0;
        if let Some(sizes) = sizes.get_mut((sample.stack.0 / step) as usize)
            && is_looked_at
        {
            let log = (sample.size.max(1) as f64).log2();
            sizes.add(Sizes {
                count: 1,
                sum: log,
                squares: log * log,
            });
        }
    }
    let sizes = (0..).map(|number| StackId(number * step)).zip(sizes);
    let sizes = sizes.filter(|(_, sizes)| sizes.count > 0);
    let is_of_language = |frame: &FrameId| {
        let module = frames.frame(*frame).module.as_str();
        profile
            .vm
            .heaps
            .values()
            .any(|machine| machine.name == module)
    };
    let mut own = Vec::new();
    let stacks = sizes.filter_map(|(stack, sizes)| {
        frames.fill_stack(stack, &mut own);
        let passed = own
            .iter()
            .take_while(|it| parts[it.index()] == Part::Allocator)
            .count();
        let is_of_container = own
            .get(passed)
            .is_some_and(|it| parts[it.index()] == Part::Library);
        (!is_of_container && !own.iter().any(is_of_language)).then(|| Stack {
            functions: own[passed..]
                .iter()
                .map(|frame| function_of(*frame))
                .collect(),
            passed: 0,
            sizes,
        })
    });
    stacks.collect()
}

fn is_hinted(function: &str) -> bool {
    let function = function.to_ascii_lowercase();
    HINTS.iter().any(|hint| function.contains(hint))
}

/// Wrappers that the samples show. `without_hint`: among functions with any name.
fn found(
    stacks: &[Stack],
    wrappers: &FxHashSet<u32>,
    is_hinted: impl Fn(u32) -> bool,
    without_hint: bool,
) -> Vec<u32> {
    let mut evidence: FxHashMap<u32, Evidence> = FxHashMap::default();
    for stack in stacks {
        // A function without a caller says nothing of who passes it an argument.
        if let Some([function, caller]) = stack.functions.get(stack.passed..stack.passed + 2) {
            let of_function = evidence.entry(*function).or_default();
            of_function.samples += stack.sizes.count;
            of_function
                .callers
                .entry(*caller)
                .or_default()
                .add(stack.sizes);
        }
    }
    for stack in stacks {
        let callers = stack.functions.get(stack.passed + 1..).unwrap_or_default();
        for (place, function) in callers.iter().enumerate() {
            // Recursion counts once.
            if let Some(evidence) = evidence.get_mut(function)
                && !callers[..place].contains(function)
            {
                evidence.elsewhere += stack.sizes.count;
            }
        }
    }
    let found = evidence.into_iter().filter(|(function, evidence)| {
        let is_hinted = is_hinted(*function);
        evidence.is_part_of(wrappers)
            || (is_hinted || without_hint) && evidence.is_of_wrapper(is_hinted)
    });
    found.map(|(function, _)| function).collect()
}

#[cfg(test)]
mod tests {
    use allocsample_sampling::Random;

    use super::*;

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
        for name in ["xmalloc", "zmalloc_usable", "PyMem_RawMalloc", "strdup"] {
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
        assert!(!matches("ab*ba", "aba") && matches("ab*ba", "abba"));
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
}
