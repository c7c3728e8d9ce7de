//! Sizes in the format of apt: up to four digits, at most one decimal place, and a unit with powers of 1000.

/// Returns the size in bytes, as printed.
pub(super) fn rounded(text: &str) -> Option<u64> {
    parse(text, 0)
}

/// Returns an upper bound of the size. apt rounds sizes, so the bound is the next number that apt could print.
pub(super) fn at_most(text: &str) -> Option<u64> {
    parse(text, u64::from(!text.ends_with(" B")))
}

fn parse(text: &str, more: u64) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    let power = ["B", "kB", "MB", "GB", "TB"]
        .iter()
        .position(|one| *one == unit)?;
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    let decimals = number.split_once('.').map_or(0, |(_, after)| after.len());
    let scale = |exponent: usize| 10_u64.checked_pow(u32::try_from(exponent).ok()?);
    let value: u64 = digits.parse().ok()?;
    let in_bytes = value.checked_add(more)?.checked_mul(scale(3 * power)?)?;
    Some(in_bytes / scale(decimals)?)
}

#[cfg(test)]
mod tests {
    use super::{at_most, rounded};
    use crate::model::text::reads_any_text;

    #[test]
    fn sizes_are_never_underestimated() {
        for (text, printed, most) in [
            ("0 B", 0, 0),
            ("999 B", 999, 999),
            ("12.3 kB", 12_300, 12_400),
            ("1,234 MB", 1_234_000_000, 1_235_000_000),
            ("99.9 GB", 99_900_000_000, 100_000_000_000),
        ] {
            assert_eq!(rounded(text), Some(printed), "{text}");
            assert_eq!(at_most(text), Some(most), "{text}");
        }
        for text in ["", "MB", "x MB", "1 QB", "99999999999999 TB"] {
            assert_eq!((rounded(text), at_most(text)), (None, None), "{text}");
        }
    }

    reads_any_text!("([0-9.,]* [kMGTQ]?B|.)*", |text| at_most(&text));
}
