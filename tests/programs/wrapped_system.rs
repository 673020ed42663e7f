// Behaviour: wraps the system's allocator by allocsample_global, allocates at two sites, prints the truth as known_sites does,
// and ends with status 5.
use std::alloc::System;
use std::hint::black_box;

use allocsample_global::Sampled;

#[global_allocator]
static ALLOCATOR: Sampled<System> = Sampled::new(System);

#[no_mangle]
#[inline(never)]
fn site_of_blocks(round: usize) -> Vec<u8> {
    black_box(Vec::with_capacity(500 + round % 3_000))
}

#[no_mangle]
#[inline(never)]
fn site_of_leaks() -> usize {
    black_box(Vec::leak(black_box(vec![1_u8; 700]))).len()
}

fn main() {
    let (mut bytes, mut leaked) = (0, 0);
    for round in 0..20_000 {
        bytes += site_of_blocks(round).capacity();
        leaked += site_of_leaks();
    }
    let blocks = format!(r#""bytes": {bytes}, "allocations": 20000, "live_bytes": 0, "live_blocks": 0"#);
    let leaks = format!(r#""bytes": {leaked}, "allocations": 20000, "live_bytes": {leaked}, "live_blocks": 20000"#);
    println!(r#"{{"site_of_blocks": {{{blocks}}}, "site_of_leaks": {{{leaks}}}}}"#);
    std::process::exit(5);
}
