//! The PCI devices of the test machines: one catalogue, and a server that gives its functions to
//! QEMU over vfio-user. A served GPU has the configuration space, the BARs and the chip id
//! registers of its model, which is what a driver looks at before it binds; behind them is
//! nothing, so that a driver binds and then cannot initialise the device.

pub mod config;
pub mod function;
pub mod serve;
pub mod table;
