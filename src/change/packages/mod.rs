//! The only module that changes packages, for all package managers. Each transaction waits for other package managers with a
//! time limit, is simulated first, fails if it would do more than the plan approves, downloads before it changes anything, is
//! non-interactive, and is verified afterwards.
//!
//! [`install`] is the transaction, [`dry_run`] simulates all transactions of a run before its first change, [`deferred_builds`] defers compilation, [`approval`] decides which actions are allowed,
//! [`run`] runs the commands, [`record`] stores the effects of each command on disk, and [`undo`] reverts them.

mod approval;
mod deferred_builds;
mod dry_run;
mod effects;
mod exclusive;
mod holds;
mod install;
mod inventory;
mod lists;
mod merge;
mod module_package;
mod overlap;
mod record;
mod reduce;
mod repair;
pub mod repository;
mod run;
mod space;
mod streams;
mod triggers;
mod undo;
mod untracked_files;

pub use approval::{BUNDLE_REMEDY, DIGEST_REMEDY, LOCK_REASONS, LOCK_REMEDY, REPLACED_FILES};
pub use deferred_builds::release_builds;
pub(super) use dry_run::QueryCache;
pub use dry_run::{FURTHER, NOT_SIMULATED, Simulation};
pub use effects::{Effects, Inventory, Unowned};
pub(super) use holds::OwnHolds;
pub use holds::Unhold;
pub(super) use lists::Lists;
pub use lists::WantedPackages;
pub use merge::{Merged, merge};
pub(super) use module_package::PrebuiltModules;
pub use reduce::Reduced;
pub use streams::RestoreStream;

use std::collections::BTreeSet;

use self::{
    approval::{Approved, disapproved, is_of_driver, name_held_packages, objections},
    inventory::held,
    run::without_secrets,
};
use crate::{
    change::{Applier, ChangeError, Class},
    config::desired::PackageSpec,
    host::{ExecError, Query, exec::tail},
    tools::packages::{Action, FailureClass, HalfDone, Package, Settings, TransactionRequest},
};

/// Seconds that the package manager itself waits for its locks. Short, because gpu-bootstrap waits before it starts a package
/// manager, reports the holder, and can be stopped by a signal.
const LOCK_BACKSTOP: u64 = 10;

impl Applier {
    /// The settings of all commands.
    fn settings(&self) -> Settings {
        Settings {
            lock_timeout_seconds: self.policy.lock_timeout_seconds.min(LOCK_BACKSTOP),
            proxy: self.policy.proxy.clone(),
            no_proxy: self.policy.no_proxy.clone(),
        }
    }

    /// The packages that an interrupted package manager left unconfigured.
    async fn half_done(&self) -> Result<HalfDone, ChangeError> {
        let database = self.database().await?;
        Ok((self.backend).half_done(&*self.host.files, &database)?)
    }

    async fn check_consistent(&self) -> Result<(), ChangeError> {
        let half_done = self.half_done().await?;
        if half_done.is_empty() {
            return Ok(());
        }
        let names = half_done.packages.into_iter().map(|package| package.id);
        let records = (half_done.interrupted).map(|program| format!("the records of {program}"));
        let names: Vec<String> = names.chain(records).collect();
        let are = match names.len() {
            1 => "this is",
            _ => "these are",
        };
        let names = names.join(", ");
        let what = format!("start a package transaction: {are} incomplete: {names}");
        Err(of_class(FailureClass::Interrupted, what))
    }

    async fn simulate(&self, request: &TransactionRequest<'_>) -> Result<Vec<Action>, ChangeError> {
        let (actions, _) = self.simulate_in_words(request).await?;
        Ok(actions)
    }

    /// Like [`Self::simulate`], but also returns the output of the package manager.
    async fn simulate_in_words(
        &self,
        request: &TransactionRequest<'_>,
    ) -> Result<(Vec<Action>, String), ChangeError> {
        let query = self.backend.simulate(&self.settings(), request);
        let answer = self.ask("simulate the package transaction", &query).await?;
        let actions = self.backend.parse_actions(&answer, &self.database().await?);
        Ok((actions, answer))
    }

    /// Rejects a transaction with actions that the plan does not approve. `removing` are packages that the plan replaces or
    /// removes.
    async fn approve(
        &self,
        actions: &[Action],
        named: &[&str],
        removing: &[String],
    ) -> Result<(), ChangeError> {
        self.approve_with_untracked(actions, named, removing, &[])
            .await
    }

    /// Like [`Self::approve`], but the packages in `beside` may also be upgraded.
    async fn approve_with_untracked(
        &self,
        actions: &[Action],
        named: &[&str],
        removing: &[String],
        beside: &[&str],
    ) -> Result<(), ChangeError> {
        let moving = self.moving(actions, removing).await?;
        let approved = Approved {
            named: named.iter().copied().collect(),
            removing: removing
                .iter()
                .chain(&self.policy.may_remove)
                .map(String::as_str)
                .collect(),
            upgrading: (self.policy.may_upgrade.iter().map(String::as_str))
                .chain(beside.iter().copied())
                // `approval::locked` only permits the locked version.
                .chain(self.locked_names())
                .collect(),
            held: held(&self.database().await?),
            only_removals: false,
            moving,
        };
        refuse(&objections(self.backend, actions, &approved))
    }

    /// The packages of the lock file.
    fn locked_names(&self) -> impl Iterator<Item = &str> {
        let lock = self.policy.guard.lock.iter();
        lock.flat_map(|lock| lock.versions.keys().map(String::as_str))
    }

    /// Returns the packages that a transaction may replace or remove: the replaced packages, and those driver components that
    /// gpu-bootstrap has installed and that change together with them. Our own holds are ignored. Any other hold on
    /// them is an error.
    async fn moving(
        &self,
        actions: &[Action],
        replaced: &[String],
    ) -> Result<BTreeSet<String>, ChangeError> {
        if replaced.is_empty() {
            return Ok(BTreeSet::new());
        }
        let brought = self.brought()?;
        let follows = |action: &&Action| {
            let (Action::Remove { name, version }
            | Action::Install {
                name,
                from: Some(version),
                ..
            }) = action
            else {
                return false;
            };
            brought.contains(name) && is_of_driver(self.backend.bare_name(name), version)
        };
        let following = actions.iter().filter(follows).map(Action::name);
        let named = replaced.iter().map(String::as_str);
        let moving: BTreeSet<String> = named.chain(following).map(str::to_owned).collect();
        let ours = self.holds.names();
        let database = self.database().await?;
        let of_others: Vec<&Package> = (database.iter())
            .filter(|package| package.held && !ours.contains(&package.id))
            .filter(|package| moving.contains(&package.id) && changes(actions, &database, package))
            .collect();
        if of_others.is_empty() {
            return Ok(moving);
        }
        let release = self.release(&of_others)?;
        let names: Vec<&str> = of_others.iter().map(|package| &*package.id).collect();
        let (names, them) = (
            names.join(", "),
            if names.len() == 1 { "it" } else { "them" },
        );
        Err(ChangeError::blocked(
            FailureClass::Held.reason(),
            format!(
                "approve the package transaction: {names} must change, but a hold that \
                 gpu-bootstrap did not set keeps {them} unchanged"
            ),
        )
        .advice(format!(
            "release the hold ({release}), or keep the driver as it is; nothing was changed"
        )))
    }

    /// The command that releases the holds of packages. If holds are entries of a list, the
    /// entries are read from it, because an entry may be a pattern.
    fn release(&self, packages: &[&Package]) -> Result<String, ChangeError> {
        let Some(list) = self.backend.hold_list() else {
            let unhold = self.backend.commands().unhold;
            let names: Vec<&str> = packages.iter().map(|one| one.id.as_str()).collect();
            return Ok(format!("`{}`", unhold.replace("NAME", &names.join(" "))));
        };
        let text = self.host.files.read_text(list.path())?.unwrap_or_default();
        let holding: BTreeSet<&str> = (packages.iter())
            .flat_map(|package| list.holding(&text, package))
            .collect();
        let entries: Vec<String> = (holding.iter().map(|entry| format!("`{entry}`"))).collect();
        Ok(format!(
            "`{}`, which removes {} from `{}`",
            list.release(&holding),
            entries.join(", "),
            list.path()
        ))
    }

    /// Runs a query of the package manager. An error contains the [`FailureClass`] that the output shows.
    async fn ask(&self, what: &str, query: &Query) -> Result<String, ChangeError> {
        let failed = |class, said: &str, words, source| ChangeError {
            hint: self.hint_about(class, said),
            ..failure(class, what, self.short(source, query.cmd())).telling(words)
        };
        let output = (self.output_of(query).await)
            .map_err(|source| failed(FailureClass::Other, "", None, source))?;
        if self.backend.has_answered(&output) {
            return Ok(output.stdout);
        }
        let said = without_secrets(&format!("{}\n{}", output.stderr, output.stdout));
        let source = output.failure(query.cmd());
        // Unmet dependencies are listed on standard output. If the following diagnosis fails, its error is appended, so that it
        // does not hide the first error.
        let class = self.class_in(&said);
        let stdout = without_secrets(&output.stdout);
        let diagnosis = match class {
            FailureClass::SignedBy => self.contradictions(),
            _ => Ok(self.backend.preflight_issue(&said)),
        };
        let text = diagnosis
            .unwrap_or_else(|second| Some(self.with_error(tail(&stdout), &second)))
            .unwrap_or_else(|| tail(&stdout));
        let (class, text) = match self.database().await {
            Ok(database) => name_held_packages(class, text, &held(&database)),
            Err(second) => (class, self.with_error(text, &second)),
        };
        let text = Some(text).filter(|text| !text.is_empty());
        Err(failed(class, &said, text, source))
    }
}

/// Rejects a transaction with these [`objections`].
fn refuse(reasons: &[String]) -> Result<(), ChangeError> {
    if reasons.is_empty() {
        return Ok(());
    }
    let why = format!("it {}", reasons.join("; it "));
    Err(disapproved("transaction-refused", &why).advice(
        "nothing was changed; add the packages to `packages.may-remove` or `packages.may-upgrade`, \
         or upgrade the machine first",
    ))
}

/// Returns `true` if no repository has a matching version.
fn is_not_offered(error: &ChangeError) -> bool {
    matches!(error.class, Class::NoVersion(_))
}

/// Returns `true` if the package manager failed.
fn has_failed(error: &ChangeError) -> bool {
    matches!(error.class, Class::PackageManager(_))
}

/// Returns `true` if the dependencies of the requested transaction cannot be resolved.
fn is_unmet(error: &ChangeError) -> bool {
    matches!(
        error.class,
        Class::PackageManager(FailureClass::Unmet | FailureClass::Held)
    )
}

/// An error with the reason and the hint of a package manager failure class.
fn of_class(class: FailureClass, what: String) -> ChangeError {
    ChangeError {
        hint: class.hint().map(str::to_owned),
        ..ChangeError::new(class.reason(), what)
    }
}

/// The error of a failed package manager.
fn failure(class: FailureClass, what: &str, source: ExecError) -> ChangeError {
    ChangeError {
        retryable: class.is_transient() || class.is_retryable(),
        ..ChangeError::new(class.reason(), what)
            .caused_by(source)
            .of(Class::PackageManager(class))
    }
}

/// The error if the package manager succeeded but the result differs from the request.
fn not_verified(package: &str, found: &str, wanted: &str) -> ChangeError {
    let what =
        format!("verify the installed packages: `{package}` is {found}, but {wanted} is required");
    ChangeError::new("package-not-verified", what)
}

/// Returns `true` if actions remove a package or change its version. After an interrupted transaction, a package may
/// be installed twice, in two versions or in the same one. If one copy is reinstalled, removing the other does not affect a
/// hold.
fn changes(actions: &[Action], database: &[Package], package: &Package) -> bool {
    let stays = || {
        actions.iter().any(|action| {
            let Action::Install { name, from, to } = action else {
                return false;
            };
            let same = |other: &Package| other.id == *name && other.name == package.name;
            from.as_ref() == Some(to) && database.iter().any(same)
        })
    };
    actions.iter().any(|action| match action {
        Action::Remove { name, .. } => *name == package.id && !stays(),
        Action::Install { name, from, to } => *name == package.id && from.as_ref() != Some(to),
    })
}

/// The names of the required packages.
fn names(specs: &[PackageSpec]) -> Vec<&str> {
    specs.iter().map(|spec| spec.name.as_str()).collect()
}
