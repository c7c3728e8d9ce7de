//! The package lists. They are downloaded once per run, and replaced if they are damaged.
//!
//! If no required package comes from a failed source, the failure is only a warning. This is decided by the download URLs of
//! the transaction, after the lists of the other sources were refreshed.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{has_failed, is_not_offered};
use crate::{
    change::{Applier, ChangeError, Class, Sink},
    config::desired::{Desired, PackageSpec, Repository},
    tools::packages::{FailureClass, Impact, SourceEntry, SourceFailure, TransactionRequest},
};

/// Whether the package lists were downloaded in this run, after the last repository was added.
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

/// The packages and repositories that a run needs, to decide if a failed source is needed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WantedPackages {
    /// All required packages.
    pub packages: Vec<PackageSpec>,
    /// The repositories that the run adds, or uses if they are already configured.
    pub repositories: Vec<Repository>,
}

impl WantedPackages {
    /// Returns the packages and repositories of the desired state.
    pub fn of(desired: &Desired) -> Self {
        let groups = desired.package_groups().into_iter();
        Self {
            packages: groups.flat_map(|(_, packages)| packages.to_vec()).collect(),
            repositories: desired.repositories.clone(),
        }
    }

    /// Returns `true` if a source entry of the machine is one of the required repositories, or was written by gpu-bootstrap.
    fn names(&self, entry: &SourceEntry) -> bool {
        entry.is_ours()
            || self.repositories.iter().any(|one| {
                let architecture = one.architectures.first().map(String::as_str);
                (one.suites.iter()).any(|suite| entry.names(&one.url, suite, architecture))
            })
    }
}

impl Applier {
    /// Returns the sources that made a download of the lists fail, if no required package comes from them. `None` if one of
    /// them is needed, if this is unknown, or if there was another error.
    pub(super) async fn unneeded_sources(
        &self,
        output: &str,
    ) -> Result<Option<Vec<SourceFailure>>, ChangeError> {
        let failures = self.backend.failures_by_source(output);
        let (Some(wanted), Some(failures)) = (&self.wanted, failures) else {
            return Ok(None);
        };
        let mut failed = Vec::new();
        let entries = self.backend.entries(&*self.host.files)?;
        for failure in &failures {
            let mut of_it = (entries.iter())
                .filter(|entry| entry.is_at(&failure.address))
                .peekable();
            if of_it.peek().is_none() {
                return Ok(None);
            }
            for entry in of_it {
                if wanted.names(entry) {
                    return Ok(None);
                }
                failed.push(entry);
            }
        }
        // Check where the package manager would download from, with the current lists.
        let packages = match self.resolve(&wanted.packages).await {
            Ok(resolved) => self.to_install(&resolved).await?,
            Err(error) if is_not_offered(&error) || has_failed(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if packages.is_empty() {
            return Ok(Some(failures));
        }
        let request = TransactionRequest::Install {
            packages: &packages,
            removing: &[],
        };
        let estimate = match self.estimate(&request).await {
            Ok(estimate) => estimate,
            // No transaction is possible, regardless of its packages.
            Err(error) if error.class == Class::PackageManager(FailureClass::Sources) => {
                return Err(error);
            }
            Err(error) if has_failed(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let needed = (estimate.downloads.iter())
            .any(|(address, _)| failed.iter().any(|entry| entry.is_at(address)));
        Ok((!needed).then_some(failures))
    }

    /// Fails if the package manager cannot read its sources at all. Otherwise `None`, because the new lists are unknown before
    /// the download.
    pub(in crate::change) fn preview_refresh(&self) -> Result<Option<String>, ChangeError> {
        let issues = self.backend.source_issues(&*self.host.files)?;
        let worst = issues.into_iter().find(|issue| issue.impact == Impact::All);
        match worst {
            None => Ok(None),
            Some(issue) => Err(ChangeError::unreadable(
                format!("let {} read its sources", self.backend.name()),
                issue.why,
            )),
        }
    }

    /// Downloads the package lists, unless they are fresh.
    pub(in crate::change) async fn refresh(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        if self.lists.are_fresh() {
            sink.line("the package lists were already downloaded in this run");
            return Ok(());
        }
        self.exclusively(sink, self.update(sink)).await
    }

    pub(super) async fn update(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        let refresh = self.backend.refresh(&self.settings(), false);
        self.lists.set_fresh(false);
        for torn in self.backend.truncated_lists(&*self.host.files)? {
            // A missing file is downloaded again.
            self.host.files.remove(&torn)?;
        }
        self.fetch_lists(refresh, sink).await?;
        self.lists.set_fresh(true);
        Ok(())
    }
}
