//! The values of a template that are not settings, and their checks.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use crate::{
    cli::Failure,
    compat::matrix::{InstanceDriver, InstanceType, Matrix},
    exit::Exit,
    model::text::nearest,
};

pub(super) fn usage(message: &str, hint: &str) -> Failure {
    Failure::new(Exit::Usage, "user-data-value", message, Some(hint))
}

/// Parses and checks `NAME=VALUE`. `values` are the values of the template, with their placeholders.
pub(super) fn named<'a>(
    values: &'static [(&'static str, &'static str)],
    assignment: &'a str,
) -> Result<(&'static str, &'a str), Failure> {
    let known: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    let known = format!("this template has {}", known.join(", "));
    let Some((name, value)) = assignment.split_once('=') else {
        return Err(usage("read `--value`: not `NAME=VALUE`", &known));
    };
    let Some((name, placeholder)) = values.iter().find(|(own, _)| *own == name) else {
        return Err(usage(
            &format!("read `--value {name}`: the template has no such value"),
            &known,
        ));
    };
    // Registries and `docker push` print digests with a prefix.
    let value = match *name {
        "digest" | "sha256" => value.strip_prefix("sha256:").unwrap_or(value),
        "registry" => value.trim_end_matches('/'),
        _ => value,
    };
    if matches!(*name, "role" | "cluster") && value.contains([':', '/']) {
        let (why, hint) = instead_of_arn(name, value);
        return Err(usage(
            &format!("read `--value {name}`: invalid value `{value}`: {why}"),
            &hint,
        ));
    }
    match wrong(name, placeholder, value) {
        Some((why, hint)) => Err(usage(
            &format!("read `--value {name}`: invalid value `{value}`: {why}"),
            hint,
        )),
        None => Ok((*name, value)),
    }
}

/// Checks the instance family, and the architecture if it is given.
pub(super) fn family(matrix: &Matrix, family: &str, arch: Option<&str>) -> Result<(), Failure> {
    match wrong_family(matrix, family, arch) {
        Some((name, why, hint)) => Err(usage(&format!("read `--value {name}`: {why}"), &hint)),
        None => Ok(()),
    }
}

/// Returns the invalid value, the reason, and the remedy. Karpenter starts no node for a family that has no instance types with
/// this architecture, and reports no error.
fn wrong_family(
    matrix: &Matrix,
    family: &str,
    arch: Option<&str>,
) -> Option<(&'static str, String, String)> {
    let family_of = |row: &InstanceType| {
        let (family, _) = row.name.split_once('.')?;
        (row.provider == "aws").then(|| family.to_owned())
    };
    let wrong = |why: String, hint: String| {
        Some(("family", format!("invalid value `{family}`: {why}"), hint))
    };
    if let Some((family, _)) = family.split_once('.') {
        return wrong(
            "an instance type instead of a family".to_owned(),
            format!("use `--value family={family}`"),
        );
    }
    let rows = matrix.instance_types.iter();
    let types: Vec<&InstanceType> = (rows.clone())
        .filter(|row| family_of(row).as_deref() == Some(family))
        .collect();
    let Some(first) = types.first() else {
        let mut known: Vec<String> = rows
            .filter(|row| row.driver == InstanceDriver::DataCenter)
            .filter_map(family_of)
            .collect();
        known.sort();
        known.dedup();
        let hint = match nearest(family, known.iter().map(String::as_str)) {
            Some(nearest) => format!("did you mean `{nearest}`? The matrix contains"),
            None => "the matrix contains".to_owned(),
        };
        return wrong(
            "no instance type of this family has an NVIDIA GPU in the matrix".to_owned(),
            format!("{hint} {}", known.join(", ")),
        );
    };
    if types.iter().all(|row| row.driver == InstanceDriver::Grid) {
        return wrong(
            "its GPUs are vGPUs, which need the licensed GRID guest driver".to_owned(),
            "use a family with whole GPUs, such as `g6`".to_owned(),
        );
    }
    let own = match first.arch.as_str() {
        "aarch64" => "arm64",
        arch => arch,
    };
    let other = arch.filter(|arch| *arch != own)?;
    Some((
        "arch",
        format!("invalid value `{other}`: the instance types of `{family}` are {own}"),
        format!("use `--value arch={own}`, and a gpu-bootstrap binary for it"),
    ))
}

/// Returns the error and the hint for an ARN where a name is required. Karpenter passes a role to AWS as a name
/// (aws/karpenter-provider-aws issues 3051 and 8312).
fn instead_of_arn(name: &str, value: &str) -> (&'static str, String) {
    let last = value.rsplit(['/', ':']).next().unwrap_or_default();
    if name == "role" && value.contains(":instance-profile/") {
        let hint = format!(
            "run `aws iam get-instance-profile --instance-profile-name {last} --query \
             'InstanceProfile.Roles[].RoleName' --output text`"
        );
        return ("an instance profile instead of the name of its role", hint);
    }
    (
        "a name contains no `:` and `/`",
        format!("use the name: `--value {name}={last}`"),
    )
}

/// Returns the reason that a value is invalid, and the source of the correct one.
pub(super) fn wrong(
    name: &str,
    placeholder: &str,
    value: &str,
) -> Option<(&'static str, &'static str)> {
    const COMMENTS: &str = "see the comments in the template";
    Some(match name {
        _ if value.is_empty() => ("empty", COMMENTS),
        // Values are inserted into YAML, JSON and scripts that run as root.
        _ if !value.chars().all(is_plain) => (
            "only letters, digits and `-_.:/+=,?&%~[]` are allowed",
            COMMENTS,
        ),
        "sha256" if !is_digest(value) => (
            "not a SHA-256 digest, which has 64 digits of 0-9 and a-f",
            "run `sha256sum gpu-bootstrap` on the binary, not on the archive",
        ),
        "digest" if !is_digest(value) => (
            "not a SHA-256 digest, which has 64 digits of 0-9 and a-f",
            "use the digest printed by `docker push`",
        ),
        "address" if !value.starts_with("https://") && !value.starts_with("http://") => (
            "the URL must start with `https://` or `http://`",
            "upload the binary `gpu-bootstrap` to a web server that the machines can reach",
        ),
        "address" if [".tar.gz", ".tgz"].iter().any(|end| value.ends_with(end)) => (
            "an archive instead of the binary",
            "unpack the archive, upload `gpu-bootstrap`, and use its URL and SHA-256",
        ),
        "endpoint" if !value.starts_with("https://") => (
            "the URL must start with `https://`",
            "run `aws eks describe-cluster --name NAME --query cluster.endpoint --output text`",
        ),
        "ca" if !is_certificate(value) => (
            "not a base64-encoded PEM certificate",
            "use `certificate-authority-data` from a kubeconfig; on EKS, run `aws eks describe-cluster --name NAME --query \
             cluster.certificateAuthority.data --output text`",
        ),
        "cidr" if !is_network(value) => (
            "not a CIDR block such as `10.100.0.0/16`",
            "run `aws eks describe-cluster --name NAME --query cluster.kubernetesNetworkConfig --output text`",
        ),
        "dns" if !is_address(value) => ("not an IP address", COMMENTS),
        "server" if value.contains('/') || (value.contains(':') && !is_address(value)) => {
            ("not a host name without `https://` and port", COMMENTS)
        }
        "registry" if value.contains("://") => (
            "an image name has no URL scheme",
            "use host and path, such as `registry.example.com/tools`",
        ),
        "registry" if !is_registry(value) => (
            "not a valid start of an image name",
            "use host and path, the path in lower case, such as `registry.example.com:5000/tools`",
        ),
        "runtime-class" if !is_name(value) => (
            "not a name of lower-case letters, digits and `-`",
            "run `kubectl get runtimeclass` to list the names",
        ),
        "arch" if !matches!(value, "x86_64" | "arm64") => (
            "not `x86_64` or `arm64`, the architectures of Amazon images",
            "use the architecture of the instance family, and a gpu-bootstrap binary for it",
        ),
        "kubernetes" if numbers(value) != numbers(placeholder.trim_matches('@')) => {
            let why = match numbers(placeholder.trim_matches('@')) {
                Some(2) => "not a version with two numbers, such as `1.36`",
                _ => "not a version with three numbers, such as `1.36.4`",
            };
            (why, "run `kubectl version` to see the cluster version")
        }
        _ => return None,
    })
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
pub(super) fn numbers(text: &str) -> Option<usize> {
    let is_number =
        |part: &str| part.parse::<u16>().is_ok() && part.bytes().all(|byte| byte.is_ascii_digit());
    (text.split('.').all(is_number)).then(|| text.split('.').count())
}

pub(super) fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.:/+=,?&%~[]".contains(letter)
}

fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 64 && text.bytes().all(is_hex)
}

#[cfg(test)]
mod tests {
    use super::wrong_family;
    use crate::compat::Matrix;

    #[test]
    fn family_without_usable_gpus_is_rejected() {
        let matrix = Matrix::builtin().unwrap();
        for (family, arch, name, why) in rows! {
            "g5.xlarge", None, "family", "an instance type instead of a family";
            "m5", None, "family", "no instance type of this family has an NVIDIA GPU";
            "g6f", None, "family", "GRID";
            "g5g", Some("x86_64"), "arch", "the instance types of `g5g` are arm64";
            "g6", Some("arm64"), "arch", "the instance types of `g6` are x86_64";
        } {
            let (of, found, _) = wrong_family(&matrix, family, arch).expect(family);
            assert!(of == name && found.contains(why), "{family}: {found}");
        }
        let (_, _, hint) = wrong_family(&matrix, "g4d", None).expect("no such family");
        assert!(hint.starts_with("did you mean `g4dn`?"), "{hint}");
        for (family, arch) in rows! { "g6", Some("x86_64"); "g5g", Some("arm64"); "p6-b200", None; }
        {
            assert_eq!(wrong_family(&matrix, family, arch), None, "{family}");
        }
    }
}
