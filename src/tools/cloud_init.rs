//! cloud-init: whether it is at work. `cloud-init status --wait` would never return if cloud-init
//! itself started us, and has no bound; so its files are read, as that command reads them.

use camino::Utf8Path;

use crate::host::{FilesError, ReadFiles};

/// It is at work while the first file exists and the second does not (`is_running` in
/// `cloudinit/cmd/status.py`). The first is written by its first stage in each boot, the second when
/// its last stage ends, with all `runcmd`.
const STATUS: &str = "/run/cloud-init/status.json";
const RESULT: &str = "/run/cloud-init/result.json";

/// The control group of this process, proc_pid_cgroup(5).
const OUR_GROUP: &str = "/proc/self/cgroup";

/// The services that run its stages. `cloud-init-main.service` has replaced the others in newer
/// versions.
const SERVICES: [&str; 6] = [
    "cloud-init-local.service",
    "cloud-init.service",
    "cloud-init-network.service",
    "cloud-init-main.service",
    "cloud-config.service",
    "cloud-final.service",
];

/// Whether a stage of this boot has not ended.
///
/// # Errors
/// When its files cannot be looked at.
pub fn is_running(files: &dyn ReadFiles) -> Result<bool, FilesError> {
    Ok(files.exists(Utf8Path::new(STATUS))? && !files.exists(Utf8Path::new(RESULT))?)
}

/// Whether this process belongs to it: it waits for the end of this process then.
///
/// # Errors
/// When the control group of this process cannot be read.
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
    fn it_runs_from_its_first_file_to_its_last() {
        let files = FakeFiles::new();
        assert!(!is_running(&files).unwrap());
        files.put(STATUS, "{}");
        assert!(is_running(&files).unwrap());
        files.put(RESULT, "{}");
        assert!(!is_running(&files).unwrap());
    }

    #[test]
    fn a_process_of_its_services_is_told_by_the_control_group() {
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
