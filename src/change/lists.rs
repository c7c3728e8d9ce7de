//! The package lists: fetched once per run, and whole.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Applier, ChangeError, Sink};
use crate::tools::apt_lists;

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
        for torn in apt_lists::torn(&*self.host.files)? {
            // Without the file apt fetches it again.
            self.host.files.remove(&torn)?;
        }
        self.apt_run("fetch the package lists", apt.update(), sink)
            .await?;
        self.lists.set_fresh(true);
        Ok(())
    }
}
