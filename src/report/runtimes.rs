//! Language runtimes in the process that the profile does not show, why it does not, and what to do about each.
//!
//! A runtime is recognised in the files of the modules ([`allocsample_profile::Runtime`] has the table), or by the name of
//! one that could not be read. Its bridge was on if the profile has its heap.

use std::collections::BTreeMap;

use allocsample_profile::{
    HeapKind, MAPPINGS, MemoryMapping, Note, PAGES, Profile, Runtime, Support, readable,
};

use crate::coverage::{Suspects, has_heap_in};

/// A runtime that is in the process.
struct Here {
    runtime: &'static Runtime,
    version: String,
    /// Whether a stack leads through it, and it is not merely linked into something else.
    is_used: bool,
}

/// A line for each runtime in the process that the profile does not show, or shows only in part. None for a runtime whose heap is not
/// shown and can only be small: it may be linked into the program and never used.
pub fn lines(profile: &Profile) -> Vec<String> {
    let mut suspects = None;
    let mut is_small = || {
        let suspects = suspects.get_or_insert_with(|| Suspects::of_profile(profile));
        (suspects.as_ref()).is_some_and(|it| !it.may_include_a_runtime())
    };
    let mut lines: Vec<_> = (runtimes(profile).values())
        .filter_map(|here| {
            let line = line(profile, here)?;
            let is_about_its_heap =
                line.starts_with("warning: ") && !is_sampled(profile, here.runtime);
            (!is_about_its_heap || !is_small()).then_some(line)
        })
        .collect();
    lines.extend(unsampled_malloc(profile).map(malloc_is_elsewhere));
    lines.extend(inlines_functions(profile).then(|| "note: V8 inlines functions, and what an inlined function allocates is charged to its caller: `allocsample run --inlining off` keeps functions apart".to_owned()));
    lines.extend(has_marker(profile, OLD_CODE_RUNS).then(|| "note: V8 runs code that it compiled before the attach: its inlined functions are charged to their callers, and some of its live objects are missing; `allocsample attach --inlining recompiled` has V8 compile it again".to_owned()));
    lines.sort_by_key(|line| line.starts_with("note"));
    lines
}

/// Whether there are samples of its heap.
fn is_sampled(profile: &Profile, runtime: &Runtime) -> bool {
    heap_of(profile, runtime) == Some(false)
}

/// The module whose malloc stands in front of ours, unless it was sampled where it is.
pub(crate) fn unsampled_malloc(profile: &Profile) -> Option<&str> {
    let mut notes = profile.notes.iter();
    let (_, module) = notes.find(|(note, _)| *note == Note::MallocIsElsewhere)?;
    (!has_heap_in(profile, module)).then_some(module)
}

/// What the bridge marks when V8's CPU profiler has named most stacks of a window.
const INLINED_ARE_NAMED: &str = "V8 names inlined functions";

/// What it marks when V8 was told to inline none, as V8 11 cannot name them.
const NONE_ARE_INLINED: &str = "V8 inlines no functions";

/// What it marks when V8 still runs much code from before an attach.
const OLD_CODE_RUNS: &str = "V8 runs code from before the attach";

fn has_marker(profile: &Profile, name: &str) -> bool {
    (profile.vm.markers.iter()).any(|it| it.name == name)
}

/// Whether there are samples of V8's heap, and V8 was free to inline functions, which its heap profiler does not see and its CPU
/// profiler did not name. Later parts of a recording do not tell: the mark is in the first.
fn inlines_functions(profile: &Profile) -> bool {
    let mut heaps = profile.vm.heaps.iter();
    let heap = heaps.find(|(_, heap)| heap.name == "javascript");
    let is_sampled = heap.is_some_and(|(&id, _)| profile.samples.iter().any(|it| it.heap == id));
    let is_told = (profile.notes.iter()).any(|(note, _)| *note == Note::NotInlined);
    let tells_itself = (profile.process.command_line.iter()).any(|it| it == "--no-turbo-inlining");
    let are_named = has_marker(profile, INLINED_ARE_NAMED) || has_marker(profile, NONE_ARE_INLINED);
    let is_first = profile.part.before == 0;
    is_sampled && !is_told && !tells_itself && !are_named && is_first
}

pub(crate) fn is_libc(file: &str) -> bool {
    file.starts_with("libc.so") || file.starts_with("libc-")
}

/// libc's stands before ours where something else than the loader or `attach` has brought the agent in, as a JVM does.
fn malloc_is_elsewhere(module: &str) -> String {
    if is_libc(module.rsplit('/').next().unwrap_or(module)) {
        "note: the agent was loaded into a running program: no malloc blocks are in this profile, only objects of runtimes".to_owned()
    } else {
        format!(
            "note: {module} brings its own malloc in front of ours: what it serves is not in this profile"
        )
    }
}

/// Runtimes in the process that have memory of their own which the profile does not show.
pub(crate) fn unseen(profile: &Profile) -> Vec<String> {
    // V8's bridge registers its heap before it joins; others join at once, and see what there is.
    const JOINS_LATER: &str = "javascript";
    let all = runtimes(profile);
    let unseen = all.values().filter(|here| {
        let (runtime, support) = (here.runtime, here.runtime.support);
        let may_be_silent = support.heap() == Some(JOINS_LATER)
            || support.is_for(&here.version) == Some(false)
            || is_traced(profile, runtime);
        let is_unseen =
            heap_of(profile, runtime).is_none_or(|is_silent| is_silent && may_be_silent);
        !runtime.is_on_malloc && is_unseen
    });
    unseen.map(|here| here.runtime.name.to_owned()).collect()
}

/// Whether the profile lacks all blocks of `malloc`'s, or a runtime in the process has a heap of its own that it lacks: that
/// nothing leaks cannot be said then.
pub fn is_any_missing(profile: &Profile) -> bool {
    if unsampled_malloc(profile).is_some() {
        return true;
    }
    let mut all = runtimes(profile).into_values();
    all.any(|here| !here.runtime.is_on_malloc && heap_of(profile, here.runtime).is_none())
}

fn line(profile: &Profile, here: &Here) -> Option<String> {
    let Here {
        runtime, version, ..
    } = here;
    let named = match &**version {
        "" => runtime.name.to_owned(),
        version => format!("{} {version}", runtime.name),
    };
    let Runtime {
        support, missing, ..
    } = runtime;
    if let Some(is_silent) = heap_of(profile, runtime) {
        if is_silent && let Some(reason) = declined(profile, runtime) {
            let line = format!("warning: {named}: {missing}: {reason}");
            return Some(with_advice(profile, here, line));
        }
        let is_low = || crate::Coverage::of(profile).is_some_and(|it| it.is_low());
        if is_silent && !runtime.is_on_malloc && !is_traced(profile, runtime) && is_low() {
            let line = match support.refuses(version) {
                true => not_supported(profile, here, &named),
                // `missing` is about a process without a bridge. Samples of malloc may have this runtime's frames.
                false => {
                    format!("warning: {named}: its bridge is there, but no object was sampled")
                }
            };
            return Some(line);
        }
        return match support {
            Support::Bridge { partial, .. }
                if !partial.is_empty()
                    && (support.is_for(version) == Some(false)
                        || lacks_functions(profile, runtime)) =>
            {
                Some(format!("warning: {named}: {partial}"))
            }
            _ => None,
        };
    }
    if runtime.is_on_malloc {
        return here.is_used.then(|| {
            format!(
                "note: {named}: its memory is sampled, but {missing}: {}",
                why(profile, here)
            )
        });
    }
    Some(match support.refuses(version) {
        true => not_supported(profile, here, &named),
        false => {
            let line = format!("warning: {named}: {missing}: {}", why(profile, here));
            with_advice(profile, here, line)
        }
    })
}

fn not_supported(profile: &Profile, here: &Here, named: &str) -> String {
    let missing = here.runtime.missing;
    let line = format!("warning: {named}: this build is not supported, {missing}");
    with_advice(profile, here, line)
}

fn with_advice(profile: &Profile, here: &Here, line: String) -> String {
    match &*advice(profile, here) {
        "" => line,
        advice => format!("{line}; {advice}"),
    }
}

fn is_attached(profile: &Profile) -> bool {
    (profile.notes.iter()).any(|(note, _)| *note == Note::Attached)
}

/// Why its bridge is off.
fn why(profile: &Profile, here: &Here) -> String {
    if here.runtime.support.heap().is_none() {
        return "there is no bridge for it".to_owned();
    }
    match (declined(profile, here.runtime), here.runtime.support) {
        (Some(reason), _) => format!("its bridge did not join ({reason})"),
        (None, support) if is_attached(profile) && !support.joins_late(&here.version) => {
            "its bridge can join only when the program starts".to_owned()
        }
        (None, Support::Optional { .. }) => "its bridge was not asked for".to_owned(),
        (None, Support::Outside { .. }) => "no agent can sample it".to_owned(),
        (None, support) if support.heap() == Some("lua") && is_attached(profile) => {
            "its bridge joins programs that export Lua's functions, and those that use Lua's shared library".to_owned()
        }
        (None, support) if support.heap() == Some("lua") => {
            "its bridge joins `lua`, `luajit`, and programs that open the libraries of Lua's shared library"
                .to_owned()
        }
        // A program that loads it late, as a plugin does, or starts it in another way than its launcher.
        (None, support) if !is_attached(profile) && support.joins_late(&here.version) => {
            "its bridge did not join (where a program loads it late, use `allocsample attach PID` in place of `run`)"
                .to_owned()
        }
        (None, _) => "its bridge did not join".to_owned(),
    }
}

/// The reason that its bridge gave.
fn declined<'a>(profile: &'a Profile, runtime: &Runtime) -> Option<&'a str> {
    let heap = runtime.support.heap()?;
    let mut notes = profile.notes.iter();
    notes.find_map(|(note, detail)| {
        let (whose, reason) = detail.split_once(": ")?;
        (*note == Note::NotJoined && (whose == heap || whose == "all")).then_some(reason)
    })
}

/// Whether its bridge was asked for, and did not join.
fn has_declined(profile: &Profile, runtime: &Runtime) -> bool {
    let heap = runtime.support.heap().unwrap_or_default();
    let mut notes = profile.notes.iter();
    notes.any(|(note, detail)| {
        *note == Note::NotJoined
            && detail
                .split_once(": ")
                .is_some_and(|(whose, _)| whose == heap)
    })
}

fn advice(profile: &Profile, here: &Here) -> String {
    let support = here.runtime.support;
    if matches!(support, Support::Optional { .. }) && has_declined(profile, here.runtime) {
        return String::new();
    }
    let could_join = matches!(support, Support::Bridge { .. }) && !support.refuses(&here.version);
    if is_attached(profile) && could_join && !support.joins_late(&here.version) {
        return "start it with `allocsample run` instead of attaching".to_owned();
    }
    here.runtime.advice.to_owned()
}

/// Whether the heap that its bridge registers has no samples; `None`: there is no such heap. A bridge may register it and find
/// no occasion to join.
fn heap_of(profile: &Profile, runtime: &Runtime) -> Option<bool> {
    let mut heaps = profile.vm.heaps.iter();
    let is_its = |name: &str| Some(name) == runtime.support.heap();
    let (&id, _) = heaps.find(|(_, heap)| is_its(&heap.name))?;
    Some(!profile.samples.iter().any(|sample| sample.heap == id))
}

/// Whether its heap has so many samples that one must have a function, and none has: its frames could not be read.
fn lacks_functions(profile: &Profile, runtime: &Runtime) -> bool {
    const ENOUGH: usize = 32;
    let mut heaps = profile.vm.heaps.iter();
    let its_own = heaps.find(|(_, heap)| Some(&*heap.name) == runtime.support.heap());
    its_own.is_some_and(|(&id, _)| {
        let samples = profile.samples.iter().filter(|sample| sample.heap == id);
        samples.take(ENOUGH).count() == ENOUGH
            && !profile.vm.functions.keys().any(|(heap, _)| *heap == id)
    })
}

/// Whether its heap has frames for the samples of malloc's, and never any of its own.
fn is_traced(profile: &Profile, runtime: &Runtime) -> bool {
    let mut heaps = profile.vm.heaps.values();
    heaps.any(|heap| {
        Some(&*heap.name) == runtime.support.heap() && heap.kind == Some(HeapKind::Traced)
    })
}

/// The runtime whose frames are in the profile and whose objects are not, but would be with `--objects`.
pub(crate) fn with_objects_on_request(profile: &Profile) -> Option<&'static str> {
    const WITH_OBJECTS: &str = "Ruby";
    let runtime = Runtime::named(WITH_OBJECTS)?;
    is_traced(profile, runtime).then_some(runtime.name)
}

/// All in the process, by their names.
fn runtimes(profile: &Profile) -> BTreeMap<&'static str, Here> {
    let mut all: BTreeMap<&'static str, Here> = BTreeMap::new();
    // Mappings or pages in place of samples: nothing is known of the heaps.
    if (profile.vm.heaps.values()).any(|heap| [MAPPINGS, PAGES].contains(&&*heap.name)) {
        return all;
    }
    let mut add = |runtime: &'static Runtime, version: &str, path: &str| {
        let here = all.entry(runtime.name).or_insert_with(|| Here {
            runtime,
            version: String::new(),
            is_used: false,
        });
        if here.version.len() < version.len() {
            here.version = version.to_owned();
        }
        here.is_used |= profile.modules.iter().any(|module| module.path == path)
            && Runtime::of_file(path).is_some();
    };
    for module in &profile.inspected {
        if let Some(runtime) = Runtime::named(&module.runtime)
            && !allocates_by_malloc(profile, runtime)
        {
            add(runtime, &module.version, &module.path);
        }
    }
    // Files that nobody could read.
    if profile.inspected.is_empty() {
        for path in paths(profile) {
            if let Some(runtime) = Runtime::of_file(&path) {
                add(runtime, "", &path);
            }
        }
    }
    all
}

/// Whether the program was told to take all memory of this runtime from `malloc`.
fn allocates_by_malloc(profile: &Profile, runtime: &Runtime) -> bool {
    let mut arguments = profile.process.command_line.iter();
    runtime.name == "D"
        && arguments.any(|it| it.starts_with("--DRT-gcopt=") && it.contains("gc:manual"))
}

/// The program and all modules.
fn paths(profile: &Profile) -> Vec<String> {
    let of_maps = profile.memory.iter().flat_map(|map| {
        let code = map.mappings.iter();
        let code = code.filter(|it| it.is(MemoryMapping::EXECUTABLE));
        code.map(|it| readable(map.name(it)).into_owned())
    });
    let of_stacks = profile.modules.iter().map(|module| module.path.clone());
    let all = of_maps
        .chain(of_stacks)
        .chain([profile.process.executable.clone()]);
    all.map(|path| path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{
        Function, Heap, HeapId, Inspected, Marker, MemoryMap, Module, Sample,
    };

    fn module(path: &str) -> Module {
        Module {
            path: path.to_owned(),
            build_id: Vec::new(),
            start: 0,
            end: 0,
            bias: 0,
        }
    }

    fn with(runtime: &str, version: &str) -> Profile {
        let mut profile = Profile::default();
        let path = format!("/usr/bin/{}", runtime.to_lowercase());
        profile.modules.push(module(&path));
        profile.inspected.push(Inspected {
            path,
            runtime: runtime.to_owned(),
            version: version.to_owned(),
            allocator: String::new(),
        });
        profile
    }

    #[test]
    fn what_is_told_to_allocate_by_malloc_is_not_missing() {
        let mut profile = with("D", "");
        assert_eq!(unseen(&profile), ["D"]);
        let arguments = ["app", "--DRT-gcopt=profile:1 gc:manual"];
        profile.process.command_line = arguments.map(str::to_owned).to_vec();
        assert!(unseen(&profile).is_empty());
        assert!(!is_any_missing(&profile));
        profile.process.command_line.pop();
        assert_eq!(unseen(&profile), ["D"]);
    }

    fn attached(mut profile: Profile) -> Profile {
        profile.notes.push((Note::Attached, String::new()));
        profile
    }

    fn joined(mut profile: Profile, heap: &str) -> Profile {
        let heap = Heap {
            name: heap.to_owned(),
            kind: None,
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        profile
    }

    fn sampled(mut profile: Profile) -> Profile {
        for _ in 0..40 {
            profile.samples.push(Sample {
                heap: HeapId(1),
                ..Sample::default()
            });
        }
        profile
    }

    fn with_a_function(mut profile: Profile) -> Profile {
        let function = Function {
            name: "main".to_owned(),
            file: String::new(),
            line: 1,
        };
        profile.vm.functions.insert((HeapId(1), 1), function);
        profile
    }

    fn declined(mut profile: Profile, detail: &str) -> Profile {
        profile.notes.push((Note::NotJoined, detail.to_owned()));
        profile
    }

    #[test]
    fn a_runtime_that_is_not_shown_is_named_with_its_version_and_the_cause() {
        for (profile, line) in [
            (
                with("Node.js", "16.20.2"),
                "warning: Node.js 16.20.2: this build is not supported, the JavaScript heap is not sampled; `node --heap-prof` samples it",
            ),
            (
                attached(with("Node.js", "16.20.2")),
                "warning: Node.js 16.20.2: this build is not supported, the JavaScript heap is not sampled; `node --heap-prof` samples it",
            ),
            (
                attached(with("Mono", "6.8")),
                "warning: Mono 6.8: the managed heap is not sampled: its bridge can join only when the program starts; start it with `allocsample run` instead of attaching",
            ),
            (
                declined(with("Node.js", "20.20.2"), "all: --runtime none"),
                "warning: Node.js 20.20.2: the JavaScript heap is not sampled: its bridge did not join (--runtime none); `node --heap-prof` samples it",
            ),
            (
                declined(with("Erlang's BEAM", "29"), "all: --runtime none"),
                "warning: Erlang's BEAM 29: the heaps of Erlang's processes are not sampled: its bridge did not join (--runtime none); with the flag `+Mea min` BEAM allocates by malloc",
            ),
            // A program that contains it, or loads it as a part of a plugin.
            (
                with("LuaJIT", "2.1.0"),
                "warning: LuaJIT 2.1.0: its heap is not sampled: its bridge joins `lua`, `luajit`, and programs that open the libraries of Lua's shared library",
            ),
            (
                attached(with("LuaJIT", "2.1.0")),
                "warning: LuaJIT 2.1.0: its heap is not sampled: its bridge joins programs that export Lua's functions, and those that use Lua's shared library",
            ),
            (
                with("Deno", ""),
                "warning: Deno: the JavaScript heap is not sampled: there is no bridge for it",
            ),
            (
                with("Perl", "5.36.0"),
                "note: Perl 5.36.0: its memory is sampled, but functions and lines of Perl are not shown: its bridge did not join (where a program loads it late, use `allocsample attach PID` in place of `run`)",
            ),
            (
                declined(
                    with("Perl", "5.46.0"),
                    "perl: Perl is of a version or a build that is not known",
                ),
                "note: Perl 5.46.0: its memory is sampled, but functions and lines of Perl are not shown: its bridge did not join (Perl is of a version or a build that is not known)",
            ),
            (
                declined(with("PyPy", "7.3.5"), "all: --runtime none"),
                "warning: PyPy 7.3.5: PyPy's heap is not sampled: its bridge did not join (--runtime none); `--runtime pypy` samples it",
            ),
            (
                attached(with("PyPy", "7.3.5")),
                "warning: PyPy 7.3.5: PyPy's heap is not sampled: its bridge was not asked for; `--runtime pypy` samples it",
            ),
            (
                declined(with("PyPy", "9.0.0"), "pypy: its types are not clear"),
                "warning: PyPy 9.0.0: PyPy's heap is not sampled: its bridge did not join (its types are not clear)",
            ),
            (
                declined(with("Mono", ""), "mono: mono_free is missing"),
                "warning: Mono: the managed heap is not sampled: its bridge did not join (mono_free is missing)",
            ),
            (
                declined(
                    joined(with("Node.js", "26.10.0"), "javascript"),
                    "javascript: --heap-prof uses V8's sampling profiler",
                ),
                "warning: Node.js 26.10.0: the JavaScript heap is not sampled: --heap-prof uses V8's sampling profiler; `node --heap-prof` samples it",
            ),
            (
                sampled(joined(with("CPython", "3.16.0"), "python")),
                "warning: CPython 3.16.0: its objects are sampled, but functions, lines and types of Python are not shown: this build is unlike those that are known",
            ),
            (
                sampled(joined(with("Node.js", "26.10.0"), "javascript")),
                "note: V8 inlines functions, and what an inlined function allocates is charged to its caller: `allocsample run --inlining off` keeps functions apart",
            ),
            (
                with("free-threaded CPython", "3.14.10"),
                "warning: free-threaded CPython 3.14.10: objects are not sampled, functions and lines are not shown: its bridge did not join (where a program loads it late, use `allocsample attach PID` in place of `run`)",
            ),
        ] {
            assert_eq!(lines(&profile), [line]);
        }
        let mut told = sampled(joined(with("Node.js", "26.10.0"), "javascript"));
        let mut tells_itself = told.clone();
        told.notes.push((Note::NotInlined, String::new()));
        let command = ["node", "--no-turbo-inlining", "app.js"];
        tells_itself.process.command_line = command.map(str::to_owned).to_vec();
        let inlining = sampled(joined(with("Node.js", "26.10.0"), "javascript"));
        let mut named = inlining.clone();
        named.vm.markers.push(Marker {
            heap: HeapId(1),
            is_phase: false,
            begin_ns: 5,
            end_ns: 5,
            name: INLINED_ARE_NAMED.to_owned(),
        });
        let mut with_old_code = named.clone();
        with_old_code.vm.markers[0].name = OLD_CODE_RUNS.to_owned();
        with_old_code.vm.markers.extend(named.vm.markers.clone());
        let [line] = &lines(&with_old_code)[..] else {
            panic!("{:?}", lines(&with_old_code));
        };
        assert!(line.contains("--inlining recompiled"), "{line}");
        let mut later = inlining;
        later.part.before = 1;
        for profile in [
            told,
            tells_itself,
            named,
            later,
            joined(with("Node.js", "20.20.2"), "javascript"),
            joined(with("CPython", "3.13.0"), "python"),
            with_a_function(sampled(joined(with("CPython", "3.16.0"), "python"))),
            joined(with("CPython", ""), "python"),
            Profile::default(),
        ] {
            assert_eq!(lines(&profile), [] as [String; 0]);
        }
    }

    #[test]
    fn a_bridge_without_samples_is_named_where_memory_is_missing() {
        let mut profile = with_a_function(joined(with("CPython", "3.12.1"), "python"));
        let sampled_malloc = (Note::NextAllocator, "/lib/libc.so.6".to_owned());
        profile.notes.push(sampled_malloc);
        let mut map = MemoryMap::default();
        map.totals.resident_bytes = 300 << 20;
        map.totals.anonymous_bytes = 300 << 20;
        profile.memory.push(map);
        assert_eq!(
            lines(&profile),
            ["warning: CPython 3.12.1: its bridge is there, but no object was sampled"]
        );
        assert!(lines(&sampled(profile)).is_empty());
    }

    #[test]
    fn a_malloc_that_is_not_sampled_leaves_no_verdict() {
        for (module, line) in [
            (
                "/lib/libc.so.6",
                "note: the agent was loaded into a running program: no malloc blocks are in this profile, only objects of runtimes",
            ),
            (
                "/usr/bin/server",
                "note: /usr/bin/server brings its own malloc in front of ours: what it serves is not in this profile",
            ),
        ] {
            let mut profile = joined(with("the JVM", "17.0.15"), "java");
            assert!(!is_any_missing(&profile));
            let note = (Note::MallocIsElsewhere, module.to_owned());
            profile.notes.push(note);
            assert_eq!(lines(&profile), [line]);
            assert!(is_any_missing(&profile));
        }
    }

    #[test]
    fn a_malloc_that_is_sampled_in_its_file_is_not_missing() {
        let mut profile = Profile::default();
        let note = (Note::MallocIsElsewhere, "/usr/bin/server".to_owned());
        profile.notes.push(note);
        assert!(is_any_missing(&profile));
        let heap = Heap {
            name: "tcmalloc in server".to_owned(),
            kind: Some(HeapKind::Allocator),
            ..Heap::default()
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        assert!(!is_any_missing(&profile));
        assert_eq!(lines(&profile), [] as [String; 0]);
    }

    #[test]
    fn a_runtime_whose_file_is_gone_is_known_by_its_name() {
        let mut profile = Profile::default();
        profile.modules.push(module("/usr/bin/php8.2 (deleted)"));
        let lines = lines(&profile);
        assert!(
            matches!(&lines[..], [line] if line.starts_with("warning: PHP: the Zend heap")),
            "{lines:?}"
        );
    }

    /// As Lua is in redis.
    #[test]
    fn a_runtime_on_malloc_that_is_linked_into_another_program_is_not_worth_a_line() {
        let mut profile = with("Lua", "5.1.5");
        let server = "/usr/bin/server".to_owned();
        profile.modules = vec![module(&server)];
        for found in &mut profile.inspected {
            found.path.clone_from(&server);
        }
        assert_eq!(lines(&profile), [] as [String; 0]);
    }
}
