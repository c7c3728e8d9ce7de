//! Takes an inventory of the machine before and after a package transaction.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::effects::{FOLDER, Inventory};
use crate::{
    change::{Applier, ChangeError},
    host::{Kind, digest::sha256},
    tools::{
        accounts,
        packages::{Condition, DatabaseError, Package},
    },
};

/// The folder of configuration files.
pub(super) const ETC: &str = "/etc";

impl Applier {
    /// The package database.
    pub(super) async fn database(&self) -> Result<Vec<Package>, ChangeError> {
        const WHAT: &str = "list what is installed";
        let found = self.backend.database(self.host.reader()).await;
        // Without it all installed packages would count as new, and `uninstall` would remove them.
        found
            .map_err(|error| unreadable_database(WHAT, error))?
            .ok_or_else(|| {
                unreadable(
                    WHAT,
                    format!("`{}` is missing", self.backend.database_path()),
                )
            })
    }

    /// The keys in the package manager's own database; `None` if it has no such keys.
    pub(super) async fn keys(&self) -> Result<Option<BTreeSet<String>>, ChangeError> {
        let keys = self.backend.keys(self.host.reader()).await;
        keys.map_err(|error| unreadable_database("list the keys that are trusted", error))
    }

    fn text(&self, path: &str) -> Result<String, ChangeError> {
        Ok(self
            .host
            .files
            .read(path.into())?
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default())
    }

    /// The inventory of this moment.
    pub(super) async fn inventory(&self) -> Result<Inventory, ChangeError> {
        let database = self.database().await?;
        let automatic = self.backend.automatic(self.host.reader(), &database).await;
        let mut inventory = Inventory {
            schema: Inventory::SCHEMA,
            auto: automatic
                .map_err(|error| unreadable_database("list marks of packages", error))?,
            keys: self.keys().await?.unwrap_or_default(),
            users: accounts::users(&self.text(accounts::PASSWD)?)
                .into_iter()
                .map(|user| user.name)
                .collect(),
            groups: accounts::groups(&self.text(accounts::GROUP)?)
                .into_iter()
                .map(|group| group.name)
                .collect(),
            ..Inventory::default()
        };
        for package in &database {
            let id = package.id.clone();
            match package.condition {
                Condition::Absent => {}
                Condition::Configuration => {
                    inventory.configured.insert(id);
                }
                _ => {
                    inventory.packages.insert(id, package.version.clone());
                }
            }
        }
        self.walk(ETC.into(), &mut |path, what| {
            inventory.etc.insert(path, what);
        })?;
        Ok(inventory)
    }

    fn walk(
        &self,
        folder: &Utf8Path,
        found: &mut dyn FnMut(Utf8PathBuf, String),
    ) -> Result<(), ChangeError> {
        for name in self.host.files.list(folder)? {
            let path = folder.join(name);
            if let Some(what) = self.describe(&path)? {
                let inside = what == FOLDER;
                found(path.clone(), what);
                if inside {
                    self.walk(&path, found)?;
                }
            }
        }
        Ok(())
    }

    /// A path as an entry of [`Inventory::etc`]; `None` if it does not exist.
    pub(super) fn describe(&self, path: &Utf8Path) -> Result<Option<String>, ChangeError> {
        let files = &self.host.files;
        let Some(stat) = files.stat(path)? else {
            return Ok(None);
        };
        Ok(match stat.kind {
            Kind::Folder => Some(FOLDER.to_owned()),
            Kind::Link(target) => Some(format!("link {target}")),
            Kind::File => match files.read(path) {
                // A core dump or an image: what is known without its content must do.
                Err(error) if error.is_too_large() => {
                    Some(format!("large {} {}", stat.size, stat.mtime))
                }
                content => content?.map(|content| sha256(&content)),
            },
            Kind::CharDevice(..) | Kind::Other => Some("other".to_owned()),
        })
    }
}

/// An error about a file that is read or written here.
pub(super) fn unreadable(what: &str, why: impl std::fmt::Display) -> ChangeError {
    ChangeError::Unreadable {
        what: what.to_owned(),
        why: why.to_string(),
    }
}

/// An error of the package database.
pub(super) fn unreadable_database(what: &str, error: DatabaseError) -> ChangeError {
    match error {
        DatabaseError::Files(error) => error.into(),
        DatabaseError::Exec(source) => ChangeError::Tool {
            what: what.to_owned(),
            source,
        },
    }
}

/// [`Package::id`] of installed packages that are held.
pub(super) fn held(database: &[Package]) -> BTreeSet<String> {
    database
        .iter()
        .filter(|package| package.held && package.is_unpacked())
        .map(|package| package.id.clone())
        .collect()
}
