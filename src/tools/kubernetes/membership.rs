//! Whether a machine is a node: its kubelet has a kubeconfig, and the certificate that this names.
//! kubeadm writes the first before the cluster gives the second.

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::kubeconfig::{self, Cluster};
use crate::{
    host::{FilesError, ReadFiles},
    model::kubernetes::NodeName,
};

/// This machine is a node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Membership {
    /// The kubelet's kubeconfig.
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

/// The name under which the machine is a node, by the certificate that its cluster has given its kubelet. `None` if it is
/// no node, or its kubelet has other credentials, as those of EKS and GKE.
///
/// # Errors
/// When a kubeconfig or the certificate cannot be read.
pub fn node_name<F: ReadFiles + ?Sized>(files: &F) -> Result<Option<NodeName>, MembershipError> {
    let Some((_, cluster)) = cluster(files)? else {
        return Ok(None);
    };
    let certificate = match (cluster.certificate, cluster.certificate_file) {
        (Some(certificate), _) => Some(certificate),
        (None, Some(file)) => match files.read(Utf8Path::new(&file)) {
            // The file has the key, too, so no recording has it.
            Err(FilesError::NotTold { .. }) => None,
            read => read?,
        },
        (None, None) => None,
    };
    Ok(certificate.and_then(|pem| kubeconfig::node_of(&pem)))
}

/// The first kubeconfig of a kubelet that is one of a node, and what it says.
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
        // Canonical's image for EKS has a form, with a word in the place of the address.
        if !cluster.server.starts_with("https://") {
            continue;
        }
        // kubeadm writes it before the cluster has given the kubelet a certificate.
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
    fn a_form_is_no_membership_until_it_is_filled_in() {
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
    fn a_kubeconfig_without_its_certificate_is_no_membership() {
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
        let error = read(&files).expect_err("no YAML").to_string();
        assert!(error.contains("/etc/kubernetes/kubelet.conf"), "{error}");
    }
}
