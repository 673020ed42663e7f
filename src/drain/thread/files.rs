//! Work on the profile's files: makes room or waits for it, copies, continues in another file.

use std::sync::atomic::Ordering;

use allocsample_agent::os::{clock, futex};
use allocsample_agent::recording::DrainRequest;
use allocsample_record::{ChunkEncoder, ChunkKind, Note, PartEdge, PartRecord, RingRecord};
use allocsample_ring::request;

use super::{CHUNK_WORDS, Drain, DrainError};
use crate::follow::Follower;
use crate::rotation::Border;
use crate::writer::ChunkWriter;

impl Drain {
    /// Carries out requests about the files, and what is due by the settings.
    pub(super) fn do_file_work(&mut self) -> Result<(), DrainError> {
        let ticket = self.recording.ticket();
        if let Some((what, generation)) = self.recording.take_asked() {
            self.drain_all()?;
            match what {
                request::ROTATE => self.rotate(true)?,
                request::RESET => self.rotate(false)?,
                request::SNAPSHOT => {
                    self.update_figures()?;
                    self.copy();
                }
                // The agent's figures must be in the file, too.
                _ => self.update_figures()?,
            }
            self.recording.ring.set_obeyed(generation);
        }
        self.recording.tickets_are_done(ticket);
        // The head of the ring, not its tail: records that wait in the ring count as part of the current file, too.
        let (now_ns, head) = (clock::monotonic_ns(), self.recording.ring.head());
        if self.rotation.is_due(now_ns, self.writer.length(), head) {
            self.rotate(true)?;
        }
        Ok(())
    }

    /// Writes a chunk. If the disk or the limit of all files together has no room for it, the oldest file is deleted
    /// first. If there is none and the disk is full, this waits for room.
    pub(super) fn write(
        &mut self,
        append: impl Fn(&mut ChunkWriter) -> std::io::Result<()>,
    ) -> Result<(), DrainError> {
        while let Err(error) = append(&mut self.writer) {
            if is_for_want_of_room(&error) && self.rotation.drop_oldest() {
                self.writer.set_most_bytes(self.rotation.room());
            } else if !is_disk_full(&error) || !self.wait_for_room(&error) {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Waits a while for room on the disk; false if the process or this thread is to end. Meanwhile samples stay in
    /// the ring; those that do not fit are counted there.
    fn wait_for_room(&mut self, error: &std::io::Error) -> bool {
        const RETRY_NS: u64 = 2_000_000_000;
        const LOOK_MS: u32 = 100;
        if !std::mem::replace(&mut self.is_full_told, true) {
            let reason = error.to_string();
            self.recording.note(Note::DiskFull, reason.as_bytes());
        }
        let deadline_ns = clock::monotonic_ns() + RETRY_NS;
        while clock::monotonic_ns() < deadline_ns {
            // As in `run`: read before the request, so that no wake is missed.
            let wake = self.recording.wake.load(Ordering::Acquire);
            if self.recording.drain_request() != DrainRequest::Work || self.is_last_thread() {
                return false;
            }
            futex::wait(&self.recording.wake, wake, Some(LOOK_MS));
        }
        true
    }

    /// Copies the file as it is. If the disk has no room for a copy, a note says so.
    fn copy(&self) {
        let aside = self.rotation.aside();
        if let Err(error) = self.writer.copy(&aside, &self.rotation.copy_path()) {
            let reason = error.to_string();
            self.recording.note(Note::NoSnapshot, reason.as_bytes());
        }
    }

    /// Continues in another file. If that fails, the present file continues and the rotation is tried again later.
    pub(super) fn rotate(&mut self, keeps: bool) -> Result<(), DrainError> {
        self.is_rotating = true;
        // Above the limit for a moment, until the oldest file is deleted.
        self.writer.set_most_bytes(None);
        let rotated = self.rotate_without_limit(keeps);
        self.is_rotating = false;
        self.make_files_fit();
        rotated
    }

    /// Deletes the oldest files until the rest is within the limit.
    fn make_files_fit(&mut self) {
        let is_too_long = |drain: &Self| {
            let room = drain.rotation.room();
            room.is_some_and(|room| room < drain.writer.length())
        };
        while is_too_long(self) && self.rotation.drop_oldest() {}
        self.writer.set_most_bytes(self.rotation.room());
    }

    /// Makes room before a chunk that may not fit: deletes the oldest file, or, if there is none, begins the current
    /// one again with live blocks alone.
    pub(super) fn make_room(&mut self) -> Result<(), DrainError> {
        const CHUNK_BYTES: u64 = CHUNK_WORDS * 8;
        let is_rotated = self.agent.config().is_rotated();
        let has_room = |drain: &Self| {
            let room = drain.rotation.room().filter(|_| is_rotated);
            room.is_none_or(|room| drain.writer.length() + CHUNK_BYTES <= room)
        };
        while !has_room(self) {
            if self.rotation.drop_oldest() {
                if !self.is_rotating {
                    self.writer.set_most_bytes(self.rotation.room());
                }
            } else if !self.is_rotating && self.rotation.has_grown(self.consumer.position()) {
                let position = self.consumer.position();
                self.rotate(false)?;
                if self.consumer.position() == position && self.rotation.has_grown(position) {
                    return Ok(());
                }
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    fn rotate_without_limit(&mut self, mut keeps: bool) -> Result<(), DrainError> {
        self.agent.write_totals(self.recording);
        self.drain_all()?;
        self.update_figures()?;
        while let Err(error) = self.try_to_rotate(keeps) {
            drop(std::fs::remove_file(self.rotation.aside()));
            if is_for_want_of_room(&error) && self.rotation.drop_oldest() {
                continue;
            }
            // The two files do not fit together: the current one would be deleted as the oldest.
            if error.kind() == std::io::ErrorKind::FileTooLarge && std::mem::take(&mut keeps) {
                continue;
            }
            self.rotation.put_off(clock::monotonic_ns());
            if !std::mem::replace(&mut self.rotation.is_reported, true) {
                let reason = error.to_string();
                self.recording.note(Note::NotRotated, reason.as_bytes());
            }
            break;
        }
        Ok(())
    }

    fn try_to_rotate(&mut self, keeps: bool) -> std::io::Result<()> {
        // Most of the file now, while the ring is empty; its end below.
        self.writer.sync()?;
        let follower = self.follow()?;
        let position = self.consumer.position();
        let (time_ns, wall_ns) = (clock::monotonic_ns(), clock::wall_ns());
        let number = self.rotation.number();
        let part = |number, edge| PartRecord {
            time_ns,
            wall_ns,
            number,
            edge,
        };
        let mut next = self.writer.create_next(&self.rotation.aside())?;
        if keeps {
            let room = self.rotation.room();
            next.set_most_bytes(room.map(|room| room.saturating_sub(self.writer.length())));
        }
        for payload in &follower.definitions {
            next.append_definitions(payload, position)?;
        }
        let mut encoder = ChunkEncoder::new(0);
        let begin = part(number + 1, PartEdge::Begin);
        let last_stacks = self.interner.last_stacks();
        let append = |encoder: &mut ChunkEncoder| next.append_carried(&encoder.take(), position);
        let numbers = (follower.carry).write(&begin, last_stacks, &mut encoder, append)?;
        next.append_lost(ChunkKind::LostBefore, &self.lost, position)?;
        let figures = self.recording.ring.figures();
        next.append_figures(ChunkKind::FiguresBefore, &figures, position)?;
        let length = self.writer.length();
        let mut words = [0; PartRecord::WORDS];
        if part(number, PartEdge::End)
            .encode_into(&mut words)
            .is_some()
        {
            self.encoder.words(PartRecord::KIND, &words);
        }
        let raw = self.encoder.take();
        self.writer.append_events(&raw, position..position)?;
        let border = Border {
            time_ns,
            wall_ns,
            bytes: self.writer.length(),
        };
        let first_bytes = next.length();
        let changed = self
            .writer
            .sync()
            .and_then(|()| next.sync())
            .and_then(|()| self.rotation.change(&border, first_bytes, position, keeps));
        if let Err(error) = changed {
            // The recording continues after all.
            self.writer.cut(length)?;
            return Err(error);
        }
        self.writer = next;
        self.encoder = encoder;
        self.interner.begin_file(&numbers);
        self.residency.begin_file();
        Ok(())
    }

    /// Reads the file so far, and empties the ring in between before it overflows.
    pub(super) fn follow(&mut self) -> std::io::Result<Follower> {
        /// Maximum number of passes. Without it, the file would never end under a load that we cannot catch up with.
        const ROUNDS: u32 = 4;
        let mut follower = Follower::default();
        let mut rounds = 0;
        while follower.step(&self.writer)? {
            let ring = &self.recording.ring;
            if rounds < ROUNDS && ring.used_words() > ring.capacity_words() / 2 {
                rounds += 1;
                self.drain_all().map_err(|DrainError::Write(error)| error)?;
            }
        }
        Ok(follower)
    }
}

/// Whether a write failed because of a limit or a full disk, so that deleting older files helps.
pub(super) fn is_for_want_of_room(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
}

/// Whether the disk is full, which may pass. A limit on the process itself does not.
pub(super) fn is_disk_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), QuotaExceeded | StorageFull)
}
