//! The family of library checks: the driver's user-space libraries must have the version of the
//! loaded module.

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

use super::operator;
use crate::{
    check::{Check, Finding, Subject, Verdict},
    config::desired::Manager,
    model::{findings::Remedy, id::Id},
    state::{GPU_OPERATOR, Owner, library_folders, owner},
    step::StepError,
};

const LIBRARIES: Id = Id::new("driver.libraries");

/// The libraries that containers and monitoring programs load.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libcuda.so.1"];
/// Debian keeps several drivers beside each other; its alternatives link the one that is used.
const ALTERNATIVES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
];

/// One of them is on each system that has libraries at all. A tree without any tells nothing about libraries.
const TELLS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/lib64", "/etc/ld.so.cache"];

/// See the module.
pub struct LibrariesCheck;

#[derive(Debug, Clone, Default)]
struct LibrariesState {
    loaded: Option<String>,
    /// Something tells which libraries there are.
    told: bool,
    /// The module on disk that the next boot loads.
    next: Option<String>,
    /// Packages of the driver are there.
    packaged: bool,
    /// Who has the driver, where it is somebody else.
    owner: Option<Owner>,
    /// The name, and the file that it resolves to.
    found: Vec<(&'static str, Option<Utf8PathBuf>)>,
    /// Files of the same names in later folders of the distribution.
    all: Vec<Utf8PathBuf>,
}

async fn detect(subject: &Subject<'_>) -> Result<LibrariesState, StepError> {
    let files = subject.host.files();
    let loaded = subject.state.loaded_driver()?;
    let mut folders = library_folders(files);
    folders.extend(ALTERNATIVES.map(str::to_owned));
    let (mut found, mut all) = (Vec::new(), Vec::new());
    for name in NAMES {
        let mut at = None;
        for folder in &folders {
            let path = Utf8PathBuf::from(folder).join(name);
            if at.is_none() {
                at = files.resolve(&path)?;
            } else if of_distribution(&path) {
                // What cannot be read hides nothing.
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
        owner: owner(files, subject.facts)?,
        found,
        all,
    })
}

/// Whether packages put libraries there.
fn of_distribution(path: &Utf8Path) -> bool {
    ["/usr/lib", "/usr/lib64", "/lib", "/lib64"]
        .iter()
        .any(|folder| path.starts_with(folder))
}

/// The version in the name of a library's file.
fn version_of(path: &Utf8Path) -> Option<&str> {
    Some(path.file_name()?.split_once(".so.")?.1)
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
            "nothing here tells which libraries there are".into(),
            None,
        );
    }
    if !missing.is_empty()
        && let Some(owner) = &state.owner
    {
        return finding(
            Verdict::Unknown,
            format!(
                "{} cannot be found; the driver is that of {}, which keeps it elsewhere",
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
            format!("{} cannot be found on the library path", missing.join(", ")),
            Some(&format!(
                "reinstall the driver's library packages{how}, then run `ldconfig`"
            )),
        );
    }
    let mut others = Vec::new();
    for (name, at) in &state.found {
        let version = at.as_deref().and_then(version_of);
        // A file named only `.so.1` does not show a version; NVML reports it then.
        if let Some(version) = version
            && version.contains('.')
            && version != loaded
        {
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
    // CUDA's package `cuda-compat`, or the libraries of a container, on the path of the whole machine.
    let hides = |path: &&Utf8PathBuf| {
        let is_other =
            version_of(path).is_some_and(|version| version.contains('.') && version != loaded);
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
        && let Some(folder) = path.parent()
    {
        return finding(
            Verdict::Fail,
            format!(
                "`{path}` hides `{hidden}`, which has the version of the loaded module: `{folder}` comes first on the library \
                 path"
            ),
            Some(
                "remove that folder from `/etc/ld.so.conf`, or from the file of `/etc/ld.so.conf.d` that names it, then \
                 run `ldconfig`",
            ),
        );
    }
    // A reboot helps only where the module on disk is that of the libraries.
    let (class, remedy) = match (&state.next, &state.owner) {
        (_, Some(owner)) if owner.name == GPU_OPERATOR && state.packaged => {
            (Remedy::Reconfigure, operator::ONE_DRIVER.to_owned())
        }
        (Some(next), Some(owner)) if next == loaded => (
            Remedy::Reconfigure,
            format!(
                "the parts of the driver must be of one version, and are those of {}: {}",
                owner.name, owner.remedy
            ),
        ),
        (Some(next), None) if next == loaded => (
            Remedy::Reconfigure,
            match state.packaged {
                true => format!(
                    "bring all packages of the driver to one version in one transaction, then reboot; a reboot alone \
                     does not help, because the module on disk is {next}, too"
                ),
                false => format!(
                    "install libraries and module of one version again, with what installed them, because no package \
                     has them; a reboot alone does not help, because the module on disk is {next}, too"
                ),
            },
        ),
        _ => (
            Remedy::Reboot,
            "reboot: the libraries were upgraded while the old module was loaded".to_owned(),
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

#[async_trait]
impl Check for LibrariesCheck {
    fn ids(&self) -> &[Id] {
        const { &[LIBRARIES] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let manager = subject.desired.map(|desired| desired.packages.manager);
        Ok(vec![decide(&detect(subject).await?, manager)])
    }
}

#[cfg(test)]
mod tests {
    use super::{LibrariesState, decide};
    use crate::{check::Verdict, model::findings::Remedy};

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
        }
    }

    #[test]
    fn missing_and_other_versions_are_named() {
        let (ml, cuda) = (
            "/usr/lib/libnvidia-ml.so.535.261.03",
            "/usr/lib/libcuda.so.535.261.03",
        );
        for (state, verdict, words) in rows! {
            state(None, None, None), Verdict::Skip, "no driver is loaded";
            state(Some("535.261.03"), Some(ml), Some(cuda)), Verdict::Pass, "version 535.261.03";
            state(Some("535.261.03"), None, Some(cuda)), Verdict::Fail,
                "`libnvidia-ml.so.1` cannot be found";
            state(Some("535.247.01"), Some(ml), Some(cuda)), Verdict::Fail,
                "`libnvidia-ml.so.1` has version 535.261.03";
            state(
                Some("535.247.01"),
                Some("/usr/lib/libnvidia-ml.so.1"),
                Some("/x/libcuda.so.1"),
            ), Verdict::Pass, "version 535.247.01";
        } {
            let finding = decide(&state, Some(super::Manager::Apt));
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[test]
    fn a_library_that_hides_the_right_one_is_named() {
        let compat = "/usr/local/cuda-11.8/compat/libcuda.so.520.61.05";
        let ml = "/usr/lib/libnvidia-ml.so.535.261.03";
        let mut state = state(Some("535.261.03"), Some(ml), Some(compat));
        // Without the right one somewhere else it is another fault.
        assert!(!decide(&state, None).why.contains("hides"));
        state.all = vec!["/usr/lib/libcuda.so.535.261.03".into()];
        let finding = decide(&state, None);
        assert_eq!(finding.status, Verdict::Fail);
        assert!(
            finding
                .why
                .starts_with(&format!("`{compat}` hides `/usr/lib/libcuda")),
            "{}",
            finding.why
        );
        assert!(finding.remedy.unwrap().contains("/etc/ld.so.conf.d"));
    }

    #[test]
    fn a_reboot_is_no_remedy_where_the_module_on_disk_is_the_old_one() {
        let old = |next: Option<&str>| {
            let ml = Some("/usr/lib/libnvidia-ml.so.525.85.12");
            let mut state = state(Some("520.56.06"), ml, Some("/usr/lib/libcuda.so.525.85.12"));
            state.next = next.map(str::to_owned);
            let finding = decide(&state, None);
            (finding.remedy_class.unwrap(), finding.remedy.unwrap())
        };
        for next in [Some("525.85.12"), None] {
            let (class, remedy) = old(next);
            assert_eq!(class, Remedy::Reboot);
            assert!(remedy.starts_with("reboot:"), "{remedy}");
        }
        let (class, remedy) = old(Some("520.56.06"));
        assert_eq!(class, Remedy::Reconfigure);
        assert!(remedy.starts_with("bring all packages"), "{remedy}");
        // Azure/AKS issue 5869: what an image unpacks belongs to no package.
        let ml = Some("/usr/lib/libnvidia-ml.so.580.159.04");
        let mut image = state(
            Some("570.211.01"),
            ml,
            Some("/usr/lib/libcuda.so.580.159.04"),
        );
        image.next = Some("570.211.01".to_owned());
        image.packaged = false;
        let remedy = decide(&image, None).remedy.unwrap();
        assert!(remedy.contains("with what installed them"), "{remedy}");
    }

    #[test]
    fn what_mends_an_image_is_another_image() {
        let ml = Some("/usr/lib64/libnvidia-ml.so.575.51.02");
        let mut state = state(Some("570.144"), ml, Some("/usr/lib64/libcuda.so.575.51.02"));
        state.owner = Some(crate::state::Owner {
            name: "an OSTree image",
            evidence: String::new(),
            fabric_manager: false,
            container_runtime: false,
            why: "",
            remedy: "update to another image",
        });
        let mut with = |next: &str| {
            state.next = Some(next.to_owned());
            decide(&state, None).remedy.unwrap()
        };
        assert!(with("570.144").ends_with("an OSTree image: update to another image"));
        assert!(with("575.51.02").starts_with("reboot:"));
    }

    #[test]
    fn packages_beside_the_operator_s_driver_are_removed() {
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
            fabric_manager: true,
            container_runtime: false,
            why: "",
            remedy: "",
        });
        let finding = decide(&state, None);
        assert_eq!(finding.remedy_class, Some(Remedy::Reconfigure));
        let remedy = finding.remedy.unwrap();
        assert!(
            remedy.starts_with("remove the driver's packages"),
            "{remedy}"
        );
        state.packaged = false;
        let remedy = decide(&state, None).remedy.unwrap();
        assert!(remedy.starts_with("reboot:"), "{remedy}");
    }

    #[test]
    fn a_tree_without_libraries_and_somebody_else_s_driver_are_no_fault() {
        let mut nothing = state(Some("580.95.05"), None, None);
        nothing.told = false;
        assert_eq!(decide(&nothing, None).status, Verdict::Unknown);
        let mut owned = state(Some("580.95.05"), None, None);
        owned.owner = Some(crate::state::Owner {
            name: "NVIDIA's GPU Operator",
            evidence: String::new(),
            fabric_manager: false,
            container_runtime: false,
            why: "",
            remedy: "",
        });
        let finding = decide(&owned, None);
        assert_eq!(finding.status, Verdict::Unknown);
        assert_eq!(finding.remedy, None);
    }
}
