//! The state of a container runtime: from its files and, if commands can be executed, from the daemon.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use camino::Utf8PathBuf;

use super::version::Version;
use crate::{
    host::{ExecError, FilesError, Output, Query, Reader},
    model::fault::Fault,
};

/// The machine of a runtime, and the data about the runtime that is already known.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The machine, read-only.
    pub host: Reader<'a>,
    /// Whether its program is installed.
    pub installed: bool,
    /// The version, or `None` if unknown.
    pub version: Option<Version>,
}

/// A configuration file, as loaded by the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: Utf8PathBuf,
    /// The content, or `None` if the file does not exist.
    pub text: Option<String>,
}

impl ConfigFile {
    /// Returns the content, or an empty string if the file does not exist.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}

/// The state of a runtime on a machine. Files are always read. The daemon is queried only if commands can be executed.
#[derive(Debug, Clone)]
pub struct RuntimeView {
    /// The files, in reading order. For Docker and containerd, the first one is the root file, even if it does not exist. For
    /// CRI-O, only existing files. Empty for Podman.
    pub files: Vec<ConfigFile>,
    /// A file that the runtime cannot read.
    pub broken: Option<Broken>,
    /// The line that sets a configuration file other than the default.
    pub elsewhere: Option<Elsewhere>,
    /// The configuration merged from the files, or `None` if unknown.
    pub by_files: Option<Config>,
    /// The response of the daemon.
    pub said: LiveConfig,
    /// The version, or `None` if unknown.
    pub version: Option<Version>,
}

impl RuntimeView {
    /// Returns a view without files. A runtime then sets the other fields that it has.
    pub const fn of(said: LiveConfig, version: Option<Version>) -> Self {
        Self {
            files: Vec::new(),
            broken: None,
            elsewhere: None,
            by_files: None,
            said,
            version,
        }
    }

    /// Whether the first file in `files` exists: the root configuration file, or for CRI-O any file.
    pub fn has_file(&self) -> bool {
        self.files.first().is_some_and(|file| file.text.is_some())
    }

    /// Returns the effective configuration, or the configuration of the files if the daemon cannot be queried.
    pub fn config(&self) -> Option<&Config> {
        match &self.said {
            LiveConfig::Known(config) => Some(config),
            LiveConfig::Unknown(_) => self.by_files.as_ref(),
            LiveConfig::Absent | LiveConfig::Silent(_) => None,
        }
    }
}

/// The response of a runtime.
#[derive(Debug, Clone)]
pub enum LiveConfig {
    /// Its program could not be executed, or commands are not allowed, as with `--root`.
    Unknown(Arc<ExecError>),
    /// The program that queries the runtime is not installed.
    Absent,
    /// It does not respond. The text is the client error.
    Silent(String),
    /// The effective configuration.
    Known(Config),
}

/// The configuration of a runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The runtime names.
    pub runtimes: BTreeSet<String>,
    /// The default runtime.
    pub default: Option<String>,
    /// The program of each runtime that sets one.
    pub programs: BTreeMap<String, String>,
    /// Whether systemd is the cgroup driver, for each runtime that sets it.
    pub systemd_cgroup: BTreeMap<String, bool>,
    /// Whether it serves pods. Always true if that cannot be disabled.
    pub serves_pods: bool,
    /// Whether it accepts files that earlier versions reject.
    pub lenient: bool,
    /// Whether it supports CDI but does not use it.
    pub without_cdi: bool,
    /// Whether it has directories of CDI specifications.
    pub uses_cdi: bool,
    /// Whether its containers keep running if it stops.
    pub spares_containers: bool,
}

/// A configuration file that its runtime cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub path: Utf8PathBuf,
    pub why: String,
    /// Whether newer versions accept it.
    pub forgiven: bool,
}

impl Broken {
    /// Creates an error that applies to all versions.
    pub fn for_all(path: impl Into<Utf8PathBuf>, why: String) -> Self {
        Self {
            path: path.into(),
            why,
            forgiven: false,
        }
    }
}

/// A line that sets a configuration file other than the default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// The file that the runtime reads.
    pub config: String,
    /// The file with the line.
    pub path: Utf8PathBuf,
    /// The line number, starting at 1.
    pub line: usize,
}

/// The runtime to configure.
#[derive(Debug, Clone, Copy)]
pub struct Goal<'a> {
    /// The name of the runtime.
    pub name: &'a str,
    /// Whether it must be the default runtime.
    pub default: bool,
    /// Whether containers get devices with CDI.
    pub cdi: bool,
    /// Whether a kubeadm kubelet will use it.
    pub for_kubelet: bool,
}

impl<'a> Goal<'a> {
    /// The goal for a regenerated file that `install` has configured: the runtime and whether it was the default.
    pub const fn saved(name: &'a str, default: bool) -> Self {
        Self {
            name,
            default,
            cdi: true,
            for_kubelet: false,
        }
    }
}

/// An error in the files of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeFault {
    pub harm: Harm,
    pub fault: Fault,
}

impl RuntimeFault {
    /// Creates an error.
    pub fn new(harm: Harm, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            harm,
            fault: Fault::new(why, remedy),
        }
    }
}

/// The effect of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Possibly none, or none yet.
    Perhaps,
    /// Containers of one runtime do not start, or have no GPU.
    Containers,
    /// The runtime does not start.
    All,
}

/// The result of checking the files of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// There are no files to check, with the reason.
    Nothing(String),
    /// The files are valid. The text describes the check.
    Whole(&'static str),
    /// The errors, in the order of detection. Never empty.
    Faulty(Vec<RuntimeFault>),
}

impl Report {
    /// Creates a report of the errors, or a positive report.
    pub fn of(faults: Vec<RuntimeFault>, whole: &'static str) -> Self {
        match faults.is_empty() {
            true => Self::Whole(whole),
            false => Self::Faulty(faults),
        }
    }

    /// Whether the runtime does not start with its files.
    pub fn refuses(&self) -> bool {
        matches!(self, Self::Faulty(faults) if faults.iter().any(|fault| fault.harm == Harm::All))
    }
}

/// Data about the machine that only the caller knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Whether the files belong to the running machine instead of a directory (`--root`).
    pub is_this_machine: bool,
    /// Whether no other runtime is installed.
    pub is_alone: bool,
    /// The owner of the driver, if containers can access the GPU only with the NVIDIA runtime or CDI.
    pub needs_runtime: Option<&'a str>,
    /// Whether the container toolkit is installed on a machine with GPUs and without a kubelet, and gpu-bootstrap has installed
    /// no packages there.
    pub has_toolkit: bool,
}

/// The missing keys of a runtime could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum LackError {
    /// A configuration file is invalid.
    #[error("`{}` cannot be parsed: {}", .0.path, .0.why)]
    Broken(Broken),
    /// A file or directory could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// The state of a runtime could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Its program could not be executed.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// The result of validating the files with the runtime's own binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validated {
    /// The result is unknown.
    NotReported,
    /// The files are rejected, with this message.
    Refused(String),
    /// The configuration that it reads from the files.
    Reads(Config),
    /// The files are accepted.
    Accepted,
}

/// The method for reloading the files of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickUp {
    /// Restart it. Its containers keep running.
    Restart,
    /// Send a signal to reload the files, because a restart may stop its containers.
    Reload(ReloadWords),
}

/// Texts for a daemon whose restart may stop containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadWords {
    /// The setting that keeps containers running during a restart, as a part of a sentence.
    pub spare: &'static str,
    /// The command that queries the daemon, for the administrator.
    pub asks: &'static str,
    /// The ID of the error if the daemon does not report its running containers.
    pub silent: &'static str,
}

/// Whether a daemon is usable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The reason if not. `None` if it is usable, or if its client is not installed.
    pub issue: Option<String>,
    /// Additional notes.
    pub notes: Vec<String>,
}

/// Returns the output of a program, regardless of its exit status, or `None` if it is not installed.
///
/// # Errors
/// If it could not be executed.
pub async fn ask(host: Reader<'_>, query: &Query) -> Result<Option<Output>, ExecError> {
    match host.query(query).await {
        Ok(output) => Ok(Some(output)),
        Err(ExecError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Queries a runtime with its program.
///
/// # Errors
/// If the program could not be executed.
pub async fn said(
    host: Reader<'_>,
    query: &Query,
    parse: impl FnOnce(&Output) -> LiveConfig,
) -> Result<LiveConfig, ExecError> {
    Ok(match ask(host, query).await? {
        None => LiveConfig::Absent,
        Some(output) => parse(&output),
    })
}

impl From<Result<LiveConfig, ExecError>> for LiveConfig {
    fn from(asked: Result<LiveConfig, ExecError>) -> Self {
        asked.unwrap_or_else(|error| Self::Unknown(Arc::new(error)))
    }
}

/// Returns the last line of a program's error output, or of its standard output if there is no error output.
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

/// Returns the last three lines of a program's error output, or of its standard output if there is no error output.
pub fn last_lines(output: &Output) -> String {
    let said = match output.stderr.trim() {
        "" => output.stdout.trim(),
        said => said,
    };
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(3)..].join("\n")
}
