//! Parses and drops documents 20 calls deep, and keeps one in 50. Prints its processor time and its peak resident set.

use std::collections::BTreeMap;
use std::hint::black_box;

#[cfg(not(any(feature = "system", feature = "sampled", feature = "dhat")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(feature = "sampled")]
#[global_allocator]
static ALLOCATOR: allocsample_global::Sampled<tikv_jemallocator::Jemalloc> =
    allocsample_global::Sampled::new(tikv_jemallocator::Jemalloc);

#[cfg(feature = "dhat")]
#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

type Document = BTreeMap<String, Vec<u64>>;

#[inline(never)]
fn parse(text: &str) -> Document {
    let mut document = Document::new();
    for line in text.lines() {
        if let Some((name, numbers)) = line.split_once('=') {
            let numbers = numbers.split(',').filter_map(|number| number.parse().ok());
            document.insert(name.to_owned(), numbers.collect());
        }
    }
    document
}

#[inline(never)]
fn deeper(depth: u32, text: &str) -> Document {
    match depth {
        0 => parse(text),
        _ => black_box(deeper(depth - 1, black_box(text))),
    }
}

fn main() {
    #[cfg(feature = "dhat")]
    let profiler = dhat::Profiler::new_heap();
    let rounds: usize = std::env::args().nth(1).map_or(4_000, |rounds| rounds.parse().expect("a number of rounds"));
    let lines: Vec<String> = (0..200).map(|line| format!("name {line}={line},2,3,4,5,6,7,8,9,10")).collect();
    let text = lines.join("\n");
    let mut kept = Vec::new();
    for round in 0..rounds {
        let document = deeper(20, &text);
        if round % 50 == 0 {
            kept.push(document);
        }
    }
    black_box(&kept);
    #[cfg(feature = "prof")]
    if let Some(control) = jemalloc_pprof::PROF_CTL.as_ref() {
        let mut control = control.blocking_lock();
        if control.activated() {
            std::fs::write("jemalloc.pprof", control.dump_pprof().expect("a profile")).expect("a file");
        }
    }
    #[cfg(feature = "dhat")]
    drop(profiler);
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the place is writable, and all zero bytes are a value of its type.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    println!("{:.4} {}", seconds(usage.ru_utime) + seconds(usage.ru_stime), usage.ru_maxrss);
}
