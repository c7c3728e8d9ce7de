//! The report about many nodes. `read` reads `check` documents one after the other and keeps a few values of each node,
//! `compare` compares nodes of the same type, and `markdown` prints the result, which is also a JSON document.
//!
//! The documents come from other machines, so their size, their number and their texts are limited, and no command of a document
//! is printed.

mod compare;
mod markdown;
mod read;
#[cfg(test)]
mod tests;

pub use compare::Fleet;
pub use markdown::markdown;
pub use read::Collected;
