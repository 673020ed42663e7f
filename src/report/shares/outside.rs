//! The same where the process was read from outside: what malloc's heap holds, and what is known by its content.

use allocsample_heapwalk::{Content, Known};
use allocsample_profile::{HeapKind, MemoryMap, MemoryMapping, Profile};

use super::{Share, end_of, has_objects_in_place, is_sum, of, of_python};
use crate::ledger::{Held, Outside, lost_by_malloc};

/// The share of every mapping of a reading at about the time at which the process was read.
pub(crate) fn of_read(profile: &Profile, map: &MemoryMap, outside: &Outside) -> Vec<Share> {
    let mut shares = of(profile, map);
    let walked = match &outside.held {
        Some(held) => add_walked(map, held, &mut shares),
        None => vec![false; shares.len()],
    };
    add_known(profile, map, &outside.contents.known, &walked, &mut shares);
    shares
}

/// The mapping that an address lies in. A small one is in the sum of its kind.
fn index_of(map: &MemoryMap, address: u64) -> Option<usize> {
    let mappings = &map.mappings;
    let after = mappings.partition_point(|it| it.start <= address);
    let listed = after
        .checked_sub(1)
        .filter(|&index| !is_sum(&mappings[index]) && address < end_of(&mappings[index]));
    listed.or_else(|| {
        let is_unnamed = |it: &MemoryMapping| is_sum(it) && map.name(it).is_empty();
        mappings.iter().position(is_unnamed)
    })
}

/// The walk says what is in blocks, and what malloc has besides. Returns which mappings it has walked.
fn add_walked(map: &MemoryMap, held: &Held, shares: &mut [Share]) -> Vec<bool> {
    let mappings = &map.mappings;
    // What is in blocks, and all that is malloc's.
    let mut walked = vec![(0, 0); mappings.len()];
    for piece in &held.pieces {
        if let Some(index) = index_of(map, piece.start) {
            let (in_use, all) = &mut walked[index];
            *in_use += piece.parts.in_use;
            *all += piece.parts.sum() - piece.parts.lost + lost_by_malloc(piece);
        }
    }
    let in_use: u64 = held.parts.in_use;
    let requested = 1.0 - held.rounding.value() / (in_use as f64).max(1.0);
    let is_walked = walked.iter().map(|(_, all)| *all > 0).collect();
    for ((share, mapping), (in_use, all)) in shares.iter_mut().zip(mappings).zip(walked) {
        if all == 0 {
            continue;
        }
        let others = share.objects + share.embedded;
        let anonymous = (mapping.anonymous_bytes as f64 - others).max(0.0);
        let malloc = (in_use as f64 * requested.clamp(0.0, 1.0)).min(anonymous);
        let all = (all as f64).min(anonymous);
        // A sum may have large blocks of their own mappings besides.
        if is_sum(mapping) {
            share.malloc = share.malloc.max(malloc).min(anonymous);
            share.malloc_held = (all - malloc).min(anonymous - share.malloc);
            continue;
        }
        share.malloc = malloc;
        share.malloc_held = all - malloc;
        // What else may lie in the heap of `brk` is not malloc's.
        share.objects_held = 0.0;
        share.embedded_held = 0.0;
    }
    is_walked
}

/// What is known of a mapping, in bytes that are resident.
#[derive(Clone, Copy, Default)]
struct Sums {
    malloc: f64,
    malloc_live: f64,
    python: f64,
    python_live: f64,
}

/// Counted where there were estimates. `is_walked` says which mappings have blocks of malloc besides, as the walk has counted them.
fn add_known(
    profile: &Profile,
    map: &MemoryMap,
    known: &[Known],
    is_walked: &[bool],
    shares: &mut [Share],
) {
    if known.is_empty() {
        return;
    }
    let mut sums = vec![Sums::default(); map.mappings.len()];
    for it in known {
        let Some(index) = index_of(map, it.start) else {
            continue;
        };
        let sums = &mut sums[index];
        let (resident, live) = (it.resident_bytes as f64, it.live_bytes as f64);
        match it.content {
            Content::MallocBlock => {
                sums.malloc += resident;
                sums.malloc_live += live;
            }
            Content::PythonPool => {
                sums.python += resident;
                sums.python_live += live;
            }
            _ => {}
        }
    }
    let has_pools = sums.iter().any(|it| it.python > 0.0);
    // Where objects were not known to be, there are none then.
    if has_pools && has_python_alone(profile) {
        for share in &mut *shares {
            share.objects = 0.0;
            share.objects_held = 0.0;
        }
    }
    let rows = map.mappings.iter().zip(sums).zip(is_walked);
    for (share, ((mapping, sums), &is_walked)) in shares.iter_mut().zip(rows) {
        share.replace(mapping, &sums, is_walked);
    }
}

impl Share {
    fn replace(&mut self, mapping: &MemoryMapping, known: &Sums, is_walked: bool) {
        let mut rest = mapping.anonymous_bytes as f64;
        let mut take = |wanted: f64| {
            let taken = wanted.clamp(0.0, rest.max(0.0));
            rest -= taken;
            taken
        };
        let estimated = *self;
        if known.malloc > 0.0 {
            let held = known.malloc - known.malloc_live;
            if is_walked {
                self.malloc = take(estimated.malloc + known.malloc_live);
                self.malloc_held = take(estimated.malloc_held + held);
            } else if is_sum(mapping) {
                // Of others in the sum there may be samples.
                self.malloc = take(estimated.malloc.max(known.malloc_live));
                self.malloc_held = take(estimated.malloc_held.max(held));
            } else {
                self.malloc = take(known.malloc_live);
                self.malloc_held = take(held);
            }
        } else {
            take(estimated.malloc + estimated.malloc_held);
        }
        if known.python > 0.0 {
            self.objects = take(known.python_live);
            self.objects_held = take(known.python - known.python_live);
        } else {
            self.objects = take(estimated.objects);
            self.objects_held = take(estimated.objects_held);
        }
        self.embedded = take(estimated.embedded);
        self.embedded_held = take(estimated.embedded_held);
    }
}

/// Whether the objects whose place is not known are CPython's, and small ones that lie in pools.
fn has_python_alone(profile: &Profile) -> bool {
    let of_python = of_python(profile);
    let mut heaps =
        (profile.vm.heaps.iter()).filter(|(_, heap)| heap.kind != Some(HeapKind::Allocator));
    !of_python.is_empty()
        && heaps.all(|(id, _)| of_python.contains(id))
        && !has_objects_in_place(profile)
}
