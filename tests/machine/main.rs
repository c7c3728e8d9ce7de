//! A stateful in-memory machine with simulated programs, which read and change its files like the real ones. The tests run
//! every `tests/scenarios/*.toml`, and check properties of all machines.

/// The rows of a test table, one line each, as in `src/lib.rs`.
macro_rules! rows {
    ($($($cell:expr),+);+ $(;)?) => { [$(($($cell),+)),+] };
}

mod admission;
mod answers;
mod apt;
mod apt_cache;
mod apt_messages;
mod archive;
mod boot;
mod build;
mod cluster;
mod containers;
mod dnf;
mod dpkg;
mod fabric;
mod fleetlock;
mod gpu;
mod in_advance;
mod kernel;
mod locked;
mod machine;
mod maintenance;
mod mig;
mod mps;
mod properties;
mod rollout;
mod root;
mod rpm;
mod scenario;
mod scenarios;
mod screens;
mod simulations;
mod state;
mod statements;
mod undo;
mod units;
mod upgrade;
