//! moka 0.7.0 loses nodes of invalidated entries (fixed in 0.7.1). Both tables have a bound.
use moka::sync::Cache;
use std::collections::HashMap;
use std::time::{Duration, Instant};

fn load(n: u64) -> Vec<u8> {
    vec![n as u8; 1000]
}

fn handle(cache: &Cache<u64, Vec<u8>>, n: u64) -> usize {
    cache.get_or_insert_with(n, || load(n)).len()
}

fn main() {
    let seconds: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let end = Instant::now() + Duration::from_secs(seconds);
    let cache: Cache<u64, Vec<u8>> = Cache::new(1000);
    let mut table: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut requests = 0;
    while Instant::now() < end {
        for _ in 0..500 {
            handle(&cache, requests);
            if requests >= 500 {
                cache.invalidate(&(requests - 500));
            }
            table.insert(requests % 2000, vec![1; 2000]);
            requests += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    eprintln!("{requests} requests");
}
