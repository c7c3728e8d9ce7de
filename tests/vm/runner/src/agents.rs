//! The fake of the k3s and RKE2 agents: one Go program that selects its behavior by its name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::golang;
use crate::machine::Machine;
use crate::simulation::INSIDE;

/// A part of the recipe, because a change of this file may change the result.
const SOURCE: &str = include_str!("agents.rs");

const PROGRAM: &str = "agent";

/// Paths of the real agents and their units. Sources: k3s-io/k3s, `install.sh`; rancher/rke2,
/// `bundle/lib/systemd/system/rke2-agent.service`, which their scripts install. Lines that start a program after the
/// agent has exited are left out, and so are lines that load modules, because the case does that.
const AGENTS: [(&str, &str, &str); 2] = [
    (
        "k3s",
        "etc/systemd/system/k3s-agent.service",
        "Type=notify\n",
    ),
    (
        "rke2",
        "usr/local/lib/systemd/system/rke2-agent.service",
        "",
    ),
];

/// Builds the directory with the program, from the same modules as Kubernetes.
pub fn build(bed: &Bed) -> Result<PathBuf> {
    let here = bed.here("kubernetes");
    let read = |name: &str| {
        fs::read_to_string(here.join(name)).with_context(|| format!("cannot read {name}"))
    };
    let (sums, source) = (read("go.sum")?, read("agent/main.go")?);
    let go = golang::version()?;
    bed.cached(
        "agents",
        &format!("{sums} {source} {go} {SOURCE} {}", golang::SOURCE),
        None,
        |dir| {
            let to = dir.join(PROGRAM);
            golang::build(&here, ["./agent"], "", &to.to_string_lossy())
                .deadline(Duration::from_secs(900))
                .ok()
                .context("cannot compile the fake agents")
                .map(drop)
        },
    )
}

/// Installs both agents on a machine, without starting them, as their scripts can do. `programs` contains the kubelet.
pub fn equip(machine: &Machine, built: &Path, programs: &Path) -> Result<()> {
    machine.put(
        &programs.join("kubelet"),
        &format!("{INSIDE}/cluster/kubelet"),
    )?;
    for (name, unit, kind) in AGENTS {
        let program = format!("/usr/local/bin/{name}");
        machine.put(&built.join(PROGRAM), &program)?;
        let path = machine.root().join(unit);
        let text = format!(
            "[Unit]\nDescription={name} agent (a fake of the test bed)\nWants=network-online.target\n\
             After=network-online.target\n\n[Install]\nWantedBy=multi-user.target\n\n[Service]\n{kind}KillMode=process\n\
             Delegate=yes\nTimeoutStartSec=0\nRestart=always\nRestartSec=5s\nExecStart={program} agent\n"
        );
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).context("cannot create a directory")?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
