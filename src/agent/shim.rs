//! Structures of `c_shim/shim.h` that the shim passes by pointer.

/// Mirror of `struct shim_caller`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct Caller {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
}

impl Caller {
    /// The caller of a hook that does not know it.
    pub const UNKNOWN: Self = Self {
        pc: 0,
        sp: 0,
        fp: 0,
    };
}

/// Mirror of `struct shim_registers`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct Interrupted {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    pub link: u64,
}

const _: () = assert!(size_of::<Interrupted>() == 32, "shim.h asserts the same");

/// Mirror of `struct shim_allocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct Allocation {
    pub address: u64,
    pub size: u64,
    pub charged: u64,
    pub is_realloc: u32,
    pub has_own_frame: u32,
    pub caller: Caller,
}

const _: () = assert!(
    size_of::<Allocation>() == 56,
    "c_shim/shim.h asserts the same"
);

/// Mirror of `struct shim_mapping`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct MappingCall {
    pub start: u64,
    pub bytes: u64,
    pub change: u32,
    pub protection: u32,
    pub flags: u32,
    pub unused: u32,
}

const _: () = assert!(
    size_of::<MappingCall>() == 32,
    "c_shim/shim.h asserts the same"
);

/// Mirror of `struct shim_kept_mapping`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "documented in shim.h")]
pub struct KeptMapping {
    pub mapping: MappingCall,
    pub caller: u64,
}

const _: () = assert!(
    size_of::<KeptMapping>() == 40,
    "c_shim/shim.h asserts the same"
);
