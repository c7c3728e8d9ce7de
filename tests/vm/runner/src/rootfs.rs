//! Root filesystems, built by mmdebstrap from the archive that the host itself uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bed::Bed;
use crate::sh::{Cmd, Script, path, script};
use crate::tables::Root;

/// Archives remove the headers of older kernels, so a root that is older than this may contain a
/// kernel without headers in the archive.
pub const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

const BUILD: Script = script!("root.sh");

/// The key of the archive, on the host and in its machines.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The sites of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Site of the suite and its updates.
    pub main: String,
    /// Site of its security updates.
    pub security: String,
}

/// Reads the mirrors from the host's apt, so that this repository contains no mirror URL.
pub fn mirror() -> Result<Mirror> {
    let read = || -> Result<String> {
        Ok(Cmd::new([
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN) $(SITE) $(RELEASE)",
            "Created-By: Packages",
        ])
        .ok()?
        .stdout)
    };
    if let Some(mirror) = parse_mirror(&read()?) {
        return Ok(mirror);
    }
    Cmd::new(["apt-get", "-q", "update"])
        .ok()
        .context("cannot refresh the host's package lists")?;
    parse_mirror(&read()?).context("the host's apt has no Debian archive to build machines from")
}

fn parse_mirror(text: &str) -> Option<Mirror> {
    let site = |security: bool| {
        text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let (origin, site, release) = (words.next()?, words.next()?, words.next()?);
            let fits = origin == "Debian" && release.ends_with("-security") == security;
            fits.then(|| site.to_string())
        })
    };
    Some(Mirror {
        main: site(false)?,
        security: site(true)?,
    })
}

/// Returns the directory with the root filesystem of the entry `spec`, in its subdirectory `root`, built or from the
/// cache.
pub fn build(bed: &Bed, spec: &Root) -> Result<PathBuf> {
    let mirror = mirror()?;
    // Runs before the packages are installed, so that the image is built once.
    let hook = initramfs_hook(&spec.initramfs);
    let recipe = format!("{spec:?}\n{mirror:?}\n{hook}\n{}", BUILD.text);
    bed.cached("root", &recipe, Some(MAX_AGE), |dir| {
        let command = BUILD.mounting(&[
            &path(&dir.join("root")),
            &spec.suite,
            &spec.packages.join(","),
            &mirror.main,
            &mirror.security,
            &spec.point_release.to_string(),
            &hook,
        ]);
        command.deadline(Duration::from_secs(1200)).ok().map(drop)
    })
}

/// Configures a small initramfs: on an emulated CPU building and unpacking a large one takes longer than a boot.
fn initramfs_hook(modules: &[String]) -> String {
    if modules.is_empty() {
        return String::new();
    }
    format!(
        "mkdir -p \"$1/etc/initramfs-tools/conf.d\" &&
         printf 'MODULES=list\\nCOMPRESS=gzip\\nCOMPRESSLEVEL=1\\n' \
             >\"$1/etc/initramfs-tools/conf.d/testbed.conf\" &&
         printf '%s\\n' {} >\"$1/etc/initramfs-tools/modules\"",
        modules.join(" ")
    )
}

/// The version of the kernel in a root. The machine reports it as its running kernel in
/// `/proc/sys/kernel/osrelease`.
pub fn kernel(root: &Path) -> Result<String> {
    let modules = root.join("usr/lib/modules");
    let mut names: Vec<String> = fs::read_dir(&modules)
        .with_context(|| format!("cannot read {}", modules.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    match names.pop() {
        Some(name) => Ok(name),
        None => bail!("no kernel in {}", modules.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_read_from_host() {
        let text = "Other http://other.example x\nDebian http://m.example/debian bookworm\n\
                    Debian http://m.example/debian bookworm-updates\n\
                    Debian http://s.example/sec bookworm-security\n";
        let mirror = parse_mirror(text).unwrap();
        assert_eq!(mirror.main, "http://m.example/debian");
        assert_eq!(mirror.security, "http://s.example/sec");
        assert_eq!(parse_mirror("Other http://other.example x\n"), None);
    }
}
