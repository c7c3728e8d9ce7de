//! Bootstrap tokens.

/// The error for text that is not a bootstrap token.
pub const NOT_BOOTSTRAP: &str =
    "not a bootstrap token, which has the form `[a-z0-9]{6}.[a-z0-9]{16}`";

/// Whether text is a bootstrap token. Source: Kubernetes, "Authenticating with Bootstrap Tokens", token format.
pub fn is_bootstrap(text: &str) -> bool {
    let small = |part: &str, length: usize| {
        part.len() == length && (part.bytes()).all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
    };
    (text.split_once('.')).is_some_and(|(id, secret)| small(id, 6) && small(secret, 16))
}

#[cfg(test)]
mod tests {
    use super::is_bootstrap;

    #[test]
    fn token_has_two_parts() {
        assert!(is_bootstrap("abcdef.0123456789abcdef"));
        for bad in [
            "",
            "abcdef",
            "abcdef.0123456789abcde",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcdef\n",
        ] {
            assert!(!is_bootstrap(bad), "{bad:?}");
        }
    }
}
