//! Shell patterns for package names and versions, with `*` and `?` only, as in apt and dpkg.

/// Whether the whole text matches the pattern.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    // A greedy matcher with one backtracking point is linear in practice and needs no recursion.
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((star_p, star_t)) => {
                    p = star_p + 1;
                    t = star_t + 1;
                    star = Some((star_p, star_t + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_a_shell_does() {
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
            ("*", "", true),
            ("docker.io", "dockerXio", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} over {text}");
        }
    }
}
