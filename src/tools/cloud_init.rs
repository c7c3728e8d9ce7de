//! Detects whether cloud-init is still running. This module reads the same files as `cloud-init status --wait`. It does not run
//! that command, which has no timeout and never returns if cloud-init itself started gpu-bootstrap.

use camino::Utf8Path;

use crate::host::{FilesError, ReadFiles};

/// Written by the first cloud-init stage of each boot. Source: `is_running` in `cloudinit/cmd/status.py`, which also reads
/// [`RESULT`].
const STATUS: &str = "/run/cloud-init/status.json";

/// Written at the end of the last stage, after all `runcmd` entries.
const RESULT: &str = "/run/cloud-init/result.json";

/// The cgroup of this process. The format is described in proc_pid_cgroup(5).
const OUR_GROUP: &str = "/proc/self/cgroup";

/// The services of the cloud-init stages. Since cloud-init 24.3, all stages run in `cloud-init-main.service`, unless the
/// distribution reverts this (cloud-init documentation, "Breaking changes").
const SERVICES: [&str; 6] = [
    "cloud-init-local.service",
    "cloud-init.service",
    "cloud-init-network.service",
    "cloud-init-main.service",
    "cloud-config.service",
    "cloud-final.service",
];

/// Whether cloud-init has started, but not finished all stages of this boot.
///
/// # Errors
/// If the existence of the cloud-init files cannot be determined.
pub fn is_running(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    Ok(files.exists(Utf8Path::new(STATUS))? && !files.exists(Utf8Path::new(RESULT))?)
}

/// Whether cloud-init started this process. If so, cloud-init waits for this process to exit.
///
/// # Errors
/// If the cgroup of this process cannot be read.
pub fn started_us(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    let group = files.read_text(Utf8Path::new(OUR_GROUP))?;
    Ok(group.is_some_and(|group| {
        group
            .lines()
            .flat_map(|line| line.split('/'))
            .any(|part| SERVICES.contains(&part))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeFiles;

    #[test]
    fn cloud_init_runs_until_the_result_file_exists() {
        let files = FakeFiles::new();
        assert!(!is_running(&files).unwrap());
        files.put(STATUS, "{}");
        assert!(is_running(&files).unwrap());
        files.put(RESULT, "{}");
        assert!(!is_running(&files).unwrap());
    }

    #[test]
    fn cloud_init_processes_are_detected_by_cgroup() {
        for (group, ours) in rows! {
            "0::/system.slice/cloud-final.service\n", true;
            "1:name=systemd:/system.slice/cloud-init.service\n0::/\n", true;
            "0::/system.slice/gpu-bootstrap.service\n", false;
            "0::/user.slice/cloud-final.service.d\n", false;
        } {
            let files = FakeFiles::new();
            files.put("/proc/self/cgroup", group);
            assert_eq!(started_us(&files).unwrap(), ours, "{group}");
        }
        assert!(!started_us(&FakeFiles::new()).unwrap());
    }
}
