//! Finds a program's own wrappers of the allocator, such as `zmalloc` or `xmalloc`, so that their callers are charged.
//!
//! Some wrappers are known by name. The others show in the samples: a wrapper does nothing but allocate, so it appears in
//! stacks right above the allocator and nowhere else; it has several callers; and its sizes vary by a doubling or more, or
//! depend on the caller, because it passes its argument on. A function whose objects all have one size fails the last test.

mod names;

use allocsample_profile::{Charging, HeapId, StackId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::allocator::Part;
use crate::frames::{FrameId, Frames};
use names::{is_hinted, is_known};

/// Of more nodes of stacks than these, a part is looked at: more would not change the verdict.
const NODES: u32 = 300_000;
/// Wrappers that call wrappers.
const LEVELS: usize = 6;

/// What the samples say of a function right above the allocator.
#[derive(Default)]
struct Evidence {
    /// Samples in which it is right above the allocator.
    samples: u64,
    /// Samples in which it is in the stack, and not right above the allocator.
    elsewhere: u64,
    callers: FxHashMap<u32, Sizes>,
}

/// Logarithms of sizes, to base 2: how many, their sum, the sum of their squares.
#[derive(Clone, Copy, Default)]
struct Sizes {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Sizes {
    fn add(&mut self, other: Sizes) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// Sum of the squared distances from the mean.
    fn spread(self) -> f64 {
        (self.squares - self.sum * self.sum / self.count as f64).max(0.0)
    }
}

impl Evidence {
    /// Whether only wrappers call this: then it is part of them.
    fn is_part_of(&self, wrappers: &FxHashSet<u32>) -> bool {
        let callers = self
            .callers
            .iter()
            .filter(|(caller, _)| wrappers.contains(caller));
        let by_wrappers: u64 = callers.map(|(_, sizes)| sizes.count).sum();
        by_wrappers > 0 && (self.samples - by_wrappers + self.elsewhere) * 50 <= self.samples
    }

    /// Whether this is a wrapper. `is_hinted`: its name says that it allocates.
    fn is_of_wrapper(&self, is_hinted: bool) -> bool {
        let (samples, callers, largest_share) = match is_hinted {
            true => (10, 2, 0.98),
            false => (50, 3, 0.9),
        };
        if self.samples < samples || self.elsewhere * 50 > self.samples {
            return false;
        }
        // Callers of which there are one or two samples say nothing of their sizes.
        let all: Vec<Sizes> = self
            .callers
            .values()
            .copied()
            .filter(|it| it.count >= 3)
            .collect();
        let mut total = Sizes::default();
        all.iter().for_each(|sizes| total.add(*sizes));
        let largest = all.iter().map(|sizes| sizes.count).max().unwrap_or(0);
        if all.len() < callers || largest as f64 > largest_share * total.count as f64 {
            return false;
        }
        // The square of an eighth of a doubling: all are of one size, but for rounding.
        const ONE_SIZE: f64 = 1.0 / 64.0;
        // Sizes differ by a doubling, as arguments do.
        const ANY_SIZE: f64 = 1.0;
        let spread = total.spread();
        let variance = spread / total.count as f64;
        if variance < ONE_SIZE {
            return false;
        }
        let within: f64 = all.iter().map(|sizes| sizes.spread()).sum();
        let freedom = (total.count - 1) as f64 / (total.count as f64 - all.len() as f64);
        // Adjusted for the number of callers, as is usual: many callers explain much by chance.
        let explained = 1.0 - within / spread * freedom;
        is_hinted || variance >= ANY_SIZE || explained >= 0.3
    }
}

/// The samples of one stack.
struct Stack {
    /// Functions, leaf first.
    functions: Vec<u32>,
    /// How many of them are passed over.
    passed: usize,
    sizes: Sizes,
}

/// A function that is passed over.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// Its name.
    pub function: String,
    /// Samples of malloc in which it was passed over, among those that were looked at.
    pub samples: u64,
    /// All samples of malloc that were looked at.
    pub of_samples: u64,
}

/// The line of the report about functions that are passed over, if there are any.
pub fn line(skipped: &[Skipped]) -> Option<String> {
    const NAMED: usize = 3;
    // One in 200 samples changes no row that anybody looks at.
    let worth = |it: &&Skipped| it.samples * 200 >= it.of_samples;
    let names: Vec<&str> = skipped
        .iter()
        .filter(worth)
        .map(|it| it.function.as_str())
        .collect();
    let more = match names.len().checked_sub(NAMED) {
        None | Some(0) => String::new(),
        Some(1) => " and 1 more wrapper of the allocator".to_owned(),
        Some(more) => format!(" and {more} more wrappers of the allocator"),
    };
    let named = &names[..names.len().min(NAMED)];
    let named = named.join(", ");
    (!names.is_empty())
        .then(|| format!("charged    callers of {named}{more} (--no-skip charges the wrappers)"))
}

/// Makes allocators of the frames of wrappers, and returns the functions that are passed over in any stack, those of most
/// samples first.
pub(crate) fn skip(frames: &Frames<'_>, parts: &mut [Part], charging: &Charging) -> Vec<Skipped> {
    let keys = frames.keys(|frame| (frame.function.as_str(), frame.module.as_str()));
    let name = |function: u32| {
        frames
            .frame(keys.first[function as usize])
            .function
            .as_str()
    };
    let functions = 0..u32::try_from(keys.first.len()).expect("frames have numbers of 32 bits");
    let is_named = |function: u32| {
        charging
            .allocators
            .as_ref()
            .is_some_and(|it| it.is_match(name(function)))
    };
    let known = charging.known.as_ref().map(|known| {
        let known = known.iter();
        known
            .map(|(function, module)| (function.as_str(), module.as_str()))
            .collect::<FxHashSet<_>>()
    });
    let is_skipped = |function: &u32| match &known {
        Some(known) => {
            let frame = frames.frame(keys.first[*function as usize]);
            known.contains(&(frame.function.as_str(), frame.module.as_str()))
        }
        None => charging.skips_wrappers && is_known(name(*function)) || is_named(*function),
    };
    let mut wrappers: FxHashSet<u32> = functions.filter(is_skipped).collect();
    let mut stacks = stacks(frames, parts, |frame| keys.of_frame[frame.index()]);
    let of_samples = stacks.iter().map(|stack| stack.sizes.count).sum();
    let mut passed: FxHashMap<u32, u64> = FxHashMap::default();
    for level in 0..LEVELS {
        for stack in &mut stacks {
            let own = &stack.functions[stack.passed..];
            for function in own.iter().take_while(|it| wrappers.contains(it)) {
                *passed.entry(*function).or_default() += stack.sizes.count;
                stack.passed += 1;
            }
        }
        let found = match charging.skips_wrappers && known.is_none() {
            // Only names go on behind a wrapper that the samples alone show: containers and factories come next.
            true => found(
                &stacks,
                &wrappers,
                |function| is_hinted(name(function)),
                level == 0,
            ),
            false => Vec::new(),
        };
        if found.is_empty() {
            break;
        }
        wrappers.extend(found);
    }
    for (frame, part) in frames.ids().zip(parts) {
        if wrappers.contains(&keys.of_frame[frame.index()]) {
            *part = Part::Allocator;
        }
    }
    let skipped = passed.into_iter().map(|(function, samples)| Skipped {
        function: name(function).to_owned(),
        samples,
        of_samples,
    });
    let mut skipped: Vec<Skipped> = skipped.collect();
    skipped.sort_by(|a, b| {
        b.samples
            .cmp(&a.samples)
            .then_with(|| a.function.cmp(&b.function))
    });
    skipped
}

/// Stacks of samples of malloc's and of allocators beside it that no virtual machine's language is in: there, the language is
/// charged anyway.
fn stacks(frames: &Frames<'_>, parts: &[Part], function_of: impl Fn(FrameId) -> u32) -> Vec<Stack> {
    let profile = frames.profile;
    let nodes = profile.stacks.count();
    let step = nodes.div_ceil(NODES).max(1);
    // By the number of the stack divided by `step`.
    let mut sizes = vec![Sizes::default(); (nodes / step) as usize + 1];
    for sample in &profile.samples {
        let is_of_allocator =
            sample.heap == HeapId::MALLOC || crate::shares::is_embedded(profile, sample.heap);
        let is_looked_at = is_of_allocator && sample.stack.0 % step == 0;
        if let Some(sizes) = sizes.get_mut((sample.stack.0 / step) as usize)
            && is_looked_at
        {
            let log = (sample.size.max(1) as f64).log2();
            sizes.add(Sizes {
                count: 1,
                sum: log,
                squares: log * log,
            });
        }
    }
    let sizes = (0..).map(|number| StackId(number * step)).zip(sizes);
    let sizes = sizes.filter(|(_, sizes)| sizes.count > 0);
    let is_of_language = |frame: &FrameId| {
        let module = frames.frame(*frame).module.as_str();
        profile
            .vm
            .heaps
            .values()
            .any(|machine| machine.name == module)
    };
    let mut own = Vec::new();
    let stacks = sizes.filter_map(|(stack, sizes)| {
        frames.fill(stack, &mut own);
        let passed = own
            .iter()
            .take_while(|it| parts[it.index()] == Part::Allocator)
            .count();
        let is_of_container = own
            .get(passed)
            .is_some_and(|it| parts[it.index()] == Part::Library);
        (!is_of_container && !own.iter().any(is_of_language)).then(|| Stack {
            functions: own[passed..]
                .iter()
                .map(|frame| function_of(*frame))
                .collect(),
            passed: 0,
            sizes,
        })
    });
    stacks.collect()
}

/// Wrappers that the samples show. `without_hint`: among functions with any name.
fn found(
    stacks: &[Stack],
    wrappers: &FxHashSet<u32>,
    is_hinted: impl Fn(u32) -> bool,
    without_hint: bool,
) -> Vec<u32> {
    let mut evidence: FxHashMap<u32, Evidence> = FxHashMap::default();
    for stack in stacks {
        // A function without a caller says nothing of who passes it an argument.
        if let Some([function, caller]) = stack.functions.get(stack.passed..stack.passed + 2) {
            let of_function = evidence.entry(*function).or_default();
            of_function.samples += stack.sizes.count;
            of_function
                .callers
                .entry(*caller)
                .or_default()
                .add(stack.sizes);
        }
    }
    for stack in stacks {
        let callers = stack.functions.get(stack.passed + 1..).unwrap_or_default();
        for (place, function) in callers.iter().enumerate() {
            // Recursion counts once.
            if let Some(evidence) = evidence.get_mut(function)
                && !callers[..place].contains(function)
            {
                evidence.elsewhere += stack.sizes.count;
            }
        }
    }
    let found = evidence.into_iter().filter(|(function, evidence)| {
        let is_hinted = is_hinted(*function);
        evidence.is_part_of(wrappers)
            || (is_hinted || without_hint) && evidence.is_of_wrapper(is_hinted)
    });
    found.map(|(function, _)| function).collect()
}

#[cfg(test)]
mod tests;
