//! Where apt is told to fetch from: `sources.list(5)` in both its formats, as far as it takes to
//! notice that two entries contradict each other, or that one is there already.

/// The old single file.
pub const LIST: &str = "/etc/apt/sources.list";

/// The folder of further files, `*.list` and `*.sources`.
pub const FOLDER: &str = "/etc/apt/sources.list.d";

/// Where apt keeps the lists that it fetched.
pub const LISTS: &str = "/var/lib/apt/lists";

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
    /// It is a source of binary packages.
    pub binary: bool,
    /// Its components; none for a suite that is a path.
    pub components: Vec<String>,
    /// The architectures that it is restricted to; none: the machine's.
    pub architectures: Vec<String>,
    /// It tells apt to do without some proof.
    pub trusting: bool,
}

impl Entry {
    /// Whether it names this address and suite on a machine of this architecture, for which
    /// `$(ARCH)` stands.
    #[must_use]
    pub fn names(&self, uri: &str, suite: &str, architecture: Option<&str>) -> bool {
        let is = |text: &str, wanted: &str| match architecture {
            Some(architecture) => text.replace("$(ARCH)", architecture) == wanted,
            None => text == wanted,
        };
        is(&self.uri, &canonical(uri)) && is(&self.suite, suite)
    }

    /// Whether it brings these components for these architectures.
    #[must_use]
    pub fn brings(&self, components: &[String], architectures: &[String]) -> bool {
        let has =
            |part: &String| self.architectures.is_empty() || self.architectures.contains(part);
        self.binary
            && components.iter().all(|one| self.components.contains(one))
            && architectures.iter().all(has)
    }
}

/// Options that let apt take what no signature, or a weak or missing one, vouches for.
const TRUSTING: [&str; 4] = [
    "trusted",
    "allow-insecure",
    "allow-weak",
    "allow-downgrade-to-insecure",
];

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
    let (kind, rest) = line.split_at_checked(line.find([' ', '\t', '['])?)?;
    let binary = match kind {
        "deb" => true,
        "deb-src" => false,
        _ => return None,
    };
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let option = |key: &str| {
        let pairs = options.split_whitespace();
        pairs
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(name, value)| (name == key).then(|| value.to_owned()))
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Entry {
        uri: canonical(&words.next()?),
        suite: words.next()?,
        components: words.collect(),
        signed_by: option("signed-by"),
        binary,
        architectures: list(&option("arch").unwrap_or_default(), ','),
        trusting: TRUSTING.iter().any(|key| says_yes(option(key).as_deref())),
    })
}

/// Anything but apt's words for no.
fn says_yes(value: Option<&str>) -> bool {
    value.is_some_and(|value| !["no", "false", "without", "off", "disable", "0"].contains(&value))
}

fn list(text: &str, separator: char) -> Vec<String> {
    text.split(|c: char| c == separator || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
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
    if field("enabled").is_some() && !says_yes(field("enabled")) {
        return Vec::new();
    }
    let words = |key| field(key).unwrap_or_default().split_whitespace();
    words("uris")
        .flat_map(|uri| {
            words("suites").map(|suite| Entry {
                uri: canonical(uri),
                suite: suite.to_owned(),
                signed_by: field("signed-by").map(str::to_owned),
                binary: words("types").any(|kind| kind == "deb"),
                components: words("components").map(str::to_owned).collect(),
                architectures: list(field("architectures").unwrap_or_default(), ' '),
                trusting: TRUSTING.iter().any(|key| says_yes(field(key))),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Entry, parse};

    fn entry(uri: &str, suite: &str, signed_by: Option<&str>, components: &[&str]) -> Entry {
        Entry {
            uri: uri.into(),
            suite: suite.into(),
            signed_by: signed_by.map(str::to_owned),
            binary: true,
            components: components.iter().map(ToString::to_string).collect(),
            architectures: Vec::new(),
            trusting: false,
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
                Entry {
                    architectures: vec!["amd64".into()],
                    ..entry("https://a/deb", "/", Some("/usr/share/keyrings/k.gpg"), &[])
                },
                entry(
                    "http://debian.example.org/debian",
                    "bookworm",
                    None,
                    &["main", "contrib"]
                ),
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
                entry(
                    "http://debian.example.org/debian",
                    "bookworm",
                    key,
                    &["main"]
                ),
                entry(
                    "http://debian.example.org/debian",
                    "bookworm-updates",
                    key,
                    &["main"]
                ),
            ]
        );
        assert_eq!(found.len(), 3);
        assert!(found[2].signed_by.as_deref().unwrap().contains("BEGIN PGP"));
    }

    #[test]
    fn what_an_entry_names_and_brings() {
        let only = |name: &str, text: &str| parse(name, text).pop().expect("an entry");
        let guide = only("x.list", "deb [signed-by=/k.gpg] https://a/deb/$(ARCH) /");
        assert!(guide.names("https://a/deb/amd64/", "/", Some("amd64")));
        assert!(!guide.names("https://a/deb/amd64", "/", Some("arm64")));
        assert!(!guide.names("https://a/deb/amd64", "stable", Some("amd64")));
        let strings = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (name, text, brings, trusting) in [
            ("x.list", "deb http://a x main", true, false),
            ("x.list", "deb\thttp://a x main", true, false),
            ("x.list", "deb-src http://a x main", false, false),
            ("x.list", "deb http://a x contrib", false, false),
            (
                "x.list",
                "deb [arch=arm64,i386] http://a x main",
                false,
                false,
            ),
            (
                "x.list",
                "deb [arch=i386,amd64 trusted=yes] http://a x main",
                true,
                true,
            ),
            ("x.list", "deb [trusted=no] http://a x main", true, false),
            (
                "x.sources",
                "Types: deb-src\nURIs: http://a\nSuites: x\nComponents: main\n",
                false,
                false,
            ),
            (
                "x.sources",
                "Types: deb-src deb\nURIs: http://a\nSuites: x\nComponents: main\n\
                 Architectures: amd64\nAllow-Insecure: yes\n",
                true,
                true,
            ),
        ] {
            let entry = only(name, text);
            let found = entry.brings(&strings(&["main"]), &strings(&["amd64"]));
            assert_eq!((found, entry.trusting), (brings, trusting), "{text}");
        }
    }
}
