//! A thread of the machine: allocation, and a stack of references.

use std::sync::atomic::{AtomicU64, Ordering};

use mmtk::util::alloc::BumpAllocator;
use mmtk::util::opaque_pointer::{OpaquePointer, VMMutatorThread, VMThread};
use mmtk::util::{Address, ObjectReference};
use mmtk::vm::slot::SimpleSlot;
use mmtk::{AllocationSemantics, Mutator, memory_manager};

use crate::hooks::Block;
use crate::machine::{self, Machine};
use crate::object::{Header, KINDS, Kind};

/// Larger objects are MMTk's large ones.
const LARGE: usize = 16 << 10;
const WORD: usize = size_of::<usize>();

/// What threads that have ended allocated: objects and bytes of each kind.
pub static ALLOCATED: [(AtomicU64, AtomicU64); KINDS] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; KINDS];

/// See the module. It does not move.
pub struct Thread {
    mutator: *mut Mutator<Machine>,
    /// A part of the mutator.
    bump: *mut BumpAllocator<Machine>,
    pub block: Block,
    roots: Vec<ObjectReference>,
    allocated: [(u64, u64); KINDS],
}

impl Thread {
    /// Runs `work` as a thread of the machine.
    pub fn run<R>(work: impl FnOnce(&mut Thread) -> R) -> R {
        let mut thread = Box::new(Thread {
            mutator: std::ptr::null_mut(),
            bump: std::ptr::null_mut(),
            block: Block::new(),
            roots: Vec::new(),
            allocated: [(0, 0); KINDS],
        });
        let tls = VMMutatorThread(VMThread(OpaquePointer::from_address(Address::from_ref(
            &*thread,
        ))));
        let mut mutator = memory_manager::bind_mutator(machine::mmtk(), tls);
        // SAFETY: plans of this machine allocate small objects by bumping a pointer.
        let bump: &mut BumpAllocator<Machine> =
            unsafe { mutator.allocator_impl_mut_for_semantic(AllocationSemantics::Default) };
        thread.bump = bump;
        thread.mutator = Box::into_raw(mutator);
        machine::join(&mut thread);
        let result = work(&mut thread);
        machine::part(&mut thread, Thread::end);
        result
    }

    fn end(&mut self) {
        let cursor = self.bump().bump_pointer.cursor;
        self.block.end(cursor);
        memory_manager::destroy_mutator(self.mutator());
        // SAFETY: made of a box in `run`, and nobody has it any more.
        drop(unsafe { Box::from_raw(self.mutator) });
        for (total, (objects, bytes)) in ALLOCATED.iter().zip(self.allocated) {
            total.0.fetch_add(objects, Ordering::Relaxed);
            total.1.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The thread that MMTk knows by this pointer.
    pub fn of(tls: VMMutatorThread) -> &'static mut Thread {
        // SAFETY: `run` told MMTk so; the thread is stopped, or it is this one.
        unsafe { &mut *tls.0.0.to_address().to_mut_ptr() }
    }

    pub fn mutator(&mut self) -> &'static mut Mutator<Machine> {
        // SAFETY: lives as long as the thread.
        unsafe { &mut *self.mutator }
    }

    fn bump(&mut self) -> &mut BumpAllocator<Machine> {
        // SAFETY: a part of the mutator, which does not move.
        unsafe { &mut *self.bump }
    }

    // ---- allocation ----

    /// The fast path of any MMTk binding: it compares with a limit.
    #[inline]
    fn allocate(&mut self, bytes: usize, kind: Kind) -> Address {
        let bump = &mut self.bump().bump_pointer;
        let object = bump.cursor;
        let end = object + bytes;
        if end > bump.limit {
            return self.allocate_slow(bytes, kind);
        }
        bump.cursor = end;
        object
    }

    #[cold]
    #[inline(never)]
    fn allocate_slow(&mut self, bytes: usize, kind: Kind) -> Address {
        let cursor = self.bump().bump_pointer.cursor;
        if let Some(limit) = self.block.point(cursor, bytes, kind) {
            self.bump().bump_pointer.reset(cursor + bytes, limit);
            return cursor;
        }
        machine::stop_here();
        self.leave_block();
        let object =
            memory_manager::alloc(self.mutator(), bytes, WORD, 0, AllocationSemantics::Default);
        // MMTk may have collected. It has allocated the object, in another block or in the rest of this one.
        let end = self.bump().bump_pointer.limit;
        let mut limit = self.block.enter(object, end);
        if object + bytes > limit {
            limit = self.block.point(object, bytes, kind).unwrap_or(end);
        }
        self.bump().bump_pointer.limit = limit;
        object
    }

    /// While this thread is stopped: a collection takes its block away.
    pub fn lose_block(&mut self) {
        self.leave_block();
        self.block.enter(Address::ZERO, Address::ZERO);
    }

    /// MMTk is to see the limit that it has set.
    fn leave_block(&mut self) {
        let pointer = self.bump().bump_pointer;
        let limit = self.block.leave(pointer.cursor, pointer.limit);
        self.bump().bump_pointer.limit = limit;
    }

    fn allocate_large(&mut self, bytes: usize) -> Address {
        machine::stop_here();
        memory_manager::alloc(self.mutator(), bytes, WORD, 0, AllocationSemantics::Los)
    }

    /// A new object, whose references point to itself.
    pub fn new_object(&mut self, kind: Kind, references: usize, payload: usize) -> ObjectReference {
        let bytes = (WORD + references * WORD + payload).next_multiple_of(WORD);
        let is_large = bytes > LARGE;
        let at = if is_large {
            self.allocate_large(bytes)
        } else {
            self.allocate(bytes, kind)
        };
        Header::new(kind, references, bytes).write(at);
        let object = ObjectReference::from_raw_address(at).expect("memory");
        for index in 0..references {
            // SAFETY: room for the references. No barrier: nothing has seen the object.
            unsafe { (at + (1 + index) * WORD).store(object) };
        }
        let (objects, total) = &mut self.allocated[kind as usize];
        *objects += 1;
        *total += bytes as u64;
        if is_large {
            let semantics = AllocationSemantics::Los;
            memory_manager::post_alloc(self.mutator(), object, bytes, semantics);
            let pointer = self.bump().bump_pointer;
            let limit = self
                .block
                .outside(object, bytes, kind, pointer.cursor, pointer.limit);
            self.bump().bump_pointer.limit = limit;
        }
        object
    }

    // ---- references ----

    /// Keeps an object alive until `pop`, wherever it moves.
    pub fn push(&mut self, object: ObjectReference) {
        self.roots.push(object);
    }

    pub fn pop(&mut self) -> ObjectReference {
        self.roots.pop().expect("balanced")
    }

    /// The one that was pushed last but `depth`.
    pub fn peek(&self, depth: usize) -> ObjectReference {
        self.roots[self.roots.len() - 1 - depth]
    }

    /// Keeps another object in its place.
    pub fn replace(&mut self, depth: usize, object: ObjectReference) {
        let last = self.roots.len() - 1;
        self.roots[last - depth] = object;
    }

    pub fn store(&mut self, object: ObjectReference, index: usize, target: ObjectReference) {
        machine::store(self.mutator(), object, index, target);
    }

    /// Where its references are, while it is stopped.
    pub fn root_slots(&self) -> Vec<SimpleSlot> {
        self.roots
            .iter()
            .map(|root| SimpleSlot::from_address(Address::from_ref(root)))
            .collect()
    }
}
