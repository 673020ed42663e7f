//! The columns of tables: what they hold, and the values in their rows.

use allocsample_profile::{HeapId, ThreadId};

use crate::reader::Reader;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A whole number.
    Integer,
    /// A number: the estimates.
    Real,
    /// Text.
    Text,
    /// True or false: 1 or 0 in SQL.
    Boolean,
    /// A moment: nanoseconds since 1970, UTC.
    Timestamp,
}

impl Kind {
    /// As SQL calls it.
    pub fn sql_type(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Text => "TEXT",
            Self::Boolean => "BOOLEAN",
            Self::Timestamp => "TIMESTAMP",
        }
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Column {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether a row may have none.
    pub is_nullable: bool,
    /// What it means.
    pub meaning: &'static str,
    pub(crate) read: Read,
}

/// Reads the value in a row.
pub(crate) type Read = for<'r> fn(&'r mut Reader<'_>, usize) -> Value<'r>;

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// Not known, or there is none.
    Null,
    /// Of a column of integers, truths or timestamps. Numbers of 64 bits that have no sign keep their bits.
    Integer(i64),
    /// Of a real column.
    Real(f64),
    /// Of a text column.
    Text(&'a str),
}

impl<'a> Value<'a> {
    /// An integer, a truth or a timestamp.
    pub fn integer(self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(number),
            _ => None,
        }
    }

    /// A real number.
    pub fn real(self) -> Option<f64> {
        match self {
            Self::Real(number) => Some(number),
            _ => None,
        }
    }

    /// A text.
    pub fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Integer(number.cast_signed())
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(i64::from(number))
    }
}

impl From<bool> for Value<'_> {
    fn from(truth: bool) -> Self {
        Self::Integer(i64::from(truth))
    }
}

impl From<usize> for Value<'_> {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<HeapId> for Value<'_> {
    fn from(id: HeapId) -> Self {
        Self::from(u32::from(id.0))
    }
}

impl From<ThreadId> for Value<'_> {
    fn from(id: ThreadId) -> Self {
        Self::from(id.0)
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A column of whole numbers.
pub(crate) const fn integer(name: &'static str, meaning: &'static str, read: Read) -> Column {
    column(name, Kind::Integer, meaning, read)
}

/// A column of estimates.
pub(crate) const fn real(name: &'static str, meaning: &'static str, read: Read) -> Column {
    column(name, Kind::Real, meaning, read)
}

/// A column of text.
pub(crate) const fn text(name: &'static str, meaning: &'static str, read: Read) -> Column {
    column(name, Kind::Text, meaning, read)
}

/// A column of true and false.
pub(crate) const fn truth(name: &'static str, meaning: &'static str, read: Read) -> Column {
    column(name, Kind::Boolean, meaning, read)
}

/// A column of moments.
pub(crate) const fn timestamp(name: &'static str, meaning: &'static str, read: Read) -> Column {
    column(name, Kind::Timestamp, meaning, read)
}

const fn column(name: &'static str, kind: Kind, meaning: &'static str, read: Read) -> Column {
    Column {
        name,
        kind,
        is_nullable: false,
        meaning,
        read,
    }
}

/// A column that not every row has a value for.
pub(crate) const fn nullable(column: Column) -> Column {
    Column {
        is_nullable: true,
        ..column
    }
}
