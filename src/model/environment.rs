//! Files with the environment of a program: a line `NAME=VALUE` for each variable, as systemd's `EnvironmentFile=` has
//! it in its simplest form.

/// The variables, in their order. Empty lines and lines that start with `#` or `;` do not count; one pair of quotes
/// round a value is removed.
///
/// # Errors
/// Which line is no variable. The line itself may be a secret, so it is not shown.
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
    fn variables_are_read_and_other_lines_are_told_by_number_alone() {
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
