//! How to leave a frame, by its return address: what the unwinder worked out before, for all threads.
//!
//! Most frames are left in one of two ways: the caller's stack pointer is a constant above the stack pointer or above the
//! frame pointer, and the frame pointer is as it was or at a constant distance. The return address is right below the caller's
//! stack pointer (x86-64), or stored together with the frame pointer, above it (aarch64).
//! Such a rule fits into a word, and following it takes a few instructions ([`Walk::follow_rules`](super::Walk)), where the
//! unwinder's own memory of rules takes a hundred and fifty.
//!
//! A rule is asked of the unwinder and not worked out a second time: the step is made with registers and memory of our own
//! making, and what it reads and what comes out of them tells the rule ([`Rule::ask`]).

use core::sync::atomic::{AtomicU64, Ordering};

use framehop::FrameAddress;

use super::memo::FramePointer;
use super::modules::Module;
use super::{MemoKey, RuleCache};

const ENTRIES: usize = 1 << 12;
const ENTRY_BITS: u32 = ENTRIES.trailing_zeros();

/// A way to leave a frame. In a word, from the lowest bit on: 1; whether the base is the frame pointer and not the stack
/// pointer; whether the frame is the dynamic loader's; whether the frame pointer is on the stack; the caller's stack pointer
/// above the base (16 bits, in words); the place of the frame pointer above the base (16 bits, signed, in words), which is on
/// aarch64 that of the return address if the frame pointer is not on the stack; the [`Generation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rule(u64);

const IS_RULE: u64 = 1;
pub(super) const FROM_FP: u64 = 1 << 1;
const IN_LOADER: u64 = 1 << 2;
pub(super) const RESTORES_FP: u64 = 1 << 3;
const CALLER_SHIFT: u32 = 4;
const SAVED_SHIFT: u32 = 20;

/// When a rule was found: after a `dlclose` other code may be there, and in a profile begun since the frame's module may not
/// be told of yet. Code that went by without `dlclose` is noticed when another module is met in its place
/// (`Modules::learn`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Generation(u64);

impl Generation {
    const SHIFT: u32 = 36;
    const DLCLOSE_BITS: u32 = 20;
    const EPOCH_BITS: u32 = 64 - Self::SHIFT - Self::DLCLOSE_BITS;

    pub fn of(key: &MemoKey) -> Self {
        let low = |number: u32, bits: u32| u64::from(number) & ((1 << bits) - 1);
        let number = low(key.epoch, Self::EPOCH_BITS) << Self::DLCLOSE_BITS
            | low(key.dlclose_count, Self::DLCLOSE_BITS);
        Self(number << Self::SHIFT)
    }

    /// Whether rules from long ago would be taken for new ones when there are so many of one of the two.
    pub fn comes_round(epoch: u32, dlclose_count: u32) -> bool {
        epoch.trailing_zeros() >= Self::EPOCH_BITS
            || dlclose_count.trailing_zeros() >= Self::DLCLOSE_BITS
    }
}

/// The caller's registers after a step, and the stack words that the step read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    /// The return address as it was read: it may be signed.
    pub pc_read: u64,
    /// Where the return address was read.
    pub pc_read_at: u64,
    /// Where the caller's frame pointer was read.
    pub fp_read_at: Option<u64>,
}

/// What the unwinder read and found in a step from known registers.
struct Asked {
    next: Option<u64>,
    sp: u64,
    fp: u64,
    at: [u64; 2],
    count: usize,
}

// Registers and words that no rule takes one for another: rules reach half a MiB at most. All are addresses, of any size that
// a kernel may be built for.
const SP: u64 = 1 << 32;
const FP: u64 = 1 << 33;
const WORDS: [u64; 2] = [1 << 34, 1 << 35];

impl Asked {
    /// The step that `unwinder` makes from a return address of the module, if the stack has these words in the order in which
    /// they are read.
    fn of(
        module: &Module,
        address: FrameAddress,
        cache: &mut RuleCache,
        words: [u64; 2],
    ) -> Option<Self> {
        let mut at = [0; 2];
        let mut count = 0;
        let mut registers = super::step::registers(address.address(), SP, FP, 0);
        let mut read = |address| {
            *at.get_mut(count).ok_or(())? = address;
            count += 1;
            words.get(count - 1).copied().ok_or(())
        };
        let unwinder = module.unwinder();
        let next = unwinder.unwind_frame_of(address, &mut registers, cache, &mut read);
        Some(Self {
            next: next.ok()?,
            sp: registers.sp(),
            fp: super::step::frame_pointer(&registers),
            at,
            count,
        })
    }

    /// Which of the words is the return address.
    fn return_address(&self) -> Option<usize> {
        WORDS.iter().position(|&word| self.next == Some(word))
    }

    /// Where the frame pointer was read, if it is one of the words.
    fn saved_fp(&self) -> Result<Option<u64>, ()> {
        match WORDS.iter().position(|&word| self.fp == word) {
            Some(index) => Ok(self.at.get(index).copied()),
            None if self.fp == FP && self.count == 1 => Ok(None),
            None => Err(()),
        }
    }
}

impl Rule {
    /// The rule by which `unwinder` leaves the frame at a return address of the module, if it is one of these.
    pub fn ask(
        module: &Module,
        address: FrameAddress,
        cache: &mut RuleCache,
        generation: Generation,
    ) -> Option<Self> {
        let asked = Asked::of(module, address, cache, WORDS)?;
        let return_address = asked.return_address()?;
        // The unwinder's rules take a return address of 0 for the end of the stack. An expression, which may compute what
        // it likes of the registers, does not.
        let mut ending = WORDS;
        *ending.get_mut(return_address)? = 0;
        if Asked::of(module, address, cache, ending)?.next.is_some() {
            return None;
        }
        let (base, flag) = if asked.sp < FP {
            (SP, 0)
        } else {
            (FP, FROM_FP)
        };
        let caller = u16::try_from(asked.sp.checked_sub(base)? / 8).ok()?;
        let saved_fp = asked.saved_fp().ok()?;
        let read_at = asked.at.get(return_address).copied()?;
        let (restores, saved) = match saved_fp {
            Some(at) => (RESTORES_FP, at.wrapping_sub(base)),
            None if cfg!(target_arch = "aarch64") => (0, read_at.wrapping_sub(base)),
            None => (0, 0),
        };
        let words = i16::try_from(saved.cast_signed() / 8).ok()?;
        if saved % 8 != 0 || asked.sp % 8 != 0 {
            return None;
        }
        let loader = if module.is_loader() { IN_LOADER } else { 0 };
        let rule = Self(
            IS_RULE
                | flag
                | loader
                | restores
                | u64::from(caller) << CALLER_SHIFT
                | u64::from(words.cast_unsigned()) << SAVED_SHIFT
                | generation.0,
        );
        (rule.return_address_at(base, asked.sp) == read_at).then_some(rule)
    }

    /// The word of a frame in which its return address is.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn return_address_at(self, _base: u64, caller_sp: u64) -> u64 {
        caller_sp.wrapping_sub(8)
    }

    /// The word of a frame in which its return address is.
    #[cfg(target_arch = "aarch64")]
    #[inline]
    fn return_address_at(self, base: u64, _caller_sp: u64) -> u64 {
        let behind_fp = if self.0 & RESTORES_FP != 0 { 8 } else { 0 };
        self.saved_at(base).wrapping_add(behind_fp)
    }

    #[inline]
    fn saved_at(self, base: u64) -> u64 {
        let words = ((self.0 >> SAVED_SHIFT) as u16).cast_signed();
        base.wrapping_add_signed(i64::from(words) * 8)
    }

    /// The caller of a frame with these registers. `None`: not by this rule alone, or a word cannot be read.
    #[inline]
    pub fn step(self, sp: u64, fp: u64, read: impl Fn(u64) -> Option<u64>) -> Option<Step> {
        let base = if self.0 & FROM_FP != 0 { fp } else { sp };
        let caller = u64::from((self.0 >> CALLER_SHIFT) as u16) * 8;
        let caller_sp = base.wrapping_add(caller);
        if caller_sp <= sp {
            return None;
        }
        let pc_read_at = self.return_address_at(base, caller_sp);
        let pc_read = read(pc_read_at)?;
        let pc = super::step::unsigned(pc_read);
        if self.0 & RESTORES_FP == 0 {
            return Some(Step {
                pc,
                sp: caller_sp,
                fp,
                pc_read,
                pc_read_at,
                fp_read_at: None,
            });
        }
        let saved_at = self.saved_at(base);
        let saved = read(saved_at)?;
        // There a chain of frame pointers ends, or a stack, as the unwinder knows.
        if cfg!(target_arch = "aarch64") && self.0 & FROM_FP != 0 && saved <= fp {
            return None;
        }
        Some(Step {
            pc,
            sp: caller_sp,
            fp: saved,
            pc_read,
            pc_read_at,
            fp_read_at: Some(saved_at),
        })
    }

    /// How the step uses the frame pointer.
    pub fn frame_pointer(self) -> FramePointer {
        FramePointer::by_rule(self.0)
    }

    /// Whether the frame is inside the dynamic loader.
    pub fn is_in_loader(self) -> bool {
        self.0 & IN_LOADER != 0
    }
}

/// The rules of the return addresses that were met last, wherever two do not share a place.
///
/// Two words an entry: the rule, and the address with the rule's bits changed where the rule has a 1. An entry of which
/// another thread has changed one word so far is nobody's.
pub(super) struct Rules([(AtomicU64, AtomicU64); ENTRIES]);

impl Rules {
    /// None.
    pub const fn new() -> Self {
        Self([const { (AtomicU64::new(0), AtomicU64::new(0)) }; ENTRIES])
    }

    /// The rule of a return address.
    #[inline]
    pub fn find(&self, pc: u64, generation: Generation) -> Option<Rule> {
        let (rule, key) = self.entry(pc)?;
        let rule = rule.load(Ordering::Relaxed);
        let is_its = key.load(Ordering::Relaxed) ^ rule == pc;
        let is_now = rule & (IS_RULE | u64::MAX << Generation::SHIFT) == IS_RULE | generation.0;
        (is_its && is_now).then_some(Rule(rule))
    }

    /// Adds a rule.
    pub fn insert(&self, pc: u64, rule: Rule) {
        if let Some((place, key)) = self.entry(pc) {
            place.store(rule.0, Ordering::Relaxed);
            key.store(pc ^ rule.0, Ordering::Relaxed);
        }
    }

    /// Removes all rules.
    pub fn clear(&self) {
        for (rule, _) in &self.0 {
            rule.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn entry(&self, pc: u64) -> Option<&(AtomicU64, AtomicU64)> {
        // The fractions of the golden ratio: the upper bits depend on all.
        let hash = pc.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0.get((hash >> (64 - ENTRY_BITS)) as usize)
    }
}

#[cfg(test)]
impl Rule {
    /// Some rule of this time.
    pub fn for_tests(generation: Generation) -> Self {
        Self(IS_RULE | 5 << CALLER_SHIFT | generation.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::thread::ShimThread;
    use crate::shim::{Caller, Interrupted};
    use crate::stack::modules::Modules;
    use crate::stack::{ForeignPages, From, Memo, Walk, step};
    use std::vec::Vec;

    const KEY: MemoKey = MemoKey {
        thread: 1,
        epoch: 1,
        dlclose_count: 0,
    };

    unsafe extern "C" {
        fn _dl_find_object(
            address: *const core::ffi::c_void,
            found: *mut crate::stack::modules::FoundObject,
        ) -> i32;
    }

    /// In a rule: a frame of so many words, in which so many are below the return address.
    fn frame_words(words: u64, below: u64) -> u64 {
        let is_stored = cfg!(target_arch = "aarch64");
        words << CALLER_SHIFT | if is_stored { below << SAVED_SHIFT } else { 0 }
    }

    /// Memory in which each word is another, and now and then 0.
    fn word_at(address: u64) -> u64 {
        let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(u64::from(!mixed.is_multiple_of(7)))
    }

    #[test]
    fn each_rule_does_what_the_unwinder_does() {
        let modules = Modules::new();
        modules.set_find_object(_dl_find_object);
        let _walk = modules.enter(1);
        let mut cache = RuleCache::new_in();
        let mut kinds = Vec::new();
        let functions: [*const (); 2] = [
            libc::qsort as *const (),
            each_rule_does_what_the_unwinder_does as *const (),
        ];
        for function in functions {
            let middle = function.expose_provenance() as u64;
            let module = modules.find(middle).unwrap();
            // As if each of these were where a call returns to: rules are for any address.
            for pc in (middle - 0x2_0000..middle + 0x2_0000).step_by(7) {
                let address = FrameAddress::from_return_address(pc).unwrap();
                let Some(rule) = Rule::ask(module, address, &mut cache, Generation::of(&KEY))
                else {
                    continue;
                };
                kinds.push((rule.0 & FROM_FP != 0, rule.0 & RESTORES_FP != 0));
                for (sp, fp) in [
                    (0x7000, 0x9000),
                    (0x9000, 0x7000),
                    (0x7008, 0x7008),
                    (0x7000, 0),
                ] {
                    let mut registers = step::registers(pc, sp, fp, 0);
                    let next = module.unwinder().unwind_frame_of(
                        address,
                        &mut registers,
                        &mut cache,
                        &mut |at| Ok(word_at(at)),
                    );
                    match rule.step(sp, fp, |at| Some(word_at(at))) {
                        // Then the unwinder makes the step, or says that there is none.
                        None => {}
                        Some(caller) if caller.pc == 0 => assert_eq!(next, Ok(None)),
                        Some(caller) => {
                            let found = (registers.sp(), step::frame_pointer(&registers));
                            assert_eq!(
                                (next, found),
                                (Ok(Some(caller.pc)), (caller.sp, caller.fp))
                            );
                        }
                    }
                }
            }
        }
        let count = |kind| kinds.iter().filter(|other| **other == kind).count();
        // On aarch64 whoever saves the return address saves the frame pointer with it.
        if cfg!(target_arch = "x86_64") {
            assert!(count((false, false)) > 1000);
        }
        assert!(count((false, true)) > 1000);
        assert!(count((true, true)) > 100);
        assert_eq!(
            count((true, false)),
            0,
            "who has a frame pointer has saved one"
        );
    }

    #[test]
    fn the_loader_s_frames_are_known_by_their_rules() {
        let modules = Modules::new();
        modules.set_find_object(_dl_find_object);
        let _walk = modules.enter(1);
        let mut cache = RuleCache::new_in();
        // SAFETY: looks a name up.
        let of_loader = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tls_get_addr".as_ptr()) };
        let functions = [
            (libc::qsort as *const (), false),
            (of_loader.cast_const().cast(), true),
        ];
        for (function, is_loader) in functions {
            let start = function.expose_provenance() as u64;
            let module = modules.find(start).unwrap();
            let rules: Vec<Rule> = (start + 1..start + 0x400)
                .filter_map(FrameAddress::from_return_address)
                .filter_map(|at| Rule::ask(module, at, &mut cache, Generation::of(&KEY)))
                .collect();
            assert!(!rules.is_empty());
            assert!(rules.iter().all(|rule| rule.is_in_loader() == is_loader));
        }
    }

    #[test]
    fn generations_are_equal_when_the_low_bits_of_both_numbers_are() {
        let numbers = [
            0, 1, 2, 127, 128, 255, 256, 257, 0xf_ffff, 0x10_0000, 0x10_0001,
        ];
        let keys: Vec<MemoKey> = numbers
            .iter()
            .flat_map(|&epoch| {
                numbers.iter().map(move |&dlclose_count| MemoKey {
                    thread: 1,
                    epoch,
                    dlclose_count,
                })
            })
            .collect();
        let low = |key: &MemoKey| (key.epoch % (1 << 8), key.dlclose_count % (1 << 20));
        for one in &keys {
            for other in &keys {
                assert_eq!(
                    Generation::of(one) == Generation::of(other),
                    low(one) == low(other),
                    "{:?} and {:?}",
                    low(one),
                    low(other)
                );
            }
        }
    }

    // The stack pointer plus a number in an expression (DW_OP_breg7, DW_OP_breg31), and the numbers of the frame pointer and
    // the return address.
    #[cfg(target_arch = "x86_64")]
    const NUMBERS: [u32; 3] = [0x77, 6, 16];
    #[cfg(target_arch = "aarch64")]
    const NUMBERS: [u32; 3] = [0x8f, 29, 30];

    core::arch::global_asm!(
        ".pushsection .text",
        "allocsample_test_framed_by_expression:",
        ".cfi_startproc",
        // The caller's stack pointer is an expression: sp + 16 + (sp & 8).
        ".cfi_escape 0x0f, 7, {sp}, 0, 0x38, 0x1a, {sp}, 16, 0x22",
        ".cfi_same_value {fp}",
        ".cfi_offset {return_address}, -8",
        "nop",
        "nop",
        "ret",
        ".cfi_endproc",
        ".popsection",
        sp = const NUMBERS[0],
        fp = const NUMBERS[1],
        return_address = const NUMBERS[2],
    );

    #[test]
    fn a_frame_that_an_expression_describes_has_no_rule() {
        unsafe extern "C" {
            fn allocsample_test_framed_by_expression();
        }
        let function = allocsample_test_framed_by_expression as *const ();
        let pc = function.expose_provenance() as u64 + 1;
        let address = FrameAddress::from_return_address(pc).unwrap();
        let modules = Modules::new();
        modules.set_find_object(_dl_find_object);
        let _walk = modules.enter(1);
        let module = modules.find(pc).unwrap();
        let mut cache = RuleCache::new_in();
        // The unwinder evaluates it. Where the last four bits of the stack pointer are 0 it looks like a rule.
        for (sp, above) in [(0x7000, 16), (0x7008, 24)] {
            let mut registers = step::registers(pc, sp, 0x9000, 0);
            let unwinder = module.unwinder();
            let next = unwinder.unwind_frame_of(address, &mut registers, &mut cache, &mut Ok);
            assert_eq!(next, Ok(Some(sp + above - 8)));
            assert_eq!(registers.sp(), sp + above);
        }
        assert_eq!(
            Rule::ask(module, address, &mut cache, Generation::of(&KEY)),
            None
        );
    }

    #[test]
    fn an_interrupted_frame_is_not_left_by_the_rule_of_a_return_address() {
        const CODE: [u64; 2] = [0x10_0000, 0x10_1000];
        // Two words a frame, the upper one of which is the return address.
        let stack = [0, CODE[1], 0, 0, 0, 0];
        let sp = stack.as_ptr().expose_provenance() as u64;
        let modules = std::boxed::Box::new(Modules::new());
        let rule = Rule(IS_RULE | frame_words(2, 1) | Generation::of(&KEY).0);
        for pc in CODE {
            modules.rules.insert(pc, rule);
        }
        let depth = |from: From| {
            // SAFETY: all zero bytes are a thread that has not joined.
            let thread: ShimThread = unsafe { core::mem::zeroed() };
            thread.set_stack(sp..sp + size_of_val(&stack) as u64);
            let mut pages = std::boxed::Box::new(ForeignPages::new());
            // SAFETY: all zero bytes are an empty memo.
            let mut memo = unsafe { std::boxed::Box::<Memo>::new_zeroed().assume_init() };
            let mut walk = Walk {
                modules: &modules,
                cache: &mut RuleCache::new_in(),
                memo: &mut memo,
                key: KEY,
                only_frame_pointers: false,
                without_rules: false,
                frames: &mut [0; 8],
                pages: Some(&mut pages),
            };
            walk.capture(&thread, &from, |_| {}).depth
        };
        let [pc, _] = CODE;
        assert_eq!(depth(From::Call(Caller { pc, sp, fp: 0 })), 2);
        let interrupted = Interrupted {
            pc,
            sp,
            fp: 0,
            link: 0,
        };
        // In no module, and without a frame pointer: it cannot be left.
        assert_eq!(depth(From::Interrupted(interrupted)), 1);
    }

    // A function that ends in a call, and the one behind it: the call returns to where that begins.
    #[cfg(target_arch = "x86_64")]
    core::arch::global_asm!(
        ".pushsection .text",
        "allocsample_test_ends_in_a_call:",
        ".cfi_startproc",
        "sub $16, %rsp",
        ".cfi_def_cfa_offset 24",
        "call abort@plt",
        ".cfi_endproc",
        "allocsample_test_behind_a_call:",
        ".cfi_startproc",
        "ret",
        ".cfi_endproc",
        ".popsection",
        options(att_syntax),
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::global_asm!(
        ".pushsection .text",
        "allocsample_test_ends_in_a_call:",
        ".cfi_startproc",
        "str x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x30, -16",
        "bl abort",
        ".cfi_endproc",
        "allocsample_test_behind_a_call:",
        ".cfi_startproc",
        "ret",
        ".cfi_endproc",
        ".popsection",
    );

    #[test]
    fn an_interrupted_instruction_makes_no_rule_for_the_call_that_returns_there() {
        unsafe extern "C" {
            fn allocsample_test_behind_a_call();
        }
        let function = allocsample_test_behind_a_call as *const ();
        let pc = function.expose_provenance() as u64;
        let modules = std::boxed::Box::new(Modules::new());
        modules.set_find_object(_dl_find_object);
        let rule_after = |stack: &[u64; 8], interrupted: bool| {
            let sp = stack.as_ptr().expose_provenance() as u64;
            // SAFETY: all zero bytes are a thread that has not joined.
            let thread: ShimThread = unsafe { core::mem::zeroed() };
            thread.set_stack(sp..sp + size_of_val(stack) as u64);
            let mut pages = std::boxed::Box::new(ForeignPages::new());
            // SAFETY: all zero bytes are an empty memo.
            let mut memo = unsafe { std::boxed::Box::<Memo>::new_zeroed().assume_init() };
            let mut walk = Walk {
                modules: &modules,
                cache: &mut RuleCache::new_in(),
                memo: &mut memo,
                key: KEY,
                only_frame_pointers: false,
                without_rules: false,
                frames: &mut [0; 8],
                pages: Some(&mut pages),
            };
            let (fp, link) = (0, pc);
            let from = match interrupted {
                true => From::Interrupted(Interrupted { pc, sp, fp, link }),
                false => From::Call(Caller { pc, sp, fp }),
            };
            let depth = walk.capture(&thread, &from, |_| {}).depth;
            (depth, modules.rules.find(pc, Generation::of(&KEY)))
        };
        // The function behind has its return address at once (aarch64: in the link register); the call's has two words below
        // it.
        let interrupted = [pc, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(rule_after(&interrupted, true), (2, None));
        let called = [0, 0, pc, 0, 0, 0, 0, 0];
        let words = if cfg!(target_arch = "x86_64") { 3 } else { 4 };
        let rule = Rule(IS_RULE | frame_words(words, 2) | Generation::of(&KEY).0);
        assert_eq!(rule_after(&called, false), (2, Some(rule)));
    }

    #[test]
    fn a_rule_is_found_by_its_address_in_its_time() {
        let rules = std::boxed::Box::new(Rules::new());
        let now = Generation::of(&KEY);
        assert_eq!(rules.find(0, Generation(0)), None, "an empty place");
        let rule = Rule::for_tests(now);
        for pc in 0x40_0000..0x40_0100 {
            rules.insert(pc, rule);
            assert_eq!(rules.find(pc, now), Some(rule));
            assert_eq!(rules.find(pc + 0x1000, now), None);
        }
        let later = MemoKey {
            dlclose_count: 1,
            ..KEY
        };
        let next = MemoKey { epoch: 2, ..KEY };
        for key in [later, next] {
            assert_eq!(rules.find(0x40_00ff, Generation::of(&key)), None);
        }
        rules.clear();
        assert_eq!(rules.find(0x40_00ff, now), None);
    }

    #[test]
    fn what_comes_round_is_told() {
        let is_alike =
            |one: MemoKey, other: MemoKey| Generation::of(&one) == Generation::of(&other);
        let at = |epoch, dlclose_count| MemoKey {
            epoch,
            dlclose_count,
            ..KEY
        };
        assert!(is_alike(at(1, 0), at(257, 0)) && Generation::comes_round(256, 1));
        assert!(is_alike(at(1, 5), at(1, 5 + (1 << 20))) && Generation::comes_round(1, 1 << 20));
        assert!(!is_alike(at(1, 5), at(2, 5)) && !is_alike(at(1, 5), at(1, 6)));
        assert!(!Generation::comes_round(255, 1) && !Generation::comes_round(1, 77));
    }
}
