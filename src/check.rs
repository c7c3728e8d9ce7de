//! Findings, and the checks that produce them. Checks only read.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{
    compat::matrix::Matrix,
    config::desired::Desired,
    facts::Facts,
    host::Reader,
    model::{
        findings::{self, Kind, Remedy},
        id::Id,
    },
    state::State,
    step::StepError,
};

/// The input of a check. A machine can be examined without a desired state.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The machine, read-only.
    pub host: Reader<'a>,
    /// Data that cannot change during a run.
    pub facts: &'a Facts,
    /// Data that can change, in the current snapshot.
    pub state: &'a State,
    /// The compatibility matrix.
    pub matrix: &'a Matrix,
    /// The desired state; `None` if this machine cannot have one.
    pub desired: Option<&'a Desired>,
    /// An earlier run prepared this machine for a GPU that is not optional, so a missing GPU is a failure.
    pub prepared: bool,
}

/// The verdict of a finding. The error of a check that failed to read the machine becomes `Unknown`, or `Skip` if the data
/// was not queried (for example with `--root`). It never becomes `Pass`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No problem.
    Pass,
    /// A possible problem.
    Warn,
    /// A problem.
    Fail,
    /// Not applicable to this machine (no GPU, no driver loaded, a feature that is not configured, an
    /// image without a running kernel), not evaluated, or not readable with `--root` or without root.
    Skip,
    /// The data is not available: the driver does not report the value, or a file of the running kernel is missing. By default,
    /// `check` fails only if a check returned an error, or if a complete audit has an unknown finding and no pass.
    Unknown,
}

/// One finding of `check`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable name.
    pub id: Id,
    /// The title in reports.
    pub title: String,
    /// The verdict.
    pub status: Verdict,
    /// The reason, with the compared values.
    pub why: String,
    /// The cause in one or two lines, if `why` contains more than that.
    #[serde(skip)]
    pub brief: Option<String>,
    /// The observed value.
    pub observed: Option<String>,
    /// The expected value.
    pub expected: Option<String>,
    /// The remedy as text.
    pub remedy: Option<String>,
    /// The command with which the remedy starts, for the shell of this machine.
    #[serde(default)]
    pub command: Option<String>,
    /// The remedy class, if it differs from the class in the findings registry.
    #[serde(skip)]
    pub remedy_class: Option<Remedy>,
    /// The kind, if it differs from the kind in the findings registry.
    #[serde(skip)]
    pub as_kind: Option<Kind>,
    /// Links to documentation.
    pub links: Vec<String>,
    /// The finding that is the root cause of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Id>,
}

impl Finding {
    /// Creates a finding without values and remedy.
    pub fn new(id: Id, status: Verdict, why: impl Into<String>) -> Self {
        Self {
            title: findings::title(&id).to_owned(),
            id,
            status,
            why: why.into(),
            brief: None,
            observed: None,
            expected: None,
            remedy: None,
            command: None,
            remedy_class: None,
            as_kind: None,
            links: Vec::new(),
            because: None,
        }
    }

    /// Sets the remedy.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The remedy, unless it only repeats the command.
    pub fn remedy_text(&self) -> Option<&str> {
        let command = self.command.as_deref().unwrap_or_default();
        (self.remedy.as_deref()).filter(|remedy| *remedy != format!("run `{command}`"))
    }

    /// Returns `remedy_class`, or the class in the findings registry if it is not set.
    pub fn class(&self) -> Option<Remedy> {
        (self.remedy_class).or_else(|| findings::row(&self.id).map(|row| row.remedy))
    }

    /// The kind of a failure or a warning, and of a difference that was not evaluated.
    pub fn kind(&self) -> Option<Kind> {
        let of_row = || findings::row(&self.id).map_or(Kind::Fault, |row| row.kind);
        match self.status {
            Verdict::Pass => None,
            Verdict::Skip | Verdict::Unknown => self.as_kind,
            Verdict::Fail => Some(self.as_kind.unwrap_or_else(of_row)),
            Verdict::Warn => Some(self.as_kind.unwrap_or_else(|| match of_row() {
                Kind::Fault => Kind::Risk,
                other => other,
            })),
        }
    }

    /// Whether the finding is a failure or a warning of this kind.
    pub fn is(&self, kind: Kind) -> bool {
        matches!(self.status, Verdict::Fail | Verdict::Warn) && self.kind() == Some(kind)
    }

    /// Marks a difference from the settings as not evaluated, because this machine was not configured.
    pub fn set_aside(&mut self) {
        self.status = Verdict::Skip;
        self.as_kind = Some(Kind::Difference);
        self.because = None;
        self.command = None;
    }

    /// Derives the command from the remedy, if the remedy starts with a command (``run `…` ``) or with `reboot`.
    pub fn derive_command(&mut self) {
        let Some(remedy) = self.remedy.as_ref().filter(|_| self.command.is_none()) else {
            return;
        };
        self.command = match remedy.strip_prefix("run `") {
            Some(rest) => quoted_end(rest).map(|end| rest[..end].to_owned()),
            None if remedy.starts_with("reboot") => Some(REBOOT.to_owned()),
            None => None,
        };
    }
}

/// Returns the position of the backtick that ends a command. A backtick in single quotes or after a backslash belongs to the
/// command.
fn quoted_end(text: &str) -> Option<usize> {
    let (mut in_quotes, mut is_escaped) = (false, false);
    text.char_indices().find_map(|(at, c)| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            _ if was_escaped => None,
            '\\' if !in_quotes => {
                is_escaped = true;
                None
            }
            '\'' => {
                in_quotes = !in_quotes;
                None
            }
            '`' if !in_quotes => Some(at),
            _ => None,
        }
    })
}

/// The command that reboots a machine.
pub const REBOOT: &str = "systemctl reboot";

/// The command that prepares a machine.
pub const INSTALL: &str = "gpu-bootstrap install";

/// The command that does the same on a node in use, which it takes out of service first.
pub const UPGRADE: &str = "gpu-bootstrap upgrade";

/// Whether a command brings the machine to the desired state.
pub fn is_repair(command: Option<&str>) -> bool {
    command.is_some_and(|command| [INSTALL, UPGRADE].contains(&command))
}

/// The findings for which `check` exits with 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailOn {
    /// Failures of each kind.
    Fail,
    /// Failures and warnings of each kind.
    Warn,
    /// Failures and warnings of one kind.
    Kind(Kind),
}

impl FailOn {
    /// Whether `check` fails for this finding.
    pub fn selects(self, finding: &Finding) -> bool {
        match self {
            Self::Fail => finding.status == Verdict::Fail,
            Self::Warn => matches!(finding.status, Verdict::Fail | Verdict::Warn),
            Self::Kind(kind) => finding.is(kind),
        }
    }
}

/// A family of health checks.
#[derive(Clone, Copy)]
pub struct Family {
    /// Returns the stable names of its findings.
    pub ids: fn() -> Vec<Id>,
    /// Examines the machine. An error becomes an `unknown` finding for each ID, or a `skip` finding if the data was not queried.
    pub examine: for<'a> fn(&'a Subject<'a>) -> Examining<'a>,
}

/// An examination in progress.
pub type Examining<'a> = BoxFuture<'a, Result<Vec<Finding>, StepError>>;

#[cfg(test)]
mod tests {
    use super::{FailOn, Finding, Verdict};
    use crate::model::{findings::Kind, id::Id, text::shell_word};

    #[test]
    fn kind_follows_the_row_and_the_verdict() {
        let kind = |id, status| Finding::new(Id::new(id), status, "x").kind();
        for (id, status, expected) in rows! {
            "pci.driver-bound", Verdict::Fail, Some(Kind::Fault);
            "pci.driver-bound", Verdict::Warn, Some(Kind::Risk);
            "pci.driver-bound", Verdict::Unknown, None;
            "os.pkg.pins", Verdict::Fail, Some(Kind::Risk);
            "packages.hold", Verdict::Fail, Some(Kind::Difference);
            "k8s.taints", Verdict::Warn, Some(Kind::Difference);
            "packages.hold", Verdict::Pass, None;
        } {
            assert_eq!(kind(id, status), expected, "{id}");
        }
        let mut difference = Finding::new(Id::new("packages.hold"), Verdict::Fail, "x");
        assert!(FailOn::Fail.selects(&difference));
        assert!(FailOn::Kind(Kind::Difference).selects(&difference));
        assert!(!FailOn::Kind(Kind::Fault).selects(&difference));
        difference.set_aside();
        assert_eq!(difference.kind(), Some(Kind::Difference));
        assert!(
            ![FailOn::Fail, FailOn::Warn, FailOn::Kind(Kind::Difference)]
                .iter()
                .any(|one| one.selects(&difference))
        );
    }

    #[test]
    fn command_comes_from_the_remedy() {
        let command = |remedy: &str| {
            let mut finding = Finding::new(Id::new("a"), Verdict::Fail, "x").with_remedy(remedy);
            finding.derive_command();
            finding.command
        };
        assert_eq!(command("run `a --b`, then check").as_deref(), Some("a --b"));
        assert_eq!(
            command("reboot: it helps").as_deref(),
            Some("systemctl reboot")
        );
        assert_eq!(command("replace the GPU, then run `a`"), None);
        // The name of a file can contain shell syntax and backticks.
        for name in ["/etc/a b", "/etc/$(id)", "/etc/a`id`b", "/etc/a'`id`;b"] {
            let word = shell_word(name);
            assert!(word.starts_with('\''), "{word}");
            let remedy = format!("run `rm {word} && apt-get update`, because `x`");
            let expected = format!("rm {word} && apt-get update");
            assert_eq!(command(&remedy), Some(expected));
        }
        assert_eq!(shell_word("/etc/a'b"), r"'/etc/a'\''b'");
        assert_eq!(shell_word("/etc/apt/a.list"), "/etc/apt/a.list");
    }
}
