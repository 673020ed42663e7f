//! Work on numbered things, shared among threads.

use std::ops::Range;

/// What `work` makes of each of the numbers below `count`, in their order. `begin` makes what one thread needs for itself.
pub(crate) fn filter_map<S, T: Send>(
    count: usize,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Option<T> + Sync,
) -> Vec<T> {
    /// Fewer are done before a thread has begun.
    const EACH: usize = 1 << 10;
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = available.min(count / EACH).max(1);
    let part = |range: Range<usize>| -> Vec<T> {
        let mut own = begin();
        range.filter_map(|number| work(&mut own, number)).collect()
    };
    let range = |thread: usize| count * thread / threads..count * (thread + 1) / threads;
    std::thread::scope(|scope| {
        let part = &part;
        let others: Vec<_> = (1..threads)
            .map(|thread| scope.spawn(move || part(range(thread))))
            .collect();
        let mut all = part(range(0));
        for other in others {
            match other.join() {
                Ok(part) => all.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_order_is_that_of_the_numbers() {
        for count in [0, 1, 1000, 50_000] {
            let even = |_: &mut (), number: usize| number.is_multiple_of(2).then_some(number);
            let expected: Vec<usize> = (0..count).step_by(2).collect();
            assert_eq!(super::filter_map(count, || (), even), expected);
        }
    }
}
