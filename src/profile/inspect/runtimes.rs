//! The table of runtimes: how each is recognised, which bridge it has, what is missing without one, and what to do then.

use super::elf::{Elf, Symbol};
use super::versions::Version::{self, After, Below, FileName, Go, If, Python, Symbol as At, Text};

/// A runtime of languages.
#[derive(Debug)]
pub struct Runtime {
    /// As it is called in [`crate::Inspected::runtime`], and in texts.
    pub name: &'static str,
    /// Beginnings of the file names of its program and its library, each followed by a version or nothing. They decide
    /// where the file cannot be read.
    files: &'static [&'static str],
    /// Symbols that it alone defines, or their beginnings before a `*`: any of them decides. None: the file's name does.
    marks: &'static [&'static str],
    version: &'static [Version],
    /// What we have for it.
    pub support: Support,
    /// Whether its objects come from `malloc`, so that they are sampled all the same.
    pub is_on_malloc: bool,
    /// What is missing without a bridge.
    pub missing: &'static str,
    /// What makes it visible, when the program is started; empty: nothing that we know.
    pub advice: &'static str,
}

/// What we have for a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// No bridge.
    None,
    /// A bridge.
    Bridge {
        /// The heap that it registers.
        heap: &'static str,
        /// The first version that it is made for: major, minor.
        from: [u32; 2],
        /// The last one.
        to: [u32; 2],
        /// What is missing in another version, or where its heap has no functions, although the bridge has joined; empty:
        /// nothing is known to be.
        partial: &'static str,
        /// The first version that it joins in a running process, at an attach: major, minor. `None`: it joins none.
        joins_late: Option<[u32; 2]>,
    },
    /// The same, and only if it is asked for.
    Optional {
        /// The heap that it registers.
        heap: &'static str,
    },
    /// No bridge: `allocsample attach` reads from outside what the runtime knows of itself.
    Outside {
        /// The heap in such a profile.
        heap: &'static str,
    },
}

const ANY: [u32; 2] = [u32::MAX, u32::MAX];
const EVER: Option<[u32; 2]> = Some([0, 0]);

/// Major and minor.
fn numbers(version: &str) -> Option<[u32; 2]> {
    let mut numbers = version.split('.').map_while(|it| it.parse::<u32>().ok());
    let major = numbers.next()?;
    Some([major, numbers.next().unwrap_or(0)])
}

impl Support {
    /// Whether the bridge is made for this version. `None`: the version is not known.
    pub fn is_for(self, version: &str) -> Option<bool> {
        let version = numbers(version)?;
        Some(match self {
            Self::None => false,
            Self::Bridge { from, to, .. } => from <= version && version <= to,
            Self::Optional { .. } | Self::Outside { .. } => true,
        })
    }

    /// Whether its bridge is made for other versions than this one. A bridge that is made for none joins all, as far as it can.
    pub fn refuses(self, version: &str) -> bool {
        matches!(self, Self::Bridge { from, .. } if from != ANY)
            && self.is_for(version) == Some(false)
    }

    /// Whether its bridge joins a running process of this version at an attach. `true` if the version is not known, and it
    /// joins some.
    pub fn joins_late(self, version: &str) -> bool {
        match self {
            Self::Bridge {
                joins_late: Some(from),
                ..
            } => numbers(version).is_none_or(|version| from <= version),
            Self::Optional { .. } => true,
            _ => false,
        }
    }

    /// The heap that its bridge registers.
    pub fn heap(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Bridge { heap, .. } | Self::Optional { heap } | Self::Outside { heap } => {
                Some(heap)
            }
        }
    }
}

/// Of any version: it is read as far as it describes itself.
const CPYTHON: Support = Support::Bridge {
    heap: "python",
    from: [3, 6],
    to: ANY,
    partial: "its objects are sampled, but functions, lines and types of Python are not shown: this build is unlike those that are known",
    joins_late: EVER,
};

const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "Deno",
        files: &["deno"],
        marks: &[],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "the JavaScript heap is not sampled",
        advice: "",
    },
    Runtime {
        name: "Bun",
        files: &["bun"],
        marks: &[],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "the JavaScript heap is not sampled",
        advice: "",
    },
    Runtime {
        name: "Chromium",
        files: &["chromium", "chrome"],
        marks: &[],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "what its own allocator serves and the JavaScript heap are not sampled",
        advice: "",
    },
    Runtime {
        name: "Node.js",
        files: &["node", "nodejs", "libnode.so"],
        marks: &["node_module_register"],
        version: &[After("/node-v"), Text("v", 3)],
        support: Support::Bridge {
            heap: "javascript",
            from: [18, 0],
            to: ANY,
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "the JavaScript heap is not sampled",
        advice: "`node --heap-prof` samples it",
    },
    Runtime {
        name: "the JVM",
        files: &["libjvm.so"],
        marks: &["JNI_CreateJavaVM"],
        version: &[After("64-Bit Server VM (")],
        support: Support::Bridge {
            heap: "java",
            from: [11, 0],
            to: ANY,
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "the Java heap is not sampled",
        advice: "`jcmd PID GC.class_histogram` lists what is in it",
    },
    Runtime {
        name: "Ruby",
        files: &["ruby", "libruby"],
        marks: &["ruby_version"],
        version: &[At("ruby_version"), FileName],
        support: Support::Bridge {
            heap: "ruby",
            from: [3, 0],
            to: ANY,
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "object slots are not sampled, methods and lines are not shown",
        advice: "",
    },
    Runtime {
        name: "PHP",
        files: &["php", "libphp"],
        marks: &["zend_parse_parameters", "zend_startup"],
        version: &[After("X-Powered-By: PHP/"), FileName],
        support: Support::Bridge {
            heap: "php",
            from: [7, 4],
            to: ANY,
            partial: "its blocks are sampled, but functions and lines of PHP are not shown: this build keeps its frames in another \
                      way than known ones do",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "the Zend heap is not sampled",
        advice: "with USE_ZEND_ALLOC=0 in its environment PHP allocates by malloc",
    },
    Runtime {
        name: "Erlang's BEAM",
        files: &["beam.smp", "beam.debug.smp"],
        marks: &["driver_alloc", "erl_start"],
        version: &[After("than the current (Erlang/OTP ")],
        support: Support::Bridge {
            heap: "erlang",
            from: [25, 0],
            to: ANY,
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "the heaps of Erlang's processes are not sampled",
        advice: "with the flag `+Mea min` BEAM allocates by malloc",
    },
    Runtime {
        name: ".NET CoreCLR",
        files: &["libcoreclr.so"],
        // The second is that of programs with the runtime in them.
        marks: &["coreclr_initialize", "DotNetRuntimeInfo"],
        version: &[Below("Microsoft.NETCore.App"), After("@(#)Version ")],
        support: Support::Bridge {
            heap: "dotnet",
            from: [7, 0],
            to: ANY,
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "the managed heap is not sampled",
        advice: "",
    },
    Runtime {
        name: ".NET Native AOT",
        files: &[],
        marks: &["DotNetRuntimeDebugHeader"],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "the managed heap is not sampled",
        advice: "the same program built without PublishAot runs on CoreCLR, which has a bridge",
    },
    Runtime {
        name: "OCaml",
        files: &["ocamlrun", "libcamlrun_shared.so"],
        marks: &["caml_main", "caml_startup"],
        version: &[If("caml_domain_spawn", "5"), If("caml_memprof_start", "4")],
        support: Support::Bridge {
            heap: "ocaml",
            from: [4, 0],
            to: ANY,
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "the OCaml heap is not sampled",
        advice: "",
    },
    Runtime {
        name: "PyPy",
        files: &["pypy", "libpypy"],
        marks: &["pypy_execute_source"],
        version: &[After("[PyPy ")],
        support: Support::Optional { heap: "pypy" },
        is_on_malloc: false,
        missing: "PyPy's heap is not sampled",
        advice: "`--runtime pypy` samples it",
    },
    Runtime {
        name: "Mono",
        files: &["mono", "mono-sgen", "libmonosgen"],
        marks: &["mono_jit_init"],
        version: &[],
        support: Support::Bridge {
            heap: "mono",
            from: [0, 0],
            to: ANY,
            partial: "",
            joins_late: None,
        },
        is_on_malloc: false,
        missing: "the managed heap is not sampled",
        advice: "",
    },
    Runtime {
        name: "free-threaded CPython",
        files: &[],
        marks: &["_Py_MergeZeroLocalRefcount"],
        version: &[Python],
        support: CPYTHON,
        is_on_malloc: false,
        missing: "objects are not sampled, functions and lines are not shown",
        advice: "",
    },
    Runtime {
        name: "CPython",
        files: &["python", "libpython"],
        marks: &["PyMem_SetAllocator"],
        version: &[Python, FileName],
        support: CPYTHON,
        is_on_malloc: false,
        missing: "small objects are not sampled, functions and lines are not shown",
        advice: "with PYTHONMALLOC=malloc in its environment Python allocates by malloc",
    },
    Runtime {
        name: "Go",
        files: &[],
        marks: &["runtime.text"],
        version: &[Go],
        support: Support::Outside { heap: "go" },
        is_on_malloc: false,
        missing: "the Go heap is not sampled, only what C code allocates",
        advice: "`allocsample run` and `attach` read the samples that Go's runtime takes into a profile of their own",
    },
    Runtime {
        name: "LuaJIT",
        files: &["luajit", "libluajit"],
        marks: &["luaJIT_setmode"],
        version: &[After("LuaJIT ")],
        support: Support::Bridge {
            heap: "lua",
            from: [2, 0],
            to: [2, 1],
            partial: "its memory is sampled, functions and lines of Lua are not shown",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "its heap is not sampled",
        advice: "",
    },
    Runtime {
        name: "Lua",
        files: &["lua", "liblua"],
        marks: &["lua_newstate"],
        version: &[After("$LuaVersion: Lua "), FileName],
        support: Support::Bridge {
            heap: "lua",
            from: [5, 1],
            to: [5, 5],
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: true,
        missing: "functions and lines of Lua are not shown",
        advice: "",
    },
    Runtime {
        name: "Perl",
        files: &["perl", "libperl.so"],
        marks: &["perl_construct"],
        version: &[Text("v", 3), FileName],
        support: Support::Bridge {
            heap: "perl",
            from: [5, 32],
            to: [5, 44],
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: true,
        missing: "functions and lines of Perl are not shown",
        advice: "",
    },
    Runtime {
        name: "R",
        files: &["R", "libR.so"],
        marks: &["Rf_initialize_R"],
        version: &[],
        support: Support::Bridge {
            heap: "r",
            from: ANY,
            to: [0, 0],
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: true,
        missing: "functions of R are not shown",
        advice: "",
    },
    Runtime {
        name: "Julia",
        files: &["julia", "libjulia.so", "libjulia-internal.so"],
        marks: &["jl_gc_managed_malloc"],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "small objects of Julia are not sampled, its functions are not shown",
        advice: "`Profile.Allocs` (Julia 1.8 and later) samples them",
    },
    Runtime {
        name: "SBCL",
        files: &["sbcl"],
        marks: &["call_into_lisp"],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "the Lisp heap is not sampled",
        advice: "`(sb-sprof:start-profiling :mode :alloc)` samples it",
    },
    Runtime {
        name: "GHC's runtime",
        files: &["libHSrts"],
        marks: &["hs_init_ghc"],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "the heap of Haskell is not sampled",
        advice: "a program that is linked with `-rtsopts` profiles it by type with `+RTS -hT`",
    },
    Runtime {
        name: "Chez Scheme",
        files: &["racket", "petite", "chezscheme"],
        marks: &["Sscheme_init"],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "the heap of Scheme is not sampled, its procedures are not shown",
        advice: "Racket's `(dump-memory-stats)` lists its objects by type",
    },
    Runtime {
        name: "D",
        files: &["libdruntime-ldc-shared.so", "libgphobos.so"],
        // None of the names that our library has as well.
        marks: &["thread_scanAllType"],
        version: &[],
        support: Support::Bridge {
            heap: "d",
            from: ANY,
            to: [0, 0],
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: false,
        missing: "what its collector manages is not sampled",
        advice: "a program that is linked to a shared druntime (`ldc2 -link-defaultlib-shared`, `gdc -shared-libphobos`) is sampled; \
                 with the argument `--DRT-gcopt=gc:manual` D allocates by malloc, and collects nothing",
    },
    Runtime {
        name: "Nim",
        files: &[],
        marks: &["addHeapLink__system_*"],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "what its own allocator serves is not sampled",
        advice: "built with `-d:useMalloc` (and --mm:arc or --mm:orc) it allocates by malloc; `run --pages` shows who touches its memory",
    },
    Runtime {
        name: "Zig's smp_allocator",
        files: &[],
        marks: &["heap.SmpAllocator.alloc"],
        version: &[],
        support: Support::None,
        is_on_malloc: false,
        missing: "what it serves is not sampled",
        advice: "`std.heap.c_allocator` allocates by malloc; `run --pages` shows who touches its memory",
    },
    Runtime {
        name: "Tcl",
        files: &["tclsh", "libtcl"],
        marks: &["Tcl_CreateInterp"],
        version: &[FileName],
        support: Support::Bridge {
            heap: "tcl",
            from: [8, 6],
            to: [9, 1],
            partial: "this version is not known: its procedures are shown from where its stacks were found to be like those of the newest known one, if they are",
            joins_late: EVER,
        },
        is_on_malloc: true,
        missing: "procedures of Tcl are not shown",
        advice: "",
    },
    Runtime {
        name: "Guile",
        files: &["guile", "libguile"],
        marks: &["scm_boot_guile"],
        version: &[FileName],
        support: Support::Bridge {
            heap: "guile",
            from: [3, 0],
            to: [3, 0],
            partial: "",
            joins_late: EVER,
        },
        is_on_malloc: true,
        missing: "procedures of Guile are not shown",
        advice: "",
    },
];

/// Texts that a runtime alone has, for programs that contain it and whose symbols are stripped.
const TEXTS: &[(&str, &str)] = &[("Ignoring GHCRTS variable", "GHC's runtime")];

/// Symbols that versions are read from.
const FACTS: &[&str] = &[
    "caml_domain_spawn",
    "caml_memprof_start",
    "_PyRuntime",
    "Py_Version",
];

pub(super) fn is_mark(name: &str) -> bool {
    FACTS.contains(&name) || RUNTIMES.iter().any(|it| it.is_marked_by(name))
}

/// The runtime in a file, and its version if it says so.
pub(super) fn recognise(
    path: &str,
    elf: &Elf,
    symbols: &[Symbol],
) -> Option<(&'static str, String)> {
    let runtime = RUNTIMES.iter().find(|it| {
        let is_marked = symbols.iter().any(|symbol| it.is_marked_by(&symbol.name));
        is_marked || it.marks.is_empty() && it.name_in(path).is_some()
    });
    let runtime = match runtime {
        Some(runtime) => runtime,
        None => TEXTS
            .iter()
            .find(|(text, _)| elf.find_text(text.as_bytes(), |_| Some(())).is_some())
            .and_then(|(_, name)| Runtime::named(name))?,
    };
    let name = runtime.name_in(path);
    let mut ways = runtime.version.iter();
    let version = ways.find_map(|way| way.read(path, name, elf, symbols));
    Some((runtime.name, version.unwrap_or_default()))
}

impl Runtime {
    /// By its name.
    pub fn named(name: &str) -> Option<&'static Self> {
        RUNTIMES.iter().find(|it| it.name == name)
    }

    fn is_marked_by(&self, symbol: &str) -> bool {
        let is_it = |mark: &&str| match mark.strip_suffix('*') {
            Some(beginning) => symbol.starts_with(beginning),
            None => symbol == *mark,
        };
        self.marks.iter().any(is_it)
    }

    /// By the name of a file that cannot be read.
    pub fn of_file(path: &str) -> Option<&'static Self> {
        RUNTIMES.iter().find(|it| it.name_in(path).is_some())
    }

    /// Which of its names the file has: `php` for `php8.2`, but not for `phpize`.
    fn name_in(&self, path: &str) -> Option<&'static str> {
        let file = path.rsplit('/').next().unwrap_or(path);
        let has_it = |name: &&&str| {
            file.strip_prefix(**name).is_some_and(|rest| {
                rest.is_empty()
                    || rest.starts_with(|c: char| c.is_ascii_digit() || "-.".contains(c))
            })
        };
        self.files
            .iter()
            .filter(has_it)
            .max_by_key(|it| it.len())
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_name_and_a_version() {
        for (path, name) in [
            ("/usr/bin/php8.2", Some("PHP")),
            ("/usr/bin/phpize", None),
            ("/usr/lib/libruby-3.3.so.3.3", Some("Ruby")),
            ("/usr/bin/nodename", None),
            ("/usr/bin/monodoc", None),
            ("/a/beam.smp", Some("Erlang's BEAM")),
            ("/a/bun.exe", Some("Bun")),
            ("/usr/bin/true", None),
        ] {
            assert_eq!(Runtime::of_file(path).map(|it| it.name), name, "{path}");
        }
    }

    #[test]
    fn a_bridge_is_for_the_versions_that_it_is_made_for() {
        let node = Runtime::named("Node.js").expect("Node.js").support;
        assert_eq!(node.is_for("20.20.2"), Some(true));
        assert_eq!(node.is_for("22.9"), Some(true));
        assert_eq!(node.is_for("26.10.0"), Some(true));
        assert_eq!(node.is_for("16.20.2"), Some(false));
        assert_eq!(node.is_for(""), None);
        let ocaml = Runtime::named("OCaml").expect("OCaml").support;
        assert_eq!(
            [ocaml.is_for("3.12"), ocaml.is_for("4"), ocaml.is_for("5")],
            [Some(false), Some(true), Some(true)]
        );
    }

    #[test]
    fn a_bridge_joins_late_from_a_version_on() {
        let bridge = Support::Bridge {
            heap: "managed",
            from: [7, 0],
            to: ANY,
            partial: "",
            joins_late: Some([10, 0]),
        };
        for (version, joins) in [
            ("8.0.4", false),
            ("9.0", false),
            ("10.0.13", true),
            ("11", true),
            ("", true),
        ] {
            assert_eq!(bridge.joins_late(version), joins, "{version}");
        }
        assert!(!Support::None.joins_late("10"));
    }
}
