//! Keeps the agent within its budgets: looks at what sampling costs, and asks for another interval.

use allocsample_agent::Agent;
use allocsample_agent::config::Config;
use allocsample_agent::os::clock;
use allocsample_agent::recording::Recording;
use allocsample_record::{Figure, LostReason, Note};
use allocsample_sampling::{Budget, Controller, Interval, Window};

/// What has gone through the drain thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drained {
    /// Words of the ring.
    pub words: u64,
    /// Samples among them.
    pub samples: u64,
    /// Ends of samples.
    pub frees: u64,
}

/// Counters that only grow, at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    time_ns: u64,
    process_ns: u64,
    drain_ns: u64,
    head: u64,
    lost: u64,
    timed: [(u64, u64); 2],
}

/// The mean time of one kind of slow path, which follows what the program does now.
#[derive(Clone, Copy, Debug)]
struct MeanTime {
    ns: f64,
}

impl MeanTime {
    fn add(&mut self, before: (u64, u64), now: (u64, u64)) {
        let number = now.0.saturating_sub(before.0);
        if number > 0 {
            let mean = now.1.saturating_sub(before.1) as f64 / number as f64;
            // A few measurements say little.
            let share = (number as f64 / 16.0).min(0.25);
            self.ns += (mean - self.ns) * share;
        }
    }
}

/// See the module.
pub struct Keeper {
    agent: &'static Agent,
    recording: &'static Recording,
    controller: Option<Controller>,
    size: Option<SizeLimit>,
    last: Look,
    sample: MeanTime,
    free: MeanTime,
}

impl Keeper {
    /// With what the settings allow.
    pub fn new(agent: &'static Agent, recording: &'static Recording) -> Self {
        let config = agent.config();
        let budget = Budget {
            overhead: config.max_overhead_ppm.map(|ppm| f64::from(ppm) / 1e6),
            samples_per_second: config.max_samples_per_second.map(|most| most as f64),
            shortest: config.shortest_interval(),
        };
        let mut keeper = Self {
            agent,
            recording,
            controller: config.is_watched().then(|| Controller::new(budget)),
            size: config.max_size_bytes.map(SizeLimit::new),
            last: Look::default(),
            // Until they are measured.
            sample: MeanTime { ns: 1000.0 },
            free: MeanTime { ns: 150.0 },
        };
        keeper.last = keeper.look();
        keeper
    }

    /// How long the drain thread may sleep.
    pub fn patience_ms(&self) -> Option<u32> {
        /// A burst that does not fill a quarter of the ring in this time is none.
        const WATCHFUL_MS: u32 = 100;
        const IDLE_MS: u32 = 1000;
        let is_quiet = self.recording.ring.head() == self.last.head;
        self.controller
            .as_ref()
            .map(|_| if is_quiet { IDLE_MS } else { WATCHFUL_MS })
    }

    fn look(&self) -> Look {
        let ring = &self.recording.ring;
        let figures = ring.figures();
        let figure = |figure: Figure| figures.get(figure as usize).copied().unwrap_or(0);
        let lost = ring.lost().get(LostReason::RingFull as usize).copied();
        Look {
            time_ns: clock::monotonic_ns(),
            process_ns: clock::process_ns(),
            drain_ns: clock::thread_ns(),
            head: ring.head(),
            lost: lost.map_or(0, |(events, _)| events),
            timed: [
                (figure(Figure::TimedSamples), figure(Figure::TimedSamplesNs)),
                (figure(Figure::TimedFrees), figure(Figure::TimedFreesNs)),
            ],
        }
    }

    /// Looks at what happened since the last time, and changes the interval if that is called for.
    pub fn keep(&mut self, drained: &Drained, written_bytes: u64) {
        let Some(interval) = self.agent.interval_in_force() else {
            self.last = self.look();
            return;
        };
        if let Some(size) = &mut self.size {
            match size.look(interval, drained, written_bytes) {
                Room::Enough => {}
                Room::Less { next, shortest } => {
                    if let Some(controller) = &mut self.controller {
                        let floor = shortest.max(self.agent.config().shortest_interval());
                        controller.set_shortest(floor);
                    }
                    self.change(interval, Some(next));
                    return;
                }
                Room::Nearly => {
                    self.recording
                        .note(Note::SwitchedOff, b"the profile has its largest size");
                    self.change(interval, None);
                    return;
                }
            }
        }
        if self.controller.is_none() {
            return;
        }
        let now = self.look();
        let window = self.window(&now, drained);
        self.last = now;
        let controller = self.controller.as_mut();
        if let Some(next) = controller.and_then(|it| it.observe(interval, &window)) {
            self.change(interval, Some(next));
        }
    }

    fn change(&self, from: Interval, to: Option<Interval>) {
        // If somebody else has changed it meanwhile, that holds until the next look.
        self.agent.change_interval(self.recording, from, to);
    }

    fn window(&mut self, now: &Look, drained: &Drained) -> Window {
        let last = self.last;
        for (number, mean) in [&mut self.sample, &mut self.free].into_iter().enumerate() {
            mean.add(last.timed[number], now.timed[number]);
        }
        // What is in the ring is not decoded yet; it is like what was.
        const FIRST_GUESS_WORDS: f64 = 40.0;
        let words_of_one = match drained.samples {
            0 => FIRST_GUESS_WORDS,
            samples => drained.words as f64 / samples as f64,
        };
        let frees_of_one = drained.frees as f64 / drained.samples.max(1) as f64;
        let recorded = now.head.saturating_sub(last.head) as f64 / words_of_one;
        let samples = recorded + now.lost.saturating_sub(last.lost) as f64;
        let agent_ns = samples * (self.sample.ns + frees_of_one * self.free.ns)
            + now.drain_ns.saturating_sub(last.drain_ns) as f64;
        let process_ns = now.process_ns.saturating_sub(last.process_ns) as f64;
        Window {
            elapsed_ns: now.time_ns.saturating_sub(last.time_ns) as f64,
            program_ns: (process_ns - agent_ns).max(0.0),
            agent_ns,
            samples,
        }
    }
}

/// Whether a budget of the settings needs somebody who looks.
pub fn is_needed(config: &Config) -> bool {
    config.is_watched() || config.max_size_bytes.is_some()
}

/// What is left of the profile's size.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Room {
    Enough,
    /// It was halved: from now on half as many samples, so that it is never used up.
    Less {
        next: Interval,
        shortest: Interval,
    },
    /// Only for the ends of samples that live.
    Nearly,
}

/// Doubles the interval each time that the room left in the file has halved.
#[derive(Clone, Copy, Debug)]
struct SizeLimit {
    most_bytes: u64,
    halvings: u32,
}

impl SizeLimit {
    fn new(most_bytes: u64) -> Self {
        Self {
            most_bytes,
            halvings: 0,
        }
    }

    fn look(&mut self, interval: Interval, drained: &Drained, written_bytes: u64) -> Room {
        /// For modules, threads, names of what comes later, and the end.
        const RESERVE_BYTES: u64 = 64 << 10;
        /// An end of a sample, with its share of a chunk.
        const FREE_BYTES: u64 = 16;
        let left = self.most_bytes.saturating_sub(written_bytes);
        let live = drained.samples.saturating_sub(drained.frees);
        if left < RESERVE_BYTES.saturating_add(live.saturating_mul(FREE_BYTES)) {
            return Room::Nearly;
        }
        let halvings = (self.most_bytes / left).ilog2();
        let more = halvings.saturating_sub(self.halvings);
        if more == 0 {
            return Room::Enough;
        }
        self.halvings = halvings;
        let longer = |bytes: u64| bytes.saturating_mul(1 << more.min(40)).min(1 << 40);
        let next = Interval::new(longer(interval.bytes())).unwrap_or(interval);
        Room::Less {
            next,
            shortest: next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_file_that_fills_gets_ever_fewer_samples_and_never_full() {
        let mut size = SizeLimit::new(10 * MIB);
        let mut interval = Interval::new(4096).unwrap();
        let mut written = 0;
        let mut changes = 0;
        let drained = Drained::default();
        // A gigabyte a second for a week, 20 bytes a sample.
        for _second in 0..604_800 {
            written += (1 << 30) / interval.bytes() * 20;
            match size.look(interval, &drained, written) {
                Room::Enough => {}
                Room::Less { next, .. } => {
                    interval = next;
                    changes += 1;
                }
                Room::Nearly => break,
            }
        }
        assert!(written < 10 * MIB, "{written}");
        assert!((3..20).contains(&changes), "{changes}");
    }

    #[test]
    fn room_is_kept_for_the_ends_of_what_lives() {
        let mut size = SizeLimit::new(2 * MIB);
        let interval = Interval::DEFAULT;
        let drained = |samples, frees| Drained {
            words: 0,
            samples,
            frees,
        };
        assert_eq!(size.look(interval, &drained(10, 0), 0), Room::Enough);
        assert_eq!(
            size.look(interval, &drained(100_000, 99_000), MIB / 2),
            Room::Enough
        );
        let room = size.look(interval, &drained(130_000, 0), MIB / 2);
        assert_eq!(room, Room::Nearly);
        let room = size.look(interval, &drained(0, 0), MIB);
        let next = Interval::new(2 * interval.bytes()).unwrap();
        assert_eq!(
            room,
            Room::Less {
                next,
                shortest: next
            }
        );
    }
}
