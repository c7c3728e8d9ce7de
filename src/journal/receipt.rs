//! What stands now: a pure fold of the journal.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Line, Record, Request, SCHEMA};
use crate::{
    change::{Change, Undo},
    event::Summary,
    exit::Exit,
    model::id::StepId,
};

/// What stands now. It can be deleted at any time: the journal makes it anew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Receipt {
    /// The journal's schema.
    pub schema: u32,
    /// The instance that the last run ran on.
    pub instance_id: Option<String>,
    /// A reboot that has not happened yet, as far as the journal knows.
    pub awaited: Option<Awaited>,
    /// Reboots awaited since the last run that ended well.
    pub reboots: u32,
    /// What the last `install` was asked for.
    pub request: Option<Request>,
    /// All runs, oldest first.
    pub runs: Vec<Run>,
    /// The changes that stand and can be undone, newest first.
    pub standing: Vec<Standing>,
}

/// A reboot that is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Awaited {
    /// The boot that has to end.
    pub boot_id: Option<String>,
    /// Why.
    pub why: String,
    /// This program reboots and goes on by itself.
    pub automatic: bool,
    /// Since when.
    pub since: jiff::Timestamp,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Run {
    /// Its id.
    pub id: String,
    /// `install` or `uninstall`.
    pub mode: String,
    /// The version that ran.
    pub tool: String,
    /// When it began.
    pub started: jiff::Timestamp,
    /// How it ended; `None`: it was cut off, or goes on.
    pub ended: Option<Ended>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Ended {
    /// When.
    pub at: jiff::Timestamp,
    /// Its exit status.
    pub exit: u8,
    /// Outcomes, counted.
    pub summary: Summary,
}

/// A change that stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// The number of its intent in the journal.
    pub intent: u64,
    /// When.
    pub at: jiff::Timestamp,
    /// For which steps.
    pub steps: Vec<StepId>,
    /// Which.
    pub change: Change,
    /// How it is undone.
    pub undo: Undo,
    /// The intent has no end: it was cut off, or it is being applied right now.
    pub open: bool,
    /// It was applied to its end; one that failed or was cut off may have done nothing or a part.
    #[serde(default)]
    pub whole: bool,
}

/// Folds a journal.
#[must_use]
pub fn fold(lines: &[Line]) -> Receipt {
    let mut receipt = Receipt {
        schema: SCHEMA,
        instance_id: None,
        awaited: None,
        reboots: 0,
        request: None,
        runs: Vec::new(),
        standing: Vec::new(),
    };
    let mut standing = BTreeMap::new();
    for line in lines {
        step(&mut receipt, &mut standing, line);
    }
    receipt.standing = standing.into_values().rev().collect();
    receipt
}

fn step(receipt: &mut Receipt, standing: &mut BTreeMap<u64, Standing>, line: &Line) {
    match &line.record {
        Record::RunStarted {
            tool,
            mode,
            instance_id,
            boot_id,
            request,
        } => {
            receipt.runs.push(Run {
                id: line.run.clone(),
                mode: mode.clone(),
                tool: tool.clone(),
                started: line.at,
                ended: None,
            });
            receipt.instance_id.clone_from(instance_id);
            if mode == "install" {
                receipt.request = Some(request.clone());
            }
            let rebooted = |awaited: &Awaited| match (&awaited.boot_id, boot_id) {
                (Some(before), Some(now)) => before != now,
                // Without boot ids nobody can tell; asking for a reboot for ever would be worse.
                _ => true,
            };
            if receipt.awaited.as_ref().is_some_and(rebooted) {
                receipt.awaited = None;
            }
        }
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
        // It still stands; the next `uninstall` tries again.
        Record::Left { .. } => {}
        Record::RebootAwaited {
            boot_id,
            why,
            automatic,
        } => {
            receipt.reboots += 1;
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
            if *exit == Exit::Ok.code() {
                receipt.reboots = 0;
                receipt.awaited = None;
            }
        }
    }
}
