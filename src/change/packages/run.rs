//! Running a package manager: progress is told from its output, faults that pass by themselves are
//! tried again, other faults get their class and what a person needs to see.

use std::{borrow::Cow, time::Duration};

use camino::Utf8Path;

use crate::{
    change::{Applier, ChangeError, PackageError, Sink},
    host::{Cmd, ExecError, Output, Stream, exec::tail},
    model::secret::without_logins,
    tools::{
        dkms,
        packages::{Action, Fault},
    },
};

/// Waiting times between attempts at what passes by itself.
const BACKOFF: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

/// Lists whose fetching has failed again after minutes of trying are not fetched once more: packets
/// vanish on the line, and each further attempt would take as long to say so.
const PATIENCE: Duration = Duration::from_secs(180);

/// How much of a compiler's log an error carries.
const LOG_LINES: usize = 30;

/// Attempts at what may pass by itself.
#[derive(Debug)]
pub(super) struct Attempts(std::slice::Iter<'static, Duration>);

impl Attempts {
    pub(super) fn new() -> Self {
        Self(BACKOFF.iter())
    }
}

impl Applier {
    /// Runs a command that itself says all that may happen; faults that pass by themselves are
    /// tried again.
    pub(super) async fn run_until_it_passes(
        &self,
        what: &str,
        cmd: Cmd,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut attempts = Attempts::new();
        while let Err(error) = self.run_once(what, &cmd, 0, sink).await {
            self.pass_and_refresh(&mut attempts, error, sink).await?;
        }
        Ok(())
    }

    /// Fetches the package lists, several times where the fault may pass by itself.
    pub(super) async fn fetch_lists(
        &self,
        mut refresh: Cmd,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut attempts = Attempts::new();
        let mut on_the_line = Vec::new();
        loop {
            let begin = self.host.clock.monotonic();
            let Err(error) = self.fetch_lists_once(&refresh, sink).await else {
                return Ok(());
            };
            if is_network(&error) {
                on_the_line.push(self.host.clock.monotonic().saturating_sub(begin));
                if on_the_line.len() > 1 && on_the_line.iter().sum::<Duration>() > PATIENCE {
                    return Err(error);
                }
            }
            // A cache on the way may be what is older than the mirror.
            if self.pass(&mut attempts, error, sink).await? == Fault::Stale {
                refresh = self.transactions()?.refresh(&self.settings(), true);
            }
        }
    }

    async fn fetch_lists_once(&self, refresh: &Cmd, sink: &dyn Sink) -> Result<(), ChangeError> {
        const WHAT: &str = "fetch the package lists";
        let output = self.run_output(WHAT, refresh, 0, sink).await?;
        let words = format!("{}\n{}", output.stdout, output.stderr);
        let Some(failed) = self.transactions()?.failed_sources(&words) else {
            return self.judge(WHAT, refresh, output);
        };
        if !output.ok() {
            return self.judge(WHAT, refresh, output);
        }
        // Some versions report a source that failed as a warning, and succeed.
        let source = ExecError::Failed {
            command: self.transactions()?.short_line(refresh),
            status: output.status,
            tail: tail(&failed),
        };
        Err(self.failed(WHAT, source, &words)?)
    }

    /// Waits for what passes by itself, with newer lists if it were they that failed; lists that do
    /// not come are an attempt, too. The machine may be another one afterwards: whoever tries again
    /// decides anew what may happen.
    ///
    /// # Errors
    /// The error itself when it does not pass, or has not passed for too long; or that somebody
    /// asked to stop.
    pub(super) async fn pass_and_refresh(
        &self,
        attempts: &mut Attempts,
        error: ChangeError,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if self.pass(attempts, error, sink).await? == Fault::Stale {
            let refresh = self.transactions()?.refresh(&self.settings(), true);
            while let Err(error) = self.fetch_lists_once(&refresh, sink).await {
                self.pass(attempts, error, sink).await?;
            }
        }
        Ok(())
    }

    async fn pass(
        &self,
        attempts: &mut Attempts,
        error: ChangeError,
        sink: &dyn Sink,
    ) -> Result<Fault, ChangeError> {
        let ChangeError::Packages(PackageError::Failed { fault, .. }) = &error else {
            return Err(error);
        };
        let (true, Some(pause)) = (fault.passes(), attempts.0.next()) else {
            return Err(error);
        };
        let fault = *fault;
        sink.retry(&sentence(&error), pause.as_secs_f64());
        self.pause_for(*pause, "wait before another attempt")
            .await?;
        if fault == Fault::Locked {
            self.wait_for_locks(sink).await?;
        }
        Ok(fault)
    }

    /// One attempt; `stages` is how many it will print where that is known, see
    /// [`crate::tools::packages::Transactions::is_stage`].
    pub(super) async fn run_once(
        &self,
        what: &str,
        cmd: &Cmd,
        stages: usize,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let output = self.run_output(what, cmd, stages, sink).await?;
        self.judge(what, cmd, output)
    }

    /// Runs a command; its output is fit to be told.
    async fn run_output(
        &self,
        what: &str,
        cmd: &Cmd,
        stages: usize,
        sink: &dyn Sink,
    ) -> Result<Output, ChangeError> {
        let transactions = self.transactions()?;
        let mut done = 0;
        let ran = self
            .host
            .exec
            .run(cmd, &mut |stream, line| {
                if !line.trim().is_empty() {
                    sink.line(&self.fit_to_tell(line));
                }
                if stages > 0 && stream == Stream::Out && transactions.is_stage(line) {
                    // A script may have words of its own that look like a stage.
                    done = (done + 1).min(stages);
                    sink.progress((done * 100 / stages) as u64, Some(100), "percent");
                }
            })
            .await;
        let output = ran.map_err(|source| PackageError::Failed {
            what: what.to_owned(),
            fault: Fault::Other,
            hint: Fault::Other.hint(),
            attachment: None,
            source: Box::new(self.short(source, cmd)),
        })?;
        Ok(Output {
            status: output.status,
            stdout: self.fit_to_tell(&output.stdout).into_owned(),
            stderr: self.fit_to_tell(&output.stderr).into_owned(),
        })
    }

    fn judge(&self, what: &str, cmd: &Cmd, output: Output) -> Result<(), ChangeError> {
        let words = format!("{}\n{}", output.stdout, output.stderr);
        match output.success(cmd) {
            Ok(_) => Ok(()),
            Err(source) => Err(self.failed(what, self.short(source, cmd), &words)?),
        }
    }

    /// The error of a command, with its class and all that a person needs to see.
    fn failed(
        &self,
        what: &str,
        source: ExecError,
        words: &str,
    ) -> Result<ChangeError, ChangeError> {
        let fault = self.transactions()?.fault(words);
        let attachment = self.attachment(fault, words)?;
        Ok(PackageError::Failed {
            what: what.to_owned(),
            fault,
            hint: self.hint(fault),
            attachment: attachment.filter(|text| !told_already(&source, text)),
            source: Box::new(source),
        }
        .into())
    }

    /// What to do about a fault: the manager's own command where there is one.
    pub(super) fn hint(&self, fault: Fault) -> Option<&'static str> {
        (self.backend.transactions())
            .and_then(|transactions| transactions.hint(fault))
            .or_else(|| fault.hint())
    }

    /// What else a person needs to see: the compiler's words, or the line that tells the failure.
    /// Where that cannot be looked at, this is said beside what failed, never in its place.
    fn attachment(&self, fault: Fault, words: &str) -> Result<Option<String>, ChangeError> {
        let transactions = self.transactions()?;
        let looked = match fault {
            Fault::Build => match dkms::log_named_in(words) {
                Some(path) => self.log_tail(&path),
                None => Ok(Some(tail(words))),
            },
            Fault::SignedBy => self.contradictions(),
            Fault::Script | Fault::Unmet | Fault::NotFound | Fault::Other => {
                Ok((transactions.obstacle(words)).or_else(|| Some(tail(words))))
            }
            _ => Ok(transactions.telling_line(words).map(str::to_owned)),
        };
        Ok(looked
            .unwrap_or_else(|second| Some(also(tail(words), &second)))
            .filter(|text| !text.is_empty()))
    }

    /// An error of a command with the command line as people want to read it, and its words fit to
    /// be told.
    pub(super) fn short(&self, mut error: ExecError, cmd: &Cmd) -> ExecError {
        let line = || match self.backend.transactions() {
            Some(transactions) => transactions.short_line(cmd),
            None => cmd.line(),
        };
        match &mut error {
            ExecError::NotFound { .. } => {}
            ExecError::Spawn { command, why }
            | ExecError::NotAsked { command, why }
            | ExecError::Unexpected { command, why } => {
                *command = line();
                *why = self.fit_to_tell(why).into_owned();
            }
            ExecError::Deadline { command, tail, .. }
            | ExecError::Silent { command, tail, .. }
            | ExecError::Failed { command, tail, .. } => {
                *command = line();
                *tail = self.fit_to_tell(tail).into_owned();
            }
        }
        error
    }

    /// Words of a package manager without the proxy's password.
    pub(super) fn fit_to_tell<'t>(&self, words: &'t str) -> Cow<'t, str> {
        without_logins(words)
    }

    /// The end of a log, with its name.
    pub(in crate::change) fn log_tail(
        &self,
        path: &Utf8Path,
    ) -> Result<Option<String>, ChangeError> {
        Ok(self.host.files.read(path)?.map(|bytes| {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.trim_end().lines().collect();
            let end = &lines[lines.len().saturating_sub(LOG_LINES)..];
            format!("the end of `{path}`:\n{}", end.join("\n"))
        }))
    }
}

/// Words with what kept from looking for better ones.
pub(super) fn also(words: String, second: &ChangeError) -> String {
    format!("{words}\n{}", sentence(second))
}

/// An error on one line, for words in between: what failed, and the tool's own first reason.
fn sentence(error: &ChangeError) -> String {
    if let ChangeError::Packages(PackageError::Failed { what, source, .. }) = error
        && let ExecError::Failed { tail, .. } = &**source
        && let Some(reason) = tail
            .lines()
            .find_map(|line| line.strip_prefix("E: "))
            .or_else(|| tail.lines().last())
    {
        return format!("{what}: {reason}");
    }
    let chain: Vec<String> = std::iter::once(error.to_string())
        .chain(crate::error::causes(error))
        .collect();
    chain.join(": ").replace('\n', " ")
}

/// Whether an error ends with these words anyway.
fn told_already(error: &ExecError, words: &str) -> bool {
    matches!(error, ExecError::Failed { tail, .. } if tail.contains(words))
}

fn is_network(error: &ChangeError) -> bool {
    matches!(
        error,
        ChangeError::Packages(PackageError::Failed {
            fault: Fault::Network,
            ..
        })
    )
}

/// How many stages a transaction will print: a package that comes is unpacked and set up.
pub(super) fn stages(actions: &[Action]) -> usize {
    actions
        .iter()
        .map(|action| match action {
            Action::Install { .. } => 2,
            Action::Remove { .. } => 1,
        })
        .sum()
}
