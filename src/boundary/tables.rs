//! Checks the tables of functions that C and Rust share, field by field, on both sides.
//!
//! The C header has the only list. Each field that it declares becomes an assertion of its offset in C and in Rust, and an
//! assignment in Rust to a function pointer with the parameters that the header gives it.

use std::fmt::Write;

/// A table: its struct in C, and its mirror in Rust.
pub struct Table<'a> {
    /// The header's text, in which the struct is looked for.
    pub header: &'a str,
    /// Such as `struct shim_slow_path`.
    pub c_type: &'a str,
    pub rust_type: &'a str,
}

/// A field, with its size in bytes and its type in Rust; of pointers only that they are there.
struct Field {
    name: String,
    bytes: usize,
    rust_type: String,
}

impl Table<'_> {
    /// Assertions for a C file that includes the header.
    pub fn c_assertions(&self) -> String {
        let c_type = self.c_type;
        let fields = self.fields();
        let mut text = String::new();
        for (offset, field) in offsets(&fields) {
            let name = &field.name;
            let assertion = format!("offsetof({c_type}, {name}) == {offset}");
            writeln!(text, "_Static_assert({assertion}, \"{name}\");").expect("a string");
        }
        let bytes: usize = fields.iter().map(|field| field.bytes).sum();
        writeln!(
            text,
            "_Static_assert(sizeof({c_type}) == {bytes}, \"size\");"
        )
        .expect("a string");
        text
    }

    /// Assertions for the module that defines the mirror.
    pub fn rust_assertions(&self) -> String {
        let rust_type = self.rust_type;
        let fields = self.fields();
        let bytes: usize = fields.iter().map(|field| field.bytes).sum();
        let mut text = format!("const _: () = assert!(size_of::<{rust_type}>() == {bytes});\n");
        for (
            offset,
            Field {
                name,
                rust_type: field_type,
                ..
            },
        ) in offsets(&fields)
        {
            writeln!(
                text,
                "const _: () = assert!(std::mem::offset_of!({rust_type}, {name}) == {offset});\n\
                 const _: fn(&{rust_type}) = |table| {{ let _: {field_type} = table.{name}; }};"
            )
            .expect("a string");
        }
        text
    }

    fn fields(&self) -> Vec<Field> {
        let text = without_comments(self.header);
        let start = text.find(&format!("{} {{", self.c_type));
        let start = start.unwrap_or_else(|| panic!("no {}", self.c_type));
        let body = &text[start..];
        let body = &body[body.find('{').expect("a body") + 1..body.find('}').expect("an end")];
        let declarations = body.split(';').map(str::trim);
        let declarations = declarations.filter(|declaration| !declaration.is_empty());
        declarations.map(field).collect()
    }
}

fn offsets(fields: &[Field]) -> impl Iterator<Item = (usize, &Field)> {
    fields.iter().scan(0, |next, field| {
        let offset = *next;
        *next += field.bytes;
        Some((offset, field))
    })
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| {
        kept + part.split_once("*/").map_or("", |(_, after)| after)
    })
}

/// `RESULT (*NAME)(PARAMETERS)`, or `TYPE NAME`.
fn field(declaration: &str) -> Field {
    let Some((result, rest)) = declaration.split_once("(*") else {
        let (c_type, name) = declaration.rsplit_once(' ').expect("a type and a name");
        let rust_type = rust_type(c_type);
        let bytes = match &rust_type[..] {
            "u32" => 4,
            "u64" => 8,
            other => panic!("{declaration}: the size of {other} is not known"),
        };
        return Field {
            name: name.to_owned(),
            bytes,
            rust_type,
        };
    };
    let (name, parameters) = rest.split_once(")(").expect("parameters");
    let parameters = parameters.trim_end_matches(')');
    let parameters: Vec<String> = match parameters {
        "void" => Vec::new(),
        _ => parameters.split(',').map(parameter_type).collect(),
    };
    let result = match result.trim() {
        "void" => String::new(),
        result => format!(" -> {}", rust_type(result)),
    };
    Field {
        name: name.to_owned(),
        bytes: 8,
        rust_type: format!("unsafe extern \"C\" fn({}){result}", parameters.join(", ")),
    }
}

/// `TYPE NAME`, or `TYPE` alone.
fn parameter_type(parameter: &str) -> String {
    let parameter = parameter.trim();
    let words = parameter.split_whitespace().count();
    let is_enum = parameter.starts_with("enum ");
    match parameter.rsplit_once(' ') {
        _ if parameter.contains('*') => rust_type(parameter),
        Some((c_type, _)) if words > 1 + usize::from(is_enum) => rust_type(c_type),
        _ => rust_type(parameter),
    }
}

fn rust_type(c_type: &str) -> String {
    let found = match c_type.trim() {
        pointer if pointer.ends_with('*') || pointer.contains('*') => "_",
        "bool" => "bool",
        "int" | "int32_t" | "pid_t" => "i32",
        enumeration if enumeration.starts_with("enum ") => "i32",
        "uint32_t" | "allocsample_type" | "allocsample_function" | "allocsample_statistic" => "u32",
        "uint64_t" | "uintptr_t" | "allocsample_id" => "u64",
        "size_t" => "usize",
        other => panic!("{other}: what this is in Rust is not known"),
    };
    found.to_owned()
}
