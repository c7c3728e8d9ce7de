//! The family of library checks: the driver's user-space libraries must have the version of the
//! loaded module.

use async_trait::async_trait;
use camino::Utf8PathBuf;

use crate::{
    check::{Check, Finding, Subject, Verdict},
    config::desired::Manager,
    model::id::Id,
    step::StepError,
};

const LIBRARIES: Id = Id::new("driver.libraries");

/// The libraries that containers and monitoring programs load.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libcuda.so.1"];
/// The directories that distributions install them in; the vendor's own paths come last.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
];

/// See the module.
pub struct Libraries;

#[derive(Debug, Clone, Default)]
struct LibrariesState {
    loaded: Option<String>,
    /// The name, and the file that it resolves to.
    found: Vec<(&'static str, Option<Utf8PathBuf>)>,
}

fn detect(subject: &Subject<'_>) -> Result<LibrariesState, StepError> {
    let files = subject.host.files();
    let loaded = subject.state.loaded_driver()?;
    let mut found = Vec::new();
    for name in NAMES {
        let mut at = None;
        for folder in FOLDERS {
            at = files.resolve(&Utf8PathBuf::from(folder).join(name))?;
            if at.is_some() {
                break;
            }
        }
        found.push((name, at));
    }
    Ok(LibrariesState {
        loaded: loaded.map(ToString::to_string),
        found,
    })
}

fn decide(state: &LibrariesState, manager: Option<Manager>) -> Finding {
    let finding = |status, why: String, remedy: Option<&str>| Finding {
        expected: state.loaded.clone(),
        remedy: remedy.map(str::to_owned),
        ..Finding::new(LIBRARIES, "Driver libraries", status, why)
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
        let version = at
            .as_deref()
            .and_then(|path| path.file_name())
            .and_then(|file| file.split_once(".so."))
            .map(|(_, version)| version);
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
    finding(
        Verdict::Fail,
        format!(
            "{}, but the loaded module has version {loaded}",
            others.join(", ")
        ),
        Some("reboot: the libraries were upgraded while the old module was loaded"),
    )
}

#[async_trait]
impl Check for Libraries {
    fn ids(&self) -> &[Id] {
        const { &[LIBRARIES] }
    }

    async fn examine(&self, subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
        let manager = subject.desired.map(|desired| desired.packages.manager);
        Ok(vec![decide(&detect(subject)?, manager)])
    }
}

#[cfg(test)]
mod tests {
    use super::{LibrariesState, decide};
    use crate::check::Verdict;

    fn state(loaded: Option<&str>, ml: Option<&str>, cuda: Option<&str>) -> LibrariesState {
        LibrariesState {
            loaded: loaded.map(str::to_owned),
            found: vec![
                ("libnvidia-ml.so.1", ml.map(Into::into)),
                ("libcuda.so.1", cuda.map(Into::into)),
            ],
        }
    }

    #[test]
    fn missing_and_other_versions_are_named() {
        let (ml, cuda) = (
            "/usr/lib/libnvidia-ml.so.535.261.03",
            "/usr/lib/libcuda.so.535.261.03",
        );
        for (state, verdict, words) in [
            (
                state(None, None, None),
                Verdict::Skip,
                "no driver is loaded",
            ),
            (
                state(Some("535.261.03"), Some(ml), Some(cuda)),
                Verdict::Pass,
                "version 535.261.03",
            ),
            (
                state(Some("535.261.03"), None, Some(cuda)),
                Verdict::Fail,
                "`libnvidia-ml.so.1` cannot be found",
            ),
            (
                state(Some("535.247.01"), Some(ml), Some(cuda)),
                Verdict::Fail,
                "`libnvidia-ml.so.1` has version 535.261.03",
            ),
            (
                state(
                    Some("535.247.01"),
                    Some("/usr/lib/libnvidia-ml.so.1"),
                    Some("/x/libcuda.so.1"),
                ),
                Verdict::Pass,
                "version 535.247.01",
            ),
        ] {
            let finding = decide(&state, Some(super::Manager::Apt));
            assert_eq!(finding.status, verdict, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }
}
