//! The helper's answer: the command waits for it, passes a copy of the library if the helper asks for one, and lets
//! the helper end.

use std::fs::{self, File};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::{Helper, TO_WAIT, Work, unreadable};
use crate::helper::{ANSWERED, END, LEFT, NOT_ANSWERED, WANTS_LIBRARY, WORKING, Word, place};
use crate::image::thread_local_bytes;
use crate::{AttachError, Reply};

/// How long we wait for the helper thread, in seconds.
const HELPER_S: u64 = 60;
/// How long it may take to end, on a busy machine.
const ENDING: Duration = Duration::from_secs(2);

impl Work<'_> {
    /// Waits for the helper's answer, reads it, and lets the helper go.
    pub(super) fn hear(&self, helper: &Helper) -> Result<Reply, AttachError> {
        let pid = self.target.pid();
        let read = |word| self.read(helper, word);
        let since = Instant::now();
        loop {
            match read(Word::State)? {
                ANSWERED => break,
                // The helper gave up waiting, because this command was stopped or got no CPU time. Its answer is
                // still there.
                LEFT => {
                    let has_answered = read(Word::Answer)? as u32 != NOT_ANSWERED.cast_unsigned()
                        || read(Word::LoadError)? != 0;
                    let answer = match has_answered {
                        true => self.answer(helper),
                        false => Err(AttachError::StoodStill(pid)),
                    };
                    // If this fails, the next command retries it.
                    let _ = self.finish_earlier();
                    return answer;
                }
                WANTS_LIBRARY => {
                    if let Err(error) = self.hand_over(helper) {
                        // The helper closes its descriptor and ends.
                        self.end(helper);
                        return Err(error);
                    }
                }
                _ => {}
            }
            self.keep_going();
            if since.elapsed() > Duration::from_secs(HELPER_S) {
                return Err(AttachError::Slow(pid, HELPER_S));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let answer = self.answer(helper);
        self.end(helper);
        answer
    }

    fn answer(&self, helper: &Helper) -> Result<Reply, AttachError> {
        let pid = self.target.pid();
        let read = |word| self.read(helper, word);
        let code = (read(Word::Answer)? as u32).cast_signed();
        match (code, read(Word::CopyError)? as i32) {
            (NOT_ANSWERED, 0) => Err(self.explain_load_error(&match read(Word::LoadError)? {
                0 => "for no reason that its loader would give".to_owned(),
                text => self.memory.text(text),
            })),
            (NOT_ANSWERED, libc::EMFILE) => Err(AttachError::NoDescriptor(pid)),
            (NOT_ANSWERED, error) => {
                Err(self.failed("memfd_create", io::Error::from_raw_os_error(error)))
            }
            (code, _) => Ok(Reply {
                code,
                text: self.memory.text(read(Word::Text)?),
            }),
        }
    }

    fn read(&self, helper: &Helper, word: Word) -> Result<u64, AttachError> {
        let read = self.memory.word(place(helper.region, word));
        read.map_err(|_| self.lost())
    }

    /// Why the helper's memory is missing: the process has ended, or a helper that gave up waiting has unmapped it.
    fn lost(&self) -> AttachError {
        let pid = self.target.pid();
        let status = self.target.status(pid);
        let is_alive = status.is_ok_and(|status| !matches!(status.letter(), 'Z' | 'X'));
        match is_alive {
            true => AttachError::StoodStill(pid),
            false => AttachError::Ended(pid),
        }
    }

    fn set_state(&self, helper: &Helper, state: u64) -> Result<(), AttachError> {
        let place = place(helper.region, Word::State);
        let written = self.memory.write(place, &state.to_le_bytes());
        written.map_err(|_| self.lost())
    }

    /// Writes a copy of the library to the helper's descriptor, and has it go on.
    fn hand_over(&self, helper: &Helper) -> Result<(), AttachError> {
        let pid = self.target.pid();
        let library = self.request.library.ok_or(AttachError::NoAgent(pid))?;
        let unreadable = |error| unreadable(library, error);
        let bytes = fs::read(library).map_err(unreadable)?;
        let descriptor = self.read(helper, Word::Descriptor)?;
        let thread = self.target.number_outside(self.read(helper, Word::Helper)?);
        let thread = thread.unwrap_or(pid);
        File::options()
            .write(true)
            .open(format!("/proc/{pid}/task/{thread}/fd/{descriptor}"))
            .and_then(|mut file| file.write_all(&bytes))
            .map_err(unreadable)?;
        let mut name = b"/proc/self/fd".to_vec();
        name.extend_from_slice(TO_WAIT);
        name.extend_from_slice(descriptor.to_string().as_bytes());
        name.push(0);
        self.memory
            .write(self.read(helper, Word::Library)?, &name)
            .map_err(|_| self.lost())?;
        self.set_state(helper, WORKING)
    }

    /// Lets the helper end and waits until it has ended, so that nobody sees a thread of ours in the process
    /// afterwards.
    fn end(&self, helper: &Helper) {
        let Ok(number) = self.read(helper, Word::Helper) else {
            // It has ended already.
            return;
        };
        let thread = self.target.number_outside(number);
        let _ = self.set_state(helper, END);
        let is_there = || match thread {
            Some(thread) => {
                let found = self.target.number_inside(thread);
                found.is_ok_and(|found| found == number)
            }
            None => self.memory.word(helper.region).is_ok(),
        };
        let since = Instant::now();
        while since.elapsed() < ENDING && is_there() {
            self.keep_going();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn explain_load_error(&self, reason: &str) -> AttachError {
        let pid = self.target.pid();
        if reason.contains("static TLS") {
            let library = self
                .request
                .library
                .and_then(|library| fs::read(library).ok());
            return AttachError::NoStaticTls(pid, thread_local_bytes(&library.unwrap_or_default()));
        }
        // Not the name under which the library was opened.
        let reason = reason.rsplit("/././").next().unwrap_or(reason);
        let reason = reason.split_once(": ").map_or(reason, |(_, reason)| reason);
        AttachError::CannotLoad {
            pid,
            reason: reason.to_owned(),
        }
    }
}
