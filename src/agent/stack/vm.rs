//! Frames of virtual machines among native ones.

use core::ffi::c_void;

use allocsample_record::{HeapId, VmFrame};

/// Mirror of `allocsample_frame`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawFrame {
    /// Number of the function.
    pub function: u32,
    /// Line, or 0.
    pub line: u32,
    /// [`RawFrame::ENTRY`]
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

impl RawFrame {
    /// The native activation of the interpreter loop was entered for this frame.
    pub const ENTRY: u32 = 1;
}

/// A machine's own walker.
pub type VmWalk = unsafe extern "C" fn(*mut c_void, *mut RawFrame, usize) -> usize;

/// What the machine has told of its native code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeCode {
    /// The interpreter loop.
    Loop,
    /// All of it.
    Whole,
}

/// Merges two views of a stack, both leaf first, into `merged`; returns how many frames there are, and whether all of
/// them had room.
///
/// Each native frame that `is_interpreter` says is an activation of the interpreter loop gives way to the machine's
/// frames that it runs: up to the first one that is marked as its entry. Where the machine has none left, the native
/// frame stays. Where the machine told of its code as a whole, all its frames stand in for all of that. Frames of the machine that no activation claims (it has no loop: compiled code, or it told of none) come
/// before the first native frame.
pub(crate) fn interleave(
    heap: HeapId,
    native: &[u64],
    machine: &[RawFrame],
    code: NativeCode,
    is_interpreter: impl Fn(u64) -> bool,
    merged: &mut [u64],
) -> (usize, bool) {
    let mut places = merged.iter_mut();
    let mut put = |frame: u64| places.next().map(|place| *place = frame).is_some();
    let encode = |frame: &RawFrame| {
        VmFrame {
            heap,
            function: frame.function,
            line: frame.line,
        }
        .encode()
    };
    let is_whole = code == NativeCode::Whole && !machine.is_empty();
    let first_activation = native
        .iter()
        .position(|&pc| is_interpreter(pc.wrapping_sub(1)));
    let mut machine = machine.iter();
    let mut has_room = true;
    if first_activation.is_none() {
        has_room &= machine.by_ref().all(|frame| put(encode(frame)));
    }
    let before = first_activation.unwrap_or(native.len());
    for (index, &pc) in native.iter().enumerate() {
        // What comes before the first one has been asked about.
        let is_interpreter =
            index == before || index > before && is_interpreter(pc.wrapping_sub(1));
        if is_interpreter && (is_whole || !machine.as_slice().is_empty()) {
            for frame in machine.by_ref() {
                has_room &= put(encode(frame));
                if frame.flags & RawFrame::ENTRY != 0 && !is_whole {
                    break;
                }
            }
        } else {
            has_room &= put(pc);
        }
    }
    has_room &= machine.all(|frame| put(encode(frame)));
    let left = places.len();
    (merged.len() - left, has_room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const LOOP: u64 = 1000;

    fn merge(native: &[u64], machine: &[(u32, bool)], room: usize) -> (Vec<u64>, bool) {
        let machine: Vec<RawFrame> = machine
            .iter()
            .map(|&(function, is_entry)| RawFrame {
                function,
                flags: u32::from(is_entry),
                ..RawFrame::default()
            })
            .collect();
        let mut merged = std::vec![0; room];
        let (count, has_room) = interleave(
            HeapId(1),
            native,
            &machine,
            NativeCode::Loop,
            |pc| pc == LOOP - 1,
            &mut merged,
        );
        let shown =
            merged.get(..count).unwrap().iter().map(|&frame| {
                VmFrame::decode(frame).map_or(frame, |frame| u64::from(frame.function))
            });
        (shown.collect(), has_room)
    }

    #[test]
    fn each_activation_gives_way_to_the_frames_that_it_runs() {
        // allocation <- g <- vm_run <- extension <- f <- vm_run <- main
        let native = [501, LOOP, 502, LOOP, 503];
        let machine = [(1, true), (2, false), (3, true)];
        assert_eq!(
            merge(&native, &machine, 9),
            (std::vec![501, 1, 502, 2, 3, 503], true)
        );
    }

    #[test]
    fn what_does_not_match_is_kept() {
        assert_eq!(
            merge(&[501, LOOP, LOOP], &[(1, true)], 9),
            (std::vec![501, 1, LOOP], true)
        );
        assert_eq!(
            merge(&[501], &[(1, true), (2, true)], 9),
            (std::vec![1, 2, 501], true)
        );
        assert_eq!(
            merge(&[LOOP, 501], &[(1, true), (2, true)], 9),
            (std::vec![1, 501, 2], true)
        );
        assert_eq!(merge(&[501, 502], &[], 9), (std::vec![501, 502], true));
    }

    #[test]
    fn code_told_as_a_whole_gives_way_as_a_whole() {
        let machine = [RawFrame {
            function: 1,
            flags: RawFrame::ENTRY,
            ..RawFrame::default()
        }];
        let merge = |native: &[u64], machine: &[RawFrame]| {
            let mut merged = [0; 9];
            let is_own = |pc| pc == LOOP - 1;
            let code = NativeCode::Whole;
            let (count, _) = interleave(HeapId(1), native, machine, code, is_own, &mut merged);
            merged.get(..count).unwrap().to_vec()
        };
        let merged = merge(&[501, LOOP, 502, LOOP, 503], &machine);
        let shown: Vec<u64> = merged
            .into_iter()
            .map(|frame| VmFrame::decode(frame).map_or(frame, |_| LOOP))
            .collect();
        assert_eq!(shown, [501, LOOP, 502, 503], "an extension keeps its place");
        assert_eq!(merge(&[501, LOOP, 503], &[]), [501, LOOP, 503]);
    }

    #[test]
    fn a_lack_of_room_is_told() {
        assert_eq!(
            merge(&[501, LOOP], &[(1, false), (2, true)], 2),
            (std::vec![501, 1], false)
        );
    }
}
