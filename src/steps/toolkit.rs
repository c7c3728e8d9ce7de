//! `toolkit.packages`: the NVIDIA Container Toolkit, all its packages at one version.

use std::collections::BTreeSet;

use super::{
    REPOSITORIES, TOOLKIT_PACKAGES, packages,
    specs::{InstalledPackages, compare, install, outdated, package_step},
};
use crate::{
    change::Lock,
    config::desired::Desired,
    state::Ours,
    step::{Assessment, Cx, Step, StepError},
};

/// The `toolkit.packages` step.
pub(super) fn step() -> Step {
    Step::new(TOOLKIT_PACKAGES, |cx| Box::pin(assess(cx)))
        .after([REPOSITORIES])
        .locks([Lock::Packages])
        .wants(|_, desired| desired.driver.is_none() || desired.toolkit.is_some())
}

fn decide(installed: &InstalledPackages, ours: &Ours, desired: &Desired) -> Assessment {
    let Some(toolkit) = &desired.toolkit else {
        return Assessment::not_applicable("the container toolkit is not configured");
    };
    let (manager, specs) = (desired.packages.manager, &toolkit.packages);
    let replaced = outdated(manager, specs, installed, ours);
    let answer = package_step(manager, specs, installed, replaced);
    if let (Assessment::Needs { .. }, Some(why)) = (&answer, &toolkit.vulnerable) {
        return Assessment::blocked(
            why.clone(),
            "set `toolkit.version` to a fixed version, or set `driver.allow-vulnerable = true`",
        );
    }
    if !matches!(answer, Assessment::Satisfied { .. }) {
        return answer;
    }
    // Repositories may have different versions, but the packages are released together and must match.
    let versions: BTreeSet<&str> = (specs.iter())
        .filter_map(|spec| installed.get(&spec.name))
        .map(|package| package.version.as_str())
        .collect();
    if versions.len() == 1 {
        return answer;
    }
    let there = compare(manager, specs, installed).met.join(", ");
    Assessment::needs(
        format!("the toolkit packages have different versions: {there}"),
        install(specs, Vec::new()),
    )
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let installed = packages::held_by_others(cx).await?;
    Ok(decide(&installed, cx.state.ours(), cx.desired))
}

#[cfg(test)]
mod tests {
    use crate::{
        change::Change,
        config::desired::Desired,
        state::Ours,
        step::Assessment,
        steps::{
            fixtures::desired,
            specs::{InstalledPackages, fixtures::packages},
        },
    };

    fn decide(installed: &InstalledPackages, desired: &Desired) -> Assessment {
        super::decide(installed, &Ours::default(), desired)
    }

    #[test]
    fn only_our_packages_may_be_downgraded() {
        let installed = packages(&[
            "nvidia-container-toolkit=1.21.0-1",
            "nvidia-container-toolkit-base=1.20.0-1",
        ]);
        let ours = Ours {
            packages: installed.keys().cloned().collect(),
            ..Ours::default()
        };
        for (ours, expected) in [
            (ours, vec!["nvidia-container-toolkit"]),
            (Ours::default(), Vec::new()),
        ] {
            let answer = super::decide(&installed, &ours, &desired());
            let (_, changes) = answer.expect_needs();
            let Change::InstallPackages { removing, .. } = &changes[1] else {
                panic!("install")
            };
            assert_eq!(*removing, expected);
        }
    }

    #[test]
    fn vulnerable_version_is_kept_but_not_installed() {
        let mut want = desired();
        let toolkit = want.toolkit.as_mut().expect("the toolkit");
        toolkit.vulnerable = Some("lacks fixes".to_owned());
        decide(&packages(&[]), &want).expect_blocked();
        let there = [
            "nvidia-container-toolkit=1.20.0-1",
            "nvidia-container-toolkit-base=1.20.0-1",
        ];
        decide(&packages(&there), &want).expect_satisfied();
    }

    #[test]
    fn all_packages_must_have_one_version() {
        let want = desired();
        decide(&packages(&[]), &want).expect_needs();
        let all = [
            "nvidia-container-toolkit=1.20.0-1",
            "nvidia-container-toolkit-base=1.20.0-1",
        ];
        decide(&packages(&all), &want).expect_satisfied();
        let mixed = [
            "nvidia-container-toolkit=1.20.0-1",
            "nvidia-container-toolkit-base=1.20.1-1",
        ];
        let (why, _) = decide(&packages(&mixed), &want).expect_needs();
        assert!(why.contains("different versions"), "{why}");
    }

    #[test]
    fn a_foreign_hold_blocks() {
        let held = [
            "nvidia-container-toolkit!=1.17.0-1",
            "nvidia-container-toolkit-base=1.20.0-1",
        ];
        decide(&packages(&held), &desired()).expect_blocked();
    }
}
