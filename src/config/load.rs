//! From the command line to the desired state: reads profile and configuration, then resolves.

use camino::Utf8PathBuf;

use crate::{
    compat::matrix::Matrix,
    config::{
        desired::ClusterWish,
        error::{ConfigError, ResolveError},
        layers::Layers,
        profile::Profile,
        resolve::{self, Flags, Inputs, Resolution},
    },
    facts::Facts,
    host::{ReadFiles, trusted::Trusted},
    model::secret::{self, Secrets},
    state::bus,
};

/// What was asked on the command line and in the environment.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// `--profile`.
    pub profile: Option<String>,
    /// `--config`, in order.
    pub config: Vec<Utf8PathBuf>,
    /// The whole environment; variables without our prefix are ignored.
    pub env: Vec<(String, String)>,
    /// `--set`, in order.
    pub set: Vec<String>,
    /// `--lock-timeout`.
    pub lock_timeout_seconds: Option<u64>,
    /// `--image` and `--assume-gpu`.
    pub flags: Flags,
    /// What the run hides: secrets of the configuration are added.
    pub secrets: Secrets,
    /// Root obeys the files: those that others may write are refused.
    pub by_root: bool,
}

/// Reads profile and configuration and resolves them for a machine.
///
/// `files` are the files of the machine that is looked at; `named` are the files of the machine
/// that runs the command, where paths on its command line lie. They differ with `--root`.
///
/// # Errors
/// Configuration that is wrong (exit 3), or a machine that cannot be in the desired state (exit 5).
pub fn load(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &Ask,
    facts: &Facts,
    matrix: &Matrix,
) -> Result<Resolution, ResolveError> {
    let (env, config) = (ask.env.iter().cloned(), &ask.config);
    let (obeyed, named) = (
        Trusted::new(files, ask.by_root),
        Trusted::new(named, ask.by_root),
    );
    let mut layers = Layers::read(&obeyed, &named, config, env, &ask.set)?;
    layers
        .secrets()
        .for_each(|secret| ask.secrets.learn(&secret));
    if let Some(seconds) = ask.lock_timeout_seconds {
        layers.flag(
            "--lock-timeout",
            "packages.lock-timeout-seconds",
            &seconds.to_string(),
        )?;
    }
    let choice = match &ask.profile {
        Some(asked) if Profile::is_path(asked) => {
            Profile::choose(Some(asked), facts.os.as_ref(), &named)?
        }
        asked => {
            let configured = layers.merged()?.profile.map(|profile| profile.to_string());
            let asked = asked.clone().or(configured);
            Profile::choose(asked.as_deref(), facts.os.as_ref(), &obeyed)?
        }
    };
    let backend = choice.profile.manager.backend();
    let mut sources = backend.entries(files).map_err(ConfigError::Sources)?;
    // What we wrote is not the machine's own configuration.
    sources.retain(|entry| entry.binary && !entry.is_ours());
    let reserved = bus::reserved(files, &facts.gpus).map_err(ConfigError::Files)?;
    let resolution = resolve::resolve(Inputs {
        choice: &choice,
        layers: &layers,
        facts,
        matrix,
        sources: &sources,
        reserved: &reserved,
        flags: &ask.flags,
    })?;
    if let Some(cluster) = &resolution.desired.cluster {
        learn(files, cluster, &ask.secrets);
    }
    Ok(resolution)
}

/// Learns the secrets in files that the cluster's settings name, so that nothing shows them. A file that cannot be
/// read has none that anybody could show, and the step `cluster.join` says so.
fn learn(files: &dyn ReadFiles, cluster: &ClusterWish, secrets: &Secrets) {
    let named = cluster
        .method
        .secret_files()
        .into_iter()
        .chain(&cluster.access);
    for path in named {
        if let Ok(Some(text)) = files.read_text(path) {
            secret::in_file(&text).for_each(|secret| secrets.learn(&secret));
        }
    }
}
