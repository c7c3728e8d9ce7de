//! Package files that are kept for the way back. A repository may remove the version of a driver while the
//! next one is tried, so the files of the proven driver are downloaded before it is replaced, and used
//! from then on. They were verified like every download; their digests are recorded, and compared
//! before they are used. The way back asks for a package by its kept file where there is one, whether
//! or not it is still offered: a local repository would need an index and a key.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::record::may_still_run;
use crate::{
    change::{Applier, ChangeError, PackageError, STOPPED, Sink},
    config::desired::PackageWish,
    error::{Report, one_line},
    host::{Files, FilesError, ReadFiles, digest::sha256, files::Kind},
    model::text::bytes,
    tools::{
        mounts,
        packages::{Action, Offer, Package, TransactionRequest},
    },
};

/// The folder of the files, below the state folder.
const FOLDER: &str = "way-back";

/// The list of the files, in that folder.
const LIST: &str = "kept.json";

/// No more is kept. A driver for computing has some hundred MiB.
pub const LIMIT: u64 = 2 << 30;

/// What must stay free where they are kept.
const RESERVE: u64 = 512 << 20;

/// A package whose file is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kept {
    /// By the package manager's id.
    pub name: String,
    pub version: String,
    /// The name of the file.
    file: String,
    /// Its digest when it was downloaded.
    sha256: String,
}

impl Kept {
    /// Whether it is this package in this version.
    #[must_use]
    pub fn is(&self, wish: &PackageWish) -> bool {
        self.name == wish.name && Some(&self.version) == wish.version.as_ref()
    }
}

/// The folder below a state folder.
#[must_use]
pub fn folder(state: &Utf8Path) -> Utf8PathBuf {
    state.join(FOLDER)
}

/// What is kept below a state folder. A list that cannot be parsed keeps nothing.
///
/// # Errors
/// When an existing file cannot be read.
pub fn read(files: &dyn ReadFiles, state: &Utf8Path) -> Result<Vec<Kept>, FilesError> {
    Ok(parsed(files, state)?.unwrap_or_else(|error| {
        tracing::debug!(%error, "the list of kept package files is torn");
        Vec::new()
    }))
}

/// The list without those whose files are missing.
fn parsed(
    files: &dyn ReadFiles,
    state: &Utf8Path,
) -> Result<Result<Vec<Kept>, serde_json::Error>, FilesError> {
    let folder = folder(state);
    let Some(list) = files.read(&folder.join(LIST))? else {
        return Ok(Ok(Vec::new()));
    };
    let there = files.list(&folder)?;
    let kept = serde_json::from_slice::<Vec<Kept>>(&list);
    Ok(kept.map(|mut kept| {
        kept.retain(|one| there.contains(&one.file));
        kept
    }))
}

/// Removes all files but those of these packages.
///
/// # Errors
/// When a file cannot be removed or written.
pub fn forget(files: &dyn Files, state: &Utf8Path, but: &[PackageWish]) -> Result<(), FilesError> {
    let mut kept = read(files, state)?;
    kept.retain(|one| but.iter().any(|wish| one.is(wish)));
    only(files, &folder(state), &kept)
}

/// Removes all files of the folder but these, also what was half downloaded.
fn only(files: &dyn Files, folder: &Utf8Path, kept: &[Kept]) -> Result<(), FilesError> {
    if files.stat(folder)?.is_none() {
        return Ok(());
    }
    if kept.is_empty() {
        return remove_all(files, folder);
    }
    for name in files.list(folder)? {
        if name != LIST && !kept.iter().any(|one| one.file == name) {
            remove_all(files, &folder.join(name))?;
        }
    }
    write(files, folder, kept)
}

fn remove_all(files: &dyn Files, path: &Utf8Path) -> Result<(), FilesError> {
    if files
        .stat(path)?
        .is_some_and(|stat| stat.kind == Kind::Folder)
    {
        for name in files.list(path)? {
            remove_all(files, &path.join(name))?;
        }
        files.remove_empty_folder(path)?;
        return Ok(());
    }
    files.remove(path)
}

fn write(files: &dyn Files, folder: &Utf8Path, kept: &[Kept]) -> Result<(), FilesError> {
    let path = folder.join(LIST);
    let list = serde_json::to_vec_pretty(kept).map_err(|error| FilesError::Io {
        verb: "write",
        path: path.clone(),
        source: error.into(),
        disk: None,
    })?;
    files.write(&path, &list, 0o600)
}

/// Adds what is kept to what repositories offer. Their candidates stay the preferred versions.
pub(super) fn offered(mut offers: Vec<Offer>, names: &[&str], kept: &[Kept]) -> Vec<Offer> {
    for one in kept.iter().filter(|one| names.contains(&one.name.as_str())) {
        let version = (one.version.clone(), 0);
        match offers.iter_mut().find(|offer| offer.name == one.name) {
            Some(offer) if offer.has(&one.version) => {}
            Some(offer) => offer.versions.push(version),
            None => offers.push(Offer {
                name: one.name.clone(),
                versions: vec![version],
                ..Offer::default()
            }),
        }
    }
    offers
}

/// What an action takes away.
fn taken(action: &Action) -> Option<PackageWish> {
    let (name, version) = match action {
        Action::Remove { name, version } => (name, version),
        Action::Install {
            name,
            from: Some(from),
            to,
        } if from != to => (name, from),
        Action::Install { .. } => return None,
    };
    Some(PackageWish {
        name: name.clone(),
        version: Some(version.clone()),
    })
}

/// All that a transaction takes away, if the proven driver is a part of it: what belongs to a driver is not
/// told by names alone.
fn replaced(actions: &[Action], proven: &[PackageWish]) -> Vec<PackageWish> {
    let all: Vec<PackageWish> = actions.iter().filter_map(taken).collect();
    match all.iter().any(|one| proven.contains(one)) {
        true => all,
        false => Vec::new(),
    }
}

/// Whether an error of keeping files ends the installation, too: a request to stop, or a package manager
/// that was killed, whose child processes may continue.
fn ends_installation(error: &ChangeError) -> bool {
    may_still_run(error) || error.reason() == STOPPED
}

impl Applier {
    /// The driver that was proven, in exactly these versions: the files of its packages are kept before they
    /// are replaced.
    #[must_use]
    pub fn keeping(mut self, proven: Vec<PackageWish>) -> Self {
        self.proven = proven.into();
        self
    }

    pub(super) fn kept(&self) -> Result<Vec<Kept>, ChangeError> {
        Ok(read(&*self.host.files, &self.state)?)
    }

    /// How the package manager is asked for a package in a version: for its kept file, if there is one that
    /// is what was downloaded.
    pub(super) fn specified(
        &self,
        kept: &[Kept],
        name: &str,
        version: &str,
    ) -> Result<String, ChangeError> {
        let is_it =
            |one: &&Kept| one.name == name && self.backend.compare(&one.version, version).is_eq();
        Ok(match kept.iter().find(is_it) {
            Some(one) if self.damage(one).is_none() => {
                folder(&self.state).join(&one.file).into_string()
            }
            _ => self.transactions()?.at_version(name, version),
        })
    }

    /// Why a kept file cannot be used.
    fn damage(&self, one: &Kept) -> Option<String> {
        match self.host.files.read(&folder(&self.state).join(&one.file)) {
            Ok(content) if content.as_deref().map(sha256).as_deref() == Some(&*one.sha256) => None,
            Ok(_) => Some("its content is not what was downloaded".to_owned()),
            Err(error) => Some(format!("failed to {}", one_line(&error))),
        }
    }

    /// Forgets kept files of these packages that are not what was downloaded, so that a repository that still
    /// offers the version is asked for it.
    pub(super) fn forget_damaged(
        &self,
        names: &[&str],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let (files, folder) = (&*self.host.files, folder(&self.state));
        let mut kept = match parsed(files, &self.state)? {
            Ok(kept) => kept,
            Err(error) => {
                sink.note(&format!(
                    "the package files that were kept for the way back are not used: their list is \
                     torn: {error}"
                ));
                return Ok(only(files, &folder, &[])?);
            }
        };
        let before = kept.len();
        kept.retain(|one| {
            let why = (names.contains(&one.name.as_str()))
                .then(|| self.damage(one))
                .flatten();
            if let Some(why) = &why {
                sink.note(&format!(
                    "the kept file of {} {} is not used: {why}",
                    one.name, one.version
                ));
            }
            why.is_none()
        });
        if kept.len() < before {
            only(files, &folder, &kept)?;
        }
        Ok(())
    }

    /// Keeps the files of the packages that these actions replace, if they replace the proven driver, and if
    /// there is room for the transaction beside them. That they cannot be kept is told, and does not end the
    /// installation: `plan` names the way back that there is.
    pub(super) async fn keep(
        &self,
        request: &TransactionRequest<'_>,
        actions: &[Action],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let before = self.kept()?;
        let why = match self.keep_replaced(before.clone(), actions, sink).await {
            Ok(false) => return Ok(()),
            Ok(true) => match self.check_space(request).await {
                Err(ChangeError::Packages(PackageError::NoSpace { .. })) => {
                    "the disk has no room for both".to_owned()
                }
                checked => return checked,
            },
            Err(error) if ends_installation(&error) => return Err(error),
            Err(error) => format!("failed to {}", one_line(&error)),
        };
        sink.note(&format!(
            "the packages of the driver before are not kept for the way back: {why}"
        ));
        // Half a download is of no use, and takes room.
        if let Err(error) = only(&*self.host.files, &folder(&self.state), &before) {
            sink.line(&format!("failed to {}", one_line(&error)));
        }
        Ok(())
    }

    /// Whether files were added to those that are kept.
    async fn keep_replaced(
        &self,
        mut kept: Vec<Kept>,
        actions: &[Action],
        sink: &dyn Sink,
    ) -> Result<bool, ChangeError> {
        let all = replaced(actions, &self.proven);
        let missing: Vec<&PackageWish> = (all.iter())
            .filter(|wish| !kept.iter().any(|one| one.is(wish)))
            .collect();
        if missing.is_empty() {
            return Ok(false);
        }
        let transactions = self.transactions()?;
        let names: Vec<&str> = missing.iter().map(|wish| wish.name.as_str()).collect();
        let answer = self
            .ask(
                "look packages up",
                &transactions.offers_of_all_streams(&names),
            )
            .await?;
        let offers: BTreeMap<String, Offer> = (transactions.parse_offers(&answer).into_iter())
            .map(|offer| (offer.name.clone(), offer))
            .collect();
        let (offered, gone): (Vec<&PackageWish>, Vec<&PackageWish>) =
            missing.into_iter().partition(|wish| {
                let version = wish.version.as_deref().unwrap_or_default();
                offers
                    .get(&wish.name)
                    .is_some_and(|offer| offer.has(version))
            });
        let tell = |wishes: &[&PackageWish], why: &str| {
            for wish in wishes {
                let version = wish.version.as_deref().unwrap_or_default();
                sink.line(&format!(
                    "{} {version} is not kept for the way back: {why}",
                    wish.name
                ));
            }
        };
        tell(&gone, "no repository offers it any more");
        if offered.is_empty() {
            return Ok(false);
        }
        let specified: Vec<String> = (offered.iter())
            .map(|wish| {
                transactions.at_version(&wish.name, wish.version.as_deref().unwrap_or_default())
            })
            .collect();
        let request = TransactionRequest::Reinstall(&specified);
        let size = self.estimate(&request).await?;
        let size = size.map_or(0, |estimate| estimate.download_bytes());
        if let Some(why) = self.no_room(size)? {
            tell(&offered, &why);
            return Ok(false);
        }
        let folder = folder(&self.state);
        let files = &*self.host.files;
        files.create_folder(&folder, 0o700)?;
        for name in transactions.folders_for_downloads() {
            files.create_folder(&folder.join(name), 0o700)?;
        }
        let cmd = transactions.fetch(&self.settings(), &specified, &folder);
        self.run_once("download the packages of the driver before", &cmd, 0, sink)
            .await?;
        let (there, database) = (files.list(&folder)?, self.database().await?);
        let (before, mut absent) = (kept.len(), Vec::new());
        for wish in offered {
            let version = wish.version.clone().unwrap_or_default();
            let is_it = |one: &&Package| {
                one.id == wish.name && self.backend.compare(&one.version, &version).is_eq()
            };
            let package = database.iter().find(is_it);
            let is_its =
                |file: &&String| package.is_some_and(|one| self.backend.is_file_of(file, one));
            let Some(file) = there.iter().find(is_its) else {
                absent.push(wish);
                continue;
            };
            let content = files.read(&folder.join(file))?.unwrap_or_default();
            kept.push(Kept {
                name: wish.name.clone(),
                version,
                file: file.clone(),
                sha256: sha256(&content),
            });
        }
        tell(&absent, "its repository is a folder of this machine");
        write(files, &folder, &kept)?;
        Ok(kept.len() > before)
    }

    /// Why this much is not kept, if it is too much.
    fn no_room(&self, size: u64) -> Result<Option<String>, ChangeError> {
        if size > LIMIT {
            return Ok(Some(format!(
                "the packages have {}, and at most {} are kept",
                bytes(size),
                bytes(LIMIT)
            )));
        }
        let needed = size.saturating_add(RESERVE);
        for filesystem in mounts::of(&*self.host.files, &[self.state.as_str()])? {
            if needed > filesystem.room.free {
                return Ok(Some(format!(
                    "`{}` has {} free, and the packages need {}",
                    filesystem.mount,
                    bytes(filesystem.room.free),
                    bytes(needed)
                )));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    fn kept(name: &str, version: &str) -> Kept {
        Kept {
            name: name.to_owned(),
            version: version.to_owned(),
            file: format!("{name}_{version}.deb"),
            sha256: sha256(b"x"),
        }
    }

    fn wish(name: &str, version: &str) -> PackageWish {
        PackageWish {
            name: name.to_owned(),
            version: Some(version.to_owned()),
        }
    }

    #[test]
    fn only_the_files_of_what_was_proven_stay() {
        let (files, state) = (FakeFiles::new(), Utf8Path::new("/var/lib/x"));
        let folder = folder(state);
        files.create_folder(&folder.join("partial"), 0o700).unwrap();
        let all = [kept("a", "1"), kept("b", "1"), kept("gone", "1")];
        write(&files, &folder, &all).unwrap();
        for one in &all[..2] {
            files.write(&folder.join(&one.file), b"x", 0o600).unwrap();
        }
        assert_eq!(read(&files, state).unwrap(), all[..2]);
        forget(&files, state, &[wish("a", "1"), wish("b", "2")]).unwrap();
        assert_eq!(read(&files, state).unwrap(), all[..1]);
        assert_eq!(files.list(&folder).unwrap(), ["a_1.deb", LIST]);
        forget(&files, state, &[]).unwrap();
        assert!(files.stat(&folder).unwrap().is_none());
        // A torn list keeps nothing, and its files go.
        files.write(&folder.join(LIST), b"[{", 0o600).unwrap();
        assert!(read(&files, state).unwrap().is_empty());
        forget(&files, state, &[]).unwrap();
        assert!(files.stat(&folder).unwrap().is_none());
    }

    #[test]
    fn a_kept_version_is_offered_beside_those_of_repositories() {
        let there = Offer {
            name: "a".into(),
            candidate: Some("2".into()),
            versions: vec![("2".into(), 500)],
            forbidden: Vec::new(),
            only_installed: None,
        };
        let all = [
            kept("a", "1"),
            kept("a", "2"),
            kept("b", "1"),
            kept("c", "1"),
        ];
        let found = offered(vec![there], &["a", "b"], &all);
        let told: Vec<(&str, Option<&str>, usize)> = (found.iter())
            .map(|one| {
                (
                    one.name.as_str(),
                    one.candidate.as_deref(),
                    one.versions.len(),
                )
            })
            .collect();
        assert_eq!(told, [("a", Some("2"), 2), ("b", None, 1)]);
    }

    #[test]
    fn all_that_goes_with_the_proven_driver_is_kept() {
        let install = |name: &str, from: Option<&str>, to: &str| Action::Install {
            name: name.into(),
            from: from.map(str::to_owned),
            to: to.into(),
        };
        let actions = [
            install("driver", Some("1"), "2"),
            install("new", None, "2"),
            install("same", Some("1"), "1"),
            Action::Remove {
                name: "firmware".into(),
                version: "1".into(),
            },
        ];
        let all = replaced(&actions, &[wish("driver", "1")]);
        assert_eq!(all, [wish("driver", "1"), wish("firmware", "1")]);
        // Another version was proven, or nothing was.
        assert!(replaced(&actions, &[wish("driver", "0")]).is_empty());
        assert!(replaced(&actions, &[]).is_empty());
    }
}
