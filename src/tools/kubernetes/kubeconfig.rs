//! Kubeconfigs: which cluster they lead to.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::Deserialize;
use serde_json::Value;

use super::x509::public_key_pin as pin;
use crate::{
    model::secret::{Secret, is_secret_name},
    tools::yaml,
};

/// The kubeconfigs of kubelets, in the order in which they are looked for. Each exists only on a node that has
/// joined.
///
/// Sources: kubernetes/kubernetes, `cmd/kubeadm/app/constants/constants.go`; awslabs/amazon-eks-ami and
/// Azure/AgentBaker (`/var/lib/kubelet/kubeconfig`, as on GKE); k3s-io/k3s, `pkg/agent/config/config.go`; RKE2 has
/// the same agent.
pub const OF_KUBELETS: [&str; 4] = [
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
];

/// The cluster that a kubeconfig leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The address of the API server.
    pub server: String,
    /// `sha256:` and the digest of the certificate authority's public key, if the kubeconfig contains it.
    pub ca_pin: Option<String>,
    /// The file with the certificate authority, if it names one.
    pub ca_file: Option<String>,
    /// The file with the client's certificate, if it names one.
    pub certificate_file: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: String,
    // The cluster's own description of itself, `cluster-info` in `kube-public`, has `null` here.
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
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Debug, Deserialize)]
struct Context {
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

/// The cluster of the current context; without one, the first.
///
/// # Errors
/// Why it is no kubeconfig, in one line.
pub fn parse(text: &str) -> Result<Cluster, String> {
    let file: File = yaml::parse(text)?;
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
    let entry = &entry.ok_or("it names no cluster")?.cluster;
    let ca_pin = match &entry.certificate_authority_data {
        None => None,
        Some(data) => {
            let pem = (BASE64.decode(data))
                .map_err(|error| format!("the certificate authority is not in base64: {error}"))?;
            Some(pin(&pem).ok_or("the certificate authority is no certificate")?)
        }
    };
    Ok(Cluster {
        server: entry.server.clone(),
        ca_pin,
        ca_file: entry.certificate_authority.clone(),
        certificate_file: user.and_then(|user| user.user.client_certificate.clone()),
    })
}

/// What is secret in a kubeconfig, wherever it stands: tokens, keys and passwords. Source: Kubernetes, "kubeconfig
/// (v1)", `AuthInfo`; the plugins of clouds have keys such as `id-token` and `client-secret`.
///
/// # Errors
/// Why it is no YAML or JSON, in one line.
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
            // A password of digits that stands without quotes.
            Value::Number(number) if is_secret => found.push(Secret::new(number.to_string())),
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
    }
    let mut found = Vec::new();
    visit(&yaml::parse(text)?, false, &mut found);
    Ok(found)
}

/// `sha256:` and the digest of the public key of the first certificate in PEM.
#[must_use]
pub fn pin_of(pem: &str) -> Option<String> {
    pin(pem.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_current_context_counts() {
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
    fn secrets_are_found_in_each_style() {
        for (text, found) in [
            (
                "users:\n- name: a\n  user:\n    token: ey.J\n    client-key-data: \"LS0t\"\n    tokenFile: /t\n",
                &["LS0t", "ey.J"][..],
            ),
            (
                "users: [{name: node, user: {token: ey.J, client-certificate-data: TUlJ}}]",
                &["ey.J"],
            ),
            (
                r#"{"users":[{"name":"node","user":{"password":"p:w","username":"joe"}}]}"#,
                &["p:w"],
            ),
            ("users:\n- user:\n    token: >-\n      ey.J\n", &["ey.J"]),
            ("users: [{user: {password: 123456}}]", &["123456"]),
            (
                "users: [{user: {auth-provider: {config: {id-token: ey.K}}}}]",
                &["ey.K"],
            ),
            ("clusters: []", &[]),
        ] {
            let secrets = secrets(text).expect(text);
            let mut secrets: Vec<&str> = secrets.iter().map(Secret::expose).collect();
            secrets.sort_unstable();
            assert_eq!(secrets, found, "{text}");
        }
        assert!(secrets("users: [").is_err());
    }

    #[test]
    fn what_is_no_kubeconfig_is_told() {
        for (text, why) in [
            ("clusters: []", "names no cluster"),
            ("clusters: [", "line 1"),
            (
                "clusters: [{name: a, cluster: {server: s, certificate-authority-data: '%%'}}]",
                "not in base64",
            ),
            (
                "clusters: [{name: a, cluster: {server: s, certificate-authority-data: 'YWJj'}}]",
                "no certificate",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }
}
