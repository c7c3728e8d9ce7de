//! The NoCloud seed disk from which cloud-init reads its user data.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cases::fill;
use crate::sh::Cmd;

/// The label that cloud-init looks for (documentation of its NoCloud data source).
const LABEL: &str = "CIDATA";

const SIZE: u64 = 1 << 20;

/// Creates the disk `image` for the instance `name`.
pub fn make(image: &Path, name: &str, user_data: &str) -> Result<()> {
    File::create(image)
        .and_then(|made| made.set_len(SIZE))
        .with_context(|| format!("cannot make {}", image.display()))?;
    let path = image.to_string_lossy();
    Cmd::new(["mkfs.vfat", "-n", LABEL, &path])
        .ok()
        .context("cannot format a seed disk")?;
    let meta_data = format!("instance-id: testbed-{name}\nlocal-hostname: {name}\n");
    add(image, "meta-data", &meta_data)?;
    add(image, "user-data", user_data)
}

/// User data with the replacements that a user of the file would make: the text in the file = its replacement, which
/// may contain template values. An empty text removes the list item that contains the text.
pub fn adapt(
    text: &str,
    values: &BTreeMap<String, String>,
    known: &BTreeMap<String, String>,
) -> Result<String> {
    let mut adapted = text.to_string();
    for (from, to) in values {
        if !adapted.contains(from.as_str()) {
            bail!("`{from}` is not in the user-data");
        }
        adapted = match to.as_str() {
            "" => without_item(&adapted, from)
                .with_context(|| format!("`{from}` is in no item of a list"))?,
            to => adapted.replace(from, &fill(to, known)?),
        };
    }
    Ok(adapted)
}

/// The text without the YAML list item that contains the words.
fn without_item(text: &str, words: &str) -> Option<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.contains(words))?;
    let first = (0..=at).rfind(|at| lines[*at].trim_start().starts_with("- "))?;
    let end = (first + 1..lines.len())
        .find(|at| !lines[*at].is_empty() && indent(lines[*at]) <= indent(lines[first]));
    let rest = &lines[end.unwrap_or(lines.len())..];
    let kept = lines[..first].iter().chain(rest);
    Some(kept.map(|line| format!("{line}\n")).collect())
}

/// Adds one more file to the disk.
pub fn add(image: &Path, file: &str, text: &str) -> Result<()> {
    let path = image.to_string_lossy();
    Cmd::new(["mcopy", "-i", &path, "-", &format!("::{file}")])
        .stdin(text)
        .ok()
        .with_context(|| format!("cannot write {file}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_placeholders_are_replaced() {
        let map = |rows: &[(&str, &str)]| -> BTreeMap<String, String> {
            (rows.iter())
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect()
        };
        let values = map(&[("@TOKEN@", "{{join-token}}"), ("@ADDRESS@", "")]);
        let known = map(&[("join-token", "abcdef.0123456789abcdef")]);
        let text = "a: @TOKEN@\nb:\n  - |\n    for n in 1 2; do\n      get @ADDRESS@\n    done\n  # Next.\n  - [c]\n";
        let adapted = adapt(text, &values, &known).unwrap();
        assert_eq!(
            adapted,
            "a: abcdef.0123456789abcdef\nb:\n  # Next.\n  - [c]\n"
        );
        for text in ["d\n", "@TOKEN@\nb: @ADDRESS@\n"] {
            assert!(adapt(text, &values, &known).is_err());
        }
    }
}
