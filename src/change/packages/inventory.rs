//! Takes an inventory of the machine before and after a package transaction.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::effects::{Inventory, Unowned};
use crate::{
    change::{Applier, ChangeError},
    host::FileKind,
    tools::{
        accounts,
        packages::{DatabaseError, Package, PackageCondition},
    },
};

/// The directory of configuration files.
const ETC: &str = "/etc";

impl Applier {
    /// The package database.
    pub(super) async fn database(&self) -> Result<Vec<Package>, ChangeError> {
        match &self.cache {
            Some(cache) => {
                let database = cache.database.get_or_try_init(|| self.read_database());
                database.await.cloned()
            }
            None => self.read_database().await,
        }
    }

    async fn read_database(&self) -> Result<Vec<Package>, ChangeError> {
        const WHAT: &str = "list the installed packages";
        let found = self.backend.database(self.host.reader()).await;
        // Without the database all installed packages would count as new, and `uninstall` would remove them.
        found
            .map_err(|error| unreadable_database(WHAT, error))?
            .ok_or_else(|| {
                ChangeError::unreadable(
                    WHAT,
                    format!("`{}` is missing", self.backend.database_path()),
                )
            })
    }

    /// The keys in the package manager's own database. `None` if it does not store keys.
    pub(super) async fn keys(&self) -> Result<Option<BTreeSet<String>>, ChangeError> {
        let keys = self.backend.keys(self.host.reader()).await;
        keys.map_err(|error| unreadable_database("list the trusted keys", error))
    }

    /// Takes the whole inventory.
    pub(super) async fn inventory(&self) -> Result<Inventory, ChangeError> {
        Ok(Inventory {
            unowned: self.unowned().await?,
            ..self.inventory_of_packages().await?
        })
    }

    /// Takes the inventory without accounts and without files that belong to no package. Finding such files requires the file
    /// lists of all packages.
    pub(super) async fn inventory_of_packages(&self) -> Result<Inventory, ChangeError> {
        let database = self.database().await?;
        let automatic = self.backend.automatic(self.host.reader(), &database).await;
        let mut inventory = Inventory {
            schema: Inventory::SCHEMA,
            auto: automatic.map_err(|error| {
                unreadable_database("list the automatically installed packages", error)
            })?,
            keys: self.keys().await?.unwrap_or_default(),
            ..Inventory::default()
        };
        for package in &database {
            let id = package.id.clone();
            match package.condition {
                PackageCondition::Absent => {}
                PackageCondition::Configuration => {
                    inventory.configured.insert(id);
                }
                _ => {
                    inventory.packages.insert(id, package.version.clone());
                }
            }
        }
        Ok(inventory)
    }

    /// The current accounts, and the files in [`ETC`] that no package owns.
    pub(super) async fn unowned(&self) -> Result<Unowned, ChangeError> {
        let names = |path: &str| -> Result<BTreeSet<String>, ChangeError> {
            let text = self.host.files.read(path.into())?.unwrap_or_default();
            Ok(accounts::names(&String::from_utf8_lossy(&text)))
        };
        let owned = self.backend.owned_below(self.host.reader(), ETC.into());
        let owned = (owned.await)
            .map_err(|error| unreadable_database("list the files that packages own", error))?;
        let mut etc = BTreeSet::new();
        self.walk(ETC.into(), &mut etc)?;
        Ok(Unowned {
            users: names(accounts::PASSWD)?,
            groups: names(accounts::GROUP)?,
            etc: &etc - &owned,
        })
    }

    /// Adds the files and symlinks below a directory.
    fn walk(
        &self,
        directory: &Utf8Path,
        found: &mut BTreeSet<Utf8PathBuf>,
    ) -> Result<(), ChangeError> {
        for name in self.host.files.list(directory)? {
            let path = directory.join(name);
            match self.host.files.stat(&path)?.map(|stat| stat.kind) {
                Some(FileKind::Directory) => self.walk(&path, found)?,
                Some(FileKind::File | FileKind::Link(_)) => {
                    found.insert(path);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The error of an unreadable package database.
pub(super) fn unreadable_database(what: &str, error: DatabaseError) -> ChangeError {
    match error {
        DatabaseError::Files(error) => error.into(),
        DatabaseError::Exec(source) => ChangeError::tool(what, source),
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
