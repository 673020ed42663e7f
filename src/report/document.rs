//! A JSON object whose long arrays are made row by row while it is written.
//!
//! As one [`Value`] an answer takes some ten times the memory of its text: a table of a few hundred thousand rows would take a
//! gigabyte.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value};

/// Rows, made anew whenever the object is written.
type Make<'a> = Box<dyn Fn() -> Box<dyn Iterator<Item = Value> + 'a> + 'a>;

/// A JSON object. Its keys are written in the order in which they were given.
#[derive(Default)]
pub struct Document<'a> {
    entries: Vec<(String, Entry<'a>)>,
}

enum Entry<'a> {
    Value(Value),
    Rows(Make<'a>),
}

impl<'a> Document<'a> {
    /// Of the entries of an object; none of anything else.
    pub fn of(value: Value) -> Self {
        let mut document = Self::default();
        document.extend(value);
        document
    }

    /// Adds the entries of an object.
    pub fn extend(&mut self, value: Value) {
        if let Value::Object(entries) = value {
            let entries = entries.into_iter();
            self.entries
                .extend(entries.map(|(key, value)| (key, Entry::Value(value))));
        }
    }

    /// Adds an array of the rows that `make` makes.
    pub fn rows<I>(&mut self, key: &str, make: impl Fn() -> I + 'a)
    where
        I: Iterator<Item = Value> + 'a,
    {
        let rows = Entry::Rows(Box::new(move || Box::new(make())));
        self.entries.push((key.to_owned(), rows));
    }

    /// The whole in memory, for answers that are known to be short.
    pub fn into_value(self) -> Value {
        let entry = |(key, entry)| match entry {
            Entry::Value(value) => (key, value),
            Entry::Rows(make) => (key, Value::Array(make().collect())),
        };
        Value::Object(self.entries.into_iter().map(entry).collect::<Map<_, _>>())
    }
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (key, entry) in &self.entries {
            match entry {
                Entry::Value(value) => map.serialize_entry(key, value)?,
                Entry::Rows(make) => map.serialize_entry(key, &Rows(make))?,
            }
        }
        map.end()
    }
}

struct Rows<'r, 'a>(&'r Make<'a>);

impl Serialize for Rows<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(None)?;
        for row in (self.0)() {
            rows.serialize_element(&row)?;
        }
        rows.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_row_by_row_is_what_the_whole_would_be() {
        let mut document = Document::of(json!({ "z": 1, "a": [true] }));
        document.rows("rows", || (0..3).map(|number| json!({ "number": number })));
        document.rows("none", std::iter::empty);
        document.extend(json!({ "last": null }));
        let text = serde_json::to_string_pretty(&document).unwrap();
        let whole = document.into_value();
        assert_eq!(text, serde_json::to_string_pretty(&whole).unwrap());
        let keys: Vec<&String> = whole.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["z", "a", "rows", "none", "last"]);
    }
}
