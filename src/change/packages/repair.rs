//! Repairs packages that an interrupted package manager left half done.

use super::{install::removals, run::Attempts};
use crate::{
    change::{Applier, ChangeError, PackageError, Sink, Undo},
    tools::packages::{Fault, TransactionRequest},
};

impl Applier {
    /// Configures unpacked packages, then completes broken dependencies.
    pub(in crate::change) async fn repair(
        &self,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let transactions = self.transactions()?;
        self.exclusively(sink, async {
            match self.configure(undo, sink).await {
                Ok(()) if self.half_done().await?.is_empty() => return Ok(()),
                Ok(()) => {}
                // Only missing dependencies can be added; a failed script or build would fail
                // again.
                Err(ChangeError::Packages(PackageError::Failed {
                    fault: Fault::Unmet,
                    ..
                })) => {}
                Err(error) => return Err(error),
            }
            let mut attempts = Attempts::new();
            loop {
                let actions = self.simulate(&TransactionRequest::Fix).await?;
                let half_done = self.half_done().await?;
                let named: Vec<&str> = (half_done.packages.iter())
                    .map(|package| package.id.as_str())
                    .collect();
                self.approve(&actions, &named, &[]).await?;
                let fix = transactions.perform(
                    &self.settings(),
                    &TransactionRequest::Fix,
                    removals(&actions),
                );
                match self
                    .attempt(undo, "complete broken dependencies", &fix, &actions, sink)
                    .await
                {
                    Ok(()) => break,
                    Err(error) => self.wait_before_retry(&mut attempts, error, sink).await?,
                }
            }
            self.check_consistent().await
        })
        .await
    }

    async fn configure(&self, undo: &Undo, sink: &dyn Sink) -> Result<(), ChangeError> {
        let configure = self.transactions()?.configure();
        let mut attempts = Attempts::new();
        while let Err(error) = self
            .attempt(undo, "configure unpacked packages", &configure, &[], sink)
            .await
        {
            self.wait_before_retry(&mut attempts, error, sink).await?;
        }
        Ok(())
    }

    pub(in crate::change) async fn preview_repair(&self) -> Result<String, ChangeError> {
        let half_done = self.half_done().await?;
        let lines: Vec<String> = (half_done.packages.iter())
            .map(|package| format!("~ {}", package.id))
            .collect();
        Ok(lines.join("\n"))
    }
}
