#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use std::boxed::Box;
use std::collections::HashSet;
use std::vec::Vec;

use super::super::fake_loader::{Loader, PAGE};
use super::super::memo::MemoKey;
use super::super::rules::Rule;
use super::*;

impl Loader {
    /// The modules of this list.
    fn modules(&self) -> Box<Modules> {
        let modules = Box::new(Modules::new());
        modules.set_program_range(self.at(0)..self.at(1));
        modules.set_list(self.rendezvous());
        modules
    }

    fn unload_by_dlclose(&mut self, modules: &Modules, index: usize) {
        modules.before_dlclose();
        assert!(!modules.stays());
        self.unload(index);
        modules.after_dlclose();
        assert!(modules.stays());
    }

    /// What is found at a page is the file that is there now.
    fn assert_is_file(&self, modules: &Modules, page: usize) -> Option<&'static Module> {
        let _walk = modules.enter(1);
        let found = modules.find(self.at(page) + PAGE / 2);
        assert_eq!(found.is_some(), self.around(page).is_some(), "page {page}");
        let (found, wanted) = (found?, self.around(page)?);
        let end = self.at(wanted.page + wanted.pages);
        assert_eq!((found.start, found.end), (self.at(wanted.page), end));
        assert_eq!(found.bias, found.start);
        assert!(found.contains(found.start) && found.contains(end - 1) && !found.contains(end));
        let mut buffer = [0; 256];
        let record = found.record(&mut buffer);
        assert_eq!(record.path, Loader::name_of(wanted.file).as_bytes());
        assert_eq!(record.build_id, Loader::build_id_of(wanted.file));
        Some(found)
    }
}

proptest::proptest! {
    /// Files 1 to 3, of as many pages, come and go at places that they or others had.
    #[test]
    fn whatever_comes_and_goes_is_found_as_the_file_that_is_there(
        steps in proptest::collection::vec((0_usize..4, 1_usize..12, 1_usize..4), 1..50),
    ) {
        let mut loader = Loader::new(16);
        let modules = loader.modules();
        for (what, page, file) in steps {
            let is_free = (page..page + file).all(|page| loader.around(page).is_none());
            let other = 1 + page % loader.loaded.len().saturating_sub(1).max(1);
            match what {
                0 if is_free => loader.load_file(page, file, file),
                1 if loader.loaded.len() > 1 => loader.unload_by_dlclose(&modules, other),
                // In its place, and nobody has looked in between.
                2 if loader.loaded.len() > 1 => {
                    let before = loader.loaded[other];
                    loader.unload_by_dlclose(&modules, other);
                    let file = file.min(before.pages);
                    loader.load_file(before.page, file, file);
                }
                _ => _ = loader.assert_is_file(&modules, page),
            }
        }
        for page in 0..16 {
            loader.assert_is_file(&modules, page);
        }
    }
}

#[test]
fn a_file_that_is_loaded_again_in_its_place_is_the_module_that_it_was() {
    let mut loader = Loader::new(8);
    let modules = loader.modules();
    loader.load_file(2, 2, 5);
    let first = loader.assert_is_file(&modules, 2).unwrap();
    assert!(first.must_announce(1) && !first.must_announce(1));
    assert!(first.must_announce(2));
    for round in 0..3 {
        loader.unload_by_dlclose(&modules, 1);
        // Its entry in the list is another one.
        loader.load_file(6, 1, 7 + round);
        loader.load_file(2, 2, 5);
        let again = loader.assert_is_file(&modules, 3).unwrap();
        assert!(core::ptr::eq(first, again) && !again.must_announce(2));
        loader.unload_by_dlclose(&modules, 1);
    }
    // Of another size, or another file, it is another module.
    for (pages, file) in [(1, 5), (2, 6)] {
        loader.unload_by_dlclose(&modules, 1);
        loader.load_file(2, pages, file);
        assert!(loader.assert_is_file(&modules, 2).unwrap().must_announce(2));
    }
}

/// A file with the same build id elsewhere is another module.
#[test]
fn paths_have_hashes_of_their_own() {
    let paths = (0..500).flat_map(|number| {
        [
            std::format!("/lib/{number}.so"),
            std::format!("/lib/{number}"),
        ]
    });
    let hashes: HashSet<u64> = paths.map(|path| hash(path.as_bytes())).collect();
    assert_eq!(hashes.len(), 1000);
    assert_ne!(hash(b"/a/b"), hash(b"/b/a"));
}

/// A known module is found without the lock, also if its neighbours touch it.
#[test]
fn known_modules_are_found_while_another_thread_learns() {
    let mut loader = Loader::new(8);
    let modules = loader.modules();
    for page in [3, 2, 4] {
        loader.load(page, 1);
        loader.assert_is_file(&modules, page);
    }
    loader.load(5, 1);
    let _walk = modules.enter(1);
    modules.retired.with(|_| {
        for page in 2..5 {
            let found = modules.find(loader.at(page)).unwrap();
            assert_eq!(found.start, loader.at(page));
        }
        assert!(modules.find(loader.at(5)).is_none());
    });
    assert_eq!(modules.examined(), 3);
    assert!(modules.find(loader.at(5)).is_some());
    assert_eq!(modules.examined(), 4);
}

#[test]
fn each_dlclose_counts_before_and_after() {
    let mut loader = Loader::new(4);
    let modules = loader.modules();
    for count in 0..3 {
        assert_eq!(modules.dlclose_count(), 2 * count);
        loader.load(2, 1);
        loader.unload_by_dlclose(&modules, 1);
    }
    // A forked child has none of the threads that were unloading.
    modules.before_dlclose();
    modules.restart();
    assert!(modules.stays());
}

/// One that is never unloaded is not even compared with the list, and neither is the program.
#[test]
fn permanent_modules_are_found_without_the_list() {
    let mut loader = Loader::new(4);
    for page in [1, 2] {
        loader.load(page, 1);
    }
    let modules = loader.modules();
    for page in 0..3 {
        loader.assert_is_file(&modules, page);
    }
    modules.set_permanent(&[loader.at(1)]);
    let entries: Vec<usize> = loader.loaded.iter().map(|it| it.entry).collect();
    loader.lose_list();
    for entry in entries {
        loader.entries[entry][0] = 1;
    }
    let _walk = modules.enter(1);
    assert!(modules.find(loader.at(0)).is_some());
    assert!(modules.find(loader.at(1)).is_some());
    assert!(modules.find(loader.at(2)).is_none());
}

/// Their numbers have fewer bits than what they count.
#[test]
fn rules_are_forgotten_when_their_numbers_come_round() {
    let modules = Box::new(Modules::new());
    let generation = Generation::of(&MemoKey {
        epoch: 1,
        ..MemoKey::default()
    });
    let has_rule = || modules.rules.find(0x4000, generation).is_some();
    let insert = || modules.rules.insert(0x4000, Rule::for_tests(generation));
    insert();
    modules.after_epoch(255);
    assert!(has_rule());
    modules.after_epoch(256);
    assert!(!has_rule());
    insert();
    modules
        .dlclose_count
        .store((1 << 20) - 2, Ordering::Relaxed);
    modules.before_dlclose();
    assert!(has_rule());
    modules.before_dlclose();
    assert!(!has_rule());
}

#[test]
fn the_memory_of_modules_that_are_gone_is_used_again_when_nobody_looks() {
    let mut loader = Loader::new(4);
    let modules = loader.modules();
    let mut seen = HashSet::new();
    for file in 0..300 {
        loader.load_file(2, 1, file);
        let module = loader.assert_is_file(&modules, 2).unwrap();
        seen.insert(core::ptr::from_ref(module).addr());
        loader.unload_by_dlclose(&modules, 1);
    }
    assert!(seen.len() <= 4, "{}", seen.len());
    // A walk that goes on keeps all that it may have seen.
    let walk = modules.enter(7);
    let mut kept: Vec<(&Module, usize)> = Vec::new();
    for file in 0..20 {
        loader.load_file(2, 1, file);
        kept.push((loader.assert_is_file(&modules, 2).unwrap(), file));
        loader.unload_by_dlclose(&modules, 1);
        let at = kept
            .iter()
            .map(|(module, _)| core::ptr::from_ref(*module).addr());
        assert_eq!(at.collect::<HashSet<_>>().len(), kept.len());
        for (module, file) in &kept {
            assert_eq!(module.build_id.bytes(), Loader::build_id_of(*file));
        }
    }
    drop(walk);
}

#[test]
fn modules_that_were_met_are_told_once_and_in_order() {
    let mut loader = Loader::new(MET + 60);
    let modules = loader.modules();
    let mut told = 0;
    assert_eq!(modules.met_after(&mut told), None);
    for page in [3, 1, 2] {
        loader.load(page, 1);
        loader.assert_is_file(&modules, page);
        loader.assert_is_file(&modules, page);
    }
    let met: Vec<u64> = core::iter::from_fn(|| modules.met_after(&mut told)).collect();
    assert_eq!(met, [3, 1, 2].map(|page| loader.at(page)));
    // Whoever is far behind misses the oldest.
    for page in 4..MET + 50 {
        loader.load(page, 1);
        loader.assert_is_file(&modules, page);
    }
    let met: Vec<u64> = core::iter::from_fn(|| modules.met_after(&mut told)).collect();
    let last: Vec<u64> = (50..MET + 50).map(|page| loader.at(page)).collect();
    assert_eq!(met, last);
    assert_eq!(modules.examined() as usize, 3 + MET + 46);
}

#[test]
fn frames_of_our_own_code_are_taken_out() {
    let mut loader = Loader::new(8);
    loader.load(2, 2);
    let modules = loader.modules();
    modules.set_own(loader.at(3));
    let (own, other) = (loader.at(2), loader.at(5));
    // Return addresses: the first one belongs to what is before.
    assert!(!modules.is_own(own) && modules.is_own(own + 1));
    assert!(modules.is_own(own + 2 * PAGE) && !modules.is_own(own + 2 * PAGE + 1));
    let mut frames = [own + 5, other, own + 9, other + 1, own + 1, own + 7];
    let mut depth = 5;
    modules.strip_own(&mut frames, &mut depth);
    assert_eq!((depth, &frames[..2]), (2, &[other, other + 1][..]));
    assert!(modules.is_in_program(loader.at(0)) && !modules.is_in_program(loader.at(1)));
    // It is one module, from its first segment to its last, whatever the loader says of it.
    modules.set_program_range(loader.at(0)..loader.at(2));
    let _walk = modules.enter(1);
    let program = modules.find(loader.at(0)).unwrap();
    assert_eq!((program.start, program.end), (loader.at(0), loader.at(2)));
}

#[test]
fn the_loader_is_known_by_its_name() {
    let modules = Box::new(Modules::new());
    unsafe extern "C" {
        fn _dl_find_object(at: *const c_void, to: *mut FoundObject) -> i32;
    }
    modules.set_find_object(_dl_find_object);
    let _walk = modules.enter(1);
    let of = |function: *const ()| modules.find(function.expose_provenance() as u64).unwrap();
    // SAFETY: a lookup by name.
    let of_loader = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tls_get_addr".as_ptr()) };
    assert!(of(of_loader.cast()).is_loader());
    assert!(!of(libc::malloc as *const ()).is_loader());
}
