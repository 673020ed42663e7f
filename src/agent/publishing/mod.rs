//! Writes to the profile: records in the ring, definitions for every profile, and counts of lost records.

pub(crate) mod definitions;
mod intervals;
mod lost_before;

use core::sync::atomic::Ordering;

use allocsample_record::{
    Definition, DefinitionRecord, HeapId, LostReason, MAX_NAME_BYTES, Note, RingRecord,
};

use crate::config::Bridges;
use crate::os::file::File;
use crate::recording::{self, DrainState, Recording};
use crate::setup::Setup;
use definitions::Definitions;
use intervals::Intervals;
use lost_before::LostBefore;

/// Writes to the current recording, and keeps what later ones must begin with.
pub struct Publisher {
    pub(crate) setup: Setup,
    definitions: Definitions,
    intervals: Intervals,
    lost_before: LostBefore,
}

impl Publisher {
    /// Nothing is defined, and nothing lost.
    pub const fn new() -> Self {
        Self {
            setup: Setup::new(),
            definitions: Definitions::new(),
            intervals: Intervals::new(),
            lost_before: LostBefore::new(),
        }
    }

    /// In a forked child: the losses were the parent's.
    pub(crate) fn restart(&self) {
        self.lost_before.clear();
        self.intervals.restart();
    }

    /// What every recording begins with.
    pub(crate) fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Writes what was defined while the recording began: before it was visible to all threads.
    pub(crate) fn write_late_definitions(&self, recording: &Recording) {
        if let Ok(file) = File::open_to_append(recording.path.as_c_str()) {
            self.definitions.write(&file, recording.definitions_to);
        }
    }

    /// Notes every bridge that found its runtime and did not join it.
    pub(crate) fn note_bridges(&self, recording: &Recording) {
        if self.setup.config().bridges == Bridges::None {
            recording.note(Note::NotJoined, b"all: --runtime none");
        }
        if self.setup.config().joins_embedded {
            recording.note(Note::Embedded, b"");
        }
        self.note_late_bridges(recording);
    }

    /// Notes those that have come since. Any thread; whoever takes a number notes that bridge.
    pub(crate) fn note_late_bridges(&self, recording: &Recording) {
        loop {
            let index = recording.noted_bridges.load(Ordering::Relaxed);
            let mut detail = [0; 256];
            let length = (self.setup.hooks().not_joined)(index, &mut detail);
            let Some(detail @ [_, ..]) = detail.get(..length) else {
                break;
            };
            let (seen, order) = (index + 1, Ordering::Relaxed);
            let taken = recording
                .noted_bridges
                .compare_exchange(index, seen, order, order);
            if taken.is_ok() {
                recording.note(Note::NotJoined, detail);
            }
        }
    }

    /// Counts samples or records that were lost, in the recording or, if there is none, for the next one.
    pub(crate) fn count_lost(&self, reason: LostReason, events: u64, bytes: u64) {
        match recording::current() {
            Some(recording) => recording.count_lost(reason, events, bytes),
            None if reason.is_sample_missing() => self.lost_before.count(bytes),
            None => {}
        }
    }

    /// Counts a sample that is due before there is a recording.
    pub(crate) fn count_lost_before_recording(&self, bytes: u64) {
        self.lost_before.count(bytes);
    }

    /// Moves the count of samples that were lost before the recording began into the recording, once.
    pub(crate) fn write_lost_before(&self, recording: &Recording) {
        self.lost_before.write(recording);
    }

    /// Writes a record, waiting for space if the settings say so; counts it as lost if there is none.
    pub(crate) fn push_or_wait(&self, record: &impl RingRecord) -> bool {
        let Some(recording) = recording::current() else {
            return false;
        };
        let is_written = self.push_waiting(recording, record);
        if !is_written {
            recording.count_lost(LostReason::FreeRingFull, 1, 0);
        }
        is_written
    }

    /// Writes a record, waiting for space if the settings say so; false, and nothing is counted, if there is none.
    pub(crate) fn push_waiting(&self, recording: &Recording, record: &impl RingRecord) -> bool {
        while !recording.push(record) {
            if !self.wait_for_space(recording, true) {
                return false;
            }
        }
        true
    }

    /// Waits until the drain thread has made room, as the settings say. False: there is none.
    pub(crate) fn wait_for_space(
        &self,
        recording: &Recording,
        may_hold_loader_locks: bool,
    ) -> bool {
        self.set_drain_to_work(recording, may_hold_loader_locks);
        recording.wait_for_space(self.setup.config().on_full)
    }

    /// Wakes the drain thread, or starts it if this is a good moment.
    pub(crate) fn set_drain_to_work(&self, recording: &Recording, may_hold_loader_locks: bool) {
        if !recording.is_current() {
            return;
        }
        match recording.drain_state() {
            DrainState::Running => recording.nudge_drain(),
            DrainState::None if !may_hold_loader_locks && recording.claim_drain_start() => {
                self.start_drain(recording)
            }
            _ => {}
        }
    }

    /// Starts the drain thread, whose start the caller has claimed.
    pub(crate) fn start_drain(&self, recording: &Recording) {
        if !(self.setup.hooks().start_drain)(recording) {
            recording.set_drain_state(DrainState::Failed);
            recording.note(Note::NoDrainThread, b"the system refused a thread");
            recording.let_go();
        }
    }

    /// Keeps a record that every profile of the process must have, and writes it into the present one. False: there is no
    /// room for it.
    pub(crate) fn define(&self, record: &impl RingRecord) -> bool {
        let is_kept = self.definitions.keep(record);
        match recording::current() {
            Some(_) => self.push_or_wait(record),
            None => is_kept,
        }
    }

    /// A name with its number. False: there is no room for it.
    pub fn define_name(
        &self,
        kind: Definition,
        heap: HeapId,
        id: u32,
        value: u32,
        name: &[u8],
        detail: &[u8],
    ) -> bool {
        let cut = |text| -> &[u8] {
            let text: &[u8] = text;
            text.get(..MAX_NAME_BYTES).unwrap_or(text)
        };
        let record = DefinitionRecord {
            kind,
            heap,
            id,
            value,
            name: cut(name),
            detail: cut(detail),
        };
        // A thread's number is this recording's alone.
        if kind == Definition::Thread {
            return recording::current().is_some_and(|recording| recording.push(&record));
        }
        self.define(&record)
    }
}

#[cfg(test)]
mod tests;
