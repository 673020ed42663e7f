//! The modules of the process, found as stacks run through them.
//!
//! `_dl_find_object` (glibc 2.35) tells without a lock which module an address is in now; what we work out about a
//! module (identity, unwinder) is kept in a table. An entry is trusted if the loader still says the same of it; after a
//! `dlclose` its build id is compared too, since another module may have taken its place. Entries whose addresses belong
//! to another module now are taken out; their memory is used again when no walk can still be looking at it
//! ([`super::grace`]), so that a program may load and unload for ever.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use allocsample_record::{MAX_BUILD_ID_BYTES, MAX_PATH_BYTES, ModuleRecord};

use super::ModuleUnwinder;
use super::grace::{Entered, Grace, Phase};
use crate::os::memory::{self, StaticRef};
use crate::os::spin::Spin;

const SLOTS: usize = 4096;
const PROBES: usize = 16;
/// Entries that wait for their memory to be used again; more are leaked.
const RETIRED: usize = 64;
/// How many turns of other threads we wait for one that examines a module, until the walk goes on without.
const LEARNING_TURNS: u32 = 1000;

/// `struct dl_find_object` of glibc's `<dlfcn.h>`.
#[repr(C)]
pub struct FoundObject {
    flags: u64,
    start: *const u8,
    end: *const u8,
    link_map: *const LinkMap,
    eh_frame_hdr: *const u8,
    reserved: [u64; 8],
}

/// `_dl_find_object`: lock-free and async-signal-safe.
pub type FindObject = unsafe extern "C" fn(*const c_void, *mut FoundObject) -> i32;

/// The public head of `struct link_map`.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const core::ffi::c_char,
}

/// One module, as it was when first met.
pub struct Module {
    start: u64,
    end: u64,
    bias: u64,
    /// Another one each time that the same file is loaded.
    link_map: AtomicUsize,
    eh_frame_hdr: u64,
    build_id: BuildId,
    path_hash: u64,
    is_loader: bool,
    unwinder: ModuleUnwinder,
    /// The `dlclose` count at which the entry was last compared with memory.
    checked_at: AtomicU32,
    /// The start of the agent in whose profile it is.
    announced_in: AtomicU32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct BuildId {
    bytes: [u8; MAX_BUILD_ID_BYTES],
    length: usize,
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

    /// True once for each start of the agent: the module must be written to the profile.
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
            build_id: self
                .build_id
                .bytes
                .get(..self.build_id.length)
                .unwrap_or(&[]),
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
            && self.build_id.length > 0
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
    dlclose_count: AtomicU32,
    /// The module that this code is in: start and end.
    own: (AtomicU64, AtomicU64),
    grace: Grace,
    /// Held by the thread that changes the table.
    retired: Spin<Retired>,
    examined: AtomicU32,
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
            return memory::leak(module);
        };
        let old = core::ptr::from_ref(old).cast_mut();
        // SAFETY: 1. the memory came from `memory::leak`, which gives away a writable mapping for ever; 2. the table does
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
            dlclose_count: AtomicU32::new(0),
            own: (AtomicU64::new(0), AtomicU64::new(0)),
            grace: Grace::new(),
            retired: Spin::new(Retired {
                entries: [const { None }; RETIRED],
            }),
            examined: AtomicU32::new(0),
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

    /// In a forked child: what other threads were at will never be finished.
    pub fn restart(&self) {
        self.grace.restart();
        self.retired.break_lock();
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

    /// Takes the frames of our own code out of a stack of `depth` frames: those of a hook or a bridge.
    pub(crate) fn strip_own(&self, frames: &mut [u64], depth: &mut usize) {
        let own = self.own.0.load(Ordering::Relaxed)..self.own.1.load(Ordering::Relaxed);
        let found = frames.get(..*depth).map_or(0, <[u64]>::len);
        let mut kept = 0;
        for index in 0..found {
            let Some(&frame) = frames.get(index) else {
                break;
            };
            if !own.contains(&frame.wrapping_sub(1))
                && let Some(place) = frames.get_mut(kept)
            {
                *place = frame;
                kept += 1;
            }
        }
        *depth = kept;
    }

    /// How to ask the loader; without it every address is outside of all modules.
    pub fn set_find_object(&self, find: FindObject) {
        self.find_object.store(find as usize, Ordering::Release);
    }

    /// Code may have been unmapped: identities are to be compared again.
    pub fn after_dlclose(&self) {
        self.dlclose_count.fetch_add(1, Ordering::Release);
    }

    /// How often that was.
    pub fn dlclose_count(&self) -> u32 {
        self.dlclose_count.load(Ordering::Acquire)
    }

    /// The module that holds `address`, which must be code on the calling thread's stack (that keeps it mapped), between
    /// [`Self::enter`] and its end. Allocates from the agent's own memory when it is met for the first time.
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
        self.examined.fetch_add(1, Ordering::Relaxed);
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
        let find = self.find_object.load(Ordering::Acquire);
        if find == 0 {
            return None;
        }
        // SAFETY: only a `FindObject` is ever stored, as a number.
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

/// Works out all that is to be known of a module.
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
        build_id: elf.map_or(
            BuildId {
                bytes: [0; MAX_BUILD_ID_BYTES],
                length: 0,
            },
            |elf| elf.build_id(bias),
        ),
        path_hash: hash(name),
        is_loader: name.windows(9).any(|part| part == b"/ld-linux"),
        unwinder: ModuleUnwinder::new(framehop::Module::new(
            Default::default(),
            start..end,
            bias,
            sections.unwrap_or_default(),
        )),
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

/// The program headers of a mapped module.
struct Elf {
    headers: &'static [ProgramHeader],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    file_offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    alignment: u64,
}

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const NOTE_GNU_BUILD_ID: u32 = 3;

impl Elf {
    /// `None` if the first page is not an ELF header with its program headers behind it.
    ///
    /// # Safety
    /// `start` is where a module is mapped, and it stays so while the result is used.
    unsafe fn at(start: *const u8) -> Option<Self> {
        if !memory::is_readable(start.addr() as u64) {
            return None;
        }
        // SAFETY: the first page of the mapping is readable.
        let page = unsafe { core::slice::from_raw_parts(start, 4096) };
        // 64-bit, little-endian.
        if !page.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let word = |at: usize| Some(u16::from_le_bytes([*page.get(at)?, *page.get(at + 1)?]));
        let offset = usize::from(word(32)?);
        let count = usize::from(word(56)?);
        let table = page.get(offset..offset + count * size_of::<ProgramHeader>())?;
        // SAFETY: inside the page; ELF aligns the table to 8, and so does the check.
        let headers = (table.as_ptr().addr() % 8 == 0)
            .then(|| unsafe { core::slice::from_raw_parts(table.as_ptr().cast(), count) })?;
        Some(Self { headers })
    }

    fn of_kind(&self, kind: u32) -> impl Iterator<Item = &ProgramHeader> {
        self.headers
            .iter()
            .filter(move |header| header.kind == kind)
    }

    /// `address` up to the end of the file's bytes in its segment.
    fn bytes_from(&self, bias: u64, address: u64) -> Option<&'static [u8]> {
        let offset = address.wrapping_sub(bias);
        let segment = self.of_kind(LOAD).find(|segment| {
            offset >= segment.address && offset < segment.address + segment.file_bytes
        })?;
        const READABLE: u32 = 4;
        if segment.flags & READABLE == 0 {
            return None;
        }
        let length = segment.address + segment.file_bytes - offset;
        let pointer: *const u8 = core::ptr::with_exposed_provenance(address as usize);
        // SAFETY: a readable segment of a module that is mapped by `Elf::at`'s promise. It is 'static in type only:
        // it is used while a frame of the module is on a stack.
        Some(unsafe { core::slice::from_raw_parts(pointer, usize::try_from(length).ok()?) })
    }

    fn build_id(&self, bias: u64) -> BuildId {
        let mut id = BuildId {
            bytes: [0; MAX_BUILD_ID_BYTES],
            length: 0,
        };
        for note in self.of_kind(NOTE) {
            let Some(mut rest) = self.bytes_from(bias, bias.wrapping_add(note.address)) else {
                continue;
            };
            rest = rest.get(..note.file_bytes as usize).unwrap_or(rest);
            while let Some((kind, name, description, after)) = next_note(rest) {
                if kind == NOTE_GNU_BUILD_ID && name == b"GNU\0" {
                    id.length = description.len().min(MAX_BUILD_ID_BYTES);
                    for (to, from) in id.bytes.iter_mut().zip(description) {
                        *to = *from;
                    }
                    return id;
                }
                rest = after;
            }
        }
        id
    }

    /// Where the unwind tables are; only the usual encoding of the pointer to `.eh_frame` is known.
    fn unwind_sections(
        &self,
        bias: u64,
        header: *const u8,
    ) -> Option<framehop::ExplicitModuleSectionInfo<&'static [u8]>> {
        if header.is_null() {
            return None;
        }
        let header_address = header.addr() as u64;
        let eh_frame_hdr = self.bytes_from(bias, header_address)?;
        const PC_RELATIVE_SIGNED_4: u8 = 0x1b;
        let [1, PC_RELATIVE_SIGNED_4, _, _, a, b, c, d] = *eh_frame_hdr.first_chunk::<8>()? else {
            return None;
        };
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        let eh_frame_address = (header_address + 4).wrapping_add_signed(distance);
        let eh_frame = self.bytes_from(bias, eh_frame_address)?;
        let range = |address: u64, bytes: &[u8]| {
            let start = address.wrapping_sub(bias);
            Some(start..start + bytes.len() as u64)
        };
        Some(framehop::ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma: range(eh_frame_address, eh_frame),
            eh_frame: Some(eh_frame),
            eh_frame_hdr_svma: range(header_address, eh_frame_hdr),
            eh_frame_hdr: Some(eh_frame_hdr),
            ..Default::default()
        })
    }
}

type ElfNote<'a> = (u32, &'a [u8], &'a [u8], &'a [u8]);

/// Kind, name, description, and what comes after the first note of `bytes`.
fn next_note(bytes: &[u8]) -> Option<ElfNote<'_>> {
    let (header, rest) = bytes.split_first_chunk::<12>()?;
    let field = |at: usize| {
        let mut field = [0; 4];
        field.copy_from_slice(header.get(at..at + 4)?);
        Some(u32::from_le_bytes(field))
    };
    let (name_bytes, description_bytes, kind) = (field(0)? as usize, field(4)? as usize, field(8)?);
    let padded_name = rest.get(..name_bytes.checked_next_multiple_of(4)?)?;
    let rest = rest.get(padded_name.len()..)?;
    let description = rest.get(..description_bytes)?;
    let after = rest
        .get(description_bytes.checked_next_multiple_of(4)?..)
        .unwrap_or(&[]);
    Some((kind, padded_name.get(..name_bytes)?, description, after))
}
