#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use super::super::fake_loader::{EH_FRAME_HDR, Loader, PAGE};
use super::*;
use core::ffi::{c_int, c_void};
use std::vec::Vec;

/// A module as `dl_iterate_phdr` describes it.
struct Loaded {
    bias: u64,
    segments: Vec<(u64, u64)>,
}

unsafe extern "C" fn collect(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    modules: *mut c_void,
) -> c_int {
    // SAFETY: the loader's structure, and the vector that `loaded` passes.
    let (object, modules) = unsafe { (&*object, &mut *modules.cast::<Vec<Loaded>>()) };
    // SAFETY: the program headers of a loaded module.
    let headers =
        unsafe { core::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let segments = headers.iter().filter(|header| header.p_type == elf::LOAD);
    modules.push(Loaded {
        bias: object.dlpi_addr,
        segments: segments
            .map(|it| (object.dlpi_addr + it.p_vaddr, it.p_memsz))
            .collect(),
    });
    0
}

fn loaded() -> Vec<Loaded> {
    let mut modules = Vec::new();
    // SAFETY: `collect` takes a vector of this type.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut modules).cast()) };
    modules
}

fn of_this_process() -> std::boxed::Box<ListedModules> {
    // SAFETY: a lookup by name.
    let rendezvous = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) };
    let listed = std::boxed::Box::new(ListedModules::new());
    let modules = loaded();
    let program = modules.first().unwrap().segments.first().unwrap().0;
    listed.set_list(rendezvous.addr(), program);
    listed
}

#[test]
fn every_module_is_found_as_the_loader_describes_it() {
    let listed = of_this_process();
    let modules = loaded();
    assert!(modules.len() >= 3);
    for module in modules {
        for (start, bytes) in module.segments {
            for address in [start, start + bytes / 2, start + bytes - 1] {
                let found = listed.find(address).unwrap();
                assert!(found.start.addr() as u64 <= address);
                assert!(address < found.end.addr() as u64);
                // SAFETY: the loader's own structure of a module that stays loaded.
                assert_eq!(unsafe { *found.link_map.cast::<u64>() }, module.bias);
                // SAFETY: this glibc has the function, and fills a structure of this size.
                let theirs = unsafe {
                    unsafe extern "C" {
                        fn _dl_find_object(at: *const c_void, to: *mut FoundObject) -> c_int;
                    }
                    let mut theirs = core::mem::zeroed::<FoundObject>();
                    let at = core::ptr::without_provenance(address as usize);
                    assert_eq!(_dl_find_object(at, &raw mut theirs), 0);
                    theirs
                };
                assert_eq!(found.eh_frame_hdr, theirs.eh_frame_hdr);
                assert_eq!(found.link_map, theirs.link_map);
                // Where segments have holes between them, as on aarch64, the loader answers for one of them.
                assert!(found.start <= theirs.start && theirs.end <= found.end);
            }
        }
    }
}

#[test]
fn a_module_is_found_as_soon_as_it_is_loaded_and_not_after_it_is_unloaded() {
    let listed = of_this_process();
    let on_the_heap = std::boxed::Box::new(0_u64);
    let on_the_heap = core::ptr::from_ref(&*on_the_heap).addr() as u64;
    assert!(listed.find(on_the_heap).is_none());
    for _ in 0..3 {
        // A library that nothing here needs.
        let name = c"libnss_compat.so.2";
        // SAFETY: its constructors do nothing.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
        assert!(!library.is_null());
        // SAFETY: the library has this function.
        let function = unsafe { libc::dlsym(library, c"_nss_compat_getpwnam_r".as_ptr()) };
        let address = function.addr() as u64;
        let found = listed.find(address).unwrap();
        assert!((found.start.addr() as u64..found.end.addr() as u64).contains(&address));
        // SAFETY: nothing of it is used any more.
        assert_eq!(unsafe { libc::dlclose(library) }, 0);
        assert!(listed.find(address).is_none());
    }
    assert!(listed.find(on_the_heap).is_none());
}

#[test]
fn a_list_that_leads_nowhere_ends_the_search() {
    let mut entries = [[0x1000_u64, 0, 0, 0, 0]; 2];
    let second = (&raw const entries[1]).expose_provenance() as u64;
    let first = (&raw const entries[0]).expose_provenance() as u64;
    for next in [1, first, second, u64::MAX - 7] {
        entries[0][NEXT] = second;
        entries[1][NEXT] = next;
        let rendezvous: Rendezvous = [1, first, 0, 0, 0];
        let listed = std::boxed::Box::new(ListedModules::new());
        listed.set_list((&raw const rendezvous).expose_provenance(), 0);
        assert!(listed.find(0x1234).is_none());
        assert!(listed.find(0x1234).is_none());
    }
}

impl Loader {
    /// The table that was told of this list.
    fn listed(&self) -> std::boxed::Box<ListedModules> {
        let listed = std::boxed::Box::new(ListedModules::new());
        listed.set_list(self.rendezvous(), self.at(0));
        listed
    }

    /// Looks for the first and the last byte of a page.
    fn assert_found(&self, listed: &ListedModules, page: usize) {
        for address in [self.at(page), self.at(page) + PAGE - 1] {
            let found = listed.find(address).map(|found| {
                let start = found.start.addr() as u64;
                assert_eq!(found.eh_frame_hdr.addr() as u64, start + EH_FRAME_HDR);
                let end = found.end.addr() as u64;
                (start, end, found.link_map.addr() as u64)
            });
            assert_eq!(found, self.model(page), "page {page}");
            // It is in the table now, or it is in none.
            assert_eq!(listed.known(address).is_some(), found.is_some());
        }
    }
}

proptest::proptest! {
    /// Modules come and go, also at places and in entries that others had.
    #[test]
    fn whatever_is_loaded_and_unloaded_is_found_as_it_is_now(
        steps in proptest::collection::vec((0_usize..4, 1_usize..24, 1_usize..4), 1..60),
    ) {
        let mut loader = Loader::new(32);
        let listed = loader.listed();
        for (what, page, pages) in steps {
            let is_free = (page..page + pages).all(|page| loader.model(page).is_none());
            match what {
                0 if is_free => loader.load(page, pages),
                1 if loader.loaded.len() > 1 => loader.unload(1 + page % (loader.loaded.len() - 1)),
                2 if is_free && loader.loaded.len() > 1 => {
                    // Another module, of which nothing was asked in between.
                    loader.unload(1 + page % (loader.loaded.len() - 1));
                    loader.load(page, pages);
                }
                _ => loader.assert_found(&listed, page),
            }
        }
        for page in 0..32 {
            loader.assert_found(&listed, page);
        }
    }
}

/// More of them than the table has places, nearly all of which are gone when the next one comes.
#[test]
fn plugins_that_come_and_go_at_new_places_are_found() {
    let mut loader = Loader::new(SLOTS + 40);
    let listed = loader.listed();
    listed.set_permanent(&[loader.at(0)]);
    for page in 1..SLOTS + 40 {
        loader.load(page, 1);
        assert!(listed.find(loader.at(page)).is_some(), "{page}");
        if loader.loaded.len() > 3 {
            loader.unload(1);
        }
    }
    let full = listed.used.load(Ordering::Relaxed);
    assert_eq!(full, SLOTS);
    for page in [0, 1, SLOTS / 2, SLOTS + 37, SLOTS + 38, SLOTS + 39] {
        loader.assert_found(&listed, page);
    }
    assert!(listed.known(loader.at(0)).unwrap().1.is_permanent);
}

#[test]
fn what_is_known_is_not_read_again() {
    let mut loader = Loader::new(8);
    for page in [1, 2, 4] {
        loader.load(page, 1);
    }
    let listed = loader.listed();
    loader.assert_found(&listed, 1);
    loader.assert_found(&listed, 3);
    // The list leads nowhere: modules of the table are found, and what is in none is not looked for.
    let entry = loader.loaded[1].entry;
    loader.lose_list();
    for page in 0..8 {
        loader.assert_found(&listed, page);
    }
    // One that is never unloaded is not even compared, and another one is.
    listed.set_permanent(&[loader.at(1), loader.at(6)]);
    loader.entries[entry][0] = 1;
    let gone = loader.loaded[2].entry;
    loader.entries[gone][1] = 1;
    assert!(listed.find(loader.at(1)).is_some());
    assert!(listed.find(loader.at(2)).is_none());
    assert!(listed.known(loader.at(2)).is_none());
}

#[test]
fn a_table_that_somebody_changes_is_read_all_the_same() {
    let mut loader = Loader::new(4);
    let listed = loader.listed();
    listed.is_changing.store(true, Ordering::Relaxed);
    loader.load(2, 1);
    let address = loader.at(2);
    assert!(listed.find(address).is_some());
    assert!(listed.known(address).is_none());
    // Who had it does not exist in a forked child.
    listed.restart();
    loader.assert_found(&listed, 2);
    // Nobody takes words of two modules for one.
    let (index, one) = listed.known(address).unwrap();
    let slot = &listed.slots[index];
    slot.version.fetch_add(1, Ordering::Relaxed);
    assert!(slot.read().is_none());
    slot.version.fetch_add(1, Ordering::Relaxed);
    assert_eq!(slot.read().map(|it| it.identity), Some(one.identity));
}

#[test]
fn a_header_of_another_module_or_of_none_is_no_module() {
    let mut loader = Loader::new(4);
    loader.load(2, 1);
    let entry = loader.loaded[1].entry;
    let examined = |loader: &Loader| {
        examine(loader.link_map(entry), &loader.entries[entry], loader.at(2)).is_some()
    };
    assert!(examined(&loader));
    for (word, value) in [
        // Not ELF, and of 32 bits.
        (0, 0x0001_0102_464C_457E),
        (0, 0x0001_0101_464C_457F),
        // Program headers that are elsewhere, and none.
        (4, 1 << 40),
        (7, 0),
        // Another dynamic section, and a segment without bytes.
        (17, 0x300),
        (13, 0),
    ] {
        let before = core::mem::replace(&mut loader.pages[2].0[word], value);
        assert!(!examined(&loader), "{word}");
        loader.pages[2].0[word] = before;
    }
    assert!(examined(&loader));
}
