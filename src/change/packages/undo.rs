//! Reverts a package transaction: removes the packages that it installed, and reinstalls the packages that it removed. Files
//! created by package scripts are removed only if the package manager's purge removes them.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    approval::{Approved, objections},
    effects::Effects,
    inventory::unreadable_database,
    is_unmet, refuse,
    run::Attempts,
};
use crate::{
    change::{Applier, ChangeError, FileAfter, FileBefore, Reverted, STOPPED, Sink},
    config::desired::PackageSpec,
    error::one_line,
    host::digest::sha256,
    model::pattern,
    tools::{
        packages::{Action, Mark, Removals, TransactionRequest},
        systemctl, toolkit,
    },
};

/// The release of the running kernel.
const RUNNING: &str = "/proc/sys/kernel/osrelease";

/// A file in the state directory that lists the backups of files that existed before the packages. The removal of the packages
/// may also remove these files.
const TO_PUT_BACK: &str = "put-back.json";

/// Packages that must be kept, and the reason.
pub(super) struct Kept {
    pub(super) names: Vec<String>,
    why: Option<String>,
}

impl Applier {
    /// Reverts a transaction. `effects` is `None` if the transaction was interrupted. Its effects are then determined first.
    pub(in crate::change) async fn revert_packages(
        &self,
        transaction: &str,
        effects: Option<&Effects>,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        let compared;
        let effects = match effects {
            Some(effects) => effects,
            None => {
                compared = self.effects_of_interrupted(transaction, sink).await?;
                &compared
            }
        };
        if effects.is_empty() {
            self.report_untracked(&effects.beside, sink).await?;
            self.forget_transactions(transaction, effects)?;
            return Ok(Reverted::nothing(
                "the transaction did not change any package",
            ));
        }
        let (mut endings, all_gone) = self
            .exclusively(sink, async {
                self.configure_before_removal(sink).await?;
                self.undo_packages(effects, sink).await
            })
            .await?;
        if all_gone {
            endings.extend(self.forget_keys(effects, sink).await?);
        }
        self.report_untracked(&effects.beside, sink).await?;
        endings.extend(self.reload_units(sink).await?);
        let reverted = Reverted::of(endings);
        // Remove the records, so that packages that other programs install later do not count as ours.
        if all_gone && !matches!(reverted, Reverted::Left { .. }) {
            self.forget_transactions(transaction, effects)?;
        }
        Ok(reverted)
    }

    /// Configures unpacked packages, because the package manager may not work otherwise. A failure is only logged, because the
    /// packages that cannot be configured may be the ones that are removed next.
    async fn configure_before_removal(&self, sink: &dyn Sink) -> Result<(), ChangeError> {
        if self.half_done().await?.is_empty() {
            return Ok(());
        }
        let Some(configure) = self.backend.configure() else {
            return Ok(());
        };
        let ran = self.run_with_retries("configure unpacked packages", configure, sink);
        if let Err(error) = ran.await {
            if error.reason == STOPPED {
                return Err(error);
            }
            sink.line(&format!("failed to {error}; the removal continues"));
        }
        Ok(())
    }

    /// Reverts the effects except for imported keys. Also returns `true` if no package is kept because it is still used or was
    /// requested by the administrator.
    pub(super) async fn undo_packages(
        &self,
        effects: &Effects,
        sink: &dyn Sink,
    ) -> Result<(Vec<Reverted>, bool), ChangeError> {
        let mut endings = Vec::new();
        // If an earlier undo was interrupted, it may already have removed the runtime binary.
        let is_of_toolkit = |name: &String| name.starts_with(toolkit::PACKAGES);
        let had_toolkit = self.host.files.exists(toolkit::RUNTIME.into())?
            || effects.appeared.iter().any(is_of_toolkit);
        let inventory = self.inventory_of_packages().await?;
        let mut purge: Vec<String> = effects
            .appeared
            .iter()
            .filter(|name| {
                inventory.packages.contains_key(*name) || inventory.configured.contains(*name)
            })
            .cloned()
            .collect();
        let mut remove: Vec<String> = effects
            .refilled
            .iter()
            .filter(|name| inventory.packages.contains_key(*name))
            .cloned()
            .collect();
        let all: Vec<String> = purge.iter().chain(&remove).cloned().collect();
        let kernel = self.of_running_kernel(&all).await?;
        if !kernel.is_empty() {
            purge.retain(|name| !kernel.contains(name));
            remove.retain(|name| !kernel.contains(name));
            endings.push(Reverted::left(
                listed(&kernel),
                "they belong to the running kernel; boot another kernel before you remove them",
            ));
        }
        // The transaction installed the package as a dependency, and the administrator marked it as manually installed later.
        let asked_for = |name: &String| {
            effects.automatic.contains(name)
                && inventory.packages.contains_key(name)
                && !inventory.auto.contains(name)
        };
        let both = purge.iter().chain(&remove).cloned();
        let (wanted, both): (Vec<String>, Vec<String>) = both.partition(asked_for);
        if !wanted.is_empty() {
            endings.push(Reverted::left(
                listed(&wanted),
                "marked as manually installed after the transaction",
            ));
        }
        let needed = self.needed_by_daemons(&both).await?;
        let (needed_names, both): (Vec<String>, Vec<String>) =
            (both.into_iter()).partition(|name| needed.names.contains(name));
        if let Some(why) = &needed.why {
            endings.push(Reverted::left(listed(&needed_names), why.clone()));
        }
        let mut kept = self.needed_by_others(&both).await?;
        if let Some(why) = &kept.why {
            endings.push(Reverted::left(listed(&kept.names), why.clone()));
        }
        kept.names
            .extend(wanted.into_iter().chain(needed_names).chain(kernel));
        purge.retain(|name| !kept.names.contains(name));
        remove.retain(|name| !kept.names.contains(name));
        let there = self.save_existing_files(effects)?;
        let going: BTreeSet<String> = purge.iter().chain(&remove).cloned().collect();
        let units = self.units_of(&going).await?;
        // Remove packages before purging others: `apt-get purge` also purges packages that depend on the purged ones (scenario
        // `removals` in `tests/packages`), so packages that should only be removed would lose their configuration.
        if !remove.is_empty() {
            let request = TransactionRequest::Remove(&remove);
            self.remove_with_retries("remove packages", &request, (&remove, &both), sink)
                .await?;
            endings.push(Reverted::done(format!("removed {}", listed(&remove))));
            // The removal may also have removed packages from `purge`, if they depend on the removed ones. Those that left no
            // configuration are now unknown to the package manager.
            let now = self.inventory_of_packages().await?;
            purge.retain(|name| now.packages.contains_key(name) || now.configured.contains(name));
        }
        if !purge.is_empty() {
            let request = TransactionRequest::Purge(&purge);
            self.remove_with_retries("purge packages", &request, (&purge, &both), sink)
                .await?;
            endings.push(Reverted::done(format!("purged {}", listed(&purge))));
        }
        endings.extend(self.restore_existing_files(&there)?);
        endings.extend(self.stop_without_program(&units, sink).await?);
        if had_toolkit {
            endings.extend(self.agents_forget_toolkit(sink).await?);
        }
        endings.extend(self.reinstall(&effects.disappeared, sink).await?);
        endings.extend(self.restore_marks(effects, sink).await?);
        endings.extend(self.report_moved(&effects.moved).await?);
        Ok((endings, kept.names.is_empty()))
    }

    /// Backs up files that existed before the packages. The backups are listed on disk, because if this run is killed during
    /// the removal, the next run can only restore the files using this list.
    fn save_existing_files(&self, effects: &Effects) -> Result<Vec<FileBefore>, ChangeError> {
        let (files, list) = (&self.host.files, self.state.join(TO_PUT_BACK));
        let listed = files.read(&list)?.map(|text| serde_json::from_slice(&text));
        let mut saved: Vec<FileBefore> = (listed.transpose())
            .map_err(|error| ChangeError::unreadable(format!("read `{list}`"), error))?
            .unwrap_or_default();
        for path in &effects.there {
            let Some(before) = self.save(path)? else {
                continue;
            };
            saved.retain(|one| one.path != *path);
            saved.push(FileBefore {
                path: path.clone(),
                before: Some(before),
                after: FileAfter::Absent,
            });
        }
        if !saved.is_empty() {
            let text = serde_json::to_vec(&saved)
                .map_err(|error| ChangeError::unreadable("list existing files", error))?;
            files.write(&list, &text, 0o600)?;
        }
        Ok(saved)
    }

    /// Restores files that existed before the packages but were removed with them.
    fn restore_existing_files(&self, saved: &[FileBefore]) -> Result<Vec<Reverted>, ChangeError> {
        let (files, mut back) = (&self.host.files, Vec::new());
        for file in saved {
            if files.stat(&file.path)?.is_some() {
                continue;
            }
            self.restore_saved(file)?;
            back.push(file.path.to_string());
            // rpm may have kept a copy with the suffix `.rpmsave`. Remove it if it is identical.
            let copy = (self.backend.removed_configuration())
                .map(|ending| Utf8PathBuf::from(format!("{}{ending}", file.path)));
            if let Some(copy) = copy
                && let (Some(content), Some(saved)) = (files.read(&copy)?, &file.before)
                && sha256(&content) == saved.sha256
            {
                files.remove(&copy)?;
            }
        }
        files.remove(&self.state.join(TO_PUT_BACK))?;
        if back.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![Reverted::done(format!(
            "restored files that existed before the packages: {}",
            first_few(&back)
        ))])
    }

    /// Returns the service and socket units of packages, or none if systemd is not running. Sockets are first, because an
    /// active socket would start its service again.
    async fn units_of(&self, packages: &BTreeSet<String>) -> Result<Vec<Utf8PathBuf>, ChangeError> {
        if packages.is_empty() || !self.host.files.exists(systemctl::BOOTED.into())? {
            return Ok(Vec::new());
        }
        let owned = self.backend.owned_by(self.host.reader(), packages).await;
        let owned =
            owned.map_err(|error| unreadable_database("list the files of packages", error))?;
        let is_in = |path: &Utf8Path| {
            systemctl::OF_PACKAGES
                .iter()
                .any(|directory| path.parent() == Some((*directory).into()))
        };
        // Skip template units, because only their instances run.
        let is_unit = |path: &&Utf8PathBuf| {
            is_in(path)
                && matches!(path.extension(), Some("socket" | "service"))
                && !path.as_str().contains('@')
        };
        let mut units: Vec<Utf8PathBuf> = owned.iter().filter(is_unit).cloned().collect();
        units.sort_by_key(|path| path.extension() != Some("socket"));
        Ok(units)
    }

    /// Stops daemons whose packages were removed. Package scripts do not stop a daemon if `policy-rc.d` forbids it, so it would
    /// continue to run although its binary was removed.
    async fn stop_without_program(
        &self,
        units: &[Utf8PathBuf],
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let mut endings = Vec::new();
        for path in units {
            let Some(unit) = path.file_name() else {
                continue;
            };
            // The administrator may have created a unit with the same name.
            if self.host.files.exists(path)?
                || self.host.files.exists(&systemctl::own_file(unit))?
            {
                continue;
            }
            let state = self.unit_state_if_any(unit).await?;
            if !state.is_some_and(|state| state.is_active()) {
                continue;
            }
            let what = format!("stop `{unit}`");
            let stopped = self.tool(&what, &systemctl::act("stop", unit), sink).await;
            endings.push(match stopped {
                Ok(_) => Reverted::done(format!("stopped `{unit}`")),
                Err(error) => Reverted::left(
                    format!("`{unit}`, which is running although its package was removed"),
                    format!("failed to {}", one_line(&error)),
                ),
            });
        }
        Ok(endings)
    }

    /// Returns the packages of the running kernel that must be kept: its image, and packages of the same release that the image
    /// depends on.
    async fn of_running_kernel(&self, packages: &[String]) -> Result<Vec<String>, ChangeError> {
        let release = self
            .host
            .files
            .read_text(RUNNING.into())?
            .unwrap_or_default();
        let end = format!("-{}", release.trim());
        let is_image = |name: &&String| {
            (self.policy.guard.kernels.iter()).any(|pattern| pattern::matches(pattern, name))
        };
        let of_kernel = packages.iter().filter(|name| name.ends_with(&end));
        let (mut stays, others): (Vec<String>, Vec<String>) =
            of_kernel.cloned().partition(|name| is_image(&name));
        if stays.is_empty() || release.trim().is_empty() {
            return Ok(Vec::new());
        }
        let along: Vec<String> = packages
            .iter()
            .filter(|name| !stays.contains(name))
            .cloned()
            .collect();
        for name in others {
            let alone = std::slice::from_ref(&name);
            if self.objection_to_removal(alone, &along).await?.is_some() {
                stays.push(name);
            }
        }
        Ok(stays)
    }

    /// Performs a removal that is already approved. Each retry requires a new approval.
    async fn remove_with_retries(
        &self,
        what: &str,
        request: &TransactionRequest<'_>,
        (packages, along): (&[String], &[String]),
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let cmd = self
            .backend
            .perform(&self.settings(), request, Removals::Approved);
        let mut attempts = Attempts::new();
        while let Err(error) = self.run_removal(what, &cmd, sink).await {
            self.wait_before_retry(&mut attempts, error, sink).await?;
            self.approve_removal(packages, along).await?;
        }
        self.forget_removed().await
    }

    /// Simulates a removal. Fails if it would remove anything other than the packages, `along` and `packages.may-remove`.
    async fn approve_removal(
        &self,
        packages: &[String],
        along: &[String],
    ) -> Result<Vec<Action>, ChangeError> {
        let (actions, reasons) = self.evaluate_removal(packages, along).await?;
        refuse(&reasons)?;
        Ok(actions)
    }

    /// Simulates a removal. Returns its actions, and descriptions of the actions that are not approved.
    async fn evaluate_removal(
        &self,
        packages: &[String],
        along: &[String],
    ) -> Result<(Vec<Action>, Vec<String>), ChangeError> {
        let actions = self.simulate(&TransactionRequest::Purge(packages)).await?;
        let approved = Approved {
            removing: packages
                .iter()
                .chain(along)
                .chain(&self.policy.may_remove)
                .map(String::as_str)
                .collect(),
            only_removals: true,
            ..Approved::default()
        };
        let reasons = objections(self.backend, &actions, &approved);
        Ok((actions, reasons))
    }

    /// Returns the packages that must be kept, because other packages depend on them.
    pub(super) async fn needed_by_others(&self, packages: &[String]) -> Result<Kept, ChangeError> {
        let why = self.objection_to_removal(packages, packages).await?;
        let mut names = Vec::new();
        if why.is_some() {
            // Simulate the removal of each package separately. A package can be removed if only packages of this list depend on
            // it.
            for name in packages {
                let alone = self.objection_to_removal(std::slice::from_ref(name), packages);
                if alone.await?.is_some() {
                    names.push(name.clone());
                }
            }
        }
        Ok(Kept { names, why })
    }

    /// Returns the package of the NVIDIA runtime and its dependencies, if the configuration of a daemon still contains the
    /// runtime because it could not be restored. Without the runtime binary, the daemon could not start containers that use it.
    async fn needed_by_daemons(&self, packages: &[String]) -> Result<Kept, ChangeError> {
        let mut kept = Kept {
            names: Vec::new(),
            why: None,
        };
        let daemons: Vec<&str> = (self.need_toolkit().iter())
            .map(|daemon| daemon.name())
            .collect();
        if daemons.is_empty() {
            return Ok(kept);
        }
        let (mut others, runtime) = (Vec::new(), Utf8Path::new(toolkit::RUNTIME));
        for name in packages {
            let alone = BTreeSet::from([name.clone()]);
            let owned = self.backend.owned_by(self.host.reader(), &alone).await;
            let owned =
                owned.map_err(|error| unreadable_database("list the files of a package", error))?;
            if owned.contains(runtime) {
                kept.names.push(name.clone());
            } else {
                others.push(name.clone());
            }
        }
        if kept.names.is_empty() {
            return Ok(kept);
        }
        // Also keep the dependencies of these packages, because removing a dependency would remove the packages.
        kept.names
            .extend(self.needed_by_others(&others).await?.names);
        kept.why = Some(format!(
            "the configuration of {} contains `{runtime}`, and could not be restored",
            daemons.join(" and ")
        ));
        Ok(kept)
    }

    /// Returns the reason that a removal is not approved: it would remove more than the packages, `along` and
    /// `packages.may-remove`, or its dependencies cannot be resolved. `None` if it is approved.
    async fn objection_to_removal(
        &self,
        packages: &[String],
        along: &[String],
    ) -> Result<Option<String>, ChangeError> {
        if packages.is_empty() {
            return Ok(None);
        }
        match self.evaluate_removal(packages, along).await {
            Ok((_, reasons)) => {
                Ok((!reasons.is_empty())
                    .then(|| format!("their removal {}", reasons.join("; it "))))
            }
            // A package that must be kept depends on them.
            Err(error) if is_unmet(&error) => {
                Ok(Some(format!("failed to {error}").replace('\n', " ")))
            }
            Err(error) => Err(error),
        }
    }

    /// Reinstalls the packages that the transaction removed, in their previous versions.
    async fn reinstall(
        &self,
        gone: &[PackageSpec],
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let inventory = self.inventory_of_packages().await?;
        let specs: Vec<String> = gone
            .iter()
            .filter(|spec| !inventory.packages.contains_key(&spec.name))
            .map(|spec| match &spec.version {
                Some(version) => self.backend.at_version(&spec.name, version),
                None => spec.name.clone(),
            })
            .collect();
        if specs.is_empty() {
            return Ok(Vec::new());
        }
        let what = format!("removed packages ({})", first_few(&specs));
        Ok(vec![match self.reinstall_specs(&specs, sink).await {
            Ok(()) => Reverted::done(format!("reinstalled {what}")),
            // A stop request is not a failure, because the next run tries again.
            Err(error) if error.reason == STOPPED => return Err(error),
            Err(error) => Reverted::left(what, format!("not reinstalled: failed to {error}")),
        }])
    }

    /// Removes the keys that the package manager imported for the packages.
    async fn forget_keys(
        &self,
        effects: &Effects,
        sink: &dyn Sink,
    ) -> Result<Option<Reverted>, ChangeError> {
        let now = self.keys().await?.unwrap_or_default();
        let keys: Vec<String> = effects.keys.intersection(&now).cloned().collect();
        let Some(cmd) = self.backend.forget_keys(&keys).filter(|_| !keys.is_empty()) else {
            return Ok(None);
        };
        self.tool("remove keys from the package manager", &cmd, sink)
            .await?;
        Ok(Some(Reverted::done(format!(
            "removed the keys {}",
            keys.join(", ")
        ))))
    }

    /// Marks packages as automatically installed if the transaction removed this mark.
    async fn restore_marks(
        &self,
        effects: &Effects,
        sink: &dyn Sink,
    ) -> Result<Vec<Reverted>, ChangeError> {
        let inventory = self.inventory_of_packages().await?;
        let names: Vec<String> = effects
            .now_manual
            .iter()
            .filter(|name| {
                inventory.packages.contains_key(*name) && !inventory.auto.contains(*name)
            })
            .cloned()
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        self.mark(Mark::Automatic, &names, sink).await?;
        Ok(vec![Reverted::done(format!(
            "marked {} as automatically installed again",
            first_few(&names)
        ))])
    }

    /// Reports the packages that the transaction upgraded, with the command for a downgrade. They are not downgraded, because
    /// an older version may not be able to read the data of the newer one, and may no longer be available.
    async fn report_moved(&self, moved: &[PackageSpec]) -> Result<Option<Reverted>, ChangeError> {
        let inventory = self.inventory_of_packages().await?;
        let stays: Vec<(String, String)> = moved
            .iter()
            .filter_map(|spec| {
                let now = inventory.packages.get(&spec.name)?;
                let before = spec.version.as_deref()?;
                (now != before).then(|| {
                    (
                        format!("{} {now} instead of {before}", spec.name),
                        self.backend.at_version(&spec.name, before),
                    )
                })
            })
            .collect();
        let (what, specs): (Vec<String>, Vec<String>) = stays.into_iter().unzip();
        let why = format!(
            "`uninstall` does not downgrade packages; if a repository still has the older \
             versions, run `{}`",
            self.backend.downgrade_command(&specs)
        );
        Ok((!what.is_empty()).then(|| Reverted::left(what.join(", "), why)))
    }

    /// Makes systemd unload removed unit files. A failure does not fail the undo, because the files are already removed. It is
    /// reported as a remaining part.
    pub(super) async fn reload_units(
        &self,
        sink: &dyn Sink,
    ) -> Result<Option<Reverted>, ChangeError> {
        // Not needed if systemd is not running.
        if !self.host.files.exists(systemctl::BOOTED.into())? {
            return Ok(None);
        }
        let reload = self
            .tool(
                "make systemd reload its units",
                &systemctl::daemon_reload(),
                sink,
            )
            .await;
        Ok(reload.err().map(|error| {
            let why = format!(
                "failed to {}; run `systemctl daemon-reload`",
                one_line(&error)
            );
            Reverted::left(
                "units of removed packages, which systemd still has loaded",
                why,
            )
        }))
    }
}

fn listed(packages: &[String]) -> String {
    match packages.len() {
        1 => format!("1 package ({})", first_few(packages)),
        more => format!("{more} packages ({})", first_few(packages)),
    }
}

/// Joins the first entries of a list, and adds the number of remaining entries.
pub(super) fn first_few(names: &[String]) -> String {
    const FEW: usize = 6;
    let mut text = names
        .iter()
        .take(FEW)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > FEW {
        text.push_str(&format!(" and {} more", names.len() - FEW));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::first_few;

    #[test]
    fn long_list_ends_with_the_remaining_count() {
        let names: Vec<String> = ('a'..='i').map(String::from).collect();
        for (count, text) in [
            (1, "a"),
            (6, "a, b, c, d, e, f"),
            (7, "a, b, c, d, e, f and 1 more"),
            (9, "a, b, c, d, e, f and 3 more"),
        ] {
            assert_eq!(first_few(&names[..count]), text);
        }
    }
}
