//! A request to a process that has no ring yet: a file that its agent looks for.
//!
//! ```text
//! 0   magic
//! 8   start of the process, in ticks since the machine's: the number in the name may have been another process's
//! 16  what | value | 4 x more, as in the ring's first page
//! ```

/// The directory of these files, in the mount namespace of the process. The file name is [`NAME`] and the pid that the process
/// has in its own namespace.
pub const DIRECTORY: &str = "/tmp/";
/// Prefix of the file name.
pub const NAME: &str = ".allocsample-request-";

const MAGIC: [u8; 8] = *b"ALLOCREQ";
const WORDS: usize = 8;

/// Length of the file in bytes.
pub const BYTES: usize = WORDS * 8;

/// A request, see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    /// When the process started: field 22 of /proc/PID/stat.
    pub start_ticks: u64,
    /// One of the numbers of [`crate::request`].
    pub what: u64,
    /// The argument.
    pub value: u64,
    /// Further arguments.
    pub more: [u64; 4],
}

impl WaitingRequest {
    /// The file's content.
    pub fn encode(&self) -> [u8; BYTES] {
        let [first, second, third, fourth] = self.more;
        let words = [
            u64::from_le_bytes(MAGIC),
            self.start_ticks,
            self.what,
            self.value,
            first,
            second,
            third,
            fourth,
        ];
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a file's content; `None` if it is something else, or not complete.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut words = bytes.chunks_exact(8).map(|word| {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            u64::from_le_bytes(value)
        });
        let mut next = || words.next();
        (next()? == u64::from_le_bytes(MAGIC)).then_some(())?;
        Some(Self {
            start_ticks: next()?,
            what: next()?,
            value: next()?,
            more: [next()?, next()?, next()?, next()?],
        })
    }
}

/// Reads the start time of a process, in clock ticks, from its /proc/PID/stat.
pub fn start_ticks(stat: &[u8]) -> Option<u64> {
    // Behind the name, which may hold anything, comes field 3.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = stat.get(after_name..)?.split(|&byte| byte == b' ');
    core::str::from_utf8(fields.nth(19)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_back_and_nothing_else_is_one() {
        let request = WaitingRequest {
            start_ticks: 1,
            what: 2,
            value: u64::MAX,
            more: [3, 4, 5, 6],
        };
        let bytes = request.encode();
        assert_eq!(WaitingRequest::decode(&bytes), Some(request));
        assert_eq!(WaitingRequest::decode(&bytes[..BYTES - 1]), None);
        assert_eq!(WaitingRequest::decode(&[0; BYTES]), None);
    }

    #[test]
    fn the_start_of_a_process_is_found_behind_any_name() {
        let stat = b"7 (a) b) 1) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n";
        assert_eq!(start_ticks(stat), Some(4711));
        assert_eq!(start_ticks(b"7 (a) S 1"), None);
    }
}
