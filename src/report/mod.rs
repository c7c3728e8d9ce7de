//! All output for people and programs: documents, sentences, errors, and three views of the events.
//! Every function writes to a given writer; none reads the environment.
//!
//! What people read starts with the verdict, in one line. Then comes only what changed, fails, or needs
//! a decision, and a count of the rest; `-v` shows everything. The next step is last.
//!
//! To add an output format of `check`: a variant of `CheckFormat` (`src/cli/args.rs`), its arm in
//! `src/cli/check.rs`, a file in `formats`, and a command line in `tests/cli.rs`. Of all other commands: a
//! variant of `OutputFormat`, for which `cargo check` names the arms.

pub mod document;
pub mod error;
pub mod formats;
pub mod human;
pub mod lines;
pub mod log;
pub mod plain;
mod screen;
pub mod settings;
pub mod status;
mod style;
pub mod terminal;
#[cfg(test)]
mod tests;
pub mod timing;
mod words;

pub use lines::JsonLines;
pub use log::{Drawn, Log};
pub use plain::Plain;
pub use style::{Style, UNWRAPPED, WIDTH};
pub use terminal::Terminal;
