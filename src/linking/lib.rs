//! For build scripts: links binaries that run with every glibc since 2.17, whatever glibc the build machine has.
//!
//! A linker asks for the newest version of every symbol that the build machine's libc has, so the binary does not start on
//! an older system. Here the linker finds other files behind `-lc`, `-lm` and `-lgcc_s`:
//!
//! | name | what it is |
//! |---|---|
//! | `libc.so`, `libm.so` | libraries without code. They have the symbols of the build machine's libc that glibc 2.17 had too, each in its newest version that is not newer |
//! | `libgcc_s.so` | the unwinder as an archive, because a container may lack `libgcc_s.so.1` |
//! | `libpthread.so.0`, `libdl.so.2` | empty. Before glibc 2.34 they were no part of libc, so the binary must ask for them |
//!
//! A function that is newer than glibc 2.17 remains undefined. If the reference is weak, as those of Rust's standard library are, the
//! loader binds it where the function exists. `since_2_17.c` has a definition of the others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, str};

/// The newest version of symbols that the binaries may need.
const NEWEST: &str = "GLIBC_2.17";

/// Makes the files, and returns the arguments by which the linker uses them. `None` for a target without glibc.
pub fn arguments() -> Option<Vec<String>> {
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc != "gnu") {
        return None;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("linking");
    fs::create_dir_all(&out).expect("OUT_DIR is writable");
    // A function of the loader is looked up everywhere, and musl's loader, which has all functions of libc itself, refuses a
    // library that needs one of another name.
    let libc: Vec<_> = ["libc.so.6", loader_name()].map(installed).into();
    library(&out, "libc.so.6", &symbols(&libc));
    library(&out, "libm.so.6", &symbols(&[installed("libm.so.6")]));
    for name in ["libpthread.so.0", "libdl.so.2"] {
        library(&out, name, &BTreeMap::new());
    }
    let nonshared = installed("libc_nonshared.a");
    script(&out, "libc.so", &[&out.join("libc.so.6"), &nonshared]);
    script(&out, "libm.so", &[&out.join("libm.so.6")]);
    script(&out, "libgcc_s.so", &[&installed("libgcc_eh.a")]);
    compile_missing_functions();
    let file = |name| out.join(name).display().to_string();
    Some(vec![
        format!("-L{}", out.display()),
        "-Wl,--push-state,--no-as-needed".to_owned(),
        file("libpthread.so.0"),
        file("libdl.so.2"),
        "-Wl,--pop-state".to_owned(),
    ])
}

fn loader_name() -> &'static str {
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "ld-linux-aarch64.so.1",
        _ => "ld-linux-x86-64.so.2",
    }
}

/// A file that the C compiler would link with.
fn installed(name: &str) -> PathBuf {
    let mut compiler = cc::Build::new().get_compiler().to_command();
    let printed = printed(compiler.arg(format!("-print-file-name={name}")));
    let path = PathBuf::from(printed.trim_end());
    assert!(path.is_absolute(), "the C compiler does not find {name}");
    path
}

fn printed(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("printed as text")
}

/// A symbol of a library.
struct Symbol {
    version: Vec<u32>,
    /// Size of a variable; `None` for a function.
    variable_bytes: Option<u64>,
}

/// The symbols of libraries, by name, each in its newest version up to [`NEWEST`].
fn symbols(libraries: &[PathBuf]) -> BTreeMap<String, Symbol> {
    let newest = numbers(NEWEST).expect("a version");
    let mut symbols: BTreeMap<String, Symbol> = BTreeMap::new();
    for library in libraries {
        let table = printed(
            Command::new("readelf")
                .args(["--dyn-syms", "--wide"])
                .arg(library),
        );
        for line in table.lines() {
            let Some((name, symbol)) = symbol(line) else {
                continue;
            };
            if symbol.version > newest
                || (symbols.get(name)).is_some_and(|known| known.version > symbol.version)
            {
                continue;
            }
            symbols.insert(name.to_owned(), symbol);
        }
    }
    symbols
}

/// The symbol in a line of `readelf --dyn-syms`, if the library defines it in a public version.
fn symbol(line: &str) -> Option<(&str, Symbol)> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let [_, _, size, kind, _, _, section, name] = columns[..] else {
        return None;
    };
    let (name, version) = name.split_once('@')?;
    let variable_bytes = match kind {
        "FUNC" | "IFUNC" => None,
        "OBJECT" => Some(size.parse().ok()?),
        _ => return None,
    };
    // The versions themselves are absolute symbols.
    let is_defined = section != "UND" && section != "ABS";
    let version = numbers(version.trim_start_matches('@')).filter(|_| is_defined)?;
    Some((
        name,
        Symbol {
            version,
            variable_bytes,
        },
    ))
}

/// `None` for GLIBC_PRIVATE and other names without numbers.
fn numbers(version: &str) -> Option<Vec<u32>> {
    let numbers = version.strip_prefix("GLIBC_")?.split('.');
    numbers.map(|number| number.parse().ok()).collect()
}

/// Makes a library without code that has these symbols.
fn library(out: &Path, name: &str, symbols: &BTreeMap<String, Symbol>) {
    let mut versions: BTreeMap<&[u32], Vec<&str>> = BTreeMap::new();
    let mut code = String::new();
    for (name, symbol) in symbols {
        versions.entry(&symbol.version).or_default().push(name);
        let (section, kind, bytes) = match symbol.variable_bytes {
            Some(bytes) => ("data", "object", bytes),
            None => ("text", "function", 0),
        };
        code += &format!(
            ".{section}\n.globl {name}\n.type {name}, %{kind}\n.size {name}, {bytes}\n{name}: .zero {bytes}\n"
        );
    }
    code += ".section .note.GNU-stack,\"\",%progbits\n";
    let mut nodes = String::new();
    for (version, names) in versions {
        let numbers: Vec<_> = version.iter().map(u32::to_string).collect();
        nodes += &format!("GLIBC_{} {{ {}; }};\n", numbers.join("."), names.join("; "));
    }
    let file = |kind: &str| out.join(format!("{name}{kind}"));
    fs::write(file(".s"), code).expect("OUT_DIR is writable");
    fs::write(file(".map"), &nodes).expect("OUT_DIR is writable");
    let mut link = cc::Build::new().get_compiler().to_command();
    link.args(["-shared", "-nostdlib", "-o"])
        .args([file(""), file(".s")])
        .arg(format!("-Wl,-soname,{name}"));
    if !nodes.is_empty() {
        link.arg(format!("-Wl,--version-script={}", file(".map").display()));
    }
    printed(&mut link);
}

/// Makes a linker script that stands for files.
fn script(out: &Path, name: &str, files: &[&Path]) {
    let files: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    fs::write(out.join(name), format!("GROUP({})\n", files.join(" ")))
        .expect("OUT_DIR is writable");
}

fn compile_missing_functions() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = directory.join("since_2_17.c");
    // Of the checkout, in which the compiler is called, too.
    let root = directory.ancestors().nth(2).unwrap_or(directory);
    println!("cargo:rerun-if-changed={}", source.display());
    cc::Build::new()
        .file(source)
        .std("gnu11")
        .opt_level(2)
        .pic(true)
        .flag("-fvisibility=hidden")
        // As the shim, for the same reason.
        .flag("-fno-plt")
        // The same bits from every directory: the debug information names it, and the build id depends on that.
        .flag(format!("-ffile-prefix-map={}=allocsample", root.display()))
        .link_lib_modifier("+whole-archive")
        .compile("allocsample_since_2_17");
}
