//! The rollback messages of `plan`.

use super::{
    Session,
    available::{Available, no_longer, none_left, offered, version_in_words},
    job::Job,
    rollback::{gives_up, words_of_end},
};
use crate::{
    change::Change,
    config::desired::{Manager, PackageSpec},
    facts::detection::{carries_driver, is_driver_part},
    journal::{Journal, Receipt, RollbackStarted, Validated, fold},
    step::Assessment,
};

/// Whether a change would remove packages of the validated driver or install other versions of them.
fn replaces(change: &Change, manager: Manager, validated: &Validated) -> bool {
    let Change::InstallPackages {
        packages, removing, ..
    } = change
    else {
        return false;
    };
    let is_moved = |one: &PackageSpec| {
        let wanted = packages.iter().find(|spec| spec.name == one.name);
        let wanted = wanted.and_then(|spec| spec.version.as_deref());
        wanted
            .zip(one.version.as_deref())
            .is_some_and(|(wanted, found)| !manager.backend().matches(wanted, found))
    };
    (validated.driver.iter()).any(|one| removing.contains(&one.name) || is_moved(one))
}

/// Whether a change would remove packages of any driver.
fn replaces_a_driver(change: &Change) -> bool {
    matches!(change, Change::InstallPackages { removing, .. }
        if removing.iter().any(|name| carries_driver(name) || is_driver_part(name)))
}

/// The changes that the steps need now.
fn needed(jobs: &[Job]) -> impl Iterator<Item = &Change> {
    let needed = jobs.iter().filter_map(|job| match &job.answer {
        Some(Ok(Assessment::Needs { changes, .. })) => Some(changes),
        _ => None,
    });
    needed.flatten()
}

impl Session {
    /// Returns the reason that the previous driver could not be restored if the new one fails. `None` if it can be restored, if
    /// the driver is not replaced, or if the settings do not require it. Another version of the same branch is sufficient,
    /// because archives keep only the newest one.
    ///
    /// A copy of the packages that is downloaded before the first change is not a way back: if a source has them, the rollback
    /// can use the source, and if no source has them, they cannot be downloaded. The apt cache does not help either, because apt
    /// only installs versions from its package lists.
    pub(super) async fn no_way_back(&self, jobs: &[Job], receipt: &Receipt) -> Option<String> {
        let desired = self.inner.desired.as_ref()?;
        desired.driver.as_ref().filter(|driver| driver.rollback)?;
        let manager = desired.packages.manager;
        let Some(validated) = &receipt.validated else {
            return needed(jobs).any(replaces_a_driver).then(|| {
                "gpu-bootstrap has not validated the installed driver (`gpu-bootstrap install` with \
                 the current driver does)"
                    .to_owned()
            });
        };
        if !needed(jobs).any(|change| replaces(change, manager, validated)) {
            return None;
        }
        match offered(&self.inner.host, &desired.packages, validated).await {
            Ok(Available::Exact(_) | Available::Newest(..)) => None,
            Ok(Available::Gone(gone)) => Some(none_left(validated, &gone)),
            Err(why) => Some(format!(
                "it is unknown whether the packages of driver {} are still available: {why}",
                version_in_words(validated)
            )),
        }
    }

    /// Describes the rollback that `install` continues, or the rollback that follows if the new driver
    /// fails validation. `None` if there is no rollback to describe.
    pub(super) async fn rollback_in_words(&self, jobs: &[Job]) -> Option<String> {
        // The search for obsolete changes already reports an unreadable journal.
        let receipt = fold(&Journal::read(&self.inner.host).ok()?.lines);
        let desired = self.inner.desired.as_ref().filter(|one| !one.image)?;
        match &receipt.rollback_started {
            Some(back) if gives_up(desired) => return Some(words_of_end(back)),
            Some(RollbackStarted { from, to, why }) => {
                return Some(format!(
                    "driver {from} failed validation ({why}): `install` rolls back to {to}"
                ));
            }
            None => {}
        }
        let driver = desired.driver.as_ref()?;
        let manager = desired.packages.manager;
        let fails = "if the new driver fails validation";
        let Some(validated) = &receipt.validated else {
            return needed(jobs).any(replaces_a_driver).then(|| {
                format!(
                    "{fails}, no rollback is possible, because gpu-bootstrap has not validated the \
                     installed driver"
                )
            });
        };
        if !needed(jobs).any(|change| replaces(change, manager, validated)) {
            return None;
        }
        if !driver.rollback {
            return Some(format!(
                "{fails}, it stays installed, because `driver.rollback` is false"
            ));
        }
        let to = version_in_words(validated);
        let rolls_back =
            |to: &str| format!("{fails}, the run rolls back to driver {to} (`driver.rollback`)");
        Some(
            match offered(&self.inner.host, &desired.packages, validated).await {
                Ok(Available::Exact(_)) => rolls_back(&to),
                Ok(Available::Newest(newest, gone)) => format!(
                    "{}, the newest of its branch: {}",
                    rolls_back(&newest.to_string()),
                    no_longer(&gone)
                ),
                Ok(Available::Gone(gone)) => format!("{fails}, {}", none_left(validated, &gone)),
                Err(why) => format!(
                    "{} if its packages are still available, which is unknown: {why}",
                    rolls_back(&to)
                ),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_is_replaced_by_another_version_or_by_removal() {
        let spec = |name: &str, version: Option<&str>| PackageSpec {
            name: name.to_owned(),
            version: version.map(str::to_owned),
        };
        let validated = Validated {
            seq: 1,
            settings: vec![],
            driver: vec![spec("nvidia-driver", Some("580.95.05-1"))],
        };
        let replaced = |packages: &[PackageSpec], removing: &[&str]| {
            let change = Change::InstallPackages {
                packages: packages.to_vec(),
                removing: removing.iter().map(ToString::to_string).collect(),
                later: false,
            };
            replaces(&change, Manager::Apt, &validated)
        };
        assert!(!replaced(
            &[spec("nvidia-driver", Some("580.95.05-1"))],
            &[]
        ));
        assert!(!replaced(&[spec("nvidia-driver", None)], &[]));
        assert!(!replaced(&[spec("docker.io", Some("1"))], &["podman"]));
        assert!(replaced(&[spec("nvidia-driver", Some("590.44.01-1"))], &[]));
        assert!(replaced(&[], &["nvidia-driver"]));
    }
}
