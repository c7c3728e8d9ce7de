//! Writes documents to standard output.

use std::io::Write;

use serde::Serialize;

use super::Failure;
use crate::exit::Exit;

pub(super) fn failed(error: std::io::Error) -> Failure {
    Failure::caused(
        Exit::Internal,
        "output",
        "failed to write to standard output",
        error,
        None,
    )
}

/// Ignores a closed pipe (for example `| head`), so that the exit code of the command is unchanged.
fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(failed),
    }
}

/// Writes one JSON document and a newline.
pub(super) fn json(out: &mut dyn Write, document: &impl Serialize) -> Result<(), Failure> {
    written(
        serde_json::to_writer_pretty(&mut *out, document)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
            .and_then(|()| out.flush()),
    )
}

/// Writes a text that ends with a newline.
pub(super) fn text(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Writes a report.
pub(super) fn show(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    written(write(out).and_then(|()| out.flush()))
}

/// Writes a report in a format that determines the exit code, such as the Nagios format.
pub(super) fn shown(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<Exit>,
) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    let exit = write(&mut text).map_err(failed)?;
    written(out.write_all(&text).and_then(|()| out.flush()))?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind, Result, Write};

    use super::{json, text};

    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> Result<usize> {
            Err(Error::from(self.0))
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_ignored_but_a_full_disk_is_not() {
        assert!(text(&mut Broken(ErrorKind::BrokenPipe), "a").is_ok());
        assert!(json(&mut Broken(ErrorKind::BrokenPipe), &1).is_ok());
        assert!(text(&mut Broken(ErrorKind::StorageFull), "a").is_err());
    }
}
