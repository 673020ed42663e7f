//! Where threads spent their time: the sums of ticks by function.

use allocsample_profile::{Figure, Profile, labelled};
use allocsample_sampling::Estimate;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};

use crate::elide::shorten;
use crate::frames::{FrameId, Frames};
use crate::{cost, units};

/// Time of processors by function, from samples of time.
#[derive(Clone, Debug, Default)]
pub struct CpuTime {
    /// Between two ticks of a thread, in seconds.
    pub period_s: f64,
    /// Ticks that were recorded.
    pub ticks: usize,
    /// Time that they stand for, in seconds.
    pub recorded_s: f64,
    /// Time that the agent's own work took on the program's threads, in seconds: ticks that fell into it.
    pub agent_s: f64,
    /// Time of ticks that found no room in the ring, in seconds.
    pub ring_full_s: f64,
    /// Time of ticks that could not be recorded for another reason, in seconds: no memory, no profile.
    pub not_recorded_s: f64,
    /// Most self time first.
    pub functions: Vec<Row>,
}

/// A function.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Source file.
    pub file: Option<String>,
    /// See [`Frame::file_end`](allocsample_profile::Frame::file_end).
    pub file_end: Option<String>,
    /// Its module.
    pub module: String,
    /// Time in itself, in seconds.
    pub self_s: Estimate,
    /// Time in itself and in what it called, in seconds.
    pub total_s: Estimate,
}

impl CpuTime {
    /// Adds up the ticks of a profile; `None` if time was not sampled.
    ///
    /// A timer ticks each period of its thread's own time, from a random beginning. So the time of a thread is exact to a
    /// period, and which function a tick finds is taken as a draw: of N ticks that stand for T a function with share s has
    /// T s, with variance T^2 s (1 - s) / N.
    pub fn of(profile: &Profile, frames: &Frames<'_>) -> Option<Self> {
        let sums_of_all = Self::without_functions(profile)?;
        let recorded_s = sums_of_all.recorded_s;
        let keys = frames.function_keys();
        let mut sums: FxHashMap<u32, (f64, f64, u64)> = FxHashMap::default();
        let mut stack: Vec<FrameId> = Vec::new();
        let mut seen = FxHashSet::default();
        for tick in &profile.ticks {
            let time_s = tick.cpu_ns as f64 / 1e9;
            frames.fill(tick.stack, &mut stack);
            seen.clear();
            for (depth, id) in stack.iter().enumerate() {
                let key = keys.of_frame[id.index()];
                let sum = sums.entry(key).or_default();
                if depth == 0 {
                    sum.0 += time_s;
                }
                // Once, however often it is on the stack.
                if seen.insert(key) {
                    sum.1 += time_s;
                    sum.2 += 1;
                }
            }
        }
        let count = profile.ticks.len() as f64;
        let estimate = |part_s: f64, ticks: u64| {
            let share = part_s / recorded_s;
            let variance = recorded_s * recorded_s * share * (1.0 - share) / count;
            Estimate::from_parts(part_s, Some(variance), ticks)
        };
        let mut functions: Vec<Row> = sums
            .into_iter()
            .map(|(key, (self_s, total_s, ticks))| {
                let frame = frames.frame(keys.first[key as usize]);
                Row {
                    name: frame.function.clone(),
                    file: frame.file.clone(),
                    file_end: frame.file_end.clone(),
                    module: frame.module.clone(),
                    self_s: estimate(self_s, ticks),
                    total_s: estimate(total_s, ticks),
                }
            })
            .collect();
        functions.sort_by(|a, b| {
            let order = b.self_s.value().total_cmp(&a.self_s.value());
            let order = order.then(b.total_s.value().total_cmp(&a.total_s.value()));
            order.then_with(|| (&a.name, &a.module).cmp(&(&b.name, &b.module)))
        });
        Some(Self {
            functions,
            ..sums_of_all
        })
    }

    /// The sums of the whole alone, for which no names are needed.
    pub fn without_functions(profile: &Profile) -> Option<Self> {
        let figure_s = |figure| profile.own_cost.of(figure) as f64 / 1e9;
        let period_s = figure_s(Figure::TickPeriodNs);
        if period_s == 0.0 && profile.ticks.is_empty() {
            return None;
        }
        let times_s = profile.ticks.iter().map(|tick| tick.cpu_ns as f64 / 1e9);
        Some(Self {
            period_s,
            ticks: profile.ticks.len(),
            recorded_s: times_s.sum(),
            agent_s: figure_s(Figure::TicksInAgentNs),
            ring_full_s: figure_s(Figure::TicksRingFullNs),
            not_recorded_s: figure_s(Figure::TicksNotRecordedNs),
            functions: Vec::new(),
        })
    }

    /// Time of ticks that could not be recorded, in seconds.
    pub fn lost_s(&self) -> f64 {
        self.ring_full_s + self.not_recorded_s
    }

    /// For people: one line about the whole.
    pub fn line(&self) -> String {
        format!(
            "time       {} of CPU time in {} ticks (one per {}), {} in the agent{}",
            cost::time(self.recorded_s * 1e9),
            units::count(self.ticks as f64),
            cost::time(self.period_s * 1e9),
            cost::time(self.agent_s * 1e9),
            if self.lost_s() > 0.0 {
                format!(", {} LOST", cost::time(self.lost_s() * 1e9))
            } else {
                String::new()
            },
        )
    }

    /// For people: a table of at most `top` functions that fits into `width` columns.
    pub fn table_lines(&self, top: usize, width: usize) -> Vec<String> {
        let mut lines = vec![format!(
            "{:>6} {:>20} {:>20}  time by function",
            "self", "self time", "with what it called"
        )];
        for row in self.functions.iter().take(top) {
            let line = format!(
                "{:>6} {:>20} {:>20}  ",
                units::percent(row.self_s.value(), self.recorded_s),
                with_error(&row.self_s),
                with_error(&row.total_s),
            );
            let room = width.saturating_sub(line.chars().count()).max(20);
            let label = match &row.file_end {
                Some(end) => labelled(&row.name, end),
                None => row.name.clone(),
            };
            let name = match row.module.as_str() {
                "" => label,
                _ if row.name.contains('+') => label,
                module => format!("{label} [{module}]"),
            };
            lines.push(line + &shorten(&name, room));
        }
        if self.functions.len() > top {
            let more = self.functions.len() - top;
            lines.push(format!("... {more} more; --top N shows more"));
        }
        lines
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self
            .functions
            .iter()
            .map(|row| {
                json!({
                    "function": row.name,
                    "file": row.file,
                    "module": row.module,
                    "self_s": row.self_s.value(),
                    "self_s_stderr": row.self_s.stderr(),
                    "total_s": row.total_s.value(),
                    "total_s_stderr": row.total_s.stderr(),
                })
            })
            .collect();
        json!({
            "period_s": self.period_s,
            "ticks": self.ticks,
            "recorded_s": self.recorded_s,
            "agent_s": self.agent_s,
            "lost_s": self.lost_s(),
            "ring_full_s": self.ring_full_s,
            "not_recorded_s": self.not_recorded_s,
            "functions": rows,
        })
    }
}

fn with_error(time: &Estimate) -> String {
    let error = time.stderr().unwrap_or(0.0);
    format!(
        "{} ± {}",
        cost::time(time.value() * 1e9),
        cost::time(error * 1e9)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{
        Location, ModuleId, SampleFlags, StackId, StackNode, ThreadId, Tick,
    };

    #[test]
    fn recursion_counts_once_and_errors_are_those_of_shares() {
        let mut profile = Profile::default();
        let mut node = |parent, offset| {
            profile.stacks.push(StackNode {
                parent,
                location: Location {
                    module: ModuleId::NONE,
                    offset,
                },
            })
        };
        let root = node(StackId::EMPTY, 11);
        let inner = node(root, 21);
        let again = node(inner, 21);
        let tick = |stack, flags| Tick {
            cpu_ns: 1_000_000_000,
            thread: ThreadId(1),
            stack,
            flags,
            ..Tick::default()
        };
        let none = SampleFlags::default();
        profile.ticks = vec![
            tick(again, none),
            tick(again, none),
            tick(again, SampleFlags::TRUNCATED),
            tick(root, none),
        ];
        profile.end_stacks_without_root();
        let frames = Frames::of(&profile);
        let time = CpuTime::of(&profile, &frames).unwrap();
        let row = |name: &str| time.functions.iter().find(|row| row.name == name).unwrap();
        assert_eq!((time.ticks, time.recorded_s), (4, 4.0));
        assert_eq!(row("0x14").self_s.value(), 3.0);
        assert_eq!(row("0x14").total_s.value(), 3.0);
        assert_eq!(row("0xa").self_s.value(), 1.0);
        assert_eq!(row("0xa").total_s.value(), 4.0);
        assert_eq!(row("(truncated)").total_s.value(), 1.0);
        // 4^2 * 3/4 * 1/4 / 4
        let error = row("0x14").self_s.stderr().unwrap();
        assert!((error - 0.75f64.sqrt()).abs() < 1e-12, "{error}");
        assert!(CpuTime::of(&Profile::default(), &frames).is_none());
    }
}
