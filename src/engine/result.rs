//! The result of a run, for reports.

use serde::Serialize;

use crate::{
    check::{Finding, INSTALL, UPGRADE},
    event::{Outcome, Summary},
    exit::Exit,
    journal::Request,
    model::{id::StepId, node::NodeSummary},
};

/// The purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Assess only.
    Check,
    /// Assess, and show the pending changes.
    Plan,
    /// Apply the changes.
    Install,
    /// Apply the changes on a node in use, which leaves service before the first one. In the journal, such a run has the mode
    /// `install` and its request, so that versions without `upgrade` read it.
    Upgrade,
    /// Undo the changes.
    Uninstall,
}

impl Mode {
    /// The mode of a run with changes, also of one that continues after a reboot.
    pub(super) const fn of(request: &Request) -> Self {
        match request.upgrade {
            true => Self::Upgrade,
            false => Self::Install,
        }
    }

    /// The command that continues a run, without its options.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Check => "gpu-bootstrap check",
            Self::Plan => "gpu-bootstrap plan",
            Self::Install => INSTALL,
            Self::Upgrade => UPGRADE,
            Self::Uninstall => "gpu-bootstrap uninstall",
        }
    }

    /// The name used on the command line and in events.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Plan => "plan",
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Uninstall => "uninstall",
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    pub mode: Mode,
    /// The run ID.
    pub run: String,
    /// The exit status.
    pub exit: Exit,
    /// Every step, in the order of the list.
    pub steps: Vec<StepReport>,
    /// Only after `check`: steps and checks as one list.
    pub findings: Vec<Finding>,
    /// Notes that do not belong to a step.
    pub notes: Vec<String>,
    /// A pending reboot.
    pub reboot: Option<Reboot>,
    /// The changes that could not be undone, with the reason. `uninstall` undoes all changes,
    /// `install` undoes only obsolete ones.
    pub left: Vec<String>,
    /// The duration.
    pub seconds: f64,
    /// The reason an upgrade failed or did not start, if the node stays out of service.
    pub upgrade_failed: Option<String>,
    /// The node, if `install` has made it ready.
    pub node: Option<NodeSummary>,
    /// The seconds since the installation began, including earlier runs and reboots, if `install` has completed it.
    pub to_ready: Option<f64>,
}

impl RunReport {
    /// Creates the report of a run without steps.
    pub const fn new(mode: Mode, run: String, exit: Exit) -> Self {
        Self {
            mode,
            run,
            exit,
            steps: Vec::new(),
            findings: Vec::new(),
            notes: Vec::new(),
            reboot: None,
            left: Vec::new(),
            seconds: 0.0,
            upgrade_failed: None,
            node: None,
            to_ready: None,
        }
    }

    /// The number of steps with each outcome.
    pub fn summary(&self) -> Summary {
        Summary::of(self.steps.iter().map(|step| step.outcome))
    }
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    pub id: StepId,
    /// The human-readable title.
    pub title: String,
    pub outcome: Outcome,
    pub why: String,
    /// The remedy.
    pub hint: Option<String>,
    /// The chain of causes of a failure, outermost first.
    pub causes: Vec<String>,
    /// A stable identifier of a failure.
    pub reason: Option<&'static str>,
    /// The duration, including waits for locks.
    pub seconds: f64,
    /// The required changes (`plan`), or the applied changes (`install`).
    pub changes: Vec<ChangeReport>,
}

impl StepReport {
    /// The reason with its causes.
    pub(super) fn with_causes(&self) -> String {
        let why = std::iter::once(&self.why).chain(&self.causes);
        why.map(String::as_str).collect::<Vec<_>>().join(": ")
    }
}

/// A change of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangeReport {
    /// The change kind.
    pub kind: &'static str,
    /// A description.
    pub summary: String,
    /// A unified diff, or the package manager's simulation.
    pub diff: Option<String>,
}

/// A pending reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reboot {
    pub why: String,
    /// gpu-bootstrap reboots the machine and continues automatically.
    pub automatic: bool,
}
