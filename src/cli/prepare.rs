//! From a command line to something that can run: configuration resolved for this machine, steps
//! in order, events with somewhere to go.

use std::{collections::BTreeMap, io::Write as _, sync::Arc, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};

use super::{Failure, World, args, machine, matrix};
use crate::{
    change::{Applier, packages::WantedPackages},
    compat::matrix::Matrix,
    config::{
        desired::{ConditionWish, Guard, PackagePolicy},
        error::{ConfigError, ResolveError},
        layers::{self, Layers, Provenance},
        load::{self, Ask},
        network,
        place::Place,
        profile::{Profile, built_in_names},
        resolve::{Flags, Resolution},
    },
    engine::{self, Cancel, Events, Options, Rollback, Session, Tools, events::Reporter},
    error::{Report as _, one_line},
    event::Subscriber,
    exit::Exit,
    facts::{Facts, Scope},
    host::{
        Host, ReadFiles,
        trusted::{Trusted, refuse_foreign},
    },
    journal::{Policy, Request},
    model::{
        paths,
        secret::{Secret, Secrets},
    },
    state::State,
    steps,
    tools::systemctl,
};

/// What a command looks at, whatever is wanted there.
pub(super) struct Ground {
    /// The machine, a tree below a folder, or a machine that is being recorded.
    pub(super) host: Host,
    /// How far looking may go there.
    pub(super) scope: Scope,
    /// What cannot change.
    pub(super) facts: Arc<Facts>,
    /// What is known about GPUs and drivers.
    pub(super) matrix: Arc<Matrix>,
    /// To ask for the same again.
    pub(super) request: Request,
}

/// What a command looks at, and what it wants there.
pub(super) struct Target {
    /// What it looks at.
    ground: Ground,
    /// What is wanted, and why.
    pub(super) resolution: Resolution,
}

/// Turns what was asked into a request that can be kept.
///
/// # Errors
/// When a relative path cannot be made absolute.
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
        lock_timeout_seconds: lock_timeout.map(|timeout| timeout.as_secs()),
        deadline_seconds: None,
        credentials,
    })
}

/// Settings, and those that hold a secret by their key, or one of these secrets under another key. If
/// a key is given several times, the last one counts.
fn parted(set: Vec<String>, secrets: &Secrets) -> (Vec<String>, Vec<Secret>) {
    let key = |setting: &str| setting.split('=').next().map(layers::path_of);
    let last: Vec<String> = set
        .iter()
        .enumerate()
        .filter(|(at, setting)| !set[at + 1..].iter().any(|later| key(later) == key(setting)))
        .map(|(_, setting)| setting.clone())
        .collect();
    let (secret, open): (Vec<String>, Vec<String>) = last
        .into_iter()
        .partition(|setting| !layers::secrets(setting).is_empty() || secrets.are_in(setting));
    (open, secret.into_iter().map(Secret::new).collect())
}

/// All settings of a request, for the resolution.
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

/// Makes a path absolute: after a reboot the request is repeated from another working directory.
pub(super) fn absolute(path: &Utf8Path) -> Result<Utf8PathBuf, Failure> {
    if path.as_str().is_empty() {
        // Most likely a variable that is not set.
        return Err(Failure::new(
            Exit::Usage,
            "empty-path",
            "read `--config`: the path is empty",
            Some("name a file, or leave the flag out"),
        ));
    }
    camino::absolute_utf8(path).map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "no-working-directory",
            &format!("failed to find the folder of `{path}`"),
            error,
            Some("give the whole path"),
        )
    })
}

/// Reads the machine.
///
/// # Errors
/// A compatibility matrix that cannot be read.
pub(super) async fn ground(
    world: &World<'_>,
    host: Host,
    request: Request,
    scope: Scope,
) -> Result<Ground, Failure> {
    let matrix = matrix(world)?;
    let facts = Arc::new(machine::all_facts(&host, &matrix, scope).await);
    Ok(Ground {
        host,
        scope,
        facts,
        matrix: Arc::new(matrix),
        request,
    })
}

/// Reads this machine and its configuration.
///
/// # Errors
/// Configuration that is wrong, or a machine that cannot be what is wanted.
pub(super) async fn target(world: &World<'_>, request: Request) -> Result<Target, Failure> {
    let mut ground = ground(world, world.host.clone(), request, machine::scope(None)).await?;
    if !ground.request.image {
        on_a_system(&ground)?;
    }
    let mut resolution = ground.resolve(world, &*world.host.files)?;
    let kept = steps::kept_branch(&ground.state(), &resolution.desired).await;
    resolution.warnings.extend(kept);
    Ok(Target { ground, resolution })
}

/// Refuses the container of an application, in which no system runs that could be prepared. The build of an image may
/// run in one.
fn on_a_system(ground: &Ground) -> Result<(), Failure> {
    let Some(manager) = ground.facts.application_container() else {
        return Ok(());
    };
    let booted = ground.host.files.exists(systemctl::BOOTED.into());
    let booted = booted.map_err(|error| {
        let message = "failed to see whether systemd runs";
        Failure::caused(Exit::StepFailed, "unreadable", message, error, None)
    })?;
    if booted {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Blocked,
        "in-container",
        &format!("prepare this machine: it is the container (`{manager}`) of an application"),
        Some("run it on the container's host; with `--image` it prepares the image of a machine"),
    ))
}

impl Ground {
    /// Reads the configuration, and resolves it for the machine; the files that the request names are
    /// in `named`.
    ///
    /// # Errors
    /// Configuration that is wrong, or a machine that cannot be what is wanted.
    pub(super) fn resolve(
        &mut self,
        world: &World<'_>,
        named: &dyn ReadFiles,
    ) -> Result<Resolution, ResolveError> {
        let ask = self.ask(world, &self.request);
        let resolution = load::load(&*self.host.files, named, &ask, &self.facts, &self.matrix)?;
        if let (Some(proxy), true) = (&resolution.desired.packages.proxy, self.scope.executes) {
            let direct = resolution.desired.packages.no_proxy.as_deref();
            self.host.http = (world.proxied)(proxy, direct);
        }
        Ok(resolution)
    }

    /// The same during a rollback.
    ///
    /// # Errors
    /// A driver that the machine cannot have any more.
    pub(super) fn resolve_back(
        &self,
        world: &World<'_>,
        named: &dyn ReadFiles,
        back: &Rollback,
    ) -> Result<Resolution, ResolveError> {
        let ask = Ask {
            driver: back.settings.clone(),
            ..self.ask(world, &self.request)
        };
        let mut resolution = load::load(&*self.host.files, named, &ask, &self.facts, &self.matrix)?;
        back.pin(&mut resolution.desired);
        resolution.warnings.extend(back.note.clone());
        Ok(resolution)
    }

    fn ask(&self, world: &World<'_>, request: &Request) -> Ask {
        Ask {
            profile: request.profile.clone(),
            config: request.config.clone(),
            env: env(&world.vars),
            set: settings(request),
            driver: Vec::new(),
            lock_timeout_seconds: request.lock_timeout_seconds,
            flags: Flags {
                image: request.image,
                assume_gpus: request.assume_gpus.clone(),
                trial: false,
            },
            our_runtimes: engine::our_runtimes(&self.host),
            secrets: world.secrets.clone(),
            by_root: world.root && self.scope.executes,
        }
    }

    /// Whether the settings of a request say that the machine may have no GPU.
    ///
    /// # Errors
    /// Configuration that is wrong.
    pub(super) fn is_gpu_optional(
        &self,
        world: &World<'_>,
        named: &dyn ReadFiles,
        request: &Request,
    ) -> Result<bool, ConfigError> {
        let ask = self.ask(world, request);
        load::is_gpu_optional(&*self.host.files, named, &ask)
    }

    /// The condition of the node that the settings name.
    ///
    /// # Errors
    /// Configuration that is wrong.
    pub(super) fn node_condition(&self, world: &World<'_>) -> Result<ConditionWish, ConfigError> {
        let files = &*world.host.files;
        load::node_condition(files, files, &self.ask(world, &self.request))
    }

    /// The state of the machine, to be read when somebody asks for it.
    pub(super) fn state(&self) -> State {
        State::new(self.host.clone(), self.scope, Arc::clone(&self.facts))
    }
}

fn env(vars: &BTreeMap<String, String>) -> Vec<(String, String)> {
    vars.iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Events with subscribers. The run's id names it everywhere.
///
/// # Errors
/// When the operating system cannot start a thread.
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
            "failed to start the thread that tells about the run",
            error,
            None,
        )
    })
}

/// What the engine works with where nothing is wanted: to undo.
pub(super) fn tools(
    world: &World<'_>,
    host: &Host,
    policy: PackagePolicy,
    facts: &Facts,
    request: Request,
    running: (Events, Cancel),
) -> Tools {
    let options = Options {
        policy: Some(kept(&policy)),
        ..options(world, facts, request)
    };
    let applier =
        Applier::new(host.clone(), policy, paths::STATE.into()).hiding(world.secrets.clone());
    tools_of(applier, host, options, running)
}

/// What undoing needs to know of a policy, as the journal keeps it.
fn kept(policy: &PackagePolicy) -> Policy {
    Policy {
        manager: policy.manager,
        lock_timeout_seconds: policy.lock_timeout_seconds,
        pause_units: policy.pause_units.clone(),
        kernels: policy.guard.kernels.clone(),
    }
}

fn tools_of(
    applier: Applier,
    host: &Host,
    options: Options,
    (events, cancel): (Events, Cancel),
) -> Tools {
    Tools {
        verbs: Arc::new(applier.stopped_by(cancel.token())),
        host: host.clone(),
        events,
        cancel,
        options,
    }
}

/// What was asked for, and who asks.
pub(super) fn options(world: &World<'_>, facts: &Facts, request: Request) -> Options {
    Options {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        exe: world.exe.clone(),
        request,
        instance_id: facts.instance_id.clone(),
        boot_id: facts.boot_id.clone(),
        ..Options::default()
    }
}

/// The package policy for undoing. The journal has it, so that neither a profile nor the operating
/// system is asked, which may have been changed since.
///
/// # Errors
/// When the journal cannot be read. If it has no policy, because an older version wrote it: when no
/// profile serves the machine, and it has no database of a known package manager.
pub(super) fn policy_to_undo(
    world: &mut World<'_>,
    facts: &Facts,
    (proxy, no_proxy): (Option<Secret>, Option<String>),
) -> Result<PackagePolicy, Failure> {
    let Policy {
        manager,
        lock_timeout_seconds,
        pause_units,
        kernels,
    } = match engine::policy(&world.host)? {
        Some(policy) => policy,
        None => policy_of_profile(world, facts)?,
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
    })
}

/// The policy of the profile that the last `install` had, or else of the built-in profile whose
/// package manager the machine has.
fn policy_of_profile(world: &mut World<'_>, facts: &Facts) -> Result<Policy, Failure> {
    let files = &Trusted::new(&*world.host.files, world.root);
    // Then no package manager is asked for anything.
    let nothing_stands = engine::status(&world.host, None)?.changes_standing == 0;
    let asked = engine::asked(&world.host)?.and_then(|request| request.profile);
    let chosen = match Profile::choose(asked.as_deref(), facts.os.as_ref(), files) {
        Ok(choice) => choice.profile,
        Err(error) => match built_in_for(files, nothing_stands)? {
            Some(profile) if nothing_stands => profile,
            Some(profile) => {
                // Standard error may be closed.
                let _ = writeln!(
                    world.err,
                    "warning: the defaults of the built-in profile `{}` are used: failed to {}",
                    profile.name,
                    one_line(&error)
                );
                profile
            }
            None => return Err(error.into()),
        },
    };
    Ok(Policy {
        manager: chosen.manager,
        lock_timeout_seconds: chosen.packages.lock_timeout.seconds(),
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

/// The proxy that `install` would use now: from the files, the environment, and the last request. An
/// error here must not stop undoing, so it is only reported.
pub(super) fn proxy(world: &mut World<'_>) -> (Option<Secret>, Option<String>) {
    let request = engine::request(&world.host).map(Option::unwrap_or_default);
    let files = &*world.host.files;
    let files = &Trusted::new(files, world.root);
    let read = |request: Request| {
        let (env, set) = (env(&world.vars), settings(&request));
        let layers = Layers::read(files, files, &request.config, env, &set)?;
        layers
            .secrets()
            .for_each(|secret| world.secrets.learn(&secret));
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
    // Standard error may be closed. Undoing mostly works without a proxy.
    let _ = writeln!(
        world.err,
        "warning: the configuration cannot be read, so that no proxy is used: {why}"
    );
    (None, None)
}

/// The network settings of the environment, as `KEY=VALUE`, that no other layer overrides.
fn used_network(env: &[(String, String)], provenance: &[Provenance]) -> Vec<String> {
    network::from_environment(env)
        .into_iter()
        .filter(|found| {
            provenance.iter().any(|one| {
                one.key == found.key
                    && matches!(&one.place, Place::Env { variable } if variable == found.variable)
            })
        })
        .map(|found| format!("{}={}", found.key, found.value))
        .collect()
}

impl Target {
    /// What the engine works with.
    pub(super) fn tools(&self, world: &World<'_>, events: Events, cancel: Cancel) -> Tools {
        let desired = &self.resolution.desired;
        let policy = desired.packages.clone();
        let options = Options {
            policy: Some(kept(&policy)),
            ..options(world, &self.ground.facts, self.kept(world))
        };
        let applier = Applier::new(self.ground.host.clone(), policy, paths::STATE.into())
            .hiding(world.secrets.clone());
        let applier = applier.holding(engine::holds(&self.ground.host));
        tools_of(
            applier.wanting(WantedPackages::of(desired)),
            &self.ground.host,
            options,
            (events, cancel),
        )
    }

    /// Wants the driver before.
    ///
    /// # Errors
    /// A driver that the machine cannot have any more.
    pub(super) fn go_back(
        &mut self,
        world: &mut World<'_>,
        back: &Rollback,
    ) -> Result<(), Failure> {
        let resolved = self.ground.resolve_back(world, &*world.host.files, back);
        self.resolution = resolved.map_err(|error| {
            let message = format!("failed to go back to driver {}", back.back.to);
            let (exit, reason) = (error.exit(), error.reason());
            let hint = "`driver.rollback = false` gives this rollback up";
            Failure::caused(exit, reason, &message, error, Some(hint))
        })?;
        warn(world, back.note.as_slice());
        Ok(())
    }

    /// The machine.
    pub(super) const fn host(&self) -> &Host {
        &self.ground.host
    }

    /// What cannot change.
    pub(super) fn facts(&self) -> &Facts {
        &self.ground.facts
    }

    /// The request as the journal keeps it. After a reboot the environment is another one, so settings
    /// from the environment are kept, too, with lower priority than the others, as now.
    fn kept(&self, world: &World<'_>) -> Request {
        let mut set = used_network(&env(&world.vars), &self.resolution.provenance);
        set.extend(layers::assignments(env(&world.vars)));
        set.extend(settings(&self.ground.request));
        let (set, credentials) = parted(set, &world.secrets);
        Request {
            set,
            credentials,
            ..self.ground.request.clone()
        }
    }

    /// The steps for this machine.
    pub(super) fn session(&self, tools: Tools) -> Result<Session, Failure> {
        let desired = self.resolution.desired.clone();
        let session = Session::new(tools, steps::all(), self.ground.state(), desired)?;
        Ok(session.judging_by(Arc::clone(&self.ground.matrix)))
    }
}

/// Prints warnings to standard error, so that standard output holds only the document.
pub(super) fn warn(world: &mut World<'_>, warnings: &[String]) {
    for warning in warnings {
        // Standard error may be closed. The documents of `check` and `plan` have the warnings, too.
        let _ = writeln!(world.err, "warning: {warning}");
    }
}

/// Refuses a command that needs root, for other users, and a state folder that others than root may
/// change: undoing restores what is in it.
pub(super) fn root(world: &World<'_>, what: &str) -> Result<(), Failure> {
    if world.root {
        let journal = crate::journal::path();
        return refuse_foreign(&*world.host.files, &journal).map_err(|error| {
            let reason = error.reason().unwrap_or("state-unreadable");
            let hint = error.hint();
            let message = format!("failed to {what}");
            Failure::caused(Exit::Blocked, reason, &message, error, hint.as_deref())
        });
    }
    Err(Failure::new(
        Exit::NotPermitted,
        "not-root",
        &format!("failed to {what}: only root may change the machine"),
        Some("run it again with `sudo`"),
    ))
}

#[cfg(test)]
mod tests;
