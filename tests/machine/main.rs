//! A stateful machine in memory. Its simulated programs read and change its files as the real ones
//! do. The tests run every `tests/scenarios/*.toml` on it, and check properties that hold for all
//! machines.

/// The rows of a table that a test goes through, a line for each, as in `src/lib.rs`.
macro_rules! rows {
    ($($($cell:expr),+);+ $(;)?) => { [$(($($cell),+)),+] };
}

mod admission;
mod answers;
mod apt;
mod apt_cache;
mod apt_said;
mod archive;
mod boot;
mod build;
mod cluster;
mod containers;
mod dnf;
mod dpkg;
mod fabric;
mod gpu;
mod kernel;
mod kernels;
mod machine;
mod properties;
mod rollback;
mod root;
mod rpm;
mod scenario;
mod scenarios;
mod screens;
mod state;
mod told;
mod undo;
mod units;
mod upgrade;
