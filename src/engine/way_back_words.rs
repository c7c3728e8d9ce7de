//! What the package lists offer for the way back to an earlier driver, and what `plan` says about it.

use super::{
    Session,
    job::Job,
    way_back::{gives_up, version, version_in_words, words_of_end},
};
use crate::{
    change::Change,
    config::desired::{Manager, PackageWish},
    error::one_line,
    facts::detection::{carries_driver, is_driver_part},
    host::Host,
    journal::{GoingBack, Journal, Proven, fold},
    model::version::DriverVersion,
    step::Assessment,
};

/// What of a proven driver could be installed again.
pub(super) enum Offered {
    /// Its version: these packages in exactly theirs.
    Exact(Vec<PackageWish>),
    /// The newest of its branch, and what is not offered any more.
    Newest(DriverVersion, Vec<String>),
    /// None of its branch, and what is not offered any more.
    Gone(Vec<String>),
}

/// What could be installed again, by the package lists that are there. The error says why nobody knows.
pub(super) async fn offered(
    host: &Host,
    manager: Manager,
    proven: &Proven,
) -> Result<Offered, String> {
    let backend = manager.backend();
    let transactions =
        (backend.transactions()).ok_or_else(|| format!("{} is not asked", backend.name()))?;
    let has_lists = backend.has_lists(&*host.files);
    if !has_lists.map_err(|error| format!("failed to {}", one_line(&error)))? {
        return Err("there are no package lists".to_owned());
    }
    let names: Vec<&str> = (proven.driver.iter())
        .map(|one| one.name.as_str())
        .collect();
    // The stream of the driver that has failed may be enabled.
    let query = transactions.offers_of_all_streams(&names);
    let asked = host.reader().query(&query).await;
    let output = asked.and_then(|output| output.success(query.cmd()));
    let output = output.map_err(|error| format!("failed to {}", one_line(&error)))?;
    let offers = transactions.parse_offers(&output.stdout);
    let of = |wish: &PackageWish| offers.iter().find(|offer| offer.name == wish.name);
    let is_there = |wish: &&PackageWish| {
        let version = wish.version.as_deref().unwrap_or_default();
        of(wish).is_some_and(|offer| offer.has(version))
    };
    let (there, mut gone): (Vec<&PackageWish>, Vec<&PackageWish>) =
        proven.driver.iter().partition(is_there);
    let before = version(&proven.driver);
    // What has another version, as a module with that of its kernel, does not decide.
    gone.retain(|wish| {
        let version = wish.version.as_deref().map(DriverVersion::from_package);
        version.and_then(Result::ok) == before
    });
    let (Some(before), false) = (before, gone.is_empty()) else {
        return Ok(Offered::Exact(there.into_iter().cloned().collect()));
    };
    let newest = |wish: &&PackageWish| {
        let offer = of(wish)?;
        let all = offer
            .versions
            .iter()
            .filter(|(version, _)| offer.has(version));
        all.filter_map(|(version, _)| DriverVersion::from_package(version).ok())
            .filter(|version| version.branch() == before.branch())
            .max()
    };
    let all: Option<Vec<DriverVersion>> = gone.iter().map(newest).collect();
    let gone = (gone.iter())
        .map(|wish| {
            let version = wish.version.as_deref().unwrap_or_default();
            format!("{} {version}", wish.name)
        })
        .collect();
    Ok(match all.and_then(|all| all.into_iter().min()) {
        Some(newest) => Offered::Newest(newest, gone),
        None => Offered::Gone(gone),
    })
}

/// What is not offered any more, in words.
pub(super) fn no_longer(gone: &[String]) -> String {
    format!("no repository offers {} any more", gone.join(", "))
}

/// That there is no way back, and what helps.
pub(super) fn none_left(proven: &Proven, gone: &[String]) -> String {
    format!(
        "there is no way back to driver {}: {}, nor another of its branch; a repository that has them \
         (`repositories`) would be one",
        version_in_words(proven),
        no_longer(gone)
    )
}

/// Whether a change would replace packages of the proven driver.
fn replaces(change: &Change, manager: Manager, proven: &Proven) -> bool {
    let Change::InstallPackages { packages, removing } = change else {
        return false;
    };
    let is_moved = |one: &PackageWish| {
        let wanted = packages.iter().find(|wish| wish.name == one.name);
        let wanted = wanted.and_then(|wish| wish.version.as_deref());
        wanted
            .zip(one.version.as_deref())
            .is_some_and(|(wanted, found)| !manager.backend().matches(wanted, found))
    };
    (proven.driver.iter()).any(|one| removing.contains(&one.name) || is_moved(one))
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
        match &receipt.going_back {
            Some(back) if gives_up(desired) => return Some(words_of_end(back)),
            Some(GoingBack { from, to, why }) => {
                return Some(format!(
                    "driver {from} has failed its proof ({why}): `install` goes back to {to}"
                ));
            }
            None => {}
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
        if !changes().any(|change| replaces(change, manager, proven)) {
            return None;
        }
        if !driver.rollback {
            return Some(format!("{fails}, it stays: `driver.rollback` is false"));
        }
        let to = version_in_words(proven);
        let goes_back =
            |to: &str| format!("{fails}, the run goes back to driver {to} (`driver.rollback`)");
        Some(match offered(&self.inner.host, manager, proven).await {
            Ok(Offered::Exact(_)) => goes_back(&to),
            Ok(Offered::Newest(newest, gone)) => format!(
                "{}, the newest of its branch: {}",
                goes_back(&newest.to_string()),
                no_longer(&gone)
            ),
            Ok(Offered::Gone(gone)) => format!("{fails}, {}", none_left(proven, &gone)),
            Err(why) => format!(
                "{} if its packages are still offered, which is not known: {why}",
                goes_back(&to)
            ),
        })
    }
}
