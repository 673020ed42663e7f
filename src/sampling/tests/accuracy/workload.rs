//! Sequences of allocations, of which everything is known.

/// What a program does.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// `count` blocks in a row.
    Alloc {
        site: usize,
        size: u64,
        count: u64,
        aligned: bool,
    },
    /// A realloc: free, and allocation of `to` bytes.
    Grow { site: usize, to: u64 },
    /// The interval changes.
    Interval(u64),
    /// What follows runs in a new thread.
    Thread,
    /// What follows runs in the process and in a child of it.
    Fork,
}

/// `rounds` times the same events.
pub struct Workload {
    pub name: &'static str,
    pub interval: u64,
    pub sites: usize,
    pub rounds: usize,
    pub round: Vec<Event>,
    /// Bytes that the profiler itself allocates for each sample it takes.
    pub muted_bytes: u64,
}

impl Workload {
    fn new(
        name: &'static str,
        interval: u64,
        sites: usize,
        rounds: usize,
        round: Vec<Event>,
    ) -> Self {
        Self {
            name,
            interval,
            sites,
            rounds,
            round,
            muted_bytes: 0,
        }
    }

    pub fn events(&self) -> impl Iterator<Item = Event> {
        (0..self.rounds).flat_map(|_| self.round.iter().copied())
    }
}

fn alloc(site: usize, size: u64, count: u64) -> Event {
    Event::Alloc {
        site,
        size,
        count,
        aligned: false,
    }
}

/// One site, one size, so many expected samples.
pub fn one_size(size: u64, interval: u64, samples: f64) -> Workload {
    let p = 1.0 - (-(size as f64) / interval as f64).exp();
    let count = (samples / p) as u64;
    Workload::new("one size", interval, 1, 1, vec![alloc(0, size, count)])
}

/// 256 blocks of 1 KiB against one of 256 KiB.
pub fn many_small_against_one_large(interval: u64) -> Workload {
    // About 500 samples a site.
    let rounds = 125 * interval as usize / (64 << 10);
    Workload::new(
        "256 x 1K against 1 x 256K",
        interval,
        2,
        rounds.max(520),
        vec![alloc(0, 1 << 10, 256), alloc(1, 256 << 10, 1)],
    )
}

/// Six sites of 8 MiB a round, in blocks of 16 bytes to 8 MiB.
pub fn equal_bytes() -> Workload {
    const TOTAL: u64 = 8 << 20;
    let sizes = [16, 1 << 10, 64 << 10, 512 << 10, 1 << 20, TOTAL];
    let round = sizes
        .iter()
        .enumerate()
        .map(|(site, &size)| alloc(site, size, TOTAL / size))
        .collect();
    Workload::new("equal bytes", 512 << 10, 6, 64, round)
}

/// Blocks of 8 to 200 bytes at interval 64, where rounding shows.
pub fn small_interval() -> Workload {
    let round = vec![
        alloc(0, 8, 1),
        alloc(1, 24, 1),
        alloc(2, 64, 1),
        alloc(3, 200, 1),
    ];
    Workload::new("small interval", 64, 4, 8000, round)
}

/// A block of 48 bytes, always at the same place within the interval.
pub fn resonance() -> Workload {
    let round = vec![alloc(0, 48, 1), alloc(1, 4096 - 48, 1)];
    Workload::new("resonance", 4096, 2, 40_000, round)
}

/// 16 and 24 bytes in turn.
pub fn alternating() -> Workload {
    let round = vec![alloc(0, 16, 1), alloc(1, 24, 1)];
    Workload::new("16 and 24 in turn", 512, 2, 15_000, round)
}

/// Each thread allocates a sixteenth of the interval.
pub fn short_threads() -> Workload {
    let round = vec![Event::Thread, alloc(0, 64, 2), alloc(1, 128, 1)];
    Workload::new("short threads", 4096, 2, 20_000, round)
}

/// Samples cost 300 bytes of the profiler's own allocations.
pub fn muted_code() -> Workload {
    Workload {
        muted_bytes: 300,
        ..Workload::new(
            "muted code",
            1024,
            2,
            500,
            vec![alloc(0, 16, 64), alloc(1, 1024, 1)],
        )
    }
}

/// Small and large blocks from the same site.
pub fn mixed_site() -> Workload {
    let round = vec![alloc(0, 16, 100), alloc(0, 16 << 10, 1)];
    Workload::new("mixed sizes at one site", 8192, 1, 800, round)
}

/// A vector that grows by half, and blocks of the same sizes.
pub fn growing() -> Workload {
    let sizes = [64, 96, 144, 216, 324, 486, 729];
    let round = sizes
        .into_iter()
        .flat_map(|to| [Event::Grow { site: 0, to }, alloc(1, to, 1)])
        .collect();
    Workload::new("growing", 4096, 2, 1000, round)
}

/// A process and its child, which does the same.
pub fn fork() -> Workload {
    let mut events = vec![alloc(0, 32, 1), Event::Fork];
    events.extend((0..500).flat_map(|_| [alloc(0, 32, 40), alloc(1, 1000, 3)]));
    Workload::new("fork", 2048, 2, 1, events)
}

/// Every second block is aligned to a page.
pub fn aligned() -> Workload {
    let page = Event::Alloc {
        site: 0,
        size: 4096,
        count: 1,
        aligned: true,
    };
    Workload::new("aligned", 16 << 10, 2, 2500, vec![page, alloc(1, 4096, 1)])
}

/// The interval changes tenfold every now and then.
pub fn interval_changes() -> Workload {
    let round = vec![
        Event::Interval(20_000),
        alloc(0, 100, 1000),
        alloc(1, 30_000, 10),
        Event::Interval(2000),
        alloc(0, 100, 200),
        alloc(1, 30_000, 3),
    ];
    Workload::new("interval changes", 2000, 2, 50, round)
}
