//! Container runtimes. Each has a directory or a file with everything that is specific to it. Other code uses [`Runtime`],
//! [`Configured`] for runtimes with a daemon, and [`Containers`] for runtimes that run a container for validation.
//! [`RuntimeKind::runtime`] and [`Daemon::configured`] return the implementations.
//! CONTRIBUTING.md describes how to add a runtime.

pub mod archive;
pub mod cdi;
pub mod choice;
pub mod containerd;
pub mod crictl;
pub mod crio;
pub mod docker;
mod edit_command;
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
pub use edit_command::set_in_runtime;
pub use version::Version;
pub use view::{
    Answer, Broken, Config, ConfigFile, Elsewhere, Goal, Harm, LackError, LiveConfig, PickUp,
    Place, ReadError, ReloadWords, Report, RuntimeFault, RuntimeView, Surroundings, Validated,
};

use crate::{
    host::{Cmd, ExecError, FilesError, Host, Output, Query, ReadFiles, Reader},
    model::document::FileSettings,
    tools::{kubelet, systemctl},
};

/// The name of the NVIDIA runtime.
pub const NVIDIA: &str = "nvidia";

/// The name of the built-in runtime of each container runtime.
pub const BUILT_IN: &str = "runc";

/// The supported container runtimes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeKind {
    /// Docker Engine.
    Docker,
    /// containerd, as used by the kubelet.
    Containerd,
    /// CRI-O, which `check` evaluates. The settings reject it.
    #[schemars(skip)]
    Crio,
    /// Podman, which has no daemon and reads the CDI specification itself.
    Podman,
}

impl RuntimeKind {
    /// All runtimes, in the order of the `facts` document.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Containerd, Self::Podman, Self::Crio];

    /// The runtime of a machine that does not join a cluster, if none is installed.
    pub const DEFAULT: Self = Self::Docker;

    /// The runtime of a kubelet for which none is configured.
    pub const KUBELET_DEFAULT: Self = Self::Containerd;

    /// The index in [`Self::ALL`].
    pub fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|kind| *kind == self)
            .unwrap_or_default()
    }

    /// Returns the implementation.
    pub const fn runtime(self) -> &'static dyn Runtime {
        match self {
            Self::Docker => &docker::Docker,
            Self::Containerd => &containerd::Containerd,
            Self::Crio => &crio::Crio,
            Self::Podman => &podman::Podman,
        }
    }

    /// The name in settings, IDs and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Crio => "crio",
            Self::Podman => "podman",
        }
    }

    /// The configurable daemon that runs its containers, or `None` if there is none.
    pub const fn daemon(self) -> Option<Daemon> {
        match self {
            Self::Docker => Some(Daemon::Docker),
            Self::Containerd => Some(Daemon::Containerd),
            Self::Crio => Some(Daemon::Crio),
            Self::Podman => None,
        }
    }

    /// Returns the reason if this version does not support GPUs in containers.
    pub fn too_old(self, version: Version) -> Option<String> {
        let first = self.runtime().facts().first?;
        (version < first).then(|| {
            format!(
                "{} {version} does not support CDI, so containers get no GPUs: {first} or later is required",
                self.name()
            )
        })
    }

    /// Whether another runtime is a dependency of its packages.
    pub fn brings(self, other: Self) -> bool {
        self.runtime().facts().brings.contains(&other)
    }

    /// The runtimes that `install` can configure.
    pub fn configurable() -> impl Iterator<Item = Self> {
        (Self::ALL.into_iter()).filter(|kind| kind.runtime().facts().is_configurable)
    }

    /// The runtimes that a kubelet can use directly.
    pub fn of_kubelets() -> impl Iterator<Item = Self> {
        (Self::ALL.into_iter()).filter(|kind| kind.runtime().facts().cri.is_some())
    }

    /// Returns the runtime that serves a kubelet at this socket.
    pub fn of_socket(socket: &str) -> Option<Self> {
        let plain = socket.strip_prefix("/var").unwrap_or(socket);
        (Self::ALL.into_iter()).find(|kind| kind.runtime().facts().sockets.contains(&plain))
    }
}

/// A container runtime with a configurable daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Daemon {
    /// Docker Engine.
    Docker,
    /// containerd, as used by the kubelet.
    Containerd,
    /// CRI-O. Journals of earlier versions contain changes of its configuration.
    Crio,
}

impl Daemon {
    /// All daemons.
    pub const ALL: [Self; 3] = [Self::Docker, Self::Containerd, Self::Crio];

    /// The name in settings, IDs and messages.
    pub const fn name(self) -> &'static str {
        self.kind().name()
    }

    /// Returns the runtime kind.
    pub const fn kind(self) -> RuntimeKind {
        match self {
            Self::Docker => RuntimeKind::Docker,
            Self::Containerd => RuntimeKind::Containerd,
            Self::Crio => RuntimeKind::Crio,
        }
    }

    /// Returns the implementation of its configuration.
    pub const fn configured(self) -> &'static dyn Configured {
        match self {
            Self::Docker => &docker::Docker,
            Self::Containerd => &containerd::Containerd,
            Self::Crio => &crio::Crio,
        }
    }
}

/// Constant properties of a runtime.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeFacts {
    /// The name in sentences.
    pub title: &'static str,
    /// Packages that contain it, from all vendors.
    pub packages: &'static [&'static str],
    /// The paths of its program, for packages and manual installations.
    pub binaries: &'static [&'static str],
    /// The unit, or `None` for a runtime without a daemon.
    pub unit: Option<&'static str>,
    /// The configuration directory.
    pub directory: &'static str,
    /// The TOML file with a `version`, if it has one.
    pub versioned: Option<&'static str>,
    /// The directory of images and containers, which may be on a separate filesystem.
    pub data: Option<&'static str>,
    /// The URL scheme that precedes its version in node objects.
    pub scheme: &'static str,
    /// Whether `install` can install and configure it. `check` reads the configuration of every runtime.
    pub is_configurable: bool,
    /// The socket that gpu-bootstrap configures for a kubeadm kubelet, or `None` if a kubelet cannot use the runtime directly.
    pub cri: Option<&'static str>,
    /// The runtimes that are dependencies of its packages.
    pub brings: &'static [RuntimeKind],
    /// The sockets that serve a kubelet, without `/var`.
    pub sockets: &'static [&'static str],
    /// The bridge of its own network.
    pub bridge: Option<&'static str>,
    /// The part that the URLs of all repositories of the vendor have in common.
    pub repositories: Option<&'static str>,
    /// Whether `runtime.source` selects the source of its packages.
    pub has_sources: bool,
    /// The command that shows all GPUs in a container, or `None` if the runtime has no command for users.
    pub example: Option<&'static str>,
    /// The first version that supports GPUs in containers, or `None` if all do.
    pub first: Option<Version>,
    /// The first version that reads groups in CDI specifications, or `None` if it does not read specifications itself.
    pub reads_groups: Option<Version>,
}

/// A container runtime.
#[async_trait]
pub trait Runtime: Debug + Send + Sync {
    /// Returns its constant properties.
    fn facts(&self) -> &'static RuntimeFacts;

    /// Reads its files, and queries the daemon if commands can be executed.
    ///
    /// # Errors
    /// If a file cannot be read. A program that cannot be executed, or a daemon that does not respond, is not an error.
    async fn view(&self, place: Place<'_>) -> Result<RuntimeView, ReadError>;

    /// Evaluates its files.
    ///
    /// # Errors
    /// Same as for [`Runtime::view`].
    async fn report(
        &self,
        _place: Place<'_>,
        _view: &RuntimeView,
        _surroundings: Surroundings<'_>,
    ) -> Result<Option<Report>, ReadError> {
        Ok(None)
    }

    /// Whether a hook gives its containers access to GPUs.
    ///
    /// # Errors
    /// If a directory cannot be read.
    fn has_hook(&self, _files: &dyn ReadFiles) -> Result<bool, FilesError> {
        Ok(false)
    }

    /// Whether systemd is the cgroup driver of its containers, according to its configuration.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn uses_systemd_cgroups(
        &self,
        _files: &dyn ReadFiles,
        view: &RuntimeView,
    ) -> Result<bool, FilesError> {
        Ok(view
            .config()
            .is_some_and(|config| config.systemd_cgroup.values().any(|is_set| *is_set)))
    }

    /// Returns another installed form of the runtime, which does not read the default file, or `None`.
    ///
    /// # Errors
    /// If a directory cannot be read.
    fn in_another_form(&self, _files: &dyn ReadFiles) -> Result<Option<OtherForm>, FilesError> {
        Ok(None)
    }

    /// Returns the reason if a kubelet does not start with this version.
    fn refuses_kubelet(&self, _kubelet: &str, _version: &str) -> Option<String> {
        None
    }

    /// Returns the reason if a kubelet was not tested with this version, and a link.
    fn untested_kubelet(&self, _kubelet: &str, _version: &str) -> Option<(String, &'static str)> {
        None
    }

    /// Returns the Kubernetes distributions that ship their own copy of it.
    fn owners(&self) -> &'static [KubernetesDistribution] {
        &[]
    }

    /// Returns the interface that runs a container for validation, or `None` if it is not supported.
    fn containers(&self) -> Option<&dyn Containers> {
        None
    }
}

/// An installed form of a runtime that cannot be configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherForm {
    /// The reason, as a sentence.
    pub why: String,
    /// The directory whose existence is the evidence for this form.
    pub directory: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

/// A configuration file that another program regenerates after `install`.
#[derive(Debug, Clone, Copy)]
pub struct Rewritten {
    /// Units and programs that regenerate it. One of them is sufficient.
    pub units: &'static [&'static str],
    pub programs: &'static [&'static str],
    /// The configuration file.
    pub file: &'static str,
    /// The drop-in of the daemon unit that restores the settings of gpu-bootstrap.
    pub drop_in: &'static str,
    /// The subcommand that restores them.
    pub subcommand: &'static str,
}

impl Rewritten {
    /// Whether another program regenerates the file.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub fn is_so(&self, files: &dyn ReadFiles) -> Result<bool, FilesError> {
        for program in self.programs {
            if files.exists(Utf8Path::new(program))? {
                return Ok(true);
            }
        }
        for unit in self.units {
            for directory in systemctl::DIRECTORIES {
                if files.exists(&Utf8Path::new(directory).join(unit))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Directories of the drop-ins that restore our settings in regenerated files.
pub fn written_directories() -> impl Iterator<Item = &'static str> {
    let rewritten = Daemon::ALL
        .into_iter()
        .filter_map(|daemon| daemon.configured().rewritten());
    rewritten.filter_map(|one| Some(one.drop_in.rsplit_once('/')?.0))
}

/// Directories of runtime configurations and of CDI specifications.
pub fn directories() -> impl Iterator<Item = &'static str> {
    let own = RuntimeKind::ALL
        .into_iter()
        .map(|kind| kind.runtime().facts().directory);
    own.chain(cdi::DIRECTORIES)
}

/// Directories of images and containers.
pub fn data_directories() -> impl Iterator<Item = &'static str> {
    (RuntimeKind::ALL.into_iter()).filter_map(|kind| kind.runtime().facts().data)
}

/// Returns the vendor of a repository and the rest of its URL, which starts with the directory of a distribution.
pub fn vendor_repository(uri: &str) -> Option<(&'static str, &str)> {
    RuntimeKind::ALL.into_iter().find_map(|kind| {
        let facts = kind.runtime().facts();
        let (_, rest) = uri.split_once(facts.repositories?)?;
        Some((facts.title, rest))
    })
}

/// Returns the units of the daemons, separated by spaces as in unit files.
pub fn units() -> String {
    let units = RuntimeKind::ALL
        .into_iter()
        .filter_map(|kind| kind.runtime().facts().unit);
    units.collect::<Vec<_>>().join(" ")
}

/// Returns the units that contain a kubelet, separated by spaces as in unit files.
pub fn kubelet_units() -> String {
    let of_distributions = OWNERS.iter().flat_map(|owner| owner.units);
    let units = std::iter::once(&kubelet::UNIT).chain(of_distributions);
    units.copied().collect::<Vec<_>>().join(" ")
}

/// A runtime with a daemon that is configured with files.
#[async_trait]
pub trait Configured: Debug + Send + Sync {
    /// Returns the keys that are required for a goal but missing in the files, by file.
    ///
    /// # Errors
    /// If a file is invalid or cannot be read.
    fn lacking(
        &self,
        files: &dyn ReadFiles,
        view: &RuntimeView,
        goal: &Goal<'_>,
    ) -> Result<Vec<FileSettings>, LackError>;

    /// Whether CDI must be enabled explicitly for a goal. The daemon uses it only after its next start.
    fn needs_cdi(&self, _view: &RuntimeView, _goal: &Goal<'_>) -> bool {
        false
    }

    /// Validates its files with its own binary, without the daemon.
    ///
    /// # Errors
    /// If the program could not be executed.
    async fn validate(
        &self,
        host: Reader<'_>,
        unit: &str,
        paths: &[&Utf8Path],
    ) -> Result<Validated, ReadError>;

    /// The method for reloading its files.
    fn pick_up(&self) -> PickUp {
        PickUp::Restart
    }

    /// Whether it is also configured for a kubeadm kubelet without a container toolkit.
    fn is_for_kubelet(&self) -> bool {
        false
    }

    /// The command that prints its configuration, for a daemon that rejects its files and does not respond.
    fn dump(&self) -> Option<&'static str> {
        None
    }

    /// The programs that regenerate its complete file after `install`, and the drop-in that restores the runtime.
    fn rewritten(&self) -> Option<&'static Rewritten> {
        None
    }

    /// Restores the settings of `install` in a regenerated file.
    ///
    /// # Errors
    /// If that is not possible. The message is one line.
    async fn restore_saved(&self, _host: &Host, _goal: &Goal<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Queries its effective configuration.
    ///
    /// # Errors
    /// If its program could not be executed. A daemon that does not respond is not an error.
    async fn said(&self, host: Reader<'_>) -> Result<LiveConfig, ExecError>;

    /// Whether it is usable, for a kubelet if `for_kubelet` is set.
    ///
    /// # Errors
    /// If its client could not be executed.
    async fn answers(&self, host: Reader<'_>, for_kubelet: bool) -> Result<Answer, ExecError>;

    /// Returns the names or IDs of its running containers.
    ///
    /// # Errors
    /// If its client could not be executed, or the daemon does not respond.
    async fn running(&self, host: Reader<'_>) -> Result<Vec<String>, ExecError>;
}

/// A container that is run until it exits.
#[derive(Debug, Clone, Copy)]
pub struct OneContainer<'a> {
    pub name: &'a str,
    /// The image, as returned by [`Containers::image_name`]. `None` if `root` is the filesystem.
    pub image: Option<&'a str>,
    /// The image that is created from `root` if required: [`Containers::import`].
    pub own_image: &'a str,
    /// The directory with the program.
    pub root: &'a Utf8Path,
    /// Read-only mounts, with their paths in the container.
    pub mounts: &'a [(Utf8PathBuf, &'static str)],
    /// Program and arguments.
    pub command: &'a [&'a str],
}

/// Runs a container for validation.
#[async_trait]
pub trait Containers: Debug + Send + Sync {
    /// Returns the image name for its client.
    fn image_name(&self, image: &str) -> String;

    /// Queries whether an image exists. [`Containers::has_image`] evaluates the output.
    fn find_image(&self, image: &str) -> Query;

    /// Whether the image exists, from the output of [`Containers::find_image`]. `None` if the query failed.
    fn has_image(&self, image: &str, output: &Output) -> Option<bool>;

    /// Pulls an image.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    fn pull(&self, files: &dyn ReadFiles, image: &str) -> Result<Cmd, FilesError>;

    /// Whether its client downloads images with the proxy of the environment. Otherwise the daemon downloads with its own
    /// settings.
    fn client_pulls(&self) -> bool {
        true
    }

    /// Returns the name of an image that was loaded from an archive, or `None` if this is [`Containers::image_name`], because the
    /// archive contains the digest of the registry.
    fn loaded_name(&self, _image: &str) -> Option<String> {
        None
    }

    /// Queries the ID of an existing image, or returns `None` if the digest of the registry identifies it.
    fn image_id(&self, _image: &str) -> Option<Query> {
        None
    }

    /// Writes an image with this ID to a new archive.
    fn save(&self, image: &str, id: &str, archive: &Utf8Path) -> Cmd;

    /// Loads the image with this ID from an archive, and adds its name.
    fn load(&self, image: &str, id: &str, archive: &Utf8Path) -> Vec<Cmd>;

    fn remove_image(&self, image: &str) -> Cmd;

    /// Whether removing an image fails while a container uses it.
    fn keeps_used_images(&self) -> bool {
        false
    }

    /// Creates an image from an archive, or returns `None` if a directory is sufficient as container filesystem.
    fn import(&self, _archive: &Utf8Path, _image: &str) -> Option<Cmd> {
        None
    }

    /// Runs a container.
    fn start(&self, container: &OneContainer<'_>) -> Cmd;

    /// Stops and removes a container. A missing container is not an error, except in the versions described in
    /// [`Containers::may_miss`].
    ///
    /// # Errors
    /// If its client fails.
    async fn remove(
        &self,
        host: &Host,
        name: &str,
        image: Option<&str>,
        line: &(dyn for<'t> Fn(&'t str) + Sync),
    ) -> Result<(), ExecError>;

    /// Whether [`Containers::remove`] fails in some versions if the container does not exist.
    fn may_miss(&self) -> bool {
        false
    }
}

/// The variables that request all GPUs and the compute libraries from the nvidia runtime.
const VARIABLES: &str =
    "--env=NVIDIA_VISIBLE_DEVICES=all --env=NVIDIA_DRIVER_CAPABILITIES=compute,utility";

/// Splits a line without quotes into arguments.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns the options for read-only mounts. `read_only` is the client's keyword for read-only.
fn mounts<'a>(
    container: &'a OneContainer<'a>,
    read_only: &'a str,
) -> impl Iterator<Item = String> + 'a {
    (container.mounts.iter()).map(move |(source, place)| {
        format!("--mount=type=bind,src={source},dst={place},{read_only}")
    })
}

/// The time limit for removing a container or importing a few megabytes.
pub const PREPARE_DEADLINE: Duration = Duration::from_secs(120);

/// Runs a command, forwards the lines of its output, and returns only the error.
///
/// # Errors
/// If the command fails.
pub async fn quiet(
    host: &Host,
    cmd: &Cmd,
    line: &(dyn for<'t> Fn(&'t str) + Sync),
) -> Result<(), ExecError> {
    let output = (host.exec).run(cmd, &mut |_, text| line(text)).await?;
    output.success(cmd).map(drop)
}
