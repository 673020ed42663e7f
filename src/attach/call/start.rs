//! What the borrowed thread does: it maps memory for the helper, and starts it.
//!
//! The memory is a file in memory, whose name tells the next command what it is if this one is killed. The number of
//! the borrowed thread is written into it before it is mapped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Helper, TO_WAIT, Work};
use crate::AttachError;
use crate::helper::{self, Data, MAGIC, PAGE, REGION_BYTES, Word, place};
use crate::leftover::REGION_NAME;
use crate::limits;
use crate::remote::{Borrowed, Place};
use crate::target::Status;

impl Work<'_> {
    /// `None` if the thread did not return from it and was put back.
    pub(super) fn start_on(
        &self,
        borrowed: &mut Borrowed<'_>,
    ) -> Result<Option<Helper>, AttachError> {
        let pid = self.target.pid();
        let is_filtered = is_filtered(&self.target.status(borrowed.thread())?);
        let data = self.data(self.target.number_inside(borrowed.thread())?, is_filtered)?;
        // What another thread tried in vain.
        let region = match self.spare.take() {
            Some(region) => region,
            None => self.map_region(borrowed, is_filtered)?,
        };
        let written = self.write(borrowed, region, &data);
        let created = written.and_then(|()| self.create_thread(borrowed, region));
        match created {
            Ok(Some(0)) => Ok(Some(Helper { region })),
            Ok(None) => {
                self.spare.set(Some(region));
                Ok(None)
            }
            Ok(Some(error)) => {
                unmap(borrowed, region);
                let error = io::Error::from_raw_os_error(error as i32);
                let remedy = limits::remedy(self.target);
                Err(AttachError::NoHelper { pid, error, remedy })
            }
            Err(error) => {
                unmap(borrowed, region);
                Err(error)
            }
        }
    }

    /// What the helper is to do, started by the thread with this number in the process's own namespace.
    fn data(&self, caller: u64, is_filtered: bool) -> Result<Data, AttachError> {
        let mut data = Data::new();
        data.set(Word::IsFiltered, u64::from(is_filtered));
        data.set(Word::Caller, caller);
        for &(word, address) in &self.functions.for_helper {
            data.set(word, address);
        }
        let mut settings = Vec::new();
        for setting in self.request.settings {
            settings.extend_from_slice(setting.as_bytes());
            settings.push(0);
        }
        data.point_to(Word::Settings, &settings);
        data.point_to(Word::FunctionName, self.request.function.as_bytes());
        data.point_to(Word::CopyName, b"liballocsample.so");
        let library = match (self.present, self.request.library) {
            (Some(function), _) => {
                data.set(Word::Function, function);
                return Ok(data);
            }
            (None, Some(library)) => library,
            (None, None) => return Err(AttachError::NoAgent(self.target.pid())),
        };
        // The name stays in the loader's list, and debuggers open that path in their own process. So it is the file's
        // own path if there is one.
        let directory = library.parent();
        // Under another name the agent would not be found again.
        let has_its_name = library.ends_with("liballocsample.so");
        let mut name = Vec::new();
        if let Some(directory) = directory.filter(|_| has_its_name && self.target.sees(library)) {
            data.point_to(Word::File, library.as_os_str().as_encoded_bytes());
            name.extend_from_slice(directory.as_os_str().as_encoded_bytes());
            name.extend_from_slice(TO_WAIT);
            name.extend_from_slice(b"liballocsample.so");
        }
        data.name_library(&name);
        Ok(data)
    }

    /// Maps a named file, or memory without a name if that fails, for example because no descriptor is free.
    fn map_region(
        &self,
        borrowed: &mut Borrowed<'_>,
        is_filtered: bool,
    ) -> Result<u64, AttachError> {
        let named = match is_filtered {
            true => None,
            false => self.map_named(borrowed),
        };
        let region = match named {
            Some(region) => region,
            None => map(borrowed, None).map_err(|error| self.failed("mmap", error))?,
        };
        if !is_filtered {
            // A child that is forked meanwhile has no use for it.
            let advice = [region, REGION_BYTES, libc::MADV_DONTFORK as u64, 0, 0, 0];
            let _ = borrowed.system_call(libc::SYS_madvise, advice);
        }
        let read_execute = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let code = [region, PAGE, read_execute, 0, 0, 0];
        match borrowed.system_call(libc::SYS_mprotect, code) {
            Ok(_) => Ok(region),
            Err(error) => {
                unmap(borrowed, region);
                Err(self.failed("mprotect", error))
            }
        }
    }

    fn map_named(&self, borrowed: &mut Borrowed<'_>) -> Option<u64> {
        let name = borrowed.lay_down(REGION_NAME).ok()?;
        let flags = u64::from(libc::MFD_CLOEXEC);
        let descriptor = borrowed
            .system_call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0])
            .ok()?;
        let mapped = self.map_file(borrowed, descriptor);
        let _ = borrowed.system_call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
        mapped
    }

    fn map_file(&self, borrowed: &mut Borrowed<'_>, descriptor: u64) -> Option<u64> {
        let (pid, thread) = (self.target.pid(), borrowed.thread());
        let caller = self.target.number_inside(thread).ok()?;
        let path = format!("/proc/{pid}/task/{thread}/fd/{descriptor}");
        let file = File::options().write(true).open(path).ok()?;
        file.set_len(REGION_BYTES).ok()?;
        for (word, value) in [(Word::Magic, MAGIC), (Word::Caller, caller)] {
            file.write_all_at(&value.to_le_bytes(), place(0, word))
                .ok()?;
        }
        let region = map(borrowed, Some(descriptor)).ok()?;
        // The program may have put another file in this place.
        let is_ours = [(Word::Magic, MAGIC), (Word::Caller, caller)]
            .iter()
            .all(|&(word, value)| self.memory.word(place(region, word)).ok() == Some(value));
        if !is_ours {
            unmap(borrowed, region);
            return None;
        }
        Some(region)
    }

    fn write(&self, borrowed: &Borrowed<'_>, region: u64, data: &Data) -> Result<(), AttachError> {
        let mut data = data
            .encode(region)
            .ok_or_else(|| self.failed("mmap", io::Error::other("the settings are too long")))?;
        // The words of a spare region that say more than these would.
        data.resize(data.len().next_multiple_of(8), 0);
        let written = self
            .memory
            .write(region, helper::code())
            .and_then(|()| self.memory.write(place(region, Word::Magic), &data));
        written.map_err(|error| match borrowed.is_gone() {
            true => AttachError::Ended(self.target.pid()),
            false => self.failed("mmap", error),
        })
    }

    /// The result of `pthread_create`; `None` if it did not return.
    fn create_thread(
        &self,
        borrowed: &mut Borrowed<'_>,
        region: u64,
    ) -> Result<Option<u64>, AttachError> {
        let stack = region + REGION_BYTES;
        // At the stack's high end: the new thread's handle.
        let handle = stack - 64;
        let entry = region + helper::entry();
        let at = Place {
            stack: handle,
            return_to: region,
            end: entry,
            has_returned: place(region, Word::HasReturned),
            result: place(region, Word::Result),
        };
        let words = place(region, Word::Magic);
        let arguments = [handle, 0, entry, words, 0, 0];
        let created = borrowed.function_call(self.functions.pthread_create, arguments, &at);
        created.map_err(|error| match error.raw_os_error() {
            // The region is unmapped: the helper has waited for us in vain, and ended.
            Some(libc::EIO) if !borrowed.is_gone() => AttachError::StoodStill(self.target.pid()),
            _ => self.failed("pthread_create", error),
        })
    }

    pub(super) fn failed(&self, call: &'static str, error: io::Error) -> AttachError {
        let pid = self.target.pid();
        AttachError::RemoteCall { pid, call, error }
    }
}

/// Whether a thread is behind a filter of system calls.
fn is_filtered(status: &Status) -> bool {
    status.number("Seccomp").is_some_and(|mode| mode != 0)
}

fn map(borrowed: &mut Borrowed<'_>, descriptor: Option<u64>) -> io::Result<u64> {
    let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let kind = match descriptor {
        Some(_) => libc::MAP_PRIVATE,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let descriptor = descriptor.unwrap_or(u64::MAX);
    let arguments = [0, REGION_BYTES, read_write, kind as u64, descriptor, 0];
    borrowed.system_call(libc::SYS_mmap, arguments)
}

fn unmap(borrowed: &mut Borrowed<'_>, region: u64) {
    // The thread is put back in any case. The next command finds memory that stays mapped.
    let _ = borrowed.system_call(libc::SYS_munmap, [region, REGION_BYTES, 0, 0, 0, 0]);
}
