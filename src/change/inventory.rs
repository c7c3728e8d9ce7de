//! Taking an inventory of the machine before and after a package transaction, from files alone.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::{Applier, ChangeError, traces::Inventory};
use crate::{
    host::{Kind, digest::sha256},
    tools::{
        accounts, apt_marks,
        dpkg_status::{self, Package, State},
    },
};

/// What packages configure.
pub(super) const ETC: &str = "/etc";

impl Applier {
    /// What dpkg knows.
    pub(super) fn database(&self) -> Result<Vec<Package>, ChangeError> {
        // Without it everything that is installed would count as new, and be taken away by `uninstall`.
        dpkg_status::read(&*self.host.files)?.ok_or_else(|| {
            unreadable(
                "list what is installed",
                format!("`{}` is missing", dpkg_status::PATH),
            )
        })
    }

    fn text(&self, path: &str) -> Result<String, ChangeError> {
        Ok(self
            .host
            .files
            .read(path.into())?
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default())
    }

    /// What is there now.
    pub(super) fn inventory(&self) -> Result<Inventory, ChangeError> {
        let database = self.database()?;
        let native = native(&database);
        let mut inventory = Inventory {
            schema: Inventory::SCHEMA,
            auto: apt_marks::parse(&self.text(apt_marks::PATH)?, native),
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
            let name = full_name(package, native);
            match package.state {
                State::NotInstalled => {}
                State::ConfigFiles => {
                    inventory.configured.insert(name);
                }
                _ => {
                    inventory.packages.insert(name, package.version.clone());
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

    /// A path in the words of [`Inventory::etc`]; `None` if nothing is there.
    pub(super) fn describe(&self, path: &Utf8Path) -> Result<Option<String>, ChangeError> {
        let files = &self.host.files;
        let Some(stat) = files.stat(path)? else {
            return Ok(None);
        };
        Ok(match stat.kind {
            Kind::Folder => Some(FOLDER.to_owned()),
            Kind::Link(target) => Some(format!("link {target}")),
            Kind::File => files.read(path)?.map(|content| sha256(&content)),
            Kind::CharDevice(..) | Kind::Other => Some("other".to_owned()),
        })
    }
}

/// An error of what is read or written here.
pub(super) fn unreadable(what: &str, why: impl std::fmt::Display) -> ChangeError {
    ChangeError::Unreadable {
        what: what.to_owned(),
        why: why.to_string(),
    }
}

/// A folder in the words of [`Inventory::etc`].
pub(super) const FOLDER: &str = "folder";

/// The machine's own architecture: that of dpkg itself.
pub(super) fn native(database: &[Package]) -> &str {
    database
        .iter()
        .find(|package| package.name == "dpkg")
        .map_or("", |package| package.architecture.as_str())
}

/// The name by which apt takes the package: with the architecture if it is a foreign one.
pub(super) fn full_name(package: &Package, native: &str) -> String {
    let own = package.architecture == native
        || package.architecture == "all"
        || package.architecture.is_empty()
        || native.is_empty();
    if own {
        package.name.clone()
    } else {
        format!("{}:{}", package.name, package.architecture)
    }
}

/// Names of installed packages that are held.
pub(super) fn held(database: &[Package]) -> BTreeSet<String> {
    let native = native(database);
    database
        .iter()
        .filter(|package| package.is_held() && package.is_unpacked())
        .map(|package| full_name(package, native))
        .collect()
}
