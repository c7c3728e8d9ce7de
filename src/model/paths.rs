//! Where this program keeps things. Part of its contract with administrators.

/// Journal, receipt, backups and records of probes; survives reboots. Mode 0700.
pub const STATE: &str = "/var/lib/gpu-bootstrap";

/// The run lock and the data of the current run; removed by a reboot.
pub const RUN: &str = "/run/gpu-bootstrap";
