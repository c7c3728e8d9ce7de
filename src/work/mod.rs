//! Work on the machine, below the settings: what runs a tool, waits and reads a unit, and the error of all that works.

mod problem;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio_util::sync::CancellationToken;

pub use problem::{CHANGED_SINCE, Class, Problem, STOPPED};

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

/// The pause between two looks at something that is awaited.
const POLL: Duration = Duration::from_secs(1);

/// Receives the output and the progress of a change while it is applied.
pub trait Sink: Send + Sync {
    /// A line that a tool printed.
    fn line(&self, line: &str);
    /// Progress: the amount done, the total if it is known, and the unit (`bytes`, `packages`, …).
    fn progress(&self, current: u64, total: Option<u64>, unit: &str);
    /// An attempt failed and is repeated after a pause.
    fn retry(&self, message: &str, in_seconds: f64);
    /// What a person must know at the end, although nothing failed.
    fn note(&self, message: &str) {
        self.line(message);
    }
}

/// The result of an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reverted {
    /// The change is undone.
    Done {
        /// What was done, for the user.
        what: String,
    },
    /// There was nothing to undo.
    Nothing {
        /// The reason.
        why: String,
    },
    /// A part of the change stays.
    Left {
        /// What stays.
        what: String,
        /// The reason.
        why: String,
    },
}

impl Reverted {
    /// The change is undone: this was done.
    pub fn done(what: impl Into<String>) -> Self {
        Self::Done { what: what.into() }
    }

    /// There was nothing to undo, for this reason.
    pub fn nothing(why: impl Into<String>) -> Self {
        Self::Nothing { why: why.into() }
    }

    /// This stays, for this reason.
    pub fn left(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Left {
            what: what.into(),
            why: why.into(),
        }
    }

    /// Combines results: `Left` outweighs `Done`, and `Done` outweighs `Nothing`.
    #[must_use]
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

/// What works on a machine in a run.
#[derive(Clone)]
pub struct Hands {
    pub host: Host,
    /// The state folder.
    pub state: Utf8PathBuf,
    pub stop: CancellationToken,
    /// What the run hides: secrets that a change reads are added.
    pub secrets: Secrets,
}

impl Hands {
    /// Sleeps; a request to stop ends the sleep with an error.
    pub(crate) async fn pause_for(&self, duration: Duration, what: &str) -> Result<(), Problem> {
        self.unless_stopped(what, self.host.clock.sleep(duration))
            .await
    }

    /// Waits for a future that may be dropped at any moment; a request to stop ends the wait.
    pub(crate) async fn unless_stopped<T>(
        &self,
        what: &str,
        waited_for: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Problem::stopped(what)),
            got = waited_for => Ok(got),
        }
    }

    /// Looks again and again until something is there; `None` if it is not in time.
    pub(crate) async fn awaited<T, F>(
        &self,
        what: &str,
        bound: Duration,
        look: impl Fn() -> F,
    ) -> Result<Option<T>, Problem>
    where
        F: Future<Output = Result<Option<T>, Problem>>,
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

    /// Runs a command to its end and passes each output line to the sink.
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
    ) -> Result<Output, Problem> {
        self.exec(cmd, sink)
            .await
            .and_then(|output| output.success(cmd))
            .map_err(|source| Problem::tool(what, source))
    }

    pub(crate) async fn unit_state(&self, unit: &str) -> Result<UnitState, Problem> {
        let state = units::unit_state(&self.host, unit).await;
        state.map_err(|error| {
            Problem::new("tool-failed", format!("query the state of `{unit}`")).caused_by(error)
        })
    }

    /// The last journal lines of the unit; `None` if there are none. Why they cannot be read is told in their place: what
    /// they would explain has failed already, and is what must be told.
    pub(crate) async fn words_of(&self, unit: &str) -> Option<String> {
        let journal = match self.host.reader().query(&systemctl::last_words(unit)).await {
            Ok(output) => output.stdout,
            Err(ExecError::NotFound { .. }) => String::new(),
            Err(error) => format!("failed to {}", one_line(&error)),
        };
        let words = journal.trim();
        (!words.is_empty()).then(|| words.to_owned())
    }

    /// The state of a unit; `None` where there is no running systemd, as in an image's chroot.
    pub(crate) async fn unit_state_if_any(&self, unit: &str) -> Result<Option<UnitState>, Problem> {
        let query = systemctl::show(unit);
        match self.host.reader().query(&query).await {
            Ok(output) => Ok(systemctl::parse_show(&output.stdout)),
            Err(ExecError::NotFound { .. }) => Ok(None),
            Err(source) => Err(Problem::tool(
                format!("ask for the state of `{unit}`"),
                source,
            )),
        }
    }

    /// Why this machine is a clone of the one that joined, by the id that it had then. The cluster does not tell: the clone's
    /// kubelet writes its own id into the node of both.
    pub(crate) fn is_clone_of(&self, joined: Option<&str>) -> Result<Option<String>, Problem> {
        let (Some(then), Some((path, now))) = (joined, self.machine_id()?) else {
            return Ok(None);
        };
        Ok((!now.eq_ignore_ascii_case(then)).then(|| {
            format!(
                "the machine that joined had the id {then}, and this one has {now} (`{path}`): if it is a clone, the node is \
                 that of the other machine; if it is the same one, take it out of its cluster by hand"
            )
        }))
    }

    /// The id of this machine that its kubelet tells, and the file that it is from.
    pub(crate) fn machine_id(&self) -> Result<Option<(&'static str, String)>, Problem> {
        for path in MACHINE_IDS {
            if let Some(text) = self.host.files.read_text(Utf8Path::new(path))? {
                let id = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
                return Ok(Some((path, id.to_owned())));
            }
        }
        Ok(None)
    }
}
