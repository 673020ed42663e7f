use super::*;
use crate::recording::tests::recording;
use crate::setup::Hooks;
use crate::trial::{Trial, agent};

const EVERY_1000: &[(&str, &str)] = &[("INTERVAL", "1000")];

fn interval(bytes: u64) -> Option<Interval> {
    Interval::new(bytes)
}

#[test]
fn a_ticket_is_done_with_those_before_it() {
    let recording = recording();
    assert_eq!(recording.ticket(), 0);
    let [first, second] = [(); 2].map(|()| recording.take_ticket());
    assert_eq!([first, second, recording.ticket()], [1, 2, 2]);
    let are_done = || [first, second].map(|ticket| recording.is_ticket_done(ticket));
    assert_eq!(are_done(), [false, false]);
    recording.tickets_are_done(first);
    assert_eq!(are_done(), [true, false]);
    recording.tickets_are_done(second);
    assert_eq!(are_done(), [true, true]);
    assert!(!recording.is_ticket_done(second + 2));
}

#[test]
fn tickets_begin_again_after_the_last_number() {
    let recording = recording();
    recording.tickets.store(u32::MAX, Ordering::Relaxed);
    recording.tickets_are_done(u32::MAX - 1);
    let after_last = recording.take_ticket();
    assert_eq!(after_last, 0);
    assert!(!recording.is_ticket_done(after_last));
    recording.tickets_are_done(after_last);
    assert!(recording.is_ticket_done(after_last) && recording.is_ticket_done(u32::MAX));
    // Half of all numbers are ahead.
    assert!(!recording.is_ticket_done(u32::MAX / 2));
    assert!(recording.is_ticket_done(u32::MAX / 2 + 1));
}

#[test]
fn a_start_without_an_interval_resumes_the_one_before_the_stop() {
    let trial = Trial::begin(agent!(), EVERY_1000);
    let (agent, thread) = (trial.agent, trial.thread());
    let ordered = |order| {
        agent.order(thread, order).unwrap();
        agent.interval_in_force()
    };
    assert_eq!(ordered(Order::Start(None)), interval(1000));
    assert_eq!(ordered(Order::Start(interval(2000))), interval(2000));
    assert_eq!(ordered(Order::Stop), None);
    assert_eq!(ordered(Order::Start(None)), interval(2000));
}

#[test]
fn an_agent_that_is_off_takes_no_orders() {
    let trial = Trial::begin(agent!(), EVERY_1000);
    let thread = trial.thread();
    trial.agent.switch.set(Switch::Off);
    for order in [Order::Stop, Order::Flush] {
        assert_eq!(trial.agent.order(thread, order), Err(Refusal::Off));
    }
    assert!(recording::current().is_none());
}

#[test]
fn work_on_files_is_complete_when_an_order_returns() {
    let mut hooks = Hooks::NONE;
    hooks.start_drain = |_| true;
    let trial = Trial::begin_with(agent!(), EVERY_1000, hooks);
    trial.agent.order(trial.thread(), Order::Stop).unwrap();
    let recording = trial.recording();
    // As the drain thread does it.
    let serve = || loop {
        let ticket = recording.ticket();
        if let Some((what, _)) = recording.take_asked() {
            recording.tickets_are_done(ticket);
            return what;
        }
        process::yield_now();
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(serve);
        let ordered = trial.agent.order(trial.thread(), Order::Snapshot);
        assert_eq!(ordered, Ok(()));
        assert_eq!(server.join().unwrap(), request::SNAPSHOT);
    });
    // Nobody would do it.
    recording.set_drain_state(DrainState::Failed);
    let ordered = trial.agent.order(trial.thread(), Order::Flush);
    assert_eq!(ordered, Err(Refusal::Limit));
}
