//! `allocsample top`: a live table of the functions that hold memory.
//!
//! A thread of ours reads the growing profile and its ring again and again; the program is not involved. Reading
//! takes at most a fifth of the time, so a large profile is read less often. The list of the process's mappings is read each time.

mod resident;
mod screen;

use std::collections::HashMap;
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use allocsample_profile::Profile;
use allocsample_report::{By, Coverage, Filter, Ledger, Sort, Table, Totals, runtimes};
use allocsample_residency::Source;
use anyhow::Context;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use ratatui::prelude::CrosstermBackend;
use ratatui::{Terminal, TerminalOptions, Viewport};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::Top;
use crate::exit::{Ending, Usage};
use crate::growing::{self, GrowingProfile};
use crate::{running, terminal};
use resident::Resident;
use screen::{Action, Entry, Reading, Screen};

const SHORTEST_PAUSE: Duration = Duration::from_millis(1000);
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Shows the table until `q` is typed.
pub fn run(arguments: &Top) -> anyhow::Result<Ending> {
    let path = running::profile_of(&arguments.what)?;
    // A mistake is reported here, in one line, rather than on a screen.
    let mut source = Watched::new(path, &arguments.what);
    let first = source.read()?;
    if !stdout().is_terminal() {
        let what = "top needs a terminal; use `allocsample report`";
        return Err(Usage(what.into()).into());
    }
    let mut screen = Screen::default();
    screen.show(first);
    let (readings, stop) = start(source);
    let signal = told_to_end()?;
    let mut display = ratatui::try_init().context("the terminal")?;
    if terminal::width().is_none() {
        display = of_usual_size().context("the terminal")?;
    }
    let result = interact(&mut display, &mut screen, &readings, &signal);
    ratatui::restore();
    drop(stop);
    result?;
    Ok(match signal.load(Ordering::Relaxed) {
        0 => Ending::SUCCESS,
        signal => Ending::Signal(signal as i32),
    })
}

/// The signal that ends the command, once one has come: the terminal is put back before it does.
fn told_to_end() -> anyhow::Result<Arc<AtomicUsize>> {
    let told = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(signal, Arc::clone(&told), signal as usize)?;
    }
    Ok(told)
}

/// For a terminal that does not say how large it is, such as a serial line, or one that a script made.
fn of_usual_size() -> std::io::Result<ratatui::DefaultTerminal> {
    let viewport = Viewport::Fixed(Rect::new(0, 0, 80, 24));
    Terminal::with_options(
        CrosstermBackend::new(stdout()),
        TerminalOptions { viewport },
    )
}

fn interact(
    display: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    readings: &Receiver<anyhow::Result<Reading>>,
    signal: &AtomicUsize,
) -> anyhow::Result<()> {
    let mut had_size = terminal::width().is_some();
    while signal.load(Ordering::Relaxed) == 0 {
        while let Ok(reading) = readings.try_recv() {
            match reading {
                Ok(reading) => screen.show(reading),
                // The last reading stays on the screen.
                Err(error) => screen.end(&format!("{error:#}")),
            }
        }
        // Whoever made the terminal may tell its size later, as container tools do.
        let has_size = ratatui::crossterm::terminal::size().is_ok_and(|(width, _)| width > 0);
        if has_size && !std::mem::replace(&mut had_size, true) {
            *display = Terminal::new(CrosstermBackend::new(stdout()))?;
        }
        display.draw(|frame| screen.draw(frame))?;
        if !event::poll(KEY_WAIT)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && screen.press(key) == Action::Quit
        {
            return Ok(());
        }
    }
    Ok(())
}

/// A profile, with the memory of its process.
struct Watched {
    profile: GrowingProfile,
    memory: Option<Source>,
}

impl Watched {
    fn new(path: PathBuf, what: &str) -> Self {
        let pid = what.parse().ok().or_else(|| running::process_of(&path));
        let page_bytes = rustix::param::page_size() as u64;
        Self {
            profile: GrowingProfile::new(path),
            memory: pid.map(|pid| Source::of(pid, page_bytes)),
        }
    }

    fn read(&mut self) -> anyhow::Result<Reading> {
        // Before the profile, which then knows all that happened until the reading.
        let map = (self.memory.as_ref()).and_then(|memory| memory.map(running::now_ns()));
        let mut profile = self.profile.read()?;
        if growing::is_running(&profile) {
            profile.memory.extend(map);
        }
        Ok(reading(self.profile.path(), &profile))
    }
}

fn reading(path: &Path, profile: &Profile) -> Reading {
    let totals = Totals::of(profile);
    let table = Table::group(profile, By::Function, Sort::Live, &Filter::all());
    let sites = Table::group(profile, By::Site, Sort::Live, &Filter::all());
    let entry = |row: allocsample_report::Row| Entry {
        detail: if row.stack.is_empty() {
            row.module.clone()
        } else {
            row.stack.join(" ← ")
        },
        name: row.name,
        live: row.self_live,
        allocated: row.self_allocated,
        allocations: row.allocations,
    };
    let is_own = |entry: &Entry| entry.allocated.samples() > 0;
    let resident = Ledger::last_reading(profile).map(|map| {
        let after_ns = (map.totals.time_ns).saturating_sub(profile.process.start_ns);
        let ledger = Ledger::without_sites(profile, map);
        Resident::of(&ledger, after_ns as f64 / 1e9)
    });
    Reading {
        title: format!("{} (pid {})", path.display(), profile.process.pid),
        is_running: growing::is_running(profile),
        after_s: Totals::duration_s(profile),
        live: totals.live,
        allocated: totals.allocated,
        peak_bytes: totals.peak.bytes.value(),
        samples: profile.samples.len(),
        lost: profile.lost.samples().0,
        coverage: Coverage::of(profile).map(|coverage| coverage.share()),
        resident,
        unseen: runtimes::lines(profile),
        functions: table.rows.into_iter().map(entry).filter(is_own).collect(),
        sites: sites.rows.into_iter().map(entry).filter(is_own).collect(),
        before: HashMap::new(),
    }
}

/// Reads until the other end of the second channel is dropped.
fn start(mut source: Watched) -> (Receiver<anyhow::Result<Reading>>, Sender<()>) {
    let (send, readings) = channel();
    let (stop, stopped) = channel::<()>();
    std::thread::spawn(move || {
        let mut pause = SHORTEST_PAUSE;
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let begin = Instant::now();
            let reading = source.read();
            let is_last = reading.as_ref().is_ok_and(|reading| !reading.is_running);
            let is_over = is_last || reading.is_err();
            pause = SHORTEST_PAUSE.max(begin.elapsed() * 4);
            if send.send(reading).is_err() || is_over {
                return;
            }
        }
    });
    (readings, stop)
}
