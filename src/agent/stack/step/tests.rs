#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use std::collections::HashMap;
use std::vec::Vec;

use super::*;
#[cfg(target_arch = "x86_64")]
use crate::accounting::thread::ShimThread;
#[cfg(target_arch = "x86_64")]
use crate::os::memory;
#[cfg(target_arch = "x86_64")]
use crate::stack::ForeignPages;

/// Words of memory; what is not among them cannot be read.
fn words(words: &[(u64, u64)]) -> impl FnMut(u64) -> Result<u64, ()> + use<> {
    let words: HashMap<u64, u64> = words.iter().copied().collect();
    move |at| words.get(&at).copied().ok_or(())
}

/// Stack pointer and frame pointer.
fn state(registers: &UnwindRegsNative) -> (u64, u64) {
    (registers.sp(), frame_pointer(registers))
}

#[test]
fn a_frame_pointer_leads_to_the_caller_if_it_points_into_the_stack() {
    let (pc, sp) = (0x40_1000, 0x1000);
    for frame in [sp, sp + 8, sp + 0x60] {
        let mut registers = registers(pc, sp, frame, pc);
        let mut read = words(&[(frame, 0x2000), (frame + 8, 0x40_2000)]);
        let found = by_frame_pointer(&mut registers, &mut read);
        assert_eq!(found, Ok(Some(0x40_2000)));
        assert_eq!(state(&registers), (frame + 16, 0x2000));
    }
    let all: Vec<(u64, u64)> = (0..0x1100).map(|at| (at, 0x40_2000)).collect();
    for frame in [sp - 8, 0, sp + 1, sp + 4, sp + 7] {
        let mut registers = registers(pc, sp, frame, pc);
        let found = by_frame_pointer(&mut registers, &mut words(&all));
        assert_eq!(found, Err(()), "{frame:#x}");
        assert_eq!(state(&registers), (sp, frame));
    }
}

#[test]
fn a_frame_pointer_leads_nowhere_where_the_stack_ends_or_cannot_be_read() {
    let (pc, sp, frame) = (0x40_1000, 0x1000, 0x1010);
    for (there, expected) in [
        (&[(frame, 0), (frame + 8, 0)][..], Ok(None)),
        (&[(frame, 0x2000), (frame + 8, 0)], Ok(None)),
        (&[(frame, 0x2000)], Err(())),
        (&[(frame + 8, 0x40_2000)], Err(())),
    ] {
        let mut registers = registers(pc, sp, frame, pc);
        let found = by_frame_pointer(&mut registers, &mut words(there));
        assert_eq!(found, expected, "{there:x?}");
        assert_eq!(state(&registers), (sp, frame));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_thunk_is_left_by_what_it_adds_to_the_stack_pointer() {
    let (pc, sp, fp) = (0x40_1000, 0x1000, 0x3000);
    for bytes in 0..=u8::MAX {
        let mut registers = registers(pc, sp, fp, 0);
        let at = sp + u64::from(bytes);
        let code = [0x48, 0x83, 0xc4, bytes, 0xc3];
        let found = by_epilogue(&mut registers, Some(code), &mut words(&[(at, 0x40_2000)]));
        // From 0x80 on the number is a negative one.
        if bytes < 0x80 {
            assert_eq!(found, Some(Ok(Some(0x40_2000))));
            assert_eq!(state(&registers), (at + 8, fp));
        } else {
            assert_eq!(found, None);
            assert_eq!(state(&registers), (sp, fp));
        }
    }
    let mut registers = registers(pc, sp, fp, 0);
    let add = [0x48, 0x83, 0xc4, 8, 0xc3];
    assert_eq!(by_epilogue(&mut registers, None, &mut words(&[])), None);
    for (at, byte) in [(0, 0x49), (1, 0x81), (2, 0xec), (4, 0xc2)] {
        let mut other = add;
        other[at] = byte;
        let all = &mut words(&[(sp + 8, 0x40_2000)]);
        assert_eq!(by_epilogue(&mut registers, Some(other), all), None);
    }
    let gone = by_epilogue(&mut registers, Some(add), &mut words(&[]));
    assert_eq!(gone, Some(Err(())));
    assert_eq!(state(&registers), (sp, fp));
}

/// Two pages, of which only the second one is there, and a walk that may read it.
#[cfg(target_arch = "x86_64")]
struct Code {
    start: u64,
    thread: ShimThread,
    pages: ForeignPages,
}

#[cfg(target_arch = "x86_64")]
impl Code {
    const PAGE: usize = 4096;

    fn new() -> Self {
        let both = memory::map(2 * Self::PAGE).unwrap();
        // SAFETY: mapped just now, and nothing refers to it.
        unsafe { memory::make_unreadable(both, Self::PAGE) };
        Self {
            start: both.as_ptr().expose_provenance() as u64 + Self::PAGE as u64,
            // SAFETY: all zero bytes are a thread that has not joined.
            thread: unsafe { core::mem::zeroed() },
            pages: ForeignPages::new(),
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let to = core::ptr::with_exposed_provenance_mut::<u8>(self.start as usize + at);
        assert!(at + bytes.len() <= Self::PAGE);
        // SAFETY: within the page that is there, which nobody else knows.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn is_behind_call(&mut self, return_address: u64) -> bool {
        let mut reader = StackReader::of_thread(&self.thread, 0, &mut self.pages);
        super::is_behind_call(return_address, &mut reader)
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn each_form_of_a_call_is_known_before_a_return_address() {
    let calls: [&[u8]; 8] = [
        &[0xe8, 1, 2, 3, 4],             // call distance
        &[0xff, 0xd0],                   // call *%rax
        &[0x41, 0xff, 0xd7],             // call *%r15
        &[0xff, 0x10],                   // call *(%rax)
        &[0xff, 0x50, 8],                // call *8(%rax)
        &[0xff, 0x54, 0x24, 8],          // call *8(%rsp)
        &[0xff, 0x15, 1, 2, 3, 4],       // call *distance(%rip)
        &[0xff, 0x94, 0x24, 1, 2, 3, 4], // call *distance(%rsp)
    ];
    let others: [&[u8]; 10] = [
        &[0xc3],
        &[0xe9, 1, 2, 3, 4],
        &[0xff, 0xe0],                   // jmp *%rax
        &[0xff, 0x20],                   // jmp *(%rax)
        &[0xff, 0x25, 1, 2, 3, 4],       // jmp *distance(%rip)
        &[0xff, 0x35, 1, 2, 3, 4],       // push distance(%rip)
        &[0xff, 0x60, 8],                // jmp *8(%rax)
        &[0xff, 0x64, 0x24, 8],          // jmp *8(%rsp)
        &[0xff, 0xa4, 0x24, 1, 2, 3, 4], // jmp *distance(%rsp)
        &[0xff, 0xc0],                   // inc %eax
    ];
    let mut code = Code::new();
    for (forms, is_call) in [(&calls[..], true), (&others[..], false)] {
        for form in forms {
            // In the page, and as its first instruction.
            for at in [100, 0] {
                code.put(at, &[0; 16]);
                if at > 0 {
                    code.put(at - 16, &[0; 16]);
                }
                code.put(at, form);
                let behind = code.start + (at + form.len()) as u64;
                assert_eq!(code.is_behind_call(behind), is_call, "{form:x?} at {at}");
            }
        }
    }
    // The byte before the call may be anything; but the call must end where the address is.
    code.put(0, &[0; 64]);
    code.put(20, &[0xe8, 1, 2, 3, 4]);
    for away in 0..12 {
        let address = code.start + 20 + away;
        assert_eq!(code.is_behind_call(address), away == 5, "{away}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn no_call_is_before_an_address_that_cannot_be_read() {
    let mut code = Code::new();
    code.put(Code::PAGE - 5, &[0xe8, 1, 2, 3, 4]);
    let start = code.start;
    // Behind the page there may be another one: not so in front of it.
    for address in [
        0,
        1,
        6,
        7,
        start - 1,
        start - Code::PAGE as u64 / 2,
        u64::MAX,
    ] {
        assert!(!code.is_behind_call(address), "{address:#x}");
    }
    assert!(!code.is_behind_call(start));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_registers_of_an_interrupted_function_come_from_the_signal_frame() {
    let sp = 0x7000;
    // As `ucontext` has them: rbp, rsp, rip.
    let saved = [
        (sp + 40 + 80, 0x9000),
        (sp + 40 + 120, 0x8000),
        (sp + 40 + 128, 0x40_3000),
    ];
    let mut registers = self::registers(0x40_1000, sp, 0x7100, 0);
    assert_eq!(
        out_of_signal_frame(&mut registers, &mut words(&saved)),
        Some(0x40_3000)
    );
    assert_eq!(state(&registers), (0x8000, 0x9000));
    assert_eq!(registers.ip(), 0x40_3000);
    for gone in 0..saved.len() {
        let mut there = saved.to_vec();
        there.remove(gone);
        let mut registers = self::registers(0x40_1000, sp, 0x7100, 0);
        assert_eq!(
            out_of_signal_frame(&mut registers, &mut words(&there)),
            None
        );
        assert_eq!(state(&registers), (sp, 0x7100));
    }
}

/// As the kernel has it.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: u64,
    mask: u64,
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_code_behind_a_signal_handler_is_known() {
    unsafe extern "C" {
        fn _dl_find_object(
            address: *const core::ffi::c_void,
            found: *mut crate::stack::modules::FoundObject,
        ) -> i32;
    }
    extern "C" fn on_signal(_signal: i32) {}
    let signal = libc::SIGURG;
    let mut action = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    // SAFETY: the handler does nothing, and nobody sends this signal; the second call writes what the kernel has.
    unsafe {
        libc::signal(
            signal,
            on_signal as extern "C" fn(i32) as libc::sighandler_t,
        );
        let old = &raw mut action;
        assert_eq!(
            libc::syscall(libc::SYS_rt_sigaction, signal, 0_usize, old, 8_usize),
            0
        );
        libc::signal(signal, libc::SIG_DFL);
    }
    let modules = Modules::new();
    modules.set_find_object(_dl_find_object);
    let _walk = modules.enter(1);
    let module = modules.find(action.restorer);
    let own = modules.find((on_signal as *const ()).expose_provenance() as u64);
    assert!(module.is_some() && own.is_some());
    for current in [None, module, own] {
        assert!(is_signal_return(action.restorer, current, &modules));
        for other in [
            action.restorer + 1,
            action.restorer - 1,
            action.restorer + 7,
        ] {
            assert!(!is_signal_return(other, current, &modules));
        }
    }
    for nowhere in [0, 8, u64::MAX - 64] {
        assert!(!is_signal_return(nowhere, None, &modules));
    }
}

/// As a function signs its return address, with its stack pointer: unchanged without pointer authentication.
#[cfg(target_arch = "aarch64")]
fn signed(mut return_address: u64, sp: u64) -> u64 {
    // SAFETY: `pacia1716` changes x17 alone.
    unsafe {
        core::arch::asm!(
            "hint #8", inout("x17") return_address, in("x16") sp,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    return_address
}

#[cfg(target_arch = "aarch64")]
#[test]
fn the_signature_of_a_return_address_is_removed() {
    let own = the_signature_of_a_return_address_is_removed as *const ();
    for address in [0, 4, 0x0055_5555_1234, own.expose_provenance() as u64] {
        for sp in [0, 0x10, 0x7fff_ff00, 0xffff_ffff_0000] {
            let signed = signed(address, sp);
            assert_eq!(unsigned(signed), address, "{signed:x}");
            assert_eq!(registers(0, sp, 0, signed).lr(), address);
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn a_frame_pointer_leads_over_signed_return_addresses() {
    let code = 0x40_1000;
    let mut registers = registers(code, 0x1000, 0x1010, 0);
    let words = [
        0x1040,
        signed(code, 0x1020),
        0,
        0,
        0,
        0,
        0,
        signed(0, 0x1050),
    ];
    let mut read = |at: u64| words.get((at as usize - 0x1010) / 8).copied().ok_or(());
    assert_eq!(by_frame_pointer(&mut registers, &mut read), Ok(Some(code)));
    assert_eq!((link(&registers), registers.sp()), (code, 0x1020));
    assert_eq!(by_frame_pointer(&mut registers, &mut read), Ok(None));
}
