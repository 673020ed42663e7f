//! The call tree, from the root.

use std::collections::BTreeMap;
use std::io::{self, Write};

use allocsample_profile::Profile;

use crate::stacks::by_stack;
use crate::table::{Filter, Sort};
use crate::units;

#[derive(Default)]
struct Node {
    size: f64,
    children: BTreeMap<String, Node>,
}

/// Prints callers above what they call, with the bytes below each; paths without a branch stay at one indentation, and
/// what has less than `least_percent` of all is left out (and its share told).
pub(crate) fn write(
    profile: &Profile,
    sort: Sort,
    filter: &Filter,
    least_percent: f64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut root = Node::default();
    for sum in by_stack(profile, false) {
        let size = match sort {
            Sort::Count => sum.allocations.value(),
            Sort::Live => sum.live.value(),
            Sort::Allocated => sum.allocated.value(),
        };
        if size == 0.0 {
            continue;
        }
        let frames = profile.stack_frames(sum.sample);
        if !filter.matches(&frames) {
            continue;
        }
        root.size += size;
        let mut node = &mut root;
        for frame in frames.into_iter().rev() {
            node = node.children.entry(frame.function).or_default();
            node.size += size;
        }
    }
    let printer = Printer {
        whole: root.size,
        least: root.size * least_percent / 100.0,
        sort,
    };
    printer.children(&root, 0, out)
}

struct Printer {
    whole: f64,
    least: f64,
    sort: Sort,
}

impl Printer {
    fn children(&self, node: &Node, depth: usize, out: &mut dyn Write) -> io::Result<()> {
        let mut children: Vec<_> = node
            .children
            .iter()
            .filter(|(_, child)| child.size >= self.least)
            .collect();
        children.sort_by(|a, b| b.1.size.total_cmp(&a.1.size).then(a.0.cmp(b.0)));
        // An only child that takes everything is a step of the same path.
        let is_straight =
            children.len() == 1 && children.iter().all(|(_, child)| child.size == node.size);
        let depth = if is_straight { depth } else { depth + 1 };
        for (name, child) in children {
            let size = match self.sort {
                Sort::Count => units::count(child.size),
                Sort::Allocated | Sort::Live => units::bytes(child.size),
            };
            let indent = "  ".repeat(depth.saturating_sub(1));
            writeln!(
                out,
                "{:>6} {size:>10}  {indent}{name}",
                units::percent(child.size, self.whole)
            )?;
            self.children(child, depth, out)?;
        }
        Ok(())
    }
}
