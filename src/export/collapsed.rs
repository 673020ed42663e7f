//! Collapsed stacks: one line for each stack, root first, as `main;parse;malloc_caller 4096`, with bytes.
//!
//! What flamegraph.pl, inferno, speedscope and many scripts read. Lines are sorted, equal names are one line.

use std::io::{self, Write};

use allocsample_profile::StackId;
use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use crate::metric::Metric;
use crate::rounding::Rounding;
use crate::source::Source;

pub(crate) fn write(source: &Source, metric: Metric, out: &mut dyn Write) -> io::Result<()> {
    lines(source, metric, |stack, bytes| {
        writeln!(out, "{stack} {bytes}")
    })
}

/// Tells `each` the stacks with their bytes, rounded after adding up. What rounds to nothing is left out.
pub(crate) fn lines(
    source: &Source,
    metric: Metric,
    mut each: impl FnMut(&str, i64) -> io::Result<()>,
) -> io::Result<()> {
    let paths = Paths::of(source, metric);
    paths.lines(&paths.children(), |_, text, bytes| each(text, bytes))
}

/// The same for who draws them and leaves out functions with less than `narrowest` of all bytes. Neighbours that are too
/// narrow even together are one line, which has the name of the first of them: all others are at their places.
pub(crate) fn wide_lines(source: &Source, metric: Metric, narrowest: f64) -> Vec<String> {
    let paths = Paths::of(source, metric);
    let children = paths.children();
    let mut own = vec![0; paths.nodes.len()];
    let told = paths.lines(&children, |path, _, bytes| {
        own[path as usize] = bytes;
        Ok(())
    });
    debug_assert!(told.is_ok(), "nothing is written");
    // Parents come before their children.
    let mut with_more = own.clone();
    for path in (1..with_more.len()).rev() {
        with_more[paths.parents[path] as usize] += with_more[path];
    }
    // Half of it, so that no rounding matters.
    let is_wide =
        |bytes: i64| bytes as f64 >= narrowest / 2.0 * with_more[Paths::ROOT as usize] as f64;
    let mut lines = Vec::new();
    let mut wide = vec![Paths::ROOT];
    let mut items = Vec::new();
    while let Some(path) = wide.pop() {
        let before = paths.text(path);
        let name = |path: u32| &paths.names[paths.nodes[path as usize] as usize];
        // In the order of the lines with their numbers, in which they are drawn.
        items.clear();
        for &child in children.of(path) {
            let (own, with_more) = (own[child as usize], with_more[child as usize]);
            if own > 0 {
                items.push((format!("{} {own}", name(child)), child, own, true));
            }
            if with_more > own {
                let key = format!("{};", name(child));
                items.push((key, child, with_more - own, false));
            }
        }
        items.sort_unstable();
        let mut narrow: Option<(String, i64)> = None;
        for &(ref key, child, bytes, is_line) in &items {
            if is_wide(with_more[child as usize]) {
                lines.extend(narrow.take().map(line));
                match is_line {
                    true => lines.push(format!("{before}{key}")),
                    false => wide.push(child),
                }
                continue;
            }
            match &mut narrow {
                Some((_, sum)) if !is_wide(*sum + bytes) => *sum += bytes,
                narrow => {
                    lines.extend(narrow.take().map(line));
                    let more = if is_line { "" } else { ";(narrow)" };
                    *narrow = Some((format!("{before}{}{more}", name(child)), bytes));
                }
            }
        }
        lines.extend(narrow.map(line));
    }
    lines
}

fn line((stack, bytes): (String, i64)) -> String {
    format!("{stack} {bytes}")
}

/// Stacks by the names of their functions, as a tree: a million lines at once would take more memory than the profile.
struct Paths {
    names: Vec<String>,
    /// For each name where a line that ends in it comes among others, and where one comes in which a `;` follows.
    ranks: Vec<(u32, u32)>,
    /// The last name of each path. Path 0 is empty.
    nodes: Vec<u32>,
    parents: Vec<u32>,
    bytes: Vec<f64>,
    steps: FxHashMap<(u32, u32), u32>,
    /// Names of each location, outermost first.
    names_of_location: Vec<Vec<u32>>,
}

impl Paths {
    const ROOT: u32 = 0;

    fn of(source: &Source, metric: Metric) -> Self {
        let mut paths = Self::new(source);
        paths.add(source, metric);
        paths
    }

    /// Tells `each` of all paths with bytes, in the order of their texts.
    fn lines(
        &self,
        children: &Children,
        mut each: impl FnMut(u32, &str, i64) -> io::Result<()>,
    ) -> io::Result<()> {
        /// What comes next of a path's children, and how long the text before it is.
        struct Next {
            path: u32,
            before: usize,
            is_line: bool,
        }
        let mut rounding = Rounding::default();
        let mut text = String::new();
        let mut stack = vec![Next {
            path: Self::ROOT,
            before: 0,
            is_line: false,
        }];
        let mut items = Vec::new();
        while let Some(Next {
            path,
            before,
            is_line,
        }) = stack.pop()
        {
            text.truncate(before);
            if path != Self::ROOT {
                text.push_str(&self.names[self.nodes[path as usize] as usize]);
            }
            if is_line {
                let bytes = rounding.next(self.bytes[path as usize]);
                if bytes > 0 {
                    each(path, &text, bytes)?;
                }
                continue;
            }
            if path != Self::ROOT {
                text.push(';');
            }
            items.clear();
            for &child in children.of(path) {
                let (alone, with_more) = self.ranks[self.nodes[child as usize] as usize];
                if self.bytes[child as usize] > 0.0 {
                    items.push((alone, child, true));
                }
                items.push((with_more, child, false));
            }
            // What comes first is taken last from the end.
            items.sort_unstable_by(|one, other| other.cmp(one));
            stack.extend(items.iter().map(|&(_, path, is_line)| Next {
                path,
                before: text.len(),
                is_line,
            }));
        }
        Ok(())
    }

    /// The names of a path, each with a `;` behind it.
    fn text(&self, path: u32) -> String {
        let up = |&path: &u32| Some(self.parents[path as usize]);
        let callers = std::iter::successors(Some(path), up);
        let mut names: Vec<&str> = callers
            .take_while(|&path| path != Self::ROOT)
            .map(|path| self.names[self.nodes[path as usize] as usize].as_str())
            .collect();
        names.reverse();
        let mut text = names.join(";");
        if path != Self::ROOT {
            text.push(';');
        }
        text
    }

    fn new(source: &Source) -> Self {
        let mut names = IndexSet::new();
        let names_of_location = source
            .locations
            .iter()
            .map(|location| {
                let lines = location.lines.iter().rev();
                lines
                    .map(|line| names.insert_full(plain_name(&line.function)).0 as u32)
                    .collect()
            })
            .collect();
        let names: Vec<String> = names.into_iter().collect();
        Self {
            ranks: ranks(&names),
            names,
            nodes: vec![0],
            parents: vec![Self::ROOT],
            bytes: vec![0.0],
            steps: FxHashMap::default(),
            names_of_location,
        }
    }

    fn add(&mut self, source: &Source, metric: Metric) {
        let sums = metric.by_stack(source);
        let stacks = &source.profile.stacks;
        let numbers = 1..=stacks.count();
        let mut is_needed = vec![false; stacks.count() as usize + 1];
        for &(stack, _) in &sums {
            is_needed[stack.0 as usize] = true;
        }
        // Parents come before their children.
        for number in numbers.clone().rev() {
            if is_needed[number as usize]
                && let Some((parent, _)) = stacks.parent_and_place(StackId(number))
            {
                is_needed[parent.0 as usize] = true;
            }
        }
        let mut path_of_stack = vec![Self::ROOT; stacks.count() as usize + 1];
        for number in numbers {
            let node = stacks.parent_and_place(StackId(number));
            let Some((parent, place)) = node.filter(|_| is_needed[number as usize]) else {
                continue;
            };
            let mut path = path_of_stack[parent.0 as usize];
            for &name in &self.names_of_location[place as usize] {
                let (nodes, parents) = (&mut self.nodes, &mut self.parents);
                path = *self.steps.entry((path, name)).or_insert_with(|| {
                    nodes.push(name);
                    parents.push(path);
                    // No more than there are stacks and inlined calls, which memory bounds.
                    nodes.len() as u32 - 1
                });
            }
            path_of_stack[number as usize] = path;
        }
        self.steps = FxHashMap::default();
        self.bytes.resize(self.nodes.len(), 0.0);
        for (stack, bytes) in sums {
            self.bytes[path_of_stack[stack.0 as usize] as usize] += bytes;
        }
    }

    fn children(&self) -> Children {
        let mut starts = vec![0u32; self.nodes.len() + 1];
        for &parent in &self.parents[1..] {
            starts[parent as usize + 1] += 1;
        }
        for place in 1..starts.len() {
            starts[place] += starts[place - 1];
        }
        let mut next = starts.clone();
        let mut all = vec![0; self.nodes.len() - 1];
        for (path, &parent) in (1..).zip(&self.parents[1..]) {
            let place = &mut next[parent as usize];
            all[*place as usize] = path;
            *place += 1;
        }
        Children { starts, all }
    }
}

/// The children of each path.
struct Children {
    starts: Vec<u32>,
    all: Vec<u32>,
}

impl Children {
    fn of(&self, path: u32) -> &[u32] {
        let path = path as usize;
        &self.all[self.starts[path] as usize..self.starts[path + 1] as usize]
    }
}

fn ranks(names: &[String]) -> Vec<(u32, u32)> {
    let mut keys: Vec<(String, usize)> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        keys.push((name.clone(), 2 * index));
        keys.push((format!("{name};"), 2 * index + 1));
    }
    keys.sort_unstable();
    let mut rank_of_key = vec![0; keys.len()];
    for (rank, (_, key)) in (0..).zip(&keys) {
        rank_of_key[*key] = rank;
    }
    let ranks = rank_of_key.chunks(2);
    ranks.map(|ranks| (ranks[0], ranks[1])).collect()
}

/// A name without what has a meaning in a line: `;` and line ends, and a number at the end after a blank, which
/// readers would take for a second count.
fn plain_name(name: &str) -> String {
    let mut plain: String = name
        .chars()
        .map(|c| match c {
            ';' => ':',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect();
    let plain_length = plain.trim_end().len();
    plain.truncate(plain_length);
    if let Some((before, number)) = plain.rsplit_once(' ')
        && number.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        plain = format!("{before}_{number}");
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use allocsample_profile::{Profile, Sample};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn names_lose_what_lines_are_made_of() {
        assert_eq!(plain_name("a;b\nc"), "a:b c");
        assert_eq!(plain_name("operator new [] 12"), "operator new []_12");
        assert_eq!(plain_name("f(int, long)"), "f(int, long)");
    }

    #[test]
    fn each_line_is_a_stack_and_the_sum_is_the_total() {
        let source = fixture::source();
        for metric in [Metric::Allocated, Metric::Live] {
            let mut out = Vec::new();
            write(&source, metric, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let sum: i64 = text
                .lines()
                .map(|line| line.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap())
                .sum();
            let total: f64 = metric.by_stack(&source).iter().map(|it| it.1).sum();
            assert!((sum as f64 - total).abs() <= 0.51, "{sum} {total}");
            assert!(text.lines().is_sorted());
        }
    }

    /// The functions that are wide enough, with their bytes and how many bytes are before them.
    fn drawn(mut lines: Vec<String>, narrowest: i64) -> BTreeMap<(String, i64), i64> {
        lines.sort_unstable();
        let mut widths: BTreeMap<(String, i64), i64> = BTreeMap::new();
        let mut open: Vec<(String, i64)> = Vec::new();
        let mut before = 0;
        for line in &lines {
            let (stack, bytes) = line.rsplit_once(' ').unwrap();
            let mut path = String::new();
            let mut depth = 0;
            for name in stack.split(';') {
                path += &format!(";{name}");
                if open.get(depth).is_none_or(|(open, _)| *open != path) {
                    open.truncate(depth);
                    open.push((path.clone(), before));
                }
                depth += 1;
                *widths.entry(open[depth - 1].clone()).or_default() +=
                    bytes.parse::<i64>().unwrap();
            }
            open.truncate(depth);
            before += bytes.parse::<i64>().unwrap();
        }
        widths.retain(|_, bytes| *bytes >= narrowest);
        widths
    }

    proptest! {
        /// A picture of the lines that are left is the picture of all of them.
        #[test]
        fn wide_lines_have_all_that_is_wide(
            stacks in proptest::collection::vec(proptest::collection::vec(0..6usize, 1..6), 1..200),
            percent in 0..30u32,
        ) {
            let names = ["f", "f (x)", "g", "ff", "-", "h"];
            let mut profile = Profile::default();
            profile.intervals.push(fixture::interval(8));
            for (number, functions) in (0..).zip(&stacks) {
                let stack = functions.iter().fold(StackId::EMPTY, |caller, &function| {
                    fixture::call(&mut profile, caller, names[function], function as u64)
                });
                profile.samples.push(Sample { size: 1 + number % 17, stack, ..Sample::default() });
            }
            let source = fixture::source_of(profile);
            let mut all = Vec::new();
            lines(&source, Metric::Allocated, |stack, bytes| {
                all.push(format!("{stack} {bytes}"));
                Ok(())
            }).unwrap();
            let narrowest = f64::from(percent) / 100.0;
            let wide = wide_lines(&source, Metric::Allocated, narrowest);
            prop_assert!(wide.len() <= all.len());
            let total: i64 = all.iter().map(|it| it.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum();
            let least = (narrowest * total as f64).ceil() as i64;
            prop_assert_eq!(drawn(wide, least.max(1)), drawn(all, least.max(1)));
        }
    }

    #[test]
    fn narrow_neighbours_are_one_line() {
        let mut profile = Profile::default();
        profile.intervals.push(fixture::interval(1));
        for number in 0..1000 {
            let name = format!("f{number:04}");
            let stack = fixture::call(&mut profile, StackId::EMPTY, &name, number);
            profile.samples.push(Sample {
                size: 1,
                stack,
                ..Sample::default()
            });
        }
        let source = fixture::source_of(profile);
        let wide = wide_lines(&source, Metric::Allocated, 0.1);
        // Of 1,000 bytes less than half of a hundred are in each.
        assert_eq!(wide.len(), 1000_usize.div_ceil(49));
        assert_eq!(wide[..2], ["f0000 49", "f0049 49"]);
    }

    #[test]
    fn roots_come_first_with_inlined_and_missing_frames() {
        let mut out = Vec::new();
        write(&fixture::source(), Metric::Allocated, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let stacks: Vec<&str> = text
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().0)
            .collect();
        let expected = [
            "(truncated);leaf: part",
            "main;libx.so.1+0x98",
            "main;outer;inlined",
        ];
        assert_eq!(stacks, expected);
    }
}
