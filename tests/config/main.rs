//! Tests the configuration from files to the desired state. Every supported release, architecture, source and GPU is resolved
//! or rejected with a reason, sources are applied in order, and errors contain location and remedy.

#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test reports a broken fixture"
)]

mod combinations;
mod docs;
mod errors;
mod machine;
mod resolution;
mod runtimes;
