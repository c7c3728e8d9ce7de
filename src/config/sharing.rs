//! Resolves `[sharing]`, and validates its settings together with the MIG strategy: a device plugin with an invalid configuration
//! only crashes repeatedly.
//!
//! Source of the rules: NVIDIA/k8s-device-plugin v0.20.0 (commit 1b826acc), `api/config/v1` and `internal/rm/device_map.go`. Those
//! of MPS: `validateFlags` in `cmd/nvidia-device-plugin/main.go`, and README.md, "With CUDA MPS".

use super::{
    error::{ConfigError, ResolveError},
    file::{Config, SharingConfig},
    sources::SettingSources,
};
use crate::{
    joins::JoinKind,
    mig::{self, MigStrategy, NamedLayout},
    model::version::Branch,
    sharing::{
        DevicePluginSpec, GpuAllocation, LONGEST_NAME, MpsDaemon, SharingMethod, SharingSpec,
    },
    tools::{
        kubernetes::kubectl::{GPUS, MIG_DEVICES},
        mps,
    },
};

/// The first driver branch that the DRA driver supports. Source: kubernetes-sigs/dra-driver-nvidia-gpu v0.4.1 (commit 764900e7),
/// docs/prerequisites.md.
const FIRST_OF_DRA: Branch = Branch(565);

/// The smallest number of replicas.
const FEWEST: u32 = 2;

/// Resolves the configuration of the device plugin. `is_node` is true if the machine is already a node of a cluster.
///
/// # Errors
/// All missing or contradictory settings.
pub(super) fn device_plugin(
    config: &Config,
    layers: &SettingSources,
    is_node: bool,
) -> Result<DevicePluginSpec, ResolveError> {
    let mig_strategy = config.cluster.mig_strategy.unwrap_or_default();
    let mut wrong = Vec::new();
    let join = config.cluster.join.unwrap_or_default();
    let node = Node { join, is_node };
    let sharing = spec(&config.sharing, mig_strategy, node, &mut wrong);
    if config.cluster.gpu_allocation == GpuAllocation::Dra {
        wrong.extend(without_device_plugin(&config.sharing, mig_strategy));
    }
    let mig = &config.mig;
    let splits = (mig.layout).is_some_and(|layout| layout != NamedLayout::AllDisabled);
    if config.sharing.method == Some(SharingMethod::Mps)
        && (splits || mig.models.is_some() || mig.file.is_some())
    {
        wrong.push((
            "sharing.method",
            "MPS does not run on GPUs in MIG mode, which `[mig]` configures".to_owned(),
            "remove the settings in `[mig]`, or set `sharing.method = \"time-slicing\"`".to_owned(),
        ));
    }
    if wrong.is_empty() {
        return Ok(DevicePluginSpec {
            mig_strategy,
            sharing,
        });
    }
    let errors = wrong
        .into_iter()
        .map(|(key, why, hint)| layers.wrong(key, why, Some(hint)).into());
    Err(ResolveError::all(errors.collect()))
}

/// Rejects a driver that the DRA driver does not support.
///
/// # Errors
/// If the configured DRA driver needs a later branch.
pub(super) fn dra_driver(
    config: &Config,
    layers: &SettingSources,
    branch: Branch,
) -> Result<(), ConfigError> {
    if config.cluster.gpu_allocation != GpuAllocation::Dra || branch >= FIRST_OF_DRA {
        return Ok(());
    }
    let why = format!(
        "the DRA driver does not support driver branch {branch}, but only {FIRST_OF_DRA} and later"
    );
    let hint =
        "remove the key, so that the device plugin offers the GPUs, or set a later `driver.branch`";
    Err(layers.wrong("cluster.gpu-allocation", why, Some(hint.to_owned())))
}

/// Returns the settings that only the device plugin has.
fn without_device_plugin(config: &SharingConfig, mig_strategy: MigStrategy) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let method = config.method.unwrap_or_default();
    if method != SharingMethod::None {
        wrong.push((
            "sharing.method",
            "the DRA driver has no replicas (`cluster.gpu-allocation = \"dra\"`): pods share a GPU by using the same ResourceClaim"
                .to_owned(),
            "remove the settings in `[sharing]`, and use the claim that `gpu-bootstrap manifests` writes to \
             `policies/40-shared-claim.yaml`; or remove `cluster.gpu-allocation`"
                .to_owned(),
        ));
    }
    if mig_strategy == MigStrategy::Single {
        wrong.push((
            "cluster.mig-strategy",
            "the DRA driver offers MIG devices only in a separate device class (`cluster.gpu-allocation = \"dra\"`)".to_owned(),
            "set `cluster.mig-strategy = \"mixed\"`, so that the labels correspond to it; or remove `cluster.gpu-allocation`"
                .to_owned(),
        ));
    }
    wrong
}

/// Key, reason and remedy.
type Wrong = (&'static str, String, String);

/// Whether the machine is, or will be, a node of a cluster.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    join: JoinKind,
    /// The machine is already a node.
    is_node: bool,
}

/// Returns how devices are shared. Records all errors. `None` without a sharing method.
fn spec(
    config: &SharingConfig,
    mig_strategy: MigStrategy,
    node: Node,
    wrong: &mut Vec<Wrong>,
) -> Option<SharingSpec> {
    let method = config.method.unwrap_or_default();
    let mps_daemon = match method {
        SharingMethod::None => return None,
        SharingMethod::TimeSlicing => None,
        SharingMethod::Mps => Some(mps_daemon(config, mig_strategy, node, wrong)),
    };
    let replicas = replicas(config, wrong);
    let resources = match method {
        // Other resources are rejected above.
        SharingMethod::Mps => vec![GPUS.to_owned()],
        SharingMethod::TimeSlicing | SharingMethod::None => resources(config, mig_strategy, wrong),
    };
    let spec = SharingSpec {
        method,
        mps_daemon,
        replicas: replicas?,
        resources,
        rename: config.rename.unwrap_or(false),
        fail_requests_greater_than_one: config.fail_requests_greater_than_one.unwrap_or(true),
    };
    for resource in &spec.resources {
        let name = spec.name_of(resource);
        if name.len() > LONGEST_NAME {
            wrong.push((
                "sharing.resources",
                format!("`{name}` has more than {LONGEST_NAME} characters"),
                "share another resource".to_owned(),
            ));
        }
    }
    Some(spec)
}

/// Returns where the control daemon of MPS runs, and records the combinations that MPS does not support.
fn mps_daemon(
    config: &SharingConfig,
    mig_strategy: MigStrategy,
    node: Node,
    wrong: &mut Vec<Wrong>,
) -> MpsDaemon {
    if mig_strategy != MigStrategy::None {
        let strategy = mig::name(mig_strategy).unwrap_or("none");
        wrong.push((
            "sharing.method",
            format!(
                "the device plugin does not support MPS on MIG devices, which \
                 `cluster.mig-strategy = \"{strategy}\"` offers"
            ),
            "remove `cluster.mig-strategy`, or set `sharing.method = \"time-slicing\"`".to_owned(),
        ));
    }
    let is_gpu = |name: &str| name == GPUS;
    let only_gpus = (config.resources.iter().flatten()).all(|name| is_gpu(&name.to_string()));
    if config.resources.as_ref().is_some_and(Vec::is_empty) || !only_gpus {
        wrong.push((
            "sharing.resources",
            format!("MPS only shares `{GPUS}`"),
            "remove the key".to_owned(),
        ));
    }
    if let Some(replicas) = config.replicas.filter(|all| *all > mps::MOST_CLIENTS) {
        wrong.push((
            "sharing.replicas",
            format!(
                "MPS supports {} programs on a GPU, fewer than {replicas}",
                mps::MOST_CLIENTS
            ),
            format!("set at most {}", mps::MOST_CLIENTS),
        ));
    }
    match (node.join, node.is_node) {
        (JoinKind::None, false) => MpsDaemon::Host,
        (JoinKind::None, true) => {
            wrong.push((
                "sharing.method",
                "this machine is a node of a cluster, in which the MPS control daemon of the device plugin serves the \
                 GPUs: a second daemon on the host is not possible"
                    .to_owned(),
                "set `cluster.join = \"managed\"`, so that the settings are for the device plugin".to_owned(),
            ));
            MpsDaemon::Cluster
        }
        (_, _) => MpsDaemon::Cluster,
    }
}

fn replicas(config: &SharingConfig, wrong: &mut Vec<Wrong>) -> Option<u32> {
    match config.replicas {
        None => wrong.push((
            "sharing.replicas",
            "sharing needs the number of replicas of each device".to_owned(),
            "set `sharing.replicas = 4`, for example".to_owned(),
        )),
        Some(..FEWEST) => wrong.push((
            "sharing.replicas",
            format!("the device plugin rejects fewer than {FEWEST} replicas"),
            "set a larger number, or `sharing.method = \"none\"`".to_owned(),
        )),
        Some(_) => {}
    }
    config.replicas.filter(|replicas| *replicas >= FEWEST)
}

fn resources(
    config: &SharingConfig,
    mig_strategy: MigStrategy,
    wrong: &mut Vec<Wrong>,
) -> Vec<String> {
    let key = "sharing.resources";
    let Some(resources) = &config.resources else {
        return vec![GPUS.to_owned()];
    };
    if resources.is_empty() {
        let why = "the device plugin rejects an empty list".to_owned();
        wrong.push((key, why, "remove the key".to_owned()));
    }
    let mut names: Vec<String> = Vec::new();
    for name in resources.iter().map(ToString::to_string) {
        if name.starts_with(MIG_DEVICES) && mig_strategy != MigStrategy::Mixed {
            let strategy = mig::name(mig_strategy).unwrap_or("none");
            let (why, hint) = match mig_strategy {
                MigStrategy::Single => (
                    format!("MIG devices are `{GPUS}`"),
                    format!("use `{GPUS}`, or set `cluster.mig-strategy = \"mixed\"`"),
                ),
                _ => (
                    "the device plugin does not offer MIG devices".to_owned(),
                    "set `cluster.mig-strategy = \"mixed\"`".to_owned(),
                ),
            };
            let why = format!(
                "no resource `{name}`: with `cluster.mig-strategy = \"{strategy}\"`, {why}"
            );
            wrong.push((key, why, hint));
        }
        if names.contains(&name) {
            let why = format!("`{name}` is listed twice");
            wrong.push((key, why, "remove one of them".to_owned()));
            continue;
        }
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "nvidia.com/gpu";
    const MIG: &str = "nvidia.com/mig-1g.10gb";

    fn shared(replicas: u32, resources: &[&str]) -> SharingConfig {
        SharingConfig {
            method: Some(SharingMethod::TimeSlicing),
            replicas: Some(replicas),
            resources: Some(
                (resources
                    .iter()
                    .map(|name| name.parse().expect("a resource")))
                .collect(),
            ),
            ..SharingConfig::default()
        }
    }

    fn mps(replicas: u32, resources: &[&str]) -> SharingConfig {
        SharingConfig {
            method: Some(SharingMethod::Mps),
            ..shared(replicas, resources)
        }
    }

    fn resolved(
        config: &SharingConfig,
        strategy: MigStrategy,
    ) -> (Option<SharingSpec>, Vec<Wrong>) {
        let mut wrong = Vec::new();
        let found = spec(config, strategy, Node::default(), &mut wrong);
        (found, wrong)
    }

    #[test]
    fn impossible_combinations_are_rejected_with_the_reason() {
        use MigStrategy::{Mixed, None as NoMig, Single};
        let method = |method| SharingConfig {
            method: Some(method),
            ..SharingConfig::default()
        };
        let long = format!("nvidia.com/mig-{}", "1".repeat(LONGEST_NAME - 20));
        let renamed = SharingConfig {
            rename: Some(true),
            ..shared(2, &[&long])
        };
        for (config, strategy, key, reason) in [
            (
                method(SharingMethod::Mps),
                NoMig,
                "sharing.replicas",
                "needs the number of replicas",
            ),
            (
                mps(4, &[GPU]),
                Single,
                "sharing.method",
                "does not support MPS on MIG devices, which `cluster.mig-strategy = \"single\"`",
            ),
            (
                mps(4, &[GPU]),
                Mixed,
                "sharing.method",
                "does not support MPS on MIG devices",
            ),
            (
                mps(4, &[MIG]),
                NoMig,
                "sharing.resources",
                "MPS only shares `nvidia.com/gpu`",
            ),
            (mps(4, &[]), NoMig, "sharing.resources", "MPS only shares"),
            (
                mps(49, &[GPU]),
                NoMig,
                "sharing.replicas",
                "MPS supports 48 programs on a GPU, fewer than 49",
            ),
            (mps(1, &[GPU]), NoMig, "sharing.replicas", "fewer than 2"),
            (
                method(SharingMethod::TimeSlicing),
                NoMig,
                "sharing.replicas",
                "needs the number of replicas",
            ),
            (
                shared(1, &[GPU]),
                NoMig,
                "sharing.replicas",
                "fewer than 2 replicas",
            ),
            (shared(0, &[GPU]), NoMig, "sharing.replicas", "fewer than 2"),
            (shared(4, &[]), NoMig, "sharing.resources", "an empty list"),
            (
                shared(4, &[MIG]),
                NoMig,
                "sharing.resources",
                "`cluster.mig-strategy = \"none\"`, the device plugin does not offer MIG devices",
            ),
            (
                shared(4, &[MIG]),
                Single,
                "sharing.resources",
                "`cluster.mig-strategy = \"single\"`, MIG devices are `nvidia.com/gpu`",
            ),
            (
                shared(4, &[MIG, GPU, MIG]),
                Mixed,
                "sharing.resources",
                "`nvidia.com/mig-1g.10gb` is listed twice",
            ),
            (
                renamed,
                Mixed,
                "sharing.resources",
                "has more than 63 characters",
            ),
        ] {
            let (_, wrong) = resolved(&config, strategy);
            let [(found, why, _)] = &wrong[..] else {
                panic!("{reason}: {wrong:?}");
            };
            assert!(*found == key && why.contains(reason), "{found}: {why}");
        }
    }

    #[test]
    fn dra_driver_has_neither_replicas_nor_a_single_strategy() {
        let keys = |config: &SharingConfig, strategy| {
            let wrong = without_device_plugin(config, strategy);
            wrong.into_iter().map(|(key, ..)| key).collect::<Vec<_>>()
        };
        let plain = SharingConfig::default();
        assert!(keys(&plain, MigStrategy::None).is_empty());
        assert!(keys(&plain, MigStrategy::Mixed).is_empty());
        assert_eq!(
            keys(&shared(4, &[GPU]), MigStrategy::Single),
            ["sharing.method", "cluster.mig-strategy"]
        );
        let mut config = Config::default();
        let layers = SettingSources::default();
        dra_driver(&config, &layers, Branch(535)).expect("the device plugin");
        config.cluster.gpu_allocation = GpuAllocation::Dra;
        dra_driver(&config, &layers, Branch(565)).expect("supported");
        dra_driver(&config, &layers, Branch(550)).expect_err("too old");
    }

    #[test]
    fn mps_daemon_runs_on_the_host_or_in_the_cluster() {
        use JoinKind::{Kubeadm, Managed, None as Alone};
        for (join, is_node, expected) in rows! {
            Alone, false, Some(MpsDaemon::Host);
            Kubeadm, false, Some(MpsDaemon::Cluster);
            Managed, true, Some(MpsDaemon::Cluster);
            // The pod of the device plugin serves the GPUs of this node.
            Alone, true, None;
        } {
            let mut wrong = Vec::new();
            let node = Node { join, is_node };
            let found = spec(&mps(48, &[GPU]), MigStrategy::None, node, &mut wrong);
            match expected {
                Some(daemon) => {
                    assert!(wrong.is_empty(), "{wrong:?}");
                    assert_eq!(found.and_then(|spec| spec.mps_daemon), Some(daemon));
                }
                None => {
                    let [(key, why, hint)] = &wrong[..] else {
                        panic!("{wrong:?}");
                    };
                    assert_eq!(*key, "sharing.method");
                    assert!(why.contains("a second daemon"), "{why}");
                    assert!(hint.contains("`cluster.join = \"managed\"`"), "{hint}");
                }
            }
        }
    }

    #[test]
    fn time_slicing_has_safe_defaults() {
        let config = SharingConfig {
            resources: None,
            ..shared(4, &[])
        };
        let (found, wrong) = resolved(&config, MigStrategy::None);
        assert!(wrong.is_empty(), "{wrong:?}");
        let expected = SharingSpec {
            method: SharingMethod::TimeSlicing,
            mps_daemon: None,
            replicas: 4,
            resources: vec![GPU.to_owned()],
            rename: false,
            fail_requests_greater_than_one: true,
        };
        assert_eq!(found, Some(expected));
        let (found, wrong) = resolved(&shared(2, &[GPU, MIG]), MigStrategy::Mixed);
        assert_eq!(found.map(|spec| spec.resources.len()), Some(2));
        assert!(wrong.is_empty(), "{wrong:?}");
        let (found, wrong) = resolved(&SharingConfig::default(), MigStrategy::None);
        assert!(found.is_none() && wrong.is_empty(), "{wrong:?}");
    }
}
