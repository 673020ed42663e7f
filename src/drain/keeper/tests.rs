use super::*;
use crate::trial::{Trial, agent};

#[test]
fn a_burst_is_noticed_within_a_fifth_of_a_second_of_what_is_allowed() {
    assert_eq!(burst_samples(Some(500.0)), 100.0);
    assert_eq!(burst_samples(Some(2000.0)), 400.0);
    assert_eq!(burst_samples(Some(1e6)), 2000.0);
    assert_eq!(burst_samples(None), 2000.0);
}

const MIB: u64 = 1 << 20;
const S: u64 = 1_000_000_000;

/// Simulates a program that allocates 1 GB/s, at 20 bytes per sample. Returns the bytes written after this many
/// seconds, and the times at which the interval changed.
fn fill(size: &mut SizeLimit, seconds: u64) -> (u64, Vec<u64>) {
    let mut interval = Interval::new(4096).unwrap();
    let mut written = 0;
    let mut changes = Vec::new();
    for second in 1..=seconds {
        written += (1 << 30) / interval.bytes() * 20;
        match size.look(interval, 100, written, second * S) {
            Room::Enough => {}
            Room::Adapt(next) => {
                interval = next;
                changes.push(second);
            }
            Room::Full => panic!("full after {second} s"),
        }
    }
    (written, changes)
}

#[test]
fn a_file_of_a_limited_size_has_samples_of_a_whole_week() {
    const WEEK_S: u64 = 604_800;
    let limit = || SizeLimit::new(64 * MIB, Interval::new(4096).unwrap(), 0);
    let (after_a_week, changes) = fill(&mut limit(), WEEK_S);
    let (after_a_day, _) = fill(&mut limit(), WEEK_S / 7);
    assert!(after_a_week < 63 * MIB, "{after_a_week}");
    // Most of the space is used, and some is left for the last six days.
    assert!(after_a_week > 48 * MIB, "{after_a_week}");
    assert!(
        after_a_week - after_a_day > MIB / 4,
        "{after_a_day} {after_a_week}"
    );
    assert!(changes.len() < 100, "{}", changes.len());
}

#[test]
fn a_burst_is_answered_before_it_fills_the_file_and_forgotten_later() {
    let first = Interval::new(4096).unwrap();
    let mut size = SizeLimit::new(2 * MIB, first, 0);
    assert_eq!(size.look(first, 0, 1000, S / 1000), Room::Enough);
    // 200 KiB within a millisecond.
    let Room::Adapt(next) = size.look(first, 0, 200 << 10, 2 * S / 1000) else {
        panic!("nothing is done");
    };
    assert!(next.bytes() >= 100 * first.bytes(), "{next}");
    // Nothing more for a while.
    let mut interval = next;
    for second in 1..100 {
        if let Room::Adapt(shorter) = size.look(interval, 0, 200 << 10, second * S) {
            assert!(shorter < interval);
            interval = shorter;
        }
    }
    assert_eq!(interval, first);
}

#[test]
fn room_is_kept_for_the_ends_of_what_lives() {
    let first = Interval::DEFAULT;
    let mut size = SizeLimit::new(2 * MIB, first, 0);
    assert_eq!(size.look(first, 1000, MIB / 100, 10 * S), Room::Enough);
    assert_eq!(size.look(first, 130_000, MIB / 50, 20 * S), Room::Full);
    assert_eq!(size.look(first, 0, 2 * MIB, 30 * S), Room::Full);
}

#[test]
fn room_is_kept_for_16_bytes_of_each_live_sample_and_64_kib() {
    let first = Interval::DEFAULT;
    let look = |live, written| SizeLimit::new(2 * MIB, first, 0).look(first, live, written, S);
    let kept = (64 << 10) + 1000 * 16;
    assert_eq!(look(1000, 2 * MIB - kept), Room::Full);
    assert_ne!(look(1000, 2 * MIB - kept - 1), Room::Full);
}

#[test]
fn the_interval_grows_by_what_was_written_too_fast() {
    let first = Interval::new(4096).unwrap();
    // 1 MiB is left after 20 s in which another MiB was written. At that rate four times 20 s take 4 MiB.
    let mut size = SizeLimit::new(2 * MIB + (64 << 10), first, 0);
    let Room::Adapt(next) = size.look(first, 0, MIB, 20 * S) else {
        panic!("nothing is done");
    };
    assert_eq!(next.bytes(), 4 * 4096);
    // As much in 80 s: the rest of 960 KiB would last 320 s, and is to last 400.
    let Room::Adapt(later) = size.look(next, 0, MIB + (240 << 10), 100 * S) else {
        panic!("nothing is done");
    };
    let factor = 240.0 / 80.0 * 4.0 * 100.0 / 784.0;
    assert_eq!(later.bytes(), (16_384.0 * f64::max(factor, 1.5)) as u64);
    // It is not asked again before a 16th of the run, unless a 16th of the rest was written.
    let mut soon = size;
    let written = MIB + (240 << 10) + (49 << 10) - 1;
    assert_eq!(
        size.look(later, 0, MIB + (240 << 10), 106 * S),
        Room::Enough
    );
    assert_ne!(soon.look(later, 0, written, 101 * S), Room::Enough);
}

#[test]
fn a_mean_time_moves_by_a_quarter_of_the_difference_at_most() {
    let mut mean = MeanTime { ns: 200.0 };
    mean.add((0, 0), (0, 0));
    assert_eq!(mean.ns, 200.0);
    mean.add((10, 1000), (12, 1200));
    assert_eq!(mean.ns, 200.0 - 100.0 * 2.0 / 16.0);
    let mut mean = MeanTime { ns: 200.0 };
    mean.add((10, 1000), (110, 11_000));
    assert_eq!(mean.ns, 175.0);
}

#[test]
fn a_keeper_is_needed_for_any_limit() {
    let trial = Trial::begin(agent!(), &[]);
    assert!(!is_needed(trial.agent.config()));
    drop(trial);
    let limits = [
        ("MAX_OVERHEAD", "1%"),
        ("MAX_SAMPLES_PER_SECOND", "10"),
        ("MAX_SIZE", "1M"),
        ("MAX_LIVE", "100"),
    ];
    for limit in limits {
        let trial = Trial::begin(agent!(), &[limit]);
        assert!(is_needed(trial.agent.config()), "{limit:?}");
    }
}

#[test]
fn the_thread_looks_more_often_while_records_come() {
    let trial = Trial::begin(agent!(), &[("MAX_LIVE", "100")]);
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    assert_eq!(keeper.patience_ms(), Some(100));
    keeper.keep(&Drained::default(), 0);
    assert_eq!(keeper.patience_ms(), Some(1000));
    trial.sample(1, 0, &[]);
    keeper.keep(&Drained::default(), 0);
    assert_eq!(keeper.patience_ms(), Some(100));
    drop(trial);
    let trial = Trial::begin(agent!(), &[("MAX_OVERHEAD", "1%")]);
    let keeper = Keeper::new(trial.agent, trial.recording);
    assert_eq!(keeper.patience_ms(), Some(100));
    drop(trial);
    let trial = Trial::begin(agent!(), &[("MAX_SIZE", "1M")]);
    let keeper = Keeper::new(trial.agent, trial.recording);
    assert_eq!(keeper.patience_ms(), None);
}

#[test]
fn with_a_limit_on_the_rate_a_burst_wakes_the_thread() {
    let trial = Trial::begin(agent!(), &[("MAX_SAMPLES_PER_SECOND", "500")]);
    assert!(!trial.recording.is_worth_draining(1600));
    let _keeper = Keeper::new(trial.agent, trial.recording);
    assert!(trial.recording.is_worth_draining(1600));
    assert!(!trial.recording.is_worth_draining(1599));
}

#[test]
fn a_rotated_profile_has_no_limit_for_one_file() {
    let settings = [("MAX_SIZE", "8M"), ("ROTATE_EVERY", "1h")];
    let trial = Trial::begin(agent!(), &settings);
    assert!(Keeper::new(trial.agent, trial.recording).size.is_none());
    drop(trial);
    let trial = Trial::begin(agent!(), &[("MAX_SIZE", "8M")]);
    let size = Keeper::new(trial.agent, trial.recording).size.unwrap();
    assert_eq!(size.most_bytes, 8 * MIB);
    assert_eq!(size.first, Interval::DEFAULT);
    drop(trial);
    let settings = [("MAX_SIZE", "8M"), ("MAX_OVERHEAD", "1%")];
    let trial = Trial::begin(agent!(), &settings);
    let size = Keeper::new(trial.agent, trial.recording).size.unwrap();
    assert_eq!(size.first.bytes(), 4096);
}

fn drained(samples: u64, frees: u64, words: u64) -> Drained {
    Drained {
        words,
        samples,
        frees,
    }
}

#[test]
fn too_many_live_samples_make_the_interval_longer() {
    let trial = Trial::begin(agent!(), &[("MAX_LIVE", "1000")]);
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    let first = trial.agent.interval_in_force().unwrap();
    keeper.keep(&drained(2000, 1600, 1 << 20), 0);
    assert_eq!(trial.agent.interval_in_force(), Some(first));
    keeper.keep(&drained(2000, 1400, 1 << 20), 0);
    let longer = trial.agent.interval_in_force().unwrap();
    assert_eq!(longer.bytes(), 4 * first.bytes());
    keeper.keep(&drained(2000, 1990, 1 << 20), 0);
    assert_eq!(trial.agent.interval_in_force(), Some(first));
}

#[test]
fn what_waits_in_the_ring_counts_as_live_in_the_same_proportion() {
    let trial = Trial::begin(agent!(), &[]);
    let waiting = trial.recording.ring.used_words();
    assert!(waiting > 10);
    assert_eq!(alive(trial.recording, &drained(500, 100, 4 * waiting)), 500);
    // Never more than as many again.
    assert_eq!(alive(trial.recording, &drained(500, 100, 1)), 800);
    assert_eq!(alive(trial.recording, &drained(100, 500, 1)), 0);
}

#[test]
fn a_full_file_stops_sampling_with_a_note() {
    let trial = Trial::begin(agent!(), &[("MAX_SIZE", "1M")]);
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    let head = trial.recording.ring.head();
    keeper.keep(&drained(10, 0, 1 << 20), 10_000);
    assert_eq!(trial.agent.interval_in_force(), Some(Interval::DEFAULT));
    assert_eq!(trial.recording.ring.head(), head);
    keeper.keep(&drained(10, 0, 1 << 20), MIB - (64 << 10));
    assert_eq!(trial.agent.interval_in_force(), None);
    let head_then = trial.recording.ring.head();
    assert!(head_then > head);
    // Once.
    keeper.keep(&drained(10, 0, 1 << 20), MIB);
    stop_for_size(trial.agent, trial.recording);
    assert_eq!(trial.recording.ring.head(), head_then);
}

#[test]
fn what_waits_in_the_ring_takes_room_in_the_file_in_the_same_proportion() {
    let trial = Trial::begin(agent!(), &[("MAX_SIZE", "1M")]);
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    let waiting = trial.recording.ring.used_words();
    let room = MIB - (64 << 10);
    // Twice as many words as wait took half of the room.
    let written = room * 2 / 3 + 10;
    keeper.keep(&drained(0, 0, 2 * waiting), written);
    assert_eq!(trial.agent.interval_in_force(), None);
    drop(trial);
    let trial = Trial::begin(agent!(), &[("MAX_SIZE", "1M")]);
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    let waiting = trial.recording.ring.used_words();
    keeper.keep(&drained(0, 0, 2 * waiting), room * 2 / 3 - 10);
    assert_ne!(trial.agent.interval_in_force(), None);
}

/// A keeper whose last look was at the beginning of time, and what it finds 100 ms later.
fn after_100_ms(trial: &Trial) -> (Keeper, Look) {
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    keeper.last = Look::default();
    let now = Look {
        time_ns: 100_000_000,
        process_ns: 90_000_000,
        drain_ns: 4_000,
        head: 2_000,
        lost: 10,
        timed: [(4, 8_000), (8, 800)],
    };
    (keeper, now)
}

#[test]
fn the_cost_is_that_of_recorded_and_lost_samples_and_their_frees() {
    let trial = Trial::begin(agent!(), &[("MAX_OVERHEAD", "1%")]);
    let (mut keeper, now) = after_100_ms(&trial);
    let window = keeper.window(&now, &drained(10, 5, 200)).unwrap();
    // 20 words a sample: 100 are in the ring, and 10 were lost.
    assert_eq!(window.samples, 110.0);
    assert_eq!(window.elapsed_ns, 100e6);
    let sample_ns = 1000.0 + (2000.0 - 1000.0) * 0.25;
    let free_ns = 150.0 + (100.0 - 150.0) * 0.25;
    assert_eq!((keeper.sample.ns, keeper.free.ns), (sample_ns, free_ns));
    let agent_ns = 110.0 * (1.4 * (sample_ns + 0.5 * free_ns) + 400.0);
    assert_eq!(window.agent_ns, agent_ns);
    assert_eq!(window.program_ns, 90e6 - agent_ns);
}

#[test]
fn before_the_first_sample_was_drained_its_cost_is_a_guess() {
    let trial = Trial::begin(agent!(), &[("MAX_OVERHEAD", "1%")]);
    let (mut keeper, now) = after_100_ms(&trial);
    let now = Look {
        timed: [(0, 0); 2],
        ..now
    };
    let window = keeper.window(&now, &Drained::default()).unwrap();
    assert_eq!(window.samples, 2_000.0 / 40.0 + 10.0);
    assert_eq!(window.agent_ns, 60.0 * (1.4 * 1000.0 + 300.0));
}

#[test]
fn a_look_that_comes_too_soon_is_not_used_unless_it_shows_a_burst() {
    let trial = Trial::begin(agent!(), &[("MAX_OVERHEAD", "1%")]);
    let (mut keeper, now) = after_100_ms(&trial);
    let at = |time_ns, head| Look {
        time_ns,
        head,
        lost: 0,
        process_ns: 1_000_000,
        ..now
    };
    let one_word_each = drained(1000, 0, 1000);
    assert!(
        keeper
            .window(&at(29_999_999, 1_999), &one_word_each)
            .is_none()
    );
    assert!(
        keeper
            .window(&at(30_000_000, 1_999), &one_word_each)
            .is_some()
    );
    let burst = keeper
        .window(&at(20_000_000, 2_000), &one_word_each)
        .unwrap();
    // The kernel has not counted the time of the thread that runs.
    assert_eq!(burst.program_ns + burst.agent_ns, 20e6);
    let slow = keeper.window(&at(30_000_000, 1), &one_word_each).unwrap();
    assert_eq!(slow.program_ns + slow.agent_ns, 1e6);
}

#[test]
fn a_rate_above_the_limit_makes_the_interval_longer() {
    let trial = Trial::begin(agent!(), &[("MAX_SAMPLES_PER_SECOND", "10")]);
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    let first = trial.agent.interval_in_force().unwrap();
    for _ in 0..1000 {
        trial.sample(1, 0, &[]);
    }
    // Too early to say.
    keeper.keep(&drained(10, 0, 10_000), 0);
    assert_eq!(trial.agent.interval_in_force(), Some(first));
    keeper.last = Look {
        time_ns: clock::monotonic_ns().saturating_sub(10_000_000_000),
        ..Look::default()
    };
    keeper.keep(&drained(10, 0, 80), 0);
    let longer = trial.agent.interval_in_force().unwrap();
    assert!(longer > first, "{longer}");
    // The next look is at what came since this one.
    assert!(keeper.last.head >= 8_000);
}

#[test]
fn while_sampling_is_stopped_time_passes_and_nothing_is_changed() {
    let trial = Trial::begin(agent!(), &[("MAX_OVERHEAD", "1%")]);
    let mut keeper = Keeper::new(trial.agent, trial.recording);
    stop_for_size(trial.agent, trial.recording);
    let head = trial.recording.ring.head();
    keeper.last = Look::default();
    keeper.keep(&drained(1000, 0, 1000), 0);
    assert_eq!(trial.agent.interval_in_force(), None);
    assert_eq!(keeper.last.head, head);
    assert!(keeper.last.time_ns > 0);
}

#[test]
fn a_look_sees_the_figures_of_the_ring() {
    let trial = Trial::begin(agent!(), &[]);
    let ring = &trial.recording.ring;
    ring.set_figure(Figure::TimedSamples as usize, 3);
    ring.set_figure(Figure::TimedSamplesNs as usize, 300);
    ring.set_figure(Figure::TimedFrees as usize, 4);
    ring.set_figure(Figure::TimedFreesNs as usize, 40);
    ring.count_lost(LostReason::RingFull as usize, 5, 500);
    let look = Keeper::new(trial.agent, trial.recording).last;
    assert_eq!(look.timed, [(3, 300), (4, 40)]);
    assert_eq!((look.head, look.lost), (ring.head(), 5));
    assert!(look.process_ns >= look.drain_ns);
}
