//! `tar`, which packs the probe images.

use camino::Utf8Path;

use crate::host::Cmd;

/// Packs entries of a directory.
#[must_use]
pub fn pack(archive: &Utf8Path, folder: &Utf8Path, names: &[&str]) -> Cmd {
    let (archive, folder) = (format!("--file={archive}"), format!("--directory={folder}"));
    let options = ["--create", &archive, &folder, "--"];
    Cmd::new("tar", options.iter().chain(names).copied())
}
