//! The repository server of one machine. It is restarted when a step changes its behavior.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::machine::Machine;
use crate::out;
use crate::repo::{PORT, Repositories};
use crate::serve::{FAULT, Fault, READY, Serving};

/// The address of the proxy in the machine's network.
pub const PROXY: &str = "127.0.0.1:3128";

/// The longest time until a server listens.
const START: Duration = Duration::from_secs(10);

/// A server, running or stopped.
pub struct Server {
    repositories: Repositories,
    /// The product, which a machine can download.
    program: PathBuf,
    /// The number of starts: each start has its own log.
    starts: usize,
    running: Option<Child>,
    /// The log, and the number of faults that it must contain, if one is set.
    awaited: Option<(PathBuf, u32)>,
}

impl Server {
    /// Starts it without a fault, and adds its names to the hosts file of a machine that is not up
    /// yet.
    pub fn start(machine: &Machine, repositories: &Repositories, program: &Path) -> Result<Server> {
        let hosts = machine.root().join("etc/hosts");
        let mut text = fs::read_to_string(&hosts).context("cannot read the machine's hosts")?;
        for host in repositories.hosts() {
            text.push_str(&format!("127.0.0.1\t{host}\n"));
        }
        fs::write(&hosts, text).context("cannot write the machine's hosts")?;
        let mut server = Server {
            repositories: repositories.clone(),
            program: program.to_path_buf(),
            starts: 0,
            running: None,
            awaited: None,
        };
        server.behave(machine, &Serving::default())?;
        Ok(server)
    }

    /// Sets the behavior from now on. Existing connections are closed.
    pub fn behave(&mut self, machine: &Machine, serving: &Serving) -> Result<()> {
        self.fault_happened()?;
        if let Some(mut child) = self.running.take() {
            child.kill().context("cannot kill the server")?;
            child.wait().context("cannot wait for the server's exit")?;
        }
        if serving.fault == Some(Fault::Down) {
            return Ok(());
        }
        self.starts += 1;
        let log = machine.log(&format!("server-{}.log", self.starts));
        if serving.fault.is_some() {
            self.awaited = Some((log.clone(), serving.times.unwrap_or(1)));
        }
        let argv = self.argv(machine, serving)?;
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let mut child = match serving.proxy {
            true => machine.beside(&argv, &log)?,
            false => machine.serve(&argv, &log)?,
        };
        let end = Instant::now() + START;
        while Instant::now() < end {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains(READY) {
                self.running = Some(child);
                return Ok(());
            }
            if let Some(status) = child.try_wait().context("cannot wait for the server")? {
                bail!("the server exited with {status}: {}", out::tail(&text, 5));
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("the server does not listen")
    }

    /// Fails if a fault did not happen as often as expected, because then the case did not test it.
    pub fn fault_happened(&mut self) -> Result<()> {
        let Some((log, times)) = self.awaited.take() else {
            return Ok(());
        };
        let text =
            fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
        met(&text, times)
    }

    fn argv(&self, machine: &Machine, serving: &Serving) -> Result<Vec<String>> {
        let below = match &serving.of {
            Some(name) => {
                let place = self.repositories.places.get(name);
                place
                    .map(|(place, _)| place.path.clone())
                    .with_context(|| format!("packages.toml has no repository `{name}`"))?
            }
            None => String::new(),
        };
        let mut argv = vec![
            // The running program, even if its file was compiled again in the meantime.
            format!("/proc/{}/exe", std::process::id()),
            "serve".into(),
            self.repositories.root.to_string_lossy().into_owned(),
            "--faults".into(),
            self.repositories.faults.to_string_lossy().into_owned(),
            "--serving".into(),
            serde_json::to_string(serving).context("cannot write the server's order")?,
            "--below".into(),
            below,
            "--program".into(),
            self.program.to_string_lossy().into_owned(),
            "--listen".into(),
        ];
        match serving.proxy {
            true => {
                argv.push(PROXY.into());
                argv.extend([
                    "--netns".into(),
                    machine.netns().to_string_lossy().into_owned(),
                ]);
            }
            false => argv.push(format!("127.0.0.1:{PORT}")),
        }
        for (place, _) in self.repositories.places.values() {
            argv.extend(["--host".into(), format!("{}:{PORT}", place.host)]);
        }
        Ok(argv)
    }
}

fn met(log: &str, times: u32) -> Result<()> {
    let seen = log.lines().filter(|line| line.starts_with(FAULT)).count();
    if seen < times as usize {
        bail!("the server's fault happened {seen} times, not {times}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fault_is_an_error() {
        let log = format!("{READY} x\n{FAULT} Cut\n200 GET /a.deb\n");
        met(&log, 1).unwrap();
        assert!(met(&log, 2).is_err());
        assert!(met("200 GET /a.deb\n", 1).is_err());
    }
}
