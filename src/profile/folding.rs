//! Takes the frames of a language's runtime out of stacks: the interpreter, the way into it, and the start of the process.
//!
//! ```text
//! recorded                                       folded
//! malloc                    libc                 malloc
//! parse                     _yaml.so             parse
//! _PyObject_Call            libpython3.11.so
//! load                      python               load
//! _PyEval_EvalFrameDefault  libpython3.11.so
//! main                      python               main
//! Py_RunMain                libpython3.11.so
//! __libc_start_main         libc
//! ```
//! Frames of the language stay, and so does all native code that is neither the runtime's nor the C library's. Below the
//! innermost frame of the language, native frames stay only if such code is among them. Stacks without a frame of a language
//! stay as they are. Samples keep all their figures: only the stack that they refer to changes.
//!
//! The runtime's code is found by what it does: it calls the language. A runtime that is part of another program, as Lua is
//! of redis, shares its module with code that must stay; there its functions are told by their names.

use std::collections::BTreeSet;

use allocsample_record::{Location, ModuleId, StackId, StackNode, VmFrame};

use crate::model::{Module, Profile};
use crate::nodes::NodeIndex;
use crate::stacks::StackTable;

/// A runtime that has a bridge.
struct Known {
    /// The name of its heap.
    heap: &'static str,
    /// Beginnings of the names of its own files, each followed by a version or nothing.
    files: &'static [&'static str],
    /// Beginnings of the names of its functions.
    functions: &'static [&'static str],
}

const KNOWN: &[Known] = &[
    Known {
        heap: "python",
        files: &["python", "libpython"],
        functions: &[
            "Py",
            "_Py",
            "pymain_",
            "method_vectorcall",
            "vectorcall",
            "cfunction_",
        ],
    },
    Known {
        heap: "pypy",
        files: &["pypy", "libpypy"],
        functions: &["pypy_", "rpython_"],
    },
    Known {
        heap: "java",
        files: &["java", "libjvm", "libjli"],
        functions: &["JavaCalls::", "JavaThread::", "Java"],
    },
    Known {
        heap: "javascript",
        files: &["node", "nodejs", "libnode"],
        functions: &["Builtins_", "v8::", "node::"],
    },
    Known {
        heap: "ruby",
        files: &["ruby", "libruby", "libruby-"],
        functions: &["rb_", "vm_", "ruby_", "invoke_"],
    },
    Known {
        heap: "lua",
        files: &["lua", "liblua", "luajit", "luajit-", "libluajit-"],
        functions: &["lua", "lj_"],
    },
    Known {
        heap: "perl",
        files: &["perl", "libperl"],
        functions: &["Perl_", "PerlIO", "perl_", "XS_", "S_"],
    },
    Known {
        heap: "r",
        files: &["R", "libR"],
        functions: &["R_", "Rf_", "do_", "Rprintf", "run_Rmainloop"],
    },
    Known {
        heap: "tcl",
        files: &["tclsh", "libtcl"],
        functions: &["Tcl_", "Tcl", "TclOO"],
    },
    Known {
        heap: "guile",
        files: &["guile", "libguile"],
        functions: &["scm_", "GC_call_with_stack_base"],
    },
    Known {
        heap: "mono",
        files: &["mono", "mono-sgen", "libmonosgen-", "libmono-"],
        functions: &["mono_"],
    },
];

impl Known {
    fn of_heap(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.heap == name)
    }

    fn has_file(&self, name: &str) -> bool {
        let is_version = |rest: &str| {
            let rest = rest.replacen(".so", "", 1);
            // Python's letters for how it was built are part of its version.
            let is_part = |it: char| it.is_ascii_digit() || "._-mdut".contains(it);
            rest.chars().all(is_part)
        };
        let mut files = self.files.iter();
        files.any(|start| name.strip_prefix(start).is_some_and(is_version))
    }
}

/// Files of the system that serve whoever calls them: that they allocate says nothing.
const SYSTEM: &[&str] = &[
    "libc.so",
    "libc-",
    "ld-linux",
    "ld-musl",
    "libpthread",
    "libstdc++.so",
    "libgcc_s.so",
    "libdl",
    "[vdso]",
    "liballocsample",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
];

/// Whether a module serves whoever calls it, as the C library does.
pub fn is_of_system(module: &str) -> bool {
    SYSTEM.iter().any(|start| module.starts_with(start))
}

/// Which native code belongs to the runtimes of the languages that a process runs.
#[derive(Clone, Debug, Default)]
pub struct Runtimes {
    /// Names of modules that are theirs.
    own: BTreeSet<String>,
    /// Names of modules that one of them is a part of, and how the names of its functions begin there.
    shared: Vec<(String, &'static [&'static str])>,
    /// Functions of programs that call the language, with their modules, where nothing else is known of the machine.
    loops: BTreeSet<(String, String)>,
}

impl Runtimes {
    /// Whether none was found.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.shared.is_empty()
    }

    /// Whether a module is a runtime's, or has one in it.
    pub fn has_module(&self, module: &str) -> bool {
        self.own.contains(module) || self.shared.iter().any(|(shared, _)| shared == module)
    }

    /// Whether a function in a module is a runtime's.
    pub fn own(&self, module: &str, function: &str) -> bool {
        self.own.contains(module)
            || self.shared.iter().any(|(shared, starts)| {
                shared == module && starts.iter().any(|start| function.starts_with(start))
            })
    }

    /// Those that run the language whose frames are in a profile's stacks.
    fn of(profile: &Profile) -> Self {
        let mut found = Self::default();
        // Most programs have no machine, and there may be millions of stacks.
        if profile.vm.heaps.is_empty() {
            return found;
        }
        let heap_of = |place: Location| {
            let frame = VmFrame::decode(place.offset).filter(|_| place.module == ModuleId::VM)?;
            profile.vm.heaps.get(&frame.heap)
        };
        let heap_name = |place: Location| heap_of(place).map(|heap| heap.name.as_str());
        let places = profile.stacks.places().iter();
        let heaps: BTreeSet<&str> = places.filter_map(|place| heap_name(*place)).collect();
        // Files with a runtime's name are it. What else calls the language then was called by the language itself, and the
        // runtime's frames between them are missing.
        let mut has_files = BTreeSet::new();
        for heap in &heaps {
            let Some(known) = Known::of_heap(heap) else {
                continue;
            };
            let modules = profile.modules.iter().map(Module::name);
            let own = modules.filter(|name| known.has_file(name));
            let before = found.own.len();
            found.own.extend(own.map(str::to_owned));
            if found.own.len() > before {
                has_files.insert(*heap);
            }
        }
        let callers = callers(&profile.stacks, heap_name).into_iter();
        for (heap, caller) in callers.filter(|(heap, _)| !has_files.contains(heap)) {
            if let Some(module) = profile.module(caller.module) {
                let function = profile.outermost_function(caller);
                let is_program = module.path == profile.process.executable;
                found.add(heap, module, function, is_program);
            }
        }
        if heaps.contains("java") {
            found.own.extend(profile.jdk());
        }
        found
    }

    /// Takes in that this function calls the language.
    fn add(&mut self, heap: &str, module: &Module, function: Option<&str>, is_program: bool) {
        let name = module.name();
        let is_system = is_of_system(name);
        match Known::of_heap(heap) {
            _ if is_system => {}
            Some(known) => {
                let is_named =
                    |name: &str| known.functions.iter().any(|start| name.starts_with(start));
                match function {
                    // A library without symbols that calls the language is there to do that.
                    None if !is_program => {
                        self.own.insert(name.to_owned());
                    }
                    Some(function) if is_named(function) => {
                        let shared = (name.to_owned(), known.functions);
                        if !self.shared.contains(&shared) {
                            self.shared.push(shared);
                        }
                    }
                    _ => {}
                }
            }
            // A machine that we have no bridge for, which calls the hooks itself. In a program there is more than it.
            None if is_program => {
                self.loops
                    .extend(function.map(|it| (name.to_owned(), it.to_owned())));
            }
            None => {
                self.own.insert(name.to_owned());
            }
        }
    }
}

/// Heaps of languages with the native code that calls them, each pair once.
fn callers<'h>(
    stacks: &StackTable,
    heap_of: impl Fn(Location) -> Option<&'h str>,
) -> BTreeSet<(&'h str, Location)> {
    let places = stacks.places();
    let heaps: Vec<Option<&str>> = places.iter().map(|place| heap_of(*place)).collect();
    let is_native = |place: u32| {
        let module = places[place as usize].module;
        ![
            ModuleId::VM,
            ModuleId::CODE,
            ModuleId::NONE,
            ModuleId::NO_ROOT,
        ]
        .contains(&module)
    };
    let mut found = BTreeSet::new();
    // For each node the nearest native place at it or among its callers.
    let mut nearest: Vec<Option<u32>> = vec![None];
    for number in 1..=stacks.count() {
        let (parent, place) = stacks.parent_and_place(StackId(number)).unwrap_or_default();
        let above = nearest.get(parent.0 as usize).copied().flatten();
        if let (Some(heap), Some(above)) = (heaps[place as usize], above) {
            found.insert((heap, above));
        }
        nearest.push(if is_native(place) { Some(place) } else { above });
    }
    let location = |(heap, place): (&'h str, u32)| (heap, places[place as usize]);
    found.into_iter().map(location).collect()
}

/// What a place is, as far as folding is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A frame of a language.
    Language,
    /// A runtime's, the system's, or code of no file, such as what a compiler at run time makes.
    Runtime,
    /// Native code of the program or of a library, or a root that is missing.
    Native,
}

impl Profile {
    /// Finds out which native code belongs to the runtimes of languages. Uses the names of functions.
    pub fn find_runtimes(&mut self) {
        self.runtimes = Runtimes::of(self);
    }

    /// Takes the frames of runtimes out of all stacks.
    pub fn fold_runtime_frames(&mut self) {
        self.find_runtimes();
        let parts: Vec<Part> = self
            .stacks
            .places()
            .iter()
            .map(|place| self.part(*place))
            .collect();
        if !parts.contains(&Part::Language) {
            return;
        }
        self.note_mappers();
        let mut is_used = vec![false; self.stacks.count() as usize + 1];
        let stacks_of_samples = self.samples.iter().map(|sample| sample.stack);
        let others = self.ticks.iter().map(|tick| tick.stack);
        let others = others.chain(self.free_stacks.iter().map(|(_, stack)| *stack));
        let others = others.chain(self.mappings.iter().map(|call| call.stack));
        let others = others.chain(self.pages.samples.iter().map(|page| page.stack));
        for stack in stacks_of_samples.chain(others) {
            if let Some(is_used) = is_used.get_mut(stack.0 as usize) {
                *is_used = true;
            }
        }
        let (stacks, new) = fold(&self.stacks, &parts, &is_used);
        let new = |stack: StackId| new.get(stack.0 as usize).copied().unwrap_or(stack);
        for row in 0..self.samples.len() {
            let mut sample = self.samples.at(row);
            sample.stack = new(sample.stack);
            self.samples.set(row, sample);
        }
        for tick in &mut self.ticks {
            tick.stack = new(tick.stack);
        }
        for (_, stack) in &mut self.free_stacks {
            *stack = new(*stack);
        }
        for call in &mut self.mappings {
            call.stack = new(call.stack);
        }
        for page in &mut self.pages.samples {
            page.stack = new(page.stack);
        }
        self.stacks = stacks;
    }

    fn part(&self, place: Location) -> Part {
        let Some(module) = self.module(place.module) else {
            return match place.module {
                ModuleId::VM => Part::Language,
                ModuleId::NO_ROOT => Part::Native,
                _ => Part::Runtime,
            };
        };
        let name = module.name();
        let is_system = is_of_system(name);
        let function = self.outermost_function(place).unwrap_or_default();
        let is_loop = || {
            let mut loops = self.runtimes.loops.iter();
            loops.any(|it| (it.0.as_str(), it.1.as_str()) == (name, function))
        };
        match is_system || self.runtimes.own(name, function) || is_loop() {
            true => Part::Runtime,
            false => Part::Native,
        }
    }

    /// The name of the function that the code at a place was compiled for, if it has a symbol.
    fn outermost_function(&self, place: Location) -> Option<&str> {
        let frames = self.symbols.frames.get(&place)?;
        frames.last()?.function.as_deref()
    }

    /// Names of modules that come with libjvm.so: the native half of Java's own library.
    fn jdk(&self) -> Vec<String> {
        // JAVA_HOME/lib/server/libjvm.so
        let libjvm = self
            .modules
            .iter()
            .find(|module| module.name() == "libjvm.so");
        let home = libjvm.and_then(|module| module.path.rsplitn(3, '/').nth(2));
        let Some(home) = home.filter(|home| !home.is_empty()) else {
            return Vec::new();
        };
        let modules = self.modules.iter();
        let own = modules.filter(|module| {
            module
                .path
                .strip_prefix(home)
                .is_some_and(|rest| rest.starts_with('/'))
        });
        own.map(|module| module.name().to_owned()).collect()
    }
}

/// The folded stacks, and for each stack that is used its new number.
fn fold(old: &StackTable, parts: &[Part], is_used: &[bool]) -> (StackTable, Vec<StackId>) {
    let nodes = old.count() as usize + 1;
    let node = |number: usize| {
        let stack = StackId(u32::try_from(number).unwrap_or(u32::MAX));
        let (parent, place) = old.parent_and_place(stack).unwrap_or_default();
        (parent.0 as usize, place, parts[place as usize])
    };
    // Whether the language is at a node or among its callers, and whether native code of others is above the innermost of it.
    let mut has_language = vec![false; nodes];
    let mut has_native = vec![false; nodes];
    for number in 1..nodes {
        let (parent, _, part) = node(number);
        has_language[number] = part == Part::Language || has_language[parent];
        has_native[number] = match part {
            Part::Language => false,
            Part::Native => true,
            Part::Runtime => has_native[parent],
        };
    }
    // Nodes are needed as the end of a stack, or as callers of the language. Parents come before their children.
    let mut as_end = is_used.to_vec();
    let mut as_caller = vec![false; nodes];
    for number in (1..nodes).rev() {
        let (parent, _, part) = node(number);
        as_caller[number] |= as_end[number] && part == Part::Language;
        as_caller[parent] |= as_caller[number];
        as_end[parent] |= as_end[number] && part != Part::Language;
    }
    let mut new = StackTable::default();
    let mut index = NodeIndex::default();
    let mut callers = vec![StackId::EMPTY; nodes];
    let mut ends = vec![StackId::EMPTY; nodes];
    for number in 1..nodes {
        let (parent, place, part) = node(number);
        let location = old.places()[place as usize];
        let mut below = |parent: StackId| index.intern(&mut new, StackNode { parent, location });
        if as_caller[number] {
            callers[number] = match part {
                Part::Runtime => callers[parent],
                Part::Language | Part::Native => below(callers[parent]),
            };
        }
        if as_end[number] {
            ends[number] = match part {
                Part::Language => callers[number],
                Part::Runtime if has_language[number] && !has_native[number] => ends[parent],
                Part::Runtime | Part::Native => below(ends[parent]),
            };
        }
    }
    (new, ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{Function, Heap};
    use crate::{Sample, SampleId};
    use allocsample_record::{HeapId, SymbolFrame};
    use proptest::prelude::*;

    const MODULES: [&str; 4] = [
        "/usr/lib/libc.so.6",
        "/usr/lib/libpython3.11.so.1.0",
        "/usr/lib/python3/_yaml.so",
        "/usr/bin/uwsgi",
    ];

    /// A frame of one of the modules, of the language, or of no file.
    fn location(kind: usize, offset: u64) -> Location {
        match kind {
            0..4 => Location {
                module: ModuleId(kind as u32 + 1),
                offset,
            },
            4 => Location {
                module: ModuleId::NONE,
                offset,
            },
            _ => Location {
                module: ModuleId::VM,
                offset: VmFrame {
                    heap: HeapId(1),
                    function: offset as u32,
                    line: 0,
                }
                .encode(),
            },
        }
    }

    /// Stacks, root first, one sample of each.
    fn profile(stacks: &[Vec<Location>]) -> Profile {
        let mut profile = Profile::default();
        let module = |path: &&str| Module {
            path: (*path).to_owned(),
            build_id: Vec::new(),
            start: 0,
            end: 0,
            bias: 0,
        };
        profile.modules = MODULES.iter().map(module).collect();
        profile.process.executable = MODULES[3].to_owned();
        let heap = Heap {
            name: "python".to_owned(),
            ..Heap::default()
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        for number in 0..4 {
            let function = Function {
                name: format!("f{number}"),
                file: String::new(),
                line: 1,
            };
            profile.vm.functions.insert((HeapId(1), number), function);
        }
        let mut index = NodeIndex::default();
        for (id, stack) in (1..).zip(stacks) {
            let push = |parent, location: &Location| {
                let node = StackNode {
                    parent,
                    location: *location,
                };
                index.intern(&mut profile.stacks, node)
            };
            let stack = stack.iter().fold(StackId::EMPTY, push);
            profile.samples.push(Sample {
                id: SampleId(id),
                size: id * 16,
                stack,
                ..Sample::default()
            });
        }
        profile
    }

    /// Leaf first, as the samples have them.
    fn stacks_of(profile: &Profile) -> Vec<Vec<Location>> {
        let samples = profile.samples.iter();
        samples
            .map(|sample| profile.stacks.locations(sample.stack).collect())
            .collect()
    }

    #[test]
    fn the_language_is_shown_with_native_code_that_is_not_its_runtimes() {
        let (libc, runtime, extension, program) = (0, 1, 2, 3);
        let (jit, language) = (4, 5);
        for (recorded, folded) in [
            // From the root: start-up, the interpreter, and what it allocates for a function.
            (
                vec![libc, runtime, language, runtime, language, runtime, libc],
                vec![language, language],
            ),
            // An extension, and what it calls.
            (
                vec![runtime, language, runtime, extension, runtime, libc],
                vec![language, extension, runtime, libc],
            ),
            // It calls the language.
            (
                vec![
                    runtime, language, extension, libc, runtime, language, runtime,
                ],
                vec![language, extension, language],
            ),
            // Another program starts the interpreter.
            (
                vec![libc, program, runtime, language, jit],
                vec![program, language],
            ),
            // No language.
            (
                vec![libc, program, runtime, libc],
                vec![libc, program, runtime, libc],
            ),
        ] {
            let locations = |kinds: &[usize]| -> Vec<Location> {
                kinds.iter().map(|kind| location(*kind, 1)).collect()
            };
            let mut profile = profile(&[locations(&recorded)]);
            profile.fold_runtime_frames();
            let mut shown = stacks_of(&profile).remove(0);
            shown.reverse();
            assert_eq!(shown, locations(&folded), "{recorded:?}");
        }
    }

    #[test]
    fn a_runtime_inside_another_program_is_told_by_the_names_of_its_functions() {
        let frames = [
            location(3, 1),
            location(3, 2),
            location(5, 1),
            location(3, 3),
        ];
        let mut profile = profile(&[frames.to_vec()]);
        profile.modules[1].path = "/usr/lib/libother.so".to_owned();
        for (frame, name) in frames.iter().zip(["main", "PyEval_EvalCode", "", "handle"]) {
            let symbol = SymbolFrame {
                function: Some(name.into()),
                ..SymbolFrame::default()
            };
            profile.symbols.frames.insert(*frame, vec![symbol]);
        }
        profile.fold_runtime_frames();
        let shown = stacks_of(&profile).remove(0);
        assert_eq!(shown, [frames[3], frames[2], frames[0]]);
    }

    proptest! {
        #[test]
        fn folding_changes_no_sum_and_keeps_the_code_of_extensions(
            stacks in proptest::collection::vec(proptest::collection::vec((0usize..6, 0u64..4), 1..12), 1..40),
        ) {
            let stacks: Vec<Vec<Location>> = stacks.iter()
                .map(|stack| stack.iter().map(|(kind, offset)| location(*kind, *offset)).collect())
                .collect();
            let before = profile(&stacks);
            let mut after = before.clone();
            after.fold_runtime_frames();
            prop_assert_eq!(before.samples.len(), after.samples.len());
            for (one, other) in before.samples.iter().zip(&after.samples) {
                prop_assert_eq!((one.id, one.size, one.time_ns), (other.id, other.size, other.time_ns));
            }
            let language = |place: &Location| place.module == ModuleId::VM;
            let others = |place: &Location| [ModuleId(3), ModuleId(4)].contains(&place.module);
            for (recorded, folded) in stacks_of(&before).iter().zip(&stacks_of(&after)) {
                if !recorded.iter().any(language) {
                    prop_assert_eq!(recorded, folded);
                    continue;
                }
                // The language and all code of others, in their order.
                let kept = |stack: &[Location]| -> Vec<Location> {
                    stack.iter().filter(|it| language(it) || others(it)).copied().collect()
                };
                prop_assert_eq!(kept(recorded), kept(folded));
                // What an extension calls in order to allocate stays as it is.
                let end = recorded.iter().position(language).unwrap_or(0);
                let native = recorded[..end].iter().rposition(others).map_or(0, |at| at + 1);
                prop_assert_eq!(&recorded[..native], &folded[..native]);
                // Nothing else is below the language, and nothing of the runtime above it.
                let rest = &folded[native..];
                prop_assert!(rest.iter().all(|it| language(it) || others(it)));
            }
        }
    }
}
