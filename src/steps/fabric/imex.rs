//! `fabric.imex`: who runs IMEX on a node of a rack. The packages are part of the driver packages. The cluster starts the daemons
//! for ComputeDomains, so the unit of this machine is masked (`dra`); or the unit runs with a fixed list of nodes (`host`). The
//! health check `nvl.imex` reports the state of the daemon.

use crate::{
    change::Change,
    compat::matrix::Fabric,
    config::{choices::ImexMode, desired::Desired},
    host::{FileKind, digest::sha256},
    model::version::DriverVersion,
    step::{Assessment, Cx, Step, StepError},
    steps::{DRIVER_FABRIC, DRIVER_MODULE, DRIVER_PACKAGES, FABRIC_IMEX, messages},
    tools::{
        imex::{self, CONFIG, NODES, UNIT},
        systemctl::{self, UnitState, own_file},
    },
};

/// The lowest driver version for ComputeDomains. Source: DRA driver for NVIDIA GPUs, site/content/docs/prerequisites.md.
const FOR_COMPUTE_DOMAINS: &str = "570.158.01";

/// The `fabric.imex` step.
pub(in crate::steps) fn step() -> Step {
    Step::new(FABRIC_IMEX, |cx| Box::pin(assess(cx)))
        .after([DRIVER_PACKAGES, DRIVER_MODULE, DRIVER_FABRIC])
        .wants(|change, desired| {
            let masks = matches!(change, Change::MaskUnit { .. });
            match desired.settings.fabric.imex {
                ImexMode::Off => false,
                ImexMode::Dra => masks,
                ImexMode::Host => !masks,
            }
        })
}

#[derive(Debug, Clone, Default)]
struct ImexState {
    /// The state of the unit. `None` if it does not exist.
    unit: Option<UnitState>,
    /// An administrator or an image has installed the file of the unit in `/etc/systemd/system`, where a mask would be.
    has_own_file: bool,
    /// The loaded driver.
    loaded: Option<DriverVersion>,
    /// The content of the list of nodes.
    nodes: Option<String>,
    /// The content of the configuration file, and its permission bits.
    config: Option<(String, u32)>,
    /// The values of `ProtectSystem=` in the unit.
    protect: Vec<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<ImexState, StepError> {
    let files = cx.host.files();
    let state = ImexState {
        unit: super::unit(cx, UNIT).await?,
        has_own_file: files
            .stat(&own_file(UNIT))?
            .is_some_and(|stat| stat.kind == FileKind::File),
        loaded: cx.state.loaded_driver()?.cloned(),
        ..ImexState::default()
    };
    if cx.desired.settings.fabric.imex != ImexMode::Host {
        return Ok(state);
    }
    let mode = files.stat(CONFIG.into())?.map_or(0o644, |stat| stat.mode);
    Ok(ImexState {
        nodes: files.read_text(NODES.into())?,
        config: (files.read_text(CONFIG.into())?).map(|text| (text, mode & 0o777)),
        protect: systemctl::settings(files, UNIT, "ProtectSystem")?,
        ..state
    })
}

/// Whether the GPUs are part of a rack with multi-node NVLink.
fn is_in_rack(desired: &Desired) -> bool {
    let driver = desired.driver.as_ref();
    driver.is_some_and(|driver| driver.companions.needs == Fabric::Imex)
}

/// The assessment if nothing is configured for this machine.
fn not_required(desired: &Desired) -> Option<Assessment> {
    if desired.driver.is_none() {
        return Some(messages::no_driver());
    }
    match desired.settings.fabric.imex {
        ImexMode::Off => Some(Assessment::not_applicable("`fabric.imex` is `off`")),
        ImexMode::Host if !is_in_rack(desired) => Some(Assessment::not_applicable(
            "no GPU of this machine is part of a rack with multi-node NVLink",
        )),
        ImexMode::Host | ImexMode::Dra => None,
    }
}

fn decide(state: &ImexState, desired: &Desired) -> Assessment {
    if let Some(assessment) = not_required(desired) {
        return assessment;
    }
    match desired.settings.fabric.imex {
        ImexMode::Dra => for_compute_domains(state, desired),
        ImexMode::Host | ImexMode::Off => on_host(state, desired),
    }
}

/// The DRA driver starts a daemon for each ComputeDomain, which fails while the daemon of the host runs.
fn for_compute_domains(state: &ImexState, desired: &Desired) -> Assessment {
    let is_old = |loaded: &DriverVersion| {
        FOR_COMPUTE_DOMAINS
            .parse()
            .is_ok_and(|lowest: DriverVersion| *loaded < lowest)
    };
    if let Some(loaded) = state.loaded.as_ref().filter(|loaded| is_old(loaded))
        && is_in_rack(desired)
    {
        return Assessment::BlockedNow {
            why: format!(
                "driver {loaded} is loaded, but ComputeDomains need {FOR_COMPUTE_DOMAINS} or later"
            ),
            hint: "set `driver.branch = 580`, or `fabric.imex = \"host\"`".to_owned(),
            retryable: None,
        };
    }
    match &state.unit {
        None => Assessment::not_applicable(format!(
            "`{UNIT}` is not installed, so it cannot block the daemons of the DRA driver"
        )),
        Some(unit) if unit.is_masked_for_good() && !unit.is_active() => Assessment::satisfied(
            format!("`{UNIT}` is masked, so the DRA driver can start IMEX for each ComputeDomain"),
        ),
        // A mask is a symlink in the place of this file, and `systemctl mask` does not replace a file.
        Some(unit) if state.has_own_file && !unit.is_masked_for_good() => Assessment::blocked(
            format!(
                "`{UNIT}` cannot be masked, because `{}` is a file",
                own_file(UNIT)
            ),
            "drain the node, run `systemctl disable --now nvidia-imex`, move the file away, run `systemctl daemon-reload`, and run the \
             command again; or set `fabric.imex = \"off\"`",
        ),
        Some(unit) => Assessment::needs(
            format!("`{UNIT}` is {unit}, which blocks the IMEX daemons of the DRA driver"),
            vec![Change::MaskUnit {
                unit: UNIT.to_owned(),
            }],
        ),
    }
}

fn on_host(state: &ImexState, desired: &Desired) -> Assessment {
    if desired.image {
        return Assessment::awaits_boot("IMEX starts at the first boot of the image");
    }
    let Some(unit) = &state.unit else {
        // `driver.packages` installs it, unless the driver source does not provide it.
        return Assessment::BlockedNow {
            why: format!("`{UNIT}` is not installed"),
            hint: "set `driver.source = \"nvidia\"`, whose repository has IMEX in the version of the driver, and run `gpu-bootstrap \
                   install`; or set `fabric.imex = \"off\"`"
                .to_owned(),
            retryable: None,
        };
    };
    let otherwise = "set `fabric.imex = \"dra\"`";
    if let Some(refusal) = messages::masked(UNIT, Some(unit), otherwise) {
        return refusal;
    }
    let Some((config, mode)) = &state.config else {
        return Assessment::BlockedNow {
            why: format!("`{CONFIG}` is missing, although `{UNIT}` is installed"),
            hint: "reinstall the package of IMEX, and run the command again".to_owned(),
            retryable: None,
        };
    };
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    let nodes = imex::node_list(&desired.settings.fabric.imex_nodes);
    if state.nodes.as_ref() != Some(&nodes) {
        whys.push(match &state.nodes {
            None => format!("`{NODES}` is missing"),
            Some(_) => format!("`{NODES}` has other nodes than `fabric.imex-nodes`"),
        });
        changes.push(Change::write(NODES, nodes));
    }
    let socket = imex::socket(config, &state.protect);
    if let Some(content) = imex::with_commands(config, &socket) {
        whys.push(format!(
            "the command service at `{socket}` is not enabled in `{CONFIG}`"
        ));
        changes.push(Change::WriteFile {
            path: CONFIG.into(),
            content,
            mode: *mode,
            over: Some(sha256(config.as_bytes())),
        });
    }
    // IMEX only reads its files when it starts. A daemon that waits for other nodes is `activating` without a time limit, and
    // another start would wait for it.
    let restarts = !changes.is_empty() && (unit.is_active() || unit.is_changing());
    if !(unit.is_enabled() && (unit.is_active() || restarts)) {
        whys.push(format!("`{UNIT}` is {unit}"));
        changes.push(Change::EnableUnit {
            unit: UNIT.to_owned(),
            start: !restarts,
        });
    }
    if restarts {
        changes.push(Change::RestartUnit {
            unit: UNIT.to_owned(),
        });
    }
    if changes.is_empty() {
        return Assessment::satisfied(format!(
            "`{UNIT}` is running with {} nodes and the socket `{socket}`",
            desired.settings.fabric.imex_nodes.len()
        ));
    }
    if state.loaded.is_none() {
        return Assessment::After {
            upstream: DRIVER_MODULE,
            why: "IMEX requires a loaded driver".into(),
            expected: changes,
        };
    }
    Assessment::needs(whys.join("; "), changes)
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if let Some(assessment) = not_required(cx.desired) {
        return Ok(assessment);
    }
    Ok(decide(&detect(cx).await?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::fixtures::{self, desired, unit};

    /// The desired state of a machine in a rack.
    fn wanted(imex: ImexMode) -> Desired {
        let mut wanted = desired();
        let driver = wanted.driver.as_mut().expect("a driver");
        driver.companions.needs = Fabric::Imex;
        wanted.settings.fabric.imex = imex;
        if imex == ImexMode::Host {
            let nodes = ["10.0.0.1", "10.0.0.2"];
            wanted.settings.fabric.imex_nodes =
                nodes.map(|node| node.parse().expect("an address")).into();
        }
        wanted
    }

    /// The package is installed, and its script has started the unit.
    fn installed() -> ImexState {
        ImexState {
            unit: Some(unit("enabled", "active")),
            loaded: "580.178.04".parse().ok(),
            config: Some(("LOG_LEVEL=4\n".to_owned(), 0o644)),
            ..ImexState::default()
        }
    }

    fn masked(active: &str) -> ImexState {
        ImexState {
            unit: Some(UnitState {
                load: "masked".to_owned(),
                ..unit("masked", active)
            }),
            ..installed()
        }
    }

    #[test]
    fn unit_is_masked_for_compute_domains() {
        let want = wanted(ImexMode::Dra);
        let (why, changes) = decide(&installed(), &want).expect_needs();
        assert!(why.contains("enabled and active"), "{why}");
        assert!(
            matches!(&changes[..], [Change::MaskUnit { unit }] if unit == UNIT),
            "{changes:?}"
        );
        decide(&masked("inactive"), &want).expect_satisfied();
        // Masking does not stop a running unit.
        decide(&masked("active"), &want).expect_needs();
        // A mask until the next boot.
        let mut runtime = masked("inactive");
        runtime.unit.as_mut().expect("a unit").file = "masked-runtime".to_owned();
        decide(&runtime, &want).expect_needs();
        decide(&ImexState::default(), &want).expect_not_applicable();
        // The packages of an image are masked before it boots.
        let image = Desired {
            image: true,
            ..wanted(ImexMode::Dra)
        };
        decide(&installed(), &image).expect_needs();
        let old = ImexState {
            loaded: "570.133.20".parse().ok(),
            ..installed()
        };
        let (why, ..) = decide(&old, &want).expect_blocked_now();
        assert!(why.contains("570.158.01"), "{why}");
    }

    #[test]
    fn unit_of_the_host_gets_nodes_and_socket() {
        let want = wanted(ImexMode::Host);
        let (why, changes) = decide(&installed(), &want).expect_needs();
        assert!(
            why.contains("`/etc/nvidia-imex/nodes_config.cfg` is missing"),
            "{why}"
        );
        let [
            Change::WriteFile { content: nodes, .. },
            Change::WriteFile {
                content: config,
                over,
                ..
            },
            Change::RestartUnit { .. },
        ] = &changes[..]
        else {
            panic!("{changes:?}");
        };
        assert_eq!(nodes, "10.0.0.1\n10.0.0.2\n");
        assert!(
            config.contains("LOG_LEVEL=4\nIMEX_CMD_ENABLED=1\n"),
            "{config}"
        );
        assert!(over.is_some());
        let done = ImexState {
            nodes: Some(nodes.clone()),
            config: Some((config.clone(), 0o644)),
            ..installed()
        };
        decide(&done, &want).expect_satisfied();
        let stopped = ImexState {
            unit: Some(unit("disabled", "inactive")),
            ..done.clone()
        };
        let (_, changes) = decide(&stopped, &want).expect_needs();
        assert!(
            matches!(&changes[..], [Change::EnableUnit { start: true, .. }]),
            "{changes:?}"
        );
        for active in ["active", "activating"] {
            let moved = ImexState {
                unit: Some(unit("enabled", active)),
                nodes: Some("10.0.0.1\n".to_owned()),
                ..done.clone()
            };
            let (why, changes) = decide(&moved, &want).expect_needs();
            assert!(why.contains("has other nodes"), "{why}");
            assert!(
                matches!(
                    &changes[..],
                    [Change::WriteFile { .. }, Change::RestartUnit { .. }]
                ),
                "{changes:?}"
            );
        }
        let waiting = ImexState {
            unit: Some(unit("disabled", "activating")),
            nodes: None,
            ..done
        };
        let (_, changes) = decide(&waiting, &want).expect_needs();
        assert!(
            matches!(
                &changes[..],
                [
                    Change::WriteFile { .. },
                    Change::EnableUnit { start: false, .. },
                    Change::RestartUnit { .. }
                ]
            ),
            "{changes:?}"
        );
        let unloaded = ImexState {
            loaded: None,
            ..installed()
        };
        assert_eq!(decide(&unloaded, &want).expect_after().0, DRIVER_MODULE);
    }

    #[test]
    fn impossible_machines_block() {
        let want = wanted(ImexMode::Host);
        let (_, hint) = decide(&masked("inactive"), &want).expect_blocked();
        assert!(
            hint.contains("systemctl unmask nvidia-imex.service"),
            "{hint}"
        );
        decide(&ImexState::default(), &want).expect_blocked_now();
        let bare = ImexState {
            config: None,
            ..installed()
        };
        decide(&bare, &want).expect_blocked_now();
        let own = ImexState {
            has_own_file: true,
            ..installed()
        };
        let (why, hint) = decide(&own, &wanted(ImexMode::Dra)).expect_blocked();
        assert!(
            why.contains("`/etc/systemd/system/nvidia-imex.service`"),
            "{why}"
        );
        assert!(
            hint.contains("systemctl disable --now nvidia-imex")
                && hint.contains("move the file away"),
            "{hint}"
        );
        // A list of nodes needs no mask.
        decide(&own, &want).expect_needs();
    }

    #[test]
    fn other_machines_and_settings_change_nothing() {
        decide(&installed(), &wanted(ImexMode::Off)).expect_not_applicable();
        let mut alone = wanted(ImexMode::Host);
        alone.driver.as_mut().expect("a driver").companions.needs = Fabric::None;
        decide(&installed(), &alone).expect_not_applicable();
        let mut cpu = wanted(ImexMode::Dra);
        cpu.driver = None;
        decide(&installed(), &cpu).expect_not_applicable();
    }

    #[test]
    fn changes_of_another_mode_are_undone() {
        let mask = Change::MaskUnit {
            unit: UNIT.to_owned(),
        };
        let nodes = Change::write(NODES, "10.0.0.1\n");
        for (mode, keeps_mask, keeps_nodes) in rows! {
            ImexMode::Off, false, false;
            ImexMode::Dra, true, false;
            ImexMode::Host, false, true;
        } {
            let want = wanted(mode);
            assert_eq!((step().wants)(&mask, &want), keeps_mask, "{mode:?}");
            assert_eq!((step().wants)(&nodes, &want), keeps_nodes, "{mode:?}");
        }
    }

    #[tokio::test]
    async fn unused_setting_reads_nothing() {
        let (host, fakes) = crate::host::fake::host();
        let facts = fixtures::facts();
        let state = fixtures::state(&host, facts.clone());
        let want = desired();
        let cx = fixtures::cx(&host, &facts, &state, &want);
        assess(&cx).await.expect("no error").expect_not_applicable();
        assert!(fakes.exec.log().is_empty());
    }
}
