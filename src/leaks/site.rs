//! Samples by site: the functions of a stack, from the one that is charged to the root, and the type if there is one.

use std::collections::HashMap;

use allocsample_profile::{Frame, HeapId, Profile, Sample, SampleFlags, StackId};
use allocsample_report::{Filter, charged_frame};

/// A place in the program that allocates.
#[derive(Clone, Debug)]
pub struct Site {
    /// The function that is charged.
    pub function: Frame,
    /// Functions from it to the root.
    pub stack: Vec<String>,
    /// Name of the heap, unless it is malloc's.
    pub heap: Option<String>,
    /// Type of the objects, where a virtual machine tells.
    pub type_name: Option<String>,
    /// Indices of its samples.
    pub samples: Vec<usize>,
}

/// What tells sites apart.
type Key = (HeapId, Option<String>, Vec<String>);

/// All sites with samples whose ends are known, in the order in which they first allocated.
pub fn all(profile: &Profile, filter: &Filter) -> Vec<Site> {
    // Names are looked up once for each stack and type, not for each sample; `None` is what the filter leaves out.
    let mut known: HashMap<(StackId, u16, HeapId, u32), Option<usize>> = HashMap::new();
    let mut numbers: HashMap<Key, usize> = HashMap::new();
    let mut sites: Vec<Site> = Vec::new();
    for (index, sample) in profile.samples.iter().enumerate() {
        if sample.flags.contains(SampleFlags::UNTRACKED) {
            continue;
        }
        let type_id = sample.outcome.map_or(0, |outcome| outcome.type_id);
        let number = known
            .entry((sample.stack, sample.flags.0, sample.heap, type_id))
            .or_insert_with(|| {
                let site = describe(profile, sample, filter)?;
                let key = (sample.heap, site.type_name.clone(), site.stack.clone());
                Some(*numbers.entry(key).or_insert_with(|| {
                    sites.push(site);
                    sites.len() - 1
                }))
            });
        if let Some(number) = *number {
            sites[number].samples.push(index);
        }
    }
    sites
}

fn describe(profile: &Profile, sample: &Sample, filter: &Filter) -> Option<Site> {
    let frames = profile.stack_frames(sample);
    if !filter.matches(&frames) {
        return None;
    }
    let heap = profile
        .vm
        .heaps
        .get(&sample.heap)
        .filter(|_| sample.heap != HeapId::MALLOC)
        .map(|heap| heap.name.clone());
    let function = charged_frame(profile, sample.heap, &frames)?;
    let stack = frames
        .iter()
        .skip_while(|frame| !std::ptr::eq(*frame, function))
        .map(|frame| frame.function.clone())
        .collect();
    let type_name = sample
        .outcome
        .and_then(|outcome| profile.vm.type_name(sample.heap, &outcome))
        .map(str::to_owned);
    Some(Site {
        function: function.clone(),
        stack,
        heap,
        type_name,
        samples: Vec::new(),
    })
}
