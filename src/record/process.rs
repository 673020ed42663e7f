//! Records about the process as a whole: its identity, how it was sampled, how it ended.

use crate::HeapId;
use crate::words::{WordReader, WordWriter, high, low, pack, text_words};

/// How gaps between sample points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Sampling {
    /// Exponential gaps: every estimate has a standard error.
    #[default]
    Poisson = 0,
    /// A sample point every N bytes after a random start: no estimable variance.
    Periodic = 1,
}

/// The process, once, at the start of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRecord<'a> {
    /// Its pid in its own pid namespace.
    pub pid: u32,
    /// The pid of its parent.
    pub parent_pid: u32,
    /// CLOCK_MONOTONIC when the agent started.
    pub start_mono_ns: u64,
    /// CLOCK_REALTIME at the same moment.
    pub start_wall_ns: u64,
    /// `/proc/self/exe`.
    pub executable: &'a [u8],
    /// `/proc/self/cmdline`: arguments, each followed by NUL; cut after 4,096 bytes.
    pub command_line: &'a [u8],
}

impl<'a> ProcessRecord<'a> {
    /// Length of the payload in words.
    pub fn words(&self) -> usize {
        4 + text_words(self.executable.len()) + text_words(self.command_line.len())
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(pack(self.pid, self.parent_pid))?
            .word(self.start_mono_ns)?
            .word(self.start_wall_ns)?
            .word(pack(
                u32::try_from(self.executable.len()).ok()?,
                u32::try_from(self.command_line.len()).ok()?,
            ))?
            .text(self.executable)?
            .text(self.command_line)?;
        Some(writer.used())
    }

    /// Decodes a payload; `text` is the same words as bytes.
    pub fn decode(words: &'a [u64], text: &'a [u8]) -> Option<Self> {
        let mut reader = WordReader::new(words, text);
        let pids = reader.word()?;
        let (start_mono_ns, start_wall_ns) = (reader.word()?, reader.word()?);
        let lengths = reader.word()?;
        let executable = reader.text(low(lengths) as usize)?;
        let command_line = reader.text(high(lengths) as usize)?;
        Some(Self {
            pid: low(pids),
            parent_pid: high(pids),
            start_mono_ns,
            start_wall_ns,
            executable,
            command_line,
        })
    }
}

/// A sampling interval came into force: malloc's, or that of one heap. Samples name it by `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The number that samples name; the first is 0.
    pub index: u16,
    /// The law of the gaps.
    pub sampling: Sampling,
    /// Mean bytes between two sample points.
    pub interval_bytes: u64,
    /// The process's seed.
    pub seed: u64,
    /// The heap that is sampled with it from then on; [`IntervalRecord::SOME_HEAP`] if the record only says what the number
    /// means.
    pub heap: HeapId,
}

impl IntervalRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 5;
    /// In place of a heap: the number is used by heaps of virtual machines.
    pub const SOME_HEAP: HeapId = HeapId(u16::MAX);

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(pack(u32::from(self.index), self.sampling as u32))?
            .word(self.interval_bytes)?
            .word(self.seed)?
            .word(u64::from(self.heap.0))?;
        Some(writer.used())
    }

    /// Reads a payload back. Before November 2026 it had no heap: whatever is said is taken for malloc's then.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let time_ns = reader.word()?;
        let law = reader.word()?;
        Some(Self {
            time_ns,
            index: u16::try_from(low(law)).ok()?,
            sampling: match high(law) {
                0 => Sampling::Poisson,
                1 => Sampling::Periodic,
                _ => return None,
            },
            interval_bytes: reader.word()?,
            seed: reader.word()?,
            heap: HeapId(u16::try_from(reader.word().unwrap_or(0)).ok()?),
        })
    }
}

/// The process is about to replace itself by another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecRecord<'a> {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The program it asked for, as given.
    pub path: &'a [u8],
}

impl<'a> ExecRecord<'a> {
    /// Length of the payload in words.
    pub fn words(&self) -> usize {
        2 + text_words(self.path.len())
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(self.path.len() as u64)?
            .text(self.path)?;
        Some(writer.used())
    }

    /// Decodes a payload; `text` is the same words as bytes.
    pub fn decode(words: &'a [u64], text: &'a [u8]) -> Option<Self> {
        let mut reader = WordReader::new(words, text);
        let time_ns = reader.word()?;
        let bytes = usize::try_from(reader.word()?).ok()?;
        Some(Self {
            time_ns,
            path: reader.text(bytes)?,
        })
    }
}

/// How the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitHow {
    /// `exit` or a return from main.
    Exit = 0,
    /// `_exit` or `_Exit`.
    ImmediateExit = 1,
    /// `quick_exit`.
    QuickExit = 2,
    /// `abort`.
    Abort = 3,
    /// `exec`: another program runs under the same pid.
    Exec = 4,
    /// The last thread called `pthread_exit`.
    LastThread = 5,
    /// Not at all: the agent was detached, and the program goes on.
    Detached = 6,
}

/// The process ended in a way that let us write this; one without it was killed, or is still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// How it ended.
    pub how: ExitHow,
    /// The exit status, if there is one.
    pub status: Option<i32>,
}

impl ExitRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 3;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        let status = self.status.unwrap_or(0).cast_unsigned();
        writer
            .word(self.time_ns)?
            .word(self.how as u64)?
            .word(pack(u32::from(self.status.is_some()), status))?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let time_ns = reader.word()?;
        let how = match reader.word()? {
            0 => ExitHow::Exit,
            1 => ExitHow::ImmediateExit,
            2 => ExitHow::QuickExit,
            3 => ExitHow::Abort,
            4 => ExitHow::Exec,
            5 => ExitHow::LastThread,
            6 => ExitHow::Detached,
            _ => return None,
        };
        let status = reader.word()?;
        Some(Self {
            time_ns,
            how,
            status: (low(status) != 0).then(|| high(status).cast_signed()),
        })
    }
}

/// A quantity of the process that is read from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum CounterId {
    /// Resident set, in bytes.
    ResidentBytes = 0,
}

/// One reading of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRecord {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The quantity.
    pub counter: CounterId,
    /// Its value, in its unit.
    pub value: u64,
}

impl CounterRecord {
    /// Length of the payload in words.
    pub const WORDS: usize = 3;

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(self.counter as u64)?
            .word(self.value)?;
        Some(writer.used())
    }

    /// Decodes a payload.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut reader = WordReader::new(words, &[]);
        let time_ns = reader.word()?;
        let counter = match reader.word()? {
            0 => CounterId::ResidentBytes,
            _ => return None,
        };
        Some(Self {
            time_ns,
            counter,
            value: reader.word()?,
        })
    }
}

/// A fact that a reader of the profile must know to interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Note {
    /// The program brings its own `malloc` in front of ours: its allocations are not seen. Detail: the module.
    MallocIsElsewhere = 0,
    /// No drain thread could be started; records wait in the ring until the end. Detail: the error.
    NoDrainThread = 1,
    /// The agent switched itself off. Detail: why.
    SwitchedOff = 2,
    /// The allocator that comes next. Detail: the module that defines it.
    NextAllocator = 3,
    /// This process was forked from one that was being profiled. Detail: that one's pid, in decimal.
    ForkedFrom = 4,
    /// Stacks whose rest was known from the last walk were walked in full as well. Detail: how many, and how many of
    /// them differed (always none), in words.
    StacksCompared = 5,
    /// The agent came into a process that ran already: what was allocated before is in no figure. Detail: what was
    /// redirected, in words.
    Attached = 6,
    /// The process installed a filter of system calls: its children have no profiles, threads that it starts no names, and
    /// what those threads allocated exactly is known up to their last samples.
    Filtered = 7,
    /// The profile could not go on in another file, and went on in this one. Detail: the error.
    NotRotated = 8,
    /// A snapshot that a signal asked for could not be written. Detail: the error.
    NoSnapshot = 9,
    /// From here on only some threads or sizes are sampled, or all again. Detail: which, in words.
    Selection = 10,
    /// The disk, or the user's share of it, was full: writing waited for room, at this moment and perhaps later. Detail: the
    /// error.
    DiskFull = 11,
    /// The environment has a variable that looks like a setting and is none: it changed nothing. Detail: its name.
    UnknownSetting = 12,
    /// A bridge to a runtime that is in the process did not join it. Detail: the heap that it would have registered, or
    /// `all`; a colon and a blank; why.
    NotJoined = 13,
    /// A signal killed the process, as who waited for it saw; the command writes this, not the agent. Detail: the signal's
    /// name.
    Killed = 14,
    /// No agent was in the process: the profile has the samples that a runtime takes of its own heap, read from outside.
    /// Detail: the runtime, in words.
    Outside = 15,
    /// Runtimes that can compile without inlining were told to. Detail: empty.
    NotInlined = 16,
    /// Page faults were to be sampled, and are not. Detail: why.
    PagesNotSampled = 17,
    /// Allocators inside the program and its libraries were to be sampled. Detail: empty.
    Embedded = 18,
}

/// A [`Note`] with its detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteRecord<'a> {
    /// Time of the event, CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// The fact.
    pub note: Note,
    /// Free text, usually UTF-8.
    pub detail: &'a [u8],
}

impl<'a> NoteRecord<'a> {
    /// Length of the payload in words.
    pub fn words(&self) -> usize {
        2 + text_words(self.detail.len())
    }

    /// Encodes the payload and returns its words; `None` if it does not fit.
    pub fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
        let mut writer = WordWriter::new(words);
        writer
            .word(self.time_ns)?
            .word(pack(
                self.note as u32,
                u32::try_from(self.detail.len()).ok()?,
            ))?
            .text(self.detail)?;
        Some(writer.used())
    }

    /// Decodes a payload; `text` is the same words as bytes.
    pub fn decode(words: &'a [u64], text: &'a [u8]) -> Option<Self> {
        let mut reader = WordReader::new(words, text);
        let time_ns = reader.word()?;
        let shape = reader.word()?;
        let note = match low(shape) {
            0 => Note::MallocIsElsewhere,
            1 => Note::NoDrainThread,
            2 => Note::SwitchedOff,
            3 => Note::NextAllocator,
            4 => Note::ForkedFrom,
            5 => Note::StacksCompared,
            6 => Note::Attached,
            7 => Note::Filtered,
            8 => Note::NotRotated,
            9 => Note::NoSnapshot,
            10 => Note::Selection,
            11 => Note::DiskFull,
            12 => Note::UnknownSetting,
            13 => Note::NotJoined,
            14 => Note::Killed,
            15 => Note::Outside,
            16 => Note::NotInlined,
            17 => Note::PagesNotSampled,
            18 => Note::Embedded,
            _ => return None,
        };
        Some(Self {
            time_ns,
            note,
            detail: reader.text(high(shape) as usize)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_says_whose_it_is_and_an_older_one_is_mallocs() {
        let record = IntervalRecord {
            time_ns: 1,
            index: 2,
            sampling: Sampling::Periodic,
            interval_bytes: 4096,
            seed: 3,
            heap: HeapId(7),
        };
        let mut words = [0; IntervalRecord::WORDS];
        assert_eq!(record.encode_into(&mut words), Some(IntervalRecord::WORDS));
        assert_eq!(IntervalRecord::decode(&words), Some(record));
        let older = IntervalRecord {
            heap: HeapId::MALLOC,
            ..record
        };
        assert_eq!(IntervalRecord::decode(&words[..4]), Some(older));
    }
}
