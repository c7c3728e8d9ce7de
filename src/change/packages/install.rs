//! Installation: packages are resolved, simulated, approved, downloaded, installed and verified.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    approval::{choose, guarded, same_version},
    names,
    run::Attempts,
};
use crate::{
    change::{Applier, ChangeError, PackageError, Sink, Undo},
    config::desired::PackageWish,
    facts::detection::carries_driver,
    model::pattern,
    tools::packages::{Action, Removals, TransactionRequest},
};

impl Applier {
    /// Installs the wanted packages; those that are installed in a wanted version stay untouched.
    pub(in crate::change) async fn install(
        &self,
        wishes: &[PackageWish],
        removing: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.transactions()?;
        self.exclusively(sink, async {
            self.check_consistent().await?;
            let mut resolved = match self.resolve(wishes).await {
                // Lists as old as the image may not contain the mirror's current versions.
                Err(ChangeError::Packages(PackageError::NoVersion { .. }))
                    if !self.lists.are_fresh() =>
                {
                    self.update(sink).await?;
                    self.resolve(wishes).await?
                }
                resolved => resolved?,
            };
            let mut attempts = Attempts::new();
            while let Err(error) = self.transact(&resolved, wishes, removing, undo, sink).await {
                self.wait_before_retry(&mut attempts, error, sink).await?;
                // Newer lists, or the work of another package manager, may lead to another
                // transaction: it is simulated and approved like the first one.
                resolved = self.resolve(wishes).await?;
            }
            self.verify(&resolved).await
        })
        .await
    }

    /// One attempt at a transaction: simulated, approved, downloaded, performed.
    async fn transact(
        &self,
        resolved: &BTreeMap<String, String>,
        wishes: &[PackageWish],
        removing: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let (packages, removing_there) = (
            self.to_install(resolved).await?,
            self.present(removing).await?,
        );
        if packages.is_empty() && removing_there.is_empty() {
            return Ok(());
        }
        let request = TransactionRequest::Install {
            packages: &packages,
            removing: &removing_there,
        };
        let actions = self.simulate(&request).await?;
        self.guard(&actions, wishes).await?;
        self.approve(&actions, &names(wishes), removing).await?;
        self.check_space(&request).await?;
        let (transactions, settings) = (self.transactions()?, self.settings());
        let downloads = actions
            .iter()
            .filter(|action| matches!(action, Action::Install { .. }))
            .count();
        let download = transactions.download(&settings, &request);
        self.run_once("download packages", &download, downloads, sink)
            .await?;
        let cmd = transactions.perform(&settings, &request, removals(&actions));
        self.attempt(undo, "install packages", &cmd, &actions, sink)
            .await
    }

    /// Refuses before the first change of a run what [`Guard`](crate::config::desired::Guard)
    /// excludes, and packages that do not fit on a filesystem. Other obstacles may be gone when it is
    /// their turn: the lists can be too old, or a repository may be missing, until earlier changes
    /// are applied. Then nothing is known, and the transaction itself is judged again.
    pub(in crate::change) async fn rehearse_install(
        &self,
        wishes: &[PackageWish],
        removing: &[String],
    ) -> Result<(), ChangeError> {
        self.transactions()?;
        if !self.backend.torn_lists(&*self.host.files)?.is_empty() {
            return Ok(());
        }
        match self.judge_install(wishes, removing).await {
            Err(ChangeError::Packages(
                error @ (PackageError::NoVersion { .. } | PackageError::Failed { .. }),
            )) => {
                tracing::debug!(%error, "the installation cannot be simulated yet");
                Ok(())
            }
            judged => judged,
        }
    }

    async fn judge_install(
        &self,
        wishes: &[PackageWish],
        removing: &[String],
    ) -> Result<(), ChangeError> {
        let resolved = self.resolve(wishes).await?;
        let (packages, removing) = (
            self.to_install(&resolved).await?,
            self.present(removing).await?,
        );
        if packages.is_empty() {
            return Ok(());
        }
        let request = TransactionRequest::Install {
            packages: &packages,
            removing: &removing,
        };
        if wishes.iter().any(|wish| carries_driver(&wish.name)) {
            let actions = self.simulate(&request).await?;
            self.guard(&actions, wishes).await?;
        }
        self.check_space(&request).await
    }

    /// Refuses what [`Guard`](crate::config::desired::Guard) excludes.
    async fn guard(&self, actions: &[Action], wishes: &[PackageWish]) -> Result<(), ChangeError> {
        let guard = &self.policy.guard;
        guarded(self.backend, actions, &names(wishes), guard)?;
        let modules: Vec<&str> = (actions.iter())
            .filter_map(|action| match action {
                Action::Install { name, .. } => Some(self.backend.bare_name(name)),
                Action::Remove { .. } => None,
            })
            .filter(|name| guard.modules.iter().any(|one| pattern::matches(one, name)))
            .collect();
        if modules.is_empty() {
            return Ok(());
        }
        let transactions = self.transactions()?;
        if let Some(query) = transactions.lower_bounds(&modules) {
            let answer = self.ask("look at what modules need", &query).await?;
            let bounds = transactions.parse_lower_bounds(&answer);
            same_version(self.backend, actions, &bounds, guard)?;
        }
        Ok(())
    }

    pub(in crate::change) async fn preview_install(
        &self,
        wishes: &[PackageWish],
        removing: &[String],
    ) -> Result<String, ChangeError> {
        if self.backend.transactions().is_none() {
            let name = self.backend.name();
            return Ok(format!(
                "installing with {name} is not available in this version"
            ));
        }
        let resolved = match self.resolve(wishes).await {
            Ok(resolved) => resolved,
            // An earlier change of the plan may add the repository or download newer lists.
            Err(ChangeError::Packages(error @ PackageError::NoVersion { .. })) => {
                return Ok(format!("cannot be simulated yet: failed to {error}"));
            }
            Err(error) => return Err(error),
        };
        let (packages, removing_there) = (
            self.to_install(&resolved).await?,
            self.present(removing).await?,
        );
        if packages.is_empty() && removing_there.is_empty() {
            return Ok(String::new());
        }
        let request = TransactionRequest::Install {
            packages: &packages,
            removing: &removing_there,
        };
        let actions = self.simulate(&request).await?;
        self.guard(&actions, wishes).await?;
        self.approve(&actions, &names(wishes), removing).await?;
        self.check_space(&request).await?;
        Ok(Action::describe(&actions))
    }

    /// Installs removed packages again; refused if the transaction would remove others.
    pub(super) async fn reinstall_specs(
        &self,
        packages: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        const WHAT: &str = "install removed packages again";
        let request = TransactionRequest::Install {
            packages,
            removing: &[],
        };
        let mut attempts = Attempts::new();
        loop {
            let actions = self.simulate(&request).await?;
            self.approve(&actions, &[], &[]).await?;
            let cmd =
                (self.transactions()?).perform(&self.settings(), &request, removals(&actions));
            let stages = super::run::stages(&actions);
            match self.run_once(WHAT, &cmd, stages, sink).await {
                Ok(()) => return Ok(()),
                Err(error) => self.wait_before_retry(&mut attempts, error, sink).await?,
            }
        }
    }

    /// The version of each wanted package: the installed one if it matches, else the one to
    /// install.
    pub(super) async fn resolve(
        &self,
        wishes: &[PackageWish],
    ) -> Result<BTreeMap<String, String>, ChangeError> {
        let installed = self.installed().await?;
        let mut resolved = BTreeMap::new();
        let mut open: Vec<&PackageWish> = Vec::new();
        for wish in wishes {
            let wanted = wish.version.as_deref().unwrap_or("*");
            match installed.get(&wish.name) {
                Some(version) if self.backend.matches(wanted, version) => {
                    resolved.insert(wish.name.clone(), version.clone());
                }
                _ => open.push(wish),
            }
        }
        if open.is_empty() {
            return Ok(resolved);
        }
        let transactions = self.transactions()?;
        let names: BTreeSet<&str> = open.iter().map(|wish| wish.name.as_str()).collect();
        let query = transactions.offers(&names.into_iter().collect::<Vec<_>>());
        let answer = self.ask("look packages up", &query).await?;
        let offers = transactions.parse_offers(&answer);
        for wish in open {
            let offer = offers.iter().find(|offer| offer.name == wish.name);
            resolved.insert(wish.name.clone(), choose(self.backend, wish, offer)?);
        }
        Ok(resolved)
    }

    /// The packages to request: those that are not installed in the resolved version.
    pub(super) async fn to_install(
        &self,
        resolved: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, ChangeError> {
        let (installed, transactions) = (self.installed().await?, self.transactions()?);
        Ok(resolved
            .iter()
            .filter(|(name, version)| !self.is_version(installed.get(*name), version))
            .map(|(name, version)| transactions.at_version(name, version))
            .collect())
    }

    /// Whether the installed version is this one, by the manager's own rules.
    fn is_version(&self, installed: Option<&String>, wanted: &str) -> bool {
        installed.is_some_and(|found| self.backend.compare(found, wanted).is_eq())
    }

    /// Which of the packages are in the database, in any state except removed.
    async fn present(&self, names: &[String]) -> Result<Vec<String>, ChangeError> {
        let database = self.database().await?;
        let there: BTreeSet<&str> = database
            .iter()
            .filter(|package| package.is_there())
            .map(|package| package.id.as_str())
            .collect();
        Ok(names
            .iter()
            .filter(|name| there.contains(name.as_str()))
            .cloned()
            .collect())
    }

    async fn installed(&self) -> Result<BTreeMap<String, String>, ChangeError> {
        Ok((self.database().await?.into_iter())
            .filter(|package| package.is_installed())
            .map(|package| (package.id, package.version))
            .collect())
    }

    async fn verify(&self, resolved: &BTreeMap<String, String>) -> Result<(), ChangeError> {
        self.check_consistent().await?;
        let installed = self.installed().await?;
        for (name, wanted) in resolved {
            let found = installed.get(name);
            if !self.is_version(found, wanted) {
                return Err(PackageError::NotVerified {
                    package: name.clone(),
                    found: found.map_or("not installed", String::as_str).to_owned(),
                    wanted: wanted.clone(),
                }
                .into());
            }
        }
        Ok(())
    }
}

/// Whether the approved simulation removes anything: if not, the real transaction must not either.
pub(super) fn removals(actions: &[Action]) -> Removals {
    if actions
        .iter()
        .any(|action| matches!(action, Action::Remove { .. }))
    {
        Removals::Approved
    } else {
        Removals::None
    }
}
