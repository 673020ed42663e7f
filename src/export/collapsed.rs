//! Collapsed stacks: one line for each stack, root first, as `main;parse;malloc_caller 4096`, with bytes.
//!
//! What flamegraph.pl, inferno, speedscope and many scripts read. Lines are sorted, equal names are one line.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::view::{Metric, Rounding, View};

pub(crate) fn write(view: &View, metric: Metric, out: &mut dyn Write) -> io::Result<()> {
    for (stack, bytes) in lines(view, metric) {
        writeln!(out, "{stack} {bytes}")?;
    }
    Ok(())
}

/// Stacks with their bytes, rounded after adding up. What rounds to nothing is left out.
pub(crate) fn lines(view: &View, metric: Metric) -> BTreeMap<String, i64> {
    let mut bytes_by_name: BTreeMap<String, f64> = BTreeMap::new();
    for (stack, bytes) in view.bytes_by_stack(metric) {
        let names: Vec<String> = view
            .functions_of(stack)
            .into_iter()
            .map(plain_name)
            .collect();
        *bytes_by_name.entry(names.join(";")).or_default() += bytes;
    }
    let mut rounding = Rounding::default();
    bytes_by_name
        .into_iter()
        .map(|(stack, bytes)| (stack, rounding.next(bytes)))
        .filter(|&(_, bytes)| bytes > 0)
        .collect()
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

    #[test]
    fn names_lose_what_lines_are_made_of() {
        assert_eq!(plain_name("a;b\nc"), "a:b c");
        assert_eq!(plain_name("operator new [] 12"), "operator new []_12");
        assert_eq!(plain_name("f(int, long)"), "f(int, long)");
    }

    #[test]
    fn each_line_is_a_stack_and_the_sum_is_the_total() {
        let view = fixture::view();
        for metric in [Metric::Allocated, Metric::Live] {
            let mut out = Vec::new();
            write(&view, metric, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let sum: i64 = text
                .lines()
                .map(|line| line.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap())
                .sum();
            let total: f64 = view.samples.iter().map(|s| metric.bytes(s)).sum();
            assert!((sum as f64 - total).abs() <= 0.51, "{sum} {total}");
            assert!(text.lines().is_sorted());
        }
    }

    #[test]
    fn roots_come_first_with_inlined_and_missing_frames() {
        let mut out = Vec::new();
        write(&fixture::view(), Metric::Allocated, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        // 3,000.0, less half a byte that the line before took too much.
        assert!(text.contains("main;outer;inlined 2999\n"), "{text}");
        assert!(text.contains("(truncated);leaf: part 1048577\n"), "{text}");
    }
}
