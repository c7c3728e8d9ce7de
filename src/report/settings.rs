//! A configuration file with all settings as comments.

use std::fmt::Write as _;

use textwrap::wrap;

use crate::config::{
    keys::ANY,
    reference::{KeyRow, rows},
};

/// Line width in columns, including `# `.
const WIDTH: usize = 100;

/// Returns a configuration file in which each key is commented out, after its description and with its default.
pub fn commented() -> String {
    let mut text = "# Settings of gpu-bootstrap with their defaults. If a default is not a fixed value, the comment describes it.\n\
                    # To change a setting, remove the `#` before it, and before its `[table]` if there is one. Settings\n\
                    # without a value need one. A later file or flag overrides an earlier one (docs/configuration.md).\n"
        .to_owned();
    let mut table = "";
    for row in rows() {
        let (of, key) = row.place();
        if of != table {
            table = of;
            let is_chosen = of.split('.').any(|part| part == ANY);
            // A writer into memory cannot fail, here and below.
            let _ = write!(text, "\n{}[{of}]\n", if is_chosen { "#" } else { "" });
        }
        text.push('\n');
        for line in wrap(&sentences(row), WIDTH - 2) {
            let _ = writeln!(text, "# {line}");
        }
        let value = row.value().unwrap_or_default();
        let _ = writeln!(text, "{}", format!("#{key} = {value}").trim_end());
    }
    text
}

/// Returns the description of a setting without links. Contains the default if it is a description and not a fixed value.
pub fn sentences(row: &KeyRow) -> String {
    let said = match (row.default.as_deref(), row.value()) {
        (Some(default), None) if default != "none" => format!("{} Default: {default}.", row.about),
        _ => row.about.clone(),
    };
    without_links(&said)
}

/// `[text](address)` becomes `text`.
fn without_links(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        match link
            .split_once("](")
            .map(|(name, tail)| (name, tail.split_once(')')))
        {
            Some((name, Some((_, after)))) if !name.contains(['[', ']']) => {
                text.push_str(name);
                rest = after;
            }
            _ => {
                text.push('[');
                rest = link;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::{commented, without_links};
    use crate::config::{file::Config, reference::rows};

    #[test]
    fn only_links_become_their_text() {
        for (markdown, text) in rows! {
            "compute ([the probe](probe.md)).", "compute (the probe).";
            "`[]` for none, or [this](x) and `[\"a\"]`", "`[]` for none, or this and `[\"a\"]`";
            "an [end", "an [end";
        } {
            assert_eq!(without_links(markdown), text);
        }
    }

    #[test]
    fn every_default_is_a_value_of_its_key() {
        let text = commented();
        let unset = |line: &&str| !line.starts_with('#');
        let tables: String = text
            .lines()
            .filter(unset)
            .map(|line| format!("{line}\n"))
            .collect();
        toml::from_str::<Config>(&tables).expect("the file as it is");
        let mut values = 0;
        for row in rows().iter().filter(|row| !row.name.contains("NAME")) {
            if let Some(value) = row.value() {
                let set = format!("{} = {value}\n", row.name);
                toml::from_str::<Config>(&set).unwrap_or_else(|error| panic!("{set}{error}"));
                values += 1;
            }
        }
        assert!(values > 20, "{values}");
    }

    #[test]
    fn key_follows_its_description() {
        let text = commented();
        let expected = "\n[toolkit]\n\n# Install the toolkit.\n#enabled = true\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("\n#[repositories.NAME]\n"), "{text}");
    }
}
