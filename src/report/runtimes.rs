//! Language runtimes in the process whose own heap the profile does not have, and what to do about each.
//!
//! A runtime is recognised by the file name of its program or library, among the modules of the stacks and of the
//! process's mappings. Its bridge was on if the profile has its heap.

use std::collections::BTreeSet;

use allocsample_profile::{MemoryMapping, Note, Profile, readable};

/// A runtime that has memory of its own, or functions that native stacks do not name.
struct Runtime {
    name: &'static str,
    /// Beginnings of the file names of its program and its library, each followed by a version or nothing.
    files: &'static [&'static str],
    /// The heap that its bridge registers; none: there is no bridge.
    heap: Option<&'static str>,
    /// What is missing.
    missing: &'static str,
    /// What makes it visible, when the program was started under the agent.
    advice: &'static str,
    /// The same after an attach.
    advice_attached: &'static str,
}

const START_UNDER_RUN: &str = "start it with `allocsample run` instead of attaching";

const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "Node.js",
        files: &["node", "nodejs", "libnode.so"],
        heap: Some("javascript"),
        missing: "the JavaScript heap is not sampled",
        advice: "its bridge did not join (an unsupported build, or --runtime none); `node --heap-prof` samples that heap",
        advice_attached: START_UNDER_RUN,
    },
    Runtime {
        name: "the JVM",
        files: &["libjvm.so"],
        heap: Some("java"),
        missing: "the Java heap is not sampled",
        advice: "its bridge did not join (a JDK older than 11, or --runtime none)",
        advice_attached: "`allocsample run` samples it, or `jcmd PID JVMTI.agent_load` with liballocsample.so instead of attaching",
    },
    Runtime {
        name: "Ruby",
        files: &["ruby", "libruby"],
        heap: Some("ruby"),
        missing: "methods and lines of Ruby are not shown, nor its slots sampled",
        advice: "its bridge did not join (an unsupported build, or --runtime none)",
        advice_attached: START_UNDER_RUN,
    },
    Runtime {
        name: "PHP",
        files: &["php", "libphp"],
        heap: None,
        missing: "the Zend heap is not sampled",
        advice: "USE_ZEND_ALLOC=0 in its environment makes PHP allocate by malloc",
        advice_attached: "start it with USE_ZEND_ALLOC=0 in its environment, and PHP allocates by malloc",
    },
    Runtime {
        name: "Erlang's BEAM",
        files: &["beam.smp", "beam.debug.smp"],
        heap: None,
        missing: "the heaps of Erlang's processes are not sampled",
        advice: "the flag `+Mea min` makes BEAM allocate by malloc",
        advice_attached: "start it with the flag `+Mea min`, and BEAM allocates by malloc",
    },
    Runtime {
        name: ".NET CoreCLR",
        files: &["libcoreclr.so"],
        heap: None,
        missing: "the managed heap is not sampled",
        advice: "there is no bridge for it",
        advice_attached: "there is no bridge for it",
    },
    Runtime {
        name: "PyPy",
        files: &["pypy", "libpypy"],
        heap: Some("pypy"),
        missing: "PyPy's heap is not sampled",
        advice: "`--runtime pypy` samples it in the builds that integrations/pypy names",
        advice_attached: START_UNDER_RUN,
    },
    Runtime {
        name: "Mono",
        files: &["mono", "mono-sgen", "libmonosgen"],
        heap: Some("mono"),
        missing: "the managed heap is not sampled",
        advice: "its bridge did not join (an unsupported build, or --runtime none)",
        advice_attached: START_UNDER_RUN,
    },
];

/// A line for each runtime in the process whose heap the profile does not have.
pub fn lines(profile: &Profile) -> Vec<String> {
    let is_attached = (profile.notes.iter()).any(|(note, _)| *note == Note::Attached);
    let files = files(profile);
    let missing = RUNTIMES.iter().filter(|runtime| {
        let is_here = |name: &&str| files.iter().any(|file| is_named(file, name));
        runtime.files.iter().any(is_here) && !has_heap(profile, runtime)
    });
    missing
        .map(|runtime| {
            let advice = if is_attached {
                runtime.advice_attached
            } else {
                runtime.advice
            };
            format!("warning: {}: {}; {advice}", runtime.name, runtime.missing)
        })
        .collect()
}

fn has_heap(profile: &Profile, runtime: &Runtime) -> bool {
    let mut heaps = profile.vm.heaps.values();
    heaps.any(|heap| Some(heap.name.as_str()) == runtime.heap)
}

/// File names of the program and of all modules.
fn files(profile: &Profile) -> BTreeSet<String> {
    let of_maps = profile.memory.iter().flat_map(|map| {
        let code = map.mappings.iter();
        let code = code.filter(|it| it.is(MemoryMapping::EXECUTABLE));
        code.map(|it| readable(map.name(it)).into_owned())
    });
    let paths = (profile.modules.iter())
        .map(|module| module.path.clone())
        .chain([profile.process.executable.clone()]);
    let file = |path: String| {
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        path.rsplit('/').next().unwrap_or(path).to_owned()
    };
    of_maps.chain(paths).map(file).collect()
}

/// Whether a file is `name`, or `name` with a version: `php8.2`, `libruby-3.1.so.3.1`, but not `phpize`.
fn is_named(file: &str, name: &str) -> bool {
    let Some(rest) = file.strip_prefix(name) else {
        return false;
    };
    rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit() || "-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::Module;

    fn of(path: &str, is_attached: bool) -> Vec<String> {
        let mut profile = Profile::default();
        profile.modules.push(Module {
            path: path.to_owned(),
            build_id: Vec::new(),
            start: 0,
            end: 0,
            bias: 0,
        });
        if is_attached {
            profile.notes.push((Note::Attached, String::new()));
        }
        lines(&profile)
    }

    #[test]
    fn a_runtime_without_its_heap_is_named_with_what_to_do() {
        for (path, is_attached, what) in [
            ("/usr/bin/php8.2", false, "USE_ZEND_ALLOC=0"),
            ("/usr/lib/erlang/erts-13/bin/beam.smp", false, "+Mea min"),
            (
                "/usr/local/bin/node",
                false,
                "the JavaScript heap is not sampled",
            ),
            ("/usr/local/bin/node", true, "instead of attaching"),
            (
                "/usr/lib/jvm/lib/server/libjvm.so",
                true,
                "JVMTI.agent_load",
            ),
            (
                "/usr/lib/libruby-3.3.so.3.3",
                false,
                "its bridge did not join (an unsupported build, or --runtime none)",
            ),
        ] {
            let lines = of(path, is_attached);
            assert!(
                matches!(&lines[..], [line] if line.contains(what)),
                "{path}: {lines:?}"
            );
        }
        for path in [
            "/usr/bin/phpize",
            "/usr/bin/nodename",
            "/usr/bin/monodoc",
            "/usr/bin/true",
        ] {
            assert_eq!(of(path, false), [] as [String; 0], "{path}");
        }
    }
}
