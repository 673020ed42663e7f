//! What known_sites really did, and how far estimates may be from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::profile::Profile;

/// The truth about one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Allocated.
    pub bytes: u64,
    /// Allocated.
    pub allocations: u64,
    /// Not freed.
    pub live_bytes: u64,
    /// Not freed.
    pub live_blocks: u64,
}

/// The truth about all sites, by function name.
pub type Truth = BTreeMap<String, Known>;

/// The truth as known_sites prints it at its end.
pub fn printed(stdout: &[u8]) -> Truth {
    let document: Value = serde_json::from_slice(stdout).expect("the truth");
    let sites = document.as_object().expect("sites");
    sites
        .iter()
        .map(|(name, site)| {
            let figure = |which: &str| site[which].as_u64().expect("a figure");
            let known = Known {
                bytes: figure("bytes"),
                allocations: figure("allocations"),
                live_bytes: figure("live_bytes"),
                live_blocks: figure("live_blocks"),
            };
            (name.clone(), known)
        })
        .collect()
}

/// The truth as it stood in the file when known_sites was killed. Layout: `struct Truth` there.
pub fn left_behind(file: &Path) -> Truth {
    const NAME_BYTES: usize = 32;
    let bytes = fs::read(file).expect("the truth");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a word"));
    let sites = usize::try_from(word(0)).expect("a small number");
    let threads = usize::try_from(word(8)).expect("a small number");
    let tallies = 16 + sites * NAME_BYTES;
    (0..sites)
        .map(|site| {
            let name = &bytes[16 + site * NAME_BYTES..][..NAME_BYTES];
            let name = String::from_utf8_lossy(name)
                .trim_end_matches('\0')
                .to_owned();
            let mut known = Known::default();
            for thread in 0..threads {
                let tally = tallies + (thread * sites + site) * 32;
                known.bytes += word(tally);
                known.allocations += word(tally + 8);
                known.live_bytes += word(tally).saturating_sub(word(tally + 16));
                known.live_blocks += word(tally + 8).saturating_sub(word(tally + 24));
            }
            (name, known)
        })
        .collect()
}

/// Distance of an estimate from the truth in standard errors; 0 where both are exact and equal.
pub fn z(estimate: f64, truth: f64, stderr: f64) -> f64 {
    let distance = estimate - truth;
    if distance == 0.0 {
        0.0
    } else {
        distance / stderr
    }
}

/// Lists what in a profile is further from the truth than `most` standard errors. `slack` is what each site may be off
/// in bytes besides: what was between an allocation and its entry in the truth when the process was killed.
pub fn deviations(
    profile: &Profile,
    truth: &Truth,
    most: f64,
    slack: impl Fn(&str) -> f64,
) -> Vec<String> {
    let mut deviations = Vec::new();
    for (name, known) in truth {
        let site = profile.site(name);
        let figures = [
            (
                "allocated",
                site.allocated_bytes,
                known.bytes as f64,
                site.allocated_bytes_stderr,
            ),
            (
                "live",
                site.live_bytes,
                known.live_bytes as f64,
                site.live_bytes_stderr,
            ),
        ];
        for (what, estimate, truth, stderr) in figures {
            if (estimate - truth).abs() > most * stderr + slack(name) {
                deviations.push(format!(
                    "{name}: {estimate:.0} bytes {what}, really {truth:.0}, standard error {stderr:.0}, {} samples",
                    site.samples
                ));
            }
        }
    }
    deviations
}
