//! `driver.persistence`: the driver keeps a GPU initialized without clients. Otherwise the first client after an idle period
//! waits for seconds. The daemon must run and start at boot, and persistence mode must be enabled. The Ubuntu unit starts
//! the daemon with an option that leaves persistence mode disabled.

use camino::Utf8PathBuf;

use super::{DRIVER_MODULE, DRIVER_PERSISTENCE, driver_packages::adopts, messages};
use crate::{
    change::Change,
    config::desired::{Desired, Persistence},
    facts::Facts,
    host::Nvml,
    step::{Assessment, Cx, Step, StepError},
    tools::{packages::HEADER, systemctl::UnitState},
};

/// The `driver.persistence` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_PERSISTENCE, |cx| Box::pin(assess(cx)))
        .after([DRIVER_MODULE])
        .wants(|_, desired| desired.driver.is_none() || desired.persistence.is_some())
}

/// With this option the daemon leaves persistence mode disabled. Without it, the mode is enabled
/// (NVIDIA/nvidia-persistenced, `option-table.h`).
const OFF: &str = "--no-persistence-mode";

#[derive(Debug, Clone, Default)]
struct PersistenceState {
    unit: Option<UnitState>,
    /// The command line of the unit.
    command: Option<String>,
    /// Indices of GPUs without persistence mode, from NVML. `None` if NVML does not respond.
    off: Option<Vec<u32>>,
}

async fn detect(cx: &Cx<'_>, spec: &Persistence) -> Result<PersistenceState, StepError> {
    let unit = cx.state.unit(&spec.unit).await?;
    let command = match &unit {
        Some(_) => cx.state.unit_command(&spec.unit).await?,
        None => None,
    };
    let mut off = None;
    if cx.state.loaded_driver()?.is_some()
        && let Nvml::Ready(view) = cx.state.nvml().await
    {
        let is_off = view
            .devices
            .iter()
            .filter(|gpu| gpu.persistence == Some(false));
        off = Some(is_off.map(|gpu| gpu.index).collect());
    }
    Ok(PersistenceState { unit, command, off })
}

/// Returns the drop-in that removes [`OFF`] from the command line. `None` if the command line does not contain it.
fn drop_in(spec: &Persistence, command: Option<&str>) -> Option<Change> {
    let command = command?;
    if !command.split_whitespace().any(|word| word == OFF) {
        return None;
    }
    let without: Vec<&str> = (command.split_whitespace())
        .filter(|word| *word != OFF)
        .collect();
    Some(Change::WriteFile {
        path: Utf8PathBuf::from(format!(
            "/etc/systemd/system/{}.d/50-gpu-bootstrap.conf",
            spec.unit
        )),
        // The empty assignment clears the command of the unit file, systemd.service(5).
        content: format!(
            "{HEADER}[Service]\nExecStart=\nExecStart={}\n",
            without.join(" ")
        ),
        mode: 0o644,
        over: None,
    })
}

fn decide(state: &PersistenceState, desired: &Desired, facts: &Facts, adopts: bool) -> Assessment {
    let (Some(_), Some(spec)) = (&desired.driver, &desired.persistence) else {
        return Assessment::not_applicable("no persistence daemon is configured");
    };
    let name = &spec.unit;
    let unit = state.unit.as_ref();
    let runs = unit.is_some_and(|unit| unit.is_enabled() && unit.is_active());
    let off = state.off.as_deref().unwrap_or_default();
    let drop_in = drop_in(spec, state.command.as_deref());
    if runs && off.is_empty() && drop_in.is_none() {
        let mode = match state.off {
            Some(_) => ", and persistence mode is enabled",
            None => "",
        };
        return Assessment::satisfied(format!("`{name}` is enabled and active{mode}"));
    }
    if desired.image {
        return Assessment::awaits_boot(format!(
            "`{name}` needs a GPU and is started at the first boot of the image"
        ));
    }
    if facts.gpus.is_empty() {
        return Assessment::not_applicable("no NVIDIA GPU is on the PCI bus");
    }
    if unit.is_none() && adopts {
        return Assessment::not_applicable(format!("the adopted driver has no `{name}`"));
    }
    if let Some(refusal) = messages::masked(name, unit, "set `persistence.enabled = false`") {
        return refusal;
    }
    let enable = |start| Change::EnableUnit {
        unit: name.clone(),
        start,
    };
    let restart = Change::RestartUnit { unit: name.clone() };
    if let Some(drop_in) = drop_in {
        return Assessment::needs(
            format!("`{name}` runs with `{OFF}`"),
            vec![drop_in, enable(false), restart],
        );
    }
    if runs {
        return Assessment::needs(
            format!(
                "`{name}` is enabled and active, but persistence mode is disabled on {}",
                messages::indices(off)
            ),
            vec![restart],
        );
    }
    Assessment::needs(
        match unit {
            None => format!("`{name}` is not installed"),
            Some(unit) => format!("`{name}` is {unit}"),
        },
        vec![enable(true)],
    )
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let state = match &cx.desired.persistence {
        Some(spec) => detect(cx, spec).await?,
        None => PersistenceState::default(),
    };
    Ok(decide(&state, cx.desired, cx.facts, adopts(cx).await))
}

#[cfg(test)]
mod tests {
    use super::{PersistenceState, assess, decide, detect};
    use crate::{
        change::Change,
        host::fake,
        steps::fixtures::{self, cx, desired, facts, unit},
    };

    fn state(file: &str, active: &str, off: &[u32]) -> PersistenceState {
        PersistenceState {
            unit: Some(unit(file, active)),
            command: Some("/usr/bin/nvidia-persistenced --user nvpd".into()),
            off: Some(off.to_vec()),
        }
    }

    #[test]
    fn enabled_and_active_daemon_is_satisfied() {
        let (mut want, facts) = (desired(), facts());
        decide(&state("enabled", "active", &[]), &want, &facts, false).expect_satisfied();
        let failed = state("enabled", "failed", &[0, 1]);
        let (why, _) = decide(&failed, &want, &facts, false).expect_needs();
        assert_eq!(
            why,
            "`nvidia-persistenced.service` is enabled and failed (success)"
        );
        want.image = true;
        decide(&PersistenceState::default(), &want, &facts, false).expect_awaiting_boot();
    }

    /// In a container that builds an image, the package is installed and systemctl fails.
    #[tokio::test]
    async fn image_without_systemd_awaits_first_boot() {
        let (host, fakes) = fake::host();
        fakes.exec.on("systemctl", |cmd, _| match &*cmd.args[0] {
            "is-enabled" => fake::ok("enabled\n"),
            _ => fake::failed(
                1,
                "System has not been booted with systemd as init system (PID 1).\n",
            ),
        });
        fakes.files.put(
            "/usr/lib/systemd/system/nvidia-persistenced.service",
            "[Service]\nExecStart=/usr/bin/nvidia-persistenced --user nvpd\n",
        );
        let (mut want, facts) = (desired(), facts());
        want.image = true;
        let state = fixtures::state(&host, facts.clone());
        let cx = cx(&host, &facts, &state, &want);
        let spec = want.persistence.as_ref().expect("a daemon");
        let found = detect(&cx, spec).await.expect("readable");
        let command = found.command.as_deref();
        assert_eq!(command, Some("/usr/bin/nvidia-persistenced --user nvpd"));
        assess(&cx).await.expect("readable").expect_awaiting_boot();
    }

    #[test]
    fn daemon_without_persistence_mode_is_not_satisfied() {
        let (want, facts) = (desired(), facts());
        // As in the Ubuntu package nvidia-compute-utils: static, started by udev.
        let mut ubuntu = state("static", "active", &[0, 1]);
        ubuntu.command = Some(
            "/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode \
             --verbose"
                .into(),
        );
        let (why, changes) = decide(&ubuntu, &want, &facts, false).expect_needs();
        assert!(why.contains("runs with `--no-persistence-mode`"), "{why}");
        let [
            Change::WriteFile { path, content, .. },
            Change::EnableUnit { start: false, .. },
            Change::RestartUnit { .. },
        ] = &changes[..]
        else {
            panic!("{changes:?}");
        };
        assert_eq!(
            path,
            "/etc/systemd/system/nvidia-persistenced.service.d/50-gpu-bootstrap.conf"
        );
        assert!(
            content.ends_with(
                "[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user \
                 nvidia-persistenced --verbose\n"
            ),
            "{content}"
        );
    }

    #[test]
    fn nvml_overrides_the_unit_state() {
        let (want, facts) = (desired(), facts());
        let one = state("enabled", "active", &[1]);
        let (why, changes) = decide(&one, &want, &facts, false).expect_needs();
        assert!(
            why.ends_with("persistence mode is disabled on GPU 1"),
            "{why}"
        );
        assert!(matches!(&changes[..], [Change::RestartUnit { .. }]));
        // If NVML does not respond, the unit state decides.
        let mut silent = state("enabled", "active", &[]);
        silent.off = None;
        decide(&silent, &want, &facts, false).expect_satisfied();
    }
}
