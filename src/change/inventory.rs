//! Taking an inventory of the machine before and after a package transaction, from files alone.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    Applier, ChangeError, Undo,
    traces::{Inventory, Traces},
};
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

    /// The undo of a transaction that has not begun. Nothing is taken down yet: while another
    /// package manager works, what it brings would count as ours.
    pub(super) fn capture_packages(&self) -> Result<Undo, ChangeError> {
        let now = self.host.clock.now().strftime("%Y%m%dT%H%M%S.%9f");
        // A clock that stands still, or was set back, must not make two transactions one.
        for n in 1_u32.. {
            let name = format!("{now}-{n}");
            if self.host.files.stat(&self.inventory_path(&name))?.is_none() {
                return Ok(Undo::Packages {
                    before: name,
                    traces: None,
                });
            }
        }
        Err(unreadable("name the transaction", "all names are taken"))
    }

    fn inventory_path(&self, name: &str) -> Utf8PathBuf {
        self.state.join("transactions").join(format!("{name}.json"))
    }

    /// Takes the inventory of before. From here on the transaction has begun, and nobody else's
    /// work is in between.
    pub(super) fn begin(&self, undo: &Undo) -> Result<(), ChangeError> {
        let Undo::Packages { before, .. } = undo else {
            return Err(unreadable(
                "begin a package transaction",
                "its undo is of another kind",
            ));
        };
        let text = serde_json::to_vec(&self.inventory()?)
            .map_err(|error| unreadable("write the inventory down", error))?;
        self.host
            .files
            .write(&self.inventory_path(before), &text, 0o600)?;
        Ok(())
    }

    /// Whether a transaction of which the end is not known has begun.
    pub(super) fn has_begun(&self, undo: &Undo) -> Result<bool, ChangeError> {
        match undo {
            Undo::Packages {
                before,
                traces: None,
            } => Ok(self
                .host
                .files
                .stat(&self.inventory_path(before))?
                .is_some()),
            _ => Ok(false),
        }
    }

    /// The undo of [`Applier::capture_packages`], now that the transaction ended.
    pub(super) fn refine_packages(&self, undo: Undo) -> Result<Undo, ChangeError> {
        match undo {
            Undo::Packages {
                before,
                traces: None,
            } => {
                let traces = self.traces_since(&before)?;
                Ok(Undo::Packages {
                    before,
                    traces: Some(Box::new(traces)),
                })
            }
            other => Ok(other),
        }
    }

    /// What happened since a transaction began; nothing if it never did.
    pub(super) fn traces_since(&self, before: &str) -> Result<Traces, ChangeError> {
        let Some(stored) = self.host.files.read(&self.inventory_path(before))? else {
            return Ok(Traces::default());
        };
        let inventory: Inventory = serde_json::from_slice(&stored)
            .map_err(|error| unreadable("read the inventory of before", error))?;
        Ok(inventory.traces(&self.inventory()?))
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

fn unreadable(what: &str, why: impl std::fmt::Display) -> ChangeError {
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
