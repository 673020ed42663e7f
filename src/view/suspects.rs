//! The findings of `leaks`, each with the sites of the page that it is about.

use allocsample_leaks::{Findings, json};
use allocsample_profile::Profile;
use allocsample_report::Selection;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::sites::{Sites, number};

/// Cards that anybody reads.
const MOST_CARDS: usize = 60;

/// What `leaks --format json` says of the worst, how many there are of each verdict, and which sites they are.
pub(crate) struct Suspects {
    pub value: Value,
    pub findings: Findings,
}

impl Suspects {
    pub fn of(profile: &Profile) -> Self {
        let findings = Findings::worst(profile, &Selection::default(), MOST_CARDS);
        let mut value = json::leaks(profile, &findings).into_value();
        value["counts"] = findings
            .counts
            .iter()
            .map(|(verdict, count)| json!([verdict.word(), count]))
            .collect();
        Self { value, findings }
    }

    pub fn find_in(&mut self, sites: &Sites) {
        let names = Names::of(sites);
        if let Some(all) = self.value["suspects"].as_array_mut() {
            for (suspect, finding) in all.iter_mut().zip(&self.findings.sites) {
                let heap = finding.heap.as_deref().unwrap_or("malloc");
                suspect["sites"] = json!(names.sites_of(heap, &finding.stack));
            }
        }
    }
}

/// The page's sites by the names of functions, which is how a finding tells its stack.
struct Names<'a> {
    sites: &'a Sites,
    /// The number of each name, and that of the name of each function: some have the same.
    numbers: FxHashMap<&'a str, u32>,
    of_function: Vec<u32>,
    /// The sites that are charged to functions of a name.
    charged: FxHashMap<Option<u32>, Vec<u32>>,
}

impl<'a> Names<'a> {
    fn of(sites: &'a Sites) -> Self {
        let mut names = Self {
            sites,
            numbers: FxHashMap::default(),
            of_function: Vec::with_capacity(sites.functions.len()),
            charged: FxHashMap::default(),
        };
        for (name, _) in &sites.functions {
            let next = number(names.numbers.len());
            let known = *names.numbers.entry(name).or_insert(next);
            names.of_function.push(known);
        }
        for (index, site) in (0..).zip(&sites.sites) {
            let name = names.name(sites.function_of(site));
            names.charged.entry(name).or_default().push(index);
        }
        names
    }

    fn name(&self, function: u32) -> Option<u32> {
        self.of_function.get(function as usize).copied()
    }

    /// Those of a stack from the function that is charged to the root.
    fn sites_of(&self, heap: &str, stack: &[String]) -> Vec<u32> {
        let number = |name: &String| self.numbers.get(name.as_str()).copied();
        let stack: Option<Vec<u32>> = stack.iter().map(number).collect();
        // A name that no function of the page has.
        let Some(stack) = stack else {
            return Vec::new();
        };
        let is_it = |&&index: &&u32| {
            let site = &self.sites.sites[index as usize];
            let path = self.sites.path(site.charged);
            self.sites.heaps[site.heap as usize] == heap
                && path
                    .map(|node| self.name(node.function))
                    .eq(stack.iter().map(|&name| Some(name)))
        };
        let charged = self.charged.get(&stack.first().copied());
        charged
            .into_iter()
            .flatten()
            .filter(is_it)
            .copied()
            .collect()
    }
}
