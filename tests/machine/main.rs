//! A stateful machine in memory, whose simulated programs read and change it as the real ones do,
//! and what is tested on it: every `tests/scenarios/*.toml`, and properties that hold for all.

mod apt;
mod archive;
mod build;
mod containers;
mod dpkg;
mod gpu;
mod kernel;
mod machine;
mod properties;
mod root;
mod scenarios;
mod state;
mod units;
