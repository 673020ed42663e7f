//! Begins and ends a recording while the program runs.

use allocsample_record::{ExitHow, Note};

use crate::accounting::thread::ShimThread;
use crate::agent::Agent;
use crate::lifecycle::FINISH_PATIENCE_MS;
use crate::os::clock;
use crate::path::Path;
use crate::recording::{self, DrainRequest, DrainState, Recording};
use crate::spill;
use crate::switch::Switch;

/// After this time, a thread that saw the agent switched on has entered its slow path or left it.
const SETTLE_MS: u32 = 10;
/// Number of further looks for threads in slow paths. One that was left by a jump looks like that for ever.
const LOOKS: u32 = 100;

impl Agent {
    /// Begins the profile now, not with the first sample, so that an attach reports if it cannot. After an error the agent is
    /// off. The thread must be muted.
    pub fn begin_now(&self) -> Result<&'static Recording, &'static str> {
        let begun = self.capture.in_area_once(|area| self.try_to_begin(area));
        let result = match begun {
            Some(Ok(Some(recording))) => Ok(recording),
            Some(Ok(None)) => Err("the disk is too slow"),
            Some(Err(error)) => Err(error.reason),
            None => Err("no memory for the agent"),
        };
        if result.is_err() {
            self.switch.set(Switch::Off);
        }
        result
    }

    /// Starts the drain thread if there is none yet, even if the ring is empty: the drain thread also reads the memory use of
    /// the process. The calling thread must be muted and hold no lock.
    pub fn start_drain_now(&self, recording: &Recording) {
        if recording.drain_state() == DrainState::None && recording.claim_drain_start() {
            self.publisher.start_drain(recording);
        }
    }

    /// Completes the profile and goes idle; the program goes on. Returns the profile's path. `None`: there was nothing
    /// to end, or the process itself is ending.
    ///
    /// Blocks that were sampled are nothing special from here on. The agent can be switched on again, for a profile of
    /// its own.
    pub fn detach(&self, thread: &ShimThread) -> Option<Path> {
        let state = self.switch.get();
        let recording = recording::current();
        if !matches!(state, Switch::On | Switch::Failed) || !self.switch.change(state, Switch::Off)
        {
            return None;
        }
        self.stop_ticks();
        clock::sleep_ms(SETTLE_MS);
        // A record that is begun and not finished would hide those behind it from the drain thread.
        let own = thread.number();
        for _ in 0..LOOKS {
            if !self.accounting.threads.is_any_muted(own) {
                break;
            }
            clock::sleep_ms(SETTLE_MS);
        }
        if let Some(recording) = recording {
            self.write_end(thread, recording, ExitHow::Detached, None, &[]);
            self.drain_to_the_end(recording);
        }
        recording::forget();
        self.epoch_ended();
        self.accounting.threads.clear();
        let recording = recording?;
        recording.let_go();
        Some(recording.path.clone())
    }

    /// Writes everything in the ring. If the disk hangs, the drain thread keeps the ring until it is written.
    fn drain_to_the_end(&self, recording: &Recording) {
        // It waits for records that are being written, which a process that ends need not.
        self.start_drain_now(recording);
        match recording.drain_state() {
            DrainState::Running | DrainState::Starting => {
                match recording.ask_drain(DrainRequest::Finish, FINISH_PATIENCE_MS) {
                    true => (self.setup.hooks().join_drain)(recording),
                    false => (self.setup.hooks().leave_drain)(recording),
                }
            }
            DrainState::None | DrainState::Failed => {
                // If it fails the ring's file stays, and the reader finds the records there.
                spill::finish(
                    recording,
                    self.setup.hooks().compress,
                    self.config().max_size_bytes,
                );
                (self.setup.hooks().leave_drain)(recording);
            }
            DrainState::Done => {}
        }
    }

    /// Notes in the profile that the process was running before.
    pub fn note_attached(
        &self,
        recording: &Recording,
        slots: u64,
        left_alone: u64,
        is_allocator_in_program: bool,
    ) {
        let mut detail = Path::new();
        detail
            .push_decimal(slots)
            .push(b" calls of the allocator redirected");
        if left_alone > 0 {
            detail.push(b", ").push_decimal(left_alone).push(b" not");
        }
        if is_allocator_in_program {
            detail.push(b"; the program calls an allocator of its own past us");
        }
        recording.note(Note::Attached, detail.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test may fail")]

    use super::*;
    use crate::setup::Hooks;
    use crate::trial::{Trial, agent};
    use std::vec::Vec;

    const EVERY: &[(&str, &str)] = &[("INTERVAL", "1"), ("ON_FULL", "drop")];

    #[test]
    fn a_detach_completes_the_profile_and_another_attach_begins_one() {
        let hooks = Hooks {
            // No compression, which a reader would notice, but not this test.
            compress: |from, to| {
                to.get_mut(..from.len())?.copy_from_slice(from);
                Some(from.len())
            },
            ..Hooks::NONE
        };
        let agent = agent!();
        let trial = Trial::begin_with(agent, EVERY, hooks);
        let thread = trial.thread();
        trial.alloc(thread, 0x1000, 24).unwrap();
        let path = agent.detach(thread).unwrap();
        assert!(path.as_bytes().ends_with(b"/app.allocsample"));
        assert_eq!(agent.state(), Switch::Off);
        assert!(recording::current().is_none());
        // The ring is in the file.
        assert!(!trial.directory.join("app.allocsample.ring").exists());
        let bytes = std::fs::metadata(trial.directory.join("app.allocsample"));
        assert!(bytes.unwrap().len() > 200);
        // What was sampled is nothing special any more.
        assert_eq!(agent.take_sampled(0x1000), 0);
        assert_eq!(trial.alloc(thread, 0x2000, 24), None);
        assert!(agent.detach(thread).is_none());
        agent.switch.set(Switch::On);
        assert!(agent.begin_now().is_ok());
        thread.forget();
        trial.alloc(thread, 0x3000, 24).unwrap();
        assert_eq!(trial.samples()[0].thread_bytes, 24);
    }

    #[test]
    fn a_detach_before_the_first_sample_leaves_no_profile() {
        let trial = Trial::begin(agent!(), EVERY);
        assert!(trial.agent.detach(trial.thread()).is_none());
        assert_eq!(trial.agent.state(), Switch::Off);
        assert_eq!(std::fs::read_dir(&trial.directory).unwrap().count(), 0);
    }

    #[test]
    fn an_attach_that_cannot_begin_says_why() {
        let settings = [("INTERVAL", "1"), ("OUTPUT", "/nonexistent/directory/app")];
        let trial = Trial::begin(agent!(), &settings);
        let why = trial.agent.begin_now().err();
        assert_eq!(why, Some("the profile cannot be created"));
        assert_eq!(trial.agent.state(), Switch::Off);
        assert_eq!(trial.agent.begin_now().err(), Some("the disk is too slow"));
    }

    #[test]
    fn an_attach_is_noted_with_what_it_has_redirected() {
        let trial = Trial::begin(agent!(), EVERY);
        let recording = trial.agent.begin_now().unwrap();
        trial.agent.note_attached(recording, 40, 0, false);
        trial.agent.note_attached(recording, 41, 2, true);
        let attached: Vec<Vec<u8>> = (trial.notes().into_iter())
            .filter(|(note, _)| *note == Note::Attached)
            .map(|(_, detail)| detail)
            .collect();
        assert_eq!(attached[0], b"40 calls of the allocator redirected");
        let more = b"41 calls of the allocator redirected, 2 not; the program calls an allocator of its own past us";
        assert_eq!(attached[1], more);
    }
}
