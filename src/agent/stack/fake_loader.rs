//! For tests: the list of modules that a loader keeps, in memory of ours, of modules that are a header alone.

#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use std::boxed::Box;
use std::ffi::CString;
use std::vec::Vec;

use super::elf;

pub(super) const PAGE: u64 = 4096;
/// Where parts of a module are in its first page.
pub(super) const EH_FRAME_HDR: u64 = 0x280;
const DYNAMIC: u64 = 0x300;
const NOTE: u64 = 0x200;
/// The public heads of `struct r_debug` and of `struct link_map`, in words.
const FIRST: usize = 1;
const NEXT: usize = 3;
const PREVIOUS: usize = 4;

#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u64; 512]);

/// See the module.
pub(super) struct Loader {
    pub(super) pages: Vec<Page>,
    /// Never moved: addresses of its elements are kept elsewhere.
    pub(super) entries: Vec<[u64; 5]>,
    pub(super) loaded: Vec<Loaded>,
    rendezvous: Box<[u64; 5]>,
    names: Vec<CString>,
}

/// A module that is loaded now.
#[derive(Clone, Copy)]
pub(super) struct Loaded {
    /// The number of its entry.
    pub(super) entry: usize,
    pub(super) page: usize,
    pub(super) pages: usize,
    /// Which file it is.
    pub(super) file: usize,
}

impl Loaded {
    fn has(&self, page: usize) -> bool {
        (self.page..self.page + self.pages).contains(&page)
    }
}

impl Loader {
    /// A program in the first page.
    pub(super) fn new(pages: usize) -> Self {
        let mut loader = Self {
            pages: (0..pages).map(|_| Page([0; 512])).collect(),
            entries: std::vec![[0; 5]; pages],
            loaded: Vec::new(),
            rendezvous: Box::new([1, 0, 0, 0, 0]),
            names: Vec::new(),
        };
        loader.load(0, 1);
        loader
    }

    pub(super) fn rendezvous(&self) -> usize {
        (&raw const *self.rendezvous).expose_provenance()
    }

    /// The list leads nowhere from now on.
    pub(super) fn lose_list(&mut self) {
        self.rendezvous[FIRST] = 0;
    }

    pub(super) fn at(&self, page: usize) -> u64 {
        self.pages.as_ptr().expose_provenance() as u64 + page as u64 * PAGE
    }

    pub(super) fn link_map(&self, entry: usize) -> u64 {
        (&raw const self.entries[entry]).expose_provenance() as u64
    }

    pub(super) fn name_of(file: usize) -> std::string::String {
        std::format!("/lib/{file}.so")
    }

    pub(super) fn build_id_of(file: usize) -> [u8; 20] {
        [(file % 250) as u8 + 1; 20]
    }

    /// A file that was never loaded, as so many pages from this one on.
    pub(super) fn load(&mut self, page: usize, pages: usize) {
        self.load_file(page, pages, self.names.len());
    }

    /// The file with this number, in an entry that is free.
    pub(super) fn load_file(&mut self, page: usize, pages: usize, file: usize) {
        while self.names.len() <= file {
            let name = Self::name_of(self.names.len());
            self.names.push(CString::new(name).unwrap());
        }
        let bias = self.at(page);
        let dynamic = DYNAMIC + 8 * (file as u64 % 16);
        let bytes = pages as u64 * PAGE;
        // As of a file that was rewritten: its program headers are at its end.
        let is_rewritten = file % 2 == 1 && pages > 1;
        let table_page = if is_rewritten { page + pages - 1 } else { page };
        let table_at = if is_rewritten { 0 } else { 64 };
        let header = &mut self.pages[page].0;
        header.fill(0);
        header[0] = u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0");
        header[4] = (table_page - page) as u64 * PAGE + table_at;
        header[6] = 56 << 48;
        header[7] = 4;
        let places = [
            (elf::LOAD, 0, bytes),
            (elf::DYNAMIC, dynamic, 16),
            (elf::EH_FRAME, EH_FRAME_HDR, 16),
            (elf::NOTE, NOTE, 36),
        ];
        for (index, (kind, address, bytes)) in places.into_iter().enumerate() {
            const READABLE_CODE: u64 = 5;
            let place = &mut self.pages[table_page].0[table_at as usize / 8 + 7 * index..];
            place[0] = u64::from(kind) | READABLE_CODE << 32;
            place[2] = address;
            place[4] = bytes;
            place[5] = bytes;
        }
        // A build id of 20 bytes: the lengths of its name and of itself, its kind, and its name.
        let mut note = [0; 40];
        note[..16].copy_from_slice(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0");
        note[16..36].copy_from_slice(&Self::build_id_of(file));
        let header = &mut self.pages[page].0;
        let words = note
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        for (place, word) in header[NOTE as usize / 8..].iter_mut().zip(words) {
            *place = word;
        }
        let mut entries = 0..self.entries.len();
        let entry = entries.find(|entry| self.loaded.iter().all(|it| it.entry != *entry));
        let entry = entry.unwrap();
        let name = self.names[file].as_ptr().expose_provenance() as u64;
        self.entries[entry] = [bias, name, bias + dynamic, 0, 0];
        self.loaded.push(Loaded {
            entry,
            page,
            pages,
            file,
        });
        self.link();
    }

    /// The module in this place of the list.
    pub(super) fn unload(&mut self, index: usize) {
        let gone = self.loaded.remove(index);
        self.entries[gone.entry] = [0x5A5A_5A5A; 5];
        for page in &mut self.pages[gone.page..gone.page + gone.pages] {
            page.0.fill(0);
        }
        self.link();
    }

    fn link(&mut self) {
        let mut previous = 0;
        for index in 0..self.loaded.len() {
            let next = self.loaded.get(index + 1);
            let next = next.map_or(0, |it| self.link_map(it.entry));
            let entry = self.loaded[index].entry;
            self.entries[entry][NEXT] = next;
            self.entries[entry][PREVIOUS] = previous;
            previous = self.link_map(entry);
        }
        self.rendezvous[FIRST] = self.link_map(self.loaded[0].entry);
    }

    /// What is loaded around this page.
    pub(super) fn around(&self, page: usize) -> Option<Loaded> {
        self.loaded.iter().find(|it| it.has(page)).copied()
    }

    /// The same: start, end and entry of the module.
    pub(super) fn model(&self, page: usize) -> Option<(u64, u64, u64)> {
        let around = self.around(page)?;
        let end = self.at(around.page + around.pages);
        Some((self.at(around.page), end, self.link_map(around.entry)))
    }
}
