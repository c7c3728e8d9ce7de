//! Repairs packages that an interrupted package manager left half done.

use super::{install::removals, run::Attempts};
use crate::{
    change::{Applier, Class, Problem, Sink, Undo},
    host::{Cmd, FileKind},
    tools::packages::{Action, Fault, Package, TransactionRequest},
};

/// What is done about an interrupted transaction.
const COMPLETE: &str = "complete an interrupted transaction";

impl Applier {
    /// Configures unpacked packages, then completes broken dependencies.
    pub(in crate::change) async fn repair(
        &self,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        self.exclusively(sink, async {
            self.remove_torn_trees(sink).await?;
            let Some(configure) = self.backend.configure() else {
                self.complete(undo, sink).await?;
                return self.check_consistent().await;
            };
            match self.configure(&configure, undo, sink).await {
                Ok(()) if self.half_done().await?.is_empty() => return Ok(()),
                Ok(()) => {}
                // Only missing dependencies can be added; a failed script or build would fail
                // again.
                Err(error) if error.class == Class::PackageManager(Fault::Unmet) => {}
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
                let fix = self.backend.perform(
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

    /// Installs once more what an interrupted transaction had begun to install: then all scripts run,
    /// and an old version that an upgrade has left goes.
    async fn complete(&self, undo: &Undo, sink: &dyn Sink) -> Result<(), Problem> {
        let Some(query) = self.backend.unfinished() else {
            return Ok(());
        };
        // The next transaction, also one of a person, is the last one then.
        self.record_begun().await?;
        let mut attempts = Attempts::new();
        loop {
            let answer = self.ask("look at the last transaction", &query).await?;
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
                // A power cut may have torn the lists.
                Err(error)
                    if error.reason == Fault::NotFound.reason() && !self.lists.are_fresh() =>
                {
                    self.update(sink).await?;
                }
                Err(error) => self.wait_before_retry(&mut attempts, error, sink).await?,
            }
        }
        // Nothing of the transaction is left to do, so nothing must show it any more.
        if let Some(record) = self.backend.locks().first()
            && self.backend.interrupted(&*self.host.files)?.is_some()
        {
            self.host.files.remove((*record).into())?;
        }
        Ok(())
    }

    /// Records what an interrupted transaction has begun to install, where only the manager's own record
    /// of running work shows the interruption: a boot removes that.
    pub(super) async fn record_begun(&self) -> Result<(), Problem> {
        let (Some(path), Some(query)) = (
            self.backend.failed_scripts_record(),
            self.backend.unfinished(),
        ) else {
            return Ok(());
        };
        let answer = self.ask("look at the last transaction", &query).await?;
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

    /// Removes from the record what it says about packages that are not installed any more.
    pub(super) async fn forget_removed(&self) -> Result<(), Problem> {
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

    /// Installs the rest of an interrupted transaction.
    async fn install_missing(
        &self,
        missing: &[String],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
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
    ) -> Result<(), Problem> {
        let request = TransactionRequest::Reinstall(packages);
        let mut actions = self.simulate(&request).await?;
        let database = self.database().await?;
        let is_there = |id: &str| database.iter().any(|one| one.id == id && one.is_there());
        let is_new =
            |action: &Action| matches!(action, Action::Install { name, .. } if !is_there(name));
        // What is there needs what has not come yet. The manager's own choice may be another than that of the
        // transaction: the module's other flavour, for example, which conflicts with the wanted one.
        if actions.iter().any(is_new) && !missing.is_empty() {
            self.install_missing(missing, undo, sink).await?;
            actions = self.simulate(&request).await?;
        }
        // A package manager may leave out what no repository offers, and succeed.
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
            let error = Problem::blocked(
                Fault::NotFound.reason(),
                format!(
                    "complete the interrupted transaction: no repository offers `{package}` any more, \
                     and its scripts have not all run"
                ),
            )
            .advice(format!(
                "nothing was changed; bring this package to a version that is offered with \
                 {with}, and run `gpu-bootstrap install` again: it completes the other packages, \
                 which are recorded"
            ));
            return Err(self.name_exclusions(error.of(Class::NoVersion(name)), &[]));
        }
        // An old version that goes is one of the half installed packages, or was left beside the same
        // version by a repair that was interrupted, too.
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

    /// Removes configuration files of these packages that a power cut has emptied: the manager takes an empty
    /// file for one that somebody has changed, and keeps it.
    async fn remove_emptied(&self, packages: &[String], sink: &dyn Sink) -> Result<(), Problem> {
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
            .ask("look at the files of an interrupted transaction", &query)
            .await?;
        for path in self.backend.parse_configuration(&answer) {
            // The manager gives each file its packaged time before it gives it its name, so a file that a
            // power cut has emptied has that time. One that a person has emptied has another.
            let emptied = (self.host.files.stat(&path)?).is_some_and(|stat| {
                let packaged = format!("|{}|{path}", stat.mtime);
                stat.kind == FileKind::File
                    && stat.size == 0
                    && answer.lines().any(|line| line.ends_with(&packaged))
            });
            if emptied {
                self.host.files.remove(&path)?;
                sink.note(&format!(
                    "removed `{path}`, which a power cut has emptied; its package brings it again"
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
    ) -> Result<(), Problem> {
        let mut attempts = Attempts::new();
        while let Err(error) = self
            .attempt(undo, "configure unpacked packages", configure, &[], sink)
            .await
        {
            self.wait_before_retry(&mut attempts, error, sink).await?;
        }
        Ok(())
    }

    pub(in crate::change) async fn preview_repair(&self) -> Result<String, Problem> {
        let half_done = self.half_done().await?;
        let lines: Vec<String> = (half_done.packages.iter())
            .map(|package| format!("~ {}", package.id))
            .collect();
        Ok(lines.join("\n"))
    }
}
