//! All output for people and programs: documents, tables, errors, and three views of the events.
//! Every function writes to a given writer; none reads the environment.

pub mod document;
pub mod error;
pub mod human;
pub mod lines;
pub mod log;
pub mod plain;
pub mod status;
mod style;
pub mod terminal;
#[cfg(test)]
mod tests;

pub use lines::JsonLines;
pub use log::{Drawn, Log};
pub use plain::Plain;
pub use style::Style;
pub use terminal::Terminal;
