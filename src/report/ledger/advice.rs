//! What gives memory back that malloc keeps.

use super::{Held, Holder};
use crate::units;

/// Less than this part of malloc's memory is not worth a word.
const MATERIAL: f64 = 0.05;
/// Nor is so little in all.
const LEAST_BYTES: f64 = (1 << 20) as f64;
/// With so many arenas, they may be the cause.
const MANY_ARENAS: usize = 4;
/// A site that holds less is one of many.
const MOST: f64 = 0.5;
/// Holding so much of it alone, it is the only cause there.
const ALONE: f64 = 0.5;

/// Sentences, most effective first. None if malloc keeps little.
pub fn of(held: &Held) -> Vec<String> {
    let parts = &held.parts;
    let is_material = |bytes: f64| bytes >= LEAST_BYTES && bytes >= MATERIAL * parts.sum() as f64;
    let mut advice: Vec<(f64, String)> = Vec::new();
    let returnable = parts.returnable as f64;
    if is_material(returnable) {
        let text = format!(
            "malloc_trim(0) returns {} to the system: call it when the program has freed much",
            units::bytes(returnable)
        );
        advice.push((returnable, text));
    }
    let others = || held.arenas.iter().filter(|it| !it.is_main);
    let in_others: f64 = others().map(|it| it.parts.free() as f64).sum();
    if others().count() >= MANY_ARENAS
        && is_material(in_others)
        && in_others >= MOST * parts.free() as f64
    {
        let text = format!(
            "{} of the free memory is divided among {} arenas, each of which serves its own threads only: MALLOC_ARENA_MAX=2 in the environment has them share",
            units::bytes(in_others),
            others().count(),
        );
        advice.push((in_others, text));
    }
    let in_pages = parts.held as f64;
    if is_material(in_pages) {
        advice.push((in_pages, of_holders(held, in_pages)));
    }
    let cached = parts.cached as f64;
    if is_material(cached) {
        let text = format!(
            "threads cache {} of free blocks: GLIBC_TUNABLES=glibc.malloc.tcache_count=0 in the environment ends that, and costs time",
            units::bytes(cached)
        );
        advice.push((cached, text));
    }
    advice.sort_by(|a, b| b.0.total_cmp(&a.0));
    advice.into_iter().map(|(_, text)| text).collect()
}

fn of_holders(held: &Held, bytes: f64) -> String {
    let kept = format!(
        "{} stay whatever is called, because live blocks lie on the same pages",
        units::bytes(bytes)
    );
    let largest = held.holders.first().filter(|it| is_sure(held, it));
    match largest {
        Some(holder) if holder.alone_bytes.value() >= ALONE * holder.free_bytes.value() => format!(
            "{kept}: {} is alone on most of its pages; allocate its blocks together, or before the ones that are freed",
            holder.name()
        ),
        Some(holder) => format!(
            "{kept}: most of it is held by {}; allocate its blocks together, apart from those that are freed",
            holder.name()
        ),
        None if held
            .holders
            .first()
            .is_none_or(|it| may_hold_most(held, it)) =>
        {
            format!("{kept}; there are too few samples to say which sites hold them")
        }
        None => format!("{kept}; no single site holds most of it"),
    }
}

/// Whether a site holds most of it, and has enough samples to say so.
fn is_sure(held: &Held, holder: &Holder) -> bool {
    held.share(holder).0 >= MOST && held.is_known(holder)
}

/// Whether a site could hold most of it, within twice the standard error.
fn may_hold_most(held: &Held, holder: &Holder) -> bool {
    let (share, error) = held.share(holder);
    share + 2.0 * error.unwrap_or(0.0) >= MOST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::text::{Options, write_holders};
    use allocsample_heapwalk::Parts;
    use allocsample_profile::{Frame, StackId};
    use allocsample_sampling::Estimate;

    const MIB: f64 = (1 << 20) as f64;

    /// Blocks hold 100 MiB. Every site has a name, a number of samples, and the MiB that one sample stands for.
    fn held_by(sites: &[(&str, u64, f64)]) -> Held {
        let holder = |&(name, samples, mib): &(&str, u64, f64)| {
            let bytes = mib * MIB;
            let all = samples as f64 * bytes;
            Holder {
                frame: Some(Frame {
                    function: name.into(),
                    file: None,
                    line: 0,
                    module: String::new(),
                    is_symbolized: true,
                    file_end: None,
                }),
                stack: StackId::EMPTY,
                blocks: Estimate::from_parts(samples as f64, Some(1.0), samples),
                block_bytes: Estimate::from_parts(64.0, Some(1.0), samples),
                free_bytes: Estimate::from_parts(
                    all,
                    Some(samples as f64 * bytes * bytes),
                    samples,
                ),
                alone_bytes: Estimate::ZERO,
            }
        };
        let mut parts = Parts::default();
        parts.held = 100 << 20;
        let holders: Vec<Holder> = sites.iter().map(holder).collect();
        let mut attributed = Estimate::ZERO;
        holders.iter().for_each(|it| attributed += it.free_bytes);
        Held {
            parts,
            arenas: Vec::new(),
            holders,
            attributed,
            rounding: Estimate::ZERO,
            found: 0,
            gone: 0,
            pieces: Vec::new(),
        }
    }

    fn printed(held: &Held) -> String {
        let mut out = Vec::new();
        write_holders(held, &Options::new(crate::Width::new(None)), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_site_has_a_share_only_if_its_samples_are_enough_for_one() {
        // One sample may stand for more than there is.
        let held = held_by(&[("rare", 1, 221.0)]);
        let text = printed(&held);
        assert!(!text.contains("rare") && !text.contains("221"), "{text}");
        assert!(text.contains("too few samples"), "{text}");
        assert!(of_holders(&held, 100.0 * MIB).contains("too few samples to say"));

        let held = held_by(&[("often", 80, 1.0), ("rare", 2, 9.0)]);
        let text = printed(&held);
        assert!(text.contains("80 % (± 9 %) by often"), "{text}");
        assert!(!text.contains("rare"), "{text}");
        assert!(text.contains("too few samples"), "{text}");
        assert!(of_holders(&held, 100.0 * MIB).contains("held by often"));

        let held = held_by(&[("a", 20, 1.0), ("b", 18, 1.0)]);
        let text = printed(&held);
        assert!(text.contains("by a:") && text.contains("by b:"), "{text}");
        assert!(!text.contains("too few samples"), "{text}");
        assert!(of_holders(&held, 100.0 * MIB).contains("no single site"));
    }
}
