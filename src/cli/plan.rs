//! `plan`: says what `install` would change; with `--os`, what it would want.

use serde_json::json;

use super::{
    Failure,
    args::{self, OutputFormat},
    prepare, print,
    world::World,
};
use crate::{
    engine::{self, Cancel, EngineError},
    exit::Exit,
    report::{document, human},
};

pub(super) async fn run(world: &mut World<'_>, args: &args::PlanArgs) -> Result<Exit, Failure> {
    if let Some(system) = &args.trial.os {
        return super::trial::run(world, args, system);
    }
    let request = prepare::request(&args.target, &args.image, false, None)?;
    let mut target = prepare::target(world, request).await?;
    prepare::warn(world, &target.resolution.warnings);
    match engine::rollback(target.host(), &target.resolution.desired).await {
        Ok(Some(back)) => target.go_back(world, &back)?,
        // The plan notes that the journal cannot be read.
        Ok(None) | Err(EngineError::Journal(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let (events, reporter) = prepare::events(target.host(), &world.secrets, Vec::new())?;
    let tools = target.tools(world, events, Cancel::new());
    let session = target.session(tools)?;
    let report = session.plan().await;
    reporter.finish();
    let driver = session.driver().await;
    let driver = driver.as_ref();
    let reasons = &target.resolution.reasons;
    let style = world.out_style().verbose(args.detail.verbose);
    match args.output.format {
        OutputFormat::Json => {
            let mut document = json!(document::run(&report, Some(target.facts())));
            document["driver"] = json!(driver);
            document["reasons"] = json!(reasons);
            document["warnings"] = json!(target.resolution.warnings);
            print::json(&mut world.out, &document)?;
        }
        OutputFormat::Human => print::show(&mut world.out, |to| {
            human::plan(to, &report, (driver, reasons), style)
        })?,
    }
    Ok(report.exit)
}
