//! `runtime.docker`, `runtime.containerd`, `runtime.podman`: the runtime is installed, and its daemon, if any, is enabled and
//! running. An existing runtime is not replaced.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    REPOSITORIES, messages, package_step, packages,
    specs::{InstalledPackages, compare, install},
};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, RuntimeKind, RuntimeSpec},
    host::{FilesError, ReadFiles},
    runtimes::{OtherForm, Version},
    step::{Assessment, Cx, Step, StepError},
    tools::systemctl::UnitState,
};

/// Time limit for a daemon restart by another program.
const RESTART_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The step of one runtime.
pub(super) fn step(kind: RuntimeKind) -> Step {
    Step::new(package_step(kind), move |cx| Box::pin(assess(cx, kind)))
        .after([REPOSITORIES])
        .locks([Lock::Packages, Lock::Containers])
        .wants(move |_, desired| spec(desired, kind).is_some())
}

#[derive(Debug, Clone, Default)]
struct RuntimePackagesState {
    installed: InstalledPackages,
    /// An installed form of the runtime that cannot be configured.
    other: Option<OtherForm>,
    /// The manually installed executable of a daemon with a unit.
    by_hand: Option<Utf8PathBuf>,
    unit: Option<UnitState>,
    /// The version of a runtime that must support CDI natively.
    version: Option<Version>,
}

async fn detect(cx: &Cx<'_>, spec: &RuntimeSpec) -> Result<RuntimePackagesState, StepError> {
    let installed = packages::installed(cx).await?;
    let unit = match &spec.unit {
        None => None,
        Some(unit) => match cx.state.unit(unit).await {
            Ok(unit) => unit,
            // If packages are missing, the unit state is not needed.
            Err(error) if error.not_queried().is_some() && lacks(cx.desired, &installed, spec) => {
                None
            }
            Err(error) => return Err(error.into()),
        },
    };
    let runtime = spec.kind.runtime();
    let version = match runtime.facts().first {
        Some(_) => cx.state.runtime_version(spec.kind).await,
        None => None,
    };
    let by_hand = match unit {
        Some(_) => by_hand(cx.host.files(), spec.kind)?,
        None => None,
    };
    Ok(RuntimePackagesState {
        by_hand,
        other: runtime.in_another_form(cx.host.files())?,
        installed,
        unit,
        version,
    })
}

/// Returns the executable in `/usr/local/bin`, if `/usr/bin` has none. In that case no package is installed, because the
/// daemon would continue to use the manually installed version: its unit and `/usr/local/bin` take precedence.
fn by_hand(files: &dyn ReadFiles, kind: RuntimeKind) -> Result<Option<Utf8PathBuf>, FilesError> {
    let facts = kind.runtime().facts();
    let name = facts
        .binaries
        .first()
        .map(Utf8Path::new)
        .and_then(Utf8Path::file_name);
    let (Some(_), Some(program)) = (facts.unit, name) else {
        return Ok(None);
    };
    let theirs = Utf8Path::new("/usr/local/bin").join(program);
    let packaged = Utf8Path::new("/usr/bin").join(program);
    Ok((files.exists(&theirs)? && !files.exists(&packaged)?).then_some(theirs))
}

/// Returns whether neither the required packages nor their alternatives are installed.
fn lacks(desired: &Desired, installed: &InstalledPackages, spec: &RuntimeSpec) -> bool {
    let elsewhere = |name: &String| installed.get(name).is_some_and(|p| !p.version.is_empty());
    !spec.alternatives.iter().any(elsewhere)
        && !compare(desired.packages.manager, &spec.packages, installed).all_met()
}

pub(super) fn spec(desired: &Desired, kind: RuntimeKind) -> Option<&RuntimeSpec> {
    desired.runtimes.iter().find(|spec| spec.kind == kind)
}

fn decide(state: &RuntimePackagesState, spec: &RuntimeSpec, desired: &Desired) -> Assessment {
    let present: Vec<&str> = spec
        .alternatives
        .iter()
        .filter(|name| {
            state
                .installed
                .get(*name)
                .is_some_and(|p| !p.version.is_empty())
        })
        .map(String::as_str)
        .collect();
    let name = spec.kind.name();
    if let Some(why) = state.version.and_then(|version| spec.kind.too_old(version))
        && desired.toolkit.is_some()
    {
        return Assessment::blocked(
            why,
            format!("upgrade {name}, or remove it from `runtime.use`"),
        );
    }
    if let Some(OtherForm { why, remedy, .. }) = &state.other {
        return Assessment::blocked(
            why.clone(),
            format!("{remedy}, or remove \"{name}\" from `runtime.use`"),
        );
    }
    let running = (state.unit.as_ref()).is_some_and(UnitState::is_up);

    let comparison = compare(desired.packages.manager, &spec.packages, &state.installed);
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    let what = if !comparison.all_met() && !present.is_empty() {
        format!(
            "{} was installed from another source and is kept",
            present.join(", ")
        )
    } else if let Some(program) = state.by_hand.as_ref().filter(|_| !comparison.all_met()) {
        format!("`{program}` was installed without a package and is kept")
    } else if let Some(refusal) = comparison.refusal(desired.packages.manager) {
        return refusal;
    } else if !comparison.all_met() {
        whys.push(comparison.unmet_text());
        changes.extend(install(&spec.packages, Vec::new()));
        String::new()
    } else {
        comparison.met_text()
    };
    if let Some(name) = &spec.unit
        && !running
    {
        let otherwise = format!("remove `{}` from `runtime.use`", spec.kind.name());
        if let Some(refusal) = messages::masked(name, state.unit.as_ref(), &otherwise) {
            return refusal;
        }
        // The GKE script, for example, restarts containerd during boot.
        if let Some(unit) = state.unit.as_ref().filter(|unit| unit.is_restarting())
            && changes.is_empty()
        {
            return Assessment::BlockedNow {
                why: format!("`{name}` is {unit}: another program is starting or stopping it"),
                hint: format!(
                    "run `systemctl status {name}` to see its state, then run the command again"
                ),
                retryable: Some(RESTART_TIME_LIMIT),
            };
        }
        whys.push(match &state.unit {
            None => format!("`{name}` does not exist"),
            Some(unit) => format!("`{name}` is {unit}"),
        });
        changes.push(Change::EnableUnit {
            unit: name.clone(),
            start: true,
        });
    }
    if changes.is_empty() {
        Assessment::satisfied(match (&spec.unit, &state.unit) {
            (Some(name), Some(unit)) => format!("{what}; `{name}` is {unit}"),
            _ => format!("{what}, without a daemon"),
        })
    } else {
        Assessment::needs(whys.join("; "), changes)
    }
}

async fn assess(cx: &Cx<'_>, kind: RuntimeKind) -> Result<Assessment, StepError> {
    let Some(spec) = spec(cx.desired, kind) else {
        return Ok(Assessment::not_applicable("this runtime is not configured"));
    };
    Ok(decide(&detect(cx, spec).await?, spec, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{RuntimePackagesState, by_hand, decide, lacks, spec};
    use crate::{
        change::Change,
        config::desired::{RuntimeKind, RuntimeSpec},
        host::fake::FakeFiles,
        runtimes::Version,
        step::Assessment,
        steps::{
            fixtures::{desired, unit},
            specs::fixtures::{packages, specs},
        },
        tools::systemctl::UnitState,
    };

    #[test]
    fn missing_runtime_is_installed_and_stopped_daemon_started() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker");
        let (_, changes) = decide(&RuntimePackagesState::default(), docker, &want).expect_needs();
        assert!(matches!(
            &changes[..],
            [
                Change::RefreshRepositories,
                Change::InstallPackages { .. },
                Change::EnableUnit { .. }
            ]
        ));
        let good = RuntimePackagesState {
            installed: packages(&["docker.io=20.10.24"]),
            unit: Some(unit("enabled", "active")),
            ..RuntimePackagesState::default()
        };
        decide(&good, docker, &want).expect_satisfied();
        let stopped = RuntimePackagesState {
            unit: Some(unit("enabled", "inactive")),
            ..good
        };
        let (_, changes) = decide(&stopped, docker, &want).expect_needs();
        assert!(matches!(&changes[..], [Change::EnableUnit { .. }]));
    }

    /// If systemd cannot be queried, only a runtime that is not installed is assessed. Otherwise the error is returned.
    #[test]
    fn runtime_without_any_installation_is_lacking() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker");
        for (installed, is_lacking) in [
            (&[][..], true),
            (&["podman=4"], true),
            (&["docker.io=20.10.24"], false),
            (&["docker-ce=5:29.1"], false),
        ] {
            let found = lacks(&want, &packages(installed), docker);
            assert_eq!(found, is_lacking, "{installed:?}");
        }
    }

    /// The run waits for a restarting daemon. A daemon that fails repeatedly is started instead, so that its error is
    /// reported.
    #[test]
    fn restarting_daemon_delays_the_run() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker");
        for (active, has_job, result, is_waited_for) in [
            ("deactivating", false, "success", true),
            ("activating", false, "success", true),
            ("activating", false, "exit-code", false),
            ("inactive", false, "success", false),
            // Between the two halves of a restart.
            ("inactive", true, "success", true),
        ] {
            let state = RuntimePackagesState {
                installed: packages(&["docker.io=20.10.24"]),
                unit: Some(UnitState {
                    result: result.into(),
                    has_job,
                    ..unit("enabled", active)
                }),
                ..RuntimePackagesState::default()
            };
            let answer = decide(&state, docker, &want);
            let waits = matches!(
                answer,
                Assessment::BlockedNow {
                    retryable: Some(_),
                    ..
                }
            );
            assert_eq!(waits, is_waited_for, "{active}, {result}: {answer:?}");
        }
    }

    #[test]
    fn masked_unit_blocks_with_unmask_command() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker");
        let masked = RuntimePackagesState {
            unit: Some(UnitState {
                load: "masked".into(),
                ..unit("masked", "inactive")
            }),
            ..RuntimePackagesState::default()
        };
        let (_, hint) = decide(&masked, docker, &want).expect_blocked();
        assert!(hint.contains("`systemctl unmask docker.service`"), "{hint}");
    }

    #[test]
    fn docker_from_another_source_is_kept() {
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker");
        let other = RuntimePackagesState {
            installed: packages(&["docker-ce=5:29.1"]),
            unit: Some(unit("enabled", "active")),
            ..RuntimePackagesState::default()
        };
        let why = decide(&other, docker, &want).expect_satisfied();
        assert!(why.contains("docker-ce"), "{why}");
    }

    /// The installation guide of containerd installs executables in `/usr/local`, without a package.
    #[test]
    fn daemon_without_a_package_is_kept() {
        let files = FakeFiles::new();
        let asked = || by_hand(&files, RuntimeKind::Docker).unwrap();
        assert_eq!(asked(), None);
        files.put("/usr/local/bin/dockerd", "");
        assert_eq!(asked().as_deref(), Some("/usr/local/bin/dockerd".into()));
        let want = desired();
        let docker = spec(&want, RuntimeKind::Docker).expect("docker");
        let there = RuntimePackagesState {
            by_hand: asked(),
            unit: Some(unit("enabled", "active")),
            ..RuntimePackagesState::default()
        };
        let why = decide(&there, docker, &want).expect_satisfied();
        assert!(
            why.starts_with("`/usr/local/bin/dockerd` was installed"),
            "{why}"
        );
        files.put("/usr/bin/dockerd", "");
        assert_eq!(asked(), None);
    }

    #[test]
    fn podman_needs_cdi_support_and_no_daemon() {
        let want = desired();
        let podman = RuntimeSpec {
            kind: RuntimeKind::Podman,
            packages: specs(&["podman"]),
            alternatives: vec![],
            unit: None,
            nvidia_default: false,
        };
        let (_, changes) = decide(&RuntimePackagesState::default(), &podman, &want).expect_needs();
        assert!(matches!(
            &changes[..],
            [Change::RefreshRepositories, Change::InstallPackages { .. }]
        ));
        for (version, is_enough) in [("3.4.4", false), ("4.1.0", true), ("5.4.2", true)] {
            let state = RuntimePackagesState {
                installed: packages(&[&format!("podman={version}")]),
                version: Version::parse(version),
                ..RuntimePackagesState::default()
            };
            match decide(&state, &podman, &want) {
                Assessment::Satisfied { why } => {
                    assert!(is_enough && why.ends_with("without a daemon"), "{why}");
                }
                Assessment::Blocked { why, .. } => {
                    assert!(
                        !is_enough && why.contains("podman 3.4 does not support CDI"),
                        "{why}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
