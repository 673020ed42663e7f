//! The modules of the process, found as stacks run through them.
//!
//! `_dl_find_object` (glibc 2.35) tells without a lock which module an address is in now; elsewhere the loader's list does
//! (`super::listed`). What we work out about a
//! module (identity, unwinder) is kept in a table. An entry is trusted if the loader still says the same of it; after a
//! `dlclose` its build id is compared too, since another module may have taken its place. Entries whose addresses belong
//! to another module now are taken out; their memory is used again when no walk can still be looking at it
//! (`super::grace`), so that a program may load and unload for ever.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use allocsample_record::{MAX_PATH_BYTES, ModuleRecord};

use super::ModuleUnwinder;
use super::elf::{BuildId, Elf, range_of_program};
use super::grace::{Entered, Grace, Phase};
use super::listed::ListedModules;
use super::rules::{Generation, Rules};
use crate::os::leaked::{self, StaticRef};
use crate::os::spin::Spin;

const SLOTS: usize = 4096;
const PROBES: usize = 16;
/// Entries that wait for their memory to be used again; more are leaked.
const RETIRED: usize = 64;
/// Modules that may be examined before the drain thread looks at the first of them.
const MET: usize = 256;
/// Number of times that a walk yields to a thread that examines a module, before it continues without the module.
const LEARNING_TURNS: u32 = 1000;

/// `struct dl_find_object` of glibc's `<dlfcn.h>`.
#[repr(C)]
pub struct FoundObject {
    pub(super) flags: u64,
    pub(super) start: *const u8,
    pub(super) end: *const u8,
    pub(super) link_map: *const LinkMap,
    pub(super) eh_frame_hdr: *const u8,
    pub(super) reserved: [u64; 8],
}

/// `_dl_find_object`: lock-free and async-signal-safe.
pub type FindObject = unsafe extern "C" fn(*const c_void, *mut FoundObject) -> i32;

/// The public head of `struct link_map`.
#[repr(C)]
pub(super) struct LinkMap {
    bias: u64,
    name: *const core::ffi::c_char,
}

/// One module, as it was when first met.
pub struct Module {
    start: u64,
    end: u64,
    bias: u64,
    /// Differs each time the same file is loaded.
    link_map: AtomicUsize,
    eh_frame_hdr: u64,
    build_id: BuildId,
    path_hash: u64,
    is_loader: bool,
    unwinder: ModuleUnwinder,
    /// The `dlclose` count at which the entry was last compared with memory.
    checked_at: AtomicU32,
    /// The epoch of the profile that describes it.
    announced_in: AtomicU32,
}

impl Module {
    /// Whether `address` is in its range.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Whether this is the dynamic loader.
    pub fn is_loader(&self) -> bool {
        self.is_loader
    }

    pub(super) fn unwinder(&self) -> &ModuleUnwinder {
        &self.unwinder
    }

    /// Returns true once per epoch: the module must be written to the profile.
    pub fn must_announce(&self, epoch: u32) -> bool {
        self.announced_in.load(Ordering::Relaxed) != epoch
            && self.announced_in.swap(epoch, Ordering::Relaxed) != epoch
    }

    /// Its record. `buffer` takes the main program's path, which the loader does not keep.
    pub fn record<'a>(&'a self, buffer: &'a mut [u8]) -> ModuleRecord<'a> {
        // SAFETY: the module has a frame on the calling thread's stack, so it and its link map are alive.
        let name = unsafe { name_of(self.link_map.load(Ordering::Relaxed)) };
        let path = if name.is_empty() {
            crate::os::process::executable(buffer)
        } else {
            name
        };
        ModuleRecord {
            start: self.start,
            end: self.end,
            bias: self.bias,
            build_id: self.build_id.bytes(),
            path: path.get(..path.len().min(MAX_PATH_BYTES)).unwrap_or(&[]),
        }
    }

    fn is_same_as(&self, found: &FoundObject) -> bool {
        self.start == found.start.addr() as u64
            && self.end == found.end.addr() as u64
            && self.link_map.load(Ordering::Relaxed) == found.link_map.addr()
            && self.eh_frame_hdr == found.eh_frame_hdr.addr() as u64
    }

    /// Whether it is the same file in the same place, loaded again.
    fn is_again(&self, other: &Module) -> bool {
        (self.start, self.end, self.bias, self.eh_frame_hdr)
            == (other.start, other.end, other.bias, other.eh_frame_hdr)
            && !self.build_id.bytes().is_empty()
            && self.build_id == other.build_id
            && self.path_hash == other.path_hash
    }

    fn overlaps(&self, found: &FoundObject) -> bool {
        self.start < found.end.addr() as u64 && (found.start.addr() as u64) < self.end
    }
}

/// All modules met so far.
pub struct Modules {
    slots: [StaticRef<Module>; SLOTS],
    find_object: AtomicUsize,
    /// Asked where the loader has no such function.
    listed: ListedModules,
    dlclose_count: AtomicU32,
    /// Threads that are in `dlclose`.
    unloading: AtomicU32,
    /// The module that this code is in: start and end.
    own: (AtomicU64, AtomicU64),
    /// Where the program is, from its first segment to its last.
    program: (AtomicU64, AtomicU64),
    grace: Grace,
    /// Held by the thread that changes the table.
    retired: Spin<Retired>,
    examined: AtomicU32,
    /// Where the modules that were examined last start: see [`Self::met_after`].
    met: [AtomicU64; MET],
    /// How frames of these modules are left.
    pub(super) rules: Rules,
}

/// Entries that are out of the table, with the phase in which they were taken out.
struct Retired {
    entries: [Option<(&'static Module, Phase)>; RETIRED],
}

impl Retired {
    /// Moves a module to memory that lives for ever: to that of a retired one, if there is one that nobody can see.
    fn place(&mut self, grace: &Grace, module: Module) -> Option<&'static Module> {
        grace.advance();
        grace.advance();
        let is_over = |entry: &&mut Option<(&'static Module, Phase)>| {
            entry.is_some_and(|(_, phase)| grace.is_over(phase))
        };
        let Some((old, _)) = self.entries.iter_mut().find(is_over).and_then(Option::take) else {
            return leaked::leak(module);
        };
        let old = core::ptr::from_ref(old).cast_mut();
        // SAFETY: 1. the memory came from `leaked::leak`, which gives away a writable mapping for ever; 2. the table does
        // not refer to it, and no walk that may have found it there is under way, says the grace; 3. it was in the list
        // of retired entries once, and is not any more.
        unsafe {
            old.drop_in_place();
            old.write(module);
            Some(&*old)
        }
    }

    /// The module is out of the table. Beyond [`RETIRED`] (some walk does not end) its memory is given up.
    fn add(&mut self, module: &'static Module, phase: Phase) {
        if let Some(place) = self.entries.iter_mut().find(|entry| entry.is_none()) {
            *place = Some((module, phase));
        }
    }
}

impl Modules {
    /// None.
    pub const fn new() -> Self {
        Self {
            slots: [const { StaticRef::new() }; SLOTS],
            find_object: AtomicUsize::new(0),
            listed: ListedModules::new(),
            dlclose_count: AtomicU32::new(0),
            unloading: AtomicU32::new(0),
            own: (AtomicU64::new(0), AtomicU64::new(0)),
            program: (AtomicU64::new(0), AtomicU64::new(0)),
            grace: Grace::new(),
            retired: Spin::new(Retired {
                entries: [const { None }; RETIRED],
            }),
            examined: AtomicU32::new(0),
            met: [const { AtomicU64::new(0) }; MET],
            rules: Rules::new(),
        }
    }

    /// A walk of this thread begins: what [`Self::find`] returns is there until the result is dropped.
    pub(super) fn enter(&self, thread: u32) -> Entered<'_> {
        self.grace.enter(thread)
    }

    /// Modules examined so far. Each has an unwinder of its own, which caches tell apart by 16 bits.
    pub fn examined(&self) -> u32 {
        self.examined.load(Ordering::Relaxed)
    }

    /// Where the first module starts that was examined after so many, if there is one. A caller that is behind by more than
    /// `MET` misses the oldest.
    pub fn met_after(&self, examined: &mut u32) -> Option<u64> {
        // Acquire: pairs with the release in `learn`; the place is filled.
        let now = self.examined.load(Ordering::Acquire);
        if *examined == now {
            return None;
        }
        let number = (*examined).max(now.saturating_sub(MET as u32));
        *examined = number + 1;
        let place = self.met.get(number as usize % MET)?;
        Some(place.load(Ordering::Relaxed))
    }

    /// In a forked child: what other threads were at will never be finished.
    pub fn restart(&self) {
        self.grace.restart();
        self.unloading.store(0, Ordering::Relaxed);
        self.retired.break_lock();
        self.listed.restart();
    }

    /// Tells an address in our own code. Once, at start.
    pub fn set_own(&self, address: u64) {
        if let Some(found) = self.ask_loader(address) {
            self.own
                .0
                .store(found.start.addr() as u64, Ordering::Relaxed);
            self.own.1.store(found.end.addr() as u64, Ordering::Relaxed);
        }
    }

    /// The module that holds an address, which must stay mapped.
    pub(super) fn range_of(&self, address: u64) -> Option<core::ops::Range<u64>> {
        let found = self.ask_loader(address)?;
        Some(found.start.addr() as u64..found.end.addr() as u64)
    }

    /// Whether a return address is one into our own code.
    pub(crate) fn is_own(&self, frame: u64) -> bool {
        let own = self.own.0.load(Ordering::Relaxed)..self.own.1.load(Ordering::Relaxed);
        own.contains(&frame.wrapping_sub(1))
    }

    /// Takes the frames of our own code out of a stack of `depth` frames: those of a hook or a bridge.
    pub(crate) fn strip_own(&self, frames: &mut [u64], depth: &mut usize) {
        let found = frames.get(..*depth).map_or(0, <[u64]>::len);
        let mut kept = 0;
        for index in 0..found {
            let Some(&frame) = frames.get(index) else {
                break;
            };
            if !self.is_own(frame)
                && let Some(place) = frames.get_mut(kept)
            {
                *place = frame;
                kept += 1;
            }
        }
        *depth = kept;
    }

    /// Tells where the program's headers are, and how many. Once, at start.
    ///
    /// The kernel leaves a hole between two segments of a program that does not fill its pages (another linker, or a page
    /// size of 2 MiB). Then the loader's answer is the one segment alone, whose first page is not the program's header.
    ///
    /// # Safety
    /// They are there (`AT_PHDR` and `AT_PHNUM` of the auxiliary vector).
    pub unsafe fn set_program(&self, headers: u64, count: usize) {
        // SAFETY: the caller's word.
        if let Some(range) = unsafe { range_of_program(headers, count) } {
            self.set_program_range(range);
        }
    }

    /// As [`Self::set_program`], for a program whose headers do not tell where they are: a static one.
    pub fn set_program_range(&self, range: core::ops::Range<u64>) {
        self.program.0.store(range.start, Ordering::Relaxed);
        self.program.1.store(range.end, Ordering::Relaxed);
    }

    /// Whether an address is in the program itself, which is never unmapped.
    pub fn is_in_program(&self, address: u64) -> bool {
        let (start, end) = &self.program;
        (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address)
    }

    /// How to ask the loader. Without it or [`Self::set_list`] every address is outside of all modules.
    pub fn set_find_object(&self, find: FindObject) {
        self.find_object.store(find as usize, Ordering::Release);
    }

    /// Where the loader's `struct r_debug` is, if it has no `_dl_find_object`. After [`Self::set_program`].
    pub fn set_list(&self, rendezvous: usize) {
        self.listed
            .set_list(rendezvous, self.program.0.load(Ordering::Relaxed));
    }

    /// These addresses are in modules that are never unloaded. Once, at start, after [`Self::set_list`].
    pub fn set_permanent(&self, addresses: &[u64]) {
        let program = self.program.0.load(Ordering::Relaxed);
        self.listed.set_permanent(&[program]);
        self.listed.set_permanent(addresses);
    }

    /// Called before `dlclose`: code may be unmapped from now on.
    pub fn before_dlclose(&self) {
        // First: whoever sees the new count sees this too.
        self.unloading.fetch_add(1, Ordering::Release);
        self.count_dlclose();
    }

    /// Code may have been unmapped: identities are to be compared again.
    pub fn after_dlclose(&self) {
        self.listed.after_dlclose();
        self.count_dlclose();
        self.unloading.fetch_sub(1, Ordering::Release);
    }

    fn count_dlclose(&self) {
        let count = self.dlclose_count.fetch_add(1, Ordering::AcqRel);
        self.rules_are_of(1, count.wrapping_add(1));
    }

    /// Whether code that is where it is now will be there until the count of `dlclose` is another one.
    pub(super) fn stays(&self) -> bool {
        self.unloading.load(Ordering::Acquire) == 0
    }

    /// Called when another epoch begins, whose profile describes no module yet.
    pub fn after_epoch(&self, epoch: u32) {
        self.rules_are_of(epoch, 1);
    }

    fn rules_are_of(&self, epoch: u32, dlclose_count: u32) {
        if Generation::comes_round(epoch, dlclose_count) {
            self.rules.clear();
        }
    }

    /// Number of `dlclose` calls so far.
    pub fn dlclose_count(&self) -> u32 {
        self.dlclose_count.load(Ordering::Acquire)
    }

    /// The module that holds `address`, which must be code on the calling thread's stack (that keeps it mapped), between
    /// `Self::enter` and its end. Allocates from the agent's own memory when it is met for the first time.
    pub fn find(&self, address: u64) -> Option<&'static Module> {
        let found = self.ask_loader(address)?;
        if let Some(known) = self.known(&found) {
            return Some(known);
        }
        self.retired
            .with_patience(LEARNING_TURNS, |retired| self.learn(&found, retired))
            .flatten()
    }

    fn slots_of(&self, found: &FoundObject) -> impl Iterator<Item = &StaticRef<Module>> {
        let first = (found.start.addr() >> 12).wrapping_mul(0x9e37_79b1) % SLOTS;
        (0..PROBES).filter_map(move |probe| self.slots.get((first + probe) % SLOTS))
    }

    fn known(&self, found: &FoundObject) -> Option<&'static Module> {
        self.slots_of(found)
            .filter_map(StaticRef::get)
            .find(|module| module.is_same_as(found) && self.is_still_there(module, found))
    }

    /// Puts a module into the table. Alone.
    fn learn(&self, found: &FoundObject, retired: &mut Retired) -> Option<&'static Module> {
        // Another thread may have been faster.
        if let Some(known) = self.known(found) {
            return Some(known);
        }
        let module = examine(found)?;
        let number = self.examined.load(Ordering::Relaxed);
        if let Some(place) = self.met.get(number as usize % MET) {
            place.store(module.start, Ordering::Relaxed);
        }
        // Alone. Release: pairs with `met_after`.
        self.examined.store(number + 1, Ordering::Release);
        let mut again = None;
        for slot in &self.slots {
            let Some(old) = slot.get().filter(|old| old.overlaps(found)) else {
                continue;
            };
            if old.is_again(&module) {
                old.link_map.store(found.link_map.addr(), Ordering::Relaxed);
                self.confirm(old);
                again = Some(old);
            } else {
                slot.set(None);
                retired.add(old, self.grace.now());
                // libc unloads character sets without `dlclose`.
                self.rules.clear();
            }
        }
        if again.is_some() {
            return again;
        }
        let module = retired.place(&self.grace, module)?;
        let slot = self
            .slots_of(found)
            .find(|slot| slot.get().is_none())
            .or_else(|| self.slots_of(found).next())?;
        let old = slot.get();
        slot.set(Some(module));
        if let Some(old) = old {
            retired.add(old, self.grace.now());
        }
        self.confirm(module);
        Some(module)
    }

    /// It is what is in memory now.
    fn confirm(&self, module: &Module) {
        let count = self.dlclose_count.load(Ordering::Acquire);
        module.checked_at.store(count, Ordering::Relaxed);
    }

    fn ask_loader(&self, address: u64) -> Option<FoundObject> {
        let mut found = match self.find_object.load(Ordering::Acquire) {
            0 => self.listed.find(address)?,
            find => ask(find, address)?,
        };
        let program =
            self.program.0.load(Ordering::Relaxed)..self.program.1.load(Ordering::Relaxed);
        if program.contains(&(found.start.addr() as u64)) {
            found.start = core::ptr::with_exposed_provenance(program.start as usize);
            found.end = core::ptr::with_exposed_provenance(program.end as usize);
        }
        Some(found)
    }

    fn is_still_there(&self, module: &Module, found: &FoundObject) -> bool {
        let count = self.dlclose_count.load(Ordering::Acquire);
        if module.checked_at.load(Ordering::Relaxed) == count {
            return true;
        }
        // SAFETY: the loader just said that it is mapped, and the caller's stack keeps it so.
        let is_same = unsafe { Elf::at(found.start) }
            .is_some_and(|elf| elf.build_id(module.bias) == module.build_id);
        if is_same {
            module.checked_at.store(count, Ordering::Relaxed);
        }
        is_same
    }
}

/// Calls a [`FindObject`], which is stored as a number.
fn ask(find: usize, address: u64) -> Option<FoundObject> {
    // SAFETY: only a `FindObject` is ever stored.
    let find = unsafe { core::mem::transmute::<usize, FindObject>(find) };
    let mut found = FoundObject {
        flags: 0,
        start: core::ptr::null(),
        end: core::ptr::null(),
        link_map: core::ptr::null(),
        eh_frame_hdr: core::ptr::null(),
        reserved: [0; 8],
    };
    let address: *const c_void = core::ptr::without_provenance(address as usize);
    // SAFETY: the loader only compares the address, and fills `found`, which is as large as its struct or larger.
    (unsafe { find(address, &raw mut found) } == 0).then_some(found)
}

/// Reads the identity and the unwind tables of a module.
fn examine(found: &FoundObject) -> Option<Module> {
    let start = found.start.addr() as u64;
    let end = found.end.addr() as u64;
    // SAFETY: the loader's own structure of a module that the caller's stack keeps loaded.
    let bias = unsafe { (*found.link_map).bias };
    // SAFETY: as above.
    let elf = unsafe { Elf::at(found.start) };
    let sections = elf
        .as_ref()
        .and_then(|elf| elf.unwind_sections(bias, found.eh_frame_hdr));
    // SAFETY: as above.
    let name = unsafe { name_of(found.link_map.addr()) };
    Some(Module {
        start,
        end,
        bias,
        link_map: AtomicUsize::new(found.link_map.addr()),
        eh_frame_hdr: found.eh_frame_hdr.addr() as u64,
        build_id: elf.map_or(BuildId::NONE, |elf| elf.build_id(bias)),
        path_hash: hash(name),
        is_loader: name.windows(9).any(|part| part == b"/ld-linux"),
        unwinder: ModuleUnwinder::new(start..end, bias, sections.unwrap_or_default()),
        checked_at: AtomicU32::new(0),
        announced_in: AtomicU32::new(0),
    })
}

/// FNV-1a: tells paths apart, of files that have the same build id.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// # Safety
/// `link_map` is the address of a loaded module's link map.
unsafe fn name_of(link_map: usize) -> &'static [u8] {
    let link_map: *const LinkMap = core::ptr::with_exposed_provenance(link_map);
    // SAFETY: the caller's promise; the loader writes the name once, before the module runs.
    unsafe {
        if (*link_map).name.is_null() {
            &[]
        } else {
            core::ffi::CStr::from_ptr((*link_map).name).to_bytes()
        }
    }
}

#[cfg(test)]
mod tests;
