//! Parses kubeconfigs.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::Deserialize;
use serde_json::Value;

use super::x509::{common_name, public_key_pin as pin};
use crate::{
    model::{
        kubernetes::NodeName,
        secret::{Secret, is_secret_name},
    },
    tools::yaml,
};

/// The kubeconfigs of kubelets, in search order. Some exist before the node has joined, see [`super::membership`].
///
/// Sources: kubernetes/kubernetes, `cmd/kubeadm/app/constants/constants.go`; awslabs/amazon-eks-ami and Azure/AgentBaker
/// (`/var/lib/kubelet/kubeconfig`, as on GKE); k3s-io/k3s, `pkg/agent/config/config.go`. RKE2 has the same agent as k3s.
pub const OF_KUBELETS: [&str; 4] = [
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
];

/// The cluster in a kubeconfig, and the client certificate of its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The URL of the API server.
    pub server: String,
    /// `sha256:` and the digest of the CA public key, if the kubeconfig contains the CA certificate.
    pub ca_pin: Option<String>,
    /// The path of the CA certificate, if specified.
    pub ca_file: Option<String>,
    /// The path of the client certificate, if specified.
    pub certificate_file: Option<String>,
    /// The client certificate in PEM, if the kubeconfig contains it.
    pub certificate: Option<Vec<u8>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    #[serde(default)]
    current_context: String,
    // The kubeconfig in the ConfigMap `cluster-info` (namespace `kube-public`) has `null` for contexts and users.
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Debug, Deserialize)]
struct NamedUser {
    #[serde(default)]
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    context: KubeconfigContext,
}

#[derive(Debug, Deserialize)]
struct KubeconfigContext {
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Debug, Deserialize)]
struct NamedCluster {
    #[serde(default)]
    name: String,
    cluster: ClusterEntry,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterEntry {
    #[serde(default)]
    server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<String>,
}

/// Returns the cluster of the current context, or the first cluster if that context does not exist.
///
/// # Errors
/// If the text is not a kubeconfig. The message is one line.
pub fn parse(text: &str) -> Result<Cluster, String> {
    let file: Kubeconfig = yaml::parse(text)?;
    let mut clusters = file.clusters.iter().flatten();
    let mut users = file.users.iter().flatten();
    let context = (file.contexts.iter().flatten())
        .find(|context| context.name == file.current_context)
        .map(|context| &context.context);
    let (entry, user) = match context {
        Some(context) => (
            clusters.find(|cluster| cluster.name == context.cluster),
            users.find(|user| user.name == context.user),
        ),
        None => (clusters.next(), users.next()),
    };
    let entry = &entry.ok_or("no cluster")?.cluster;
    let ca_pin = match &entry.certificate_authority_data {
        None => None,
        Some(data) => {
            let pem = (BASE64.decode(data))
                .map_err(|error| format!("the CA certificate is not valid Base64: {error}"))?;
            Some(pin(&pem).ok_or("the CA certificate is not a valid PEM certificate")?)
        }
    };
    let user = user.map(|user| &user.user);
    let certificate = match user.and_then(|user| user.client_certificate_data.as_ref()) {
        None => None,
        Some(data) => Some(
            (BASE64.decode(data))
                .map_err(|error| format!("the client certificate is not valid Base64: {error}"))?,
        ),
    };
    Ok(Cluster {
        server: entry.server.clone(),
        ca_pin,
        ca_file: entry.certificate_authority.clone(),
        certificate_file: user.and_then(|user| user.client_certificate.clone()),
        certificate,
    })
}

/// Returns all secrets in a kubeconfig, at any depth: tokens, keys and passwords. Source: Kubernetes, "kubeconfig (v1)",
/// `AuthInfo`. Cloud plugins have keys such as `id-token` and `client-secret`.
///
/// # Errors
/// If the text is not YAML or JSON. The message is one line.
pub fn secrets(text: &str) -> Result<Vec<Secret>, String> {
    fn visit(value: &Value, is_secret: bool, found: &mut Vec<Secret>) {
        match value {
            Value::Object(entries) => {
                for (key, value) in entries {
                    let is_secret = is_secret_name(key) || key == "client-key-data";
                    visit(value, is_secret, found);
                }
            }
            Value::Array(values) => {
                for value in values {
                    visit(value, is_secret, found);
                }
            }
            Value::String(text) if is_secret => found.push(Secret::new(text)),
            // A numeric password without quotes.
            Value::Number(number) if is_secret => found.push(Secret::new(number.to_string())),
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
    }
    let mut found = Vec::new();
    visit(&yaml::parse(text)?, false, &mut found);
    Ok(found)
}

/// Returns the node of a certificate (PEM), or `None` if it does not belong to a node. Source: Kubernetes, "Using Node
/// Authorization".
pub fn node_of(certificate: &[u8]) -> Option<NodeName> {
    let user = common_name(certificate)?;
    user.strip_prefix("system:node:")?.parse().ok()
}

/// Returns `sha256:` and the digest of the public key of the first certificate in PEM.
pub fn pin_of(pem: &str) -> Option<String> {
    pin(pem.as_bytes())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A kubelet certificate, created with `openssl req -x509` with the subject `O=system:nodes, CN=system:node:gpu-7.example`
    /// and the extensions of the signer `kubernetes.io/kube-apiserver-client-kubelet`.
    pub(crate) const NODE_CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBzzCCAXSgAwIBAgIUVhqoNz3U3MVbDCFS7N5URy7E5oAwCgYIKoZIzj0EAwIw\n\
OzEVMBMGA1UECgwMc3lzdGVtOm5vZGVzMSIwIAYDVQQDDBlzeXN0ZW06bm9kZTpn\n\
cHUtNy5leGFtcGxlMCAXDTI2MTEyNTIwMDMzMVoYDzIxMjYxMTAxMjAwMzMxWjA7\n\
MRUwEwYDVQQKDAxzeXN0ZW06bm9kZXMxIjAgBgNVBAMMGXN5c3RlbTpub2RlOmdw\n\
dS03LmV4YW1wbGUwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASzRmlUPHkUkWNH\n\
q9b3yrm0Dy0Qj4/6O8EThpjMFUCXPuOkge/hBa+3z/Em8EXLAMqZR9jPsf3f4XKt\n\
6paX5YKEo1QwUjAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAwwCgYIKwYBBQUHAwIw\n\
DAYDVR0TAQH/BAIwADAdBgNVHQ4EFgQUeZOh/9+VLEXQc/UOzFHCp2fL7jswCgYI\n\
KoZIzj0EAwIDSQAwRgIhAKO8a/GhnWuE7DAkJPyKK79Y5XuXkx9G0iS/ZYBcRzg9\n\
AiEA/BQSzeS/0BoQO3ajNVOYJMGaIMFSxKj8FCCdFg/J4Os=\n\
-----END CERTIFICATE-----\n\
";

    /// Returns a kubeconfig with a user that has these credentials.
    pub(crate) fn kubeconfig(credentials: &str) -> String {
        format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, \
             cluster: {{server: 'https://10.0.0.1:6443'}}}}]\nusers: [{{name: u, user: {{{credentials}}}}}]\n"
        )
    }

    #[test]
    fn node_certificate_contains_the_node_name() {
        let node = node_of(NODE_CERTIFICATE.as_bytes()).expect("a node");
        assert_eq!(&*node, "gpu-7.example");
        let authority = crate::tools::kubernetes::x509::tests::PEM;
        assert_eq!(node_of(authority.as_bytes()), None);
        assert_eq!(node_of(b"not a certificate"), None);
    }

    const ADMIN: &str = "\
apiVersion: v1
kind: Config
current-context: b
contexts:
- context: {cluster: one, user: u}
  name: a
- context: {cluster: two, user: v}
  name: b
clusters:
- cluster: {server: 'https://one:6443'}
  name: one
- cluster: {server: 'https://two:6443', certificate-authority: /etc/ca.crt}
  name: two
users:
- name: u
- {name: v, user: {client-certificate: /pki/client.pem}}
";

    #[test]
    fn current_context_is_used() {
        let found = parse(ADMIN).expect("a kubeconfig");
        assert_eq!(found.server, "https://two:6443");
        assert_eq!(found.ca_file.as_deref(), Some("/etc/ca.crt"));
        assert_eq!(found.certificate_file.as_deref(), Some("/pki/client.pem"));
        let first = parse(&ADMIN.replace("current-context: b", "")).expect("a kubeconfig");
        assert_eq!(first.server, "https://one:6443");
        let described = "contexts: null\ncurrent-context: ''\nusers: null\n\
                         clusters: [{name: '', cluster: {server: 'https://10.0.0.1:6443'}}]";
        let described = parse(described).expect("a kubeconfig");
        assert_eq!(described.server, "https://10.0.0.1:6443");
    }

    #[test]
    fn secrets_are_found_in_each_format() {
        for (text, found) in rows! {
            "users:\n- name: a\n  user:\n    token: ey.J\n    client-key-data: \"LS0t\"\n    tokenFile: /t\n",
                &["LS0t", "ey.J"][..];
            "users: [{name: node, user: {token: ey.J, client-certificate-data: TUlJ}}]", &["ey.J"];
            r#"{"users":[{"name":"node","user":{"password":"p:w","username":"joe"}}]}"#, &["p:w"];
            "users:\n- user:\n    token: >-\n      ey.J\n", &["ey.J"];
            "users: [{user: {password: 123456}}]", &["123456"];
            "users: [{user: {auth-provider: {config: {id-token: ey.K}}}}]", &["ey.K"];
            "clusters: []", &[];
        } {
            let secrets = secrets(text).expect(text);
            let mut secrets: Vec<&str> = secrets.iter().map(Secret::expose).collect();
            secrets.sort_unstable();
            assert_eq!(secrets, found, "{text}");
        }
        assert!(secrets("users: [").is_err());
    }

    #[test]
    fn invalid_kubeconfig_is_an_error() {
        for (text, why) in rows! {
            "clusters: []", "no cluster";
            "clusters: [", "line 1";
            "clusters: [{name: a, cluster: {server: s, certificate-authority-data: '%%'}}]",
                "not valid Base64";
            "clusters: [{name: a, cluster: {server: s, certificate-authority-data: 'YWJj'}}]",
                "not a valid PEM certificate";
        } {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }
}
