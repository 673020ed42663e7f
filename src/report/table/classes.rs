//! Classes of sizes and lifetimes.

use allocsample_profile::{Sample, SampleFlags};

use crate::units;

/// The class of a size: `n` for sizes above `2^(n-1)` up to `2^n`, 0 for 0 and 1.
pub(crate) fn of_size(size: u64) -> u32 {
    match size {
        0 | 1 => 0,
        _ => 64 - (size - 1).leading_zeros(),
    }
}

/// A class of sizes in words.
pub(crate) fn size_name(class: u32) -> String {
    let bound = |class: u32| 2f64.powi(class.cast_signed());
    match class {
        0 => "up to 1 B".to_owned(),
        1 => "2 B".to_owned(),
        // Below a KiB the bounds are exact.
        2..=10 => format!("{} to {} B", bound(class - 1) + 1.0, bound(class)),
        _ => format!(
            "over {} to {}",
            round(bound(class - 1)),
            round(bound(class))
        ),
    }
}

/// Powers of two without digits behind the point.
fn round(bytes: f64) -> String {
    units::bytes(bytes).replace(".0 ", " ")
}

/// The class of what was not freed.
const NEVER: u32 = u32::MAX;

/// The class of what nobody watched: the table of live samples was full.
const UNTRACKED: u32 = u32::MAX - 1;

/// Classes below the first power of ten that is told apart: 10^4 ns.
const FIRST_EXPONENT: u32 = 4;

/// The class of a lifetime by powers of ten: 0 up to 10 µs, 1 up to 100 µs, ...
pub(crate) fn of_lifetime(sample: &Sample) -> u32 {
    if sample.flags.contains(SampleFlags::UNTRACKED) {
        return UNTRACKED;
    }
    let Some(freed) = sample.freed() else {
        return NEVER;
    };
    let lifetime_ns = freed.time_ns.saturating_sub(sample.time_ns);
    // A digit less for 10^n itself: bounds belong to the class below.
    let digits = lifetime_ns.saturating_sub(1).checked_ilog10().unwrap_or(0) + 1;
    digits.saturating_sub(FIRST_EXPONENT)
}

/// A class of lifetimes in words.
pub(crate) fn lifetime_name(class: u32) -> String {
    let bound = |class: u32| match class {
        0 => "10 µs".to_owned(),
        1 => "100 µs".to_owned(),
        2 => "1 ms".to_owned(),
        3 => "10 ms".to_owned(),
        4 => "100 ms".to_owned(),
        _ => format!("{} s", 10u64.saturating_pow(class - 5)),
    };
    match class {
        NEVER => "not freed".to_owned(),
        UNTRACKED => "not known".to_owned(),
        0 => format!("up to {}", bound(0)),
        _ => format!("over {} to {}", bound(class - 1), bound(class)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Freed, HeapId, SampleFlags, SampleId, StackId, ThreadId};

    #[test]
    fn sizes_belong_to_the_class_that_names_them() {
        for (size, name) in [
            (0, "up to 1 B"),
            (1, "up to 1 B"),
            (2, "2 B"),
            (3, "3 to 4 B"),
            (64, "33 to 64 B"),
            (65, "65 to 128 B"),
            (1024, "513 to 1024 B"),
            (1025, "over 1 KiB to 2 KiB"),
            (1 << 20, "over 512 KiB to 1 MiB"),
            ((1 << 20) + 1, "over 1 MiB to 2 MiB"),
        ] {
            assert_eq!(size_name(of_size(size)), name, "{size}");
        }
        assert_eq!(of_size(u64::MAX), 64);
    }

    #[test]
    fn lifetimes_belong_to_the_class_that_names_them() {
        let mut sample = Sample {
            id: SampleId(1),
            time_ns: 5,
            address: 1,
            size: 1,
            thread: ThreadId(1),
            heap: HeapId::MALLOC,
            flags: SampleFlags(0),
            points: 1,
            interval: 0,
            stack: StackId::EMPTY,
            ..Sample::default()
        };
        assert_eq!(lifetime_name(of_lifetime(&sample)), "not freed");
        for (lifetime_ns, name) in [
            (0, "up to 10 µs"),
            (1, "up to 10 µs"),
            (10_000, "up to 10 µs"),
            (10_001, "over 10 µs to 100 µs"),
            (100_000, "over 10 µs to 100 µs"),
            (999_999_999, "over 100 ms to 1 s"),
            (1_000_000_000, "over 100 ms to 1 s"),
            (1_000_000_001, "over 1 s to 10 s"),
            (20_000_000_000, "over 10 s to 100 s"),
        ] {
            sample.set_freed(Freed {
                time_ns: 5 + lifetime_ns,
                thread: ThreadId(1),
            });
            assert_eq!(lifetime_name(of_lifetime(&sample)), name, "{lifetime_ns}");
        }
    }
}
