//! Root filesystems, built by mmdebstrap from the archive that the host itself uses.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bed::{Bed, remove_file};
use crate::sh::Cmd;
use crate::tables::Root;

/// Archives remove the headers of older kernels, so a root that is older than this may contain a
/// kernel without headers in the archive.
pub const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("rootfs.rs");

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
    let recipe = format!("{spec:?}\n{mirror:?}\n{SOURCE}");
    // Runs before the packages are installed, so that the image is built once.
    let hook = initramfs_hook(&spec.initramfs);
    let mut suites = suites(spec, &mirror);
    if spec.point_release {
        suites.truncate(1);
    }
    bed.cached("root", &recipe, Some(MAX_AGE), |dir| {
        let list: String = suites
            .iter()
            .map(|(site, suite)| format!("deb [signed-by={KEYRING}] {site} {suite} main\n"))
            .collect();
        // Its mounts disappear with its namespace, even if it is killed.
        let mut argv = ["unshare", "--mount", "--propagation=private"]
            .map(String::from)
            .to_vec();
        argv.extend([
            "mmdebstrap".to_string(),
            "--variant=minbase".into(),
            "--mode=root".into(),
            "--quiet".into(),
            // An incomplete root is discarded, so no sync is needed.
            "--dpkgopt=force-unsafe-io".into(),
            format!("--include={}", spec.packages.join(",")),
        ]);
        argv.extend(hook.map(|hook| format!("--essential-hook={hook}")));
        argv.extend([
            spec.suite.clone(),
            dir.join("root").to_string_lossy().into_owned(),
            "-".into(),
        ]);
        Cmd::new(argv)
            .stdin(list)
            .deadline(Duration::from_secs(1200))
            .ok()?;
        finish(&dir.join("root"), spec, &mirror)
    })
}

/// Configures a small initramfs: on an emulated CPU building and unpacking a large one takes longer than a boot.
fn initramfs_hook(modules: &[String]) -> Option<String> {
    (!modules.is_empty()).then(|| {
        format!(
            "mkdir -p \"$1/etc/initramfs-tools/conf.d\" &&
             printf 'MODULES=list\\nCOMPRESS=gzip\\nCOMPRESSLEVEL=1\\n' \
                 >\"$1/etc/initramfs-tools/conf.d/testbed.conf\" &&
             printf '%s\\n' {} >\"$1/etc/initramfs-tools/modules\"",
            modules.join(" ")
        )
    })
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

fn finish(root: &Path, spec: &Root, mirror: &Mirror) -> Result<()> {
    let at = |path: &str| root.join(path);
    for old in [
        "etc/apt/sources.list",
        "etc/apt/sources.list.d/0000sources.list",
        "etc/hostname",
        // A link if systemd-resolved is installed.
        "etc/resolv.conf",
    ] {
        remove_file(&at(old))?;
    }
    let files = [
        (
            "etc/apt/sources.list.d/debian.sources",
            sources(spec, mirror),
        ),
        (
            "etc/hosts",
            "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".into(),
        ),
        // The resolver of slirp4netns; it forwards to the host's.
        ("etc/resolv.conf", "nameserver 10.0.2.3\n".into()),
        // Empty, so that each machine generates its own at its first boot.
        ("etc/machine-id", String::new()),
    ];
    for (path, text) in files {
        fs::write(at(path), text).with_context(|| format!("cannot write {path}"))?;
        fs::set_permissions(at(path), fs::Permissions::from_mode(0o644))
            .with_context(|| format!("cannot set the mode of {path}"))?;
    }
    Ok(())
}

fn suites<'a>(spec: &'a Root, mirror: &'a Mirror) -> Vec<(&'a str, String)> {
    vec![
        (&mirror.main, spec.suite.clone()),
        (&mirror.main, format!("{}-updates", spec.suite)),
        (&mirror.security, format!("{}-security", spec.suite)),
    ]
}

/// The sources as in Debian's cloud images.
fn sources(spec: &Root, mirror: &Mirror) -> String {
    let mut text = String::new();
    let stanzas = [
        (&mirror.main, format!("{0} {0}-updates", spec.suite)),
        (&mirror.security, format!("{}-security", spec.suite)),
    ];
    for (site, suites) in stanzas {
        let written = write!(
            text,
            "Types: deb\nURIs: {site}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING}\n\n"
        );
        debug_assert!(written.is_ok(), "a String takes every write");
    }
    text
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

    #[test]
    fn sources_contain_only_main() {
        let spec = Root {
            suite: "bookworm".into(),
            point_release: false,
            initramfs: Vec::new(),
            packages: vec![],
            almalinux: None,
        };
        let mirror = Mirror {
            main: "http://m".into(),
            security: "http://s".into(),
        };
        let text = sources(&spec, &mirror);
        assert!(text.contains("Suites: bookworm bookworm-updates\nComponents: main\n"));
        assert!(!text.contains("non-free"));
    }
}
