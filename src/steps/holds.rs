//! `packages.hold`: background upgrades must not change driver, libraries and runtime separately.

use super::{
    DCGM_PACKAGES, DRIVER_PACKAGES, HEADERS, PACKAGES_HOLD, PACKAGES_LOCK, RDMA_PACKAGES,
    TOOLKIT_PACKAGES, installed_runtimes, messages, packages, specs::InstalledPackages,
};
use crate::{
    change::{Change, Lock},
    config::desired::{Desired, Existing, PackageSpec, Purpose},
    model::pattern,
    step::{Assessment, Cx, Step, StepError},
    tools::packages::NoHolds,
};

/// The `packages.hold` step.
pub(super) fn step() -> Step {
    Step::new(PACKAGES_HOLD, |cx| Box::pin(assess(cx)))
        .after(installed_runtimes())
        .after([
            HEADERS,
            DRIVER_PACKAGES,
            TOOLKIT_PACKAGES,
            DCGM_PACKAGES,
            RDMA_PACKAGES,
            PACKAGES_LOCK,
        ])
        .locks([Lock::Packages])
        .wants(|_, desired| {
            !(desired.hold.patterns.is_empty() && desired.hold.blacklist.is_empty())
        })
}

#[derive(Debug, Clone, Default)]
struct HoldState {
    installed: InstalledPackages,
    /// The file that excludes packages from unattended upgrades.
    exclusion: Option<String>,
    /// The reason that holds have no effect on this machine.
    needs: Option<NoHolds>,
}

async fn detect(cx: &Cx<'_>) -> Result<HoldState, StepError> {
    let exclusion = match packages::backend(cx).updater() {
        Some(updater) => {
            let (path, _) = updater.exclusion(&cx.desired.hold.blacklist);
            cx.host.files().read_text(&path)?
        }
        None => None,
    };
    Ok(HoldState {
        installed: packages::installed(cx).await?,
        exclusion,
        needs: match packages::backend(cx).hold_list() {
            Some(list) => list.needs(cx.host.files())?,
            None => None,
        },
    })
}

fn decide(state: &HoldState, desired: &Desired) -> Assessment {
    let hold = &desired.hold;
    let matching: Vec<&String> = state
        .installed
        .iter()
        .filter(|(_, package)| !package.version.is_empty())
        .map(|(name, _)| name)
        .filter(|name| hold.patterns.iter().any(|p| pattern::matches(p, name)))
        .collect();
    let free: Vec<&str> = matching
        .iter()
        .filter(|name| !state.installed[**name].held)
        .map(|name| name.as_str())
        .collect();
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    let adopts = desired
        .driver
        .as_ref()
        .is_some_and(|driver| driver.existing == Existing::Keep);
    let expects = (desired.package_groups().iter()).any(|(purpose, _)| match purpose {
        Purpose::Driver | Purpose::Headers | Purpose::ContainerModules => !adopts,
        Purpose::Runtime(_)
        | Purpose::Toolkit
        | Purpose::Dcgm
        | Purpose::Rdma
        | Purpose::Cluster => true,
        Purpose::Holds => false,
    });
    if matching.is_empty() && !hold.patterns.is_empty() && expects {
        whys.push("the packages to hold are not installed yet".to_owned());
    } else if !free.is_empty() {
        whys.push(format!(
            "{} of {} packages are not held: {}",
            free.len(),
            matching.len(),
            messages::some(&free)
        ));
    }
    if !whys.is_empty() {
        if let Some(needs) = &state.needs {
            let is_there = |spec: &PackageSpec| state.installed.contains_key(&spec.name);
            if !needs.package || hold.packages.iter().all(is_there) {
                return Assessment::blocked(
                    format!("{}; {}", whys.join("; "), needs.why),
                    format!(
                        "{}, or set `hold = \"none\"`, but then unattended upgrades may change the driver",
                        needs.remedy
                    ),
                );
            }
            whys.push(needs.why.clone());
            changes.push(Change::InstallPackages {
                packages: hold.packages.clone(),
                removing: Vec::new(),
                later: false,
            });
        }
        changes.push(Change::HoldPackages {
            patterns: hold.patterns.clone(),
        });
    }
    let updater = desired.packages.manager.backend().updater();
    if let Some((path, content)) = updater.map(|updater| updater.exclusion(&hold.blacklist))
        && !hold.blacklist.is_empty()
        && state.exclusion.as_deref() != Some(&content)
    {
        whys.push(format!(
            "unattended upgrades do not exclude the packages to hold (`{path}`)"
        ));
        changes.push(Change::write(path, content));
    }
    if changes.is_empty() {
        return Assessment::satisfied(match matching.len() {
            1 => "1 package is held".to_owned(),
            count => format!("{count} packages are held"),
        });
    }
    Assessment::needs(whys.join("; "), changes)
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx).await?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{HoldState, NoHolds, decide};
    use crate::{
        change::Change,
        steps::{
            fixtures::desired,
            specs::fixtures::{packages, specs},
        },
    };

    #[test]
    fn matching_packages_must_be_held() {
        let want = desired();
        let good = HoldState {
            installed: packages(&["libnvidia-ml1!=535.1", "nvidia-smi!=535.1", "bash=5.2"]),
            exclusion: (want.packages.manager.backend().updater())
                .map(|updater| updater.exclusion(&want.hold.blacklist).1),
            needs: None,
        };
        decide(&good, &want).expect_satisfied();
        let one_free = HoldState {
            installed: packages(&["libnvidia-ml1=535.1", "nvidia-smi!=535.1"]),
            ..good.clone()
        };
        let (why, changes) = decide(&one_free, &want).expect_needs();
        assert_eq!(why, "1 of 2 packages are not held: libnvidia-ml1");
        assert!(matches!(&changes[..], [Change::HoldPackages { .. }]));
    }

    #[test]
    fn hold_plugin_is_installed_unless_disabled() {
        let mut want = desired();
        want.hold.packages = specs(&["plugin"]);
        let mut lacks = HoldState {
            installed: packages(&["libnvidia-ml1=535.1"]),
            needs: Some(NoHolds {
                why: "the plugin is not installed or disabled".into(),
                remedy: "enable it".into(),
                package: true,
            }),
            ..HoldState::default()
        };
        let (_, changes) = decide(&lacks, &want).expect_needs();
        assert!(
            matches!(
                &changes[..2],
                [Change::InstallPackages { packages, .. }, Change::HoldPackages { .. }]
                    if packages == &want.hold.packages
            ),
            "{changes:?}"
        );
        lacks.installed = packages(&["libnvidia-ml1=535.1", "plugin=4"]);
        let (why, _) = decide(&lacks, &want).expect_blocked();
        assert!(why.contains("or disabled"), "{why}");
        // If a setting disables holds, installing the package does not help.
        lacks.installed = packages(&["libnvidia-ml1=535.1"]);
        lacks.needs = lacks.needs.map(|needs| NoHolds {
            package: false,
            ..needs
        });
        let (_, hint) = decide(&lacks, &want).expect_blocked();
        assert!(hint.starts_with("enable it, or set `hold = "), "{hint}");
    }

    #[test]
    fn plan_lists_future_holds() {
        let (_, changes) = decide(&HoldState::default(), &desired()).expect_needs();
        assert!(matches!(
            &changes[..],
            [Change::HoldPackages { .. }, Change::WriteFile { .. }]
        ));
    }
}
