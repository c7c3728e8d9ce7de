//! Detects whether cloud-init is still running. `cloud-init status --wait` has no timeout and never returns if cloud-init
//! itself started gpu-bootstrap, so this module reads the same files as that command.

use camino::Utf8Path;

use crate::host::{FilesError, ReadFiles};

/// cloud-init is running while the first file exists and the second does not (`is_running` in `cloudinit/cmd/status.py`). The
/// first stage of each boot writes the first file. The last stage writes the second file when it finishes, after all `runcmd`
/// entries.
const STATUS: &str = "/run/cloud-init/status.json";
const RESULT: &str = "/run/cloud-init/result.json";

/// The cgroup of this process, proc_pid_cgroup(5).
const OUR_GROUP: &str = "/proc/self/cgroup";

/// The services of the cloud-init stages. Newer versions have only `cloud-init-main.service`.
const SERVICES: [&str; 6] = [
    "cloud-init-local.service",
    "cloud-init.service",
    "cloud-init-network.service",
    "cloud-init-main.service",
    "cloud-config.service",
    "cloud-final.service",
];

/// Whether a stage of this boot is still running.
///
/// # Errors
/// If the files of cloud-init cannot be read.
pub fn is_running(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    Ok(files.exists(Utf8Path::new(STATUS))? && !files.exists(Utf8Path::new(RESULT))?)
}

/// Whether cloud-init started this process, and therefore waits for it.
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
    fn it_is_running_between_its_two_files() {
        let files = FakeFiles::new();
        assert!(!is_running(&files).unwrap());
        files.put(STATUS, "{}");
        assert!(is_running(&files).unwrap());
        files.put(RESULT, "{}");
        assert!(!is_running(&files).unwrap());
    }

    #[test]
    fn processes_of_cloud_init_are_detected_by_cgroup() {
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
