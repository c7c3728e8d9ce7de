//! Downloads the packages of the next transaction while another one is performed.

use std::sync::PoisonError;

use super::names;
use crate::{
    change::{Applier, ChangeError, Sink},
    config::desired::PackageSpec,
    error::one_line,
};

impl Applier {
    /// Downloads the packages of a transaction that starts later. The transaction resolves, simulates and approves its packages
    /// again, and downloads what is missing, so a failure only costs time.
    pub(in crate::change) async fn download_early(
        &self,
        specs: &[PackageSpec],
        removing: &[String],
        sink: &dyn Sink,
    ) {
        if let Err(error) = self.try_to_download_early(specs, removing, sink).await {
            sink.line(&format!(
                "the packages of the next transaction are downloaded later: {}",
                one_line(&error)
            ));
        }
    }

    async fn try_to_download_early(
        &self,
        specs: &[PackageSpec],
        removing: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let before = self.caching();
        let resolved = before.resolve_locked(specs).await?;
        let Some(work) = before.work(&resolved, removing).await? else {
            return Ok(());
        };
        before.guard(&work.actions, specs).await?;
        let named = names(specs);
        before.approve(&work.actions, &named, removing).await?;
        let request = work.request();
        before.check_space(&request, None).await?;
        let download = self.backend.download(&self.settings(), &request);
        let Some(download) = self.backend.with_own_downloads(download) else {
            return Ok(());
        };
        self.run_once("download packages early", &download, 0, sink)
            .await?;
        *self
            .downloaded_early
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = work.packages;
        Ok(())
    }

    /// Returns `true` if the packages of a transaction were downloaded early.
    pub(super) fn is_downloaded_early(&self, packages: &[String]) -> bool {
        let early = self.downloaded_early.lock();
        *early.unwrap_or_else(PoisonError::into_inner) == packages
    }

    /// Removes packages that were downloaded early, also those of an interrupted run.
    pub(in crate::change) async fn remove_early_downloads(
        &self,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let Some((cmd, directory)) = self.backend.remove_own_downloads() else {
            return Ok(());
        };
        if !self.host.files.exists(directory)? {
            return Ok(());
        }
        self.run_once("remove downloaded packages", &cmd, 0, sink)
            .await?;
        for leftover in self.host.files.list(directory)? {
            // apt keeps its lock file and an empty directory.
            let path = directory.join(&leftover);
            match leftover.as_str() {
                "lock" => self.host.files.remove(&path)?,
                "partial" => {
                    self.host.files.remove_empty_directory(&path)?;
                }
                _ => {}
            }
        }
        self.host.files.remove_empty_directory(directory)?;
        Ok(())
    }
}
