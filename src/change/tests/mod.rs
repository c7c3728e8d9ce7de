//! Each verb on a machine in memory: applied, undone, and the machine compared with before.

mod apt;
mod faults;
mod files;
mod kit;
mod network;
mod packages;
mod record;
mod system;
