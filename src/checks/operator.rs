//! NVIDIA's GPU Operator beside a driver of the host: what it leaves out on this node, and why.
//!
//! Sources: NVIDIA/gpu-operator v26.7.0: `controllers/state_manager.go` (it labels each node with GPUs for each of its operands,
//! and keeps a value that is there), `assets/*/0500_daemonset.yaml` (an operand runs only where its label is `true`),
//! `cmd/nvidia-validator` (where it looks for a driver of the host); NVIDIA/k8s-driver-manager (it sets `pre-installed`).

use camino::Utf8Path;

use crate::{
    check::{Finding, Subject, Verdict},
    model::{id::Id, version::DriverVersion},
    state::{GPU_OPERATOR, owner},
    step::StepError,
    tools::{kubernetes::kubectl::Node, toolkit},
};

pub(super) const OPERATOR: Id = Id::new("k8s.operator");

/// How the labels of its operands begin.
const OF_OPERANDS: &str = "nvidia.com/gpu.deploy.";

/// The operands whose labels this program sets, too, also where no operator is.
const OURS: [&str; 2] = ["driver", "container-toolkit"];

/// Where its validator looks for a driver of the host.
const SMI: [&str; 6] = [
    "/usr/bin/nvidia-smi",
    "/usr/sbin/nvidia-smi",
    "/bin/nvidia-smi",
    "/sbin/nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",
    "/opt/bin/nvidia-smi",
];

/// The runtime that its toolkit's container puts on the host.
const ITS_RUNTIME: &str = "/usr/local/nvidia/toolkit/nvidia-container-runtime";

/// What helps where packages of the host bring a driver beside the operator's.
pub(super) const ONE_DRIVER: &str = "remove the driver's packages from the host, so that no upgrade brings another version, and reboot; or \
                                     keep them, and set `driver.enabled=false` in the operator's ClusterPolicy";

/// What of the host decides what the operator does.
#[derive(Debug, Clone, Default)]
pub(super) struct OnHost {
    /// Its own container has the driver.
    has_its_driver: bool,
    /// The driver that packages of the host bring.
    packages: Option<DriverVersion>,
    /// A driver is loaded.
    has_driver: bool,
    /// The program by which it finds a driver of the host.
    smi: Option<&'static str>,
    /// A toolkit of the host is there, and one of its own.
    has_toolkit: bool,
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

/// What the operator leaves out; `known` is the node, or why it is not known.
pub(super) fn decide(known: Result<(&str, &Node), (Verdict, String)>, host: &OnHost) -> Finding {
    let say = |status, why: String| Finding::new(OPERATOR, status, why);
    // NVIDIA/gpu-operator issues 126 and 367, pando85/homelab pull request 4110.
    if let (true, Some(version)) = (host.has_its_driver, &host.packages) {
        return Finding {
            remedy: Some(ONE_DRIVER.to_owned()),
            ..say(
                Verdict::Warn,
                format!(
                    "two drivers are on the node: that of the operator's container, and {version} in packages of the host; the \
                     libraries of one do not work with the modules of the other"
                ),
            )
        };
    }
    if host.has_its_driver {
        let why = "the operator has the driver in its own container, so gpu-bootstrap leaves the node alone";
        return say(Verdict::Pass, why.to_owned());
    }
    let (name, node) = match known {
        Ok(known) => known,
        Err((status, why)) => return say(status, why),
    };
    let operands: Vec<(&str, &str)> = (node.labels.iter())
        .filter_map(|(key, value)| Some((key.strip_prefix(OF_OPERANDS)?, value.as_str())))
        .collect();
    let value_of = |operand| operands.iter().find(|(name, _)| *name == operand);
    let is_there = operands.iter().any(|(name, _)| !OURS.contains(name));
    if let Some((_, "false")) = value_of("operands") {
        let why =
            format!("it leaves out everything on node `{name}` ({OF_OPERANDS}operands=false)");
        return say(Verdict::Pass, why);
    }
    let mut left_out: Vec<String> = Vec::new();
    let mut runs: Vec<&str> = Vec::new();
    for (operand, value) in &operands {
        match (*operand, *value, host.smi) {
            ("driver", "true", Some(smi)) => {
                left_out.push(format!("driver (it finds `{smi}` of the host)"));
            }
            (operand, "true", _) => runs.push(operand),
            (operand, value, _) => left_out.push(format!("{operand} (label `{value}`)")),
        }
    }
    if !is_there {
        let then = match &left_out[..] {
            [] => String::new(),
            all => format!("; it would leave out {}", all.join(", ")),
        };
        let why = format!("the operator has not labelled node `{name}`{then}");
        return say(Verdict::Skip, why);
    }
    let with = |operand: &str, value: &str, why: String| Finding {
        remedy: Some(format!(
            "`kubectl label node {name} --overwrite {OF_OPERANDS}{operand}={value}`; gpu-bootstrap sets this label where it joins \
             the machine, or with `cluster.join = \"managed\"`"
        )),
        ..say(Verdict::Warn, why)
    };
    if runs.contains(&"driver") && host.has_driver {
        let why = format!(
            "it installs a driver beside the one that is loaded: its validator finds no `nvidia-smi` in `{}` or its siblings, \
             and the label of its driver is `true`",
            "/usr/bin"
        );
        return with("driver", "pre-installed", why);
    }
    if runs.contains(&"container-toolkit") && host.has_toolkit && host.has_its_toolkit {
        let why = format!(
            "two toolkits configure the container runtimes: that of the host, and the operator's (`{ITS_RUNTIME}`)"
        );
        return with("container-toolkit", "false", why);
    }
    let list = |all: &[String]| match all {
        [] => "nothing".to_owned(),
        all => all.join(", "),
    };
    let runs: Vec<String> = runs.into_iter().map(str::to_owned).collect();
    say(
        Verdict::Pass,
        format!(
            "on node `{name}` it leaves out {}; it runs {}",
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
    fn what_the_operator_leaves_out_is_told_with_the_reason() {
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
            why.contains("would leave out container-toolkit (label `false`), driver (label"),
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
                "on node `gpu-1` it leaves out container-toolkit (label `false`), driver (label `pre-installed`); it runs \
                 dcgm-exporter, device-plugin"
            )
        );
        let (status, why) = found(&[("driver", "true"), ("device-plugin", "true")], &ours);
        assert_eq!(status, Verdict::Pass);
        assert!(
            why.contains("driver (it finds `/usr/bin/nvidia-smi` of the host)"),
            "{why}"
        );
        let (status, why) = found(&[("operands", "false"), ("driver", "true")], &ours);
        assert!(
            status == Verdict::Pass && why.contains("everything"),
            "{why}"
        );
        assert_eq!(found(&[], &ours).0, Verdict::Skip);
    }

    #[test]
    fn a_second_driver_or_toolkit_is_a_warning() {
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
        // The ClusterPolicy may leave it out, which a node cannot see.
        let one = OnHost {
            has_its_toolkit: false,
            ..two
        };
        assert_eq!(found(&all, &one).0, Verdict::Pass);
    }

    #[test]
    fn a_node_of_the_operator_is_left_alone() {
        let its = OnHost {
            has_its_driver: true,
            has_driver: true,
            ..OnHost::default()
        };
        let unknown = || Err((Verdict::Unknown, "no answer".to_owned()));
        let own = decide(unknown(), &its);
        assert_eq!(own.status, Verdict::Pass);
        assert!(own.why.contains("leaves the node alone"));
        let twice = OnHost {
            packages: "550.54.15".parse().ok(),
            ..its.clone()
        };
        let twice = decide(unknown(), &twice);
        assert_eq!(twice.status, Verdict::Warn);
        assert!(twice.why.contains("550.54.15 in packages"), "{}", twice.why);
        assert!(twice.remedy.is_some());
        let other = decide(unknown(), &OnHost::default());
        assert_eq!(
            (other.status, other.why.as_str()),
            (Verdict::Unknown, "no answer")
        );
    }
}
