//! What is known of one container runtime on a machine: by its files, and, where programs may be run, by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use camino::Utf8PathBuf;

use super::version::Version;
use crate::host::{ExecError, FilesError, Output, Query, Reader};

/// Where a runtime is looked at, and what is known of it already.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The machine, read-only.
    pub host: Reader<'a>,
    /// Whether its program is there.
    pub installed: bool,
    /// Its version; `None` where nothing tells it.
    pub version: Option<Version>,
}

/// A configuration file, as the runtime loads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: Utf8PathBuf,
    /// Its content; `None` if there is no such file.
    pub text: Option<String>,
}

impl ConfigFile {
    /// Its content; empty if there is no such file.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}

/// A runtime as it is on a machine. Files are always read; what it says of itself only where programs may be run.
#[derive(Debug, Clone)]
pub struct RuntimeView {
    /// Its files, in the order in which it reads them. The first is there although it may have no text.
    pub files: Vec<ConfigFile>,
    /// One of them that it cannot read.
    pub broken: Option<Broken>,
    /// The line that makes it read another file than its usual one.
    pub elsewhere: Option<Elsewhere>,
    /// What its files say together; `None` where they cannot tell it.
    pub by_files: Option<Config>,
    /// What its own program prints of its files, where that is more than they say.
    pub printed: Option<String>,
    /// What it says of itself.
    pub said: Said,
    /// Its version; `None` where nothing tells it.
    pub version: Option<Version>,
}

impl RuntimeView {
    /// The view of a runtime without files, for the fields that it does not set.
    #[must_use]
    pub const fn of(said: Said, version: Option<Version>) -> Self {
        Self {
            files: Vec::new(),
            broken: None,
            elsewhere: None,
            by_files: None,
            printed: None,
            said,
            version,
        }
    }

    /// Whether there is a file that it reads first.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.files.first().is_some_and(|file| file.text.is_some())
    }

    /// What it runs with; where it may not be asked, what its files say.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        match &self.said {
            Said::Known(config) => Some(config),
            Said::Unknown(_) => self.by_files.as_ref(),
            Said::Absent | Said::Silent(_) => None,
        }
    }
}

/// What a runtime says of itself.
#[derive(Debug, Clone)]
pub enum Said {
    /// Its program could not be run, or may not be, as with `--root`.
    Unknown(Arc<ExecError>),
    /// It is not installed.
    Absent,
    /// It does not answer; the text is the error of its client.
    Silent(String),
    /// It answered.
    Known(Config),
}

/// What a runtime is configured with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The names of its runtimes.
    pub runtimes: BTreeSet<String>,
    /// Its default runtime.
    pub default: Option<String>,
    /// The programs that run containers, by runtime, where it names them.
    pub programs: BTreeMap<String, String>,
    /// The runtimes for which systemd makes the control groups, or not, where that is said.
    pub systemd_cgroup: BTreeMap<String, bool>,
    /// It serves pods; always so where it cannot be switched off.
    pub serves_pods: bool,
    /// It forgives flaws of its file that earlier versions do not.
    pub lenient: bool,
    /// It knows CDI, and does not use it.
    pub without_cdi: bool,
    /// It has folders of CDI specifications.
    pub uses_cdi: bool,
    /// Its containers keep running when it stops.
    pub spares_containers: bool,
}

/// A configuration file that its runtime does not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub path: Utf8PathBuf,
    pub why: String,
    /// Whether newer versions read it all the same.
    pub forgiven: bool,
}

impl Broken {
    /// One that no version reads.
    #[must_use]
    pub fn for_all(path: impl Into<Utf8PathBuf>, why: String) -> Self {
        Self {
            path: path.into(),
            why,
            forgiven: false,
        }
    }
}

/// A line that makes a runtime read another configuration file than its usual one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// The file that it reads.
    pub config: String,
    /// The file that has the line.
    pub path: Utf8PathBuf,
    /// The number of the line, from 1.
    pub line: usize,
}

/// What a runtime has to know.
#[derive(Debug, Clone, Copy)]
pub struct Goal<'a> {
    /// The name of the runtime that it has to know.
    pub name: &'a str,
    /// Whether it has to be the default one.
    pub default: bool,
    /// Whether containers get devices by CDI.
    pub cdi: bool,
    /// Whether a kubelet of kubeadm's will use it.
    pub for_kubelet: bool,
}

/// A fault of the files of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong, and what follows.
    pub why: String,
    /// What mends it.
    pub remedy: String,
    pub harm: Harm,
}

/// What a fault does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Perhaps nothing, or nothing yet.
    Perhaps,
    /// Containers of one runtime do not start, or not with a GPU.
    Containers,
    /// It does not start.
    All,
}

/// What is told of the files of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// There is nothing to judge, and why.
    Nothing(String),
    /// They are right; the text says what was looked at.
    Whole(&'static str),
    /// What is wrong, the worst or the first one first; never empty.
    Faulty(Vec<Fault>),
}

impl Report {
    /// The faults, or that all is right.
    #[must_use]
    pub fn of(faults: Vec<Fault>, whole: &'static str) -> Self {
        match faults.is_empty() {
            true => Self::Whole(whole),
            false => Self::Faulty(faults),
        }
    }

    /// Whether it does not start with its files.
    #[must_use]
    pub fn refuses(&self) -> bool {
        matches!(self, Self::Faulty(faults) if faults.iter().any(|fault| fault.harm == Harm::All))
    }
}

/// What only the caller knows of a machine whose files are judged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Whether this is the machine itself, and no tree of files.
    pub is_this_machine: bool,
    /// Whether no other runtime is there.
    pub is_alone: bool,
    /// Who else owns the driver, where containers reach the GPU by NVIDIA's runtime or by CDI alone.
    pub needs_runtime: Option<&'a str>,
}

/// Why it is unknown which keys the files of a runtime lack.
#[derive(Debug, thiserror::Error)]
pub enum LackError {
    /// A configuration file is invalid.
    #[error("`{}` cannot be read: {}", .0.path, .0.why)]
    Broken(Broken),
    /// A file or folder could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// Why a runtime could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// One of its files could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Its program could not be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// What its own program makes of the files before the daemon is touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validated {
    /// Nothing tells it.
    Untold,
    /// It refuses them, with these words.
    Refused(String),
    /// It reads this in them.
    Reads(Config),
    /// It would start with them.
    Accepted,
}

/// How a daemon takes up its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickUp {
    /// It is restarted: its containers keep running.
    Restart,
    /// It reads them again after a signal, and a restart may stop its containers.
    Reload(ReloadWords),
}

/// What is told of a daemon whose restart may stop its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadWords {
    /// What people can set so that a restart stops none, as a part of a sentence.
    pub spare: &'static str,
    /// The command that asks it, for people.
    pub asks: &'static str,
    /// The reason where it does not tell what runs.
    pub silent: &'static str,
}

/// Whether a daemon can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Why not; `None` if it can, or if its client is not installed and it cannot be asked.
    pub flaw: Option<String>,
    /// What is told beside it.
    pub notes: Vec<String>,
}

/// The output of a program, whatever its exit status; `None` if it is not installed.
///
/// # Errors
/// When it could not be run.
pub async fn ask(host: Reader<'_>, query: &Query) -> Result<Option<Output>, ExecError> {
    match host.query(query).await {
        Ok(output) => Ok(Some(output)),
        Err(ExecError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a runtime says, by the answer of its program.
///
/// # Errors
/// When the program could not be run.
pub async fn said(
    host: Reader<'_>,
    query: &Query,
    parse: impl FnOnce(&Output) -> Said,
) -> Result<Said, ExecError> {
    Ok(match ask(host, query).await? {
        None => Said::Absent,
        Some(output) => parse(&output),
    })
}

impl From<Result<Said, ExecError>> for Said {
    fn from(asked: Result<Said, ExecError>) -> Self {
        asked.unwrap_or_else(|error| Self::Unknown(Arc::new(error)))
    }
}

/// The last line of a program's output.
#[must_use]
pub fn last_words(output: &Output) -> String {
    let said = match output.stderr.trim().is_empty() {
        true => &output.stdout,
        false => &output.stderr,
    };
    said.lines()
        .next_back()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The last lines of a program's errors.
#[must_use]
pub fn last_lines(output: &Output) -> String {
    let said = match output.stderr.trim() {
        "" => output.stdout.trim(),
        said => said,
    };
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("\n")
}
