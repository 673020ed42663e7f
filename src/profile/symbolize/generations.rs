//! Code outside of all modules, whose memory is used again and again: which code stood at an address at a time.
//!
//! Changes are played in the order of time, and asked at the times of the samples between them. Code that is put where
//! other code was takes the place of all of it.

use std::collections::BTreeMap;

use allocsample_record::{CodeGeneration, SymbolFrame};

/// So many pieces at most for each change and each of its lines. Code that is moved is there twice, with all its lines:
/// a few bytes of a file can ask for that as often as they like. What is moved after that has no name.
const MOST_TIMES: usize = 4;

/// One change of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CodeChange {
    /// CLOCK_MONOTONIC; 0 if that is not known: from the beginning, in the order of the file.
    pub(super) time_ns: u64,
    pub(super) change: Change,
}

/// What is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// New code from `start` up to `end`. Each frame counts from its address up to the next one's; the first from `start`.
    Add {
        start: u64,
        end: u64,
        frames: Vec<(u64, SymbolFrame)>,
    },
    /// The code at `from` goes on at `to`.
    Move { from: u64, to: u64 },
}

/// A piece of code that is, or was, in memory.
#[derive(Clone, Debug)]
struct Code {
    start: u64,
    end: u64,
    since_ns: u64,
    frames: Vec<(u64, SymbolFrame)>,
}

impl Code {
    /// In pieces that each have one frame, up to `until_ns`.
    fn generations(&self, until_ns: u64) -> impl Iterator<Item = CodeGeneration> + '_ {
        let ends = self.frames.iter().skip(1).map(|&(at, _)| at);
        let pieces = self.frames.iter().zip(ends.chain([self.end]));
        pieces.map(move |((start, frame), end)| CodeGeneration {
            start: *start,
            end: end.min(self.end),
            since_ns: self.since_ns,
            until_ns,
            frame: frame.clone(),
        })
    }
}

/// All code that there was, each piece with the time in which it stood. Pieces do not overlap in both address and time.
pub(super) fn generations(mut changes: Vec<CodeChange>) -> Vec<CodeGeneration> {
    // Stable: what has the same time stays in the order of its file.
    changes.sort_by_key(|change| change.time_ns);
    let mut living: BTreeMap<u64, Code> = BTreeMap::new();
    let mut all = Vec::new();
    let frames = changes.iter().map(|change| match &change.change {
        Change::Add { frames, .. } => frames.len(),
        Change::Move { .. } => 0,
    });
    let most = MOST_TIMES * (changes.len() + frames.sum::<usize>());
    for CodeChange { time_ns, change } in changes {
        let code = match change {
            Change::Add { start, end, frames } => Code {
                start,
                end,
                since_ns: time_ns,
                frames,
            },
            Change::Move { from, to } => {
                let Some(old) = living.remove(&from) else {
                    continue;
                };
                if all.len() + old.frames.len() > most {
                    continue;
                }
                all.extend(old.generations(time_ns));
                let moved = |at: u64| at.wrapping_sub(from).wrapping_add(to);
                Code {
                    start: to,
                    end: moved(old.end),
                    since_ns: time_ns,
                    frames: old
                        .frames
                        .into_iter()
                        .map(|(at, frame)| (moved(at), frame))
                        .collect(),
                }
            }
        };
        if code.start >= code.end {
            continue;
        }
        // Pieces do not overlap, so those that begin before the end of the new one are behind each other.
        while let Some((&other, old)) = living.range(..code.end).next_back()
            && old.end > code.start
        {
            all.extend(old.generations(time_ns));
            living.remove(&other);
        }
        living.insert(code.start, code);
    }
    all.extend(living.values().flat_map(|code| code.generations(u64::MAX)));
    all.retain(|code| code.start < code.end && code.since_ns < code.until_ns);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(name: &str) -> SymbolFrame {
        SymbolFrame {
            function: Some(name.into()),
            ..SymbolFrame::default()
        }
    }

    fn add(time_ns: u64, start: u64, end: u64, name: &str) -> CodeChange {
        let frames = vec![(start, named(name))];
        CodeChange {
            time_ns,
            change: Change::Add { start, end, frames },
        }
    }

    fn name_at(all: &[CodeGeneration], address: u64, time_ns: u64) -> Option<&str> {
        let mut found = all.iter().filter(|code| code.holds(address, time_ns));
        let name = found.next().and_then(|code| code.frame.function.as_deref());
        assert!(found.next().is_none(), "two at {address}, {time_ns}");
        name
    }

    #[test]
    fn an_address_has_the_name_of_its_time() {
        let moved = Change::Move { from: 100, to: 500 };
        let all = generations(vec![
            add(10, 100, 200, "first"),
            add(20, 150, 180, "second"),
            add(30, 100, 140, "third"),
            CodeChange {
                time_ns: 40,
                change: moved,
            },
        ]);
        assert_eq!(name_at(&all, 150, 9), None);
        assert_eq!(name_at(&all, 150, 10), Some("first"));
        assert_eq!(name_at(&all, 150, 20), Some("second"));
        assert_eq!(name_at(&all, 199, 20), None, "overwritten in part is gone");
        assert_eq!(name_at(&all, 139, 39), Some("third"));
        assert_eq!(name_at(&all, 139, 40), None);
        assert_eq!(name_at(&all, 539, 40), Some("third"));
    }

    proptest! {
        /// Against a table of what each address held after each change.
        #[test]
        fn any_changes_are_as_when_each_address_is_written(
            steps in proptest::collection::vec((0u64..40, 1u64..20, 0u64..3), 1..30)
        ) {
            let mut time_ns = 0;
            let mut memory: Vec<Option<(usize, String)>> = vec![None; 64];
            let mut changes = Vec::new();
            let mut history = Vec::new();
            for (index, (start, size, pause)) in steps.into_iter().enumerate() {
                time_ns += pause;
                let (name, end) = (index.to_string(), start + size);
                changes.push(add(time_ns, start, end, &name));
                let gone: Vec<usize> = memory[start as usize..end as usize]
                    .iter()
                    .flatten()
                    .map(|(owner, _)| *owner)
                    .collect();
                for cell in &mut memory {
                    if cell.as_ref().is_some_and(|(owner, _)| gone.contains(owner)) {
                        *cell = None;
                    }
                }
                memory[start as usize..end as usize].fill(Some((index, name)));
                history.retain(|(at, _)| *at != time_ns);
                history.push((time_ns, memory.clone()));
            }
            let all = generations(changes);
            for (time_ns, memory) in history {
                for (address, cell) in memory.iter().enumerate() {
                    let name = cell.as_ref().map(|(_, name)| name.as_str());
                    prop_assert_eq!(name_at(&all, address as u64, time_ns), name);
                }
            }
        }
    }
}
