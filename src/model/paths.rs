//! Paths of gpu-bootstrap. They are part of its public interface.

/// Journal, receipt, backups and validation records. Survives reboots. Mode 0700.
pub const STATE: &str = "/var/lib/gpu-bootstrap";

/// The run lock and the data of the current run. Removed by a reboot.
pub const RUN: &str = "/run/gpu-bootstrap";

/// The unit that resumes a run after a reboot.
pub const RESUME_UNIT: &str = "gpu-bootstrap-resume.service";
