//! `driver.packages`: the NVIDIA driver packages, all of one origin, branch and flavor.

use camino::Utf8Path;

use super::{
    DRIVER_PACKAGES, DRIVER_PREBUILT, KERNEL_RELEASE, REPOSITORIES, SECURE_BOOT, messages,
    packages,
    replaced::{self, There},
    specs::{InstalledPackages, compare, install},
    streams,
};
use crate::{
    change::{Change, Lock},
    compat::{
        matrix::Matrix,
        pick::{Constraints, pick},
    },
    config::{
        desired::{Desired, DriverSpec, Existing, PackageSpec},
        kernel::is_dkms_package,
    },
    dkms,
    facts::Facts,
    host::{FilesError, ReadFiles},
    model::version::{DriverVersion, KernelVersion},
    state::{FoundDriver, Origin, Ours, Owner, State, owner},
    step::{Assessment, Cx, Step, StepError},
};

/// The uninstaller that the NVIDIA installer leaves behind.
const RUNFILE_UNINSTALLER: &str = "/usr/bin/nvidia-uninstall";

/// The `driver.packages` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_PACKAGES, |cx| Box::pin(assess(cx)))
        .after([SECURE_BOOT, DRIVER_PREBUILT, REPOSITORIES, KERNEL_RELEASE])
        .locks([Lock::Packages, Lock::Modules])
}

#[derive(Debug, Clone, Default)]
struct DriverPackagesState {
    installed: InstalledPackages,
    /// Bootable kernels without a driver module on disk.
    kernels_without_module: Vec<String>,
    /// The file that disables DKMS builds in package scripts exists.
    no_autoinstall: bool,
    /// The package scripts can leave the module builds to later changes, which build for the same kernels.
    leaves_module: bool,
    /// The main error of the last failed DKMS build, if the packages are installed and the module is missing.
    build: Option<String>,
    /// The existing driver, regardless of its install method.
    found: FoundDriver,
    /// The reason that the existing driver cannot be kept, if `driver.existing = "keep"` is set.
    unfit: Option<String>,
    /// The uninstaller of the NVIDIA installer exists.
    uninstaller: bool,
    /// Packages that gpu-bootstrap has installed, and packages that it holds.
    ours: Ours,
    /// The enabled stream of the DNF module that contains the driver packages.
    stream: Option<String>,
}

async fn detect(cx: &Cx<'_>) -> Result<DriverPackagesState, StepError> {
    let Some(driver) = &cx.desired.driver else {
        return Ok(DriverPackagesState::default());
    };
    let kernels_without_module = cx.state.kernels_without(&driver.module)?;
    let found = cx.state.driver().await.clone();
    let build = match (&driver.compiled_as, &found.package_version) {
        (Some(module), Some(version)) if !kernels_without_module.is_empty() => {
            last_build(cx, module, version)
        }
        _ => None,
    };
    Ok(DriverPackagesState {
        installed: packages::held_by_others(cx).await?,
        leaves_module: leaves_module(cx, driver, &kernels_without_module)?,
        kernels_without_module,
        no_autoinstall: cx
            .host
            .files()
            .exists(Utf8Path::new(dkms::NO_AUTOINSTALL))?,
        build,
        unfit: (cx.matrix)
            .filter(|_| driver.existing == Existing::Keep)
            .and_then(|matrix| unfit(matrix, cx.facts, &found)),
        found,
        uninstaller: cx.host.files().exists(Utf8Path::new(RUNFILE_UNINSTALLER))?,
        ours: cx.state.ours().clone(),
        stream: streams::enabled(cx)?,
    })
}

/// Returns whether later changes can build the module, in parallel with other packages, instead of the package scripts.
/// This is possible if DKMS has no module and no source of this one yet, and if all bootable kernels are installed and
/// have no module, including the newest kernel and the kernel of the next boot. Then the changes build for the same
/// kernels as the package scripts.
fn leaves_module(cx: &Cx<'_>, driver: &DriverSpec, without: &[String]) -> Result<bool, StepError> {
    let (Some(module), true) = (
        &driver.compiled_as,
        packages::backend(cx).scripts_may_leave_modules(),
    ) else {
        return Ok(false);
    };
    let (installed, next) = cx.state.bootable_kernels();
    let is_known = |kernel: &KernelVersion| without.iter().any(|one| one == kernel.as_str());
    let is_installed = |kernel: &String| installed.iter().any(|one| one.as_str() == kernel);
    let for_the_same = without.len() == cx.facts.kernel.bootable().len()
        // In a chroot, the running kernel belongs to the host.
        && without.iter().all(is_installed)
        && installed.last().into_iter().chain(&next).all(is_known);
    if !for_the_same {
        return Ok(false);
    }
    Ok(!knows_others(cx.host.files(), module)?)
}

/// Returns whether DKMS has any module, or already has a source of this one.
fn knows_others(files: &dyn ReadFiles, module: &str) -> Result<bool, FilesError> {
    Ok(dkms::is_used(files)? || dkms::has_source(files, module)?)
}

/// Returns the main error in the log of the last DKMS build. Some package scripts ignore a failed build, so the packages
/// can be installed without a module.
fn last_build(cx: &Cx<'_>, module: &str, version: &DriverVersion) -> Option<String> {
    let path = dkms::log_path(module, &version.to_string());
    match cx.host.files().read(&path) {
        // The log may be invalid UTF-8: a power loss can truncate quotation marks of the compiler.
        Ok(Some(log)) => dkms::telling_line(&String::from_utf8_lossy(&log))
            .map(|line| format!("`{path}`: {line}")),
        Ok(None) => None,
        Err(error) => Some(format!("failed to read the DKMS log: {error}")),
    }
}

/// Returns the reason that a driver does not support the GPUs. The kernel is ignored, because the existing driver was
/// already built for it.
fn unfit(matrix: &Matrix, facts: &Facts, found: &FoundDriver) -> Option<String> {
    let spec = Constraints {
        version: Some(version(found)?.clone()),
        kernel: None,
        next_kernel: None,
        ..Constraints::from(facts)
    };
    let none = pick(matrix, &spec).err()?;
    let reasons: Vec<&str> = none.reasons.iter().map(|one| one.text.as_str()).collect();
    Some(reasons.join("; "))
}

/// The version of a driver without packages.
fn version(found: &FoundDriver) -> Option<&DriverVersion> {
    (found.loaded_version.as_ref()).or(found.library_version.as_ref())
}

/// The install method of a driver without packages.
const fn installed(origin: Origin) -> Option<&'static str> {
    match origin {
        Origin::Runfile => Some("by the NVIDIA installer"),
        Origin::Preinstalled => Some("with the image"),
        Origin::Distribution | Origin::Vendor => None,
    }
}

/// Returns a warning if a driver that was installed without packages is kept, although its branch differs.
pub async fn kept_branch(state: &State, desired: &Desired) -> Option<String> {
    let driver = (desired.driver.as_ref()).filter(|one| one.existing == Existing::Keep)?;
    let found = state.driver().await;
    let (origin, version) = (installed(found.origin?)?, version(found)?);
    (version.branch() != driver.branch).then(|| {
        format!(
            "driver {version} was installed {origin} and is kept (`driver.existing = \"keep\"`), although branch {} \
             would be installed on this machine",
            driver.branch
        )
    })
}

/// Returns whether a driver without packages is kept. No module is compiled for it.
pub(super) async fn adopts(cx: &Cx<'_>) -> bool {
    cx.desired
        .driver
        .as_ref()
        .is_some_and(|spec| spec.existing == Existing::Keep)
        && matches!(
            cx.state.driver().await.origin,
            Some(Origin::Runfile | Origin::Preinstalled)
        )
}

fn decide(state: &DriverPackagesState, desired: &Desired) -> Assessment {
    let Some(driver) = &desired.driver else {
        return messages::no_driver();
    };
    match answer(state, desired, driver) {
        Assessment::Needs { why, changes } if changes.contains(&Change::RefreshRepositories) => {
            Assessment::needs(
                why,
                streams::before(changes, driver, state.stream.as_deref()),
            )
        }
        answer => answer,
    }
}

fn answer(state: &DriverPackagesState, desired: &Desired, driver: &DriverSpec) -> Assessment {
    if let Some(answer) = foreign(driver, state) {
        return answer;
    }
    let comparison = compare(desired.packages.manager, &driver.packages, &state.installed);
    if let Some(refusal) = comparison.refusal(desired.packages.manager) {
        return refusal;
    }
    if let Some(why) = &driver.vulnerable
        && state.found.package_version != driver.version
    {
        return Assessment::blocked(
            why.clone(),
            "set `driver.version` to a fixed version, or set `driver.allow-vulnerable = true`",
        );
    }
    let there = There {
        installed: &state.installed,
        ours: &state.ours,
        origin: state.found.origin,
    };
    let others = replaced::others(driver, desired, &there);
    if !others.is_empty() {
        return replaced::instead_of(&others, driver, desired, &there);
    }
    let outdated = replaced::outdated(driver, desired, &there);
    let held: Vec<&str> = (outdated.iter())
        .filter(|name| state.installed.get(*name).is_some_and(|there| there.held))
        .map(String::as_str)
        .collect();
    if !held.is_empty() {
        return Assessment::blocked(
            format!(
                "held packages must change with the driver: {}",
                messages::some(&held)
            ),
            comparison.held_hint(desired.packages.manager),
        );
    }
    if let Some(answer) = replaced::blocked_downgrade(driver, &there, &outdated) {
        return answer;
    }
    if !comparison.all_met() {
        let mut changes = install(&driver.packages, outdated);
        changes.extend(builds_beside(driver, desired, state));
        return Assessment::needs(comparison.unmet_text(), changes);
    }
    if let Some(change) = streams::change(driver, state.stream.as_deref()) {
        return Assessment::needs(
            "the packages are installed, but upgrades would use a different stream",
            vec![change],
        );
    }
    if !outdated.is_empty() {
        return Assessment::needs(
            format!("{} do not belong to this driver", outdated.join(", ")),
            install(&driver.packages, outdated),
        );
    }
    if let Some(answer) = companions(driver, desired, state) {
        return answer;
    }
    if let (Some(module), false) = (&driver.compiled_as, state.kernels_without_module.is_empty()) {
        return Assessment::needs(
            format!(
                "the packages are installed, but there is no module `{}` for {}{}",
                driver.module,
                state.kernels_without_module.join(", "),
                (state.build.as_ref()).map_or(String::new(), |said| format!("; {said}"))
            ),
            builds(module, state).collect(),
        );
    }
    Assessment::satisfied(comparison.met_text())
}

/// Returns the changes that build the module for each kernel without one.
fn builds(module: &str, state: &DriverPackagesState) -> impl Iterator<Item = Change> {
    (state.kernels_without_module.iter()).map(|kernel| Change::BuildModule {
        module: module.to_owned(),
        kernel: kernel.clone(),
    })
}

/// Returns the build changes to run after an installation that does not build the module, because package scripts leave
/// the builds to later changes, the DKMS sources are already installed (an interrupted run), or builds in package scripts
/// are disabled.
fn builds_beside(
    driver: &DriverSpec,
    desired: &Desired,
    state: &DriverPackagesState,
) -> Vec<Change> {
    let sources: Vec<PackageSpec> = (driver.packages.iter())
        .filter(|spec| is_dkms_package(&spec.name))
        .cloned()
        .collect();
    let is_left = !sources.is_empty()
        && (state.no_autoinstall
            || state.leaves_module
            || compare(desired.packages.manager, &sources, &state.installed).all_met());
    match (&driver.compiled_as, is_left) {
        (Some(module), true) => builds(module, state).collect(),
        _ => Vec::new(),
    }
}

/// Returns an assessment if packages that must have exactly the driver version, such as the fabric manager, have a
/// different one. The driver transaction installs the matching version.
fn companions(
    driver: &DriverSpec,
    desired: &Desired,
    state: &DriverPackagesState,
) -> Option<Assessment> {
    let version = state.found.package_version.as_ref()?;
    let specs = driver.exact_packages(version);
    let comparison = compare(desired.packages.manager, &specs, &state.installed);
    let why = format!(
        "{}: the package requires a driver of the same version",
        comparison.unmet_text()
    );
    match (comparison.all_met(), comparison.held.is_empty()) {
        (true, _) => None,
        (false, false) => Some(Assessment::blocked(
            why,
            comparison.held_hint(desired.packages.manager),
        )),
        (false, true) => Some(Assessment::needs(
            why,
            install(&driver.packages, Vec::new()),
        )),
    }
}

/// Assesses a driver that was installed without packages: it is kept, is replaced or blocks the step. Driver packages are
/// never installed in addition to it.
fn foreign(driver: &DriverSpec, state: &DriverPackagesState) -> Option<Assessment> {
    let found = &state.found;
    let replaces = driver.existing == Existing::Replace;
    if found.origin == Some(Origin::Runfile) && replaces && !state.uninstaller {
        return None;
    }
    let origin = installed(found.origin?)?;
    let version = version(found);
    let version_text =
        version.map_or_else(|| "of unknown version".to_owned(), DriverVersion::to_string);
    if driver.existing == Existing::Keep {
        let why_not = match (version, &state.unfit) {
            (Some(_), None) => None,
            (Some(_), Some(why)) => Some(format!(" and cannot be kept: {why}")),
            (None, _) => Some(" and cannot be kept".to_owned()),
        };
        return Some(match why_not {
            None => Assessment::satisfied(format!(
                "driver {version_text} was installed {origin} and is kept"
            )),
            Some(why_not) => Assessment::blocked(
                format!("driver {version_text} was installed {origin}{why_not}"),
                "set `driver.existing = \"replace\"`; if the driver is part of the image, use a different image",
            ),
        });
    }
    if replaces && found.origin == Some(Origin::Runfile) {
        let mut changes = vec![Change::RunTool {
            purpose: "remove the driver of the NVIDIA installer".into(),
            command: vec![RUNFILE_UNINSTALLER.into(), "--silent".into()],
            writes: Vec::new(),
            repeated: false,
        }];
        changes.extend(install(&driver.packages, Vec::new()));
        return Some(Assessment::needs(
            format!("driver {version_text} was installed {origin} and must be replaced"),
            changes,
        ));
    }
    Some(Assessment::blocked(
        format!("driver {version_text} was installed {origin}"),
        "set `driver.existing = \"keep\"` to keep it, or `\"replace\"` to remove it and install \
         packages (not possible if the driver is part of the image)",
    ))
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    if let Some(owner) = owner(cx.host.files(), cx.facts)?
        && let Some(blocked) = of_others(&owner, cx.desired, cx.state.ours())
    {
        return Ok(blocked);
    }
    Ok(decide(&detect(cx).await?, cx.desired))
}

/// Blocks changes to a driver that another program manages, unless `driver.existing` permits them, gpu-bootstrap has
/// already installed packages, or the machine becomes an image.
fn of_others(owner: &Owner, desired: &Desired, ours: &Ours) -> Option<Assessment> {
    let driver = desired.driver.as_ref()?;
    let is_ours = !ours.packages.is_empty();
    if driver.existing != Existing::Refuse || is_ours || desired.image {
        return None;
    }
    let hint = format!(
        "set `driver.existing = \"keep\"` to keep its driver, or `\"replace\"` to replace it. To change the driver with \
         its management tool: {}",
        owner.remedy
    );
    let Owner {
        name,
        evidence,
        why,
        ..
    } = owner;
    Some(Assessment::blocked(
        format!("{name} manages the driver ({evidence}): {why}"),
        hint,
    ))
}

#[cfg(test)]
mod tests {
    use super::{DriverPackagesState, decide, of_others, unfit};
    use crate::{
        change::Change,
        config::desired::{Desired, Existing},
        fabric::Service,
        facts::detection::Provides,
        state::{FoundDriver, Origin, Ours},
        step::Assessment,
        steps::{
            fixtures::{desired, facts, matrix},
            specs::fixtures::{packages, specs},
        },
    };

    /// Returns the packages that the installation removes.
    fn removed(state: &DriverPackagesState, desired: &Desired) -> Vec<String> {
        let (_, changes) = decide(state, desired).expect_needs();
        let Change::InstallPackages { removing, .. } = &changes[1] else {
            panic!("install")
        };
        removing.clone()
    }

    fn state(installed: &[&str], without: &[&str]) -> DriverPackagesState {
        DriverPackagesState {
            installed: packages(installed),
            kernels_without_module: without.iter().map(ToString::to_string).collect(),
            no_autoinstall: false,
            leaves_module: false,
            build: None,
            found: FoundDriver::default(),
            unfit: None,
            uninstaller: true,
            ours: Ours::default(),
            stream: None,
        }
    }

    const INSTALLED: [&str; 2] = [
        "nvidia-kernel-dkms=535.261.03-1~deb12u1",
        "nvidia-smi=535.261.03-1~deb12u1",
    ];

    #[test]
    fn packages_and_module_are_required_for_each_kernel() {
        let want = desired();
        decide(&state(&[], &[]), &want).expect_needs();
        let (_, changes) = decide(&state(&INSTALLED, &["6.1.0-44-amd64"]), &want).expect_needs();
        assert!(
            matches!(&changes[..], [Change::BuildModule { kernel, .. }] if kernel == "6.1.0-44-amd64")
        );
        decide(&state(&INSTALLED, &[]), &want).expect_satisfied();
        let kernel = ["6.1.0-44-amd64"];
        for (installed, last) in [(&INSTALLED[..1], true), (&INSTALLED[1..], false)] {
            let (_, changes) = decide(&state(installed, &kernel), &want).expect_needs();
            let builds = matches!(changes.last(), Some(Change::BuildModule { .. }));
            assert_eq!(builds, last, "{installed:?}");
        }
        // The administrator disabled builds in package scripts.
        let mut forbidden = state(&[], &kernel);
        forbidden.no_autoinstall = true;
        let (_, changes) = decide(&forbidden, &want).expect_needs();
        assert!(matches!(changes.last(), Some(Change::BuildModule { .. })));
        // The package scripts leave the build to a later change.
        let mut left = state(&[], &kernel);
        left.leaves_module = true;
        let (_, changes) = decide(&left, &want).expect_needs();
        assert!(matches!(
            &changes[..],
            [
                Change::RefreshRepositories,
                Change::InstallPackages { .. },
                Change::BuildModule { .. }
            ]
        ));
        let mut failed = state(&INSTALLED, &["6.1.0-44-amd64"]);
        failed.build = Some("the log says: error".to_owned());
        let (why, _) = decide(&failed, &want).expect_needs();
        assert!(
            why.ends_with("6.1.0-44-amd64; the log says: error"),
            "{why}"
        );
    }

    #[test]
    fn unmanaged_hold_blocks() {
        let held = [
            "nvidia-kernel-dkms!=525.147.05-1",
            "nvidia-smi=535.261.03-1~deb12u1",
        ];
        let (why, hint) = decide(&state(&held, &[]), &desired()).expect_blocked();
        assert!(why.contains("525.147.05") && why.contains("held"), "{why}");
        assert!(hint.contains("unhold"), "{hint}");
    }

    #[test]
    fn other_branch_or_origin_follows_the_policy() {
        let mut want = desired();
        let old = state(
            &["nvidia-smi=470.256.02-1", "libnvidia-ml1=470.256.02-1"],
            &[],
        );
        let (why, hint) = decide(&old, &want).expect_blocked();
        assert!(why.contains("nvidia-smi 470.256.02-1"), "{why}");
        assert!(hint.contains("driver.existing = \"replace\""), "{hint}");
        let mut same_branch = state(&["libnvidia-ml1=535.261.03-1"], &[]);
        decide(&same_branch, &want).expect_needs();
        same_branch.found.origin = Some(Origin::Vendor);
        decide(&same_branch, &want).expect_blocked();
        want.driver.as_mut().expect("a driver").existing = Existing::Replace;
        assert_eq!(removed(&old, &want), ["libnvidia-ml1", "nvidia-smi"]);
    }

    #[test]
    fn stream_is_enabled_before_replacement() {
        let mut want = desired();
        let driver = want.driver.as_mut().expect("a driver");
        (driver.existing, driver.stream) =
            (Existing::Replace, Some("nvidia-driver:535-open".into()));
        let mut old = state(
            &["nvidia-smi=470.256.02-1", "libnvidia-ml1=470.256.02-1"],
            &[],
        );
        old.stream = Some("470-open".into());
        for state in [state(&[], &[]), old] {
            let (_, changes) = decide(&state, &want).expect_needs();
            assert!(
                matches!(
                    &changes[..],
                    [
                        Change::EnableStream { .. },
                        Change::RefreshRepositories,
                        Change::InstallPackages { .. }
                    ]
                ),
                "{changes:?}"
            );
        }
    }

    #[test]
    fn companions_are_added_for_any_package_vendor() {
        let mut want = desired();
        let driver = want.driver.as_mut().expect("a driver");
        (driver.packages).extend(specs(&["nvidia-fabricmanager=535.*"]));
        let mut rebuilt = state(&INSTALLED, &[]);
        rebuilt.found.origin = Some(Origin::Vendor);
        let (why, _) = decide(&rebuilt, &want).expect_needs();
        assert_eq!(why, "nvidia-fabricmanager is not installed");
    }

    #[test]
    fn mismatched_fabric_manager_is_replaced() {
        let mut want = desired();
        let driver = want.driver.as_mut().expect("a driver");
        (driver.packages).extend(specs(&["nvidia-fabricmanager=535.*"]));
        driver.companions.service = Some(Service {
            exact: vec!["nvidia-fabricmanager".into()],
            unit: None,
            modules: vec![],
        });
        let with = |fabric: &str| {
            let mut state = state(&[INSTALLED[0], INSTALLED[1], fabric], &[]);
            state.found.package_version = "535.261.03".parse().ok();
            decide(&state, &want)
        };
        with("nvidia-fabricmanager=535.261.03-1").expect_satisfied();
        let (why, _) = with("nvidia-fabricmanager=535.247.01-1").expect_needs();
        assert!(
            why.contains(
                "nvidia-fabricmanager 535.247.01-1 is installed, but 535.261.03-* is required"
            ),
            "{why}"
        );
        // The administrator holds the fabric manager.
        with("nvidia-fabricmanager!=535.247.01-1").expect_blocked();
    }

    #[test]
    fn separately_versioned_helper_is_not_another_driver() {
        // Debian 13: nvidia-modprobe has a separate source package.
        let mut found = INSTALLED.to_vec();
        found.push("nvidia-modprobe=570.133.07-1");
        found.push("nvidia-settings=550.163.01-1");
        let with_helpers = state(&found, &[]);
        decide(&with_helpers, &desired()).expect_satisfied();
        // A replacement of the driver does not remove the helper.
        let mut want = desired();
        want.driver.as_mut().expect("a driver").existing = Existing::Replace;
        let old = state(
            &["libnvidia-ml1=470.256.02-1", "nvidia-modprobe=570.133.07-1"],
            &[],
        );
        assert_eq!(removed(&old, &want), ["libnvidia-ml1"]);
    }

    #[test]
    fn driver_without_packages_follows_the_policy() {
        let mut want = desired();
        let mut empty = state(&[], &[]);
        empty.found.origin = Some(Origin::Runfile);
        empty.found.loaded_version = Some("535.104.05".parse().expect("a version"));
        let (_, hint) = decide(&empty, &want).expect_blocked();
        assert!(hint.contains("driver.existing"), "{hint}");

        want.driver.as_mut().expect("a driver").existing = Existing::Keep;
        decide(&empty, &want).expect_satisfied();
        // A different branch is also kept if it supports the GPUs.
        let mut facts = facts();
        let mut keep = |version: &str, kernel: &str| {
            facts.kernel.running = kernel.parse().ok();
            empty.found.loaded_version = Some(version.parse().expect("a version"));
            empty.unfit = unfit(&matrix(), &facts, &empty.found);
            decide(&empty, &want)
        };
        keep("570.211.01", "6.17.0-1001-aws").expect_satisfied();
        // It is already built for this kernel, although a new build would need patches.
        keep("550.163.01", "6.17.1").expect_satisfied();
        let (why, _) = keep("470.256.02", "6.17.0-1001-aws").expect_blocked();
        assert!(
            why.contains("cannot be kept") && why.contains("H100"),
            "{why}"
        );

        want.driver.as_mut().expect("a driver").existing = Existing::Replace;
        let (_, changes) = decide(&empty, &want).expect_needs();
        assert!(matches!(&changes[0], Change::RunTool { .. }));
        // A missing uninstaller is not run.
        let mut removed = empty.clone();
        removed.uninstaller = false;
        let (_, changes) = decide(&removed, &want).expect_needs();
        assert!(matches!(&changes[0], Change::RefreshRepositories));
        empty.found.origin = Some(Origin::Preinstalled);
        decide(&empty, &want).expect_blocked();
    }

    #[test]
    fn managed_driver_is_changed_only_if_configured() {
        let owner = crate::state::Owner {
            name: "NVIDIA DGX OS",
            evidence: "7.5.0".to_owned(),
            provides: Provides::default(),
            on_host: false,
            why: "one set",
            remedy: "upgrade the set",
        };
        let want = desired();
        let Some(Assessment::Blocked { why, hint }) = of_others(&owner, &want, &Ours::default())
        else {
            panic!("the change is not configured");
        };
        assert!(
            why.contains("DGX OS") && hint.contains("driver.existing"),
            "{why}: {hint}"
        );
        for existing in [Existing::Keep, Existing::Replace] {
            let mut asked = want.clone();
            asked.driver.as_mut().expect("a driver").existing = existing;
            assert_eq!(of_others(&owner, &asked, &Ours::default()), None);
        }
        let mut ours = Ours::default();
        ours.packages.insert("nvidia-open".to_owned());
        assert_eq!(of_others(&owner, &want, &ours), None);
    }
}
