//! Publishes the state and the result of the run of this boot: a small file for programs that wait
//! for the machine, such as an autoscaler hook or a monitoring agent. It is removed at boot.

use std::{io, sync::Arc};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::{
    event::{Envelope, Event, Outcome, StepTitle, Subscriber},
    host::{Clock, Files, FilesError, ReadFiles},
    model::{id::StepId, paths::RUN},
};

/// The schema version of [`RunStatus`].
pub const SCHEMA: u32 = 1;

/// The content of the status file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunStatus {
    /// [`SCHEMA`].
    pub schema: u32,
    pub run: String,
    /// `install`, `upgrade` or `uninstall`.
    pub mode: String,
    pub state: RunState,
    /// Start of the run.
    pub since: jiff::Timestamp,
    /// Time of the last update.
    pub at: jiff::Timestamp,
    /// Duration of the run until `at`.
    pub seconds: f64,
    /// Uptime of the machine at the last update in seconds, excluding suspend. Not affected by clock
    /// changes.
    #[serde(default)]
    pub uptime: Option<f64>,
    /// The number of finished steps.
    pub steps_ended: usize,
    pub steps: usize,
    /// The step that finished last.
    pub last_step: Option<StepId>,
    /// The first failed or blocked step, with the reason.
    pub fault: Option<RunFault>,
    /// The reason a reboot is required.
    pub reboot: Option<String>,
    /// The exit status, or `None` while the run is in progress.
    pub exit: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// In progress.
    Running,
    /// Finished successfully.
    Done,
    /// Finished without a failed step, but a reboot is required to continue.
    RebootAwaited,
    /// Finished with an error, or stopped.
    Failed,
}

/// A failed or blocked step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunFault {
    pub step: StepId,
    pub why: String,
    /// The remedy.
    pub hint: Option<String>,
}

pub fn path() -> Utf8PathBuf {
    Utf8Path::new(RUN).join("status.json")
}

/// Returns the last run of this boot, or `None` if there is none or another version wrote the file.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(files: &dyn ReadFiles) -> Result<Option<RunStatus>, FilesError> {
    let bytes = files.read(&path())?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Subscriber that writes the status file. Only runs that hold the run lock use it.
pub struct StatusFile {
    files: Arc<dyn Files>,
    clock: Arc<dyn Clock>,
    status: Option<RunStatus>,
}

impl StatusFile {
    pub fn new(files: Arc<dyn Files>, clock: Arc<dyn Clock>) -> Self {
        Self {
            files,
            clock,
            status: None,
        }
    }
}

impl Subscriber for StatusFile {
    fn name(&self) -> &'static str {
        "the status file"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        if let Event::RunStarted { mode, steps, .. } = &envelope.event {
            self.status = Some(started(envelope, mode, steps));
        }
        let Some(status) = &mut self.status else {
            return Ok(());
        };
        if !take_in(status, &envelope.event) {
            return Ok(());
        }
        status.at = envelope.at;
        status.seconds = envelope.elapsed_ms as f64 / 1000.0;
        status.uptime = Some(self.clock.monotonic().as_secs_f64());
        let text = serde_json::to_vec_pretty(status)?;
        self.files
            .write(&path(), &text, 0o644)
            .map_err(io::Error::other)
    }
}

fn started(envelope: &Envelope, mode: &str, steps: &[StepTitle]) -> RunStatus {
    RunStatus {
        schema: SCHEMA,
        run: envelope.run.clone(),
        mode: mode.to_owned(),
        state: RunState::Running,
        since: envelope.at,
        at: envelope.at,
        seconds: 0.0,
        uptime: None,
        steps_ended: 0,
        steps: steps.len(),
        last_step: None,
        fault: None,
        reboot: None,
        exit: None,
    }
}

/// Updates the status with an event. Returns whether the file must be rewritten.
fn take_in(status: &mut RunStatus, event: &Event) -> bool {
    match event {
        Event::RunStarted { .. } => {}
        Event::StepFinished {
            step,
            outcome,
            why,
            causes,
            hint,
            ..
        } => {
            status.steps_ended += 1;
            status.last_step = Some(step.clone());
            if matches!(outcome, Outcome::Failed | Outcome::Blocked) && status.fault.is_none() {
                // Omit further lines: all users can read the file, and command output may contain secrets.
                let whys = std::iter::once(why).chain(causes);
                let first = |why: &String| why.lines().next().unwrap_or_default().to_owned();
                status.fault = Some(RunFault {
                    step: step.clone(),
                    why: whys.map(first).collect::<Vec<_>>().join(": "),
                    hint: hint.clone(),
                });
            }
        }
        Event::RebootRequired { why, .. } => status.reboot = Some(why.clone()),
        Event::RunFinished { exit, .. } => {
            status.exit = Some(*exit);
            status.state = match (exit, &status.reboot) {
                (0, None) => RunState::Done,
                (_, Some(_)) if status.fault.is_none() => RunState::RebootAwaited,
                _ => RunState::Failed,
            };
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::Summary,
        host::{
            ReadFiles,
            fake::{FakeClock, FakeFiles},
        },
    };

    fn envelope(seq: u64, event: Event) -> Envelope {
        Envelope {
            schema: 1,
            seq,
            at: "2026-11-24T00:00:00Z".parse().expect("a time"),
            elapsed_ms: seq * 1000,
            run: "r1".to_owned(),
            event,
        }
    }

    fn ended(events: Vec<Event>) -> RunStatus {
        let files = Arc::new(FakeFiles::new());
        let clock = Arc::new(FakeClock::default());
        let mut file = StatusFile::new(files.clone(), clock.clone());
        for (seq, event) in (1..).zip(events) {
            file.event(&envelope(seq, event)).expect("written");
        }
        let text = files.read(&path()).expect("readable").expect("a file");
        serde_json::from_slice(&text).expect("a status")
    }

    fn start() -> Event {
        Event::RunStarted {
            version: "0.1.0".to_owned(),
            mode: "install".to_owned(),
            steps: vec![StepTitle {
                id: StepId::new("driver.module"),
                title: "Driver".to_owned(),
            }],
        }
    }

    fn step(outcome: Outcome) -> Event {
        Event::StepFinished {
            step: StepId::new("driver.module"),
            outcome,
            why: "load the module".to_owned(),
            seconds: 1.0,
            causes: vec!["the module is rejected\n+ TOKEN=hunter2".to_owned()],
            hint: Some("sign the module".to_owned()),
        }
    }

    fn finish(exit: u8) -> Event {
        Event::RunFinished {
            summary: Summary::default(),
            exit,
            seconds: 3.0,
            to_ready: None,
        }
    }

    #[test]
    fn status_file_covers_start_to_end_of_a_run() {
        let running = ended(vec![start(), step(Outcome::Changed)]);
        assert_eq!(
            (running.state, running.steps_ended, running.exit),
            (RunState::Running, 1, None)
        );
        let done = ended(vec![start(), step(Outcome::Changed), finish(0)]);
        assert_eq!((done.state, done.exit), (RunState::Done, Some(0)));
        assert!((done.seconds - 3.0).abs() < 0.01);
        assert!(done.uptime.is_some());
        let failed = ended(vec![start(), step(Outcome::Failed), finish(6)]);
        assert_eq!(failed.state, RunState::Failed);
        let fault = failed.fault.expect("a fault");
        assert_eq!(
            (fault.why.as_str(), fault.hint.as_deref()),
            (
                "load the module: the module is rejected",
                Some("sign the module")
            )
        );
        let reboot = Event::RebootRequired {
            why: "nouveau holds the GPU".to_owned(),
            automatic: true,
        };
        let events = |outcome, exit| vec![start(), step(outcome), reboot.clone(), finish(exit)];
        let waiting = ended(events(Outcome::NotRun, 8));
        assert_eq!(waiting.state, RunState::RebootAwaited);
        // A failed run stays failed even if a reboot is required.
        let failed = ended(events(Outcome::Failed, 6));
        assert_eq!(failed.state, RunState::Failed);
    }
}
