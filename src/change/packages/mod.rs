//! The one place that changes packages, whatever the package manager. Every transaction waits for
//! others with a bound, is simulated first, refused if it does what the plan does not name,
//! downloaded before anything is touched, performed without questions, and verified afterwards.
//!
//! [`install`] is the transaction, [`approval`] says what it may do, [`run`] runs its commands,
//! [`record`] writes down what each did, and [`undo`] takes it back.

mod approval;
mod effects;
mod exclusive;
mod holds;
mod install;
mod inventory;
mod lists;
mod record;
mod repair;
pub mod repository;
mod run;
mod undo;

pub use effects::{Effects, Inventory};
pub(super) use lists::Lists;

use self::{
    approval::{Approved, blame, objections},
    inventory::held,
    run::also,
};
use crate::{
    change::{Applier, ChangeError, PackageError},
    config::desired::PackageWish,
    host::{Query, exec::tail},
    tools::packages::{Action, Fault, Request, Settings, Transactions},
};

/// Seconds that the package manager itself waits for its locks. Short: we wait ourselves, by name,
/// and can be stopped while we do.
const LOCK_BACKSTOP: u64 = 10;

impl Applier {
    /// How packages are changed here.
    fn transactions(&self) -> Result<&'static dyn Transactions, ChangeError> {
        self.backend
            .transactions()
            .ok_or_else(|| ChangeError::Unsupported {
                what: format!("changing packages with {}", self.backend.name()),
            })
    }

    /// The settings of every call.
    fn settings(&self) -> Settings {
        Settings {
            lock_timeout_seconds: self.policy.lock_timeout_seconds.min(LOCK_BACKSTOP),
            proxy: self.policy.proxy.clone(),
            recommends: self.policy.recommends,
        }
    }

    /// [`crate::tools::packages::Package::id`] of packages that are neither installed nor gone.
    async fn half_done(&self) -> Result<Vec<String>, ChangeError> {
        let database = self.database().await?;
        let mut names: Vec<String> = database
            .iter()
            .filter(|package| package.needs_repair())
            .map(|package| package.id.clone())
            .collect();
        if names.is_empty()
            && let Some(program) = self.backend.interrupted(&*self.host.files)?
        {
            names.push(format!("{program}'s own records"));
        }
        Ok(names)
    }

    async fn check_consistent(&self) -> Result<(), ChangeError> {
        let packages = self.half_done().await?;
        if packages.is_empty() {
            Ok(())
        } else {
            Err(PackageError::HalfDone { packages }.into())
        }
    }

    async fn simulate(&self, request: &Request<'_>) -> Result<Vec<Action>, ChangeError> {
        let transactions = self.transactions()?;
        let query = transactions.simulate(&self.settings(), request);
        let answer = self.ask("simulate the package transaction", &query).await?;
        Ok(transactions.parse_actions(&answer))
    }

    /// Refuses a transaction that does what the plan does not name.
    async fn approve(
        &self,
        actions: &[Action],
        named: &[&str],
        removing: &[String],
    ) -> Result<(), ChangeError> {
        let approved = Approved {
            named: named.iter().copied().collect(),
            removing: removing
                .iter()
                .chain(&self.policy.may_remove)
                .map(String::as_str)
                .collect(),
            upgrading: self.policy.may_upgrade.iter().map(String::as_str).collect(),
            held: held(&self.database().await?),
            only_removals: false,
        };
        self.refuse(actions, &approved)
    }

    fn refuse(&self, actions: &[Action], approved: &Approved<'_>) -> Result<(), ChangeError> {
        let reasons = objections(self.backend, actions, approved);
        if reasons.is_empty() {
            Ok(())
        } else {
            Err(PackageError::Refused { reasons }.into())
        }
    }

    /// Asks the package manager something; its refusals have classes.
    async fn ask(&self, what: &str, query: &Query) -> Result<String, ChangeError> {
        let transactions = self.transactions()?;
        let failed = |fault, attachment, source| PackageError::Failed {
            what: what.to_owned(),
            fault,
            hint: self.hint(fault),
            attachment,
            source: Box::new(self.short(source, query.cmd())),
        };
        let output = (self.host.reader().query(query).await)
            .map_err(|source| failed(Fault::Other, None, source))?;
        let said = format!("{}\n{}", output.stderr, output.stdout);
        let stdout = output.stdout.clone();
        let Err(source) = output.success(query.cmd()) else {
            return Ok(stdout);
        };
        // What cannot be met is told on standard output. Whatever keeps from looking further is
        // said beside it.
        let fault = transactions.fault(&said);
        let stdout = self.fit_to_tell(&stdout);
        let looked = match fault {
            Fault::SignedBy => self.contradictions(),
            _ => Ok(transactions.obstacle(&stdout)),
        };
        let told = looked
            .unwrap_or_else(|second| Some(also(tail(&stdout), &second)))
            .unwrap_or_else(|| tail(&stdout));
        let (fault, told) = match self.database().await {
            Ok(database) => blame(fault, told, &held(&database)),
            Err(second) => (fault, also(told, &second)),
        };
        Err(failed(fault, Some(told).filter(|text| !text.is_empty()), source).into())
    }
}

/// The names of wishes.
fn names(wishes: &[PackageWish]) -> Vec<&str> {
    wishes.iter().map(|wish| wish.name.as_str()).collect()
}
