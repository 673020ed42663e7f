//! The rows of a ledger while they are summed up: whose each part of a mapping is.

use std::collections::BTreeMap;

use allocsample_heapwalk::Known;
use allocsample_profile::{
    MappedRanges, MappingCall, MemoryMap, MemoryMapping, ModuleId, Profile, readable,
};

use super::earlier::Earlier;
use super::held::known_bytes_within;
use super::{Account, FILES, LedgerRow, Site, frames_of, machines};
use crate::arenas::Arenas;
use crate::shares::Share;

#[derive(Default)]
pub(super) struct Entry {
    account: Option<Account>,
    name: String,
    resident_bytes: f64,
    anonymous_bytes: f64,
    /// By the functions of the stack.
    sites: BTreeMap<Vec<(String, String)>, Site>,
}

impl Entry {
    pub(super) fn finish(self) -> LedgerRow {
        let mut sites: Vec<Site> = self.sites.into_values().collect();
        sites.sort_by(|a, b| b.resident_bytes.total_cmp(&a.resident_bytes));
        LedgerRow {
            account: self.account.unwrap_or(Account::Unexplained),
            name: self.name,
            resident_bytes: self.resident_bytes,
            anonymous_bytes: self.anonymous_bytes,
            stderr_bytes: None,
            reasons: Vec::new(),
            sites,
        }
    }
}

pub(super) struct Entries<'a> {
    pub(super) profile: &'a Profile,
    /// Modules with an allocator of their own, and its name.
    pub(super) allocators: Vec<(String, String)>,
    /// Which calls may have mapped memory for sampled objects.
    pub(super) arenas: Arenas<'a>,
    /// Whether rows get the calls that mapped their memory.
    pub(super) has_sites: bool,
    pub(super) calls: MappedRanges<usize>,
    /// Threads may be older than the recording, and no malloc that nobody knows may have guard pages of its own, as Firefox's has.
    pub(super) guards_mean_stacks: bool,
    /// Which of it is older than the recording.
    pub(super) earlier: Earlier,
    /// Whose the memory is that no call has made, where only one could have it.
    pub(super) likely: Option<String>,
    /// By address, what is no call's because its content is known.
    pub(super) known: &'a [Known],
    pub(super) rows: BTreeMap<(Account, String), Entry>,
}

/// The anonymous or shared memory of a mapping that no sampled heap accounts for.
struct Rest {
    bytes: f64,
    /// Bytes of the mapping that sampled objects account for.
    objects: f64,
    /// Bytes of the mapping that glibc's malloc accounts for.
    malloc: f64,
}

impl Rest {
    fn of(bytes: f64) -> Self {
        Self {
            bytes,
            objects: 0.0,
            malloc: 0.0,
        }
    }
}

impl Entries<'_> {
    fn entry(&mut self, account: Account, name: String) -> &mut Entry {
        let entry = self.rows.entry((account, name.clone())).or_default();
        entry.account = Some(account);
        entry.name = name;
        entry
    }

    pub(super) fn add(&mut self, account: Account, name: String, resident: f64, anonymous: f64) {
        if resident > 0.0 {
            let entry = self.entry(account, name);
            entry.resident_bytes += resident;
            entry.anonymous_bytes += anonymous;
        }
    }

    /// What the sampled heaps do not have of a mapping.
    pub(super) fn add_rest(&mut self, map: &MemoryMap, mapping: &MemoryMapping, share: &Share) {
        let name = readable(map.name(mapping));
        let shared = (mapping.resident_bytes).saturating_sub(mapping.anonymous_bytes) as f64;
        let (account, label) = not_anonymous(&name);
        let rest = match account {
            Account::Shared => {
                let owner = |_: &Self, _| (account, label.clone());
                self.divide(mapping, &Rest::of(shared), owner)
            }
            _ => shared,
        };
        self.add(account, label, rest, 0.0);
        let anonymous = (mapping.anonymous_bytes as f64 - share.sum()).max(0.0);
        // malloc's part of the brk heap is off already; what is left may be of an allocator that calls sbrk.
        let is_of_calls =
            ["", "[heap]"].contains(&&*name) || mapping.is(MemoryMapping::BEHIND_FILE);
        let rest = match self.add_stacks(mapping, anonymous) {
            true => 0.0,
            false if is_of_calls => {
                let rest = Rest {
                    bytes: anonymous,
                    objects: share.objects + share.objects_held,
                    malloc: share.malloc + share.malloc_held,
                };
                self.divide(mapping, &rest, Self::owner)
            }
            false => anonymous,
        };
        let (account, mut label) = anonymous_of(mapping, &name, self.guards_mean_stacks);
        let mut rest = rest;
        if account == Account::Unexplained {
            let earlier = rest * self.earlier.part_of(&self.calls, mapping);
            let of_earlier = self.earlier.label.to_owned();
            self.add(Account::Earlier, of_earlier, earlier, earlier);
            rest -= earlier;
            if let Some(likely) = &self.likely {
                label += &format!(", most likely of {likely}");
            }
        }
        self.add(account, label, rest, rest);
    }

    /// Adds memory in a mapping with stacks of threads; false if there is none.
    fn add_stacks(&mut self, mapping: &MemoryMapping, bytes: f64) -> bool {
        let threads: Vec<usize> = (self.calls)
            .threads_within(mapping.start, end_of(mapping))
            .map(|(_, row)| row)
            .collect();
        let part = bytes / threads.len() as f64;
        for &row in &threads {
            let owner = match self.profile.mappings[row].mapped.change.is_own() {
                true => (Account::Agent, AGENT.to_owned()),
                false => (Account::Stacks, STACKS.to_owned()),
            };
            self.add_call(owner, row, part, 0.0);
        }
        !threads.is_empty()
    }

    /// Divides the rest of a mapping among the calls that made parts of it, in proportion to their lengths. Calls whose memory sampled
    /// objects cannot lie in get their parts of what these have, too. Returns what falls on parts that no recorded call has made.
    fn divide(
        &mut self,
        mapping: &MemoryMapping,
        rest: &Rest,
        owner: impl Fn(&Self, usize) -> (Account, String),
    ) -> f64 {
        let bytes = rest.bytes;
        // Several small ones together lie nowhere.
        if mapping.start == 0 || bytes <= 0.0 {
            return bytes;
        }
        let calls: Vec<(u64, u64, usize)> = (self.calls)
            .within(mapping.start, end_of(mapping))
            .collect();
        let unknown_bytes =
            |start: u64, end: u64| end - start - known_bytes_within(self.known, start, end);
        let unknown = unknown_bytes(mapping.start, end_of(mapping));
        // More is resident than when the content was read.
        if unknown == 0 {
            return bytes;
        }
        // Where content is known, objects are in no other place.
        let ruled_out = match unknown == mapping.bytes {
            true => 1.0 - self.arenas.possible(&self.calls, mapping),
            false => 0.0,
        };
        let without_objects = bytes.min((bytes + rest.objects) * ruled_out);
        let others = bytes - without_objects;
        let recorded: u64 = calls
            .iter()
            .map(|&(start, end, _)| unknown_bytes(start, end))
            .sum();
        // glibc's own calls of mmap are not recorded, and its blocks are already accounted for.
        let of_malloc = rest.malloc.min((unknown - recorded) as f64);
        let is_without = ruled_out > 0.0 && Arenas::is_loaders(mapping);
        let (malloc, malloc_without) = match is_without {
            true => (0.0, of_malloc),
            false => (of_malloc, 0.0),
        };
        // What a byte of either kind has, mapped for objects or not.
        let length = unknown as f64;
        let (per_byte, per_byte_without) = (
            others / (length * (1.0 - ruled_out) - malloc).max(1.0),
            without_objects / (length * ruled_out - malloc_without).max(1.0),
        );
        let mut left = bytes;
        for (start, end, row) in calls {
            let mapped = (end - start) as f64;
            let per_byte = match self.arenas.may_be_of(&self.profile.mappings[row]) {
                _ if ruled_out == 0.0 => per_byte,
                true => per_byte,
                false => per_byte_without,
            };
            let part = unknown_bytes(start, end) as f64 * per_byte;
            left -= part;
            self.add_call(owner(self, row), row, part, mapped);
        }
        // Not what rounding leaves.
        if left < 1.0 { 0.0 } else { left }
    }

    fn add_call(&mut self, (account, name): (Account, String), row: usize, part: f64, mapped: f64) {
        let call = self.profile.mappings[row];
        let functions = self.has_sites.then(|| {
            let frames = frames_of(self.profile, call.stack);
            let functions = frames.into_iter().map(|it| (it.function, it.module));
            functions.collect()
        });
        let entry = self.entry(account, name);
        entry.resident_bytes += part;
        if account != Account::Shared {
            entry.anonymous_bytes += part;
        }
        let Some(functions) = functions else {
            return;
        };
        let site = entry.sites.entry(functions).or_insert_with(|| Site {
            stack: call.stack,
            resident_bytes: 0.0,
            mapped_bytes: 0.0,
            calls: 0,
        });
        site.resident_bytes += part;
        site.mapped_bytes += mapped;
        site.calls += 1;
    }

    /// Whose call it was: that of the first module on its stack that is not the C library.
    fn owner(&self, row: usize) -> (Account, String) {
        let call: &MappingCall = &self.profile.mappings[row];
        if call.mapped.change.is_own() {
            return (Account::Agent, AGENT.to_owned());
        }
        let module = (self.profile.mapper_of(call))
            .map(|module| self.profile.module(module).map(|module| module.name()));
        let label = match module {
            Some(Some(module)) => {
                let mut allocators = self.allocators.iter();
                match allocators.find(|(with, _)| with == module) {
                    Some((_, allocator)) => format!("mapped by {module} ({allocator})"),
                    None => format!("mapped by {module}"),
                }
            }
            Some(None) => "mapped by code of no module".to_owned(),
            None if self.has_frames_of_a_machine(call) => {
                format!("mapped by {}", machines(self.profile, false))
            }
            None => format!("mapped by {}, without a stack", call.mapped.change.name()),
        };
        (Account::Mapped, label)
    }

    /// They stand in for the native frames of a machine that told of its code as a whole.
    fn has_frames_of_a_machine(&self, call: &MappingCall) -> bool {
        let mut locations = self.profile.stacks.locations(call.stack);
        locations.any(|location| location.module == ModuleId::VM)
    }
}

pub(super) fn end_of(mapping: &MemoryMapping) -> u64 {
    mapping.start.saturating_add(mapping.bytes)
}

const STACKS: &str = "stacks of threads";
const AGENT: &str = "allocsample";

/// Memory in a mapping that belongs to a file, or is shared.
fn not_anonymous(name: &str) -> (Account, String) {
    const SHARED: [&str; 4] = ["/dev/shm/", "/memfd:", "/SYSV", "/dev/zero"];
    if is_of_agent(name) {
        (Account::Agent, AGENT.to_owned())
    } else if SHARED.iter().any(|prefix| name.starts_with(prefix)) {
        (Account::Shared, "shared memory".to_owned())
    } else {
        (Account::Files, FILES.to_owned())
    }
}

/// Whether a file is one of the agent's.
pub(crate) fn is_of_agent(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let file = file.strip_suffix(" (deleted)").unwrap_or(file);
    file.starts_with("liballocsample") || file.ends_with(".allocsample.ring")
}

/// Anonymous memory that no recorded call has made.
fn anonymous_of(
    mapping: &MemoryMapping,
    name: &str,
    guards_mean_stacks: bool,
) -> (Account, String) {
    if mapping.is(MemoryMapping::BEHIND_GUARD) {
        return match guards_mean_stacks {
            true => (
                Account::Stacks,
                "stacks of threads, by their guard pages".to_owned(),
            ),
            false => (
                Account::Unexplained,
                "unexplained, behind a guard page".to_owned(),
            ),
        };
    }
    match name {
        "" => (Account::Unexplained, "unexplained".to_owned()),
        "[heap]" => (
            Account::Unexplained,
            "unexplained, in the brk heap".to_owned(),
        ),
        "[stack]" => (Account::Stacks, "stack of the main thread".to_owned()),
        _ if is_of_agent(name) => (Account::Agent, AGENT.to_owned()),
        _ if name.starts_with('/') => (Account::Data, "data of modules and files".to_owned()),
        _ => (Account::Data, format!("the kernel's {name}")),
    }
}
