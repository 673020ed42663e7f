//! Fates of samples in collected heaps: the virtual machine asks for pending samples and resolves them.

use core::sync::atomic::Ordering;

use allocsample_record::{Fate, FateRecord, LostReason, SampleId};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::hooks::heap::Heap;
use crate::hooks::nursery::{HookSlot, NurseryState, Object};
use crate::os::clock;
use crate::os::vector::Vector;
use crate::publishing::Publisher;
use crate::recording;
use crate::shim::Caller;

/// Mirror of `allocsample_pending`: a sample whose fate is not known.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The sample.
    pub id: u64,
    /// Its place in the list.
    pub slot: u64,
    /// Address of the object.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its type, 0 if it is not known.
    pub type_id: u32,
    /// [`Pending::RESOLVED`], [`Pending::LATE`]
    state: u32,
}

impl Pending {
    /// A collection has resolved it.
    const RESOLVED: u32 = 1;
    /// Its thread has ended, and no collection has looked at it.
    const LATE: u32 = 2;

    pub(crate) fn new(id: SampleId, object: &Object) -> Self {
        Self {
            id: id.0,
            slot: 0,
            address: object.address,
            size: object.size,
            type_id: object.type_id,
            state: 0,
        }
    }

    pub(crate) fn is_resolved(&self) -> bool {
        self.state & Self::RESOLVED != 0
    }

    fn is_late(&self) -> bool {
        self.state & Self::LATE != 0
    }

    /// The same sample for the heap's list, when its thread ends.
    pub(crate) fn late(self) -> Self {
        Self {
            state: Self::LATE,
            ..self
        }
    }
}

/// Mirror of `allocsample_resolution`: the answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The sample.
    pub id: u64,
    /// Its place in the list, as in [`Pending`].
    pub slot: u64,
    /// Address of the object now, if it lives.
    pub address: u64,
    /// Hash of the content; 0 for none.
    pub content_hash: u64,
    /// Type of the object; 0 for "as before".
    pub type_id: u32,
    /// Number of a [`Fate`].
    pub fate: u32,
}

const _: () = assert!(size_of::<Pending>() == 40 && size_of::<Resolution>() == 40);

impl Agent {
    /// Copies samples of a nursery that wait for a minor collection; returns how many.
    pub fn pending_young(
        &self,
        heap: &Heap,
        slot: &HookSlot,
        to: &mut [Pending],
        cursor: &mut u64,
    ) -> usize {
        slot.with(|state| {
            self.renew(heap, state);
            copy_pending(state.young.as_slice(), to, cursor, |_| true)
        })
        .unwrap_or(0)
    }

    /// Takes the answers of a minor collection; returns how many were expected.
    pub fn resolve_young(
        &self,
        heap: &Heap,
        slot: &HookSlot,
        resolutions: &[Resolution],
        gc: u64,
    ) -> usize {
        slot.with(|state| {
            self.renew(heap, state);
            let young = state.young.as_mut_slice();
            let time_ns = clock::monotonic_ns();
            let mut taken = 0;
            for resolution in resolutions {
                let Some(pending) = claim(young, resolution, |_| true) else {
                    continue;
                };
                taken += 1;
                // May wait for space: not with the old samples locked.
                let fate = self.publisher.write_fate(pending, resolution, gc, time_ns);
                if matches!(fate, Fate::Alive | Fate::Promoted) {
                    let survivor = Pending {
                        state: 0,
                        ..*pending
                    };
                    heap.with_old(|old| heap.keep_old(&self.publisher, old, survivor));
                }
            }
            taken
        })
        .unwrap_or(0)
    }

    /// Records that the block at this address is about to be freed.
    pub fn heap_freed(&self, thread: &ShimThread, heap: &Heap, address: u64, caller: &Caller) {
        self.heap_freed_at(thread, heap, address, clock::monotonic_ns(), caller);
    }

    /// The same for a block that was freed at `time_ns`, CLOCK_MONOTONIC in nanoseconds.
    pub fn heap_freed_at(
        &self,
        thread: &ShimThread,
        heap: &Heap,
        address: u64,
        time_ns: u64,
        caller: &Caller,
    ) {
        let Some(id) = self.blocks.of(heap).take(address) else {
            return;
        };
        if self.frees_are_over() {
            return;
        }
        self.write_death(thread, id, time_ns, caller);
        (self.setup.hooks().on_heap_freed)(address);
    }

    /// Records that the block is about to move.
    pub fn heap_moved(&self, heap: &Heap, from: u64, to: u64) {
        if let Some(id) = self.blocks.of(heap).take(from)
            && !self.blocks.of(heap).insert(to, id)
        {
            self.publisher.count_lost(LostReason::LiveTableFull, 1, 0);
        }
    }
}

impl Heap {
    /// Copies samples of threads that have ended, which wait for a minor collection like their young ones did.
    pub fn pending_late(&self, to: &mut [Pending], cursor: &mut u64) -> usize {
        self.with_old(|old| {
            if *cursor == 0 {
                old.retain(|pending| !pending.is_resolved());
            }
            copy_pending(old.as_slice(), to, cursor, Pending::is_late)
        })
    }

    /// Copies samples of a heap that wait for a major collection; returns how many.
    pub fn pending_old(&self, to: &mut [Pending], cursor: &mut u64) -> usize {
        self.with_old(|old| {
            if *cursor == 0 {
                old.retain(|pending| !pending.is_resolved());
            }
            copy_pending(old.as_slice(), to, cursor, |_| true)
        })
    }

    /// Takes the answers of a minor collection about samples of threads that have ended; returns how many were expected.
    pub fn resolve_late(
        &self,
        publisher: &Publisher,
        resolutions: &[Resolution],
        gc: u64,
    ) -> usize {
        self.resolve_listed(publisher, resolutions, gc, Pending::is_late)
    }

    /// Takes the answers of a major collection; returns how many were expected.
    pub fn resolve_old(&self, publisher: &Publisher, resolutions: &[Resolution], gc: u64) -> usize {
        self.resolve_listed(publisher, resolutions, gc, |_| true)
    }

    fn resolve_listed(
        &self,
        publisher: &Publisher,
        resolutions: &[Resolution],
        gc: u64,
        is_asked: impl Fn(&Pending) -> bool,
    ) -> usize {
        let time_ns = clock::monotonic_ns();
        let mut taken = 0;
        for resolution in resolutions {
            let is_alive = matches!(
                Fate::from_number(resolution.fate),
                Some(Fate::Alive | Fate::Promoted)
            );
            let claimed = self.with_old(|old| {
                let pending = claim(old.as_mut_slice(), resolution, &is_asked)?;
                let before = *pending;
                if is_alive {
                    pending.address = resolution.address;
                    pending.state = 0;
                } else {
                    self.open.fetch_sub(1, Ordering::Relaxed);
                }
                Some(before)
            });
            let Some(mut pending) = claimed else {
                continue;
            };
            taken += 1;
            // One that has survived before is nothing to tell.
            if !is_alive || pending.is_late() {
                // May wait for space: not with the old samples locked.
                publisher.write_fate(&mut pending, resolution, gc, time_ns);
            }
        }
        taken
    }

    /// Gives up all pending samples of the heap; those of a nursery at the next call with it.
    pub fn discard(&self, publisher: &Publisher) {
        self.count_discard();
        let time_ns = clock::monotonic_ns();
        self.with_old(|old| {
            for pending in old
                .as_slice()
                .iter()
                .filter(|pending| !pending.is_resolved())
            {
                self.open.fetch_sub(1, Ordering::Relaxed);
                publisher.write_unknown_fate(pending, time_ns);
            }
            old.clear();
        });
    }

    /// Gives up young samples from before the last [`Heap::discard`].
    pub(crate) fn give_up_young(&self, publisher: &Publisher, state: &mut NurseryState) {
        let discards = self.discards();
        if state.discards != discards {
            state.discards = discards;
            let time_ns = clock::monotonic_ns();
            let young = state.young.as_slice().iter();
            for pending in young.filter(|pending| !pending.is_resolved()) {
                publisher.write_unknown_fate(pending, time_ns);
            }
            state.young.clear();
        }
    }

    /// Number of samples that wait for a major collection. Any thread at any time.
    pub fn old_count(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn keep_old(
        &self,
        publisher: &Publisher,
        old: &mut Vector<Pending>,
        pending: Pending,
    ) {
        if old.push(pending) {
            self.open.fetch_add(1, Ordering::Relaxed);
        } else {
            publisher.count_lost(LostReason::LiveTableFull, 1, 0);
        }
    }
}

impl Publisher {
    /// Writes the answer about a pending sample, and returns it.
    pub(super) fn write_fate(
        &self,
        pending: &mut Pending,
        resolution: &Resolution,
        gc: u64,
        time_ns: u64,
    ) -> Fate {
        let fate = Fate::from_number(resolution.fate)
            .filter(|&fate| fate != Fate::Open)
            .unwrap_or(Fate::Unknown);
        if resolution.type_id != 0 {
            pending.type_id = resolution.type_id;
        }
        pending.address = resolution.address;
        self.push_fate(&FateRecord {
            time_ns,
            sample: SampleId(pending.id),
            fate,
            type_id: pending.type_id,
            gc,
            content_hash: resolution.content_hash,
        });
        fate
    }

    /// Writes that nobody will say what becomes of a pending sample.
    pub(super) fn write_unknown_fate(&self, pending: &Pending, time_ns: u64) {
        self.push_fate(&FateRecord {
            time_ns,
            sample: SampleId(pending.id),
            fate: Fate::Unknown,
            type_id: pending.type_id,
            gc: 0,
            content_hash: 0,
        });
    }

    /// Writes the type, not 0, of a live sample. False: there is no room.
    pub fn write_type(&self, sample: SampleId, type_id: u32) -> bool {
        let typed = FateRecord::of_type(sample, type_id, clock::monotonic_ns());
        let is_written = typed
            .zip(recording::current())
            .map(|(typed, recording)| self.push_waiting(recording, &typed));
        is_written == Some(true)
    }

    fn push_fate(&self, record: &FateRecord) {
        self.push_or_wait(record);
    }
}

/// Finds the sample of a resolution by its slot and marks it resolved. `None`: it is another one, or is resolved already.
fn claim<'a>(
    list: &'a mut [Pending],
    resolution: &Resolution,
    is_asked: impl Fn(&Pending) -> bool,
) -> Option<&'a mut Pending> {
    let slot = usize::try_from(resolution.slot).ok()?;
    let pending = list.get_mut(slot)?;
    if pending.id != resolution.id || pending.is_resolved() || !is_asked(pending) {
        return None;
    }
    pending.state |= Pending::RESOLVED;
    Some(pending)
}

fn copy_pending(
    list: &[Pending],
    to: &mut [Pending],
    cursor: &mut u64,
    is_asked: impl Fn(&Pending) -> bool,
) -> usize {
    // Not by skipping: a collection with many batches would take the square of their number.
    let rest = usize::try_from(*cursor)
        .ok()
        .and_then(|start| list.get(start..));
    let mut open = (*cursor..).zip(rest.unwrap_or(&[]));
    let mut copied = 0;
    for place in to.iter_mut() {
        let Some((slot, pending)) =
            open.find(|(_, pending)| !pending.is_resolved() && is_asked(pending))
        else {
            *cursor = list.len() as u64;
            return copied;
        };
        *place = Pending { slot, ..*pending };
        *cursor = slot + 1;
        copied += 1;
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Samples with ascending ids from 100 on, of which some are resolved or late.
    fn list(states: &[u32]) -> Vec<Pending> {
        let object = |number| Object {
            address: 0x1000 + 16 * number,
            size: 16,
            type_id: 3,
        };
        (0..)
            .zip(states)
            .map(|(number, &state)| Pending {
                state,
                ..Pending::new(SampleId(100 + number), &object(number))
            })
            .collect()
    }

    fn answer(id: u64, slot: u64) -> Resolution {
        Resolution {
            id,
            slot,
            address: 0,
            content_hash: 0,
            type_id: 0,
            fate: Fate::Dead as u32,
        }
    }

    proptest! {
        /// Whatever the size of the machine's buffer, it gets each open sample once, with a slot by which it is found again.
        #[test]
        fn batches_hold_each_open_sample_once(
            states in prop::collection::vec(0..4_u32, 0..40),
            capacity in 1..7_usize,
            only_late: bool,
        ) {
            let mut list = list(&states);
            let is_asked = |pending: &Pending| !only_late || pending.is_late();
            let open: Vec<u64> = list
                .iter()
                .filter(|pending| !pending.is_resolved() && is_asked(pending))
                .map(|pending| pending.id)
                .collect();
            let (mut cursor, mut ids) = (0, Vec::new());
            let mut buffer = std::vec![Pending::new(SampleId(0), &Object { address: 0, size: 0, type_id: 0 }); capacity];
            loop {
                let copied = copy_pending(&list, &mut buffer, &mut cursor, is_asked);
                prop_assert!(copied <= capacity);
                if copied == 0 {
                    break;
                }
                for pending in buffer.iter().take(copied) {
                    ids.push(pending.id);
                    // Answered at once, which must not disturb the batches to come.
                    let claimed = claim(&mut list, &answer(pending.id, pending.slot), is_asked);
                    prop_assert_eq!(claimed.map(|found| found.id), Some(pending.id));
                }
            }
            prop_assert_eq!(ids, open);
        }
    }

    #[test]
    fn a_second_answer_a_wrong_id_and_a_wrong_slot_are_refused() {
        let mut list = list(&[0, 0, Pending::LATE]);
        assert!(claim(&mut list, &answer(101, 1), |_| true).is_some());
        assert!(claim(&mut list, &answer(101, 1), |_| true).is_none());
        assert!(claim(&mut list, &answer(101, 0), |_| true).is_none());
        assert!(claim(&mut list, &answer(100, 3), |_| true).is_none());
        assert!(claim(&mut list, &answer(100, u64::MAX), |_| true).is_none());
        assert!(claim(&mut list, &answer(100, 0), Pending::is_late).is_none());
        assert!(claim(&mut list, &answer(102, 2), Pending::is_late).is_some());
    }

    #[test]
    fn the_sample_of_an_ended_thread_is_open_and_late() {
        let resolved = Pending {
            state: Pending::RESOLVED,
            ..*list(&[0]).first().unwrap()
        };
        let late = resolved.late();
        assert!(late.is_late() && !late.is_resolved());
        assert_eq!((late.id, late.address), (resolved.id, resolved.address));
    }
}
