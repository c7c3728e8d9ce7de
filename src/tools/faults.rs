//! Maps the error output of external programs to causes and remedies (`faults.toml`). Package manager errors are in `packages`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::model::text::built_in;

static TABLE: LazyLock<KnownFaults> =
    LazyLock::new(|| built_in("faults").expect("the built-in table is valid, as a test checks"));

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFaults {
    pull: Vec<KnownFault>,
    join: BTreeMap<String, Vec<KnownFault>>,
    modprobe: Vec<KnownFault>,
}

/// An entry of the table. `faults.toml` explains the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFault {
    #[serde(default)]
    signs: Vec<String>,
    #[serde(default)]
    late: Vec<String>,
    /// The stable identifier for scripts.
    pub reason: String,
    /// The cause, worded as the end of a sentence.
    #[serde(default)]
    pub what: String,
    pub hint: Option<String>,
    /// Remedies for specific clients, by client name.
    #[serde(default)]
    of: BTreeMap<String, String>,
    /// Whether the error is transient.
    #[serde(default)]
    pub retryable: bool,
    /// Whether a retry within the same change may succeed.
    #[serde(default)]
    pub again: bool,
}

impl KnownFault {
    /// Returns the remedy for this runtime.
    pub fn hint_for(&self, runtime: &str) -> Option<&str> {
        let own = self.of.get(runtime).map(String::as_str);
        own.or(self.hint.as_deref())
    }
}

/// Explains an image pull error.
pub fn of_pull(said: &str) -> &'static KnownFault {
    find(&TABLE.pull, said)
}

/// Returns the entries for a program that joins a cluster. Empty for a program without a table.
pub fn of_join(program: &str) -> &'static [KnownFault] {
    TABLE.join.get(program).map_or(&[], Vec::as_slice)
}

/// Explains a modprobe error.
pub fn of_modprobe(said: &str) -> &'static KnownFault {
    find(&TABLE.modprobe, said)
}

/// Returns the entry that matches the output, or the last entry if none matches.
pub fn find<'t>(rows: &'t [KnownFault], said: &str) -> &'t KnownFault {
    let said = said.to_lowercase();
    let shows = |signs: &[String]| signs.iter().any(|sign| said.contains(sign.as_str()));
    (rows.iter().find(|row| shows(&row.signs)))
        .or_else(|| rows.iter().find(|row| shows(&row.late)))
        .unwrap_or_else(|| &rows[rows.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_end_with_a_catch_all_and_have_lower_case_signs() {
        for rows in [&TABLE.pull, &TABLE.modprobe]
            .into_iter()
            .chain(TABLE.join.values())
        {
            let (last, others) = rows.split_last().expect("a table has rows");
            assert!(last.signs.is_empty() && last.late.is_empty());
            for row in others {
                assert!(!row.signs.is_empty(), "{row:?}");
                let mut signs = row.signs.iter().chain(&row.late);
                assert!(signs.all(|sign| *sign == sign.to_lowercase()), "{row:?}");
            }
        }
    }

    #[test]
    fn registry_client_errors_have_one_reason() {
        for (said, reason) in rows! {
            "Error response from daemon: manifest for 127.0.0.1:5000/x:none not found: manifest \
             unknown: manifest unknown", "image-not-found";
            "ctr: failed to resolve reference \"127.0.0.1:5000/x:none\": \
             127.0.0.1:5000/x:none: not found", "image-not-found";
            "Error response from daemon: pull access denied for x, repository does not exist or \
             may require 'docker login': denied: requested access to the resource is denied",
                "image-unauthorized";
            "Error response from daemon: Head \"http://127.0.0.1:5000/v2/x/manifests/1\": no \
             basic auth credentials", "image-unauthorized";
            "ctr: failed to resolve reference \"x\": unexpected status from HEAD request: 401 \
             Unauthorized", "image-unauthorized";
            "filesystem layer verification failed for digest sha256:00", "image-damaged";
            "ctr: failed commit on ref \"layer-sha256:00\": unexpected commit digest sha256:11, \
             expected sha256:00: failed precondition", "image-damaged";
            "Get \"http://127.0.0.1:5000/v2/\": dial tcp 127.0.0.1:5000: connect: connection \
             refused", "registry-unreachable";
            "net/http: TLS handshake timeout", "registry-unreachable";
            "toomanyrequests: You have reached your pull rate limit", "registry-refuses";
            "no matching manifest for linux/arm64/v8 in the manifest list entries",
                "image-other-architecture";
            "invalid reference format", "image-name";
            "write /var/lib/docker/tmp/x: no space left on device", "disk-full";
            "Get \"https://x/v2/\": x509: certificate signed by unknown authority",
                "registry-untrusted";
            "the daemon is not in the mood", "image-not-pulled";
        } {
            assert_eq!(of_pull(said).reason, reason, "{said}");
        }
    }

    #[test]
    fn plain_http_registry_is_not_retried_and_hints_depend_on_runtime() {
        let plain = of_pull("http: server gave HTTP response to HTTPS client");
        let silent = of_pull("connection refused");
        assert_eq!((&plain.reason, plain.retryable), (&silent.reason, false));
        assert!(silent.retryable && silent.again && plain.what.contains("HTTPS"));
        for (runtime, file) in [
            ("docker", "/etc/docker/daemon.json"),
            ("podman", "/etc/containers/registries.conf"),
            ("containerd", "hosts.toml"),
        ] {
            let hint = plain.hint_for(runtime).expect(runtime);
            assert!(hint.contains(file), "{hint}");
        }
        // Errors without a hint for a runtime have the common hint.
        assert_eq!(silent.hint_for("podman"), silent.hint_for("containerd"));
        assert_ne!(silent.hint_for("docker"), silent.hint_for("containerd"));
    }

    #[test]
    fn modprobe_errors_have_one_reason() {
        for (said, reason) in rows! {
            "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
                "module-signature";
            "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1.0-44-amd64",
                "module-not-found";
            "modprobe: ERROR: could not insert 'nvidia': Exec format error", "module-kernel";
            "modprobe: ERROR: could not insert 'nvidia_current': No such device",
                "module-no-device";
            "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument",
                "module-without-peer-memory";
            "modprobe: ERROR: could not insert 'nvidia_fs': Invalid argument",
                "module-for-another-driver";
            "modprobe: ERROR: could not insert 'nvidia': Invalid argument", "module-failed";
            "modprobe: FATAL: Module nouveau is in use.", "module-in-use";
            "modprobe: FATAL: something else", "module-failed";
        } {
            assert_eq!(of_modprobe(said).reason, reason, "{said}");
        }
    }
}
