//! From a command line to something that can run: configuration resolved for this machine, steps
//! in order, events with somewhere to go.

use std::{collections::BTreeMap, sync::Arc};

use camino::{Utf8Path, Utf8PathBuf};

use super::{Failure, World, args, look, matrix};
use crate::{
    change::Applier,
    checks,
    compat::matrix::Matrix,
    config::{
        desired::PackagePolicy,
        layers,
        load::{self, Ask},
        profile::Profile,
        resolve::{Flags, Resolution},
    },
    engine::{self, Cancel, Events, Options, Session, Tools, events::Reporter},
    event::Subscriber,
    exit::Exit,
    facts::Facts,
    host::Host,
    journal::Request,
    model::paths,
    steps,
};

/// What a command looks at, and what it wants there.
pub(super) struct Target {
    /// The machine, a tree below a folder, or a machine that is being recorded.
    pub(super) host: Host,
    /// What cannot be changed.
    pub(super) facts: Facts,
    /// What is wanted, and why.
    pub(super) resolution: Resolution,
    /// To ask for the same again.
    pub(super) request: Request,
}

/// Turns what was asked into a request that can be kept.
///
/// # Errors
/// When a relative path cannot be made absolute.
pub(super) fn request(
    target: &args::Target,
    image: &args::Image,
    reboot: bool,
    lock_timeout: Option<u64>,
) -> Result<Request, Failure> {
    Ok(Request {
        profile: match &target.profile {
            Some(path) if path.contains('/') || path.ends_with(".toml") => {
                Some(absolute(path.as_ref())?.into())
            }
            name => name.clone(),
        },
        config: target
            .config
            .iter()
            .map(|path| absolute(path))
            .collect::<Result<_, _>>()?,
        set: target.set.clone(),
        image: image.image,
        assume_gpus: image.assume_gpu.iter().map(ToString::to_string).collect(),
        reboot,
        lock_timeout_seconds: lock_timeout,
    })
}

/// After a reboot the request is repeated from another working directory.
fn absolute(path: &Utf8Path) -> Result<Utf8PathBuf, Failure> {
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

/// Reads configuration and machine.
///
/// # Errors
/// Configuration that is wrong, or a machine that cannot be what is wanted.
pub(super) async fn target(
    world: &World<'_>,
    mut host: Host,
    request: Request,
    executes: bool,
) -> Result<Target, Failure> {
    let matrix: Matrix = matrix(world)?;
    let facts = look::facts(&host, &matrix, executes).await;
    let assume_gpus = request
        .assume_gpus
        .iter()
        .map(|id| {
            id.parse().map_err(|error: crate::model::pci::PciError| {
                Failure::caused(
                    Exit::Internal,
                    "request-unreadable",
                    "failed to understand what the journal says was asked for",
                    error,
                    None,
                )
            })
        })
        .collect::<Result<_, _>>()?;
    let ask = Ask {
        profile: request.profile.clone(),
        config: request.config.clone(),
        env: env(&world.vars),
        set: request.set.clone(),
        lock_timeout_seconds: request.lock_timeout_seconds,
        flags: Flags {
            image: request.image,
            assume_gpus,
        },
    };
    let resolution = load::load(&*host.files, &*world.host.files, &ask, &facts, &matrix)?;
    if let (Some(proxy), true) = (&resolution.desired.packages.proxy, executes) {
        host.http = (world.proxied)(proxy);
    }
    Ok(Target {
        host,
        facts,
        resolution,
        request,
    })
}

fn env(vars: &BTreeMap<String, String>) -> Vec<(String, String)> {
    vars.iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Events with subscribers. The run's id names it everywhere.
///
/// # Errors
/// When the operating system gives no thread.
pub(super) fn events(
    host: &Host,
    subscribers: Vec<Box<dyn Subscriber>>,
) -> Result<(Events, Reporter), Failure> {
    let run = engine::run_id(&*host.clock);
    engine::events::start(&run, host.clock.clone(), subscribers).map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "no-thread",
            "failed to start the thread that tells about the run",
            error,
            None,
        )
    })
}

/// What the engine works with.
pub(super) fn tools(
    world: &World<'_>,
    host: &Host,
    policy: PackagePolicy,
    facts: &Facts,
    request: Request,
    (events, cancel): (Events, Cancel),
) -> Tools {
    Tools {
        verbs: Arc::new(
            Applier::new(host.clone(), policy, paths::STATE.into()).stopped_by(cancel.token()),
        ),
        host: host.clone(),
        events,
        cancel,
        options: Options {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            exe: world.exe.clone(),
            request,
            instance_id: facts.instance_id.clone(),
            boot_id: facts.boot_id.clone(),
            only: Vec::new(),
            skip: Vec::new(),
        },
    }
}

/// The package policy of the machine's profile, without anybody's configuration: undoing must not
/// depend on a file that was broken since.
///
/// # Errors
/// When no profile serves the machine.
pub(super) fn bare_policy(host: &Host, facts: &Facts) -> Result<PackagePolicy, Failure> {
    let profile = Profile::choose(None, facts.os.as_ref(), &*host.files)?.profile;
    Ok(PackagePolicy {
        manager: profile.manager,
        lock_timeout_seconds: profile.packages.lock_timeout_seconds,
        proxy: None,
        pause_units: profile.packages.pause_units,
        may_remove: Vec::new(),
        may_upgrade: Vec::new(),
        recommends: false,
    })
}

impl Target {
    /// What the engine works with.
    pub(super) fn tools(&self, world: &World<'_>, events: Events, cancel: Cancel) -> Tools {
        let policy = self.resolution.desired.packages.clone();
        tools(
            world,
            &self.host,
            policy,
            &self.facts,
            self.kept(world),
            (events, cancel),
        )
    }

    /// The request as the journal keeps it: after a reboot the environment is another one, so its
    /// settings are kept with the others, below them as they are now.
    fn kept(&self, world: &World<'_>) -> Request {
        let mut set = layers::assignments(env(&world.vars));
        set.extend(self.request.set.iter().cloned());
        Request {
            set,
            ..self.request.clone()
        }
    }

    /// Steps and checks for this machine.
    pub(super) fn session(&self, tools: Tools) -> Result<Session, Failure> {
        let (facts, desired) = (self.facts.clone(), self.resolution.desired.clone());
        Ok(Session::new(
            tools,
            steps::all(),
            checks::all(),
            facts,
            desired,
        )?)
    }
}

/// Tells the doubts of the resolution: talk, so that documents stay documents.
pub(super) fn warn(world: &mut World<'_>, resolution: &Resolution) {
    for warning in &resolution.warnings {
        // Standard error may be gone; the warning is in `plan`'s document as well.
        let _ = writeln!(world.err, "warning: {warning}");
    }
}

/// Refuses what only root may do.
pub(super) fn root(world: &World<'_>, what: &str) -> Result<(), Failure> {
    if world.root {
        return Ok(());
    }
    Err(Failure::new(
        Exit::NotPermitted,
        "not-root",
        &format!("failed to {what}: only root may change the machine"),
        Some("run it again with `sudo`"),
    ))
}
