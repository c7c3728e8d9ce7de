//! `status`: the current run, the last run and a pending reboot.

use super::{Failure, args, env::Console, print};
use crate::{engine, exit::Exit, host::Host, report};

/// The file with the boot ID, a random ID for each boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the boot ID. `None` if the kernel does not provide one.
pub(super) fn boot_id(host: &Host) -> Result<Option<String>, Failure> {
    let text = host.files.read_text(BOOT_ID.into());
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

/// Prints the duration of each part of the last installation.
fn show_timing(
    host: &Host,
    console: &mut Console<'_>,
    args: &args::StatusArgs,
) -> Result<(), Failure> {
    let Some(timing) = engine::last_timing(host)? else {
        return Err(Failure::new(
            Exit::Usage,
            "nothing-installed",
            "failed to show installation times: the journal contains no installation",
            Some("run `gpu-bootstrap install`"),
        ));
    };
    let style = console.out_style();
    if args.output.format == args::OutputFormat::Json {
        return print::json(&mut console.out, &report::document::timing(&timing));
    }
    print::show(&mut console.out, |to| match (args.svg, args.timeline) {
        (true, _) => report::timing::svg(to, &timing),
        (false, true) => report::timing::timeline(to, &timing, style),
        (false, false) => report::timing::table(to, &timing, style),
    })
}

pub(super) async fn run(
    host: &Host,
    console: &mut Console<'_>,
    args: &args::StatusArgs,
) -> Result<Exit, Failure> {
    let boot = boot_id(host)?;
    let ended = match args.wait {
        None => Ok(Exit::Ok),
        Some(limit) => engine::wait(host, boot.as_deref(), limit).await,
    };
    if args.timing || args.timeline {
        let shown = show_timing(host, console, args);
        let exit = ended?;
        return shown.map(|()| exit);
    }
    let status = engine::status(host, boot.as_deref())?;
    let is_first = status.last.is_none() && status.current.is_none();
    if args.wait.is_some() && is_first && matches!(ended, Ok(Exit::Ok)) {
        // cloud-init must not wait for a run that may never start.
        console.note("no run was started on this machine, so there is nothing to wait for");
    }
    let style = console.out_style();
    match args.output.format {
        args::OutputFormat::Json => {
            print::json(&mut console.out, &report::document::status(&status))?
        }
        args::OutputFormat::Human => {
            print::show(&mut console.out, |to| {
                report::status::write(to, &status, style)
            })?;
        }
    }
    Ok(ended?)
}
