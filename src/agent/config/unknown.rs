//! Finds environment variables that look like settings of ours and are not.

/// The settings that [`super::Config::read`] reads.
pub(super) const NAMES: [&str; 26] = [
    "CHILDREN",
    "EMBEDDED",
    "INLINING",
    "INTERVAL",
    "KEEP",
    "MAPPINGS",
    "MAX_DEPTH",
    "MAX_LIVE",
    "MAX_OVERHEAD",
    "MAX_SAMPLES_PER_SECOND",
    "MAX_SIZE",
    "OBJECTS",
    "ON_FULL",
    "OUTPUT",
    "PAGES",
    "ROTATE_EVERY",
    "ROTATE_SIZE",
    "RUNTIME",
    "RUN_PID",
    "SAMPLING",
    "SEED",
    "SIGNAL",
    "START",
    "TIME_HZ",
    "UNWIND",
    "WINDOW",
];
/// Settings of the command, which programs that it runs inherit.
const NAMES_OF_COMMAND: [&str; 2] = ["LIBRARY", "PUSH_PASSWORD"];

/// The name of a variable that looks like a setting and is not, such as a misspelt one; cut if it is long.
#[derive(Clone, Copy)]
pub struct UnknownSetting {
    name: [u8; 64],
    length: usize,
}

impl UnknownSetting {
    /// Returns the first unknown setting among the entries (`NAME=value`) of an environment.
    pub fn among<'a>(mut entries: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let entry = entries.find(|entry| is_unknown(entry))?;
        let name = entry.split(|&byte| byte == b'=').next()?;
        let mut copy = Self {
            name: [0; 64],
            length: name.len().min(64),
        };
        // The program may write over its environment later.
        for (to, from) in copy.name.iter_mut().zip(name) {
            *to = *from;
        }
        Some(copy)
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        self.name.get(..self.length).unwrap_or(&[])
    }
}

fn is_unknown(entry: &[u8]) -> bool {
    let Some(rest) = entry.strip_prefix(b"ALLOCSAMPLE_") else {
        return false;
    };
    let is = |name: &&str| {
        rest.strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&b'='))
    };
    let is_known = NAMES.iter().chain(&NAMES_OF_COMMAND).any(is);
    // Tests are told by such names what they may use.
    !is_known && !rest.starts_with(b"TEST_")
}
