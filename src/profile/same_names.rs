//! Functions of a language that share their name: the end of its file tells each from the others.
//!
//! `handle` of `a/views.py` and `handle` of `b/views.py` are two functions. Whatever adds up by name would take them for one,
//! and charge what both hold to either file. So they are shown as `handle[a/views.py]` and `handle[b/views.py]`, with as many
//! directories as it takes.
//!
//! Native functions are left alone: the file of a native frame is that of its line, and a function may have lines of several
//! files.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use allocsample_record::HeapId;

use crate::model::Profile;
use crate::vm::{Function, VirtualMachines};

/// Parts of a path that are tried as its end; after these it is the whole path.
const MOST_PARTS: usize = 8;

/// The name of a heap and of a function in it.
type SharedName = (String, String);

/// The end of the file of a function, by heap and number.
pub(crate) type FileEnds = HashMap<(HeapId, u32), String>;

/// Ends of files, of all functions that share a name.
type Ends = BTreeMap<SharedName, BTreeSet<String>>;

impl VirtualMachines {
    /// Finds the functions that share their name.
    pub(crate) fn tell_functions_apart(&mut self) {
        let mut files: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
        for (key, function) in &self.functions {
            if let Some(file) = path_of(function) {
                let name = (self.heap_name(key.0), function.name.as_str());
                files.entry(name).or_default().insert(file);
            }
        }
        files.retain(|_, files| files.len() > 1);
        let ends: BTreeMap<_, _> = files
            .into_iter()
            .map(|(name, files)| (name, ends_of(&files)))
            .collect();
        let end_of = |(key, function): (&(HeapId, u32), &Function)| {
            let name = (self.heap_name(key.0), function.name.as_str());
            let end = ends.get(&name)?.get(path_of(function)?)?;
            Some((*key, (*end).to_owned()))
        };
        self.ends = self.functions.iter().filter_map(end_of).collect();
    }

    fn heap_name(&self, heap: HeapId) -> &str {
        self.heaps.get(&heap).map_or("", |heap| heap.name.as_str())
    }

    fn shared_name(&self, heap: HeapId, function: &Function) -> SharedName {
        (self.heap_name(heap).to_owned(), function.name.clone())
    }

    /// By which ends functions are told apart here.
    fn ends_by_name(&self) -> Ends {
        let mut ends = Ends::new();
        for (key, end) in &self.ends {
            if let Some(function) = self.functions.get(key) {
                let name = self.shared_name(key.0, function);
                ends.entry(name).or_default().insert(end.clone());
            }
        }
        ends
    }

    /// Tells functions apart by these ends, which another profile has.
    fn adopt(&mut self, ends: &Ends) {
        let mut adopted = std::mem::take(&mut self.ends);
        for (key, function) in &self.functions {
            let name = self.shared_name(key.0, function);
            let (Some(ends), Some(file)) = (ends.get(&name), path_of(function)) else {
                continue;
            };
            // The longest: an end may be the end of another one.
            let known = ends.iter().filter(|end| is_end(file, end));
            match known.max_by_key(|end| end.len()) {
                Some(end) => drop(adopted.insert(*key, end.clone())),
                None => drop((adopted.entry(*key)).or_insert_with(|| end_of(file, 1).to_owned())),
            }
        }
        self.ends = adopted;
    }
}

/// Gives functions the same names in all of these profiles, which are about to be compared: those that share their name in one of
/// them, and those that are alone in another, perhaps in another directory.
pub fn align_function_names(profiles: &mut [&mut Profile]) {
    let mut ends = Ends::new();
    for profile in profiles.iter() {
        for (name, of_profile) in profile.vm.ends_by_name() {
            ends.entry(name).or_insert(of_profile);
        }
    }
    if ends.is_empty() {
        return;
    }
    for profile in profiles {
        profile.vm.adopt(&ends);
    }
}

/// The file of a function, if its name is stable: an `eval` is often numbered, so it has none. A query string is cut off, as development
/// servers put the version of a module there.
fn path_of(function: &Function) -> Option<&str> {
    let is_of_path = |char: char| char.is_alphanumeric() || "/._-+@ ".contains(char);
    Some(path_in(&function.file))
        .filter(|path| path.starts_with('/') || path.contains('.') && path.chars().all(is_of_path))
}

fn path_in(file: &str) -> &str {
    let path = file.strip_prefix("file://").unwrap_or(file);
    path.split_once('?').map_or(path, |(path, _)| path)
}

/// The last parts of a path.
fn end_of(path: &str, parts: usize) -> &str {
    let slashes = path.rmatch_indices('/').map(|(at, _)| at + 1);
    slashes.take(parts).last().map_or(path, |at| &path[at..])
}

fn is_end(path: &str, end: &str) -> bool {
    path.strip_suffix(end)
        .is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// For each file the shortest end that no other file has.
fn ends_of<'a>(files: &BTreeSet<&'a str>) -> BTreeMap<&'a str, &'a str> {
    let mut ends = BTreeMap::new();
    let mut left: Vec<&str> = files.iter().copied().collect();
    for parts in 1..=MOST_PARTS {
        let mut count: HashMap<&str, u32> = HashMap::new();
        for file in files {
            *count.entry(end_of(file, parts)).or_default() += 1;
        }
        left.retain(|file| {
            let end = end_of(file, parts);
            let is_alone = count.get(end) == Some(&1);
            if is_alone {
                ends.insert(*file, end);
            }
            !is_alone
        });
        if left.is_empty() {
            break;
        }
    }
    ends.extend(left.into_iter().map(|file| (file, file)));
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::Heap;
    use allocsample_record::{Location, ModuleId, VmFrame};
    use allocsample_sampling::Random;

    fn profile(functions: &[(&str, &str)]) -> Profile {
        let mut profile = Profile::default();
        let heap = Heap {
            name: "python".to_owned(),
            ..Heap::default()
        };
        profile.vm.heaps.insert(HeapId(1), heap);
        for (number, (name, file)) in (1..).zip(functions) {
            let function = Function {
                name: (*name).to_owned(),
                file: (*file).to_owned(),
                line: 1,
            };
            profile.vm.functions.insert((HeapId(1), number), function);
        }
        profile.vm.tell_functions_apart();
        profile
    }

    fn label(profile: &Profile, heap: HeapId, function: u32) -> String {
        let frame = VmFrame {
            heap,
            function,
            line: 0,
        };
        let location = Location {
            module: ModuleId::VM,
            offset: frame.encode(),
        };
        profile.frames(location)[0].label().into_owned()
    }

    fn labels(profile: &Profile) -> Vec<String> {
        let numbers = 1..=profile.vm.functions.len() as u32;
        numbers
            .map(|number| label(profile, HeapId(1), number))
            .collect()
    }

    #[test]
    fn functions_of_one_name_have_the_ends_of_their_files() {
        let profile = profile(&[
            ("handle", "/srv/a/views.py"),
            ("handle", "/srv/b/views.py"),
            ("handle", "/srv/b/admin.py"),
            ("alone", "/srv/b/views.py"),
            ("handle", "<string>"),
            ("handle", ""),
        ]);
        assert_eq!(
            labels(&profile),
            [
                "handle[a/views.py]",
                "handle[b/views.py]",
                "handle[admin.py]",
                "alone",
                "handle",
                "handle"
            ]
        );
    }

    #[test]
    fn one_file_by_several_names_is_one() {
        let profile = profile(&[
            ("render", "file:///srv/app.js"),
            ("render", "/srv/app.js?t=1700000000000"),
            ("render", "/srv/app.js?t=1700000000001"),
        ]);
        assert_eq!(labels(&profile), ["render"; 3]);
    }

    #[test]
    fn numbered_texts_do_not_tell_functions_apart() {
        let texts = [
            "(eval 1)",
            "(eval 2)",
            "evalmachine.<anonymous>",
            "[string \"x\"]",
        ];
        let functions = texts.map(|text| ("handler", text));
        assert_eq!(labels(&profile(&functions)), ["handler"; 4]);
    }

    #[test]
    fn relative_paths_tell_functions_apart() {
        let profile = profile(&[("new", "./stack.lua"), ("new", "lib/queue.lua")]);
        assert_eq!(labels(&profile), ["new[stack.lua]", "new[queue.lua]"]);
    }

    #[test]
    fn heaps_of_one_name_are_one_language() {
        let mut profile = profile(&[("f", "/a/x.js")]);
        let heap = profile.vm.heaps[&HeapId(1)].clone();
        profile.vm.heaps.insert(HeapId(2), heap);
        let mut function = profile.vm.functions[&(HeapId(1), 1)].clone();
        function.file = "/a/y.js".to_owned();
        profile.vm.functions.insert((HeapId(2), 1), function);
        profile.vm.tell_functions_apart();
        assert_eq!(label(&profile, HeapId(1), 1), "f[x.js]");
        assert_eq!(label(&profile, HeapId(2), 1), "f[y.js]");
    }

    #[test]
    fn profiles_that_are_compared_have_the_same_names() {
        let mut before = profile(&[
            ("handle", "/releases/1/a/views.py"),
            ("other", "/releases/1/o.py"),
        ]);
        let mut after = profile(&[
            ("handle", "/releases/2/a/views.py"),
            ("handle", "/releases/2/b/views.py"),
            ("handle", "/releases/2/admin.py"),
            ("other", "/releases/2/o.py"),
        ]);
        let handles = [
            "handle[a/views.py]",
            "handle[b/views.py]",
            "handle[admin.py]",
        ];
        for first_is_before in [true, false] {
            match first_is_before {
                true => align_function_names(&mut [&mut before, &mut after]),
                false => align_function_names(&mut [&mut after, &mut before]),
            }
            assert_eq!(labels(&before), [handles[0], "other"]);
            assert_eq!(
                labels(&after),
                [handles[0], handles[1], handles[2], "other"]
            );
        }
    }

    #[test]
    fn a_function_that_only_one_profile_has_keeps_a_name_of_its_own() {
        let mut before = profile(&[("f", "/1/a/x.py"), ("f", "/1/b/x.py")]);
        let mut after = profile(&[("f", "/2/a/x.py"), ("f", "/2/c/x.py"), ("f", "/2/new.py")]);
        align_function_names(&mut [&mut before, &mut after]);
        assert_eq!(labels(&after), ["f[a/x.py]", "f[c/x.py]", "f[new.py]"]);
        let mut alone = profile(&[("f", "/3/d/x.py")]);
        align_function_names(&mut [&mut before, &mut alone]);
        assert_eq!(labels(&alone), ["f[x.py]"]);
    }

    /// Whatever the paths: two files never have one end, and an end is one.
    #[test]
    fn ends_are_of_one_file_alone() {
        let mut random = Random::from_seed(5);
        for _ in 0..200 {
            let mut path = || -> String {
                let parts = 1 + random.below(12);
                (0..parts)
                    .map(|_| format!("/{}", random.below(3)))
                    .collect()
            };
            let paths: Vec<String> = (0..20).map(|_| path()).collect();
            let files: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
            let ends = ends_of(&files);
            let different: BTreeSet<&str> = ends.values().copied().collect();
            assert_eq!((ends.len(), different.len()), (files.len(), files.len()));
            assert!(ends.iter().all(|(file, end)| is_end(file, end)));
        }
    }
}
