//! `check`: looks, and tells what is not as it should be.

use super::{
    Failure,
    args::{self, Format},
    look, prepare, print,
    world::World,
};
use crate::{
    engine::Cancel,
    exit::Exit,
    host::record::{self, Recording},
    journal::Request,
    model::id::Id,
    report::{document, human},
};

pub(super) async fn run(world: &mut World<'_>, args: &args::Check) -> Result<Exit, Failure> {
    let mut host = look::host(world, args.root.as_deref())?;
    let mut recording: Option<Recording> = None;
    if let Some(folder) = &args.record {
        let (recorded, begun) = record::record(&host, folder).map_err(not_recorded)?;
        (host, recording) = (recorded, Some(begun));
    }
    let request: Request = prepare::request(&args.target, &args::Image::default(), false, None)?;
    let target = prepare::target(world, host, request, args.root.is_none()).await?;
    let (events, reporter) = prepare::events(&target.host, Vec::new())?;
    let names = |ids: &[Id]| ids.iter().map(ToString::to_string).collect();
    let mut tools = target.tools(world, events, Cancel::new());
    tools.options.only = names(&args.only);
    tools.options.skip = names(&args.skip);
    let report = target.session(tools)?.check().await;
    reporter.finish();
    if let Some(recording) = recording {
        recording.finish().map_err(not_recorded)?;
    }
    let style = world.out_style();
    match args.output.format {
        Format::Json => print::json(world.out, &document::check(&report, &target.facts))?,
        Format::Human => print::show(world.out, |to| human::check(to, &report, style))?,
    }
    Ok(report.exit)
}

fn not_recorded(error: record::RecordError) -> Failure {
    Failure::caused(
        Exit::Usage,
        "not-recorded",
        "failed to record what was looked at",
        error,
        Some("name a folder that does not exist yet or is empty, with room for some megabytes"),
    )
}
