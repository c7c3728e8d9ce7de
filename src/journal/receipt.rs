//! The receipt: the applied changes, computed from the journal by a pure function.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{JournalLine, Policy, Record, Request, SCHEMA};
use crate::{
    change::{Change, Undo},
    config::desired::PackageSpec,
    event::Summary,
    exit::Exit,
    model::{id::StepId, node::NodeSummary},
};

/// The receipt. It can be deleted at any time, because it is computed again from the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Receipt {
    /// The schema version of the journal.
    pub schema: u32,
    /// The instance of the last run.
    pub instance_id: Option<String>,
    /// A reboot that has not happened yet, according to the journal.
    pub awaited: Option<Awaited>,
    /// The number of requested reboots since the last successful run, or since a driver failed validation.
    pub reboots: u32,
    /// The reason of each of them, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reboot_reasons: Vec<String>,
    /// The same number, without a reset when a driver fails validation.
    #[serde(default)]
    pub reboots_in_all: u32,
    /// Consecutive boots in which an `install` made no progress and did not finish.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// The reason the last run gave up.
    #[serde(default)]
    pub gave_up: Option<String>,
    /// The last validated driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validated: Option<Validated>,
    /// A driver that failed validation, while the rollback to the last validated driver is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_started: Option<RollbackStarted>,
    /// The options of the last `install`.
    pub request: Option<Request>,
    /// The package policy of the last `install`. `None` if an older version of gpu-bootstrap wrote the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// All runs, oldest first.
    pub runs: Vec<Run>,
    /// The applied changes, which can be undone, newest first.
    pub applied: Vec<AppliedChange>,
}

/// A pending reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Awaited {
    /// The boot id before the reboot.
    pub boot_id: Option<String>,
    /// The reason.
    pub why: String,
    /// Whether gpu-bootstrap reboots the machine and resumes automatically.
    pub automatic: bool,
    /// The time of the request.
    pub since: jiff::Timestamp,
}

/// A driver that has passed validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Validated {
    /// The sequence number of its record. Changes with a higher number are newer.
    pub seq: u64,
    /// The settings that select it.
    pub settings: Vec<String>,
    /// The packages of the driver, with their exact versions.
    pub driver: Vec<PackageSpec>,
}

/// A driver that has failed validation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RollbackStarted {
    /// The driver that failed.
    pub from: String,
    /// The last validated driver.
    pub to: String,
    /// The validation error.
    pub why: String,
}

/// A boot in which an `install` was started and has not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Unfinished {
    /// The boot id.
    pub boot_id: String,
    /// Whether the `install` was interrupted during package work, which the next boot may complete.
    pub in_packages: bool,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Run {
    pub id: String,
    /// The command: `install`, `upgrade` or `uninstall`.
    pub mode: String,
    /// The version of gpu-bootstrap.
    pub tool: String,
    /// The start time.
    pub started: jiff::Timestamp,
    /// The result. `None` if the run was interrupted or is still running.
    pub ended: Option<Ended>,
}

impl Run {
    /// Whether the run applied changes instead of undoing them.
    pub fn installs(&self) -> bool {
        self.mode != "uninstall"
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ended {
    /// The end time.
    pub at: jiff::Timestamp,
    /// Its exit status.
    pub exit: u8,
    /// The number of steps per outcome.
    pub summary: Summary,
    /// The node, if it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Box<NodeSummary>>,
    /// The reason an upgrade failed or did not start, if the node stays out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_failed: Option<String>,
    /// The first step that was blocked or failed, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A change that was applied, completely or in part, and not undone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AppliedChange {
    /// The sequence number of its intent in the journal.
    pub intent: u64,
    /// The time of the intent.
    pub at: jiff::Timestamp,
    /// The steps that need it.
    pub steps: Vec<StepId>,
    pub change: Change,
    /// How to undo it.
    pub undo: Undo,
    /// Whether the intent has no result: the change was interrupted, or is being applied now.
    pub open: bool,
    /// Whether the change was applied completely. A failed or interrupted change may have been applied in part.
    #[serde(default)]
    pub whole: bool,
}

/// Computes the receipt of a journal.
pub fn fold(lines: &[JournalLine]) -> Receipt {
    let mut receipt = Receipt {
        schema: SCHEMA,
        instance_id: None,
        awaited: None,
        reboots: 0,
        reboot_reasons: Vec::new(),
        reboots_in_all: 0,
        unfinished: Vec::new(),
        gave_up: None,
        validated: None,
        rollback_started: None,
        request: None,
        policy: None,
        runs: Vec::new(),
        applied: Vec::new(),
    };
    let mut applied = BTreeMap::new();
    let mut directories = Directories::default();
    for line in lines {
        directories.see(&line.record);
        step(&mut receipt, &mut applied, line);
    }
    receipt.applied = applied.into_values().rev().collect();
    for one in &mut receipt.applied {
        directories.keep(&mut one.undo);
    }
    receipt
}

/// Records which directories existed before gpu-bootstrap first wrote to them. Even if such a directory is removed and a later
/// change creates it again, an undo must not remove it.
#[derive(Default)]
struct Directories {
    /// Whether each directory existed before the first change.
    first: BTreeMap<Utf8PathBuf, bool>,
}

impl Directories {
    fn see(&mut self, record: &Record) {
        if let Record::Intent { undo, .. } = record {
            self.see_undo(undo);
        }
    }

    fn see_undo(&mut self, undo: &Undo) {
        match undo {
            Undo::RestoreFiles {
                files,
                created_directories,
                ..
            } => {
                for directory in files.iter().flat_map(|file| file.path.ancestors().skip(1)) {
                    let was_there = !created_directories.iter().any(|made| made == directory);
                    self.first.entry(directory.to_owned()).or_insert(was_there);
                }
            }
            Undo::Several { undos } => undos.iter().for_each(|undo| self.see_undo(undo)),
            _ => {}
        }
    }

    /// Makes an undo keep the directories that already existed.
    fn keep(&self, undo: &mut Undo) {
        match undo {
            Undo::RestoreFiles {
                created_directories,
                ..
            } => created_directories.retain(|directory| self.first.get(directory) != Some(&true)),
            Undo::Several { undos } => undos.iter_mut().for_each(|undo| self.keep(undo)),
            _ => {}
        }
    }
}

fn step(receipt: &mut Receipt, applied: &mut BTreeMap<u64, AppliedChange>, line: &JournalLine) {
    match &line.record {
        Record::RunStarted {
            tool,
            mode,
            instance_id,
            boot_id,
            request,
            policy,
            ..
        } => {
            receipt.runs.push(Run {
                id: line.run.clone(),
                mode: match request.upgrade && mode == "install" {
                    true => "upgrade".to_owned(),
                    false => mode.clone(),
                },
                tool: tool.clone(),
                started: line.at,
                ended: None,
            });
            receipt.instance_id.clone_from(instance_id);
            receipt.gave_up = None;
            if mode == "uninstall" {
                // After an uninstall no driver is configured, even if the undo is incomplete.
                receipt.rollback_started = None;
                receipt.validated = None;
            }
            if mode == "install" {
                receipt.request = Some(request.clone());
                if let Some(boot_id) = boot_id {
                    begin_boot(receipt, applied, boot_id);
                }
                if policy.is_some() {
                    receipt.policy.clone_from(policy);
                }
            }
            let rebooted = |awaited: &Awaited| match (&awaited.boot_id, boot_id) {
                (Some(before), Some(now)) => before != now,
                // Without boot ids this is unknown. Assume a reboot, because otherwise reboots would be requested forever.
                _ => true,
            };
            if receipt.awaited.as_ref().is_some_and(rebooted) {
                receipt.awaited = None;
            }
        }
        Record::Validated { settings, driver } => {
            receipt.validated = Some(Validated {
                seq: line.seq,
                settings: settings.clone(),
                driver: driver.clone(),
            });
        }
        Record::RollbackStarted { from, to, why } => {
            receipt.rollback_started = Some(RollbackStarted {
                from: from.clone(),
                to: to.clone(),
                why: why.clone(),
            });
            // Reset the counts, because they belong to the failed driver. `reboots_in_all` is not reset, and has its own limit.
            receipt.unfinished.clear();
            receipt.reboots = 0;
            receipt.reboot_reasons.clear();
        }
        Record::RollbackFinished { .. } => receipt.rollback_started = None,
        Record::GaveUp { why } => receipt.gave_up = Some(why.clone()),
        Record::Intent {
            steps,
            change,
            undo,
        } => {
            applied.insert(
                line.seq,
                AppliedChange {
                    intent: line.seq,
                    at: line.at,
                    steps: steps.clone(),
                    change: change.clone(),
                    undo: undo.clone(),
                    open: true,
                    whole: false,
                },
            );
        }
        Record::Applied { intent, undo }
        | Record::Interrupted { intent, undo }
        | Record::Failed { intent, undo, .. } => {
            let is_progress = applied.get(intent).is_some_and(brings_on);
            if is_progress && matches!(line.record, Record::Applied { .. }) {
                receipt.unfinished.clear();
            }
            if undo.is_nothing() {
                applied.remove(intent);
            } else if let Some(change) = applied.get_mut(intent) {
                change.undo.clone_from(undo);
                change.open = false;
                change.whole = matches!(line.record, Record::Applied { .. });
            }
        }
        Record::Reverted { intent, .. } => {
            applied.remove(intent);
        }
        Record::Reduced {
            intent,
            steps,
            undo,
            ..
        } => {
            if let Some(change) = applied.get_mut(intent) {
                change.steps.clone_from(steps);
                change.undo.clone_from(undo);
            }
        }
        // The change is still applied, and the next `uninstall` tries again.
        Record::Left { .. } => {}
        Record::RebootAwaited {
            boot_id,
            why,
            automatic,
        } => {
            receipt.reboots += 1;
            receipt.reboot_reasons.push(why.clone());
            receipt.reboots_in_all += 1;
            receipt.awaited = Some(Awaited {
                boot_id: boot_id.clone(),
                why: why.clone(),
                automatic: *automatic,
                since: line.at,
            });
        }
        Record::RunFinished {
            exit,
            summary,
            node,
            upgrade_failed,
            why,
            ..
        } => {
            if let Some(run) = receipt.runs.iter_mut().rfind(|run| run.id == line.run) {
                run.ended = Some(Ended {
                    at: line.at,
                    exit: *exit,
                    summary: *summary,
                    node: node.clone(),
                    upgrade_failed: upgrade_failed.clone(),
                    why: why.clone(),
                });
            }
            receipt.unfinished.clear();
            // An `install` with a partial result has finished its work.
            let is_install = (receipt.runs.iter()).any(|run| run.id == line.run && run.installs());
            let is_done = *exit == Exit::Ok.code() || (is_install && *exit == Exit::Partial.code());
            if is_done {
                receipt.reboots = 0;
                receipt.reboot_reasons.clear();
                receipt.reboots_in_all = 0;
                receipt.awaited = None;
            }
        }
    }
}

/// Counts each boot once. Interrupted package work belongs to the previous boot.
fn begin_boot(receipt: &mut Receipt, applied: &BTreeMap<u64, AppliedChange>, boot_id: &str) {
    if receipt
        .unfinished
        .iter()
        .any(|boot| boot.boot_id == boot_id)
    {
        return;
    }
    if let Some(before) = receipt.unfinished.last_mut() {
        let in_packages = |one: &AppliedChange| one.open && is_package_work(&one.change);
        before.in_packages |= applied.values().any(in_packages);
    }
    receipt.unfinished.push(Unfinished {
        boot_id: boot_id.to_owned(),
        in_packages: false,
    });
}

const fn is_package_work(change: &Change) -> bool {
    matches!(
        change,
        Change::InstallPackages { .. } | Change::RepairPackages | Change::BuildModule { .. }
    )
}

/// Step names of the changes that let a run resume after a reboot.
const OWN_STEPS: [&str; 2] = ["resume", "boot-guard"];

/// Returns `true` if the change makes persistent progress. Changes that are repeated in each boot (loading a module, starting a
/// unit, the changes of [`OWN_STEPS`]) do not count.
fn brings_on(applied: &AppliedChange) -> bool {
    let own = |step: &StepId| OWN_STEPS.contains(&step.as_str());
    let persistent = matches!(
        applied.change,
        Change::WriteFile { .. }
            | Change::AddRepository { .. }
            | Change::EnableStream { .. }
            | Change::HoldPackages { .. }
    );
    !applied.steps.iter().all(own) && (persistent || is_package_work(&applied.change))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{JournalLine, SCHEMA, Undo, fold};

    const DIRECTORY: &str = "/etc/modprobe.d";

    /// A change that writes a file in the directory, and creates the directory if it does not exist.
    fn writes(seq: u64, was_there: bool) -> JournalLine {
        let made: &[&str] = if was_there { &[] } else { &[DIRECTORY] };
        let path = format!("{DIRECTORY}/gpu-bootstrap.conf");
        let line = json!({
            "schema": SCHEMA, "seq": seq, "at": "2026-01-01T00:00:00Z", "run": "r",
            "record": {
                "kind": "intent", "steps": ["a"],
                "change": {"kind": "write-file", "path": path, "content": "", "mode": 420},
                "undo": {
                    "undo": "restore-files", "created-directories": made,
                    "files": [{"path": path, "before": null, "after": {"is": "file", "sha256": "0"}}],
                },
            },
        });
        serde_json::from_value(line).expect("a record")
    }

    /// The number of applied changes that would remove the directory.
    fn removing(lines: &[JournalLine]) -> usize {
        let removes = |undo: &Undo| match undo {
            Undo::RestoreFiles {
                created_directories,
                ..
            } => created_directories
                .iter()
                .any(|directory| directory == DIRECTORY),
            other => panic!("{other:?}"),
        };
        let applied = fold(lines).applied;
        applied.iter().filter(|one| removes(&one.undo)).count()
    }

    #[test]
    fn reboot_is_awaited_until_the_boot_id_changes() {
        let line = |seq: u64, record: serde_json::Value| -> JournalLine {
            let line = json!({
                "schema": SCHEMA, "seq": seq, "at": "2026-01-01T00:00:00Z", "run": "r", "record": record,
            });
            serde_json::from_value(line).expect("a record")
        };
        let awaits = |boot: Option<&str>| {
            line(
                0,
                json!({"kind": "reboot-awaited", "boot-id": boot, "why": "x", "automatic": true}),
            )
        };
        let starts = |boot: Option<&str>| {
            let request = json!({
                "profile": null, "config": [], "set": [], "image": false, "assume-gpus": [], "reboot": true,
                "lock-timeout-seconds": null,
            });
            line(
                1,
                json!({
                    "kind": "run-started", "tool": "0.1.0", "mode": "install", "instance-id": null,
                    "boot-id": boot, "request": request,
                }),
            )
        };
        for (before, now, is_awaited) in [
            (Some("b-1"), Some("b-1"), true),
            (Some("b-1"), Some("b-2"), false),
            (None, Some("b-2"), false),
            (Some("b-1"), None, false),
        ] {
            let receipt = fold(&[awaits(before), starts(now)]);
            assert_eq!(receipt.awaited.is_some(), is_awaited, "{before:?} {now:?}");
        }
    }

    /// The directory may be removed between two runs.
    #[test]
    fn existing_directory_is_never_removed() {
        assert_eq!(removing(&[writes(0, true), writes(1, false)]), 0);
        // The directory is ours from the first change on.
        assert_eq!(removing(&[writes(0, false), writes(1, true)]), 1);
        assert_eq!(removing(&[writes(0, false), writes(1, false)]), 2);
        // An existing directory is also kept if the first change was undone in the meantime.
        let reverted = json!({
            "schema": SCHEMA, "seq": 1, "at": "2026-01-01T00:00:00Z", "run": "r",
            "record": {"kind": "reverted", "intent": 0, "what": "x"},
        });
        let reverted = serde_json::from_value(reverted).expect("a record");
        assert_eq!(removing(&[writes(0, true), reverted, writes(2, false)]), 0);
    }
}
