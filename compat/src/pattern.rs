//! Shell patterns with `*` and `?`, as in apt and dpkg, for package names, package versions and instance types.

/// Returns `true` if the whole text matches the pattern.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // The pattern after the last `*`, and the text after its match.
    let mut star = None;
    loop {
        let (mut behind, mut rest) = (pattern.clone(), text.clone());
        match (behind.next(), rest.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                star = Some((behind.clone(), text.clone()));
                pattern = behind;
            }
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
                (pattern, text) = (behind, rest);
            }
            // Extend only the match of the last `*`.
            _ => {
                let Some((after, end)) = &mut star else {
                    return false;
                };
                if end.next().is_none() {
                    return false;
                }
                (pattern, text) = (after.clone(), end.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_like_in_a_shell() {
        for (pattern, text, expected) in [
            ("535.*", "535.261.03-1~deb12u1", true),
            ("535.*", "5350.1", false),
            ("*nvidia*", "libnvidia-ml1", true),
            ("libnvidia-*", "libnvidia-ml1", true),
            ("libnvidia-*", "xlibnvidia-ml1", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?x", "yx", true),
            ("?x", "x", false),
            ("", "", true),
            ("*a?", "aaXa", false),
            ("*a?", "aaXaü", true),
            ("a**", "a", true),
            ("a", "", false),
            ("", "a", false),
            ("*", "", true),
            ("docker.io", "dockerXio", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} over {text}");
        }
    }
}
