//! The PCI devices of the test machines: one catalogue, and a server that gives their functions to
//! QEMU over vfio-user. A served GPU has the configuration space, the BARs and the chip id
//! registers of its model. A driver reads these before it binds. There is nothing else, so a driver
//! binds and then cannot initialise the device.

pub mod config;
pub mod function;
pub mod serve;
pub mod table;
