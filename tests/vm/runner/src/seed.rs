//! The NoCloud seed disk from which cloud-init reads its user-data.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cases::fill;
use crate::sh::Cmd;

/// The label by which cloud-init finds the disk (documentation of its NoCloud data source).
const LABEL: &str = "CIDATA";

const SIZE: u64 = 1 << 20;

/// Makes the disk `image` for the instance `name`.
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

/// User-data with what a person who uses it writes into it: the text there = the text in its place,
/// which may name known values. An empty text removes the whole line.
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
            "" => (adapted.lines())
                .filter(|line| !line.contains(from.as_str()))
                .map(|line| format!("{line}\n"))
                .collect(),
            to => adapted.replace(from, &fill(to, known)?),
        };
    }
    Ok(adapted)
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
    fn user_data_is_adapted_as_by_a_person() {
        let map = |rows: &[(&str, &str)]| -> BTreeMap<String, String> {
            (rows.iter())
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect()
        };
        let values = map(&[("@TOKEN@", "{{join-token}}"), ("@ADDRESS@", "")]);
        let known = map(&[("join-token", "abcdef.0123456789abcdef")]);
        let text = "a: @TOKEN@\nb: @ADDRESS@ c\nd\n";
        let adapted = adapt(text, &values, &known).unwrap();
        assert_eq!(adapted, "a: abcdef.0123456789abcdef\nd\n");
        assert!(adapt("d\n", &values, &known).is_err());
    }
}
