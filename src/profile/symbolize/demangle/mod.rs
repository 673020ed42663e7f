//! Names of functions as their languages have them.

mod crystal;
mod dlang;
mod nim;
mod swift;

use dlang::Parameters;
use swift::Modules;

/// A name of a symbol table. `is_nim`: the file is a program of Nim, which no name says by itself.
pub(super) fn symbol(name: &str, is_nim: bool) -> String {
    // A versioned name ends in @@VERSION.
    let name = name.split('@').next().unwrap_or(name);
    dlang::demangle(name, Parameters::Hidden)
        .or_else(|| swift::demangle(name, Modules::Shown))
        .or_else(|| crystal::demangle(name))
        .or_else(|| is_nim.then(|| nim::demangle(name))?)
        .unwrap_or_else(|| addr2line::demangle_auto(name.into(), None).into_owned())
}

/// The method that a symbol of Crystal names. Its debug information has names without their types.
pub(super) fn of_crystal(symbol: &str) -> Option<String> {
    crystal::demangle(symbol)
}

/// A name of debug information as the compiler wrote it, and `readable` without the mangling of the language that it declares.
pub(super) fn debug_name(raw: &str, readable: String, file: Option<&str>) -> String {
    let of_language = match file {
        // Some of its names pass for names of C++.
        Some(file) if file.ends_with(".nim") => nim::demangle(raw),
        Some(file) if file.ends_with(".zig") => zig(&readable),
        _ => dlang::demangle(&readable, Parameters::Hidden)
            .or_else(|| swift::demangle(&readable, Modules::Shown)),
    };
    of_language.unwrap_or(readable)
}

/// Without the number that tells apart what Zig makes of one generic function: `mem.Allocator.alloc__anon_1290`.
fn zig(name: &str) -> Option<String> {
    let (name, number) = name.rsplit_once('_')?;
    let is_number = !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit());
    let name = name
        .strip_suffix("__anon")
        .or_else(|| name.strip_suffix("__func"))?;
    (is_number && !name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_each_language_are_read() {
        for (name, is_nim, shown) in [
            ("_D3app3runFZv", false, "app.run"),
            ("_ZN3app3runEv", false, "app::run()"),
            ("$s3app3runyyF", false, "app.run()"),
            ("*run:Nil", false, "run"),
            ("run__app_1", true, "app.run"),
            ("run__app_1", false, "run__app_1"),
            ("malloc@@GLIBC_2.2.5", false, "malloc"),
        ] {
            assert_eq!(symbol(name, is_nim), shown);
        }
    }

    #[test]
    fn a_files_language_decides_how_its_names_are_read() {
        for (name, file, shown) in [
            ("run__app_1", Some("app.nim"), "app.run"),
            ("_ZN3app3runE3int", Some("app.nim"), "app.run"),
            ("run__app_1", Some("app.c"), "run__app_1"),
            ("mem.alloc__anon_12", Some("/lib/std/mem.zig"), "mem.alloc"),
            ("mem.alloc__func_2", Some("/lib/std/mem.zig"), "mem.alloc"),
            ("alloc__anon_12", Some("app.c"), "alloc__anon_12"),
            ("_D3app3runFZv", Some("app.d"), "app.run"),
            ("_D3app3runFZv", None, "app.run"),
            ("$s3app3runyyF", Some("app.swift"), "app.run()"),
        ] {
            assert_eq!(debug_name(name, name.to_owned(), file), shown);
        }
    }
}
