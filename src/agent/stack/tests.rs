//! Walks of the test's own stack, compared with those of the unwinder that Rust's panics use.
#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use core::ffi::c_void;
use core::hint::black_box;
use std::vec::Vec;

use allocsample_record::{
    FreeStackRecord, ModuleRecord, RecordKind, SampleFlags, SampleRecord, TickRecord,
};

use super::modules::FoundObject;
use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::shim::{Caller, Interrupted};
use crate::trial::{Trial, agent};

const SETTINGS: &[(&str, &str)] = &[("INTERVAL", "1"), ("ON_FULL", "drop"), ("UNWIND", "auto")];

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> i32,
        argument: *mut c_void,
    ) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

unsafe extern "C" {
    fn _dl_find_object(address: *const c_void, found: *mut FoundObject) -> i32;
}

/// What finds the module of an address here.
pub(crate) fn find_object() -> super::modules::FindObject {
    _dl_find_object
}

fn begin(agent: &'static Agent, settings: &[(&str, &str)]) -> Trial {
    let trial = Trial::begin(agent, settings);
    agent.modules().set_find_object(_dl_find_object);
    trial
}

extern "C" fn add(context: *mut c_void, found: *mut c_void) -> i32 {
    // SAFETY: as `backtrace` passes them.
    unsafe { (*found.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
    0
}

/// The return addresses of the calling function's callers, leaf first.
#[inline(never)]
fn backtrace() -> Vec<u64> {
    let mut found: Vec<u64> = Vec::new();
    // SAFETY: `add` gets the vector, which nobody else uses.
    unsafe { _Unwind_Backtrace(add, core::ptr::from_mut(&mut found).cast()) };
    // This function, and its caller's own frame. The root has no caller.
    let mut callers = found.split_off(2);
    callers.retain(|&address| address != 0);
    callers
}

/// Where this is in the function that it is inlined into.
#[inline(always)]
pub(crate) fn here() -> Caller {
    let (pc, sp, fp): (u64, u64, u64);
    // SAFETY: reads registers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "lea {pc}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    // SAFETY: reads registers.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "adr {pc}, .", "mov {sp}, sp", "mov {fp}, x29",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    Caller { pc, sp, fp }
}

struct Walker<'a> {
    trial: &'a Trial,
    thread: &'a ShimThread,
    address: u64,
    /// What each sample's stack is, behind its first frame.
    expected: Vec<Vec<u64>>,
}

impl Walker<'_> {
    #[inline(never)]
    fn leaf(&mut self) {
        self.address += 0x1000;
        let sampled = (self.trial).alloc_at(self.thread, self.address, 16, here());
        assert!(sampled.is_some());
        self.expected.push(backtrace());
    }

    #[inline(never)]
    fn other_leaf(&mut self) {
        self.leaf();
        black_box(());
    }

    #[inline(never)]
    fn below(&mut self, depth: u32, is_other: bool) {
        match (depth, is_other) {
            (0, false) => self.leaf(),
            (0, true) => self.other_leaf(),
            _ => self.below(depth - 1, is_other),
        }
        black_box(&self.address);
    }
}

/// The samples' stacks, put together from what each shares with the one before.
fn stacks(trial: &Trial) -> Vec<(Vec<u64>, u32, u16)> {
    let mut last: Vec<u64> = Vec::new();
    let mut found = Vec::new();
    for words in trial.of_kind(RecordKind::Sample) {
        let sample = SampleRecord::decode(&words).unwrap();
        let shared = last.len() - sample.shared as usize;
        last = [sample.frames, &last[shared..]].concat();
        found.push((last.clone(), sample.shared, sample.flags.0));
    }
    found
}

fn walk(trial: &Trial, depths: &[(u32, bool)]) -> Vec<Vec<u64>> {
    let mut walker = Walker {
        trial,
        thread: trial.thread(),
        address: 0x10_0000,
        expected: Vec::new(),
    };
    for &(depth, is_other) in depths {
        walker.below(depth, is_other);
    }
    walker.expected
}

const DEPTHS: [(u32, bool); 9] = [
    (5, false),
    (5, false),
    (9, false),
    (3, false),
    (3, true),
    (40, true),
    (40, false),
    (0, false),
    (41, true),
];

#[test]
fn a_stack_is_what_the_unwinder_of_panics_finds() {
    for unwind in ["auto", "verify"] {
        let settings = [("INTERVAL", "1"), ("ON_FULL", "drop"), ("UNWIND", unwind)];
        let trial = begin(agent!(), &settings);
        let expected = walk(&trial, &DEPTHS);
        let found = stacks(&trial);
        assert_eq!(found.len(), expected.len());
        for ((stack, _, flags), expected) in found.iter().zip(&expected) {
            assert_eq!(stack[1..], expected[..]);
            assert_eq!(*flags, 0);
        }
        // The second stack is that of the first but for the frames that the test's loop was left through.
        let shared: Vec<u32> = found.iter().map(|(_, shared, _)| *shared).collect();
        assert_eq!(shared[0], 0);
        for (index, pair) in found.windows(2).enumerate() {
            let (before, now) = (&pair[0].0, &pair[1].0);
            let equal = before.iter().rev().zip(now.iter().rev());
            let equal = equal.take_while(|(before, now)| before == now).count();
            assert!(shared[index + 1] as usize <= equal);
            assert!(shared[index + 1] > 0, "{shared:?}");
        }
    }
}

#[test]
fn stacks_whose_rest_is_known_are_as_if_walked_in_full() {
    let settings = [("INTERVAL", "1"), ("ON_FULL", "drop"), ("UNWIND", "verify")];
    let trial = begin(agent!(), &settings);
    walk(&trial, &DEPTHS);
    assert!(trial.exit(trial.thread()));
    let compared = allocsample_record::Note::StacksCompared;
    let notes = trial.notes();
    let (_, detail) = notes.iter().find(|(note, _)| *note == compared).unwrap();
    let text = std::str::from_utf8(detail).unwrap();
    let (known, different) = text.split_once(" with a known rest, ").unwrap();
    // All but the first have their root in common with the one before.
    assert_eq!(known, "8");
    assert_eq!(different, "0 different");
}

#[test]
fn another_profile_describes_its_modules_again() {
    let agent = agent!();
    let trial = begin(agent, SETTINGS);
    let thread = trial.thread();
    trial.alloc_at(thread, 0x1000, 16, here()).unwrap();
    let how = allocsample_record::ExitHow::Exec;
    assert!(agent.on_exit(thread, &Caller::UNKNOWN, how, None, b"/bin/true"));
    agent.after_exec_failed(thread);
    trial.alloc_at(thread, 0x2000, 16, here()).unwrap();
    let sample = trial.of_kind(RecordKind::Sample);
    assert_eq!(SampleRecord::decode(&sample[0]).unwrap().shared, 0);
    let expected = backtrace();
    assert_eq!(stacks(&trial)[0].0[1..], expected[..]);
    assert!(trial.of_kind(RecordKind::Module).len() >= 2);
}

#[test]
fn every_module_of_a_stack_is_described_before_it() {
    let trial = begin(agent!(), SETTINGS);
    walk(&trial, &DEPTHS);
    let records = trial.records();
    let is = |wanted| move |record: &&crate::trial::Found| record.kind == wanted;
    let modules: Vec<(Vec<u64>, Vec<u8>)> = records
        .iter()
        .filter(is(RecordKind::Module))
        .map(|record| {
            let bytes = record.words.iter().flat_map(|word| word.to_le_bytes());
            (record.words.clone(), bytes.collect())
        })
        .collect();
    let modules: Vec<ModuleRecord<'_>> = modules
        .iter()
        .map(|(words, text)| ModuleRecord::decode(words, text).unwrap())
        .collect();
    let executable = std::env::current_exe().unwrap();
    let own = here().pc;
    let module = modules
        .iter()
        .find(|module| (module.start..module.end).contains(&own))
        .unwrap();
    assert_eq!(module.path, executable.as_os_str().as_encoded_bytes());
    // Once each.
    let mut starts: Vec<u64> = modules.iter().map(|module| module.start).collect();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len(), modules.len());
    // libc, at the root.
    assert!(
        modules
            .iter()
            .any(|module| module.path.ends_with(b"/libc.so.6"))
    );
    let covered = |address: &u64| {
        modules
            .iter()
            .any(|module| (module.start..module.end).contains(&(address - 1)))
    };
    for (stack, _, _) in stacks(&trial) {
        assert!(stack.iter().all(covered));
    }
    let first_module = records.iter().position(|it| it.kind == RecordKind::Module);
    let first_sample = records.iter().position(|it| it.kind == RecordKind::Sample);
    assert!(first_module < first_sample);
}

#[test]
fn a_stack_beyond_the_limit_has_its_leaves_and_says_so() {
    let settings = [("MAX_DEPTH", "7"), SETTINGS[0], SETTINGS[1], SETTINGS[2]];
    let trial = begin(agent!(), &settings);
    let expected = walk(&trial, &[(20, false), (20, false), (20, true)]);
    for words in trial.of_kind(RecordKind::Sample) {
        let sample = SampleRecord::decode(&words).unwrap();
        assert_eq!(sample.frames.len() + sample.shared as usize, 7);
        assert!(sample.flags.contains(SampleFlags::TRUNCATED));
    }
    for ((stack, _, _), expected) in stacks(&trial).iter().zip(&expected) {
        assert_eq!(stack.len(), 7);
        assert_eq!(stack[1..], expected[..6]);
    }
}

#[test]
fn without_an_unwinder_there_are_no_frames() {
    let settings = [("UNWIND", "none"), SETTINGS[0], SETTINGS[1]];
    let trial = begin(agent!(), &settings);
    walk(&trial, &[(5, false)]);
    assert_eq!(stacks(&trial), [(Vec::new(), 0, 0)]);
}

#[test]
fn two_threads_do_not_share_their_stacks() {
    let trial = begin(agent!(), SETTINGS);
    // Both on this thread of the kernel, so at the same places.
    let (first, second) = (trial.thread(), trial.thread());
    for (address, thread) in [(0x1000, first), (0x2000, second), (0x3000, first)] {
        trial.alloc_at(thread, address, 16, here()).unwrap();
    }
    let shared: Vec<u32> = trial
        .of_kind(RecordKind::Sample)
        .iter()
        .map(|words| SampleRecord::decode(words).unwrap().shared)
        .collect();
    assert_eq!(shared[1], 0);
}

#[test]
fn one_free_in_eight_has_its_stack() {
    let trial = begin(agent!(), SETTINGS);
    let thread = trial.thread();
    for block in 1..=800 {
        trial.alloc_at(thread, 0x1000 * block, 16, here()).unwrap();
    }
    let mut expected = Vec::new();
    for block in 1..=800 {
        let taken = trial.agent.take_sampled(0x1000 * block);
        trial.agent.on_free(thread, taken, &here());
        expected = backtrace();
    }
    assert_eq!(trial.frees().len(), 800);
    let last = stacks(&trial).pop().unwrap().0;
    let free_stacks = trial.of_kind(RecordKind::FreeStack);
    assert!(
        (60..140).contains(&free_stacks.len()),
        "{}",
        free_stacks.len()
    );
    let frees = trial.frees();
    for words in &free_stacks {
        let free = FreeStackRecord::decode(words).unwrap();
        assert!(frees.iter().any(|&(id, _)| id == free.sample.0));
        let shared = last.len() - free.shared as usize;
        let stack = [free.frames, &last[shared..]].concat();
        assert_eq!(stack[1..], expected[..]);
        assert_eq!(free.thread.0, 1);
    }
}

#[test]
fn a_tick_has_the_stack_of_what_it_interrupted() {
    let settings = [("TIME_HZ", "100"), SETTINGS[0], SETTINGS[1], SETTINGS[2]];
    let trial = begin(agent!(), &settings);
    let thread = trial.thread();
    trial.alloc_at(thread, 0x1000, 16, here()).unwrap();
    let Caller { pc, sp, fp } = here();
    let interrupted = Interrupted {
        pc,
        sp,
        fp,
        link: 0,
    };
    trial.agent.on_tick(thread, &interrupted, 3);
    let expected = backtrace();
    let ticks = trial.of_kind(RecordKind::Tick);
    assert_eq!(ticks.len(), 1);
    let tick = TickRecord::decode(&ticks[0]).unwrap();
    assert_eq!((tick.frames[0], tick.thread.0), (pc + 1, 1));
    assert_eq!(tick.frames[1..], expected[..]);
    assert_eq!(tick.cpu_ns, 30_000_000);
}

#[test]
fn the_time_of_ticks_that_are_not_recorded_is_counted() {
    use allocsample_record::Figure;
    let settings = [("TIME_HZ", "100"), SETTINGS[0], SETTINGS[1], SETTINGS[2]];
    let trial = begin(agent!(), &settings);
    let (thread, stranger) = (trial.thread(), trial.thread());
    let interrupted = Interrupted {
        pc: 0,
        sp: 0,
        fp: 0,
        link: 0,
    };
    let tick = |thread: &ShimThread, periods| {
        trial.agent.on_tick(thread, &interrupted, periods);
    };
    let figures = || {
        let figures = trial.recording().ring.figures();
        let figure = |figure: Figure| figures[figure as usize] / 10_000_000;
        [
            figure(Figure::TickPeriodNs),
            figure(Figure::TicksInAgentNs),
            figure(Figure::TicksNotRecordedNs),
        ]
    };
    // Before there is a recording: of a thread that has not joined, and inside the agent.
    tick(stranger, 1);
    let (slow_path, _) = stranger.mute(0, &Caller::UNKNOWN);
    tick(stranger, 2);
    drop(slow_path);
    trial.alloc_at(thread, 0x1000, 16, here()).unwrap();
    assert_eq!(figures(), [1, 2, 1]);
    tick(stranger, 4);
    let (slow_path, _) = thread.mute(0, &Caller::UNKNOWN);
    tick(thread, 8);
    drop(slow_path);
    assert_eq!(figures(), [1, 10, 5]);
    // A thread that is left out has none.
    trial.agent.enable_thread(thread, false);
    tick(thread, 16);
    assert_eq!(figures(), [1, 10, 5]);
    assert_eq!(trial.of_kind(RecordKind::Tick), Vec::<Vec<u64>>::new());
}
