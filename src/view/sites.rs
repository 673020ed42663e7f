//! Stacks by number: functions once, stacks as a tree.

use std::collections::HashMap;

use allocsample_profile::{HeapId, Profile, Sample, StackId, missing_root};
use allocsample_report::charged_frame;

/// No parent, no function.
pub(crate) const NONE: u32 = u32::MAX;

/// One stack may be charged differently in two heaps.
type Key = (StackId, Option<&'static str>, HeapId);

fn key_of(sample: &Sample) -> Key {
    (sample.stack, missing_root(sample), sample.heap)
}

/// All sites of a profile.
#[derive(Default)]
pub(crate) struct Sites {
    numbers: HashMap<Key, u32>,
    /// Node of the tree and charged function of each site.
    pub sites: Vec<(u32, u32)>,
    /// Parent and function of each node; parents come first.
    pub nodes: Vec<(u32, u32)>,
    /// Name and module of each function.
    pub functions: Vec<(String, u32)>,
    pub modules: Vec<String>,
}

impl Sites {
    pub fn new(profile: &Profile) -> Self {
        let mut sites = Self::default();
        let mut functions: HashMap<(String, String), u32> = HashMap::new();
        let mut modules: HashMap<String, u32> = HashMap::new();
        let mut nodes: HashMap<(u32, u32), u32> = HashMap::new();
        for sample in &profile.samples {
            let key = key_of(sample);
            if sites.numbers.contains_key(&key) {
                continue;
            }
            let frames = profile.stack_frames(sample);
            let mut function = |frame: &allocsample_profile::Frame| {
                let key = (frame.function.clone(), frame.module.clone());
                *functions.entry(key).or_insert_with(|| {
                    let next = number(modules.len());
                    let module = *modules.entry(frame.module.clone()).or_insert_with(|| {
                        sites.modules.push(frame.module.clone());
                        next
                    });
                    sites.functions.push((frame.function.clone(), module));
                    number(sites.functions.len() - 1)
                })
            };
            let charged = charged_frame(profile, sample.heap, &frames).map_or(NONE, &mut function);
            let path: Vec<u32> = frames.iter().rev().map(function).collect();
            let mut node = NONE;
            for function in path {
                node = *nodes.entry((node, function)).or_insert_with(|| {
                    sites.nodes.push((node, function));
                    number(sites.nodes.len() - 1)
                });
            }
            sites.sites.push((node, charged));
            sites.numbers.insert(key, number(sites.sites.len() - 1));
        }
        sites
    }

    /// The site of a sample.
    pub fn of(&self, sample: &Sample) -> u32 {
        self.numbers.get(&key_of(sample)).copied().unwrap_or(0)
    }
}

pub(crate) fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(NONE)
}
