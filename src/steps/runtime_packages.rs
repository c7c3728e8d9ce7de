//! `runtime.docker`, `runtime.containerd`, `runtime.crio`, `runtime.podman`: the runtime is installed, and its daemon, if it
//! has one, is enabled and running. A runtime that was installed before is not replaced.

use std::time::Duration;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::{
    REPOSITORIES, package_step, packages,
    wishes::{InstalledPackages, compare, install},
    words,
};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, RuntimeKind, RuntimeWish},
    host::{FilesError, ReadFiles},
    model::id::StepId,
    runtimes::{OtherForm, Version},
    step::{Assessment, Cx, Step, StepError},
    tools::systemctl::UnitState,
};

/// How long somebody else's restart of a daemon is waited for.
const RESTART_TIME_LIMIT: Duration = Duration::from_secs(30);

/// See the module; one value per runtime.
pub struct RuntimePackages(pub RuntimeKind);

#[derive(Debug, Clone, Default)]
struct RuntimePackagesState {
    installed: InstalledPackages,
    /// It is there in another form.
    other: Option<OtherForm>,
    /// The program of a daemon that somebody has installed without a package, with its unit.
    by_hand: Option<Utf8PathBuf>,
    unit: Option<UnitState>,
    /// The version of a runtime that must read CDI by itself.
    version: Option<Version>,
}

async fn detect(cx: &Cx<'_>, wish: &RuntimeWish) -> Result<RuntimePackagesState, StepError> {
    let installed = packages::installed(cx).await?;
    let unit = match &wish.unit {
        None => None,
        Some(unit) => match cx.state.unit(unit).await {
            Ok(unit) => unit,
            // Missing packages are known without systemd.
            Err(error) if error.not_asked().is_some() && lacks(cx.desired, &installed, wish) => {
                None
            }
            Err(error) => return Err(error.into()),
        },
    };
    let runtime = wish.kind.runtime();
    let version = match runtime.facts().first {
        Some(_) => cx.state.runtime_version(wish.kind).await,
        None => None,
    };
    let by_hand = match unit {
        Some(_) => by_hand(cx.host.files(), wish.kind)?,
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

/// The program that is outside of the folders of packages, and alone. A package beside it would be of another version than the
/// daemon: units of an administrator come before those of packages, and so does this folder.
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

/// Whether neither the wanted packages nor their alternatives are there.
fn lacks(desired: &Desired, installed: &InstalledPackages, wish: &RuntimeWish) -> bool {
    let elsewhere = |name: &String| installed.get(name).is_some_and(|p| !p.version.is_empty());
    !wish.alternatives.iter().any(elsewhere)
        && !compare(desired.packages.manager, &wish.packages, installed).all_met()
}

pub(super) fn wish(desired: &Desired, kind: RuntimeKind) -> Option<&RuntimeWish> {
    desired.runtimes.iter().find(|wish| wish.kind == kind)
}

fn decide(state: &RuntimePackagesState, wish: &RuntimeWish, desired: &Desired) -> Assessment {
    let present: Vec<&str> = wish
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
    let name = wish.kind.name();
    if let (Some(version), Some(first)) = (state.version, wish.kind.runtime().facts().first)
        && version < first
        && desired.toolkit.is_some()
    {
        return Assessment::blocked(
            format!(
                "{name} {version} cannot give GPUs to containers: it reads CDI specifications from {first} on"
            ),
            format!("upgrade {name}, or take it out of `runtime.use`"),
        );
    }
    if let Some(OtherForm { why, remedy, .. }) = &state.other {
        return Assessment::blocked(
            why.clone(),
            format!("{remedy}; or leave \"{name}\" out of `runtime.use`"),
        );
    }
    let running = (state.unit.as_ref()).is_some_and(UnitState::is_up);

    let comparison = compare(desired.packages.manager, &wish.packages, &state.installed);
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
        changes.extend(install(&wish.packages, Vec::new()));
        String::new()
    } else {
        comparison.met_text()
    };
    if let Some(name) = &wish.unit
        && !running
    {
        let otherwise = format!("take `{}` out of `runtime.use`", wish.kind.name());
        if let Some(refusal) = words::masked(name, state.unit.as_ref(), &otherwise) {
            return refusal;
        }
        // GKE's script, for example, restarts containerd while the node boots.
        if let Some(unit) = state.unit.as_ref().filter(|unit| unit.is_restarting())
            && changes.is_empty()
        {
            return Assessment::BlockedNow {
                why: format!("`{name}` is {unit}: something else is starting or stopping it"),
                hint: format!(
                    "`systemctl status {name}` shows what it is doing, then run this command again"
                ),
                passes: Some(RESTART_TIME_LIMIT),
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
        Assessment::satisfied(match (&wish.unit, &state.unit) {
            (Some(name), Some(unit)) => format!("{what}; `{name}` is {unit}"),
            _ => format!("{what}; it needs no daemon"),
        })
    } else {
        Assessment::needs(whys.join("; "), changes)
    }
}

#[async_trait]
impl Step for RuntimePackages {
    fn id(&self) -> StepId {
        package_step(self.0)
    }

    fn after(&self) -> &[StepId] {
        const { &[REPOSITORIES] }
    }

    fn locks(&self) -> &[Lock] {
        &[Lock::Packages, Lock::Containers]
    }

    fn wants(&self, _: &Change, desired: &Desired) -> bool {
        wish(desired, self.0).is_some()
    }

    async fn assess(&self, cx: &Cx<'_>) -> Result<Assessment, StepError> {
        let Some(wish) = wish(cx.desired, self.0) else {
            return Ok(Assessment::not_applicable("this runtime is not configured"));
        };
        Ok(decide(&detect(cx, wish).await?, wish, cx.desired))
    }
}

#[cfg(test)]
mod tests {
    use super::{RuntimePackagesState, by_hand, decide, lacks, wish};
    use crate::{
        change::Change,
        config::desired::{RuntimeKind, RuntimeWish},
        host::fake::FakeFiles,
        runtimes::Version,
        step::Assessment,
        steps::{
            fixtures::{desired, unit},
            wishes::fixtures::{packages, wishes},
        },
        tools::systemctl::UnitState,
    };

    #[test]
    fn installed_enabled_and_running() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker");
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

    /// Where systemd cannot be asked, only a runtime that is not installed is known to be no service.
    #[test]
    fn a_runtime_is_lacking_where_it_is_installed_from_nowhere() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker");
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

    /// A daemon that somebody restarts is neither there nor missing. One that fails again and again is started, and says why.
    #[test]
    fn a_daemon_that_is_being_restarted_is_waited_for() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker");
        for (active, result, is_waited_for) in [
            ("deactivating", "success", true),
            ("activating", "success", true),
            ("activating", "exit-code", false),
            ("inactive", "success", false),
        ] {
            let state = RuntimePackagesState {
                installed: packages(&["docker.io=20.10.24"]),
                unit: Some(UnitState {
                    result: result.into(),
                    ..unit("enabled", active)
                }),
                ..RuntimePackagesState::default()
            };
            let answer = decide(&state, docker, &want);
            let waits = matches!(
                answer,
                Assessment::BlockedNow {
                    passes: Some(_),
                    ..
                }
            );
            assert_eq!(waits, is_waited_for, "{active}, {result}: {answer:?}");
        }
    }

    #[test]
    fn a_masked_unit_is_refused_with_the_command_that_unmasks_it() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker");
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
    fn a_docker_from_elsewhere_is_kept() {
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker");
        let other = RuntimePackagesState {
            installed: packages(&["docker-ce=5:29.1"]),
            unit: Some(unit("enabled", "active")),
            ..RuntimePackagesState::default()
        };
        let why = decide(&other, docker, &want).expect_satisfied();
        assert!(why.contains("docker-ce"), "{why}");
    }

    /// As containerd's own guide installs it.
    #[test]
    fn a_daemon_without_a_package_is_kept() {
        let files = FakeFiles::new();
        let asked = || by_hand(&files, RuntimeKind::Docker).unwrap();
        assert_eq!(asked(), None);
        files.put("/usr/local/bin/dockerd", "");
        assert_eq!(asked().as_deref(), Some("/usr/local/bin/dockerd".into()));
        let want = desired();
        let docker = wish(&want, RuntimeKind::Docker).expect("docker");
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
    fn podman_needs_no_daemon_and_a_version_that_reads_cdi() {
        let want = desired();
        let podman = RuntimeWish {
            kind: RuntimeKind::Podman,
            packages: wishes(&["podman"]),
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
                    assert!(is_enough && why.ends_with("needs no daemon"), "{why}");
                }
                Assessment::Blocked { why, .. } => {
                    assert!(!is_enough && why.contains("podman 3.4 cannot"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
