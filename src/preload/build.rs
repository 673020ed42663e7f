//! Compiles the C shim into the library, and exports the names in its interposition table.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c_shim");
    let core = files(&shim, "c");
    let registry = files(&shim.join("bridges"), "c");
    let bridges = folders(&shim.join("bridges"));
    let sources = bridges.iter().flat_map(|folder| files(folder, "c"));
    println!("cargo:rerun-if-changed={}", shim.display());
    println!("cargo:rerun-if-env-changed=CI");
    cc::Build::new()
        .files(core)
        .files(registry)
        .files(sources)
        .include(&shim)
        .include(shim.join("include"))
        .include(shim.join("bridges"))
        .std("gnu11")
        .opt_level(2)
        .pic(true)
        .warnings(true)
        .extra_warnings(true)
        // Other compilers have other warnings: here they only fail the checks before a merge.
        .warnings_into_errors(env::var_os("CI").is_some())
        .flag("-fvisibility=hidden")
        // The entries of malloc and its kin are a few instructions and a jump: no frame of their own.
        .flag("-fomit-frame-pointer")
        // Our malloc is the one that the compiler must not assume to know.
        .flag("-fno-builtin")
        .flag("-ftls-model=initial-exec")
        // The linker's stubs have no call-frame information: a profiler of the program's would lose its stack there.
        .flag("-fno-plt")
        // The thread's counter is reached by its own name, whichever variables the file uses first: an instruction fewer on aarch64.
        .flag_if_supported("-fno-section-anchors")
        // C++ exceptions pass through operator new.
        .flag("-fexceptions")
        // Whole: nothing in Rust names `malloc`, which would let the linker leave it out.
        .link_lib_modifier("+whole-archive")
        .compile("allocsample_shim");
    export(&shim.join("interposed.def"), &bridges);
    for argument in allocsample_linking::arguments().unwrap_or_default() {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    for argument in linker() {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    // A debugger looks for a name of an expression in the debug information of all libraries: for `dlsym`, which memray has
    // lldb call, it would also find one of std's, and `malloc` and `free` among what the drain thread has inlined.
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--strip-debug");
    }
    // Our constructor runs before those of all other objects, so that their allocations are seen.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // What dlopen returned once stays: allocations that we sampled may end at any time.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Bound at load: no lazy binding, with its locks, inside malloc.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}

/// The folders in a directory, by name: each bridge is one.
fn folders(directory: &Path) -> Vec<PathBuf> {
    entries(directory, |path| path.is_dir())
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    entries(directory, |path| {
        path.extension().is_some_and(|found| found == extension)
    })
}

fn entries(directory: &Path, is_wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory is readable");
    let paths = entries.map(|entry| entry.expect("the directory is readable").path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| is_wanted(path)).collect();
    paths.sort();
    paths
}

/// Which linker the C compiler calls. rustc has a version script of its own, and GNU ld takes only one: the linker has to be
/// lld. rustup's toolchains contain it, and use it on x86-64 without being told. A linker that RUSTFLAGS names stays.
fn linker() -> Vec<String> {
    let is_named = env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|it| it.contains("-fuse-ld="));
    let contained = rustc_linkers().filter(|directory| directory.join("ld.lld").exists());
    let is_default = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    if is_named || is_default && contained.is_some() {
        return Vec::new();
    }
    let mut arguments = vec!["-fuse-ld=lld".to_owned()];
    match contained {
        // A cross compiler looks for linkers in its own directories alone.
        Some(directory) => arguments.push(format!("-B{}", directory.display())),
        None => println!(
            "cargo:warning=this Rust toolchain contains no lld: liballocsample.so is linked by the installed one (Debian: lld)"
        ),
    }
    arguments
}

/// Where rustup's toolchains have linkers for the C compiler to call.
fn rustc_linkers() -> Option<PathBuf> {
    let rustc = env::var_os("RUSTC")?;
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(output.ok()?.stdout).ok()?;
    let host = env::var("HOST").ok()?;
    Some(Path::new(sysroot.trim_end()).join(format!("lib/rustlib/{host}/bin/gcc-ld")))
}

/// Has the linker export all rows of the table but those that are only redirected, and what bridges export. Without a
/// version and without a `local:` part, so that the script can stand beside the one that rustc writes for a cdylib.
fn export(table: &Path, bridges: &[PathBuf]) {
    let rows = fs::read_to_string(table).expect("the table is readable");
    let names = rows
        .lines()
        .filter(|row| !row.starts_with("LATE(") && !row.starts_with("EXTENSION("))
        .filter_map(|row| row.strip_suffix(')')?.split_once('('))
        .filter(|(group, _)| group.bytes().all(|letter| letter.is_ascii_uppercase()))
        .filter_map(|(_, row)| row.split(',').next());
    // A bridge that exports nothing has no such file.
    let of_bridges: String = bridges
        .iter()
        .filter_map(|folder| fs::read_to_string(folder.join("exports")).ok())
        .collect();
    let script: String = names
        .chain(of_bridges.lines())
        .map(|name| format!("{name};\n"))
        .collect();
    let path = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("exports.map");
    fs::write(&path, format!("{{ global:\n{script}}};\n")).expect("OUT_DIR is writable");
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        path.display()
    );
}
