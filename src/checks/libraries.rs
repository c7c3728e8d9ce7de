//! Library checks: the user-space libraries of the driver must have the version of the loaded module.

use camino::{Utf8Path, Utf8PathBuf};

use super::operator;
use crate::{
    check::{Family, Finding, Subject, Verdict},
    config::desired::Manager,
    model::{findings::Remedy, id::Id, text::shell_word, version::DriverVersion},
    state::{GPU_OPERATOR, Owner, library_directories, owner},
    step::StepError,
};

const LIBRARIES: Id = Id::new("driver.libraries");

/// The libraries that containers and monitoring programs load.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libcuda.so.1"];
/// Debian can install several drivers in parallel and selects one of them with its alternatives system.
const ALTERNATIVES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
];

/// At least one of these paths exists on every system with libraries. If none exists, the libraries were not recorded.
const TELLS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/lib64", "/etc/ld.so.cache"];

/// The library checks.
pub(super) const FAMILY: Family = Family {
    ids: || vec![LIBRARIES],
    examine: |subject| Box::pin(examine(subject)),
};

#[derive(Debug, Clone, Default)]
struct LibrariesState {
    loaded: Option<String>,
    /// The installed libraries are known.
    told: bool,
    /// The version of the module that the next boot loads.
    next: Option<String>,
    /// Driver packages are installed.
    packaged: bool,
    /// The owner of the driver, if it does not install the driver on the library path of the host.
    owner: Option<Owner>,
    /// The library name and the resolved file.
    found: Vec<(&'static str, Option<Utf8PathBuf>)>,
    /// Libraries with the same names that come later in the search order, in directories of distribution packages.
    all: Vec<Utf8PathBuf>,
    /// The machine is a container, so the module belongs to its host.
    contained: bool,
    /// The architecture in the name of NVIDIA's installer.
    arch: String,
}

async fn detect(subject: &Subject<'_>) -> Result<LibrariesState, StepError> {
    let files = subject.host.files();
    let loaded = subject.state.loaded_driver()?;
    let mut directories = library_directories(files);
    directories.extend(ALTERNATIVES.map(str::to_owned));
    let (mut found, mut all) = (Vec::new(), Vec::new());
    for name in NAMES {
        let mut at = None;
        for directory in &directories {
            let path = Utf8PathBuf::from(directory).join(name);
            if at.is_none() {
                at = files.resolve(&path)?;
            } else if of_distribution(&path) {
                // These files only show which library is shadowed, so unreadable files are ignored.
                all.extend(files.resolve(&path).ok().flatten());
            }
        }
        found.push((name, at));
    }
    let mut told = false;
    for path in TELLS {
        told |= files.exists(Utf8Path::new(path))?;
    }
    let next = match loaded {
        Some(_) => subject.state.next_module_version().await,
        None => None,
    };
    Ok(LibrariesState {
        loaded: loaded.map(ToString::to_string),
        told,
        next: next.map(|version| version.to_string()),
        packaged: subject.state.driver().await.package_version.is_some(),
        owner: owner(files, subject.facts)?.filter(|owner| !owner.on_host),
        found,
        all,
        contained: subject.facts.container().is_some(),
        arch: (subject.facts.kernel.arch.clone())
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
    })
}

/// Whether the path is in a directory in which packages install libraries.
fn of_distribution(path: &Utf8Path) -> bool {
    ["/usr/lib", "/usr/lib64", "/lib", "/lib64"]
        .iter()
        .any(|directory| path.starts_with(directory))
}

/// The driver version in the file name of a library. `libcuda.so.1` and Jetson's `libcuda.so.1.1` do not contain it.
fn version_of(path: &Utf8Path) -> Option<&str> {
    let version = path.file_name()?.split_once(".so.")?.1;
    version.parse::<DriverVersion>().is_ok().then_some(version)
}

fn decide(state: &LibrariesState, manager: Option<Manager>) -> Finding {
    let finding = |status, why: String, remedy: Option<&str>| Finding {
        expected: state.loaded.clone(),
        remedy: remedy.map(str::to_owned),
        ..Finding::new(LIBRARIES, status, why)
    };
    let Some(loaded) = &state.loaded else {
        return finding(Verdict::Skip, "no driver is loaded".into(), None);
    };
    let missing: Vec<String> = state
        .found
        .iter()
        .filter(|(_, at)| at.is_none())
        .map(|(name, _)| format!("`{name}`"))
        .collect();
    if !missing.is_empty() && !state.told {
        return finding(
            Verdict::Unknown,
            "the installed libraries are unknown".into(),
            None,
        );
    }
    if !missing.is_empty()
        && let Some(owner) = &state.owner
    {
        return finding(
            Verdict::Unknown,
            format!(
                "{} not found; the driver is managed by {}, which installs the libraries elsewhere",
                missing.join(", "),
                owner.name
            ),
            None,
        );
    }
    if !missing.is_empty() {
        let how = manager.map_or_else(String::new, |manager| {
            format!(" (`{}`)", manager.backend().commands().reinstall)
        });
        return finding(
            Verdict::Fail,
            format!("{} not found on the library path", missing.join(", ")),
            Some(&format!(
                "reinstall the driver's library packages{how}, then run `ldconfig`"
            )),
        );
    }
    let mut others = Vec::new();
    let mut libraries = "their version";
    for (name, at) in &state.found {
        // If no file name contains the version, only NVML reports a mismatch.
        if let Some(version) = at.as_deref().and_then(version_of)
            && version != loaded
        {
            libraries = version;
            others.push(format!("`{name}` has version {version}"));
        }
    }
    if others.is_empty() {
        return finding(
            Verdict::Pass,
            format!("{}, version {loaded}", NAMES.join(", ")),
            None,
        );
    }
    // The CUDA package `cuda-compat` or libraries of a container may be on the library path of the machine.
    let hides = |path: &&Utf8PathBuf| {
        let is_other = version_of(path).is_some_and(|version| version != loaded);
        is_other && !of_distribution(path)
    };
    let hidden = |path: &Utf8Path| {
        let name = path.file_name()?.split_once(".so.")?.0.to_owned();
        let fits = |one: &&Utf8PathBuf| {
            version_of(one) == Some(loaded.as_str())
                && one.file_name().is_some_and(|file| file.starts_with(&name))
        };
        state.all.iter().find(fits)
    };
    if let Some(path) = state
        .found
        .iter()
        .filter_map(|(_, at)| at.as_ref())
        .find(hides)
        && let Some(hidden) = hidden(path)
        && let Some(directory) = path.parent()
    {
        return finding(
            Verdict::Fail,
            format!(
                "`{path}` shadows `{hidden}`, which has the version of the loaded module, because `{directory}` comes first on \
                 the library path"
            ),
            Some(
                "remove this directory from `/etc/ld.so.conf` or from the file in `/etc/ld.so.conf.d` that contains it, then \
                 run `ldconfig`",
            ),
        );
    }
    // A reboot does not help if the module on disk has the version of the loaded module.
    let (class, remedy) = match (&state.next, &state.owner) {
        (_, Some(owner)) if owner.name == GPU_OPERATOR && state.packaged => {
            (Remedy::Reconfigure, operator::ONE_DRIVER.to_owned())
        }
        (Some(next), Some(owner)) if next == loaded => (
            Remedy::Reconfigure,
            format!(
                "all parts of the driver must have the same version, and they are managed by {}: {}",
                owner.name, owner.remedy
            ),
        ),
        (Some(next), None) if next == loaded => (
            Remedy::Reconfigure,
            match state.packaged {
                true => format!(
                    "install all driver packages in one version in one transaction, then reboot; a reboot alone does not \
                     help, because the module on disk is also {next}"
                ),
                false => format!(
                    "reinstall libraries and module in one version with their original installer, because they are not from \
                     packages; a reboot alone does not help, because the module on disk is also {next}"
                ),
            },
        ),
        _ if state.contained => (
            Remedy::Reconfigure,
            match state.packaged {
                true => format!(
                    "install the libraries of {loaded} in the container, from packages of this version, because the module belongs to \
                     its host"
                ),
                false => format!(
                    "run `sh {}` in the container, with the installer of the host's driver version, because the module \
                     belongs to the host",
                    shell_word(format!("NVIDIA-Linux-{}-{loaded}.run", state.arch))
                        + " --no-kernel-modules"
                ),
            },
        ),
        (None, _) => (
            Remedy::Reconfigure,
            format!(
                "if `modinfo --field version nvidia` prints {libraries}, reboot, which stops all workloads; otherwise install \
                 libraries and module in one version (the version of the module on disk is unknown)"
            ),
        ),
        _ => (
            Remedy::Reboot,
            "reboot, which stops all workloads, because the libraries were upgraded while the old module was loaded".to_owned(),
        ),
    };
    Finding {
        remedy_class: Some(class),
        ..finding(
            Verdict::Fail,
            format!(
                "{}, but the loaded module has version {loaded}",
                others.join(", ")
            ),
            Some(&remedy),
        )
    }
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let manager = subject.desired.map(|desired| desired.packages.manager);
    Ok(vec![decide(&detect(subject).await?, manager)])
}

#[cfg(test)]
mod tests {
    use super::{LibrariesState, decide};
    use crate::{check::Verdict, facts::detection::Provides, model::findings::Remedy};

    fn state(loaded: Option<&str>, ml: Option<&str>, cuda: Option<&str>) -> LibrariesState {
        LibrariesState {
            loaded: loaded.map(str::to_owned),
            told: true,
            next: None,
            packaged: true,
            owner: None,
            found: vec![
                ("libnvidia-ml.so.1", ml.map(Into::into)),
                ("libcuda.so.1", cuda.map(Into::into)),
            ],
            all: Vec::new(),
            contained: false,
            arch: "x86_64".to_owned(),
        }
    }

    #[test]
    fn missing_and_mismatched_libraries_fail() {
        let (ml, cuda) = (
            "/usr/lib/libnvidia-ml.so.535.261.03",
            "/usr/lib/libcuda.so.535.261.03",
        );
        for (state, verdict, words) in rows! {
            state(None, None, None), Verdict::Skip, "no driver is loaded";
            state(Some("535.261.03"), Some(ml), Some(cuda)), Verdict::Pass, "version 535.261.03";
            state(Some("535.261.03"), None, Some(cuda)), Verdict::Fail,
                "`libnvidia-ml.so.1` not found";
            state(Some("535.247.01"), Some(ml), Some(cuda)), Verdict::Fail,
                "`libnvidia-ml.so.1` has version 535.261.03";
            state(
                Some("535.247.01"),
                Some("/usr/lib/libnvidia-ml.so.1"),
                Some("/x/libcuda.so.1"),
            ), Verdict::Pass, "version 535.247.01";
            // Jetson Linux 36.
            state(
                Some("540.4.0"),
                Some("/usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ml.so.1"),
                Some("/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1"),
            ), Verdict::Pass, "version 540.4.0";
        } {
            let finding = decide(&state, Some(super::Manager::Apt));
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[test]
    fn shadowing_library_is_reported() {
        let compat = "/usr/local/cuda-11.8/compat/libcuda.so.520.61.05";
        let ml = "/usr/lib/libnvidia-ml.so.535.261.03";
        let mut state = state(Some("535.261.03"), Some(ml), Some(compat));
        // If the correct library does not exist, another error is reported.
        assert!(!decide(&state, None).why.contains("shadows"));
        state.all = vec!["/usr/lib/libcuda.so.535.261.03".into()];
        let finding = decide(&state, None);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(
            finding
                .why
                .starts_with(&format!("`{compat}` shadows `/usr/lib/libcuda")),
            "{}",
            finding.why
        );
        assert!(finding.remedy.unwrap().contains("/etc/ld.so.conf.d"));
    }

    #[test]
    fn old_module_on_disk_suggests_no_reboot() {
        let old = |next: Option<&str>| {
            let ml = Some("/usr/lib/libnvidia-ml.so.525.85.12");
            let mut state = state(Some("520.56.06"), ml, Some("/usr/lib/libcuda.so.525.85.12"));
            state.next = next.map(str::to_owned);
            let finding = decide(&state, None);
            (finding.remedy_class.unwrap(), finding.remedy.unwrap())
        };
        let (class, remedy) = old(Some("525.85.12"));
        assert_eq!(class, Remedy::Reboot);
        assert!(remedy.starts_with("reboot,"), "{remedy}");
        let (class, remedy) = old(None);
        assert_eq!(class, Remedy::Reconfigure);
        assert!(remedy.contains("is unknown"), "{remedy}");
        // The module of a container belongs to its host.
        let ml = Some("/usr/lib/libnvidia-ml.so.570.148.08");
        let mut guest = state(
            Some("570.148.06"),
            ml,
            Some("/usr/lib/libcuda.so.570.148.08"),
        );
        guest.contained = true;
        let remedy = decide(&guest, None).remedy.unwrap();
        assert!(
            remedy.starts_with("install the libraries of 570.148.06"),
            "{remedy}"
        );
        guest.packaged = false;
        let remedy = decide(&guest, None).remedy.unwrap();
        let command = "run `sh NVIDIA-Linux-x86_64-570.148.06.run --no-kernel-modules`";
        assert!(remedy.starts_with(command), "{remedy}");
        let (class, remedy) = old(Some("520.56.06"));
        assert_eq!(class, Remedy::Reconfigure);
        assert!(
            remedy.starts_with("install all driver packages"),
            "{remedy}"
        );
        // Azure/AKS issue 5869: the driver of the image does not belong to a package.
        let ml = Some("/usr/lib/libnvidia-ml.so.580.159.04");
        let mut image = state(
            Some("570.211.01"),
            ml,
            Some("/usr/lib/libcuda.so.580.159.04"),
        );
        image.next = Some("570.211.01".to_owned());
        image.packaged = false;
        let remedy = decide(&image, None).remedy.unwrap();
        assert!(remedy.contains("with their original installer"), "{remedy}");
    }

    #[test]
    fn ostree_image_is_updated_or_rebooted() {
        let ml = Some("/usr/lib64/libnvidia-ml.so.575.51.02");
        let mut state = state(Some("570.144"), ml, Some("/usr/lib64/libcuda.so.575.51.02"));
        state.owner = Some(crate::state::Owner {
            name: "an OSTree image",
            evidence: String::new(),
            provides: Provides::default(),
            on_host: false,
            why: "",
            remedy: "update to another image",
        });
        let mut with = |next: &str| {
            state.next = Some(next.to_owned());
            decide(&state, None).remedy.unwrap()
        };
        assert!(with("570.144").ends_with("an OSTree image: update to another image"));
        assert!(with("575.51.02").starts_with("reboot,"));
    }

    #[test]
    fn packages_next_to_the_operator_driver_are_removed() {
        // pando85/homelab pull request 4110.
        let ml = Some("/usr/lib/libnvidia-ml.so.580.159.03");
        let mut state = state(
            Some("580.126.20"),
            ml,
            Some("/usr/lib/libcuda.so.580.159.03"),
        );
        state.owner = Some(crate::state::Owner {
            name: "NVIDIA's GPU Operator",
            evidence: String::new(),
            provides: Provides {
                fabric_manager: true,
                container_runtime: false,
            },
            on_host: false,
            why: "",
            remedy: "",
        });
        let finding = decide(&state, None);
        assert_eq!(finding.remedy_class, Some(Remedy::Reconfigure));
        let remedy = finding.remedy.unwrap();
        assert!(remedy.starts_with("remove the driver packages"), "{remedy}");
        state.packaged = false;
        state.next = Some("580.159.03".to_owned());
        let remedy = decide(&state, None).remedy.unwrap();
        assert!(remedy.starts_with("reboot,"), "{remedy}");
    }

    #[test]
    fn unrecorded_or_externally_managed_libraries_are_unknown() {
        let mut nothing = state(Some("580.95.05"), None, None);
        nothing.told = false;
        assert_eq!(decide(&nothing, None).status, Verdict::Unknown);
        let mut owned = state(Some("580.95.05"), None, None);
        owned.owner = Some(crate::state::Owner {
            name: "NVIDIA's GPU Operator",
            evidence: String::new(),
            provides: Provides::default(),
            on_host: false,
            why: "",
            remedy: "",
        });
        let finding = decide(&owned, None);
        assert_eq!(finding.status, Verdict::Unknown);
        assert_eq!(finding.remedy, None);
    }
}
