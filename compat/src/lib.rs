#![doc = include_str!("../README.md")]

/// A table of test inputs: `rows! { "a", 1; "b", 2; }` is `[("a", 1), ("b", 2)]`.
#[cfg(test)]
macro_rules! rows {
    ($($($cell:expr),+);+ $(;)?) => { [$(($($cell),+)),+] };
}

pub mod answer;
pub mod asked;
mod attempt;
pub mod board;
mod branches;
pub mod capability;
mod chips;
mod constraints;
pub mod cuda_image;
pub mod cudnn;
mod evidence;
mod explain;
pub mod identity;
pub mod kernel;
pub mod kernels;
pub mod load;
pub mod matrix;
mod name_match;
pub mod names;
mod options;
pub mod pattern;
pub mod pci;
pub mod pick;
pub mod question;
mod released;
pub mod rule_result;
pub mod rules;
pub mod security;
pub mod text;
pub mod version;

pub use matrix::Matrix;
