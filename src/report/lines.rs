//! Events as JSON Lines, one envelope per line, for programs.

use std::io::{self, Write};

use crate::event::{Envelope, Subscriber};

/// Writes each event as a line and flushes it.
pub struct JsonLines<W> {
    to: W,
}

impl<W: Write + Send> JsonLines<W> {
    /// Creates a subscriber that writes to a file, a pipe, or standard output.
    pub const fn new(to: W) -> Self {
        Self { to }
    }
}

impl<W: Write + Send> Subscriber for JsonLines<W> {
    fn name(&self) -> &'static str {
        "the JSON Lines"
    }

    fn event(&mut self, envelope: &Envelope) -> io::Result<()> {
        // Write each line with one call, so that a reader gets complete lines unless the pipe is full.
        let mut line = serde_json::to_vec(envelope)?;
        line.push(b'\n');
        self.to.write_all(&line)?;
        self.to.flush()
    }
}
