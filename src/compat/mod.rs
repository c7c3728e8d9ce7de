//! Which driver fits which GPU, kernel and CUDA version: a pure function of the matrix.

mod boards;
pub mod gpu;
mod kernel;
pub mod load;
mod locate;
pub mod matrix;
pub mod question;
mod refuse;
pub mod resolve;
pub mod rules;
mod validate;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of the two kernel module builds of a driver is meant.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// The open kernel modules: Turing and newer, the only ones for Blackwell and newer.
    Open,
    /// The proprietary kernel modules: the only ones before Turing.
    Proprietary,
}

impl fmt::Display for Flavour {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(match self {
            Self::Open => "open",
            Self::Proprietary => "proprietary",
        })
    }
}
