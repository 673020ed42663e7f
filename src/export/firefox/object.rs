//! A JSON object of which some parts are replaced while the others stay text.
//!
//! The tables of allocations have millions of rows: those are written as they are made.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Error, Value};

use super::tracks::{Rows, SampleTable, StackTable, Threads};

/// Fields by name.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Object<'a>(BTreeMap<String, Part<'a>>);

/// The value of a field.
#[derive(Debug)]
pub(super) enum Part<'a> {
    /// As it stood in the text.
    Text(&'a RawValue),
    /// Made since.
    Value(Value),
    /// Taken apart.
    Object(Object<'a>),
    /// Taken apart.
    Array(Vec<Object<'a>>),
    /// Made as they are written.
    Threads(Threads<'a>),
    Allocations(Rows<'a>),
    Samples(SampleTable<'a>),
    Stacks(&'a StackTable),
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Part::Text(text) => text.serialize(serializer),
            Part::Value(value) => value.serialize(serializer),
            Part::Object(object) => object.serialize(serializer),
            Part::Array(objects) => objects.serialize(serializer),
            Part::Threads(threads) => threads.serialize(serializer),
            Part::Allocations(rows) => rows.serialize(serializer),
            Part::Samples(samples) => samples.serialize(serializer),
            Part::Stacks(stacks) => stacks.serialize(serializer),
        }
    }
}

impl<'a> Object<'a> {
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
    pub fn object(&self, name: &str) -> Result<Self, Error> {
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
    pub fn objects(&self, name: &str) -> Result<Vec<Self>, Error> {
        self.texts(name)?
            .into_iter()
            .map(|text| Self::parse(text.get()))
            .collect()
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

    #[test]
    fn what_is_not_touched_stays() {
        let text = r#"{"a":{"b":[1,2.50],"c":null},"d":[{"e":"x"},{}],"f":1}"#;
        let mut object = Object::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&object).unwrap(), text);
        let mut inner = object.object("a").unwrap();
        inner.set("c", Part::Value(json!(7)));
        object.set("a", Part::Object(inner));
        let mut objects = object.objects("d").unwrap();
        objects[1].set("g", Part::Value(json!(true)));
        object.set("d", Part::Array(objects));
        let expected = r#"{"a":{"b":[1,2.50],"c":7},"d":[{"e":"x"},{"g":true}],"f":1}"#;
        assert_eq!(serde_json::to_string(&object).unwrap(), expected);
        assert_eq!(object.value("f").unwrap(), 1);
        assert_eq!(object.value("none").unwrap(), Value::Null);
    }
}
