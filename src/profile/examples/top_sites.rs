//! The functions that allocate most, with standard errors: `cargo run -p allocsample-profile --example top_sites -- FILE`.

use std::collections::HashMap;
use std::path::Path;

use allocsample_profile::{Estimate, HeapId, Profile, Weights};

fn main() {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: top_sites FILE");
        std::process::exit(2);
    };
    let mut profile = match Profile::open(Path::new(&path)) {
        Ok(profile) => profile,
        Err(error) => {
            eprintln!("error: {}: {error}", Path::new(&path).display());
            std::process::exit(1);
        }
    };
    // `allocsample run` stores names; the profile of a killed process has none yet.
    if profile.symbols.frames.is_empty() {
        profile.symbolize();
    }
    for (function, bytes) in top(&profile).into_iter().take(10) {
        let stderr = bytes.stderr().unwrap_or(f64::NAN);
        println!("{:12.0} B ± {stderr:10.0}  {function}", bytes.value());
    }
}

/// Bytes by the function that calls the allocator, largest first. `allocsample report` also skips wrappers and containers.
fn top(profile: &Profile) -> Vec<(String, Estimate)> {
    // Weights remember sizes: asking them is faster than `Profile::bytes`.
    let mut weights = Weights::of(profile);
    let mut by_stack: HashMap<_, Estimate> = HashMap::new();
    let allocated = profile.samples.iter().filter(|it| !it.is_carried());
    for sample in allocated.filter(|it| it.heap == HeapId::MALLOC) {
        *by_stack.entry(sample.stack).or_default() += weights.get(&sample).0;
    }
    let mut by_function: HashMap<String, Estimate> = HashMap::new();
    for (stack, bytes) in by_stack {
        let leaf = profile.stacks.locations(stack).next();
        let function = match leaf {
            Some(location) => profile.frames(location).remove(0).function,
            None => "(no stack)".to_owned(),
        };
        *by_function.entry(function).or_default() += bytes;
    }
    let mut all: Vec<(String, Estimate)> = by_function.into_iter().collect();
    all.sort_by(|a, b| b.1.value().total_cmp(&a.1.value()));
    all
}
