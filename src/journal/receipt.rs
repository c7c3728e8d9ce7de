//! The receipt: the standing changes, computed from the journal by a pure function.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use super::{JournalLine, Policy, Record, Request, SCHEMA};
use crate::{
    change::{Change, Undo},
    config::desired::PackageWish,
    event::Summary,
    exit::Exit,
    model::id::StepId,
};

/// The receipt. It can be deleted at any time: it is computed again from the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Receipt {
    /// The schema version of the journal.
    pub schema: u32,
    /// The instance of the last run.
    pub instance_id: Option<String>,
    /// A reboot that, according to the journal, has not happened yet.
    pub awaited: Option<Awaited>,
    /// The number of reboots awaited since the last run that ended well, or since a driver failed its
    /// proof.
    pub reboots: u32,
    /// The same number, where a driver that failed validation does not end the count.
    #[serde(default)]
    pub reboots_in_all: u32,
    /// Boots in a row in which an `install` made no progress and did not finish.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Why the last run gave up.
    #[serde(default)]
    pub gave_up: Option<String>,
    /// The driver that was proven last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<Proven>,
    /// A driver that has failed, while the rollback to the one before has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub going_back: Option<GoingBack>,
    /// The options of the last `install`.
    pub request: Option<Request>,
    /// How the last `install` changed packages; `None` if an older version of this program wrote the
    /// journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// All runs, oldest first.
    pub runs: Vec<Run>,
    /// The standing changes, which can be undone, newest first.
    pub standing: Vec<Standing>,
}

/// An awaited reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Awaited {
    /// The boot id before the reboot.
    pub boot_id: Option<String>,
    /// The reason.
    pub why: String,
    /// Whether this program reboots the machine and resumes by itself.
    pub automatic: bool,
    /// The time since when it is awaited.
    pub since: jiff::Timestamp,
}

/// A driver that has passed every proof.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Proven {
    /// The sequence number of its record: changes with a higher one came later.
    pub seq: u64,
    /// The settings that name it.
    pub settings: Vec<String>,
    /// The packages of the driver, with their exact versions.
    pub driver: Vec<PackageWish>,
}

/// A driver that has failed validation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GoingBack {
    /// That driver.
    pub from: String,
    /// The driver that was proven before.
    pub to: String,
    /// How it failed.
    pub why: String,
}

/// A boot that ended before an `install` did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Unfinished {
    /// The boot.
    pub boot_id: String,
    /// That `install` ended in the middle of package work, which the next boot may complete.
    pub in_packages: bool,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Run {
    /// Its id.
    pub id: String,
    /// `install` or `uninstall`.
    pub mode: String,
    /// The version of this program.
    pub tool: String,
    /// The time when it started.
    pub started: jiff::Timestamp,
    /// How it ended; `None` if it was interrupted or is still running.
    pub ended: Option<Ended>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ended {
    /// The time.
    pub at: jiff::Timestamp,
    /// Its exit status.
    pub exit: u8,
    /// The outcomes, counted.
    pub summary: Summary,
}

/// A standing change: one that was made and not undone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// The sequence number of its intent in the journal.
    pub intent: u64,
    /// The time.
    pub at: jiff::Timestamp,
    /// The steps that need it.
    pub steps: Vec<StepId>,
    /// The change.
    pub change: Change,
    /// How to undo it.
    pub undo: Undo,
    /// Whether the intent has no end: it was interrupted, or is being applied now.
    pub open: bool,
    /// Whether it was applied completely; one that failed or was interrupted may have done nothing
    /// or a part.
    #[serde(default)]
    pub whole: bool,
}

/// Computes the receipt of a journal.
#[must_use]
pub fn fold(lines: &[JournalLine]) -> Receipt {
    let mut receipt = Receipt {
        schema: SCHEMA,
        instance_id: None,
        awaited: None,
        reboots: 0,
        reboots_in_all: 0,
        unfinished: Vec::new(),
        gave_up: None,
        proven: None,
        going_back: None,
        request: None,
        policy: None,
        runs: Vec::new(),
        standing: Vec::new(),
    };
    let mut standing = BTreeMap::new();
    let mut folders = Folders::default();
    for line in lines {
        folders.see(&line.record);
        step(&mut receipt, &mut standing, line);
    }
    receipt.standing = standing.into_values().rev().collect();
    for one in &mut receipt.standing {
        folders.keep(&mut one.undo);
    }
    receipt
}

/// The folders of which the journal tells that they were there before this program wrote into them, by the first change
/// that did. Somebody may take one away, and a later change makes it again: that does not make it ours.
#[derive(Default)]
struct Folders {
    /// Whether each was there.
    first: BTreeMap<Utf8PathBuf, bool>,
}

impl Folders {
    fn see(&mut self, record: &Record) {
        if let Record::Intent { undo, .. } = record {
            self.see_undo(undo);
        }
    }

    fn see_undo(&mut self, undo: &Undo) {
        match undo {
            Undo::RestoreFiles {
                files,
                created_folders,
                ..
            } => {
                for folder in files.iter().flat_map(|file| file.path.ancestors().skip(1)) {
                    let was_there = !created_folders.iter().any(|made| made == folder);
                    self.first.entry(folder.to_owned()).or_insert(was_there);
                }
            }
            Undo::Several { undos } => undos.iter().for_each(|undo| self.see_undo(undo)),
            _ => {}
        }
    }

    /// Takes the folders that were there out of what an undo removes.
    fn keep(&self, undo: &mut Undo) {
        match undo {
            Undo::RestoreFiles {
                created_folders, ..
            } => created_folders.retain(|folder| self.first.get(folder) != Some(&true)),
            Undo::Several { undos } => undos.iter_mut().for_each(|undo| self.keep(undo)),
            _ => {}
        }
    }
}

fn step(receipt: &mut Receipt, standing: &mut BTreeMap<u64, Standing>, line: &JournalLine) {
    match &line.record {
        Record::RunStarted {
            tool,
            mode,
            instance_id,
            boot_id,
            request,
            policy,
        } => {
            receipt.runs.push(Run {
                id: line.run.clone(),
                mode: mode.clone(),
                tool: tool.clone(),
                started: line.at,
                ended: None,
            });
            receipt.instance_id.clone_from(instance_id);
            receipt.gave_up = None;
            if mode == "uninstall" {
                // Nothing of it is wanted any more, even if the undo ends in part.
                receipt.going_back = None;
                receipt.proven = None;
            }
            if mode == "install" {
                receipt.request = Some(request.clone());
                if let Some(boot_id) = boot_id {
                    begin_boot(receipt, standing, boot_id);
                }
                if policy.is_some() {
                    receipt.policy.clone_from(policy);
                }
            }
            let rebooted = |awaited: &Awaited| match (&awaited.boot_id, boot_id) {
                (Some(before), Some(now)) => before != now,
                // Without boot ids it is unknown; requesting reboots forever would be worse.
                _ => true,
            };
            if receipt.awaited.as_ref().is_some_and(rebooted) {
                receipt.awaited = None;
            }
        }
        Record::Proven { settings, driver } => {
            receipt.proven = Some(Proven {
                seq: line.seq,
                settings: settings.clone(),
                driver: driver.clone(),
            });
        }
        Record::GoingBack { from, to, why } => {
            receipt.going_back = Some(GoingBack {
                from: from.clone(),
                to: to.clone(),
                why: why.clone(),
            });
            // The boots and reboots so far were for the driver that failed; their sum has a bound, too.
            receipt.unfinished.clear();
            receipt.reboots = 0;
        }
        Record::WentBack { .. } => receipt.going_back = None,
        Record::GaveUp { why } => receipt.gave_up = Some(why.clone()),
        Record::Intent {
            steps,
            change,
            undo,
        } => {
            standing.insert(
                line.seq,
                Standing {
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
            let is_progress = standing.get(intent).is_some_and(brings_on);
            if is_progress && matches!(line.record, Record::Applied { .. }) {
                receipt.unfinished.clear();
            }
            if undo.is_nothing() {
                standing.remove(intent);
            } else if let Some(change) = standing.get_mut(intent) {
                change.undo.clone_from(undo);
                change.open = false;
                change.whole = matches!(line.record, Record::Applied { .. });
            }
        }
        Record::Reverted { intent, .. } => {
            standing.remove(intent);
        }
        Record::Reduced {
            intent,
            steps,
            undo,
            ..
        } => {
            if let Some(change) = standing.get_mut(intent) {
                change.steps.clone_from(steps);
                change.undo.clone_from(undo);
            }
        }
        // It is still standing; the next `uninstall` tries again.
        Record::Left { .. } => {}
        Record::RebootAwaited {
            boot_id,
            why,
            automatic,
        } => {
            receipt.reboots += 1;
            receipt.reboots_in_all += 1;
            receipt.awaited = Some(Awaited {
                boot_id: boot_id.clone(),
                why: why.clone(),
                automatic: *automatic,
                since: line.at,
            });
        }
        Record::RunFinished { exit, summary } => {
            if let Some(run) = receipt.runs.iter_mut().rfind(|run| run.id == line.run) {
                run.ended = Some(Ended {
                    at: line.at,
                    exit: *exit,
                    summary: *summary,
                });
            }
            receipt.unfinished.clear();
            // An `install` that left something over has finished its work.
            let is_install =
                (receipt.runs.iter()).any(|run| run.id == line.run && run.mode == "install");
            let is_done = *exit == Exit::Ok.code() || (is_install && *exit == Exit::Partial.code());
            if is_done {
                receipt.reboots = 0;
                receipt.reboots_in_all = 0;
                receipt.awaited = None;
            }
        }
    }
}

/// Counts a boot, once. Work on packages that was under way belongs to the boot before it.
fn begin_boot(receipt: &mut Receipt, standing: &BTreeMap<u64, Standing>, boot_id: &str) {
    if receipt
        .unfinished
        .iter()
        .any(|boot| boot.boot_id == boot_id)
    {
        return;
    }
    if let Some(before) = receipt.unfinished.last_mut() {
        let in_packages = |one: &Standing| one.open && is_package_work(&one.change);
        before.in_packages |= standing.values().any(in_packages);
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

/// The names under which a run that continues by itself records what it needs for that.
const OWN_STEPS: [&str; 2] = ["resume", "boot-guard"];

/// Whether the change brings the machine closer to its end in a way that a boot does not take back:
/// what is done in each boot again (a module is loaded, a unit is started) does not count.
fn brings_on(standing: &Standing) -> bool {
    let own = |step: &StepId| OWN_STEPS.contains(&step.as_str());
    let lasting = matches!(
        standing.change,
        Change::WriteFile { .. }
            | Change::AddRepository { .. }
            | Change::EnableStream { .. }
            | Change::HoldPackages { .. }
    );
    !standing.steps.iter().all(own) && (lasting || is_package_work(&standing.change))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{JournalLine, SCHEMA, Undo, fold};

    const FOLDER: &str = "/etc/modprobe.d";

    /// A change that writes a file in the folder, and makes the folder if it was not there.
    fn writes(seq: u64, was_there: bool) -> JournalLine {
        let made: &[&str] = if was_there { &[] } else { &[FOLDER] };
        let path = format!("{FOLDER}/gpu-bootstrap.conf");
        let line = json!({
            "schema": SCHEMA, "seq": seq, "at": "2026-01-01T00:00:00Z", "run": "r",
            "record": {
                "kind": "intent", "steps": ["a"],
                "change": {"kind": "write-file", "path": path, "content": "", "mode": 420},
                "undo": {
                    "undo": "restore-files", "created-folders": made,
                    "files": [{"path": path, "before": null, "after": {"is": "file", "sha256": "0"}}],
                },
            },
        });
        serde_json::from_value(line).expect("a record")
    }

    /// How many of the changes that stand would remove the folder.
    fn removing(lines: &[JournalLine]) -> usize {
        let removes = |undo: &Undo| match undo {
            Undo::RestoreFiles {
                created_folders, ..
            } => created_folders.iter().any(|folder| folder == FOLDER),
            other => panic!("{other:?}"),
        };
        let standing = fold(lines).standing;
        standing.iter().filter(|one| removes(&one.undo)).count()
    }

    /// Somebody may take a folder away between two runs.
    #[test]
    fn a_folder_that_was_there_before_the_first_change_is_never_removed() {
        assert_eq!(removing(&[writes(0, true), writes(1, false)]), 0);
        // It is ours from the first change on.
        assert_eq!(removing(&[writes(0, false), writes(1, true)]), 1);
        assert_eq!(removing(&[writes(0, false), writes(1, false)]), 2);
        // Also if what stands of it was undone in between.
        let reverted = json!({
            "schema": SCHEMA, "seq": 1, "at": "2026-01-01T00:00:00Z", "run": "r",
            "record": {"kind": "reverted", "intent": 0, "what": "x"},
        });
        let reverted = serde_json::from_value(reverted).expect("a record");
        assert_eq!(removing(&[writes(0, true), reverted, writes(2, false)]), 0);
    }
}
