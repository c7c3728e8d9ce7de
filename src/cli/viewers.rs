//! Who sees a run: a person or a log, `status` in another process, and whoever asked for its events.

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

use super::{
    Failure, args,
    world::{Console, Env},
};
use crate::{
    engine::{Cancel, RunFile, StatusFile},
    event::Subscriber,
    exit::Exit,
    host::{FilesError, Host, real::RealFiles, trusted::refuse_foreign},
    model::secret::Hiding,
    report::JsonLines,
};

/// How long a pipe for events may be without a reader.
const READER_DEADLINE: Duration = Duration::from_secs(10);

/// The pause between two attempts to open it.
const READER_PAUSE: Duration = Duration::from_millis(50);

/// Asks a run to stop at a signal.
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
pub(super) fn open(
    host: &Host,
    env: &Env,
    console: &Console<'_>,
    events: Option<&str>,
    detail: args::DetailArgs,
) -> Result<Vec<Box<dyn Subscriber>>, Failure> {
    let mut list = vec![
        console.viewer(detail),
        Box::new(RunFile::new(host.files.clone(), env.command.clone())),
        Box::new(StatusFile::new(host.files.clone(), host.clock.clone())),
    ];
    if let Some(place) = events {
        let sink: Box<dyn Write + Send> = if place == "-" {
            Box::new(std::io::stdout())
        } else {
            Box::new(event_file(place, READER_DEADLINE)?)
        };
        // JSON escapes the control characters of ASCII alone.
        let sink = Hiding::new(sink, &env.secrets);
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
