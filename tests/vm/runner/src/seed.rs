//! The NoCloud seed disk from which cloud-init reads its user-data.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

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

/// Adds one more file to the disk.
pub fn add(image: &Path, file: &str, text: &str) -> Result<()> {
    let path = image.to_string_lossy();
    Cmd::new(["mcopy", "-i", &path, "-", &format!("::{file}")])
        .stdin(text)
        .ok()
        .with_context(|| format!("cannot write {file}"))?;
    Ok(())
}
