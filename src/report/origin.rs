//! Where code comes from: the package that a source file belongs to, and a path that names it.
//!
//! `functools.py:58` could be anybody's. `python3.11/functools.py:58` is Python's, `aiohttp/web_app.py:112` is a package's,
//! and `shop/views.py:31` is neither: the user's own.

use std::collections::HashMap;

use allocsample_profile::{Frame, Profile};

use crate::jars::Jars;

/// What a path says of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The part of the path that names the file, whoever reads it.
    pub path: &'a str,
    /// Whether it belongs to a package or to the language's own library.
    pub is_library: bool,
    /// The directory that lists installed packages, and the name of this one.
    pub(crate) installed: Option<(&'a str, &'a str)>,
}

/// Components of a path that say nothing else of its file.
const COMPONENTS: usize = 2;

impl<'a> Origin<'a> {
    /// Of a source file.
    pub fn of(file: &'a str) -> Self {
        Self::of_library(file).unwrap_or_else(|| Self {
            path: last_components(file, COMPONENTS),
            is_library: false,
            installed: None,
        })
    }

    fn of_library(file: &'a str) -> Option<Self> {
        let library = |path| Self {
            path,
            is_library: true,
            installed: None,
        };
        for packages in ["/node_modules/", "/site-packages/", "/dist-packages/"] {
            let Some(at) = file.rfind(packages) else {
                continue;
            };
            let start = at + packages.len();
            let path = &file[start..];
            let name_length = match path.starts_with('@') {
                true => path.match_indices('/').nth(1).map(|(at, _)| at),
                false => path.find('/'),
            };
            let name = &path[..name_length.unwrap_or(path.len())];
            return Some(Self {
                installed: Some((&file[..start - 1], name)),
                ..library(path)
            });
        }
        // A directory with a version in its name comes next.
        for versioned in ["/gems/", "/registry/src/"] {
            if let Some(at) = file.rfind(versioned) {
                let path = &file[at + versioned.len()..];
                let is_registry = versioned == "/registry/src/";
                let path = match path.split_once('/') {
                    Some((_, path)) if is_registry => path,
                    _ => path,
                };
                return Some(library(path));
            }
        }
        // Languages' own libraries. The name of the directory stays.
        for own in [
            "/lib/python",
            "/lib/ruby/",
            "/lib/pypy",
            "/share/lua/",
            "/library/",
            "/include/",
        ] {
            let Some(at) = file.rfind(own) else {
                continue;
            };
            let (start, is_theirs) = match own {
                "/library/" => (
                    at + 1,
                    file.contains("/rustc/") || file.contains("/rustlib/"),
                ),
                "/include/" => (at + own.len(), file.starts_with("/usr/")),
                "/share/lua/" => (at + "/share/".len(), true),
                _ => (at + "/lib/".len(), true),
            };
            if is_theirs {
                return Some(library(&file[start..]));
            }
        }
        let is_built_in = ["node:", "<frozen ", "<internal:", "<built-in", "internal/"];
        let is_built_in = is_built_in.iter().any(|start| file.starts_with(start));
        is_built_in.then(|| library(file))
    }
}

/// The end of a path with so many components.
fn last_components(path: &str, components: usize) -> &str {
    let mut slashes = path.rmatch_indices('/');
    match slashes.nth(components - 1) {
        Some((at, _)) => &path[at + 1..],
        None => path,
    }
}

/// A source file's line, in a path that names its package: `aiohttp/web_app.py:112`.
pub fn place(frame: &Frame) -> Option<String> {
    let file = frame.file.as_deref()?;
    let line = match frame.line {
        0 => String::new(),
        line => format!(":{line}"),
    };
    Some(match of_java_class(frame) {
        Some(directory) => format!("{directory}/{file}{line}"),
        None => format!("{}{line}", Origin::of(file).path),
    })
}

/// The directory of a class's source file, which Java names without it: its package.
fn of_java_class(frame: &Frame) -> Option<String> {
    let file = frame.file.as_deref()?;
    if frame.module != "java" || file.contains('/') {
        return None;
    }
    let (package, _class) = class_of(frame)?.rsplit_once('.')?;
    Some(package.replace('.', "/"))
}

/// The class of a method of Java.
pub(crate) fn class_of(frame: &Frame) -> Option<&str> {
    frame
        .function
        .rsplit_once('.')
        .map(|(class, _method)| class)
}

/// Paths of files that are shown together: each as short as it can be without being another's.
pub fn distinct_paths<'a>(files: impl IntoIterator<Item = &'a str>) -> HashMap<&'a str, &'a str> {
    let mut paths: HashMap<&str, &str> = HashMap::new();
    for file in files {
        paths.entry(file).or_insert_with(|| Origin::of(file).path);
    }
    for components in COMPONENTS + 1.. {
        let mut files_of: HashMap<&str, usize> = HashMap::new();
        for path in paths.values() {
            *files_of.entry(path).or_default() += 1;
        }
        let mut is_any_longer = false;
        for (file, path) in &mut paths {
            if files_of[path] > 1 && path.len() < file.len() {
                *path = last_components(file, components);
                is_any_longer = true;
            }
        }
        if !is_any_longer {
            break;
        }
    }
    paths
}

/// Whether a frame is of code that the user wrote, as far as its file and module tell.
pub fn is_own(profile: &Profile, jars: &Jars, frame: &Frame) -> bool {
    const JAVA: [&str; 5] = ["java.", "javax.", "jdk.", "sun.", "com.sun."];
    let is_of_language = profile
        .vm
        .heaps
        .values()
        .any(|heap| heap.name == frame.module);
    if is_of_language {
        let function = frame.function.as_str();
        let is_javas = || {
            JAVA.iter().any(|start| function.starts_with(start))
                || class_of(frame).is_some_and(|class| jars.is_library(class))
        };
        let file = frame.file.as_deref();
        return !(frame.module == "java" && is_javas())
            && file.is_some_and(|file| !Origin::of(file).is_library);
    }
    if profile.runtimes.own(&frame.module, &frame.function) {
        return false;
    }
    if let Some(file) = &frame.file
        && Origin::of(file).is_library
    {
        return false;
    }
    // Installed libraries are the system's; what a user builds is elsewhere, or is the program.
    let mut modules = profile.modules.iter();
    let module = modules.find(|module| module.name() == frame.module);
    module.is_some_and(|module| {
        let path = module.path.as_str();
        let is_system = ["/usr/lib", "/lib"]
            .iter()
            .any(|start| path.starts_with(start));
        path == profile.process.executable || !is_system && !Origin::of(path).is_library
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_the_package() {
        for (file, path, is_library) in [
            (
                "/opt/venv/lib/python3.11/site-packages/aiohttp/web_app.py",
                "aiohttp/web_app.py",
                true,
            ),
            (
                "/usr/lib/python3/dist-packages/yaml/__init__.py",
                "yaml/__init__.py",
                true,
            ),
            (
                "/usr/lib/python3.11/functools.py",
                "python3.11/functools.py",
                true,
            ),
            (
                "/srv/app/node_modules/@scope/pkg/lib/a.js",
                "@scope/pkg/lib/a.js",
                true,
            ),
            (
                "/srv/app/node_modules/a/node_modules/b/i.js",
                "b/i.js",
                true,
            ),
            ("node:internal/streams", "node:internal/streams", true),
            (
                "/var/lib/gems/3.1.0/gems/rack-3.0.8/lib/rack.rb",
                "rack-3.0.8/lib/rack.rb",
                true,
            ),
            (
                "/root/.cargo/registry/src/index-6f17d22bba15001f/serde-1.0.1/src/de.rs",
                "serde-1.0.1/src/de.rs",
                true,
            ),
            (
                "/rustc/0123/library/alloc/src/vec/mod.rs",
                "library/alloc/src/vec/mod.rs",
                true,
            ),
            (
                "/usr/include/c++/12/bits/stl_tree.h",
                "c++/12/bits/stl_tree.h",
                true,
            ),
            (
                "<frozen importlib._bootstrap>",
                "<frozen importlib._bootstrap>",
                true,
            ),
            ("/srv/shop/views.py", "shop/views.py", false),
            ("/home/me/library/books.rs", "library/books.rs", false),
            ("main.c", "main.c", false),
        ] {
            let origin = Origin::of(file);
            assert_eq!(
                (origin.path, origin.is_library),
                (path, is_library),
                "{file}"
            );
        }
    }

    #[test]
    fn classes_of_java_have_the_path_of_their_package() {
        let frame = Frame {
            function: "java.util.HashMap.resize".into(),
            file: Some("HashMap.java".into()),
            line: 704,
            module: "java".into(),
            is_symbolized: true,
            file_end: None,
        };
        assert_eq!(place(&frame).as_deref(), Some("java/util/HashMap.java:704"));
    }

    #[test]
    fn files_that_are_shown_together_have_different_paths() {
        let files = [
            "/a/x/src/mod.rs",
            "/a/y/src/mod.rs",
            "/a/y/src/main.rs",
            "mod.rs",
        ];
        let paths = distinct_paths(files);
        assert_eq!(paths["/a/x/src/mod.rs"], "x/src/mod.rs");
        assert_eq!(paths["/a/y/src/mod.rs"], "y/src/mod.rs");
        assert_eq!(paths["/a/y/src/main.rs"], "src/main.rs");
        assert_eq!(paths["mod.rs"], "mod.rs");
    }

    #[test]
    fn code_is_the_users_unless_it_is_installed() {
        let mut profile = Profile::default();
        let heap = allocsample_profile::Heap {
            name: "python".into(),
            ..Default::default()
        };
        profile
            .vm
            .heaps
            .insert(allocsample_profile::HeapId(1), heap);
        profile.process.executable = "/usr/bin/app".into();
        for path in [
            "/usr/bin/app",
            "/srv/app/libown.so",
            "/usr/lib/x86_64-linux-gnu/libglib-2.0.so.0",
            "/opt/py/lib/python3.11/lib-dynload/_asyncio.so",
            "/opt/venv/lib/python3.11/site-packages/numpy/core.so",
        ] {
            profile.modules.push(allocsample_profile::Module {
                path: path.into(),
                build_id: Vec::new(),
                start: 0,
                end: 0,
                bias: 0,
            });
        }
        for (module, file, is_users) in [
            ("app", None, true),
            ("app", Some("/usr/include/c++/12/bits/stl_tree.h"), false),
            ("libown.so", None, true),
            ("libglib-2.0.so.0", None, false),
            ("_asyncio.so", Some("Modules/_asynciomodule.c"), false),
            ("core.so", None, false),
            ("python", Some("/srv/shop/views.py"), true),
            ("python", Some("/usr/lib/python3.11/functools.py"), false),
            ("python", None, false),
        ] {
            let frame = Frame {
                function: "f".into(),
                file: file.map(str::to_owned),
                line: 1,
                module: module.into(),
                is_symbolized: true,
                file_end: None,
            };
            assert_eq!(
                is_own(&profile, &Jars::default(), &frame),
                is_users,
                "{module} {file:?}"
            );
        }
    }
}
