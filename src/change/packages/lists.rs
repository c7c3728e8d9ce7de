//! The package lists: downloaded once per run, and replaced if damaged.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::change::{Applier, ChangeError, Sink};

/// Whether the package lists were downloaded in this run, and no repository was added since.
#[derive(Debug, Default)]
pub(in crate::change) struct Lists(AtomicBool);

impl Lists {
    pub(in crate::change) fn set_fresh(&self, fresh: bool) {
        self.0.store(fresh, Ordering::SeqCst);
    }

    pub(super) fn are_fresh(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Applier {
    /// Downloads the package lists, unless they are fresh.
    pub(in crate::change) async fn refresh(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        self.transactions()?;
        if self.lists.are_fresh() {
            sink.line("the package lists were already downloaded in this run");
            return Ok(());
        }
        self.exclusively(sink, self.update(sink)).await
    }

    pub(super) async fn update(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let refresh = self.transactions()?.refresh(&self.settings(), false);
        self.lists.set_fresh(false);
        for torn in self.backend.torn_lists(&*self.host.files)? {
            // A missing file is downloaded again.
            self.host.files.remove(&torn)?;
        }
        self.fetch_lists(refresh, sink).await?;
        self.lists.set_fresh(true);
        Ok(())
    }
}
