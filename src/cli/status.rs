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

pub(super) async fn run(world: &mut World<'_>, args: &args::Status) -> Result<Exit, Failure> {
    let boot = boot_id(world)?;
    let ended = match args.wait {
        None => Ok(Exit::Ok),
        Some(limit) => engine::wait(&world.host, boot.as_deref(), limit).await,
    };
    let status = engine::status(&world.host, boot.as_deref())?;
    let style = world.out_style();
    match args.output.format {
        args::Format::Json => print::json(&mut world.out, &report::document::status(&status))?,
        args::Format::Human => {
            print::show(&mut world.out, |to| {
                report::status::write(to, &status, style)
            })?;
        }
    }
    Ok(ended?)
}
