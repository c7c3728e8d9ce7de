//! `status`: the run under way, the last one, and an awaited reboot.

use super::{Failure, args, print, world::World};
use crate::{engine, exit::Exit, report};

/// New at every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The id of this boot; `None` where the kernel has none.
pub(super) fn boot_id(world: &World<'_>) -> Result<Option<String>, Failure> {
    let text = world.host.files.read_text(BOOT_ID.into());
    let text = text.map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "no-boot-id",
            "failed to read the boot id",
            error,
            None,
        )
    })?;
    Ok(text.map(|text| text.trim().to_owned()))
}

/// Prints where the time of the last installation went.
fn show_timing(world: &mut World<'_>, args: &args::StatusArgs) -> Result<(), Failure> {
    let Some(timing) = engine::last_timing(&world.host)? else {
        return Err(Failure::new(
            Exit::Usage,
            "nothing-installed",
            "failed to show the time of an installation: the journal has none",
            Some("run `gpu-bootstrap install`"),
        ));
    };
    let style = world.out_style();
    match (args.timeline, args.output.format) {
        (true, _) => print::show(&mut world.out, |to| report::timing::svg(to, &timing)),
        (false, args::OutputFormat::Json) => {
            print::json(&mut world.out, &report::document::timing(&timing))
        }
        (false, args::OutputFormat::Human) => print::show(&mut world.out, |to| {
            report::timing::table(to, &timing, style)
        }),
    }
}

pub(super) async fn run(world: &mut World<'_>, args: &args::StatusArgs) -> Result<Exit, Failure> {
    let boot = boot_id(world)?;
    let ended = match args.wait {
        None => Ok(Exit::Ok),
        Some(limit) => engine::wait(&world.host, boot.as_deref(), limit).await,
    };
    if args.timing || args.timeline {
        let shown = show_timing(world, args);
        let exit = ended?;
        return shown.map(|()| exit);
    }
    let status = engine::status(&world.host, boot.as_deref())?;
    let style = world.out_style();
    match args.output.format {
        args::OutputFormat::Json => {
            print::json(&mut world.out, &report::document::status(&status))?
        }
        args::OutputFormat::Human => {
            print::show(&mut world.out, |to| {
                report::status::write(to, &status, style)
            })?;
        }
    }
    Ok(ended?)
}
