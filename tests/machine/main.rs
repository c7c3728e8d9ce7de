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
mod kernel;
mod locked;
mod machine;
mod maintenance;
mod mig;
mod mig_layouts;
mod mps;
mod prebuilt;
mod properties;
mod rollout;
mod root;
mod rpm;
mod scenarios;
mod screens;
mod simulations;
mod state;
mod statements;
mod undo;
mod units;
mod upgrade;

// A test for each scenario, named after its file: `scenario::cdi_stale` runs `cdi-stale.toml`.
test_each_file::test_each_path! { for ["toml"] in "./tests/scenarios" as scenario => scenarios::run }
