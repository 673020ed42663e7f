#![allow(clippy::indexing_slicing, reason = "a test may fail")]

mod faults;
mod looks;
mod signals;

use std::vec::Vec;

use super::*;
use crate::accounting::thread::ShimThread;
use crate::shim::Interrupted;
use crate::trial::{Trial, agent};

const PAGE: u64 = 4096;

/// Registers of a thread that is not where its fault was.
const ELSEWHERE: Interrupted = Interrupted {
    pc: 0x77,
    sp: 0,
    fp: 0,
    link: 0,
};

/// An agent that samples one page of 16 on average, with a thread that has joined. No signal is known yet.
fn prepared(agent: &'static Agent) -> (Trial, &'static ShimThread) {
    let trial = Trial::begin(agent, &[("INTERVAL", "1G"), ("PAGES", "64K")]);
    let interval = agent.config().pages_interval.unwrap();
    assert_eq!(agent.prepare_pages_of(interval), Some(()));
    let thread = trial.thread();
    agent.join(thread);
    (trial, thread)
}

fn weight_not_recorded(trial: &Trial) -> u64 {
    trial.recording().ring.figures()[Figure::PagesNotRecordedBytes as usize]
}

/// Why pages are not sampled, as the profile has it.
fn reasons(trial: &Trial) -> Vec<Vec<u8>> {
    let notes = trial.notes().into_iter();
    let found = notes.filter(|(note, _)| *note == Note::PagesNotSampled);
    found.map(|(_, detail)| detail).collect()
}

/// Pages of the program's that nobody has touched.
fn fresh(pages: usize) -> u64 {
    // SAFETY: a mapping of its own.
    let base = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            pages * PAGE as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    // One fault for each page. A kernel without huge pages refuses.
    // SAFETY: the mapping above.
    unsafe { libc::madvise(base, pages * PAGE as usize, libc::MADV_NOHUGEPAGE) };
    base.expose_provenance() as u64
}

fn touch(address: u64) {
    let byte = core::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: of `fresh`, whose mappings stay.
    unsafe { byte.write_volatile(1) };
}

#[test]
fn a_reason_is_in_the_profile_from_its_beginning_or_from_then_on() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("PAGES", "64K")]);
    let agent = trial.agent;
    assert!(!agent.prepare_pages(true));
    assert!(agent.pages.heap.get().is_none());
    trial.alloc(trial.thread(), 0x1000, 16);
    let go = b"Go handles all signals itself".to_vec();
    assert_eq!(reasons(&trial), std::slice::from_ref(&go));
    agent.pages.refuse(SIGNAL_IS_TAKEN);
    let taken = b"the program uses SIGSTKFLT itself".to_vec();
    assert_eq!(reasons(&trial), [go, taken]);
}

#[test]
fn pages_are_sampled_only_if_asked_for() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    assert!(!trial.agent.prepare_pages(true));
    trial.alloc(trial.thread(), 0x1000, 16);
    assert_eq!(reasons(&trial), <[Vec<u8>; 0]>::default());
}

#[test]
fn each_reason_has_its_words() {
    let begins = |reason, words: &[u8]| why_not(reason).unwrap().starts_with(words);
    assert_eq!(why_not(0), None);
    assert!(begins(IS_GO, b"Go "));
    assert!(begins(SIGNAL_IS_TAKEN, b"the program uses SIGSTKFLT"));
    assert!(begins(libc::EACCES, b"the kernel refuses perf events"));
    assert!(begins(libc::EPERM, b"the kernel refuses perf events"));
    assert!(begins(libc::ENOMEM, b"there is no memory"));
    assert!(begins(libc::ENOENT, b"/proc/self/pagemap"));
    assert!(begins(libc::ENOSYS, b"this kernel has no such events"));
}

#[test]
fn each_n_has_intervals_for_small_and_huge_pages_of_its_own() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1"), ("PAGES", "64K")]);
    // The ring has only the intervals that are defined after the recording has begun.
    trial.alloc(trial.thread(), 0x1000, 16);
    let (agent, pages) = (trial.agent, &trial.agent.pages);
    let interval = agent.config().pages_interval.unwrap();
    agent.prepare_pages_of(interval).unwrap();
    // The second time nothing changes.
    let heap = pages.heap.get().unwrap().id;
    agent.prepare_pages_of(Interval::EVERY_ALLOCATION).unwrap();
    assert_eq!(pages.heap.get().unwrap().id, heap);
    let intervals = trial.intervals();
    let bytes_of = |number: &AtomicU32| {
        let number = number.load(Ordering::Relaxed) as u16;
        let mut found = intervals.iter().filter(|it| it.0 == number);
        let bytes = found.next().unwrap().1;
        assert!(found.next().is_none());
        bytes
    };
    for (choice, expected) in pages.choices.iter().zip([13, 13, 15, 15, 17, 17, 19, 19]) {
        let faults = choice.faults.load(Ordering::Relaxed);
        assert!(faults.abs_diff(expected) <= 1, "{faults}");
        let of = |bytes| Interval::of_one_in(faults, bytes).unwrap().bytes();
        assert_eq!(bytes_of(&choice.interval), of(PAGE));
        assert_eq!(bytes_of(&choice.huge_interval), of(2 << 20));
    }
}

#[test]
fn a_forked_child_has_no_places_and_rings_of_its_own() {
    let (trial, thread) = prepared(agent!());
    let pages = &trial.agent.pages;
    let before = pages.rings.load(Ordering::Relaxed);
    pages.places[7].tid.store(5, Ordering::Relaxed);
    pages.left_out.store(3, Ordering::Relaxed);
    pages.not_recorded.store(4, Ordering::Relaxed);
    pages.forget();
    let tids = pages.places.iter().map(|it| it.tid.load(Ordering::Relaxed));
    assert_eq!(tids.max(), Some(0));
    let rings = pages.rings.load(Ordering::Relaxed);
    assert!(rings != 0 && rings != before);
    trial.alloc(thread, 0x1000, 4 << 30);
    assert_eq!(weight_not_recorded(&trial), 0);
    pages.end_recording(trial.recording());
    assert_eq!(reasons(&trial), <[Vec<u8>; 0]>::default());
}

#[test]
fn without_rings_a_child_makes_none() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    trial.agent.pages.forget();
    assert_eq!(trial.agent.pages.rings.load(Ordering::Relaxed), 0);
    assert!(trial.agent.pages.ring(0).is_none());
}

#[test]
fn the_numbers_of_faults_are_around_their_mean() {
    for mean in [1, 2, 16, 64, 128, 1 << 20] {
        let all: Vec<u32> = (0..CHOICES as u32)
            .map(|index| nth_of(mean, index))
            .collect();
        let sum: u64 = all.iter().map(|&nth| u64::from(nth)).sum();
        let average = sum as f64 / CHOICES as f64;
        let slack = 1.0 + f64::from(mean) / 50.0;
        assert!(
            (average - f64::from(mean)).abs() <= slack,
            "{mean}: {all:?}"
        );
        assert!(
            all.iter().all(|&nth| nth >= 1 && nth <= 2 * mean),
            "{all:?}"
        );
        let differs = all.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(differs || mean < 64, "{all:?}");
    }
}

/// As `draw` and `go_on` place them. Where rows of one n are cut by the next, estimates have a bias; with one place for all
/// threads, patterns of the program's have one.
#[test]
fn every_fault_is_sampled_with_the_probability_that_it_is_weighted_with() {
    const FAULTS: usize = 3000;
    const RUNS: u32 = 20_000;
    let mut weights = std::vec![0.0_f64; FAULTS];
    let mut random = allocsample_sampling::Seed { process: 3 }.faults_of_thread(1);
    for _ in 0..RUNS {
        let (mut past, mut rest) = (0, 0);
        while past < FAULTS {
            let nth = nth_of(16, random.below(CHOICES as u64) as u32) as usize;
            let first = 1 + random.below(nth as u64) as usize;
            past += rest + first;
            rest = nth - first;
            for sample in 0..=SAMPLES_PER_CHOICE as usize {
                if let Some(weight) = weights.get_mut(past + sample * nth - 1) {
                    *weight += nth as f64;
                }
            }
            past += SAMPLES_PER_CHOICE as usize * nth;
        }
    }
    // Of each fault; the standard deviation is about sqrt(16 / RUNS).
    for (fault, weight) in weights.iter().enumerate() {
        let mean = weight / f64::from(RUNS);
        assert!((mean - 1.0).abs() < 5.0 * 0.03, "{fault}: {mean}");
    }
    // Of all together it is far smaller.
    let mean = weights.iter().sum::<f64>() / f64::from(RUNS) / FAULTS as f64;
    assert!((mean - 1.0).abs() < 0.001, "{mean}");
}
