//! Selects the NVIDIA driver for a GPU, Linux kernel, CUDA version and cuDNN version. The result
//! depends only on the query and a matrix, in which each entry has a source. The crate performs no I/O.
//!
//! ```
//! use gpu_compat::{Matrix, pick::{Constraints, pick}};
//!
//! let matrix = Matrix::builtin()?;
//! let h100 = matrix.name_matches("H100")?.into_iter().filter_map(|one| one.gpu).take(1).collect();
//! let constraints = Constraints { gpus: h100, kernel: Some("6.8.0-45-generic".parse()?), ..Constraints::default() };
//! let pick = pick(&matrix, &constraints)?;
//! println!("{} with {} modules", pick.branch, pick.flavor);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
