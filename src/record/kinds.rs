//! The kinds of records: one row for each, from which its number, its type and its decoding follow.

use crate::{
    CodeRecord, CounterRecord, DeathsRecord, DefinitionRecord, ExecRecord, ExitRecord, FateRecord,
    FileFreeStackRecord, FileMappingRecord, FileTickRecord, ForkRecord, FreeRecord,
    FreeStackRecord, GcRecord, IntervalRecord, LastStackRecord, MappingRecord, MarkerRecord,
    ModuleAgainRecord, ModuleRecord, ModuleUnloadRecord, NoteRecord, PartRecord, ProcessRecord,
    SampleRecord, ThreadEndRecord, ThreadStartRecord, ThreadTotalRecord, TickRecord, ValueRecord,
};

/// A record whose size follows from itself. Those with a stack are written in place instead, by whoever walks it.
pub trait RingRecord {
    /// Its kind.
    const KIND: RecordKind;

    /// Payload words that it takes.
    fn words(&self) -> usize;

    /// Writes the payload and returns its words; `None` if it does not fit.
    fn encode_into(&self, words: &mut [u64]) -> Option<usize>;
}

/// A record of a few numbers, the first of which is the time of an event. Readers keep those of all kinds alike, as they came.
pub trait EventRecord: RingRecord + Sized {
    /// Payload words.
    const WORDS: usize;

    /// Reads a payload back; `None`: malformed.
    fn decode(words: &[u64]) -> Option<Self>;
}

/// Each row is `NUMBER NAME: TYPE, PAYLOAD, SIZE`. PAYLOAD is `words`, or `text` if it contains strings. SIZE is `fixed` for a
/// constant number of words, `sized` if it depends on the record, and `in_place` if the type is no [`RingRecord`]. Below
/// `events` are the kinds that are an [`EventRecord`], each `NUMBER NAME: TYPE`.
macro_rules! record_kinds {
    (
        $($(#[$doc:meta])* $number:literal $name:ident: $type:ty, $payload:ident, $size:ident;)*
        events:
        $($(#[$event_doc:meta])* $event_number:literal $event:ident: $event_type:ident;)*
    ) => {
        /// The kind of a ring record. The numbers are part of the file format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum RecordKind {
            $($(#[$doc])* $name = $number,)*
            $($(#[$event_doc])* $event = $event_number,)*
            /// [`FateRecord`] in fewer bytes (`events.rs`): in files only. Readers of chunks make a [`RecordKind::Fate`] of it.
            FileFate = 26,
        }

        impl RecordKind {
            /// The kind with this number, or `None` for one that a newer version may have added.
            pub fn from_number(number: u8) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name,)*
                    $($event_number => Self::$event,)*
                    26 => Self::FileFate,
                    _ => return None,
                })
            }
        }

        /// A record read back from ring words.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each variant is the record of its name")]
        pub enum Decoded<'a> {
            $($name($type),)*
            /// An [`EventRecord`] of this kind: the words that this version knows.
            Event(RecordKind, &'a [u64]),
        }

        impl<'a> Decoded<'a> {
            /// Reads the payload `words` of a record of this kind. `text` must be the same words as little-endian bytes:
            /// strings are borrowed from there. `None`: malformed.
            pub fn decode(kind: RecordKind, words: &'a [u64], text: &'a [u8]) -> Option<Self> {
                Some(match kind {
                    $(RecordKind::$name => Self::$name(decode!($payload, $type, words, text)?),)*
                    $(RecordKind::$event => {
                        let words = words.get(..<$event_type>::WORDS)?;
                        Self::Event(kind, words)
                    })*
                    RecordKind::FileFate => return None,
                })
            }
        }

        /// The types of all events, for readers.
        pub mod event_records {
            $(pub use crate::$event_type;)*
        }

        $(ring_record!($size, $name, $type);)*
        $(
            ring_record!(fixed, $event, $event_type);

            impl EventRecord for $event_type {
                const WORDS: usize = Self::WORDS;

                fn decode(words: &[u64]) -> Option<Self> {
                    Self::decode(words)
                }
            }
        )*
    };
}

macro_rules! decode {
    (words, $type:ty, $words:expr, $text:expr) => {
        <$type>::decode($words)
    };
    (text, $type:ty, $words:expr, $text:expr) => {
        <$type>::decode($words, $text)
    };
}

macro_rules! ring_record {
    (in_place, $name:ident, $type:ty) => {};
    (fixed, $name:ident, $type:ty) => {
        impl RingRecord for $type {
            const KIND: RecordKind = RecordKind::$name;

            fn words(&self) -> usize {
                Self::WORDS
            }

            fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
                self.encode_into(words)
            }
        }
    };
    (sized, $name:ident, $type:ty) => {
        impl<'a> RingRecord for $type {
            const KIND: RecordKind = RecordKind::$name;

            fn words(&self) -> usize {
                self.words()
            }

            fn encode_into(&self, words: &mut [u64]) -> Option<usize> {
                self.encode_into(words)
            }
        }
    };
}

record_kinds! {
    /// [`ProcessRecord`]: once, first.
    1 Process: ProcessRecord<'a>, text, sized;
    /// [`SampleRecord`]
    2 Sample: SampleRecord<'a>, words, in_place;
    /// [`FreeRecord`]
    3 Free: FreeRecord, words, fixed;
    /// [`ModuleRecord`]: before the first sample that has a frame in it.
    4 Module: ModuleRecord<'a>, text, sized;
    /// [`ModuleUnloadRecord`]
    5 ModuleUnload: ModuleUnloadRecord, words, fixed;
    /// [`ThreadStartRecord`]: before the thread's first sample.
    6 ThreadStart: ThreadStartRecord, words, fixed;
    /// [`ThreadEndRecord`]
    7 ThreadEnd: ThreadEndRecord, words, fixed;
    /// [`ThreadTotalRecord`]: the exact totals of a thread that was still running at the end.
    8 ThreadTotal: ThreadTotalRecord, words, fixed;
    /// [`IntervalRecord`]: before the first sample taken under it.
    9 Interval: IntervalRecord, words, fixed;
    /// [`ExecRecord`]
    11 Exec: ExecRecord<'a>, text, sized;
    /// [`ExitRecord`]: last, if the process lived to write it.
    12 Exit: ExitRecord, words, fixed;
    /// [`CounterRecord`]
    13 Counter: CounterRecord, words, fixed;
    /// [`NoteRecord`]
    14 Note: NoteRecord<'a>, text, sized;
    /// [`DefinitionRecord`]: before the first record that uses the number.
    15 Definition: DefinitionRecord<'a>, text, sized;
    /// [`FateRecord`]
    16 Fate: FateRecord, words, fixed;
    /// [`CodeRecord`]
    17 Code: CodeRecord, words, fixed;
    /// [`GcRecord`]
    18 Gc: GcRecord<'a>, words, sized;
    /// [`MarkerRecord`]
    19 Marker: MarkerRecord<'a>, text, sized;
    /// [`ValueRecord`]
    20 Value: ValueRecord, words, fixed;
    /// [`ModuleAgainRecord`]: in files only.
    21 ModuleAgain: ModuleAgainRecord, words, fixed;
    /// [`TickRecord`]: in rings only.
    22 Tick: TickRecord<'a>, words, in_place;
    /// [`FileTickRecord`]: in files only.
    23 FileTick: FileTickRecord, words, in_place;
    /// [`PartRecord`]: in files only.
    24 Part: PartRecord, words, fixed;
    /// [`LastStackRecord`]: in files only.
    25 LastStack: LastStackRecord, words, fixed;
    /// [`FreeStackRecord`]: in rings only.
    27 FreeStack: FreeStackRecord<'a>, words, in_place;
    /// [`FileFreeStackRecord`]: in files only.
    28 FileFreeStack: FileFreeStackRecord, words, in_place;
    /// [`MappingRecord`]: in rings only.
    29 Mapping: MappingRecord<'a>, words, in_place;
    /// [`FileMappingRecord`]: in files only.
    30 FileMapping: FileMappingRecord, words, in_place;
    /// [`DeathsRecord`]: in rings only.
    31 Deaths: DeathsRecord<'a>, words, sized;

    events:
    /// [`ForkRecord`]
    10 Fork: ForkRecord;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeapId, ThreadId};
    use std::vec::Vec;

    #[test]
    fn every_number_names_the_kind_that_has_it() {
        let kinds: Vec<_> = (0..=u8::MAX).filter_map(RecordKind::from_number).collect();
        assert_eq!(kinds.len(), 31);
        for kind in kinds {
            assert_eq!(RecordKind::from_number(kind as u8), Some(kind));
        }
    }

    #[test]
    fn a_record_takes_as_many_words_as_it_says() {
        fn assert_fits(record: &impl RingRecord) {
            let mut words = std::vec![0; record.words()];
            assert_eq!(record.encode_into(&mut words), Some(record.words()));
            words.pop();
            assert_eq!(record.encode_into(&mut words), None);
        }
        for length in [0, 1, 7, 8, 9] {
            let name = &[b'x'; 9][..length];
            assert_fits(&MarkerRecord {
                heap: HeapId(1),
                is_phase: true,
                begin_ns: 5,
                end_ns: 9,
                name,
            });
            assert_fits(&ExecRecord {
                time_ns: 1,
                path: name,
            });
        }
        for samples in [&[][..], &[3], &[1, 2, 3]] {
            assert_fits(&DeathsRecord {
                time_ns: 1,
                thread: ThreadId(2),
                samples,
            });
        }
        assert_fits(&ForkRecord {
            time_ns: 1,
            child_pid: 2,
        });
    }

    #[test]
    fn an_event_comes_out_as_it_went_in_without_the_words_of_later_versions() {
        let fork = ForkRecord {
            time_ns: 1,
            child_pid: 2,
        };
        let mut words = [0, 0, 77];
        fork.encode_into(&mut words);
        let decoded = Decoded::decode(RecordKind::Fork, &words, &[]);
        let Some(Decoded::Event(RecordKind::Fork, known)) = decoded else {
            panic!("{decoded:?}");
        };
        assert_eq!((known.len(), ForkRecord::decode(known)), (2, Some(fork)));
        assert_eq!(Decoded::decode(RecordKind::Fork, &words[..1], &[]), None);
    }
}
