//! Disk images with a boot loader and cloud-init: downloaded from a distribution and verified, or built here from a
//! root filesystem and then fetched in the same way.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::{Bed, remove_file};
use crate::sh::{Script, path, script};
use crate::tables::{Image, Machines};
use crate::{qemu, rootfs};

/// The file name of the image in its directory.
pub const DISK: &str = "disk.qcow2";

/// The longest time for the download of an image: some 700 MiB at 3 Mbit/s.
const LIMIT: Duration = Duration::from_secs(2000);

const MAKE: Script = script!("disk-image.sh");

/// Downloads a file, and verifies it if its checksum is given.
const DOWNLOAD: Script = script!("download.sh");

/// Returns the directory of the image `name` of the table. It comes from the cache if the cache has the image that is
/// currently in the checksum list.
pub fn provide(bed: &Bed, machines: &Machines, name: &str) -> Result<PathBuf> {
    let image = machines
        .images
        .get(name)
        .with_context(|| format!("no image `{name}`"))?;
    match image {
        Image::Published { image, checksums } => fetch(bed, name, image, checksums),
        Image::Made { from } => {
            let dir = make(bed, machines, name, from)?;
            let at = |file: &str| format!("file://{}", dir.join(file).display());
            fetch(bed, name, &at(&format!("{name}.qcow2")), &at("SHA256SUMS"))
        }
    }
    .with_context(|| format!("cannot provide the image {name}"))
}

/// Publishes an image built from a root filesystem in a directory, as a distribution does on its server.
fn make(bed: &Bed, machines: &Machines, name: &str, from: &str) -> Result<PathBuf> {
    let spec = machines
        .roots
        .get(from)
        .with_context(|| format!("no root `{from}`"))?;
    let root = rootfs::build(bed, spec)?;
    let qemu = qemu::root(bed)?;
    let made = fs::metadata(&root)
        .and_then(|meta| meta.modified())
        .context("cannot read the age of a root")?;
    let recipe = format!("{}\n{made:?}\n{name}\n{}", root.display(), MAKE.text);
    let kind = format!("image-made-{name}");
    let made = bed.cached(&kind, &recipe, None, |dir| {
        let file = format!("{name}.qcow2");
        let command = MAKE.mounting(&[&path(&root), &path(dir), &path(&qemu), &file]);
        command.ok().map(drop)
    })?;
    bed.discard_others(&kind, &made)?;
    Ok(made)
}

/// Downloads an image and verifies it with the checksum in a list. If the sums differ, it is discarded. The cache keeps
/// one version of the image `name`, and those that other runs use.
fn fetch(bed: &Bed, name: &str, image: &str, checksums: &str) -> Result<PathBuf> {
    let file = image.rsplit('/').next().unwrap_or_default();
    let list = bed.machines.join(format!("{file}.sums"));
    let command = DOWNLOAD.run(&[checksums, &path(&list)]);
    let done = command.deadline(Duration::from_secs(60)).ok();
    let read =
        done.and_then(|_| fs::read_to_string(&list).context("cannot read a list of checksums"));
    remove_file(&list)?;
    let sum = listed(&read?, file)
        .with_context(|| format!("{checksums} has no SHA-256 checksum of {file}"))?;
    let kind = format!("disk-{name}");
    let fetched = bed.cached(&kind, &format!("{image}\n{sum}"), None, |dir| {
        let command = DOWNLOAD.run(&[image, &path(&dir.join(DISK)), &sum]);
        command.deadline(LIMIT).ok().map(drop)
    })?;
    bed.discard_others(&kind, &fetched)?;
    Ok(fetched)
}

/// The checksum of a file in a list, in `sha256sum` or BSD format.
fn listed(list: &str, file: &str) -> Option<String> {
    list.lines().find_map(|line| {
        let (name, sum) = match line.strip_prefix("SHA256 (") {
            Some(rest) => rest.split_once(") = ")?,
            None => {
                let (sum, name) = line.split_once([' ', '\t'])?;
                (name.trim_start().trim_start_matches('*'), sum)
            }
        };
        let right = sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        (name.trim() == file && right).then(|| sum.to_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh::Cmd;

    /// `sha256sum` of "image".
    const SUM: &str = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d";

    #[test]
    fn both_checksum_formats_are_parsed() {
        for line in [
            format!("{SUM} *a.img"),
            format!("{SUM}  a.img"),
            format!("SHA256 (a.img) = {SUM}"),
        ] {
            let list = format!("# a comment\n{} *other.img\n{line}\n", "0".repeat(64));
            assert_eq!(listed(&list, "a.img").as_deref(), Some(SUM), "{line}");
            assert_eq!(listed(&list, "b.img"), None);
        }
        assert_eq!(listed("1234  a.img", "a.img"), None);
    }

    #[test]
    fn image_with_wrong_checksum_is_discarded() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tests/vm")).unwrap();
        fs::write(dir.path().join("tests/vm/machines.toml"), "").unwrap();
        let bed = Bed::open(dir.path(), None).unwrap();
        fs::create_dir(&bed.machines).unwrap();
        let at = |name: &str| format!("file://{}", dir.path().join(name).display());
        fs::write(dir.path().join("a.img"), "image").unwrap();
        fs::write(dir.path().join("right"), format!("{SUM} *a.img\n")).unwrap();
        fs::write(
            dir.path().join("wrong"),
            format!("{} *a.img\n", "0".repeat(64)),
        )
        .unwrap();
        fs::write(dir.path().join("other"), format!("{SUM} *b.img\n")).unwrap();

        let error = fetch(&bed, "a", &at("a.img"), &at("wrong")).unwrap_err();
        assert!(format!("{error:#}").contains(SUM), "{error:#}");
        let kept = Cmd::new(["find", &bed.cache.to_string_lossy(), "-name", "disk.qcow2"]).ok();
        assert_eq!(kept.unwrap().stdout, "");
        let error = fetch(&bed, "a", &at("a.img"), &at("other")).unwrap_err();
        assert!(error.to_string().contains("no SHA-256 checksum"), "{error}");
        let error = fetch(&bed, "a", "http://127.0.0.1:1/a.img", &at("right")).unwrap_err();
        assert!(
            format!("{error:#}").contains("cannot download"),
            "{error:#}"
        );

        let got = fetch(&bed, "a", &at("a.img"), &at("right")).unwrap();
        assert_eq!(fs::read_to_string(got.join(DISK)).unwrap(), "image");
    }
}
