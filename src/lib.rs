//! Takes a bare Linux VM with NVIDIA GPUs and makes it a pinned, validated, audited GPU node.
//!
//! ARCHITECTURE.md says how the parts fit; modules import downwards only, in the order below.

// Modules that these tests share with the other test programs call it so.
#[cfg(test)]
extern crate self as gpu_bootstrap;

/// The rows of a table that a test goes through, a line for each: `rows! { "a", 1; "b", 2; }` is `[("a", 1), ("b", 2)]`.
#[cfg(test)]
macro_rules! rows {
    ($($($cell:expr),+);+ $(;)?) => { [$(($($cell),+)),+] };
}

pub mod model;

pub mod host;

pub mod tools;

pub mod dkms;
pub mod fabric;
pub mod mig;
pub mod runtimes;

pub mod facts;

pub mod state;

pub use gpu_compat as compat;

pub mod work;

pub mod joins;

pub mod config;

mod modules;

pub mod change;

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
