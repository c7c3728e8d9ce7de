//! Package checks: all driver packages must be configured, have the same version and be from the same vendor. Other NVIDIA
//! packages must have security fixes, and the package sources must be usable.

use std::collections::BTreeMap;

use super::{
    messages::{self, MOST_NAMES},
    module_build,
};
use crate::{
    check::{Family, Finding, INSTALL, REBOOT, Subject, Verdict},
    compat::{matrix::Matrix, security},
    config::{
        desired::Purpose,
        profile::{OwnArchives, Profile},
    },
    facts::Os,
    host::ReadFiles,
    model::{
        fault::Fault,
        id::Id,
        text::{counted, shell_word},
        version::DriverVersion,
    },
    runtimes,
    state::{DriverPart, Origin, owner},
    step::StepError,
    tools::packages::{Impact, Manager, Package, SourceEntry, locks},
};

const CONSISTENCY: Id = Id::new("os.pkg.consistency");
const SECURITY: Id = Id::new("rt.pkg.security");
const SOURCES: Id = Id::new("os.pkg.sources");

/// The package checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![CONSISTENCY, SECURITY, SOURCES],
    examine: |subject| Box::pin(examine(subject)),
};

#[derive(Debug, Clone)]
struct PackagesState {
    parts: Result<Vec<DriverPart>, String>,
    /// Files of the NVIDIA `.run` installer exist.
    runfile: bool,
    /// `None` if the packages must not be changed on this machine, because the driver belongs to the host of a container or to
    /// another program.
    manager: Option<Manager>,
    /// The version of the loaded module.
    loaded: Option<DriverVersion>,
    /// A lock file contains the versions.
    is_locked: bool,
}

async fn detect(subject: &Subject<'_>) -> Result<PackagesState, StepError> {
    let (files, os) = (subject.host.files(), subject.facts.os.as_ref());
    let is_ours = subject.facts.container().is_none()
        && owner(files, subject.facts)
            .map_err(StepError::from)?
            .is_none();
    let driver = subject.state.driver().await;
    Ok(PackagesState {
        parts: subject.state.driver_parts().await,
        runfile: driver.origin == Some(Origin::Runfile),
        manager: messages::manager(files, os)?.filter(|_| is_ours),
        loaded: driver.loaded_version.clone(),
        is_locked: subject
            .desired
            .is_some_and(|desired| desired.packages.guard.lock.is_some()),
    })
}

/// Returns the command that upgrades the older packages to the newest installed version, in one transaction. `None` if a package
/// has its version or branch in its name, so that no version of it belongs to the newer packages.
fn in_one_version(
    versions: &BTreeMap<&DriverVersion, Vec<&str>>,
    manager: Option<Manager>,
) -> Option<String> {
    let (newest, _) = versions.last_key_value()?;
    let mut names = Vec::new();
    for (version, older) in versions.iter().filter(|(version, _)| *version != newest) {
        let branch = version.branch();
        let is_named = |name: &&str| match branch == newest.branch() {
            true => name.contains(&version.to_string()),
            false => name.split('-').any(|word| word == branch.to_string()),
        };
        if older.iter().any(is_named) {
            return None;
        }
        names.extend(older);
    }
    let commands = manager?.backend().commands();
    (names.len() <= MOST_NAMES).then(|| commands.install_versions(&names, &newest.to_string()))
}

/// The variant of a Debian package that can be installed in parallel with the current driver, such as `tesla-470` and
/// `legacy-390xx`. Empty for all other packages.
fn variant(name: &str) -> &str {
    for word in ["tesla-", "legacy-"] {
        if let Some(at) = name.find(word) {
            let rest = &name[at..];
            let end = rest[word.len()..]
                .find('-')
                .map_or(rest.len(), |end| word.len() + end);
            return &rest[..end];
        }
    }
    ""
}

fn list(names: &[&str]) -> String {
    match names {
        [one, other, third, rest @ ..] if !rest.is_empty() => {
            format!("{one}, {other}, {third} and {} more", rest.len())
        }
        names => names.join(", "),
    }
}

fn decide(state: &PackagesState) -> Finding {
    let finding = |status, why: String| Finding::new(CONSISTENCY, status, why);
    let parts: &[DriverPart] = match &state.parts {
        Ok(parts) => parts,
        // The NVIDIA installer is detected without a database.
        Err(_) if state.runfile => &[],
        Err(why) => return finding(Verdict::Unknown, why.clone()),
    };
    let mut variants: BTreeMap<&str, BTreeMap<&DriverVersion, Vec<&str>>> = BTreeMap::new();
    for part in parts {
        let versions = variants.entry(variant(&part.name)).or_default();
        versions.entry(&part.version).or_default().push(&part.name);
    }
    if let Some(versions) = variants.values().find(|versions| versions.len() > 1) {
        let told: Vec<String> = versions
            .iter()
            .map(|(version, names)| format!("{version} ({})", list(names)))
            .collect();
        let newest = versions.keys().next_back();
        return Finding {
            observed: Some(
                (versions.keys())
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
            expected: (newest.filter(|_| !state.is_locked))
                .map(|version| format!("only {version}")),
            remedy: Some(match in_one_version(versions, state.manager) {
                _ if state.is_locked => {
                    format!("run `{INSTALL}`, which installs the versions of the lock file")
                }
                Some(command) if newest.copied() == state.loaded.as_ref() => format!(
                    "run `{command}`: it brings all driver packages to the version of the loaded module in one transaction"
                ),
                Some(command) => format!(
                    "run `{command} && {REBOOT}`: it brings all driver packages to one version in one transaction; the reboot \
                     loads the new module, and stops all workloads"
                ),
                None => format!(
                    "upgrade all driver packages to {} in one transaction, or remove the packages of the other version",
                    newest.map_or_else(|| "one version".to_owned(), ToString::to_string)
                ),
            }),
            ..finding(
                Verdict::Fail,
                format!(
                    "the driver packages have different versions: {}",
                    told.join("; ")
                ),
            )
        };
    }
    // Some distributions, such as AlmaLinux, sign the modules themselves and use NVIDIA's other packages.
    let of = |vendor: bool| -> Vec<&str> {
        (parts.iter())
            .filter(|part| part.by_vendor == Some(vendor) && !part.name.contains("kmod"))
            .map(|part| part.name.as_str())
            .collect()
    };
    let (vendor, distribution) = (of(true), of(false));
    if state.runfile {
        let why = match parts.first() {
            Some(part) => format!(
                "the driver is installed twice, by the NVIDIA `.run` installer and by the packages of {}; \
                 an upgrade of one overwrites the other",
                part.version
            ),
            None => {
                "the driver was installed by the NVIDIA `.run` installer, so the package manager \
                     does not update it with the kernel"
                    .to_owned()
            }
        };
        return Finding {
            observed: Some("nvidia-uninstall".to_owned()),
            expected: Some("packages only".to_owned()),
            remedy: Some(
                // `install` may not support this machine.
                "schedule maintenance: run `nvidia-uninstall` to remove the driver, then install it from packages".to_owned(),
            ),
            ..finding(Verdict::Warn, why)
        };
    }
    if !vendor.is_empty() && !distribution.is_empty() {
        return Finding {
            observed: Some("two vendors".to_owned()),
            expected: Some("one vendor".to_owned()),
            remedy: Some(
                "remove the packages of one vendor and pin the repository of the other".to_owned(),
            ),
            ..finding(
                Verdict::Warn,
                format!(
                    "NVIDIA packages ({}) and distribution packages ({}) are mixed",
                    list(&vendor),
                    list(&distribution)
                ),
            )
        };
    }
    match variants.iter().next() {
        None => finding(Verdict::Skip, "no driver package is installed".to_owned()),
        Some(_) => {
            let told: Vec<String> = (variants.values())
                .filter_map(|versions| versions.keys().next())
                .map(ToString::to_string)
                .collect();
            finding(
                Verdict::Pass,
                format!(
                    "{}, version {}",
                    counted(parts.len(), "package"),
                    told.join(", ")
                ),
            )
        }
    }
}

/// Compares packages other than the driver with NVIDIA's security bulletins. `installed` contains names and versions.
fn secure(matrix: &Matrix, installed: Result<Vec<(String, String)>, String>) -> Finding {
    let finding = |status, why: String| Finding::new(SECURITY, status, why);
    let installed = match installed {
        Ok(installed) => installed,
        Err(why) => return finding(Verdict::Unknown, why),
    };
    let told: Vec<String> = (installed.iter())
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let lacking = (installed.iter())
        .find_map(|(name, version)| Some((name, security::of_package(matrix, name, version)?)));
    match lacking {
        Some((name, lacking)) => Finding {
            observed: Some(told.join(", ")),
            expected: Some(format!("{name} {} or newer", lacking.first_fixed)),
            remedy: Some(format!(
                "upgrade `{name}` and the packages built from the same source to {} or newer; `toolkit.version` and holds must allow it",
                lacking.first_fixed
            )),
            links: vec![lacking.link],
            brief: Some(lacking.brief),
            ..finding(Verdict::Warn, lacking.why)
        },
        None if told.is_empty() => finding(
            Verdict::Skip,
            "no package with security bulletins is installed".to_owned(),
        ),
        None => finding(
            Verdict::Pass,
            format!(
                "no security bulletin requires a newer version: {}",
                told.join(", ")
            ),
        ),
    }
}

/// The path of NVIDIA's CUDA repositories, which contains a directory for each distribution release.
const CUDA_REPOSITORIES: &str = "/compute/cuda/repos/";

/// Returns the first NVIDIA CUDA source whose URL has no distribution directory, because a variable in the URL was empty
/// (NVIDIA/nvidia-container-toolkit issue 402).
fn nowhere(entries: &[SourceEntry]) -> Option<Fault> {
    let entry = (entries.iter().filter(|entry| entry.enabled))
        .find(|entry| entry.uri.ends_with(CUDA_REPOSITORIES.trim_end_matches('/')))?;
    let SourceEntry { file, written, .. } = entry;
    Some(Fault::new(
        format!(
            "`{written}` in `{file}` is not a repository, because it lacks the distribution directory"
        ),
        format!("remove this entry from `{file}`"),
    ))
}

/// Whether two directories of NVIDIA's repositories belong to different distributions. NVIDIA's repositories for one
/// distribution have the same key, but this key may not verify the package lists for another distribution
/// (GoogleCloudPlatform/compute-gpu-installation issue 41).
fn is_of_another_distribution(found: &str, wanted: &str) -> bool {
    let name = |directory: &str| {
        directory
            .trim_end_matches(|c: char| c.is_ascii_digit())
            .to_owned()
    };
    name(found) != name(wanted)
}

/// A source for another distribution release.
struct Foreign {
    fault: Fault,
    /// The source prevents the installation of a driver.
    stops: bool,
}

/// Returns the first source for another distribution release, whose packages are incompatible with this machine.
fn foreign(
    entries: &[SourceEntry],
    os: &Os,
    profiles: &[Profile],
    refresh: &str,
) -> Option<Foreign> {
    let name = os.pretty_name.as_deref().unwrap_or(&os.id);
    let own = Profile::of(profiles, os);
    let others: Vec<&OwnArchives> = (profiles.iter())
        .filter(|other| {
            own.is_some_and(|own| own.name != other.name && own.manager == other.manager)
        })
        .filter_map(|other| other.own_archives.as_ref())
        .collect();
    (entries.iter().filter(|entry| entry.enabled)).find_map(|entry| {
        let SourceEntry {
            file, uri, suite, ..
        } = entry;
        if let Some(archives) = others.iter().find(|archives| archives.contain(uri)) {
            let mut of_file = entries.iter().filter(|other| other.file == *file);
            let is_only = of_file.all(|other| archives.have_drivers(&other.uri));
            return Some(Foreign {
                fault: Fault::new(
                    format!(
                        "`{file}` has {} packages (`{suite}`), which are not made for this machine: {name}",
                        archives.title
                    ),
                    match (is_only, shell_word(file)) {
                        // The package managers ignore files with this suffix.
                        (true, file) => format!("run `mv {file} {file}.disabled && {refresh}`"),
                        _ => format!("remove these entries from `{file}`, then run `{refresh}`"),
                    },
                ),
                stops: archives.have_drivers(uri),
            });
        }
        if let Some((_, rest)) = uri.split_once(CUDA_REPOSITORIES) {
            let found = rest.split('/').next()?;
            let wanted = own?.cuda_directory(os.version_id.as_deref()?)?;
            // Names without a version are not releases, such as `wsl-ubuntu` and `cross-linux-sbsa`.
            let is_release = found.ends_with(|c: char| c.is_ascii_digit());
            let stops = is_of_another_distribution(found, wanted);
            let is_alone = (entries.iter()).all(|other| other.file != *file || other.uri == *uri);
            let why = format!(
                "`{file}` contains the NVIDIA repository `{found}`, but this machine ({name}) needs `{wanted}`"
            );
            return (is_release && found != wanted).then(|| Foreign {
                fault: Fault::new(
                    why,
                    match (is_alone, shell_word(file)) {
                        // The package managers ignore files with this suffix.
                        (true, file) if stops => format!("run `mv {file} {file}.disabled && {refresh}`"),
                        _ => format!("remove this entry from `{file}`, or change it to `{wanted}`"),
                    },
                ),
                stops,
            });
        }
        let (vendor, rest) = runtimes::vendor_repository(uri)?;
        let codename = os.version_codename.as_deref()?;
        (rest.split('/').next()? == os.id && !suite.contains('/') && suite != codename).then(|| {
            let fault = Fault::new(
                format!("`{file}` contains the {vendor} repository for `{suite}`, but this machine is {name} (`{codename}`)"),
                format!("change `{suite}` to `{codename}` in `{file}`"),
            );
            Foreign { fault, stops: false }
        })
    })
}

/// Returns the first source that uses the CentOS mirror list service. It was shut down at the end of CentOS Linux 7
/// (2024-06-30), so dnf and yum fail (error messages: NVIDIA/gpu-operator issues 321 and 379).
fn retired(entries: &[SourceEntry]) -> Option<Fault> {
    let is_of_it = |entry: &&SourceEntry| entry.uri.contains("://mirrorlist.centos.org/");
    let entry = (entries.iter().filter(|entry| entry.enabled)).find(is_of_it)?;
    let file = &entry.file;
    Some(Fault::new(
        format!(
            "`{file}` uses `mirrorlist.centos.org`, which CentOS has shut down, so each installation and update fails"
        ),
        format!(
            "use the archive in `{file}` (`baseurl=http://vault.centos.org/…` instead of `mirrorlist=`), or migrate the \
             machine to a supported system such as AlmaLinux"
        ),
    ))
}

/// Returns the container toolkit sources with an outdated URL.
fn moved(entries: &[SourceEntry]) -> Option<Fault> {
    let old: Vec<(&SourceEntry, &str)> = (entries.iter().filter(|entry| entry.enabled))
        .filter_map(|entry| Some((entry, entry.moved_to()?)))
        .collect();
    let (_, now) = old.first()?;
    let places: Vec<String> = (old.iter())
        .map(|(entry, _)| format!("`{}` has {}", entry.file, entry.written))
        .collect();
    let mut files: Vec<String> = (old.iter())
        .map(|(entry, _)| format!("`{}`", entry.file))
        .collect();
    files.dedup();
    Some(Fault::new(
        format!(
            "the container toolkit repository has a new URL, so updates can fail (NVIDIA no longer publishes packages \
             per distribution): {}",
            places.join("; ")
        ),
        match &files[..] {
            [only] => format!("replace the URL in {only} with `{now}`"),
            [first, others @ ..] => format!(
                "replace the URL in {first} with `{now}`, and remove {}",
                others.join(", ")
            ),
            [] => return None,
        },
    ))
}

/// Returns the sources with repositories that were shut down.
fn shut_down(entries: &[SourceEntry]) -> Option<Fault> {
    let found: Vec<(&SourceEntry, &str)> = (entries.iter().filter(|entry| entry.enabled))
        .filter_map(|entry| Some((entry, entry.shut_down()?)))
        .collect();
    let (_, instead) = found.first()?;
    let mut files: Vec<String> = (found.iter())
        .map(|(entry, _)| format!("`{}`", entry.file))
        .collect();
    files.dedup();
    Some(Fault::new(
        format!(
            "each update fails, because {} uses a repository that was shut down",
            files.join(", ")
        ),
        format!("replace the URL in {} with {instead}", files.join(", ")),
    ))
}

/// Checks for errors in the package sources, for sources of another distribution release, and for outdated URLs. `live`: not a
/// recorded tree, which may lack keys. `installs`: the machine has GPUs but no loaded driver, so a driver must be installed.
fn sources(
    files: &dyn ReadFiles,
    os: Option<&Os>,
    live: bool,
    installs: bool,
) -> Result<Finding, StepError> {
    let finding = |status, why: String| Finding::new(SOURCES, status, why);
    let profiles = messages::profiles()?;
    let mut used = Vec::new();
    for manager in Manager::ALL {
        if manager.backend().is_used_on(files)? {
            used.push(manager);
        }
    }
    let told = !used.is_empty();
    // In a tree without a database, the source files are still checked.
    let managers = match told {
        true => used,
        false => Manager::ALL.to_vec(),
    };
    for manager in managers {
        let backend = manager.backend();
        let mut issues = backend.source_issues(files)?;
        issues.sort_by_key(|issue| issue.impact);
        let entries = backend.entries(files)?;
        let moved = moved(&entries);
        if let Some(first) = issues.first() {
            let mut whys: Vec<&str> = issues.iter().map(|issue| issue.why.as_str()).collect();
            let mut remedy = first.remedy.clone();
            // A new key is not sufficient if the URL of the source is outdated.
            if let Some(moved) = moved.as_ref().filter(|_| first.impact != Impact::All) {
                whys.push(&moved.why);
                remedy = format!("{}; then {remedy}", moved.remedy);
            }
            let (status, impact) = match first.impact {
                Impact::All => (Verdict::Fail, "cannot install or update packages"),
                Impact::Source => (Verdict::Fail, "rejects a repository, so each update fails"),
                Impact::Lacking => (
                    match live {
                        true => Verdict::Fail,
                        false => Verdict::Unknown,
                    },
                    "rejects a repository without its key, so each update fails",
                ),
                Impact::File => (Verdict::Warn, "ignores a list of repositories"),
            };
            let name = backend.name();
            return Ok(Finding {
                remedy: Some(remedy),
                brief: Some(format!(
                    "{name} {impact}: {}",
                    without_directories(&first.why)
                )),
                ..finding(status, format!("{name} {impact}: {}", whys.join("; ")))
            });
        }
        if let Some(Fault { why, remedy }) = retired(&entries).or_else(|| shut_down(&entries)) {
            return Ok(finding(Verdict::Fail, why).with_remedy(remedy));
        }
        if let Some(Fault { why, remedy }) = nowhere(&entries) {
            return Ok(finding(Verdict::Warn, why).with_remedy(remedy));
        }
        let foreign =
            os.and_then(|os| foreign(&entries, os, &profiles, backend.commands().refresh));
        if let Some(foreign) = foreign {
            let status = match foreign.stops && installs {
                true => Verdict::Fail,
                false => Verdict::Warn,
            };
            return Ok(finding(status, foreign.fault.why).with_remedy(foreign.fault.remedy));
        }
        if let Some(Fault { why, remedy }) = moved {
            return Ok(finding(Verdict::Warn, why).with_remedy(remedy));
        }
    }
    Ok(match told {
        true => finding(Verdict::Pass, "no errors in the package sources".to_owned()),
        false => finding(
            Verdict::Skip,
            "no supported package manager is used".to_owned(),
        ),
    })
}

/// Returns a finding if configuration lines exclude required packages that are not installed.
async fn kept_away(subject: &Subject<'_>) -> Result<Option<Finding>, StepError> {
    let Some(desired) = subject.desired else {
        return Ok(None);
    };
    let manager = desired.packages.manager;
    let exclusions = manager.backend().exclusions(subject.host.files())?;
    if exclusions.is_empty() {
        return Ok(None);
    }
    // Another finding reports an unreadable database.
    let Ok(database) = subject.state.database(manager).await else {
        return Ok(None);
    };
    let database = database.unwrap_or_default();
    let is_there =
        |name: &str| (database.iter()).any(|package| package.id == name && package.is_unpacked());
    let groups = desired.package_groups();
    let wanted = (groups.iter())
        .filter(|(purpose, _)| *purpose != Purpose::Holds)
        .flat_map(|(_, packages)| *packages)
        .map(|spec| spec.name.as_str());
    let missing: Vec<&str> = wanted.filter(|name| !is_there(name)).collect();
    let lines: Vec<String> = (exclusions.iter())
        .filter(|one| missing.iter().any(|name| one.hides(name)))
        .map(ToString::to_string)
        .collect();
    let names: Vec<&str> = (missing.into_iter())
        .filter(|name| exclusions.iter().any(|one| one.hides(name)))
        .collect();
    if lines.is_empty() {
        return Ok(None);
    }
    Ok(Some(Finding {
        remedy: Some(
            "remove the packages from these lines unless you need them, because they hide the packages from the package manager".to_owned(),
        ),
        ..Finding::new(
            SOURCES,
            Verdict::Warn,
            format!("{} cannot be installed, because of {}", list(&names), lines.join("; ")),
        )
    }))
}

/// Replaces the paths in a text by file names.
fn without_directories(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| {
        let is_path = at % 2 == 1 && part.starts_with('/') && !part.contains(' ');
        let name = part.rsplit('/').next().filter(|_| is_path);
        name.unwrap_or(part)
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Returns a finding if driver packages are unpacked but not configured. Each transaction tries to configure them again and
/// fails.
async fn unconfigured(subject: &Subject<'_>) -> Result<Option<Finding>, StepError> {
    // `decide` reports an error of `driver_parts`. Most driver packages are recognized by name.
    let parts = subject.state.driver_parts().await.unwrap_or_default();
    let is_part =
        |name: &str| name.contains("nvidia") || parts.iter().any(|part| part.name == name);
    for manager in Manager::ALL {
        let backend = manager.backend();
        let Some(remedy) = backend.configures() else {
            continue;
        };
        let (files, system) = (subject.host.files(), subject.host.system());
        // While a transaction runs, unconfigured packages are normal.
        if locks::holder(files, system, backend.locks())?.is_some() {
            continue;
        }
        let database = subject.state.database(manager).await?;
        let database = database.unwrap_or_default().iter();
        let found: Vec<&Package> = database
            .filter(|package| package.needs_repair() && is_part(&package.name))
            .collect();
        if !found.is_empty() {
            let why = format!(
                "driver packages are not configured, so each {} transaction fails",
                backend.name()
            );
            let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
            let versions: Vec<String> = (found.iter())
                .map(|one| format!("{} {}", one.name, one.version))
                .collect();
            let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
            let running = (subject.facts.kernel.running.as_ref()).map(ToString::to_string);
            let failed = module_build::failed_builds(files, running.as_deref())?;
            // The package scripts build the module again.
            let first = (failed.remedy).map_or(String::new(), |one| format!("{one}, then "));
            return Ok(Some(Finding {
                brief: Some(format!("{why}: {}", list(&names))),
                observed: Some("not configured".to_owned()),
                expected: Some("configured".to_owned()),
                remedy: Some(format!("{first}{remedy}; {}", failed.text)),
                because: (failed.is_of_driver).then_some(Id::new("pci.driver-bound")),
                ..Finding::new(
                    CONSISTENCY,
                    Verdict::Fail,
                    format!("{why}: {}", list(&versions)),
                )
            }));
        }
    }
    Ok(None)
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let names: Vec<&str> = (subject.matrix.package_floors.iter())
        .flat_map(|row| &row.packages)
        .map(String::as_str)
        .collect();
    let consistent = decide(&detect(subject).await?);
    // Different versions already explain why packages are not configured.
    let unconfigured = match consistent.status {
        Verdict::Fail => None,
        _ => unconfigured(subject).await?,
    };
    let mut sources = sources(
        subject.host.files(),
        subject.facts.os.as_ref(),
        subject.state.is_of_this_machine(),
        !subject.facts.gpus.is_empty() && matches!(subject.state.loaded_driver(), Ok(None)),
    )?;
    if !matches!(sources.status, Verdict::Fail | Verdict::Warn) {
        sources = kept_away(subject).await?.unwrap_or(sources);
    }
    let secure = secure(subject.matrix, subject.state.packages_like(&names).await);
    Ok(vec![
        messages::skip_without_gpu(unconfigured.unwrap_or(consistent), subject.facts),
        messages::skip_without_gpu(secure, subject.facts),
        sources,
    ])
}

#[cfg(test)]
mod tests {
    use super::{Manager, PackagesState, decide, secure, sources, variant};
    use crate::{
        check::Verdict, facts::Os, host::fake::FakeFiles, state::DriverPart,
        steps::fixtures::matrix,
    };

    #[test]
    fn centos_mirror_list_fails() {
        let with = |address: &str| {
            let files = FakeFiles::new();
            files.put("/var/lib/rpm/Packages", "");
            files.put(
                "/etc/yum.repos.d/CentOS-Base.repo",
                format!("[base]\n{address}\n").as_str(),
            );
            sources(&files, None, false, false).unwrap()
        };
        let finding = with("mirrorlist=http://mirrorlist.centos.org/?release=$releasever&repo=os");
        assert_eq!(finding.status, Verdict::Fail, "{}", finding.why);
        assert!(finding.remedy.unwrap().contains("vault.centos.org"));
        for address in [
            "baseurl=http://vault.centos.org/8.5.2111/BaseOS/$basearch/os/",
            "metalink=https://mirrors.centos.org/metalink?repo=centos-baseos-9-stream",
            "mirrorlist=http://mirrorlist.centos.org/?repo=os\nenabled=0",
        ] {
            assert_eq!(with(address).status, Verdict::Pass, "{address}");
        }
    }

    #[test]
    fn repositories_without_packages_for_this_machine_are_reported() {
        let debian = Os {
            id: "debian".to_owned(),
            version_id: Some("11".to_owned()),
            id_like: Vec::new(),
            version_codename: Some("bullseye".to_owned()),
            pretty_name: None,
        };
        for (line, verdict, words) in rows! {
            "deb https://apt.kubernetes.io/ kubernetes-xenial main", Verdict::Fail, "was shut down";
            "deb https://packages.cloud.google.com/apt kubernetes-xenial main", Verdict::Fail, "was shut down";
            "deb https://packages.cloud.google.com/apt google-compute-engine-bullseye-stable main",
                Verdict::Pass, "";
            "deb https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu mantic main", Verdict::Fail,
                "has Ubuntu packages";
            "deb http://archive.ubuntu.com/ubuntu jammy main", Verdict::Fail, "has Ubuntu packages";
            "deb http://developer.download.nvidia.com/compute/cuda/repos/ubuntu1604/x86_64 /", Verdict::Fail,
                "needs `debian11`";
            "deb http://developer.download.nvidia.com/compute/cuda/repos/debian10/x86_64 /", Verdict::Warn,
                "needs `debian11`";
            "deb http://deb.debian.org/debian bullseye main", Verdict::Pass, "";
        } {
            let files = FakeFiles::new();
            files.put(
                "/etc/apt/sources.list.d/a.list",
                format!("{line}\n").as_str(),
            );
            files.put(
                "/var/lib/dpkg/status",
                "Package: a\nStatus: install ok installed\nVersion: 1\n",
            );
            let finding = sources(&files, Some(&debian), false, true).unwrap();
            assert_eq!(finding.status, verdict, "{line}: {}", finding.why);
            assert!(finding.why.contains(words), "{line}: {}", finding.why);
        }
    }

    #[test]
    fn sources_of_another_release_warn() {
        let os = |id: &str, version: &str, codename: &str| Os {
            id: id.to_owned(),
            version_id: Some(version.to_owned()),
            id_like: Vec::new(),
            version_codename: Some(codename.to_owned()),
            pretty_name: None,
        };
        let cuda = |directory: &str| {
            format!(
                "deb https://developer.download.nvidia.com/compute/cuda/repos/{directory}/x86_64/ /\n"
            )
        };
        let docker = "deb https://download.docker.com/linux/ubuntu jammy stable\n".to_owned();
        let noble = os("ubuntu", "24.04", "noble");
        for (text, os, words) in rows! {
            cuda("ubuntu2204"), &noble, Some("`ubuntu2404`");
            cuda("ubuntu2404"), &noble, None;
            cuda("wsl-ubuntu"), &noble, None;
            cuda("ubuntu2204"), &os("debian", "12", "bookworm"), Some("`debian12`");
            cuda("ubuntu2204"), &os("pop", "22.04", "jammy"), None;
            // Related systems have the directory of the supported one, unless their releases have other numbers.
            cuda("ubuntu2404"), &os("pop", "22.04", "jammy"), Some("`ubuntu2204`");
            cuda("rhel8"), &os("eurolinux", "9.4", ""), Some("`rhel9`");
            cuda("rhel9"), &os("virtuozzo", "9", ""), None;
            cuda("ubuntu2004"), &os("linuxmint", "22.1", "xia"), None;
            cuda("debian12"), &os("kali", "2026.3", "kali-rolling"), None;
            docker.clone(), &noble, Some("Docker repository for `jammy`");
            docker, &os("ubuntu", "22.04", "jammy"), None;
        } {
            let files = FakeFiles::new();
            files.put(
                "/var/lib/dpkg/status",
                "Package: a\nStatus: install ok installed\nVersion: 1\n",
            );
            files.put("/etc/apt/sources.list.d/a.list", text.as_str());
            let finding = sources(&files, Some(os), false, false).unwrap();
            let wanted = match words {
                Some(_) => Verdict::Warn,
                None => Verdict::Pass,
            };
            assert_eq!(finding.status, wanted, "{text}: {}", finding.why);
            assert!(
                finding.why.contains(words.unwrap_or_default()),
                "{}",
                finding.why
            );
        }
        // dnf files are also checked in a tree without a database.
        let files = FakeFiles::new();
        files.put("/etc/yum.repos.d/cuda.repo", "<!DOCTYPE html>\n");
        assert_eq!(
            sources(&files, None, false, false).unwrap().status,
            Verdict::Warn
        );
    }

    #[test]
    fn url_without_a_distribution_directory_warns() {
        for (address, is_wrong) in rows! {
            "https://developer.download.nvidia.com/compute/cuda/repos//", true;
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/", false;
        } {
            let files = FakeFiles::new();
            files.put(
                "/etc/apt/sources.list.d/a.list",
                format!("deb {address} /\n"),
            );
            let finding = sources(&files, None, false, false).unwrap();
            let told = finding.why.contains("lacks the distribution directory");
            assert_eq!(told, is_wrong, "{address}: {}", finding.why);
            assert_eq!(finding.status == Verdict::Warn, is_wrong);
            assert_eq!(finding.remedy.is_some(), is_wrong);
        }
    }

    #[test]
    fn outdated_toolkit_url_warns_with_the_new_url() {
        let list = "/etc/apt/sources.list.d/toolkit.list";
        let of = |path: &str, text: &str| {
            let files = FakeFiles::new();
            files.put(path, text);
            // A key is only regarded as missing if the directory contains other keys.
            files.put("/usr/share/keyrings/other.gpg", "\u{1}");
            sources(&files, None, false, false).unwrap()
        };
        for (path, is_old) in rows! {
            "libnvidia-container/stable/ubuntu18.04", true;
            "libnvidia-container/stable/debian11", true;
            "libnvidia-container/experimental/ubuntu22.04", true;
            "nvidia-docker/ubuntu20.04", true;
            "libnvidia-container/stable/deb", false;
            "libnvidia-container/experimental/deb", false;
        } {
            let finding = of(
                list,
                &format!("deb https://nvidia.github.io/{path}/$(ARCH) /\n"),
            );
            assert_eq!(
                finding.status == Verdict::Warn,
                is_old,
                "{path}: {}",
                finding.why
            );
            assert_eq!(finding.why.contains(path), is_old, "{}", finding.why);
            let now = "`https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)`";
            assert_eq!(
                finding.remedy.is_some_and(|text| text.contains(now)),
                is_old,
                "{path}"
            );
        }
        let repository = "[t]\nname=t\nbaseurl=https://nvidia.github.io/libnvidia-container/stable/centos8/$basearch\n\
                          gpgcheck=0\nrepo_gpgcheck=1\n";
        let finding = of("/etc/yum.repos.d/toolkit.repo", repository);
        assert_eq!(finding.status, Verdict::Warn, "{}", finding.why);
        assert!(finding.remedy.unwrap().contains("stable/rpm/$basearch"));
        // NVIDIA/nvidia-container-toolkit issue 207: the key is also missing.
        let keyless = of(
            list,
            "deb [signed-by=/usr/share/keyrings/toolkit.gpg] https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/$(ARCH) /\n",
        );
        assert!(keyless.why.contains("does not exist; "), "{}", keyless.why);
        assert!(keyless.why.contains("per distribution"), "{}", keyless.why);
        let remedy = keyless.remedy.unwrap();
        assert!(
            remedy.contains("stable/deb")
                && remedy.contains("; then download the repository's key"),
            "{remedy}"
        );
    }

    #[test]
    fn toolkit_without_security_fixes_warns() {
        let of = |version: &str| {
            let installed = vec![("nvidia-container-toolkit".to_owned(), version.to_owned())];
            secure(&matrix(), Ok(installed))
        };
        let old = of("1.19.0-1");
        assert_eq!(old.status, Verdict::Warn, "{}", old.why);
        assert!(old.why.contains("bulletin 5850"), "{}", old.why);
        let remedy = old.remedy.unwrap_or_default();
        assert!(remedy.contains("1.19.1 or newer"), "{remedy}");
        assert_eq!(of("1.20.0-1").status, Verdict::Pass);
        assert_eq!(secure(&matrix(), Ok(vec![])).status, Verdict::Skip);
        assert_eq!(
            secure(&matrix(), Err("no database".into())).status,
            Verdict::Unknown
        );
    }

    fn part((name, version, by_vendor): (&str, &str, Option<bool>)) -> DriverPart {
        DriverPart {
            name: name.to_owned(),
            version: version.parse().expect("a version"),
            by_vendor,
        }
    }

    #[test]
    fn mixed_versions_vendors_and_installers_are_reported() {
        let (ours, theirs) = (Some(true), Some(false));
        let module = ("nvidia-dkms-580", "580.178.04", theirs);
        for (parts, runfile, verdict, words) in rows! {
            vec![], false, Verdict::Skip, "no driver package";
            vec![], true, Verdict::Warn, "the NVIDIA `.run` installer";
            vec![module, ("libnvidia-compute-580", "580.178.04", theirs)], false, Verdict::Pass,
                "2 packages, version 580.178.04";
            vec![module], true, Verdict::Warn, "by the packages of 580.178.04";
            vec![module, ("libnvidia-compute-580", "580.178.04", ours)], false, Verdict::Warn,
                "NVIDIA packages (libnvidia-compute-580) and distribution packages";
            vec![
                ("nvidia-open-kmod", "580.178.04", theirs),
                ("nvidia-driver-cuda", "580.178.04", ours),
            ], false, Verdict::Pass, "2 packages, version 580.178.04";
            vec![module, ("libnvidia-compute-535", "535.261.03", theirs)], false, Verdict::Fail,
                "535.261.03 (libnvidia-compute-535); 580.178.04 (nvidia-dkms-580)";
            // Debian has older drivers that can be installed in parallel with the current one.
            vec![
                ("nvidia-kernel-dkms", "535.261.03", theirs),
                ("nvidia-tesla-470-kernel-dkms", "470.256.02", theirs),
            ], false, Verdict::Pass, "2 packages, version 535.261.03, 470.256.02";
        } {
            let finding = decide(&PackagesState {
                parts: Ok(parts.into_iter().map(part).collect()),
                runfile,
                manager: None,
                loaded: None,
                is_locked: false,
            });
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
            let is_bad = matches!(verdict, Verdict::Warn | Verdict::Fail);
            assert_eq!(finding.remedy.is_some(), is_bad, "{}", finding.why);
            assert_eq!(finding.observed.is_some(), is_bad, "{}", finding.why);
        }
        let unknown = decide(&PackagesState {
            parts: Err("there is no package database".to_owned()),
            runfile: false,
            manager: None,
            loaded: None,
            is_locked: false,
        });
        assert_eq!(unknown.status, Verdict::Unknown);
    }

    #[test]
    fn older_packages_are_upgraded_in_one_transaction() {
        let command = |parts: &[(&str, &str)], manager| {
            let parts = parts
                .iter()
                .map(|(name, version)| part((name, version, Some(false))));
            let finding = decide(&PackagesState {
                parts: Ok(parts.collect()),
                runfile: false,
                manager: Some(manager),
                loaded: None,
                is_locked: false,
            });
            let mut finding = finding;
            finding.derive_command();
            finding.command
        };
        let two = [
            ("nvidia-kernel-dkms", "520.56.06"),
            ("libcuda1", "525.85.12"),
            ("nvidia-smi", "525.60.13"),
        ];
        assert_eq!(
            command(&two, Manager::Apt).as_deref(),
            Some(
                "apt-get install 'nvidia-kernel-dkms=525.85.12*' 'nvidia-smi=525.85.12*' && systemctl reboot"
            )
        );
        assert_eq!(
            command(
                &[("nvidia-kmod-common", "580.1"), ("nvidia-driver", "580.2")],
                Manager::Dnf
            )
            .as_deref(),
            Some("yum install 'nvidia-kmod-common-580.2*' && systemctl reboot")
        );
        let mut locked = decide(&PackagesState {
            parts: Ok(two
                .map(|(name, version)| part((name, version, Some(false))))
                .into()),
            runfile: false,
            manager: Some(Manager::Apt),
            loaded: None,
            is_locked: true,
        });
        locked.derive_command();
        assert_eq!(locked.command.as_deref(), Some("gpu-bootstrap install"));
        // The packages of another branch have other names.
        let branches = [
            ("nvidia-dkms-535", "535.261.03"),
            ("libnvidia-compute-580", "580.95.05"),
        ];
        assert_eq!(command(&branches, Manager::Apt), None);
        let one = [
            ("nvidia-dkms-580", "580.65.06"),
            ("libnvidia-compute-580", "580.95.05"),
        ];
        assert!(command(&one, Manager::Apt).is_some());
        // A name from a database is one word in a shell.
        let odd = command(
            &[("nvidia-driver-$(id)", "580.1"), ("nvidia-driver", "580.2")],
            Manager::Apt,
        );
        assert!(odd.is_some_and(|text| text.contains(" 'nvidia-driver-$(id)=580.2*' ")));
    }

    #[test]
    fn debian_variants_are_parsed() {
        for (name, wanted) in [
            ("nvidia-tesla-470-kernel-dkms", "tesla-470"),
            ("libnvidia-tesla-470-ml1", "tesla-470"),
            ("nvidia-legacy-390xx-driver", "legacy-390xx"),
            ("nvidia-tesla-kernel", "tesla-kernel"),
            ("nvidia-kernel-dkms", ""),
        ] {
            assert_eq!(variant(name), wanted, "{name}");
        }
    }
}
