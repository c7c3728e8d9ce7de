//! The state of a machine as comparable lines: packages and their states, holds, manual marks, units and whether they
//! run, every path under `/etc` with its mode, owner and content, and every file in the other directories where an
//! installation or an administrator may add some.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::machine::Machine;

/// The state of a machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

/// Files that package scripts and services create and a purge leaves: accounts, files that a daemon writes at its first
/// start (`key.json` of Docker 20.10, containerd's directory of pod networks), and the configuration that the script of
/// NVIDIA's toolkit writes. `uninstall` lists them.
const LEFT: [&str; 17] = [
    "/etc/.pwd.lock",
    "/etc/.updated",
    "/etc/cni",
    "/etc/cni/net.d",
    "/etc/docker",
    "/etc/docker/key.json",
    "/etc/group",
    "/etc/group-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/nvidia-container-runtime",
    "/etc/nvidia-container-runtime/config.toml",
    "/etc/passwd",
    "/etc/passwd-",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/subgid",
];

const LOOK: &str = r#"set -euo pipefail
if command -v dpkg-query >/dev/null; then
    dpkg-query -W -f 'package ${Package}:${Architecture} ${Version} ${db:Status-Abbrev}\n'
    apt-mark showhold | sed 's/^/hold /'
    apt-mark showmanual | sed 's/^/manual /'
else
    rpm -qa --qf 'package %{NAME}.%{ARCH} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n'
    dnf -q -C --disablerepo='*' repoquery --userinstalled --qf 'manual %{name}.%{arch}' | sort -u
fi
systemctl list-unit-files --no-legend --no-pager --plain | awk '{ print "unit " $1 " " $2 }'
# A unit of a removed package may be listed as failed until the next boot; the system's own services
# come and go.
systemctl list-units --no-legend --no-pager --plain --all --type=service,socket,path,timer |
    awk '$2 == "loaded" && ($3 == "active" || $3 == "failed") && $1 !~ /^(systemd-|user|testbed)/ { print $3 " " $1 }'
dkms=/lib/modules; find "$dkms"/*/updates "$dkms"/*/extra -type f -printf 'module %p\n' 2>/dev/null || true
find /boot -mindepth 1 -printf 'boot %p\n'
find /etc -type d -printf 'etc %p d %m %u:%g\n'
find /etc -type l -printf 'etc %p l %l\n'
find /etc -type f -printf 'etc %p f %m %u:%g\n'
# The bed's own drop-ins change with the simulated driver.
places=
for place in /usr/share/keyrings /usr/local /usr/lib/systemd/system; do
    [ ! -d "$place" ] || places="$places $place"
done
find $places ! -type d ! -name '*testbed*' \
    -printf 'usr %p %y %m %u:%g %l\n'
find /etc $places -type f ! -name '*testbed*' -exec sha256sum {} + | sed -E 's/^([^ ]+)  (.*)/content \2 \1/'
"#;

impl Snapshot {
    /// Takes the snapshot of a running machine.
    pub fn take(machine: &Machine) -> Result<Snapshot> {
        let done = machine.ok(LOOK).context("cannot take a snapshot")?;
        Ok(Snapshot::parse(&done.stdout))
    }

    fn parse(text: &str) -> Snapshot {
        let lasting = |line: &&str| {
            let path = line.split(' ').nth(1).unwrap_or_default();
            !LEFT.contains(&path)
        };
        Snapshot(
            text.lines()
                .map(str::trim_end)
                .filter(lasting)
                .map(String::from)
                .collect(),
        )
    }

    /// The number of lines by their first word.
    pub fn summary(&self) -> String {
        let count = |kind: &str| {
            self.0
                .iter()
                .filter(|line| line.split(' ').next() == Some(kind))
                .count()
        };
        format!(
            "{} packages, {} holds, {} units, {} paths in /etc",
            count("package"),
            count("hold"),
            count("unit"),
            count("etc")
        )
    }

    /// The difference to `before`: removed lines (`-`) and added lines (`+`), without lines that contain one of
    /// `except`. For units only those that have stopped or failed count, because some start when they are first used.
    pub fn changes_since(&self, before: &Snapshot, except: &[String]) -> Vec<String> {
        let wanted = |line: &&String| !except.iter().any(|part| line.contains(part.as_str()));
        let gone = before
            .0
            .difference(&self.0)
            .filter(|line| !line.starts_with("failed "))
            .filter(wanted)
            .map(|line| format!("- {line}"));
        let new = self
            .0
            .difference(&before.0)
            .filter(|line| !line.starts_with("active "))
            .filter(wanted)
            .map(|line| format!("+ {line}"));
        gone.chain(new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_and_removed_lines_are_marked() {
        let before = Snapshot::parse("package a:amd64 1 ii \nhold a\netc /etc/passwd- f 600 x\n");
        let after = Snapshot::parse("package a:amd64 2 ii \nhold a\netc /etc/passwd- f 600 y\n");
        assert_eq!(
            after.changes_since(&before, &[]),
            ["- package a:amd64 1 ii", "+ package a:amd64 2 ii"]
        );
    }

    #[test]
    fn stopped_and_failed_units_are_reported() {
        let before = Snapshot::parse("active a.service\nfailed b.service\n");
        let after = Snapshot::parse("failed a.service\nactive b.service\n");
        assert_eq!(
            after.changes_since(&before, &[]),
            ["- active a.service", "+ failed a.service"]
        );
    }

    #[test]
    fn excepted_lines_are_ignored() {
        let before = Snapshot::parse("package a:amd64 1 ii \nhold a\n");
        let after = Snapshot::parse("package a:amd64 2 ii \nhold a\n");
        assert!(
            after
                .changes_since(&before, &["package a".into()])
                .is_empty()
        );
        assert_eq!(
            after.summary(),
            "1 packages, 1 holds, 0 units, 0 paths in /etc"
        );
    }
}
