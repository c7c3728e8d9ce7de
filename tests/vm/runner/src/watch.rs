//! Records the package tools that a run starts. While it is active, a small script is mounted over each tool; it
//! records its arguments and executes the real one. It therefore sees every start by any program, and does not change
//! the machine's disk.

use anyhow::{Context, Result};

use crate::machine::Machine;

const PROGRAMS: [&str; 12] = [
    "apt",
    "apt-get",
    "apt-mark",
    "apt-cache",
    "apt-config",
    "dpkg",
    "dpkg-query",
    "dpkg-deb",
    "dnf",
    "rpm",
    "rpmkeys",
    "rpmdb",
];

const START: &str = r#"set -eu
here=/run/testbed-watch
mkdir -p "$here/real" "$here/wrap"
: >"$here/calls"
for name in PROGRAMS; do
    [ -e "/usr/bin/$name" ] || continue
    cp "/usr/bin/$name" "$here/real/$name"
    printf '#!/bin/sh\nprintf "%%s %%s\\n" %s "$*" >>%s/calls\nexec %s/real/%s "$@"\n' \
        "$name" "$here" "$here" "$name" >"$here/wrap/$name"
    chmod 755 "$here/wrap/$name"
    mount --bind "$here/wrap/$name" "/usr/bin/$name"
done
"#;

const STOP: &str = r#"set -eu
here=/run/testbed-watch
for name in PROGRAMS; do
    [ ! -e "$here/real/$name" ] || umount "/usr/bin/$name"
done
cat /run/testbed-watch/calls
rm -r /run/testbed-watch
"#;

/// Starts recording.
pub fn start(machine: &Machine) -> Result<()> {
    machine
        .ok(&START.replace("PROGRAMS", &PROGRAMS.join(" ")))
        .context("cannot watch the package tools")?;
    Ok(())
}

/// Stops, and returns the recorded starts: program and arguments.
pub fn stop(machine: &Machine) -> Result<Vec<String>> {
    let done = machine
        .ok(&STOP.replace("PROGRAMS", &PROGRAMS.join(" ")))
        .context("cannot stop watching the package tools")?;
    Ok(done
        .stdout
        .lines()
        .map(|line| line.trim().to_string())
        .collect())
}

/// Whether a start is only a query.
pub fn is_query(call: &str) -> bool {
    let mut words = call.split_whitespace();
    let program = words.next().unwrap_or_default();
    let arguments: Vec<&str> = words.collect();
    let has = |wanted: &[&str]| arguments.iter().any(|argument| wanted.contains(argument));
    match program {
        "dpkg-query" | "apt-cache" | "apt-config" => true,
        "apt-mark" => arguments
            .first()
            .is_some_and(|verb| verb.starts_with("show")),
        "apt-get" => has(&["-s", "--simulate", "indextargets"]),
        "dpkg" => has(&[
            "-l",
            "--list",
            "-s",
            "--status",
            "-L",
            "--listfiles",
            "-S",
            "--search",
            "-C",
            "--audit",
            "-V",
            "--verify",
            "--get-selections",
            "--print-architecture",
            "--print-foreign-architectures",
            "--compare-versions",
            "--version",
        ]),
        "dpkg-deb" => has(&["-I", "--info", "-f", "--field", "-c", "--contents"]),
        // The command is the first word that is not an option. None of these options has a separate argument.
        "dnf" => {
            let mut verbs = arguments.iter().filter(|word| !word.starts_with('-'));
            let (verb, next) = (verbs.next().copied(), verbs.next().copied());
            has(&["--assumeno"])
                || matches!(
                    (verb, next),
                    (
                        Some("repoquery" | "list" | "info" | "repolist" | "check" | "check-update"),
                        _
                    ) | (
                        Some("module" | "history" | "versionlock"),
                        Some("list" | "info" | "userinstalled")
                    ) | (Some("versionlock"), None)
                )
        }
        "rpm" => (arguments.first()).is_some_and(|first| {
            ["-q", "--query", "-V", "--verify", "--eval"]
                .iter()
                .any(|start| first.starts_with(start))
        }),
        "rpmkeys" => has(&["--list", "-K", "--checksig"]),
        "rpmdb" => has(&["--verifydb"]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_distinguished_from_changes() {
        for call in [
            "dpkg-query -W",
            "dpkg --audit",
            "apt-mark showhold",
            "apt-get -s install x",
            "dnf -q -C repoquery --userinstalled",
            "dnf --assumeno install x",
            "dnf module list nvidia-driver",
            "rpm -qa --qf x",
        ] {
            assert!(is_query(call), "{call}");
        }
        for call in [
            "apt-get update",
            "apt-get -y install x",
            "apt-mark hold x",
            "dpkg --configure -a",
            "apt list",
            "dnf -y install x",
            "dnf module enable nvidia-driver:580-open",
            "dnf versionlock add x",
            "rpm -e x",
            "rpm --import key",
        ] {
            assert!(!is_query(call), "{call}");
        }
    }
}
