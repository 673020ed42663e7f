//! Columns of numbers as the page reads them: base64 behind one character that says how wide a number is.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// In as few bytes each as the largest needs.
pub(crate) fn integers(values: impl Iterator<Item = u32> + Clone) -> String {
    let largest = values.clone().max().unwrap_or(0);
    let width = match largest {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        _ => 4,
    };
    let bytes: Vec<u8> = values
        .flat_map(|value| value.to_le_bytes().into_iter().take(width))
        .collect();
    format!("{width}{}", STANDARD.encode(bytes))
}

pub(crate) fn reals(values: impl Iterator<Item = f64>) -> String {
    let bytes: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
    format!("8{}", STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_take_as_little_room_as_their_largest_value_needs() {
        assert_eq!(integers([1, 2].into_iter()), "1AQI=");
        assert_eq!(integers([256].into_iter()), "2AAE=");
        assert_eq!(integers([u32::MAX].into_iter()), "4/////w==");
        assert_eq!(reals([0.0].into_iter()), "8AAAAAAAAAAA=");
    }
}
