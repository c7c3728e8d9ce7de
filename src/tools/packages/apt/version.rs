//! Debian version comparison, as described in `deb-version(7)`. The tests compare it with the crate `debversion`, which is too
//! large for the binary because it depends on regular expression and calendar libraries.

use std::cmp::Ordering;

/// The parts of a version, without separators.
struct AptVersion<'v> {
    epoch: u32,
    upstream: &'v str,
    revision: &'v str,
}

impl<'v> AptVersion<'v> {
    /// Parses `[EPOCH:]UPSTREAM[-REVISION]`, or returns `None` if the text is not a version.
    fn parse(text: &'v str) -> Option<Self> {
        let (epoch, rest) = match text.split_once(':') {
            Some((epoch, rest)) => (epoch.parse().ok()?, rest),
            None => (0, text),
        };
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b".+-~:".contains(&c);
        (!upstream.is_empty() && rest.bytes().all(allowed)).then_some(Self {
            epoch,
            upstream,
            revision,
        })
    }
}

/// Compares two versions. Invalid versions are sorted as text.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    match (AptVersion::parse(a), AptVersion::parse(b)) {
        (Some(a), Some(b)) => (a.epoch.cmp(&b.epoch))
            .then_with(|| part(a.upstream.as_bytes(), b.upstream.as_bytes()))
            .then_with(|| part(a.revision.as_bytes(), b.revision.as_bytes())),
        _ => a.cmp(b),
    }
}

/// Compares alternating parts: text by [`weight`], numbers by value.
fn part(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while !(a.is_empty() && b.is_empty()) {
        let (text, other_text) = (
            until(&mut a, u8::is_ascii_digit),
            until(&mut b, u8::is_ascii_digit),
        );
        let longest = text.len().max(other_text.len());
        let texts = (0..longest).map(|at| weight(text.get(at)).cmp(&weight(other_text.get(at))));
        let not_digit = |c: &u8| !c.is_ascii_digit();
        let (number, other_number) = (until(&mut a, not_digit), until(&mut b, not_digit));
        let order = (texts.fold(Ordering::Equal, Ordering::then))
            .then_with(|| value(number).cmp(&value(other_number)));
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

/// Removes and returns the bytes before the first match.
fn until<'v>(text: &mut &'v [u8], found: impl Fn(&u8) -> bool) -> &'v [u8] {
    let end = text.iter().position(found).unwrap_or(text.len());
    let (first, rest) = text.split_at(end);
    *text = rest;
    first
}

/// Returns the sort key of a character. The order is: a tilde, the end of the text (`None`), letters, all other characters.
fn weight(c: Option<&u8>) -> (u8, u8) {
    match c {
        Some(b'~') => (0, 0),
        None => (1, 0),
        Some(c) if c.is_ascii_alphabetic() => (2, *c),
        Some(c) => (3, *c),
    }
}

/// Returns a comparable form of a number of any length: the number of digits, then the digits.
fn value(digits: &[u8]) -> (usize, &[u8]) {
    let zeros = digits.iter().take_while(|c| **c == b'0').count();
    let digits = &digits[zeros..];
    (digits.len(), digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each version is older than the next one.
    const SORTED: [&str; 9] = [
        "1.0~rc1-1",
        "1.0-1",
        "1.0-1ubuntu2",
        "1.0-1+b1",
        "1.0a-1",
        "1.0.1-1",
        "1.10-1",
        "580.178.04-0ubuntu0.24.04.1",
        "1:0.1",
    ];

    #[test]
    fn versions_sort_like_in_dpkg() {
        for (at, older) in SORTED.iter().enumerate() {
            assert_eq!(compare(older, older), Ordering::Equal);
            for newer in &SORTED[at + 1..] {
                assert_eq!(compare(older, newer), Ordering::Less, "{older} {newer}");
                assert_eq!(compare(newer, older), Ordering::Greater, "{newer} {older}");
            }
        }
        assert_eq!(compare("1.0", "1.0-0"), Ordering::Equal);
        assert_eq!(compare("0:1.00", "1.0"), Ordering::Equal);
        // Invalid versions.
        assert_eq!(compare("ä", "b"), Ordering::Greater);
        assert_eq!(compare("", "1"), Ordering::Less);
    }

    proptest! {
        #[test]
        fn order_equals_the_order_of_debversion(
            a in "([0-9]{1,2}:)?[0-9][0-9a-c.+~]{0,8}(-[0-9a-b.+~]{1,4})?",
            b in "([0-9]{1,2}:)?[0-9][0-9a-c.+~]{0,8}(-[0-9a-b.+~]{1,4})?",
        ) {
            let read = |text: &str| text.parse::<debversion::Version>().ok();
            // In dpkg, `4.` and `4.0` are equal, but not in debversion.
            let ends_a_number = |text: &str| text.split('-').all(|part| !part.ends_with(['.', '+', '~', 'a', 'b', 'c']));
            if let (Some(left), Some(right), true) = (read(&a), read(&b), ends_a_number(&a) && ends_a_number(&b)) {
                prop_assert_eq!(compare(&a, &b), left.cmp(&right), "{} {}", a, b);
            }
        }

        #[test]
        fn no_text_causes_a_panic(a in "\\PC{0,12}", b in "\\PC{0,12}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        }
    }
}
