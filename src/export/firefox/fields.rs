//! A JSON object of which some parts are replaced while the others stay text.
//!
//! The tables of allocations have millions of rows: those are written as they are made.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::value::RawValue;
use serde_json::{Error, Value};

use crate::ExportError;
use crate::object::{Array, Object};

/// Fields by name.
#[derive(Debug)]
pub(super) struct Fields<'a>(BTreeMap<String, Part<'a>>);

/// The value of a field.
pub(super) enum Part<'a> {
    /// As it stood in the text.
    Text(&'a RawValue),
    /// Made since.
    Value(Value),
    /// Taken apart.
    Fields(Fields<'a>),
    /// Taken apart.
    Array(Vec<Fields<'a>>),
    /// Made as it is written.
    Written(Box<Written<'a>>),
}

/// Writes one value.
type Written<'a> = dyn FnOnce(&mut dyn Write) -> Result<(), ExportError> + 'a;

impl std::fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Text(text) => text.fmt(f),
            Part::Value(value) => value.fmt(f),
            Part::Fields(fields) => fields.fmt(f),
            Part::Array(all) => all.fmt(f),
            Part::Written(_) => f.write_str("Written"),
        }
    }
}

impl<'a> Part<'a> {
    /// What is made when it is its turn.
    pub fn written(write: impl FnOnce(&mut dyn Write) -> Result<(), ExportError> + 'a) -> Self {
        Part::Written(Box::new(write))
    }

    fn write(self, out: &mut dyn Write) -> Result<(), ExportError> {
        match self {
            Part::Text(text) => Ok(out.write_all(text.get().as_bytes())?),
            Part::Value(value) => Ok(serde_json::to_writer(out, &value)?),
            Part::Fields(fields) => fields.write(out),
            Part::Array(all) => {
                let mut array = Array::begin(out)?;
                for fields in all {
                    array.element(|out| fields.write(out))?;
                }
                array.end()
            }
            Part::Written(write) => write(out),
        }
    }
}

impl<'a> Fields<'a> {
    /// Takes the outermost level of a text apart.
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
        let parts = fields
            .into_iter()
            .map(|(name, text)| (name, Part::Text(text)));
        Ok(Self(parts.collect()))
    }

    /// A field as a value; null if there is none that is text.
    pub fn value(&self, name: &str) -> Result<Value, Error> {
        match self.0.get(name) {
            Some(Part::Text(text)) => serde_json::from_str(text.get()),
            _ => Ok(Value::Null),
        }
    }

    /// A field that is an object, taken apart; without fields if there is none.
    pub fn fields(&self, name: &str) -> Result<Self, Error> {
        match self.0.get(name) {
            Some(Part::Text(text)) => Self::parse(text.get()),
            _ => Ok(Self(BTreeMap::new())),
        }
    }

    /// The texts of a field that is an array; empty if there is none.
    pub fn texts(&self, name: &str) -> Result<Vec<&'a RawValue>, Error> {
        match self.0.get(name) {
            Some(Part::Text(text)) => serde_json::from_str(text.get()),
            _ => Ok(Vec::new()),
        }
    }

    /// A field that is an array of objects, each taken apart; empty if there is none.
    pub fn array(&self, name: &str) -> Result<Vec<Self>, Error> {
        self.texts(name)?
            .into_iter()
            .map(|text| Self::parse(text.get()))
            .collect()
    }

    /// Writes the object.
    pub fn write(self, out: &mut dyn Write) -> Result<(), ExportError> {
        let mut object = Object::begin(out)?;
        for (name, part) in self.0 {
            object.written(&name, |out| part.write(out))?;
        }
        Ok(object.end()?)
    }

    /// Puts a field in the place of what was there.
    pub fn set(&mut self, name: &str, part: Part<'a>) {
        self.0.insert(name.to_owned(), part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(fields: Fields<'_>) -> String {
        let mut out = Vec::new();
        fields.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_not_touched_stays() {
        let text = r#"{"a":{"b":[1,2.50],"c":null},"d":[{"e":"x"},{}],"f":1}"#;
        let mut object = Fields::parse(text).unwrap();
        assert_eq!(written(Fields::parse(text).unwrap()), text);
        let mut inner = object.fields("a").unwrap();
        inner.set("c", Part::Value(json!(7)));
        object.set("a", Part::Fields(inner));
        let mut objects = object.array("d").unwrap();
        objects[1].set("g", Part::Value(json!(true)));
        object.set("d", Part::Array(objects));
        let expected = r#"{"a":{"b":[1,2.50],"c":7},"d":[{"e":"x"},{"g":true}],"f":1}"#;
        assert_eq!(object.value("f").unwrap(), 1);
        assert_eq!(object.value("none").unwrap(), Value::Null);
        assert_eq!(written(object), expected);
    }
}
