//! A machine of the kind `container`: booted by systemd-nspawn, at native speed, on the host's
//! kernel.

use std::fs;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::disk::Disk;
use super::{Body, End, Ended, Frame, PATH, TURN};
use crate::cloud::FIRST;
use crate::group::Part;
use crate::sh::daemon;

/// The exit status of nspawn if the machine requests a reboot.
const REBOOT: i32 = 133;

/// See the module documentation.
pub struct Container {
    /// Without a disk its root is a layer over a directory of the host.
    disk: Option<Disk>,
    booted: Option<Booted>,
}

struct Booted {
    nspawn: Child,
    init: Option<u32>,
}

impl Body for Container {
    fn power_on(&mut self, frame: &Frame) -> Result<()> {
        if let Some(disk) = &self.disk {
            disk.sync()?;
        }
        let argv = [
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--capability=all",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=pipe",
            &format!("--machine={}", frame.name),
            &format!("--hostname={}", frame.name),
            &format!("--directory={}", frame.root().display()),
            &format!("--network-namespace-path={}", frame.net.file().display()),
        ]
        .map(String::from);
        let mut full = vec![
            "env".to_string(),
            "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1".into(),
            "SYSTEMD_SECCOMP=0".into(),
        ];
        let first = match frame.root().join(FIRST.trim_start_matches('/')).exists() {
            true => {
                // dhcpcd, which cloud-init uses to request an address, configures a card there.
                full.push("SYSTEMD_NSPAWN_API_VFS_WRITABLE=network".into());
                FIRST
            }
            false => "--boot",
        };
        full.extend(argv);
        full.push(first.into());
        let nspawn = daemon(&frame.group.inside(Part::Machine, &full), &frame.console())?;
        self.booted = Some(Booted { nspawn, init: None });
        Ok(())
    }

    /// The machine's first process is the only child of nspawn.
    fn wait_for_entry(&mut self, frame: &Frame) -> Result<()> {
        let end = Instant::now() + TURN;
        while Instant::now() < end {
            if let Some(how) = self.ended(frame)? {
                bail!(Ended(how));
            }
            let booted = self.booted.as_mut().context("the machine is off")?;
            let nspawn = booted.nspawn.id();
            let children = format!("/proc/{nspawn}/task/{nspawn}/children");
            let text = fs::read_to_string(&children).unwrap_or_default();
            if let Some(pid) = text
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                && is_init(pid)
            {
                booted.init = Some(pid);
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("systemd-nspawn started no process")
    }

    fn is_on(&self) -> bool {
        self.booted.is_some()
    }

    fn ended(&mut self, _: &Frame) -> Result<Option<End>> {
        let Some(booted) = &mut self.booted else {
            return Ok(Some(End::Off));
        };
        let status = booted
            .nspawn
            .try_wait()
            .context("cannot wait for a machine")?;
        let Some(status) = status else {
            return Ok(None);
        };
        self.booted = None;
        how(status).map(Some)
    }

    fn cut(&mut self, frame: &Frame) -> Result<()> {
        let disk = self.disk.as_ref().context("it has no separate disk")?;
        disk.cut(frame)?;
        if let Some(mut booted) = self.booted.take() {
            booted.nspawn.wait().context("cannot wait for a machine")?;
        }
        Ok(())
    }

    fn enter(&self, _: &Frame, environment: &[String], script: &str) -> Vec<String> {
        let mut argv = self.way_in();
        argv.extend(["/usr/bin/env".to_string(), "-i".into()]);
        argv.extend_from_slice(environment);
        argv.extend(["/bin/bash", "-c", script].map(String::from));
        argv
    }

    fn entry(&self, _: &Frame) -> Option<String> {
        self.booted.as_ref()?;
        Some(format!(
            "{} /usr/bin/env -i {PATH} HOME=/root TERM=linux bash -l",
            self.way_in().join(" ")
        ))
    }
}

impl Container {
    pub fn new(disk: Option<Disk>) -> Container {
        Container { disk, booted: None }
    }

    fn way_in(&self) -> Vec<String> {
        // 0 is not a process, so entering a machine that is off fails, as it should.
        let init = self.booted.as_ref().and_then(|booted| booted.init);
        let init = init.unwrap_or_default().to_string();
        ["nsenter", "--target", &init, "--all", "--"]
            .map(String::from)
            .to_vec()
    }
}

/// Converts the exit status. Success means that the machine powered off.
fn how(status: ExitStatus) -> Result<End> {
    match status.code() {
        Some(0) => Ok(End::Off),
        Some(REBOOT) => Ok(End::Reboot),
        _ => bail!("systemd-nspawn exited with {status}"),
    }
}

/// Whether the child has become the machine's init; its namespaces are complete then.
fn is_init(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "systemd")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn only_powered_off_machine_is_off() {
        let exit = |code: i32| how(ExitStatus::from_raw(code << 8));
        assert_eq!(exit(0).unwrap(), End::Off);
        assert_eq!(exit(REBOOT).unwrap(), End::Reboot);
        assert!(exit(1).is_err() && how(ExitStatus::from_raw(9)).is_err());
    }
}
