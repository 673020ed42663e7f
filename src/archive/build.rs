//! Compiles the part of the C shim that the archive is made of.

use std::env;
use std::path::Path;

/// Of `c_shim/`: what stands before `malloc`, forks, execs and exits, and before calls by which a process confines itself.
const FILES: [&str; 5] = [
    "archive/archive.c",
    "interpose.c",
    "lifecycle.c",
    "confinement.c",
    "probes.c",
];

fn main() {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c_shim");
    println!("cargo:rerun-if-changed={}", shim.display());
    println!("cargo:rerun-if-env-changed=CI");
    cc::Build::new()
        .files(FILES.map(|file| shim.join(file)))
        .include(&shim)
        .include(shim.join("include"))
        .include(shim.join("bridges"))
        .std("gnu11")
        .opt_level(2)
        .pic(true)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(env::var_os("CI").is_some())
        // libc's functions, by the names that --wrap gives them.
        .flag("-include")
        .flag(shim.join("archive/names.h").display().to_string())
        // As the preloaded library, for the same reasons (src/preload/build.rs).
        .flag("-fvisibility=hidden")
        .flag("-fomit-frame-pointer")
        .flag("-fno-builtin")
        .flag("-ftls-model=initial-exec")
        .flag("-fno-plt")
        // The thread's counter is reached by its own name, whichever variables the file uses first: an instruction fewer on aarch64.
        .flag_if_supported("-fno-section-anchors")
        .flag("-fexceptions")
        .link_lib_modifier("+whole-archive")
        .compile("allocsample_shim");
}
