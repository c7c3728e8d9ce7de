//! The root causes of findings.

use crate::{
    check::{Finding, Verdict},
    model::id::stands_for,
};

/// A finding (or a prefix of finding IDs) and the findings that can cause it, the deepest cause first. The finding of a step
/// that returns `Assessment::After` already contains its cause.
const NEEDS: &[(&str, &[&str])] = &[
    ("config.resolvable", &["pci.gpu.present"]),
    // A process in a container or with a private view of files and devices does not see the machine.
    ("preflight", &["virt.container"]),
    ("driver.nodes", &["virt.container"]),
    ("drv.nodes", &["pci.driver-bound", "driver.module"]),
    // A driver that does not support the GPU does not bind to it.
    (
        "pci.driver-bound",
        &[
            "pci.gpu.present",
            "pci.gpu.config-space",
            "drv.module.flavor",
            "drv.version.matrix",
        ],
    ),
    // A GPU that is lost on the bus also causes log messages.
    (
        "log.xid",
        &[
            "pci.gpu.config-space",
            "log.fell-off-bus",
            "drv.module.flavor",
            "mem.remap.failed",
            "gpu.recovery-action",
        ],
    ),
    // Errors that a reset cannot fix are reported instead of the recommended reset, and the recommended reset is reported
    // instead of the errors that it fixes.
    (
        "gpu.recovery-action",
        &[
            "pci.gpu.config-space",
            "mem.remap.failed",
            "mem.sram.threshold",
        ],
    ),
    (
        "mem.ecc.uncorr",
        &[
            "mem.remap.failed",
            "mem.sram.threshold",
            "gpu.recovery-action",
        ],
    ),
    ("log.fell-off-bus", &["pci.gpu.config-space"]),
    (
        "log.gpu-init",
        &[
            "pci.gpu.config-space",
            "log.fell-off-bus",
            "drv.module.flavor",
            "pci.driver-bound",
        ],
    ),
    ("driver", &["pci.gpu.present"]),
    (
        "driver.libraries",
        &["pci.driver-bound", "os.pkg.consistency", "driver.module"],
    ),
    (
        "drv.version.mismatch",
        &["os.pkg.consistency", "driver.libraries"],
    ),
    ("driver.persistence", &["pci.driver-bound", "driver.module"]),
    // The finding about the lock file lists all packages that differ, including those that other steps install.
    ("kernel.headers", &["packages.lock"]),
    ("driver.packages", &["packages.lock"]),
    ("runtime.docker", &["packages.lock"]),
    ("runtime.containerd", &["packages.lock"]),
    ("runtime.podman", &["packages.lock"]),
    ("toolkit.packages", &["packages.lock"]),
    ("cluster.packages", &["packages.lock"]),
    // Without a driver, the unit of the layout fails.
    ("drv.mig.layout", &["pci.driver-bound", "driver.module"]),
    // A GPU without the configured layout may have no MIG devices.
    (
        "driver.mig",
        &["drv.mig.layout", "pci.driver-bound", "driver.module"],
    ),
    // A system upgrade can change packages because their holds are missing, which the step `packages.hold` reports.
    ("os.pkg.pins", &["packages.hold"]),
    ("repositories", &["os.pkg.sources"]),
    (
        "drv.module.kernels",
        &["pci.driver-bound", "driver.packages"],
    ),
    // The nvidia module cannot use a GPU that is bound to another driver.
    ("driver.module", &["pci.driver-bound"]),
    ("nvl", &["driver.fabric"]),
    ("nvl.imex", &["fabric.imex"]),
    (
        "nvl.fabric.state",
        &[
            "driver.fabric",
            "nvl.fm.unit",
            "nvl.fm.version",
            "nvl.nvlsm",
        ],
    ),
    // A daemon that rejects its configuration does not run.
    ("runtime.docker", &["rt.docker.files"]),
    ("runtime.containerd", &["rt.containerd.files"]),
    (
        "rt.containerd.systemd-cgroup",
        &["runtime.containerd", "rt.containerd.files"],
    ),
    (
        "runtime.docker-nvidia",
        &["runtime.docker", "toolkit.packages", "rt.docker.files"],
    ),
    (
        "runtime.containerd-nvidia",
        &[
            "runtime.containerd",
            "toolkit.packages",
            "rt.containerd.files",
            "rt.kubelet.runtime",
        ],
    ),
    (
        "cdi",
        &[
            "pci.gpu.present",
            "pci.driver-bound",
            "driver.module",
            "driver.libraries",
            "toolkit.packages",
        ],
    ),
    (
        "validation",
        &[
            "virt.container",
            "pci.gpu.present",
            "pci.gpu.config-space",
            "pci.driver-bound",
            "log.fell-off-bus",
            "driver.module",
            "driver.libraries",
            "driver.fabric",
            "nvl",
            "drv.mig.layout",
        ],
    ),
    (
        "validation.container",
        &[
            "toolkit.packages",
            "runtime.docker",
            "runtime.docker-nvidia",
            "runtime.containerd",
            "runtime.containerd-nvidia",
            "runtime.podman",
            "rt.toolkit.files",
            "cdi",
            "validation.devices",
        ],
    ),
    ("validation.compute", &["validation.devices"]),
    ("k8s.operator", &["driver.libraries"]),
    ("cluster.join", &["cluster.packages", "validation"]),
    ("k8s.ready", &["cluster.join", "k8s.versions"]),
    ("k8s.taints", &["cluster.join"]),
    ("cluster.node", &["cluster.join", "k8s.ready"]),
    (
        "k8s.allocatable",
        &[
            "k8s.ready",
            "cluster.node",
            "validation",
            "pci.driver-bound",
        ],
    ),
];

/// Sets the root cause of each finding. Causes that are missing or not a problem are ignored, so each root cause is a problem
/// without a cause.
pub fn find(findings: &mut [Finding]) {
    let causes: Vec<Option<usize>> = findings
        .iter()
        .map(|finding| cause(finding, findings))
        .collect();
    for at in 0..findings.len() {
        let mut chain = vec![at];
        let mut next = causes[at].or_else(|| same(at, findings));
        let mut root = None;
        while let Some(found) = next {
            // Of circular causes, the first finding is the root.
            if let Some(start) = chain.iter().position(|known| *known == found) {
                root = chain[start..].iter().min().copied();
                break;
            }
            chain.push(found);
            root = Some(found);
            next = causes[found];
        }
        findings[at].because = root
            .filter(|root| *root != at)
            .map(|root| findings[root].id.clone());
    }
}

/// The first finding that is unknown for the same reason, so that missing data is reported only once.
fn same(at: usize, findings: &[Finding]) -> Option<usize> {
    let unknown = |finding: &Finding| finding.status == Verdict::Unknown;
    let this = &findings[at];
    (unknown(this) && this.because.is_none())
        .then(|| {
            findings[..at]
                .iter()
                .position(|one| unknown(one) && one.why == this.why)
        })
        .flatten()
}

/// The next cause of a finding. A cause in the finding itself takes precedence over the table.
fn cause(finding: &Finding, findings: &[Finding]) -> Option<usize> {
    let problem = |id: &str| {
        findings.iter().position(|other| {
            other.id != finding.id
                && stands_for(id, other.id.as_str())
                && matches!(other.status, Verdict::Fail | Verdict::Unknown)
        })
    };
    if let Some(own) = &finding.because {
        return problem(own.as_str());
    }
    if matches!(finding.status, Verdict::Pass | Verdict::Skip) {
        return None;
    }
    let fails = |id: &str| problem(id).filter(|at| findings[*at].status == Verdict::Fail);
    NEEDS
        .iter()
        .filter(|(name, _)| stands_for(name, finding.id.as_str()))
        .flat_map(|(_, needs)| *needs)
        .find_map(|need| fails(need))
}

#[cfg(test)]
mod tests {
    use super::{NEEDS, find};
    use crate::{
        check::{Finding, Verdict},
        checks,
        model::{findings::Layer, id::Id},
        steps,
    };

    fn finding(id: &'static str, status: Verdict, because: Option<&'static str>) -> Finding {
        Finding {
            because: because.map(Id::new),
            ..Finding::new(Id::new(id), status, id)
        }
    }

    fn because(findings: &[(&'static str, Verdict, Option<&'static str>)]) -> Vec<String> {
        let mut findings: Vec<Finding> = findings
            .iter()
            .map(|(id, status, because)| finding(id, *status, *because))
            .collect();
        find(&mut findings);
        let name = |finding: &Finding| {
            let because = finding.because.as_ref();
            because.map_or_else(|| "-".to_owned(), ToString::to_string)
        };
        findings.iter().map(name).collect()
    }

    use Verdict::{Fail, Pass, Skip, Unknown};

    #[test]
    fn unbound_driver_is_the_root_cause() {
        assert_eq!(
            because(&[
                ("pci.gpu.present", Pass, None),
                ("pci.driver-bound", Fail, None),
                ("driver.packages", Fail, None),
                ("driver.libraries", Fail, None),
                ("runtime.docker", Fail, None),
                ("cdi", Unknown, None),
                ("validation.devices", Fail, None),
            ]),
            [
                "-",
                "-",
                "-",
                "pci.driver-bound",
                "-",
                "pci.driver-bound",
                "pci.driver-bound"
            ]
        );
    }

    #[test]
    fn findings_with_equal_reason_share_the_cause() {
        let mut findings: Vec<Finding> = ["os.a", "os.b", "os.c"]
            .map(|id| finding(id, Unknown, None))
            .to_vec();
        findings[0].why = "no database".to_owned();
        findings[2].why = "no database".to_owned();
        findings[1].why = "another".to_owned();
        find(&mut findings);
        let because = |at: usize| findings[at].because.as_ref().map(Id::as_str);
        assert_eq!(
            (because(0), because(1), because(2)),
            (None, None, Some("os.a"))
        );
    }

    #[test]
    fn chain_ends_at_its_root() {
        assert_eq!(
            because(&[
                ("pci.gpu.present", Fail, None),
                ("pci.driver-bound", Fail, None),
                ("driver.packages", Fail, None),
                ("driver.module", Unknown, Some("driver.packages")),
                ("cdi", Unknown, Some("driver.module")),
            ]),
            [
                "-",
                "pci.gpu.present",
                "pci.gpu.present",
                "pci.gpu.present",
                "pci.gpu.present"
            ]
        );
    }

    #[test]
    fn lost_gpu_or_rejected_file_is_root_cause() {
        assert_eq!(
            because(&[
                ("log.fell-off-bus", Fail, None),
                ("log.xid", Fail, None),
                ("validation.devices", Fail, None),
                ("validation.container", Fail, None),
            ]),
            [
                "-",
                "log.fell-off-bus",
                "log.fell-off-bus",
                "log.fell-off-bus"
            ]
        );
        assert_eq!(
            because(&[
                ("rt.containerd.files", Fail, None),
                ("runtime.containerd", Fail, None),
                ("runtime.containerd-nvidia", Fail, None),
                ("validation.container", Unknown, None),
            ]),
            [
                "-",
                "rt.containerd.files",
                "rt.containerd.files",
                "rt.containerd.files"
            ]
        );
    }

    #[test]
    fn finding_without_a_problem_is_not_a_cause() {
        assert_eq!(
            because(&[
                ("pci.gpu.present", Pass, None),
                ("driver.module", Skip, None),
                // Its cause was not selected, or is no longer a problem.
                ("driver.autoload", Unknown, Some("driver.packages")),
                ("driver.libraries", Fail, None),
                ("cdi", Skip, None),
            ]),
            ["-"; 5]
        );
    }

    #[test]
    fn first_of_circular_causes_is_the_root() {
        let names = because(&[
            ("x", Fail, Some("b")),
            ("a", Fail, Some("b")),
            ("b", Fail, Some("a")),
        ]);
        assert_eq!(names, ["a", "-", "a"]);
        assert_eq!(because(&[("a", Fail, Some("a"))]), ["-"]);
    }

    #[test]
    fn all_ids_in_the_table_exist() {
        let steps = steps::all();
        let ids: Vec<Id> = (steps.iter().map(|step| step.id.clone()))
            .chain(checks::ALL.iter().flat_map(|check| (check.ids)()))
            .chain([Id::new("config.resolvable")])
            .collect();
        for (name, needs) in NEEDS {
            for name in needs.iter().chain([name]) {
                assert!(
                    ids.iter().any(|id| super::stands_for(name, id.as_str())),
                    "{name}"
                );
            }
        }
    }

    /// The exceptions are `config.resolvable`, and a driver that does not support the GPU and therefore does not bind to it.
    #[test]
    fn causes_are_not_in_a_later_layer() {
        for (name, needs) in NEEDS {
            for need in *needs {
                let (own, other) = (Id::new(name), Id::new(need));
                assert!(
                    Layer::of(&other) <= Layer::of(&own)
                        || *name == "config.resolvable"
                        || need.starts_with("drv."),
                    "{name} needs {need}"
                );
            }
        }
    }
}
