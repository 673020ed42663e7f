//! A JSON object that is written entry by entry, with tables whose rows are made by several threads.

use std::io::{self, Write};
use std::ops::Range;

use serde::Serialize;

use crate::{ExportError, blocks};

/// An object that is being written.
pub(crate) struct Object<'a> {
    out: &'a mut dyn Write,
    is_empty: bool,
}

impl<'a> Object<'a> {
    /// Its first bracket.
    pub(crate) fn begin(out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(b"{")?;
        Ok(Self {
            out,
            is_empty: true,
        })
    }

    /// Its last one.
    pub(crate) fn end(self) -> io::Result<()> {
        self.out.write_all(b"}")
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        if !std::mem::take(&mut self.is_empty) {
            self.out.write_all(b",")?;
        }
        write!(self.out, "\"{key}\":")
    }

    /// A key, which needs no escapes, and its value.
    pub(crate) fn entry(
        &mut self,
        key: &str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), ExportError> {
        self.key(key)?;
        Ok(serde_json::to_writer(&mut *self.out, value)?)
    }

    /// A key and the value that `write` writes.
    pub(crate) fn written(
        &mut self,
        key: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.key(key)?;
        write(&mut *self.out)
    }

    /// A table, of which `rows` makes those of a range.
    pub(crate) fn rows<R: Serialize, I: Iterator<Item = R>>(
        &mut self,
        key: &str,
        count: usize,
        rows: impl Fn(Range<usize>) -> I + Sync,
    ) -> Result<(), ExportError> {
        self.key(key)?;
        self.out.write_all(b"[")?;
        blocks::write(count, self.out, |range, text| {
            let mut is_first = range.start == 0;
            for row in rows(range) {
                if !std::mem::take(&mut is_first) {
                    text.push(b',');
                }
                // Neither a vector nor a row of ours fails.
                let _ = serde_json::to_writer(&mut *text, &row);
            }
        })?;
        Ok(self.out.write_all(b"]")?)
    }

    /// A list of objects, each of which `each` fills.
    pub(crate) fn objects<T>(
        &mut self,
        key: &str,
        all: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Object<'_>, T) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.written(key, |out| {
            let mut array = Array::begin(out)?;
            for one in all {
                array.element(|out| {
                    let mut object = Object::begin(out)?;
                    each(&mut object, one)?;
                    Ok(object.end()?)
                })?;
            }
            array.end()
        })
    }
}

/// An array that is being written.
pub(crate) struct Array<'a> {
    out: &'a mut dyn Write,
    is_empty: bool,
}

impl<'a> Array<'a> {
    /// Its first bracket.
    pub(crate) fn begin(out: &'a mut dyn Write) -> Result<Self, ExportError> {
        out.write_all(b"[")?;
        Ok(Self {
            out,
            is_empty: true,
        })
    }

    /// Its last one.
    pub(crate) fn end(self) -> Result<(), ExportError> {
        Ok(self.out.write_all(b"]")?)
    }

    /// The element that `write` writes.
    pub(crate) fn element(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        if !std::mem::take(&mut self.is_empty) {
            self.out.write_all(b",")?;
        }
        write(&mut *self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json() {
        let mut out = Vec::new();
        let mut object = Object::begin(&mut out).unwrap();
        object.entry("name", "a\"b").unwrap();
        object.rows("none", 0, |rows| rows).unwrap();
        object.rows("rows", 10_000, |rows| rows).unwrap();
        object
            .objects("objects", [1, 2], |object, one| object.entry("n", &one))
            .unwrap();
        object
            .objects("no_objects", [0; 0], |object, one| object.entry("n", &one))
            .unwrap();
        object.end().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let rows: Vec<usize> = (0..10_000).collect();
        let expected = serde_json::json!({
            "name": "a\"b", "none": [], "rows": rows, "objects": [{ "n": 1 }, { "n": 2 }], "no_objects": [],
        });
        assert_eq!(value, expected);
    }
}
