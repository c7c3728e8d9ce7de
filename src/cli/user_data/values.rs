//! The values of a template that are not settings, and their checks.

use std::{collections::BTreeMap, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use crate::{
    cli::{
        Failure,
        forms::{Form, FormValue, ValueKind},
    },
    compat::matrix::{InstanceDriver, InstanceType, Matrix},
    exit::Exit,
    host::digest::is_sha256,
    joins::agents::{Agent, NO_VERSION},
    model::{pattern, text::nearest},
};

const COMMENTS: &str = "see the comments in the template";

/// The words that stand for a value in the documents, the templates and the messages.
const PLACEHOLDERS: [&str; 16] = [
    "ACCOUNT",
    "ACR",
    "BASE64",
    "BUCKET",
    "CLUSTER",
    "CONTAINER",
    "DIGEST",
    "LOCATION",
    "NAME",
    "POOL",
    "REGION",
    "REGISTRY",
    "RESOURCE",
    "SERVER",
    "URL",
    "VERSION",
];

/// Values by name.
pub(super) type Values = BTreeMap<&'static str, String>;

pub(super) fn usage(message: &str, hint: &str) -> Failure {
    Failure::new(Exit::Usage, "user-data-value", message, Some(hint))
}

/// Parses and checks `NAME=VALUE`.
pub(super) fn named<'a>(
    form: &'static Form,
    assignment: &'a str,
) -> Result<(&'static str, &'a str), Failure> {
    let known: Vec<&str> = form.values.iter().map(|row| &*row.name).collect();
    let known = format!("this template has {}", known.join(", "));
    let Some((name, value)) = assignment.split_once('=') else {
        return Err(usage("read `--value`: not `NAME=VALUE`", &known));
    };
    let Some(row) = form.values.iter().find(|row| row.name == name) else {
        return Err(usage(
            &format!("read `--value {name}`: the template has no such value"),
            &known,
        ));
    };
    let value = match row.kind {
        // Registries and `docker push` print digests with a prefix.
        ValueKind::Sha256 => value.strip_prefix("sha256:").unwrap_or(value),
        ValueKind::ImageName => value.trim_end_matches('/'),
        _ => value,
    };
    match wrong(row, value) {
        Some((why, hint)) => Err(usage(
            &format!("read `--value {name}`: invalid value `{value}`: {why}"),
            &hint,
        )),
        None => Ok((row.name.as_str(), value)),
    }
}

/// Returns the value of this kind, if it is given.
pub(super) fn of_kind<'a>(
    form: &'static Form,
    values: &'a Values,
    kind: ValueKind,
) -> Option<(&'static FormValue, &'a str)> {
    let row = form.values.iter().find(|row| row.kind == kind)?;
    let value = values.get(&*row.name)?;
    Some((row, value.as_str()))
}

/// Checks the instance family, and the architecture if it is given.
pub(super) fn check_family(
    matrix: &Matrix,
    form: &'static Form,
    values: &Values,
) -> Result<(), Failure> {
    let Some((row, family)) = of_kind(form, values, ValueKind::InstanceFamily) else {
        return Ok(());
    };
    let arch = of_kind(form, values, ValueKind::Architecture);
    match wrong_family(matrix, row, family, arch) {
        Some((name, why, hint)) => Err(usage(&format!("read `--value {name}`: {why}"), &hint)),
        None => Ok(()),
    }
}

/// Checks that the version of the agent, if it is given, is a version of the agent that joins.
pub(super) fn check_agent(
    form: &'static Form,
    values: &Values,
    agent: &Agent,
) -> Result<(), Failure> {
    let Some((row, version)) = of_kind(form, values, ValueKind::AgentVersion) else {
        return Ok(());
    };
    match wrong_agent(version, agent) {
        Some((why, hint)) => Err(usage(
            &format!(
                "read `--value {}`: invalid value `{version}`: {why}",
                row.name
            ),
            &hint,
        )),
        None => Ok(()),
    }
}

/// Returns the reason that a version is one of the other agent, and the remedy.
fn wrong_agent(version: &str, agent: &Agent) -> Option<(String, String)> {
    let other = Agent::of_version(version).filter(|other| *other != agent)?;
    let (name, other) = (agent.name, other.name);
    Some((
        format!("a version of {other}, but the join method is {name}"),
        format!("use a version of {name}, or add `--set cluster.join={other}`"),
    ))
}

/// Returns the name of the invalid value, the reason, and the remedy.
fn wrong_family<'a>(
    matrix: &Matrix,
    row: &'a FormValue,
    family: &str,
    arch: Option<(&'a FormValue, &str)>,
) -> Option<(&'a str, String, String)> {
    let name = &*row.name;
    let family_of = |instance: &InstanceType| {
        let (family, _) = instance.name.split_once('.')?;
        (Some(&instance.provider) == row.cloud.as_ref()).then(|| family.to_owned())
    };
    let wrong =
        |why: &str, hint: String| Some((name, format!("invalid value `{family}`: {why}"), hint));
    if let Some((family, _)) = family.split_once('.') {
        return wrong(
            "an instance type instead of a family",
            format!("use `--value {name}={family}`"),
        );
    }
    let instances = matrix.instance_types.iter();
    let types: Vec<&InstanceType> = (instances.clone())
        .filter(|instance| family_of(instance).as_deref() == Some(family))
        .collect();
    let Some(first) = types.first() else {
        let mut known: Vec<String> = instances
            .filter(|instance| instance.driver == InstanceDriver::DataCenter)
            .filter_map(family_of)
            .collect();
        known.sort();
        known.dedup();
        let hint = match nearest(family, known.iter().map(String::as_str)) {
            Some(nearest) => format!("did you mean `{nearest}`? The matrix contains"),
            None => "the matrix contains".to_owned(),
        };
        return wrong(
            "no instance type of this family has an NVIDIA GPU in the matrix",
            format!("{hint} {}", known.join(", ")),
        );
    };
    if types
        .iter()
        .all(|instance| instance.driver == InstanceDriver::Grid)
    {
        return wrong(
            "its GPUs are vGPUs, which need the licensed GRID guest driver",
            format!("use a family with whole GPUs, such as `{}`", row.example()),
        );
    }
    let own = match first.arch.as_str() {
        "aarch64" => "arm64",
        arch => arch,
    };
    let (arch, other) = arch.filter(|(_, arch)| *arch != own)?;
    let name = &*arch.name;
    Some((
        name,
        format!("invalid value `{other}`: the instance types of `{family}` are {own}"),
        format!("use `--value {name}={own}`, and a gpu-bootstrap binary for it"),
    ))
}

/// Returns the reason that a value is invalid, and the source of the correct one.
pub(super) fn wrong(row: &FormValue, value: &str) -> Option<(String, String)> {
    let comments = |why: &str| Some((why.to_owned(), COMMENTS.to_owned()));
    if value.is_empty() {
        return comments("empty");
    }
    // Values are inserted into YAML, JSON and scripts that run as root.
    if !value.chars().all(is_plain) {
        return comments("only letters, digits and `-_.:/+=,?&%~[]` are allowed");
    }
    let last = value.rsplit(['/', ':']).next().unwrap_or_default();
    for case in &row.reject {
        if case.patterns.iter().any(|one| pattern::matches(one, value)) {
            return Some((case.why.clone(), case.hint.replace("@LAST@", last)));
        }
    }
    if let Some(why) = unlike(row, value) {
        let hint = match (&row.hint, row.kind) {
            (Some(hint), _) => hint.clone(),
            (None, ValueKind::Name) => format!("use the name: `--value {}={last}`", row.name),
            (None, _) => COMMENTS.to_owned(),
        };
        return Some((why.to_owned(), hint));
    }
    let word = placeholder(row, value)?;
    Some((
        format!("`{word}` is a placeholder"),
        format!("replace `{word}` with your value"),
    ))
}

/// Returns the placeholder in a value. Certificates and the query of a URL may contain the same letters by chance.
fn placeholder(row: &FormValue, value: &str) -> Option<&'static str> {
    if row.kind == ValueKind::Certificate {
        return None;
    }
    let text = value.split('?').next().unwrap_or_default();
    let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.find_map(|word| PLACEHOLDERS.into_iter().find(|one| *one == word))
}

/// Returns the reason that a value does not have the format of its kind.
fn unlike(row: &FormValue, value: &str) -> Option<&'static str> {
    let (is_valid, why) = match row.kind {
        ValueKind::Text => return None,
        // The matrix contains the families.
        ValueKind::InstanceFamily => return None,
        ValueKind::Name => (
            !value.contains([':', '/']),
            "a name contains no `:` and `/`",
        ),
        ValueKind::HttpsUrl => (
            value.starts_with("https://"),
            "the URL must start with `https://`",
        ),
        ValueKind::Sha256 => (
            is_sha256(value),
            "not a SHA-256 digest, which has 64 digits of 0-9 and a-f",
        ),
        ValueKind::Certificate => (
            is_certificate(value),
            "not a base64-encoded PEM certificate",
        ),
        ValueKind::Network => (
            is_network(value),
            "not a CIDR block such as `10.100.0.0/16`",
        ),
        ValueKind::Ip => (is_address(value), "not an IP address"),
        ValueKind::Host => (
            !value.contains('/') && (!value.contains(':') || is_address(value)),
            "not a host name without `https://` and port",
        ),
        ValueKind::ImageName => (is_registry(value), "not a valid start of an image name"),
        ValueKind::ObjectName => (
            is_name(value),
            "not a name of lower-case letters, digits and `-`",
        ),
        ValueKind::Architecture => (
            matches!(value, "x86_64" | "arm64"),
            "not `x86_64` or `arm64`",
        ),
        ValueKind::Version => (
            numbers(value) == numbers(row.example()),
            match numbers(row.example()) {
                Some(2) => "not a version with two numbers, such as `1.36`",
                _ => "not a version with three numbers, such as `1.36.4`",
            },
        ),
        ValueKind::AgentVersion => (Agent::of_version(value).is_some(), NO_VERSION),
    };
    (!is_valid).then_some(why)
}

/// Returns the value of a setting as a value of the template. A template with two numbers needs only the minor version.
pub(super) fn of_setting(row: &FormValue, setting: &str) -> String {
    let parts = match row.kind {
        ValueKind::Version => numbers(row.example()).unwrap_or_default(),
        _ => usize::MAX,
    };
    let parts: Vec<&str> = setting.split('.').take(parts).collect();
    parts.join(".")
}

/// Returns whether a text is a base64-encoded PEM certificate.
fn is_certificate(text: &str) -> bool {
    let decoded = BASE64.decode(text);
    decoded.is_ok_and(|bytes| bytes.starts_with(b"-----BEGIN"))
}

/// Returns whether an image name can start with a text: a host, or a Docker Hub path (distribution/reference, `reference.go`).
fn is_registry(text: &str) -> bool {
    let mut parts = text.split('/');
    let first = parts.next().unwrap_or_default();
    let (host, port) = first.rsplit_once(':').unwrap_or((first, "443"));
    let is_host = is_name(&host.to_ascii_lowercase()) && port.parse::<u16>().is_ok();
    is_host && parts.all(is_name)
}

/// Returns whether a text is a valid component of an image name.
fn is_name(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(is_word)
        && text.ends_with(is_word)
        && text.chars().all(|c| is_word(c) || "._-".contains(c))
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

fn is_network(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let longest = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= longest)
}

/// Returns the number of components of a version, or `None` if it is not a version.
fn numbers(text: &str) -> Option<usize> {
    let is_number =
        |part: &str| part.parse::<u16>().is_ok() && part.bytes().all(|byte| byte.is_ascii_digit());
    (text.split('.').all(is_number)).then(|| text.split('.').count())
}

pub(super) fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.:/+=,?&%~[]".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::forms,
        joins::agents::{K3S, RKE2},
    };

    #[test]
    fn family_without_usable_gpus_is_rejected() {
        let matrix = Matrix::builtin().unwrap();
        let form = forms::named("eks-karpenter").unwrap();
        let row = |kind| form.values.iter().find(|row| row.kind == kind).unwrap();
        let arch_row = row(ValueKind::Architecture);
        let found = |family: &str, arch: Option<&'static str>| {
            let arch = arch.map(|arch| (arch_row, arch));
            wrong_family(&matrix, row(ValueKind::InstanceFamily), family, arch)
        };
        for (family, arch, name, why) in rows! {
            "g5.xlarge", None, "family", "an instance type instead of a family";
            "m5", None, "family", "no instance type of this family has an NVIDIA GPU";
            "g6f", None, "family", "GRID";
            "g5g", Some("x86_64"), "arch", "the instance types of `g5g` are arm64";
            "g6", Some("arm64"), "arch", "the instance types of `g6` are x86_64";
        } {
            let (of, found, _) = found(family, arch).expect(family);
            assert!(of == name && found.contains(why), "{family}: {found}");
        }
        let (_, _, hint) = found("g4d", None).expect("no such family");
        assert!(hint.starts_with("did you mean `g4dn`?"), "{hint}");
        for (family, arch) in rows! { "g6", Some("x86_64"); "g5g", Some("arm64"); "p6-b200", None; }
        {
            assert_eq!(found(family, arch), None, "{family}");
        }
    }

    fn row(form: &'static str, name: &str) -> &'static FormValue {
        let form = forms::named(form).unwrap();
        form.values.iter().find(|row| row.name == name).unwrap()
    }

    /// A machine with such a value fails at its first boot, because users copied it from the documentation.
    #[test]
    fn placeholders_are_rejected() {
        for (form, name, value, word) in rows! {
            "eks", "cluster", "CLUSTER", Some("CLUSTER");
            "eks", "cluster", "cluster", None;
            "eks", "cluster", "PROD-cluster-1", None;
            "eks-karpenter", "role", "KarpenterNodeRole-CLUSTER", Some("CLUSTER");
            "eks-karpenter", "role", "KarpenterNodeRole-prod", None;
            "eks", "endpoint", "https://SERVER", Some("SERVER");
            "node-pool", "registry", "REGISTRY", Some("REGISTRY");
            "node-pool", "registry", "ACR.azurecr.io", Some("ACR");
            "node-pool", "registry", "acr.azurecr.io", None;
            "bare", "address", "https://storage.googleapis.com/BUCKET/gpu-bootstrap",
                Some("BUCKET");
            // A presigned URL has random text in its query.
            "bare", "address", "https://s3.example.com/gpu-bootstrap?X-Amz-Signature=a/URL/b", None;
        } {
            let found = wrong(row(form, name), value);
            let expected = word.map(|word| {
                (
                    format!("`{word}` is a placeholder"),
                    format!("replace `{word}` with your value"),
                )
            });
            assert_eq!(found, expected, "{value}");
        }
    }

    #[test]
    fn urls_must_be_https() {
        for (form, name) in [
            ("bare", "address"),
            ("k3s", "agent-script"),
            ("eks", "endpoint"),
        ] {
            let found = wrong(row(form, name), "http://files.example.com/gpu-bootstrap");
            let (why, _) = found.expect(name);
            assert_eq!(why, "the URL must start with `https://`", "{name}");
        }
    }

    #[test]
    fn agent_version_belongs_to_the_join_method() {
        let row = row("k3s", "agent-version");
        for version in ["VERSION", "latest", "v1.35.2"] {
            let (why, _) = wrong(row, version).expect(version);
            assert!(why.starts_with("not a version of k3s or RKE2"), "{why}");
        }
        for (version, agent, other) in [
            ("v1.35.2+k3s1", &K3S, &RKE2),
            ("v1.35.2+rke2r1", &RKE2, &K3S),
        ] {
            assert_eq!(wrong(row, version), None);
            assert_eq!(wrong_agent(version, agent), None);
            let (_, hint) = wrong_agent(version, other).expect(version);
            let option = format!("`--set cluster.join={}`", agent.name);
            assert!(hint.contains(&option), "{hint}");
        }
    }

    /// Karpenter passes a role to AWS as a name.
    #[test]
    fn arn_is_rejected_with_the_name() {
        let form = forms::named("eks-karpenter").unwrap();
        for (assignment, why, hint) in rows! {
            "role=arn:aws:iam::1:role/node", "a name contains no", "`--value role=node`";
            "role=arn:aws:iam::1:instance-profile/node", "an instance profile",
                "--instance-profile-name node ";
            "cluster=arn:aws:eks:us-east-1:1:cluster/prod", "a name contains no",
                "`--value cluster=prod`";
        } {
            let (name, value) = assignment.split_once('=').unwrap();
            let row = form.values.iter().find(|row| row.name == name).unwrap();
            let (found, remedy) = wrong(row, value).expect(assignment);
            assert!(
                found.contains(why) && remedy.contains(hint),
                "{found}: {remedy}"
            );
        }
    }
}
