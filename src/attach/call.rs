//! The whole: a thread is borrowed, starts a helper thread, and the helper calls the agent's function.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

use crate::borrow::{Forbidden, Standing};
use crate::helper::{self, Data, NO_DESCRIPTOR, NOT_ANSWERED, PAGE, REGION_BYTES, Word};
use crate::image::{Memory, thread_local_bytes};
use crate::parts::{Functions, find_functions, find_instructions, present_function};
use crate::remote::{Borrowed, Instructions, Place, put_back};
use crate::rendezvous::Rendezvous;
use crate::target::Target;
use crate::tracee::{Tracee, Until};
use crate::{AttachError, Reply, Request};

/// What the names contain under which the library is opened: by it the agent knows that it is to wait, and no other library has
/// such a name.
const TO_WAIT: &[u8] = b"/././";
/// How long we look for a thread that can be borrowed, in seconds.
const SEARCH_S: u64 = 10;
/// How long we wait for the helper thread, in seconds.
const HELPER_S: u64 = 60;
/// So many milliseconds of that pass between two looks for a deadlock.
const BETWEEN_LOOKS: u32 = 100;
/// How long one thread may take to stop.
const ONE_THREAD: Duration = Duration::from_millis(100);
/// How long one thread is looked at again and again, which slows it down, before another one is tried.
const TRYING: Duration = Duration::from_millis(50);

struct Work<'a> {
    target: &'a Target,
    request: &'a Request<'a>,
    memory: Memory,
    functions: Functions,
    instructions: Instructions,
    forbidden: Forbidden,
    /// The agent's function, if the agent is there.
    present: Option<u64>,
    /// Threads that were asked to stop and have not yet: on a busy machine, or inside of a system call that does not
    /// end. They are let go when they do.
    late: RefCell<Vec<Tracee>>,
    rendezvous: RefCell<Rendezvous>,
}

/// The memory that was mapped for the helper.
struct Helper {
    region: u64,
}

/// See [`crate::call`].
pub(crate) fn call(target: &Target, request: &Request<'_>) -> Result<Reply, AttachError> {
    let pid = target.pid();
    let status = target.status(pid)?;
    if status.lists("x86_Thread_features", "shstk") {
        return Err(AttachError::ShadowStack(pid));
    }
    let memory =
        Memory::of(pid).map_err(|error| target.explain(error, "its memory cannot be reached"))?;
    let mappings = target.mappings()?;
    let present = present_function(target, &memory, &mappings, request.function)?;
    if present.is_none() {
        let library = request.library.ok_or(AttachError::NoAgent(pid))?;
        fs::metadata(library).map_err(|error| unreadable(library, error))?;
        if !target.has_proc() {
            return Err(AttachError::NoProc(pid));
        }
    }
    let work = Work {
        functions: find_functions(target, &memory, &mappings)?,
        instructions: find_instructions(target, &memory, &mappings)?,
        forbidden: Forbidden::find(&memory, mappings),
        target,
        request,
        memory,
        present,
        late: RefCell::new(Vec::new()),
        rendezvous: RefCell::default(),
    };
    let helper = work.start_helper()?;
    work.hear(&helper)
}

fn unreadable(library: &Path, error: io::Error) -> AttachError {
    AttachError::Library {
        path: library.to_owned(),
        error,
    }
}

impl Work<'_> {
    /// Looks for a thread that can be borrowed, and lets it start the helper.
    fn start_helper(&self) -> Result<Helper, AttachError> {
        let pid = self.target.pid();
        let since = Instant::now();
        let mut refusal = None;
        while since.elapsed() < Duration::from_secs(SEARCH_S) {
            for thread in self.target.threads()? {
                if self.is_late(thread) {
                    continue;
                }
                match self.try_thread(thread) {
                    Ok(Some(helper)) => return Ok(helper),
                    Ok(None) => {}
                    // Of one thread only, perhaps.
                    Err(
                        error @ (AttachError::SeccompFilter(_) | AttachError::SeccompStrict(_)),
                    ) => {
                        refusal = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            self.end_deadlock();
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(AttachError::NoThread(pid, SEARCH_S))
    }

    /// Lets go of the threads that have stopped late; whether this one is not among them.
    fn is_late(&self, thread: i32) -> bool {
        let mut late = self.late.borrow_mut();
        let waiting = late.drain(..).filter_map(|tracee| tracee.release().err());
        *late = waiting.collect();
        late.iter().any(|tracee| tracee.thread() == thread)
    }

    /// `None`: not this one, not now.
    fn try_thread(&self, thread: i32) -> Result<Option<Helper>, AttachError> {
        let status = match self.target.status(thread) {
            Ok(status) => status,
            // It has just ended.
            Err(_) if thread != self.target.pid() => return Ok(None),
            Err(error) => return Err(error),
        };
        match status.number("Seccomp") {
            Some(1) => return Err(AttachError::SeccompStrict(self.target.pid())),
            Some(2) if !self.request.despite_seccomp => {
                return Err(AttachError::SeccompFilter(self.target.pid()));
            }
            _ => {}
        }
        if status.letter() == 'Z' {
            return Ok(None);
        }
        // A thread that has just ended is not to be traced either.
        let has_ended = || {
            let status = self.target.status(thread);
            status.map_or(true, |status| matches!(status.letter(), 'Z' | 'X'))
        };
        let explain = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(None),
            Some(libc::EPERM) if has_ended() => Ok(None),
            _ => Err(self.target.explain(error, "it cannot be traced")),
        };
        let mut tracee = match Tracee::seize(thread) {
            Ok(tracee) => tracee,
            Err(error) => return explain(error),
        };
        // From the stop on, until the thread goes on as it was.
        let signals = SigSet::all();
        let before = signals.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
        let tried = self.try_stopped(&mut tracee);
        if let Err(tracee) = tracee.release() {
            self.late.borrow_mut().push(tracee);
        }
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        match tried {
            Ok(Ok(helper)) => Ok(helper),
            Ok(Err(error)) => Err(error),
            Err(error) => explain(error),
        }
    }

    fn try_stopped(&self, tracee: &mut Tracee) -> io::Result<Result<Option<Helper>, AttachError>> {
        if !tracee.settle(ONE_THREAD)? {
            return Ok(Ok(None));
        }
        match self.forbidden.look_at(&self.memory, &tracee.registers()?) {
            Standing::Free => {}
            Standing::Busy if self.wait_for_it(tracee)? => {}
            Standing::Busy | Standing::Waiting => return self.let_go(tracee),
        }
        let room = tracee.registers()?.rsp;
        let room = self.forbidden.end_of_stack(room).unwrap_or(u64::MAX);
        let taken = Borrowed::take(self.target, &self.memory, tracee, self.instructions, room)?;
        let Some(mut borrowed) = taken else {
            return self.let_go(tracee);
        };
        let started = self.on_borrowed(&mut borrowed);
        borrowed.put_back()?;
        Ok(started)
    }

    /// Not this thread, not now.
    fn let_go(&self, tracee: &Tracee) -> io::Result<Result<Option<Helper>, AttachError>> {
        if !tracee.is_gone() {
            put_back(tracee, tracee.registers()?, self.target)?;
        }
        Ok(Ok(None))
    }

    /// Looks at the thread again and again, until it can be borrowed. Not by leading it instruction by instruction: the
    /// kernel lets a thread whose tracer is killed then run into a trap, and the process dies of it.
    fn wait_for_it(&self, tracee: &mut Tracee) -> io::Result<bool> {
        let since = Instant::now();
        for turn in 0_u64.. {
            if since.elapsed() > TRYING {
                break;
            }
            put_back(tracee, tracee.registers()?, self.target)?;
            tracee.resume(Until::Anything)?;
            // Not in step with what the thread does.
            std::thread::sleep(Duration::from_micros(1 + turn * 37 % 101));
            if !tracee.settle(ONE_THREAD)? {
                return Ok(false);
            }
            match self.forbidden.look_at(&self.memory, &tracee.registers()?) {
                Standing::Free => return Ok(true),
                Standing::Busy => {}
                Standing::Waiting => return Ok(false),
            }
        }
        Ok(false)
    }

    fn on_borrowed(&self, borrowed: &mut Borrowed<'_>) -> Result<Option<Helper>, AttachError> {
        let pid = self.target.pid();
        let failed = |call| move |error| AttachError::RemoteCall { pid, call, error };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let region = borrowed
            .system_call(
                libc::SYS_mmap,
                [0, REGION_BYTES, read_write, flags, u64::MAX, 0],
            )
            .map_err(failed("mmap"))?;
        let prepared = self.prepare(borrowed, region);
        let created = prepared.and_then(|(data, descriptor)| {
            let read_execute = (libc::PROT_READ | libc::PROT_EXEC) as u64;
            let created = borrowed
                .system_call(libc::SYS_mprotect, [region, PAGE, read_execute, 0, 0, 0])
                .map_err(failed("mprotect"))
                .and_then(|_| self.create_thread(borrowed, region, data));
            if let (Ok(Some(Err(_))) | Err(_), Some(descriptor)) = (&created, descriptor) {
                let _ = borrowed.system_call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
            }
            created
        });
        match created {
            Ok(Some(Ok(()))) => Ok(Some(Helper { region })),
            // It did not come back from starting a thread, and was put back; what it had begun may lie in the region.
            Ok(None) => Ok(None),
            Ok(Some(Err(error))) => {
                self.unmap(borrowed, region);
                Err(AttachError::NoHelper { pid, error })
            }
            Err(error) => {
                self.unmap(borrowed, region);
                Err(error)
            }
        }
    }

    fn unmap(&self, borrowed: &mut Borrowed<'_>, region: u64) {
        // The thread is put back in any case; what stays mapped harms nobody.
        let _ = borrowed.system_call(libc::SYS_munmap, [region, REGION_BYTES, 0, 0, 0, 0]);
    }

    /// Fills the region. Returns where the helper's words are, and the library's descriptor in the process.
    fn prepare(
        &self,
        borrowed: &mut Borrowed<'_>,
        region: u64,
    ) -> Result<(u64, Option<u64>), AttachError> {
        let pid = self.target.pid();
        let failed = |error| AttachError::RemoteCall {
            pid,
            call: "mmap",
            error,
        };
        let mut data = Data::new(region);
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
        let descriptor = match (self.present, self.request.library) {
            (Some(function), _) => {
                data.set(Word::Function, function);
                None
            }
            (None, Some(library)) => {
                let (descriptor, name) = self.open_library(borrowed, region, library)?;
                data.point_to(Word::Library, &name);
                Some(descriptor)
            }
            (None, None) => return Err(AttachError::NoAgent(pid)),
        };
        data.set(Word::Descriptor, descriptor.unwrap_or(NO_DESCRIPTOR));
        let encoded = data
            .encode()
            .ok_or_else(|| failed(io::Error::other("the settings are too long")));
        let written = encoded.and_then(|encoded| {
            self.memory
                .write(region, helper::code())
                .and_then(|()| self.memory.write(data.start, &encoded))
                .map_err(failed)
        });
        if let (Err(_), Some(descriptor)) = (&written, descriptor) {
            let _ = borrowed.system_call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
        }
        written.map(|()| (data.start, descriptor))
    }

    /// Opens the library's file if the process sees it too, otherwise a copy of it in memory. Returns the descriptor and the
    /// name for `dlopen`.
    ///
    /// The name stays in the loader's list, and debuggers open what stands there, in their own process. So it is the file's
    /// own path where there is one; a copy's descriptor gets a number that hardly any process uses, because a debugger that
    /// opened a pipe of its own by that name would wait for ever.
    fn open_library(
        &self,
        borrowed: &mut Borrowed<'_>,
        region: u64,
        library: &Path,
    ) -> Result<(u64, Vec<u8>), AttachError> {
        let pid = self.target.pid();
        let name_at = region + PAGE;
        let write_name = |name: &[u8]| {
            let mut name = name.to_vec();
            name.push(0);
            self.memory.write(name_at, &name)
        };
        let unreadable = |error| unreadable(library, error);
        // Under another name the agent would not be found again.
        let has_its_name = library.ends_with("liballocsample.so");
        if has_its_name && self.target.sees(library) {
            write_name(library.as_os_str().as_bytes()).map_err(unreadable)?;
            let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
            let here = i64::from(libc::AT_FDCWD).cast_unsigned();
            let opened = borrowed.system_call(libc::SYS_openat, [here, name_at, flags, 0, 0, 0]);
            if let (Ok(descriptor), Some(directory)) = (opened, library.parent()) {
                let mut name = directory.as_os_str().as_bytes().to_vec();
                name.extend_from_slice(TO_WAIT);
                name.extend_from_slice(b"liballocsample.so");
                return Ok((descriptor, name));
            }
        }
        let bytes = fs::read(library).map_err(unreadable)?;
        write_name(b"liballocsample.so").map_err(unreadable)?;
        let flags = u64::from(libc::MFD_CLOEXEC);
        let descriptor = borrowed
            .system_call(libc::SYS_memfd_create, [name_at, flags, 0, 0, 0, 0])
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EMFILE) => AttachError::NoDescriptor(pid),
                _ => AttachError::RemoteCall {
                    pid,
                    call: "memfd_create",
                    error,
                },
            })?;
        let written = File::options()
            .write(true)
            .open(format!("/proc/{pid}/fd/{descriptor}"))
            .and_then(|mut file| file.write_all(&bytes));
        if let Err(error) = written {
            let _ = borrowed.system_call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
            return Err(unreadable(error));
        }
        let descriptor = self.renumber(borrowed, descriptor);
        let mut name = b"/proc/self/fd".to_vec();
        name.extend_from_slice(TO_WAIT);
        name.extend_from_slice(descriptor.to_string().as_bytes());
        Ok((descriptor, name))
    }

    /// Gives the descriptor a high number; it keeps its own where the process's limit allows none.
    fn renumber(&self, borrowed: &mut Borrowed<'_>, descriptor: u64) -> u64 {
        let renumbered = [1023, 255, 63].into_iter().find_map(|lowest| {
            let command = libc::F_DUPFD_CLOEXEC as u64;
            let arguments = [descriptor, command, lowest, 0, 0, 0];
            borrowed.system_call(libc::SYS_fcntl, arguments).ok()
        });
        let Some(renumbered) = renumbered else {
            return descriptor;
        };
        // Open twice until the helper ends, if this fails.
        let _ = borrowed.system_call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
        renumbered
    }

    /// `None`: it did not come back.
    fn create_thread(
        &self,
        borrowed: &mut Borrowed<'_>,
        region: u64,
        data: u64,
    ) -> Result<Option<io::Result<()>>, AttachError> {
        let stack = region + REGION_BYTES;
        // At the stack's high end: the new thread's handle.
        let handle = stack - 64;
        let entry = region + helper::entry();
        let place = Place {
            stack: handle,
            return_to: region,
            end: entry,
        };
        let arguments = [handle, 0, entry, data, 0, 0];
        let result = borrowed.function_call(self.functions.pthread_create, arguments, &place);
        let result = result.map_err(|error| AttachError::RemoteCall {
            pid: self.target.pid(),
            call: "pthread_create",
            error,
        })?;
        Ok(result.map(|error| match error as i32 {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }))
    }

    fn end_deadlock(&self) {
        let mut rendezvous = self.rendezvous.borrow_mut();
        let late = rendezvous.look(self.target, &self.memory, &self.forbidden);
        self.late.borrow_mut().extend(late);
    }

    /// Waits for the helper's answer, reads it, and lets the helper go.
    fn hear(&self, helper: &Helper) -> Result<Reply, AttachError> {
        let pid = self.target.pid();
        let place = |word: Word| helper.region + PAGE + 8 * word as u64;
        let read = |word| {
            self.memory
                .word(place(word))
                .map_err(|_| AttachError::Ended(pid))
        };
        let since = Instant::now();
        let mut turns = 0_u32;
        while read(Word::State)? == 0 {
            self.is_late(pid);
            turns += 1;
            if turns.is_multiple_of(BETWEEN_LOOKS) {
                self.end_deadlock();
            }
            if since.elapsed() > Duration::from_secs(HELPER_S) {
                return Err(AttachError::Slow(pid, HELPER_S));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let code = (read(Word::Answer)? as u32).cast_signed();
        let reply = match code {
            NOT_ANSWERED => Err(self.explain_load_error(&match read(Word::LoadError)? {
                0 => "for no reason that its loader would give".to_owned(),
                text => self.memory.text(text),
            })),
            code => Ok(Reply {
                code,
                text: self.memory.text(read(Word::Text)?),
            }),
        };
        self.memory
            .write(place(Word::State), &2_u64.to_le_bytes())
            .map_err(|_| AttachError::Ended(pid))?;
        self.wait_until_unmapped(helper);
        reply
    }

    /// Until the helper is about to end: who looks at the process next finds no thread of ours.
    fn wait_until_unmapped(&self, helper: &Helper) {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(2) && self.memory.word(helper.region).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // What remains is the end of a thread in libc.
        std::thread::sleep(Duration::from_millis(2));
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
