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

/// One JSON document with a line end.
pub(super) fn json(out: &mut dyn Write, document: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, document)
        .map_err(std::io::Error::from)
        .and_then(|()| writeln!(out))
        .and_then(|()| out.flush())
        .map_err(failed)
}

/// Text that ends with a line end.
pub(super) fn text(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(failed)
}

/// Prints what a report writes.
pub(super) fn show(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    write(out).and_then(|()| out.flush()).map_err(failed)
}
