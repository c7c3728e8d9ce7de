//! What the daemons of container runtimes run with, and what their files lack of the nvidia runtime.

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    config::desired::{Daemon, Desired, JoinMethod, RuntimeWish},
    model::document::{Document, FileSettings, Format, check_toml},
    state::{Effective, StateError},
    step::{Cx, StepError},
    tools::{containerd::layout, crio, docker, toolkit},
};

/// The name of the runtime.
pub(super) const NVIDIA: &str = "nvidia";

/// Docker's configuration file.
pub(super) const DAEMON_JSON: &str = "/etc/docker/daemon.json";

/// What was read.
#[derive(Debug, Clone)]
pub(super) struct RuntimeState {
    pub(super) effective: Effective,
    /// A configuration file that cannot be read.
    pub(super) broken: Option<Broken>,
    /// Who makes Docker read another file.
    pub(super) other: Option<docker::OtherConfig>,
    /// The keys that the files lack.
    pub(super) lacking: Vec<FileSettings>,
    /// Whether there is a file that it reads first.
    pub(super) configured: bool,
    /// Whether the daemon may not have taken up what an earlier run has written.
    pub(super) unread: bool,
    /// Whether Docker has to be told to use CDI.
    pub(super) cdi: bool,
    /// Containers that a restart of Docker, which takes up CDI, would stop.
    pub(super) stops: Vec<String>,
    /// No systemd runs that could start the daemon, as in the chroot of an image's builder.
    pub(super) not_booted: bool,
}

/// A configuration file that its daemon does not read.
#[derive(Debug, Clone)]
pub(super) struct Broken {
    pub(super) path: Utf8PathBuf,
    pub(super) why: String,
    /// Whether newer daemons read it all the same.
    pub(super) forgiven: bool,
}

impl Broken {
    /// One that no version reads.
    fn for_all(path: impl Into<Utf8PathBuf>, why: String) -> Self {
        Self {
            path: path.into(),
            why,
            forgiven: false,
        }
    }
}

impl RuntimeState {
    fn of(effective: &Effective, read: Result<Vec<FileSettings>, Broken>) -> Self {
        let (lacking, broken) = match read {
            Ok(lacking) => (lacking, None),
            Err(broken) => (Vec::new(), Some(broken)),
        };
        Self {
            effective: effective.clone(),
            broken,
            other: None,
            lacking,
            configured: true,
            unread: false,
            cdi: false,
            stops: Vec::new(),
            not_booted: false,
        }
    }
}

/// Reads what a daemon runs with, and what its files lack.
pub(super) async fn detect(
    cx: &Cx<'_>,
    daemon: Daemon,
    wish: &RuntimeWish,
) -> Result<RuntimeState, StepError> {
    let mut state = match daemon {
        Daemon::Docker => detect_docker(cx, wish).await?,
        Daemon::Containerd => detect_containerd(cx, wish).await?,
        Daemon::Crio => detect_crio(cx, wish).await?,
    };
    state.unread = cx.state.ours().unread.contains(daemon.name());
    if let (Effective::Silent(_), Some(unit)) = (&state.effective, &wish.unit) {
        let unit = cx.state.unit(unit).await?;
        state.not_booted = unit.is_some_and(|unit| unit.is_not_booted());
    }
    Ok(state)
}

async fn detect_docker(cx: &Cx<'_>, wish: &RuntimeWish) -> Result<RuntimeState, StepError> {
    let effective = cx.state.docker().await?;
    let path = Utf8PathBuf::from(DAEMON_JSON);
    let text = cx.host.files().read_text(&path)?;
    let flaw = text
        .as_deref()
        .and_then(|text| docker::check_config(text).err());
    let mut state = RuntimeState::of(effective, Ok(Vec::new()));
    if let Some(flaw) = flaw {
        state.broken = Some(Broken {
            path: path.clone(),
            why: flaw.why,
            forgiven: flaw.forgiven,
        });
    }
    if let Some(unit) = &wish.unit {
        state.other = docker::other_config(cx.host.files(), unit, DAEMON_JSON)?;
    }
    let Ok(file) = Document::parse(Format::Json, text.as_deref().unwrap_or_default()) else {
        return Ok(state);
    };
    // Who has switched it off has decided.
    let decided = file.get(&["features".to_owned(), "cdi".to_owned()]);
    state.cdi = cx.desired.cdi.is_some()
        && decided != Some(false.into())
        && matches!(
            effective,
            Effective::Known {
                without_cdi: true,
                ..
            }
        );
    if state.cdi {
        state.stops = cx.state.stopped_with_docker().await?;
    }
    // What Docker knows already may be said by its command line, and said twice it would not start.
    let known = match effective {
        Effective::Known {
            runtimes, default, ..
        } => (
            runtimes.iter().any(|name| name == NVIDIA),
            default.as_deref() == Some(NVIDIA),
        ),
        _ => (false, false),
    };
    let entry = ["runtimes", NVIDIA, "path"].map(str::to_owned);
    let is_program = match file.get(&entry).as_ref().and_then(|path| path.as_str()) {
        Some(toolkit::RUNTIME_NAME) => true,
        Some(path) => cx.host.files().exists(Utf8Path::new(path))?,
        None => false,
    };
    let settings = docker::settings(
        &file,
        &docker::DockerRuntime {
            name: NVIDIA,
            // As `nvidia-ctk` names it to Docker; the others get its path.
            program: toolkit::RUNTIME_NAME,
            kept: known.0 || is_program,
            default: wish.nvidia_default && !known.1,
            cdi: state.cdi,
        },
    );
    if !settings.is_empty() {
        state.lacking = vec![FileSettings { path, settings }];
    }
    Ok(state)
}

async fn detect_containerd(cx: &Cx<'_>, wish: &RuntimeWish) -> Result<RuntimeState, StepError> {
    let effective = cx.state.containerd().await?;
    let root = Utf8PathBuf::from(crate::state::CONTAINERD_CONFIG);
    if let Some(text) = cx.host.files().read_text(&root)?
        && let Err(why) = check_toml(&text)
    {
        return Ok(RuntimeState::of(effective, Err(Broken::for_all(root, why))));
    }
    let files = match cx.state.containerd_files().await {
        Ok(files) => files,
        Err(StateError::Unexpected { what, why }) => {
            return Ok(RuntimeState::of(effective, Err(Broken::for_all(what, why))));
        }
        Err(error) => return Err(error.into()),
    };
    let kept = match effective {
        Effective::Known { programs, .. } => match programs.get(NVIDIA) {
            Some(program) => cx.host.files().exists(Utf8Path::new(program))?,
            None => false,
        },
        _ => false,
    };
    // Both must let the same one make the control groups.
    let cgroup = match cx.state.cri().await {
        Ok(Some(cri)) => match (
            cri.systemd_cgroup.get("runc"),
            cri.systemd_cgroup.get(NVIDIA),
        ) {
            (Some(true), _) => Some(true),
            (runc, Some(_)) => Some(runc.copied().unwrap_or_default()),
            _ => None,
        },
        // The daemon's own words are in `effective`.
        Ok(None) | Err(_) => None,
    };
    // kubeadm's kubelet lets systemd make the control groups (Kubernetes, "Configuring a cgroup driver"), and this
    // machine has systemd.
    let for_kubelet = serves_kubelet(cx.desired);
    let runtime = layout::ContainerdRuntime {
        name: runtime_of(cx.desired),
        program: toolkit::RUNTIME,
        kept,
        default: wish.nvidia_default,
        cdi: cx.desired.cdi.is_some(),
        systemd_cgroup: if for_kubelet { Some(true) } else { cgroup },
        for_kubelet,
    };
    let version = cx.state.containerd_version().await;
    let read =
        layout::settings(&files, version, &runtime).map_err(|why| Broken::for_all(root, why));
    let mut state = RuntimeState::of(effective, read);
    // Without any, `containerd config dump` of 1.6 fails, and the daemon starts all the same.
    state.configured = files.first().is_some_and(|file| file.text.is_some());
    Ok(state)
}

/// Whether a kubelet of kubeadm's will use the runtime.
fn serves_kubelet(desired: &Desired) -> bool {
    (desired.cluster.as_ref())
        .is_some_and(|cluster| matches!(cluster.method, JoinMethod::Kubeadm { .. }))
}

/// The runtime that a daemon has to know: without the toolkit it is the one that is built in.
pub(super) fn runtime_of(desired: &Desired) -> &'static str {
    match desired.toolkit {
        Some(_) => NVIDIA,
        None => layout::BUILT_IN,
    }
}

/// Whether the daemon is configured at all: for the toolkit, or for a kubelet.
pub(super) fn is_configured(daemon: Daemon, desired: &Desired) -> bool {
    desired.toolkit.is_some() || (daemon == Daemon::Containerd && serves_kubelet(desired))
}

async fn detect_crio(cx: &Cx<'_>, wish: &RuntimeWish) -> Result<RuntimeState, StepError> {
    let effective = cx.state.crio().await?;
    let broken = |why: String| Broken::for_all(crio::CONFIG, why);
    let now = match cx.state.crio_config().await? {
        None => Default::default(),
        Some(Ok(now)) => now,
        Some(Err(why)) => return Ok(RuntimeState::of(effective, Err(broken(why)))),
    };
    let kept = match now.programs().get(NVIDIA) {
        Some(program) => cx.host.files().exists(Utf8Path::new(program))?,
        None => false,
    };
    let runtime = crio::CrioRuntime {
        name: NVIDIA,
        program: toolkit::RUNTIME,
        kept,
        default: wish.nvidia_default,
    };
    let read = crio::settings(&cx.state.crio_files()?, &now, &runtime).map_err(broken);
    Ok(RuntimeState::of(effective, read))
}
