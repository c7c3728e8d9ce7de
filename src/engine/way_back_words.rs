//! What `plan` says about the way back to an earlier driver.

use camino::Utf8Path;

use super::{
    Session,
    job::Job,
    way_back::{given_up, not_understood, version_in_words, words_of_end},
};
use crate::{
    change::{Change, packages::kept},
    config::desired::{Manager, PackageWish},
    error::one_line,
    facts::detection::{carries_driver, is_driver_part},
    journal::{GoingBack, Journal, Proven, fold},
    model::{paths, text::bytes},
    step::Assessment,
    tools::packages::{Settings, TransactionRequest},
};

/// The packages of the proven driver that a change would replace.
fn replaced<'p>(change: &Change, manager: Manager, proven: &'p Proven) -> Vec<&'p PackageWish> {
    let Change::InstallPackages { packages, removing } = change else {
        return Vec::new();
    };
    let is_moved = |one: &PackageWish| {
        let wanted = packages.iter().find(|wish| wish.name == one.name);
        let wanted = wanted.and_then(|wish| wish.version.as_deref());
        wanted
            .zip(one.version.as_deref())
            .is_some_and(|(wanted, found)| !manager.backend().matches(wanted, found))
    };
    (proven.driver.iter())
        .filter(|one| removing.contains(&one.name) || is_moved(one))
        .collect()
}

/// Whether a change would replace packages of any driver.
fn replaces_a_driver(change: &Change) -> bool {
    matches!(change, Change::InstallPackages { removing, .. }
        if removing.iter().any(|name| carries_driver(name) || is_driver_part(name)))
}

impl Session {
    /// What `plan` says about the way back: that `install` is on it, or where it would lead if the driver
    /// that is to be installed fails its proof.
    pub(super) async fn way_back_in_words(&self, jobs: &[Job]) -> Option<String> {
        // That the journal cannot be read is noted where the leftovers are looked for.
        let receipt = fold(&Journal::read(&self.inner.host).ok()?.lines);
        let desired = self.inner.desired.as_ref().filter(|one| !one.image)?;
        let given_up = given_up(&receipt, desired);
        match (&receipt.going_back, given_up) {
            (Some(GoingBack { from, to, why }), None) => {
                return Some(format!(
                    "driver {from} has failed its proof ({why}): `install` goes back to {to}"
                ));
            }
            (Some(back), Some(why)) => return Some(words_of_end(back, why)),
            (None, _) => {}
        }
        let driver = desired.driver.as_ref()?;
        let manager = desired.packages.manager;
        let changes = || {
            let needed = jobs.iter().filter_map(|job| match &job.answer {
                Some(Ok(Assessment::Needs { changes, .. })) => Some(changes),
                _ => None,
            });
            needed.flatten()
        };
        let fails = "if the new driver fails its proof";
        let Some(proven) = &receipt.proven else {
            return changes().any(replaces_a_driver).then(|| {
                format!(
                    "{fails}, there is no way back: this program has not proven the driver that is \
                     there"
                )
            });
        };
        let replaced: Vec<&PackageWish> = changes()
            .flat_map(|change| replaced(change, manager, proven))
            .collect();
        if replaced.is_empty() {
            return None;
        }
        if !driver.rollback {
            return Some(format!("{fails}, it stays: `driver.rollback` is false"));
        }
        if let Err(error) = proven.desired() {
            let error = not_understood(&error);
            return Some(format!("{fails}, there is no way back: {error}"));
        }
        let to = version_in_words(proven);
        Some(match self.not_offered(manager, &replaced).await {
            Ok(gone) if gone.is_empty() => {
                let kept = self.kept_in_words(manager, &replaced).await;
                format!("{fails}, the run goes back to driver {to} (`driver.rollback`){kept}")
            }
            Ok(gone) => format!(
                "{fails}, there is no way back to driver {to}: no repository offers {} any more",
                gone.join(", ")
            ),
            Err(why) => format!(
                "{fails}, the run goes back to driver {to} (`driver.rollback`) if its packages are \
                 still offered, which is not known: {why}"
            ),
        })
    }

    /// Where the packages of the driver before are kept, and how much that is, for the end of a sentence.
    async fn kept_in_words(&self, manager: Manager, packages: &[&PackageWish]) -> String {
        let Some(transactions) = manager.backend().transactions() else {
            return String::new();
        };
        let specified: Vec<String> = (packages.iter())
            .filter_map(|one| Some(transactions.at_version(&one.name, one.version.as_deref()?)))
            .collect();
        let settings = Settings {
            lock_timeout_seconds: 0,
            proxy: None,
            no_proxy: None,
        };
        let query = transactions.estimate(&settings, &TransactionRequest::Reinstall(&specified));
        let answer = match &query {
            Some(query) => self.inner.host.reader().query(query).await.ok(),
            None => None,
        };
        let answer = answer.filter(|output| transactions.has_answered(output));
        let size =
            answer.map(|output| transactions.parse_estimate(&output.stdout).download_bytes());
        match size {
            Some(size) if size > kept::LIMIT => format!(
                "; its packages, {} in all, are not kept: that is more than {}",
                bytes(size),
                bytes(kept::LIMIT)
            ),
            Some(size) if size > 0 => format!(
                "; its packages, {} in all, are kept in `{}` until then",
                bytes(size),
                kept::folder(Utf8Path::new(paths::STATE))
            ),
            _ => format!(
                "; its packages are kept in `{}` until then",
                kept::folder(Utf8Path::new(paths::STATE))
            ),
        }
    }

    /// Those of the packages that could not be installed again, by the package lists that are there. The
    /// error says why nobody knows.
    pub(super) async fn not_offered(
        &self,
        manager: Manager,
        packages: &[&PackageWish],
    ) -> Result<Vec<String>, String> {
        let backend = manager.backend();
        let transactions =
            (backend.transactions()).ok_or_else(|| format!("{} is not asked", backend.name()))?;
        let has_lists = backend.has_lists(&*self.inner.host.files);
        if !has_lists.map_err(|error| format!("failed to {}", one_line(&error)))? {
            return Err("there are no package lists".to_owned());
        }
        let names: Vec<&str> = packages.iter().map(|one| one.name.as_str()).collect();
        let query = transactions.offers(&names);
        let asked = self.inner.host.reader().query(&query).await;
        let output = asked.and_then(|output| output.success(query.cmd()));
        let output = output.map_err(|error| format!("failed to {}", one_line(&error)))?;
        let offers = transactions.parse_offers(&output.stdout);
        let kept = kept::read(&*self.inner.host.files, Utf8Path::new(paths::STATE));
        let kept = kept.map_err(|error| format!("failed to {}", one_line(&error)))?;
        let is_offered = |one: &PackageWish| {
            let version = one.version.as_deref().unwrap_or_default();
            kept.iter().any(|file| file.is(one))
                || (offers.iter()).any(|offer| offer.name == one.name && offer.has(version))
        };
        Ok((packages.iter())
            .filter(|one| !is_offered(one))
            .map(|one| {
                format!(
                    "{} {}",
                    one.name,
                    one.version.as_deref().unwrap_or_default()
                )
            })
            .collect())
    }
}
