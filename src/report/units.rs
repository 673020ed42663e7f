//! Numbers for people.

use allocsample_sampling::Estimate;

/// Bytes with a binary unit and three digits: `12.3 MiB`.
pub fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if value.abs() < 1024.0 {
        return format!("{value:.0} B");
    }
    let mut scaled = value / 1024.0;
    let mut unit = 0;
    while scaled.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = if scaled.abs() >= 100.0 { 0 } else { 1 };
    format!("{scaled:.digits$} {}", UNITS[unit])
}

/// The bytes from the one to the other: `4.0 KiB to 64.0 KiB`, or once if they are the same.
pub fn byte_range((low, high): (u64, u64)) -> String {
    let text = |value: u64| bytes(value as f64);
    match low == high {
        true => text(low),
        false => format!("{} to {}", text(low), text(high)),
    }
}

/// A count with a separator every three digits.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < -0.5 {
        format!("-{text}")
    } else {
        text
    }
}

/// `12.3 MiB ± 0.4 MiB`, the value and its standard error. With few samples the value and its 95 % limits instead:
/// `1.5 MiB (0.5 to 4.6)`, and `< 1.5 MiB` where nothing was sampled. No error where there is none (every allocation
/// recorded) or none is known (periodic).
pub fn bytes_with_error(estimate: &Estimate) -> String {
    with_error(estimate, bytes, |value, largest| {
        let (divisor, unit) = byte_unit(largest);
        (scaled(value, divisor), unit)
    })
}

/// The same for counts.
pub fn count_with_error(estimate: &Estimate) -> String {
    with_error(estimate, count, |value, largest| {
        let (divisor, unit) = count_unit(largest);
        (scaled(value, divisor), unit)
    })
}

/// A count in a column: with its error it has a unit, `1.2 M`.
pub fn short_count_with_error(estimate: &Estimate) -> String {
    let short = |value: f64| {
        let (divisor, unit) = count_unit(value);
        join(&scaled(value, divisor), unit)
    };
    match estimate.is_exact() {
        true => count(estimate.value()),
        false => with_error(estimate, short, |value, largest| {
            let (divisor, unit) = count_unit(largest);
            (scaled(value, divisor), unit)
        }),
    }
}

/// `print` writes a value alone; `part` writes one in the unit of the largest, which it names.
fn with_error(
    estimate: &Estimate,
    print: impl Fn(f64) -> String,
    part: impl Fn(f64, f64) -> (String, &'static str),
) -> String {
    let (Some(stderr), Some(limits)) = (estimate.stderr(), estimate.limits_95()) else {
        return print(estimate.value());
    };
    if stderr == 0.0 {
        return print(estimate.value());
    }
    if estimate.samples() == 0 && estimate.value() == 0.0 {
        return format!("< {}", print(limits.high));
    }
    if estimate.has_few_samples() {
        let largest = limits.high.abs().max(limits.low.abs());
        let [value, low, high] =
            [estimate.value(), limits.low, limits.high].map(|it| part(it, largest));
        if value.0 == "0.0" {
            // Too small for the unit of the upper limit.
            return format!("{} (to {})", print(estimate.value()), print(limits.high));
        }
        if low.0 != high.0 {
            return format!("{} ({} to {})", join(&value.0, value.1), low.0, high.0);
        }
    }
    format!("{} ± {}", print(estimate.value()), print(stderr))
}

fn join(number: &str, unit: &str) -> String {
    match unit {
        "" => number.to_owned(),
        unit => format!("{number} {unit}"),
    }
}

fn scaled(value: f64, divisor: f64) -> String {
    let scaled = value / divisor;
    let digits = usize::from(divisor > 1.0 && scaled.abs() < 99.95);
    format!("{scaled:.digits$}")
}

fn byte_unit(largest: f64) -> (f64, &'static str) {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    unit_of(largest, 1024.0, &UNITS)
}

fn count_unit(largest: f64) -> (f64, &'static str) {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    match largest.abs() {
        // Four digits need no unit.
        ..10_000.0 => (1.0, ""),
        _ => unit_of(largest, 1000.0, &UNITS),
    }
}

fn unit_of(value: f64, step: f64, units: &[&'static str]) -> (f64, &'static str) {
    let (mut divisor, mut unit) = (1.0, 0);
    while value.abs() / divisor >= step && unit + 1 < units.len() {
        divisor *= step;
        unit += 1;
    }
    (divisor, units[unit])
}

/// Seconds with a sensible unit.
pub fn duration(seconds: f64) -> String {
    if seconds >= 3600.0 {
        format!(
            "{:.0} h {:.0} min",
            (seconds / 3600.0).floor(),
            (seconds % 3600.0 / 60.0).floor()
        )
    } else if seconds >= 60.0 {
        format!(
            "{:.0} min {:.0} s",
            (seconds / 60.0).floor(),
            seconds % 60.0
        )
    } else if seconds >= 1.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{:.0} ms", seconds * 1000.0)
    }
}

/// A probability, as precise as it deserves: `0.012`, `3e-7`; `<1e-300` where it is too small for a number.
pub fn p_value(p: f64) -> String {
    match p {
        ..1e-300 => "<1e-300".to_owned(),
        ..0.001 => format!("{p:.0e}"),
        _ => format!("{p:.3}"),
    }
}

/// `part` of `whole` in percent.
pub fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.1}%", 100.0 * part / whole)
    } else {
        "-".to_owned()
    }
}

/// `part` of `whole` as a bar of at most `width` characters, to an eighth of one, padded with blanks.
pub fn bar(part: f64, whole: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if whole > 0.0 {
        (part / whole).clamp(0.0, 1.0)
    } else {
        0.0
    };
    // At most 8 times the width of a terminal.
    let eighths = (share * (width * 8) as f64).round() as usize;
    let bar = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    let used = eighths.div_ceil(8);
    bar + &" ".repeat(width - used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_at_powers_of_1024() {
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1024.0), "1.0 KiB");
        assert_eq!(bytes(512.0 * 1024.0 * 1024.0), "512 MiB");
        assert_eq!(bytes(-2048.0), "-2.0 KiB");
        assert_eq!(count(1_234_567.4), "1,234,567");
        assert_eq!(count(12.0), "12");
        assert_eq!(p_value(0.0123), "0.012");
        assert_eq!(p_value(3.2e-7), "3e-7");
        assert_eq!(p_value(0.0), "<1e-300");
        assert_eq!(p_value(1.0), "1.000");
        assert_eq!(bar(1.0, 2.0, 3), "█▌ ");
        assert_eq!(bar(2.0, 2.0, 3), "███");
        assert_eq!(bar(0.0, 0.0, 2), "  ");

        let mib = 1024.0 * 1024.0;
        let few = |count: f64| {
            Estimate::from_parts(count * mib, Some(count * mib * mib), count as u64)
                .allowing_for(mib)
        };
        assert_eq!(bytes_with_error(&few(0.0)), "< 3.0 MiB");
        assert_eq!(bytes_with_error(&few(2.0)), "2.0 MiB (0.4 to 7.7)");
        assert_eq!(bytes_with_error(&few(100.0)), "100 MiB ± 10.0 MiB");
        assert_eq!(
            bytes_with_error(&Estimate::from_parts(2048.0, Some(0.0), 9)),
            "2.0 KiB"
        );
        assert_eq!(short_count_with_error(&few(2.0)), "2.1 M (0.4 to 8.0)");
        let one = Estimate::from_parts(1.0, Some(0.0), 1)
            .with_drawn(1.0)
            .allowing_for(8192.0);
        assert_eq!(short_count_with_error(&one), "1 (to 24.5 k)");
        assert_eq!(count_with_error(&few(0.0)), "< 3,141,253");
        assert_eq!(duration(0.25), "250 ms");
        assert_eq!(duration(3700.0), "1 h 1 min");
    }
}
