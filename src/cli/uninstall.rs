//! `uninstall`: reverts all changes. It reads the journal, and only the proxy from the configuration, so that an invalid
//! configuration, profile or matrix cannot stop it.

use super::{
    Failure, args,
    env::{Console, Env},
    machine, prepare, viewers,
};
use crate::{
    engine, event::StepTitle, exit::Exit, facts::gather, host::Host, model::findings, steps,
};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::UninstallArgs,
) -> Result<Exit, Failure> {
    env.only_root(host, "uninstall")?;
    let facts = gather(host.reader(), None, machine::scope(None));
    let cancel = viewers::cancel()?;
    let proxy = prepare::proxy(host, env, console);
    let policy = prepare::policy_to_undo(host, env, console, &facts, proxy)?;
    let (events, reporter) = prepare::events(
        host,
        &env.secrets,
        viewers::open(host, env, console, None, args.detail)?,
    )?;
    let tools = prepare::tools(host, env, policy, &facts, (events, cancel));
    let titles: Vec<StepTitle> = steps::all()
        .into_iter()
        .map(|step| StepTitle {
            title: findings::title(&step.id).to_owned(),
            id: step.id,
        })
        .collect();
    let ended = engine::uninstall(&tools, &titles).await;
    reporter.finish();
    let report = ended?;
    console.tell(&report, Some(args.output.format), args.detail);
    Ok(report.exit)
}
