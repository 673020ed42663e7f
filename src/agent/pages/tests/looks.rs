//! Which pages are still resident, by the kernel's page tables.

use super::*;
use crate::os::clock;
use crate::os::fault_events::Fault;
use crate::pages::ending::next_look_ns;

/// Samples this page; its id.
fn sample(trial: &Trial, thread: &ShimThread, address: u64) -> u64 {
    let agent = trial.agent;
    let fault = Fault {
        pc: 0x1234,
        address,
        page_bytes: PAGE,
    };
    agent.take_fault(thread, &ELSEWHERE, &fault, &agent.pages.choices[0]);
    trial.samples().last().unwrap().id
}

fn give_back(address: u64) {
    let page = core::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: of `fresh`, to which nobody refers.
    let done = unsafe { libc::madvise(page, PAGE as usize, libc::MADV_DONTNEED) };
    assert_eq!(done, 0);
}

fn confirmed(agent: &Agent) -> Vec<u64> {
    let pages = agent.pages.live.all().filter(|page| page.is_confirmed);
    let mut ids: Vec<u64> = pages.map(|page| page.id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn pages_that_are_not_resident_end() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    let base = fresh(4);
    let at = |page: u64| base + page * PAGE;
    touch(at(0));
    touch(at(1));
    // The page of zeros.
    let zeros = core::ptr::with_exposed_provenance::<u8>(at(2) as usize);
    // SAFETY: of `fresh`.
    assert_eq!(unsafe { zeros.read_volatile() }, 0);
    let ids: Vec<u64> = (0..4)
        .map(|page| sample(&trial, thread, at(page)))
        .collect();
    agent.look_at_pages_now(trial.recording(), 5);
    let mut ended = trial.frees();
    ended.sort_unstable();
    assert_eq!(ended, [(ids[2], 0), (ids[3], 0)]);
    assert_eq!(confirmed(agent), ids[..2]);
    give_back(at(1));
    agent.look_at_pages_now(trial.recording(), 6);
    assert_eq!(trial.frees()[2..], [(ids[1], 0)]);
    assert_eq!(confirmed(agent), ids[..1]);
}

/// After a fork the pages of both are shared until one of them writes.
#[test]
fn a_page_that_is_shared_with_a_child_stays_if_it_was_seen_before() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    let base = fresh(2);
    touch(base);
    touch(base + PAGE);
    let before = sample(&trial, thread, base);
    agent.look_at_pages_now(trial.recording(), 5);
    // SAFETY: the child does nothing but wait for its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: only waits.
            unsafe { libc::pause() };
        }
    }
    let after = sample(&trial, thread, base + PAGE);
    agent.look_at_pages_now(trial.recording(), 6);
    // SAFETY: our child, which has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    assert_eq!(confirmed(agent), [before]);
    assert_eq!(trial.frees(), [(after, 0)]);
}

#[test]
fn a_look_takes_a_hundredth_of_the_time_at_most() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    let next = &agent.pages.next_look_ns;
    let gone = sample(&trial, thread, fresh(1));
    let late = clock::monotonic_ns() + (1 << 50);
    next.store(late, Ordering::Relaxed);
    agent.look_at_pages(trial.recording(), 5);
    assert_eq!(
        (trial.frees(), next.load(Ordering::Relaxed)),
        (Vec::new(), late)
    );
    next.store(0, Ordering::Relaxed);
    let begin = clock::monotonic_ns();
    agent.look_at_pages(trial.recording(), 5);
    let latest = next_look_ns(begin, clock::monotonic_ns());
    assert_eq!(trial.frees(), [(gone, 0)]);
    let after = next.load(Ordering::Relaxed);
    assert!(after > begin && after <= latest, "{after} {latest}");
    assert_eq!(next_look_ns(1_000, 1_007), 1_707);
    // In this very moment it is due.
    next.store(clock::monotonic_ns(), Ordering::Relaxed);
    let gone = sample(&trial, thread, fresh(1));
    agent.look_at_pages(trial.recording(), 5);
    assert_eq!(trial.frees()[1..], [(gone, 0)]);
}

#[test]
fn without_a_heap_there_is_nothing_to_look_at() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "1")]);
    trial.alloc(trial.thread(), 0x1000, 16);
    trial.agent.look_at_pages_now(trial.recording(), 5);
    trial.agent.on_pages(0x1000, PAGE, None);
    assert_eq!(trial.frees(), []);
}
