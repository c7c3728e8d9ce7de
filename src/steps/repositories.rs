//! `repositories`: package repositories with the keys of the profile, and version pins.

use camino::{Utf8Path, Utf8PathBuf};

use super::{PREFLIGHT, REPOSITORIES, packages};
use crate::{
    change::{
        Change, Lock,
        packages::repository::{self, Keyring},
    },
    config::desired::{Desired, Repository},
    host::trusted::unusable,
    step::{Assessment, Cx, Step, StepError},
    tools::packages::Backend,
};

/// The `repositories` step.
pub(super) fn step() -> Step {
    Step::new(REPOSITORIES, |cx| Box::pin(assess(cx)))
        .after([PREFLIGHT])
        .locks([Lock::Packages])
        .wants(|change, desired| {
            match change {
                Change::AddRepository { repository } => {
                    // Without a GPU there is no driver, so its repository is unknown.
                    let mut names = desired.repositories.iter().map(|wanted| &wanted.name);
                    desired.driver.is_none() || names.any(|name| *name == repository.name)
                }
                _ => true,
            }
        })
}

/// The state of a repository on disk.
#[derive(Debug, Clone, Default)]
struct OnDisk {
    source: Option<String>,
    keyring: Keyring,
    /// Key files of the distribution that are missing, writable by non-root users, or without an accepted key.
    key_files: Vec<Utf8PathBuf>,
    priority: Option<String>,
    /// The administrator's file that already configures the repository correctly.
    theirs: Option<Utf8PathBuf>,
}

#[derive(Debug, Clone, Default)]
struct RepositoriesState {
    repositories: Vec<OnDisk>,
    pins: Vec<Option<String>>,
    /// Message about the administrator's preference that selects other versions of the driver packages.
    contrary: Option<String>,
}

fn detect(cx: &Cx<'_>) -> Result<RepositoriesState, StepError> {
    let (files, backend) = (cx.host.files(), packages::backend(cx));
    let by_root = cx.state.is_of_this_machine();
    let mut state = RepositoriesState::default();
    for repository in &cx.desired.repositories {
        let foreign = |path: &Utf8Path| match by_root {
            true => unusable(files, path),
            false => Ok(None),
        };
        let keyring = match backend.keyring_path(repository) {
            Some(path) if foreign(&path)?.is_none() => files.read(&path)?,
            _ => None,
        };
        let source = files.read_text(&backend.source(repository).0)?;
        let mut key_files = Vec::new();
        for path in &repository.key_files {
            let bytes = files.read(path)?.unwrap_or_default();
            if foreign(path)?.is_some() || !repository::has_accepted_key(repository, &bytes) {
                key_files.push(path.clone());
            }
        }
        state.repositories.push(OnDisk {
            theirs: match &source {
                None => repository::configured_elsewhere(backend, files, repository, by_root)?,
                Some(_) => None,
            },
            source,
            keyring: keyring.map_or(Keyring::Unusable, |bytes| {
                repository::evaluate(repository, &bytes)
            }),
            key_files,
            priority: match backend.priority(repository) {
                Some((path, _)) => files.read_text(&path)?,
                None => None,
            },
        });
    }
    for (path, _) in cx.desired.pins.iter().filter_map(|pin| backend.pin(pin)) {
        state.pins.push(files.read_text(&path)?);
    }
    let driver = cx.desired.driver.iter().flat_map(|one| &one.packages);
    let names: Vec<&str> = driver.map(|spec| spec.name.as_str()).collect();
    for pin in &cx.desired.pins {
        if let Some(line) = backend.contrary(files, pin, &names)?.first() {
            let version = &pin.version;
            state.contrary = Some(format!("{line}, but the settings select {version}"));
        }
    }
    Ok(state)
}

/// Returns how a repository differs from its configuration. `None` if it does not.
fn drift(backend: &dyn Backend, repository: &Repository, found: &OnDisk) -> Option<String> {
    let name = &repository.name;
    if found.theirs.is_some() {
        return None;
    }
    match &found.source {
        None => return Some(format!("{name} is not configured")),
        Some(text) if *text != backend.source(repository).1 => {
            return Some(format!("{name} is configured differently"));
        }
        Some(_) => {}
    }
    if let Some((path, _)) = missing_priority(backend, repository, found) {
        return Some(no_priority(&path, name));
    }
    if let Some(path) = found.key_files.first() {
        return Some(format!(
            "the key file `{path}` of {name} is missing, writable by non-root users, or has no key of the \
             profile"
        ));
    }
    backend.keyring_path(repository)?;
    match &found.keyring {
        Keyring::Unusable => Some(format!(
            "the keyring of {name} is missing, unreadable, or writable by non-root users"
        )),
        // A distribution keyring may contain any key that the distribution trusts.
        Keyring::Stranger(key) if repository.keyring.is_none() => Some(format!(
            "the keyring of {name} contains {key}, which is not in the profile or was revoked"
        )),
        Keyring::Stranger(_) | Keyring::Accepted => None,
    }
}

/// Returns the path and content of the preference file that sets the priority of a repository, if the file is missing or
/// different.
fn missing_priority(
    backend: &dyn Backend,
    repository: &Repository,
    found: &OnDisk,
) -> Option<(Utf8PathBuf, String)> {
    backend
        .priority(repository)
        .filter(|(_, text)| found.priority.as_ref() != Some(text))
}

fn no_priority(path: &Utf8Path, name: &str) -> String {
    format!("`{path}` does not set the priority of {name}")
}

fn decide(state: &RepositoriesState, desired: &Desired) -> Assessment {
    let backend = desired.packages.manager.backend();
    if let Some(why) = &state.contrary {
        return Assessment::blocked(
            why,
            "set `driver.branch` or `driver.version` to the versions of that record, or remove the record",
        );
    }
    let (mut whys, mut changes) = (Vec::new(), Vec::new());
    for (repository, found) in desired.repositories.iter().zip(&state.repositories) {
        if let Some(why) = drift(backend, repository, found) {
            whys.push(why);
            changes.push(Change::AddRepository {
                repository: repository.clone(),
            });
        } else if found.theirs.is_some()
            && let Some((path, content)) = missing_priority(backend, repository, found)
        {
            // The administrator's file is not changed. The preference is a separate file.
            whys.push(no_priority(&path, &repository.name));
            changes.push(Change::write(path, content));
        }
    }
    let pins = desired.pins.iter();
    let pins = pins.filter_map(|pin| backend.pin(pin).map(|file| (pin, file)));
    for ((pin, (path, content)), found) in pins.zip(&state.pins) {
        if found.as_deref() != Some(&content) {
            let more = match pin.packages.len() {
                0 | 1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            let first = pin.packages.first().map_or("", String::as_str);
            whys.push(format!(
                "no preference for {} of {first}{more}",
                pin.version
            ));
            changes.push(Change::write(path, content));
        }
    }
    if !changes.is_empty() {
        return Assessment::needs(whys.join("; "), changes);
    }
    if desired.repositories.is_empty() {
        return Assessment::not_applicable("the profile adds no repositories");
    }
    let names: Vec<String> = desired
        .repositories
        .iter()
        .zip(&state.repositories)
        .map(|(repository, found)| match &found.theirs {
            Some(file) => format!("{} (in `{file}`)", repository.name),
            None => repository.name.clone(),
        })
        .collect();
    Assessment::satisfied(format!(
        "configured, with the accepted keys: {}",
        names.join(", ")
    ))
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    Ok(decide(&detect(cx)?, cx.desired))
}

#[cfg(test)]
mod tests {
    use super::{OnDisk, RepositoriesState, decide, step};
    use crate::{
        change::{Change, packages::repository::Keyring},
        config::desired::Repository,
        step::Assessment,
        steps::fixtures::desired,
        tools::packages::{Backend, Manager},
    };

    fn apt() -> &'static dyn Backend {
        Manager::Apt.backend()
    }

    #[test]
    fn unconfigured_repositories_are_removed() {
        let mut want = desired();
        let add = |name: &str| Change::AddRepository {
            repository: Repository {
                name: name.into(),
                ..desired().repositories.remove(0)
            },
        };
        assert!((step().wants)(&add("toolkit"), &want));
        assert!(!(step().wants)(&add("cuda"), &want));
        // The driver repository is unknown without a GPU.
        want.driver = None;
        assert!((step().wants)(&add("cuda"), &want));
    }

    #[test]
    fn source_key_and_pin_are_required() {
        let want = desired();
        let good = RepositoriesState {
            repositories: want
                .repositories
                .iter()
                .map(|repository| OnDisk {
                    source: Some(apt().source(repository).1),
                    keyring: Keyring::Accepted,
                    key_files: vec![],
                    priority: apt().priority(repository).map(|(_, text)| text),
                    theirs: None,
                })
                .collect(),
            pins: (want.pins.iter())
                .map(|pin| apt().pin(pin).map(|(_, text)| text))
                .collect(),
            contrary: None,
        };
        decide(&good, &want).expect_satisfied();

        let why = |state: &RepositoriesState| match decide(state, &want) {
            Assessment::Needs { why, .. } => why,
            other => panic!("must be configured: {other:?}"),
        };
        let mut other = good.clone();
        other.repositories[0].source = Some("Types: deb\n".into());
        assert!(why(&other).contains("configured differently"));
        other.repositories[0].source = None;
        assert!(why(&other).contains("is not configured"));
        let mut stranger = good.clone();
        stranger.repositories[0].keyring = Keyring::Stranger("0".repeat(40));
        assert!(why(&stranger).contains("which is not in the profile"));
        stranger.repositories[0].keyring = Keyring::Unusable;
        assert!(why(&stranger).contains("missing, unreadable, or writable by non-root"));
        let mut unpinned = good;
        unpinned.pins[0] = None;
        let (_, changes) = decide(&unpinned, &want).expect_needs();
        assert!(matches!(&changes[..], [Change::WriteFile { .. }]));
    }

    #[test]
    fn administrator_entry_gets_only_a_priority() {
        let mut want = desired();
        want.pins.clear();
        want.repositories[0].priority = Some(600);
        want.repositories[0].packages = vec!["nvidia-container-toolkit".into()];
        let mut found = OnDisk {
            theirs: Some("/etc/apt/sources.list.d/theirs.list".into()),
            ..OnDisk::default()
        };
        let state = |found: &OnDisk| RepositoriesState {
            repositories: vec![found.clone()],
            pins: vec![],
            contrary: None,
        };
        let (_, changes) = decide(&state(&found), &want).expect_needs();
        let (path, text) = apt().priority(&want.repositories[0]).expect("a priority");
        assert_eq!(
            changes,
            [Change::WriteFile {
                path,
                content: text.clone(),
                mode: 0o644,
                over: None,
            }]
        );
        found.priority = Some(text);
        let why = decide(&state(&found), &want).expect_satisfied();
        assert!(
            why.contains("in `/etc/apt/sources.list.d/theirs.list`"),
            "{why}"
        );
    }
}
