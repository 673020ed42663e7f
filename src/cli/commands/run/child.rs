//! The program that we run: found as a shell finds it, started as a shell starts it, waited for.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use super::traced::{self, Stop};
use crate::exit::Ending;
use crate::inherited::inherited;

/// Status of a shell that did not find the program.
pub const NOT_FOUND: u8 = 127;
/// Status of a shell that found something that cannot be run.
pub const NOT_EXECUTABLE: u8 = 126;

/// Signals that are for the program, when somebody sends them to us.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Why a program could not be started, in a shell's terms.
#[derive(Debug, PartialEq, Eq)]
pub struct CannotRun {
    /// The shell's status for it.
    pub status: u8,
    /// What the shell would say.
    pub what: String,
}

/// Finds the program that `command` names: a path if there is a slash in it, otherwise the first match in `path`.
pub fn find(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, CannotRun> {
    if command.as_bytes().contains(&b'/') {
        return is_executable(Path::new(command)).map(|()| command.into());
    }
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    let mut refused = None;
    for directory in path.as_bytes().split(|&byte| byte == b':') {
        // An empty entry is the working directory.
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        let candidate = Path::new(OsStr::from_bytes(directory)).join(command);
        match is_executable(&candidate) {
            Ok(()) if !command.is_empty() => return Ok(candidate),
            Err(error) if error.status == NOT_EXECUTABLE && !candidate.is_dir() => {
                refused.get_or_insert(error);
            }
            _ => {}
        }
    }
    Err(refused.unwrap_or_else(|| CannotRun {
        status: NOT_FOUND,
        what: format!("{}: command not found", command.display()),
    }))
}

fn is_executable(path: &Path) -> Result<(), CannotRun> {
    let refuse = |status, why: &str| {
        Err(CannotRun {
            status,
            what: format!("{}: {why}", path.display()),
        })
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            refuse(NOT_EXECUTABLE, "permission denied")
        }
        Err(_) => refuse(NOT_FOUND, "no such file"),
        Ok(metadata) if metadata.is_dir() => refuse(NOT_EXECUTABLE, "is a directory"),
        Ok(_) if rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_err() => {
            refuse(NOT_EXECUTABLE, "permission denied: it is not executable")
        }
        Ok(_) => Ok(()),
    }
}

/// A program that runs.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    /// False once it is reaped: from then on its pid is somebody else's.
    is_ours: Arc<Mutex<bool>>,
    signals: SignalFd,
    mask_before: SigSet,
    tracing: Tracing,
}

/// Whether the program waits for us where it begins and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// Nobody asked for it.
    No,
    /// It does: it waits at its exec.
    Yes,
    /// The kernel does not allow it.
    Refused(Errno),
}

impl Child {
    /// Starts `program` with everything that we were given: descriptors, signal mask and dispositions, environment
    /// but for `changes`. From here on, signals that are sent to us go to it. If it is traced, only this thread can wait for
    /// it.
    pub fn start(
        program: &Path,
        arguments: &[OsString],
        changes: &[(OsString, OsString)],
        is_traced: bool,
    ) -> anyhow::Result<Result<Self, CannotRun>> {
        let forwarded: SigSet = FORWARDED.into_iter().collect();
        let mask_before = SigSet::thread_get_mask()?;
        // Blocked instead of handled: no disposition changes, and nothing that arrives from here on is lost.
        forwarded.thread_block()?;
        let started = match is_traced {
            true => spawn_traced(program, arguments, changes, &mask_before),
            false => spawn(program, arguments, changes, &mask_before).map(|pid| (pid, Tracing::No)),
        };
        let (pid, tracing) = match started {
            Ok(started) => started,
            Err(errno) => {
                mask_before.thread_set_mask()?;
                return cannot_run(program, errno).map(Err);
            }
        };
        let signals =
            SignalFd::with_flags(&forwarded, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let child = Self {
            pid,
            is_ours: Arc::new(Mutex::new(true)),
            signals,
            mask_before,
            tracing,
        };
        child.forward_signals(&forwarded)?;
        Ok(Ok(child))
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Whether it is traced.
    pub fn tracing(&self) -> Tracing {
        self.tracing
    }

    /// Waits for its end. A program that is traced waits for `on` at each of these stops.
    pub fn wait(self, on: &mut dyn FnMut(Stop)) -> anyhow::Result<Ending> {
        if self.tracing == Tracing::Yes {
            traced::follow(self.pid, on);
        }
        let unknown = "the program's exit status is unknown";
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw()).context(unknown)?;
        // Leaves the pid reserved until nobody can send a signal to it any more.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).context(unknown)?;
        *self.is_ours.lock().unwrap_or_else(PoisonError::into_inner) = false;
        let (_, status) = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))
            .context(unknown)?
            .context(unknown)?;
        // A Ctrl-C that ended the program must not end us before we have said what we know.
        while let Ok(Some(_)) = self.signals.read_signal() {}
        self.mask_before.thread_set_mask()?;
        Ok(match (status.exit_status(), status.terminating_signal()) {
            (Some(status), _) => Ending::Status(u8::try_from(status & 0xff).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Ending::Signal(signal),
            (None, None) => Ending::Status(crate::exit::FAILURE),
        })
    }

    fn forward_signals(&self, forwarded: &SigSet) -> anyhow::Result<()> {
        let signals = SignalFd::with_flags(forwarded, SfdFlags::SFD_CLOEXEC)?;
        let (pid, is_ours) = (self.pid, Arc::clone(&self.is_ours));
        // Ends with the process; it inherits the blocked signals.
        std::thread::spawn(move || {
            while let Ok(Some(info)) = signals.read_signal() {
                // What the terminal sends reaches the whole foreground group, the program included.
                let is_from_terminal = info.ssi_code == nix::libc::SI_KERNEL;
                let signal = i32::try_from(info.ssi_signo)
                    .ok()
                    .and_then(|signal| Signal::try_from(signal).ok());
                let is_ours = is_ours.lock().unwrap_or_else(PoisonError::into_inner);
                if *is_ours && !is_from_terminal {
                    let _ = nix::sys::signal::kill(pid, signal);
                }
            }
        });
        Ok(())
    }
}

fn spawn(
    program: &Path,
    arguments: &[OsString],
    changes: &[(OsString, OsString)],
    mask: &SigSet,
) -> Result<Pid, Errno> {
    let inherited = inherited();
    let mut attributes = PosixSpawnAttr::init()?;
    let mut flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
    attributes.set_sigmask(mask)?;
    if !inherited.is_sigpipe_ignored {
        attributes.set_sigdefault(&[Signal::SIGPIPE].into_iter().collect())?;
        flags |= PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
    }
    attributes.set_flags(flags)?;
    let mut descriptors = PosixSpawnFileActions::init()?;
    for &fd in &inherited.closed {
        descriptors.add_close(fd)?;
    }
    let environment = environment(changes)?;
    let start = |program: &Path, arguments: &[CString]| {
        posix_spawn(program, &descriptors, &attributes, arguments, &environment)
    };
    let mut arguments = arguments
        .iter()
        .map(|argument| c_string(argument.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    if inherited.is_sigchld_ignored {
        // We must not ignore it, and nothing but the program itself can ignore it again: a shell in its place does,
        // before it becomes the program.
        heed_sigchld()?;
        let script = c"trap '' CHLD; exec \"$@\"".into();
        arguments.splice(..0, [c"sh".into(), c"-c".into(), script, c"sh".into()]);
        return start(Path::new("/bin/sh"), &arguments);
    }
    match start(program, &arguments) {
        // Neither a program nor a script with `#!`: the shell runs it as one of its own.
        Err(Errno::ENOEXEC) => {
            let name = c_string(program.as_os_str().to_owned())?;
            arguments.splice(..1, [c"sh".into(), name]);
            start(Path::new("/bin/sh"), &arguments)
        }
        result => result,
    }
}

/// The same for a program that is to be traced: no script of a shell.
fn spawn_traced(
    program: &Path,
    arguments: &[OsString],
    changes: &[(OsString, OsString)],
    mask: &SigSet,
) -> Result<(Pid, Tracing), Errno> {
    let inherited = inherited();
    if inherited.is_sigchld_ignored {
        heed_sigchld()?;
    }
    let stopping: SigSet = traced::STOPPING.into_iter().collect();
    stopping.thread_block()?;
    let arguments = arguments.iter().cloned().map(c_string);
    let start = traced::Start {
        program,
        arguments: &arguments.collect::<Result<Vec<_>, _>>()?,
        environment: &environment(changes)?,
        mask,
        inherited: &inherited,
    };
    let (pid, traced) = start.start()?;
    Ok((pid, traced.map_or_else(Tracing::Refused, |()| Tracing::Yes)))
}

/// Any handler will do: what counts is that the signal is not ignored.
fn heed_sigchld() -> Result<(), Errno> {
    signal_hook::flag::register(signal_hook::consts::SIGCHLD, Arc::default())
        .map(drop)
        .map_err(|_| Errno::EINVAL)
}

/// Our environment with `changes`, in its order.
fn environment(changes: &[(OsString, OsString)]) -> Result<Vec<CString>, Errno> {
    let kept = std::env::vars_os().filter(|(name, _)| !changes.iter().any(|(new, _)| new == name));
    kept.chain(changes.iter().cloned())
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            c_string(name)
        })
        .collect()
}

fn c_string(text: OsString) -> Result<CString, Errno> {
    CString::new(text.into_vec()).map_err(|_| Errno::EINVAL)
}

/// What a shell makes of a failed exec; an error of ours if it is none.
fn cannot_run(program: &Path, errno: Errno) -> anyhow::Result<CannotRun> {
    let (status, why) = match errno {
        // The file was there a moment ago: what is missing is its interpreter.
        Errno::ENOENT => (NOT_FOUND, "its interpreter or loader does not exist".into()),
        Errno::EACCES | Errno::EPERM => (NOT_EXECUTABLE, "permission denied".into()),
        Errno::E2BIG | Errno::ELOOP | Errno::ENOEXEC | Errno::ETXTBSY | Errno::EISDIR => {
            (NOT_EXECUTABLE, errno.desc().to_lowercase())
        }
        _ => return Err(errno).with_context(|| format!("{}: cannot start", program.display())),
    };
    Ok(CannotRun {
        status,
        what: format!("{}: {why}", program.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("1"), directory.path().join("2"));
        for directory in [&one, &two] {
            std::fs::create_dir(directory).unwrap();
        }
        let path = OsString::from(format!("{}:{}", one.display(), two.display()));
        let find = |command: &str| find(OsStr::new(command), Some(&path));
        assert_eq!(find("tool").unwrap_err().status, NOT_FOUND);
        // A directory of that name, then a file without the execute bit, are passed over.
        std::fs::create_dir(one.join("tool")).unwrap();
        assert_eq!(find("tool").unwrap_err().status, NOT_FOUND);
        std::fs::copy("/bin/true", two.join("tool")).unwrap();
        assert_eq!(find("tool"), Ok(two.join("tool")));
        std::fs::write(one.join("data"), "").unwrap();
        assert_eq!(find("data").unwrap_err().status, NOT_EXECUTABLE);
        assert_eq!(find("").unwrap_err().status, NOT_FOUND);
        assert_eq!(find("/nowhere/tool").unwrap_err().status, NOT_FOUND);
        let directory = one.display().to_string();
        assert_eq!(find(&directory).unwrap_err().status, NOT_EXECUTABLE);
    }
}
