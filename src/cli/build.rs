//! Links the command so that it runs with every glibc since 2.17.

fn main() {
    println!("cargo:rerun-if-changed=src/cli/build.rs");
    for argument in allocsample_linking::arguments().unwrap_or_default() {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
