//! When a thread's events begin, at which faults they signal, and when they end. The signal is blocked here: the tests themselves
//! look for faults.

use super::*;
use crate::os::{fault_events, process};

/// Keeps the signal from the calling thread until it ends. False: the kernel allows no events.
fn block_signal() -> bool {
    // SAFETY: a set of its own, for this thread.
    unsafe {
        let mut set = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGSTKFLT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
    }
    let allowed = fault_events::probe().is_ok();
    if !allowed {
        crate::skip::skip("the kernel allows no events of page faults");
    }
    allowed
}

/// Page faults of the calling thread so far, as the kernel counts them.
fn faults_of_thread() -> u64 {
    // SAFETY: the kernel writes a `rusage` to our variable, for which all zeros are valid.
    let usage = unsafe {
        let mut usage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    let usage: libc::rusage = usage;
    usage.ru_minflt as u64
}

fn tids(agent: &Agent) -> Vec<u32> {
    let places = agent.pages.places.iter();
    let tids = places.map(|place| place.tid.load(Ordering::Relaxed));
    tids.filter(|tid| *tid != 0).collect()
}

/// Touches that many pages, and looks for faults after each; how many looks have found some.
fn touch_pages(agent: &Agent, thread: &ShimThread, pages: usize) -> usize {
    let base = fresh(pages);
    let mut found = 0;
    for page in 0..pages as u64 {
        touch(base + page * PAGE);
        found += usize::from(agent.on_faults(thread, &ELSEWHERE));
    }
    found
}

#[test]
fn each_row_of_n_faults_has_one_sample_and_n_changes_after_65() {
    const PAGES: usize = 30_000;
    if !block_signal() {
        return;
    }
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    // A recording may take its time to begin.
    trial.alloc(thread, 0x1000, 4 << 30);
    agent.start_faults(libc::SIGSTKFLT);
    agent.start_faults_of(thread);
    assert_eq!(tids(agent), [process::tid()]);
    let before = faults_of_thread();
    let found = touch_pages(agent, thread, PAGES);
    let all_faults = faults_of_thread() - before;
    agent.end_faults_of(thread);
    assert_eq!(tids(agent), []);
    assert_eq!(thread.fault_place(), 0);

    assert_eq!(weight_not_recorded(&trial), 0);
    let pages = agent.pages.heap.get().unwrap().id.0;
    let mut samples = trial.samples();
    samples.retain(|it| it.heap == pages);
    let choices = &agent.pages.choices;
    let faults_of = |interval: u16| {
        let is_its = |it: &&Choice| it.interval.load(Ordering::Relaxed) as u16 == interval;
        let choice = choices.iter().find(is_its).unwrap();
        u64::from(choice.faults.load(Ordering::Relaxed))
    };
    let all: Vec<u64> = samples.iter().map(|it| faults_of(it.interval)).collect();
    let stand_for = all.iter().sum::<u64>();
    // The last row is not complete, and the kernel touches a few pages for the thread, which are not counted.
    assert!(all_faults >= PAGES as u64);
    let range = all_faults - 100..all_faults + 20;
    assert!(range.contains(&stand_for), "{stand_for} {all_faults}");
    assert!(found >= samples.len() * 9 / 10, "{found}");
    // Two draws may give the same n. The last row is cut off.
    let mut runs = all
        .chunk_by(|a, b| a == b)
        .map(<[u64]>::len)
        .collect::<Vec<_>>();
    runs.pop();
    let per_draw = 1 + SAMPLES_PER_CHOICE as usize;
    let off = runs.iter().filter(|run| **run % per_draw != 0).count();
    assert!(runs.len() >= 10 && off == 0, "{runs:?}");
    // All of them come up.
    let mut seen = all;
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() >= 5, "{seen:?}");

    assert_eq!(touch_pages(agent, thread, 100), 0);
}

#[test]
fn faults_end_for_all_threads_at_once_and_for_good() {
    if !block_signal() {
        return;
    }
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    // Nothing is known of a signal yet.
    agent.start_faults_of(thread);
    assert_eq!(tids(agent), []);
    agent.start_faults(libc::SIGSTKFLT);
    agent.start_faults_of(thread);
    assert!(touch_pages(agent, thread, 100) >= 3);
    agent.stop_faults();
    assert_eq!(tids(agent), []);
    // What was there before is taken.
    agent.on_faults(thread, &ELSEWHERE);
    assert_eq!(touch_pages(agent, thread, 100), 0);
    agent.start_faults_of(trial.thread());
    assert_eq!(tids(agent), []);
    // A place that is another thread's by now stays.
    agent.pages.places[0].tid.store(1, Ordering::Relaxed);
    agent.end_faults_of(thread);
    assert_eq!(tids(agent), [1]);
    assert_eq!(thread.fault_place(), 0);
    agent.end_faults_of(thread);
    agent.stop_faults();
}

#[test]
fn another_signal_is_refused() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    agent.start_faults(libc::SIGUSR1);
    agent.start_faults_of(thread);
    assert_eq!(tids(agent), []);
    trial.alloc(thread, 0x1000, 4 << 30);
    let taken = b"the program uses SIGSTKFLT itself".to_vec();
    assert_eq!(reasons(&trial), [taken]);
}

#[test]
fn threads_beyond_the_places_are_counted() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    agent.start_faults(libc::SIGSTKFLT);
    for place in &agent.pages.places {
        place.tid.store(1, Ordering::Relaxed);
    }
    agent.start_faults_of(thread);
    agent.start_faults_of(trial.thread());
    assert_eq!(thread.fault_place(), 0);
    trial.alloc(thread, 0x1000, 4 << 30);
    assert_eq!(reasons(&trial), <[Vec<u8>; 0]>::default());
    agent.pages.end_recording(trial.recording());
    let reason = reasons(&trial).remove(0);
    assert!(reason.starts_with(b"not on 2 threads, "), "{reason:?}");
    for place in &agent.pages.places {
        place.tid.store(0, Ordering::Relaxed);
    }
}

#[test]
fn a_signal_without_a_fault_is_not_ours() {
    if !block_signal() {
        return;
    }
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    assert!(!agent.on_faults(thread, &ELSEWHERE));
    agent.start_faults(libc::SIGSTKFLT);
    agent.start_faults_of(thread);
    assert!(touch_pages(agent, thread, 40) > 0);
    while agent.on_faults(thread, &ELSEWHERE) {}
    assert!(!agent.on_faults(thread, &ELSEWHERE));
    // Where malloc's heap has become smaller, its pages have ended.
    let end = memory::heap_end();
    agent
        .pages
        .heap_end
        .store(end + 8 * PAGE, Ordering::Relaxed);
    assert!(agent.pages.live.insert(end + PAGE, 1));
    assert!(agent.pages.live.insert(end + 8 * PAGE, 2));
    assert!(touch_pages(agent, thread, 40) > 0);
    assert_eq!(agent.pages.live.take(end + PAGE), None);
    assert_eq!(agent.pages.live.take(end + 8 * PAGE), Some(2));
    agent.end_faults_of(thread);
}
