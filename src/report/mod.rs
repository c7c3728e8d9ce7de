//! All output, human-readable and machine-readable: documents, messages, errors, and three views of the events.
//! Functions write to a given writer and never read the environment.
//!
//! Human-readable output starts with a one-line verdict, followed by changes, failures, required decisions, and a count of the
//! rest (`-v` shows everything). The next command is last.
//!
//! To add an output format of `check`: a variant of `CheckFormat` (`src/cli/args.rs`), its arm in
//! `src/cli/check.rs`, a file in `formats`, and a command line in `tests/cli.rs`. For all other commands: a
//! variant of `OutputFormat`; `cargo check` reports the missing arms.

pub mod document;
pub mod error;
pub mod fleet;
pub mod formats;
pub mod human;
pub mod lines;
pub mod log;
pub(crate) mod messages;
pub mod plain;
mod screen;
pub mod settings;
pub mod status;
mod style;
pub mod terminal;
#[cfg(test)]
mod tests;
pub mod timing;

pub use lines::JsonLines;
pub use log::{Drawn, Log};
pub use plain::Plain;
pub use style::{Style, UNWRAPPED, WIDTH};
pub use terminal::Terminal;
