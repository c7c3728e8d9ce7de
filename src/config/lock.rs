//! The lock file: the versions of a validated node, so that other nodes get the same ones although the repositories have moved
//! on. `gpu-bootstrap lock` writes it. `install`, `plan` and `check` read it as an additional settings source: it selects the
//! driver like [`SettingSources::only_driver`](super::sources::SettingSources::only_driver), and pins the packages of the desired
//! state. The versions of dependencies are in [`LockedPackages`], which the package transactions enforce.
//!
//! The file is TOML with one package per line, sorted by name, so that a diff shows the versions that have changed. The SHA-256 of
//! a package file comes from the package lists, which the vendor has signed. A line without one has only a version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde::Deserialize;
use toml::{Table, Value};

use crate::{
    compat::{matrix::Matrix, security},
    config::{
        desired::{Desired, DriverSpec, Existing, LockedPackages, PackageSpec, Purpose},
        error::{ConfigError, Refusal},
        kernel::built_for,
        location::Location,
    },
    facts::{
        Facts,
        detection::{carries_driver, is_driver_part},
    },
    host::digest::{is_sha256, sha256},
    model::{
        text::beginning,
        version::{DriverVersion, KernelVersion},
    },
    tools::oci,
};

/// The version of the file format.
pub const FORMAT: i64 = 1;

/// The first lines of each file.
const HEADER: &str = "\
# The versions of a validated node, written by `gpu-bootstrap lock`.
# Install a node with them: gpu-bootstrap install --lock FILE
";

/// The limit of a package name or version in bytes.
const LONGEST: usize = 255;

/// Separates the version of a package from its digest.
const SHA256: &str = " sha256:";

/// A lock file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lock {
    /// The version of the file format, [`FORMAT`].
    lock: i64,
    pub made_by: MadeBy,
    pub system: LockedSystem,
    /// The selected driver. `None` on a node without a driver.
    pub driver: Option<LockedDriver>,
    /// The digests of the images that validate GPUs in containers, by image name.
    #[serde(default)]
    pub images: BTreeMap<String, String>,
    /// The accepted key fingerprints of each repository, by repository name.
    #[serde(default)]
    pub repositories: BTreeMap<String, Vec<String>>,
    /// The versions of the packages that gpu-bootstrap selected.
    pub packages: BTreeMap<String, String>,
    /// The versions of the packages that were installed with them.
    #[serde(default)]
    pub dependencies: BTreeMap<String, String>,
    /// The SHA-256 of the packages in lower-case hex, by package name. In the file, it is part of the version.
    #[serde(skip)]
    pub digests: BTreeMap<String, String>,
}

/// The origin of a lock file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MadeBy {
    /// The version of gpu-bootstrap.
    pub gpu_bootstrap: String,
    /// The date of the compatibility matrix.
    pub matrix: String,
    /// The SHA-256 of the administrator's matrix. `None` for the built-in one, which belongs to the version.
    pub matrix_sha256: Option<String>,
}

/// The system that a lock file is for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LockedSystem {
    /// `ID` of `/etc/os-release`.
    pub os: String,
    /// `VERSION_ID` of `/etc/os-release`.
    pub release: String,
    /// For example `x86_64`.
    pub arch: String,
    /// The running kernel.
    pub kernel: KernelVersion,
}

/// The settings that select the driver of a lock file, and its kernel module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LockedDriver {
    pub source: String,
    pub flavor: String,
    pub branch: String,
    /// The driver version, which the packages determine.
    pub version: Option<String>,
    pub build: Option<String>,
    /// DKMS name and version of the module source. `None` for a precompiled module, which is a package.
    pub module: Option<String>,
}

impl LockedDriver {
    /// Returns the settings that select the driver, in the form `KEY=VALUE`.
    pub fn settings(&self) -> Vec<String> {
        let all = [
            ("source", Some(&self.source)),
            ("flavor", Some(&self.flavor)),
            ("branch", Some(&self.branch)),
            ("build", self.build.as_ref()),
        ];
        (all.into_iter())
            .filter_map(|(key, value)| Some(format!("driver.{key}={}", value?)))
            .collect()
    }

    /// Returns the driver that these settings (`driver.KEY=VALUE`) select.
    pub fn of(settings: &[String]) -> Self {
        let get = |key: &str| {
            (settings.iter())
                .filter_map(|setting| setting.strip_prefix("driver."))
                .filter_map(|setting| setting.split_once('='))
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value.to_owned())
        };
        Self {
            source: get("source").unwrap_or_default(),
            flavor: get("flavor").unwrap_or_default(),
            branch: get("branch").unwrap_or_default(),
            version: None,
            build: get("build"),
            module: None,
        }
    }
}

impl Lock {
    /// Creates a lock.
    pub fn new(
        made_by: MadeBy,
        system: LockedSystem,
        driver: Option<LockedDriver>,
        [packages, dependencies]: [BTreeMap<String, String>; 2],
    ) -> Self {
        Self {
            lock: FORMAT,
            made_by,
            system,
            driver,
            images: BTreeMap::new(),
            repositories: BTreeMap::new(),
            packages,
            dependencies,
            digests: BTreeMap::new(),
        }
    }

    /// Returns all packages with their versions.
    pub fn all(&self) -> impl Iterator<Item = (&String, &String)> {
        self.packages.iter().chain(&self.dependencies)
    }

    /// Parses a lock file. `file` is its name in errors.
    ///
    /// # Errors
    /// If the text is not a lock file of this format. The error contains the line and the key.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let failed = |error: &toml::de::Error| unreadable(file, text, error);
        let table: Table = toml::from_str(text).map_err(|error| failed(&error))?;
        let format = table.get("lock");
        if format.and_then(Value::as_integer) != Some(FORMAT) {
            let found = format.map_or_else(|| "unset".to_owned(), ToString::to_string);
            let why = format!("this version of gpu-bootstrap reads format {FORMAT}");
            let hint = "specify a file of `gpu-bootstrap lock`, and use the version that wrote it, or a newer one";
            return Err(wrong((file, text), "lock", found, why, Some(hint)));
        }
        let mut lock: Self = toml::from_str(text).map_err(|error| failed(&error))?;
        for (name, value) in lock.packages.iter_mut().chain(&mut lock.dependencies) {
            let parts = value.split_once(SHA256);
            let parts = parts.map(|(version, digest)| (version.to_owned(), digest.to_owned()));
            if let Some((version, digest)) = parts {
                *value = version;
                lock.digests.insert(name.clone(), digest);
            }
        }
        lock.check(file, text)?;
        Ok(lock)
    }

    /// Rejects names and versions that no package manager has, because they become arguments of a command.
    fn check(&self, file: &str, text: &str) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: &str, why: &str| {
            let value = Value::String(beginning(value, LONGEST)).to_string();
            Err(wrong((file, text), key, value, why.to_owned(), None))
        };
        if self.packages.is_empty() {
            return wrong("packages", "", "the table lists no package");
        }
        for (name, version) in self.all() {
            if !is_word(name, "+-._:") {
                return wrong(name, version, "the key is not a package name");
            }
            if !is_word(version, "+-._:~^") {
                return wrong(name, version, "the value is not a package version");
            }
        }
        for (name, digest) in &self.digests {
            if !is_sha256(digest) {
                let why = "the digest is not `sha256:` and 64 lower-case hexadecimal digits";
                return wrong(name, digest, why);
            }
        }
        for (image, digest) in &self.images {
            if !oci::is_digest(digest) {
                let why =
                    "the value is not a digest (`sha256:` and 64 lower-case hexadecimal digits)";
                return wrong(image, digest, why);
            }
        }
        Ok(())
    }

    /// Returns the text of the file.
    pub fn render(&self) -> String {
        let mut text = format!("{HEADER}lock = {}\n", self.lock);
        let some = |value: &Option<String>| value.as_deref().map(string);
        let made_by = &self.made_by;
        table(
            &mut text,
            "made-by",
            [
                ("gpu-bootstrap", Some(string(&made_by.gpu_bootstrap))),
                ("matrix", Some(string(&made_by.matrix))),
                ("matrix-sha256", some(&made_by.matrix_sha256)),
            ],
        );
        let system = &self.system;
        table(
            &mut text,
            "system",
            [
                ("os", Some(string(&system.os))),
                ("release", Some(string(&system.release))),
                ("arch", Some(string(&system.arch))),
                ("kernel", Some(string(system.kernel.as_str()))),
            ],
        );
        if let Some(driver) = &self.driver {
            table(
                &mut text,
                "driver",
                [
                    ("source", Some(string(&driver.source))),
                    ("flavor", Some(string(&driver.flavor))),
                    ("branch", Some(string(&driver.branch))),
                    ("version", some(&driver.version)),
                    ("build", some(&driver.build)),
                    ("module", some(&driver.module)),
                ],
            );
        }
        let pairs = |(key, value): (&'_ String, &'_ String)| (key.clone(), Some(string(value)));
        if !self.images.is_empty() {
            table(&mut text, "images", self.images.iter().map(pairs));
        }
        if !self.repositories.is_empty() {
            let list = |(name, keys): (&String, &Vec<String>)| {
                let keys: Vec<String> = keys.iter().map(|key| string(key)).collect();
                (name.clone(), Some(format!("[{}]", keys.join(", "))))
            };
            table(
                &mut text,
                "repositories",
                self.repositories.iter().map(list),
            );
        }
        let package = |(name, version): (&'_ String, &'_ String)| {
            let value = match self.digests.get(name) {
                Some(digest) => string(&format!("{version}{SHA256}{digest}")),
                None => string(version),
            };
            (name.clone(), Some(value))
        };
        table(&mut text, "packages", self.packages.iter().map(package));
        if !self.dependencies.is_empty() {
            let dependencies = self.dependencies.iter().map(package);
            table(&mut text, "dependencies", dependencies);
        }
        text
    }

    /// Returns the SHA-256 of the file content without comments and formatting.
    pub fn digest(&self) -> String {
        sha256(self.render().as_bytes())
    }

    /// Rejects a lock for another system. An unknown property of the machine is not compared.
    ///
    /// # Errors
    /// The differences.
    pub(super) fn accepts(&self, facts: &Facts, image: bool) -> Result<(), Refusal> {
        let system = &self.system;
        let mut differences = Vec::new();
        let mut compare = |what: &str, locked: String, here: Option<String>| {
            if let Some(here) = here.filter(|here| *here != locked) {
                differences.push(format!(
                    "{what} {locked} in the lock, {here} on this machine"
                ));
            }
        };
        let os = facts.os.as_ref().and_then(|os| {
            let release = os.version_id.as_ref()?;
            Some(format!("{} {release}", os.id))
        });
        compare("system", format!("{} {}", system.os, system.release), os);
        compare(
            "architecture",
            system.arch.clone(),
            facts.kernel.arch.clone(),
        );
        let series = |kernel: &KernelVersion| {
            let (major, minor) = kernel.series();
            format!("{major}.{minor}")
        };
        // While an image is built in a chroot, the running kernel belongs to the host.
        let running = facts.kernel.running.as_ref().filter(|_| !image);
        compare("kernel series", series(&system.kernel), running.map(series));
        if differences.is_empty() {
            return Ok(());
        }
        Err(Refusal::new(
            "lock-of-another-system",
            format!(
                "the lock file is for another system: {}",
                differences.join("; ")
            ),
            "use a lock file that `gpu-bootstrap lock` wrote on a node with this system",
        ))
    }

    /// Returns a warning if the locked driver lacks security fixes. The version is installed anyway, because it was validated.
    pub(super) fn lacks_fixes(&self, matrix: &Matrix) -> Option<String> {
        let version = self.driver.as_ref()?.version.as_ref()?;
        let version: DriverVersion = version.parse().ok()?;
        let lacking = security::of_driver(matrix, &version)?;
        Some(format!("the lock file: {}", lacking.why))
    }

    /// Returns a warning if the machine has another kernel of the same series, because the packages of a kernel are then not
    /// locked.
    pub(super) fn other_kernel(&self, facts: &Facts, image: bool) -> Option<String> {
        let running = facts.kernel.running.as_ref().filter(|_| !image)?;
        (*running != self.system.kernel).then(|| {
            format!(
                "the lock file is from a node with kernel {}, and this machine runs {running}: the packages of the kernel are not \
                 locked",
                self.system.kernel
            )
        })
    }

    /// Pins the packages of the desired state to the locked versions, like a rollback (`engine/rollback.rs`), the keys of its
    /// repositories, and the validation image.
    ///
    /// # Errors
    /// If the lock lacks a required package, or a repository has none of the locked keys.
    pub(super) fn pin(&self, desired: &mut Desired, facts: &Facts) -> Result<(), Refusal> {
        if (desired.driver.as_ref()).is_some_and(|driver| driver.prebuilt_instead_of.is_some()) {
            return Err(Refusal::new(
                "lock-prebuilt-only",
                "a lock file and `driver.prebuilt.only` cannot be combined: the packages with prebuilt modules are built \
                 on each machine"
                    .to_owned(),
                "set `driver.version` instead, or remove `driver.prebuilt.only`",
            ));
        }
        let locked = self.locked(desired, facts);
        let backend = desired.packages.manager.backend();
        let lacking: Vec<&str> = (locked.required.iter())
            .filter(|name| !locked.allows(backend, name))
            .map(String::as_str)
            .collect();
        if !lacking.is_empty() {
            return Err(Refusal::new(
                "lock-incomplete",
                format!(
                    "the lock file lacks packages that the settings and the GPUs of this machine require: {}",
                    lacking.join(", ")
                ),
                "create the lock file on a node with the same settings and the same type of GPUs",
            ));
        }
        for repository in &mut desired.repositories {
            let Some(keys) = self.repositories.get(&repository.name) else {
                continue;
            };
            if repository.fingerprints.is_empty() {
                continue;
            }
            let before = repository.fingerprints.join(", ");
            repository.fingerprints.retain(|key| keys.contains(key));
            if repository.fingerprints.is_empty() {
                return Err(Refusal::new(
                    "lock-key",
                    format!(
                        "the repository {} has the keys {before}, but the lock file contains {}",
                        repository.name,
                        keys.join(", ")
                    ),
                    "the vendor has replaced its key: create a new lock file with `gpu-bootstrap lock`",
                ));
            }
        }
        if let Some(image) = &mut desired.validation.image {
            let name = image.split('@').next().unwrap_or_default().to_owned();
            if let Some(digest) = self.images.get(&name) {
                *image = format!("{name}@{digest}");
            }
        }
        let fix = |specs: &mut Vec<PackageSpec>| {
            for spec in specs {
                if let (Some(version), None) = (locked.versions.get(&spec.name), built_for(spec)) {
                    spec.version = Some(version.clone());
                }
            }
        };
        fix(&mut desired.headers);
        fix(&mut desired.container_modules);
        fix(&mut desired.hold.packages);
        (desired.runtimes.iter_mut()).for_each(|runtime| fix(&mut runtime.packages));
        (desired.toolkit.iter_mut()).for_each(|toolkit| fix(&mut toolkit.packages));
        (desired.cluster.iter_mut()).for_each(|cluster| fix(&mut cluster.packages));
        let exact: Vec<PackageSpec> = (locked.versions.iter())
            .filter(|(name, _)| carries_driver(name) || is_driver_part(name))
            .map(|(name, version)| PackageSpec {
                name: name.clone(),
                version: Some(version.clone()),
            })
            .collect();
        if let Some(driver) = &mut desired.driver
            && driver.existing != Existing::Keep
        {
            fix(&mut driver.packages);
            let known =
                |spec: &&PackageSpec| driver.packages.iter().any(|one| one.name == spec.name);
            let further: Vec<PackageSpec> = (exact.iter())
                .filter(|spec| !known(spec))
                .cloned()
                .collect();
            driver.packages.extend(further);
        }
        if let Some(kernel) = &mut desired.kernel {
            for method in &mut kernel.methods {
                let requested = (method.packages.iter()).filter_map(|spec| {
                    let version = locked.versions.get(&spec.name)?;
                    let name = spec.name.clone();
                    Some(PackageSpec {
                        name,
                        version: Some(version.clone()),
                    })
                });
                let requested: Vec<PackageSpec> = requested.collect();
                method.fix(&requested);
                fix(&mut method.headers);
            }
        }
        desired.packages.guard.lock = Some(locked);
        Ok(())
    }

    /// Returns the locked packages for a machine. On a machine with another kernel of the same series, the packages of the
    /// kernel are not locked.
    fn locked(&self, desired: &Desired, facts: &Facts) -> LockedPackages {
        let backend = desired.packages.manager.backend();
        let arch = &self.system.arch;
        let of_lock = release(&self.system.kernel, arch);
        // While an image is built in a chroot, the running kernel belongs to the host.
        let running = facts.kernel.running.as_ref().filter(|_| !desired.image);
        let here: Vec<String> = (running.into_iter())
            .chain(&facts.kernel.next_boot)
            .map(|kernel| release(kernel, arch).to_owned())
            .filter(|here| here != of_lock)
            .collect();
        let is_same = here.is_empty();
        let names = |text: &str| text.contains(of_lock);
        // Packages such as `linux-kbuild-6.1` have the version of the kernel packages, but not its release in their name.
        let versions: Vec<&String> = self
            .all()
            .filter(|(name, _)| names(name))
            .map(|(_, version)| version)
            .collect();
        let is_free = |name: &str, version: &String| {
            backend.has_several_versions(name)
                || !is_same && (names(name) || names(version) || versions.contains(&version))
        };
        let (free, locked): (Vec<_>, Vec<_>) = self
            .all()
            .partition(|(name, version)| is_free(name, version));
        let required = required(desired, self);
        let mut locked = LockedPackages {
            digest: self.digest(),
            versions: (locked.into_iter())
                .map(|(name, version)| (name.clone(), version.clone()))
                .collect(),
            digests: self.digests.clone(),
            free: (free.into_iter().map(|(name, _)| name.clone()))
                .chain(here.iter().map(|release| format!("*{release}*")))
                .chain(desired.hold.packages.iter().map(|spec| spec.name.clone()))
                .collect(),
            is_whole: false,
            required,
            bundled: None,
        };
        locked.is_whole = self.further(&locked).is_empty();
        locked
    }

    /// Returns the selected packages that a machine does not require.
    fn further(&self, locked: &LockedPackages) -> Vec<&str> {
        let is_further = |name: &&String| {
            locked.versions.contains_key(*name) && !locked.required.contains(*name)
        };
        let names = self.packages.keys().filter(is_further);
        names.map(String::as_str).collect()
    }

    /// Returns a warning if the lock file contains packages that the machine does not require.
    pub(super) fn has_more(&self, desired: &Desired) -> Option<String> {
        let further = self.further(desired.packages.guard.lock.as_ref()?);
        (!further.is_empty()).then(|| {
            format!(
                "the lock file selects packages that this machine does not require, which are not installed: {}",
                further.join(", ")
            )
        })
    }
}

/// Returns the names of the required packages. A runtime that is installed from another source on the locked node needs the
/// packages of that source. A driver that is kept needs none.
fn required(desired: &Desired, lock: &Lock) -> BTreeSet<String> {
    let keeps = |driver: &DriverSpec| driver.existing == Existing::Keep;
    let is_kept = desired.driver.as_ref().is_some_and(keeps);
    let mut names = BTreeSet::new();
    for (purpose, specs) in desired.package_groups() {
        let others: Vec<&String> = match purpose {
            Purpose::Runtime(spec) => (spec.alternatives.iter())
                .filter(|name| lock.packages.contains_key(*name))
                .collect(),
            Purpose::Driver | Purpose::Headers if is_kept => continue,
            // Only some machines lack them.
            Purpose::Holds => continue,
            _ => Vec::new(),
        };
        match others.is_empty() {
            true => names.extend(specs.iter().map(|spec| spec.name.clone())),
            false => names.extend(others.into_iter().cloned()),
        }
    }
    names
}

/// Returns the part of a kernel release that is in the names or versions of its packages: `6.1.0-44` of
/// `6.1.0-44-cloud-amd64`, `5.14.0-687.el9` of `5.14.0-687.el9.x86_64`.
pub fn release<'k>(kernel: &'k KernelVersion, arch: &str) -> &'k str {
    let text = kernel.as_str();
    if let Some((release, _)) = text.split_once(&format!(".{arch}")) {
        return release;
    }
    let flavor = kernel.flavor().and_then(|flavor| text.strip_suffix(flavor));
    flavor.map_or(text, |release| release.trim_end_matches('-'))
}

fn is_word(text: &str, further: &str) -> bool {
    text.len() <= LONGEST
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && (text.chars()).all(|c| c.is_ascii_alphanumeric() || further.contains(c))
}

fn string(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// Adds a table with one line for each value.
fn table<K: AsRef<str>>(
    text: &mut String,
    name: &str,
    rows: impl IntoIterator<Item = (K, Option<String>)>,
) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "\n[{name}]");
    for (key, value) in rows {
        let Some(value) = value else {
            continue;
        };
        let key = key.as_ref();
        let is_bare =
            (key.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let key = if is_bare { key.to_owned() } else { string(key) };
        let _ = writeln!(text, "{key} = {value}");
    }
}

/// Converts an error of the TOML parser. Its message does not contain the key of an invalid value.
fn unreadable(file: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let byte = error.span().map_or(0, |span| span.start).min(text.len());
    let line = text.lines().nth(text[..byte].matches('\n').count());
    let key = line
        .and_then(|line| line.split_once('='))
        .map(|(key, _)| key.trim());
    let message = error.message().trim().replace('\n', "; ");
    ConfigError::Syntax {
        place: Location::in_file(file, text, byte),
        why: match key {
            Some(key) => format!("`{}`: {message}", beginning(key, LONGEST)),
            None => message,
        },
    }
}

/// Returns the error about the value of a key.
fn wrong(
    (file, text): (&str, &str),
    key: &str,
    value: String,
    why: String,
    hint: Option<&str>,
) -> ConfigError {
    let is_key = |line: &str| {
        let before = line.split('=').next().unwrap_or_default().trim();
        before.trim_matches(['"', '\'', '[', ']']) == key
    };
    let mut lines = text.split_inclusive('\n').scan(0, |next, line| {
        let start = *next;
        *next += line.len();
        Some((start, line))
    });
    let byte = lines
        .find(|(_, line)| is_key(line))
        .map_or(0, |(start, _)| start);
    ConfigError::Value {
        place: Box::new(Location::in_file(file, text, byte)),
        key: key.to_owned(),
        value,
        why,
        hint: hint.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Report as _,
        steps::fixtures::{debian, desired, facts},
    };

    const TEXT: &str = r#"# The versions of a validated node, written by `gpu-bootstrap lock`.
# Install a node with them: gpu-bootstrap install --lock FILE
lock = 1

[made-by]
gpu-bootstrap = "0.1.0"
matrix = "2026-11-20"

[system]
os = "debian"
release = "12"
arch = "x86_64"
kernel = "6.1.0-44-amd64"

[driver]
source = "nvidia"
flavor = "open"
branch = "580"
version = "580.178.04"
build = "dkms"
module = "nvidia-open 580.178.04"

[images]
"nvcr.io/nvidia/cuda:13.0.2-base-ubuntu24.04" = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

[repositories]
nvidia-cuda = ["1732C20F83E68D3F9A3866A67294E6455BBBA7EA"]

[packages]
"docker.io" = "20.10.24+dfsg1-1+deb12u1"
"linux-headers-6.1.0-44-amd64" = "6.1.176-1"
nvidia-container-toolkit = "1.20.0-1 sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
nvidia-container-toolkit-base = "1.20.0-1"
nvidia-kernel-dkms = "535.261.03-1~deb12u1"
nvidia-smi = "535.261.03-1~deb12u1"

[dependencies]
dkms = "3.0.10-8+deb12u1 sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
"g++" = "4:12.2.0-3"
libcuda1 = "535.261.03-1~deb12u1"
"linux-kbuild-6.1" = "6.1.176-1"
nvidia-modprobe = "535.161.07-1~deb12u1"
"#;

    fn lock() -> Lock {
        Lock::parse("node.lock", TEXT).expect("a lock file")
    }

    #[test]
    fn file_is_rendered_as_it_was_read() {
        assert_eq!(lock().render(), TEXT);
        assert_eq!(lock().dependencies["dkms"], "3.0.10-8+deb12u1");
        assert_eq!(lock().digests["dkms"], "c".repeat(64));
        let mut unsorted: Vec<&str> = TEXT.lines().collect();
        let last = unsorted.len() - 1;
        unsorted.swap(last, last - 3);
        let unsorted = Lock::parse("node.lock", &unsorted.join("\n")).expect("a lock file");
        assert_eq!(unsorted.render(), TEXT);
        assert_eq!(unsorted.digest(), lock().digest());
    }

    #[test]
    fn error_contains_line_and_key() {
        for (from, to, place, said) in [
            (
                "lock = 1",
                "lock = 2",
                "node.lock:3:1",
                "`lock` cannot be 2",
            ),
            ("lock = 1\n", "", "node.lock:1:1", "`lock` cannot be unset"),
            (
                "dkms = \"3.0.10-8+deb12u1",
                "dkms = 3 # \"",
                "node.lock:38:",
                "`dkms`: ",
            ),
            (
                "arch = \"x86_64\"",
                "arhc = \"x86_64\"",
                "node.lock:12:",
                "arhc",
            ),
            (
                "\"3.0.10-8+deb12u1",
                "\"-o Dir::Etc=/tmp",
                "node.lock:38:1",
                "not a package version",
            ),
            (
                "\ndkms = ",
                "\n\"--dkms\" = ",
                "node.lock:38:1",
                "not a package name",
            ),
            (
                "\"4:12.2.0-3\"",
                "\"4:12.*\"",
                "node.lock:39:1",
                "`g++` cannot be",
            ),
            ("sha256:aa", "md5:aa", "node.lock:24:1", "not a digest"),
            (
                "sha256:cc",
                "sha256:Cc",
                "node.lock:38:1",
                "the digest is not",
            ),
            (
                "kernel = \"6.1.0-44-amd64\"",
                "kernel = \"a b\"",
                "node.lock:13:",
                "`kernel`: ",
            ),
        ] {
            let text = TEXT.replace(from, to);
            assert_ne!(text, TEXT, "{from}");
            let error = Lock::parse("node.lock", &text).expect_err(to).to_string();
            assert!(
                error.contains(place) && error.contains(said),
                "{to}: {error}"
            );
        }
    }

    #[test]
    fn driver_settings_are_read_and_written() {
        let settings = lock().driver.expect("a driver").settings();
        assert_eq!(
            settings,
            [
                "driver.source=nvidia",
                "driver.flavor=open",
                "driver.branch=580",
                "driver.build=dkms"
            ]
        );
        let driver = LockedDriver::of(&settings);
        assert_eq!(driver.settings(), settings);
    }

    #[test]
    fn lock_of_another_system_is_rejected_with_the_difference() {
        type Change = fn(&mut LockedSystem);

        let here = debian();
        let evaluate = |change: Change| {
            let mut lock = lock();
            change(&mut lock.system);
            let error = lock.accepts(&here, false).err();
            error.map(|error| (error.to_string(), error.exit().code()))
        };
        assert_eq!(evaluate(|_| {}), None);
        // Another kernel of the same series is accepted.
        let newer = |system: &mut LockedSystem| system.kernel = "6.1.0-41-amd64".parse().unwrap();
        assert_eq!(evaluate(newer), None);
        let others: [(Change, &str); 3] = [
            (
                |system| system.release = "13".to_owned(),
                "system debian 13 in the lock, debian 12 on this machine",
            ),
            (
                |system| system.arch = "aarch64".to_owned(),
                "architecture aarch64 in the lock, x86_64 on this machine",
            ),
            (
                |system| system.kernel = "6.12.0-1-amd64".parse().unwrap(),
                "kernel series 6.12 in the lock, 6.1 on this machine",
            ),
        ];
        for (change, said) in others {
            let (error, exit) = evaluate(change).expect(said);
            assert!(error.contains(said), "{error}");
            assert_eq!(exit, 5);
        }
    }

    #[test]
    fn selected_packages_are_pinned_or_missing() {
        let mut want = desired();
        lock().pin(&mut want, &facts()).expect("all packages");
        let driver = want.driver.as_ref().expect("a driver");
        let specs = |specs: &[PackageSpec]| -> Vec<String> {
            let spec = |spec: &PackageSpec| {
                format!("{}={}", spec.name, spec.version.as_deref().unwrap_or("*"))
            };
            specs.iter().map(spec).collect()
        };
        assert_eq!(
            specs(&driver.packages),
            [
                "nvidia-kernel-dkms=535.261.03-1~deb12u1",
                "nvidia-smi=535.261.03-1~deb12u1",
                "libcuda1=535.261.03-1~deb12u1"
            ]
        );
        assert_eq!(
            specs(&want.headers),
            ["linux-headers-6.1.0-44-amd64=6.1.176-1"]
        );
        let locked = want.packages.guard.lock.as_ref().expect("locked packages");
        assert_eq!(locked.versions.len(), 11);
        let mut short = lock();
        short.packages.remove("docker.io");
        let error = short
            .pin(&mut desired(), &facts())
            .expect_err("docker.io is missing");
        assert!(error.to_string().ends_with("require: docker.io"), "{error}");
        // The runtime of the other node came from another source.
        short
            .packages
            .insert("docker-ce".to_owned(), "5:29.0".to_owned());
        short.pin(&mut desired(), &facts()).expect("an alternative");
    }

    #[test]
    fn packages_of_another_kernel_are_not_locked() {
        let mut here = facts();
        here.kernel.running = "6.1.0-45-amd64".parse().ok();
        here.kernel.next_boot = here.kernel.running.clone();
        let mut want = desired();
        want.headers = vec![PackageSpec {
            name: "linux-headers-6.1.0-45-amd64".to_owned(),
            version: None,
        }];
        lock().pin(&mut want, &here).expect("other headers");
        let locked = want.packages.guard.lock.as_ref().expect("locked packages");
        let is_locked = |name: &str| locked.versions.contains_key(name);
        assert!(is_locked("dkms"));
        assert!(!is_locked("linux-headers-6.1.0-44-amd64") && !is_locked("linux-kbuild-6.1"));
        let backend = want.packages.manager.backend();
        for (name, allowed) in [
            ("linux-headers-6.1.0-45-common", true),
            ("linux-kbuild-6.1", true),
            ("dkms", true),
            ("make", false),
        ] {
            assert_eq!(locked.allows(backend, name), allowed, "{name}");
        }
    }

    #[test]
    fn kernel_release_of_package_names() {
        for (kernel, expected) in [
            ("6.1.0-44-amd64", "6.1.0-44"),
            ("6.1.0-44-cloud-amd64", "6.1.0-44"),
            ("6.8.0-1015-aws", "6.8.0-1015"),
            ("5.14.0-687.12.1.el9_8.x86_64", "5.14.0-687.12.1.el9_8"),
        ] {
            let kernel: KernelVersion = kernel.parse().unwrap();
            assert_eq!(release(&kernel, "x86_64"), expected);
        }
    }

    #[test]
    fn repository_must_have_a_locked_key() {
        let key = "C95B321B61E88C1809C4F759DDCAE044F796ECB0";
        let pinned = |keys: &[&str]| {
            let mut lock = lock();
            let keys = keys.iter().map(|&key| key.to_owned()).collect();
            lock.repositories.insert("toolkit".to_owned(), keys);
            let mut want = desired();
            (lock.pin(&mut want, &facts())).map(|()| want.repositories[0].fingerprints.clone())
        };
        assert_eq!(pinned(&[key, "OTHER"]).expect("a common key"), [key]);
        let error = pinned(&["OTHER"]).expect_err("another key").to_string();
        assert!(error.contains(key) && error.contains("OTHER"), "{error}");
    }
}
