//! Call trees: from the root down, or from what allocates up to its callers.

use std::io::{self, Write};

use allocsample_profile::{Profile, Sample};
use allocsample_sampling::Estimate;
use serde_json::{Value, json};

use crate::elide::shorten;
use crate::frames::{FrameId, Frames, Paths};
use crate::selection::{Selection, Window};
use crate::sums::{Figures, Sums};
use crate::table::Sort;
use crate::{csv, units};
use allocsample_profile::{PeakMoments, with_error_of_moment};

/// Which way a tree grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From where threads begin to what allocates.
    Down,
    /// From the function that is charged to its callers.
    Up,
    /// From this function to what is charged; stacks without it are left out.
    From(String),
}

/// Paths that begin alike share their beginning.
#[derive(Debug)]
pub struct Tree {
    /// For each node, without the root: its parent, which comes before it, and the number of its name.
    steps: Vec<(u32, u32)>,
    /// For each node, of all samples whose paths lead through it.
    figures: Vec<Estimate>,
    /// Nodes by their parents, those of one parent largest first.
    children: Vec<u32>,
    /// Where the children of each node begin, and those of the last one end.
    starts: Vec<u32>,
    names: Vec<String>,
    sort: Sort,
    /// Over all samples in the tree.
    pub selected: Figures,
}

const ROOT: u32 = 0;

impl Tree {
    /// Of the samples that are selected, by the figure that `sort` names.
    pub fn of(
        profile: &Profile,
        frames: &Frames<'_>,
        selection: &Selection,
        peak: Option<PeakMoments>,
        sort: Sort,
        direction: &Direction,
    ) -> Self {
        let mut walk = Walk::new(frames, direction);
        let mut selected = Figures::default();
        let window = Window::of(profile, selection, peak);
        let sums = Sums::of(profile, frames, selection, window, false, |_| 0);
        let mut ends = Vec::with_capacity(sums.count() as usize);
        for sum in sums.iter() {
            let node = walk.node(&sum.sample(profile));
            if node != ROOT {
                selected.add(&sum.figures);
                ends.push((node, *sort.of(&sum.figures), sum.figures.excess()));
            }
        }
        // The sums take five times what is kept of them, and there are several nodes to each.
        drop(sums);
        let (steps, names) = walk.paths.into_steps();
        let mut figures = vec![Estimate::ZERO; steps.len() + 1];
        let mut excesses = vec![0.0; steps.len() + 1];
        for (node, figure, excess) in ends {
            figures[node as usize] += figure;
            excesses[node as usize] += excess;
        }
        for (index, &(parent, _)) in steps.iter().enumerate().rev() {
            let figure = figures[index + 1];
            figures[parent as usize] += figure;
            excesses[parent as usize] += excesses[index + 1];
        }
        if sort.is_of_peak(&window) {
            for (figure, excess) in figures.iter_mut().zip(excesses) {
                *figure = with_error_of_moment(*figure, excess);
            }
        }
        let selected = selected.finished(&window);
        let names: Vec<String> = (names.first.iter())
            .map(|id| frames.frame(*id).label().into_owned())
            .collect();
        let (children, starts) = children(&steps, &figures, &names);
        Self {
            steps,
            figures,
            children,
            starts,
            names,
            sort,
            selected,
        }
    }

    fn name(&self, node: u32) -> &str {
        let (_, name) = self.steps[node as usize - 1];
        &self.names[name as usize]
    }

    fn figure(&self, node: u32) -> &Estimate {
        &self.figures[node as usize]
    }

    fn children(&self, node: u32) -> &[u32] {
        let [start, end] = [0, 1].map(|next| self.starts[node as usize + next] as usize);
        &self.children[start..end]
    }

    /// For scripts: each node with its children.
    pub fn to_json(&self) -> Value {
        self.node_json(ROOT)["children"].take()
    }

    fn node_json(&self, node: u32) -> Value {
        let figure = self.figure(node);
        let children = self.children(node).iter();
        json!({
            "function": if node == ROOT { "" } else { self.name(node) },
            "value": figure.value(),
            "stderr": figure.stderr(),
            "low95": csv::low(figure),
            "high95": csv::high(figure),
            "samples": figure.samples(),
            "children": children.map(|&child| self.node_json(child)).collect::<Vec<_>>(),
        })
    }

    /// For spreadsheets: a line for each node, parents first.
    pub fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut lines = csv::Lines::new(out);
        lines.line([
            "depth", "function", "value", "stderr", "low95", "high95", "samples",
        ])?;
        let mut left: Vec<(u32, usize)> = vec![(ROOT, 0)];
        while let Some((node, depth)) = left.pop() {
            if node != ROOT {
                let figure = self.figure(node);
                let name = self.name(node).to_owned();
                let samples = figure.samples().to_string();
                let numbers = csv::with_error(figure).into_iter().chain([samples]);
                let fields = [depth.to_string(), name].into_iter().chain(numbers);
                lines.line(fields)?;
            }
            let children = self.children(node).iter().rev();
            left.extend(children.map(|&child| (child, depth + 1)));
        }
        lines.finish()
    }

    /// Whether no sample has the measure.
    pub fn is_empty(&self) -> bool {
        self.children(ROOT).is_empty()
    }

    /// Prints callers above what they call (or the other way round), with the figure below each. A path without a branch
    /// is one line; what has less than `least_percent` of all is left out.
    pub fn write(
        &self,
        least_percent: f64,
        width: usize,
        bars: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let whole = self.figure(ROOT).value();
        let printer = Printer {
            tree: self,
            whole,
            least: whole * least_percent / 100.0,
            width,
            bars,
        };
        printer.children(ROOT, out)
    }
}

/// Nodes by their parents, and where those of each parent begin. Nodes without samples are left out.
fn children(steps: &[(u32, u32)], figures: &[Estimate], names: &[String]) -> (Vec<u32>, Vec<u32>) {
    // Names by their places in the alphabet: most figures are equal to many others.
    let mut by_name: Vec<u32> = (0..).take(names.len()).collect();
    by_name.sort_by_key(|&name| &names[name as usize]);
    let mut ranks = vec![0; names.len()];
    for (rank, name) in (0_u32..).zip(by_name) {
        ranks[name as usize] = rank;
    }
    let mut starts = vec![0; figures.len() + 1];
    let mut children: Vec<u32> = (1..)
        .take(steps.len())
        .filter(|&node| figures[node as usize].samples() > 0)
        .collect();
    for &node in &children {
        let (parent, _) = steps[node as usize - 1];
        starts[parent as usize + 1] += 1;
    }
    for node in 0..figures.len() {
        starts[node + 1] += starts[node];
    }
    children.sort_unstable_by(|&a, &b| {
        let of = |node: u32| {
            let (parent, name) = steps[node as usize - 1];
            let value = figures[node as usize].value();
            (parent, value, ranks[name as usize])
        };
        let (a, b) = (of(a), of(b));
        let parents = a.0.cmp(&b.0);
        parents.then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2))
    });
    (children, starts)
}

/// The way from a sample to its node.
struct Walk<'a> {
    frames: &'a Frames<'a>,
    paths: Paths<'a>,
    direction: &'a Direction,
    stack: Vec<FrameId>,
}

impl<'a> Walk<'a> {
    fn new(frames: &'a Frames<'a>, direction: &'a Direction) -> Self {
        Self {
            frames,
            paths: Paths::new(frames),
            direction,
            stack: Vec::new(),
        }
    }

    /// [`ROOT`] if the sample is not in the tree.
    fn node(&mut self, sample: &Sample) -> u32 {
        if *self.direction == Direction::Down {
            return self.paths.number(sample.stack, 0);
        }
        self.frames.fill(sample.stack, &mut self.stack);
        let charged = self.frames.charged(sample.heap, &self.stack).unwrap_or(0);
        let own = &self.stack[charged..];
        let Direction::From(function) = self.direction else {
            return (own.iter()).fold(ROOT, |at, id| self.paths.step(at, &[*id]));
        };
        // The outermost, where it calls itself.
        let from = |id: &FrameId| {
            let frame = self.frames.frame(*id);
            frame.function == *function || frame.label() == *function
        };
        let own = own
            .iter()
            .rposition(from)
            .map_or(&[][..], |from| &own[..=from]);
        self.paths.step(ROOT, own)
    }
}

struct Printer<'a> {
    tree: &'a Tree,
    whole: f64,
    least: f64,
    width: usize,
    bars: bool,
}

impl Printer<'_> {
    /// All lines below a node. The stack of calls is ours: a recursive program's tree is as deep as its stacks.
    fn children(&self, root: u32, out: &mut dyn Write) -> io::Result<()> {
        let mut left: Vec<(u32, usize)> = Vec::new();
        let push = |left: &mut Vec<(u32, usize)>, node: u32, depth: usize| {
            let children = self.shown(node);
            left.extend(children.rev().map(|child| (child, depth)));
        };
        push(&mut left, root, 0);
        while let Some((first, depth)) = left.pop() {
            let (path, last) = self.straight(first);
            self.line(&path, first, depth, out)?;
            push(&mut left, last, depth + 1);
        }
        Ok(())
    }

    fn shown(&self, node: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        let is_shown = |&child: &u32| self.tree.figure(child).value() >= self.least;
        let children = self.tree.children(node).iter();
        children.copied().filter(is_shown)
    }

    /// From a node down while an only child has all of it: names, and the last node.
    fn straight(&self, first: u32) -> (Vec<&str>, u32) {
        let tree = self.tree;
        let mut path = vec![tree.name(first)];
        let mut last = first;
        // Nothing was added to the child's figure, so that they are equal to the bit.
        while let [child] = *tree.children(last)
            && tree.figure(child) == tree.figure(last)
        {
            last = child;
            path.push(tree.name(last));
        }
        (path, last)
    }

    fn line(&self, path: &[&str], node: u32, depth: usize, out: &mut dyn Write) -> io::Result<()> {
        let value = self.tree.figure(node).value();
        let size = match self.tree.sort {
            Sort::Count => units::count(value),
            _ => units::bytes(value),
        };
        let bar = if self.bars {
            units::bar(value, self.whole, 8) + " "
        } else {
            String::new()
        };
        let start = format!(
            "{:>6} {bar}{size:>10}  {}",
            units::percent(value, self.whole),
            "  ".repeat(depth)
        );
        let room = self.width.saturating_sub(start.chars().count()).max(20);
        writeln!(out, "{start}{}", folded(path, room))
    }
}

/// A path in one line: all of it if it fits, otherwise its first and its last functions.
fn folded(path: &[&str], room: usize) -> String {
    const ARROW: &str = " > ";
    let all = path.join(ARROW);
    if all.chars().count() <= room || path.len() == 1 {
        return shorten(&all, room);
    }
    let [first, rest @ ..] = path else {
        return String::new();
    };
    let length = |text: &str| text.chars().count();
    // What leads to the branch says more than what comes before it.
    for skipped in 1..rest.len() {
        let text = format!(
            "{first}{ARROW}({skipped} more){ARROW}{}",
            rest[skipped..].join(ARROW)
        );
        if length(&text) <= room {
            return text;
        }
    }
    let last = rest.last().copied().unwrap_or_default();
    let skipped = rest.len().saturating_sub(1);
    let between = if skipped > 0 {
        format!("{ARROW}({skipped} more){ARROW}")
    } else {
        ARROW.to_owned()
    };
    let room = room.saturating_sub(length(&between));
    let first = shorten(first, (room / 3).max(8));
    let last = shorten(last, room.saturating_sub(length(&first)).max(8));
    first + &between + &last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_folded_in_their_middle() {
        let path = ["start", "main", "serve", "handle", "parse"];
        assert_eq!(folded(&path, 80), "start > main > serve > handle > parse");
        assert_eq!(folded(&path, 36), "start > (2 more) > handle > parse");
        assert_eq!(folded(&path, 26), "start > (3 more) > parse");
        assert_eq!(folded(&["alone"], 3), "a…e");
        let tight = folded(&["a_long_beginning", "b", "a_very_long_end_of_it"], 30);
        assert!(tight.chars().count() <= 30 + 8, "{tight}");
        assert!(tight.contains("(1 more)"), "{tight}");
    }
}
