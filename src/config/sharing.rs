//! Resolves `[sharing]`, and validates its settings together with the MIG strategy: a device plugin with an invalid configuration
//! only crashes repeatedly.
//!
//! Source of the rules: NVIDIA/k8s-device-plugin v0.20.0 (commit 1b826acc), `api/config/v1` and `internal/rm/device_map.go`.

use super::{
    error::ResolveError,
    file::{Config, SharingConfig},
    sources::SettingSources,
};
use crate::{
    mig::{self, MigStrategy},
    sharing::{DevicePluginSpec, LONGEST_NAME, SharingMethod, SharingSpec},
    tools::kubernetes::kubectl::{GPUS, MIG_DEVICES},
};

/// The smallest number of replicas.
const FEWEST: u32 = 2;

/// Resolves the configuration of the device plugin.
///
/// # Errors
/// All missing or contradictory settings.
pub(super) fn device_plugin(
    config: &Config,
    layers: &SettingSources,
) -> Result<DevicePluginSpec, ResolveError> {
    let mig_strategy = config.cluster.mig_strategy.unwrap_or_default();
    let mut wrong = Vec::new();
    let sharing = spec(&config.sharing, mig_strategy, &mut wrong);
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

/// Key, reason and remedy.
type Wrong = (&'static str, String, String);

/// Returns how devices are shared. Records all errors. `None` without a sharing method.
fn spec(
    config: &SharingConfig,
    mig_strategy: MigStrategy,
    wrong: &mut Vec<Wrong>,
) -> Option<SharingSpec> {
    match config.method.unwrap_or_default() {
        SharingMethod::None => return None,
        SharingMethod::TimeSlicing => {}
        SharingMethod::Mps => {
            wrong.push((
                "sharing.method",
                "MPS is not supported: gpu-bootstrap does not run its control daemon".to_owned(),
                "use `\"time-slicing\"`. For MPS, set `\"none\"`, and install the Helm chart of the device plugin with \
                 an MPS configuration"
                    .to_owned(),
            ));
            return None;
        }
    }
    let replicas = replicas(config, wrong);
    let resources = resources(config, mig_strategy, wrong);
    let spec = SharingSpec {
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

fn replicas(config: &SharingConfig, wrong: &mut Vec<Wrong>) -> Option<u32> {
    match config.replicas {
        None => wrong.push((
            "sharing.replicas",
            "time-slicing needs the number of replicas of each device".to_owned(),
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

    fn resolved(
        config: &SharingConfig,
        strategy: MigStrategy,
    ) -> (Option<SharingSpec>, Vec<Wrong>) {
        let mut wrong = Vec::new();
        (spec(config, strategy, &mut wrong), wrong)
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
                "sharing.method",
                "MPS is not supported",
            ),
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
    fn time_slicing_has_safe_defaults() {
        let config = SharingConfig {
            resources: None,
            ..shared(4, &[])
        };
        let (found, wrong) = resolved(&config, MigStrategy::None);
        assert!(wrong.is_empty(), "{wrong:?}");
        let expected = SharingSpec {
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
