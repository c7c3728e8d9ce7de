//! Runs a package manager. Progress is read from its output, transient failures are retried, and other failures get a class and
//! an explanation.

use std::time::Duration;

use camino::Utf8Path;

use super::{failure, has_failed};
use crate::{
    change::{Applier, ChangeError, Class, Sink},
    error::one_line,
    host::{Cmd, ExecError, Output, Stream, exec::tail},
    model::secret::{without_logins, without_secret_lines},
    tools::packages::{Action, Exclusion, FailureClass, Impact, SourceFailure},
};

/// Pauses between attempts after a transient failure.
const BACKOFF: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

/// No further attempt is made if two or more downloads of the lists failed with a network error and took longer than this in
/// total. Network errors that take so long are caused by dropped packets, and each further attempt would take as long.
const NETWORK_TIME_LIMIT: Duration = Duration::from_secs(180);

/// The number of compiler log lines in an error.
const LOG_LINES: usize = 30;

/// The remaining attempts after transient failures.
#[derive(Debug)]
pub(super) struct Attempts(std::slice::Iter<'static, Duration>);

impl Attempts {
    pub(super) fn new() -> Self {
        Self(BACKOFF.iter())
    }
}

/// The number of lines that a command will print, see [`crate::tools::packages::Messages::is_stage`]. Zeros if unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    /// Downloaded packages.
    pub downloads: usize,
    /// Stages of packages after the download. An installed or upgraded package is unpacked and then configured.
    pub stages: usize,
}

impl Expected {
    /// The lines of a transaction.
    pub(super) fn of(actions: &[Action]) -> Self {
        let downloads = actions.iter().filter_map(Action::installed).count();
        Self {
            downloads,
            stages: actions.len() + downloads,
        }
    }
}

impl Applier {
    /// Runs a command whose effect does not depend on the package lists, so it needs no new approval before a retry. Transient
    /// failures are retried.
    pub(super) async fn run_with_retries(
        &self,
        what: &str,
        cmd: Cmd,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut attempts = Attempts::new();
        while let Err(error) = self
            .run_and_sync(what, &cmd, Expected::default(), sink)
            .await
        {
            self.wait_before_retry(&mut attempts, error, sink).await?;
        }
        Ok(())
    }

    /// Runs a command that writes package files, without retries, and syncs. The package manager's own records would otherwise
    /// report a complete transaction after a power loss, although files are missing.
    pub(super) async fn run_and_sync(
        &self,
        what: &str,
        cmd: &Cmd,
        expected: Expected,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let begun = self.host.clock.now().as_second();
        let ran = match self.run_once(what, cmd, expected, sink).await {
            Ok(()) => self.run_needed_triggers(sink).await,
            Err(error) => Err(error),
        };
        self.tell_of_compiled_modules(begun, sink);
        self.synced_after(ran, sink).await
    }

    /// Syncs after a command, even if it failed. The error of the command takes precedence.
    async fn synced_after(
        &self,
        ran: Result<(), ChangeError>,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        match (ran, self.sync_system().await) {
            (Ok(()), synced) => synced,
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(second)) => {
                sink.line(&one_line(&second));
                Err(error)
            }
        }
    }

    /// Downloads the package lists. Transient failures are retried.
    pub(super) async fn fetch_lists(
        &self,
        mut refresh: Cmd,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let mut attempts = Attempts::new();
        let mut network_times = Vec::new();
        loop {
            let begin = self.host.clock.monotonic();
            let Err(error) = self.fetch_lists_once(&refresh, sink).await else {
                return Ok(());
            };
            if is_network(&error) {
                network_times.push(self.host.clock.monotonic().saturating_sub(begin));
                if network_times.len() > 1
                    && network_times.iter().sum::<Duration>() > NETWORK_TIME_LIMIT
                {
                    return Err(error);
                }
            }
            // A proxy cache may contain older lists than the mirror, so bypass it.
            if self.wait_if_transient(&mut attempts, error, sink).await? == FailureClass::Stale {
                refresh = self.backend.refresh(&self.settings(), true);
            }
        }
    }

    async fn fetch_lists_once(&self, refresh: &Cmd, sink: &dyn Sink) -> Result<(), ChangeError> {
        const WHAT: &str = "download the package lists";
        let mut output = self
            .run_output(WHAT, refresh, Expected::default(), sink)
            .await?;
        let mut words = format!("{}\n{}", output.stdout, output.stderr);
        let torn = self.backend.torn_caches(&*self.host.files, &words)?;
        if !torn.is_empty() {
            for path in &torn {
                self.host.files.remove(path)?;
            }
            output = self
                .run_output(WHAT, refresh, Expected::default(), sink)
                .await?;
            words = format!("{}\n{}", output.stdout, output.stderr);
        }
        let failed = self.backend.failed_sources(&words);
        if self.backend.has_succeeded(&output) && failed.is_none() {
            return Ok(());
        }
        if let Some(unneeded) = self.unneeded_sources(&words).await? {
            for SourceFailure { address, why } in unneeded {
                sink.line(&format!(
                    "warning: {address} failed, which is ignored because it has no required \
                     package: {why}"
                ));
            }
            return Ok(());
        }
        let Some(failed) = failed.filter(|_| output.ok()) else {
            return self.check_status(WHAT, refresh, output);
        };
        // Some versions of the package manager report a failed source as a warning and succeed.
        let source = ExecError::Failed {
            command: self.backend.short_line(refresh),
            status: output.status,
            tail: tail(&failed),
        };
        Err(self.failed(WHAT, source, &words))
    }

    /// Waits after a transient failure, and downloads the lists again if they were stale. A failed download of the lists also
    /// counts as an attempt. The machine may have changed in the meantime, so the caller must approve the next attempt again.
    ///
    /// # Errors
    /// The error itself if it is permanent or if no attempt remains, or a stop request.
    pub(super) async fn wait_before_retry(
        &self,
        attempts: &mut Attempts,
        error: ChangeError,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        if self.wait_if_transient(attempts, error, sink).await? == FailureClass::Stale {
            let refresh = self.backend.refresh(&self.settings(), true);
            while let Err(error) = self.fetch_lists_once(&refresh, sink).await {
                self.wait_if_transient(attempts, error, sink).await?;
            }
        }
        Ok(())
    }

    async fn wait_if_transient(
        &self,
        attempts: &mut Attempts,
        error: ChangeError,
        sink: &dyn Sink,
    ) -> Result<FailureClass, ChangeError> {
        let Class::PackageManager(class) = error.class else {
            return Err(error);
        };
        let (true, Some(pause)) = (class.is_transient(), attempts.0.next()) else {
            return Err(error);
        };
        sink.retry(&self.sentence(&error), pause.as_secs_f64());
        self.pause_for(*pause, "wait before another attempt")
            .await?;
        if class == FailureClass::Locked {
            self.wait_for_locks(sink).await?;
        }
        Ok(class)
    }

    /// Runs a command once, and reports its progress if its `expected` lines are known.
    pub(super) async fn run_once(
        &self,
        what: &str,
        cmd: &Cmd,
        expected: Expected,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let output = self.run_output(what, cmd, expected, sink).await?;
        let words = format!("{}\n{}", output.stdout, output.stderr);
        let status = output.status.clone();
        self.check_status(what, cmd, output)?;
        let Some(scripts) = self.backend.failed_scripts(&words) else {
            return Ok(());
        };
        // The packages count as installed, but their scripts were not executed completely.
        if let Some(path) = self.backend.failed_scripts_record() {
            let before = self.host.files.read_text(&path)?.unwrap_or_default();
            let text = format!("{before}{scripts}\n");
            self.host.files.write(&path, text.as_bytes(), 0o600)?;
        }
        let source = ExecError::Failed {
            command: self.backend.short_line(cmd),
            status,
            tail: scripts,
        };
        Err(self.failed(what, source, &words))
    }

    /// Runs a removal once. A script that fails after the removal leaves nothing to repair.
    pub(super) async fn run_removal(
        &self,
        what: &str,
        cmd: &Cmd,
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        let output = self
            .run_output(what, cmd, Expected::default(), sink)
            .await?;
        let words = format!("{}\n{}", output.stdout, output.stderr);
        let ran = self.check_status(what, cmd, output);
        self.synced_after(ran, sink).await?;
        if let Some(scripts) = self.backend.failed_scripts(&words) {
            sink.note(&format!("during the removal of packages: {scripts}"));
        }
        Ok(())
    }

    /// Runs a command and removes credentials from its output.
    async fn run_output(
        &self,
        what: &str,
        cmd: &Cmd,
        expected: Expected,
        sink: &dyn Sink,
    ) -> Result<Output, ChangeError> {
        let (mut done, mut fetched) = (0, 0);
        let (mut size, mut started, mut finished) = (None, 0, 0);
        let ran = self
            .host
            .exec
            .run(cmd, &mut |stream, line| {
                if !line.trim().is_empty() {
                    sink.line(&without_secrets(line));
                }
                if stream == Stream::Out {
                    size = self.backend.download_size(line).or(size);
                }
                if stream == Stream::Out && self.backend.is_stage(line) {
                    // The output of a package script may look like a stage.
                    let next = |count: usize, most: usize| (count + 1).min(most);
                    match self.backend.download_part(line) {
                        Some(part) if expected.downloads > 0 => {
                            // apt prints this line when a download starts. dnf prints it when a download is finished, so its
                            // progress is one download behind.
                            finished = started;
                            started += part;
                            fetched = next(fetched, expected.downloads);
                            let total = Some(expected.downloads as u64);
                            sink.progress(fetched as u64, total, "packages");
                            sink.progress(finished, size, "bytes");
                        }
                        None if expected.stages > 0 => {
                            done = next(done, expected.stages);
                            let percent = (done * 100 / expected.stages) as u64;
                            sink.progress(percent, Some(100), "percent");
                        }
                        _ => {}
                    }
                }
            })
            .await;
        let output =
            ran.map_err(|source| failure(FailureClass::Other, what, self.short(source, cmd)))?;
        Ok(Output {
            status: output.status,
            stdout: without_secrets(&output.stdout),
            stderr: without_secrets(&output.stderr),
        })
    }

    fn check_status(&self, what: &str, cmd: &Cmd, output: Output) -> Result<(), ChangeError> {
        if self.backend.has_succeeded(&output) {
            return Ok(());
        }
        let words = format!("{}\n{}", output.stdout, output.stderr);
        let source = self.short(output.failure(cmd), cmd);
        Err(self.failed(what, source, &words))
    }

    /// The error of a command, with its class and an explanation.
    fn failed(&self, what: &str, source: ExecError, words: &str) -> ChangeError {
        let class = self.class_in(words);
        let attachment = self.attachment(class, words);
        ChangeError {
            hint: self.hint_about(class, words),
            words: attachment.filter(|text| !already_contains(&source, text)),
            ..failure(class, what, source)
        }
    }

    /// The failure class of the output. A filesystem without inodes has the same error number as a full one.
    pub(super) fn class_in(&self, words: &str) -> FailureClass {
        match self.backend.failure_class(words) {
            FailureClass::NoSpace if !self.without_inodes().is_empty() => FailureClass::Inodes,
            class => class,
        }
    }

    /// The remedy for this failure. For a signature or network error, it also contains the unusable keyrings or the proxies in
    /// the package manager's configuration, because the package manager's error messages often do not.
    pub(super) fn hint_about(&self, class: FailureClass, words: &str) -> Option<String> {
        if let Some(remedy) = self.backend.remedy(words) {
            return Some(remedy.to_owned());
        }
        let hint = class.hint_for(self.backend.name()).map(str::to_owned);
        let files = &*self.host.files;
        let found = match class {
            FailureClass::Inodes => {
                let remedies = self.without_inodes();
                return Some(remedies.join("; "))
                    .filter(|text| !text.is_empty())
                    .or(hint);
            }
            FailureClass::Network => self.backend.proxies(files).map(|lines| {
                (lines.into_iter())
                    .map(|line| {
                        format!(
                            "{line}, which takes precedence over `packages.proxy`: correct or \
                             remove it if this proxy does not work"
                        )
                    })
                    .collect()
            }),
            FailureClass::Key => self.backend.source_issues(files).map(|issues| {
                (issues.into_iter())
                    .filter(|issue| matches!(issue.impact, Impact::Source | Impact::Lacking))
                    .map(|issue| format!("{}: {}", issue.why, issue.remedy))
                    .collect()
            }),
            _ => return hint,
        };
        let mut found: Vec<String> = found.unwrap_or_else(|second| {
            tracing::debug!(%second, "the package manager's settings cannot be read");
            Vec::new()
        });
        if found.is_empty() {
            return hint;
        }
        found.extend(hint.map(|hint| format!("otherwise {hint}")));
        Some(found.join("; "))
    }

    /// Replaces the hint with one that lists the `exclude` and pin lines that hide the packages, if any. For the package
    /// manager a hidden package does not exist.
    pub(super) fn name_exclusions(&self, mut error: ChangeError, specs: &[&str]) -> ChangeError {
        let concerned: Vec<String> = match &error.class {
            Class::NoVersion(package) => vec![package.clone()],
            Class::PackageManager(
                FailureClass::Held
                | FailureClass::NotFound
                | FailureClass::Unmet
                | FailureClass::Other,
            ) => {
                let said = error.source.as_ref().map(ToString::to_string);
                let said = [error.words.clone(), said]
                    .map(Option::unwrap_or_default)
                    .join(" ");
                let words = said.split(|c: char| c.is_whitespace() || "'\"(),;=".contains(c));
                let named = words.chain(specs.iter().copied()).map(str::to_owned);
                named.collect()
            }
            _ => return error,
        };
        let found = match self.backend.exclusions(&*self.host.files) {
            Ok(found) => found,
            Err(second) => {
                tracing::debug!(%second, "the package exclusions cannot be read");
                Vec::new()
            }
        };
        let lines: Vec<String> = (found.iter())
            .filter(|one| concerned.iter().any(|name| one.hides(name)))
            .map(ToString::to_string)
            .collect();
        if !lines.is_empty() {
            error.hint = Some(Exclusion::remedy(&lines));
        }
        error
    }

    /// Additional text for the user: the compiler errors, or the line with the failure. An error of this diagnosis is appended,
    /// so that it does not hide the first error.
    fn attachment(&self, class: FailureClass, words: &str) -> Option<String> {
        let diagnosis = match class {
            FailureClass::Build => match class.log_named_in(words) {
                Some(path) => self.log_tail(&path),
                None => Ok(Some(tail(words))),
            },
            FailureClass::SignedBy => self.contradictions(),
            FailureClass::Script
            | FailureClass::Unmet
            | FailureClass::NotFound
            | FailureClass::Other => {
                Ok((self.backend.preflight_issue(words)).or_else(|| Some(tail(words))))
            }
            _ => Ok(self.backend.telling_line(words).map(str::to_owned)),
        };
        diagnosis
            .unwrap_or_else(|second| Some(self.with_error(tail(words), &second)))
            .filter(|text| !text.is_empty())
    }

    /// A text with the error of the diagnosis appended.
    pub(super) fn with_error(&self, words: String, second: &ChangeError) -> String {
        format!("{words}\n{}", self.sentence(second))
    }

    /// An error in one line, for messages during a run: the failed action and the first reason of the tool.
    fn sentence(&self, error: &ChangeError) -> String {
        if has_failed(error)
            && let Some(ExecError::Failed { tail, .. }) = error.ended()
            && let Some(reason) = self.backend.first_reason(tail)
        {
            return format!("{}: {reason}", error.what);
        }
        one_line(error).replace('\n', " ")
    }

    /// An error of a command with a short command line and without credentials.
    pub(super) fn short(&self, mut error: ExecError, cmd: &Cmd) -> ExecError {
        let line = || self.backend.short_line(cmd);
        match &mut error {
            ExecError::NotFound { .. } => {}
            ExecError::Spawn { command, why }
            | ExecError::NotQueried { command, why }
            | ExecError::Unexpected { command, why } => {
                *command = line();
                *why = without_logins(why).into_owned();
            }
            ExecError::Deadline { command, tail, .. }
            | ExecError::Silent { command, tail, .. }
            | ExecError::Failed { command, tail, .. } => {
                *command = line();
                *tail = without_secrets(tail);
            }
        }
        error
    }

    /// The end of a log, with its path.
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

/// The output of a package manager without credentials.
pub(super) fn without_secrets(text: &str) -> String {
    without_logins(&without_secret_lines(text)).into_owned()
}

/// Returns `true` if an error already contains this text.
fn already_contains(error: &ExecError, words: &str) -> bool {
    matches!(error, ExecError::Failed { tail, .. } if tail.contains(words))
}

fn is_network(error: &ChangeError) -> bool {
    error.class == Class::PackageManager(FailureClass::Network)
}
