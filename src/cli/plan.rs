//! `plan`: says what `install` would change; with `--os`, what it would want.

use serde_json::json;

use super::{
    Failure,
    args::{self, OutputFormat},
    prepare, print,
    world::{Console, Env},
};
use crate::{
    engine::{Cancel, Planned},
    exit::Exit,
    host::Host,
    report::{document, human},
};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::PlanArgs,
) -> Result<Exit, Failure> {
    if let Some(system) = &args.trial.os {
        return super::trial::run(host, env, console, args, system);
    }
    let request = prepare::request(&args.target, &args.image, false, None)?;
    let target = prepare::target(host, env, request).await?;
    console.warn(&target.resolution.warnings);
    let (session, reporter) = target.session(env, Vec::new(), Cancel::new())?;
    let planned = session.plan().await;
    reporter.finish();
    let Planned {
        report,
        driver,
        reasons,
        warning,
    } = planned?;
    let mut warnings = target.resolution.warnings.clone();
    if let Some(warning) = warning {
        console.warn(std::slice::from_ref(&warning));
        warnings.push(warning);
    }
    let style = console.out_style().verbose(args.detail.verbose);
    match args.output.format {
        OutputFormat::Json => {
            let mut document = json!(document::run(&report, Some(target.facts())));
            document["driver"] = json!(driver);
            document["reasons"] = json!(reasons);
            document["warnings"] = json!(warnings);
            print::json(&mut console.out, &document)?;
        }
        OutputFormat::Human => print::show(&mut console.out, |to| {
            human::plan(to, &report, (driver.as_ref(), &reasons), style)
        })?,
    }
    Ok(report.exit)
}
