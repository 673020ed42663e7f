//! Objects: a header word, references, then bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use mmtk::util::copy::{CopySemantics, GCWorkerCopyContext};
use mmtk::util::{Address, ObjectReference};
use mmtk::vm::slot::SimpleSlot;
use mmtk::vm::{
    ObjectModel, VMGlobalLogBitSpec, VMLocalForwardingBitsSpec, VMLocalForwardingPointerSpec,
    VMLocalLOSMarkNurserySpec, VMLocalMarkBitSpec,
};

use crate::machine::Machine;

/// What an object is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Node = 1,
    Text = 2,
    Array = 3,
}

/// Number of kinds, with none.
pub const KINDS: usize = 4;

/// Bytes of each kind that nursery collections have copied: what is exactly known of survival.
pub static PROMOTED: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

/// The header: kind in 8 bits, references in 24, bytes of the whole object in 32. While an object is being copied its
/// place is the forwarding pointer's.
#[derive(Clone, Copy)]
pub struct Header(u64);

impl Header {
    pub fn new(kind: Kind, references: usize, bytes: usize) -> Self {
        Self(u64::from(kind as u32) | (references as u64) << 8 | (bytes as u64) << 32)
    }

    pub fn of(object: ObjectReference) -> Self {
        // SAFETY: objects begin with their header.
        Self(unsafe { object.to_raw_address().load() })
    }

    pub fn write(self, at: Address) {
        // SAFETY: MMTk gave the memory out for this object.
        unsafe { at.store(self.0) };
    }

    pub fn kind(self) -> usize {
        (self.0 & 0xff) as usize
    }

    pub fn references(self) -> usize {
        (self.0 >> 8 & 0xff_ffff) as usize
    }

    pub fn bytes(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// Where a reference of an object is.
pub fn slot(object: ObjectReference, index: usize) -> SimpleSlot {
    SimpleSlot::from_address(object.to_raw_address() + (1 + index) * size_of::<usize>())
}

/// See the module.
pub struct Model;

impl ObjectModel<Machine> for Model {
    const GLOBAL_LOG_BIT_SPEC: VMGlobalLogBitSpec = VMGlobalLogBitSpec::side_first();
    const LOCAL_FORWARDING_POINTER_SPEC: VMLocalForwardingPointerSpec =
        VMLocalForwardingPointerSpec::in_header(0);
    const LOCAL_FORWARDING_BITS_SPEC: VMLocalForwardingBitsSpec =
        VMLocalForwardingBitsSpec::side_first();
    const LOCAL_MARK_BIT_SPEC: VMLocalMarkBitSpec =
        VMLocalMarkBitSpec::side_after(Self::LOCAL_FORWARDING_BITS_SPEC.as_spec());
    const LOCAL_LOS_MARK_NURSERY_SPEC: VMLocalLOSMarkNurserySpec =
        VMLocalLOSMarkNurserySpec::side_after(Self::LOCAL_MARK_BIT_SPEC.as_spec());
    const OBJECT_REF_OFFSET_LOWER_BOUND: isize = 0;
    const UNIFIED_OBJECT_REFERENCE_ADDRESS: bool = true;

    fn copy(
        from: ObjectReference,
        semantics: CopySemantics,
        context: &mut GCWorkerCopyContext<Machine>,
    ) -> ObjectReference {
        let header = Header::of(from);
        let bytes = header.bytes();
        let to = context.alloc_copy(from, bytes, size_of::<usize>(), 0, semantics);
        let source = from.to_raw_address();
        // SAFETY: the new place has as many bytes, and is another.
        unsafe { std::ptr::copy_nonoverlapping(source.to_ptr::<u8>(), to.to_mut_ptr(), bytes) };
        if matches!(semantics, CopySemantics::PromoteToMature) {
            PROMOTED[header.kind()].fetch_add(bytes as u64, Ordering::Relaxed);
        }
        let object = ObjectReference::from_raw_address(to).expect("a place");
        context.post_copy(object, bytes, semantics);
        object
    }

    fn copy_to(_: ObjectReference, _: ObjectReference, _: Address) -> Address {
        unreachable!("only mark-compact plans slide objects")
    }

    fn get_reference_when_copied_to(_: ObjectReference, _: Address) -> ObjectReference {
        unreachable!("only mark-compact plans slide objects")
    }

    fn get_current_size(object: ObjectReference) -> usize {
        Header::of(object).bytes()
    }

    fn get_size_when_copied(object: ObjectReference) -> usize {
        Self::get_current_size(object)
    }

    fn get_align_when_copied(_: ObjectReference) -> usize {
        size_of::<usize>()
    }

    fn get_align_offset_when_copied(_: ObjectReference) -> usize {
        0
    }

    fn get_type_descriptor(_: ObjectReference) -> &'static [i8] {
        &[]
    }

    fn ref_to_object_start(object: ObjectReference) -> Address {
        object.to_raw_address()
    }

    fn ref_to_header(object: ObjectReference) -> Address {
        object.to_raw_address()
    }

    fn dump_object(object: ObjectReference) {
        eprintln!("{object}");
    }
}
