//! A machine's own network: a namespace with a way out through slirp4netns, which changes
//! nothing on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};

use crate::group::{Group, Part};
use crate::sh::{Cmd, daemon};

/// The namespace of one machine, held by a file.
#[derive(Clone, Debug)]
pub struct Net {
    file: PathBuf,
}

impl Net {
    /// Makes the namespace in `run` and connects it.
    pub fn create(run: &Path, group: &Group, log: &Path) -> Result<Net> {
        let net = Net {
            file: run.join("netns"),
        };
        fs::write(&net.file, "").with_context(|| format!("cannot write {}", net.file.display()))?;
        Cmd::new([
            "unshare".to_string(),
            format!("--net={}", net.file.display()),
            "true".into(),
        ])
        .ok()
        .context("cannot make a network namespace")?;
        net.exec(["ip", "link", "set", "lo", "up"])?;
        // dockerd refuses to start without it, and /proc/sys is read-only inside a machine.
        net.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        let argv = [
            "slirp4netns",
            "--configure",
            "--disable-host-loopback",
            "--netns-type=path",
            &net.file.to_string_lossy(),
            "tap0",
        ]
        .map(String::from);
        daemon(&group.inside(Part::Support, &argv), log)?;
        net.wait_for_address(log)?;
        Ok(net)
    }

    /// The file that holds the namespace.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Runs a program of the host inside the namespace.
    pub fn exec<'a>(&self, argv: impl IntoIterator<Item = &'a str>) -> Result<String> {
        Ok(Cmd::new(self.inside(argv)).ok()?.stdout)
    }

    /// `argv` such that it runs inside the namespace.
    pub fn inside<'a>(&self, argv: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let mut full = vec![
            "nsenter".into(),
            format!("--net={}", self.file.display()),
            "--".into(),
        ];
        full.extend(argv.into_iter().map(String::from));
        full
    }

    fn wait_for_address(&self, log: &Path) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if self
                .exec(["ip", "-br", "addr"])?
                .lines()
                .any(|line| line.starts_with("tap0") && line.contains("10.0.2."))
            {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!(
            "slirp4netns gave the machine no address: {}",
            fs::read_to_string(log).unwrap_or_default()
        )
    }
}

/// Lets the namespace in `run` go; the kernel removes it with its last process.
pub fn destroy(run: &Path) -> Result<()> {
    let file = run.join("netns");
    if !file.exists() {
        return Ok(());
    }
    // EINVAL: nothing is mounted, because the machine stopped half-way through its making.
    match umount2(&file, MntFlags::MNT_DETACH) {
        Ok(()) | Err(nix::errno::Errno::EINVAL) => {}
        Err(error) => bail!("cannot unmount {}: {error}", file.display()),
    }
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
}
