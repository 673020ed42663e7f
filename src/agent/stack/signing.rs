//! Leaves frames of code that signs return addresses, by its call-frame information.
//!
//! That information says between which instructions the return address is signed (`DW_CFA_AARCH64_negate_ra_state`). gimli
//! reads this instruction only if it is told that the code is for aarch64. framehop 0.16 does not do so: it would take all
//! of such a function for code without call-frame information, and follow the frame pointer, which may be that of a function
//! further up. Here the same is done for the usual rules; expressions remain framehop's.

use core::ops::Range;

use framehop::{ExplicitModuleSectionInfo, FrameAddress, UnwindRegsNative};
use gimli::{
    AArch64, BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, ReaderOffset, Register,
    RegisterRule, UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow, Vendor,
};

use super::step;

/// The call-frame information of a module.
pub(super) struct CallFrames {
    header: &'static [u8],
    frames: &'static [u8],
    bases: BaseAddresses,
}

/// A row of the information lies on the stack while it is evaluated. Code that saves all registers that a callee may save has
/// 21 rules.
struct OnStack;

impl<T: ReaderOffset> UnwindContextStorage<T> for OnStack {
    type Rules = [(Register, RegisterRule<T>); 64];
    type Stack = [UnwindTableRow<T, Self>; 4];
}

impl CallFrames {
    /// `None`: the module has none.
    pub fn of(bias: u64, sections: &ExplicitModuleSectionInfo<&'static [u8]>) -> Option<Self> {
        let start = |range: &Option<Range<u64>>| Some(bias.wrapping_add(range.as_ref()?.start));
        Some(Self {
            header: sections.eh_frame_hdr?,
            frames: sections.eh_frame?,
            bases: BaseAddresses::default()
                .set_eh_frame_hdr(start(&sections.eh_frame_hdr_svma)?)
                .set_eh_frame(start(&sections.eh_frame_svma)?),
        })
    }

    /// From a frame to its caller; `Ok(None)`: the frame is the root. `None`: the information says nothing about the frame, or
    /// nothing that is known here.
    pub fn leave(
        &self,
        address: FrameAddress,
        registers: &mut UnwindRegsNative,
        read: &mut impl FnMut(u64) -> Result<u64, ()>,
    ) -> Option<Result<Option<u64>, ()>> {
        let header = EhFrameHdr::new(self.header, LittleEndian);
        let header = header.parse(&self.bases, 8).ok()?;
        let mut frames = EhFrame::new(self.frames, LittleEndian);
        frames.set_address_size(8);
        frames.set_vendor(Vendor::AArch64);
        let mut context = UnwindContext::<usize, OnStack>::new_in();
        let row = header.table()?.unwind_info_for_address(
            &frames,
            &self.bases,
            &mut context,
            address.address_for_lookup(),
            EhFrame::cie_from_offset,
        );
        let row = row.ok()?;
        let (sp, fp) = (registers.sp(), registers.fp());
        let caller_sp = match *row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => match register {
                AArch64::SP => sp.checked_add_signed(offset)?,
                AArch64::X29 => fp.checked_add_signed(offset)?,
                _ => return None,
            },
            CfaRule::Expression(_) => return None,
        };
        let saved_at = |register: Register| match row.register(register) {
            None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => Some(None),
            Some(RegisterRule::Offset(offset)) => Some(Some(caller_sp.checked_add_signed(offset)?)),
            _ => None,
        };
        let (link_at, fp_at) = (saved_at(AArch64::X30)?, saved_at(AArch64::X29)?);
        let is_root = matches!(row.register(AArch64::X30), Some(RegisterRule::Undefined));
        if is_root && address.is_return_address() {
            return Some(Ok(None));
        }
        let link = match link_at {
            Some(at) => read(at),
            // In the register, until the function calls another.
            None if !address.is_return_address() => Ok(registers.lr()),
            None => Err(()),
        };
        let Ok(link) = link else {
            return Some(Err(()));
        };
        if step::unsigned(link) == 0 {
            return Some(Ok(None));
        }
        let Ok(caller_fp) = fp_at.map_or(Ok(fp), read) else {
            return Some(Err(()));
        };
        *registers = step::registers(0, caller_sp, caller_fp, link);
        Some(Ok(Some(registers.lr())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::RuleCache;
    use crate::stack::modules::{FoundObject, Modules};

    unsafe extern "C" {
        fn _dl_find_object(address: *const core::ffi::c_void, found: *mut FoundObject) -> i32;
        fn allocsample_test_signs();
    }

    // Keeps its return address, signed, and has no frame pointer of its own.
    core::arch::global_asm!(
        ".pushsection .text",
        "allocsample_test_signs:",
        ".cfi_startproc",
        "hint #25", // paciasp
        ".cfi_negate_ra_state",
        "str x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x30, -32",
        "nop",
        "nop",
        "ldr x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x30",
        "hint #29", // autiasp
        ".cfi_negate_ra_state",
        "ret",
        ".cfi_endproc",
        ".popsection",
    );

    #[test]
    fn a_function_that_signs_its_return_address_is_left_by_its_call_frame_information() {
        let modules = Modules::new();
        modules.set_find_object(_dl_find_object);
        let _walk = modules.enter(1);
        let start = (allocsample_test_signs as *const ()).expose_provenance() as u64;
        let module = modules.find(start).unwrap();
        let (sp, fp, caller) = (0x7000, 0x9000, 0x40_1000);
        let mut cache = RuleCache::new_in();
        let mut leave = |address: FrameAddress, link| {
            let mut registers = step::registers(address.address(), sp, fp, link);
            let mut read = |at| if at == sp { Ok(caller) } else { Err(()) };
            let unwinder = module.unwinder();
            let next = unwinder.unwind_frame_of(address, &mut registers, &mut cache, &mut read);
            (next, registers.sp(), registers.fp())
        };
        let called = FrameAddress::from_return_address(start + 12).unwrap();
        assert_eq!(leave(called, 0), (Ok(Some(caller)), sp + 32, fp));
        for at in [start, start + 4, start + 20, start + 24] {
            let interrupted = FrameAddress::from_instruction_pointer(at);
            assert_eq!(leave(interrupted, caller), (Ok(Some(caller)), sp, fp));
        }
    }
}
