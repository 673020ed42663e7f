//! `allocsample.h` in Rust: what this machine uses of it, in the header's order.

use std::ffi::{c_char, c_void};

/// `allocsample_heap`
#[repr(C)]
pub struct Heap {
    _opaque: [u8; 0],
}

/// `allocsample_nursery`
#[repr(C)]
pub struct Nursery {
    _agent: [u64; 40],
}

impl Nursery {
    /// As the header wants it at first.
    pub const fn new() -> Self {
        Self { _agent: [0; 40] }
    }
}

/// `allocsample_heap_description`
#[repr(C)]
pub struct HeapDescription {
    pub size: u32,
    pub kind: u32,
    pub name: *const c_char,
    pub interval: u64,
    pub flags: u32,
    pub reserved: u32,
    pub user: *mut c_void,
    pub walk: *const c_void,
    pub on_sample: *const c_void,
}

pub const KIND_NURSERY: u32 = 2;

pub const MINOR: u32 = 1;
pub const MAJOR: u32 = 2;

/// `allocsample_pending`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pending {
    pub id: u64,
    pub slot: u64,
    pub address: usize,
    pub size: u64,
    pub type_id: u32,
    pub reserved: u32,
}

pub const DEAD: u32 = 0;
pub const ALIVE: u32 = 1;
pub const PROMOTED: u32 = 2;

/// `allocsample_resolution`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Resolution {
    pub id: u64,
    pub slot: u64,
    pub address: usize,
    pub content_hash: u64,
    pub type_id: u32,
    pub fate: u32,
}

/// `allocsample_gc`
#[repr(C)]
pub struct Gc {
    pub size: u32,
    pub kind: u32,
    pub id: u64,
    pub begin_ns: u64,
    pub end_ns: u64,
    pub statistics: u32,
    pub reserved: u32,
    pub values: *const u64,
}

/// A function of the table that this machine does not call.
type Unused = *const c_void;

/// `allocsample_hooks`
#[repr(C)]
pub struct Hooks {
    pub size: u32,
    pub version: u32,
    pub heap_register: unsafe extern "C" fn(*const HeapDescription) -> *mut Heap,
    _heap_unregister: Unused,
    pub thread_name: unsafe extern "C" fn(*const c_char) -> i32,
    pub nursery_begin: unsafe extern "C" fn(*mut Heap, *mut Nursery, usize, usize) -> usize,
    pub nursery_point:
        unsafe extern "C" fn(*mut Heap, *mut Nursery, usize, u64, usize, u32) -> usize,
    pub nursery_sync: unsafe extern "C" fn(*mut Heap, *mut Nursery, usize, usize, usize) -> usize,
    _nursery_enable: Unused,
    pub nursery_end: unsafe extern "C" fn(*mut Heap, *mut Nursery, usize),
    pub alloc:
        unsafe extern "C" fn(*mut Heap, *mut Nursery, usize, u64, u32, usize, *mut usize) -> u64,
    _freed: Unused,
    _moved: Unused,
    pub pending:
        unsafe extern "C" fn(*mut Heap, *mut Nursery, u32, *mut Pending, usize, *mut u64) -> usize,
    pub resolve:
        unsafe extern "C" fn(*mut Heap, *mut Nursery, u32, *const Resolution, usize, u64) -> usize,
    pub define_type: unsafe extern "C" fn(*mut Heap, u32, *const c_char, *const c_char) -> i32,
    _define_function: Unused,
    pub define_statistic: unsafe extern "C" fn(*mut Heap, u32, *const c_char, *const c_char) -> i32,
    _interpreter_range: Unused,
    _code_add: Unused,
    _code_move: Unused,
    _code_remove: Unused,
    pub now_ns: unsafe extern "C" fn() -> u64,
    pub gc: unsafe extern "C" fn(*mut Heap, *const Gc) -> i32,
}

/// `allocsample_find`: the table, or `None` where nobody profiles us.
pub fn find() -> Option<&'static Hooks> {
    const VERSION: u32 = 1;
    // SAFETY: a name with its NUL; RTLD_DEFAULT asks for the program's own symbols.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"allocsample_get_hooks".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    type GetHooks = unsafe extern "C" fn(u32) -> *const Hooks;
    // SAFETY: that is its type in the header.
    let get_hooks = unsafe { std::mem::transmute::<*mut c_void, GetHooks>(symbol) };
    // SAFETY: it returns NULL, or a table that stays.
    let hooks = unsafe { get_hooks(VERSION).as_ref() }?;
    (hooks.size as usize >= size_of::<Hooks>()).then_some(hooks)
}
