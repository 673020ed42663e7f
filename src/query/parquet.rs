//! A profile's tables as Parquet files.
//!
//! Rows are streamed: each thread that writes has no more than one row group of one table in memory.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocsample_profile::Profile;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use rustc_hash::FxHashMap;

use crate::index::Index;
use crate::table::{Column, Kind, Table, Value, tables};

/// Rows that are written together.
const GROUP_ROWS: usize = 128 * 1024;

/// Rows that the encoder takes at a time. (Its pages end between two of these: there are some hundred bytes to a row of
/// stacks.)
const BATCH_ROWS: usize = 4096;

/// Columns in which hardly a value comes twice. A dictionary of them would be looked through for nothing.
const DISTINCT: [&str; 10] = [
    "address",
    "begin_ns",
    "content_hash",
    "end_ns",
    "freed_ns",
    "lifetime_ns",
    "sample_id",
    "stack",
    "stack_id",
    "time_ns",
];

/// The tables that may be large, the one that takes longest first: what is begun last should be short.
const LARGE: [&str; 4] = ["samples", "frames", "frees", "stacks"];

/// Why the tables could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output, or where it was to be opened.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The encoder.
    #[error("{0}")]
    Parquet(ParquetError),
}

impl From<ParquetError> for WriteError {
    fn from(error: ParquetError) -> Self {
        match error {
            ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
                Ok(error) => Self::Io(*error),
                Err(other) => Self::Parquet(ParquetError::External(other)),
            },
            other => Self::Parquet(other),
        }
    }
}

/// Writes every table to what `open` has for its name, some of them at the same time; `close` gets what is complete.
pub fn write<W: Write + Send>(
    profile: &Profile,
    open: impl Fn(&'static str) -> std::io::Result<W> + Sync,
    close: impl Fn(W) -> std::io::Result<()> + Sync,
) -> Result<(), WriteError> {
    let index = Index::new(profile);
    let is_large = |table: &&Table| LARGE.contains(&table.name);
    let mut in_turn: Vec<&Table> = tables().iter().collect();
    in_turn.sort_by_key(|table| {
        LARGE
            .iter()
            .position(|it| *it == table.name)
            .unwrap_or(LARGE.len())
    });
    let large = in_turn.iter().copied().filter(is_large).count();
    let next = AtomicUsize::new(0);
    let write_some = || -> Result<(), WriteError> {
        while let Some(table) = in_turn.get(next.fetch_add(1, Ordering::Relaxed)) {
            close(write_table(profile, &index, table, open(table.name)?)?)?;
        }
        Ok(())
    };
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..available.min(large))
            .map(|_| scope.spawn(write_some))
            .collect();
        let mut result = write_some();
        for other in others {
            let of_other = other.join();
            result = result.and(of_other.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        result
    })
}

fn write_table<W: Write + Send>(
    profile: &Profile,
    index: &Index<'_>,
    table: &Table,
    out: W,
) -> Result<W, WriteError> {
    let properties = Arc::new(properties(table));
    let mut writer = SerializedFileWriter::new(out, schema(table)?, properties)?;
    let mut group = Group::new(table.columns);
    table.rows::<WriteError>(profile, index, &mut |row| {
        group.push(row);
        if group.rows == GROUP_ROWS {
            group.write(&mut writer)?;
        }
        Ok(())
    })?;
    if group.rows > 0 {
        group.write(&mut writer)?;
    }
    Ok(writer.into_inner()?)
}

fn properties(table: &Table) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_created_by("allocsample".to_owned())
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_write_batch_size(BATCH_ROWS);
    for column in table.columns.iter().filter(|it| is_distinct(it)) {
        let path = ColumnPath::from(column.name);
        properties = properties.set_column_dictionary_enabled(path.clone(), false);
        if column.kind == Kind::Integer {
            // Numbers and times mostly grow.
            properties = properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    properties.build()
}

fn is_distinct(column: &Column) -> bool {
    DISTINCT.contains(&column.name)
}

fn schema(table: &Table) -> Result<TypePtr, ParquetError> {
    let columns = table.columns.iter().map(|column| {
        let (physical, logical) = match column.kind {
            Kind::Integer => (PhysicalType::INT64, None),
            Kind::Real => (PhysicalType::DOUBLE, None),
            Kind::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let field = Type::primitive_type_builder(column.name, physical)
            .with_logical_type(logical)
            .with_repetition(Repetition::OPTIONAL);
        Ok(Arc::new(field.build()?))
    });
    let columns = columns.collect::<Result<_, ParquetError>>()?;
    let schema = Type::group_type_builder(table.name).with_fields(columns);
    Ok(Arc::new(schema.build()?))
}

/// Rows by column: values without the missing ones, and for each row whether it has one.
struct Group {
    rows: usize,
    columns: Vec<(Values, Vec<i16>)>,
}

enum Values {
    Integers(Vec<i64>),
    Reals(Vec<f64>),
    Texts(Vec<ByteArray>, Texts),
}

/// How a text gets into memory of its own.
enum Texts {
    /// Each anew.
    Distinct,
    /// Once, and then as a reference to that.
    Repeated(FxHashMap<String, ByteArray>),
}

impl Texts {
    fn bytes(&mut self, text: &str) -> ByteArray {
        let owned = || ByteArray::from(text.as_bytes().to_vec());
        match self {
            Texts::Distinct => owned(),
            Texts::Repeated(known) => match known.get(text) {
                Some(known) => known.clone(),
                None => known.entry(text.to_owned()).or_insert_with(owned).clone(),
            },
        }
    }
}

impl Group {
    fn new(columns: &[Column]) -> Self {
        let empty = |column: &Column| match column.kind {
            Kind::Integer => Values::Integers(Vec::new()),
            Kind::Real => Values::Reals(Vec::new()),
            Kind::Text => Values::Texts(
                Vec::new(),
                match is_distinct(column) {
                    true => Texts::Distinct,
                    false => Texts::Repeated(FxHashMap::default()),
                },
            ),
        };
        Self {
            rows: 0,
            columns: columns.iter().map(|it| (empty(it), Vec::new())).collect(),
        }
    }

    fn push(&mut self, row: &[Value<'_>]) {
        for ((values, present), value) in self.columns.iter_mut().zip(row) {
            let is_there = match (values, *value) {
                (Values::Integers(values), Value::Integer(number)) => {
                    values.push(number);
                    true
                }
                (Values::Reals(values), Value::Real(number)) => {
                    values.push(number);
                    true
                }
                (Values::Texts(values, texts), Value::Text(text)) => {
                    values.push(texts.bytes(text));
                    true
                }
                (_, value) => {
                    debug_assert_eq!(value, Value::Null, "a value of another kind");
                    false
                }
            };
            present.push(i16::from(is_there));
        }
        self.rows += 1;
    }

    fn write<W: Write + Send>(
        &mut self,
        writer: &mut SerializedFileWriter<W>,
    ) -> Result<(), ParquetError> {
        let mut group = writer.next_row_group()?;
        for (values, present) in &mut self.columns {
            let Some(mut column) = group.next_column()? else {
                break;
            };
            match values {
                Values::Integers(values) => {
                    let out = column.typed::<Int64Type>();
                    out.write_batch(values, Some(present), None)?;
                    values.clear();
                }
                Values::Reals(values) => {
                    let out = column.typed::<DoubleType>();
                    out.write_batch(values, Some(present), None)?;
                    values.clear();
                }
                Values::Texts(values, _) => {
                    let out = column.typed::<ByteArrayType>();
                    out.write_batch(values, Some(present), None)?;
                    values.clear();
                }
            }
            column.close()?;
            present.clear();
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}
