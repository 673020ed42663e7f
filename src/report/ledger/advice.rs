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
        None => format!("{kept}; no single site holds most of it"),
    }
}

/// Whether a site holds most of it by more than the error.
fn is_sure(held: &Held, holder: &Holder) -> bool {
    let (share, error) = held.share(holder);
    share >= MOST && error.is_some_and(|error| share - 2.0 * error > 0.0)
}
