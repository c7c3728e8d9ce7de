//! Reads from apt's file which packages are marked as automatically installed.

use std::collections::BTreeSet;

/// The path of the file.
pub const PATH: &str = "/var/lib/apt/extended_states";

/// Returns the names of packages that are marked as automatically installed. For an architecture other than `native` and `all`,
/// the name is `name:architecture`.
pub fn parse(text: &str, native: &str) -> BTreeSet<String> {
    text.split("\n\n")
        .filter_map(|paragraph| {
            let field = |key: &str| {
                paragraph
                    .lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
                    .map(str::trim)
            };
            let name = field("Package")?;
            let architecture = field("Architecture").unwrap_or(native);
            (field("Auto-Installed")? == "1").then(|| {
                if architecture == native || architecture == "all" {
                    name.to_owned()
                } else {
                    format!("{name}:{architecture}")
                }
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_marked_packages_are_returned() {
        let text = "Package: dpkg\nArchitecture: amd64\nAuto-Installed: 1\n\n\
                    Package: bash\nArchitecture: amd64\nAuto-Installed: 0\n\n\
                    Package: libc6\nArchitecture: i386\nAuto-Installed: 1\n";
        let found: Vec<String> = parse(text, "amd64").into_iter().collect();
        assert_eq!(found, ["dpkg", "libc6:i386"]);
        assert!(parse("", "amd64").is_empty());
    }
}
