//! Compares the tables of functions that C and Rust share.

use std::path::{Path, PathBuf};
use std::{env, fs};

mod tables;

fn main() {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c_shim");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let mut assertions = "#include \"shim.h\"\n#include \"allocsample.h\"\n".to_owned();
    for (header, c_type, rust_type, file) in [
        (
            "shim.h",
            "struct shim_slow_path",
            "SlowPath",
            "slow_path.rs",
        ),
        (
            "include/allocsample.h",
            "struct allocsample_hooks",
            "HookTable",
            "hook_table.rs",
        ),
    ] {
        let path = shim.join(header);
        println!("cargo:rerun-if-changed={}", path.display());
        let header = fs::read_to_string(path).expect("the header is readable");
        let table = tables::Table {
            header: &header,
            c_type,
            rust_type,
        };
        assertions += &table.c_assertions();
        // The module of the mirror includes it.
        fs::write(out.join(file), table.rust_assertions()).expect("OUT_DIR is writable");
    }
    let path = out.join("tables.c");
    fs::write(&path, assertions).expect("OUT_DIR is writable");
    // Nothing to link: it compiles, or the build fails.
    cc::Build::new()
        .file(path)
        .include(&shim)
        .include(shim.join("include"))
        .std("gnu11")
        .cargo_metadata(false)
        .compile("allocsample_tables");
}
