//! Blocks of malloc's that a runtime takes as the memory of its own heap.
//!
//! The objects in that heap are samples themselves, so a sum of both would have that memory twice. Such blocks are moved out of the
//! samples. Those who compare estimates of malloc's heap with other counts (the audit, the coverage, the ledger) add them again.

use std::collections::HashMap;

use allocsample_record::{HeapId, Location, ModuleId, StackId, VmFrame};

use crate::model::{Profile, Sample};

/// The functions of each runtime's that allocate its heap, by the heap's name: native ones, or those that its bridge reports. Only
/// runtimes whose objects the bridge reports apart from malloc's blocks.
const ALLOCATE: &[(&str, &[&str])] = &[
    (
        "ocaml",
        &[
            // OCaml 4: chunks of the major heap, and the minor heap (4.13 calls it by its size, others by words).
            "caml_alloc_for_heap",
            "caml_set_minor_heap_size",
            "caml_set_minor_heap_wsz",
            // OCaml 5: blocks of more than 128 words.
            "caml_shared_try_alloc",
        ],
    ),
    // The first carriers of the emulator's allocators. OTP 29 has no such symbol.
    ("erlang", &["erts_sys_aligned_alloc"]),
    // The nursery, arenas, and what is too large for these when it survives: PyPy's functions have no symbols, so the bridge
    // reports a function of its own while PyPy collects or makes the nursery.
    ("pypy", &["garbage collector"]),
];

/// Frames from `malloc` to such a function, the function included.
const NEAR: usize = 4;

/// See the module.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Backing {
    /// The blocks, in the order in which they were recorded; each has the number of the runtime's heap in place of malloc's.
    pub samples: Vec<Sample>,
}

impl Backing {
    /// The blocks as malloc's.
    pub fn as_mallocs(&self) -> impl Iterator<Item = Sample> + '_ {
        self.samples.iter().map(|&sample| Sample {
            heap: HeapId::MALLOC,
            ..sample
        })
    }
}

impl Profile {
    /// Moves blocks that are the memory of a runtime's heap out of the samples. Uses the names of functions, and must come before
    /// stacks are folded.
    pub fn set_backing_apart(&mut self) {
        let mut sampled: Vec<HeapId> = self.samples.iter().map(|it| it.heap).collect();
        sampled.sort_unstable();
        sampled.dedup();
        for heap in sampled {
            let name = self.vm.heaps.get(&heap).map(|heap| heap.name.as_str());
            let known = ALLOCATE.iter().find(|(known, _)| Some(*known) == name);
            if let Some((_, functions)) = known {
                self.set_apart_for(heap, functions);
            }
        }
    }

    fn set_apart_for(&mut self, heap: HeapId, functions: &[&str]) {
        let mut known: HashMap<StackId, bool> = HashMap::new();
        let is_kept = self.samples.iter().map(|sample| {
            let stack = sample.stack;
            let mut is_backing = || {
                *(known.entry(stack))
                    .or_insert_with(|| self.is_allocated_by(stack, heap, functions))
            };
            sample.heap != HeapId::MALLOC || !is_backing()
        });
        let is_kept: Vec<bool> = is_kept.collect();
        let apart = (self.samples.iter().zip(&is_kept)).filter(|(_, is_kept)| !**is_kept);
        let apart: Vec<Sample> = apart.map(|(sample, _)| Sample { heap, ..sample }).collect();
        self.backing.samples.extend(apart);
        self.keep_rows(&is_kept);
    }

    fn is_allocated_by(&self, stack: StackId, heap: HeapId, functions: &[&str]) -> bool {
        let is_its_own = |place: Location| {
            let frame = VmFrame::decode(place.offset).filter(|_| place.module == ModuleId::VM);
            let function = frame
                .filter(|it| it.heap == heap)
                .and_then(|it| self.vm.function(it));
            function.is_some_and(|(function, _)| functions.contains(&&*function.name))
        };
        let is_named = |place: Location| {
            let frames = self.symbols.frames.get(&place).into_iter().flatten();
            let mut names = frames.filter_map(|frame| frame.function.as_deref());
            names.any(|name| functions.contains(&name)) || is_its_own(place)
        };
        self.stacks.locations(stack).take(NEAR).any(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::Heap;
    use allocsample_record::{ModuleId, StackNode, SymbolFrame, ThreadId};
    use std::num::NonZeroU64;

    const OCAML: HeapId = HeapId(2);

    /// A profile of which each stack is one of these chains of functions, leaf first. A sample of malloc's for each, of 1, 2, ... bytes,
    /// freed at 100 times as many ns, and one of a machine's heap with this name, which has the first stack.
    fn profile(heap: &str, stacks: &[&[&str]]) -> Profile {
        let mut profile = Profile::default();
        let heap = Heap {
            name: heap.to_owned(),
            kind: None,
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(OCAML, heap);
        let mut places: Vec<&str> = Vec::new();
        for (number, names) in stacks.iter().enumerate() {
            let mut stack = StackId::EMPTY;
            for name in names.iter().rev() {
                let known = places.iter().position(|it| it == name);
                let offset = known.unwrap_or_else(|| {
                    places.push(name);
                    places.len() - 1
                }) as u64;
                let location = Location {
                    module: ModuleId(1),
                    offset,
                };
                let frame = SymbolFrame {
                    function: Some((*name).into()),
                    ..SymbolFrame::default()
                };
                profile.symbols.frames.insert(location, vec![frame]);
                stack = profile.stacks.push(StackNode {
                    parent: stack,
                    location,
                });
            }
            profile.samples.push(Sample {
                size: number as u64 + 1,
                stack,
                freed_ns: NonZeroU64::new((number as u64 + 1) * 100),
                freed_by: ThreadId(1),
                ..Sample::default()
            });
            profile.free_stacks.push((number as u32, StackId(1)));
        }
        let first = profile.samples.at(0);
        profile.samples.push(Sample {
            heap: OCAML,
            ..first
        });
        profile
    }

    const CHUNK: &[&str] = &["malloc", "caml_alloc_for_heap", "expand_heap", "main"];
    const BUFFER: &[&str] = &["malloc", "caml_stat_alloc", "caml_ba_alloc", "main"];
    /// The heap grows, which calls back into the program.
    const FAR: &[&str] = &["malloc", "a", "b", "c", "caml_alloc_for_heap", "main"];

    fn sizes(samples: impl Iterator<Item = Sample>) -> Vec<(u16, u64)> {
        samples.map(|it| (it.heap.0, it.size)).collect()
    }

    #[test]
    fn blocks_that_the_runtime_takes_for_its_heap_are_set_apart() {
        let mut profile = profile("ocaml", &[BUFFER, CHUNK, FAR, CHUNK]);
        profile.set_backing_apart();
        assert_eq!(sizes(profile.samples.iter()), [(0, 1), (0, 3), (2, 1)]);
        assert_eq!(
            sizes(profile.backing.samples.iter().copied()),
            [(2, 2), (2, 4)]
        );
        assert_eq!(sizes(profile.backing.as_mallocs()), [(0, 2), (0, 4)]);
        // What refers to rows moves with them.
        let rows: Vec<u32> = profile.free_stacks.iter().map(|it| it.0).collect();
        assert_eq!(rows, [0, 1]);
        // Once more changes nothing.
        profile.set_backing_apart();
        assert_eq!(
            (profile.samples.len(), profile.backing.samples.len()),
            (3, 2)
        );
    }

    #[test]
    fn blocks_below_a_function_that_the_bridge_reports_are_set_apart_for_its_heap_alone() {
        let mut profile = profile("pypy", &[BUFFER, CHUNK]);
        for (number, name) in [(7, "garbage collector"), (8, "collect")] {
            let function = crate::vm::Function {
                name: name.to_owned(),
                file: String::new(),
                line: 0,
            };
            for heap in [OCAML, HeapId(3)] {
                profile
                    .vm
                    .functions
                    .insert((heap, number), function.clone());
            }
        }
        let malloc = profile.samples.at(0);
        for (heap, function) in [(OCAML, 7), (OCAML, 8), (HeapId(3), 7)] {
            let frame = VmFrame {
                heap,
                function,
                line: 0,
            };
            let location = Location {
                module: ModuleId::VM,
                offset: frame.encode(),
            };
            let stack = profile.stacks.push(StackNode {
                parent: malloc.stack,
                location,
            });
            let size = 10 + u64::from(function) + u64::from(heap.0);
            profile.samples.push(Sample {
                stack,
                size,
                ..malloc
            });
        }
        profile.set_backing_apart();
        assert_eq!(sizes(profile.backing.samples.iter().copied()), [(2, 19)]);
        assert_eq!(profile.samples.len(), 5);
    }

    #[test]
    fn a_heap_without_samples_and_one_of_another_runtime_have_no_memory_twice() {
        let mut other = profile("lua", &[CHUNK]);
        other.set_backing_apart();
        assert_eq!(other.samples.len(), 2);
        let mut unsampled = profile("ocaml", &[CHUNK]);
        unsampled.keep_rows(&[true, false]);
        unsampled.set_backing_apart();
        assert_eq!(unsampled.samples.len(), 1);
        assert!(unsampled.backing.samples.is_empty());
    }

    #[test]
    fn a_part_of_a_profile_has_its_part_of_them() {
        let mut profile = profile("ocaml", &[CHUNK, CHUNK]);
        profile.set_backing_apart();
        profile.process.end_ns = 1000;
        let mut early = profile.clone();
        early.end_at(150);
        let freed = |profile: &Profile| {
            let all = profile.backing.samples.iter();
            all.map(|it| it.freed_ns.map_or(0, NonZeroU64::get))
                .collect::<Vec<u64>>()
        };
        assert_eq!(freed(&early), [100, 0]);
        profile.retain(|sample| sample.size > 1, |_| true);
        assert_eq!(freed(&profile), [200]);
    }
}
