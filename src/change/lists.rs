//! The package lists: fetched once per run, and whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
};

use camino::Utf8Path;

use super::{Applier, ChangeError, Sink};
use crate::{
    host::{Kind, Stat},
    tools::apt_lists,
};

/// Whether the package lists were fetched in this run, and no repository was added since.
#[derive(Debug, Default)]
pub(super) struct Lists(AtomicBool);

impl Lists {
    pub(super) fn set_fresh(&self, fresh: bool) {
        self.0.store(fresh, Ordering::SeqCst);
    }

    pub(super) fn are_fresh(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Applier {
    /// Fetches the package lists, unless they are fresh.
    pub(super) async fn refresh(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        self.apt()?;
        if self.lists.are_fresh() {
            sink.line("the package lists were fetched in this run already");
            return Ok(());
        }
        self.exclusively(sink, self.update(sink)).await
    }

    pub(super) async fn update(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let apt = self.apt()?;
        self.lists.set_fresh(false);
        self.drop_torn_lists()?;
        self.apt_run("fetch the package lists", apt.update(), sink)
            .await?;
        self.lists.set_fresh(true);
        Ok(())
    }

    /// Lists that are not whole are removed, so that apt fetches them again; so it does with the
    /// list of a repository that is really empty.
    fn drop_torn_lists(&self) -> Result<(), ChangeError> {
        let files = &self.host.files;
        let folder = Utf8Path::new(apt_lists::FOLDER);
        let mut sizes = BTreeMap::new();
        for name in files.list(folder)? {
            let is_file = |stat: &Stat| stat.kind == Kind::File && name != "lock";
            if let Some(stat) = files.stat(&folder.join(&name))?.filter(is_file) {
                sizes.insert(name, stat.size);
            }
        }
        let mut torn: BTreeSet<&str> = (sizes.iter())
            .filter(|(_, size)| **size == 0)
            .map(|(name, _)| name.as_str())
            .collect();
        for index in sizes.keys().filter(|name| apt_lists::is_index(name)) {
            let bytes = files.read(&folder.join(index))?.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            torn.extend(apt_lists::torn(index, &text, &sizes));
        }
        for name in torn {
            files.remove(&folder.join(name))?;
        }
        Ok(())
    }
}
