//! The frame on aarch64.
//!
//! ```text
//! frame: | siginfo, not read, 128 | struct ucontext: flags, alternate stack, mask | registers | records |
//! records: v0 to v31 | the registers of SVE, if they hold more | an end |
//! ```
//!
//! Layout: `struct rt_sigframe`, `struct ucontext`, `struct sigcontext` and the records of Linux' uapi for aarch64.

use super::{Frame, NO_ALTERNATE_STACK, Saved, SignalFrame};
use crate::machine::{self, BASIC_BYTES, Registers, SCALABLE_HEADER_BYTES, Vectors};

/// Functions use nothing below the stack pointer.
pub(super) const RED_ZONE: u64 = 0;

/// Nobody reads what is there.
pub(crate) const SIGNAL_AT: u64 = 0;
pub(crate) const SIGNAL_BYTES: u64 = 128;

/// Offsets, in words.
const ALTERNATE_STACK_FLAGS: usize = SIGNAL_BYTES as usize / 8 + 3;
const SIGNAL_MASK: usize = SIGNAL_BYTES as usize / 8 + 5;
/// The address of a fault, which nobody reads; x0 to x30, sp, pc, pstate.
const GENERAL: usize = (SIGNAL_BYTES as usize + 176) / 8 + 1;
const INTERRUPTED: usize = GENERAL + 32;
const RECORDS: usize = GENERAL + 35;

/// Up to the first word of the records.
pub(crate) const FRAME_BYTES: u64 = 8 * (RECORDS as u64 + 1);

/// Magic numbers and sizes, which come first in each record.
const BASIC_MAGIC: u64 = 0x4650_8001;
const SCALABLE_MAGIC: u64 = 0x5356_4501;
const BASIC_RECORD: u64 = BASIC_MAGIC | (BASIC_BYTES as u64) << 32;

/// How large the kernel's frames are: a whole `struct rt_sigframe`, and what links it to the interrupted frame.
const KERNEL_FRAME_BYTES: u64 = 4688 + 16;

/// The frame that begins at this word of a stack: the kernel's first record always is that of the vector registers.
pub(crate) fn signal_frame_at(
    stack: &[u64],
    at: usize,
    _is_return: impl Fn(u64) -> bool,
) -> Option<SignalFrame> {
    let word = |by: usize| stack.get(at + by).copied();
    word(RECORDS).filter(|&word| word == BASIC_RECORD)?;
    Some(SignalFrame {
        interrupted: word(INTERRUPTED),
        mask: word(SIGNAL_MASK),
    })
}

/// How large the kernel makes the frame of a handler that interrupts a thread with this frame of ours.
pub(crate) fn handler_frame_bytes(frame: &Frame) -> u64 {
    KERNEL_FRAME_BYTES.max(frame.bytes.len() as u64)
}

impl Saved {
    /// The frame to be put below this address. The return address is in a register.
    pub fn below(&self, end: u64, _return_address: u64) -> Frame {
        let mut words = [0_u64; RECORDS];
        words[ALTERNATE_STACK_FLAGS] = NO_ALTERNATE_STACK;
        words[SIGNAL_MASK] = self.signal_mask;
        words[GENERAL..GENERAL + 34].copy_from_slice(&self.restarted().words());
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&records(&self.vectors));
        Frame {
            start: (end - bytes.len() as u64) & !15,
            bytes,
        }
    }

    /// The registers from which an interrupted system call is restarted: the kernel has moved the thread back already.
    /// A call with a timeout starts its time again.
    fn restarted(&self) -> Registers {
        machine::with_call(self.registers, self.call_again.cast_signed())
    }
}

fn records(vectors: &Vectors) -> Vec<u8> {
    const VECTORS_BYTES: usize = 512;
    let mut records = BASIC_RECORD.to_le_bytes().to_vec();
    let mut basic = vectors.basic.clone();
    basic.resize(BASIC_BYTES, 0);
    // The state and the control register come before the vectors here, and after them there.
    records.extend_from_slice(&basic[VECTORS_BYTES..VECTORS_BYTES + 8]);
    records.extend_from_slice(&basic[..VECTORS_BYTES]);
    if let Some(scalable) = &vectors.scalable {
        let vector_bytes = machine::vector_bytes(scalable);
        // 32 vectors, and 17 predicates of an eighth of that.
        let bytes = usize::from(vector_bytes) * 32 + usize::from(vector_bytes) / 8 * 17;
        let mut registers = scalable[SCALABLE_HEADER_BYTES..].to_vec();
        registers.resize(bytes.next_multiple_of(16), 0);
        let size = (SCALABLE_HEADER_BYTES + registers.len()) as u64;
        records.extend_from_slice(&(SCALABLE_MAGIC | size << 32).to_le_bytes());
        records.extend_from_slice(&u64::from(vector_bytes).to_le_bytes());
        records.extend_from_slice(&registers);
    }
    records.extend_from_slice(&[0; 16]);
    records
}

/// Makes words of a stack a frame that has interrupted this.
#[cfg(test)]
pub(crate) fn put_frame(stack: &mut [u64], at: usize, _return_to: u64, interrupted: u64) {
    stack[at + RECORDS] = BASIC_RECORD;
    stack[at + INTERRUPTED] = interrupted;
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::machine::tests::registers;

    fn saved(vectors: Vectors) -> Saved {
        Saved {
            registers: registers(0x40_0000, 0xffff_0000_1230, None),
            call_again: 57,
            vectors,
            signal_mask: 0xa0,
        }
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_words_are_where_the_c_library_reads_them_in_a_handler() {
        let frame = saved(Vectors::default()).below_stack(0x1000);
        let context = SIGNAL_BYTES as usize;
        let general = context + offset_of!(libc::ucontext_t, uc_mcontext);
        let at = |field| word(&frame.bytes, general + field);
        assert_eq!(at(offset_of!(libc::mcontext_t, regs) + 8 * 8), 57);
        assert_eq!(at(offset_of!(libc::mcontext_t, sp)), 0xffff_0000_1230);
        assert_eq!(at(offset_of!(libc::mcontext_t, pc)), 0x40_0000);
        let mask = context + offset_of!(libc::ucontext_t, uc_sigmask);
        assert_eq!(word(&frame.bytes, mask), 0xa0);
        assert_eq!(frame.start % 16, 0);
        assert!(frame.start + frame.bytes.len() as u64 <= 0xffff_0000_1230);
        // It is recognized as the kernel's are.
        let words = frame.bytes.chunks_exact(8);
        let words: Vec<u64> = words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let expected = SignalFrame {
            interrupted: Some(0x40_0000),
            mask: Some(0xa0),
        };
        assert_eq!(signal_frame_at(&words, 0, |_| false), Some(expected));
        assert_eq!(signal_frame_at(&words, 1, |_| true), None);
    }

    #[test]
    fn records_follow_each_other_and_fit_into_the_kernels_frame() {
        const MOST_BYTES: usize = 4096;
        // SVE with vectors of 64 bytes: the header, the vectors, the predicates, and more that is not copied.
        let mut scalable = vec![0; SCALABLE_HEADER_BYTES + 64 * 32 + 8 * 17 + 40];
        scalable[8] = 64;
        scalable[SCALABLE_HEADER_BYTES] = 0xee;
        let vectors = |scalable| Vectors {
            basic: vec![1; BASIC_BYTES],
            scalable,
        };
        let basic = records(&vectors(None));
        assert_eq!(word(&basic, 0) as u32, 0x4650_8001);
        assert_eq!(word(&basic, BASIC_BYTES), 0);
        assert_eq!(basic.len(), BASIC_BYTES + 16);
        let both = records(&vectors(Some(scalable)));
        assert_eq!(word(&both, BASIC_BYTES) as u32, 0x5356_4501);
        assert_eq!(word(&both, BASIC_BYTES + 8), 64);
        assert_eq!(both[BASIC_BYTES + 16], 0xee);
        let size = (word(&both, BASIC_BYTES) >> 32) as usize;
        assert_eq!(both.len(), BASIC_BYTES + size + 16);
        assert!(both.len() <= MOST_BYTES);
    }
}
