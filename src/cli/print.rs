//! Documents on standard output.

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

/// A reader that has gone, as `head` does, wanted no more; the exit code stays that of the command.
fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(failed),
    }
}

/// One JSON document with a line end.
pub(super) fn json(out: &mut dyn Write, document: &impl Serialize) -> Result<(), Failure> {
    written(
        serde_json::to_writer_pretty(&mut *out, document)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
            .and_then(|()| out.flush()),
    )
}

/// Text that ends with a line end.
pub(super) fn text(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints what a report writes.
pub(super) fn show(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    written(write(out).and_then(|()| out.flush()))
}

/// The same for a format that decides on the exit status.
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
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(text(&mut Broken(ErrorKind::BrokenPipe), "a").is_ok());
        assert!(json(&mut Broken(ErrorKind::BrokenPipe), &1).is_ok());
        assert!(text(&mut Broken(ErrorKind::StorageFull), "a").is_err());
    }
}
