//! `install`: brings the machine to the desired state, or continues an interrupted run.

use super::{
    Failure, args,
    env::{Console, Env},
    prepare::{self, Asked},
    viewers,
};
use crate::{engine, error::one_line, exit::Exit, host::Host, journal::Request};

pub(super) async fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::InstallArgs,
) -> Result<Exit, Failure> {
    env.only_root(host, "install")?;
    let asked = requested(host, env, console, args)?;
    let output = RunOutput {
        events: args.events.as_deref(),
        detail: args.detail,
        format: args.output.format,
    };
    apply(host, env, console, asked, &output).await
}

/// The output options of a run.
pub(super) struct RunOutput<'a> {
    pub(super) events: Option<&'a str>,
    pub(super) detail: args::DetailArgs,
    pub(super) format: args::OutputFormat,
}

/// Installs, and reports the result.
pub(super) async fn apply(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    asked: Asked,
    output: &RunOutput<'_>,
) -> Result<Exit, Failure> {
    let target = prepare::target(host, env, asked).await?;
    console.warn(&target.resolution.warnings);
    // Opening the event pipe waits for a reader. Open it before the signal handlers are installed, so that Ctrl-C ends the
    // wait.
    let subscribers = viewers::open(host, env, console, output.events, output.detail)?;
    let (session, reporter) = target.session(env, subscribers, viewers::cancel()?)?;
    let ended = session.install().await;
    reporter.finish();
    let report = ended?;
    // With `--events -`, standard output contains only events.
    let format = (output.events != Some("-")).then_some(output.format);
    console.tell(&report, format, output.detail);
    Ok(session
        .follow(&report, &mut |message| console.say(message))
        .await?)
}

/// Returns the request of this command line, or of the run that is resumed.
fn requested(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::InstallArgs,
) -> Result<Asked, Failure> {
    let mut request = if args.resume {
        resumed(host, console)?
    } else {
        let request = prepare::request(&args.target, &args.image, args.reboot, args.lock_timeout)?;
        let request = prepare::with_lock(host, env, &args.target, request)?;
        prepare::with_bundle(host, env, args.bundle.bundle.as_deref(), request)?
    };
    let deadline = args.deadline.map(|deadline| deadline.as_secs());
    request.deadline_seconds = deadline.or(request.deadline_seconds);
    Ok(Asked {
        request,
        resumed: args.resume,
        now: false,
    })
}

/// Returns the request in the journal, without the options that apply only to the first run in an image.
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
