//! Walks the stack of the calling thread.
//!
//! One loop, three kinds of steps: by the call-frame information of the module that the frame is in ([`modules`]), out
//! of a signal frame by the registers that the kernel saved there, and, for code that no module covers (JIT), by the
//! frame pointer. Every step is checked: the stack pointer must rise, memory is read only where it can be
//! (`reader`), and a return address must lie in a module or behind a call instruction. A walk that fails a check ends
//! there and says so. A step that was made before, from one return address known to be good to another, is made by its
//! rule alone (`rules`). A walk that meets what the last one left unchanged ends as that one did (`memo`).

mod elf;
#[cfg(test)]
mod fake_loader;
mod foreign;
mod grace;
mod listed;
pub mod locking;
mod memo;
pub mod modules;
mod reader;
mod rules;
pub mod shadow;
#[cfg(target_arch = "aarch64")]
mod signing;
mod step;
pub mod vm;
mod written;

use allocsample_record::SampleFlags;
use framehop::{CacheNative, FrameAddress, MustNotAllocateDuringUnwind, UnwindRegsNative};

use crate::accounting::thread::ShimThread;
use crate::shim::{Caller, Interrupted};
pub use foreign::ForeignPages;
use memo::{Frame, FramePointer};
pub use memo::{Memo, MemoKey};
use modules::{Module, Modules};
use reader::{OwnWords, StackReader};
use rules::{Generation, Rule};
pub use written::{FoundStack, WrittenKey, WrittenStack};

/// The unwinder's memory of rules that it has worked out before, with its working space.
pub type RuleCache = CacheNative<MustNotAllocateDuringUnwind>;

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
pub enum From {
    /// Behind a call, which has just returned.
    Call(Caller),
    /// At an instruction, before which a signal came.
    Interrupted(Interrupted),
}

/// A stack as it was found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Captured {
    /// Frames in the buffer, leaf first.
    pub depth: usize,
    /// Whether and why the root is missing.
    pub flags: SampleFlags,
    /// The machine's frames are in it, in another buffer.
    pub is_merged: bool,
    /// Frames of the buffer, counted from its end, that were taken from the last walk that is remembered: the root's, unless
    /// it is truncated.
    pub known: usize,
    /// The number of the remembered walk.
    pub known_from: u64,
    /// The number of this walk.
    pub walk: u64,
    /// The thread is in a place where it may hold locks of libc: inside the dynamic loader or a signal handler.
    pub may_hold_loader_locks: bool,
    /// The stack pointer of what the first signal handler has interrupted; 0 if the walk met none.
    pub interrupted_sp: u64,
}

/// The inputs and working memory of a walk.
pub struct Walk<'a> {
    /// The modules of the process.
    pub modules: &'a Modules,
    /// Working memory.
    pub cache: &'a mut RuleCache,
    /// The remembered last walk.
    pub memo: &'a mut Memo,
    /// The thread and epoch that the walk belongs to.
    pub key: MemoKey,
    /// Use frame pointers alone, no call-frame information.
    pub only_frame_pointers: bool,
    /// Make each step by the unwinder, without rules or the memo.
    pub without_rules: bool,
    /// Buffer for return addresses.
    pub frames: &'a mut [u64],
    /// For copies of what is not the thread's own stack. `None` while the walk has it.
    pub pages: Option<&'a mut ForeignPages>,
}

/// Prepares walks of the calling thread's stack for a time when the kernel cannot be asked what is readable.
pub fn learn_own_stack(thread: &ShimThread) {
    reader::learn_own_stack(thread);
}

impl Walk<'_> {
    /// Fills `frames` with the stack above `from`; `on_module` hears of each module that is run through for the first time.
    #[inline]
    pub fn capture(
        &mut self,
        thread: &ShimThread,
        from: &From,
        on_module: impl FnMut(&Module),
    ) -> Captured {
        let Some(pages) = self.pages.take() else {
            return Captured::default();
        };
        let mut reader = StackReader::of_thread(thread, from.sp(), pages);
        self.memo.begin(self.key, reader.own());
        let mut captured = Captured::default();
        let is_rest_known = self.take_known_rest(&from.frame(), &mut captured);
        let ending = match is_rest_known {
            true => Ending::KnownRest,
            false => self.walk(from, &mut reader, &mut captured, on_module),
        };
        self.pages = Some(reader.into_pages());
        captured.known_from = self.memo.remembered_walk();
        let are_shown = !captured.flags.contains(SampleFlags::TRUNCATED);
        match ending {
            Ending::Root => self.memo.finish(false, are_shown),
            Ending::KnownRest => self.memo.finish(true, are_shown),
            Ending::Cut => self.memo.forget(),
        }
        captured.walk = self.memo.walk();
        captured
    }

    /// Whether the rest of the walk, from `frame` on, is known; it is taken then.
    #[inline]
    fn take_known_rest(&mut self, frame: &Frame, captured: &mut Captured) -> bool {
        let Some(rest) = self.memo.rest_from(frame) else {
            return false;
        };
        captured.may_hold_loader_locks |= rest.may_hold_loader_locks();
        captured.known = rest.show(self.frames, captured.depth);
        captured.depth += captured.known;
        if captured.known < rest.len() {
            captured.flags = captured.flags.with(SampleFlags::TRUNCATED);
        }
        true
    }

    fn walk(
        &mut self,
        from: &From,
        reader: &mut StackReader,
        captured: &mut Captured,
        mut on_module: impl FnMut(&Module),
    ) -> Ending {
        let (mut registers, mut address) = start(from);
        let mut seen = SeenModules::default();
        let mut module: Option<&'static Module> = None;
        // The address that no module was found for: the caller's, which is the next frame's.
        let mut in_no_module = None;
        let mut entered = None;
        let generation = Generation::of(&self.key);
        let has_rules = self.has_rules();
        loop {
            let own = OwnWords::of(reader.own());
            self.follow_rules(&mut registers, &mut address, own, captured);
            let frame = frame_at(address, &registers);
            if self.take_known_rest(&frame, captured) {
                return Ending::KnownRest;
            }
            let Some(place) = self.frames.get_mut(captured.depth) else {
                captured.flags = captured.flags.with(SampleFlags::TRUNCATED);
                return Ending::Cut;
            };
            *place = frame.shown;
            captured.depth += 1;
            // Until the walk ends no module that it meets is overwritten.
            entered.get_or_insert_with(|| self.modules.enter(self.key.thread));
            let lookup = address.address_for_lookup();
            if !module.is_some_and(|module| module.contains(lookup)) && in_no_module != Some(lookup)
            {
                module = seen.find(lookup, self.modules);
                if let Some(module) = module {
                    on_module(module);
                }
            }
            let is_loader = module.is_some_and(Module::is_loader);
            captured.may_hold_loader_locks |= is_loader;
            self.memo.push(frame, FramePointer::USED, is_loader);
            let before = registers.sp();
            let code = match module {
                Some(_) => None,
                None => {
                    self.memo.read_elsewhere();
                    reader.code(address.address())
                }
            };
            let memo = &mut *self.memo;
            let mut read = |at| {
                let value = reader.read(at).ok_or(())?;
                if reader.is_own(at) {
                    memo.push_read(at, value);
                } else {
                    memo.read_elsewhere();
                }
                Ok(value)
            };
            let next = match module {
                Some(module) if !self.only_frame_pointers => module.unwinder().unwind_frame_of(
                    address,
                    &mut registers,
                    self.cache,
                    &mut read,
                ),
                Some(_) => step::by_frame_pointer(&mut registers, &mut read),
                None => step::by_epilogue(&mut registers, code, &mut read)
                    .unwrap_or_else(|| step::by_frame_pointer(&mut registers, &mut read)),
            };
            // The loader's entry code, below the constructors of all modules, has no rules: it is a root.
            if next.is_err() && is_loader {
                return Ending::Cut;
            }
            let Ok(next) = next else {
                captured.flags = captured.flags.with(SampleFlags::UNWIND_FAILED);
                return Ending::Cut;
            };
            let Some(return_address) = next else {
                return Ending::Root;
            };
            if let Some(module) = module
                && has_rules
                && address.is_return_address()
                && self.modules.stays()
                && let Some(rule) = Rule::ask(module, address, self.cache, generation)
            {
                self.modules.rules.insert(address.address(), rule);
            }
            let callee = module;
            if !module.is_some_and(|module| module.contains(return_address.wrapping_sub(1))) {
                module = seen.find(return_address.wrapping_sub(1), self.modules);
                if let Some(module) = module {
                    on_module(module);
                }
            }
            in_no_module = module.is_none().then(|| return_address.wrapping_sub(1));
            if step::is_signal_return(return_address, module.or(callee), self.modules)
                && let Some(interrupted) = step::out_of_signal_frame(&mut registers, &mut read)
            {
                captured.may_hold_loader_locks = true;
                if captured.interrupted_sp == 0 {
                    captured.interrupted_sp = registers.sp();
                }
                self.memo.interrupted();
                address = FrameAddress::from_instruction_pointer(interrupted);
                continue;
            }
            if module.is_none() {
                // Whether the step was right depends on code that may be written over.
                self.memo.read_elsewhere();
            }
            // A function that was interrupted may keep its return address in a register, and nothing on the stack.
            let may_stay = cfg!(target_arch = "aarch64") && !address.is_return_address();
            let has_risen = registers.sp() > before || may_stay && registers.sp() == before;
            let is_plausible =
                has_risen && (module.is_some() || step::is_behind_call(return_address, reader));
            let Some(next_address) =
                FrameAddress::from_return_address(return_address).filter(|_| is_plausible)
            else {
                captured.flags = captured.flags.with(SampleFlags::UNWIND_FAILED);
                return Ending::Cut;
            };
            address = next_address;
        }
    }

    /// Whether steps that were made before are made again without the unwinder.
    fn has_rules(&self) -> bool {
        !(self.without_rules || self.only_frame_pointers)
    }

    /// Goes from frame to frame while both the frame and its caller have a rule: what such an address is (in which module,
    /// that it is no signal frame) was looked at when the rule was made.
    fn follow_rules(
        &mut self,
        registers: &mut UnwindRegsNative,
        address: &mut FrameAddress,
        own: Option<OwnWords>,
        captured: &mut Captured,
    ) {
        if !address.is_return_address() || !self.has_rules() {
            return;
        }
        let generation = Generation::of(&self.key);
        let rules = &self.modules.rules;
        let mut pc = address.address();
        let Some(mut rule) = rules.find(pc, generation) else {
            return;
        };
        let Some(own) = own else {
            return;
        };
        let (mut sp, mut fp) = (registers.sp(), step::frame_pointer(registers));
        loop {
            let frame = Frame {
                shown: pc,
                sp,
                fp,
                #[cfg(target_arch = "aarch64")]
                link: pc,
                is_return: true,
            };
            if self.memo.rest_from(&frame).is_some() {
                break;
            }
            let Some(place) = self.frames.get_mut(captured.depth) else {
                break;
            };
            let Some(caller) = rule.step(sp, fp, |at| own.read(at)) else {
                break;
            };
            let Some(callers_rule) = rules.find(caller.pc, generation) else {
                break;
            };
            *place = pc;
            captured.depth += 1;
            captured.may_hold_loader_locks |= rule.is_in_loader();
            self.memo
                .push(frame, rule.frame_pointer(), rule.is_in_loader());
            if let Some(at) = caller.fp_read_at {
                self.memo.push_read(at, caller.fp);
            }
            self.memo.push_read(caller.pc_read_at, caller.pc_read);
            (pc, sp, fp) = (caller.pc, caller.sp, caller.fp);
            rule = callers_rule;
        }
        if let Some(reached) = FrameAddress::from_return_address(pc) {
            *address = reached;
            *registers = step::registers(pc, sp, fp, pc);
        }
    }
}

fn frame_at(address: FrameAddress, registers: &UnwindRegsNative) -> Frame {
    Frame {
        shown: address.address_for_lookup().wrapping_add(1),
        sp: registers.sp(),
        fp: step::frame_pointer(registers),
        #[cfg(target_arch = "aarch64")]
        link: step::link(registers),
        is_return: address.is_return_address(),
    }
}

/// How a walk ended.
enum Ending {
    /// At the root.
    Root,
    /// At a frame from which on it is known.
    KnownRest,
    /// Anywhere else.
    Cut,
}

/// The modules that a walk came through last: a stack goes to and fro between few, and they stay while it does.
#[derive(Default)]
struct SeenModules {
    modules: [Option<&'static Module>; 4],
    next: usize,
}

impl SeenModules {
    fn find(&mut self, address: u64, modules: &Modules) -> Option<&'static Module> {
        let seen = self.modules.iter().flatten();
        if let Some(module) = seen.into_iter().find(|module| module.contains(address)) {
            return Some(module);
        }
        let module = modules.find(address)?;
        if let Some(place) = self.modules.get_mut(self.next % 4) {
            *place = Some(module);
        }
        self.next += 1;
        Some(module)
    }
}

impl From {
    fn sp(&self) -> u64 {
        match self {
            Self::Call(caller) => caller.sp,
            Self::Interrupted(at) => at.sp,
        }
    }

    /// As [`frame_at`] makes it of what [`start`] makes of this.
    fn frame(&self) -> Frame {
        match self {
            Self::Call(caller) => Frame {
                shown: caller.pc,
                sp: caller.sp,
                fp: caller.fp,
                #[cfg(target_arch = "aarch64")]
                link: caller.pc,
                is_return: true,
            },
            Self::Interrupted(_) => {
                let (registers, address) = start(self);
                frame_at(address, &registers)
            }
        }
    }
}

fn start(from: &From) -> (UnwindRegsNative, FrameAddress) {
    match from {
        From::Call(caller) => (
            step::registers(caller.pc, caller.sp, caller.fp, caller.pc),
            FrameAddress::from_return_address(caller.pc)
                .unwrap_or(FrameAddress::from_instruction_pointer(0)),
        ),
        From::Interrupted(at) => (
            step::registers(at.pc, at.sp, at.fp, at.link),
            FrameAddress::from_instruction_pointer(at.pc),
        ),
    }
}

/// The unwinder of one module.
pub(crate) struct ModuleUnwinder {
    framehop: framehop::UnwinderNative<&'static [u8], MustNotAllocateDuringUnwind>,
    #[cfg(target_arch = "aarch64")]
    signing: Option<signing::CallFrames>,
}

impl ModuleUnwinder {
    /// Of the module in a range of addresses, which is `bias` above the addresses in its file.
    pub(crate) fn new(
        range: core::ops::Range<u64>,
        bias: u64,
        sections: framehop::ExplicitModuleSectionInfo<&'static [u8]>,
    ) -> Self {
        use framehop::Unwinder;
        #[cfg(target_arch = "aarch64")]
        let signing = signing::CallFrames::of(bias, &sections);
        let module = framehop::Module::new(Default::default(), range, bias, sections);
        let mut framehop = framehop::UnwinderNative::new();
        framehop.add_module(module);
        Self {
            framehop,
            #[cfg(target_arch = "aarch64")]
            signing,
        }
    }

    /// `Ok(None)`: the frame is the root.
    fn unwind_frame_of(
        &self,
        address: FrameAddress,
        registers: &mut UnwindRegsNative,
        cache: &mut RuleCache,
        read: &mut impl FnMut(u64) -> Result<u64, ()>,
    ) -> Result<Option<u64>, ()> {
        use framehop::Unwinder;
        #[cfg(target_arch = "aarch64")]
        if let Some(signing) = &self.signing
            && let Some(next) = signing.leave(address, registers, read)
        {
            return next;
        }
        let next = (self.framehop).unwind_frame(address, registers, cache, read);
        // An expression's result is returned as it was read.
        next.map(|next| next.map(step::unsigned)).map_err(drop)
    }
}

#[cfg(test)]
pub(crate) mod tests;
