//! Compiles the C shim into the library, and exports its names.

use std::path::Path;

fn main() {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c_shim");
    let sources = [
        "interpose.c",
        "next.c",
        "operators.c",
        "lifecycle.c",
        "attach.c",
        "redirect.c",
        "probes.c",
        "ticks.c",
        "bridges/bridges.c",
        "bridges/names.c",
        "bridges/symbols.c",
        "bridges/code.c",
        "bridges/foreign.c",
        "bridges/countdown_threads.c",
        "bridges/jvm.c",
        "bridges/jvm_launch.c",
        "bridges/jvm_layout.c",
        "bridges/jvm_native.c",
        "bridges/jvm_stack.c",
        "bridges/python.c",
        "bridges/python_deaths.c",
        "bridges/python_frames.c",
        "bridges/python_gc.c",
        "bridges/python_layout.c",
        "bridges/python_objects.c",
        "bridges/python_types.c",
        "bridges/ruby.c",
        "bridges/lua.c",
        "bridges/lua_launch.c",
        "bridges/ocaml.c",
        "bridges/v8.c",
        "bridges/v8_code.c",
        "bridges/v8_heap.c",
        "bridges/v8_samplers.c",
        "bridges/libgc.c",
        "bridges/libgc_links.c",
        "bridges/mono.c",
        "bridges/mono_watch.c",
        "bridges/pypy.c",
        "bridges/pypy_names.c",
    ];
    println!("cargo:rerun-if-changed={}", shim.display());
    cc::Build::new()
        .files(sources.map(|source| shim.join(source)))
        .include(&shim)
        .include(shim.join("include"))
        .std("gnu11")
        .opt_level(2)
        .pic(true)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .flag("-fvisibility=hidden")
        // The entries of malloc and its kin are a few instructions and a jump: no frame of their own.
        .flag("-fomit-frame-pointer")
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
    // rustc has a version script of its own, and GNU ld takes only one. On x86-64 rustc links by lld anyway.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch != "x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
    // Our constructor runs before those of all other objects, so that their allocations are seen.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // What dlopen returned once stays: allocations that we sampled may end at any time.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Bound at load: no lazy binding, with its locks, inside malloc.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
