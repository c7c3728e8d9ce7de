//! Checks whether a running k3s or RKE2 agent must be restarted: it detects the nvidia runtime only at startup, and
//! may have started before the container toolkit was installed.

use camino::Utf8Path;

use crate::{
    change::Change,
    config::desired::{ClusterSpec, PackageSpec},
    joins::agents::Agent,
    runtimes::OWNERS,
    step::{Cx, StepError},
    steps::packages,
};

/// An agent whose containerd lacks the nvidia runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outdated {
    pub unit: &'static str,
    /// Whether the container toolkit is installed.
    pub has_toolkit: bool,
    /// Whether its containers survive a restart of its unit, as with the units of k3s and RKE2.
    pub spares_containers: bool,
}

pub(super) async fn detect(cx: &Cx<'_>, spec: &ClusterSpec) -> Result<Option<Outdated>, StepError> {
    let Some(agent) = spec.method.implementation().agent() else {
        return Ok(None);
    };
    let Some(toolkit) = &cx.desired.toolkit else {
        return Ok(None);
    };
    let runtime = cx.state.kubelet_runtime()?;
    let lacks = runtime.is_some_and(|runtime| {
        runtime.name == agent.name && runtime.runs && runtime.nvidia == Some(false)
    });
    if !lacks || !writes_configuration(cx, agent)? {
        return Ok(None);
    }
    let installed = packages::installed(cx).await?;
    let has = |spec: &PackageSpec| installed.contains_key(&spec.name);
    let spares_containers = match cx.state.spares_children(agent.unit).await {
        Ok(spares) => spares,
        Err(error) if error.not_queried().is_some() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(Outdated {
        unit: agent.unit,
        has_toolkit: toolkit.packages.iter().all(has),
        spares_containers,
    }))
}

/// Returns whether the agent writes its containerd configuration at each start, so that a restart adds the runtime.
/// With an external container runtime, the agent writes no configuration. A template of the administrator replaces the
/// generated content. Sources: k3s, "Advanced Options", "Configuring containerd", and `--container-runtime-endpoint`.
fn writes_configuration(cx: &Cx<'_>, agent: &Agent) -> Result<bool, StepError> {
    let owner = OWNERS.iter().find(|owner| owner.name == agent.name);
    let Some(directory) = owner.map(|owner| Utf8Path::new(owner.mark)) else {
        return Ok(false);
    };
    let names = cx.host.files().list(directory)?;
    let has_template = names.iter().any(|name| name.ends_with(".tmpl"));
    Ok(!has_template && names.iter().any(|name| name == "config.toml"))
}

impl Outdated {
    /// Returns the reason for the restart, or the reason that it must be done manually.
    pub fn why(&self) -> String {
        let cause = match self.has_toolkit {
            true => "",
            false => " (the container toolkit was not installed yet)",
        };
        let unit = self.unit;
        match self.spares_containers {
            true => {
                format!("`{unit}` started without the nvidia runtime{cause} and must be restarted")
            }
            false => format!(
                "`{unit}` started without the nvidia runtime{cause}. A restart would stop its containers, \
                 because its `KillMode` is not `process`: restart it manually"
            ),
        }
    }

    /// Returns the restart of the unit. `None` if it would stop the containers.
    pub fn change(&self) -> Option<Change> {
        self.spares_containers.then(|| Change::RestartUnit {
            unit: self.unit.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Outdated, detect};
    use crate::{
        host::{fake, system::ProcFiles},
        joins::JoinMethod,
        model::token::TokenSource,
        steps::{cluster::join::fixtures::with, fixtures},
    };

    const CONFIG: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";

    /// Returns the result for this containerd configuration, process and kill mode.
    async fn found(configuration: &str, process: &str, mode: &str) -> Option<Outdated> {
        found_at(CONFIG, configuration, process, mode).await
    }

    async fn found_at(
        path: &str,
        configuration: &str,
        process: &str,
        mode: &str,
    ) -> Option<Outdated> {
        let (mut host, fakes) = fake::host();
        fakes.files.put(path, configuration);
        fakes.files.put("/proc/9/comm", format!("{process}\n"));
        fakes.files.put("/proc/9/cmdline", process);
        fakes.files.put("/proc/9/status", "Uid:\t0\t0\t0\t0\n");
        fakes
            .files
            .put_link("/proc/9/exe", "/var/lib/rancher/k3s/data/x/bin/k3s");
        for namespace in ["pid", "mnt"] {
            for who in ["self", "9"] {
                let place = format!("/proc/{who}/ns/{namespace}");
                fakes.files.put_link(&place, &format!("{namespace}:[1]"));
            }
        }
        fakes.files.put("/var/lib/dpkg/status", "");
        let mode = format!("KillMode={mode}\n");
        fakes
            .exec
            .on("systemctl", move |_, _| fake::ok(mode.clone()));
        fakes.exec.on("dpkg-query", |_, _| fake::ok(""));
        host.system = std::sync::Arc::new(ProcFiles(host.files.clone()));
        let desired = with(JoinMethod::K3s {
            server: "https://10.0.0.1:6443".to_owned(),
            token_source: TokenSource::File("/t".into()),
        });
        let facts = fixtures::facts();
        let state = fixtures::state(&host, facts.clone());
        let cx = fixtures::cx(&host, &facts, &state, &desired);
        let spec = desired.cluster.as_ref().expect("a cluster");
        detect(&cx, spec).await.expect("the machine can be read")
    }

    #[tokio::test]
    async fn agent_without_nvidia_runtime_is_detected() {
        let without = found("version = 3\n", "k3s-agent", "process").await;
        let expected = Outdated {
            unit: "k3s-agent.service",
            has_toolkit: false,
            spares_containers: true,
        };
        assert_eq!(without, Some(expected.clone()));
        let strict = found("version = 3\n", "k3s-agent", "control-group").await;
        assert_eq!(
            strict,
            Some(Outdated {
                spares_containers: false,
                ..expected
            })
        );
        let with = "BinaryName = '/usr/bin/nvidia-container-runtime'\n";
        assert_eq!(found(with, "k3s-agent", "process").await, None);
        // With a template, or without a configuration of its containerd, a restart would not add the runtime.
        let directory = "/var/lib/rancher/k3s/agent/etc/containerd";
        for other in ["config.toml.tmpl", "certs.d/hosts.toml"] {
            let path = format!("{directory}/{other}");
            assert_eq!(found_at(&path, "", "k3s-agent", "process").await, None);
        }
        // An agent that is not running detects the runtime at its next start.
        assert_eq!(found("version = 3\n", "bash", "process").await, None);
    }
}
