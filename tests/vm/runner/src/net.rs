//! A machine's network: a separate namespace that reaches the outside through slirp4netns. The host is not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use crate::claim::unmount;
use crate::group::{Group, Part};
use crate::sh::{Cmd, Script, daemon, path, script};

/// Gateway and resolver of slirp4netns. Their Ethernet addresses are 52:55 and the four bytes of the other address
/// (`special_ethaddr` of libslirp).
const NEIGHBOURS: [(&str, &str); 2] = [
    ("10.0.2.2", "52:55:0a:00:02:02"),
    ("10.0.2.3", "52:55:0a:00:02:03"),
];

/// The resolver of slirp4netns.
const RESOLVER: &str = "10.0.2.3/32";

/// The download rate and the burst size of a slow connection, in tc-tbf(8) syntax.
const SLOW: &str = "rate 2mbit burst 32k";

/// The burst size of a link, because a packet of a machine's own server has up to 64 KiB.
const BURST: &str = "burst 256k";

/// The maximum time that a packet waits in the queue.
const LATENCY: &str = "latency 400ms";

/// The interface that delays incoming packets, because traffic control shapes only outgoing packets.
const QUEUE: &str = "slow0";

/// The file of a namespace next to a machine's namespace, and the script that creates it.
const BESIDE: &str = "netns-beside";
const JOIN: Script = script!("network-beside.sh");

/// The namespace of one machine, kept alive by a file.
#[derive(Clone, Debug)]
pub struct Net {
    file: PathBuf,
    /// The process that forwards packets to the outside.
    slirp: Pid,
}

/// The state of a machine's connection to the outside.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Works normally.
    Up,
    /// The resolver does not respond.
    NoDns,
    /// All outgoing packets are dropped, as behind a firewall.
    Silent,
    /// Downloads are slow.
    Slow,
}

impl Net {
    /// Creates the namespace in `run` and connects it.
    pub fn create(run: &Path, group: &Group, log: &Path) -> Result<Net> {
        let file = run.join("netns");
        fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
        Cmd::new([
            "unshare".to_string(),
            format!("--net={}", file.display()),
            "true".into(),
        ])
        .ok()
        .context("cannot make a network namespace")?;
        let argv = [
            "slirp4netns",
            "--configure",
            "--disable-host-loopback",
            "--netns-type=path",
            &file.to_string_lossy(),
            "tap0",
        ]
        .map(String::from);
        let slirp = daemon(&group.inside(Part::Support, &argv), log)?;
        let net = Net {
            file,
            slirp: Pid::from_raw(i32::try_from(slirp.id()).context("a process id too large")?),
        };
        net.exec(["ip", "link", "set", "lo", "up"])?;
        // dockerd does not start without it, and /proc/sys is read-only inside a machine.
        net.exec(["sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        net.wait_for_address(log)?;
        // The gateway's Ethernet address is fixed. Otherwise a silent connection would first look like one without a
        // gateway, because ARP requests get no response.
        for (address, ethernet) in NEIGHBOURS {
            net.exec([
                "ip",
                "neigh",
                "replace",
                address,
                "lladdr",
                ethernet,
                "dev",
                "tap0",
                "nud",
                "permanent",
            ])?;
        }
        Ok(net)
    }

    /// The file that keeps the namespace alive.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Bytes received from outside and from servers in the namespace.
    pub fn received(&self) -> Result<u64> {
        received(&self.exec(["cat", "/proc/net/dev"])?)
    }

    /// Cuts or restores the connection to the outside.
    pub fn switch(&self, state: State) -> Result<()> {
        let signal = match state {
            State::Silent => Signal::SIGSTOP,
            State::Up | State::NoDns | State::Slow => Signal::SIGCONT,
        };
        kill(self.slirp, signal).context("cannot signal the process that forwards packets")?;
        let slow = self.exec(["ip", "-br", "link"])?.contains(QUEUE);
        match (state == State::Slow, slow) {
            (true, false) => self.hold_back(SLOW)?,
            (false, true) => self.let_go()?,
            _ => {}
        }
        // A connection to an own address without a listener is refused at once.
        let own = self.exec(["ip", "-br", "addr", "show", "dev", "lo"])?;
        let verb = match (state == State::NoDns, own.contains(RESOLVER)) {
            (true, false) => "add",
            (false, true) => "del",
            _ => return Ok(()),
        };
        self.exec(["ip", "addr", verb, RESOLVER, "dev", "lo"])
            .map(drop)
    }

    /// Limits the machine's link to this rate, in tc(8) syntax. It applies to downloads from outside and from its own
    /// repository server, because both simulate remote servers.
    pub fn link(&self, rate: &str) -> Result<()> {
        let rate = format!("rate {rate} {BURST}");
        self.hold_back(&rate)?;
        let own = format!("tc qdisc add dev lo root tbf {rate} {LATENCY}");
        self.exec(own.split_whitespace())
            .map(drop)
            .context("cannot limit the machine's own network")
    }

    fn hold_back(&self, rate: &str) -> Result<()> {
        for words in [
            format!("ip link add {QUEUE} type ifb"),
            format!("ip link set {QUEUE} up"),
            format!("tc qdisc add dev {QUEUE} root tbf {rate} {LATENCY}"),
            "tc qdisc add dev tap0 handle ffff: ingress".into(),
            format!(
                "tc filter add dev tap0 parent ffff: protocol all u32 match u32 0 0 \
                 action mirred egress redirect dev {QUEUE}"
            ),
        ] {
            self.exec(words.split_whitespace())
                .context("cannot limit the network")?;
        }
        Ok(())
    }

    fn let_go(&self) -> Result<()> {
        self.exec(["tc", "qdisc", "del", "dev", "tap0", "ingress"])?;
        self.exec(["ip", "link", "del", QUEUE]).map(drop)
    }

    /// The Ethernet address of the card.
    pub fn mac(&self) -> Result<String> {
        let told = self.exec(["ip", "-br", "link", "show", "dev", "tap0"])?;
        let mac = told.split_whitespace().nth(2).map(String::from);
        mac.with_context(|| format!("no address in `{told}`"))
    }

    /// Runs a program of the host inside the namespace.
    pub fn exec<'a>(&self, argv: impl IntoIterator<Item = &'a str>) -> Result<String> {
        Ok(Cmd::new(self.inside(argv)).ok()?.stdout)
    }

    /// Wraps `argv` so that it runs inside the namespace.
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

/// Creates a namespace in `run` next to that of a machine, connected with it by a pair of virtual cards, and returns
/// the file that keeps it alive. `address` is at its end, `machine` with the prefix length at the other.
pub fn beside(run: &Path, netns: &Path, address: &str, machine: &str) -> Result<PathBuf> {
    let file = run.join(BESIDE);
    fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
    let done = JOIN
        .run(&[&path(&file), &path(netns), address, machine])
        .ok();
    done.context("cannot connect a network namespace")?;
    Ok(file)
}

/// Releases the namespaces in `run`; the kernel removes each with its last process.
pub fn destroy(run: &Path) -> Result<()> {
    unmount(&run.join(BESIDE))?;
    unmount(&run.join("netns"))
}

/// The bytes received by the cards to the outside and to the namespace's own servers, from /proc/net/dev.
fn received(text: &str) -> Result<u64> {
    let mut sum = 0;
    for line in text.lines() {
        let Some((name, counts)) = line.split_once(':') else {
            continue;
        };
        if matches!(name.trim(), "lo" | "tap0") {
            let bytes = counts.split_whitespace().next();
            sum += bytes
                .context("a line of /proc/net/dev without a number")?
                .parse::<u64>()?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::received;

    #[test]
    fn received_bytes_are_counted_once() {
        // A limited link passes its packets to a separate queue.
        let text = "Inter-|   Receive                |  Transmit\n face |bytes    packets |bytes\n\
                    \x20   lo:    1000       9    0    0    0     0          0         0     1000\n\
                    \x20 tap0:  500000     700    0    0    0     0          0         0      300\n\
                    \x20held-back: 500000  700    0    0    0     0          0         0      300\n";
        assert_eq!(received(text).unwrap(), 501_000);
        assert!(received("lo:").is_err());
    }
}
