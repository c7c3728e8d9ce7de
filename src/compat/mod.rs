//! Which driver fits which GPU, kernel and CUDA version: a pure function of the matrix.

mod attempt;
mod catalog;
mod explain;
pub mod gpu;
mod kernel;
pub mod load;
mod locate;
pub mod matrix;
pub mod pick;
pub mod question;
pub mod rules;
pub mod ruling;
mod validate;
mod wish;
