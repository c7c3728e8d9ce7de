//! Creates a bundle. The package manager downloads with its own transports, credentials and proxies, into lists and caches below
//! the new directory, so the lists and caches of the machine are not changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    BundledImage, BundledKey, BundledPackage, BundledSystem, LOCK, MANIFEST, Manifest, PROGRAM,
    check_characters, empty_directory, remove_contents, remove_tree,
};
use crate::{
    change::{
        image_names,
        packages::{
            DIGEST_REMEDY, LOCK_REMEDY, REPLACED_FILES,
            repository::{KEY_LIMIT, Keyring, evaluate, has_accepted_key},
        },
    },
    config::desired::Prebuilt,
    error::one_line,
    host::{
        Cmd, Files, Host,
        digest::{ContentDigest, sha256},
    },
    model::{
        packages::Repository,
        secret::{has_login, without_logins},
        text::bytes,
    },
    modules::{SOURCE_TIME_LIMIT, SourceError, archive},
    runtimes::{RuntimeKind, archive::ImageArchive},
    tools::{
        packages::{
            Backend, Manager, Settings,
            mirrors::{Download, ListOrigin, ListedPackage, ListedRepository, Mirror, Mirrors},
        },
        prebuilt::{BuildTarget, SIGNATURE},
    },
    work::ChangeError,
};

/// The directory below the bundle with lists, caches and downloads while it is created.
const STATE: &str = ".state";

/// The directory in a bundle with prebuilt modules, a source of `driver.prebuilt.sources`.
const MODULES: &str = "modules";

/// The planned contents of a bundle.
pub struct Recipe<'a> {
    /// The directory of the new bundle.
    pub out: &'a Utf8Path,
    pub manager: Manager,
    /// The settings of the package manager's commands.
    pub settings: Settings,
    pub system: BundledSystem,
    /// The text of the lock file.
    pub lock: &'a str,
    /// Names and versions of all packages.
    pub packages: &'a BTreeMap<String, String>,
    /// The SHA-256 of packages in the lock file, by name.
    pub digests: &'a BTreeMap<String, String>,
    /// The repositories whose keys a run downloads.
    pub repositories: &'a [Repository],
    /// Prebuilt kernel modules, if they are configured.
    pub modules: Option<PrebuiltModules<'a>>,
    /// The validation image, if one with a digest is configured.
    pub image: Option<ImageExport<'a>>,
    /// The path of the program.
    pub program: &'a Utf8Path,
}

/// Kernel modules that another machine compiled.
pub struct PrebuiltModules<'a> {
    pub prebuilt: &'a Prebuilt,
    pub target: BuildTarget,
}

/// An image that the runtimes of this machine have.
pub struct ImageExport<'a> {
    /// The name with the digest in the registry.
    pub image: &'a str,
    pub digest: &'a str,
    pub runtimes: Vec<RuntimeKind>,
    /// The time limit for each archive.
    pub limit: Duration,
}

/// A new bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedBundle {
    /// The number of packages.
    pub packages: usize,
    /// The number of files.
    pub files: usize,
    /// The size of all files.
    pub bytes: u64,
    /// The SHA-256 of the manifest, which identifies the bundle.
    pub digest: String,
}

/// Creates a bundle. `say` gets progress messages. After an error, the new files are removed, and the directory if it is new. If
/// that also fails, `say` gets this error.
///
/// # Errors
/// If the directory is not empty, a source is not available, or a package is not offered.
pub async fn create(
    host: &Host,
    recipe: &Recipe<'_>,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<CreatedBundle, ChangeError> {
    let backend = recipe.manager.backend();
    let Some(mirrors) = backend.mirrors() else {
        return Err(ChangeError::unsupported("create a bundle"));
    };
    check_characters(recipe.out)?;
    let existed = host.files.exists(recipe.out)?;
    empty_directory(&*host.files, recipe.out)?;
    let mut creation = Creation {
        host,
        files: &*host.files,
        recipe,
        backend,
        mirrors,
        state: recipe.out.join(STATE),
        manifest: Manifest::new(
            env!("CARGO_PKG_VERSION"),
            recipe.manager,
            recipe.system.clone(),
        ),
    };
    let created = creation.run(say).await;
    if created.is_ok() {
        remove_tree(&*host.files, &creation.state)?;
        return created;
    }
    // Without a manifest, the files are of no use.
    let removed = match existed {
        true => remove_contents(&*host.files, recipe.out),
        false => remove_tree(&*host.files, recipe.out),
    };
    if let Err(error) = removed {
        let error = one_line(&error);
        say(&format!(
            "failed to remove the incomplete bundle `{}`: {error}",
            recipe.out
        ));
    }
    created
}

struct Creation<'a> {
    host: &'a Host,
    files: &'a dyn Files,
    recipe: &'a Recipe<'a>,
    backend: &'static dyn Backend,
    mirrors: &'static dyn Mirrors,
    state: Utf8PathBuf,
    manifest: Manifest,
}

impl Creation<'_> {
    async fn run(
        &mut self,
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<CreatedBundle, ChangeError> {
        // First, because the image may be missing.
        self.images(say).await?;
        say("downloading the package lists");
        let repositories = self.listed().await?;
        let packages = self.located(&repositories).await?;
        let used = used(&repositories, &packages);
        self.manifest.mirrors = paths(&repositories, &used);
        without_login(&self.manifest.mirrors, self.backend.commands().credentials)?;
        let at: BTreeMap<usize, Utf8PathBuf> = (used.iter().copied())
            .zip(
                self.manifest
                    .mirrors
                    .iter()
                    .map(|mirror| mirror.path.clone()),
            )
            .collect();
        let lists = (used.iter()).flat_map(|index| {
            let directory = &at[index];
            (repositories[*index].lists.iter()).map(move |list| (directory.join(&list.path), list))
        });
        let lists: Vec<_> = lists.collect();
        let listed: Vec<&Download> = (lists.iter())
            .filter_map(|(_, list)| match &list.origin {
                ListOrigin::At(download) => Some(download),
                ListOrigin::Downloaded(_) => None,
            })
            .collect();
        let package_downloads: Vec<&Download> =
            packages.iter().map(|package| &package.download).collect();
        self.check_space(listed.iter().chain(&package_downloads).copied())?;
        self.fetch(&listed, "lists-again").await?;
        for (path, list) in &lists {
            match &list.origin {
                ListOrigin::Downloaded(from) => self.place(from, path, None)?,
                ListOrigin::At(download) => self.take(download, "lists-again", path)?,
            }
        }
        let size: u64 = package_downloads.iter().map(|download| download.size).sum();
        say(&format!(
            "downloading {} packages ({})",
            packages.len(),
            bytes(size)
        ));
        self.fetch(&package_downloads, "packages").await?;
        for package in &packages {
            let path = at[&package.repository].join(&package.path);
            self.take(&package.download, "packages", &path)?;
            self.manifest.packages.push(BundledPackage {
                name: package.name.clone(),
                version: package.version.clone(),
                path,
            });
        }
        self.keys().await?;
        self.modules(say).await?;
        let program = self.files.read(self.recipe.program)?.ok_or_else(|| {
            ChangeError::new(
                "file",
                format!(
                    "read the program `{}`: it does not exist",
                    self.recipe.program
                ),
            )
        })?;
        self.write(PROGRAM.into(), &program, 0o755)?;
        self.write(LOCK.into(), self.recipe.lock.as_bytes(), 0o644)?;
        self.finish()
    }

    /// Runs a command of the package manager with separate lists and caches.
    async fn tool(&self, what: &str, cmd: &Cmd) -> Result<String, ChangeError> {
        let cmd = self.mirrors.separately(cmd, &self.state);
        let output = self.host.exec.run(&cmd, &mut |_, _| {}).await;
        let output = output.and_then(|output| output.success(&cmd));
        output.map(|output| output.stdout).map_err(|source| {
            ChangeError::tool(format!("{what} for the bundle"), source).advice(
                "correct the sources and the network of this machine, then run the command again",
            )
        })
    }

    /// Downloads the lists of all configured repositories.
    async fn listed(&self) -> Result<Vec<ListedRepository>, ChangeError> {
        let (settings, directories) = self.mirrors.separate(&self.state);
        for directory in directories {
            self.files.create_directory(&directory, 0o755)?;
        }
        for (path, text) in settings {
            self.files.write(&path, text.as_bytes(), 0o644)?;
        }
        let refresh = self.backend.refresh(&self.recipe.settings, false);
        self.tool("download the package lists", &refresh).await?;
        let output = match self.mirrors.list() {
            Some(query) => self.tool("list the repositories", query.cmd()).await?,
            None => String::new(),
        };
        Ok(self.mirrors.listed(self.files, &self.state, &output)?)
    }

    /// Returns the locations of all packages.
    async fn located(
        &self,
        repositories: &[ListedRepository],
    ) -> Result<Vec<ListedPackage>, ChangeError> {
        let packages: Vec<(String, String)> = (self.recipe.packages.iter())
            .map(|(name, version)| (name.clone(), version.clone()))
            .collect();
        for (from, to) in self.mirrors.copies(&self.state, repositories) {
            if self.files.copy(&from, &to, 0o644)?.is_none() {
                let what =
                    format!("create the bundle: the downloaded metadata `{from}` no longer exists");
                return Err(ChangeError::blocked("bundle-incomplete", what)
                    .advice("run the command again, while no other program removes its files"));
            }
        }
        let mut output = String::new();
        let mut failures = Vec::new();
        for query in (self.mirrors).locate(&packages, &self.state, repositories) {
            let cmd = self.mirrors.separately(query.cmd(), &self.state);
            let ran = self.host.exec.run(&cmd, &mut |_, _| {}).await;
            let ran = ran.map_err(|source| {
                ChangeError::tool("locate the packages for the bundle", source)
            })?;
            output.push_str(&ran.stdout);
            output.push('\n');
            failures.extend(ran.success(&cmd).err());
        }
        let mut located = (self.mirrors).located(&output, &self.state, repositories);
        let missing: Vec<String> = (packages.iter())
            .filter(|(name, version)| {
                !located.iter().any(|one| {
                    one.name == self.backend.bare_name(name)
                        && self.backend.compare(&one.version, version).is_eq()
                })
            })
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        if missing.is_empty() {
            self.check_digests(&mut located)?;
            return Ok(located);
        }
        let said: Vec<String> = failures.iter().map(ToString::to_string).collect();
        if let (true, Some(first)) = (located.is_empty(), failures.into_iter().next()) {
            let what = format!("locate the packages for the bundle: {}", missing.join(", "));
            return Err(ChangeError::tool(what, first)
                .telling((said.len() > 1).then(|| said[1..].join("\n")))
                .advice(LOCK_REMEDY));
        }
        let what = format!(
            "create the bundle: no source of this machine offers {}",
            missing.join(", ")
        );
        Err(ChangeError::blocked("bundle-incomplete", what)
            .telling((!said.is_empty()).then(|| said.join("\n")))
            .advice(LOCK_REMEDY))
    }

    /// Rejects packages with another SHA-256 than in the lock file. If the lists contain none, it is verified after the download.
    fn check_digests(&self, located: &mut [ListedPackage]) -> Result<(), ChangeError> {
        let mut replaced = Vec::new();
        for package in located {
            // A package of several architectures has several digests.
            let locked: BTreeSet<&String> = (self.recipe.packages.iter())
                .filter(|(id, _)| self.backend.bare_name(id) == package.name)
                .filter(|(_, version)| self.backend.compare(version, &package.version).is_eq())
                .filter_map(|(id, _)| self.recipe.digests.get(id))
                .collect();
            match &package.download.sha256 {
                Some(listed) if !locked.is_empty() && !locked.contains(listed) => {
                    replaced.push(format!("{} {}", package.name, package.version));
                }
                None if locked.len() == 1 => {
                    package.download.sha256 = locked.first().map(|one| (*one).clone());
                }
                _ => {}
            }
        }
        if replaced.is_empty() {
            return Ok(());
        }
        let what = format!(
            "create the bundle: {REPLACED_FILES} {}, so they have another SHA-256 than in the lock file",
            replaced.join(", ")
        );
        Err(ChangeError::blocked("bundle-incomplete", what).advice(DIGEST_REMEDY))
    }

    /// Fails before the download if there is not enough space.
    fn check_space<'d>(
        &self,
        downloads: impl Iterator<Item = &'d Download>,
    ) -> Result<(), ChangeError> {
        let sizes: Vec<u64> = downloads.map(|download| download.size).collect();
        // A file exists twice while it is moved.
        let largest = sizes.iter().max().copied().unwrap_or_default();
        let needed = sizes.iter().sum::<u64>() + largest;
        let free = self.files.free_space(self.recipe.out)?.free;
        if needed <= free {
            return Ok(());
        }
        let what = format!(
            "create the bundle: `{}` has {} free, but {} are needed",
            self.recipe.out,
            bytes(free),
            bytes(needed)
        );
        Err(ChangeError::blocked("no-disk-space", what)
            .advice("specify a directory on a larger filesystem"))
    }

    async fn fetch(&self, downloads: &[&Download], to: &str) -> Result<(), ChangeError> {
        let to = self.state.join(to);
        self.files.create_directory(&to, 0o755)?;
        for cmd in (self.mirrors).fetch(&self.recipe.settings, downloads, &to) {
            self.tool("download the files", &cmd).await?;
        }
        Ok(())
    }

    /// Moves a downloaded file to its path in the bundle.
    fn take(&mut self, download: &Download, from: &str, to: &Utf8Path) -> Result<(), ChangeError> {
        if self.manifest.files.contains_key(to) {
            return Ok(());
        }
        let from = self.state.join(from).join(&download.file);
        self.place(&from, to, download.sha256.as_deref())?;
        self.files.remove(&from)?;
        Ok(())
    }

    /// Copies a file to its path in the bundle. A download from a local repository is a symlink.
    fn place(
        &mut self,
        from: &Utf8Path,
        to: &Utf8Path,
        sha256_expected: Option<&str>,
    ) -> Result<(), ChangeError> {
        let failed = |why: &str| {
            ChangeError::new(
                "bundle-download",
                format!("create the bundle: `{to}` {why}"),
            )
            .advice("run the command again; a mirror may have been updated at the same time")
        };
        let copied = self.files.copy(from, &self.recipe.out.join(to), 0o644)?;
        let content = copied.ok_or_else(|| failed("was not downloaded"))?;
        if sha256_expected.is_some_and(|expected| *expected != content.sha256) {
            return Err(failed(
                "has another SHA-256 than its repository lists or the lock file contains",
            ));
        }
        self.manifest.files.insert(to.to_owned(), content.into());
        Ok(())
    }

    fn write(&mut self, path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), ChangeError> {
        self.files
            .write(&self.recipe.out.join(path), content, mode)?;
        let content = ContentDigest::of(content);
        self.manifest.files.insert(path.to_owned(), content.into());
        Ok(())
    }

    /// Downloads the keys that a run with these settings downloads, and verifies their fingerprints.
    async fn keys(&mut self) -> Result<(), ChangeError> {
        for repository in self.recipe.repositories {
            let (None, Some(url)) = (&repository.keyring, &repository.key_url) else {
                continue;
            };
            let name = &repository.name;
            let key = self.host.http.get(url, KEY_LIMIT).await.map_err(|source| {
                ChangeError::new(
                    "key-fetch",
                    format!("download the key of repository `{name}` for the bundle"),
                )
                .caused_by(source)
            })?;
            if evaluate(repository, &key) != Keyring::Accepted
                && !has_accepted_key(repository, &key)
            {
                let what = format!(
                    "create the bundle: `{url}` does not contain a key of repository `{name}` ({})",
                    repository.fingerprints.join(" or ")
                );
                return Err(ChangeError::blocked("key-mismatch", what).advice(
                    "ask the repository's vendor for the correct fingerprint, but not over this network",
                ));
            }
            let path = Utf8PathBuf::from(format!("keys/{name}"));
            self.write(&path, &key, 0o644)?;
            self.manifest.keys.push(BundledKey {
                url: url.clone(),
                path,
            });
        }
        Ok(())
    }

    /// Copies the archive with prebuilt modules for the kernel of the lock file. Without it, the nodes compile the modules.
    async fn modules(&mut self, say: &mut (dyn FnMut(&str) + Send)) -> Result<(), ChangeError> {
        let recipe = self.recipe;
        let Some(PrebuiltModules { prebuilt, target }) = &recipe.modules else {
            return Ok(());
        };
        let (name, trust) = (target.archive(), prebuilt.trust());
        let mut whys = Vec::new();
        for source in &prebuilt.sources {
            let fetched = archive(self.host, source, &name, &trust, SOURCE_TIME_LIMIT);
            let fetched = tokio::time::timeout(SOURCE_TIME_LIMIT, fetched).await;
            let fetched = fetched.unwrap_or_else(|_| Err(SourceError::too_slow(SOURCE_TIME_LIMIT)));
            match fetched {
                Ok((archive, signature)) => {
                    let path = Utf8Path::new(MODULES).join(&name);
                    self.write(&path, &archive, 0o644)?;
                    if let Some(signature) = signature {
                        let path = format!("{path}{SIGNATURE}");
                        self.write(path.as_str().into(), &signature, 0o644)?;
                    }
                    return Ok(());
                }
                Err(why) => whys.push(format!("{source}: {why}")),
            }
        }
        say(&format!(
            "the bundle contains no prebuilt modules, so nodes compile them: {}",
            whys.join("; ")
        ));
        Ok(())
    }

    /// Lets each runtime write its validation image to an archive.
    async fn images(&mut self, say: &mut (dyn FnMut(&str) + Send)) -> Result<(), ChangeError> {
        let recipe = self.recipe;
        let Some(export) = &recipe.image else {
            return Ok(());
        };
        let image = export.image;
        self.files.create_directory(&self.state, 0o755)?;
        for runtime in &export.runtimes {
            let (name, client) = (runtime.name(), runtime.runtime().containers());
            let Some(client) = client else { continue };
            let what = format!("export the image `{image}` from {name} for the bundle");
            let failed = |source| ChangeError::tool(&*what, source);
            let reader = self.host.reader();
            let names = image_names(reader, *runtime, image).await.map_err(failed)?;
            let Some(names) = names else {
                let why = format!("{what}: {name} is not installed");
                return Err(ChangeError::blocked("bundle-incomplete", why)
                    .advice("run `gpu-bootstrap install`, then run the command again"));
            };
            let Some(found) = names.into_iter().next() else {
                let pull = client.pull(self.files, &client.image_name(image))?.line();
                let why = format!("{what}: {name} does not have it");
                return Err(ChangeError::blocked("bundle-incomplete", why)
                    .advice(format!("run `{pull}`, then run the command again")));
            };
            let id = match client.image_id(&found) {
                Some(query) => {
                    let output = reader.query(&query).await.map_err(failed)?;
                    let output = output.success(query.cmd()).map_err(failed)?.stdout;
                    let hex = output.trim();
                    format!("sha256:{}", hex.strip_prefix("sha256:").unwrap_or(hex))
                }
                None => export.digest.to_owned(),
            };
            say(&format!("exporting the image `{image}` from {name}"));
            let from = self.state.join("image.tar");
            let save = client.save(&found, &id, &from).deadline(export.limit);
            let output = self.host.exec.run(&save, &mut |_, _| {}).await;
            (output.and_then(|output| output.success(&save))).map_err(failed)?;
            let path = Utf8PathBuf::from(format!("images/{name}.tar"));
            self.place(&from, &path, None)?;
            self.files.remove(&from)?;
            let archive = ImageArchive {
                path: recipe.out.join(&path),
                sha256: String::new(),
                id,
            };
            if let Some(why) = archive.issue(self.files, *runtime, image)? {
                return Err(ChangeError::new("bundle-image", format!("{what}: {why}"))
                    .advice("remove the image, pull it again, and run the command again"));
            }
            self.manifest.images.push(BundledImage {
                image: image.to_owned(),
                runtime: *runtime,
                id: archive.id,
                path,
            });
        }
        Ok(())
    }

    /// Writes the manifest. It is the last file, so a directory with a manifest is complete.
    fn finish(&self) -> Result<CreatedBundle, ChangeError> {
        let text = self.manifest.render().map_err(|why| {
            ChangeError::bug("write the manifest of the bundle").telling(Some(why))
        })?;
        let path = self.recipe.out.join(MANIFEST);
        self.files.write(&path, text.as_bytes(), 0o644)?;
        Ok(CreatedBundle {
            packages: self.manifest.packages.len(),
            files: self.manifest.files.len(),
            bytes: self.manifest.bytes(),
            digest: sha256(text.as_bytes()),
        })
    }
}

/// Returns the indexes of the repositories that the bundle contains. Suites of one repository have the same packages directory, so
/// the URL of a package does not show its suite. Therefore all suites are used if one is.
fn used(repositories: &[ListedRepository], packages: &[ListedPackage]) -> BTreeSet<usize> {
    let place = |at: usize| (&repositories[at].mirror.id, &repositories[at].url);
    let places: BTreeSet<_> = packages.iter().map(|one| place(one.repository)).collect();
    (0..repositories.len())
        .filter(|at| places.contains(&place(*at)))
        .collect()
}

/// Rejects sources with credentials in their URLs, because the manifest and the arguments of commands contain the URLs.
/// `better` is the place for credentials.
fn without_login(mirrors: &[Mirror], better: &str) -> Result<(), ChangeError> {
    let Some(mirror) = mirrors.iter().find(|mirror| has_login(&mirror.url)) else {
        return Ok(());
    };
    let what = format!(
        "create the bundle: the URL of the source `{}` contains credentials, which all users of the bundle could read",
        without_logins(&mirror.url)
    );
    Err(ChangeError::blocked("bundle-credentials", what)
        .advice(format!("move the credentials to {better}")))
}

/// Returns the used repositories with their directories. Suites of the same repository share one.
fn paths(repositories: &[ListedRepository], used: &BTreeSet<usize>) -> Vec<Mirror> {
    let mut places: Vec<(&str, &str)> = Vec::new();
    (used.iter())
        .map(|index| {
            let repository = &repositories[*index];
            let place = (repository.mirror.id.as_str(), repository.url.as_str());
            let at = places.iter().position(|one| *one == place);
            let at = at.unwrap_or_else(|| {
                places.push(place);
                places.len() - 1
            });
            Mirror {
                path: format!("mirrors/{at}").into(),
                ..repository.mirror.clone()
            }
        })
        .collect()
}
