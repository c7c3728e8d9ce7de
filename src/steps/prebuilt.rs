//! `driver.prebuilt`: before DKMS compiles the driver modules, it tries to fetch modules that another machine compiled for
//! the same kernel and driver. The step writes `/etc/dkms/MODULE.conf`, which makes DKMS run gpu-bootstrap for this. The
//! file stays after the run, so that later kernels also get precompiled modules.
//!
//! With `driver.prebuilt.only`, nothing is compiled: the step instead builds a package for each kernel, which `driver.packages`
//! installs together with the driver.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    DRIVER_PREBUILT, PREFLIGHT, REPOSITORIES, messages, packages, program,
    specs::{InstalledPackages, compare},
};
use crate::{
    change::{Change, Lock},
    config::{
        desired::{Desired, DriverSpec, PackageSpec, Prebuilt},
        kernel::{prebuilt_of, prebuilt_prefix},
    },
    dkms,
    host::{FilesError, ReadFiles},
    model::{
        gpu::Flavor,
        version::{DriverVersion, KernelVersion},
    },
    modules::{
        built,
        package::{PackageBuild, path_of, version_of},
    },
    step::{Assessment, Cx, Step, StepError},
    tools::{
        packages::{Builder, HEADER},
        prebuilt,
    },
};

/// The `driver.prebuilt` step.
pub(super) fn step() -> Step {
    Step::new(DRIVER_PREBUILT, |cx| Box::pin(assess(cx)))
        // A package has the version of the driver in the repositories.
        .after([PREFLIGHT, REPOSITORIES])
        .locks([Lock::Modules])
        .wants(|change, desired| {
            let Some(driver) = &desired.driver else {
                return true;
            };
            driver.prebuilt.is_some()
                && match change {
                    Change::BuildPackage { build } => {
                        driver.prebuilt_instead_of.is_some() && build.flavor == driver.flavor
                    }
                    _ => driver.prebuilt_instead_of.is_none(),
                }
        })
}

/// Returns the files that make DKMS start gpu-bootstrap, each with the path of the program in it.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn override_starts(
    files: &dyn ReadFiles,
) -> Result<Vec<(Utf8PathBuf, Utf8PathBuf)>, FilesError> {
    let mut found = Vec::new();
    for name in files.list(dkms::OVERRIDES.into())? {
        if !name.ends_with(".conf") {
            continue;
        }
        let file = Utf8Path::new(dkms::OVERRIDES).join(name);
        let text = files.read_lossy(&file)?.unwrap_or_default();
        let program = dkms::program_of_override(&text).map(Utf8Path::to_owned);
        found.extend(program.map(|program| (file, program)));
    }
    Ok(found)
}

#[derive(Debug, Clone)]
struct PrebuiltState {
    /// The content of `/etc/dkms/MODULE.conf`.
    content: Option<String>,
    /// The gpu-bootstrap executable that DKMS should run, or the reason that it must not be used.
    program: Result<Utf8PathBuf, String>,
    /// The last line that gpu-bootstrap printed during the DKMS build for the running kernel.
    said: Option<String>,
}

/// Returns the arguments of gpu-bootstrap, without those that depend on the build ([`dkms::override_text`] adds them).
fn words_of(driver: &DriverSpec, spec: &Prebuilt) -> Vec<String> {
    let fixed =
        (dkms::FETCH.split(' ').map(str::to_owned)).chain([format!("--flavor={}", driver.flavor)]);
    let sources = spec
        .sources
        .iter()
        .map(|source| format!("--source={source}"));
    let keys = spec
        .public_keys
        .iter()
        .map(|key| format!("--public-key={key}"));
    let not_before = spec.not_before.map(|time| format!("--not-before={time}"));
    (fixed.chain(sources))
        .chain(keys)
        .chain(not_before)
        .collect()
}

fn detect(cx: &Cx<'_>, module: &str) -> Result<PrebuiltState, StepError> {
    let files = cx.host.files();
    let content = files.read_text(&dkms::override_path(module))?;
    let named = content.as_deref().and_then(dkms::program_of_override);
    let program = program::named_or_persistent(cx, named)?;
    let running = cx.facts.kernel.running.as_ref().map(ToString::to_string);
    let mut said = None;
    for build in dkms::builds(files)? {
        if build.module == module && Some(&build.kernel) == running.as_ref() {
            let log = files.read_lossy(&build.log())?.unwrap_or_default();
            said = prebuilt::said(&log).last().map(str::to_owned);
        }
    }
    Ok(PrebuiltState {
        content,
        program,
        said,
    })
}

fn decide(state: &PrebuiltState, module: &str, driver: &DriverSpec, spec: &Prebuilt) -> Assessment {
    let path = dkms::override_path(module);
    if state
        .content
        .as_ref()
        .is_some_and(|text| !text.starts_with(HEADER))
    {
        return Assessment::blocked(
            format!("`{path}` exists, but was not created by gpu-bootstrap"),
            format!(
                "move its content to `/etc/dkms/{module}-VERSION.conf`, which DKMS reads after it, or do not set \
                 `driver.prebuilt.sources`"
            ),
        );
    }
    let program = match &state.program {
        Ok(program) => program,
        Err(why) => return program::not_persistent(why, path.as_str()),
    };
    let sources = spec.sources.join(", ");
    let content = format!(
        "{HEADER}{}",
        dkms::override_text(program, &words_of(driver, spec))
    );
    if state.content.as_ref() == Some(&content) {
        let last = state
            .said
            .as_deref()
            .map(|last| format!("; last build for this kernel: {last}"))
            .unwrap_or_default();
        return Assessment::satisfied(format!(
            "DKMS fetches modules from {sources} before compiling{last}"
        ));
    }
    Assessment::needs(
        format!("DKMS does not fetch modules from {sources} yet"),
        vec![Change::write(path, content)],
    )
}

#[derive(Debug, Clone, Default)]
struct PackagesState {
    installed: InstalledPackages,
    /// The versions of the package files, by package.
    built: BTreeMap<String, String>,
    /// The available versions of the DKMS package, the preferred one first. Empty without package lists.
    offered: Vec<String>,
    /// `ID` in os-release, and the output of `uname -m`. `None` if one of them is unknown.
    machine: Option<(String, String)>,
    /// DKMS has built modules of the driver.
    has_builds: bool,
    /// The reason if the settings of this machine prevent the installation of built packages.
    forbidden: Option<String>,
}

/// Returns the required packages with prebuilt modules, with their kernels.
fn required(driver: &DriverSpec) -> impl Iterator<Item = (&PackageSpec, &str)> {
    (driver.packages.iter()).filter_map(|spec| Some((spec, prebuilt_of(&spec.name)?.1)))
}

async fn detect_packages(
    cx: &Cx<'_>,
    driver: &DriverSpec,
    replaced: &str,
) -> Result<PackagesState, StepError> {
    let files = cx.host.files();
    let installed = packages::installed(cx).await?;
    let mut built_versions = BTreeMap::new();
    let mut offered = Vec::new();
    let mut forbidden = None;
    if let Some(builder) = packages::backend(cx).builder() {
        forbidden = builder.forbidden(files)?;
        for (spec, _) in required(driver) {
            // The file of an installed package is not needed now.
            if is_met(cx.desired, spec, &installed) {
                continue;
            }
            let version = version_of(files, builder, &path_of(builder, &spec.name))?;
            built_versions.extend(version.map(|version| (spec.name.clone(), version)));
        }
    }
    // Without a file, the version is not compared.
    if !built_versions.is_empty() && packages::has_lists(cx)? {
        let mut offers = packages::versions_of_all_streams(cx, &[replaced]).await?;
        offered = offers.remove(replaced).unwrap_or_default();
    }
    let os = cx.facts.os.as_ref().map(|os| os.id.clone());
    Ok(PackagesState {
        installed,
        built: built_versions,
        offered,
        machine: os.zip(cx.facts.kernel.arch.clone()),
        has_builds: !built(files)?.is_empty(),
        forbidden,
    })
}

fn is_met(desired: &Desired, spec: &PackageSpec, installed: &InstalledPackages) -> bool {
    let specs = std::slice::from_ref(spec);
    compare(desired.packages.manager, specs, installed).all_met()
}

/// Returns the version of the DKMS package that a package with modules must have: the version of the installed driver packages,
/// or else the required one. The driver may be held at a version that the repositories no longer contain.
fn version_to_build(
    spec: &PackageSpec,
    driver: &DriverSpec,
    desired: &Desired,
    installed: &InstalledPackages,
) -> Option<String> {
    let of_driver = (driver.packages.iter())
        .filter(|one| one.version == spec.version && is_met(desired, one, installed))
        .filter_map(|one| installed.get(&one.name))
        .find_map(|package| DriverVersion::from_package(&package.version).ok());
    of_driver.map_or_else(
        || spec.version.clone(),
        |version| Some(format!("{version}-*")),
    )
}

/// Whether the file of a package has the version that the transaction of the driver needs: the preferred available one. If the
/// repositories do not offer it, such as the version of a held driver, any file with a matching version.
fn is_built(
    spec: &PackageSpec,
    state: &PackagesState,
    driver: &DriverSpec,
    desired: &Desired,
) -> bool {
    let backend = desired.packages.manager.backend();
    let required = version_to_build(spec, driver, desired, &state.installed);
    let matches = |version: &str| backend.matches(required.as_deref().unwrap_or("*"), version);
    let candidate = state.offered.first().filter(|version| matches(version));
    let fitting = state.offered.iter().filter(|version| matches(version));
    // The other versions have the order of the package manager's output.
    let next = candidate.or_else(|| fitting.max_by(|a, b| backend.compare(a, b)));
    (state.built.get(&spec.name))
        .is_some_and(|built| matches(built) && next.is_none_or(|next| next == built))
}

fn decide_packages(
    state: &PackagesState,
    driver: &DriverSpec,
    replaced: &str,
    prebuilt: &Prebuilt,
    desired: &Desired,
) -> Assessment {
    let backend = desired.packages.manager.backend();
    let Some(builder) = backend.builder() else {
        return Assessment::not_applicable("the package manager cannot install built packages");
    };
    let missing: Vec<(&PackageSpec, &str)> = required(driver)
        .filter(|(spec, _)| !is_met(desired, spec, &state.installed))
        .collect();
    let names = |all: &[(&PackageSpec, &str)]| {
        let names: Vec<&str> = all.iter().map(|(spec, _)| spec.name.as_str()).collect();
        names.join(", ")
    };
    if missing.is_empty() {
        let all: Vec<(&PackageSpec, &str)> = required(driver).collect();
        return match all[..] {
            [] => Assessment::not_applicable("the kernels of this machine are unknown"),
            _ => Assessment::satisfied(format!("installed: {}", names(&all))),
        };
    }
    if let Some(why) = &state.forbidden {
        return Assessment::blocked(
            why.clone(),
            "remove `driver.prebuilt.only`, so that this machine compiles the modules",
        );
    }
    if state.has_builds {
        return Assessment::blocked(
            format!(
                "DKMS has built driver modules on this machine, which {} would replace",
                names(&missing)
            ),
            "run `gpu-bootstrap uninstall` and remove other DKMS packages of the driver first, or remove \
             `driver.prebuilt.only`",
        );
    }
    let unbuilt: Vec<(&PackageSpec, &str)> = (missing.iter().copied())
        .filter(|(spec, _)| !is_built(spec, state, driver, desired))
        .collect();
    if unbuilt.is_empty() {
        return Assessment::satisfied(format!("built: {}", names(&missing)));
    }
    let Some((distribution, architecture)) = &state.machine else {
        return Assessment::blocked(
            "the operating system or the architecture is unknown",
            "remove `driver.prebuilt.only`",
        );
    };
    let mut changes = vec![Change::RefreshRepositories];
    for (spec, kernel) in &unbuilt {
        let Some((name, kernel)) = named(builder, driver.flavor, kernel) else {
            return Assessment::blocked(
                format!("the name of kernel {kernel} cannot be part of a package name"),
                "remove `driver.prebuilt.only`",
            );
        };
        let is_of_other_kernel =
            |name: &&String| prebuilt_of(name).is_some_and(|(flavor, _)| flavor == driver.flavor);
        let build = PackageBuild {
            path: path_of(builder, &name),
            name,
            kernel,
            distribution: distribution.clone(),
            architecture: architecture.clone(),
            flavor: driver.flavor,
            module: driver.module.clone(),
            instead_of: PackageSpec {
                name: replaced.to_owned(),
                version: version_to_build(spec, driver, desired, &state.installed),
            },
            like: (state.installed.keys())
                .filter(is_of_other_kernel)
                .cloned()
                .collect(),
            prebuilt: prebuilt.clone(),
        };
        changes.push(Change::BuildPackage { build });
    }
    Assessment::needs(
        format!(
            "not built yet: {} from {}, instead of {replaced}, kernel headers and a compiler",
            names(&unbuilt),
            prebuilt.sources.join(", ")
        ),
        changes,
    )
}

fn named(builder: &dyn Builder, flavor: Flavor, kernel: &str) -> Option<(String, KernelVersion)> {
    let name = builder.name(prebuilt_prefix(flavor), kernel)?;
    Some((name, kernel.parse().ok()?))
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let Some(driver) = &cx.desired.driver else {
        return Ok(messages::no_driver());
    };
    if let (Some(replaced), Some(spec)) = (&driver.prebuilt_instead_of, &driver.prebuilt) {
        let state = detect_packages(cx, driver, replaced).await?;
        return Ok(decide_packages(&state, driver, replaced, spec, cx.desired));
    }
    let Some(module) = &driver.compiled_as else {
        return Ok(Assessment::not_applicable(
            "the vendor provides compiled kernel modules",
        ));
    };
    let Some(spec) = &driver.prebuilt else {
        return Ok(Assessment::not_applicable(
            "`driver.prebuilt.sources` is not set",
        ));
    };
    Ok(decide(&detect(cx, module)?, module, driver, spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::desired::Desired,
        host::fake,
        steps::{
            fixtures,
            specs::fixtures::{packages as installed_packages, specs},
        },
    };

    const SOURCE: &str = "https://modules.example/gpu";

    fn wanted() -> Desired {
        let mut want = fixtures::desired();
        let driver = want.driver.as_mut().expect("a driver");
        driver.compiled_as = Some("nvidia".to_owned());
        driver.prebuilt = Some(Prebuilt {
            sources: vec![SOURCE.to_owned(), "/srv/modules".to_owned()],
            public_keys: vec!["RWQ".to_owned()],
            not_before: Some(jiff::Timestamp::UNIX_EPOCH),
        });
        want
    }

    fn state(content: Option<&str>) -> PrebuiltState {
        PrebuiltState {
            content: content.map(str::to_owned),
            program: Ok("/usr/local/bin/gpu-bootstrap".into()),
            said: None,
        }
    }

    fn answer(state: &PrebuiltState, want: &Desired) -> Assessment {
        let driver = want.driver.as_ref().expect("a driver");
        decide(
            state,
            "nvidia",
            driver,
            driver.prebuilt.as_ref().expect("a spec"),
        )
    }

    fn written(want: &Desired) -> String {
        let Assessment::Needs { changes, .. } = answer(&state(None), want) else {
            panic!("no file exists yet");
        };
        match &changes[..] {
            [
                Change::WriteFile {
                    path,
                    content,
                    mode: 0o644,
                    ..
                },
            ] if path == "/etc/dkms/nvidia.conf" => content.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dkms_sources_are_configured_once() {
        let mut want = wanted();
        let content = written(&want);
        assert!(content.starts_with(HEADER), "{content}");
        let words = format!(
            "--source={SOURCE} --source=/srv/modules --public-key=RWQ --not-before=1970-01-01T00:00:00Z \
             --driver=$PACKAGE_VERSION"
        );
        assert!(content.contains(&words), "{content}");
        let mut there = state(Some(&content));
        there.said = Some("took nvidia from /srv/modules".to_owned());
        let Assessment::Satisfied { why } = answer(&there, &want) else {
            panic!("it is already configured");
        };
        assert!(
            why.ends_with("last build for this kernel: took nvidia from /srv/modules"),
            "{why}"
        );
        // Different sources change the file.
        want.driver
            .as_mut()
            .and_then(|driver| driver.prebuilt.as_mut())
            .expect("a spec")
            .sources
            .pop();
        assert_ne!(written(&want), content);
        assert!(matches!(answer(&there, &want), Assessment::Needs { .. }));
    }

    #[test]
    fn last_build_output_matches_kernel_and_driver() {
        let (host, fakes) = fake::host();
        for (module, kernel, entry) in [
            ("nvidia", "6.1.0-44-amd64", "took nvidia from /srv/modules"),
            ("nvidia", "6.1.0-45-amd64", "found none for 6.1.0-45-amd64"),
            ("zfs", "6.1.0-44-amd64", "knows no zfs"),
        ] {
            let directory = format!("/var/lib/dkms/{module}/535.261.03/{kernel}/x86_64");
            let file = format!("{directory}/module/{module}.ko");
            fakes.files.put(&file, "a module");
            let log = format!("a compiler\n{}{entry}\n", prebuilt::SAYS);
            fakes.files.put(&format!("{directory}/log/make.log"), log);
        }
        let (facts, want) = (fixtures::facts(), wanted());
        let state = fixtures::state(&host, facts.clone());
        let cx = fixtures::cx(&host, &facts, &state, &want);
        let found = detect(&cx, "nvidia").expect("readable");
        assert_eq!(found.said.as_deref(), Some("took nvidia from /srv/modules"));
    }

    #[test]
    fn file_is_obsolete_without_sources() {
        let mut want = wanted();
        assert!((step().wants)(&Change::RepairPackages, &want));
        want.driver.as_mut().expect("a driver").prebuilt = None;
        assert!(!(step().wants)(&Change::RepairPackages, &want));
    }

    #[test]
    fn package_file_of_other_flavor_is_obsolete() {
        let (_, changes) = packages_answer(&[], &[], false).expect_needs();
        let build = changes.last().expect("a change");
        let mut want = wanted();
        let driver = want.driver.as_mut().expect("a driver");
        driver.prebuilt_instead_of = Some("nvidia-kernel-dkms".to_owned());
        driver.flavor = Flavor::Proprietary;
        assert!((step().wants)(build, &want));
        want.driver.as_mut().expect("a driver").flavor = Flavor::Open;
        assert!(!(step().wants)(build, &want));
    }

    const PACKAGE: &str = "nvidia-prebuilt-modules-6.1.0-44-amd64";

    fn packages_answer(installed: &[&str], built: &[(&str, &str)], has_builds: bool) -> Assessment {
        let mut want = wanted();
        let driver = want.driver.as_mut().expect("a driver");
        driver.flavor = Flavor::Proprietary;
        driver.compiled_as = None;
        driver.prebuilt_instead_of = Some("nvidia-kernel-dkms".to_owned());
        driver.packages = specs(&["nvidia-smi=535.*", &format!("{PACKAGE}=535.*")]);
        let built = built
            .iter()
            .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
        let state = PackagesState {
            installed: installed_packages(installed),
            built: built.collect(),
            offered: ["580.1-1", "535.216.01-1", "535.261.03-1"]
                .map(str::to_owned)
                .into(),
            machine: Some(("debian".to_owned(), "x86_64".to_owned())),
            has_builds,
            forbidden: None,
        };
        let driver = want.driver.as_ref().expect("a driver");
        let spec = driver.prebuilt.as_ref().expect("a spec");
        decide_packages(&state, driver, "nvidia-kernel-dkms", spec, &want)
    }

    #[test]
    fn package_is_built_for_each_kernel_without_one() {
        let version_to_build = |installed: &[&str], built: &[(&str, &str)]| {
            let (why, changes) = packages_answer(installed, built, false).expect_needs();
            assert!(why.contains("instead of nvidia-kernel-dkms"), "{why}");
            match &changes[..] {
                [Change::RefreshRepositories, Change::BuildPackage { build }] => {
                    assert_eq!(build.name, PACKAGE);
                    assert_eq!(build.instead_of.name, "nvidia-kernel-dkms");
                    build.instead_of.version.clone().unwrap_or_default()
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(version_to_build(&[], &[]), "535.*");
        assert_eq!(version_to_build(&[], &[(PACKAGE, "530.1-1")]), "535.*");
        // The repository has a newer driver than at the time of the build.
        let old = [(PACKAGE, "535.216.01-1")];
        assert_eq!(version_to_build(&[], &old), "535.*");
        // A package of the other flavor does not count.
        let other = ["nvidia-prebuilt-modules-open-6.1.0-44-amd64=535.261.03-1"];
        assert_eq!(version_to_build(&other, &[]), "535.*");
        // The installed driver may be held at a version that is no longer available.
        let driver = ["nvidia-smi=535.247.01-1~deb12u1"];
        assert_eq!(version_to_build(&driver, &[]), "535.247.01-*");
        packages_answer(&driver, &[(PACKAGE, "535.247.01-1")], false).expect_satisfied();
        packages_answer(&[], &[(PACKAGE, "535.261.03-1")], false).expect_satisfied();
        packages_answer(&[&format!("{PACKAGE}=535.261.03-1")], &[], false).expect_satisfied();
        let (why, hint) = packages_answer(&[], &[], true).expect_blocked();
        assert!(why.contains("DKMS has built"), "{why}");
        assert!(hint.contains("gpu-bootstrap uninstall"), "{hint}");
    }

    #[test]
    fn replaceable_executable_blocks() {
        let mut there = state(None);
        there.program = Err("`/tmp/gpu-bootstrap` may be emptied".to_owned());
        let refused = answer(&there, &wanted());
        assert!(
            matches!(refused, Assessment::Blocked { why, .. } if why.contains("/etc/dkms/nvidia.conf"))
        );
    }

    #[test]
    fn unmanaged_file_is_kept() {
        let answer = answer(&state(Some("BUILD_DEPENDS[0]=x\n")), &wanted());
        assert!(
            matches!(answer, Assessment::Blocked { why, .. } if why.contains("/etc/dkms/nvidia.conf"))
        );
    }
}
