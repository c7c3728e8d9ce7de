//! Where apt is told to fetch from: `sources.list(5)` in both its formats, as far as it takes to
//! notice that two entries contradict each other.

/// The old single file.
pub const LIST: &str = "/etc/apt/sources.list";

/// The folder of further files, `*.list` and `*.sources`.
pub const FOLDER: &str = "/etc/apt/sources.list.d";

/// Whether apt reads a file of this name in [`FOLDER`]; it passes over all others,
/// `sources.list(5)`.
#[must_use]
pub fn is_read(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (name.ends_with(".list") || name.ends_with(".sources")) && name.chars().all(plain)
}

/// One repository and suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its address, without a slash at the end.
    pub uri: String,
    /// The suite, or `/`.
    pub suite: String,
    /// The keyring that it names, or the key itself.
    pub signed_by: Option<String>,
}

/// Reads a file by its name: `.sources` is deb822, `.list` has one entry a line. Other files are
/// ignored by apt, and here.
#[must_use]
pub fn parse(name: &str, text: &str) -> Vec<Entry> {
    if name.ends_with(".sources") {
        text.split("\n\n").flat_map(stanza).collect()
    } else if name.ends_with(".list") {
        text.lines().filter_map(one_line).collect()
    } else {
        Vec::new()
    }
}

/// An address in the form in which two can be compared.
#[must_use]
pub fn canonical(uri: &str) -> String {
    uri.trim_end_matches('/').to_owned()
}

fn one_line(line: &str) -> Option<Entry> {
    let line = line.split('#').next()?.trim();
    let rest = line
        .strip_prefix("deb ")
        .or_else(|| line.strip_prefix("deb-src "))?
        .trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    Some(Entry {
        uri: canonical(words.next()?),
        suite: words.next()?.to_owned(),
        signed_by: options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_owned),
    })
}

fn stanza(text: &str) -> Vec<Entry> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            continue;
        }
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            fields.push((key.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let field = |key: &str| {
        fields
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    };
    if field("enabled").is_some_and(|value| matches!(value, "no" | "false" | "0")) {
        return Vec::new();
    }
    let words = |key| field(key).unwrap_or_default().split_whitespace();
    words("uris")
        .flat_map(|uri| {
            words("suites").map(|suite| Entry {
                uri: canonical(uri),
                suite: suite.to_owned(),
                signed_by: field("signed-by").map(str::to_owned),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Entry, parse};

    fn entry(uri: &str, suite: &str, signed_by: Option<&str>) -> Entry {
        Entry {
            uri: uri.into(),
            suite: suite.into(),
            signed_by: signed_by.map(str::to_owned),
        }
    }

    #[test]
    fn one_entry_a_line() {
        let text = "# deb http://old x main\n\
                    deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] https://a/deb/ / # flat\n\
                    deb http://debian.example.org/debian bookworm main contrib\n";
        assert_eq!(
            parse("x.list", text),
            [
                entry("https://a/deb", "/", Some("/usr/share/keyrings/k.gpg")),
                entry("http://debian.example.org/debian", "bookworm", None),
            ]
        );
        assert!(parse("x.list.save", text).is_empty());
    }

    #[test]
    fn deb822() {
        let text = "Types: deb\n# a comment\nURIs: http://debian.example.org/debian/\n\
                    Suites: bookworm bookworm-updates\nComponents: main\n\
                    Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://b\nSuites: x\n\n\
                    Types: deb\nURIs: http://c\nSuites: /\nSigned-By:\n -----BEGIN PGP\n .\n";
        let found = parse("debian.sources", text);
        let key = Some("/usr/share/keyrings/debian-archive-keyring.gpg");
        assert_eq!(
            found[..2],
            [
                entry("http://debian.example.org/debian", "bookworm", key),
                entry("http://debian.example.org/debian", "bookworm-updates", key),
            ]
        );
        assert_eq!(found.len(), 3);
        assert!(found[2].signed_by.as_deref().unwrap().contains("BEGIN PGP"));
    }
}
