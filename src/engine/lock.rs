//! Lock files: the packages of a validated node according to the journal, and the undo of a run that a lock file blocks after
//! its first change.

use std::collections::BTreeSet;

use super::{
    EngineError, Session,
    available::version,
    job::{End, Job},
    ledger::Ledger,
    maintenance::is_of_maintenance,
    managed::ours,
    resume,
    rollback::is_replaced,
    uninstall::{UndoOutcome, group, undo_groups},
};
use crate::{
    change::{Change, ChangeError, Undo, packages::LOCK_REASONS},
    event::Outcome,
    exit::Exit,
    host::Host,
    journal::{AppliedChange, Journal, Receipt, Validated, fold},
    model::version::DriverVersion,
};

/// The packages of a validated node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValidatedNode {
    /// Names of the packages that gpu-bootstrap selected, and of those that its transactions installed or changed. Some may no
    /// longer be installed.
    pub packages: BTreeSet<String>,
    /// The last validated driver. `None` if no driver is configured.
    pub driver: Option<Validated>,
    /// The version of this driver.
    pub version: Option<DriverVersion>,
}

/// Returns the packages of a validated node.
///
/// # Errors
/// If the journal cannot be read, or if the last `install` did not finish successfully.
pub fn validated_node(host: &Host) -> Result<ValidatedNode, EngineError> {
    let receipt = fold(&Journal::read(host)?.lines);
    if let Some((why, hint)) = not_validated(&receipt) {
        let what = format!("create a lock file: {why}");
        return Err(ChangeError::blocked("not-validated", what)
            .advice(hint)
            .into());
    }
    let mut packages = ours(&receipt.applied).packages;
    for applied in &receipt.applied {
        if let Change::InstallPackages {
            packages: specs, ..
        } = &applied.change
        {
            packages.extend(specs.iter().map(|spec| spec.name.clone()));
        }
        if let Undo::Packages {
            effects: Some(effects),
            ..
        } = &applied.undo
        {
            packages.extend(effects.moved.iter().map(|spec| spec.name.clone()));
        }
    }
    let driver = receipt.validated;
    packages.extend(
        driver
            .iter()
            .flat_map(|driver| &driver.driver)
            .map(|spec| spec.name.clone()),
    );
    Ok(ValidatedNode {
        packages,
        version: driver.as_ref().and_then(|driver| version(&driver.driver)),
        driver,
    })
}

/// Returns the reason that the node is not validated, and the remedy.
fn not_validated(receipt: &Receipt) -> Option<(String, &'static str)> {
    const INSTALL: &str = "run `gpu-bootstrap install`, then create the lock file";
    let last = (receipt.runs.last()).filter(|_| !receipt.applied.is_empty());
    let Some(last) = last else {
        return Some((
            "gpu-bootstrap has installed nothing on this machine".to_owned(),
            INSTALL,
        ));
    };
    if !last.installs() {
        return Some((
            "the last run undid the changes of gpu-bootstrap".to_owned(),
            INSTALL,
        ));
    }
    if receipt
        .request
        .as_ref()
        .is_some_and(|request| request.image)
    {
        let hint = "create the lock file on an instance of this image, after its first boot";
        return Some((
            "this machine is an image, which is validated at its first boot".to_owned(),
            hint,
        ));
    }
    let upgrades = (receipt.request.as_ref()).is_some_and(|request| request.upgrade);
    let hint = match upgrades {
        true => "run `gpu-bootstrap upgrade --as-installed --reboot`, then create the lock file",
        false => "run `gpu-bootstrap install --reboot`, then create the lock file",
    };
    match &last.ended {
        None => Some(("the last run has not finished".to_owned(), hint)),
        Some(ended) if ended.exit == Exit::RebootRequired.code() => {
            Some(("a reboot is pending".to_owned(), hint))
        }
        Some(ended) if ended.exit != Exit::Ok.code() => {
            let why = format!("the last run exited with status {}", ended.exit);
            Some((
                why,
                "fix the failure that `gpu-bootstrap status` shows, and run `gpu-bootstrap install`",
            ))
        }
        Some(_)
            if receipt.rollback_started.is_some() || receipt.applied.iter().any(|one| one.open) =>
        {
            Some(("the last run has not finished".to_owned(), hint))
        }
        Some(_) => (receipt.validated.as_ref())
            .filter(|validated| is_replaced(receipt, validated))
            .map(|_| {
                (
                    "the driver was replaced since its validation".to_owned(),
                    INSTALL,
                )
            }),
    }
}

impl Session {
    /// Undoes the changes of a run whose first package transaction the lock file blocks, such as new repositories, which had to
    /// be added to find the packages. Returns the exit status of the run.
    pub(super) async fn undo_blocked_by_lock(
        &self,
        ledger: &Ledger,
        first: u64,
        exit: Exit,
        jobs: &mut [Job],
        notes: &mut Vec<String>,
    ) -> Result<Exit, EngineError> {
        let is_blocked = |job: &Job| {
            let reason = job.ended.as_ref().and_then(|end| end.reason);
            reason.is_some_and(|reason| LOCK_REASONS.contains(&reason))
        };
        let receipt = ledger.journal.receipt();
        let of_run: Vec<AppliedChange> = (receipt.applied.into_iter())
            // `end_maintenance` decides whether the node returns to service.
            .filter(|one| {
                one.intent >= first && !resume::is_of_unit(one) && !is_of_maintenance(one)
            })
            .collect();
        let has_packages = (of_run.iter()).any(|one| {
            matches!(
                one.undo,
                Undo::Packages {
                    effects: Some(_),
                    ..
                }
            )
        });
        if !jobs.iter().any(is_blocked) || of_run.is_empty() || has_packages {
            return Ok(exit);
        }
        let mut groups: Vec<_> = group(of_run)
            .into_iter()
            .map(|group| (group, UndoOutcome::NotTried, 0.0))
            .collect();
        undo_groups(&self.tools, ledger, &mut groups).await?;
        self.inner.invalidate();
        if !groups
            .iter()
            .all(|(_, outcome, _)| matches!(outcome, UndoOutcome::Gone(_)))
        {
            let note = "some changes before the blocked package transaction are still applied; run `gpu-bootstrap uninstall` to \
                        undo them";
            self.tools.note(notes, note.to_owned());
            return Ok(exit);
        }
        // The blocked step may also have added its repository.
        for job in jobs.iter_mut() {
            job.applied = 0;
            job.earlier.clear();
            if !job.has(Outcome::Changed) {
                continue;
            }
            let why =
                "its changes are undone, because the versions of the lock file cannot be installed";
            job.ended = Some(End::new(Outcome::NotRun, why.to_owned()));
        }
        Ok(match exit {
            Exit::StepFailed => Exit::Blocked,
            exit => exit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Ended, Run};

    fn receipt(mode: &str, exit: Option<u8>) -> Receipt {
        let mut receipt = fold(&[]);
        receipt.runs.push(Run {
            id: "run".to_owned(),
            mode: mode.to_owned(),
            tool: "0.1.0".to_owned(),
            started: jiff::Timestamp::UNIX_EPOCH,
            ended: exit.map(|exit| Ended {
                at: jiff::Timestamp::UNIX_EPOCH,
                exit,
                summary: crate::event::Summary::default(),
                node: None,
                upgrade_failed: None,
                why: None,
            }),
        });
        receipt.applied.push(AppliedChange {
            intent: 1,
            at: jiff::Timestamp::UNIX_EPOCH,
            steps: Vec::new(),
            change: Change::RefreshRepositories,
            undo: Undo::Nothing { why: String::new() },
            open: false,
            whole: true,
        });
        receipt
    }

    #[test]
    fn only_a_successful_installation_is_locked() {
        assert!(
            not_validated(&fold(&[])).is_some_and(|(why, _)| why.contains("installed nothing"))
        );
        for (mode, exit, said) in [
            ("install", Some(0), None),
            ("install", None, Some("has not finished")),
            ("install", Some(8), Some("a reboot is pending")),
            ("install", Some(6), Some("exited with status 6")),
            ("uninstall", Some(7), Some("undid the changes")),
        ] {
            let found = not_validated(&receipt(mode, exit)).map(|(why, _)| why);
            match said {
                None => assert_eq!(found, None),
                Some(said) => assert!(
                    found.is_some_and(|why| why.contains(said)),
                    "{mode} {exit:?}"
                ),
            }
        }
    }
}
