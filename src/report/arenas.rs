//! Which memory a runtime may have its objects in, where nobody knows their addresses.
//!
//! Samples of such objects say how much is alive, and nothing of the place. The recorded calls rule memory out: what a module
//! with an allocator of its own has mapped, as Arrow's library does, is not the runtime's; and CPython maps its arenas itself.
//! Mappings without a recorded call may be anybody's.

use std::collections::HashSet;

use allocsample_profile::{MappedRanges, MappingCall, MemoryMapping, Profile};

const CPYTHON: &str = "CPython";
const PYTHON_HEAP: &str = "python";
/// What CPython maps for small objects at a time: until 3.9, and since.
const ARENA_BYTES: [u64; 2] = [256 << 10, 1 << 20];

/// The modules that may map memory for the objects of the profile's runtimes.
pub(crate) struct Arenas<'a> {
    profile: &'a Profile,
    /// Paths.
    modules: HashSet<&'a str>,
    /// Whether these are the only ones that may, or the only ones that may not.
    is_allowed: bool,
}

impl<'a> Arenas<'a> {
    /// By what the modules' files contain.
    pub fn of(profile: &'a Profile) -> Self {
        let inspected = || profile.inspected.iter();
        let cpython: HashSet<&str> = inspected()
            .filter(|it| it.runtime == CPYTHON)
            .map(|it| it.path.as_str())
            .collect();
        let mut heaps =
            (profile.vm.heaps.iter()).filter(|(id, _)| !crate::shares::is_embedded(profile, **id));
        if !cpython.is_empty() && heaps.all(|(_, heap)| heap.name == PYTHON_HEAP) {
            return Self {
                profile,
                modules: cpython,
                is_allowed: true,
            };
        }
        let with_allocator = inspected()
            .filter(|it| it.runtime.is_empty() && !it.allocator.is_empty())
            .map(|it| it.path.as_str());
        Self {
            profile,
            modules: with_allocator.collect(),
            is_allowed: false,
        }
    }

    /// Whether objects may lie in what a call has mapped.
    pub fn may_be_of(&self, call: &MappingCall) -> bool {
        if call.mapped.change.is_own() {
            return false;
        }
        let Some(module) = self.profile.mapper_of(call) else {
            return true;
        };
        let path = self
            .profile
            .module(module)
            .map_or("", |it| it.path.as_str());
        self.modules.contains(path) == self.is_allowed
    }

    /// Whether what no recorded call has made of a mapping is the loader's: the zeroed data of a module, which may have a hundred
    /// MiB. Where the module's file could be read, the mapping is nothing else.
    pub fn is_loaders(mapping: &MemoryMapping) -> bool {
        mapping.is(MemoryMapping::BEHIND_FILE)
    }

    /// The part of a mapping, from 0 to 1, in which objects may lie.
    pub fn possible(&self, calls: &MappedRanges<usize>, mapping: &MemoryMapping) -> f64 {
        match Self::is_loaders(mapping) {
            true => self.part(calls, mapping, |call| self.may_be_of(call)),
            false => 1.0 - self.part(calls, mapping, |call| !self.may_be_of(call)),
        }
    }

    /// The part of a mapping with another owner that a runtime is known to have mapped: the kernel joins mappings that touch.
    pub fn certain(&self, calls: &MappedRanges<usize>, mapping: &MemoryMapping) -> f64 {
        match self.is_allowed {
            true => self.part(calls, mapping, |call| self.is_certain(call)),
            false => 0.0,
        }
    }

    /// The part of a mapping with blocks of glibc's malloc that objects may have. glibc's own calls are not recorded, so no recorded
    /// one has mapped for it.
    pub fn beside_malloc(&self, calls: &MappedRanges<usize>, mapping: &MemoryMapping) -> f64 {
        self.part(calls, mapping, |call| self.is_certain(call))
    }

    /// The part in which nothing but a runtime's objects can be, however few are alive: arenas of CPython's. Its own code maps
    /// other memory, too, if the program asks for it (`mmap.mmap`), but hardly of that size.
    pub fn own(&self, calls: &MappedRanges<usize>, mapping: &MemoryMapping) -> f64 {
        self.part(calls, mapping, |call| {
            self.is_allowed && ARENA_BYTES.contains(&call.mapped.bytes) && self.is_certain(call)
        })
    }

    /// Whether a module that may map for a runtime has made a call, which is no thread's stack.
    fn is_certain(&self, call: &MappingCall) -> bool {
        !call.mapped.change.is_thread()
            && self.may_be_of(call)
            && self.profile.mapper_of(call).is_some()
    }

    /// The part that some calls have mapped.
    fn part(
        &self,
        calls: &MappedRanges<usize>,
        mapping: &MemoryMapping,
        is_wanted: impl Fn(&MappingCall) -> bool,
    ) -> f64 {
        // Several small ones together lie nowhere.
        if mapping.start == 0 || mapping.bytes == 0 {
            return 0.0;
        }
        let end = mapping.start.saturating_add(mapping.bytes);
        let wanted = calls
            .within(mapping.start, end)
            .filter(|(_, _, row)| is_wanted(&self.profile.mappings[*row]));
        let bytes: u64 = wanted.map(|(from, to, _)| to - from).sum();
        bytes as f64 / mapping.bytes as f64
    }
}
