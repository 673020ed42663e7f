//! Walks the stack of the calling thread.
//!
//! One loop, three kinds of steps: by the call-frame information of the module that the frame is in ([`modules`]), out
//! of a signal frame by the registers that the kernel saved there, and, for code that no module covers (JIT), by the
//! frame pointer. Every step is checked: the stack pointer must rise, memory is read only where it can be
//! ([`reader`]), and a return address must lie in a module or behind a call instruction. A walk that fails a check ends
//! there and says so.

pub mod modules;
mod reader;
mod step;

use allocsample_record::SampleFlags;
use framehop::{CacheNative, FrameAddress, MustNotAllocateDuringUnwind, UnwindRegsNative};

use crate::os::thread::{Caller, ShimThread};
use modules::{Module, Modules};
use reader::StackReader;

/// The unwinder's memory of rules that it has worked out before, with its working space.
pub type RuleCache = CacheNative<MustNotAllocateDuringUnwind>;

/// A stack as it was found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Captured {
    /// Frames in the buffer, leaf first.
    pub depth: usize,
    /// Whether and why the root is missing.
    pub flags: SampleFlags,
    /// The thread is in a place where it may hold locks of libc: inside the dynamic loader or a signal handler.
    pub may_hold_loader_locks: bool,
}

/// What a walk needs besides the thread.
pub struct Walk<'a> {
    /// The modules of the process.
    pub modules: &'a Modules,
    /// Working memory.
    pub cache: &'a mut RuleCache,
    /// Never by call-frame information.
    pub only_frame_pointers: bool,
    /// Filled with return addresses.
    pub frames: &'a mut [u64],
}

impl Walk<'_> {
    /// Fills `frames` with the stack above `caller`; `on_module` hears of each module that is run through.
    pub fn capture(
        &mut self,
        thread: &ShimThread,
        caller: &Caller,
        mut on_module: impl FnMut(&Module),
    ) -> Captured {
        let mut captured = Captured::default();
        let mut reader = StackReader::of_thread(thread, caller.sp);
        let mut registers = start_registers(caller);
        let mut address = FrameAddress::from_return_address(caller.pc)
            .unwrap_or(FrameAddress::from_instruction_pointer(0));
        let mut module: Option<&'static Module> = None;
        loop {
            let lookup = address.address_for_lookup();
            let shown = lookup.wrapping_add(1);
            let Some(place) = self.frames.get_mut(captured.depth) else {
                captured.flags = captured.flags.with(SampleFlags::TRUNCATED);
                return captured;
            };
            *place = shown;
            captured.depth += 1;
            if !module.is_some_and(|module| module.contains(lookup)) {
                module = self.modules.find(lookup);
                if let Some(module) = module {
                    on_module(module);
                    captured.may_hold_loader_locks |= module.is_loader();
                }
            }
            let before = registers.sp();
            let next = match module {
                Some(module) if !self.only_frame_pointers => {
                    let mut read = |at| reader.read(at).ok_or(());
                    module.unwinder().unwind_frame_of(
                        address,
                        &mut registers,
                        self.cache,
                        &mut read,
                    )
                }
                _ => step::by_frame_pointer(&mut registers, &mut reader),
            };
            // The loader's entry code, below the constructors of all modules, has no rules: it is a root.
            if next.is_err() && module.is_some_and(Module::is_loader) {
                return captured;
            }
            let Ok(next) = next else {
                captured.flags = captured.flags.with(SampleFlags::UNWIND_FAILED);
                return captured;
            };
            let Some(return_address) = next else {
                return captured;
            };
            if step::is_signal_return(return_address, module, self.modules)
                && let Some(interrupted) = step::out_of_signal_frame(&mut registers, &mut reader)
            {
                captured.may_hold_loader_locks = true;
                address = FrameAddress::from_instruction_pointer(interrupted);
                continue;
            }
            let is_plausible = registers.sp() > before
                && (self.modules.find(return_address.wrapping_sub(1)).is_some()
                    || step::is_behind_call(return_address));
            let Some(next_address) =
                FrameAddress::from_return_address(return_address).filter(|_| is_plausible)
            else {
                captured.flags = captured.flags.with(SampleFlags::UNWIND_FAILED);
                return captured;
            };
            address = next_address;
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn start_registers(caller: &Caller) -> UnwindRegsNative {
    UnwindRegsNative::new(caller.pc, caller.sp, caller.fp)
}

#[cfg(target_arch = "aarch64")]
fn start_registers(caller: &Caller) -> UnwindRegsNative {
    UnwindRegsNative::new(caller.pc, caller.sp, caller.fp)
}

/// The unwinder of one module.
pub(crate) struct ModuleUnwinder(
    framehop::UnwinderNative<&'static [u8], MustNotAllocateDuringUnwind>,
);

impl ModuleUnwinder {
    pub(crate) fn new(module: framehop::Module<&'static [u8]>) -> Self {
        use framehop::Unwinder;
        let mut unwinder = framehop::UnwinderNative::new();
        unwinder.add_module(module);
        Self(unwinder)
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
        self.0
            .unwind_frame(address, registers, cache, read)
            .map_err(drop)
    }
}
