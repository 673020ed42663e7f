// Behaviour: a Rust program with vectors, strings, threads, a panic that is caught, and a chain of known calls.
use std::collections::HashMap;
use std::hint::black_box;
use std::thread;

#[inline(never)]
fn rust_leaf(size: usize) -> Vec<u8> {
    black_box(Vec::with_capacity(size))
}

#[inline(never)]
fn rust_branch<T: Fn(usize) -> Vec<u8>>(make: T, size: usize) -> Vec<u8> {
    let made = make(black_box(size));
    black_box(made)
}

fn count_words() -> usize {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for number in 0..20_000 {
        *counts.entry(format!("word number {}", number % 700)).or_default() += 1;
    }
    counts.len()
}

fn main() {
    for _ in 0..3_000 {
        drop(rust_branch(rust_leaf, 2_000));
    }
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(count_words)).collect();
    let total: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(total, 2_800);
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(|| -> usize {
        let text = String::from("dropped while unwinding");
        panic!("{text}");
    });
    assert!(caught.is_err());
    let big = vec![0_u64; 1 << 20];
    assert!(big.iter().all(|&word| word == 0));
    println!("{total} words");
}
