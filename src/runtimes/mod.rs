//! Container runtimes. Each has a folder or a file of its own with all that is known about it; the rest of the program uses
//! only [`Runtime`], and of those with a daemon [`Configured`], and of those that run a container for a proof [`Containers`].
//! [`RuntimeKind::runtime`] is the one place that distinguishes runtimes.
//!
//! To add one (`podman.rs` is the smallest):
//!
//! 1. Here its `mod`, a variant of [`RuntimeKind`] with its name and its arm in `runtime()`, and, if it has a daemon that is
//!    configured, a variant of [`Daemon`]. Its file has a type that implements [`Runtime`]. `check` reads its files from here on.
//! 2. A row of each step id in `steps/mod.rs`, and the rows of its findings in `model/findings.toml` and `checks/causes.rs`.
//! 3. Rows `[[runtime]]` with its packages in the profiles: until a profile has one, `runtime.use` refuses it with that sentence.
//! 4. Its simulated program in `tests/machine/containers.rs`, and a scenario.

pub mod cdi;
pub mod choice;
pub mod containerd;
pub mod crictl;
pub mod crio;
pub mod docker;
pub mod podman;
pub mod program;
#[cfg(test)]
mod tests;
mod version;
pub mod view;

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use containerd::{KubernetesDistribution, OWNERS, PROGRAMS};
pub use version::Version;
pub use view::{
    Answer, Broken, Config, ConfigFile, Elsewhere, Fault, Goal, Harm, LackError, PickUp, Place,
    ReadError, ReloadWords, Report, RuntimeView, Said, Surroundings, Validated,
};

use crate::{
    host::{Cmd, ExecError, FilesError, Host, Output, Query, ReadFiles, Reader},
    model::document::FileSettings,
    tools::systemctl,
};

/// The name of NVIDIA's runtime.
pub const NVIDIA: &str = "nvidia";

/// The name of the runtime that each of them has built in.
pub const BUILT_IN: &str = "runc";

/// Container runtimes known.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeKind {
    /// Docker Engine.
    Docker,
    /// containerd, as the kubelet uses it.
    Containerd,
    /// CRI-O, as the kubelet uses it.
    Crio,
    /// Podman, which has no daemon and reads the CDI specification itself.
    Podman,
}

impl RuntimeKind {
    /// All of them, in the order of the document of `facts`.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Containerd, Self::Podman, Self::Crio];

    /// Its place in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|kind| *kind == self)
            .unwrap_or_default()
    }

    /// What is known about it.
    #[must_use]
    pub const fn runtime(self) -> &'static dyn Runtime {
        match self {
            Self::Docker => &docker::Docker,
            Self::Containerd => &containerd::Containerd,
            Self::Crio => &crio::Crio,
            Self::Podman => &podman::Podman,
        }
    }

    /// Its name, which is that of its client, too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
            Self::Podman => "podman",
        }
    }

    /// The daemon that runs its containers and has to be configured; `None` if there is none.
    #[must_use]
    pub const fn daemon(self) -> Option<Daemon> {
        match self {
            Self::Docker => Some(Daemon::Docker),
            Self::Containerd => Some(Daemon::Containerd),
            Self::Crio => Some(Daemon::Crio),
            Self::Podman => None,
        }
    }

    /// Whether a container can be run in it for a test.
    #[must_use]
    pub fn runs_single_containers(self) -> bool {
        self.runtime().containers().is_some()
    }

    /// The one that serves a kubelet at this socket.
    #[must_use]
    pub fn of_socket(socket: &str) -> Option<Self> {
        let plain = socket.strip_prefix("/var").unwrap_or(socket);
        (Self::ALL.into_iter()).find(|kind| kind.runtime().facts().sockets.contains(&plain))
    }
}

/// A container runtime that runs as a daemon, with a configuration of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Daemon {
    /// Docker Engine.
    Docker,
    /// containerd, as the kubelet uses it.
    Containerd,
    /// CRI-O, as the kubelet uses it.
    Crio,
}

impl Daemon {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Docker, Self::Containerd, Self::Crio];

    /// Its name, which is that of its client, too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.kind().name()
    }

    /// The runtime.
    #[must_use]
    pub const fn kind(self) -> RuntimeKind {
        match self {
            Self::Docker => RuntimeKind::Docker,
            Self::Containerd => RuntimeKind::Containerd,
            Self::Crio => RuntimeKind::Crio,
        }
    }

    /// How it is configured.
    #[must_use]
    pub const fn configured(self) -> &'static dyn Configured {
        match self {
            Self::Docker => &docker::Docker,
            Self::Containerd => &containerd::Containerd,
            Self::Crio => &crio::Crio,
        }
    }
}

/// What never changes about a runtime.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeFacts {
    /// As sentences name it.
    pub title: &'static str,
    /// Packages that bring it, whoever has made them.
    pub packages: &'static [&'static str],
    /// Its program, where packages and people put it.
    pub binaries: &'static [&'static str],
    /// Its unit; `None` for a runtime without a daemon.
    pub unit: Option<&'static str>,
    /// The folder of its configuration.
    pub folder: &'static str,
    /// Its TOML file with a `version`, if it has one.
    pub versioned: Option<&'static str>,
    /// Where it keeps images and containers, if they may fill a filesystem of their own.
    pub data: Option<&'static str>,
    /// How the API server names it before its version.
    pub scheme: &'static str,
    /// The socket by which kubeadm has a kubelet use it; `None` if it may not.
    pub cri: Option<&'static str>,
    /// Where it serves a kubelet, without `/var`.
    pub sockets: &'static [&'static str],
    /// Bridges of its own network.
    pub bridge: Option<&'static str>,
    /// Where its maker has repositories for all systems.
    pub repositories: Option<&'static str>,
    /// Whether `runtime.source` says where its packages come from.
    pub has_sources: bool,
    /// The first version that gives GPUs to containers; `None` if all do.
    pub first: Option<Version>,
    /// The first version that reads groups in CDI specifications; `None` if it reads none by itself.
    pub reads_groups: Option<Version>,
}

/// What is known about one container runtime.
#[async_trait]
pub trait Runtime: Debug + Send + Sync {
    /// What never changes about it.
    fn facts(&self) -> &'static RuntimeFacts;

    /// Looks at it: its files, and what it says of itself where programs may be run.
    ///
    /// # Errors
    /// When a file cannot be read, or its program cannot be run. That it does not answer is no error.
    async fn view(&self, place: Place<'_>) -> Result<RuntimeView, ReadError>;

    /// Judges its files.
    ///
    /// # Errors
    /// As for [`Runtime::view`].
    async fn report(
        &self,
        _place: Place<'_>,
        _view: &RuntimeView,
        _surroundings: Surroundings<'_>,
    ) -> Result<Option<Report>, ReadError> {
        Ok(None)
    }

    /// Returns where it is in another form, which does not read its usual file; with the remedy. `None` if it is not.
    ///
    /// # Errors
    /// When a folder cannot be read.
    fn in_another_form(&self, _files: &dyn ReadFiles) -> Result<Option<OtherForm>, FilesError> {
        Ok(None)
    }

    /// Why a kubelet does not start with it, by their versions.
    fn refuses_kubelet(&self, _kubelet: &str, _version: &str) -> Option<String> {
        None
    }

    /// Why a kubelet was not tested with it, by their versions; with a link.
    fn untested_kubelet(&self, _kubelet: &str, _version: &str) -> Option<(String, &'static str)> {
        None
    }

    /// The Kubernetes distributions that bring one of their own.
    fn owners(&self) -> &'static [KubernetesDistribution] {
        &[]
    }

    /// How a container is run in it for a proof; `None` if it runs none by itself.
    fn containers(&self) -> Option<&dyn Containers> {
        None
    }
}

/// A form of a runtime that is not configured here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherForm {
    /// Why it cannot be used, as a sentence.
    pub why: String,
    /// The folder that shows it.
    pub folder: &'static str,
    /// What helps.
    pub remedy: &'static str,
}

/// A configuration that others write anew after `install` has run.
#[derive(Debug, Clone, Copy)]
pub struct Rewritten {
    /// Units and programs that write it: one of them is enough.
    pub units: &'static [&'static str],
    pub programs: &'static [&'static str],
    /// The file.
    pub file: &'static str,
    /// The drop-in of the daemon's unit by which this program puts back what it has set.
    pub drop_in: &'static str,
    /// The subcommand that does it.
    pub subcommand: &'static str,
}

impl Rewritten {
    /// Whether somebody writes it.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn is_so(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        for program in self.programs {
            if files.exists(Utf8Path::new(program))? {
                return Ok(true);
            }
        }
        for unit in self.units {
            for folder in systemctl::FOLDERS {
                if files.exists(&Utf8Path::new(folder).join(unit))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Folders in which this program writes files for daemons.
pub fn written_folders() -> impl Iterator<Item = &'static str> {
    let rewritten = Daemon::ALL
        .into_iter()
        .filter_map(|daemon| daemon.configured().rewritten());
    rewritten.filter_map(|one| Some(one.drop_in.rsplit_once('/')?.0))
}

/// Folders with their configuration, and with CDI specifications.
pub fn folders() -> impl Iterator<Item = &'static str> {
    let own = RuntimeKind::ALL
        .into_iter()
        .map(|kind| kind.runtime().facts().folder);
    own.chain(cdi::FOLDERS)
}

/// Where they keep images and containers.
pub fn data_folders() -> impl Iterator<Item = &'static str> {
    (RuntimeKind::ALL.into_iter()).filter_map(|kind| kind.runtime().facts().data)
}

/// Whose repository this is, and what stands in its address behind it: a system is a folder, and a release of it a suite.
#[must_use]
pub fn vendor_repository(uri: &str) -> Option<(&'static str, &str)> {
    RuntimeKind::ALL.into_iter().find_map(|kind| {
        let facts = kind.runtime().facts();
        let (_, rest) = uri.split_once(facts.repositories?)?;
        Some((facts.title, rest))
    })
}

/// The units of the daemons, as unit files list them.
#[must_use]
pub fn units() -> String {
    let units = RuntimeKind::ALL
        .into_iter()
        .filter_map(|kind| kind.runtime().facts().unit);
    units.collect::<Vec<_>>().join(" ")
}

/// A runtime with a daemon that is configured by files.
#[async_trait]
pub trait Configured: Debug + Send + Sync {
    /// The keys that its files lack of a goal, by file; none if they say all of it.
    ///
    /// # Errors
    /// If a file is invalid or cannot be read.
    fn lacking(
        &self,
        files: &dyn ReadFiles,
        view: &RuntimeView,
        goal: &Goal<'_>,
    ) -> Result<Vec<FileSettings>, LackError>;

    /// Whether it has to be told to use CDI.
    fn needs_cdi(&self, _view: &RuntimeView, _goal: &Goal<'_>) -> bool {
        false
    }

    /// What its own program makes of its files, without the daemon.
    ///
    /// # Errors
    /// When the program could not be run.
    async fn validate(
        &self,
        host: Reader<'_>,
        unit: &str,
        paths: &[&Utf8Path],
    ) -> Result<Validated, ReadError>;

    /// How it takes up its files.
    fn pick_up(&self) -> PickUp {
        PickUp::Restart
    }

    /// Whether it is configured for a kubelet of kubeadm's, too, where no container toolkit is wanted.
    fn is_for_kubelet(&self) -> bool {
        false
    }

    /// The command that tells what its files say, if a daemon that is silent refuses them; for people.
    fn dump(&self) -> Option<&'static str> {
        None
    }

    /// Who writes its whole file anew after `install` has run, and what has the runtime put back.
    fn rewritten(&self) -> Option<&'static Rewritten> {
        None
    }

    /// Puts back what `install` has set in a file that was written anew.
    ///
    /// # Errors
    /// Why that cannot be, in one line.
    async fn put_back(&self, _host: &Host, _goal: &Goal<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Asks it with what it runs.
    ///
    /// # Errors
    /// When its program could not be run. That it does not answer is no error.
    async fn said(&self, host: Reader<'_>) -> Result<Said, ExecError>;

    /// Whether it can be used; `for_kubelet`, too.
    ///
    /// # Errors
    /// When its client could not be run.
    async fn answers(&self, host: Reader<'_>, for_kubelet: bool) -> Result<Answer, ExecError>;

    /// Names or ids of the containers that it runs.
    ///
    /// # Errors
    /// When its client could not be run, or the daemon does not answer.
    async fn running(&self, host: Reader<'_>) -> Result<Vec<String>, ExecError>;
}

/// A container that is run to its end.
#[derive(Debug, Clone, Copy)]
pub struct OneContainer<'a> {
    /// Its name.
    pub name: &'a str,
    /// The image, as [`Containers::image_name`] names it; `None` where `root` is its filesystem.
    pub image: Option<&'a str>,
    /// The image that is made of `root` where that is needed: [`Containers::import`].
    pub own_image: &'a str,
    /// The folder with the program.
    pub root: &'a Utf8Path,
    /// What is mounted read-only, with its place inside.
    pub mounts: &'a [(Utf8PathBuf, &'static str)],
    /// Program and arguments.
    pub command: &'a [&'a str],
}

/// How a container is run in a runtime for a proof.
#[async_trait]
pub trait Containers: Debug + Send + Sync {
    /// The name of an image for its client.
    fn image_name(&self, image: &str) -> String;

    /// Asks whether an image is there; the answer is for [`Containers::has_image`].
    fn find_image(&self, image: &str) -> Query;

    /// Whether the image is there, by the answer to [`Containers::find_image`]; `None` if that is an error.
    fn has_image(&self, image: &str, output: &Output) -> Option<bool>;

    /// Pulls an image.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    fn pull(&self, files: &dyn ReadFiles, image: &str) -> Result<Cmd, FilesError>;

    /// Whether its client downloads, by the proxy of the environment; otherwise the daemon does, with its own settings.
    fn client_pulls(&self) -> bool {
        true
    }

    /// Removes an image.
    fn remove_image(&self, image: &str) -> Cmd;

    /// Whether an image that a container uses stays: its removal fails then.
    fn keeps_used_images(&self) -> bool {
        false
    }

    /// Makes an image of an archive; `None` if a folder is enough as the filesystem of a container.
    fn import(&self, _archive: &Utf8Path, _image: &str) -> Option<Cmd> {
        None
    }

    /// Runs a container.
    fn start(&self, container: &OneContainer<'_>) -> Cmd;

    /// Ends and removes a container; it is no error if there is none.
    ///
    /// # Errors
    /// When its client fails.
    async fn remove(
        &self,
        host: &Host,
        name: &str,
        image: Option<&str>,
        line: &(dyn for<'t> Fn(&'t str) + Sync),
    ) -> Result<(), ExecError>;

    /// Whether [`Containers::remove`] fails in some versions where there is no such container.
    fn may_miss(&self) -> bool {
        false
    }
}

/// The variables that request all GPUs and the compute libraries from the nvidia runtime.
const VARIABLES: &str =
    "--env=NVIDIA_VISIBLE_DEVICES=all --env=NVIDIA_DRIVER_CAPABILITIES=compute,utility";

/// Arguments, by a line without quotes.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// What is mounted read-only, where `read_only` is the client's word for that.
fn mounts<'a>(
    container: &'a OneContainer<'a>,
    read_only: &'a str,
) -> impl Iterator<Item = String> + 'a {
    (container.mounts.iter()).map(move |(source, place)| {
        format!("--mount=type=bind,src={source},dst={place},{read_only}")
    })
}

/// The time limit to remove a container, or to import a few megabytes.
pub const PREPARE_DEADLINE: Duration = Duration::from_secs(120);

/// Runs a command whose output is only passed on.
///
/// # Errors
/// When it fails.
pub async fn quiet(
    host: &Host,
    cmd: &Cmd,
    line: &(dyn for<'t> Fn(&'t str) + Sync),
) -> Result<(), ExecError> {
    let output = (host.exec).run(cmd, &mut |_, text| line(text)).await?;
    output.success(cmd).map(drop)
}
