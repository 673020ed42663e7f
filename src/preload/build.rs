//! Compiles the C shim into the library, and exports its names.

use std::path::Path;

fn main() {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c_shim");
    let sources = ["interpose.c", "next.c", "operators.c", "lifecycle.c"];
    println!("cargo:rerun-if-changed={}", shim.display());
    cc::Build::new()
        .files(sources.map(|source| shim.join(source)))
        .include(&shim)
        .std("gnu11")
        .opt_level(2)
        .pic(true)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .flag("-fvisibility=hidden")
        // Our malloc is the one that the compiler must not assume to know.
        .flag("-fno-builtin")
        .flag("-ftls-model=initial-exec")
        // C++ exceptions pass through operator new.
        .flag("-fexceptions")
        // Whole: nothing in Rust names `malloc`, which would let the linker leave it out.
        .link_lib_modifier("+whole-archive")
        .compile("allocsample_shim");
    let exports = shim.join("exports.map");
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        exports.display()
    );
    // Our constructor runs before those of all other objects, so that their allocations are seen.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // What dlopen returned once stays: allocations that we sampled may end at any time.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Bound at load: no lazy binding, with its locks, inside malloc.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
