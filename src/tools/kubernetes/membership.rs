//! Whether a machine is a node: its kubelet has a kubeconfig, and the certificate that this names.

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kubeconfig::{self, Cluster};
use crate::host::{FilesError, ReadFiles};

/// This machine is a node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Membership {
    /// The kubelet's kubeconfig.
    #[schemars(with = "String")]
    pub kubeconfig: Utf8PathBuf,
    /// The address of the API server.
    pub server: String,
    /// `sha256:` and the digest of the certificate authority's public key; `None` if it is not known.
    pub ca_pin: Option<String>,
}

impl Membership {
    /// Whether both are of one cluster, as far as that can be told.
    #[must_use]
    pub fn is_of_cluster_of(&self, other: &Self) -> bool {
        match (&self.ca_pin, &other.ca_pin) {
            (Some(mine), Some(others)) => mine == others,
            _ => self.server == other.server,
        }
    }
}

/// Why the membership is not known.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// A file could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A kubeconfig is none.
    #[error("read `{path}`: {why}")]
    Unreadable {
        /// The kubeconfig.
        path: Utf8PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// The membership of a machine; `None` if it is no node.
///
/// # Errors
/// When a kubeconfig cannot be read, or is none.
pub fn read<F: ReadFiles + ?Sized>(files: &F) -> Result<Option<Membership>, MembershipError> {
    for path in kubeconfig::OF_KUBELETS.map(Utf8Path::new) {
        let Some(text) = files.read_text(path)? else {
            continue;
        };
        let Cluster {
            server,
            ca_pin,
            ca_file,
            certificate_file,
        } = kubeconfig::parse(&text).map_err(|why| MembershipError::Unreadable {
            path: path.to_owned(),
            why,
        })?;
        // kubeadm writes it before the cluster has given the kubelet a certificate.
        if let Some(file) = certificate_file
            && !files.exists(Utf8Path::new(&file))?
        {
            continue;
        }
        let ca_pin = match (ca_pin, ca_file) {
            (Some(pin), _) => Some(pin),
            (None, Some(file)) => {
                (files.read_text(Utf8Path::new(&file))?).and_then(|pem| kubeconfig::pin_of(&pem))
            }
            (None, None) => None,
        };
        return Ok(Some(Membership {
            kubeconfig: path.to_owned(),
            server,
            ca_pin,
        }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::host::fake::FakeFiles;

    #[test]
    fn a_kubeconfig_without_its_certificate_is_no_membership() {
        let certificate = "/var/lib/kubelet/pki/kubelet-client-current.pem";
        let kubeconfig = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, \
             cluster: {{server: 'https://10.0.0.1:6443'}}}}]\nusers: [{{name: u, user: {{client-certificate: \
             {certificate}}}}}]\n"
        );
        let files = FakeFiles::new();
        assert_eq!(read(&files).expect("readable"), None);
        files.put("/etc/kubernetes/kubelet.conf", kubeconfig);
        assert_eq!(read(&files).expect("readable"), None);
        files.put(certificate, "");
        let found = read(&files).expect("readable").expect("a node");
        assert_eq!(found.server, "https://10.0.0.1:6443");
        files.put("/etc/kubernetes/kubelet.conf", "clusters: [");
        let error = read(&files).expect_err("no YAML").to_string();
        assert!(error.contains("/etc/kubernetes/kubelet.conf"), "{error}");
    }
}
