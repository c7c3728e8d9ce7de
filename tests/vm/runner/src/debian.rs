//! Files of packages in Debian's archive, without installing the packages.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::remove_tree;
use crate::rootfs::{KEYRING, Mirror};
use crate::sh::Cmd;

/// The release that has the packages.
const SUITE: &str = "bookworm";

/// A part of the recipes, because a change of this file may change the results.
pub const SOURCE: &str = include_str!("debian.rs");

/// Unpacks packages, separated by commas, and moves files or directories of them into `dir`: their paths there and here.
pub fn unpack<'a>(
    mirror: &Mirror,
    packages: &str,
    files: impl IntoIterator<Item = (&'a str, &'a str)>,
    dir: &Path,
) -> Result<()> {
    let tree = dir.join("tree");
    extract(mirror, "main", packages, &tree)?;
    for (from, to) in files {
        let to = dir.join(to);
        fs::create_dir_all(to.parent().unwrap_or(dir)).context("cannot create a directory")?;
        fs::rename(tree.join(from), to).with_context(|| format!("cannot keep {from}"))?;
    }
    remove_tree(&tree)
}

/// Unpacks packages, separated by commas, into the directory `tree`, which must not exist.
pub fn extract(mirror: &Mirror, components: &str, packages: &str, tree: &Path) -> Result<()> {
    let source = format!(
        "deb [signed-by={KEYRING}] {} {SUITE} {components}",
        mirror.main
    );
    let include = format!("--include={packages}");
    let argv = "mmdebstrap --variant=extract --mode=root --quiet".split(' ');
    Cmd::new(argv.chain([&*include, SUITE, &tree.to_string_lossy(), &source]))
        .deadline(Duration::from_secs(1800))
        .ok()
        .with_context(|| format!("cannot unpack Debian's {packages}"))
        .map(drop)
}
