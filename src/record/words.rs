//! The words of a ring record: its kind, plus cursors that write them without a heap and read them without trust.

/// What a ring record says. The numbers are part of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// [`crate::ProcessRecord`]: once, first.
    Process = 1,
    /// [`crate::SampleRecord`]
    Sample = 2,
    /// [`crate::FreeRecord`]
    Free = 3,
    /// [`crate::ModuleRecord`]: before the first sample that has a frame in it.
    Module = 4,
    /// [`crate::ModuleUnloadRecord`]
    ModuleUnload = 5,
    /// [`crate::ThreadStartRecord`]: before the thread's first sample.
    ThreadStart = 6,
    /// [`crate::ThreadEndRecord`]
    ThreadEnd = 7,
    /// [`crate::ThreadTotalRecord`]: the exact totals of a thread that was still running at the end.
    ThreadTotal = 8,
    /// [`crate::IntervalRecord`]: before the first sample taken under it.
    Interval = 9,
    /// [`crate::ForkRecord`]
    Fork = 10,
    /// [`crate::ExecRecord`]
    Exec = 11,
    /// [`crate::ExitRecord`]: last, if the process lived to write it.
    Exit = 12,
    /// [`crate::CounterRecord`]
    Counter = 13,
    /// [`crate::NoteRecord`]
    Note = 14,
    /// [`crate::DefinitionRecord`]: before the first record that uses the number.
    Definition = 15,
    /// [`crate::FateRecord`]
    Fate = 16,
    /// [`crate::CodeRecord`]
    Code = 17,
    /// [`crate::GcRecord`]
    Gc = 18,
    /// [`crate::MarkerRecord`]
    Marker = 19,
    /// [`crate::ValueRecord`]
    Value = 20,
    /// [`crate::ModuleAgainRecord`]: in files only.
    ModuleAgain = 21,
    /// [`crate::TickRecord`]: in rings only.
    Tick = 22,
    /// [`crate::FileTickRecord`]: in files only.
    FileTick = 23,
    /// [`crate::PartRecord`]: in files only.
    Part = 24,
    /// [`crate::LastStackRecord`]: in files only.
    LastStack = 25,
    /// [`crate::FateRecord`] in fewer bytes (`events.rs`): in files only.
    FileFate = 26,
    /// [`crate::FreeStackRecord`]: in rings only.
    FreeStack = 27,
    /// [`crate::FileFreeStackRecord`]: in files only.
    FileFreeStack = 28,
}

impl RecordKind {
    /// The kind with this number, or `None` for one that a newer version may have added.
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Process,
            2 => Self::Sample,
            3 => Self::Free,
            4 => Self::Module,
            5 => Self::ModuleUnload,
            6 => Self::ThreadStart,
            7 => Self::ThreadEnd,
            8 => Self::ThreadTotal,
            9 => Self::Interval,
            10 => Self::Fork,
            11 => Self::Exec,
            12 => Self::Exit,
            13 => Self::Counter,
            14 => Self::Note,
            15 => Self::Definition,
            16 => Self::Fate,
            17 => Self::Code,
            18 => Self::Gc,
            19 => Self::Marker,
            20 => Self::Value,
            21 => Self::ModuleAgain,
            22 => Self::Tick,
            23 => Self::FileTick,
            24 => Self::Part,
            25 => Self::LastStack,
            26 => Self::FileFate,
            27 => Self::FreeStack,
            28 => Self::FileFreeStack,
            _ => return None,
        })
    }
}

/// A record read back from ring words.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the record of its name")]
pub enum Decoded<'a> {
    Process(crate::ProcessRecord<'a>),
    Sample(crate::SampleRecord<'a>),
    Free(crate::FreeRecord),
    Module(crate::ModuleRecord<'a>),
    ModuleUnload(crate::ModuleUnloadRecord),
    ThreadStart(crate::ThreadStartRecord),
    ThreadEnd(crate::ThreadEndRecord),
    ThreadTotal(crate::ThreadTotalRecord),
    Interval(crate::IntervalRecord),
    Fork(crate::ForkRecord),
    Exec(crate::ExecRecord<'a>),
    Exit(crate::ExitRecord),
    Counter(crate::CounterRecord),
    Note(crate::NoteRecord<'a>),
    Definition(crate::DefinitionRecord<'a>),
    Fate(crate::FateRecord),
    Code(crate::CodeRecord),
    Gc(crate::GcRecord<'a>),
    Marker(crate::MarkerRecord<'a>),
    Value(crate::ValueRecord),
    ModuleAgain(crate::ModuleAgainRecord),
    Tick(crate::TickRecord<'a>),
    FileTick(crate::FileTickRecord),
    Part(crate::PartRecord),
    LastStack(crate::LastStackRecord),
    FreeStack(crate::FreeStackRecord<'a>),
    FileFreeStack(crate::FileFreeStackRecord),
}

impl<'a> Decoded<'a> {
    /// Reads the payload `words` of a record of this kind. `text` must be the same words as little-endian bytes: that
    /// is where strings are borrowed from. `None`: malformed.
    pub fn decode(kind: RecordKind, words: &'a [u64], text: &'a [u8]) -> Option<Self> {
        Some(match kind {
            RecordKind::Process => Self::Process(crate::ProcessRecord::decode(words, text)?),
            RecordKind::Sample => Self::Sample(crate::SampleRecord::decode(words)?),
            RecordKind::Free => Self::Free(crate::FreeRecord::decode(words)?),
            // Readers of chunks make fates of them.
            RecordKind::FileFate => return None,
            RecordKind::Module => Self::Module(crate::ModuleRecord::decode(words, text)?),
            RecordKind::ModuleUnload => {
                Self::ModuleUnload(crate::ModuleUnloadRecord::decode(words)?)
            }
            RecordKind::ThreadStart => Self::ThreadStart(crate::ThreadStartRecord::decode(words)?),
            RecordKind::ThreadEnd => Self::ThreadEnd(crate::ThreadEndRecord::decode(words)?),
            RecordKind::ThreadTotal => Self::ThreadTotal(crate::ThreadTotalRecord::decode(words)?),
            RecordKind::Interval => Self::Interval(crate::IntervalRecord::decode(words)?),
            RecordKind::Fork => Self::Fork(crate::ForkRecord::decode(words)?),
            RecordKind::Exec => Self::Exec(crate::ExecRecord::decode(words, text)?),
            RecordKind::Exit => Self::Exit(crate::ExitRecord::decode(words)?),
            RecordKind::Counter => Self::Counter(crate::CounterRecord::decode(words)?),
            RecordKind::Note => Self::Note(crate::NoteRecord::decode(words, text)?),
            RecordKind::Definition => {
                Self::Definition(crate::DefinitionRecord::decode(words, text)?)
            }
            RecordKind::Fate => Self::Fate(crate::FateRecord::decode(words)?),
            RecordKind::Code => Self::Code(crate::CodeRecord::decode(words)?),
            RecordKind::Gc => Self::Gc(crate::GcRecord::decode(words)?),
            RecordKind::Marker => Self::Marker(crate::MarkerRecord::decode(words, text)?),
            RecordKind::Value => Self::Value(crate::ValueRecord::decode(words)?),
            RecordKind::ModuleAgain => Self::ModuleAgain(crate::ModuleAgainRecord::decode(words)?),
            RecordKind::Tick => Self::Tick(crate::TickRecord::decode(words)?),
            RecordKind::FileTick => Self::FileTick(crate::FileTickRecord::decode(words)?),
            RecordKind::Part => Self::Part(crate::PartRecord::decode(words)?),
            RecordKind::LastStack => Self::LastStack(crate::LastStackRecord::decode(words)?),
            RecordKind::FreeStack => Self::FreeStack(crate::FreeStackRecord::decode(words)?),
            RecordKind::FileFreeStack => {
                Self::FileFreeStack(crate::FileFreeStackRecord::decode(words)?)
            }
        })
    }
}

/// Words needed for `bytes` bytes of text.
pub(crate) const fn text_words(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Fills a slice word by word; the first write that does not fit makes the whole record fail.
pub(crate) struct WordWriter<'a> {
    words: &'a mut [u64],
    used: usize,
}

impl<'a> WordWriter<'a> {
    pub(crate) fn new(words: &'a mut [u64]) -> Self {
        Self { words, used: 0 }
    }

    pub(crate) fn word(&mut self, value: u64) -> Option<&mut Self> {
        *self.words.get_mut(self.used)? = value;
        self.used += 1;
        Some(self)
    }

    pub(crate) fn words(&mut self, values: &[u64]) -> Option<&mut Self> {
        self.words
            .get_mut(self.used..self.used.checked_add(values.len())?)?
            .copy_from_slice(values);
        self.used += values.len();
        Some(self)
    }

    /// Little-endian bytes, padded with zeros to a whole word.
    pub(crate) fn text(&mut self, bytes: &[u8]) -> Option<&mut Self> {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.get_mut(..chunk.len())?.copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word))?;
        }
        Some(self)
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

/// Reads words in order; text is borrowed from the same words seen as bytes.
pub(crate) struct WordReader<'a> {
    words: &'a [u64],
    text: &'a [u8],
    used: usize,
}

impl<'a> WordReader<'a> {
    pub(crate) fn new(words: &'a [u64], text: &'a [u8]) -> Self {
        Self {
            words,
            text,
            used: 0,
        }
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let word = self.words.get(self.used).copied()?;
        self.used += 1;
        Some(word)
    }

    pub(crate) fn words(&mut self, count: usize) -> Option<&'a [u64]> {
        let end = self.used.checked_add(count)?;
        let words = self.words.get(self.used..end)?;
        self.used = end;
        Some(words)
    }

    pub(crate) fn text(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let start = self.used.checked_mul(8)?;
        let text = self.text.get(start..start.checked_add(bytes)?)?;
        self.words(text_words(bytes))?;
        Some(text)
    }
}

/// Two halves in one word.
pub(crate) const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

pub(crate) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
