//! Shared types: versions, PCI IDs, names, secrets. No I/O.
pub mod clouds;
pub mod document;
pub mod environment;
pub mod fault;
pub mod findings;
pub mod fleet;
pub mod id;
pub mod kubernetes;
pub mod node;
pub mod packages;
pub mod paths;
pub mod secret;
pub mod text;
pub mod token;

pub use gpu_compat::{capability, identity as gpu, pattern, pci, version};
