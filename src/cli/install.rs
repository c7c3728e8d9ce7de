//! `install`: makes the machine as wanted, and goes on where an earlier run was cut off.

use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt};

use super::{Failure, args, prepare, print, world::World};
use crate::{
    engine::{self, Cancel, RunFile, RunReport},
    event::Subscriber,
    exit::Exit,
    journal::Request,
    report::{JsonLines, Plain, Terminal, document, human},
};

pub(super) async fn run(world: &mut World<'_>, args: &args::Install) -> Result<Exit, Failure> {
    prepare::root(world, "install")?;
    let request = if args.resume {
        resumed(world)?
    } else {
        prepare::request(&args.target, &args.image, args.reboot, args.lock_timeout)?
    };
    let automatic = request.reboot;
    let target = prepare::target(world, request)?;
    prepare::warn(world, &target.resolution.warnings);
    let cancel = cancel()?;
    let events_to_stdout = args.events.as_deref() == Some("-");
    let subscribers = subscribers(world, args.events.as_deref(), args.detail)?;
    let (events, reporter) = prepare::events(target.host(), &world.secrets, subscribers)?;
    let tools = target.tools(world, events, cancel);
    let ended = target.session(tools)?.install().await;
    reporter.finish();
    let report = ended?;
    // Events have standard output for themselves when they were asked for there.
    if !events_to_stdout {
        tell(world, args.output.format, args.detail, &report)?;
    } else {
        troubles(world, &report);
    }
    if automatic
        && report
            .reboot
            .as_ref()
            .is_some_and(|reboot| reboot.automatic)
    {
        engine::reboot(target.host()).await.map_err(|error| {
            Failure::caused(
                Exit::RebootRequired,
                "reboot-refused",
                "failed to reboot the machine",
                error,
                Some(
                    "progress is saved; reboot the machine yourself, then the run continues \
                      automatically",
                ),
            )
        })?;
    }
    Ok(report.exit)
}

/// What the journal says was asked for, without what only the first run of an image is told.
fn resumed(world: &World<'_>) -> Result<Request, Failure> {
    let asked = engine::request(&world.host)?.ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "nothing-to-resume",
            "failed to resume: the journal contains no run",
            Some("run `gpu-bootstrap install`"),
        )
    })?;
    Ok(Request {
        image: false,
        assume_gpus: Vec::new(),
        ..asked
    })
}

pub(super) fn cancel() -> Result<Cancel, Failure> {
    let cancel = Cancel::new();
    cancel.on_signals().map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "no-signal-handler",
            "failed to prepare for SIGINT and SIGTERM",
            error,
            None,
        )
    })?;
    Ok(cancel)
}

/// Who listens: a person or a log, `status` in another process, and a file if asked.
pub(super) fn subscribers(
    world: &World<'_>,
    events: Option<&str>,
    detail: args::Detail,
) -> Result<Vec<Box<dyn Subscriber>>, Failure> {
    let mut list: Vec<Box<dyn Subscriber>> = Vec::new();
    let style = world.err_style().verbose(detail.verbose);
    list.push(if world.err_terminal {
        Box::new(Terminal::new(style, &world.drawn))
    } else {
        Box::new(Plain::new((world.talk)(), style))
    });
    list.push(Box::new(RunFile::new(
        world.host.files.clone(),
        world.command.clone(),
    )));
    if let Some(place) = events {
        let sink: Box<dyn Write + Send> = if place == "-" {
            Box::new(std::io::stdout())
        } else {
            let opened = OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(place);
            Box::new(opened.map_err(|error| {
                Failure::caused(
                    Exit::Usage,
                    "events-unwritable",
                    &format!("failed to open `{place}` for events"),
                    error,
                    None,
                )
            })?)
        };
        list.push(Box::new(JsonLines::new(sink)));
    }
    Ok(list)
}

pub(super) fn tell(
    world: &mut World<'_>,
    format: args::Format,
    detail: args::Detail,
    report: &RunReport,
) -> Result<(), Failure> {
    let style = world.out_style().verbose(detail.verbose);
    match format {
        args::Format::Json => print::json(&mut world.out, &document::run(report, None))?,
        args::Format::Human => print::show(&mut world.out, |to| human::run(to, report, style))?,
    }
    troubles(world, report);
    Ok(())
}

/// Causes and hints, as talk.
fn troubles(world: &mut World<'_>, report: &RunReport) {
    let style = world.err_style();
    // Standard error is the last resort: if it is gone there is nobody to tell.
    let _ = human::troubles(&mut world.err, report, style);
}
