//! Frames, functions, libraries and strings of a thread.

use std::collections::HashMap;

use fxprof_processed_profile::CategoryHandle;
use fxprof_processed_profile::debugid::DebugId;
use indexmap::IndexSet;
use serde_json::{Map, Value, json};

use super::fields::{Fields, Part};
use crate::source::{LocationIndex, Source, build_id_hex};

/// What the viewer calls a resource that is a library.
const LIBRARY: u32 = 1;

/// The modules, in their order.
pub(super) fn libraries(source: &Source) -> Value {
    let modules = source.profile.modules.iter();
    modules
        .map(|module| {
            let build_id = build_id_hex(module);
            json!({
                "arch": std::env::consts::ARCH,
                "name": module.name(),
                "path": module.path,
                "debugName": module.name(),
                "debugPath": module.path,
                "breakpadId": debug_id(&module.build_id).breakpad().to_string(),
                "codeId": (!build_id.is_empty()).then_some(build_id),
            })
        })
        .collect()
}

/// The identifier that breakpad makes of a build id: its first 16 bytes, filled up with zeros.
fn debug_id(build_id: &[u8]) -> DebugId {
    let mut guid = [0; 16];
    for (to, from) in guid.iter_mut().zip(build_id) {
        *to = *from;
    }
    DebugId::from_guid_age(&guid, 0).unwrap_or_default()
}

/// Replaces the tables of one thread, whose frames stand for these lines of locations.
pub(super) fn fill(
    source: &Source,
    thread: &mut Fields<'_>,
    places: &[(LocationIndex, usize)],
    category_of: &dyn Fn(LocationIndex) -> CategoryHandle,
) -> Result<(), serde_json::Error> {
    let names = thread.value("stringArray")?;
    let mut tables = Tables::new(source);
    let frames = tables.frames(places, category_of);
    thread.set("frameTable", Part::Value(frames));
    thread.set("funcTable", Part::Value(tables.functions()));
    thread.set("resourceTable", Part::Value(tables.resources()));
    let native_symbols =
        json!({ "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [] });
    thread.set("nativeSymbols", Part::Value(native_symbols));
    let mut markers = thread.fields("markers")?;
    let marker_names = markers.value("name")?;
    let renamed: Value = tables.renamed(&marker_names, &names).collect();
    markers.set("name", Part::Value(renamed));
    thread.set("markers", Part::Fields(markers));
    let strings: Vec<String> = tables.strings.into_iter().collect();
    thread.set("stringArray", Part::Value(json!(strings)));
    Ok(())
}

/// The tables of one thread that refer to each other.
struct Tables<'a> {
    source: &'a Source<'a>,
    strings: IndexSet<String>,
    /// Module and function: the same function in two libraries is two.
    functions: IndexSet<(Option<usize>, &'a str, Option<&'a str>)>,
    /// By module.
    resources: HashMap<usize, usize>,
    modules: Vec<usize>,
}

impl<'a> Tables<'a> {
    fn new(source: &'a Source<'a>) -> Self {
        Self {
            source,
            strings: IndexSet::new(),
            functions: IndexSet::new(),
            resources: HashMap::new(),
            modules: Vec::new(),
        }
    }

    /// The frame table.
    fn frames(
        &mut self,
        places: &[(LocationIndex, usize)],
        category_of: &dyn Fn(LocationIndex) -> CategoryHandle,
    ) -> Value {
        let categories = places.iter().map(|&(location, _)| category_of(location));
        let categories: Vec<CategoryHandle> = categories.collect();
        let mut columns = Columns::new(places.len());
        for &(location, line) in places {
            let location = &self.source.locations[location];
            let frame = &location.lines[line];
            let function = (
                location.module,
                frame.function.as_str(),
                frame.file.as_deref(),
            );
            let address = location.address.map_or(json!(-1), |address| {
                let base = location.module.map_or(0, |module| {
                    let module = &self.source.profile.modules[module];
                    module.start.wrapping_sub(module.bias)
                });
                json!(address.wrapping_sub(base))
            });
            // Frames without a library have no address that the viewer could make something of.
            let has_library = location.module.is_some();
            columns.push("address", if has_library { address } else { json!(-1) });
            // The outermost line is the function that the code belongs to.
            columns.push("inlineDepth", json!(location.lines.len() - 1 - line));
            columns.push("func", json!(self.functions.insert_full(function).0));
            columns.push("line", json!((frame.line != 0).then_some(frame.line)));
            columns.push("nativeSymbol", Value::Null);
            columns.push("innerWindowID", json!(0));
            columns.push("column", Value::Null);
        }
        columns.into_table([
            ("category", json!(categories)),
            ("subcategory", json!(vec![0; categories.len()])),
        ])
    }

    /// Indices into `old` as indices into the strings of these tables.
    fn renamed(&mut self, indices: &Value, old: &Value) -> impl Iterator<Item = Value> {
        let strings = &mut self.strings;
        let indices = indices.as_array().into_iter().flatten();
        indices.map(move |index| {
            let name = index
                .as_u64()
                .and_then(|index| old[usize::try_from(index).ok()?].as_str());
            json!(strings.insert_full(name.unwrap_or_default().to_owned()).0)
        })
    }

    fn functions(&mut self) -> Value {
        let functions = std::mem::take(&mut self.functions);
        let mut columns = Columns::new(functions.len());
        for (module, name, file) in functions {
            columns.push("name", json!(self.strings.insert_full(name.to_owned()).0));
            columns.push("isJS", json!(false));
            columns.push("relevantForJS", json!(false));
            columns.push(
                "resource",
                module.map_or(json!(-1), |module| json!(self.resource(module))),
            );
            columns.push(
                "fileName",
                json!(file.map(|file| self.strings.insert_full(file.to_owned()).0)),
            );
            columns.push("lineNumber", Value::Null);
            columns.push("columnNumber", Value::Null);
        }
        columns.into_table([])
    }

    fn resource(&mut self, module: usize) -> usize {
        *self.resources.entry(module).or_insert_with(|| {
            self.modules.push(module);
            self.modules.len() - 1
        })
    }

    fn resources(&mut self) -> Value {
        let mut columns = Columns::new(self.modules.len());
        for &module in &self.modules {
            let name = self.source.profile.modules[module].name().to_owned();
            columns.push("lib", json!(module));
            columns.push("name", json!(self.strings.insert_full(name).0));
            columns.push("host", Value::Null);
            columns.push("type", json!(LIBRARY));
        }
        columns.into_table([])
    }
}

/// A table as the viewer has it: a struct of arrays.
struct Columns {
    length: usize,
    columns: Map<String, Value>,
}

impl Columns {
    fn new(length: usize) -> Self {
        Self {
            length,
            columns: Map::new(),
        }
    }

    fn push(&mut self, column: &str, value: Value) {
        match self.columns.get_mut(column) {
            Some(Value::Array(values)) => values.push(value),
            _ => {
                self.columns.insert(column.to_owned(), json!([value]));
            }
        }
    }

    fn into_table<const N: usize>(mut self, ready: [(&str, Value); N]) -> Value {
        self.columns.insert("length".into(), json!(self.length));
        for (name, column) in ready {
            self.columns.insert(name.into(), column);
        }
        Value::Object(self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_becomes_a_breakpad_id() {
        let build_id: Vec<u8> = (1..=20).collect();
        let breakpad = debug_id(&build_id).breakpad().to_string();
        assert_eq!(breakpad, "0403020106050807090A0B0C0D0E0F100");
        assert_eq!(debug_id(&[]).breakpad().to_string().len(), 33);
    }
}
