//! DCGM: its units, and the command of its exporter. All functions are pure.
//!
//! Sources: NVIDIA, "Install DCGM" and "Install DCGM Exporter"; NVIDIA/dcgm-exporter 4.5.3-4.8.2 (commit d5e5f510),
//! `packaging/config-files/systemd/nvidia-dcgm-exporter.service` and `pkg/cmd/app.go`.

use crate::tools::packages::HEADER;

/// The unit of the host engine `nv-hostengine`.
pub const UNIT: &str = "nvidia-dcgm.service";

/// The unit of the exporter.
pub const EXPORTER_UNIT: &str = "nvidia-dcgm-exporter.service";

/// Our drop-in of the exporter.
pub const DROP_IN: &str =
    "/etc/systemd/system/nvidia-dcgm-exporter.service.d/50-gpu-bootstrap.conf";

/// The start of the names of all packages of DCGM and its exporter.
pub const PACKAGES: &str = "datacenter-gpu-manager";

/// The package of DCGM 3, which conflicts with the packages of DCGM 4.
pub const DCGM_3: &str = "datacenter-gpu-manager";

/// The host engine, with its default port.
const ENGINE: &str = "localhost:5555";

/// The option with which the exporter uses another host engine instead of an embedded one.
const REMOTE: &str = "--remote-hostengine-info";

/// The short form of [`REMOTE`].
const REMOTE_SHORT: &str = "-r";

/// The environment variable with the same effect.
pub const REMOTE_VARIABLE: &str = "DCGM_REMOTE_HOSTENGINE_INFO";

/// Returns the drop-in with which the exporter uses the host engine of the machine. Otherwise it would start an embedded one, and
/// only one of them could read the profiling metrics.
///
/// The exporter exits with 1 if it cannot connect (`internal/pkg/dcgmprovider/dcgm.go`), and `Restart=on-abort` of its packaged unit
/// does not include this. At boot, `After=` only waits until the host engine was started, not until it listens.
pub fn drop_in(port: u16) -> String {
    format!(
        "{HEADER}[Service]\nRestart=on-failure\nRestartSec=5\nExecStart=\nExecStart=/usr/bin/dcgm-exporter -f \
         /etc/dcgm-exporter/default-counters.csv --address :{port} {REMOTE} {ENGINE}\n"
    )
}

/// Whether a process contains a host engine: `nv-hostengine`, or an exporter that does not use another one according to its command
/// line. `program` is the file name of its executable, because any user can choose the name of a process.
pub fn has_engine(program: &str, command: &str) -> bool {
    let is_remote = |word: &str| {
        word == REMOTE_SHORT || word == REMOTE || word.starts_with(&format!("{REMOTE}="))
    };
    match program {
        "nv-hostengine" => true,
        "dcgm-exporter" => !command.split_whitespace().any(is_remote),
        _ => false,
    }
}

/// Whether a program is Nsight Systems or Nsight Compute. They cannot use the profiling counters of a GPU while DCGM reads them,
/// unless it is paused. Source: NVIDIA, "dcgmi profile"
/// (<https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgmi/dcgmi-profile.html>).
pub fn is_profiler(program: &str) -> bool {
    matches!(program, "nsys" | "ncu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporter_uses_the_engine_of_the_host() {
        let text = drop_in(9401);
        assert!(text.starts_with(HEADER), "{text}");
        let command = text.lines().last().unwrap_or_default();
        assert!(
            command.ends_with("--address :9401 --remote-hostengine-info localhost:5555"),
            "{command}"
        );
        assert!(
            text.contains("\nRestart=on-failure\nRestartSec=5\n"),
            "{text}"
        );
        // The packaged command is cleared first.
        assert!(
            text.contains("\nExecStart=\nExecStart=/usr/bin/dcgm-exporter "),
            "{text}"
        );
    }

    #[test]
    fn embedded_engines_are_found() {
        for (program, command, found) in rows! {
            "nv-hostengine", "nv-hostengine -n", true;
            "dcgm-exporter", "/usr/bin/dcgm-exporter -f a.csv", true;
            "dcgm-exporter", "/usr/bin/dcgm-exporter -r localhost:5555", false;
            "dcgm-exporter", "dcgm-exporter --remote-hostengine-info=a:5555", false;
            "python3", "nv-hostengine", false;
        } {
            assert_eq!(has_engine(program, command), found, "{program} {command}");
        }
    }
}
