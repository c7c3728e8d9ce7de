//! Turns configuration sources into one validated [`desired::Desired`]. All validation is here.
//!
//! [`sources`] reads the settings with their locations, [`profile`] describes an operating system, [`resolve`]
//! combines both with the facts and the matrix, and [`load`] reads all files and resolves. [`lock`] is the lock file.

mod alternatives;
pub mod choices;
pub mod cluster;
mod cuda;
mod dcgm;
pub mod desired;
mod driver;
pub mod error;
mod fabric;
pub mod file;
mod imex;
pub mod kernel;
pub mod keys;
pub mod load;
pub mod location;
pub mod lock;
mod mig;
pub mod network;
mod no_effect;
pub mod profile;
mod rdma;
pub mod reference;
mod repositories;
pub mod resolve;
mod rows;
mod sharing;
pub mod sources;
mod template;
mod validation;
pub mod values;
