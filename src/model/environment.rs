//! Environment files: a line `NAME=VALUE` for each variable, which is the simplest form of systemd's
//! `EnvironmentFile=`.

/// Returns the variables in order. Empty lines and lines that start with `#` or `;` are ignored. One pair of quotes
/// around a value is removed.
///
/// # Errors
/// If a line is invalid. The error contains only the line number, because the text of the line may be a secret.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut variables = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && (name.chars()).all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let (name, value) = (line.split_once('='))
            .filter(|(name, _)| is_name(name))
            .ok_or_else(|| format!("line {number} is not `NAME=VALUE`"))?;
        let bare = ['"', '\'']
            .into_iter()
            .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
        variables.push((name.to_owned(), bare.unwrap_or(value).to_owned()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn invalid_lines_are_reported_by_number_only() {
        let text = "# a token\nTOKEN='abc=def'\n\nURL=\"https://a\"\nPLAIN=a b\nEMPTY=\n";
        let found = parse(text).expect("variables");
        let pairs: Vec<(&str, &str)> = (found.iter())
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("TOKEN", "abc=def"),
                ("URL", "https://a"),
                ("PLAIN", "a b"),
                ("EMPTY", "")
            ]
        );
        for text in ["A=1\nexport B=2", "A=1\nsecret", "A=1\n1=2"] {
            assert_eq!(parse(text).expect_err(text), "line 2 is not `NAME=VALUE`");
        }
    }
}
