//! The example of docs/bridges.md.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn compiles(file: &str, more: &[&str]) {
    let done = Command::new("cc")
        .current_dir(root())
        .args(["-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
        .args(more)
        .arg(format!("integrations/example/{file}"))
        .output()
        .expect("a C compiler");
    assert!(
        done.status.success(),
        "{file}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn the_example_bridge_compiles_against_the_interfaces_of_bridges() {
    let includes = ["-Ic_shim", "-Ic_shim/include", "-Ic_shim/bridges"];
    compiles("bridge.c", &includes);
    compiles("tally.c", &[]);
    compiles("program.c", &[]);
}

#[test]
fn the_page_about_bridges_quotes_the_example() {
    let page = std::fs::read_to_string(root().join("docs/bridges.md")).expect("the page");
    let bridge =
        std::fs::read_to_string(root().join("integrations/example/bridge.c")).expect("the bridge");
    let quotes: Vec<&str> = page
        .split("```c\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(quote, _)| quote))
        .collect();
    assert!(quotes.len() > 3, "{} quotes", quotes.len());
    for quote in quotes {
        assert!(bridge.contains(quote), "not in bridge.c:\n{quote}");
    }
}
