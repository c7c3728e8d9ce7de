//! The operating system, from `os-release(5)`.

use crate::facts::{Os, reader::FactReader};

/// Reads `/etc/os-release`, then `/usr/lib/os-release`, as specified in the manual.
pub(super) fn gather(reader: &mut FactReader<'_>) -> Option<Os> {
    let text = reader
        .text("os", "/etc/os-release")
        .or_else(|| reader.text("os", "/usr/lib/os-release"));
    let Some(text) = text else {
        reader.unknown(
            "os",
            "neither `/etc/os-release` nor `/usr/lib/os-release` exists",
        );
        return None;
    };
    let os = parse(&text);
    if os.is_none() {
        reader.unknown("os", "`os-release` has no `ID`");
    }
    os
}

fn parse(text: &str) -> Option<Os> {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.trim().split_once('='))
            // Shell assignments: the last one applies.
            .filter(|(name, _)| *name == key)
            .map(|(_, value)| unquote(value))
            .next_back()
            .filter(|value| !value.is_empty())
    };
    Some(Os {
        id: value("ID")?,
        version_id: value("VERSION_ID"),
        id_like: value("ID_LIKE")
            .map(|like| like.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default(),
        version_codename: value("VERSION_CODENAME"),
        pretty_name: value("PRETTY_NAME"),
    })
}

/// Removes shell quoting from a value.
fn unquote(value: &str) -> String {
    let value = value.trim();
    if let Some(inner) = value.strip_prefix('\'') {
        return inner.strip_suffix('\'').unwrap_or(inner).to_owned();
    }
    let inner = value
        .strip_prefix('"')
        .map_or(value, |inner| inner.strip_suffix('"').unwrap_or(inner));
    let mut plain = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => plain.extend(letters.next()),
            letter => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::reads_any_text;

    #[test]
    fn os_release_of_debian_and_almalinux_is_parsed() {
        let debian = parse(
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nNAME=\"Debian GNU/Linux\"\n\
             VERSION_ID=\"12\"\nVERSION=\"12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n",
        )
        .unwrap();
        assert_eq!(debian.id, "debian");
        assert_eq!(debian.version_id.as_deref(), Some("12"));
        assert_eq!(debian.version_codename.as_deref(), Some("bookworm"));
        assert!(debian.id_like.is_empty());
        let alma = parse("ID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID='9.6'\n");
        let alma = alma.unwrap();
        assert_eq!(alma.id_like, ["rhel", "centos", "fedora"]);
        assert_eq!(alma.version_id.as_deref(), Some("9.6"));
    }

    #[test]
    fn shell_quoting_is_removed_and_id_is_required() {
        assert_eq!(unquote(r#""a \"b\" \$c""#), r#"a "b" $c"#);
        assert_eq!(unquote("'a\\b'"), "a\\b");
        assert_eq!(unquote("\"open"), "open");
        assert!(parse("").is_none());
        assert!(parse("# ID=x\nID=\n").is_none());
    }

    reads_any_text!("(ID=|\"|'|\\\\|\n|.)*", |text| parse(&text));
}
