//! A jemalloc under names of its own, as programs and libraries have it: those of Debian's static library, with `app_` before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use super::{Program, is_installed, scratch, skip};

/// Debian's static library of this name, if it is installed.
pub fn static_library(name: &str) -> Option<PathBuf> {
    let directories = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let paths = directories.map(|directory| Path::new(directory).join(name));
    paths.into_iter().find(|path| path.exists())
}

/// What `embedded.c` is asked for where every block counts.
pub const BLOCKS: [&str; 8] = [
    "allocate first 1000 1000",
    "allocate second 500 2000",
    "allocate third 300 3008",
    "allocate fourth 200 4000",
    "resize 5000",
    "free",
    "allocate first 100 64",
    "allocate fourth 100 128",
];

/// The static library with renamed functions. `None`: there is nothing to make it of, which is said.
fn archive() -> Option<PathBuf> {
    let original = static_library("libjemalloc_pic.a");
    let tools = ["nm", "objcopy"].into_iter().all(is_installed);
    let Some(original) = original.filter(|_| tools) else {
        skip("no static jemalloc (Debian: libjemalloc-dev, binutils)");
        return None;
    };
    // One test makes it; others wait.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().expect("the test that made it");
    let directory = scratch().join("programs");
    let made = directory.join("libapp_jemalloc.a");
    if !made.exists() {
        std::fs::create_dir_all(&directory).expect("a directory");
        let unfinished = directory.join(format!("libapp_jemalloc.{}.a", std::process::id()));
        rename(&original, &unfinished);
        // Another process may have been faster: its result is the same.
        std::fs::rename(&unfinished, &made).expect("the archive");
    }
    Some(made)
}

fn rename(original: &Path, to: &Path) {
    let names = Command::new("nm")
        .args(["--defined-only", "--extern-only", "--format=posix"])
        .arg(original)
        .output()
        .expect("nm");
    let names = String::from_utf8(names.stdout).expect("names");
    let names = names.lines().filter_map(|line| line.split_once(' '));
    // C++'s operators and their like keep their names.
    let names: BTreeSet<&str> = (names.map(|(name, _)| name))
        .filter(|name| !name.starts_with("_Z") && !name.starts_with("DW."))
        .collect();
    let mut command = Command::new("objcopy");
    for name in names {
        command.arg(format!("--redefine-sym={name}=app_{name}"));
    }
    let status = command.arg(original).arg(to).status().expect("objcopy");
    assert!(status.success());
}

/// Flags for a program that is linked with it.
pub fn flags(more: &[&str]) -> Option<Vec<String>> {
    let archive = archive()?.to_string_lossy().into_owned();
    let libraries = [archive.as_str(), "-lm", "-lpthread"];
    let flags = more.iter().chain(&libraries);
    Some(flags.map(|flag| (*flag).to_owned()).collect())
}

/// Flags for a program that is linked with a mimalloc: the one that cargo has built for us.
pub fn mimalloc_flags() -> Option<Vec<String>> {
    let test = std::env::current_exe().expect("a path");
    let build = test.parent()?.parent()?.join("build");
    let built = std::fs::read_dir(build).expect("a directory");
    let archives = built.filter_map(|it| Some(it.ok()?.path().join("out/libmimalloc.a")));
    let Some(archive) = archives.filter(|it| it.exists()).max() else {
        skip("cargo has built no mimalloc");
        return None;
    };
    let archive = archive.to_string_lossy().into_owned();
    Some(vec![
        "-DMIMALLOC".to_owned(),
        archive,
        "-lpthread".to_owned(),
    ])
}

/// Flags for a program that is linked with Debian's tcmalloc.
pub fn tcmalloc_flags() -> Option<Vec<String>> {
    let Some(archive) = static_library("libtcmalloc_minimal.a") else {
        skip("no static tcmalloc (Debian: libgoogle-perftools-dev)");
        return None;
    };
    let archive = archive.to_string_lossy();
    let whole = format!("-Wl,--whole-archive,{archive},--no-whole-archive");
    let flags = ["-DTCMALLOC", &whole, "-lstdc++", "-lpthread", "-lm"];
    Some(flags.map(str::to_owned).to_vec())
}

/// Flags for a program with the functions of Google's tcmalloc, which check what they are told.
pub fn strict_flags() -> Vec<String> {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/strict_tcmalloc.c"
    );
    ["-DGOOGLE", source, "-lpthread"]
        .map(str::to_owned)
        .to_vec()
}

/// tests/programs/`source`, linked with it.
pub fn program(source: &str, more: &[&str]) -> Option<Program> {
    let flags = flags(more)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Some(Program::compiled_with(source, &flags))
}

/// A library with embedded.c and an allocator that these flags link with it, whose names are not exported.
pub fn library(name: &str, flags: &[String]) -> Program {
    let more = ["-DLIBRARY", "-Wl,--exclude-libs,ALL"];
    let flags = more.into_iter().chain(flags.iter().map(String::as_str));
    Program::library("embedded.c", name, &flags.collect::<Vec<_>>())
}
