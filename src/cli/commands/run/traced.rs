//! A program whose main thread is traced: it waits for us at every exec and before it ends, when its memory can still be read.
//!
//! Its other threads are not traced, and neither are its children. If this command is killed, the program continues.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use rustix::pipe::PipeFlags;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::inherited::Inherited;

/// Where the program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has become another program, of which nothing has run.
    Exec,
    /// Its main thread is about to end, with the whole program unless that thread ends alone.
    Exit,
}

/// Signals that stop a program. While it is traced, this command must get them after it.
pub const STOPPING: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// What a program is started with.
pub struct Start<'a> {
    pub program: &'a Path,
    pub arguments: &'a [CString],
    pub environment: &'a [CString],
    pub mask: &'a SigSet,
    pub inherited: &'a Inherited,
}

impl Start<'_> {
    /// Starts the program. It waits at its exec, or runs already because the kernel lets nobody trace it.
    pub fn start(&self) -> Result<(Pid, Result<(), Errno>), Errno> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(errno);
        let (gate, gate_key) = pipe()?;
        let (failure, failure_end) = pipe()?;
        let pid = self.fork(&gate, &failure_end, &gate_key)?;
        drop((gate, failure_end));
        let events = Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_TRACEEXIT;
        let tracing = ptrace::seize(pid, events);
        let mut gate_key = std::fs::File::from(gate_key);
        // It waits for this byte.
        let _ = gate_key.write_all(&[1]);
        let is_there = match tracing {
            Ok(()) => reaches_exec(pid),
            Err(_) => true,
        };
        // At the exec its end of the pipe is closed.
        let mut code = [0; 4];
        let mut failure = std::fs::File::from(failure);
        let has_failed = (tracing.is_err() || !is_there) && failure.read_exact(&mut code).is_ok();
        if has_failed {
            let _ = nix::sys::wait::waitpid(pid, None);
            return Err(Errno::from_raw(i32::from_ne_bytes(code)));
        }
        Ok((pid, tracing))
    }

    /// The new process waits for a byte from the gate before it becomes the program.
    fn fork(&self, gate: &OwnedFd, failure: &OwnedFd, key: &OwnedFd) -> Result<Pid, Errno> {
        let program =
            CString::new(self.program.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            let texts = texts.iter().map(|text| text.as_ptr());
            texts.chain([ptr::null()]).collect()
        };
        let arguments = pointers(self.arguments);
        let environment = pointers(self.environment);
        let (gate, failure, key) = (gate.as_raw_fd(), failure.as_raw_fd(), key.as_raw_fd());
        // SAFETY: the child calls nothing but system calls, on what was made before.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            return Errno::result(pid).map(Pid::from_raw);
        }
        let default = |signal: Signal, handler| {
            // SAFETY: these two are no functions that could run.
            unsafe { libc::signal(signal as i32, handler) };
        };
        if !self.inherited.is_sigpipe_ignored {
            default(Signal::SIGPIPE, libc::SIG_DFL);
        }
        if self.inherited.is_sigchld_ignored {
            default(Signal::SIGCHLD, libc::SIG_IGN);
        }
        let mut byte = [0_u8];
        // SAFETY: descriptors and places of ours, which live until the exec.
        unsafe {
            libc::close(key);
            // Without this command there is no byte, and the program begins untraced.
            while libc::read(gate, byte.as_mut_ptr().cast(), 1) == -1
                && Errno::last() == Errno::EINTR
            {}
            for &fd in &self.inherited.closed {
                libc::close(fd);
            }
            libc::sigprocmask(libc::SIG_SETMASK, self.mask.as_ref(), ptr::null_mut());
            libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr());
            let code = (Errno::last() as i32).to_ne_bytes();
            libc::write(failure, code.as_ptr().cast(), code.len());
            libc::_exit(127)
        }
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// Whether a traced process becomes the program, or ends before.
fn reaches_exec(pid: Pid) -> bool {
    while let Some(stop) = next_stop(pid) {
        if event_of(stop) == libc::PTRACE_EVENT_EXEC {
            return true;
        }
        go_on(pid, stop);
    }
    false
}

/// Follows a program that waits at its exec until it has ended, and waits to be reaped.
pub fn follow(pid: Pid, on: &mut dyn FnMut(Stop)) {
    on(Stop::Exec);
    request(libc::PTRACE_CONT, pid, 0);
    while let Some(stop) = next_stop(pid) {
        match event_of(stop) {
            libc::PTRACE_EVENT_EXEC => on(Stop::Exec),
            libc::PTRACE_EVENT_EXIT => on(Stop::Exit),
            _ => {}
        }
        go_on(pid, stop);
    }
}

/// Waits for the next stop of a traced process; `None`: it has ended.
fn next_stop(pid: Pid) -> Option<i32> {
    let id = rustix::process::Pid::from_raw(pid.as_raw())?;
    let wait = |options| {
        let waited = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(id), options));
        waited.ok().flatten()
    };
    loop {
        let any = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        wait(any)?.trapping_signal()?;
        // It may have been killed in between.
        let taken = wait(WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        if let Some(stop) = taken.and_then(|it| it.trapping_signal()) {
            return Some(stop);
        }
    }
}

/// The event of `PTRACE_EVENT_*`; 0: a signal.
fn event_of(stop: i32) -> i32 {
    stop >> 8
}

/// Lets it do what it would have done without us.
fn go_on(pid: Pid, stop: i32) {
    let signal = stop & 0x7f;
    let is_stopped_by_signal =
        STOPPING.iter().any(|&it| it as i32 == signal) || signal == libc::SIGSTOP;
    match event_of(stop) {
        libc::PTRACE_EVENT_STOP if is_stopped_by_signal => {
            request(libc::PTRACE_LISTEN, pid, 0);
            stop_as_well();
        }
        // A signal on its way to the program, which may be one without a name.
        0 => request(libc::PTRACE_CONT, pid, signal),
        _ => request(libc::PTRACE_CONT, pid, 0),
    }
}

/// A Ctrl-Z is for this command, too.
fn stop_as_well() {
    let stopping: SigSet = STOPPING.into_iter().collect();
    let _ = stopping.thread_unblock();
    let _ = stopping.thread_block();
}

/// A failure means that it was killed: the next wait says so.
fn request(request: libc::c_uint, pid: Pid, signal: i32) {
    let signal = ptr::without_provenance_mut::<libc::c_void>(signal as usize);
    // SAFETY: these requests read and write no memory of ours.
    unsafe {
        libc::ptrace(
            request,
            pid.as_raw(),
            ptr::null_mut::<libc::c_void>(),
            signal,
        )
    };
}
