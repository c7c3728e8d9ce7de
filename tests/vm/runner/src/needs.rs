//! Host packages that the harness needs; missing ones are installed from Debian's archive.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::sh::Cmd;
use crate::{golang, out};

/// A package, and a file that shows that it is installed.
const PACKAGES: &[(&str, &str)] = &[
    ("mmdebstrap", "/usr/bin/mmdebstrap"),
    ("systemd-container", "/usr/bin/systemd-nspawn"),
    ("slirp4netns", "/usr/bin/slirp4netns"),
    ("iproute2", "/usr/sbin/ip"),
    ("procps", "/usr/sbin/sysctl"),
    ("kmod", "/usr/sbin/modinfo"),
    ("util-linux", "/usr/bin/nsenter"),
    ("e2fsprogs", "/usr/sbin/mke2fs"),
    ("dosfstools", "/usr/sbin/mkfs.vfat"),
    ("fdisk", "/usr/sbin/sfdisk"),
    ("curl", "/usr/bin/curl"),
    ("mtools", "/usr/bin/mcopy"),
    ("openssl", "/usr/bin/openssl"),
    ("socat", "/usr/bin/socat"),
    ("openssh-client", "/usr/bin/ssh"),
    ("apt-utils", "/usr/bin/apt-ftparchive"),
    ("dpkg-dev", "/usr/bin/dpkg-buildpackage"),
    ("debhelper", "/usr/bin/dh"),
    ("gnupg", "/usr/bin/gpg"),
    ("rpm", "/usr/bin/rpmbuild"),
    ("createrepo-c", "/usr/bin/createrepo_c"),
    ("gcc", "/usr/bin/gcc"),
    ("libc6-dev", "/usr/include/stdio.h"),
    ("python3", "/usr/bin/python3"),
    ("busybox-static", "/usr/share/doc/busybox-static"),
    (
        "debian-archive-keyring",
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    ),
];

/// Fails for other users.
pub fn root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("machines are booted with namespaces and mounts: run this as root");
    }
    Ok(())
}

/// Installs missing packages, or returns an error with the remedy.
pub fn ensure(oldest_go: &str) -> Result<()> {
    root()?;
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, file)| !Path::new(file).exists())
        .map(|(name, _)| *name)
        .collect();
    if !missing.is_empty() {
        out::say(format!("installing from Debian: {}", missing.join(" ")));
        install(&missing)?;
    }
    check_go(oldest_go)
}

fn install(packages: &[&str]) -> Result<()> {
    apt(&["update"])?;
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<()> {
    Cmd::new(
        ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
            .iter()
            .chain(arguments)
            .copied(),
    )
    .env("DEBIAN_FRONTEND", "noninteractive")
    .deadline(Duration::from_secs(900))
    .ok()
    .context("cannot install the packages that the harness needs")?;
    Ok(())
}

fn check_go(oldest: &str) -> Result<()> {
    let remedy = format!(
        "NVIDIA's container toolkit is compiled from source: Go {oldest} or newer must be on PATH"
    );
    let found = golang::version().context(remedy.clone())?;
    let found = found.trim_start_matches("go");
    if numbers(found) < numbers(oldest) {
        bail!("{remedy}; found {found}");
    }
    Ok(())
}

fn numbers(version: &str) -> Vec<u32> {
    version
        .split(['.', '-', ' '])
        .map_while(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_compare_by_number() {
        assert!(numbers("1.26.8") >= numbers("1.24"));
        assert!(numbers("1.9") < numbers("1.24"));
        assert!(numbers("1.24rc1") < numbers("1.24"));
    }
}
