//! Links the command so that it runs with every glibc since 2.17, and puts the agent's library into it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the library is built from, for cargo to see changes.
const SOURCES: [&str; 11] = [
    "c_shim",
    "src/agent",
    "src/boundary",
    "src/drain",
    "src/front",
    "src/linking",
    "src/preload",
    "src/record",
    "src/residency",
    "src/ring",
    "src/sampling",
];

fn main() {
    println!("cargo:rerun-if-changed=src/cli/build.rs");
    for argument in allocsample_linking::arguments().unwrap_or_default() {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-check-cfg=cfg(embedded)");
    println!("cargo:rerun-if-env-changed=ALLOCSAMPLE_EMBED");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let library = match env::var_os("ALLOCSAMPLE_EMBED").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        // `cargo install` installs the command alone.
        None if is_release => build_library(),
        // Tests use the library that cargo builds for them.
        None => return,
    };
    let path =
        fs::canonicalize(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    println!("cargo:rerun-if-changed={}", path.display());
    println!(
        "cargo:rustc-env=ALLOCSAMPLE_EMBEDDED_LIBRARY={}",
        path.display()
    );
    println!("cargo:rustc-cfg=embedded");
}

/// Builds the library without symbols. A build script cannot depend on a shared object, so it calls cargo.
fn build_library() -> PathBuf {
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    let variable = |name| env::var(name).expect("set by cargo");
    let directory = Path::new(&variable("OUT_DIR")).join("library");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "allocsample-preload",
            "--target-dir",
        ])
        .arg(&directory)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let (host, target) = (variable("HOST"), variable("TARGET"));
    let mut built = directory.clone();
    if host != target {
        cargo.args(["--target", &target]);
        built.push(&target);
    }
    let status = cargo.status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{cargo:?} failed"
    );
    built.join("release/liballocsample.so")
}
