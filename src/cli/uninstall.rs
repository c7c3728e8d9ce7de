//! `uninstall`: puts back what was there. It reads the journal, and of the configuration only the
//! proxy, so that a configuration, a profile or a matrix that was broken since cannot stop it.

use super::{Failure, args, install, machine, prepare, world::World};
use crate::{
    engine, event::StepTitle, exit::Exit, facts::gather, journal::Request, model::findings, steps,
};

pub(super) async fn run(
    world: &mut World<'_>,
    args: &args::UninstallArgs,
) -> Result<Exit, Failure> {
    prepare::root(world, "uninstall")?;
    let facts = gather(world.host.reader(), None, machine::scope(None));
    let cancel = install::cancel()?;
    let proxy = prepare::proxy(world);
    let policy = prepare::policy_to_undo(world, &facts, proxy)?;
    let (events, reporter) = prepare::events(
        &world.host,
        &world.secrets,
        install::subscribers(world, None, args.detail)?,
    )?;
    let request = Request::default();
    let tools = prepare::tools(
        world,
        &world.host,
        policy,
        &facts,
        request,
        (events, cancel),
    );
    let titles: Vec<StepTitle> = steps::all()
        .iter()
        .map(|step| StepTitle {
            id: step.id(),
            title: findings::title(&step.id()).to_owned(),
        })
        .collect();
    let ended = engine::uninstall(&tools, &titles).await;
    reporter.finish();
    let report = ended?;
    install::tell(world, args.output.format, args.detail, &report);
    Ok(report.exit)
}
