//! Turns a bare Linux VM with NVIDIA GPUs into a pinned, validated, audited GPU node.
//!
//! ARCHITECTURE.md describes how the parts fit together. Modules import only lower layers. The groups
//! below are in the order of the layers, except `compat`, `exit` and `error`, which are among the lowest.

// Test modules that integration tests also include refer to this crate by its external name.
#[cfg(test)]
extern crate self as gpu_bootstrap;

/// The entries of a test table, one per line: `rows! { "a", 1; "b", 2; }` is `[("a", 1), ("b", 2)]`.
#[cfg(test)]
macro_rules! rows {
    ($($($cell:expr),+);+ $(;)?) => { [$(($($cell),+)),+] };
}

pub mod model;

pub mod host;

pub mod tools;

pub mod dkms;
pub mod mig;
pub mod runtimes;

pub mod sharing;

pub mod facts;

pub mod state;

pub mod fabric;

pub use gpu_compat as compat;

pub mod work;

pub mod joins;

pub mod config;

mod modules;

pub mod change;

pub mod bundle;

pub mod check;
pub mod step;

pub mod checks;
pub mod steps;

pub mod event;

pub mod journal;

pub mod engine;

pub mod report;

pub mod cli;

pub mod error;
pub mod exit;
