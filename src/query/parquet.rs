//! A profile's tables as Parquet files.
//!
//! Rows are streamed: no more than one row group of one table is in memory.

use std::io::Write;
use std::sync::Arc;

use allocsample_profile::Profile;
use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

use crate::index::Index;
use crate::table::{Column, Kind, Table, Value, tables};

/// Rows that are written together.
const GROUP_ROWS: usize = 128 * 1024;

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

/// Writes every table through `open`, which is given the table's name, one after the other.
pub fn write<W: Write + Send>(
    profile: &Profile,
    mut open: impl FnMut(&'static str) -> std::io::Result<W>,
    mut close: impl FnMut(&'static str, W) -> std::io::Result<()>,
) -> Result<(), WriteError> {
    let index = Index::new(profile);
    for table in tables() {
        let out = open(table.name)?;
        let out = write_table(profile, &index, table, out)?;
        close(table.name, out)?;
    }
    Ok(())
}

fn write_table<W: Write + Send>(
    profile: &Profile,
    index: &Index<'_>,
    table: &Table,
    out: W,
) -> Result<W, WriteError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::LZ4_RAW)
        .set_created_by("allocsample".to_owned())
        .build();
    let mut writer = SerializedFileWriter::new(out, schema(table)?, Arc::new(properties))?;
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
    Texts(Vec<ByteArray>),
}

impl Group {
    fn new(columns: &[Column]) -> Self {
        let empty = |column: &Column| match column.kind {
            Kind::Integer => Values::Integers(Vec::new()),
            Kind::Real => Values::Reals(Vec::new()),
            Kind::Text => Values::Texts(Vec::new()),
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
                (Values::Texts(values), Value::Text(text)) => {
                    values.push(text.as_bytes().to_vec().into());
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
                Values::Texts(values) => {
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
