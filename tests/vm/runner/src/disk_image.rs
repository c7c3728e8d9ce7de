//! Disk images with a boot loader and cloud-init: downloaded from a distribution and verified, or built here from a
//! root filesystem and then fetched in the same way.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bed::{Bed, remove_file};
use crate::sh::Cmd;
use crate::tables::{Image, Machines};
use crate::{qemu, rootfs};

/// The file name of the image in its directory.
pub const DISK: &str = "disk.qcow2";

/// The longest time for a download: some 700 MiB at 3 Mbit/s.
const DOWNLOAD: Duration = Duration::from_secs(2000);

/// Builds a disk from the root filesystem `$1/root` in the directory `$2`, with the boot loader and `qemu-img` of
/// QEMU's root `$3`. The boot loader is the same as in Debian's images. It is at the default path, where the firmware
/// looks without a boot entry.
const MAKE: &str = r#"
cp -a --reflink=auto -- "$1/root" "$2/root"
truncate -s 6G "$2/disk.raw"
printf 'label: gpt\nstart=1MiB, size=63MiB, type=uefi\nstart=64MiB, size=6078MiB, type=linux\n' |
    sfdisk -q "$2/disk.raw"
truncate -s 63M "$2/esp.img"
mkfs.vfat -n ESP "$2/esp.img" >/dev/null
mmd -i "$2/esp.img" ::EFI ::EFI/BOOT ::EFI/debian
mcopy -i "$2/esp.img" "$3/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed" ::EFI/BOOT/BOOTX64.EFI
mcopy -i "$2/esp.img" - ::EFI/debian/grub.cfg <<'END'
search --no-floppy --set=root --label root
linux /vmlinuz root=LABEL=root rw console=ttyS0 loglevel=4 systemd.show_status=yes panic=-1
initrd /initrd.img
boot
END
dd if="$2/esp.img" of="$2/disk.raw" bs=1M seek=1 conv=notrunc,sparse status=none
mke2fs -q -t ext4 -L root -E offset=67108864 -d "$2/root" "$2/disk.raw" 6078M
mount --bind "$2" "$3/mnt"
chroot "$3" qemu-img convert -f raw -O qcow2 /mnt/disk.raw "/mnt/$4"
umount "$3/mnt"
rm -r "$2/root" "$2/disk.raw" "$2/esp.img"
cd "$2"
sha256sum "$4" >SHA256SUMS
"#;

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
    let recipe = format!("{}\n{made:?}\n{name}\n{MAKE}", root.display());
    let kind = format!("image-made-{name}");
    let made = bed.cached(&kind, &recipe, None, |dir| {
        let file = format!("{name}.qcow2");
        let directories =
            [&root, dir, &qemu].map(|path: &Path| path.to_string_lossy().into_owned());
        let mut argv = [
            "unshare",
            "--mount",
            "--propagation=private",
            "/bin/bash",
            "-euo",
            "pipefail",
            "-c",
            MAKE,
            "bash",
        ]
        .map(String::from)
        .to_vec();
        argv.extend(directories);
        argv.push(file);
        Cmd::new(argv).ok().map(drop)
    })?;
    bed.discard_others(&kind, &made)?;
    Ok(made)
}

/// Downloads an image and verifies it with the checksum in a list. If the sums differ, it is discarded. The cache keeps
/// one version of the image `name`, and those that other runs use.
fn fetch(bed: &Bed, name: &str, image: &str, checksums: &str) -> Result<PathBuf> {
    let file = image.rsplit('/').next().unwrap_or_default();
    let list = bed.machines.join(format!("{file}.sums"));
    let read = download(checksums, &list, Duration::from_secs(60))
        .and_then(|()| fs::read_to_string(&list).context("cannot read a list of checksums"));
    remove_file(&list)?;
    let sum = listed(&read?, file)
        .with_context(|| format!("{checksums} has no SHA-256 checksum of {file}"))?;
    let kind = format!("disk-{name}");
    let fetched = bed.cached(&kind, &format!("{image}\n{sum}"), None, |dir| {
        let disk = dir.join(DISK);
        let result = download(image, &disk, DOWNLOAD).and_then(|()| verify(&disk, &sum));
        if result.is_err() {
            remove_file(&disk)?;
        }
        result
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

fn verify(file: &Path, wanted: &str) -> Result<()> {
    let done = Cmd::new(["sha256sum", &file.to_string_lossy()]).ok()?;
    let found = done.stdout.split_whitespace().next().unwrap_or_default();
    if found != wanted {
        bail!("its SHA-256 checksum is {found}, but the list contains {wanted}");
    }
    Ok(())
}

fn download(url: &str, to: &Path, limit: Duration) -> Result<()> {
    Cmd::new([
        "curl",
        "--fail",
        "--location",
        "--silent",
        "--show-error",
        // A list from an unprotected connection would verify nothing.
        "--proto",
        "=https,file",
        "--proto-redir",
        "=https",
        "--retry",
        "3",
        "--output",
        &to.to_string_lossy(),
        url,
    ])
    .deadline(limit)
    .ok()
    .with_context(|| format!("cannot download {url}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
