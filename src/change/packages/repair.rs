//! Repairs packages that an interrupted package manager left unconfigured.

use super::{install::removals, run::Attempts};
use crate::{
    change::{Applier, ChangeError, Class, Sink, Undo},
    host::{Cmd, FileKind},
    tools::packages::{Action, FailureClass, Package, TransactionRequest},
};

/// The action in errors about an interrupted transaction.
const COMPLETE: &str = "complete an interrupted transaction";

impl Applier {
    /// Configures unpacked packages, then fixes broken dependencies. With a package manager that cannot configure packages
    /// separately (dnf), reinstalls the packages of the interrupted transaction instead.
    pub(in crate::change) async fn repair(
        &self,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.exclusively(sink, async {
            self.remove_torn_trees(sink).await?;
            let Some(configure) = self.backend.configure() else {
                self.complete(undo, sink).await?;
                return self.check_consistent().await;
            };
            match self.configure(&configure, undo, sink).await {
                Ok(()) if self.half_done().await?.is_empty() => return Ok(()),
                Ok(()) => {}
                // The loop below adds missing dependencies. A failed script or build would fail again.
                Err(error) if error.class == Class::PackageManager(FailureClass::Unmet) => {}
                Err(error) => return Err(error),
            }
            let mut attempts = Attempts::new();
            loop {
                let actions = match self.simulate(&TransactionRequest::Fix).await {
                    // A power loss may have truncated the package lists, so that a package to reinstall is not available.
                    Err(error) if self.lacks_lists(&error) => {
                        self.update(sink).await?;
                        continue;
                    }
                    simulated => simulated?,
                };
                let half_done = self.half_done().await?;
                let named: Vec<&str> = (half_done.packages.iter())
                    .map(|package| package.id.as_str())
                    .collect();
                self.approve(&actions, &named, &[]).await?;
                let fix = self.backend.perform(
                    &self.settings(),
                    &TransactionRequest::Fix,
                    removals(&actions),
                );
                match self
                    .attempt(undo, "fix broken dependencies", &fix, &actions, sink)
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

    /// Whether no source offers a package, and the lists were not downloaded in this run.
    fn lacks_lists(&self, error: &ChangeError) -> bool {
        error.reason == FailureClass::NotFound.reason() && !self.lists.are_fresh()
    }

    /// Reinstalls the packages of an interrupted transaction, so that all scripts run and old versions from an upgrade are
    /// removed.
    async fn complete(&self, undo: &Undo, sink: &dyn Sink) -> Result<(), ChangeError> {
        let Some(query) = self.backend.unfinished() else {
            return Ok(());
        };
        // Record the packages first, because `query` returns only the last transaction, which may be another one later, such
        // as a manual one.
        self.record_begun().await?;
        let mut attempts = Attempts::new();
        loop {
            let answer = self.ask("query the last transaction", &query).await?;
            let database = self.database().await?;
            let mut packages = self.backend.parse_unfinished(&answer, &database);
            let missing = self.backend.parse_missing(&answer, &database);
            for package in self.half_done().await?.packages {
                let spec = self.backend.at_version(&package.name, &package.version);
                let known = packages.iter().any(|one| one.starts_with(&spec));
                if package.is_installed() && !known {
                    packages.push(spec);
                }
            }
            if packages.is_empty() {
                break;
            }
            match self.install_again(&packages, &missing, undo, sink).await {
                Ok(()) => {
                    if let Some(path) = self.backend.failed_scripts_record() {
                        self.host.files.remove(&path)?;
                    }
                    break;
                }
                // A power loss may have truncated the package lists.
                Err(error) if self.lacks_lists(&error) => self.update(sink).await?,
                Err(error) => self.wait_before_retry(&mut attempts, error, sink).await?,
            }
        }
        // The transaction is complete, so remove the evidence of the interruption.
        if let Some(record) = self.backend.locks().first()
            && self.backend.interrupted(&*self.host.files)?.is_some()
        {
            self.host.files.remove((*record).into())?;
        }
        Ok(())
    }

    /// Adds the packages of an interrupted transaction to the record of failed scripts. Otherwise the only evidence of the
    /// interruption may be the package manager's PID file, which is lost at the next boot.
    pub(super) async fn record_begun(&self) -> Result<(), ChangeError> {
        let (Some(path), Some(query)) = (
            self.backend.failed_scripts_record(),
            self.backend.unfinished(),
        ) else {
            return Ok(());
        };
        let answer = self.ask("query the last transaction", &query).await?;
        let begun = self
            .backend
            .parse_unfinished(&answer, &self.database().await?);
        let before = self.host.files.read_text(&path)?.unwrap_or_default();
        let new: String = (begun.iter())
            .map(|package| format!("interrupted: ({package})\n"))
            .filter(|line| !before.contains(line))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let text = format!("{before}{new}");
        Ok(self.host.files.write(&path, text.as_bytes(), 0o600)?)
    }

    /// Removes from the record of failed scripts the packages that are no longer installed.
    pub(super) async fn forget_removed(&self) -> Result<(), ChangeError> {
        let (files, record) = (&self.host.files, self.backend.failed_scripts_record());
        let Some(path) = record else {
            return Ok(());
        };
        let Some(before) = files.read_text(&path)? else {
            return Ok(());
        };
        let now = self.backend.of_installed(&before, &self.database().await?);
        if now.is_empty() {
            files.remove(&path)?;
        } else if now != before {
            files.write(&path, now.as_bytes(), 0o600)?;
        }
        Ok(())
    }

    /// Installs the packages of an interrupted transaction that are not installed yet.
    async fn install_missing(
        &self,
        missing: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let request = TransactionRequest::Install {
            packages: missing,
            removing: &[],
        };
        let actions = self.simulate(&request).await?;
        self.approve(&actions, &[], &[]).await?;
        self.check_space(&request, None).await?;
        self.download_first(&request, sink).await?;
        let cmd = self
            .backend
            .perform(&self.settings(), &request, removals(&actions));
        self.attempt(undo, COMPLETE, &cmd, &actions, sink).await
    }

    async fn install_again(
        &self,
        packages: &[String],
        missing: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let request = TransactionRequest::Reinstall(packages);
        let mut actions = self.simulate(&request).await?;
        let database = self.database().await?;
        let is_there = |id: &str| database.iter().any(|one| one.id == id && one.is_there());
        let is_new =
            |action: &Action| matches!(action, Action::Install { name, .. } if !is_there(name));
        // The installed packages depend on packages that are not installed yet. Install those of the transaction first, because
        // the package manager could choose others, such as the other module flavor, which conflicts with the required one.
        if actions.iter().any(is_new) && !missing.is_empty() {
            self.install_missing(missing, undo, sink).await?;
            actions = self.simulate(&request).await?;
        }
        // A package manager may skip packages that no repository has, and still succeed.
        let offered: Vec<String> = (actions.iter())
            .filter_map(|action| match action {
                Action::Install { name, to, .. } => {
                    Some(self.backend.at_version(self.backend.bare_name(name), to))
                }
                Action::Remove { .. } => None,
            })
            .collect();
        let is_offered = |package: &&String| offered.iter().any(|spec| package.starts_with(spec));
        if let Some(package) = packages.iter().find(|package| !is_offered(package)) {
            let database = self.database().await?;
            let is_it = |one: &&Package| {
                let spec = self.backend.at_version(&one.name, &one.version);
                one.is_there() && package.starts_with(&spec)
            };
            let command =
                (database.iter().find(is_it)).and_then(|one| self.backend.to_offered_command(one));
            let with = command.map_or_else(
                || "the package manager's own command".to_owned(),
                |command| format!("`{command}`"),
            );
            let name = (database.iter().find(is_it))
                .map_or_else(|| package.clone(), |one| one.name.clone());
            let error = ChangeError::blocked(
                FailureClass::NotFound.reason(),
                format!(
                    "complete the interrupted transaction: no repository has `{package}`, and some \
                     of its scripts did not run"
                ),
            )
            .advice(format!(
                "nothing was changed; install an available version of this package with {with}, \
                 and run `gpu-bootstrap install` again, which completes the other recorded \
                 packages"
            ));
            return Err(self.name_exclusions(error.of(Class::NoVersion(name)), &[]));
        }
        // The reinstallation may remove half-installed packages. It may also remove a duplicate database entry: an interrupted
        // repair can leave two entries of the same package and version.
        let half_done = self.half_done().await?.packages;
        let comes = |id: &str, version: &str| {
            (actions.iter()).any(|action| {
                matches!(action, Action::Install { name, to, .. } if name == id && to == version)
            })
        };
        let doubled = actions.iter().filter_map(|action| match action {
            Action::Remove { name, version } if comes(name, version) => Some(name.clone()),
            _ => None,
        });
        let old: Vec<String> = (half_done.into_iter())
            .filter(|package| package.needs_repair())
            .map(|package| package.id)
            .chain(doubled)
            .collect();
        self.approve(&actions, &[], &old).await?;
        self.check_space(&request, None).await?;
        self.download_first(&request, sink).await?;
        self.remove_emptied(packages, sink).await?;
        let cmd = self
            .backend
            .perform(&self.settings(), &request, removals(&actions));
        self.attempt(undo, COMPLETE, &cmd, &actions, sink).await
    }

    /// Removes configuration files of these packages that a power loss has truncated, because the package manager would keep an
    /// empty file as a local modification.
    async fn remove_emptied(
        &self,
        packages: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let database = self.database().await?;
        let names: Vec<&str> = (database.iter())
            .filter(|package| {
                let spec = self.backend.at_version(&package.name, &package.version);
                packages.iter().any(|one| one.starts_with(&spec))
            })
            .map(|package| package.name.as_str())
            .collect();
        let query = match names.is_empty() {
            true => None,
            false => self.backend.configuration_of(&names),
        };
        let Some(query) = query else { return Ok(()) };
        let answer = self
            .ask("query the files of an interrupted transaction", &query)
            .await?;
        for path in self.backend.parse_configuration(&answer) {
            // The package manager sets the packaged mtime before it renames a file, so a file that a power loss has truncated
            // has this mtime. A file that the administrator has emptied has another mtime.
            let emptied = (self.host.files.stat(&path)?).is_some_and(|stat| {
                let packaged = format!("|{}|{path}", stat.mtime);
                stat.kind == FileKind::File
                    && stat.size == 0
                    && answer.lines().any(|line| line.ends_with(&packaged))
            });
            if emptied {
                self.host.files.remove(&path)?;
                sink.note(&format!(
                    "removed `{path}`, which a power loss has truncated. Its package installs it \
                     again"
                ));
            }
        }
        Ok(())
    }

    async fn configure(
        &self,
        configure: &Cmd,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut attempts = Attempts::new();
        while let Err(error) = self
            .attempt(undo, "configure unpacked packages", configure, &[], sink)
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
