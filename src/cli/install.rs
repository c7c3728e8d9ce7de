//! `install`: makes the machine as wanted, and goes on where an earlier run was cut off.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use camino::Utf8Path;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, openat2},
    sys::stat::Mode,
};

use super::{Failure, args, modules, prepare, print, status, world::World};
use crate::{
    config::layers,
    engine::{self, Cancel, EngineError, REBOOT_STOPPED, RunFile, RunReport, StatusFile, Tools},
    error::{causes, one_line},
    event::Subscriber,
    exit::Exit,
    host::{FilesError, real::RealFiles, trusted::refuse_foreign},
    journal::Request,
    model::secret::Hiding,
    report::{JsonLines, Plain, Terminal, document, human},
};

/// How long a pipe for events may be without a reader.
const READER_DEADLINE: Duration = Duration::from_secs(10);

/// The pause between two attempts to open it.
const READER_PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn run(world: &mut World<'_>, args: &args::InstallArgs) -> Result<Exit, Failure> {
    prepare::root(world, "install")?;
    if args.unattended {
        return unattended(world, args).await;
    }
    let mut request = if args.resume {
        resumed(world)?
    } else {
        prepare::request(&args.target, &args.image, args.reboot, args.lock_timeout)?
    };
    if let Some(deadline) = args.deadline {
        request.deadline_seconds = Some(deadline.as_secs());
    }
    let automatic = request.reboot;
    let deadline = deadline(&request, args.resume);
    let mut target = prepare::target(world, request).await?;
    prepare::warn(world, &target.resolution.warnings);
    let goes_back = go_back(world, &mut target).await?;
    let events_to_stdout = args.events.as_deref() == Some("-");
    let mut cancel = None;
    let (mut ended, mut tools) = attempt(world, args, &target, deadline, &mut cancel).await?;
    // A driver that has failed validation is replaced by the one before, by the same command.
    if ended.is_ok() && !goes_back && go_back(world, &mut target).await? {
        (ended, tools) = attempt(world, args, &target, deadline, &mut cancel).await?;
    }
    let cancel = tools.cancel.clone();
    let (exit, reboots) = match ended {
        Ok(report) => {
            // Events have standard output for themselves when they were asked for there.
            if events_to_stdout {
                troubles(world, &report);
            } else {
                tell(world, args.output.format, args.detail, &report);
            }
            let reboots = report.reboot.is_some_and(|reboot| reboot.automatic);
            (report.exit, reboots)
        }
        // It was recorded, and did not happen.
        Err(EngineError::RebootFirst { awaited, .. }) if awaited.automatic && automatic => {
            say(
                world,
                "the reboot that the last run asked for has not happened",
            );
            (Exit::RebootRequired, true)
        }
        Err(error) => return Err(error.into()),
    };
    let refused = if automatic && reboots {
        let locks = target.resolution.desired.packages.manager.backend().locks();
        let mut note = |text: &str| say(world, text);
        engine::reboot(&tools, locks, &mut note).await.err()
    } else {
        None
    };
    if exit == Exit::Ok {
        publish(world, &target, &cancel).await;
    }
    if cancel.hung_up() && matches!(exit, Exit::Terminated | Exit::RebootRequired) {
        // The terminal is gone, the machine is not.
        match engine::hand_over(target.host()).await {
            Ok(true) => say(world, &format!("`{}` continues the run", engine::UNIT)),
            Ok(false) => {}
            Err(error) => say(world, &format!("failed to {}", one_line(&error))),
        }
    }
    match refused {
        None => Ok(exit),
        // It was told.
        Some(error) if error.reason == REBOOT_STOPPED => Ok(error.exit),
        Some(error) => Err(error.into()),
    }
}

/// Publishes the modules that were compiled here, on a machine that has passed validation with them. A failure costs other machines the time
/// of a compilation, and this one nothing.
async fn publish(world: &mut World<'_>, target: &prepare::Target, cancel: &Cancel) {
    let desired = &target.resolution.desired;
    let Some((driver, wish)) = (desired.driver.as_ref())
        .filter(|_| !desired.image)
        .and_then(|driver| Some((driver, driver.publish.as_ref()?)))
    else {
        return;
    };
    let published = tokio::select! {
        published = modules::publish(target.host(), target.facts(), driver, wish) => published,
        _ = cancel.cancelled() => Err("it was stopped by a signal".to_owned()),
    };
    match published {
        Ok(None) => {}
        Ok(Some(what)) => say(world, &format!("published {what}")),
        Err(why) => {
            let to = &wish.to;
            let warning =
                format!("the modules that were compiled here are not published to `{to}`: {why}");
            prepare::warn(world, &[warning]);
        }
    }
}

/// Wants the driver before, if the journal says that the machine goes back to it. Returns whether this is so.
async fn go_back(world: &mut World<'_>, target: &mut prepare::Target) -> Result<bool, Failure> {
    let back = engine::rollback(target.host(), &target.resolution.desired).await?;
    if let Some(back) = &back {
        target.go_back(world, back)?;
    }
    Ok(back.is_some())
}

/// The longest wait for the end of a run that is not attended; `status --wait` has the same.
const UNATTENDED_WAIT: Duration = Duration::from_secs(3 * 3600);

/// Starts a unit that installs, and waits until it has ended.
async fn unattended(world: &mut World<'_>, args: &args::InstallArgs) -> Result<Exit, Failure> {
    if let Some(setting) = layers::assignments(world.vars.clone()).first() {
        let name = setting.split('=').next().unwrap_or_default();
        return Err(Failure::new(
            Exit::Usage,
            "environment-not-kept",
            &format!(
                "failed to start a unit: the environment sets `{name}`, and the unit has another environment"
            ),
            Some("write the setting into a file of `/etc/gpu-bootstrap/config.d`, or use `--set`"),
        ));
    }
    let request = prepare::request(&args.target, &args.image, true, args.lock_timeout)?;
    if !request.credentials.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            "secret-not-kept",
            "failed to start a unit: `--set` has a secret, which the unit's properties would show to everybody",
            Some("write it into a file of `/etc/gpu-bootstrap/config.d` with mode 0600"),
        ));
    }
    let command = command(world, args, &request);
    if !engine::start_unattended(&world.host, &command).await? {
        say(world, "a run is under way; this command waits for it");
    }
    let wait = args::StatusArgs {
        wait: Some(UNATTENDED_WAIT),
        timing: false,
        timeline: false,
        output: args.output,
    };
    status::run(world, &wait).await
}

/// The command of the unit.
fn command(world: &World<'_>, args: &args::InstallArgs, request: &Request) -> Vec<String> {
    let mut words = vec![
        world.exe.to_string(),
        "install".to_owned(),
        "--reboot".to_owned(),
    ];
    let mut option = |name: &str, value: String| words.push(format!("--{name}={value}"));
    (request.profile.iter()).for_each(|profile| option("profile", profile.clone()));
    (request.config.iter()).for_each(|path| option("config", path.to_string()));
    (args.target.set.iter()).for_each(|setting| option("set", setting.clone()));
    if let Some(deadline) = args.deadline {
        option("deadline", format!("{}s", deadline.as_secs()));
    }
    if let Some(timeout) = args.lock_timeout {
        option("lock-timeout", format!("{}s", timeout.as_secs()));
    }
    words
}

/// One run of the engine; it ends with its report, or does not begin.
async fn attempt(
    world: &mut World<'_>,
    args: &args::InstallArgs,
    target: &prepare::Target,
    deadline: Option<Duration>,
    signals: &mut Option<Cancel>,
) -> Result<(Result<RunReport, EngineError>, Tools), Failure> {
    // Before the signal handlers: Ctrl-C ends the wait for a reader of the events at once.
    let subscribers = subscribers(world, args.events.as_deref(), args.detail)?;
    let cancel = match signals {
        Some(cancel) => cancel.clone(),
        none => none.insert(cancel()?).clone(),
    };
    let (events, reporter) = prepare::events(target.host(), &world.secrets, subscribers)?;
    let mut tools = target.tools(world, events, cancel);
    tools.options.deadline = deadline;
    tools.options.resumed = args.resume;
    let ended = target.session(tools.clone())?.install().await;
    reporter.finish();
    Ok((ended, tools))
}

/// How long the run tries again what may pass: as asked, else some time where nobody watches.
fn deadline(request: &Request, resumed: bool) -> Option<Duration> {
    let unattended = (request.reboot || resumed).then_some(engine::UNATTENDED_DEADLINE);
    request
        .deadline_seconds
        .map(Duration::from_secs)
        .or(unattended)
}

/// Talk after the last event.
fn say(world: &mut World<'_>, text: &str) {
    // Standard error is the last resort: if it is gone there is nobody to tell.
    let _ = writeln!(world.err, "note: {text}");
}

/// What the journal says was asked for, without what only the first run of an image is told.
fn resumed(world: &mut World<'_>) -> Result<Request, Failure> {
    let asked = engine::request(&world.host);
    match engine::release_lost(&world.host, &asked) {
        Ok(notes) => notes.iter().for_each(|note| say(world, note)),
        Err(error) => say(world, &format!("failed to {}", one_line(&error))),
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

pub(super) fn cancel() -> Result<Cancel, Failure> {
    let cancel = Cancel::new();
    cancel.on_signals().map_err(|error| {
        Failure::caused(
            Exit::Internal,
            "no-signal-handler",
            "failed to prepare for SIGINT, SIGTERM and SIGHUP",
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
    detail: args::DetailArgs,
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
    list.push(Box::new(StatusFile::new(
        world.host.files.clone(),
        world.host.clock.clone(),
    )));
    if let Some(place) = events {
        let sink: Box<dyn Write + Send> = if place == "-" {
            Box::new(std::io::stdout())
        } else {
            Box::new(event_file(place, READER_DEADLINE)?)
        };
        // JSON escapes the control characters of ASCII alone.
        let sink = Hiding::new(sink, &world.secrets);
        list.push(Box::new(JsonLines::new(sink)));
    }
    Ok(list)
}

/// Opens a file for events. A pipe needs somebody who reads it: without one, opening it would wait
/// for ever, so the wait has a bound.
fn event_file(place: &str, deadline: Duration) -> Result<File, Failure> {
    let begun = Instant::now();
    let failed = |error: std::io::Error, hint| {
        Failure::caused(
            Exit::Usage,
            "events-unwritable",
            &format!("failed to open `{place}` for events"),
            error,
            hint,
        )
    };
    let opened = loop {
        match open_events(Path::new(place)) {
            Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
                if begun.elapsed() >= deadline {
                    let why = format!("nobody has read this pipe for {} s", deadline.as_secs());
                    return Err(failed(
                        std::io::Error::new(error.kind(), why),
                        Some("start the reader first, or name a regular file"),
                    ));
                }
                // The kernel does not tell when a reader comes.
                std::thread::sleep(READER_PAUSE);
            }
            opened => break opened.map_err(|error| failed(error, None))?,
        }
    };
    // From here on a slow reader may delay the thread that writes events, which nothing waits for.
    fcntl(&opened, FcntlArg::F_SETFL(OFlag::O_APPEND))
        .map_err(|error| failed(error.into(), None))?;
    Ok(opened)
}

/// Opens the file. Root follows a link only where nobody else can have made it, as `/dev/stderr`: the events would go to a file
/// of root's.
fn open_events(place: &Path) -> std::io::Result<File> {
    let absolute = std::path::absolute(place)?;
    let folder = absolute.parent().unwrap_or(Path::new("/"));
    let folder = Utf8Path::from_path(folder).ok_or(std::io::ErrorKind::InvalidInput)?;
    let is_link_of_others = match std::fs::symlink_metadata(&absolute) {
        Ok(about) => about.is_symlink() && about.uid() != 0,
        Err(_) => false,
    };
    let is_others = match refuse_foreign(&RealFiles, folder) {
        Ok(_) => is_link_of_others,
        Err(FilesError::Foreign { .. }) => true,
        Err(error) => return Err(std::io::Error::other(error)),
    };
    if !is_others {
        return OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&absolute);
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_APPEND | OFlag::O_NONBLOCK;
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .mode(Mode::S_IRUSR | Mode::S_IWUSR)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(AT_FDCWD, &absolute, how) {
        Err(Errno::ENOSYS) => Err(std::io::Error::other(
            "others than root may change its folder, and this kernel cannot open it without links",
        )),
        opened => Ok(opened?.into()),
    }
}

/// Prints what a run did. It is done, so that its exit status counts, whoever reads this or not.
pub(super) fn tell(
    world: &mut World<'_>,
    format: args::OutputFormat,
    detail: args::DetailArgs,
    report: &RunReport,
) {
    let style = world.out_style().verbose(detail.verbose);
    let told = match format {
        args::OutputFormat::Json => print::json(&mut world.out, &document::run(report, None)),
        args::OutputFormat::Human => {
            print::show(&mut world.out, |to| human::run(to, report, style))
        }
    };
    if let Err(failure) = told {
        let error = failure.report();
        say(world, &format!("{error}: {}", causes(error).join(": ")));
    }
    troubles(world, report);
}

/// Causes and hints, as talk.
fn troubles(world: &mut World<'_>, report: &RunReport) {
    let style = world.err_style();
    // Standard error is the last resort: if it is gone there is nobody to tell.
    let _ = human::troubles(&mut world.err, report, style);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::one_line;

    fn pipe() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let path = path.into_os_string().into_string().unwrap();
        (folder, path)
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_refused_after_a_bounded_wait() {
        let (_keep, path) = pipe();
        let failure = event_file(&path, Duration::ZERO).unwrap_err();
        let report = failure.report();
        assert_eq!(report.exit(), Exit::Usage);
        assert!(report.hint().unwrap().contains("reader"));
        assert!(one_line(report).contains("nobody has read this pipe"));
    }

    #[test]
    fn a_reader_of_the_pipe_may_come_a_little_later() {
        let (_keep, path) = pipe();
        let place = path.clone();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(READER_PAUSE * 2);
            std::fs::read_to_string(place).unwrap()
        });
        let mut events = event_file(&path, READER_DEADLINE).unwrap();
        events.write_all(b"{}\n").unwrap();
        drop(events);
        assert_eq!(reader.join().unwrap(), "{}\n");
    }

    #[test]
    fn events_follow_no_link_that_somebody_else_can_have_made() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            folder
                .path()
                .join(name)
                .into_os_string()
                .into_string()
                .unwrap()
        };
        // Everybody may write to it.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(path("victim"), "root's\n").unwrap();
        symlink(path("victim"), path("events")).unwrap();
        std::fs::create_dir(path("real")).unwrap();
        symlink(path("real"), path("way")).unwrap();
        for place in [path("events"), path("way/new")] {
            event_file(&place, READER_DEADLINE).unwrap_err();
        }
        assert_eq!(std::fs::read_to_string(path("victim")).unwrap(), "root's\n");
        assert!(!Path::new(&path("real/new")).exists());
        let mut events = event_file(&path("real/new"), READER_DEADLINE).unwrap();
        events.write_all(b"{}\n").unwrap();
        let text = std::fs::read_to_string(path("real/new")).unwrap();
        assert_eq!(text, "{}\n");
    }
}
