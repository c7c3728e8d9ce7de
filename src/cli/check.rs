//! `check`: looks, and tells what is not as it should be.

use camino::Utf8Path;

use super::{
    Failure,
    args::{self, CheckFormat},
    machine, prepare, print,
    world::World,
};
use crate::{
    engine::{self, Cancel},
    exit::Exit,
    host::{
        Host,
        record::{self, Recording},
    },
    journal::Request,
    model::id::Id,
    report::{document, human},
};

/// Exists where a kernel runs, and in the recording of a machine.
const RUNNING_KERNEL: &str = "/proc/sys/kernel/osrelease";

pub(super) async fn run(world: &mut World<'_>, args: &args::Check) -> Result<Exit, Failure> {
    let mut host = machine::host(world, args.root.as_deref())?;
    let mut recording: Option<Recording> = None;
    if let Some(folder) = &args.record {
        let (recorded, begun) =
            record::record(&host, folder, &world.secrets).map_err(not_recorded)?;
        (host, recording) = (recorded, Some(begun));
    }
    let mut request = prepare::request(&args.target, &args::Image::default(), false, None)?;
    let mut named = world.host.clone();
    if args.root.is_some()
        && let Some(built) = built(&host)?
    {
        let own = request == Request::default();
        request.image = true;
        request.assume_gpus = built.assume_gpus;
        // The files it was built with are in the image, and not on this machine.
        if own {
            named = host.clone();
            request.profile = built.profile;
            request.config = built.config;
            request.set = built.set;
        }
    }
    let scope = machine::scope(args.root.as_deref());
    let target = prepare::target(world, host, &*named.files, request, scope).await?;
    prepare::warn(world, &target.resolution);
    let (events, reporter) = prepare::events(&target.host, &world.secrets, Vec::new())?;
    let names = |ids: &[Id]| ids.iter().map(ToString::to_string).collect();
    let mut tools = target.tools(world, events, Cancel::new());
    tools.options.only = names(&args.only);
    tools.options.skip = names(&args.skip);
    let session = target.session(tools)?;
    let report = session.check().await;
    reporter.finish();
    if let Some(recording) = recording {
        // What `facts` tells of this machine is to be told from the recording as well.
        session.state().snapshot().await;
        recording.finish().map_err(not_recorded)?;
    }
    let style = world.out_style();
    let warnings = &target.resolution.warnings;
    match args.format {
        CheckFormat::Json => print::json(
            &mut world.out,
            &document::check(&report, &target.facts, warnings),
        )?,
        CheckFormat::Human => print::show(&mut world.out, |to| human::check(to, &report, style))?,
    }
    Ok(report.exit)
}

/// The request in the journal of an image; `None` where a kernel runs.
fn built(host: &Host) -> Result<Option<Request>, Failure> {
    let files = &host.files;
    let runs = files
        .exists(Utf8Path::new(RUNNING_KERNEL))
        .map_err(|error| {
            Failure::caused(
                Exit::Internal,
                "root-unreadable",
                "failed to read the folder of `--root`",
                error,
                None,
            )
        })?;
    if runs {
        return Ok(None);
    }
    Ok(engine::asked(host)?.filter(|asked| asked.image))
}

fn not_recorded(error: record::RecordError) -> Failure {
    Failure::caused(
        Exit::Usage,
        "not-recorded",
        "failed to write the recording",
        error,
        Some("name a folder that is empty or does not exist yet, with space for some megabytes"),
    )
}
