//! The viewers of a run: a terminal or a log, `status` in another process, and the destination of `--events`.

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
    env::{Console, Env},
};
use crate::{
    engine::{Cancel, RunFile, StatusFile},
    event::Subscriber,
    exit::Exit,
    host::{FilesError, Host, real::RealFiles, trusted::refuse_foreign},
    model::secret::Hiding,
    report::JsonLines,
};

/// The maximum wait for a reader of an event pipe.
const READER_DEADLINE: Duration = Duration::from_secs(10);

/// The pause between two attempts to open the pipe.
const READER_PAUSE: Duration = Duration::from_millis(50);

/// Creates a token that is cancelled by a signal.
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

/// Opens the subscribers: the terminal or log, the files that `status` reads, and the event file if requested.
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
        // `Hiding` also replaces control characters, because JSON escapes only the ASCII ones.
        let sink = Hiding::new(sink, &env.secrets);
        list.push(Box::new(JsonLines::new(sink)));
    }
    Ok(list)
}

/// Opens a file for events. Opening a pipe without a reader would block forever, so the wait is limited.
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
                    let why = format!("no reader opened this pipe within {} s", deadline.as_secs());
                    return Err(failed(
                        std::io::Error::new(error.kind(), why),
                        Some("start the reader first, or specify a regular file"),
                    ));
                }
                // The kernel does not notify us when a reader opens the pipe.
                std::thread::sleep(READER_PAUSE);
            }
            opened => break opened.map_err(|error| failed(error, None))?,
        }
    };
    // Clear `O_NONBLOCK`, so that a write waits for a slow reader. This delays only the event thread. The run does not wait for
    // it, except for a limited time at its end.
    fcntl(&opened, FcntlArg::F_SETFL(OFlag::O_APPEND))
        .map_err(|error| failed(error.into(), None))?;
    Ok(opened)
}

/// Opens the event file. Symlinks that another user may have created are not followed, because this user could otherwise make
/// root append events to any file. Other symlinks, such as `/dev/stderr`, are followed.
fn open_events(place: &Path) -> std::io::Result<File> {
    let absolute = std::path::absolute(place)?;
    let directory = absolute.parent().unwrap_or(Path::new("/"));
    let directory = Utf8Path::from_path(directory).ok_or(std::io::ErrorKind::InvalidInput)?;
    let is_link_of_others = match std::fs::symlink_metadata(&absolute) {
        Ok(about) => about.is_symlink() && about.uid() != 0,
        Err(_) => false,
    };
    let is_others = match refuse_foreign(&RealFiles, directory) {
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
            "the directory is writable by non-root users, and this kernel cannot open files without following symlinks",
        )),
        opened => Ok(opened?.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::one_line;

    fn pipe() -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let path = path.into_os_string().into_string().unwrap();
        (directory, path)
    }

    #[test]
    fn a_pipe_without_a_reader_is_rejected() {
        let (_keep, path) = pipe();
        let failure = event_file(&path, Duration::ZERO).unwrap_err();
        let report = failure.report();
        assert_eq!(report.exit(), Exit::Usage);
        assert!(report.hint().unwrap().contains("reader"));
        assert!(one_line(report).contains("no reader opened this pipe"));
    }

    #[test]
    fn a_reader_may_open_the_pipe_later() {
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
    fn events_do_not_follow_untrusted_symlinks() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            directory
                .path()
                .join(name)
                .into_os_string()
                .into_string()
                .unwrap()
        };
        // Writable by all users.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
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
