//! How much memory the process has, read once at its end.

use allocsample_record::MemoryTotals;

use super::clock;
use super::file::File;

/// By `/proc/self/status`, whose figures are sums that the kernel keeps. `None`: it cannot be read, or the main thread has
/// gone and the kernel says nothing of the rest.
pub fn at_end() -> Option<MemoryTotals> {
    // The figures stand within the first thousand bytes. A thread's stack may have no room for more.
    let mut text = [0; 1536];
    let length = File::read_start(c"/proc/self/status", &mut text).ok()?;
    totals(text.get(..length)?, clock::monotonic_ns())
}

fn totals(status: &[u8], time_ns: u64) -> Option<MemoryTotals> {
    Some(MemoryTotals {
        time_ns,
        resident_bytes: bytes_in(status, b"VmRSS:")?,
        anonymous_bytes: bytes_in(status, b"RssAnon:")?,
        peak_resident_bytes: bytes_in(status, b"VmHWM:").unwrap_or(0),
    })
}

/// The figure in a line like `VmHWM:     1234 kB`, in bytes.
fn bytes_in(status: &[u8], label: &[u8]) -> Option<u64> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let figure = lines.find_map(|line| line.strip_prefix(label))?;
    let digits = figure
        .trim_ascii_start()
        .split(u8::is_ascii_whitespace)
        .next()?;
    let kib: u64 = core::str::from_utf8(digits).ok()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_from_the_status() {
        let status = b"Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t     512 kB\nRssAnon:\t     400 kB\n";
        let read = totals(status, 7).unwrap();
        let figures = [
            read.peak_resident_bytes,
            read.resident_bytes,
            read.anonymous_bytes,
        ];
        assert_eq!(figures, [900 << 10, 512 << 10, 400 << 10]);
        assert_eq!(read.time_ns, 7);
        // A process whose main thread has ended has none.
        assert_eq!(totals(b"Name:\tx\nState:\tZ (zombie)\n", 7), None);
    }

    #[test]
    fn this_process_has_memory() {
        let read = at_end().unwrap();
        assert!(read.anonymous_bytes > 0 && read.resident_bytes >= read.anonymous_bytes);
    }
}
