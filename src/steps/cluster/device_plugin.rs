//! `cluster.device-plugin`: if GPUs are shared, the configuration of the NVIDIA device plugin is on the host, for a plugin that
//! runs there (`--config-file`). A plugin in the cluster has the same configuration in a ConfigMap (`gpu-bootstrap manifests`).
//! A running plugin reads the file again only when it restarts.

use camino::Utf8Path;

use crate::{
    change::Change,
    config::desired::Desired,
    sharing::PATH,
    step::{Assessment, Cx, Step, StepError},
    steps::{DEVICE_PLUGIN, PREFLIGHT, messages},
    tools::packages::HEADER,
};

/// The `cluster.device-plugin` step.
pub(in crate::steps) fn step() -> Step {
    Step::new(DEVICE_PLUGIN, |cx| Box::pin(assess(cx)))
        .after([PREFLIGHT])
        .wants(|_, desired| {
            let plugin = &desired.device_plugin;
            plugin.sharing.is_some() && !plugin.has_mps_on_host()
        })
}

#[derive(Debug, Clone, Default)]
struct DevicePluginState {
    content: Option<String>,
}

fn detect(cx: &Cx<'_>) -> Result<DevicePluginState, StepError> {
    Ok(DevicePluginState {
        content: cx.host.files().read_text(Utf8Path::new(PATH))?,
    })
}

/// The assessment if the file is not required.
fn not_required(desired: &Desired) -> Option<Assessment> {
    if desired.driver.is_none() {
        return Some(messages::no_driver());
    }
    if desired.device_plugin.has_mps_on_host() {
        return Some(Assessment::not_applicable(
            "the machine joins no cluster (`cluster.join`), so its MPS control daemon shares the GPUs, not a device plugin",
        ));
    }
    (desired.device_plugin.sharing.is_none())
        .then(|| Assessment::not_applicable("GPUs are not shared (`sharing.method` is `none`)"))
}

fn decide(state: &DevicePluginState, desired: &Desired) -> Assessment {
    if let Some(assessment) = not_required(desired) {
        return assessment;
    }
    let content = format!("{HEADER}{}", desired.device_plugin.config());
    let why = match &state.content {
        Some(found) if *found == content => {
            return Assessment::satisfied(format!("`{PATH}` has the configured sharing"));
        }
        Some(_) => format!("`{PATH}` has another configuration"),
        None => format!("`{PATH}` is missing"),
    };
    Assessment::needs(why, vec![Change::write(PATH, content)])
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    // On other machines, the file is not read, so that `check` is not unknown.
    if let Some(assessment) = not_required(cx.desired) {
        return Ok(assessment);
    }
    Ok(decide(&detect(cx)?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{DevicePluginState, decide, step};
    use crate::{
        change::Change,
        config::desired::{Desired, DevicePluginSpec, MpsDaemon, SharingMethod, SharingSpec},
        steps::fixtures::desired,
    };

    fn shared(replicas: u32) -> Desired {
        Desired {
            device_plugin: DevicePluginSpec {
                sharing: Some(SharingSpec {
                    method: SharingMethod::TimeSlicing,
                    mps_daemon: None,
                    replicas,
                    resources: vec!["nvidia.com/gpu".to_owned()],
                    rename: false,
                    fail_requests_greater_than_one: true,
                }),
                ..DevicePluginSpec::default()
            },
            ..desired()
        }
    }

    #[test]
    fn only_the_configured_sharing_is_satisfied() {
        let (why, changes) = decide(&DevicePluginState::default(), &shared(4)).expect_needs();
        assert!(why.ends_with("is missing"), "{why}");
        let [change @ Change::WriteFile { content, .. }] = &changes[..] else {
            panic!("{changes:?}");
        };
        let state = DevicePluginState {
            content: Some(content.clone()),
        };
        decide(&state, &shared(4)).expect_satisfied();
        decide(&state, &shared(2)).expect_needs();
        decide(&state, &desired()).expect_not_applicable();
        assert!((step().wants)(change, &shared(2)));
        assert!(!(step().wants)(change, &desired()));
        // The device plugin of the cluster has the daemon of MPS, and the host has no plugin.
        for (daemon, is_written) in [(MpsDaemon::Cluster, true), (MpsDaemon::Host, false)] {
            let mut want = shared(4);
            if let Some(spec) = &mut want.device_plugin.sharing {
                spec.method = SharingMethod::Mps;
                spec.mps_daemon = Some(daemon);
            }
            let assessment = decide(&DevicePluginState::default(), &want);
            match is_written {
                true => assert_eq!(assessment.expect_needs().1.len(), 1),
                false => assert!(
                    assessment
                        .expect_not_applicable()
                        .contains("joins no cluster")
                ),
            }
            assert_eq!((step().wants)(change, &want), is_written);
        }
        let without_gpu = Desired {
            driver: None,
            ..shared(4)
        };
        decide(&state, &without_gpu).expect_not_applicable();
    }
}
