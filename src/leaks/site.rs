//! Samples by site: the functions of a stack, from the one that is charged to the root, and the type if there is one.

use allocsample_profile::{Frame, HeapId, Profile, Sample, SampleFlags, StackId};
use allocsample_report::jars::Jars;
use allocsample_report::origin::is_own;
use allocsample_report::{FrameId, Frames, Kinds, NONE, Pairs, Paths, Selection, Selector};
use rustc_hash::FxHashMap;

/// What a site is called.
#[derive(Clone, Debug)]
pub struct Site {
    /// The function that is charged.
    pub function: Frame,
    /// The nearest code to it that the user wrote: it, or a caller.
    pub own: Option<Frame>,
    /// Functions from it to the root.
    pub stack: Vec<String>,
    /// Name of the heap, unless it is malloc's.
    pub heap: Option<String>,
    /// Type of the objects, where a virtual machine tells.
    pub type_name: Option<String>,
}

/// All sites with samples whose ends are known, in the order in which they first allocated.
#[derive(Debug)]
pub struct Sites<'a> {
    profile: &'a Profile,
    frames: Frames<'a>,
    /// Where classes of Java come from.
    pub jars: Jars,
    /// Indices of samples, those of a site together and in their order.
    samples: Vec<u32>,
    /// Where in `samples` each site begins, and the last one ends.
    starts: Vec<u32>,
}

/// The site of each sample, by number. What is needed to find them is as large as they, and not kept.
struct Numbers {
    of_sample: Vec<u32>,
    count: usize,
}

impl Numbers {
    fn of(profile: &Profile, frames: &Frames<'_>, selection: &Selection) -> Self {
        let mut paths = Paths::new(frames);
        // Both take as long, and neither needs the other.
        let ((groups, mut of_sample), ()) = rayon::join(
            || Group::all(profile, frames, selection),
            || paths.prepare(),
        );
        let mut types: FxHashMap<Option<&str>, u32> = FxHashMap::default();
        let mut kinds: Kinds<(HeapId, u32)> = Kinds::default();
        // By path, and by heap and type.
        let mut numbers = Pairs::for_things(paths.count());
        let mut count = 0;
        let number_of = |group: &Group| {
            let Some(charged) = group.charged else {
                return NONE;
            };
            let sample = &profile.samples.at(group.first as usize);
            let next = u32::try_from(types.len()).unwrap_or(NONE);
            let type_number = *types.entry(type_of(profile, sample)).or_insert(next);
            let path = paths.number(sample.stack, charged as usize);
            let kind = kinds.number((sample.heap, type_number));
            let number = numbers.number(path, kind);
            count = count.max(number + 1);
            number
        };
        let sites: Vec<u32> = groups.iter().map(number_of).collect();
        drop((paths, numbers));
        for number in &mut of_sample {
            *number = sites.get(*number as usize).copied().unwrap_or(NONE);
        }
        Self {
            of_sample,
            count: count as usize,
        }
    }
}

/// Samples with one stack and type: it is looked at once for all of them.
struct Group {
    /// The index of the first of them.
    first: u32,
    /// The index of the frame that is charged; `None` if they are not selected.
    charged: Option<u32>,
}

impl Group {
    /// In the order in which they first came, and the index of each sample's; [`NONE`] for those whose ends are not known.
    fn all(profile: &Profile, frames: &Frames<'_>, selection: &Selection) -> (Vec<Self>, Vec<u32>) {
        let mut selector = Selector::of_samples(frames, profile, selection);
        let mut kinds: Kinds<(HeapId, u32)> = Kinds::default();
        let mut known = Pairs::for_things(profile.stacks.count() as usize + 1);
        let mut groups: Vec<Self> = Vec::new();
        let mut stack = Vec::new();
        let number_of = |(first, sample): (u32, Sample)| {
            if sample.flags.contains(SampleFlags::UNTRACKED) || !selector.passes(&sample) {
                return NONE;
            }
            let kind = kinds.number((sample.heap, sample.type_id));
            let number = known.number(sample.stack.0, kind);
            if (number as usize) < groups.len() {
                return number;
            }
            let is_passed = selector.passes_its_stack(&sample, &mut stack);
            let charged = is_passed.then(|| {
                let charged = frames.charged_to(&sample, &mut stack);
                // Stacks have some thousand frames at most.
                charged.map_or(0, |(index, _)| index as u32)
            });
            groups.push(Self { first, charged });
            number
        };
        let of_sample = (0..).zip(&profile.samples).map(number_of).collect();
        (groups, of_sample)
    }
}

impl<'a> Sites<'a> {
    /// Of the samples that are selected.
    pub fn of(profile: &'a Profile, selection: &Selection) -> Self {
        let frames = Frames::of(profile);
        let Numbers { of_sample, count } = Numbers::of(profile, &frames, selection);
        let mut starts = vec![0u32; count + 1];
        for &site in of_sample.iter().filter(|&&site| site != NONE) {
            starts[site as usize + 1] += 1;
        }
        for site in 1..starts.len() {
            starts[site] += starts[site - 1];
        }
        let mut next = starts.clone();
        let mut samples = vec![0; starts.last().copied().unwrap_or(0) as usize];
        for (index, &site) in (0..).zip(&of_sample) {
            if site != NONE {
                let place = &mut next[site as usize];
                samples[*place as usize] = index;
                *place += 1;
            }
        }
        Self {
            profile,
            frames,
            jars: Jars::of(profile),
            samples,
            starts,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The samples of a site.
    pub fn samples(&self, site: usize) -> impl Iterator<Item = Sample> + use<'_, 'a> {
        let profile = self.profile;
        self.indices(site).map(|index| profile.samples.at(index))
    }

    /// The same as indices into the profile's.
    pub fn indices(&self, site: usize) -> impl ExactSizeIterator<Item = usize> {
        let range = self.starts[site] as usize..self.starts[site + 1] as usize;
        self.samples[range].iter().map(|&index| index as usize)
    }

    /// The functions that let a sample go, a few of them, from the first one outside the allocator and the standard library
    /// outwards; `None` if the agent did not look. `stack` is working memory.
    pub fn freed_in(&self, index: usize, stack: &mut Vec<FrameId>) -> Option<Vec<&str>> {
        const FEW: usize = 3;
        let of = self.profile.free_stack(index)?;
        self.frames.fill(of, stack);
        let heap = self.profile.samples.at(index).heap;
        let charged = self.frames.charged(heap, stack)?;
        let name = |id: &FrameId| self.frames.frame(*id).function.as_str();
        let above = &stack[charged..];
        let own: Vec<&str> = (above.iter())
            .filter(|id| !self.frames.is_library(**id))
            .map(name)
            .take(FEW)
            .collect();
        Some(match own.is_empty() {
            true => above.iter().map(name).take(FEW).collect(),
            false => own,
        })
    }

    /// The names of a site, with the lines of the stack that holds most.
    pub fn describe(&self, site: usize, is_live: impl Fn(&Sample) -> bool) -> Option<Site> {
        self.described(&self.typical(site, is_live)?)
    }

    /// The same with the lines of any stack: its functions are those of all.
    pub fn describe_functions(&self, site: usize) -> Option<Site> {
        self.described(&self.samples(site).next()?)
    }

    fn described(&self, sample: &Sample) -> Option<Site> {
        let profile = self.profile;
        let mut stack: Vec<FrameId> = Vec::new();
        self.frames.fill(sample.stack, &mut stack);
        let charged = self.frames.charged(sample.heap, &stack)?;
        let frames = stack[charged..].iter().map(|id| self.frames.frame(*id));
        let heap = profile.vm.heaps.get(&sample.heap);
        Some(Site {
            function: self.frames.frame(stack[charged]).clone(),
            own: (stack[charged..].iter())
                .map(|id| self.frames.frame(*id))
                .find(|frame| is_own(profile, &self.jars, frame))
                .cloned(),
            stack: frames.map(|frame| frame.label().into_owned()).collect(),
            heap: heap
                .filter(|_| sample.heap != HeapId::MALLOC)
                .map(|heap| heap.name.clone()),
            type_name: type_of(profile, sample).map(str::to_owned),
        })
    }
}

impl Sites<'_> {
    /// The first sample with the stack that has most of the live sample points of a site, or of all if none is live: its stacks
    /// differ in their lines, and what a function allocates first may be none of what it keeps.
    fn typical(&self, site: usize, is_live: impl Fn(&Sample) -> bool) -> Option<Sample> {
        let mut stacks: FxHashMap<StackId, usize> = FxHashMap::default();
        // By stack: live points, all points, first sample.
        let mut sums: Vec<(u64, u64, usize)> = Vec::new();
        for index in self.indices(site) {
            let sample = self.profile.samples.at(index);
            let place = *stacks.entry(sample.stack).or_insert(sums.len());
            if place == sums.len() {
                sums.push((0, 0, index));
            }
            let points = u64::from(sample.points);
            sums[place].0 += if is_live(&sample) { points } else { 0 };
            sums[place].1 += points;
        }
        // Of equals the first one.
        let most = (sums.iter().rev()).max_by_key(|(live, all, _)| (*live, *all));
        most.map(|&(_, _, index)| self.profile.samples.at(index))
    }
}

fn type_of<'a>(profile: &'a Profile, sample: &Sample) -> Option<&'a str> {
    let outcome = sample.outcome()?;
    profile.vm.type_name(sample.heap, &outcome)
}
