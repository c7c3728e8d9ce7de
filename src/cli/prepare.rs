//! Prepares commands: resolves the configuration for this machine and creates sessions with steps, events and tools.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use super::{
    Failure, args,
    env::{Console, Env},
    machine,
};
use crate::{
    bundle::{self, Bundle, RunSources},
    change::Applier,
    compat::matrix::Matrix,
    config::{
        desired::{ConditionSpec, Desired, Guard, PackagePolicy},
        error::{ConfigError, ResolveError},
        file::PackagesConfig,
        load::{self, Question, SettingsRequest},
        location::Location,
        lock::Lock,
        network,
        profile::{Profile, built_in_names},
        resolve::{Flags, Resolution},
        sources::{self, Provenance, SettingSources},
    },
    engine::{self, Cancel, Events, Options, Session, Tools, events::Reporter},
    error::one_line,
    event::Subscriber,
    exit::Exit,
    facts::{Facts, Scope},
    host::{Host, ReadFiles, trusted::Trusted},
    journal::{Policy, Request},
    model::{
        paths,
        secret::{Secret, Secrets},
    },
    modules,
    state::State,
    steps,
    tools::{packages::Package, systemctl},
};

/// The machine that a command inspects, without the desired state.
pub(super) struct Inspection {
    /// This machine, a directory tree (`--root`), or a recorder around this machine (`--record`).
    pub(super) host: Host,
    /// The limits of the inspection.
    pub(super) scope: Scope,
    /// The immutable facts.
    pub(super) facts: Arc<Facts>,
    /// The compatibility matrix.
    pub(super) matrix: Arc<Matrix>,
    /// The request, as the journal keeps it for a resumed run.
    pub(super) request: Request,
}

/// The request of an `install` run, and its origin.
pub(super) struct Asked {
    pub(super) request: Request,
    /// Whether the resume unit started this run.
    pub(super) resumed: bool,
    /// Whether an upgrade starts outside of the maintenance window.
    pub(super) now: bool,
}

impl From<Request> for Asked {
    fn from(request: Request) -> Self {
        Self {
            request,
            resumed: false,
            now: false,
        }
    }
}

impl Asked {
    /// Returns the time limit for retries of transient failures: the requested one, or a default for unattended runs.
    fn deadline(&self) -> Option<Duration> {
        let unattended = self.request.reboot || self.resumed;
        let asked = self.request.deadline_seconds.map(Duration::from_secs);
        asked.or(unattended.then_some(engine::UNATTENDED_DEADLINE))
    }
}

/// The machine of a command, and its desired state.
pub(super) struct Target {
    inspection: Inspection,
    question: Question,
    deadline: Option<Duration>,
    resumed: bool,
    now: bool,
    /// The desired state, with reasons and warnings.
    pub(super) resolution: Resolution,
    /// Removes the source files of a bundle at the end of the command.
    _sources: Option<RunSources>,
}

/// Converts the arguments to a request for the journal.
///
/// # Errors
/// If a relative path cannot be made absolute.
pub(super) fn request(
    target: &args::TargetArgs,
    image: &args::ImageArgs,
    reboot: bool,
    lock_timeout: Option<Duration>,
) -> Result<Request, Failure> {
    let (set, credentials) = parted(target.set.clone(), &Secrets::default());
    Ok(Request {
        profile: match &target.profile {
            Some(path) if path.contains('/') || path.ends_with(".toml") => {
                Some(absolute(path.as_ref())?.into())
            }
            name => name.clone(),
        },
        config: absolute_all(&target.config)?,
        set,
        image: image.image,
        assume_gpus: image.assume_gpu.clone(),
        reboot,
        upgrade: false,
        lock_timeout_seconds: lock_timeout.map(|timeout| timeout.as_secs()),
        deadline_seconds: None,
        lock: None,
        lock_path: None,
        bundle: None,
        credentials,
    })
}

/// Adds the content of the lock file to a request.
///
/// # Errors
/// If the file cannot be read, is writable by non-root users, or is not a lock file.
pub(super) fn with_lock(
    here: &Host,
    env: &Env,
    target: &args::TargetArgs,
    request: Request,
) -> Result<Request, Failure> {
    let Some(path) = &target.lock else {
        return Ok(request);
    };
    let path = absolute(path)?;
    let text = Trusted::new(&*here.files, env.root)
        .read_text(&path)
        .map_err(ConfigError::Files)?
        .ok_or_else(|| ConfigError::MissingFile { path: path.clone() })?;
    Lock::parse(path.as_str(), &text)?;
    Ok(Request {
        lock: Some(text),
        lock_path: Some(path),
        ..request
    })
}

/// Adds the bundle and its lock file to a request.
///
/// # Errors
/// If the user is not root, or the bundle cannot be used.
pub(super) fn with_bundle(
    here: &Host,
    env: &Env,
    bundle: Option<&Utf8Path>,
    request: Request,
) -> Result<Request, Failure> {
    let Some(directory) = bundle else {
        return Ok(request);
    };
    // Its commands read sources that only root can write.
    env.only_root(here, "use a bundle")?;
    let directory = absolute(directory)?;
    let files = &*here.files;
    let text = Bundle::open(files, &directory, env.root)?.lock(files)?;
    Lock::parse(directory.join(bundle::LOCK).as_str(), &text)?;
    Ok(Request {
        lock: Some(text),
        bundle: Some(directory),
        ..request
    })
}

/// Splits settings into open ones and secret ones. A setting is secret because of its key, or because it contains one of
/// `secrets` under another key. If a key is repeated, the last one is used.
fn parted(set: Vec<String>, secrets: &Secrets) -> (Vec<String>, Vec<Secret>) {
    let key = |setting: &str| setting.split('=').next().map(sources::path_of);
    let last: Vec<String> = set
        .iter()
        .enumerate()
        .filter(|(at, setting)| !set[at + 1..].iter().any(|later| key(later) == key(setting)))
        .map(|(_, setting)| setting.clone())
        .collect();
    let (secret, open): (Vec<String>, Vec<String>) = last
        .into_iter()
        .partition(|setting| !sources::secrets(setting).is_empty() || secrets.are_in(setting));
    (open, secret.into_iter().map(Secret::new).collect())
}

/// Returns all settings of a request, including secrets.
fn settings(request: &Request) -> Vec<String> {
    let secret = request.credentials.iter();
    request
        .set
        .iter()
        .cloned()
        .chain(secret.map(|secret| secret.expose().to_owned()))
        .collect()
}

/// Makes the paths of `--config` absolute.
pub(super) fn absolute_all(paths: &[Utf8PathBuf]) -> Result<Vec<Utf8PathBuf>, Failure> {
    paths.iter().map(|path| absolute(path)).collect()
}

/// Makes a path absolute, because a run that resumes after a reboot has another working directory.
pub(super) fn absolute(path: &Utf8Path) -> Result<Utf8PathBuf, Failure> {
    if path.as_str().is_empty() {
        // Probably an unset shell variable.
        return Err(Failure::new(
            Exit::Usage,
            "empty-path",
            "read the arguments: a path is empty",
            Some("specify a file, or omit the option"),
        ));
    }
    camino::absolute_utf8(path).map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "no-working-directory",
            &format!("failed to make `{path}` absolute"),
            error,
            Some("specify an absolute path"),
        )
    })
}

/// Reads the facts of a machine.
///
/// # Errors
/// If the compatibility matrix cannot be read.
pub(super) async fn inspection(
    host: Host,
    here: &Host,
    env: &Env,
    request: Request,
    scope: Scope,
) -> Result<Inspection, Failure> {
    let (facts, matrix) = machine::known(&host, here, env, scope).await?;
    Ok(Inspection {
        host,
        scope,
        facts: Arc::new(facts),
        matrix: Arc::new(matrix),
        request,
    })
}

/// Reads this machine and its configuration.
///
/// # Errors
/// If the configuration is invalid, or the machine does not support it.
pub(super) async fn target(
    host: &Host,
    env: &Env,
    asked: impl Into<Asked>,
) -> Result<Target, Failure> {
    let asked = asked.into();
    let (deadline, resumed, now) = (asked.deadline(), asked.resumed, asked.now);
    let scope = machine::scope(None);
    let mut inspection = inspection(host.clone(), host, env, asked.request, scope).await?;
    if !inspection.request.image {
        on_a_system(&inspection)?;
    }
    let bundle = match &inspection.request.bundle {
        Some(directory) => Some(Bundle::open(&*host.files, directory, env.root)?),
        None => None,
    };
    let mut question = inspection.question(env, host);
    question.ask.bundled = bundle.as_ref().map(Bundle::packages);
    question.ask.archives = bundle.as_ref().map(Bundle::archives);
    let process = std::process::id();
    question.ask.bundle_sources = bundle.as_ref().map(|_| bundle::sources_of(process));
    let mut run_sources = None;
    let mut resolution = inspection.resolve(env, &question)?;
    if let Some(bundle) = bundle {
        resolution
            .warnings
            .extend(without_image(&resolution.desired));
        let desired = &resolution.desired;
        let backend = desired.packages.manager.backend();
        let (repositories, to) = (&desired.repositories, bundle::sources_of(process));
        let (host, written) = bundle.redirect(&inspection.host, backend, repositories, &to)?;
        inspection.host = host;
        run_sources = Some(written);
    }
    inspection.host = modules::package::with_packages(&inspection.host, &resolution.desired);
    let kept = steps::kept_branch(&inspection.state(), &resolution.desired).await;
    resolution.warnings.extend(kept);
    Ok(Target {
        inspection,
        question,
        deadline,
        resumed,
        now,
        resolution,
        _sources: run_sources,
    })
}

/// Returns a warning if a run with a bundle needs a container image without a digest, which a bundle does not contain.
pub(super) fn without_image(desired: &Desired) -> Option<String> {
    let validation = &desired.validation;
    let is_missing = validation.image_digest().is_none() && steps::container::is_wanted(desired);
    let image = validation.image.as_ref().filter(|_| is_missing)?;
    Some(format!(
        "the bundle does not contain the image `{image}`, which must be available on this machine or in a registry of its network, \
         because `validation.image` has no digest: set it to `{image}@sha256:DIGEST` before `gpu-bootstrap lock`"
    ))
}

/// Returns an error in an application container, because no operating system runs there. The caller omits this check for an
/// image, because an image may be built in such a container.
fn on_a_system(inspection: &Inspection) -> Result<(), Failure> {
    let Some(manager) = inspection.facts.application_container() else {
        return Ok(());
    };
    let booted = inspection.host.files.exists(systemctl::BOOTED.into());
    let booted = booted.map_err(|error| {
        let message = "failed to check whether systemd is running";
        Failure::caused(Exit::StepFailed, "unreadable", message, error, None)
    })?;
    if booted {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Blocked,
        "in-container",
        &format!("prepare this machine: it is an application container (`{manager}`)"),
        Some("run the command on the container host, or add `--image` to prepare a machine image"),
    ))
}

impl Inspection {
    /// Returns the configuration query of the request. `named` is the machine with the files of `--profile` and `--config`.
    pub(super) fn question(&self, env: &Env, named: &Host) -> Question {
        let request = &self.request;
        Question {
            ask: SettingsRequest {
                profile: request.profile.clone(),
                config: request.config.clone(),
                env: env.vars.clone(),
                set: settings(request),
                except: Vec::new(),
                driver: Vec::new(),
                lock: request.lock.clone(),
                bundled: None,
                archives: None,
                bundle_sources: None,
                lock_timeout_seconds: request.lock_timeout_seconds,
                flags: Flags {
                    image: request.image,
                    assume_gpus: request.assume_gpus.clone(),
                    trial: false,
                },
                our_runtimes: engine::our_runtimes(&self.host),
                secrets: env.secrets.clone(),
                by_root: env.root && self.scope.executes,
            },
            files: self.host.files.clone(),
            named: named.files.clone(),
            facts: Arc::clone(&self.facts),
            matrix: Arc::clone(&self.matrix),
        }
    }

    /// Resolves the desired state. Later HTTP requests use the configured proxy.
    ///
    /// # Errors
    /// If the configuration is invalid, or the machine does not support it.
    pub(super) fn resolve(
        &mut self,
        env: &Env,
        question: &Question,
    ) -> Result<Resolution, ResolveError> {
        let resolution = question.resolve()?;
        if let (Some(proxy), true) = (&resolution.desired.packages.proxy, self.scope.executes) {
            let direct = resolution.desired.packages.no_proxy.as_deref();
            self.host.http = (env.proxied)(proxy, direct);
        }
        Ok(resolution)
    }

    /// Returns whether the settings of a request allow a machine without a GPU.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub(super) fn is_gpu_optional(
        &self,
        question: &Question,
        request: &Request,
    ) -> Result<bool, ConfigError> {
        let ask = SettingsRequest {
            profile: request.profile.clone(),
            config: request.config.clone(),
            set: settings(request),
            ..question.ask.clone()
        };
        load::is_gpu_optional(&*question.files, &*question.named, &ask)
    }

    /// Returns the node condition that is configured on the machine `here`.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub(super) fn node_condition(
        &self,
        question: &Question,
        here: &Host,
    ) -> Result<ConditionSpec, ConfigError> {
        load::node_condition(&*here.files, &*here.files, &question.ask)
    }

    /// Returns the state of the machine, which is read on demand.
    pub(super) fn state(&self) -> State {
        State::new(self.host.clone(), self.scope, Arc::clone(&self.facts))
    }
}

/// Starts the event thread with these subscribers, and assigns the run ID.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn events(
    host: &Host,
    secrets: &Secrets,
    subscribers: Vec<Box<dyn Subscriber>>,
) -> Result<(Events, Reporter), Failure> {
    let run = engine::run_id(&*host.clock);
    engine::events::start(&run, host.clock.clone(), secrets, subscribers).map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "no-thread",
            "failed to start the event thread",
            error,
            None,
        )
    })
}

/// Creates the tools of the engine without a desired state. `uninstall` uses them directly; [`Target::session`] adds the
/// desired state.
pub(super) fn tools(
    host: &Host,
    env: &Env,
    policy: PackagePolicy,
    facts: &Facts,
    (events, cancel): (Events, Cancel),
) -> Tools {
    let options = Options {
        policy: Some(Policy::of(&policy)),
        ..options(env, facts, Request::default())
    };
    let applier = Applier::new(host.clone(), policy, paths::STATE.into());
    let applier = applier.hiding(env.secrets.clone());
    Tools {
        change_applier: Arc::new(applier.stopped_by(cancel.token())),
        host: host.clone(),
        events,
        cancel,
        options,
    }
}

/// Returns the options of a run.
pub(super) fn options(env: &Env, facts: &Facts, request: Request) -> Options {
    Options {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        exe: env.exe.clone(),
        request,
        instance_id: facts.instance_id.clone(),
        boot_id: facts.boot_id.clone(),
        ..Options::default()
    }
}

/// Returns the package policy for `uninstall`. It is read from the journal, because the profile and the operating system may
/// have changed since the last `install`.
///
/// # Errors
/// If the journal cannot be read. Or if it has no policy (older versions did not write it), no profile supports the
/// machine, and the machine has no database of a supported package manager.
pub(super) fn policy_to_undo(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    facts: &Facts,
    (proxy, no_proxy): (Option<Secret>, Option<String>),
) -> Result<PackagePolicy, Failure> {
    let Policy {
        manager,
        lock_timeout_seconds,
        pause_units,
        kernels,
    } = match engine::policy(host)? {
        Some(policy) => policy,
        None => policy_of_profile(host, env, console, facts)?,
    };
    Ok(PackagePolicy {
        guard: Guard {
            kernels,
            ..Guard::default()
        },
        manager,
        lock_timeout_seconds,
        proxy,
        no_proxy,
        pause_units,
        may_remove: Vec::new(),
        may_upgrade: Vec::new(),
        bundled: None,
    })
}

/// Returns the policy of the profile of the last `install`, or else of the first built-in profile whose package manager is
/// used on this machine.
fn policy_of_profile(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    facts: &Facts,
) -> Result<Policy, Failure> {
    let files = &Trusted::new(&*host.files, env.root);
    // Without applied changes, no package manager is called, so any profile is fine.
    let nothing_stands = engine::status(host, None)?.changes_applied == 0;
    let asked = engine::asked(host)?.and_then(|request| request.profile);
    let chosen = match Profile::choose(asked.as_deref(), facts.os.as_ref(), files) {
        Ok(choice) => choice.profile,
        Err(error) => match built_in_for(files, nothing_stands)? {
            Some(profile) if nothing_stands => profile,
            Some(profile) => {
                console.warn(&[format!(
                    "the defaults of the built-in profile `{}` are used: failed to {}",
                    profile.name,
                    one_line(&error)
                )]);
                profile
            }
            None => return Err(error.into()),
        },
    };
    Ok(Policy {
        manager: chosen.manager,
        lock_timeout_seconds: PackagesConfig::default().lock_timeout.seconds(),
        pause_units: chosen.packages.pause_units,
        kernels: chosen.packages.kernels,
    })
}

fn built_in_for(files: &dyn ReadFiles, any: bool) -> Result<Option<Profile>, ConfigError> {
    for name in built_in_names() {
        let profile = Profile::built_in(name)?;
        if any || profile.manager.backend().is_used_on(files)? {
            return Ok(Some(profile));
        }
    }
    Ok(None)
}

/// Returns the proxy that `install` would use: from the files, the environment and the last request. An error must not
/// stop `uninstall`, so it is only a warning.
pub(super) fn proxy(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
) -> (Option<Secret>, Option<String>) {
    let request = engine::request(host).map(Option::unwrap_or_default);
    let files = &Trusted::new(&*host.files, env.root);
    let read = |request: Request| {
        let set = settings(&request);
        let layers = SettingSources::read(files, files, &request.config, &env.vars, &set)?;
        layers
            .secrets()
            .for_each(|secret| env.secrets.learn(&secret));
        layers.merged()
    };
    let why = match request {
        Ok(request) => match read(request) {
            Ok(config) => {
                let own = config.packages;
                return (
                    own.proxy.map(|proxy| Secret::new(proxy.expose())),
                    own.no_proxy,
                );
            }
            Err(error) => one_line(&error),
        },
        Err(error) => one_line(&error),
    };
    // `uninstall` usually needs no proxy.
    console.warn(&[format!(
        "no proxy is used, because the configuration cannot be read: {why}"
    )]);
    (None, None)
}

/// Returns the network settings from environment variables that no other source overrides, in the form `KEY=VALUE`.
fn used_network(env: &BTreeMap<String, String>, provenance: &[Provenance]) -> Vec<String> {
    network::from_environment(env)
        .into_iter()
        .filter(|found| {
            provenance.iter().any(|one| {
                one.key == found.key
                    && matches!(&one.place, Location::Env { variable } if variable == found.variable)
            })
        })
        .map(|found| format!("{}={}", found.key, found.value))
        .collect()
}

impl Target {
    /// Creates a session with all steps for this machine and the subscribers to its events.
    ///
    /// # Errors
    /// If the event thread cannot be started.
    pub(super) fn session(
        &self,
        env: &Env,
        subscribers: Vec<Box<dyn Subscriber>>,
        cancel: Cancel,
    ) -> Result<(Session, Reporter), Failure> {
        let Inspection { host, facts, .. } = &self.inspection;
        let desired = self.resolution.desired.clone();
        let (events, reporter) = events(host, &env.secrets, subscribers)?;
        let mut tools = tools(host, env, desired.packages.clone(), facts, (events, cancel));
        tools.change_applier = tools.change_applier.anew(&desired, engine::holds(host));
        tools.options = Options {
            request: self.kept(),
            deadline: self.deadline,
            resumed: self.resumed,
            now: self.now,
            ..tools.options
        };
        let session = Session::new(tools, steps::all(), self.inspection.state(), desired)?;
        let reasons = self.resolution.reasons.clone();
        Ok((session.asking(self.question.clone(), reasons), reporter))
    }

    /// Reads the package database. Empty if there is none.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub(super) async fn database(&self) -> Result<Vec<Package>, Failure> {
        let state = self.inspection.state();
        let database = state
            .database(self.resolution.desired.packages.manager)
            .await;
        let database = database.map_err(|error| {
            let message = "failed to read the package database";
            Failure::caused(Exit::StepFailed, "unreadable", message, error, None)
        })?;
        Ok(database.unwrap_or_default().to_vec())
    }

    /// The machine, with the configured proxy.
    pub(super) fn host(&self) -> &Host {
        &self.inspection.host
    }

    /// The immutable facts of the machine.
    pub(super) fn facts(&self) -> &Facts {
        &self.inspection.facts
    }

    /// Returns the state of the machine, which is read on demand.
    pub(super) fn state(&self) -> State {
        self.inspection.state()
    }

    /// Returns the request for the journal. A run that resumes after a reboot has another environment, so settings from
    /// environment variables are also kept, with lower priority than the others.
    fn kept(&self) -> Request {
        let ask = &self.question.ask;
        let mut set = used_network(&ask.env, &self.resolution.provenance);
        set.extend(sources::assignments(&ask.env));
        set.extend(settings(&self.inspection.request));
        let (set, credentials) = parted(set, &ask.secrets);
        Request {
            set,
            credentials,
            ..self.inspection.request.clone()
        }
    }
}

#[cfg(test)]
mod tests;
