//! What a JVM counts itself: its native memory by category (`jcmd PID VM.native_memory summary`).
//!
//! A JVM listens on a socket once a file in its directory and SIGQUIT have asked it to. Both are OpenJDK's protocol for
//! attaching (`VirtualMachineImpl` for Linux). A JVM that does not catch SIGQUIT would end, and one that must not be attached to
//! would print its threads, so neither gets the signal.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::{output_file, running};

/// How long a JVM may take to open its socket, or to answer: it does so between collections only.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any list of categories.
const LONGEST_ANSWER: u64 = 1 << 20;
/// Of protocol version 1: the command with three arguments, each ending with 0.
const REQUEST: &[u8] = b"1\0jcmd\0VM.native_memory summary\0\0\0";

/// One category of a JVM's Native Memory Tracking, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Category {
    /// As the JVM calls it.
    pub name: String,
    pub reserved_bytes: u64,
    /// What may be touched; the part that is resident is not known.
    pub committed_bytes: u64,
}

/// The categories of a process, largest first.
pub fn categories(pid: u32) -> anyhow::Result<Vec<Category>> {
    let answer = ask(pid).with_context(|| format!("process {pid}"))?;
    let mut found = parse(&answer);
    if found.is_empty() {
        bail!(
            "process {pid}: the JVM does not count its native memory; start it with -XX:NativeMemoryTracking=summary (it said: {})",
            answer.lines().nth(1).unwrap_or_default()
        );
    }
    found.sort_by_key(|category| std::cmp::Reverse(category.committed_bytes));
    Ok(found)
}

/// `-                 Java Heap (reserved=262144KB, committed=262144KB)`. JDK 24 adds a third figure to one of them.
fn parse(answer: &str) -> Vec<Category> {
    let kilobytes = |text: &str| -> Option<u64> {
        let (number, _) = text.split_once("KB")?;
        number.parse::<u64>().ok()?.checked_mul(1024)
    };
    (answer.lines())
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix('-')?.split_once(" (reserved=")?;
            let (reserved, rest) = rest.split_once(", committed=")?;
            Some(Category {
                name: name.trim().to_owned(),
                reserved_bytes: kilobytes(reserved)?,
                committed_bytes: kilobytes(rest)?,
            })
        })
        .collect()
}

fn ask(pid: u32) -> anyhow::Result<String> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let maps = fs::read_to_string(process.join("maps")).context("its mappings cannot be read")?;
    if !maps.contains("/libjvm.so") {
        bail!("it is no JVM");
    }
    let inside = running::number_inside(pid, pid).unwrap_or(pid);
    let socket = process.join(format!("root/tmp/.java_pid{inside}"));
    if !socket.exists() {
        wake(pid, inside, &process, &socket)?;
    }
    let mut stream = UnixStream::connect(&socket).context("its socket cannot be opened")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    (stream.take(LONGEST_ANSWER).read_to_end(&mut answer)).context("the JVM does not answer")?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    match answer.lines().next() {
        Some("0") => Ok(answer),
        _ => bail!("the JVM refuses: {}", answer.replace('\n', " ").trim()),
    }
}

/// Has the JVM open its socket.
fn wake(pid: u32, inside: u32, process: &Path, socket: &Path) -> anyhow::Result<()> {
    const OPTION: &str = "-XX:+DisableAttachMechanism";
    let says = |file: &str| fs::read(process.join(file)).unwrap_or_default();
    let has = |words: Vec<u8>| String::from_utf8_lossy(&words).contains(OPTION);
    if has(says("cmdline")) || has(says("environ")) {
        bail!("the JVM does not let anybody attach ({OPTION})");
    }
    if !catches_quit(process) {
        bail!("the JVM does not catch SIGQUIT (-Xrs), by which it is asked");
    }
    let name = format!(".attach_pid{inside}");
    let places = [process.join("cwd"), process.join("root/tmp")];
    let mut files = places.iter().map(|place| place.join(&name));
    let made = files.find(|file| output_file::create_new(file).is_ok());
    let made = made.context("no file can be made in its directory, nor in its /tmp")?;
    let opened = signal_until_open(pid, socket);
    // Without the file, the JVM would print its threads when the signal comes: it goes last.
    let _ = fs::remove_file(made);
    opened
}

/// A JVM that starts ignores the signal, and one that has opened its socket would print its threads: so there are two, far apart.
fn signal_until_open(pid: u32, socket: &Path) -> anyhow::Result<()> {
    for _ in 0..2 {
        let begin = Instant::now();
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGQUIT)?;
        while begin.elapsed() < PATIENCE / 2 {
            std::thread::sleep(Duration::from_millis(20));
            if socket.exists() {
                return Ok(());
            }
        }
    }
    bail!("the JVM does not open its socket")
}

fn catches_quit(process: &Path) -> bool {
    const BIT: u64 = 1 << (Signal::SIGQUIT as u32 - 1);
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_of_several_releases_are_read() {
        let answer = "0\n1234:\n\nNative Memory Tracking:\n\nTotal: reserved=1660000KB, committed=340000KB\n\n\
            -                 Java Heap (reserved=262144KB, committed=1024KB)\n\
            \x20                           (mmap: reserved=262144KB, committed=1024KB, peak=2048KB)\n\
            -        Shared class space (reserved=16384KB, committed=12060KB, readonly=0KB)\n\
            -    Native Memory Tracking (reserved=3KB, committed=3KB)\n";
        let found = parse(answer);
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(
            names,
            ["Java Heap", "Shared class space", "Native Memory Tracking"]
        );
        assert_eq!(found[0].reserved_bytes, 262_144 << 10);
        assert_eq!(found[1].committed_bytes, 12_060 << 10);
    }

    #[test]
    fn numbers_that_are_none_are_left_out() {
        let lines = "- Code (reserved=99999999999999999999KB, committed=1KB)\n\
            - Code (reserved=18446744073709551615KB, committed=1KB)\n\
            - Code (reserved=-1KB, committed=1KB)\n- Code (reserved=1KB)\n-\n";
        assert_eq!(parse(lines), []);
    }
}
