//! Which driver fits which GPU, kernel and CUDA version: a pure function of the matrix.

mod catalog;
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
