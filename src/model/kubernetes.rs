//! Node registration in Kubernetes: labels and taints with the rules of the API server, and Kubernetes versions.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::model::text::{as_text, excerpt};

/// Node labels.
pub type Labels = BTreeMap<String, String>;

/// A taint such as `nvidia.com/gpu=present:NoSchedule`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value, which may be empty.
    pub value: String,
    /// The effect on pods without a toleration.
    pub effect: Effect,
}

/// The key prefix of the taints that the node readiness controller removes. It ignores all other taints. Source:
/// kubernetes-sigs/node-readiness-controller, the schema of `NodeReadinessRule`.
pub const OF_READINESS: &str = "readiness.k8s.io/";

/// The effect of a taint on pods without a toleration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// They are not scheduled on this node.
    NoSchedule,
    /// They are scheduled on this node only if no other node is suitable.
    PreferNoSchedule,
    /// They are not scheduled on this node, and running pods are evicted.
    NoExecute,
}

impl Effect {
    /// Returns its name in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute]
            .into_iter()
            .find(|effect| effect.name() == name)
    }
}

/// The reason that a text is not a taint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a taint: {why}")]
pub struct TaintError {
    text: String,
    why: String,
}

impl FromStr for Taint {
    type Err = TaintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why: &str| TaintError {
            text: excerpt(text),
            why: why.to_owned(),
        };
        let (rest, effect) = text.rsplit_once(':').ok_or_else(|| {
            wrong("use `KEY=VALUE:EFFECT`, such as `nvidia.com/gpu=present:NoSchedule`")
        })?;
        let effect = Effect::named(effect)
            .ok_or_else(|| wrong("the effect must be NoSchedule, PreferNoSchedule or NoExecute"))?;
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        check_key(key).map_err(|why| wrong(&why))?;
        check_value(value).map_err(|why| wrong(&why))?;
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
            effect,
        })
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.key)?;
        if !self.value.is_empty() {
            write!(to, "={}", self.value)?;
        }
        write!(to, ":{}", self.effect.name())
    }
}

as_text!(
    Taint,
    "a taint such as `nvidia.com/gpu=present:NoSchedule`",
    "^[^=:\\s]+(=[^:\\s]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$"
);

/// A label that a node sets on itself, such as `team=research`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnLabel {
    /// The key.
    pub key: String,
    /// The value, which may be empty.
    pub value: String,
}

/// The reason that a node cannot set the label on itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a label of this node: {why}")]
pub struct LabelError {
    text: String,
    why: String,
}

impl FromStr for OwnLabel {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why: String| LabelError {
            text: excerpt(text),
            why,
        };
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| wrong("use `KEY=VALUE`, such as `team=research`".to_owned()))?;
        check_key(key)
            .and_then(|()| check_own_label(key))
            .and_then(|()| check_value(value))
            .map_err(wrong)?;
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Display for OwnLabel {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}={}", self.key, self.value)
    }
}

as_text!(
    OwnLabel,
    "a label such as `team=research`, with a key that a node can set on itself",
    "^[^=\\s]+=[^\\s]*$"
);

/// Checks the key of a label or taint: a name of at most 63 characters, with an optional prefix of a DNS subdomain
/// and a slash. Source: Kubernetes, "Labels and Selectors", syntax and character set.
///
/// # Errors
/// If it is invalid.
pub fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if !is_name(name) {
        return Err(format!(
            "`{name}` is not a valid key name: use at most 63 letters, digits, `-`, `_` and `.`, with a letter \
             or digit at both ends"
        ));
    }
    match prefix {
        Some(prefix) if !is_subdomain(prefix) => Err(format!(
            "`{prefix}` is not a lower-case DNS name, which is required before the slash"
        )),
        _ => Ok(()),
    }
}

/// Checks the value of a label or taint: empty, or a name. Source: see [`check_key`].
///
/// # Errors
/// If it is invalid.
pub fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_name(value) {
        return Ok(());
    }
    Err(format!(
        "`{value}` is not a valid label value: use at most 63 letters, digits, `-`, `_` and `.`, with a letter or \
         digit at both ends"
    ))
}

fn is_name(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && (text.chars()).all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// A node name, which is a DNS subdomain. It is used in command lines of root, so no other text is accepted. Source:
/// kubernetes/kubernetes, `pkg/apis/core/validation/validation.go`, `ValidateNodeName`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

/// The reason that a text is not a node name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a valid node name: use lower-case letters, digits, `-` and `.`; each part must start and end with a letter \
         or digit",
    .0.escape_default()
)]
pub struct NodeNameError(String);

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match is_subdomain(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(NodeNameError(text.to_owned())),
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::ops::Deref for NodeName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

as_text!(
    NodeName,
    "a node name such as `gpu-1`",
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
);

/// Returns whether text is a DNS subdomain, such as a node name.
pub fn is_subdomain(text: &str) -> bool {
    let part = |part: &str| {
        let ends =
            |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        ends(part.chars().next())
            && ends(part.chars().next_back())
            && (part.chars()).all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    text.len() <= 253 && text.split('.').all(part)
}

/// Keys of the Kubernetes project that a kubelet may set on its own node. Source: kubernetes/kubernetes,
/// `staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go`.
const OWN_KEYS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// DNS domains of the Kubernetes project. A kubelet may set labels with these prefixes, or with a subdomain of them, on its
/// own node. Source: see [`OWN_KEYS`].
const OWN_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Checks whether a kubelet may set this label on its own node. With another label in `--node-labels`, the kubelet does
/// not start, and the API server rejects the registration.
///
/// # Errors
/// If it may not.
pub fn check_own_label(key: &str) -> Result<(), String> {
    let Some((prefix, _)) = key.split_once('/') else {
        return Ok(());
    };
    let below = |domain: &str| {
        prefix == domain || (prefix.strip_suffix(domain)).is_some_and(|rest| rest.ends_with('.'))
    };
    if below("node-restriction.kubernetes.io") {
        return Err(format!(
            "`{key}` is reserved for administrators: a node cannot set labels of \
             node-restriction.kubernetes.io on itself"
        ));
    }
    let is_projects = below("kubernetes.io") || below("k8s.io");
    if !is_projects || OWN_KEYS.contains(&key) || OWN_PREFIXES.iter().any(|own| below(own)) {
        return Ok(());
    }
    Err(format!(
        "`{key}` belongs to the Kubernetes project, and a node cannot set it on itself"
    ))
}

/// A Kubernetes version: a minor version such as 1.34, or a patch version such as 1.34.4.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubernetesVersion {
    /// The minor version.
    pub minor: u32,
    /// The patch version, if specified.
    pub patch: Option<u32>,
}

impl KubernetesVersion {
    /// Returns the minor version as text, such as `1.34`.
    pub fn series(&self) -> String {
        format!("1.{}", self.minor)
    }
}

/// The text is not a Kubernetes version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a Kubernetes version such as 1.36 or 1.36.4")]
pub struct KubernetesVersionError(String);

impl FromStr for KubernetesVersion {
    type Err = KubernetesVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || KubernetesVersionError(text.to_owned());
        let number = |part: &str| part.parse::<u32>().map_err(|_| wrong());
        let rest = text.strip_prefix('v').unwrap_or(text);
        let mut parts = rest.split('.');
        if parts.next() != Some("1") {
            return Err(wrong());
        }
        let minor = number(parts.next().ok_or_else(wrong)?)?;
        let patch = parts.next().map(number).transpose()?;
        match parts.next() {
            None => Ok(Self { minor, patch }),
            Some(_) => Err(wrong()),
        }
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "1.{}", self.minor)?;
        match self.patch {
            Some(patch) => write!(to, ".{patch}"),
            None => Ok(()),
        }
    }
}

as_text!(
    KubernetesVersion,
    "a Kubernetes version such as 1.36 or 1.36.4",
    "^v?1\\.[0-9]+(\\.[0-9]+)?$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_is_read_and_written() {
        for text in [
            "nvidia.com/gpu=present:NoSchedule",
            "spot:PreferNoSchedule",
            "a.b/c=d_e.f:NoExecute",
        ] {
            assert_eq!(text.parse::<Taint>().expect(text).to_string(), text);
        }
        for (text, why) in [
            ("nvidia.com/gpu", "KEY=VALUE:EFFECT"),
            ("a=b:Never", "the effect must be"),
            ("a b=c:NoSchedule", "not a valid key name"),
            ("Upper.case/a=b:NoSchedule", "not a lower-case DNS name"),
            ("a=b c:NoSchedule", "not a valid label value"),
            ("=b:NoSchedule", "not a valid key name"),
        ] {
            let error = text.parse::<Taint>().expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn kubelet_may_set_some_kubernetes_labels() {
        for (key, may) in [
            ("nvidia.com/gpu.present", true),
            ("team", true),
            ("notkubernetes.io/x", true),
            ("topology.kubernetes.io/zone", true),
            ("node.kubernetes.io/lifecycle", true),
            ("x.node.kubernetes.io/y", true),
            ("kubelet.kubernetes.io/x", true),
            ("node-role.kubernetes.io/gpu", false),
            ("node-restriction.kubernetes.io/team", false),
            ("x.node-restriction.kubernetes.io/team", false),
            ("feature.node.kubernetes.io/pci-10de.present", true),
            ("cluster.k8s.io/x", false),
            ("kubernetes.io/role", false),
        ] {
            assert_eq!(check_own_label(key).is_ok(), may, "{key}");
        }
    }

    #[test]
    fn node_name_cannot_be_an_option() {
        for text in ["gpu-1", "1", "ip-10-0-0-1.eu-central-1.compute.internal"] {
            assert_eq!(&*text.parse::<NodeName>().expect(text), text);
        }
        for text in [
            "",
            "-x",
            "--kubeconfig=/tmp/x",
            "GPU-1",
            "a b",
            "a/b",
            "a..b",
            "a-",
            "gpu-1\n",
            "\u{1b}[2J",
        ] {
            let error = text.parse::<NodeName>().expect_err(text).to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
            let json = serde_json::to_string(text).expect("JSON");
            serde_json::from_str::<NodeName>(&json).expect_err(text);
        }
    }

    #[test]
    fn version_has_minor_and_optional_patch() {
        for (text, shown) in [("1.34", "1.34"), ("v1.34.4", "1.34.4")] {
            let version: KubernetesVersion = text.parse().expect(text);
            assert_eq!(
                (version.to_string(), version.series()),
                (shown.into(), "1.34".into())
            );
        }
        for text in ["1", "2.34", "1.34.4.1", "1.x", ""] {
            text.parse::<KubernetesVersion>().expect_err(text);
        }
    }
}
