//! Which module an address is in, by the loader's own list, where the loader has no function that can be called here.
//!
//! glibc has `_dl_find_object` since 2.35. `dl_iterate_phdr`, which all have, waits for a lock that another thread can hold
//! while it waits for us. So this reads the list that loaders keep for debuggers (`struct r_debug`), without a lock: every
//! read is a copy that cannot fault (`os::safe_read::copy_if_mapped`), and whatever another thread unlinks meanwhile gives
//! a wrong answer only if all of it, up to the ELF header in memory, describes a module around the address. The caller's
//! address is on its stack, so its module is loaded, and no other one is there.
//!
//! An answer is kept in a table without locks. It counts while the entry in the loader's list is what it was, which takes
//! one system call, and none for modules that are never unloaded. An address that is in no module (a JIT compiler's code) costs one
//! too: without a `dlclose` the list has grown only if its last entry has a successor.
//!
//! Not found are modules of other namespaces (`dlmopen`), and modules whose first segment is not at address 0 of the file,
//! except the program. Behind a filter of system calls no module is added. The entries of the table then count until the next
//! `dlclose`.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use super::elf::{self, ProgramHeader};
use super::modules::FoundObject;
use crate::os;
use crate::os::safe_read::copy_if_mapped;

/// Entries of the loader's list that are read at most: another thread could make it a circle for a moment.
const MOST_LISTED: usize = 4096;
/// Modules that the table holds: all that are listed, so that what is not in it is in no module.
const SLOTS: usize = MOST_LISTED;
/// How often the list is read again if it changed meanwhile.
const ATTEMPTS: usize = 3;

/// The public head of `struct r_debug`, in words.
type Rendezvous = [u64; 5];
const FIRST: usize = 1;

/// The public head of `struct link_map`, in words: bias, name, dynamic section, next, previous.
type Entry = [u64; 5];
const BIAS: usize = 0;
const NEXT: usize = 3;
const PREVIOUS: usize = 4;

/// A module as the table has it, in words.
#[derive(Clone, Copy, Default)]
struct Listed {
    start: u64,
    end: u64,
    link_map: u64,
    eh_frame_hdr: u64,
    /// Bias, name and dynamic section in the loader's entry.
    identity: [u64; 3],
    /// Whether it is never unloaded.
    is_permanent: bool,
}

impl Listed {
    fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

const WORDS: usize = 8;

/// A place in the table. A reader takes what it read only if `version` is even and the same before and after.
struct Slot {
    version: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Slot {
    const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    fn read(&self) -> Option<Listed> {
        // Acquire: pairs with the writer's last store.
        let version = self.version.load(Ordering::Acquire);
        let mut words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut next = || words.next().unwrap_or(0);
        let listed = Listed {
            start: next(),
            end: next(),
            link_map: next(),
            eh_frame_hdr: next(),
            identity: [next(), next(), next()],
            is_permanent: next() != 0,
        };
        // The words were read before the version is read again.
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        is_whole.then_some(listed)
    }

    /// One thread at a time.
    fn write(&self, listed: &Listed) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        // Nobody sees one of the new words with the old version.
        fence(Ordering::Release);
        let [bias, name, dynamic] = listed.identity;
        let values = [
            listed.start,
            listed.end,
            listed.link_map,
            listed.eh_frame_hdr,
            bias,
            name,
            dynamic,
            u64::from(listed.is_permanent),
        ];
        for (word, value) in self.words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }
}

/// The modules of the process, as read from the loader's list.
pub struct ListedModules {
    /// Where the loader's `struct r_debug` is; 0 for unknown.
    rendezvous: AtomicUsize,
    /// Where the program's ELF header is.
    program: AtomicU64,
    slots: [Slot; SLOTS],
    used: AtomicUsize,
    /// The last entry of the list; in place of an address range, the entry before it and the count of unloads.
    last: Slot,
    unloads: AtomicU64,
    /// Held by the thread that changes the table; others do without.
    is_changing: AtomicBool,
}

impl ListedModules {
    /// None.
    pub const fn new() -> Self {
        Self {
            rendezvous: AtomicUsize::new(0),
            program: AtomicU64::new(0),
            slots: [const { Slot::new() }; SLOTS],
            used: AtomicUsize::new(0),
            last: Slot::new(),
            unloads: AtomicU64::new(0),
            is_changing: AtomicBool::new(false),
        }
    }

    /// Where the loader's list begins, and where the program's ELF header is. Once, at start.
    pub fn set_list(&self, rendezvous: usize, program: u64) {
        self.program.store(program, Ordering::Relaxed);
        self.rendezvous.store(rendezvous, Ordering::Release);
        self.look_through(0);
    }

    /// These addresses are in modules that are never unloaded, which need not be compared. Once, at start.
    pub fn set_permanent(&self, addresses: &[u64]) {
        for &address in addresses {
            if let Some((index, mut listed)) = self.known(address)
                && let Some(slot) = self.slots.get(index)
            {
                listed.is_permanent = true;
                slot.write(&listed);
            }
        }
    }

    /// In a forked child: the thread that was changing the table does not exist.
    pub fn restart(&self) {
        self.is_changing.store(false, Ordering::Relaxed);
    }

    /// After a `dlclose`: the last entry may be that of before, loaded again behind others. Without system calls no entry can be
    /// compared with the loader's.
    pub fn after_dlclose(&self) {
        self.unloads.fetch_add(1, Ordering::Release);
        if !os::is_filtered() {
            return;
        }
        let used = self.used.load(Ordering::Acquire);
        for index in 0..used {
            self.forget(index);
        }
    }

    /// The module around an address on the calling thread's stack.
    pub fn find(&self, address: u64) -> Option<FoundObject> {
        let known = self.known(address);
        let listed = match known {
            Some((_, listed)) if self.is_still_listed(&listed) => listed,
            Some((index, _)) => {
                self.forget(index);
                self.look_through(address)?
            }
            None if self.is_complete() => return None,
            None => self.look_through(address)?,
        };
        Some(FoundObject {
            flags: 0,
            start: pointer(listed.start),
            end: pointer(listed.end),
            link_map: pointer(listed.link_map).cast(),
            eh_frame_hdr: pointer(listed.eh_frame_hdr),
            reserved: [0; 8],
        })
    }

    fn known(&self, address: u64) -> Option<(usize, Listed)> {
        let used = self.used.load(Ordering::Acquire);
        let slots = self.slots.iter().take(used).enumerate();
        slots
            .filter_map(|(index, slot)| Some((index, slot.read()?)))
            .find(|(_, listed)| listed.contains(address))
    }

    fn is_still_listed(&self, listed: &Listed) -> bool {
        listed.is_permanent
            || os::is_filtered()
            || words::<3>(listed.link_map).is_some_and(|identity| identity == listed.identity)
    }

    /// Whether nothing was loaded since the list was read to its end.
    fn is_complete(&self) -> bool {
        if os::is_filtered() {
            return true;
        }
        let unloads = self.unloads.load(Ordering::Acquire);
        let Some(last) = self.last.read().filter(|last| last.end == unloads) else {
            return false;
        };
        words(last.link_map).is_some_and(|entry: Entry| {
            entry[NEXT] == 0 && entry[PREVIOUS] == last.start && entry.starts_with(&last.identity)
        })
    }

    /// Reads the list, keeps what the table lacks, and returns the module around the address.
    fn look_through(&self, address: u64) -> Option<Listed> {
        (0..ATTEMPTS).find_map(|_| match self.look_through_once(address) {
            Pass::Found(listed) => Some(Some(listed)),
            Pass::Missing => Some(None),
            Pass::Broken => None,
        })?
    }

    fn look_through_once(&self, address: u64) -> Pass {
        let rendezvous = self.rendezvous.load(Ordering::Acquire) as u64;
        let Some(head) = words(rendezvous).map(|head: Rendezvous| head[FIRST]) else {
            return Pass::Missing;
        };
        // Only tried: a signal handler may have interrupted whoever has it.
        let is_mine = !self.is_changing.swap(true, Ordering::Acquire);
        let pass = self.follow(head, address, is_mine);
        if is_mine {
            self.is_changing.store(false, Ordering::Release);
        }
        pass
    }

    fn follow(&self, head: u64, address: u64, is_mine: bool) -> Pass {
        let unloads = self.unloads.load(Ordering::Acquire);
        let mut at = head;
        let mut found = None;
        for index in 0..MOST_LISTED {
            let Some(entry): Option<Entry> = words(at) else {
                return Pass::Broken;
            };
            let program = (index == 0).then(|| self.program.load(Ordering::Relaxed));
            if let Some(listed) = self.listed(at, &entry, program) {
                if is_mine && !self.keep(&listed) {
                    self.empty();
                    return Pass::Broken;
                }
                if listed.contains(address) {
                    found = Some(listed);
                }
            }
            if entry[NEXT] == 0 {
                if is_mine && let Some(&identity) = entry.first_chunk() {
                    self.last.write(&Listed {
                        start: entry[PREVIOUS],
                        end: unloads,
                        link_map: at,
                        identity,
                        ..Listed::default()
                    });
                }
                return found.map_or(Pass::Missing, Pass::Found);
            }
            at = entry[NEXT];
        }
        Pass::Broken
    }

    /// What the table has of an entry, or what is in memory.
    fn listed(&self, link_map: u64, entry: &Entry, program: Option<u64>) -> Option<Listed> {
        let used = self.used.load(Ordering::Acquire);
        let mut known = self.slots.iter().take(used).filter_map(Slot::read);
        let is_same =
            |listed: &Listed| listed.link_map == link_map && entry.starts_with(&listed.identity);
        known
            .find(is_same)
            .or_else(|| examine(link_map, entry, program.unwrap_or(entry[BIAS])))
    }

    /// Puts a module into the table, in place of what was there before, if there is room. The thread that holds `is_changing`.
    fn keep(&self, listed: &Listed) -> bool {
        let used = self.used.load(Ordering::Acquire);
        let overlaps = |slot: &&Slot| {
            (slot.read()).is_some_and(|old| old.start < listed.end && listed.start < old.end)
        };
        let mut before = self.slots.iter().take(used).filter(overlaps);
        let empty = |slot: &&Slot| slot.read().is_some_and(|old| old.end == 0);
        let place = (before.next())
            .or_else(|| self.slots.iter().take(used).find(empty))
            .or_else(|| self.slots.get(used));
        before.for_each(|slot| slot.write(&Listed::default()));
        let Some(slot) = place else {
            return false;
        };
        slot.write(listed);
        if self
            .slots
            .get(used)
            .is_some_and(|next| core::ptr::eq(next, slot))
        {
            self.used.store(used + 1, Ordering::Release);
        }
        true
    }

    /// Gives up all places: modules that are gone have most of them. The thread that holds `is_changing`.
    fn empty(&self) {
        for slot in &self.slots {
            if slot.read().is_some_and(|listed| !listed.is_permanent) {
                slot.write(&Listed::default());
            }
        }
    }

    fn forget(&self, index: usize) {
        if self.is_changing.swap(true, Ordering::Acquire) {
            return;
        }
        if let Some(slot) = self.slots.get(index)
            && slot.read().is_some_and(|listed| !listed.is_permanent)
        {
            slot.write(&Listed::default());
        }
        self.is_changing.store(false, Ordering::Release);
    }
}

/// How a pass over the list ended.
enum Pass {
    Found(Listed),
    Missing,
    /// At an entry that is gone.
    Broken,
}

fn pointer(address: u64) -> *const u8 {
    core::ptr::with_exposed_provenance(address as usize)
}

/// Reads the headers of a module, whose ELF header is at `header`.
fn examine(link_map: u64, entry: &Entry, header: u64) -> Option<Listed> {
    const PLACES: usize = 16;
    let mut start = [0_u8; 64];
    if !copy_if_mapped(header, &mut start) || !start.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = u64::from_le_bytes(*start.get(32..)?.first_chunk()?);
    let count = u16::from_le_bytes(*start.get(56..)?.first_chunk()?);
    let bias = entry[BIAS];
    let (mut low, mut high, mut eh_frame_hdr, mut dynamic) = (u64::MAX, 0, 0, 0);
    let mut left = usize::from(count);
    let mut at = header.wrapping_add(offset);
    while left > 0 {
        let mut table = [0_u8; PLACES * size_of::<ProgramHeader>()];
        let bytes = left.min(PLACES) * size_of::<ProgramHeader>();
        let table = table.get_mut(..bytes)?;
        if !copy_if_mapped(at, table) {
            return None;
        }
        for header in table.as_chunks().0 {
            let header = ProgramHeader::from_bytes(header);
            let place = bias.wrapping_add(header.address);
            match header.kind {
                elf::LOAD => {
                    low = low.min(place);
                    high = high.max(place.wrapping_add(header.memory_bytes));
                }
                elf::EH_FRAME => eh_frame_hdr = place,
                elf::DYNAMIC => dynamic = place,
                _ => {}
            }
        }
        left = left.saturating_sub(PLACES);
        at = at.wrapping_add(bytes as u64);
    }
    let identity = *entry.first_chunk::<3>()?;
    let [_, _, listed_dynamic] = identity;
    // What is in memory is what the loader's entry is about.
    (low < high && dynamic == listed_dynamic).then_some(Listed {
        start: low & !0xFFF,
        end: high,
        link_map,
        eh_frame_hdr,
        identity,
        is_permanent: false,
    })
}

/// Words of memory that may be gone.
fn words<const N: usize>(address: u64) -> Option<[u64; N]> {
    let mut bytes = [[0_u8; 8]; N];
    (address != 0 && copy_if_mapped(address, bytes.as_flattened_mut()))
        .then(|| bytes.map(u64::from_ne_bytes))
}

#[cfg(test)]
mod tests;
