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
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};

use crate::block::{Block, Sink, Texts, Values};
use crate::index::Index;
use crate::table::{Kind, Table, tables};

/// Rows that are written together.
const GROUP_ROWS: usize = 128 * 1024;

/// Rows that the encoder takes at a time. (Its pages end between two of these: there are some hundred bytes to a row of
/// stacks.)
const BATCH_ROWS: usize = 4096;

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
    let (mut levels, mut array) = (Vec::new(), Vec::new());
    let mut write = |block: &mut Block| write_group(block, &mut writer, &mut levels, &mut array);
    let mut sink = Sink::new(table, |_| true, GROUP_ROWS, &mut write);
    table.rows(profile, index, &mut sink)?;
    sink.end()?;
    Ok(writer.into_inner()?)
}

fn properties(table: &Table) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_created_by("allocsample".to_owned())
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_write_batch_size(BATCH_ROWS);
    for column in table.columns {
        let path = ColumnPath::from(column.name);
        properties = match column.kind {
            // Numbers and times mostly grow, and small ones take few bits so, without a search in a dictionary.
            Kind::Integer => properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            // Whoever looks for rows does so by numbers and times.
            Kind::Real => properties.set_column_statistics_enabled(path, EnabledStatistics::None),
            // The text of a stack does not come again.
            Kind::Text => properties
                .set_column_dictionary_enabled(path.clone(), column.name != "stack")
                .set_column_statistics_enabled(path, EnabledStatistics::None),
        };
    }
    properties.build()
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
            .with_repetition(match column.is_nullable {
                true => Repetition::OPTIONAL,
                false => Repetition::REQUIRED,
            });
        Ok(Arc::new(field.build()?))
    });
    let columns = columns.collect::<Result<_, ParquetError>>()?;
    let schema = Type::group_type_builder(table.name).with_fields(columns);
    Ok(Arc::new(schema.build()?))
}

/// Writes the rows of a block. `levels` and `array` are room to work in.
fn write_group<W: Write + Send>(
    block: &mut Block,
    writer: &mut SerializedFileWriter<W>,
    levels: &mut Vec<i16>,
    array: &mut Vec<ByteArray>,
) -> Result<(), WriteError> {
    let rows = block.rows();
    let mut group = writer.next_row_group()?;
    for filled in block.columns_mut() {
        let Some(mut out) = group.next_column()? else {
            break;
        };
        // A level for each row, 1 where there is a value, if some may have none.
        levels.clear();
        let levels = match filled.column.is_nullable {
            true => {
                levels.resize(rows, 1);
                for &row in &filled.missing {
                    levels[row as usize] = 0;
                }
                Some(levels.as_slice())
            }
            false => None,
        };
        match &mut filled.values {
            Values::Integers(values) => {
                out.typed::<Int64Type>().write_batch(values, levels, None)?;
            }
            Values::Reals(values) => {
                out.typed::<DoubleType>()
                    .write_batch(values, levels, None)?;
            }
            Values::Texts(texts) => write_texts(texts, levels, &mut out, array)?,
        }
        out.close()?;
    }
    group.close()?;
    Ok(())
}

/// Writes the texts of a column, some at a time: the encoder's form of one is larger than most of them. `array` is room to
/// work in.
fn write_texts(
    texts: &mut Texts,
    mut levels: Option<&[i16]>,
    out: &mut SerializedColumnWriter<'_>,
    array: &mut Vec<ByteArray>,
) -> Result<(), ParquetError> {
    let room = String::with_capacity(texts.bytes.len());
    let bytes = ByteArray::from(std::mem::replace(&mut texts.bytes, room).into_bytes());
    let distinct: Vec<ByteArray> = (texts.ranges.iter())
        .map(|&(begin, end)| bytes.slice(begin, end - begin))
        .collect();
    let mut numbers = texts.numbers.as_slice();
    let is_there = |&&level: &&i16| level == 1;
    loop {
        let here = levels.map(|levels| levels.split_at(levels.len().min(BATCH_ROWS)));
        let count = here.map_or(numbers.len().min(BATCH_ROWS), |(here, _)| {
            here.iter().filter(is_there).count()
        });
        let (some, rest) = numbers.split_at(count);
        array.extend(some.iter().map(|&number| distinct[number as usize].clone()));
        out.typed::<ByteArrayType>()
            .write_batch(array, here.map(|(here, _)| here), None)?;
        array.clear();
        numbers = rest;
        levels = here.map(|(_, rest)| rest);
        if levels.map_or(rest.is_empty(), <[i16]>::is_empty) {
            break;
        }
    }
    Ok(())
}
