//! Types of the whole program: versions, PCI ids, names, secrets. No I/O.
pub mod capability;
pub mod cluster;
pub mod document;
pub mod environment;
pub mod findings;
pub mod gpu;
pub mod id;
pub mod kubernetes;
pub mod packages;
pub mod paths;
pub mod pattern;
pub mod pci;
pub mod secret;
pub mod text;
pub mod token;
pub mod version;
