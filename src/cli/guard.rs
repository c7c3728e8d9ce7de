//! `boot-guard`: counts a boot early in it. It needs the journal alone, and no package manager.

use super::{Failure, prepare, status, world::World};
use crate::{
    config::desired::{Guard, PackagePolicy},
    engine::{self, Cancel, GuardError, Options, Tools},
    exit::Exit,
    journal::Request,
    model::paths,
    tools::packages::Manager,
};

pub(super) async fn run(world: &mut World<'_>) -> Result<Exit, Failure> {
    prepare::root(world, "count the boot")?;
    let policy = PackagePolicy {
        guard: Guard::default(),
        // It writes a file at most; no change that it makes asks a package manager.
        manager: Manager::ALL[0],
        lock_timeout_seconds: 0,
        proxy: None,
        no_proxy: None,
        pause_units: Vec::new(),
        may_remove: Vec::new(),
        may_upgrade: Vec::new(),
    };
    let (events, reporter) = prepare::events(&world.host, &world.secrets, Vec::new())?;
    let tools = Tools {
        verbs: std::sync::Arc::new(crate::change::Applier::new(
            world.host.clone(),
            policy,
            paths::STATE.into(),
        )),
        host: world.host.clone(),
        events,
        cancel: Cancel::new(),
        options: Options {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            exe: world.exe.clone(),
            request: Request::default(),
            boot_id: status::boot_id(world)?,
            ..Options::default()
        },
    };
    let counted = engine::count_boot(&tools).await;
    reporter.finish();
    match counted {
        Ok(()) => Ok(Exit::Ok),
        Err(GuardError::Engine(error)) => Err(error.into()),
        Err(GuardError::Deny(failure)) => Err(Failure::boxed(failure)),
    }
}
