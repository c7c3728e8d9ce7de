//! A container image for machines that cannot reach a registry: busybox and its links, in the archive format that
//! `docker load` and `ctr image import` read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::bed::Bed;
use crate::sh::Cmd;

/// Its name in the machine.
pub const NAME: &str = "localhost/gpu-bootstrap/probe:1";

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("image.rs");

/// Computes the checksums of the host's files that go into it.
const INGREDIENTS: &str = r#"sha256sum "$(command -v busybox)" \
    /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6"#;

/// Builds the archive.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let ingredients = Cmd::new(["/bin/bash", "-c", INGREDIENTS])
        .ok()
        .context("the host lacks a file of the probe image")?
        .stdout;
    let recipe = format!("{ingredients} {SOURCE}");
    let dir = bed.cached("image", &recipe, None, make)?;
    Ok(dir.join("probe.tar"))
}

fn make(dir: &Path) -> Result<()> {
    let script = r#"set -eu
mkdir -p rootfs/bin rootfs/etc rootfs/tmp rootfs/usr/lib rootfs/lib64 rootfs/proc rootfs/sys rootfs/dev
cp "$(command -v busybox)" rootfs/bin/busybox
for name in $(rootfs/bin/busybox --list); do [ "$name" = busybox ] || ln -s busybox "rootfs/bin/$name"; done
# What a program needs to load a library of the host: the loader and the C library.
for file in /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6; do
    mkdir -p "rootfs$(dirname "$file")"; cp -L "$file" "rootfs$file"
done
echo 'root:x:0:0:root:/:/bin/sh' >rootfs/etc/passwd
echo 'root:x:0:' >rootfs/etc/group
mkdir archive
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C rootfs -cf archive/layer.tar .
"#;
    Cmd::new(["/bin/bash", "-c", script])
        .cwd(dir)
        .ok()
        .context("cannot make the image's layer")?;
    let archive = dir.join("archive");
    let layer = fs::read(archive.join("layer.tar")).context("cannot read the layer")?;
    let digest: String = Sha256::digest(&layer)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let config = serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/sh"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest = serde_json::json!([
        { "Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"] }
    ]);
    fs::write(archive.join("config.json"), config.to_string()).context("cannot write a file")?;
    fs::write(archive.join("manifest.json"), manifest.to_string())
        .context("cannot write a file")?;
    let target = dir.join("probe.tar").to_string_lossy().into_owned();
    Cmd::new([
        "tar",
        "-cf",
        &target,
        "manifest.json",
        "config.json",
        "layer.tar",
    ])
    .cwd(&archive)
    .ok()?;
    crate::bed::remove_tree(&archive)?;
    crate::bed::remove_tree(&dir.join("rootfs"))
}
