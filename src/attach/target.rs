//! A process as `/proc` shows it: whether it can be attached to at all, and what is mapped where.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::AttachError;
use crate::machine::ELF_MACHINE;

/// How long another tracer may stay.
pub(crate) const OTHER_TRACER: Duration = Duration::from_secs(2);

/// A process that the agent could be loaded into.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pid: i32,
    /// Read while the process was still there.
    shares_our_root: bool,
}

/// A mapped file, or the kernel's substitute for its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub is_executable: bool,
    pub offset: u64,
    pub path: String,
}

impl Mapping {
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    pub fn parse(line: &str) -> Option<Self> {
        // start-end perms offset device inode path
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let offset = words.next()?;
        let path = words.nth(2).unwrap_or("").trim_start();
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: number(start)?,
            end: number(end)?,
            is_executable: permissions.contains('x'),
            offset: number(offset)?,
            path: path.to_owned(),
        })
    }
}

impl Target {
    /// A process that exists, runs a program that the agent can be loaded into, and is traced by nobody.
    pub fn find(pid: i32) -> Result<Self, AttachError> {
        let target = Self {
            pid,
            shares_our_root: shares_our_root(pid),
        };
        let status = target.status_without_tracer()?;
        match status.letter() {
            'Z' | 'X' => return Err(AttachError::Zombie(pid)),
            'T' => return Err(AttachError::Stopped(pid)),
            _ => {}
        }
        if let Some(tracer) = status.number("TracerPid").filter(|&tracer| tracer != 0) {
            return Err(AttachError::Traced {
                pid,
                tracer: tracer as i32,
            });
        }
        // Neither kernel threads nor processes that are about to end have memory; kernel threads are children of
        // process 2 on every system.
        if status.field("VmSize").is_none() {
            return Err(match pid == 2 || status.number("PPid") == Some(2) {
                true => AttachError::KernelThread(pid),
                false => AttachError::Zombie(pid),
            });
        }
        target.check_program()?;
        Ok(target)
    }

    /// The process when nobody traces it. Waits for a while for a tracer to leave: another command of ours takes a
    /// moment.
    fn status_without_tracer(&self) -> Result<Status, AttachError> {
        let since = Instant::now();
        loop {
            let status = self.status(self.pid)?;
            let is_traced = status.number("TracerPid").is_some_and(|tracer| tracer != 0);
            if !is_traced || since.elapsed() > OTHER_TRACER {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its number in our pid namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it has loaded the agent, at its start or in an earlier attach.
    pub fn has_agent(&self) -> Result<bool, AttachError> {
        Ok(self.mappings()?.iter().any(is_agent))
    }

    /// Whether the file or directory is at the same path for the process. Below the same root it may have another file system:
    /// systemd gives a service a `/tmp` of its own (`PrivateTmp`).
    pub fn sees(&self, file: &Path) -> bool {
        identity(file).is_some_and(|here| identity(&self.below_its_root(file)) == Some(here))
    }

    /// Its working directory, as the process names it.
    pub fn working_directory(&self) -> Option<PathBuf> {
        let link = |name| fs::read_link(format!("/proc/{}/{name}", self.pid)).ok();
        let directory = link("cwd")?;
        // In another root directory by chroot, the kernel shows both from our root.
        let inside = directory.strip_prefix(link("root")?).ok()?;
        Some(Path::new("/").join(inside))
    }

    /// Where we find a file of the process.
    pub fn path_from_here(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        let there = self.below_its_root(path);
        // A process that has ended has no root any more.
        let is_the_same = match identity(&there) {
            Some(file) => identity(path) == Some(file),
            None => self.shares_our_root,
        };
        match is_the_same {
            true => path.to_owned(),
            false => there,
        }
    }

    fn below_its_root(&self, path: &Path) -> PathBuf {
        let mut there = OsString::from(format!("/proc/{}/root", self.pid));
        there.push(path);
        PathBuf::from(there)
    }

    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>, AttachError> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid))
            .map_err(|error| self.explain(error, "its memory map cannot be read"))?;
        Ok(maps.lines().filter_map(Mapping::parse).collect())
    }

    pub(crate) fn threads(&self) -> Result<Vec<i32>, AttachError> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid))
            .map_err(|error| self.explain(error, "its threads cannot be listed"))?;
        let mut threads: Vec<i32> = tasks
            .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        threads.sort_unstable();
        Ok(threads)
    }

    /// The kernel's account of a thread.
    pub(crate) fn status(&self, thread: i32) -> Result<Status, AttachError> {
        fs::read_to_string(format!("/proc/{}/task/{thread}/status", self.pid))
            .map(Status)
            .map_err(|error| self.explain(error, "its state cannot be read"))
    }

    /// The thread's number in its own pid namespace, as in a container.
    pub(crate) fn number_inside(&self, thread: i32) -> Result<u64, AttachError> {
        let status = self.status(thread)?;
        let inside = status.field("NSpid").and_then(|numbers| {
            let last = numbers.split_whitespace().last()?;
            last.parse().ok()
        });
        // Before Linux 4.1 there is no such line.
        Ok(inside.unwrap_or_else(|| u64::from(thread.unsigned_abs())))
    }

    /// Our number for the thread with this number in its own pid namespace; `None` if there is none.
    pub(crate) fn number_outside(&self, inside: u64) -> Option<i32> {
        let is_it = |thread: &i32| {
            self.number_inside(*thread)
                .is_ok_and(|found| found == inside)
        };
        let same = i32::try_from(inside).ok();
        same.filter(|thread| {
            fs::exists(format!("/proc/{}/task/{thread}", self.pid)).unwrap_or(false)
                && is_it(thread)
        })
        .or_else(|| self.threads().ok()?.into_iter().find(is_it))
    }

    pub(crate) fn has_proc(&self) -> bool {
        fs::symlink_metadata(format!("/proc/{}/root/proc/self", self.pid)).is_ok()
    }

    /// Puts an error of the system into words.
    pub(crate) fn explain(&self, error: io::Error, what: &'static str) -> AttachError {
        let pid = self.pid;
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) if !Path::new(&format!("/proc/{pid}")).exists() => {
                AttachError::NoProcess(pid)
            }
            Some(libc::EPERM | libc::EACCES) => self.explain_refusal(),
            _ => AttachError::System { pid, what, error },
        }
    }

    fn explain_refusal(&self) -> AttachError {
        let pid = self.pid;
        if let Ok(status) = self.status(pid)
            && let Some(tracer) = status.number("TracerPid").filter(|&tracer| tracer != 0)
        {
            return AttachError::Traced {
                pid,
                tracer: tracer as i32,
            };
        }
        let owner = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
        let own = fs::metadata("/proc/self").map(|process| process.uid());
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .and_then(|scope| scope.trim().parse().ok());
        refusal(pid, owner.ok().zip(own.ok()), scope)
    }

    /// Whether the agent can be loaded into the program. Waits for a moment if the loader is at work and has not mapped the C
    /// library yet.
    fn check_program(&self) -> Result<(), AttachError> {
        const LOADING: Duration = Duration::from_secs(2);
        const PAUSE: Duration = Duration::from_millis(5);
        let begin = Instant::now();
        loop {
            let checked = self.check_mapped();
            let is_loading = matches!(
                &checked,
                Err(AttachError::OtherLibc { libc, .. }) if file_name(libc).starts_with("ld-linux")
            );
            if !is_loading || begin.elapsed() >= LOADING {
                return checked;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether it has ended, or is ending and has no memory any more.
    pub fn has_ended(&self) -> bool {
        let exists = |of: &str| fs::metadata(format!("/proc/{of}")).is_ok();
        let is_gone = exists("self") && !exists(&self.pid.to_string());
        is_gone || self.mappings().is_ok_and(|mappings| mappings.is_empty())
    }

    fn check_mapped(&self) -> Result<(), AttachError> {
        let pid = self.pid;
        let mappings = self.mappings()?;
        let is_mapped = |part: &str| {
            mappings
                .iter()
                .find(|mapping| file_name(&mapping.path).contains(part))
        };
        if let Some(musl) = is_mapped("ld-musl").or_else(|| is_mapped("libc.musl")) {
            let libc = file_name(&musl.path).to_owned();
            return Err(AttachError::OtherLibc { pid, libc });
        }
        if is_mapped("linker64").is_some() {
            let libc = "bionic".to_owned();
            return Err(AttachError::OtherLibc { pid, libc });
        }
        let mut start = [0; 20];
        // A process that is ending has lost some or all of its mappings.
        if mappings.is_empty() {
            return Err(AttachError::Ended(pid));
        }
        let program = fs::File::open(format!("/proc/{pid}/exe"))
            .and_then(|file| std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 0));
        // 64 bits, and this machine's architecture.
        let machine = u16::from_le_bytes([start[18], start[19]]);
        if program.is_ok() && (start[4] != 2 || machine != ELF_MACHINE) {
            return Err(AttachError::OtherMachine(pid));
        }
        if is_mapped("libc.so.6").is_none() && is_mapped("libc-2.").is_none() {
            let mut paths = mappings.iter();
            if let Some(loader) = paths.find(|mapping| is_loader(file_name(&mapping.path))) {
                let libc = loader.path.clone();
                return Err(AttachError::OtherLibc { pid, libc });
            }
            return Err(AttachError::Static(pid));
        }
        Ok(())
    }
}

/// Whether a file is a dynamic loader, by its name. Debian's musl is loader and library in one file, `libc.so`. glibc's loader maps its
/// cache while it starts a program.
fn is_loader(name: &str) -> bool {
    let is_named_so = name == "libc.so" || name.starts_with("ld-") || name.starts_with("ld.so");
    is_named_so && name != "ld.so.cache"
}

/// Why a process without a tracer may not be traced: by its user and ours, and by Yama's setting, as far as they are
/// known.
fn refusal(pid: i32, users: Option<(u32, u32)>, scope: Option<u32>) -> AttachError {
    match (users, scope) {
        (Some((owner, own)), _) if owner != own && own != 0 => AttachError::OtherUser(pid),
        (_, Some(scope @ 3..)) => AttachError::YamaForGood(pid, scope),
        (_, Some(scope @ 1..)) => AttachError::Yama(pid, scope),
        (Some((_, 0)), _) => AttachError::Protected(pid),
        _ => AttachError::NotPermitted(pid),
    }
}

fn shares_our_root(pid: i32) -> bool {
    let root = identity(Path::new(&format!("/proc/{pid}/root/")));
    root.is_some() && root == identity(Path::new("/"))
}

/// Device and inode: what a path leads to, whatever its name.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// The last part of a path, without the kernel's note that the file was replaced.
pub(crate) fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether this is the agent, by the name of its file or of the memory that it was copied to.
pub(crate) fn is_agent(mapping: &Mapping) -> bool {
    matches!(
        file_name(&mapping.path),
        "liballocsample.so" | "memfd:liballocsample.so"
    )
}

/// The lines of a `status` file.
pub(crate) struct Status(String);

impl Status {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found == name).then_some(value.trim())
        })
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// A size, which the kernel gives in KiB.
    pub fn kib(&self, name: &str) -> Option<u64> {
        self.field(name)?.strip_suffix(" kB")?.trim().parse().ok()
    }

    /// Whether a line is a list that contains this word.
    pub fn lists(&self, name: &str, word: &str) -> bool {
        self.field(name)
            .is_some_and(|list| list.split_whitespace().any(|found| found == word))
    }

    /// A set of signals; the first one is bit 0.
    pub fn signals(&self, name: &str) -> u64 {
        self.field(name)
            .and_then(|set| u64::from_str_radix(set, 16).ok())
            .unwrap_or(0)
    }

    /// R, S, D, T, t, Z, ...
    pub fn letter(&self) -> char {
        self.field("State")
            .and_then(|state| state.chars().next())
            .unwrap_or('?')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_would_help() {
        let said = |users, scope| refusal(7, users, scope).to_string();
        assert!(said(Some((1000, 65534)), Some(1)).contains("belongs to another user"));
        assert!(said(Some((1000, 1000)), Some(1)).contains("ptrace_scope = 1); attach as root"));
        assert!(said(Some((1000, 1000)), Some(2)).contains("ptrace_scope = 2); attach as root"));
        // That setting cannot be revoked, and binds root too.
        assert!(said(Some((1000, 0)), Some(3)).contains("until a reboot"));
        for scope in [Some(0), None] {
            assert!(said(Some((1000, 1000)), scope).contains("CAP_SYS_PTRACE is needed"));
            assert!(said(Some((1000, 0)), scope).contains("even root"));
        }
    }

    #[test]
    fn the_cache_of_a_loader_is_no_loader() {
        for name in ["libc.so", "ld-linux-x86-64.so.2", "ld-2.31.so", "ld.so.1"] {
            assert!(is_loader(name), "{name}");
        }
        assert!(!is_loader("ld.so.cache") && !is_loader("libc.so.6"));
    }

    #[test]
    fn a_line_of_the_memory_map_is_taken_apart() {
        let line = "7f01a000-7f01b000 r-xp 00028000 fe:01 1234                       /lib/a b.so (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        let expected = Mapping {
            start: 0x7f01_a000,
            end: 0x7f01_b000,
            is_executable: true,
            offset: 0x28000,
            path: "/lib/a b.so (deleted)".to_owned(),
        };
        assert_eq!(mapping, expected);
        assert_eq!(file_name(&mapping.path), "a b.so");
        assert!(mapping.contains(0x7f01_afff) && !mapping.contains(0x7f01_b000));
        let anonymous = Mapping::parse("1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!(anonymous.path, "");
    }

    #[test]
    fn a_state_is_read_by_its_names() {
        let status = Status(
            "Name:\tx\nState:\tT (stopped)\nTracerPid:\t7\nVmSize:\t   2344 kB\nx86_Thread_features:\tshstk wrss\nSigBlk:\t00000000000000a0\n".to_owned(),
        );
        assert_eq!(status.letter(), 'T');
        assert_eq!(status.number("TracerPid"), Some(7));
        assert_eq!(status.number("Tracer"), None);
        assert_eq!(
            (status.kib("VmSize"), status.kib("VmData")),
            (Some(2344), None)
        );
        assert!(status.lists("x86_Thread_features", "shstk"));
        assert!(!status.lists("x86_Thread_features", "wr") && !status.lists("Name", "y"));
        assert_eq!(status.signals("SigBlk"), 0xa0);
    }

    #[test]
    fn what_is_no_process_is_said_so() {
        // Above the largest pid there can be.
        let error = Target::find(1 << 30).unwrap_err();
        assert!(matches!(error, AttachError::NoProcess(_)), "{error}");
    }
}
