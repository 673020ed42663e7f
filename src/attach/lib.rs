//! Makes a running process call a function of the agent.
//!
//! ```text
//! target   may it be attached to, what is mapped where           (/proc)
//! limits   has it address space for the agent
//! image    functions of a module, found in the process's memory
//! parts    which of its code is used
//! borrow   which thread can be borrowed for a moment             (registers, stack)
//! tracee   one thread under ptrace
//! frame    what lets that thread go on by itself if we are killed
//! remote   system calls and one call of a function on that thread
//! helper   the thread that is started
//! rendezvous  a deadlock of the C library's that it can be a part of
//! call     the whole: a helper thread in the process opens the library and calls the function
//! leftover ends what a command has begun that was killed
//! machine  registers, system calls and instructions of the processor
//! ```
//!
//! A borrowed thread must not open the library: it may hold the loader's lock or the allocator's. It calls
//! `pthread_create`, which takes neither for long, and continues where it was a few milliseconds later. The thread
//! that it started waits for locks like any other.

mod borrow;
mod call;
mod frame;
mod helper;
mod image;
mod leftover;
mod limits;
#[cfg_attr(target_arch = "x86_64", path = "machine/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "machine/aarch64.rs")]
mod machine;
mod parts;
mod remote;
mod rendezvous;
mod target;
mod tracee;

use std::io;
use std::path::{Path, PathBuf};

pub use target::Target;

/// The call that a process is to make.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `liballocsample.so`, in case the process has not loaded it yet; if `None`, such a process is left alone.
    pub library: Option<&'a Path>,
    /// An exported function of the library, of the type of `allocsample_attach`.
    pub function: &'a str,
    /// `NAME=value` each.
    pub settings: &'a [String],
    /// Attach even if a filter of system calls could end the process.
    pub despite_seccomp: bool,
}

/// What the function answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its result.
    pub code: i32,
    /// Its text, in the process's encoding.
    pub text: String,
}

/// Why a process cannot be attached to, or detached from. Every message is one line, with the remedy if there is one.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum AttachError {
    #[error("process {0}: there is no such process")]
    NoProcess(i32),
    #[error("process {0}: it has ended, and waits for its parent to notice")]
    Zombie(i32),
    #[error("process {0}: it is a thread of the kernel")]
    KernelThread(i32),
    #[error("process {0}: it is stopped; continue it first (kill -CONT {0})")]
    Stopped(i32),
    #[error("process {pid}: it is being traced by process {tracer}, and can have only one tracer")]
    Traced { pid: i32, tracer: i32 },
    #[error("process {0}: it belongs to another user; attach as that user, or as root")]
    OtherUser(i32),
    #[error(
        "process {0}: the system lets only a parent trace it (kernel.yama.ptrace_scope = {1}); attach as root, or set it to 0"
    )]
    Yama(i32, u32),
    #[error(
        "process {0}: the system lets nobody trace it until a reboot (kernel.yama.ptrace_scope = {1})"
    )]
    YamaForGood(i32, u32),
    #[error(
        "process {0}: the system does not permit tracing it; CAP_SYS_PTRACE is needed: attach as root"
    )]
    NotPermitted(i32),
    #[error(
        "process {0}: the system does not let even root trace it: a sandbox, a user namespace or a security module protects it"
    )]
    Protected(i32),
    #[error("process {0}: it is a program of another word size or processor")]
    OtherMachine(i32),
    #[error(
        "process {0}: it is linked statically, so its calls of the allocator cannot be redirected"
    )]
    Static(i32),
    #[error("process {pid}: its C library is {libc}; the agent needs glibc")]
    OtherLibc { pid: i32, libc: String },
    #[error("process {pid}: its C library lacks {function}; glibc 2.34 or later is needed")]
    OldLibc { pid: i32, function: &'static str },
    #[error(
        "process {0}: it has a shadow stack, on which no call can be made from outside; attach is not possible"
    )]
    ShadowStack(i32),
    #[error("process {0}: it runs under seccomp in strict mode, and would be killed")]
    SeccompStrict(i32),
    #[error(
        "process {0}: it runs under a seccomp filter, which may kill it for a system call that it does not expect; --despite-seccomp attaches all the same"
    )]
    SeccompFilter(i32),
    #[error("process {0}: there is no /proc in its root directory, by which the library is opened")]
    NoProc(i32),
    #[error(
        "process {0}: none of its threads came out of the allocator or the loader for {1} s; try again"
    )]
    NoThread(i32, u64),
    #[error("process {pid}: the system call {call} failed in it: {error}")]
    RemoteCall {
        pid: i32,
        call: &'static str,
        error: io::Error,
    },
    #[error(
        "process {0}: it has no spare file descriptor to open the agent with; raise its limit (prlimit --pid {0} --nofile=SOFT:HARD) and try again"
    )]
    NoDescriptor(i32),
    #[error(
        "process {pid}: its limit of {what} leaves it {left_mib} MiB, and the agent needs up to {needed_mib} MiB; raise the limit first (prlimit --pid {pid} --{option}=SOFT:HARD)"
    )]
    NoSpace {
        pid: i32,
        what: &'static str,
        option: &'static str,
        left_mib: u64,
        needed_mib: u64,
    },
    #[error("process {pid}: it cannot start a thread{remedy}: {error}")]
    NoHelper {
        pid: i32,
        error: io::Error,
        remedy: String,
    },
    #[error("process {pid}: it cannot load the agent: {reason}")]
    CannotLoad { pid: i32, reason: String },
    #[error(
        "process {0}: its loader has no static thread-local memory left, of which the agent needs {1} bytes; start it with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096, or under `allocsample run`"
    )]
    NoStaticTls(i32, u64),
    #[error(
        "process {0}: a thread in it is still loading the agent after {1} s, perhaps because another one holds the loader's lock; look with `allocsample ctl {0} status`"
    )]
    Slow(i32, u64),
    #[error(
        "process {0}: a thread that an earlier attach or detach started in it is still at work after {1} s, perhaps because another one holds the loader's lock; try again"
    )]
    Unfinished(i32, u64),
    #[error(
        "process {0}: this command was stopped or got no CPU time for ten seconds, so its helper thread has exited; \
         `allocsample ctl {0} status` says what it has done, or try again"
    )]
    StoodStill(i32),
    #[error("process {0}: another attach or detach has been at work on it for {1} s; try again")]
    OtherCommand(i32, u64),
    #[error("process {0}: it ended meanwhile")]
    Ended(i32),
    #[error("process {0}: it has not loaded the agent")]
    NoAgent(i32),
    #[error("{path}: {error}")]
    Library { path: PathBuf, error: io::Error },
    #[error("process {pid}: {what}: {error}")]
    System {
        pid: i32,
        what: &'static str,
        error: io::Error,
    },
}

/// Makes the process call the function, and waits for its answer. First finishes or undoes what interrupted calls
/// have begun.
pub fn call(target: &Target, request: &Request<'_>) -> Result<Reply, AttachError> {
    // A process that ends loses its mappings first: what was looked for in them was not there, which says nothing of the process.
    call::call(target, request).map_err(|error| match target.has_ended() {
        true => AttachError::Ended(target.pid()),
        false => error,
    })
}

/// Finishes or undoes what interrupted calls have begun, and nothing else.
pub fn finish_earlier(target: &Target, despite_seccomp: bool) -> Result<(), AttachError> {
    call::finish_earlier(target, despite_seccomp)
}

/// Describes what interrupted calls have left in the process. `None` if there is nothing, if another call is at work
/// on it, or if we may not look into it.
pub fn leftover(pid: i32) -> Option<String> {
    leftover::describe(pid)
}
