//! Configuration from files to the desired state: every supported release, architecture, source and
//! GPU resolves or is refused with a reason; layers go in order; errors say where and what to do.

#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test says that its own ground is gone"
)]

mod combinations;
mod docs;
mod errors;
mod machine;
mod resolution;
