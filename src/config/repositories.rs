//! Selects the repositories to add: those that the selected packages need, with the settings of the profile and the
//! configuration, and additional ones from the configuration.

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8PathBuf;

use crate::{
    config::{
        desired::Repository,
        error::{ConfigError, Refusal, ResolveError, or_noted},
        file::RepositoryConfig,
        profile::{DISTRIBUTION, Profile, Release, RepositoryRow},
        sources::SettingSources,
        template::Placeholders,
        values::{AbsolutePath, Fingerprint, Url, Word},
    },
    model::{packages::Signed, secret::has_login, text::nearest},
    tools::packages::{ArchiveError, SourceEntry},
};

/// The inputs of the repository selection.
pub(super) struct RepositoryInputs<'a> {
    pub profile: &'a Profile,
    /// Repositories for this release that no profile has.
    pub further: &'a [RepositoryRow],
    pub release: &'a Release,
    pub placeholders: &'a Placeholders,
    pub config: &'a BTreeMap<String, RepositoryConfig>,
    pub layers: &'a SettingSources,
    /// The package sources of the machine. `None` if unknown.
    pub sources: Option<&'a [SourceEntry]>,
}

/// Required packages, and the repositories that they need.
pub(super) struct Needed<'a> {
    pub repositories: &'a [String],
    /// Names, and patterns for related packages.
    pub packages: Vec<String>,
}

impl RepositoryInputs<'_> {
    /// Selects the repositories: the needed ones in the given order, then additional ones from the configuration.
    ///
    /// # Errors
    /// If a setting is invalid, or a needed repository is untrusted or missing.
    pub(super) fn choose(&self, needed: &[Needed<'_>]) -> Result<Vec<Repository>, ResolveError> {
        let known: BTreeSet<&str> = (self.profile.repository.iter().chain(self.further))
            .map(|row| row.name.as_str())
            .collect();
        let mut wrong: Vec<ResolveError> = Vec::new();
        let mut unlikely = BTreeSet::new();
        for (name, config) in self.config {
            if !known.contains(name.as_str())
                && config.url.is_none()
                && or_noted(self.likely(name, &known), &mut wrong).is_none()
            {
                unlikely.insert(name.as_str());
            }
        }
        let wanted_too = self.config.iter().filter(|(name, config)| {
            let enabled_by_default =
                !known.contains(name.as_str()) && config.enabled != Some(false);
            enabled_by_default || config.enabled == Some(true)
        });
        let mut names: Vec<&str> = Vec::new();
        let named = (needed.iter()).flat_map(|one| one.repositories.iter().map(String::as_str));
        for name in named.chain(wanted_too.map(|(name, _)| name.as_str())) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let none = RepositoryConfig::default();
        let mut found = Vec::new();
        for name in names {
            let config = self.config.get(name).unwrap_or(&none);
            if config.enabled == Some(false) || unlikely.contains(name) {
                continue;
            }
            or_noted(self.no_password(name, config), &mut wrong);
            let further = || self.further.iter().find(|row| row.name == name);
            let one = match (self.profile.repository_for(name, self.release)).or_else(further) {
                Some(row) => self.known(row, config),
                None if known.contains(name) && config.url.is_none() => {
                    Err(self.elsewhere(name).into())
                }
                None => (self.foreign(name, config, &known).map(Some)).map_err(Into::into),
            };
            found.extend(or_noted(one, &mut wrong).flatten());
        }
        if !wrong.is_empty() {
            return Err(ResolveError::all(wrong));
        }
        for repository in &mut found {
            if repository.priority.is_some() {
                repository.packages = preferred(&repository.name, needed);
            }
        }
        Ok(found)
    }

    /// Returns the configured repositories of the profile that no package needs, except those that a setting enables or disables.
    pub(super) fn unused(&self, needed: &[Needed<'_>]) -> Vec<String> {
        let is_needed = |name: &String| needed.iter().any(|one| one.repositories.contains(name));
        let is_known = |name: &String| self.profile.repository.iter().any(|row| row.name == *name);
        self.config
            .iter()
            .filter(|(name, config)| config.enabled.is_none() && is_known(name) && !is_needed(name))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Rejects a name that is probably a misspelled repository of the profile. Other unknown names are accepted here, because
    /// settings for several distributions may disable a repository that this distribution does not have.
    fn likely(&self, name: &str, known: &BTreeSet<&str>) -> Result<(), ConfigError> {
        let prefix = format!("repositories.{name}.");
        let set = self.layers.provenance();
        let first = set.iter().find(|setting| setting.key.starts_with(&prefix));
        let meant = (known.iter()).find(|one| strsim::damerau_levenshtein(name, one) <= 2);
        match (meant, first) {
            (Some(meant), Some(first)) => Err(self.layers.wrong(
                &first.key,
                format!("the profile has no repository `{name}`"),
                Some(format!("did you mean `repositories.{meant}`?")),
            )),
            _ => Ok(()),
        }
    }

    /// Rejects credentials in a URL, because repository files are world-readable.
    fn no_password(&self, name: &str, config: &RepositoryConfig) -> Result<(), ConfigError> {
        for (key, url) in [("url", &config.url), ("key-url", &config.key_url)] {
            if let Some(url) = url
                && has_login(url.as_str())
            {
                let why =
                    "contains a user or a password, but the repository file is readable by all \
                           users"
                        .to_owned();
                let hint = format!(
                    "remove them from the URL, and add them to {}",
                    self.profile.manager.backend().commands().credentials
                );
                let key = format!("repositories.{name}.{key}");
                return Err(self.layers.wrong(&key, why, Some(hint)));
            }
        }
        Ok(())
    }

    /// Returns a repository of the profile. `None` if the machine already has it, or if it is a part of the distribution
    /// archive and the package sources of the machine are unknown.
    fn known(
        &self,
        row: &RepositoryRow,
        config: &RepositoryConfig,
    ) -> Result<Option<Repository>, ResolveError> {
        let words = |own: &Option<Vec<Word>>, row: &[String]| match own {
            Some(words) => texts(words),
            None => row
                .iter()
                .map(|text| self.placeholders.fill(text))
                .collect(),
        };
        let mut repository = Repository {
            name: row.name.clone(),
            url: self
                .placeholders
                .fill(config.url.as_ref().map_or(row.url.as_str(), Url::as_str)),
            suites: words(&config.suites, &row.suites),
            components: words(&config.components, &row.components),
            architectures: vec![self.placeholders.package_arch.clone()],
            key_url: None,
            fingerprints: Vec::new(),
            keyring: config.keyring.clone().map(AbsolutePath::into_inner),
            key_files: (row.key_files.iter())
                .map(|path| self.placeholders.fill(path).into())
                .collect(),
            priority: config.priority.or(row.priority),
            packages: Vec::new(),
            signed: row.signed,
        };
        if repository.url == DISTRIBUTION {
            return self.of_the_archive(repository);
        }
        if repository.keyring.is_some() {
            return Ok(Some(repository));
        }
        let key = |prefix: &str| format!("repositories.{}.{prefix}", row.name);
        repository.key_url = (config.key_url.as_ref().map(Url::as_str))
            .or(row.key_url.as_deref())
            .map(|text| {
                self.placeholders
                    .fill(&text.replace("{url}", &with_slash(&repository.url)))
            });
        repository.fingerprints = match &config.fingerprints {
            Some(own) => prints(own),
            None => prints(&row.fingerprints),
        };
        if repository.fingerprints.is_empty() && config.fingerprints.is_some() {
            let why = "without a fingerprint, any key would be accepted".to_owned();
            let hint =
                "set the full fingerprint of the key, or a `keyring` on the machine".to_owned();
            return Err(self
                .layers
                .wrong(&key("fingerprints"), why, Some(hint))
                .into());
        }
        match (&row.refused, repository.fingerprints.is_empty()) {
            (Some(why), true) => Err(Refusal::new(
                "repository-key-unknown",
                format!(
                    "repository `{}` for {} {} cannot be trusted: {why}",
                    row.name, self.profile.name, self.release.version_id
                ),
                format!(
                    "verify its key yourself and set `{}` to the full fingerprint, or set `{}` to \
                     a key file on the machine",
                    key("fingerprints"),
                    key("keyring")
                ),
            )
            .into()),
            // A distribution archive at a configured URL, without a key: use the keyrings of the machine.
            _ if repository.fingerprints.is_empty() && row.url == DISTRIBUTION => {
                repository.key_url = None;
                Ok(Some(repository))
            }
            _ => Ok(Some(repository)),
        }
    }

    /// Returns further components of the distribution archive, from the mirror that the machine uses.
    fn of_the_archive(&self, spec: Repository) -> Result<Option<Repository>, ResolveError> {
        let Some(sources) = self.sources else {
            return Ok(None);
        };
        let backend = self.profile.manager.backend();
        let found = backend.further(sources, &spec.suites, &spec.components);
        let further = found.map_err(|error| self.no_archive(&spec, &error))?;
        Ok(further.map(|further| Repository {
            url: further.url,
            suites: further.suites,
            components: further.components,
            keyring: spec.keyring.or(further.keyring.map(Utf8PathBuf::from)),
            ..spec
        }))
    }

    fn no_archive(&self, spec: &Repository, error: &ArchiveError) -> Refusal {
        let key = |name: &str| format!("`repositories.{}.{name}`", spec.name);
        let hint = match error {
            ArchiveError::NoEntry { .. } => format!(
                "packages of {} are required: set {} to the URL of the archive",
                spec.components.join(", "),
                key("url")
            ),
            ArchiveError::NoKeyFile { .. } => format!(
                "move the key to a separate file and configure its path there and in {}",
                key("keyring")
            ),
        };
        Refusal::new("archive-unknown", error.to_string(), hint)
    }

    /// Rejects a repository that the profile has only for other releases.
    fn elsewhere(&self, name: &str) -> Refusal {
        Refusal::new(
            "repository-not-offered",
            format!(
                "repository `{name}` is not available for {} {}",
                self.profile.name, self.release.version_id
            ),
            format!("set `repositories.{name}.url` and its key, or remove the setting"),
        )
    }

    /// Returns a repository that the configuration adds.
    fn foreign(
        &self,
        name: &str,
        config: &RepositoryConfig,
        known: &BTreeSet<&str>,
    ) -> Result<Repository, ConfigError> {
        let key = |part: &str| format!("repositories.{name}.{part}");
        let set = self.layers.provenance();
        let prefix = key("");
        let first = set.iter().find(|setting| setting.key.starts_with(&prefix));
        let wrong = |missing: &str| {
            let at = first.map_or_else(|| key(missing), |setting| setting.key.clone());
            let why = format!(
                "the profile has no repository `{name}`, so `{}` is also required",
                key(missing)
            );
            let hint = nearest(name, known.iter().copied())
                .map(|nearest| format!("did you mean `repositories.{nearest}`?"));
            self.layers.wrong(&at, why, hint)
        };
        let url = config.url.as_ref().ok_or_else(|| wrong("url"))?;
        let has_key = config.keyring.is_some() || config.key_url.is_some();
        if !has_key {
            return Err(wrong("key-url"));
        }
        let fingerprints = prints(config.fingerprints.as_deref().unwrap_or_default());
        if config.keyring.is_none() && fingerprints.is_empty() {
            return Err(wrong("fingerprints"));
        }
        let suites = config.suites.as_deref().map(texts).unwrap_or_default();
        if self.profile.manager.backend().needs_suites() && suites.is_empty() {
            return Err(wrong("suites"));
        }
        let url = self.placeholders.fill(url.as_str());
        Ok(Repository {
            name: name.to_owned(),
            suites,
            components: config.components.as_deref().map(texts).unwrap_or_default(),
            architectures: vec![self.placeholders.package_arch.clone()],
            key_url: (config.keyring.is_none())
                .then(|| {
                    config
                        .key_url
                        .as_ref()
                        .map(|key| self.placeholders.fill(key.as_str()))
                })
                .flatten(),
            fingerprints,
            keyring: config.keyring.clone().map(AbsolutePath::into_inner),
            key_files: Vec::new(),
            priority: config.priority,
            packages: Vec::new(),
            signed: Signed::default(),
            url,
        })
    }
}

/// Returns the packages to which the priority of a repository applies: those that need the repository, or all required
/// packages if none of them needs it.
fn preferred(name: &str, needed: &[Needed<'_>]) -> Vec<String> {
    let for_it = |one: &&Needed<'_>| one.repositories.iter().any(|other| other == name);
    let any = needed.iter().any(|one| for_it(&one));
    let mut packages: Vec<String> = (needed.iter())
        .filter(|one| !any || for_it(one))
        .flat_map(|one| one.packages.iter().cloned())
        .collect();
    packages.sort();
    packages.dedup();
    packages
}

fn with_slash(url: &str) -> String {
    format!("{}/", url.trim_end_matches('/'))
}

fn texts(words: &[Word]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn prints(fingerprints: &[Fingerprint]) -> Vec<String> {
    fingerprints.iter().map(ToString::to_string).collect()
}
