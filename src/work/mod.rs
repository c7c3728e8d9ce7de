//! Work on the machine, independent of the settings: runs tools, waits, reads unit states, and defines the error type of all
//! changes.

mod error;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio_util::sync::CancellationToken;

pub use error::{CHANGED_SINCE, ChangeError, Class, STOPPED};

use crate::{
    error::one_line,
    host::{Cmd, ExecError, Host, Output},
    model::secret::Secrets,
    state::units,
    tools::{
        kubernetes::kubectl::MACHINE_IDS,
        systemctl::{self, UnitState},
    },
};

/// The polling interval while waiting for a state.
const POLL: Duration = Duration::from_secs(1);

/// Receives the output and the progress of a change while it is applied.
pub trait Sink: Send + Sync {
    /// A line that a tool printed.
    fn line(&self, line: &str);
    /// Progress: the amount done, the total if it is known, and the unit (`bytes`, `packages`, …).
    fn progress(&self, current: u64, total: Option<u64>, unit: &str);
    /// A failed attempt is retried after a pause.
    fn retry(&self, message: &str, in_seconds: f64);
    /// Information that the user needs at the end, although nothing failed.
    fn note(&self, message: &str) {
        self.line(message);
    }
}

/// The result of an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reverted {
    /// The change is undone.
    Done {
        /// A description for the user.
        what: String,
    },
    /// There was nothing to undo.
    Nothing {
        /// The reason.
        why: String,
    },
    /// A part of the change remains.
    Left {
        /// The remaining part.
        what: String,
        /// The reason.
        why: String,
    },
}

impl Reverted {
    /// The change is undone, with a description.
    pub fn done(what: impl Into<String>) -> Self {
        Self::Done { what: what.into() }
    }

    /// There was nothing to undo, with the reason.
    pub fn nothing(why: impl Into<String>) -> Self {
        Self::Nothing { why: why.into() }
    }

    /// A part remains, with the reason.
    pub fn left(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Left {
            what: what.into(),
            why: why.into(),
        }
    }

    /// Combines results. `Left` takes precedence over `Done`, and `Done` over `Nothing`.
    pub fn of(endings: Vec<Self>) -> Self {
        let (mut done, mut nothing, mut left, mut whys) = (vec![], vec![], vec![], vec![]);
        for ending in endings {
            match ending {
                Self::Done { what } => done.push(what),
                Self::Nothing { why } => nothing.push(why),
                Self::Left { what, why } => {
                    left.push(what);
                    whys.push(why);
                }
            }
        }
        if !left.is_empty() {
            whys.dedup();
            Self::left(left.join("; "), whys.join("; "))
        } else if !done.is_empty() {
            Self::done(done.join("; "))
        } else {
            nothing.dedup();
            Self::nothing(nothing.join("; "))
        }
    }
}

/// Access to the machine for the changes of a run.
#[derive(Clone)]
pub struct Hands {
    pub host: Host,
    /// The state directory.
    pub state: Utf8PathBuf,
    pub stop: CancellationToken,
    /// The secrets that are hidden in all output of the run. Secrets that a change reads are added.
    pub secrets: Secrets,
}

impl Hands {
    /// Sleeps. A stop request ends the sleep with an error.
    pub(crate) async fn pause_for(
        &self,
        duration: Duration,
        what: &str,
    ) -> Result<(), ChangeError> {
        self.unless_stopped(what, self.host.clock.sleep(duration))
            .await
    }

    /// Waits for a future that may be dropped at any moment. A stop request ends the wait with an error.
    pub(crate) async fn unless_stopped<T>(
        &self,
        what: &str,
        waited_for: impl Future<Output = T>,
    ) -> Result<T, ChangeError> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(ChangeError::stopped(what)),
            got = waited_for => Ok(got),
        }
    }

    /// Polls until a value is available. Returns `None` after the time limit.
    pub(crate) async fn awaited<T, F>(
        &self,
        what: &str,
        bound: Duration,
        look: impl Fn() -> F,
    ) -> Result<Option<T>, ChangeError>
    where
        F: Future<Output = Result<Option<T>, ChangeError>>,
    {
        let clock = &self.host.clock;
        let started = clock.monotonic();
        loop {
            if let Some(found) = look().await? {
                return Ok(Some(found));
            }
            if clock.monotonic().saturating_sub(started) >= bound {
                return Ok(None);
            }
            self.pause_for(POLL, what).await?;
        }
    }

    /// Runs a command until it exits, and passes each output line to the sink.
    pub(crate) async fn exec(&self, cmd: &Cmd, sink: &dyn Sink) -> Result<Output, ExecError> {
        self.host
            .exec
            .run(cmd, &mut |_, line| sink.line(line))
            .await
    }

    /// Runs a command that must exit with 0.
    pub(crate) async fn tool(
        &self,
        what: &str,
        cmd: &Cmd,
        sink: &dyn Sink,
    ) -> Result<Output, ChangeError> {
        self.exec(cmd, sink)
            .await
            .and_then(|output| output.success(cmd))
            .map_err(|source| ChangeError::tool(what, source))
    }

    pub(crate) async fn unit_state(&self, unit: &str) -> Result<UnitState, ChangeError> {
        let state = units::unit_state(&self.host, unit).await;
        state.map_err(|error| {
            ChangeError::new("tool-failed", format!("query the state of `{unit}`")).caused_by(error)
        })
    }

    /// Returns the last journal lines of the unit, or `None` if there are none or `journalctl` is not installed. If the journal
    /// cannot be read, the text is the reason, because an error would hide the original failure.
    pub(crate) async fn words_of(&self, unit: &str) -> Option<String> {
        let journal = match self.host.reader().query(&systemctl::last_words(unit)).await {
            Ok(output) => output.stdout,
            Err(ExecError::NotFound { .. }) => String::new(),
            Err(error) => format!("failed to {}", one_line(&error)),
        };
        let words = journal.trim();
        (!words.is_empty()).then(|| words.to_owned())
    }

    /// Returns the state of a unit, or `None` if systemd is not running, for example in the chroot of an image builder.
    pub(crate) async fn unit_state_if_any(
        &self,
        unit: &str,
    ) -> Result<Option<UnitState>, ChangeError> {
        let query = systemctl::show(unit);
        match self.host.reader().query(&query).await {
            Ok(output) => Ok(systemctl::parse_show(&output.stdout)),
            Err(ExecError::NotFound { .. }) => Ok(None),
            Err(source) => Err(ChangeError::tool(
                format!("query the state of `{unit}`"),
                source,
            )),
        }
    }

    /// Returns a message if this machine may be a clone of the machine that joined, because the current machine ID differs from
    /// `joined`, the machine ID at the time of the join. The cluster cannot detect a clone, because both machines use the same
    /// Node object, and the kubelet of the clone overwrites the machine ID in it.
    pub(crate) fn is_clone_of(&self, joined: Option<&str>) -> Result<Option<String>, ChangeError> {
        let (Some(then), Some((path, now))) = (joined, self.machine_id()?) else {
            return Ok(None);
        };
        Ok((!now.eq_ignore_ascii_case(then)).then(|| {
            format!(
                "the machine that joined had the machine ID {then}, but this one has {now} \
                 (`{path}`). If it is a clone, the node belongs to the other machine. If it is \
                 the same machine, remove it from its cluster manually"
            )
        }))
    }

    /// Returns the file that contains the machine ID, and the ID. The kubelet reports this ID.
    pub(crate) fn machine_id(&self) -> Result<Option<(&'static str, String)>, ChangeError> {
        for path in MACHINE_IDS {
            if let Some(text) = self.host.files.read_text(Utf8Path::new(path))? {
                let id = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
                return Ok(Some((path, id.to_owned())));
            }
        }
        Ok(None)
    }
}
