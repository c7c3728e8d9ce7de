//! Sizes in the format of dnf: a number with at most one decimal place and a unit with powers of 1024, such as `5.5 k`. The
//! unit of bytes is blank. librepo writes the unit as `kB`.

/// Returns the size in bytes, as printed.
pub(super) fn rounded(text: &str) -> Option<u64> {
    parse(text, 0)
}

/// Returns the maximum size that dnf prints as this text. dnf rounds, so this is the value of the next higher number.
pub(super) fn at_most(text: &str) -> Option<u64> {
    parse(text, 1)
}

fn parse(text: &str, more: u64) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let unit = unit.trim().trim_end_matches('B');
    let power = ["", "k", "M", "G", "T"]
        .iter()
        .position(|one| *one == unit)?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, ""));
    let digits: u64 = format!("{whole}{tenth}").parse().ok()?;
    let scale = 10_u64.checked_pow(u32::try_from(tenth.len()).ok()?)?;
    let in_bytes = (digits.checked_add(if power > 0 { more } else { 0 })?)
        .checked_mul(1024_u64.checked_pow(u32::try_from(power).ok()?)?)?;
    Some(in_bytes / scale)
}

#[cfg(test)]
mod tests {
    use super::{at_most, rounded};
    use crate::model::text::reads_any_text;

    #[test]
    fn sizes_are_never_underestimated() {
        for (text, printed, most) in [
            ("0  ", 0, 0),
            ("110  ", 110, 110),
            ("5.5 k", 5632, 5734),
            ("57 M", 59_768_832, 60_817_408),
            ("2.9 MB", 3_040_870, 3_145_728),
        ] {
            assert_eq!(rounded(text), Some(printed), "{text}");
            assert_eq!(at_most(text), Some(most), "{text}");
        }
        for text in ["", "k", "x M", "1 Q", "99999999999999 T"] {
            assert_eq!((rounded(text), at_most(text)), (None, None), "{text}");
        }
    }

    reads_any_text!("([0-9.,]* [kMGTQ]?B?|.)*", |text| at_most(&text));
}
