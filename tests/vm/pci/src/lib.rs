//! The PCI devices of the test machines: one catalog, and a server that provides their functions to QEMU over
//! vfio-user. A served GPU has the configuration space, the BARs and the chip ID registers of its model, which a driver
//! reads before it binds. The rest is missing, so a driver binds but cannot initialize the device.

pub mod config;
pub mod function;
pub mod serve;
pub mod table;
