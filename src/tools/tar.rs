//! `tar`, which packs the probe images.

use camino::Utf8Path;

use crate::host::Cmd;

/// Packs entries of a directory.
pub fn pack(archive: &Utf8Path, directory: &Utf8Path, names: &[&str]) -> Cmd {
    let (archive, directory) = (
        format!("--file={archive}"),
        format!("--directory={directory}"),
    );
    let options = ["--create", &archive, &directory, "--"];
    Cmd::new("tar", options.iter().chain(names).copied())
}
