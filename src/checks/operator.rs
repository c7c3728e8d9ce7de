//! The NVIDIA GPU Operator on a node with a host driver: which operands are not deployed on this node, and the reason.
//!
//! Sources: NVIDIA/gpu-operator v26.7.0: `controllers/state_manager.go` (labels each GPU node for each operand and keeps
//! existing values), `assets/*/0500_daemonset.yaml` (an operand runs only on nodes with the label value `true`),
//! `cmd/nvidia-validator` (search paths for a host driver); NVIDIA/k8s-driver-manager (sets `pre-installed`).

use camino::Utf8Path;

use crate::{
    check::{Finding, Subject, Verdict},
    model::{id::Id, version::DriverVersion},
    state::{GPU_OPERATOR, owner},
    step::StepError,
    tools::{kubernetes::kubectl::Node, toolkit},
};

pub(super) const OPERATOR: Id = Id::new("k8s.operator");

/// The prefix of the operand labels.
const OF_OPERANDS: &str = "nvidia.com/gpu.deploy.";

/// The operands whose labels gpu-bootstrap also sets, even without an operator.
const OURS: [&str; 2] = ["driver", "container-toolkit"];

/// The paths where the operator's validator searches for a host driver.
const SMI: [&str; 6] = [
    "/usr/bin/nvidia-smi",
    "/usr/sbin/nvidia-smi",
    "/bin/nvidia-smi",
    "/sbin/nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",
    "/opt/bin/nvidia-smi",
];

/// The runtime that the operator's toolkit container installs on the host.
pub(super) const ITS_RUNTIME: &str = "/usr/local/nvidia/toolkit/nvidia-container-runtime";

/// The remedy if host packages contain a driver in addition to the operator's.
pub(super) const ONE_DRIVER: &str = "remove the driver packages from the host, so that no upgrade installs another version, \
                                     and reboot; or keep them and set `driver.enabled=false` in the operator's ClusterPolicy";

/// The state of the host that determines which operands are deployed.
#[derive(Debug, Clone, Default)]
pub(super) struct OnHost {
    /// The driver runs in the operator's container.
    has_its_driver: bool,
    /// The version of the host's driver packages.
    packages: Option<DriverVersion>,
    /// A driver is loaded.
    has_driver: bool,
    /// The host's `nvidia-smi` as found by the operator.
    smi: Option<&'static str>,
    /// The host has a toolkit.
    has_toolkit: bool,
    /// The operator has installed its toolkit.
    has_its_toolkit: bool,
}

pub(super) async fn detect(subject: &Subject<'_>) -> Result<OnHost, StepError> {
    let files = subject.host.files();
    let mut smi = None;
    for path in SMI {
        if smi.is_none() && files.exists(Utf8Path::new(path))? {
            smi = Some(path);
        }
    }
    Ok(OnHost {
        has_its_driver: owner(files, subject.facts)?
            .is_some_and(|owner| owner.name == GPU_OPERATOR),
        packages: subject.state.driver().await.package_version.clone(),
        has_driver: subject.state.loaded_driver()?.is_some(),
        smi,
        has_toolkit: files.exists(Utf8Path::new(toolkit::RUNTIME))?,
        has_its_toolkit: files.exists(Utf8Path::new(ITS_RUNTIME))?,
    })
}

/// Returns the finding about operands that are not deployed; `known` is the node, or the reason why it is unknown.
pub(super) fn decide(known: Result<(&str, &Node), (Verdict, String)>, host: &OnHost) -> Finding {
    let finding = |status, why: String| Finding::new(OPERATOR, status, why);
    // NVIDIA/gpu-operator issues 126 and 367, pando85/homelab pull request 4110.
    if let (true, Some(version)) = (host.has_its_driver, &host.packages) {
        return Finding {
            remedy: Some(ONE_DRIVER.to_owned()),
            ..finding(
                Verdict::Warn,
                format!(
                    "two drivers on the node, one in the operator's container and {version} in host packages; the libraries \
                     of one do not work with the modules of the other"
                ),
            )
        };
    }
    if host.has_its_driver {
        let why = "the operator runs the driver in a container, so gpu-bootstrap does not change this node";
        return finding(Verdict::Pass, why.to_owned());
    }
    let (name, node) = match known {
        Ok(known) => known,
        Err((status, why)) => return finding(status, why),
    };
    let operands: Vec<(&str, &str)> = (node.labels.iter())
        .filter_map(|(key, value)| Some((key.strip_prefix(OF_OPERANDS)?, value.as_str())))
        .collect();
    let value_of = |operand| operands.iter().find(|(name, _)| *name == operand);
    let is_there = operands.iter().any(|(name, _)| !OURS.contains(name));
    if let Some((_, "false")) = value_of("operands") {
        let why =
            format!("no operands are deployed on node `{name}` ({OF_OPERANDS}operands=false)");
        return finding(Verdict::Pass, why);
    }
    let mut left_out: Vec<String> = Vec::new();
    let mut runs: Vec<&str> = Vec::new();
    for (operand, value) in &operands {
        match (*operand, *value, host.smi) {
            ("driver", "true", Some(smi)) => {
                left_out.push(format!("driver (the host has `{smi}`)"));
            }
            (operand, "true", _) => runs.push(operand),
            (operand, value, _) => left_out.push(format!("{operand} (label `{value}`)")),
        }
    }
    if !is_there {
        let then = match &left_out[..] {
            [] => String::new(),
            all => format!("; it would not deploy {}", all.join(", ")),
        };
        let why = format!("the operator has not labeled node `{name}`{then}");
        return finding(Verdict::Skip, why);
    }
    let with = |operand: &str, value: &str, why: String| Finding {
        remedy: Some(format!(
            "run `kubectl label node {name} --overwrite {OF_OPERANDS}{operand}={value}`; gpu-bootstrap sets this label when \
             it joins the machine, and with `cluster.join = \"managed\"`"
        )),
        ..finding(Verdict::Warn, why)
    };
    if runs.contains(&"driver") && host.has_driver {
        let why = format!(
            "the operator installs a second driver: its validator finds no `nvidia-smi` in `{}` or similar directories, and \
             its driver label is `true`",
            "/usr/bin"
        );
        return with("driver", "pre-installed", why);
    }
    if runs.contains(&"container-toolkit") && host.has_toolkit && host.has_its_toolkit {
        let why = format!(
            "two toolkits configure the container runtimes: the host toolkit and the operator's (`{ITS_RUNTIME}`)"
        );
        return with("container-toolkit", "false", why);
    }
    let list = |all: &[String]| match all {
        [] => "none".to_owned(),
        all => all.join(", "),
    };
    let runs: Vec<String> = runs.into_iter().map(str::to_owned).collect();
    finding(
        Verdict::Pass,
        format!(
            "not deployed on node `{name}`: {}; deployed: {}",
            list(&left_out),
            list(&runs)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::kubernetes::Labels;

    fn found(labels: &[(&str, &str)], host: &OnHost) -> (Verdict, String) {
        let labels = labels.iter().map(|(operand, value)| {
            let key = format!("{OF_OPERANDS}{operand}");
            (key, (*value).to_owned())
        });
        let node = Node {
            labels: Labels::from_iter(labels),
            ..Node::default()
        };
        let found = decide(Ok(("gpu-1", &node)), host);
        assert_eq!(found.remedy.is_some(), found.status == Verdict::Warn);
        (found.status, found.why)
    }

    #[test]
    fn undeployed_operands_are_listed_with_the_reason() {
        let ours = OnHost {
            has_driver: true,
            smi: Some("/usr/bin/nvidia-smi"),
            has_toolkit: true,
            ..OnHost::default()
        };
        let prepared = [("driver", "pre-installed"), ("container-toolkit", "false")];
        let (status, why) = found(&prepared, &ours);
        assert_eq!(status, Verdict::Skip);
        assert!(
            why.contains("would not deploy container-toolkit (label `false`), driver (label"),
            "{why}"
        );
        let there = [
            ("container-toolkit", "false"),
            ("device-plugin", "true"),
            ("driver", "pre-installed"),
            ("dcgm-exporter", "true"),
        ];
        let (status, why) = found(&there, &ours);
        assert_eq!(
            (status, why.as_str()),
            (
                Verdict::Pass,
                "not deployed on node `gpu-1`: container-toolkit (label `false`), driver (label `pre-installed`); deployed: \
                 dcgm-exporter, device-plugin"
            )
        );
        let (status, why) = found(&[("driver", "true"), ("device-plugin", "true")], &ours);
        assert_eq!(status, Verdict::Pass);
        assert!(
            why.contains("driver (the host has `/usr/bin/nvidia-smi`)"),
            "{why}"
        );
        let (status, why) = found(&[("operands", "false"), ("driver", "true")], &ours);
        assert!(
            status == Verdict::Pass && why.contains("no operands are deployed"),
            "{why}"
        );
        assert_eq!(found(&[], &ours).0, Verdict::Skip);
    }

    #[test]
    fn second_driver_or_toolkit_warns() {
        let all = [
            ("driver", "true"),
            ("container-toolkit", "true"),
            ("device-plugin", "true"),
        ];
        let hidden = OnHost {
            has_driver: true,
            ..OnHost::default()
        };
        let (status, why) = found(&all, &hidden);
        assert!(
            status == Verdict::Warn && why.contains("no `nvidia-smi`"),
            "{why}"
        );
        let two = OnHost {
            smi: Some("/usr/bin/nvidia-smi"),
            has_toolkit: true,
            has_its_toolkit: true,
            ..hidden.clone()
        };
        let (status, why) = found(&all, &two);
        assert!(
            status == Verdict::Warn && why.contains("two toolkits"),
            "{why}"
        );
        // The ClusterPolicy may disable the operator's toolkit, which is not visible on the node.
        let one = OnHost {
            has_its_toolkit: false,
            ..two
        };
        assert_eq!(found(&all, &one).0, Verdict::Pass);
    }

    #[test]
    fn node_with_operator_driver_is_not_changed() {
        let its = OnHost {
            has_its_driver: true,
            has_driver: true,
            ..OnHost::default()
        };
        let unknown = || Err((Verdict::Unknown, "no answer".to_owned()));
        let own = decide(unknown(), &its);
        assert_eq!(own.status, Verdict::Pass);
        assert!(own.why.contains("does not change this node"));
        let twice = OnHost {
            packages: "550.54.15".parse().ok(),
            ..its.clone()
        };
        let twice = decide(unknown(), &twice);
        assert_eq!(twice.status, Verdict::Warn);
        assert!(
            twice.why.contains("550.54.15 in host packages"),
            "{}",
            twice.why
        );
        assert!(twice.remedy.is_some());
        let other = decide(unknown(), &OnHost::default());
        assert_eq!(
            (other.status, other.why.as_str()),
            (Verdict::Unknown, "no answer")
        );
    }
}
