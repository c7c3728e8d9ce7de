//! `apt-cache policy`: what the package lists offer, without any lock.

use crate::host::Query;

/// Asks for the candidates of packages.
#[must_use]
pub fn candidates(packages: &[&str]) -> Query {
    Query::new(
        "apt-cache",
        ["policy", "--"].iter().chain(packages).copied(),
    )
}

/// Reads the answer to [`candidates`]: the names that have a candidate. A name that the lists do
/// not know at all has no paragraph.
#[must_use]
pub fn parse(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut name: Option<&str> = None;
    for line in text.lines() {
        if !line.starts_with(' ') {
            name = line.strip_suffix(':');
        } else if let (Some(name), Some(version)) =
            (name, line.trim_start().strip_prefix("Candidate: "))
            && version != "(none)"
        {
            found.push((name.to_owned(), version.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_names_with_a_candidate_count() {
        let text = "bash:\n  Installed: 5.2.15-2+b8\n  Candidate: 5.2.15-2+b8\n  Version table:\n \
                    *** 5.2.15-2+b8 500\nlinux-headers-6.1.0-1-amd64:\n  Installed: (none)\n  \
                    Candidate: (none)\n  Version table:\n";
        assert_eq!(parse(text), [("bash".to_owned(), "5.2.15-2+b8".to_owned())]);
    }
}
