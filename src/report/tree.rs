//! Call trees: from the root down, or from what allocates up to its callers.

use std::io::{self, Write};

use allocsample_profile::Profile;
use allocsample_sampling::Estimate;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::frames::Frames;
use crate::selection::{Selection, Window};
use crate::sums::{Figures, Sums};
use crate::table::Sort;
use crate::{csv, units};

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

/// A function on a path.
#[derive(Debug)]
struct Node {
    name: u32,
    figure: Estimate,
    children: Vec<usize>,
}

/// Paths that begin alike share their beginning.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    names: Vec<String>,
    sort: Sort,
    /// Over all samples in the tree.
    pub selected: Figures,
}

const ROOT: usize = 0;

impl Tree {
    /// Of the samples that are selected, by the figure that `sort` names.
    pub fn of(
        profile: &Profile,
        frames: &Frames<'_>,
        selection: &Selection,
        peak_ns: Option<u64>,
        sort: Sort,
        direction: &Direction,
    ) -> Self {
        let names = frames.keys(|frame| frame.function.as_str());
        let from = match direction {
            Direction::From(function) => names
                .first
                .iter()
                .position(|id| frames.frame(*id).function == *function),
            _ => None,
        };
        let name_of = |id: &crate::FrameId| names.of_frame[id.index()];
        let mut tree = Self {
            nodes: vec![Node {
                name: 0,
                figure: Estimate::ZERO,
                children: Vec::new(),
            }],
            names: Vec::new(),
            sort,
            selected: Figures::default(),
        };
        let mut places: FxHashMap<(usize, u32), usize> = FxHashMap::default();
        let window = Window::of(profile, selection, peak_ns);
        let sums = Sums::of(profile, frames, selection, window, false, |_| 0);
        let mut stack = Vec::new();
        for sum in sums.iter() {
            frames.fill(sum.sample, &mut stack);
            let charged = frames.charged(sum.sample.heap, &stack).unwrap_or(0);
            let path: Vec<u32> = match direction {
                Direction::Down => stack.iter().rev().map(name_of).collect(),
                Direction::Up => stack[charged..].iter().map(name_of).collect(),
                Direction::From(_) => {
                    let own = stack[charged..].iter().rev().map(name_of);
                    // The outermost, where it calls itself.
                    own.skip_while(|&name| Some(name as usize) != from)
                        .collect()
                }
            };
            if path.is_empty() {
                continue;
            }
            tree.selected.add(&sum.figures);
            let figure = *sort.of(&sum.figures);
            if figure.samples() == 0 {
                continue;
            }
            tree.nodes[ROOT].figure += figure;
            let mut at = ROOT;
            for name in path {
                let next = tree.nodes.len();
                let place = *places.entry((at, name)).or_insert(next);
                if place == next {
                    tree.nodes.push(Node {
                        name,
                        figure: Estimate::ZERO,
                        children: Vec::new(),
                    });
                    tree.nodes[at].children.push(place);
                }
                tree.nodes[place].figure += figure;
                at = place;
            }
        }
        tree.names = names
            .first
            .iter()
            .map(|id| frames.frame(*id).function.clone())
            .collect();
        for index in 0..tree.nodes.len() {
            let mut children = std::mem::take(&mut tree.nodes[index].children);
            children.sort_by(|&a, &b| {
                let (a, b) = (&tree.nodes[a], &tree.nodes[b]);
                let values = b.figure.value().total_cmp(&a.figure.value());
                values.then_with(|| tree.name(a).cmp(tree.name(b)))
            });
            tree.nodes[index].children = children;
        }
        tree
    }

    fn name(&self, node: &Node) -> &str {
        &self.names[node.name as usize]
    }

    /// For scripts: each node with its children.
    pub fn to_json(&self) -> Value {
        self.node_json(ROOT)["children"].take()
    }

    fn node_json(&self, index: usize) -> Value {
        let node = &self.nodes[index];
        let children = node.children.iter();
        json!({
            "function": if index == ROOT { "" } else { self.name(node) },
            "value": node.figure.value(),
            "stderr": node.figure.stderr(),
            "samples": node.figure.samples(),
            "children": children.map(|&child| self.node_json(child)).collect::<Vec<_>>(),
        })
    }

    /// For spreadsheets: a line for each node, parents first.
    pub fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::line(out, ["depth", "function", "value", "stderr", "samples"])?;
        let mut left: Vec<(usize, usize)> = vec![(ROOT, 0)];
        while let Some((index, depth)) = left.pop() {
            let node = &self.nodes[index];
            if index != ROOT {
                let figure = &node.figure;
                let name = self.name(node).to_owned();
                let numbers = [
                    csv::number(figure.value()),
                    csv::optional(figure.stderr()),
                    figure.samples().to_string(),
                ];
                let fields = [depth.to_string(), name].into_iter().chain(numbers);
                csv::line(out, fields)?;
            }
            let children = node.children.iter().rev();
            left.extend(children.map(|&child| (child, depth + 1)));
        }
        Ok(())
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
        let whole = self.nodes[ROOT].figure.value();
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

struct Printer<'a> {
    tree: &'a Tree,
    whole: f64,
    least: f64,
    width: usize,
    bars: bool,
}

impl Printer<'_> {
    /// All lines below a node. The stack of calls is ours: a recursive program's tree is as deep as its stacks.
    fn children(&self, root: usize, out: &mut dyn Write) -> io::Result<()> {
        let mut left: Vec<(usize, usize)> = Vec::new();
        let push = |left: &mut Vec<(usize, usize)>, index: usize, depth: usize| {
            let children = self.shown(index);
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

    fn shown(&self, index: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let is_shown = |&child: &usize| self.tree.nodes[child].figure.value() >= self.least;
        self.tree.nodes[index]
            .children
            .iter()
            .copied()
            .filter(is_shown)
    }

    /// From a node down while an only child has all of it: names, and the last node.
    fn straight(&self, first: usize) -> (Vec<&str>, usize) {
        let tree = self.tree;
        let mut path = vec![tree.name(&tree.nodes[first])];
        let mut last = first;
        // The same samples were added in the same order, so the sums are equal to the bit.
        while let [child] = tree.nodes[last].children[..]
            && tree.nodes[child].figure == tree.nodes[last].figure
        {
            last = child;
            path.push(tree.name(&tree.nodes[last]));
        }
        (path, last)
    }

    fn line(
        &self,
        path: &[&str],
        node: usize,
        depth: usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let value = self.tree.nodes[node].figure.value();
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
        return units::shorten(&all, room);
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
    let first = units::shorten(first, (room / 3).max(8));
    let last = units::shorten(last, room.saturating_sub(length(&first)).max(8));
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
