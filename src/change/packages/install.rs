//! Installs packages: resolves, simulates, approves, downloads, installs and verifies them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    approval::{
        allowed, choose, guarded, is_of_driver, locked, not_locked, preferred, replaced_files,
        same_version, unavailable,
    },
    deferred_builds::release_builds,
    is_not_offered, is_unmet, names, not_verified,
    overlap::LARGE,
    run::{Attempts, Expected},
};
use crate::{
    change::{Applier, ChangeError, Sink, Undo},
    config::desired::{LockedPackages, PackageSpec},
    error::one_line,
    facts::detection::{carries_driver, is_driver_part},
    model::{
        pattern,
        version::{Branch, DriverVersion},
    },
    tools::packages::{
        Action, AvailablePackage, Exclusion, Removals, TransactionRequest, mirrors::by_package,
    },
};

/// A simulated transaction.
pub(super) struct SimulatedTransaction {
    /// Packages to install, with their versions.
    packages: Vec<String>,
    /// Packages to remove.
    removing: Vec<String>,
    /// Whether installed packages are replaced.
    moves: bool,
    pub(super) actions: Vec<Action>,
    /// The output of the simulation.
    pub(super) said: String,
}

impl SimulatedTransaction {
    pub(super) fn request(&self) -> TransactionRequest<'_> {
        let (packages, removing) = (&*self.packages, &*self.removing);
        if self.moves {
            TransactionRequest::Move { packages, removing }
        } else {
            TransactionRequest::Install { packages, removing }
        }
    }
}

/// The versions of installed packages by name. Packages of a foreign architecture are listed by their id.
type Installed = BTreeMap<String, Vec<String>>;

fn versions_of<'i>(installed: &'i Installed, name: &str) -> Vec<&'i str> {
    let versions = installed.get(name).into_iter().flatten();
    versions.map(String::as_str).collect()
}

impl Applier {
    /// Installs the required packages. Packages with a matching version are not changed. With `later`, package scripts defer
    /// compiling a module to a later change.
    pub(in crate::change) async fn install(
        &self,
        specs: &[PackageSpec],
        removing: &[String],
        later: bool,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.exclusively(sink, async {
            self.check_consistent().await?;
            let mut attempts = Attempts::new();
            // Newer lists, or the work of another package manager, may change the transaction, so each attempt resolves,
            // simulates and approves it again.
            let (resolved, removed) = loop {
                match self.transact(specs, removing, later, undo, sink).await {
                    Ok(done) => break done,
                    // Lists as old as the image may not contain the mirror's current versions.
                    Err(error) if is_not_offered(&error) && !self.lists.are_fresh() => {
                        self.update(sink).await?;
                    }
                    Err(error) => self.wait_before_retry(&mut attempts, error, sink).await?,
                }
            };
            self.caching().verify(&resolved, &removed).await
        })
        .await
        .map_err(|error| self.name_exclusions(error, &names(specs)))
    }

    /// Resolves, simulates, approves, downloads and performs a transaction once. Returns the versions of the required packages,
    /// and the packages that it had to remove.
    async fn transact(
        &self,
        specs: &[PackageSpec],
        removing: &[String],
        later: bool,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(BTreeMap<String, String>, Vec<String>), ChangeError> {
        let before = self.caching();
        let resolved = before.resolve_locked(specs).await?;
        let Some(mut work) = before.work_with_sizes(&resolved, removing).await? else {
            // An earlier attempt may have failed after it installed the packages.
            self.run_needed_triggers(sink).await?;
            return Ok((resolved, Vec::new()));
        };
        let (request, actions) = (work.request(), &work.actions);
        before.guard(actions, specs).await?;
        before.approve(actions, &names(specs), removing).await?;
        let size = before.check_space(&request, Some(&work.said)).await?;
        let is_from_downloads = self.backend.performs_from_downloads();
        let is_large = size.download_bytes() >= LARGE;
        let is_divided = is_large
            && !is_from_downloads
            && matches!(request, TransactionRequest::Install { removing: [], .. })
            && self
                .install_first_part(specs, &resolved, actions, later, undo, sink)
                .await?;
        // A large download has its own time limit, and an interruption leaves no record of changes. apt performs a small one faster
        // with the same command.
        if !is_divided && (is_large || is_from_downloads) {
            self.download(&request, actions, undo, sink).await?;
        }
        if is_from_downloads && !work.removing.is_empty() {
            // Such a package manager also removes packages that depend on a removed one, and has no option to prevent this.
            // Therefore simulate again immediately before the removal.
            let now = self.simulate(&work.request()).await?;
            if now != work.actions {
                self.guard(&now, specs).await?;
                self.approve(&now, &names(specs), removing).await?;
                work.actions = now;
            }
        }
        let (request, actions) = (work.request(), &work.actions);
        self.perform(&request, actions, later, undo, sink).await?;
        Ok((resolved, work.removing))
    }

    /// Downloads the packages of an approved transaction.
    pub(super) async fn download(
        &self,
        request: &TransactionRequest<'_>,
        actions: &[Action],
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if self.keys().await?.is_some() {
            // Each download may import keys.
            self.record_before_download(undo).await?;
        }
        let cmd = self.backend.download(&self.settings(), request);
        let expected = Expected {
            stages: 0,
            ..Expected::of(actions)
        };
        self.run_once("download packages", &cmd, expected, sink)
            .await
    }

    /// Performs an approved transaction. With `later`, package scripts defer compiling a module to a later change.
    pub(super) async fn perform(
        &self,
        request: &TransactionRequest<'_>,
        actions: &[Action],
        later: bool,
        undo: &Undo,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let cmd = (self.backend).perform(&self.settings(), request, removals(actions));
        let cmd = self.backend.defer_triggers(cmd);
        if later && self.backend.scripts_may_leave_modules() {
            self.compile_later(actions)?;
        }
        let performed = self.attempt(undo, "install packages", &cmd, actions, sink);
        match (performed.await, release_builds(&*self.host.files)) {
            (Ok(()), released) => {
                released?;
                Ok(())
            }
            (Err(error), Ok(_)) => Err(error),
            (Err(error), Err(second)) => {
                sink.line(&one_line(&second));
                Err(error)
            }
        }
    }

    /// Returns the simulated transaction, or `None` if there is nothing to do. Packages to replace get another version if a
    /// required package depends on them, and are removed otherwise. Only a simulation shows these dependencies.
    pub(super) async fn work(
        &self,
        resolved: &BTreeMap<String, String>,
        replaced: &[String],
    ) -> Result<Option<SimulatedTransaction>, ChangeError> {
        let (packages, replaced) = (
            self.to_install(resolved).await?,
            self.present(replaced).await?,
        );
        let mut work = SimulatedTransaction {
            packages,
            removing: Vec::new(),
            moves: !replaced.is_empty(),
            actions: Vec::new(),
            said: String::new(),
        };
        if !work.packages.is_empty() {
            (work.actions, work.said) = match self.simulate_with_lock(&mut work).await {
                Err(error) if work.moves && is_unmet(&error) => {
                    let named = self.of_same_driver(resolved, &replaced).await?;
                    if named.is_empty() {
                        return Err(error);
                    }
                    work.packages.extend(self.at_versions(&named)?);
                    self.simulate_in_words(&work.request()).await?
                }
                simulated => simulated?,
            };
        }
        let stays = |name: &String| {
            !resolved.contains_key(name) && !work.actions.iter().any(|one| one.name() == *name)
        };
        let removing: Vec<String> = replaced.into_iter().filter(stays).collect();
        if !removing.is_empty() {
            work.removing = removing;
            let takes_along = |action: &Action| matches!(action, Action::Remove { name, .. } if resolved.contains_key(name));
            (work.actions, work.said) = match self.simulate_in_words(&work.request()).await {
                Ok(simulated) if !simulated.0.iter().any(takes_along) => simulated,
                Err(error) if !is_unmet(&error) => return Err(error),
                // A required package depends on a package to remove, for example after an interruption. Install the latter
                // in the matching version instead.
                needed => {
                    let named = self.of_same_driver(resolved, &work.removing).await?;
                    if named.is_empty() {
                        needed?;
                    }
                    work.removing.retain(|name| !named.contains_key(name));
                    work.packages.extend(self.at_versions(&named)?);
                    self.simulate_in_words(&work.request()).await?
                }
            };
        }
        let is_nothing = work.packages.is_empty() && work.removing.is_empty();
        Ok((!is_nothing).then_some(work))
    }

    /// Simulates a transaction, and adds the dependencies that the lock file contains to its packages, because a package manager
    /// selects the newest version of a dependency.
    async fn simulate_with_lock(
        &self,
        work: &mut SimulatedTransaction,
    ) -> Result<(Vec<Action>, String), ChangeError> {
        let Some(lock) = &self.policy.guard.lock else {
            return self.simulate_in_words(&work.request()).await;
        };
        let mut with_all = false;
        loop {
            let named = match self.simulate_in_words(&work.request()).await {
                Ok((actions, said)) => {
                    let named = self.at_versions(&not_locked(self.backend, &actions, lock))?;
                    // If a package is requested already, `locked` rejects the transaction.
                    if named.iter().all(|one| work.packages.contains(one)) {
                        return Ok((actions, said));
                    }
                    named
                }
                // apt does not select an older version of a dependency, even if a requested package requires it.
                Err(error) if is_unmet(&error) && !with_all => {
                    with_all = true;
                    let named = self.at_versions(&self.lacking(lock).await?)?;
                    if named.iter().all(|one| work.packages.contains(one)) {
                        return Err(error);
                    }
                    named
                }
                Err(error) => return Err(error),
            };
            for one in named {
                if !work.packages.contains(&one) {
                    work.packages.push(one);
                }
            }
        }
    }

    /// Returns the locked packages that are not installed, or installed in an older version. Empty if the machine does not need
    /// all of them.
    async fn lacking(
        &self,
        lock: &LockedPackages,
    ) -> Result<BTreeMap<String, String>, ChangeError> {
        if !lock.is_whole {
            return Ok(BTreeMap::new());
        }
        let installed = self.installed().await?;
        let is_older = |name: &str, version: &str| {
            (versions_of(&installed, name).iter())
                .all(|found| self.backend.compare(found, version).is_lt())
        };
        let lacking = (lock.versions.iter()).filter(|(name, version)| is_older(name, version));
        Ok(lacking
            .map(|(name, version)| (name.clone(), version.clone()))
            .collect())
    }

    /// Like [`Self::resolve`], but first checks that all packages of the lock file are available, so that the error lists all
    /// that are not, before any package is changed.
    async fn resolve_locked(
        &self,
        specs: &[PackageSpec],
    ) -> Result<BTreeMap<String, String>, ChangeError> {
        if let Some(lock) = &self.policy.guard.lock {
            let lacking = self.lacking(lock).await?;
            let gone = self.not_offered(&lacking).await?;
            if !gone.is_empty() {
                return Err(unavailable(&gone));
            }
            self.refuse_replaced_files(lock, lacking).await?;
        }
        self.resolve(specs).await
    }

    /// Returns the packages that no source offers in this version, as `NAME VERSION`.
    async fn not_offered(
        &self,
        packages: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, ChangeError> {
        if packages.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = packages.keys().map(String::as_str).collect();
        let query = self.backend.offers_of_all_streams(&names);
        let answer = self.ask("look up packages", &query).await?;
        let offers = self.backend.parse_offers(&answer);
        let is_offered = |name: &str, version: &str| {
            (offers.iter()).any(|offer| offer.name == name && offer.has(version))
        };
        let gone = packages
            .iter()
            .filter(|(name, version)| !is_offered(name, version));
        Ok(gone
            .map(|(name, version)| format!("{name} {version}"))
            .collect())
    }

    /// Rejects packages that the sources offer only with another SHA-256 than the lock file contains.
    async fn refuse_replaced_files(
        &self,
        lock: &LockedPackages,
        packages: BTreeMap<String, String>,
    ) -> Result<(), ChangeError> {
        let has_digests = lock.has_digests(packages.keys().map(String::as_str));
        let Some(mirrors) = self.backend.mirrors().filter(|_| has_digests) else {
            return Ok(());
        };
        let packages: Vec<(String, String)> = packages.into_iter().collect();
        let output = match mirrors.digests_query(&packages) {
            Some(query) => {
                (self.output_of(&query).await)
                    .map_err(|source| ChangeError::tool("look up the digests of packages", source))?
                    .stdout
            }
            None => String::new(),
        };
        let listed = mirrors.digests(&*self.host.files, &packages, &output)?;
        let replaced = lock.replaced_files(&by_package(self.backend, &packages, &listed));
        match replaced.is_empty() {
            true => Ok(()),
            false => Err(replaced_files(&replaced)),
        }
    }

    fn at_versions(&self, named: &BTreeMap<String, String>) -> Result<Vec<String>, ChangeError> {
        let at = |(name, version): (&String, &String)| self.backend.at_version(name, version);
        Ok(named.iter().map(at).collect())
    }

    /// Returns the packages to replace that are available in the version of the required driver. They must be requested
    /// explicitly, because a package manager does not downgrade dependencies automatically.
    async fn of_same_driver(
        &self,
        resolved: &BTreeMap<String, String>,
        replaced: &[String],
    ) -> Result<BTreeMap<String, String>, ChangeError> {
        let wanted: BTreeSet<DriverVersion> = (resolved.iter())
            .filter(|(name, _)| carries_driver(name) || is_driver_part(name))
            .filter_map(|(_, version)| DriverVersion::from_package(version).ok())
            .collect();
        let names: Vec<&str> = (replaced.iter())
            .filter(|name| !resolved.contains_key(*name))
            .map(String::as_str)
            .collect();
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let fits = |version: &str| {
            DriverVersion::from_package(version).is_ok_and(|version| wanted.contains(&version))
        };
        let best = |offer: AvailablePackage| {
            let version = preferred(self.backend, &offer, &fits)?;
            Some((offer.name, version))
        };
        let offers = self.offers(&names).await?;
        Ok(offers.into_iter().filter_map(best).collect())
    }

    /// Rejects actions that [`Guard`](crate::config::desired::Guard) excludes, and driver components from forbidden
    /// repositories.
    pub(super) async fn guard(
        &self,
        actions: &[Action],
        specs: &[PackageSpec],
    ) -> Result<(), ChangeError> {
        let guard = &self.policy.guard;
        guarded(self.backend, actions, &names(specs), guard)?;
        if let Some(lock) = &guard.lock {
            locked(self.backend, actions, lock)?;
            let installs = (actions.iter())
                .filter_map(Action::installed)
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .collect();
            self.refuse_replaced_files(lock, installs).await?;
        }
        self.refuse_forbidden(actions).await?;
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
        if let Some(query) = self.backend.lower_bounds(&modules) {
            let answer = self
                .ask("query the dependencies of modules", &query)
                .await?;
            let bounds = self.backend.parse_lower_bounds(&answer);
            same_version(self.backend, actions, &bounds, guard)?;
        }
        Ok(())
    }

    /// Rejects driver components from repositories that a preference of the machine forbids. Without such a preference, no
    /// query is made.
    async fn refuse_forbidden(&self, actions: &[Action]) -> Result<(), ChangeError> {
        let of_driver: Vec<&str> = (actions.iter())
            .filter_map(|action| match action {
                Action::Install { name, to, .. } => {
                    let name = self.backend.bare_name(name);
                    is_of_driver(name, to).then_some(name)
                }
                Action::Remove { .. } => None,
            })
            .collect();
        if of_driver.is_empty() {
            return Ok(());
        }
        let overridden = self.backend.overridden(&*self.host.files)?;
        let hides = |one: &&Exclusion| of_driver.iter().any(|name| one.hides(name));
        if let Some(exclusion) = overridden.iter().find(hides) {
            let what = format!(
                "approve the package transaction: {exclusion}, but our preference for the driver \
                 branch is read first"
            );
            return Err(
                ChangeError::blocked("forbidden-source", what).advice(format!(
                    "nothing was changed; give `{}` a name that sorts earlier, such as `00-site`",
                    exclusion.path
                )),
            );
        }
        let Some(hint) = self.backend.forbids(&*self.host.files)? else {
            return Ok(());
        };
        let offers = self.offers(&of_driver).await?;
        allowed(self.backend, actions, &offers, hint)
    }

    /// Reinstalls removed packages. Fails if the transaction would remove or change other packages without approval.
    pub(super) async fn reinstall_specs(
        &self,
        packages: &[String],
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        const WHAT: &str = "reinstall removed packages";
        let request = TransactionRequest::Install {
            packages,
            removing: &[],
        };
        let mut attempts = Attempts::new();
        loop {
            let actions = self.simulate(&request).await?;
            self.approve(&actions, &[], &[]).await?;
            let cmd = self
                .backend
                .perform(&self.settings(), &request, removals(&actions));
            let expected = Expected::of(&actions);
            let performed = async {
                self.download_first(&request, sink).await?;
                self.run_once(WHAT, &cmd, expected, sink).await
            };
            match performed.await {
                Ok(()) => return Ok(()),
                Err(error) => self.wait_before_retry(&mut attempts, error, sink).await?,
            }
        }
    }

    /// Downloads the packages of a transaction, if performing it does not download them.
    pub(super) async fn download_first(
        &self,
        request: &TransactionRequest<'_>,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if !self.backend.performs_from_downloads() {
            return Ok(());
        }
        let download = self.backend.download(&self.settings(), request);
        self.run_once("download packages", &download, Expected::default(), sink)
            .await
    }

    /// Returns the version of each required package: the installed version if it matches, otherwise the version to install.
    pub(super) async fn resolve(
        &self,
        specs: &[PackageSpec],
    ) -> Result<BTreeMap<String, String>, ChangeError> {
        let exact = &self.policy.guard.exact;
        let (exact, free): (Vec<PackageSpec>, Vec<PackageSpec>) =
            (specs.iter().cloned()).partition(|spec| exact.contains(&spec.name));
        let mut resolved = self.resolve_free(&free).await?;
        let exact = beside_the_driver(exact, &resolved, self.policy.guard.driver);
        resolved.extend(self.resolve_free(&exact).await?);
        Ok(resolved)
    }

    /// Returns the version of each required package, independent of the others.
    async fn resolve_free(
        &self,
        specs: &[PackageSpec],
    ) -> Result<BTreeMap<String, String>, ChangeError> {
        let (mut resolved, open) = self.met(specs).await?;
        if open.is_empty() {
            return Ok(resolved);
        }
        let names: BTreeSet<&str> = open.iter().map(|spec| spec.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let offers = self.offers(&names).await?;
        for spec in open {
            let offer = offers.iter().find(|offer| offer.name == spec.name);
            resolved.insert(spec.name.clone(), choose(self.backend, spec, offer)?);
        }
        Ok(resolved)
    }

    /// Returns the installed versions of the required packages, and the requirements that no installed version meets.
    pub(super) async fn met<'s>(
        &self,
        specs: &'s [PackageSpec],
    ) -> Result<(BTreeMap<String, String>, Vec<&'s PackageSpec>), ChangeError> {
        let installed = self.installed().await?;
        let (mut met, mut open) = (BTreeMap::new(), Vec::new());
        for spec in specs {
            let wanted = spec.version.as_deref().unwrap_or("*");
            let versions = versions_of(&installed, &spec.name);
            match versions
                .into_iter()
                .find(|version| self.backend.matches(wanted, version))
            {
                Some(version) => {
                    met.insert(spec.name.clone(), version.to_owned());
                }
                None => open.push(spec),
            }
        }
        Ok((met, open))
    }

    /// Returns the packages to request: those that are not installed in the resolved version.
    pub(super) async fn to_install(
        &self,
        resolved: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, ChangeError> {
        let installed = self.installed().await?;
        Ok(resolved
            .iter()
            .filter(|(name, version)| !self.has_version(&installed, name, version))
            .map(|(name, version)| self.backend.at_version(name, version))
            .collect())
    }

    /// Returns `true` if a package is installed in this version, compared by the package manager's rules.
    fn has_version(&self, installed: &Installed, name: &str, wanted: &str) -> bool {
        (versions_of(installed, name).iter())
            .any(|found| self.backend.compare(found, wanted).is_eq())
    }

    /// Returns the packages that are in the database in any state except removed.
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

    async fn installed(&self) -> Result<Installed, ChangeError> {
        let mut installed = Installed::new();
        for package in self.database().await? {
            if package.is_installed() {
                let key = match self.backend.has_several_versions(&package.name) {
                    true => package.name,
                    false => package.id,
                };
                installed.entry(key).or_default().push(package.version);
            }
        }
        Ok(installed)
    }

    /// Verifies that the required packages are installed, and that the packages in `removed` are not.
    async fn verify(
        &self,
        resolved: &BTreeMap<String, String>,
        removed: &[String],
    ) -> Result<(), ChangeError> {
        self.check_consistent().await?;
        if let Some(package) = self.present(removed).await?.into_iter().next() {
            return Err(not_verified(&package, "still installed", "its removal"));
        }
        let installed = self.installed().await?;
        for (name, wanted) in resolved {
            if !self.has_version(&installed, name, wanted) {
                let found = versions_of(&installed, name).join(", ");
                let found = match &*found {
                    "" => "not installed",
                    found => found,
                };
                return Err(not_verified(name, found, wanted));
            }
        }
        Ok(())
    }
}

/// Sets the version of packages that require a driver of exactly their version: the version of the driver that is installed or
/// that this transaction installs.
fn beside_the_driver(
    specs: Vec<PackageSpec>,
    resolved: &BTreeMap<String, String>,
    branch: Option<Branch>,
) -> Vec<PackageSpec> {
    let of_driver = (resolved.iter())
        .filter(|(name, _)| carries_driver(name))
        .filter_map(|(_, version)| DriverVersion::from_package(version).ok())
        // Skip the package of a kernel module, because it has the version of its kernel.
        .find(|version| branch.is_none_or(|branch| version.branch() == branch));
    let Some(version) = of_driver else {
        return specs;
    };
    let at = |spec: PackageSpec| PackageSpec {
        version: Some(format!("{version}-*")),
        ..spec
    };
    specs.into_iter().map(at).collect()
}

/// Whether the approved simulation removes packages. If not, the real transaction must not remove any either.
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
