//! Publishes the progress of a run for other processes: a small file that is rewritten when the run
//! makes progress.

use std::{io, sync::Arc};

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    event::{Envelope, Event, Outcome, Subscriber},
    host::{Files, FilesError, ReadFiles},
    model::{id::StepId, paths::RUN},
    steps::CLUSTER_JOIN,
};

/// The schema version of [`Progress`].
pub const SCHEMA: u32 = 1;

/// The minimum interval between updates for the progress and the output of a change.
const EVERY_MS: u64 = 1000;

/// A run in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Progress {
    /// [`SCHEMA`].
    pub schema: u32,
    pub run: String,
    /// `install`, `upgrade` or `uninstall`.
    pub mode: String,
    /// The process ID.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, because the PID may have been reused.
    pub pid_started: Option<u64>,
    /// The command line.
    pub command: String,
    /// Start of the run.
    pub since: jiff::Timestamp,
    /// Time of the last update.
    pub at: jiff::Timestamp,
    pub steps: Vec<StepProgress>,
    /// Descriptions of the changes that are being applied.
    pub changes: Vec<String>,
    /// The latest detail about these changes: progress, a line of output, or the reason for a retry.
    pub detail: Option<String>,
}

/// A step of a run in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct StepProgress {
    pub id: StepId,
    /// The human-readable title.
    pub title: String,
    /// The outcome, or `None` if it has not finished.
    pub outcome: Option<Outcome>,
    /// One of its changes is being applied.
    pub active: bool,
}

/// The path of the file.
pub fn path() -> Utf8PathBuf {
    Utf8Path::new(RUN).join("run.json")
}

/// Writes the file. It is a subscriber only of runs that hold the run lock.
pub struct RunFile {
    files: Arc<dyn Files>,
    command: String,
    pid: u32,
    progress: Option<Progress>,
    written_ms: u64,
}

impl RunFile {
    /// Creates the file writer for this process.
    pub fn new(files: Arc<dyn Files>, command: String) -> Self {
        Self {
            files,
            command,
            pid: std::process::id(),
            progress: None,
            written_ms: 0,
        }
    }

    fn remove(&self, run: &str) -> Result<(), FilesError> {
        // Remove only the file of this run, because the next run may already have started.
        match read(&*self.files)? {
            Some(there) if there.run == run => self.files.remove(&path()),
            _ => Ok(()),
        }
    }
}

impl Drop for RunFile {
    /// Also removes the file if a run ends without a final event.
    fn drop(&mut self) {
        if let Some(progress) = self.progress.take()
            && let Err(error) = self.remove(&progress.run)
        {
            tracing::warn!(%error, "failed to remove the file of the current run");
        }
    }
}

impl Subscriber for RunFile {
    fn name(&self) -> &'static str {
        "the progress file"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        match &envelope.event {
            Event::RunStarted { mode, steps, .. } => {
                // A process may have a second run, whose time starts at 0 again.
                self.written_ms = 0;
                self.progress = Some(Progress {
                    schema: SCHEMA,
                    run: envelope.run.clone(),
                    mode: mode.clone(),
                    pid: self.pid,
                    pid_started: began(&*self.files, self.pid),
                    command: self.command.clone(),
                    since: envelope.at,
                    at: envelope.at,
                    steps: steps
                        .iter()
                        .map(|step| StepProgress {
                            id: step.id.clone(),
                            title: step.title.clone(),
                            outcome: None,
                            active: false,
                        })
                        .collect(),
                    changes: Vec::new(),
                    detail: None,
                });
            }
            Event::RunFinished { .. } => {
                self.progress = None;
                return self.remove(&envelope.run).map_err(io::Error::other);
            }
            _ => {}
        }
        let Some(progress) = &mut self.progress else {
            return Ok(());
        };
        let moved = take_in(progress, &envelope.event);
        let often = matches!(
            envelope.event,
            Event::Progress { .. } | Event::Output { .. }
        );
        if !moved || (often && envelope.elapsed_ms < self.written_ms + EVERY_MS) {
            return Ok(());
        }
        progress.at = envelope.at;
        self.written_ms = envelope.elapsed_ms;
        let text = serde_json::to_vec_pretty(progress)?;
        self.files
            .write(&path(), &text, 0o644)
            .map_err(io::Error::other)
    }
}

/// Updates the progress with an event. Returns whether the file must be rewritten.
fn take_in(progress: &mut Progress, event: &Event) -> bool {
    let mut active = |steps: &[StepId], now: bool| {
        for step in &mut progress.steps {
            if steps.contains(&step.id) {
                step.active = now;
            }
        }
    };
    match event {
        Event::RunStarted { .. } => {}
        Event::ChangeStarted { steps, summary } => {
            active(steps, true);
            // A retried change is listed once.
            progress.changes.retain(|change| change != summary);
            progress.changes.push(summary.clone());
            progress.detail = None;
        }
        Event::ChangeApplied { steps, summary, .. } => {
            active(steps, false);
            progress.changes.retain(|change| change != summary);
            progress.detail = None;
        }
        Event::Progress {
            current,
            total,
            unit,
            ..
        } => {
            progress.detail = Some(match total {
                Some(total) => format!("{current} of {total} {unit}"),
                None => format!("{current} {unit}"),
            });
        }
        // The file is readable by all users, and an administrator's command may print the secrets
        // that it reads.
        Event::Output { steps, .. } if steps.contains(&CLUSTER_JOIN) => return false,
        Event::Output { line, .. } => progress.detail = Some(line.clone()),
        Event::AttemptFailed {
            message,
            retry_in_seconds,
            ..
        } => progress.detail = Some(format!("{message}; retrying in {retry_in_seconds:.1} s")),
        Event::StepFinished { step, outcome, .. } => {
            active(std::slice::from_ref(step), false);
            for mine in &mut progress.steps {
                if mine.id == *step {
                    mine.outcome = Some(*outcome);
                }
            }
            // A change that failed has no event of its own.
            if !progress.steps.iter().any(|step| step.active) {
                progress.changes.clear();
            }
        }
        Event::StepStarted { .. }
        | Event::StepAssessed { .. }
        | Event::Note { .. }
        | Event::RebootRequired { .. }
        | Event::RunFinished { .. } => return false,
    }
    true
}

/// Reads the file. An invalid file is ignored, because it is only used for display.
pub(super) fn read(files: &dyn ReadFiles) -> Result<Option<Progress>, FilesError> {
    let Some(text) = files.read(&path())? else {
        return Ok(None);
    };
    match serde_json::from_slice(&text) {
        Ok(progress) => Ok(Some(progress)),
        Err(error) => {
            tracing::warn!(%error, path = %path(), "failed to parse the file of the current run");
            Ok(None)
        }
    }
}

/// Returns the start time of a process in clock ticks since boot, or `None` if it does not exist.
pub(super) fn began(files: &dyn ReadFiles, pid: u32) -> Option<u64> {
    let path = Utf8PathBuf::from(format!("/proc/{pid}/stat"));
    match files.read_text(&path) {
        Ok(text) => ticks(&text?),
        // Reading the entry of a process that exits at the same time fails. It counts as exited.
        Err(error) => {
            tracing::debug!(%error, "no such process");
            None
        }
    }
}

/// Field 22 of proc_pid_stat(5). The second field, in parentheses, may contain spaces and
/// parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Progress, SCHEMA, StepProgress, take_in, ticks};
    use crate::{
        event::{Event, Outcome},
        steps::{CLUSTER_JOIN, CLUSTER_NODE},
    };

    fn progress() -> Progress {
        Progress {
            schema: SCHEMA,
            run: "1".to_owned(),
            mode: "install".to_owned(),
            pid: 1,
            pid_started: None,
            command: "install".to_owned(),
            since: jiff::Timestamp::UNIX_EPOCH,
            at: jiff::Timestamp::UNIX_EPOCH,
            steps: vec![StepProgress {
                id: CLUSTER_NODE,
                title: String::new(),
                outcome: None,
                active: false,
            }],
            changes: Vec::new(),
            detail: None,
        }
    }

    #[test]
    fn failed_change_is_listed_once_and_not_after_its_step() {
        let mut progress = progress();
        let started = Event::ChangeStarted {
            steps: vec![CLUSTER_NODE],
            summary: "admit the node".to_owned(),
        };
        for _attempt in 0..2 {
            take_in(&mut progress, &started);
            assert_eq!(progress.changes, ["admit the node"]);
        }
        let failed = Event::StepFinished {
            step: CLUSTER_NODE,
            outcome: Outcome::Failed,
            why: String::new(),
            seconds: 1.0,
            causes: Vec::new(),
            hint: None,
        };
        take_in(&mut progress, &failed);
        assert!(progress.changes.is_empty(), "{progress:?}");
    }

    #[test]
    fn join_command_output_is_not_world_readable() {
        let mut progress = progress();
        let mut said = |step| {
            let output = Event::Output {
                steps: vec![step],
                line: "+ TOKEN=hunter2".to_owned(),
            };
            (take_in(&mut progress, &output), progress.detail.clone())
        };
        assert_eq!(said(CLUSTER_JOIN), (false, None));
        assert_eq!(
            said(CLUSTER_NODE),
            (true, Some("+ TOKEN=hunter2".to_owned()))
        );
    }

    #[test]
    fn parentheses_in_a_process_name_are_parsed() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 1";
        assert_eq!(ticks(stat), Some(98765));
        assert_eq!(ticks("42 (x) S 1"), None);
    }
}
