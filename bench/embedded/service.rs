//! Behaviour: four threads allocate, resize and free blocks of up to 3,000 bytes by an allocator of the program's own, and keep some.
//! Prints how many bytes it has requested in all, and how many are live at the end: exact, as a layer above the allocator counts.
use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(feature = "jemalloc")]
use own::Jemalloc as Own;
#[cfg(feature = "mimalloc")]
use own::MiMalloc as Own;
#[cfg(feature = "tcmalloc")]
use own::TCMalloc as Own;

struct Counted;
#[global_allocator]
static COUNTED: Counted = Counted;
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes all calls.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Relaxed);
        unsafe { Own.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Relaxed);
        unsafe { Own.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size as u64, Relaxed);
        FREED.fetch_add(layout.size() as u64, Relaxed);
        unsafe { Own.realloc(block, layout, size) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        FREED.fetch_add(layout.size() as u64, Relaxed);
        unsafe { Own.dealloc(block, layout) }
    }
}

const THREADS: u64 = 4;
const TURNS: u64 = 60_000;

#[repr(align(256))]
struct Aligned([u8; 512]);

fn serve(thread: u64) -> (Vec<Vec<u8>>, Vec<Box<Aligned>>) {
    let mut state = thread + 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let (mut kept, mut aligned) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let size = 1 + random(3000) as usize;
        let mut block = if turn % 3 == 0 { vec![0; size] } else { Vec::with_capacity(size) };
        if turn % 5 == 0 {
            block.reserve_exact(block.capacity() + random(2000) as usize);
        }
        match turn % 50 {
            0 => kept.push(block),
            1 => aligned.push(Box::new(Aligned([turn as u8; 512]))),
            _ => drop(std::hint::black_box(block)),
        }
    }
    (kept, aligned)
}

fn main() {
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| std::thread::spawn(move || serve(thread)))
        .collect();
    let kept: Vec<_> = threads.into_iter().map(|it| it.join().expect("a thread")).collect();
    let allocated = ALLOCATED.load(Relaxed);
    let live = allocated - FREED.load(Relaxed);
    // Without a buffer, which would be a block.
    writeln!(std::io::stderr(), "{allocated} {live}").expect("standard error");
    std::hint::black_box(&kept);
    std::process::exit(0);
}
