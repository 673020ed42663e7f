//! A profile's tables as Parquet files.
//!
//! Rows are streamed: each thread that writes has no more than one row group of one table in memory.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use allocsample_profile::Profile;
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use rayon::prelude::*;

use crate::column::{Column, Kind, Value};
use crate::reader::{Made, Reader, Scratch};
use crate::table::{SCHEMA_VERSION, Table, tables};

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
    let made = Made::default();
    let mut in_turn: Vec<&Table> = tables().iter().collect();
    in_turn.sort_by_key(|table| {
        LARGE
            .iter()
            .position(|it| *it == table.name)
            .unwrap_or(LARGE.len())
    });
    // One by one, so that no thread has several of the large ones.
    in_turn
        .into_par_iter()
        .with_max_len(1)
        .try_for_each(|table| {
            let out = open(table.name)?;
            close(write_table(profile, &made, table, out)?)?;
            Ok(())
        })
}

fn write_table<W: Write + Send>(
    profile: &Profile,
    made: &Made,
    table: &Table,
    out: W,
) -> Result<W, WriteError> {
    let properties = Arc::new(properties(table));
    let mut writer = SerializedFileWriter::new(out, schema(table)?, properties)?;
    let mut scratch = Scratch::default();
    let mut reader = Reader {
        profile,
        made,
        scratch: &mut scratch,
    };
    let rows = reader.rows(table);
    for begin in (0..rows).step_by(GROUP_ROWS) {
        let mut group = writer.next_row_group()?;
        for column in 0..table.columns.len() {
            let Some(mut out) = group.next_column()? else {
                break;
            };
            let end = rows.min(begin.saturating_add(GROUP_ROWS));
            for row in (begin..end).step_by(BATCH_ROWS) {
                let batch = row..end.min(row + BATCH_ROWS);
                write_batch(&mut reader, table, column, batch, &mut out)?;
            }
            out.close()?;
        }
        group.close()?;
    }
    Ok(writer.into_inner()?)
}

fn properties(table: &Table) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_created_by("allocsample".to_owned())
        .set_key_value_metadata(Some(vec![KeyValue::new(
            "allocsample.schema_version".to_owned(),
            SCHEMA_VERSION.to_string(),
        )]))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_write_batch_size(BATCH_ROWS);
    for column in table.columns {
        let path = ColumnPath::from(column.name);
        properties = match column.kind {
            // Numbers and times mostly grow, and small ones take few bits so, without a search in a dictionary.
            Kind::Integer | Kind::Timestamp => properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            Kind::Boolean => properties.set_column_dictionary_enabled(path, false),
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
            Kind::Boolean => (PhysicalType::BOOLEAN, None),
            Kind::Timestamp => (
                PhysicalType::INT64,
                Some(LogicalType::timestamp(true, TimeUnit::NANOS)),
            ),
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

/// Writes some rows of a column.
fn write_batch(
    reader: &mut Reader<'_>,
    table: &Table,
    column: usize,
    rows: Range<usize>,
    out: &mut SerializedColumnWriter<'_>,
) -> Result<(), ParquetError> {
    let Column {
        kind, is_nullable, ..
    } = table.columns[column];
    let read = Batch {
        table,
        column,
        rows,
    };
    match kind {
        Kind::Integer | Kind::Timestamp => {
            let (values, levels) = read.values(reader, |it| it.integer());
            let levels = is_nullable.then_some(&*levels);
            out.typed::<Int64Type>()
                .write_batch(&values, levels, None)?;
        }
        Kind::Boolean => {
            let (values, levels) = read.values(reader, |it| Some(it.integer()? != 0));
            let levels = is_nullable.then_some(&*levels);
            out.typed::<BoolType>().write_batch(&values, levels, None)?;
        }
        Kind::Real => {
            let (values, levels) = read.values(reader, |it| it.real());
            let levels = is_nullable.then_some(&*levels);
            out.typed::<DoubleType>()
                .write_batch(&values, levels, None)?;
        }
        Kind::Text => {
            let (values, levels) = read.values(reader, |it| it.text().map(ByteArray::from));
            let levels = is_nullable.then_some(&*levels);
            out.typed::<ByteArrayType>()
                .write_batch(&values, levels, None)?;
        }
    }
    Ok(())
}

/// Some rows of a column.
struct Batch<'a> {
    table: &'a Table,
    column: usize,
    rows: Range<usize>,
}

impl Batch<'_> {
    /// The values that there are, and for each row a level: 1 where there is one.
    fn values<T>(
        self,
        reader: &mut Reader<'_>,
        kept: impl Fn(Value<'_>) -> Option<T>,
    ) -> (Vec<T>, Vec<i16>) {
        let mut values = Vec::with_capacity(self.rows.len());
        let mut levels = Vec::with_capacity(self.rows.len());
        for row in self.rows {
            let value = kept(reader.value(self.table, row, self.column));
            levels.push(value.is_some().into());
            values.extend(value);
        }
        (values, levels)
    }
}
