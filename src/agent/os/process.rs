//! Facts about this process and the calling thread.

use core::ffi::CStr;

use super::{check, file::File};

/// The pid.
pub fn pid() -> u32 {
    // SAFETY: no arguments; a direct call, since some libcs cache the number across clone.
    unsafe { libc::syscall(libc::SYS_getpid) }.cast_unsigned() as u32
}

/// The parent's pid.
pub fn parent_pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getppid) }.cast_unsigned() as u32
}

/// The tid of the calling thread.
pub fn tid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) }.cast_unsigned() as u32
}

/// Yields to another thread.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Ends the calling thread where it stands: nothing is unwound, no destructor runs. Only for a thread of ours.
pub fn end_this_thread() -> ! {
    loop {
        // SAFETY: does not return; the kernel wakes who waits for the thread.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Returns when the thread `tid` of this process no longer exists, which it is about to do; after a second anyway.
pub fn wait_until_gone(tid: u32) {
    let deadline_ns = super::clock::monotonic_ns() + 1_000_000_000;
    // SAFETY: signal 0 only asks.
    while check(unsafe { libc::syscall(libc::SYS_tgkill, pid(), tid, 0) }).is_ok()
        && super::clock::monotonic_ns() < deadline_ns
    {
        // SAFETY: no arguments.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
    }
}

/// Whether one more thread is far from the user's limit on threads. Close to the limit, ours could be the one too many.
pub fn may_have_threads() -> bool {
    const FEW: u64 = 64;
    super::limit(libc::RLIMIT_NPROC) >= FEW
}

/// This thread's name, padded with NUL.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: the kernel writes at most 16 bytes.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Random bytes of the kernel; if it has none yet, the clock and the pid.
pub fn random_u128() -> u128 {
    let mut bytes = [0; 16];
    // SAFETY: the kernel writes 16 bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getrandom,
            bytes.as_mut_ptr(),
            bytes.len(),
            libc::GRND_NONBLOCK,
        )
    };
    if check(result) == Ok(bytes.len()) {
        return u128::from_ne_bytes(bytes);
    }
    u128::from(super::clock::monotonic_ns()) << 64
        | u128::from(super::clock::wall_ns()) ^ u128::from(pid()) << 32
}

/// The working directory's path in `buffer`, without NUL; empty if it has none.
pub fn working_directory(buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the kernel writes at most the buffer's length.
    let result = unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    // The length includes the NUL. A directory outside our root is reported as "(unreachable)/...".
    let length = check(result).unwrap_or(0).saturating_sub(1);
    buffer
        .get(..length)
        .filter(|path| path.starts_with(b"/"))
        .unwrap_or(&[])
}

/// The path of the running program.
pub fn executable(buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the kernel writes at most the buffer's length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            c"/proc/self/exe".as_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    buffer.get(..check(result).unwrap_or(0)).unwrap_or(&[])
}

/// The program's arguments, each followed by NUL.
pub fn command_line(buffer: &mut [u8]) -> &[u8] {
    let length = File::read_start(c"/proc/self/cmdline", buffer).unwrap_or(0);
    buffer.get(..length).unwrap_or(&[])
}

/// The main thread's state, and how many threads there are.
fn leader_and_threads() -> Option<(u8, u64)> {
    let mut buffer = [0; 512];
    let length = File::read_start(c"/proc/self/stat", &mut buffer).ok()?;
    let text = buffer.get(..length)?;
    let after_name = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text.get(after_name + 2..)?.split(|&byte| byte == b' ');
    let state = *fields.next()?.first()?;
    // State is field 3, num_threads field 20.
    let threads = fields.nth(16)?.iter().fold(0, |sum: u64, digit| {
        sum * 10 + u64::from(digit.wrapping_sub(b'0'))
    });
    Some((state, threads))
}

/// Whether the program is only a zombie leader and this thread: nobody else will ever run.
pub fn is_only_zombie_leader_left() -> bool {
    leader_and_threads() == Some((b'Z', 2))
}

/// Number of threads of this process; 0 if the kernel does not say.
pub fn threads() -> u64 {
    leader_and_threads().map_or(0, |(_, threads)| threads)
}

/// When this process started, in ticks since the machine's start.
pub fn start_ticks() -> Option<u64> {
    let mut buffer = [0; 512];
    let length = File::read_start(c"/proc/self/stat", &mut buffer).ok()?;
    allocsample_ring::start_ticks(buffer.get(..length)?)
}

/// The C string at the front of `bytes`.
pub fn c_str(bytes: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_until_nul(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_process_is_what_libc_says() {
        assert_eq!(pid(), std::process::id());
        assert_eq!(parent_pid(), std::os::unix::process::parent_id());
        let mut buffer = [0; 4096];
        let directory = std::env::current_dir().unwrap();
        assert_eq!(
            working_directory(&mut buffer),
            directory.as_os_str().as_bytes()
        );
        let program = std::env::current_exe().unwrap();
        assert_eq!(executable(&mut buffer), program.as_os_str().as_bytes());
        assert_eq!(working_directory(&mut [0; 2]), b"");
        let mut arguments = command_line(&mut buffer).split(|&byte| byte == 0);
        let first = std::env::args_os().next().unwrap();
        assert_eq!(arguments.next(), Some(first.as_bytes()));
        assert_eq!(arguments.count(), std::env::args_os().count());
        assert_ne!(random_u128(), random_u128());
        // Field 22, and the first behind the name is field 3.
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let mut fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let start = fields.nth(22 - 3).unwrap().parse().ok();
        assert_eq!(start_ticks(), start);
    }

    #[test]
    fn the_kernel_counts_the_threads() {
        let is_over = std::sync::Mutex::new(());
        let until_over = is_over.lock().unwrap();
        std::thread::scope(|scope| {
            // A number of two digits.
            for _ in 0..12 {
                scope.spawn(|| drop(is_over.lock()));
            }
            // Other tests start and end threads meanwhile.
            let listed = || std::fs::read_dir("/proc/self/task").unwrap().count() as u64;
            assert!((0..1000).any(|_| threads() == listed()));
            drop(until_over);
        });
    }

    #[test]
    fn a_thread_is_waited_for_until_it_is_gone() {
        let (to_test, from_thread) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            to_test.send(tid()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
        });
        let other = from_thread.recv().unwrap();
        wait_until_gone(other);
        assert!(!std::path::Path::new(&std::format!("/proc/self/task/{other}")).exists());
        thread.join().unwrap();
    }

    #[test]
    fn a_thread_has_a_number_and_a_name_of_its_own_until_it_is_gone() {
        let own = (tid(), thread_name());
        let spawned = std::thread::Builder::new()
            .name("worker".into())
            .spawn(|| (tid(), thread_name(), threads()))
            .unwrap();
        let (other, name, running) = spawned.join().unwrap();
        assert_ne!(other, own.0);
        assert_eq!(&name, b"worker\0\0\0\0\0\0\0\0\0\0");
        assert!((2..10_000).contains(&running), "{running}");
        wait_until_gone(other);
        let path = std::format!("/proc/self/task/{other}");
        assert!(!std::path::Path::new(&path).exists());
        assert!(!is_only_zombie_leader_left());
    }

    #[test]
    fn a_c_string_ends_at_its_nul() {
        assert_eq!(c_str(b"name\0rest"), Some(c"name"));
        assert_eq!(c_str(b"name"), None);
    }
}
