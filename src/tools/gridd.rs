//! `nvidia-gridd`, the license client of the driver for vGPU guests: its unit, its log and the license status.
//!
//! Sources: NVIDIA vGPU Client Licensing User Guide; NVIDIA/gpu-operator issues 220 and 628 and Azure/AgentBaker pull requests
//! 6036 and 6067 (`License Status`); NVIDIA/nvidia-docker issue 1787 (failures); logs in the vGPU guides of cloud providers
//! ("License acquired successfully"). Not verified with a source: "renewed successfully".

use std::time::Duration;

use camino::Utf8Path;

use super::syslog;
use crate::{
    host::{FilesError, Query, ReadFiles},
    model::text::shell_word,
};

/// The program. Only guest drivers contain it.
pub const PROGRAM: &str = "/usr/bin/nvidia-gridd";

/// Its configuration. The driver only contains a template.
pub const CONFIG: &str = "/etc/nvidia/gridd.conf";

/// Its unit.
pub const UNIT: &str = "nvidia-gridd.service";

/// A faulty GPU can delay `nvidia-smi`.
const DEADLINE: Duration = Duration::from_secs(20);

/// Queries the license status. `nvidia-smi --query-gpu` has no field for it.
pub fn status() -> Query {
    Query::new("nvidia-smi", ["--query"]).deadline(DEADLINE)
}

/// Queries the messages of the unit since boot. The filter excludes messages of non-root processes.
pub fn journal() -> Query {
    let unit = format!("_SYSTEMD_UNIT={UNIT}");
    let args = [
        "--boot",
        "--quiet",
        "--no-pager",
        "--output=cat",
        "--lines=500",
        unit.as_str(),
        "_UID=0",
    ];
    Query::new("journalctl", args).deadline(DEADLINE)
}

/// Parses the output of [`status`]: the status of the first GPU without a license.
pub fn unlicensed(text: &str) -> Option<&str> {
    let status = text.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "License Status").then(|| value.trim())
    });
    { status }.find(|status| status.starts_with("Unlicensed"))
}

/// The result of the last attempt to get a license.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    Acquired,
    /// The server rejected the request or did not respond. `server` is `None` if the message does not contain a safe name.
    Failed {
        server: Option<String>,
    },
}

/// Returns the result of the last attempt in these messages, or `None` if there was no attempt.
pub fn last_attempt(text: &str) -> Option<Attempt> {
    text.lines().rev().find_map(|line| {
        for failed in ["Failed to acquire license", "Failed to renew license"] {
            if let Some((_, rest)) = line.split_once(failed) {
                let server = rest
                    .strip_prefix(" from ")
                    .and_then(|rest| rest.split_whitespace().next())
                    // Every user can write to a system log, so the name may contain shell metacharacters.
                    .filter(|name| name.len() < 256 && shell_word(name) == *name);
                return Some(Attempt::Failed {
                    server: server.map(str::to_owned),
                });
            }
        }
        let is_good = ["acquired successfully", "renewed successfully"]
            .iter()
            .any(|words| line.contains(words));
        (is_good && line.contains("icense")).then_some(Attempt::Acquired)
    })
}

/// Returns the result of the last attempt in the log files. A user can write such lines, so the result is at most a warning.
///
/// # Errors
/// If an existing file cannot be read.
pub fn in_files(files: &dyn ReadFiles) -> Result<Option<Attempt>, FilesError> {
    for path in syslog::FILES {
        let text = files.read_lossy(Utf8Path::new(path))?.unwrap_or_default();
        let own: Vec<&str> = (text.lines())
            .filter_map(|line| syslog::message(line, &["nvidia-gridd"]))
            .collect();
        if let Some(attempt) = last_attempt(&own.join("\n")) {
            return Ok(Some(attempt));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::{Attempt, in_files, journal, last_attempt, status, unlicensed};
    use crate::host::fake::FakeFiles;

    fn failed(server: Option<&str>) -> Option<Attempt> {
        let server = server.map(str::to_owned);
        Some(Attempt::Failed { server })
    }

    #[test]
    fn license_status_is_parsed() {
        let of = |status: &str| {
            format!(
                "    vGPU Software Licensed Product\n        Product Name                      : NVIDIA Virtual \
                 Compute Server\n        License Status                    : {status}\n"
            )
        };
        let text = of("Unlicensed (Restricted)");
        assert_eq!(unlicensed(&text), Some("Unlicensed (Restricted)"));
        assert_eq!(unlicensed(&of("Licensed (Expiry: N/A)")), None);
        assert_eq!(unlicensed("    Product Name : x\n"), None);
    }

    #[test]
    fn last_attempt_counts() {
        for (text, attempt) in rows! {
            "", None;
            "Failed to register client (2)\nFailed to acquire license from 192.0.2.10", failed(Some("192.0.2.10"));
            "Failed to acquire license from lic.example (Info: x)\n", failed(Some("lic.example"));
            "Failed to acquire license from `id`;", failed(None);
            "Failed to acquire license", failed(None);
            "Failed to acquire license from a\nLicense acquired successfully. (Info: b)", Some(Attempt::Acquired);
            "License acquired successfully.\nFailed to renew license from a", failed(Some("a"));
        } {
            assert_eq!(last_attempt(text), attempt, "{text}");
        }
    }

    #[test]
    fn log_lines_of_other_programs_are_ignored() {
        let files = FakeFiles::new();
        files.put(
            "/var/log/syslog",
            "Oct 12 17:22:37 node joe: Failed to acquire license from 192.0.2.9\n\
             Oct 12 17:22:37 node joe: x nvidia-gridd: Failed to acquire license from 192.0.2.9\n",
        );
        assert_eq!(in_files(&files).unwrap(), None);
        files.put(
            "/var/log/messages",
            "Oct 12 17:22:37 node nvidia-gridd[7]: Failed to acquire license from 192.0.2.10\n",
        );
        assert_eq!(in_files(&files).unwrap(), failed(Some("192.0.2.10")));
    }

    #[test]
    fn only_messages_of_the_unit_are_queried() {
        let cmd = journal().cmd().clone();
        assert!(
            cmd.args
                .contains(&"_SYSTEMD_UNIT=nvidia-gridd.service".to_owned())
        );
        assert!(cmd.args.contains(&"_UID=0".to_owned()));
        assert_eq!(status().cmd().line(), "nvidia-smi --query");
    }
}
