//! Configuration from files to the desired state: every supported release, architecture, source and
//! GPU is resolved or refused with a reason; layers are applied in order; errors name the place and
//! the remedy.

#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test says that its own ground is gone"
)]

mod combinations;
mod docs;
mod errors;
mod machine;
mod resolution;
mod runtimes;
