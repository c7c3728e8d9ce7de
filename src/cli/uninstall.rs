//! `uninstall`: reverts all changes. It reads the journal, and only the proxy from the configuration, so that an invalid
//! configuration, profile or matrix cannot stop it.

use super::{
    Failure,
    args::{self, OutputFormat},
    env::{Console, Env},
    machine, prepare, print, viewers,
};
use crate::{
    engine,
    event::StepTitle,
    exit::Exit,
    facts::gather,
    host::Host,
    model::findings,
    report::{document, human},
    steps,
};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::UninstallArgs,
) -> Result<Exit, Failure> {
    if args.dry_run {
        return preview(host, console, args);
    }
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
    let ended = engine::uninstall(&tools, &titles()).await;
    reporter.finish();
    let report = ended?;
    console.tell(&report, Some(args.output.format), args.detail);
    Ok(report.exit)
}

/// Prints the changes that would be undone.
fn preview(
    host: &Host,
    console: &mut Console<'_>,
    args: &args::UninstallArgs,
) -> Result<Exit, Failure> {
    let run = engine::run_id(&*host.clock);
    let report = engine::planned_uninstall(host, run, &titles())?;
    let style = console.out_style();
    match args.output.format {
        OutputFormat::Json => print::json(&mut console.out, &document::run(&report, None))?,
        OutputFormat::Human => {
            print::show(&mut console.out, |to| human::undo(to, &report, style))?;
        }
    }
    Ok(report.exit)
}

fn titles() -> Vec<StepTitle> {
    let title = |id| StepTitle {
        title: findings::title(&id).to_owned(),
        id,
    };
    steps::all()
        .into_iter()
        .map(|step| title(step.id))
        .collect()
}
