//! Installs the first part of a large transaction while the rest is downloaded. On a link that is slower than the disk, this saves
//! most of the time that the first part takes. The transaction is approved as a whole before, and completed as a whole afterwards,
//! so the result is the same.

use std::{collections::BTreeMap, time::Duration};

use super::run::Expected;
use crate::{
    change::{Applier, ChangeError, Sink, Undo},
    config::desired::PackageSpec,
    facts::detection::{carries_driver, is_driver_part},
    tools::packages::{Action, TransactionRequest},
};

/// A smaller transaction is not divided, in bytes. Even at 200 Mbit/s, it is downloaded in 4 s.
pub(super) const LARGE: u64 = 100_000_000;

/// If the first part is downloaded in less time, the link is fast, and a second transaction, which takes about half a second, is not
/// worthwhile.
const SLOW: Duration = Duration::from_secs(2);

/// The first part of a transaction.
struct Part {
    packages: Vec<String>,
    actions: Vec<Action>,
    /// The packages that remain, with their versions.
    rest: Vec<String>,
}

impl Applier {
    /// Installs the packages after the driver (container runtimes and the toolkit) while the driver is downloaded. On a fast link,
    /// only downloads them. Returns `false` if the approved transaction cannot be divided. Otherwise performing it downloads the
    /// rest. The driver comes last because its deferred trigger would otherwise run in the second transaction.
    pub(super) async fn install_first_part(
        &self,
        specs: &[PackageSpec],
        resolved: &BTreeMap<String, String>,
        approved: &[Action],
        later: bool,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<bool, ChangeError> {
        let part = match self.first_part(specs, resolved, approved).await {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(false),
            Err(error) => {
                tracing::debug!(%error, "the transaction cannot be divided");
                return Ok(false);
            }
        };
        let settings = self.settings();
        let Some(rest) = self.backend.download_beside(&settings, &part.rest) else {
            return Ok(false);
        };
        let request = TransactionRequest::Install {
            packages: &part.packages,
            removing: &[],
        };
        let begun = self.host.clock.monotonic();
        self.download(&request, &part.actions, undo, sink).await?;
        if self.host.clock.monotonic().saturating_sub(begun) < SLOW {
            return Ok(true);
        }
        let performed = self.perform(&request, &part.actions, later, undo, sink);
        let downloaded = async {
            // The rest of the transaction downloads what is missing, and reports failures.
            if let Err(error) = self
                .run_once("download packages", &rest, Expected::default(), sink)
                .await
            {
                tracing::debug!(%error, "a download failed and is repeated later");
            }
            Ok(())
        };
        tokio::try_join!(performed, downloaded)?;
        Ok(true)
    }

    /// Returns the first part of a transaction: the required packages after the driver, with their dependencies. `None` if this is
    /// nothing, everything, or not a part of the approved actions.
    async fn first_part(
        &self,
        specs: &[PackageSpec],
        resolved: &BTreeMap<String, String>,
        approved: &[Action],
    ) -> Result<Option<Part>, ChangeError> {
        let is_of_driver =
            |spec: &PackageSpec| carries_driver(&spec.name) || is_driver_part(&spec.name);
        let Some(last) = specs.iter().rposition(is_of_driver) else {
            return Ok(None);
        };
        let version = |spec: &PackageSpec| {
            let version = resolved.get(&spec.name)?;
            Some((spec.name.clone(), version.clone()))
        };
        let first: BTreeMap<String, String> =
            specs[last + 1..].iter().filter_map(version).collect();
        let packages = self.to_install(&first).await?;
        if packages.is_empty() {
            return Ok(None);
        }
        let request = TransactionRequest::Install {
            packages: &packages,
            removing: &[],
        };
        let actions = self.simulate(&request).await?;
        let rest: Vec<String> = (approved.iter())
            .filter(|action| !actions.contains(action))
            .filter_map(Action::installed)
            .map(|(name, version)| self.backend.at_version(name, version))
            .collect();
        let is_approved = actions.iter().all(|action| approved.contains(action));
        Ok((is_approved && !rest.is_empty()).then_some(Part {
            packages,
            actions,
            rest,
        }))
    }
}
