//! Bundles: a directory with everything that `install --lock` needs, for machines without internet.
//!
//! [`create`] runs on a node with the same system, kernel and settings. The directory contains partial copies of the repositories
//! with the lists that their vendors signed, the lock file, the keys, the validation image ([`crate::runtimes::archive`]), the
//! program, and [`MANIFEST`] with the digest of each file.
//! A run with a bundle uses the configuration of the machine, but its commands read the copies ([`Bundle::redirect`]). The source
//! files of the machine are not changed, so there is nothing to undo. Packages are verified with the keys of the machine,
//! and downloaded keys by their fingerprints: a bundle is not trusted more than a download. Exception: a
//! Docker or Podman image is identified by the image ID in the manifest of the bundle, so this manifest is trusted.
//!
//! Each package manager implements `tools::packages::mirrors::Mirrors`.

pub mod create;
mod manifest;
mod redirect;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use camino::{Utf8Path, Utf8PathBuf};

pub use manifest::{
    BundledFile, BundledImage, BundledKey, BundledPackage, BundledSystem, MANIFEST, Manifest,
};

use crate::{
    exit::Exit,
    host::{
        FileKind, Files, FilesError, Host, ReadFiles,
        digest::sha256,
        trusted::{self, Trusted, refuse_foreign},
    },
    model::{packages::Repository, paths::RUN},
    runtimes::{RuntimeKind, archive::ImageArchive},
    tools::packages::Backend,
    work::ChangeError,
};

/// The lock file in a bundle.
pub const LOCK: &str = "node.lock";

/// The program in a bundle.
pub const PROGRAM: &str = "gpu-bootstrap";

/// The largest number of files that an error lists.
const MOST_LISTED: usize = 10;

/// The differences between a bundle and its manifest, and its entries that not all users can read.
struct Comparison {
    differences: Vec<String>,
    unreadable: Vec<Utf8PathBuf>,
}

/// A bundle whose files exist with their sizes. Digests of packages are verified by [`Bundle::verify`], and by the package
/// manager.
#[derive(Debug, Clone)]
pub struct Bundle {
    directory: Utf8PathBuf,
    manifest: Manifest,
}

impl Bundle {
    /// Reads the manifest of a bundle.
    ///
    /// # Errors
    /// If there is no manifest, or it is invalid. If root uses the bundle, also if the manifest is writable by non-root users.
    pub fn read(
        files: &dyn ReadFiles,
        directory: &Utf8Path,
        by_root: bool,
    ) -> Result<Self, ChangeError> {
        let path = directory.join(MANIFEST);
        let text = Trusted::new(files, by_root).read_text(&path)?;
        let text = text.ok_or_else(|| {
            unusable(directory, &format!("`{path}` does not exist")).advice(
                "specify a directory that `gpu-bootstrap bundle create` has written; if it is on another medium, mount it",
            )
        })?;
        let manifest = Manifest::parse(&text).map_err(|why| {
            unusable(directory, &format!("`{path}`: {why}")).advice(
                "copy the bundle again, or create it again with this version of gpu-bootstrap",
            )
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            manifest,
        })
    }

    /// Opens a bundle for a run: reads the manifest, and checks the path, the keys, that all files exist, and that only root can
    /// change them.
    ///
    /// # Errors
    /// If the bundle cannot be used.
    pub fn open(
        files: &dyn ReadFiles,
        directory: &Utf8Path,
        by_root: bool,
    ) -> Result<Self, ChangeError> {
        let directory = files
            .resolve(directory)?
            .unwrap_or_else(|| directory.to_owned());
        let bundle = Self::read(files, &directory, by_root)?;
        check_characters(&directory)?;
        check_access(files, &directory)?;
        let comparison = bundle.compared(files, false)?;
        damaged(&directory, &comparison.differences)?;
        check_readable(&directory, &comparison.unreadable)?;
        if by_root {
            bundle.check_owners(files)?;
        }
        for key in &bundle.manifest.keys {
            bundle.content(files, &key.path)?;
        }
        Ok(bundle)
    }

    /// Checks that only root can change the files, because apt installs packages from the directory itself, after it has verified
    /// them.
    fn check_owners(&self, files: &dyn ReadFiles) -> Result<(), ChangeError> {
        let directory = &self.directory;
        for path in self.manifest.files.keys() {
            if let Some(why) = trusted::unusable(files, &directory.join(path))? {
                return Err(unusable(directory, &why).advice(format!(
                    "run `chown -R root:root {directory}` and `chmod -R go-w {directory}`; then copy the bundle again, or \
                     compare the SHA-256 of its manifest (`sha256sum {directory}/{MANIFEST}`) with the value that `bundle create` \
                     printed, and run `gpu-bootstrap bundle verify {directory}`"
                )));
            }
        }
        Ok(())
    }

    /// Compares all files with the manifest.
    ///
    /// # Errors
    /// If a file cannot be read. Differences are not an error.
    pub fn verify(&self, files: &dyn ReadFiles) -> Result<Vec<String>, ChangeError> {
        let mut differences = self.compared(files, true)?.differences;
        for (image, archive) in self.manifest.images.iter().zip(self.image_archives()) {
            let path = format!("`{}`", image.path);
            if differences.iter().any(|one| one.contains(&path)) {
                continue;
            }
            if let Some(why) = archive.issue(files, image.runtime, &image.image)? {
                differences.push(format!("`{}` (`{}`): {why}", image.path, image.image));
            }
        }
        Ok(differences)
    }

    /// The archives of the images, in the order of the manifest.
    fn image_archives(&self) -> impl Iterator<Item = ImageArchive> {
        (self.manifest.images.iter()).map(|image| ImageArchive {
            path: self.directory.join(&image.path),
            sha256: (self.manifest.files.get(&image.path))
                .map_or_else(String::new, |file| file.sha256.clone()),
            id: image.id.clone(),
        })
    }

    /// The archives of the images, by runtime and image.
    pub fn archives(&self) -> BTreeMap<(RuntimeKind, String), ImageArchive> {
        let images = self.manifest.images.iter();
        let keys = images.map(|image| (image.runtime, image.image.clone()));
        keys.zip(self.image_archives()).collect()
    }

    /// Compares the bundle with its manifest: missing and foreign files, links, sizes, and with `reads` digests.
    fn compared(&self, files: &dyn ReadFiles, reads: bool) -> Result<Comparison, FilesError> {
        let (mut differences, mut unreadable) = (Vec::new(), Vec::new());
        let mut rest = vec![self.directory.clone()];
        while let Some(directory) = rest.pop() {
            for name in files.list(&directory)? {
                let at = directory.join(name);
                let Some(stat) = files.stat(&at)? else {
                    continue;
                };
                let path = at.strip_prefix(&self.directory).unwrap_or(&at);
                let needed = match stat.kind {
                    FileKind::File => 0o004,
                    FileKind::Directory => 0o005,
                    _ => 0,
                };
                if stat.mode & needed != needed {
                    unreadable.push(path.to_owned());
                }
                match stat.kind {
                    FileKind::Directory => rest.push(at),
                    FileKind::File if path == MANIFEST => {}
                    FileKind::File => match self.manifest.files.get(path) {
                        None => differences.push(format!("`{path}` is not in the manifest")),
                        Some(file) if file.size != stat.size => differences.push(format!(
                            "`{path}` has {} bytes instead of {}",
                            stat.size, file.size
                        )),
                        Some(file)
                            if reads
                                && files.digest(&at)?.map(BundledFile::from).as_ref()
                                    != Some(file) =>
                        {
                            differences.push(format!("`{path}` has another SHA-256"));
                        }
                        Some(_) => {}
                    },
                    FileKind::Link(_) => differences.push(format!("`{path}` is a symlink")),
                    _ => differences.push(format!("`{path}` is not a regular file")),
                }
            }
        }
        for path in self.manifest.files.keys() {
            if files.stat(&self.directory.join(path))?.is_none() {
                differences.push(format!("`{path}` is missing"));
            }
        }
        differences.sort();
        unreadable.sort();
        Ok(Comparison {
            differences,
            unreadable,
        })
    }

    /// Returns the content of a file that root uses directly, after its digest was verified.
    fn content(&self, files: &dyn ReadFiles, path: &Utf8Path) -> Result<Vec<u8>, ChangeError> {
        let at = self.directory.join(path);
        let missing = || damaged_file(&self.directory, &format!("`{path}` is missing"));
        let content = files.read(&at)?.ok_or_else(missing)?;
        let expected = self.manifest.files.get(path).map(|file| &file.sha256);
        match expected == Some(&sha256(&content)) {
            true => Ok(content),
            false => Err(damaged_file(
                &self.directory,
                &format!("`{path}` has another SHA-256"),
            )),
        }
    }

    /// Returns the text of the lock file.
    ///
    /// # Errors
    /// If it cannot be read, or differs from the manifest.
    pub fn lock(&self, files: &dyn ReadFiles) -> Result<String, ChangeError> {
        let content = self.content(files, LOCK.into())?;
        String::from_utf8(content)
            .map_err(|_| damaged_file(&self.directory, &format!("`{LOCK}` is not UTF-8")))
    }

    /// The contents of the bundle.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the SHA-256 of the manifest, which identifies the bundle.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn digest(&self, files: &dyn ReadFiles) -> Result<String, ChangeError> {
        let missing = || damaged_file(&self.directory, &format!("`{MANIFEST}` is missing"));
        let content = files.read(&self.directory.join(MANIFEST))?;
        Ok(sha256(&content.ok_or_else(missing)?))
    }

    /// The names and versions of the packages.
    pub fn packages(&self) -> BTreeSet<(String, String)> {
        let pair = |one: &BundledPackage| (one.name.clone(), one.version.clone());
        self.manifest.packages.iter().map(pair).collect()
    }

    /// Checks that the administrator has not excluded repositories by settings that do not apply to the bundle.
    fn check_forbidden(
        &self,
        files: &dyn ReadFiles,
        backend: &'static dyn Backend,
    ) -> Result<(), ChangeError> {
        let Some(mirrors) = backend.mirrors() else {
            return Ok(());
        };
        let names: Vec<&str> = (self.manifest.packages.iter())
            .map(|one| one.name.as_str())
            .collect();
        let found = mirrors.forbidden(files, &self.manifest.mirrors, &names)?;
        let Some(first) = found.first() else {
            return Ok(());
        };
        let why = format!("this machine excludes one of its repositories: {first}");
        Err(unusable(&self.directory, &why).advice(
            "remove the record, or create the bundle without the repository; the record does not apply to copies of the repository",
        ))
    }

    /// Redirects a machine to the bundle: commands of the package manager read its repositories, and requests of the keys of
    /// `repositories` are answered with its files. The source files are in `sources`, a directory of this process.
    ///
    /// # Errors
    /// If the bundle is for another package manager or contains excluded packages, or the sources cannot be written.
    pub fn redirect(
        self,
        host: &Host,
        backend: &'static dyn Backend,
        repositories: &[Repository],
        sources: &Utf8Path,
    ) -> Result<(Host, RunSources), ChangeError> {
        let other = self.manifest.manager.backend().name();
        if other != backend.name() {
            let why = format!(
                "it contains packages of {other}, and this machine uses {}",
                backend.name()
            );
            return Err(unusable(&self.directory, &why)
                .advice("create the bundle on a node with the same system"));
        }
        self.check_forbidden(&*host.files, backend)?;
        let bundle = Arc::new(self);
        let packages = redirect::BundledPackages::new(host, backend, Arc::clone(&bundle), sources);
        // An earlier process with the same ID may have been killed.
        remove_tree(&*host.files, sources)?;
        let written = RunSources {
            files: Arc::clone(&host.files),
            directory: sources.to_owned(),
        };
        // The lists of the bundle are in use from now on.
        packages.write_sources()?;
        let redirected = Host {
            exec: Arc::new(packages),
            http: Arc::new(redirect::BundledKeys::new(host, bundle, repositories)),
            ..host.clone()
        };
        Ok((redirected, written))
    }
}

fn unusable(directory: &Utf8Path, why: &str) -> ChangeError {
    ChangeError::blocked(
        "bundle-unusable",
        format!("use the bundle `{directory}`: {why}"),
    )
}

fn damaged_file(directory: &Utf8Path, why: &str) -> ChangeError {
    ChangeError::blocked(
        "bundle-damaged",
        format!("use the bundle `{directory}`: {why}"),
    )
    .advice(format!(
        "run `gpu-bootstrap bundle verify {directory}`, and copy the bundle again"
    ))
}

/// Returns an error if a bundle differs from its manifest.
///
/// # Errors
/// The first differences.
fn damaged(directory: &Utf8Path, differences: &[String]) -> Result<(), ChangeError> {
    if differences.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = differences.iter().take(MOST_LISTED).cloned().collect();
    if differences.len() > MOST_LISTED {
        lines.push(format!("and {} more", differences.len() - MOST_LISTED));
    }
    let why = "its files differ from the manifest";
    Err(damaged_file(directory, why).telling(Some(lines.join("\n"))))
}

/// Checks that the path can be part of a source file and of a setting.
fn check_characters(directory: &Utf8Path) -> Result<(), ChangeError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    match directory.as_str().chars().all(is_plain) {
        true => Ok(()),
        false => Err(unusable(directory, "the path contains special characters")
            .advice("use a path that contains only letters, digits, `.`, `_` and `-`")),
    }
}

fn inaccessible(directory: &Utf8Path, at: &Utf8Path) -> ChangeError {
    let why =
        format!("`{at}` is not accessible for all users, such as the user that downloads packages");
    unusable(directory, &why)
}

/// Checks that all users can read the files, because a package manager may read them as an unprivileged user.
fn check_readable(directory: &Utf8Path, unreadable: &[Utf8PathBuf]) -> Result<(), ChangeError> {
    match unreadable.first() {
        None => Ok(()),
        Some(path) => {
            let remedy = format!("run `chmod -R o+rX {directory}`");
            Err(inaccessible(directory, path).advice(remedy))
        }
    }
}

/// Checks that all users can reach the bundle, because a package manager may read it as an unprivileged user.
fn check_access(files: &dyn ReadFiles, directory: &Utf8Path) -> Result<(), ChangeError> {
    for at in directory.ancestors() {
        if files.stat(at)?.is_some_and(|stat| stat.mode & 0o001 == 0) {
            return Err(inaccessible(directory, at).advice(format!(
                "move the bundle to a directory such as `/srv`, or run `chmod o+x {at}`"
            )));
        }
    }
    Ok(())
}

/// Returns the directory for the source files of a process. A run and a simultaneous `plan` have separate directories, so that
/// no process reads the files of another one.
pub fn sources_of(process: u32) -> Utf8PathBuf {
    Utf8Path::new(RUN).join(format!("bundle-{process}"))
}

/// The source files of a run, which are removed at its end.
pub struct RunSources {
    files: Arc<dyn Files>,
    directory: Utf8PathBuf,
}

impl Drop for RunSources {
    fn drop(&mut self) {
        // No other process reads the remaining files, and the next boot removes them.
        if let Err(error) = remove_tree(&*self.files, &self.directory) {
            tracing::debug!(%error, "the source files of this run cannot be removed");
        }
    }
}

/// Removes a directory with its contents. Links are not followed.
fn remove_tree(files: &dyn Files, directory: &Utf8Path) -> Result<(), FilesError> {
    if files.stat(directory)?.is_none() {
        return Ok(());
    }
    remove_contents(files, directory)?;
    files.remove_empty_directory(directory).map(drop)
}

/// Removes the contents of a directory. Links are not followed.
fn remove_contents(files: &dyn Files, directory: &Utf8Path) -> Result<(), FilesError> {
    for name in files.list(directory)? {
        let path = directory.join(name);
        match files.stat(&path)?.map(|stat| stat.kind) {
            Some(FileKind::Directory) => remove_tree(files, &path)?,
            Some(_) => files.remove(&path)?,
            None => {}
        }
    }
    Ok(())
}

/// Creates an empty directory that only root can change.
fn empty_directory(files: &dyn Files, directory: &Utf8Path) -> Result<(), ChangeError> {
    refuse_foreign(files, directory)?;
    files.create_directory(directory, 0o755)?;
    // Another user may have created it in the meantime.
    refuse_foreign(files, directory)?;
    if !files.list(directory)?.is_empty() {
        let what = format!("create the bundle: the directory `{directory}` is not empty");
        return Err(ChangeError::new("bundle-exists", what)
            .exiting(Exit::Usage)
            .advice("specify a new directory, or remove this one first"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
