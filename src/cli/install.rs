//! `install`: makes the machine as wanted, and goes on where an earlier run was cut off.

use super::{
    Failure, args,
    prepare::{self, Asked},
    viewers,
    world::{Console, Env},
};
use crate::{engine, error::one_line, exit::Exit, host::Host, journal::Request};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::InstallArgs,
) -> Result<Exit, Failure> {
    env.only_root(host, "install")?;
    let request = requested(host, console, args)?;
    let target = prepare::target(host, env, request).await?;
    console.warn(&target.resolution.warnings);
    // Before the signal handlers: Ctrl-C ends the wait for a reader of the events at once.
    let viewers = viewers::open(host, env, console, args.events.as_deref(), args.detail)?;
    let (session, reporter) = target.session(env, viewers, viewers::cancel()?)?;
    let ended = session.install().await;
    reporter.finish();
    let report = ended?;
    // Events have standard output for themselves when they were asked for there.
    let format = (args.events.as_deref() != Some("-")).then_some(args.output.format);
    console.tell(&report, format, args.detail);
    Ok(session
        .follow(&report, &mut |message| console.say(message))
        .await?)
}

/// What is asked for: by this command line, or by that of the run that is resumed.
fn requested(
    host: &Host,
    console: &mut Console<'_>,
    args: &args::InstallArgs,
) -> Result<Asked, Failure> {
    let mut request = if args.resume {
        resumed(host, console)?
    } else {
        prepare::request(&args.target, &args.image, args.reboot, args.lock_timeout)?
    };
    let deadline = args.deadline.map(|deadline| deadline.as_secs());
    request.deadline_seconds = deadline.or(request.deadline_seconds);
    Ok(Asked {
        request,
        resumed: args.resume,
    })
}

/// What the journal says was asked for, without what only the first run of an image is told.
fn resumed(host: &Host, console: &mut Console<'_>) -> Result<Request, Failure> {
    let asked = engine::request(host);
    match engine::release_lost(host, &asked) {
        Ok(notes) => notes.iter().for_each(|note| console.note(note)),
        Err(error) => console.note(&format!("failed to {}", one_line(&error))),
    }
    let asked = asked?.ok_or_else(|| {
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
