//! Which driver fits which GPU, kernel and CUDA version: a pure function of the matrix.

pub mod answer;
pub mod asked;
mod attempt;
mod branches;
mod catalog;
mod chips;
pub mod cuda_image;
pub mod cudnn;
mod evidence;
mod explain;
pub mod gpu;
pub mod kernel;
pub mod kernels;
pub mod load;
pub mod matrix;
mod meanings;
pub mod names;
mod options;
pub mod pick;
pub mod question;
pub mod rules;
pub mod ruling;
pub mod security;
pub mod switches;
mod wish;
