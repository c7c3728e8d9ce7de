//! The result of a run, for reports.

use serde::Serialize;

use crate::{
    check::Finding,
    event::{Outcome, Summary},
    exit::Exit,
    model::id::StepId,
};

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Assess only.
    Check,
    /// Assess, and say what would be done.
    Plan,
    /// Apply the changes.
    Install,
    /// Undo the changes.
    Uninstall,
}

impl Mode {
    /// Its word on the command line and in events.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Plan => "plan",
            Self::Install => "install",
            Self::Uninstall => "uninstall",
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// What it was for.
    pub mode: Mode,
    /// Its id.
    pub run: String,
    /// The exit status that it means.
    pub exit: Exit,
    /// Every step, in the order of the list.
    pub steps: Vec<StepReport>,
    /// Only after `check`: steps and checks as one list.
    pub findings: Vec<Finding>,
    /// Notes that belong to no step.
    pub notes: Vec<String>,
    /// A reboot that is awaited.
    pub reboot: Option<Reboot>,
    /// What could not be undone, and why: after `uninstall`, and after `install` where no setting wants
    /// it any more.
    pub left: Vec<String>,
    /// How long it took.
    pub seconds: f64,
}

impl RunReport {
    /// Outcomes, counted.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary::of(self.steps.iter().map(|step| step.outcome))
    }
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Its name.
    pub id: StepId,
    /// For people.
    pub title: String,
    /// How.
    pub outcome: Outcome,
    pub why: String,
    /// What would help.
    pub hint: Option<String>,
    /// The chain of causes of a failure, outermost first.
    pub causes: Vec<String>,
    /// A stable word for a failure.
    pub reason: Option<&'static str>,
    /// How long it took, waiting for locks included.
    pub seconds: f64,
    /// What it needs (`plan`), or did (`install`).
    pub changes: Vec<ChangeReport>,
}

/// A change of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangeReport {
    /// The verb.
    pub kind: &'static str,
    /// In words.
    pub summary: String,
    /// A unified diff, or the package manager's simulation.
    pub diff: Option<String>,
}

/// A reboot that is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reboot {
    pub why: String,
    /// This program reboots, and goes on by itself.
    pub automatic: bool,
}
