//! What people and programs get to read: documents, tables, errors, and three views of the events.
//! Everything writes to a writer that it is given; nothing here looks at the environment.

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
