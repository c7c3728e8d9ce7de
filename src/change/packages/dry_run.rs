//! Simulates the installations of a run before its first change. `install` performs the installations of several steps as one
//! transaction, so they are also simulated and approved as one. If this fails, each one is simulated separately, so that the
//! error is reported for the step at fault.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::join_all;
use tokio::sync::OnceCell;

use super::{
    Merged, has_failed, install::SimulatedTransaction, is_not_offered, merge, names as names_of,
};
use crate::{
    change::{Applier, Change, ChangeError, Class},
    config::{desired::PackageSpec, kernel::PREBUILT},
    host::{ExecError, Output, Query},
    tools::packages::{Action, AvailablePackage, Package, TransactionRequest},
};

/// The preview of an installation whose packages are not in the lists yet, because an earlier change in the plan adds their
/// repository or refreshes the lists.
pub const NOT_SIMULATED: &str = "simulated by `install` with new package lists, because the \
                                 current lists do not contain all packages";

/// The same for an installation with a package that an earlier change in the plan builds.
const NOT_BUILT: &str =
    "simulated by `install` after it has built the package with prebuilt modules";

/// The heading of the actions in a preview that belong to no single step, such as the installation of dependencies.
pub const FURTHER: &str = "dependencies of these and other packages in the same transaction:";

/// The preview of an installation that is only possible together with the packages of other steps.
const WITH_HEADERS: &str = "part of a transaction that also installs the kernel headers";

/// The result of simulating an installation before the first change of a run.
#[derive(Debug)]
pub enum Simulation {
    /// The transaction is approved. Contains its preview, which is empty if everything is installed.
    Approved(String),
    /// The transaction cannot be simulated yet. Earlier changes of the run may resolve the error, such as a missing repository.
    Unknown(ChangeError),
    /// The transaction would certainly be rejected.
    Rejected(ChangeError),
}

impl Simulation {
    /// Returns the preview.
    ///
    /// # Errors
    /// If the transaction is rejected or cannot be simulated.
    pub fn preview(self) -> Result<String, ChangeError> {
        match self {
            Self::Approved(text) => Ok(text),
            Self::Unknown(error) | Self::Rejected(error) => Err(error),
        }
    }
}

/// An error of a simulation.
struct Failed {
    error: ChangeError,
    /// Earlier changes of the run cannot resolve it.
    is_certain: bool,
}

impl From<ChangeError> for Failed {
    fn from(error: ChangeError) -> Self {
        // The lists may be too old, or a repository may be missing.
        let is_certain = !(is_not_offered(&error) || has_failed(&error));
        Self { error, is_certain }
    }
}

impl From<Failed> for Simulation {
    fn from(Failed { error, is_certain }: Failed) -> Self {
        if is_certain {
            return Self::Rejected(error);
        }
        tracing::debug!(%error, "the installation cannot be simulated yet");
        Self::Unknown(error)
    }
}

/// The results of queries, so that the same query is not executed twice for one dry run or for the approval of one transaction.
/// A change is never based on it: the package manager and the inventories read everything again.
#[derive(Default)]
pub(in crate::change) struct QueryCache {
    pub(super) database: OnceCell<Vec<Package>>,
    outputs: Mutex<Vec<(Query, Output)>>,
    /// By name. `None` if no repository has the package.
    offers: Mutex<BTreeMap<String, Option<AvailablePackage>>>,
}

impl QueryCache {
    fn output(&self, query: &Query) -> Option<Output> {
        let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = outputs.iter().find(|(known, _)| known == query);
        known.map(|(_, output)| output.clone())
    }

    fn add_output(&self, query: &Query, output: &Output) {
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.push((query.clone(), output.clone()));
    }

    fn without_offer<'n>(&self, names: &[&'n str]) -> Vec<&'n str> {
        let offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |name: &&str| !offers.contains_key(*name);
        names.iter().copied().filter(is_new).collect()
    }

    fn add_offers(&self, names: &[&str], found: Vec<AvailablePackage>) {
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            offers.entry((*name).to_owned()).or_default();
        }
        offers.extend(found.into_iter().map(|one| (one.name.clone(), Some(one))));
    }

    fn offers(&self, names: &[&str]) -> Vec<AvailablePackage> {
        let offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.iter().filter_map(|name| offers.get(*name)?.clone());
        known.collect()
    }
}

impl Applier {
    /// Returns an applier that reads the package database and executes each query only once. It must not be used after a
    /// command that changes packages or lists.
    pub(super) fn caching(&self) -> Self {
        Self {
            cache: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// Runs a query of the package manager.
    pub(super) async fn output_of(&self, query: &Query) -> Result<Output, ExecError> {
        let Some(cache) = &self.cache else {
            return self.host.reader().query(query).await;
        };
        if let Some(output) = cache.output(query) {
            return Ok(output);
        }
        let output = self.host.reader().query(query).await?;
        cache.add_output(query, &output);
        Ok(output)
    }

    /// Returns the available versions of these packages. Packages that no repository has are missing in the result.
    pub(super) async fn offers(
        &self,
        names: &[&str],
    ) -> Result<Vec<AvailablePackage>, ChangeError> {
        let Some(cache) = &self.cache else {
            return self.look_up(names).await;
        };
        let missing = cache.without_offer(names);
        if !missing.is_empty() {
            let found = self.look_up(&missing).await?;
            cache.add_offers(&missing, found);
        }
        Ok(cache.offers(names))
    }

    async fn look_up(&self, names: &[&str]) -> Result<Vec<AvailablePackage>, ChangeError> {
        let query = self.backend.offers(names);
        let answer = self.ask("look up packages", &query).await?;
        Ok(self.backend.parse_offers(&answer))
    }

    /// Simulates one installation.
    pub(in crate::change) async fn simulate_install(&self, change: &Change) -> Simulation {
        let found = self.simulate_changes(&[change]).await;
        let nothing = Simulation::Approved(String::new());
        found.into_iter().next().unwrap_or(nothing)
    }

    /// Simulates the installations of several steps, in step order, and returns the result for each of them. Rejected are
    /// packages that [`Guard`](crate::config::desired::Guard) excludes, actions that the plan does not approve, and packages
    /// that do not fit on a filesystem. The transaction is checked again when it is performed.
    pub(in crate::change) async fn simulate_changes(&self, changes: &[&Change]) -> Vec<Simulation> {
        self.caching().simulate_cached(changes).await
    }

    async fn simulate_cached(&self, changes: &[&Change]) -> Vec<Simulation> {
        let mut found: Vec<Simulation> = (changes.iter())
            .map(|_| Simulation::Approved(String::new()))
            .collect();
        if let Err(error) = self.look_up_all(changes).await {
            tracing::debug!(%error, "the packages of all steps cannot be looked up at once");
        }
        let mut open = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            let Change::InstallPackages { packages, .. } = change else {
                continue;
            };
            match self.is_offered(packages).await {
                Ok(true) => open.push(at),
                Ok(false) => {
                    let is_built = |spec: &PackageSpec| spec.name.starts_with(PREBUILT);
                    let text = match packages.iter().any(is_built) {
                        true => NOT_BUILT,
                        false => NOT_SIMULATED,
                    };
                    found[at] = Simulation::Approved(text.to_owned());
                }
                Err(error) => found[at] = Failed::from(error).into(),
            }
        }
        while !open.is_empty() {
            let merged = merge(open.iter().map(|at| (*at, changes[*at])));
            let simulated = self.simulate_merged(&merged, changes).await;
            open.retain(|at| !simulated.iter().any(|(one, _)| one == at));
            for (at, simulation) in simulated {
                found[at] = simulation;
            }
        }
        found
    }

    /// Looks up the missing packages of all steps with one query.
    async fn look_up_all(&self, changes: &[&Change]) -> Result<(), ChangeError> {
        if !self.backend.truncated_lists(&*self.host.files)?.is_empty() {
            return Ok(());
        }
        let mut names = BTreeSet::new();
        for change in changes {
            if let Change::InstallPackages { packages, .. } = change {
                let (_, open) = self.met(packages).await?;
                names.extend(open.into_iter().map(|spec| spec.name.as_str()));
            }
        }
        let names: Vec<&str> = names.into_iter().collect();
        if !names.is_empty() {
            self.offers(&names).await?;
        }
        Ok(())
    }

    /// Whether the current lists are complete and contain all packages.
    async fn is_offered(&self, specs: &[PackageSpec]) -> Result<bool, ChangeError> {
        if !self.backend.truncated_lists(&*self.host.files)?.is_empty() {
            return Ok(false);
        }
        match self.resolve(specs).await {
            Err(error) if is_not_offered(&error) => Ok(false),
            resolved => resolved.map(|_| true),
        }
    }

    /// Simulates one transaction for several steps. Returns the result for all of them, or only for those at fault.
    async fn simulate_merged(
        &self,
        merged: &Merged,
        changes: &[&Change],
    ) -> Vec<(usize, Simulation)> {
        let steps = &merged.steps;
        let failed = match self.evaluate(&merged.packages, &merged.removing).await {
            Ok(actions) => {
                let text = |at: &usize| self.part_of(actions.as_deref(), changes[*at], merged);
                let approved = steps.iter().map(|at| (*at, Simulation::Approved(text(at))));
                return approved.collect();
            }
            Err(failed) => failed,
        };
        if let [only] = steps[..] {
            return vec![(only, failed.into())];
        }
        let separate = self.evaluate_each(steps, changes).await;
        if !separate.is_empty() {
            return separate;
        }
        // Each transaction is possible separately. The step at fault is the first one that is not possible together with the
        // steps before it.
        for count in 2..steps.len() {
            let first = merge(steps[..count].iter().map(|at| (*at, changes[*at])));
            if let Err(failed) = self.evaluate(&first.packages, &first.removing).await {
                return vec![(steps[count - 1], together(failed, &first, changes))];
            }
        }
        let last = steps.last().copied();
        let simulation = together(failed, merged, changes);
        last.into_iter().zip([simulation]).collect()
    }

    /// Simulates each installation separately, and returns those that are not possible.
    async fn evaluate_each(
        &self,
        steps: &[usize],
        changes: &[&Change],
    ) -> Vec<(usize, Simulation)> {
        let evaluate = |at: usize| async move {
            match changes[at] {
                Change::InstallPackages {
                    packages, removing, ..
                } => {
                    let failed = self.evaluate(packages, removing).await.err()?;
                    Some((at, Simulation::from(failed)))
                }
                _ => None,
            }
        };
        let evaluations: Vec<_> = steps.iter().map(|at| evaluate(*at)).collect();
        if self.backend.simulates_side_by_side() {
            return join_all(evaluations).await.into_iter().flatten().collect();
        }
        let mut found = Vec::new();
        for evaluation in evaluations {
            found.extend(evaluation.await);
        }
        found
    }

    /// Simulates and approves one transaction, and returns its actions. `None` if it is only possible together with all
    /// required packages: other steps add packages to the same transaction, such as the headers of the installed kernel, and
    /// the complete transaction may then install no other kernel.
    async fn evaluate(
        &self,
        specs: &[PackageSpec],
        removing: &[String],
    ) -> Result<Option<Vec<Action>>, Failed> {
        let failed = match self.evaluate_alone(specs, removing).await {
            Ok(actions) => return Ok(Some(actions)),
            Err(failed) => failed,
        };
        let brings_kernel = failed.error.class == Class::NewKernel;
        let Some(wanted) = self.wanted.as_ref().filter(|_| brings_kernel) else {
            return Err(failed);
        };
        let further = (wanted.packages.iter())
            .filter(|spec| !specs.iter().any(|named| named.name == spec.name));
        let all: Vec<PackageSpec> = specs.iter().chain(further).cloned().collect();
        self.evaluate_alone(&all, removing).await?;
        Ok(None)
    }

    async fn evaluate_alone(
        &self,
        specs: &[PackageSpec],
        removing: &[String],
    ) -> Result<Vec<Action>, Failed> {
        let resolved = self.resolve(specs).await?;
        let Some(work) = self.work_with_sizes(&resolved, removing).await? else {
            return Ok(Vec::new());
        };
        self.guard(&work.actions, specs).await?;
        let approved = self.approve_part(&work.actions, specs, removing).await;
        // Unconfigured packages are repaired first, which changes the simulation.
        let is_final = approved.is_ok() || self.half_done().await?.is_empty();
        let later = match approved {
            Err(error) if is_final => return Err(error.into()),
            approved => approved.err(),
        };
        self.check_space(&work.request(), Some(&work.said)).await?;
        match later {
            Some(error) => Err(Failed {
                error,
                is_certain: false,
            }),
            None => Ok(work.actions),
        }
    }

    /// Returns the simulated transaction. If the sizes need a separate query, it runs at the same time, and
    /// [`Self::check_space`] finds its output in the cache.
    pub(super) async fn work_with_sizes(
        &self,
        resolved: &BTreeMap<String, String>,
        removing: &[String],
    ) -> Result<Option<SimulatedTransaction>, ChangeError> {
        let packages = self.to_install(resolved).await?;
        let in_parallel = removing.is_empty() && self.backend.simulates_side_by_side();
        if packages.is_empty() || !in_parallel {
            return self.work(resolved, removing).await;
        }
        let request = TransactionRequest::Install {
            packages: &packages,
            removing: &[],
        };
        let (work, sizes) = tokio::join!(self.work(resolved, removing), self.estimate(&request));
        if let Err(error) = sizes {
            tracing::debug!(%error, "the sizes of the transaction are unknown");
        }
        work
    }

    /// Approves work that becomes a part of a larger transaction. Packages that other steps require may be upgraded, because
    /// these steps request them in that transaction.
    async fn approve_part(
        &self,
        actions: &[Action],
        specs: &[PackageSpec],
        removing: &[String],
    ) -> Result<(), ChangeError> {
        let wanted = self.wanted.iter().flat_map(|wanted| &wanted.packages);
        let beside: Vec<&str> = wanted.map(|spec| spec.name.as_str()).collect();
        self.approve_with_untracked(actions, &names_of(specs), removing, &beside)
            .await
    }

    /// Describes the actions on the packages of one step, followed by the actions that no step names. A plan lists each action
    /// only with the first of its steps.
    fn part_of(&self, actions: Option<&[Action]>, change: &Change, merged: &Merged) -> String {
        let Some(actions) = actions else {
            return WITH_HEADERS.to_owned();
        };
        if merged.steps.len() == 1 {
            return Action::describe(actions);
        }
        let Change::InstallPackages {
            packages, removing, ..
        } = change
        else {
            return String::new();
        };
        let is_of = |action: &Action, specs: &[PackageSpec], removing: &[String]| {
            let name = action.name();
            let bare = self.backend.bare_name(name);
            let is_it = |other: &str| other == name || other == bare;
            specs.iter().any(|spec| is_it(&spec.name)) || removing.iter().any(|one| is_it(one))
        };
        let (own, others): (Vec<Action>, Vec<Action>) =
            (actions.iter().cloned()).partition(|action| is_of(action, packages, removing));
        let further: Vec<Action> = (others.into_iter())
            .filter(|action| !is_of(action, &merged.packages, &merged.removing))
            .collect();
        let mut parts = vec![Action::describe(&own)];
        if !further.is_empty() {
            parts.extend([FURTHER.to_owned(), Action::describe(&further)]);
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }
}

/// The result for the last step of a transaction that is only rejected because of the steps before it.
fn together(mut failed: Failed, merged: &Merged, changes: &[&Change]) -> Simulation {
    let before = merged.steps.split_last().map_or(&[][..], |(_, rest)| rest);
    let names: BTreeSet<&str> = (before.iter())
        .filter_map(|at| match changes[*at] {
            Change::InstallPackages { packages, .. } => Some(names_of(packages)),
            _ => None,
        })
        .flatten()
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    let note = format!(" (in one transaction with {})", names.join(", "));
    failed.error.what.push_str(&note);
    failed.into()
}
