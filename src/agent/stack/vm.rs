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
    /// It stands for an activation that runs no function.
    pub const NO_FRAME: u32 = 2;

    /// Not a frame but an address in two halves, which a walker finds in its buffer; 0 for none.
    pub(crate) fn of_address(address: Option<u64>) -> Self {
        let [a, b, c, d, e, f, g, h] = address.unwrap_or(0).to_le_bytes();
        Self {
            function: u32::from_le_bytes([a, b, c, d]),
            line: u32::from_le_bytes([e, f, g, h]),
            ..Self::default()
        }
    }

    fn is_shown(&self) -> bool {
        self.flags & Self::NO_FRAME == 0
    }
}

/// A machine's own walker.
pub type VmWalk = unsafe extern "C" fn(*mut c_void, *mut RawFrame, usize) -> usize;

/// How the machine's native code relates to its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeCode {
    /// The interpreter loop.
    Loop,
    /// All of the machine's native code.
    Whole,
    /// All code outside of modules; only the machine can walk it.
    OutsideModules,
    /// Both of these.
    WholeAndOutsideModules,
}

/// Merges two views of a stack, both leaf first, into `merged`. Returns the number of frames, and whether all of them fitted.
///
/// Each native frame that `is_interpreter` says is an activation of the interpreter loop gives way to the machine's frames that
/// it runs: up to the first one that is marked as its entry. Where the machine has none left, the native frame stays. Where
/// the machine told of its code as a whole, all its frames stand in for all of that. Frames of the machine that no activation
/// claims (it has no loop: compiled code, or it told of none) come before the first native frame. A native frame that called
/// an activation, and that `is_thunk` says did nothing else, is left out, and so is the one that called it: the machine's, to
/// whom thunks are known.
pub(crate) fn interleave(
    heap: HeapId,
    native: &[u64],
    machine: &[RawFrame],
    code: NativeCode,
    is_interpreter: impl Fn(u64) -> bool,
    is_thunk: impl Fn(u64) -> bool,
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
    let is_whole = matches!(code, NativeCode::Whole | NativeCode::WholeAndOutsideModules)
        && !machine.is_empty();
    let first_activation = native
        .iter()
        .position(|&pc| is_interpreter(pc.wrapping_sub(1)));
    let mut machine = machine.iter();
    let mut has_room = true;
    if first_activation.is_none() {
        has_room &= machine
            .by_ref()
            .filter(|frame| frame.is_shown())
            .all(|frame| put(encode(frame)));
    }
    let before = first_activation.unwrap_or(native.len());
    let (mut is_replaced, mut is_thunks_caller) = (false, false);
    for (index, &pc) in native.iter().enumerate() {
        // What comes before the first one has been asked about.
        let is_interpreter =
            index == before || index > before && is_interpreter(pc.wrapping_sub(1));
        if is_interpreter && (is_whole || !machine.as_slice().is_empty()) {
            for frame in machine.by_ref() {
                // A machine that told of its code as a whole has no frame for this one either.
                has_room &= match (frame.is_shown(), is_whole) {
                    (true, _) => put(encode(frame)),
                    (false, false) => put(pc),
                    (false, true) => true,
                };
                if frame.flags & RawFrame::ENTRY != 0 && !is_whole {
                    break;
                }
            }
            is_replaced = true;
        } else if is_replaced && is_thunk(pc.wrapping_sub(1)) {
            is_thunks_caller = true;
            is_replaced = false;
        } else {
            has_room &= is_thunks_caller || put(pc);
            (is_replaced, is_thunks_caller) = (false, false);
        }
    }
    has_room &= machine
        .filter(|frame| frame.is_shown())
        .all(|frame| put(encode(frame)));
    let left = places.len();
    (merged.len() - left, has_room)
}

/// The native frames nearer to the leaf than the machine's code, which is what `is_machine` says, and then the machine's: it
/// knows its callers. Leaf first; returns how many there are, and whether all had room. `None`: the machine has no frames.
pub(crate) fn underlay(
    heap: HeapId,
    native: &[u64],
    machine: &[RawFrame],
    is_machine: impl Fn(u64) -> bool,
    merged: &mut [u64],
) -> Option<(usize, bool)> {
    if machine.is_empty() {
        return None;
    }
    let first = native
        .iter()
        .position(|&pc| is_machine(pc.wrapping_sub(1)))
        .unwrap_or(native.len());
    let native = native.iter().take(first).copied();
    let machine = machine.iter().filter(|frame| frame.is_shown());
    let all = native.chain(machine.map(|frame| {
        VmFrame {
            heap,
            function: frame.function,
            line: frame.line,
        }
        .encode()
    }));
    let room = merged.len();
    let mut count = 0;
    for frame in all {
        if let Some(place) = merged.get_mut(count) {
            *place = frame;
        }
        count += 1;
    }
    Some((count.min(room), count <= room))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const LOOP: u64 = 1000;
    const THUNK: u64 = 2000;

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
            |pc| pc == THUNK - 1,
            &mut merged,
        );
        let shown =
            merged.get(..count).unwrap().iter().map(|&frame| {
                VmFrame::decode(frame).map_or(frame, |frame| u64::from(frame.function))
            });
        (shown.collect(), has_room)
    }

    #[test]
    fn an_address_is_passed_in_two_halves() {
        let frame = RawFrame::of_address(Some(0x7fff_1234_8765_4321));
        assert_eq!((frame.function, frame.line), (0x8765_4321, 0x7fff_1234));
        let none = RawFrame::of_address(None);
        assert_eq!((none.function, none.line, none.flags), (0, 0, 0));
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
    fn what_only_called_the_loop_is_left_out() {
        // Called for each function, as -X perf of CPython does; one that was called by something else is no such frame.
        let native = [
            501, LOOP, THUNK, 502, 503, LOOP, THUNK, 504, LOOP, 505, THUNK,
        ];
        let machine = [(1, true), (2, true), (3, true)];
        assert_eq!(
            merge(&native, &machine, 9),
            (std::vec![501, 1, 503, 2, 3, 505, THUNK], true)
        );
        assert_eq!(
            merge(&[501, LOOP, THUNK], &[], 9),
            (std::vec![501, LOOP, THUNK], true)
        );
    }

    #[test]
    fn an_activation_that_runs_nothing_stays_and_takes_no_frame_of_its_callers() {
        let entry = |function, flags| RawFrame {
            function,
            flags: RawFrame::ENTRY | flags,
            ..RawFrame::default()
        };
        let machine = [entry(0, RawFrame::NO_FRAME), entry(2, 0)];
        let merged_with = |native: &[u64]| {
            let mut merged = [0; 9];
            let (count, _) = interleave(
                HeapId(1),
                native,
                &machine,
                NativeCode::Loop,
                |pc| pc == LOOP - 1,
                |_| false,
                &mut merged,
            );
            let shown = merged.get(..count).unwrap().iter();
            let shown = shown.map(|&frame| {
                VmFrame::decode(frame).map_or(frame, |frame| u64::from(frame.function))
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(
            merged_with(&[501, LOOP, 502, LOOP, 503]),
            [501, LOOP, 502, 2, 503]
        );
        assert_eq!(merged_with(&[501]), [2, 501]);
    }

    #[test]
    fn what_only_the_machine_can_walk_is_left_to_it() {
        let machine = [7, 8].map(|function| RawFrame {
            function,
            ..RawFrame::default()
        });
        let merged_with = |native: &[u64], machine: &[RawFrame], room: usize| {
            let mut merged = std::vec![0; room];
            let is_machine = |pc| pc == LOOP - 1;
            let (count, has_room) = underlay(HeapId(1), native, machine, is_machine, &mut merged)?;
            let shown = merged.get(..count).unwrap().iter();
            let shown = shown.map(|&frame| {
                VmFrame::decode(frame).map_or(frame, |frame| u64::from(frame.function))
            });
            Some((shown.collect::<Vec<_>>(), has_room))
        };
        // What looks like a caller behind the first frame of unknown code is a guess.
        assert_eq!(
            merged_with(&[501, 502, LOOP, 503, LOOP], &machine, 9),
            Some((std::vec![501, 502, 7, 8], true))
        );
        assert_eq!(
            merged_with(&[501], &machine, 2),
            Some((std::vec![501, 7], false))
        );
        assert_eq!(merged_with(&[501, LOOP, 503], &[], 9), None);
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
            let (count, _) = interleave(
                HeapId(1),
                native,
                machine,
                code,
                is_own,
                |_| false,
                &mut merged,
            );
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
