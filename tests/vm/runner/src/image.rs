//! A container image for machines that cannot reach a registry: busybox and its links, in the archive format that
//! `docker load` and `ctr image import` read.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::sh::{Cmd, Script, script};

/// Its name in the machine.
pub const NAME: &str = "localhost/gpu-bootstrap/probe:1";

const MAKE: Script = script!("probe-image.sh");

/// Computes the checksums of the host's files that go into it.
const INGREDIENTS: &str = r#"sha256sum "$(command -v busybox)" \
    /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6"#;

/// Builds the archive.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let ingredients = Cmd::new(["/bin/sh", "-c", INGREDIENTS])
        .ok()
        .context("the host lacks a file of the probe image")?
        .stdout;
    let recipe = format!("{ingredients} {NAME} {}", MAKE.text);
    let dir = bed.cached("image", &recipe, None, |dir| {
        let done = MAKE.run(&[NAME]).cwd(dir).ok();
        done.context("cannot make the probe image").map(drop)
    })?;
    Ok(dir.join("probe.tar"))
}
