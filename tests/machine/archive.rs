//! The packages on the simulated mirrors, and apt's candidate selection.

use std::collections::BTreeMap;

use camino::Utf8Path;
use debversion::Version;
use gpu_bootstrap::{
    host::{
        Cmd, Output, ReadFiles,
        digest::sha256,
        fake::{FakeFiles, failed, ok},
    },
    model::pattern,
    tools::{
        openpgp,
        packages::{Manager, SourceEntry},
    },
};
use serde::Deserialize;

use crate::dnf::{CACHE, HASH, primary};
use crate::prebuilt;
use crate::state::{State, exists, list, on, text};

/// All downloadable packages.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Archive {
    #[serde(default, rename = "repo")]
    pub repos: Vec<Repo>,
    #[serde(default, rename = "package")]
    pub packages: Vec<Package>,
    /// Kernels, each for its packages.
    #[serde(default, rename = "kernel")]
    pub kernels: Vec<Kernel>,
    /// Names of files with more packages and repositories.
    #[serde(default)]
    pub with: Vec<String>,
}

/// One suite and component of one mirror.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Repo {
    pub name: String,
    pub url: String,
    #[serde(default)]
    pub suites: Vec<String>,
    #[serde(default)]
    pub component: Option<String>,
    /// Fingerprint of the signing key. Without one, the distribution keyring verifies the list.
    #[serde(default)]
    pub key: Option<String>,
}

/// A package with the effects of its installation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub repo: String,
    pub maintainer: String,
    /// `name`, `a | b`, or `name = self` for the same version as this package.
    pub depends: Vec<String>,
    pub recommends: Vec<String>,
    pub conflicts: Vec<String>,
    pub provides: Vec<String>,
    pub files: Vec<String>,
    pub contents: BTreeMap<String, String>,
    pub links: BTreeMap<String, String>,
    pub conffiles: BTreeMap<String, String>,
    /// Enabled and started by the package script.
    pub units: Vec<String>,
    /// The DKMS module in the package.
    pub dkms: Option<String>,
    /// The packaged driver module: kernel and driver version.
    pub module: Option<(String, String)>,
    /// `MODULE:STREAM` if the package is in a stream of a module.
    pub stream: String,
}

/// One kernel of an archive, expanded to its packages.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Kernel {
    /// `6.8.0-1067-gcp`.
    pub release: String,
    /// The version of all its packages.
    pub version: String,
    /// The archive has only the headers, without image and modules.
    #[serde(default)]
    pub only_headers: bool,
    /// Packaged modules: `580-server-open=580.173.02`.
    #[serde(default)]
    pub modules: Vec<String>,
    /// The series with metapackages that depend on it, such as `gcp-6.8`.
    #[serde(default)]
    pub newest_of: Vec<String>,
}

impl Kernel {
    /// Expands to packages with Ubuntu's names.
    fn packages(&self) -> Vec<Package> {
        let Self {
            release, version, ..
        } = self;
        let package = |name: String, repo: &str, depends: Vec<String>| Package {
            name,
            version: version.clone(),
            repo: repo.to_owned(),
            depends,
            ..Package::default()
        };
        let headers = package(format!("linux-headers-{release}"), "main", Vec::new());
        let directory = format!("/usr/src/linux-headers-{release}");
        let mut found = vec![Package {
            files: vec![format!("{directory}/Makefile")],
            links: BTreeMap::from([(format!("/lib/modules/{release}/build"), directory)]),
            ..headers
        }];
        if self.only_headers {
            return found;
        }
        found.push(package(
            format!("linux-modules-{release}"),
            "main",
            Vec::new(),
        ));
        found.push(package(
            format!("linux-image-{release}"),
            "main",
            vec![format!("linux-modules-{release}")],
        ));
        for (branch, driver) in self.modules.iter().filter_map(|text| text.split_once('=')) {
            let name = format!("linux-modules-nvidia-{branch}-{release}");
            let common = branch.trim_end_matches("-open");
            found.push(Package {
                module: Some((release.clone(), driver.to_owned())),
                ..package(
                    name.clone(),
                    "restricted",
                    vec![
                        format!("linux-image-{release}"),
                        format!("nvidia-kernel-common-{common}"),
                    ],
                )
            });
            let meta = |series: &String| {
                package(
                    format!("linux-modules-nvidia-{branch}-{series}"),
                    "restricted",
                    vec![name.clone()],
                )
            };
            found.extend(self.newest_of.iter().map(meta));
        }
        found.extend(self.newest_of.iter().map(|series| {
            package(
                format!("linux-image-{series}"),
                "main",
                vec![format!("linux-image-{release}")],
            )
        }));
        found
    }
}

/// A package in a downloaded list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offered {
    pub version: String,
    pub repo: String,
    pub priority: i32,
    /// The priority of the repository, without records for the package.
    pub rank: i32,
}

/// The content of a package file.
pub fn content(name: &str, version: &str) -> String {
    format!("{name} {version}")
}

/// The SHA-256 of a package file.
pub fn digest(name: &str, version: &str) -> String {
    sha256(content(name, version).as_bytes())
}

/// The directory of the lists.
pub const LISTS: &str = "/var/lib/apt/lists";

impl Archive {
    /// The archive for an architecture, converted from the `x86_64` files.
    pub fn load(name: &str, arch: &str) -> Self {
        let path = format!(
            "{}/tests/machine/archives/{name}.toml",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let text = on(arch, &text);
        let mut found: Self = toml::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
        let of_kernels: Vec<Package> = found.kernels.iter().flat_map(Kernel::packages).collect();
        found.packages.extend(of_kernels);
        for other in found.with.clone() {
            let other = Self::load(&other, arch);
            found.repos.extend(other.repos);
            found.packages.extend(other.packages);
        }
        found
    }

    pub fn package(&self, name: &str, version: &str) -> &Package {
        self.packages
            .iter()
            .find(|package| package.name == name && package.version == version)
            .unwrap_or_else(|| panic!("the archive has no {name} {version}"))
    }

    /// The newest version, regardless of the package lists, because the machine was installed from the archive.
    pub fn newest(&self, name: &str) -> &Package {
        self.packages
            .iter()
            .filter(|package| package.name == name)
            .max_by(|a, b| version(&a.version).cmp(&version(&b.version)))
            .unwrap_or_else(|| panic!("the archive has no {name}"))
    }

    /// Removes packages from the mirrors and from apt's downloaded lists.
    pub fn withdraw(&mut self, files: &FakeFiles, spec: &str) {
        (self.packages).retain(|package| !selects(spec, &package.name, &package.version));
        forget(files, spec);
    }

    /// Replaces a version with a newer one, on the mirrors and in the downloaded lists.
    pub fn supersede(&mut self, files: &FakeFiles, old: &str, new: &str) {
        let newer = |text: &str| text.replace(old, new);
        for package in &mut self.packages {
            package.version = newer(&package.version);
            package.depends = package.depends.iter().map(|one| newer(one)).collect();
            package.files = package.files.iter().map(|one| newer(one)).collect();
            package.contents = (package.contents.iter())
                .map(|(path, text)| (newer(path), newer(text)))
                .collect();
            package.links = (package.links.iter())
                .map(|(path, to)| (newer(path), newer(to)))
                .collect();
        }
        for directory in [LISTS, CACHE] {
            for name in list(files, directory) {
                let path = match name.strip_suffix(HASH) {
                    Some(id) => primary(id),
                    None => format!("{directory}/{name}"),
                };
                if let Some(whole) = text(files, &path) {
                    files.put(&path, newer(&whole));
                }
            }
        }
    }

    fn repo(&self, uri: &str, suite: &str, component: Option<&str>) -> Option<&Repo> {
        self.repos.iter().find(|repo| {
            repo.url.trim_end_matches('/') == uri.trim_end_matches('/')
                && repo.suites.iter().any(|s| s == suite)
                && repo.component.as_deref() == component
        })
    }

    /// Downloads the lists of every source of the machine. The first mirror is the one with an incomplete sync.
    pub fn update(&self, files: &FakeFiles, unreachable: Option<&str>, in_sync: bool) -> Output {
        let (mut said, mut errors) = (String::new(), String::new());
        let mut entries = (Manager::Apt.backend().entries(files)).expect("sources can be read");
        entries.retain(|entry| entry.binary);
        let first = entries.first().map(|entry| entry.uri.clone());
        for (at, entry) in entries.iter().enumerate() {
            let torn = in_sync && first.as_ref() == Some(&entry.uri);
            if let Err(failure) = self.update_one(files, entry, unreachable, torn) {
                let Failure { file, why, words } = failure;
                let (uri, suite) = (&entry.uri, &entry.suite);
                said += &format!("Err:{} {uri} {suite} {file}\n  {why}\n", at + 1);
                errors += &words;
            }
        }
        if errors.is_empty() {
            return ok("Reading package lists...\n");
        }
        if errors.contains("E: Failed to fetch ") {
            errors += "E: Some index files failed to download. They have been ignored, or old ones used instead.\n";
        }
        Output {
            stdout: said,
            ..failed(100, errors)
        }
    }

    fn update_one(
        &self,
        files: &FakeFiles,
        entry: &SourceEntry,
        unreachable: Option<&str>,
        in_sync: bool,
    ) -> Result<(), Failure> {
        let (uri, suite) = (&entry.uri, &entry.suite);
        let not_fetched = |file: &str, path: &str, why: &str| Failure {
            file: file.to_owned(),
            why: why.to_owned(),
            words: format!("E: Failed to fetch {uri}/dists/{suite}/{path}  {why}\n"),
        };
        if let Some(why) = unreachable {
            return Err(not_fetched("InRelease", "InRelease", why));
        }
        let components: Vec<Option<&str>> = match entry.components.is_empty() {
            true => vec![None],
            false => entry.components.iter().map(|c| Some(c.as_str())).collect(),
        };
        for component in components {
            let Some(repo) = self.repo(uri, suite, component) else {
                return Err(Failure {
                    file: "Release".to_owned(),
                    why: "404  Not Found".to_owned(),
                    words: format!(
                        "E: The repository '{uri} {suite} Release' does not have a Release file.\n"
                    ),
                });
            };
            if let Err(why) = signed(files, repo, entry.signed_by.as_deref()) {
                let place = format!("{uri} {suite} InRelease");
                // Existing lists are kept.
                if exists(files, &list_of(repo, suite)) {
                    let mut failure = not_fetched("InRelease", "InRelease", &why);
                    failure.words = format!(
                        "W: An error occurred during the signature verification. The repository is \
                         not updated and the previous index files will be used. GPG error: {place}: \
                         {why}\n{}",
                        failure.words
                    );
                    return Err(failure);
                }
                let words = format!(
                    "W: GPG error: {place}: {why}\nE: The repository '{place}' is not signed.\n"
                );
                let file = "InRelease".to_owned();
                return Err(Failure { file, why, words });
            }
            if in_sync {
                let component = component.unwrap_or_default();
                return Err(not_fetched(
                    &format!("{component} amd64 Packages"),
                    &format!("{component}/binary-amd64/Packages.gz"),
                    "File has unexpected size (8783164 != 8792560). Mirror sync in progress?",
                ));
            }
            self.fetch(files, repo, suite);
        }
        Ok(())
    }

    fn fetch(&self, files: &FakeFiles, repo: &Repo, suite: &str) {
        // In this simulation, a suite contains its updates.
        let packages = self
            .packages
            .iter()
            .filter(|package| package.repo == repo.name && repo.suites[0] == suite);
        let mut content = format!("Repo: {}\nUrl: {}\n", repo.name, repo.url);
        for package in packages {
            content.push_str(&format!(
                "\nPackage: {}\nVersion: {}\n",
                package.name, package.version
            ));
        }
        files.put(&list_of(repo, suite), content);
    }
}

/// A package of a scenario: `NAME` or `NAME=VERSION`, both patterns.
fn selects(spec: &str, name: &str, version: &str) -> bool {
    let (names, versions) = spec.split_once('=').unwrap_or((spec, "*"));
    pattern::matches(names, name) && pattern::matches(versions, version)
}

/// Removes packages from apt's downloaded lists.
pub fn forget(files: &FakeFiles, spec: &str) {
    let is_selected = |paragraph: &str| {
        let value = |key: &str| paragraph.lines().find_map(|line| line.strip_prefix(key));
        let package = value("Package: ").zip(value("Version: "));
        package.is_some_and(|(name, version)| selects(spec, name, version))
    };
    let mut removed = 0;
    for name in list(files, LISTS) {
        let path = format!("{LISTS}/{name}");
        let whole = text(files, &path).unwrap_or_default();
        let all: Vec<&str> = whole.split("\n\n").collect();
        let kept: Vec<&str> = (all.iter().copied())
            .filter(|paragraph| !is_selected(paragraph))
            .collect();
        removed += all.len() - kept.len();
        files.put(&path, kept.join("\n\n"));
    }
    assert!(removed > 0, "no list contains `{spec}`");
}

/// A failed source: apt's name for the file, the reason, and the error output.
struct Failure {
    file: String,
    why: String,
    words: String,
}

/// The list of a suite.
fn list_of(repo: &Repo, suite: &str) -> String {
    let host = repo.url.split("://").last().unwrap_or_default();
    let name = format!(
        "{}_dists_{suite}_{}_binary-amd64_Packages",
        host.trim_end_matches('/'),
        repo.component.as_deref().unwrap_or("flat")
    );
    format!("{LISTS}/{}", name.replace('/', "_"))
}

/// The names of all packages in the lists.
pub fn names(files: &FakeFiles) -> Vec<String> {
    let mut found: Vec<String> = list(files, LISTS)
        .iter()
        .filter_map(|file| text(files, &format!("{LISTS}/{file}")))
        .flat_map(|lists| {
            (lists.lines())
                .filter_map(|line| line.strip_prefix("Package: ").map(str::to_owned))
                .collect::<Vec<_>>()
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// All versions of a package in the lists, newest first, with their priorities by the machine's
/// preferences.
pub fn offers(files: &FakeFiles, name: &str) -> Vec<Offered> {
    let mut found = Vec::new();
    let preferences = preferences(files);
    for file in list(files, LISTS) {
        let content = text(files, &format!("{LISTS}/{file}")).unwrap_or_default();
        let mut paragraphs = content.split("\n\n");
        let head = paragraphs.next().unwrap_or_default();
        let repo = field(head, "Repo").unwrap_or_default();
        let url = field(head, "Url").unwrap_or_default();
        for paragraph in paragraphs {
            if field(paragraph, "Package").as_deref() == Some(name) {
                let version = field(paragraph, "Version").expect("a version in a list");
                let of_it: Vec<&Preference> = (preferences.iter())
                    .filter(|p| p.of(name, &version, &url))
                    .collect();
                let priority = of_it.first().map_or(500, |p| p.priority);
                let general = of_it.iter().find(|p| p.is_general());
                let rank = general.map_or(500, |p| p.priority);
                found.push(Offered {
                    version,
                    repo: repo.clone(),
                    priority,
                    rank,
                });
            }
        }
    }
    found.extend(
        (prebuilt::packages(files).into_iter())
            .filter(|package| package.name == name)
            .map(|package| Offered {
                version: package.version,
                repo: package.repo,
                priority: 500,
                rank: 500,
            }),
    );
    found.sort_by_key(|offer| std::cmp::Reverse(version(&offer.version)));
    found.dedup();
    found
}

/// `apt-cache show`: the dependency fields that gpu-bootstrap reads.
pub fn show(cmd: &Cmd, files: &FakeFiles, state: &State) -> Output {
    let mut said = String::new();
    for name in cmd.args.iter().skip_while(|arg| *arg != "--").skip(1) {
        let Some(offer) = candidate(files, name, None) else {
            continue;
        };
        let package = state.archive.package(name, &offer.version);
        let own = format!(" (= {})", package.version);
        let mut depends: Vec<String> = (package.depends.iter())
            .map(|one| one.replace(" = self", &own))
            .collect();
        let common = (depends.iter_mut()).find(|name| name.starts_with("nvidia-kernel-common-"));
        if let (Some((_, driver)), Some(common)) = (&package.module, common) {
            *common = format!("{common} (>= {driver})");
        }
        said.push_str(&format!(
            "Package: {name}\nVersion: {}\nDepends: {}\nConflicts: {}\n\n",
            package.version,
            depends.join(", "),
            package.conflicts.join(", ")
        ));
    }
    match said.is_empty() {
        true => failed(100, "E: No packages found\n"),
        false => ok(said),
    }
}

/// The version that `apt-get install NAME` selects: the newest with the highest priority. Versions with a negative priority are
/// skipped, and so are versions older than the installed one, unless the priority is above 1000.
pub fn candidate(files: &FakeFiles, name: &str, installed: Option<&str>) -> Option<Offered> {
    let best = offers(files, name)
        .into_iter()
        .filter(|offer| offer.priority >= 0)
        .min_by(|a, b| {
            b.priority
                .cmp(&a.priority)
                .then(version(&b.version).cmp(&version(&a.version)))
        });
    match (installed, best) {
        (Some(now), Some(best))
            if version(&best.version) < version(now) && best.priority <= 1000 =>
        {
            Some(Offered {
                version: now.to_owned(),
                repo: "installed".into(),
                priority: 100,
                rank: 100,
            })
        }
        (Some(now), None) => Some(Offered {
            version: now.to_owned(),
            repo: "installed".into(),
            priority: 100,
            rank: 100,
        }),
        (_, best) => best,
    }
}

/// The backend compares rpm versions. Here only the newest version in an archive is needed.
pub fn version(text: &str) -> Version {
    text.replace('_', ".")
        .parse()
        .unwrap_or_else(|_| panic!("{text} is not a Debian version"))
}

struct Preference {
    packages: Vec<String>,
    pin: Pin,
    priority: i32,
}

enum Pin {
    Version(String),
    /// The host name of the mirror.
    Origin(String),
}

impl Preference {
    fn of(&self, name: &str, version: &str, url: &str) -> bool {
        self.packages.iter().any(|p| pattern::matches(p, name))
            && match &self.pin {
                Pin::Version(wanted) => pattern::matches(wanted, version),
                Pin::Origin(host) => url.split('/').nth(2) == Some(host),
            }
    }

    /// Specific records take precedence over general ones, see apt_preferences(5).
    fn is_general(&self) -> bool {
        self.packages == ["*"]
    }
}

fn preferences(files: &FakeFiles) -> Vec<Preference> {
    const DIRECTORY: &str = "/etc/apt/preferences.d";
    let mut found = Vec::new();
    for name in list(files, DIRECTORY) {
        let content = text(files, &format!("{DIRECTORY}/{name}")).unwrap_or_default();
        for paragraph in content.split("\n\n").filter(|p| p.contains("Package:")) {
            let pin = field(paragraph, "Pin").expect("a preference has a pin");
            let pin = match pin.split_once(' ') {
                Some(("version", version)) => Pin::Version(version.to_owned()),
                Some(("origin", host)) => Pin::Origin(host.trim_matches('"').to_owned()),
                _ => panic!("the simulated apt does not support `Pin: {pin}`"),
            };
            found.push(Preference {
                packages: field(paragraph, "Package")
                    .expect("a preference has packages")
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
                pin,
                priority: field(paragraph, "Pin-Priority")
                    .and_then(|p| p.parse().ok())
                    .expect("a preference has a priority"),
            });
        }
    }
    found.sort_by_key(Preference::is_general);
    found
}

/// The reason a signature cannot be verified.
fn signed(files: &FakeFiles, repo: &Repo, keyring: Option<&str>) -> Result<(), String> {
    let Some(key) = &repo.key else {
        return Ok(());
    };
    let keys = keyring
        .and_then(|path| {
            files
                .read(Utf8Path::new(path))
                .expect("a keyring can be read")
        })
        .and_then(|bytes| openpgp::parse(&bytes).ok())
        .map_or_else(Vec::new, |file| file.keys);
    if keys.iter().any(|found| found.fingerprint == *key) {
        Ok(())
    } else {
        Err(format!(
            "The following signatures couldn't be verified because the public key is not available: \
             NO_PUBKEY {}",
            &key[24..]
        ))
    }
}

pub fn field(paragraph: &str, key: &str) -> Option<String> {
    paragraph
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}
