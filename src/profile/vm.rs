//! What virtual machines told through the hook ABI: heaps, types, functions, collections, marks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use allocsample_record::{
    Definition, DefinitionRecord, Fate, GcKind, GcRecord, HeapId, HeapKind, MarkerRecord,
    OwnFigure, ValueRecord, VmFrame, readable,
};

use crate::model::IntervalInfo;
use crate::same_names::FileEnds;

/// A heap beside malloc's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// As it was registered.
    pub name: String,
    /// How it gives out memory; `None` for a kind that this version does not know.
    pub kind: Option<HeapKind>,
    /// Bytes that went through it while it was sampled.
    pub exact_bytes: u64,
}

/// A type of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Its name.
    pub name: String,
    /// What the virtual machine says of it besides.
    pub detail: String,
}

/// A function of a virtual machine's language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Where it is defined; empty if that is not known.
    pub file: String,
    /// Its first line, 0 if that is not known.
    pub line: u32,
}

/// A quantity that a virtual machine measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
}

/// A collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gc {
    /// Of which heap.
    pub heap: HeapId,
    /// Of what in it.
    pub kind: GcKind,
    /// The virtual machine's number.
    pub id: u64,
    /// CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC.
    pub end_ns: u64,
    /// Before this moment was allocated what a collection of everything has looked at: before it began, or before the
    /// marking did that it ended. CLOCK_MONOTONIC.
    pub looked_until_ns: u64,
    /// Numbers of statistics with their values.
    pub statistics: Vec<(u32, u64)>,
}

/// A named span, or a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Of which heap.
    pub heap: HeapId,
    /// A state that lasts until the next one.
    pub is_phase: bool,
    /// CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// CLOCK_MONOTONIC.
    pub end_ns: u64,
    /// Its name.
    pub name: String,
}

/// A reading of a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Of which heap.
    pub heap: HeapId,
    /// Of what.
    pub statistic: u32,
    /// In the statistic's unit.
    pub value: u64,
}

/// What a collector said of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// At the first collection that looked at it; [`Fate::Open`] if none has.
    pub first: Fate,
    /// Number of its type, 0 if it is not known.
    pub type_id: u32,
}

impl Outcome {
    /// Whether the sample survived its first collection; `None` if there was none.
    pub fn survived(&self) -> Option<bool> {
        match self.first {
            Fate::Alive | Fate::Promoted => Some(true),
            Fate::Dead => Some(false),
            Fate::Unknown | Fate::Open => None,
        }
    }
}

/// All of it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VirtualMachines {
    /// The heaps, malloc's not among them.
    pub heaps: BTreeMap<HeapId, Heap>,
    /// The intervals of each heap, in their order. A heap of an older recording has none: it is not known when which of its
    /// intervals was in force.
    pub intervals: BTreeMap<HeapId, Vec<IntervalInfo>>,
    /// By heap and number.
    pub types: BTreeMap<(HeapId, u32), Type>,
    /// By heap and number.
    pub functions: HashMap<(HeapId, u32), Function>,
    /// The ends of the files of functions that share their name.
    pub(crate) ends: FileEnds,
    /// Functions and lines that a number stands for, innermost first; by heap and number.
    pub inlined: HashMap<(HeapId, u32), Vec<(u32, u32)>>,
    /// Addresses that are a heap's alone, by heap and number.
    pub ranges: BTreeMap<(HeapId, u32), Range<u64>>,
    /// By heap and number.
    pub statistics: BTreeMap<(HeapId, u32), Statistic>,
    /// In the order in which they were told.
    pub gcs: Vec<Gc>,
    /// In the order in which they were told.
    pub markers: Vec<Marker>,
    /// In the order in which they were told.
    pub values: Vec<Value>,
}

impl VirtualMachines {
    /// The name of a sample's type.
    pub fn type_name(&self, heap: HeapId, outcome: &Outcome) -> Option<&str> {
        let found = self.types.get(&(heap, outcome.type_id))?;
        Some(&found.name)
    }

    /// Function and line of a frame; the line of the frame itself, or that of the function.
    pub fn function(&self, frame: VmFrame) -> Option<(&Function, u32)> {
        let function = self.functions.get(&(frame.heap, frame.function))?;
        let line = if frame.line == 0 {
            function.line
        } else {
            frame.line
        };
        Some((function, line))
    }

    /// Takes a definition in; that of a thread is none of ours.
    pub(crate) fn define(&mut self, record: &DefinitionRecord<'_>) {
        let text = |bytes: &[u8]| readable(bytes).into_owned();
        let (name, detail) = (text(record.name), text(record.detail));
        let key = (record.heap, record.id);
        match record.kind {
            Definition::Heap => {
                let exact_bytes = self
                    .heaps
                    .get(&record.heap)
                    .map_or(0, |heap| heap.exact_bytes);
                let heap = Heap {
                    name,
                    kind: HeapKind::from_number(record.value),
                    exact_bytes,
                };
                self.heaps.insert(record.heap, heap);
            }
            Definition::Type => {
                self.types.insert(key, Type { name, detail });
            }
            Definition::Function => {
                let function = Function {
                    name,
                    file: detail,
                    line: record.value,
                };
                self.functions.insert(key, function);
            }
            Definition::Statistic => {
                self.statistics
                    .insert(key, Statistic { name, unit: detail });
            }
            Definition::Thread => {}
            Definition::Inlined => {
                let pairs = record.name.chunks_exact(8).filter_map(|pair| {
                    let (function, line) = pair.split_first_chunk()?;
                    let line = line.first_chunk()?;
                    Some((u32::from_le_bytes(*function), u32::from_le_bytes(*line)))
                });
                self.inlined.insert(key, pairs.collect());
            }
            Definition::Range => {
                let Some((start, end)) = record.name.split_first_chunk() else {
                    return;
                };
                let Some(end) = end.first_chunk() else {
                    return;
                };
                let range = u64::from_le_bytes(*start)..u64::from_le_bytes(*end);
                match range.is_empty() {
                    true => self.ranges.remove(&key),
                    false => self.ranges.insert(key, range),
                };
            }
        }
    }

    pub(crate) fn add_gc(&mut self, record: &GcRecord<'_>) {
        let pairs = record.statistics.chunks_exact(2);
        let pairs = pairs.map(|pair| (pair[0] as u32, pair[1]));
        let (looked, statistics): (Vec<_>, Vec<_>) =
            pairs.partition(|(number, _)| *number == GcRecord::LOOKED_UNTIL);
        let looked_until_ns = looked.first().map(|&(_, time_ns)| time_ns);
        self.gcs.push(Gc {
            heap: record.heap,
            kind: record.kind,
            id: record.id,
            begin_ns: record.begin_ns,
            end_ns: record.end_ns,
            looked_until_ns: looked_until_ns.unwrap_or(record.begin_ns),
            statistics,
        });
    }

    pub(crate) fn add_marker(&mut self, record: &MarkerRecord<'_>) {
        self.markers.push(Marker {
            heap: record.heap,
            is_phase: record.is_phase,
            begin_ns: record.begin_ns,
            end_ns: record.end_ns,
            name: readable(record.name).into_owned(),
        });
    }

    pub(crate) fn add_value(&mut self, record: &ValueRecord) {
        if record.statistic == ValueRecord::EXACT_BYTES {
            if let Some(heap) = self.heaps.get_mut(&record.heap) {
                heap.exact_bytes = record.value;
            }
            return;
        }
        if let Some(own) = OwnFigure::from_statistic(record.statistic) {
            let described = || Statistic {
                name: own.describe().to_owned(),
                unit: "bytes".to_owned(),
            };
            let key = (record.heap, record.statistic);
            self.statistics.entry(key).or_insert_with(described);
        }
        self.values.push(Value {
            time_ns: record.time_ns,
            heap: record.heap,
            statistic: record.statistic,
            value: record.value,
        });
    }
}
