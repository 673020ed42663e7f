//! The screen of `top` and its keys. It uses no terminal, no file and no clock.

use std::collections::HashMap;

use allocsample_report::units::bytes;
use allocsample_report::{Estimate, Width};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::resident::{History, Resident};

/// One row.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The function that is charged.
    pub name: String,
    /// Its module, or the stack of a site.
    pub detail: String,
    pub live: Estimate,
    pub allocated: Estimate,
    pub allocations: Estimate,
}

/// A profile at a moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub title: String,
    pub is_running: bool,
    /// Since the start of the profile.
    pub after_s: f64,
    pub live: Estimate,
    pub allocated: Estimate,
    pub peak_bytes: f64,
    pub samples: usize,
    pub lost: u64,
    /// The share of the process's anonymous memory that the sampled heaps account for.
    pub coverage: Option<f64>,
    /// Where the resident memory is, if the mappings were read.
    pub resident: Option<Resident>,
    /// A line for each runtime in the process whose memory is not sampled.
    pub unseen: Vec<String>,
    pub functions: Vec<Entry>,
    pub sites: Vec<Entry>,
    /// Live bytes of the rows in the previous reading, by detail and name.
    pub before: HashMap<(String, String), f64>,
}

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Continue,
    Quit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Live,
    Growth,
    Allocated,
    Count,
}

/// The screen.
#[derive(Debug, Default)]
pub struct Screen {
    reading: Reading,
    resident: History,
    /// A reading that came while paused.
    waiting: Option<Reading>,
    /// Seconds between the last two readings.
    between_s: f64,
    order: Order,
    by_site: bool,
    is_paused: bool,
    /// Why there will be no further reading.
    gone: Option<String>,
    filter: String,
    is_typing: bool,
    first_row: usize,
}

impl Screen {
    /// Takes a new reading; a pause keeps the old one on the screen.
    pub fn show(&mut self, mut reading: Reading) {
        if self.is_paused {
            self.waiting = Some(reading);
            return;
        }
        let old = &self.reading;
        let entries = old.functions.iter().chain(&old.sites);
        reading.before = entries
            .map(|entry| {
                (
                    (entry.detail.clone(), entry.name.clone()),
                    entry.live.value(),
                )
            })
            .collect();
        self.between_s = reading.after_s - old.after_s;
        if let Some(resident) = reading.resident.take() {
            self.resident.add(resident);
        }
        self.reading = reading;
    }

    /// Says that there will be no further reading.
    pub fn end(&mut self, why: &str) {
        self.gone = Some(printable(why));
    }

    /// Carries out the action of a key.
    pub fn press(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                KeyCode::Backspace => {
                    self.filter.pop();
                }
                KeyCode::Char(typed) => self.filter.push(typed),
                _ => {}
            }
            self.first_row = 0;
            return Action::Continue;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('l') => self.order = Order::Live,
            KeyCode::Char('g') => self.order = Order::Growth,
            KeyCode::Char('a') => self.order = Order::Allocated,
            KeyCode::Char('c') => self.order = Order::Count,
            KeyCode::Char('s') => self.by_site = !self.by_site,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('p' | ' ') => self.pause(),
            KeyCode::Down => self.first_row += 1,
            KeyCode::Up => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::PageDown => self.first_row += 20,
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(20),
            KeyCode::Home => self.first_row = 0,
            _ => {}
        }
        Action::Continue
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let Some(waiting) = self.waiting.take() {
            self.show(waiting);
        }
    }

    /// Growth of a row's live bytes since the previous reading, per second; `None` in the first reading.
    fn growth(&self, entry: &Entry) -> Option<f64> {
        if self.reading.before.is_empty() || self.between_s <= 0.0 {
            return None;
        }
        let key = (entry.detail.clone(), entry.name.clone());
        let before = self.reading.before.get(&key).copied().unwrap_or(0.0);
        Some((entry.live.value() - before) / self.between_s)
    }

    fn rows(&self) -> Vec<(&Entry, Option<f64>)> {
        let all = if self.by_site {
            &self.reading.sites
        } else {
            &self.reading.functions
        };
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let mut rows: Vec<_> = all
            .iter()
            .filter(|entry| has(&entry.name) || has(&entry.detail))
            .map(|entry| (entry, self.growth(entry)))
            .collect();
        let size = |row: &(&Entry, Option<f64>)| match self.order {
            Order::Live => row.0.live.value(),
            Order::Growth => row.1.unwrap_or(0.0),
            Order::Allocated => row.0.allocated.value(),
            Order::Count => row.0.allocations.value(),
        };
        rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
        rows
    }

    /// Draws everything.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let mut headline = self.headline();
        let unseen = self.unseen(frame.area().width);
        // Leaves room for the table.
        let room = usize::from(frame.area().height / 2).saturating_sub(headline.len());
        headline.extend(unseen.into_iter().take(room));
        let [head, body, foot] = Layout::vertical([
            Constraint::Length(u16::try_from(headline.len()).unwrap_or(u16::MAX)),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(headline), head);
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let first_row = self.first_row.min(last);
        let cells = rows.iter().skip(first_row).map(|row| self.cells(row));
        let mark = |order: Order, title: &str| {
            if self.order == order {
                format!("{title}▾")
            } else {
                title.to_owned()
            }
        };
        let titles = [
            mark(Order::Live, "live"),
            "±".to_owned(),
            mark(Order::Growth, "growth/s"),
            mark(Order::Allocated, "allocated"),
            mark(Order::Count, "count"),
            if self.by_site { "site" } else { "function" }.to_owned(),
        ];
        let widths = [
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(13),
            Constraint::Length(11),
            Constraint::Length(11),
            Constraint::Min(20),
        ];
        let table = Table::new(cells, widths)
            .header(Row::new(titles).style(Style::new().add_modifier(Modifier::REVERSED)));
        frame.render_widget(table, body);
        frame.render_widget(Paragraph::new(self.keys()), foot);
        self.first_row = first_row;
    }

    fn headline(&self) -> Vec<Line<'static>> {
        let reading = &self.reading;
        let state = match (self.is_paused, reading.is_running && self.gone.is_none()) {
            (true, _) => "paused",
            (false, true) => "running",
            (false, false) => "ended",
        };
        let (live, stderr) = (reading.live.value(), reading.live.stderr());
        let error = stderr.map_or_else(String::new, |stderr| format!(" ± {}", bytes(stderr)));
        let resident = self.resident.lines();
        let coverage = reading.coverage.filter(|_| resident.is_none());
        let coverage = coverage.map_or_else(String::new, |share| {
            format!("   coverage {:.0} % of its memory", 100.0 * share)
        });
        let title = printable(&reading.title);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut lines = vec![
            // Figures that change come first: a path may be longer than a line.
            Line::from(vec![
                Span::raw(format!("{state}, {:.1} s  ", reading.after_s)),
                Span::styled(title, bold),
            ]),
            Line::from(format!(
                "live {}{error}   peak {}   allocated {}",
                bytes(live),
                bytes(reading.peak_bytes),
                bytes(reading.allocated.value()),
            )),
            Line::from(match &self.gone {
                Some(why) => why.clone(),
                None => format!(
                    "samples {}   lost {}{coverage}",
                    reading.samples, reading.lost
                ),
            }),
        ];
        let resident = resident.into_iter().flatten();
        lines.extend(resident.map(|line| Line::from(printable(&line))));
        lines
    }

    /// The lines about runtimes, broken where they are longer than the screen is wide.
    fn unseen(&self, columns: u16) -> Vec<Line<'static>> {
        const INDENT: usize = 2;
        let width = Width::new(Some(usize::from(columns)));
        let mut lines = Vec::new();
        for line in &self.reading.unseen {
            let style = match line.starts_with("warning") {
                true => Style::new().fg(Color::Yellow),
                false => Style::new().add_modifier(Modifier::DIM),
            };
            let broken = width.broken(&printable(line), INDENT);
            lines.extend(broken.lines().map(|it| Line::styled(it.to_owned(), style)));
        }
        lines
    }

    fn cells(&self, (entry, growth): &(&Entry, Option<f64>)) -> Row<'static> {
        // A difference below the row's error is not growth.
        let noise = entry.live.stderr().unwrap_or(0.0) / self.between_s.max(1e-9);
        let growth = match *growth {
            Some(growth) if growth > noise && growth > 0.0 => {
                Cell::from(format!("▲ {}", bytes(growth))).style(Style::new().fg(Color::Yellow))
            }
            Some(growth) if growth < -noise => {
                Cell::from(format!("▼ {}", bytes(-growth))).style(Style::new().fg(Color::Cyan))
            }
            Some(_) => Cell::from("="),
            None => Cell::from(""),
        };
        let error = entry.live.stderr().map_or_else(String::new, bytes);
        Row::new([
            Cell::from(bytes(entry.live.value())),
            Cell::from(error).style(Style::new().add_modifier(Modifier::DIM)),
            growth,
            Cell::from(bytes(entry.allocated.value())),
            Cell::from(format!("{:.0}", entry.allocations.value())),
            Cell::from(printable(&format!("{}  {}", entry.name, entry.detail))),
        ])
    }

    fn keys(&self) -> String {
        if self.is_typing {
            return format!(
                "find: {}▏  Enter keeps it, Esc clears it",
                printable(&self.filter)
            );
        }
        let filter = if self.filter.is_empty() {
            String::new()
        } else {
            format!("[{}] ", printable(&self.filter))
        };
        format!(
            "{filter}l live  g growth  a allocated  c count  s sites  / find  p pause  ↑↓  q quit"
        )
    }
}

/// A name may contain anything, and a terminal obeys control characters.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::super::resident::Part;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn entry(name: &str, live: f64, allocated: f64) -> Entry {
        let estimate = |value| Estimate::from_parts(value, Some(0.0), 1);
        Entry {
            name: name.to_owned(),
            detail: "app".to_owned(),
            live: estimate(live),
            allocated: estimate(allocated),
            allocations: estimate(1.0),
        }
    }

    fn reading(after_s: f64, functions: Vec<Entry>) -> Reading {
        Reading {
            title: "x.allocsample (pid 7)".to_owned(),
            is_running: true,
            after_s,
            sites: vec![entry("a_site", 1.0, 1.0)],
            functions,
            ..Reading::default()
        }
    }

    fn drawn(screen: &mut Screen) -> Vec<String> {
        drawn_on(screen, 110)
    }

    fn drawn_on(screen: &mut Screen, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 10)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content.chunks(usize::from(width));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>())
            .collect()
    }

    fn press(screen: &mut Screen, keys: &str) -> Action {
        let mut last = Action::Continue;
        for key in keys.chars() {
            last = screen.press(KeyEvent::from(KeyCode::Char(key)));
        }
        last
    }

    fn grown() -> Screen {
        let mut screen = Screen::default();
        let first = vec![entry("keeps", 4096.0, 9e6), entry("grows", 0.0, 1024.0)];
        screen.show(reading(1.0, first));
        let second = vec![
            entry("keeps", 4096.0, 9e6),
            entry("grows", 2048.0, 4096.0),
            entry("evil\x1b[2J", 1.0, 1.0),
        ];
        screen.show(reading(3.0, second));
        screen
    }

    #[test]
    fn rows_show_live_bytes_and_where_they_go() {
        let lines = drawn(&mut grown());
        assert!(
            lines[0].starts_with("running, 3.0 s  x.allocsample (pid 7)"),
            "{}",
            lines[0]
        );
        assert!(
            lines[4].contains("keeps") && lines[4].contains("4.0 KiB") && lines[4].contains('=')
        );
        // 2 KiB in 2 seconds.
        assert!(
            lines[5].contains("grows") && lines[5].contains("▲ 1.0 KiB"),
            "{}",
            lines[5]
        );
        assert!(lines.iter().all(|line| !line.contains('\x1b')));
    }

    #[test]
    fn state_losses_and_keys_fit_into_80_columns() {
        let mut screen = grown();
        screen.reading.title = format!("/{} (pid 7)", "long/".repeat(30));
        screen.reading.live = Estimate::from_parts(123_456_789.0, Some(1_234_567.0), 9);
        screen.reading.allocated = Estimate::from_parts(9.9e12, Some(1.0), 9);
        screen.reading.peak_bytes = 123_456_789.0;
        screen.reading.samples = 12_345_678;
        screen.reading.lost = 12_345_678;
        let lines = drawn_on(&mut screen, 80);
        assert!(lines[0].starts_with("running, 3.0 s"), "{}", lines[0]);
        assert!(lines[1].contains("allocated 9.0 TiB"), "{}", lines[1]);
        assert!(lines[2].contains("lost 12345678"), "{}", lines[2]);
        assert!(lines[9].contains("q quit"), "{}", lines[9]);
    }

    #[test]
    fn the_resident_memory_has_two_lines_above_the_table() {
        let mut screen = Screen::default();
        for (after_s, bytes) in [(1.0, 1_048_576.0), (3.0, 3_145_728.0)] {
            let part = Part {
                name: "stacks of threads\x1b".to_owned(),
                bytes,
                stderr: 0.0,
            };
            screen.show(Reading {
                resident: Some(Resident {
                    after_s,
                    bytes,
                    parts: vec![part],
                    ..Resident::default()
                }),
                ..reading(after_s, vec![entry("keeps", 4096.0, 9e6)])
            });
        }
        let lines = drawn(&mut screen);
        assert!(lines[3].starts_with("RSS 3.0 MiB"), "{}", lines[3]);
        let growth = "in 2 s: RSS +2.0 MiB  ▲ 2.0 MiB stacks of threads\u{fffd}";
        assert!(lines[4].starts_with(growth), "{}", lines[4]);
        assert!(lines[6].contains("keeps"), "{}", lines[6]);
    }

    #[test]
    fn runtimes_that_are_not_sampled_are_named_above_the_table() {
        let mut screen = grown();
        let line = "warning: Node.js 26.10.0: this build is not supported, the JavaScript heap is not sampled";
        screen.reading.unseen = vec![line.to_owned()];
        let lines = drawn_on(&mut screen, 60);
        let head: Vec<_> = lines[3..5].iter().map(|line| line.trim()).collect();
        assert_eq!(head.join(" "), line);
        assert!(lines[5].contains("live"), "{}", lines[5]);
        // The table stays visible, however many lines there are.
        screen.reading.unseen = vec![line.to_owned(); 50];
        assert!(
            drawn_on(&mut screen, 60)
                .iter()
                .any(|line| line.contains("keeps"))
        );
    }

    #[test]
    fn what_was_read_stays_when_the_process_is_gone() {
        let mut screen = grown();
        screen.end("x.allocsample: No such file or directory");
        let lines = drawn(&mut screen);
        assert!(lines[0].starts_with("ended, 3.0 s"), "{}", lines[0]);
        assert!(lines[2].starts_with("x.allocsample: No such file"));
        assert!(lines[4].contains("keeps"));
    }

    #[test]
    fn keys_sort_filter_and_change_the_rows() {
        let mut screen = grown();
        press(&mut screen, "g");
        assert!(drawn(&mut screen)[4].contains("grows"));
        press(&mut screen, "a/keep");
        let lines = drawn(&mut screen);
        assert!(lines[4].contains("keeps") && !lines[5].contains("grows"));
        screen.press(KeyEvent::from(KeyCode::Esc));
        assert!(drawn(&mut screen)[5].contains("grows"));
        press(&mut screen, "s");
        assert!(drawn(&mut screen)[4].contains("a_site"));
        assert_eq!(press(&mut screen, "q"), Action::Quit);
    }

    #[test]
    fn a_pause_keeps_the_screen_and_its_end_catches_up() {
        let mut screen = grown();
        press(&mut screen, "p");
        screen.show(reading(9.0, vec![entry("late", 9.0, 9.0)]));
        let lines = drawn(&mut screen);
        assert!(lines[0].contains("paused, 3.0 s") && lines[4].contains("keeps"));
        press(&mut screen, "p");
        let lines = drawn(&mut screen);
        assert!(lines[0].contains("running, 9.0 s") && lines[4].contains("late"));
    }
}
