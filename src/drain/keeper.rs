//! Keeps the agent within its budgets: measures the cost of sampling and changes the interval.

use allocsample_agent::Agent;
use allocsample_agent::config::Config;
use allocsample_agent::os::clock;
use allocsample_agent::recording::Recording;
use allocsample_record::{Figure, LostReason, Note};
use allocsample_sampling::{Controller, Interval, LiveLimit, Window};

/// Totals that have passed through the drain thread so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drained {
    /// Words of the ring.
    pub words: u64,
    /// Samples among them.
    pub samples: u64,
    /// Ends of samples.
    pub frees: u64,
}

/// The totals at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    time_ns: u64,
    process_ns: u64,
    drain_ns: u64,
    head: u64,
    lost: u64,
    timed: [(u64, u64); 2],
}

/// The mean time of one kind of slow path. Recent measurements count most.
#[derive(Clone, Copy, Debug)]
struct MeanTime {
    ns: f64,
}

impl MeanTime {
    fn add(&mut self, before: (u64, u64), now: (u64, u64)) {
        let number = now.0.saturating_sub(before.0);
        if number > 0 {
            let mean = now.1.saturating_sub(before.1) as f64 / number as f64;
            // A few measurements are not enough for a mean.
            let share = (number as f64 / 16.0).min(0.25);
            self.ns += (mean - self.ns) * share;
        }
    }
}

/// The budgets, and what is known of the cost; see the module.
pub struct Keeper {
    agent: &'static Agent,
    recording: &'static Recording,
    controller: Option<Controller>,
    size: Option<SizeLimit>,
    live: Option<LiveLimit>,
    last: Look,
    /// Head of the ring at the last wake-up, and whether it had stood still since the wake-up before.
    head: u64,
    is_quiet: bool,
    sample: MeanTime,
    free: MeanTime,
    /// Maximum number of samples per second.
    rate: Option<f64>,
}

/// Ring words of a sample whose stack equals that of the sample before.
const LEAST_WORDS: f64 = 16.0;

/// After this many samples the keeper does not wait for the kernel's next tick. With a limit on the rate, it is the
/// number that the limit allows in a fifth of a second: the interval is shortest at the start, and a burst takes
/// 100,000 samples per second.
fn burst_samples(rate: Option<f64>) -> f64 {
    const MOST: f64 = 2000.0;
    /// Minimum number of samples for the controller to choose an interval.
    const LEAST: f64 = 100.0;
    rate.map_or(MOST, |rate| (rate / 5.0).clamp(LEAST, MOST))
}

impl Keeper {
    /// A keeper of the budgets in the settings.
    pub fn new(agent: &'static Agent, recording: &'static Recording) -> Self {
        let config = agent.config();
        let budget = config.budget();
        let mut keeper = Self {
            agent,
            recording,
            controller: config.is_watched().then(|| Controller::new(budget)),
            size: None,
            live: None,
            last: Look::default(),
            head: recording.ring.head(),
            is_quiet: false,
            // Used until these times have been measured.
            sample: MeanTime { ns: 1000.0 },
            free: MeanTime { ns: 150.0 },
            rate: budget.samples_per_second,
        };
        keeper.last = keeper.look();
        if let Some(rate) = budget.samples_per_second {
            recording.drain_from((burst_samples(Some(rate)) * LEAST_WORDS) as u64);
        }
        // A rotating recording needs no limit on one file, because the oldest file is deleted.
        let most_bytes = config.max_size_bytes.filter(|_| !config.is_rotated());
        let first = if config.is_watched() {
            config.shortest_interval()
        } else {
            agent.interval_in_force().unwrap_or(Interval::DEFAULT)
        };
        keeper.size = most_bytes.map(|most| SizeLimit::new(most, first, keeper.last.time_ns));
        keeper.live = config.max_live.map(|most| LiveLimit::new(most, first));
        keeper
    }

    /// Maximum time that the drain thread may sleep.
    pub fn patience_ms(&self) -> Option<u32> {
        /// A load that does not fill a quarter of the ring in this time is not a burst.
        const WATCHFUL_MS: u32 = 100;
        const IDLE_MS: u32 = 1000;
        let is_watchful = self.controller.is_some() || self.live.is_some();
        is_watchful.then_some(if self.is_quiet { IDLE_MS } else { WATCHFUL_MS })
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

    /// Measures the cost since the last call, and changes the interval if necessary.
    pub fn keep(&mut self, drained: &Drained, written_bytes: u64) {
        let Some(interval) = self.agent.interval_in_force() else {
            self.last = self.look();
            return;
        };
        let head = self.recording.ring.head();
        self.is_quiet = head == std::mem::replace(&mut self.head, head);
        if let Some(live) = &mut self.live
            && let Some(next) = live.look(alive(self.recording, drained))
        {
            if let Some(controller) = &mut self.controller {
                controller.set_shortest(next);
            }
            if let Some(size) = &mut self.size {
                size.first = next;
            }
            self.change(interval, Some(next));
            return;
        }
        if let Some(size) = &mut self.size {
            // Records in the ring are assumed to take as much space in the file as those before them.
            let waiting = self.recording.ring.used_words() as f64;
            let per_word = written_bytes as f64 / drained.words.max(1) as f64;
            let written_bytes = written_bytes.saturating_add((waiting * per_word) as u64);
            let live = drained.samples.saturating_sub(drained.frees);
            match size.look(interval, live, written_bytes, clock::monotonic_ns()) {
                Room::Enough => {}
                Room::Adapt(next) => {
                    if let Some(controller) = &mut self.controller {
                        controller.set_shortest(next);
                    }
                    self.change(interval, Some(next));
                    return;
                }
                Room::Full => return stop_for_size(self.agent, self.recording),
            }
        }
        if self.controller.is_none() {
            return;
        }
        let now = self.look();
        let Some(window) = self.window(&now, drained) else {
            return;
        };
        self.last = now;
        let controller = self.controller.as_mut();
        if let Some(next) = controller.and_then(|it| it.observe(interval, &window)) {
            self.change(interval, Some(next));
        }
    }

    fn change(&self, from: Interval, to: Option<Interval>) {
        // If a request has changed the interval meanwhile, the requested one stays until the next look.
        self.agent.change_interval(self.recording, from, to);
    }

    /// Returns the measurements since the last look; `None` if there are too few.
    fn window(&mut self, now: &Look, drained: &Drained) -> Option<Window> {
        /// The kernel adds a running thread's time to its process at its ticks, up to 10 ms apart.
        const TICKS_NS: f64 = 30e6;
        /// The program pays for more than the time measured here: for entering and leaving the slow path, and for the
        /// cache lines that a sample evicts. The factor was measured from outside (`scripts/bench-budget`).
        const UNTIMED: f64 = 1.4;
        let last = self.last;
        // Records in the ring are not decoded yet; they are assumed to be like those before them.
        const FIRST_GUESS_WORDS: f64 = 40.0;
        let words_of_one = match drained.samples {
            0 => FIRST_GUESS_WORDS,
            samples => drained.words as f64 / samples as f64,
        };
        let frees_of_one = drained.frees as f64 / drained.samples.max(1) as f64;
        let recorded = now.head.saturating_sub(last.head) as f64 / words_of_one;
        let samples = recorded + now.lost.saturating_sub(last.lost) as f64;
        let elapsed_ns = now.time_ns.saturating_sub(last.time_ns) as f64;
        if elapsed_ns < TICKS_NS && samples < burst_samples(self.rate) {
            return None;
        }
        for (number, mean) in [&mut self.sample, &mut self.free].into_iter().enumerate() {
            mean.add(last.timed[number], now.timed[number]);
        }
        // Not the time since the last look, which was spent on earlier samples.
        const FIRST_GUESS_NS: f64 = 300.0;
        let drain_ns = match drained.samples {
            0 => FIRST_GUESS_NS,
            drained => now.drain_ns as f64 / drained as f64,
        };
        let program_side_ns = self.sample.ns + frees_of_one * self.free.ns;
        let agent_ns = samples * (UNTIMED * program_side_ns + drain_ns);
        let mut process_ns = now.process_ns.saturating_sub(last.process_ns) as f64;
        if elapsed_ns < TICKS_NS {
            // A burst comes from a thread that runs.
            process_ns = process_ns.max(elapsed_ns);
        }
        Some(Window {
            elapsed_ns,
            program_ns: (process_ns - agent_ns).max(0.0),
            agent_ns,
            samples,
        })
    }
}

/// Estimated number of live samples. Records in the ring are assumed to be like those drained so far.
fn alive(recording: &Recording, drained: &Drained) -> u64 {
    let alive = drained.samples.saturating_sub(drained.frees);
    let waiting = recording.ring.used_words() as f64 / drained.words.max(1) as f64;
    alive + (alive as f64 * waiting.min(1.0)) as u64
}

/// Stops sampling: the file has no room for more samples.
pub fn stop_for_size(agent: &Agent, recording: &Recording) {
    if let Some(interval) = agent.interval_in_force()
        && agent.change_interval(recording, interval, None)
    {
        recording.note(Note::SwitchedOff, b"the profile has its largest size");
    }
}

/// Whether the settings have a budget that must be watched.
pub fn is_needed(config: &Config) -> bool {
    config.is_watched() || config.max_size_bytes.is_some() || config.max_live.is_some()
}

/// What to do about the profile's size.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Room {
    Enough,
    /// Use this interval: the profile grows at the allowed rate.
    Adapt(Interval),
    /// Stop sampling: there is only room for the ends of live samples.
    Full,
}

/// Spreads the space that is left over a run of unknown length: at the present rate, the rest must last four times as
/// long as the run so far. Every doubling of the run thus takes about a sixth of the rest. Of 64 MiB, a program that
/// would use it all has 4 MiB left after a week.
#[derive(Clone, Copy, Debug)]
struct SizeLimit {
    most_bytes: u64,
    start_ns: u64,
    /// The interval before the first change.
    first: Interval,
    /// Time and size at the last change, or when too little had been written since to measure a rate.
    last: (u64, u64),
}

impl SizeLimit {
    fn new(most_bytes: u64, first: Interval, time_ns: u64) -> Self {
        Self {
            most_bytes,
            start_ns: time_ns,
            first,
            last: (time_ns, 0),
        }
    }

    /// `written_bytes` includes what waits in the ring.
    fn look(
        &mut self,
        interval: Interval,
        live_samples: u64,
        written_bytes: u64,
        time_ns: u64,
    ) -> Room {
        /// Room for modules, threads, later names, and the end of the profile.
        const RESERVE_BYTES: u64 = 64 << 10;
        /// Bytes of the end of a sample, with its share of a chunk.
        const FREE_BYTES: u64 = 16;
        const SHORTEST_RUN_S: f64 = 10.0;
        const LASTS: f64 = 4.0;
        let kept = RESERVE_BYTES + live_samples * FREE_BYTES;
        let left = (self.most_bytes.saturating_sub(kept)).saturating_sub(written_bytes);
        if left == 0 {
            return Room::Full;
        }
        let (last_ns, last_bytes) = self.last;
        let seconds = (time_ns.saturating_sub(last_ns) as f64 / 1e9).max(1e-4);
        let written = written_bytes.saturating_sub(last_bytes);
        let run_s = (time_ns.saturating_sub(self.start_ns) as f64 / 1e9).max(SHORTEST_RUN_S);
        // A rate is known after some time, or after so many bytes that there is no time to wait.
        if seconds < run_s / 16.0 && written < left / 16 {
            return Room::Enough;
        }
        self.last = (time_ns, written_bytes);
        let factor = written as f64 / seconds * LASTS * run_s / left as f64;
        // The interval shrinks only if it was much too long.
        let factor = match factor {
            ..0.25 => 0.5,
            ..1.0 => return Room::Enough,
            _ => factor.clamp(1.5, 1024.0),
        };
        let bytes = (interval.bytes() as f64 * factor).min((1_u64 << 40) as f64);
        // At most 2^40, so exact.
        let next = Interval::new(bytes as u64).map_or(interval, |next| next.max(self.first));
        match next == interval {
            true => Room::Enough,
            false => Room::Adapt(next),
        }
    }
}

#[cfg(test)]
mod tests;
