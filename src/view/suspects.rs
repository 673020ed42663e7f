//! The findings of `leaks`, each with the sites of the page that it is about.

use allocsample_leaks::{Findings, json};
use allocsample_profile::Profile;
use allocsample_report::Filter;
use serde_json::{Value, json};

use crate::sites::{Sites, number};

/// Cards that anybody reads.
const MOST_CARDS: usize = 60;

/// What `leaks --format json` says of the worst, how many there are of each verdict, and which sites they are.
pub(crate) struct Suspects {
    pub value: Value,
    findings: Findings,
}

impl Suspects {
    pub fn of(profile: &Profile) -> Self {
        let findings = Findings::worst(profile, &Filter::all(), MOST_CARDS);
        let mut value = json::leaks(profile, &findings);
        value["counts"] = findings
            .counts
            .iter()
            .map(|(verdict, count)| json!([verdict.word(), count]))
            .collect();
        Self { value, findings }
    }

    pub fn find_in(&mut self, sites: &Sites) {
        if let Some(all) = self.value["suspects"].as_array_mut() {
            for (suspect, finding) in all.iter_mut().zip(&self.findings.sites) {
                let heap = finding.heap.as_deref().unwrap_or("malloc");
                suspect["sites"] = json!(sites_of(sites, heap, &finding.stack));
            }
        }
    }
}

/// A finding's stack is that of function names, from the one that is charged to the root.
fn sites_of(sites: &Sites, heap: &str, stack: &[String]) -> Vec<u32> {
    let name = |function: u32| sites.functions.get(function as usize).map(|it| &it.0);
    let is_it = |site: &crate::sites::Site| {
        sites.heaps[site.heap as usize] == heap
            && name(sites.function_of(site)) == stack.first()
            && sites
                .path(site.charged)
                .map(|node| name(node.function))
                .eq(stack.iter().map(Some))
    };
    let numbered = sites.sites.iter().enumerate();
    numbered
        .filter(|(_, site)| is_it(site))
        .map(|(index, _)| number(index))
        .collect()
}
