//! Determines whether a machine is a node. A node has a kubelet kubeconfig, and the client certificate file if the kubeconfig
//! refers to one. kubeadm writes the kubeconfig before the cluster issues the certificate.

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::kubeconfig::{self, Cluster};
use crate::{
    host::{FilesError, ReadFiles},
    model::kubernetes::NodeName,
};

/// The cluster membership of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Membership {
    /// The kubeconfig of the kubelet.
    pub kubeconfig: Utf8PathBuf,
    /// The URL of the API server.
    pub server: String,
    /// `sha256:` and the digest of the CA public key, or `None` if unknown.
    pub ca_pin: Option<String>,
}

impl Membership {
    /// Whether both belong to the same cluster: they have the same CA, or the same server URL if a CA is unknown.
    pub fn is_of_cluster_of(&self, other: &Self) -> bool {
        match (&self.ca_pin, &other.ca_pin) {
            (Some(mine), Some(others)) => mine == others,
            _ => self.server == other.server,
        }
    }
}

/// The membership could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// A file could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A kubeconfig is invalid.
    #[error("read `{path}`: {why}")]
    Unreadable {
        path: Utf8PathBuf,
        /// The parse error.
        why: String,
    },
}

/// Returns the membership of a machine, or `None` if it is not a node.
///
/// # Errors
/// If a kubeconfig cannot be read or is invalid.
pub fn read<F: ReadFiles + ?Sized>(files: &F) -> Result<Option<Membership>, MembershipError> {
    let Some((kubeconfig, cluster)) = cluster(files)? else {
        return Ok(None);
    };
    let ca_pin = match (cluster.ca_pin, cluster.ca_file) {
        (Some(pin), _) => Some(pin),
        (None, Some(file)) => {
            (files.read_text(Utf8Path::new(&file))?).and_then(|pem| kubeconfig::pin_of(&pem))
        }
        (None, None) => None,
    };
    Ok(Some(Membership {
        kubeconfig: kubeconfig.to_owned(),
        server: cluster.server,
        ca_pin,
    }))
}

/// Returns the node name in the certificate that the cluster has issued to the kubelet. `None` if the machine is not a node, or
/// if its kubelet has other credentials, as on EKS and GKE.
///
/// # Errors
/// If a kubeconfig or the certificate cannot be read.
pub fn node_name<F: ReadFiles + ?Sized>(files: &F) -> Result<Option<NodeName>, MembershipError> {
    let Some((_, cluster)) = cluster(files)? else {
        return Ok(None);
    };
    let certificate = match (cluster.certificate, cluster.certificate_file) {
        (Some(certificate), _) => Some(certificate),
        (None, Some(file)) => match files.read(Utf8Path::new(&file)) {
            // The file also contains the private key, so it is not in recordings.
            Err(FilesError::NotReported { .. }) => None,
            read => read?,
        },
        (None, None) => None,
    };
    Ok(certificate.and_then(|pem| kubeconfig::node_of(&pem)))
}

/// Returns the first kubelet kubeconfig that belongs to a node, and its content.
fn cluster<F: ReadFiles + ?Sized>(
    files: &F,
) -> Result<Option<(&'static Utf8Path, Cluster)>, MembershipError> {
    for path in kubeconfig::OF_KUBELETS.map(Utf8Path::new) {
        let Some(text) = files.read_text(path)? else {
            continue;
        };
        let cluster = kubeconfig::parse(&text).map_err(|why| MembershipError::Unreadable {
            path: path.to_owned(),
            why,
        })?;
        // The Canonical image for EKS contains a template with a placeholder for the URL.
        if !cluster.server.starts_with("https://") {
            continue;
        }
        // kubeadm writes the kubeconfig before the cluster has issued the certificate.
        if let Some(file) = &cluster.certificate_file
            && !files.exists(Utf8Path::new(file))?
        {
            continue;
        }
        return Ok(Some((path, cluster)));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::{host::fake::FakeFiles, tools::kubernetes::kubeconfig::tests::kubeconfig};

    #[test]
    fn template_kubeconfig_is_not_a_membership() {
        let files = FakeFiles::new();
        let form = "clusters: [{name: k, cluster: {server: MASTER_ENDPOINT}}]\n";
        files.put("/var/lib/kubelet/kubeconfig", form);
        assert_eq!(read(&files).expect("readable"), None);
        let filled = form.replace("MASTER_ENDPOINT", "'https://10.0.0.1'");
        files.put("/var/lib/kubelet/kubeconfig", filled);
        let found = read(&files).expect("readable").expect("a node");
        assert_eq!(found.server, "https://10.0.0.1");
    }

    #[test]
    fn kubeconfig_without_certificate_is_not_a_membership() {
        let certificate = "/var/lib/kubelet/pki/kubelet-client-current.pem";
        let kubeconfig = kubeconfig(&format!("client-certificate: {certificate}"));
        let files = FakeFiles::new();
        assert_eq!(read(&files).expect("readable"), None);
        files.put("/etc/kubernetes/kubelet.conf", kubeconfig);
        assert_eq!(read(&files).expect("readable"), None);
        files.put(certificate, "");
        let found = read(&files).expect("readable").expect("a node");
        assert_eq!(found.server, "https://10.0.0.1:6443");
        files.put("/etc/kubernetes/kubelet.conf", "clusters: [");
        let error = read(&files).expect_err("not YAML").to_string();
        assert!(error.contains("/etc/kubernetes/kubelet.conf"), "{error}");
    }
}
