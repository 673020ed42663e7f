//! What becomes of a fault: a sample, or a figure.

use allocsample_record::SampleFlags;

use super::*;
use crate::os::fault_events::Fault;
use crate::switch::Switch;
use crate::trial::FoundSample;

/// Addresses at which nothing is mapped.
const PLACE: u64 = 0x7A00_0000_0000;

fn fault(address: u64, page_bytes: u64) -> Fault {
    Fault {
        pc: 0x1234,
        address,
        page_bytes,
    }
}

fn take(trial: &Trial, thread: &ShimThread, fault: &Fault) {
    let agent = trial.agent;
    agent.take_fault(thread, &ELSEWHERE, fault, &agent.pages.choices[2]);
}

/// Bytes that a small page of these tests stands for.
fn weight(trial: &Trial) -> u64 {
    PAGE * u64::from(trial.agent.pages.choices[2].faults.load(Ordering::Relaxed))
}

/// Address, size, and interval.
fn brief(sample: FoundSample) -> (u64, u64, u16) {
    (sample.address, sample.size, sample.interval)
}

#[test]
fn a_fault_is_a_sample_of_its_page_with_the_interval_of_its_n() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    let mut expected = Vec::new();
    for (index, choice) in (1..).zip(&agent.pages.choices) {
        let address = PLACE + (index << 30);
        // What the kernel does not say is a small page.
        for (bytes, at) in [(PAGE, 0), (0, 4 * PAGE), (2 << 20, 2 << 20)] {
            let inside = fault(address + at + 0x123, bytes);
            agent.take_fault(thread, &ELSEWHERE, &inside, choice);
            let size = bytes.max(PAGE);
            let interval = match size {
                PAGE => &choice.interval,
                _ => &choice.huge_interval,
            };
            let interval = interval.load(Ordering::Relaxed) as u16;
            expected.push((address + at, size, interval));
        }
    }
    let samples = trial.samples();
    let found: Vec<_> = samples.iter().copied().map(brief).collect();
    assert_eq!(found, expected);
    let heap = agent.pages.heap.get().unwrap();
    for sample in &samples {
        assert_eq!((sample.points, sample.thread), (1, thread.number()));
        assert_eq!((sample.heap, sample.type_id), (heap.id.0, 0));
        assert_eq!(sample.flags, SampleFlags::UNWIND_FAILED.0);
    }
    assert_eq!(heap.samples.load(Ordering::Relaxed), samples.len() as u64);
    assert_eq!(weight_not_recorded(&trial), 0);
    // The thread is announced before its first sample.
    assert_eq!(trial.starts(), [thread.number()]);
}

#[test]
fn a_fault_where_the_thread_is_has_its_stack() {
    let (trial, thread) = prepared(agent!());
    let here = Interrupted {
        pc: 0x1234,
        ..ELSEWHERE
    };
    let agent = trial.agent;
    agent.take_fault(thread, &here, &fault(PLACE, PAGE), &agent.pages.choices[0]);
    // Of a walk without unwinding, which these tests ask for.
    let flags = trial.samples()[0].flags;
    assert_eq!(flags & SampleFlags::UNWIND_FAILED.0, 0);
}

#[test]
fn what_is_the_agents_own_or_comes_while_it_is_off_is_no_sample() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    take(&trial, thread, &fault(PLACE, PAGE));
    for (start, bytes) in memory::own_ranges().filter(|(_, bytes)| *bytes > 0) {
        take(&trial, thread, &fault(start, PAGE));
        take(&trial, thread, &fault(start + bytes - 1, PAGE));
    }
    let heap = agent.pages.heap.get().unwrap();
    heap.switch(false);
    take(&trial, thread, &fault(PLACE + PAGE, PAGE));
    heap.switch(true);
    agent.switch.set(Switch::Off);
    take(&trial, thread, &fault(PLACE + PAGE, PAGE));
    agent.switch.set(Switch::On);
    assert!(agent.enable_thread(thread, false));
    take(&trial, thread, &fault(PLACE + PAGE, PAGE));
    assert!(agent.enable_thread(thread, true));
    assert_eq!(trial.samples().len(), 1);
    take(&trial, thread, &fault(PLACE + PAGE, PAGE));
    assert_eq!(trial.samples().len(), 2);
    assert_eq!(weight_not_recorded(&trial), 0);
}

#[test]
fn weights_without_a_record_are_counted_before_and_after_the_beginning() {
    let (trial, thread) = prepared(agent!());
    let weight = weight(&trial);
    // A thread that has not joined.
    let other = trial.thread();
    take(&trial, other, &fault(PLACE, PAGE));
    take(&trial, other, &fault(PLACE, PAGE));
    assert!(recording::current().is_none());
    take(&trial, thread, &fault(PLACE, PAGE));
    assert_eq!(trial.samples().len(), 1);
    assert_eq!(weight_not_recorded(&trial), 2 * weight);
    take(&trial, other, &fault(PLACE, PAGE));
    assert_eq!(weight_not_recorded(&trial), 3 * weight);
    trial.fill_ring();
    take(&trial, thread, &fault(PLACE + PAGE, PAGE));
    assert_eq!(weight_not_recorded(&trial), 4 * weight);
    assert_eq!(trial.samples().len(), 1);
}

#[test]
fn a_page_without_a_place_in_the_table_is_not_tracked() {
    let (trial, thread) = prepared(agent!());
    let live = &trial.agent.pages.live;
    let full = (1_u64..).find(|page| !live.insert(page << 40, 1)).unwrap();
    take(&trial, thread, &fault(full << 40, PAGE));
    let sample = trial.samples()[0];
    assert_ne!(sample.flags & SampleFlags::UNTRACKED.0, 0);
    assert_eq!(weight_not_recorded(&trial), weight(&trial));
}

#[test]
fn a_page_ends_when_it_is_given_back_or_touched_again() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    // Before there is a recording there is nothing to end.
    agent.on_pages(PLACE, PAGE, None);
    for page in 0..4 {
        take(&trial, thread, &fault(PLACE + page * PAGE, PAGE));
    }
    let ids: Vec<u64> = trial.samples().iter().map(|it| it.id).collect();
    agent.on_pages(PLACE + PAGE, 2 * PAGE, None);
    assert_eq!(trial.frees(), [(ids[1], 0), (ids[2], 0)]);
    // Given back unseen.
    take(&trial, thread, &fault(PLACE, PAGE));
    assert_eq!(trial.frees()[2..], [(ids[0], 0)]);
    let again = trial.samples()[4].id;
    agent.on_pages(PLACE, PAGE, None);
    assert_eq!(trial.frees()[3..], [(again, 0)]);
}

#[test]
fn a_page_that_moves_stays_the_same_sample() {
    let (trial, thread) = prepared(agent!());
    let agent = trial.agent;
    for page in 0..2 {
        take(&trial, thread, &fault(PLACE + page * PAGE, PAGE));
    }
    let ids: Vec<u64> = trial.samples().iter().map(|it| it.id).collect();
    let elsewhere = PLACE - 64 * PAGE;
    agent.on_pages(PLACE, 2 * PAGE, Some(elsewhere));
    assert_eq!(trial.frees(), []);
    agent.on_pages(PLACE, 2 * PAGE, None);
    assert_eq!(trial.frees(), []);
    agent.on_pages(elsewhere + PAGE, PAGE, None);
    agent.on_pages(elsewhere, PAGE, None);
    assert_eq!(trial.frees(), [(ids[1], 0), (ids[0], 0)]);
    // The profile is complete: nothing ends any more.
    take(&trial, thread, &fault(PLACE, PAGE));
    agent.pages.clear();
    agent.on_pages(PLACE, PAGE, None);
    assert_eq!(trial.frees().len(), 2);
}

#[test]
fn an_end_without_room_is_counted() {
    let (trial, thread) = prepared(agent!());
    take(&trial, thread, &fault(PLACE, PAGE));
    trial.fill_ring();
    trial.agent.on_pages(PLACE, PAGE, None);
    let ring = &trial.recording().ring;
    assert_eq!(
        ring.lost()[allocsample_record::LostReason::FreeRingFull as usize].0,
        1
    );
}
