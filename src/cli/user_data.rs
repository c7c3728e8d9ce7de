//! `user-data`: prints a template from `cloud-init/` with validated values.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use camino::Utf8Path;

use super::{
    Failure,
    args::{self, UserDataForm},
    compat,
    env::{Console, Env},
    machine, prepare, print, trial,
};
use crate::{
    config::{
        error::{ConfigError, ResolveError},
        load::{self, SettingsRequest},
        resolve::{Flags, Resolution},
        sources::{self, SettingSources},
    },
    exit::Exit,
    host::Host,
    joins::JoinMethod,
};

/// The placeholder of the join token.
const TOKEN: &str = "@TOKEN@";

/// The comment in a template that has unfilled placeholders.
const SET_EACH: &str = "Set each `@VALUE@`. ";

/// The value of `cluster.token` in templates that write the token file.
const TOKEN_PLACE: &str = "\"file:/etc/gpu-bootstrap/join-token\"";

/// The lines that write the token file. They are removed if the token comes from another source.
const TOKEN_LINES: [&str; 2] = [
    "  - path: /etc/gpu-bootstrap/join-token\n    permissions: \"0600\"\n    content: \"@TOKEN@\"\n",
    "printf '%s\\n' '@TOKEN@' >/etc/gpu-bootstrap/join-token\n",
];

/// A template, and its placeholders that are not settings, by `--value` name.
struct Form {
    text: &'static str,
    /// The operating system for which the settings are checked by default.
    os: &'static str,
    values: &'static [(&'static str, &'static str)],
}

/// The download URL of gpu-bootstrap.
const ADDRESS: (&str, &str) = ("address", "@ADDRESS@");
const SHA256: (&str, &str) = ("sha256", "@SHA-256@");

macro_rules! form {
    ($file:literal, $os:literal, [$($value:expr),*]) => {
        Form {
            text: include_str!(concat!("../../cloud-init/", $file)),
            os: $os,
            values: &[$($value),*],
        }
    };
}

const fn form(form: UserDataForm) -> Form {
    match form {
        UserDataForm::Bare => form!("bare/user-data.yaml", "ubuntu-24.04", [ADDRESS, SHA256]),
        UserDataForm::Kubeadm => form!("kubeadm/user-data.yaml", "ubuntu-24.04", [ADDRESS, SHA256]),
        UserDataForm::K3s => form!("k3s/user-data.yaml", "ubuntu-24.04", [ADDRESS, SHA256]),
        UserDataForm::Eks => form!(
            "eks/user-data.mime",
            "amzn-2023",
            [
                ("cluster", "@NAME@"),
                ("endpoint", "@https://SERVER@"),
                ("ca", "@BASE64@"),
                ("cidr", "@10.100.0.0/16@"),
                ADDRESS,
                SHA256
            ]
        ),
        UserDataForm::EksNodeGroup => {
            form!("eks/user-data.mime", "amzn-2023", [ADDRESS, SHA256])
        }
        UserDataForm::EksKarpenter => form!(
            "eks-karpenter/ec2nodeclass.yaml",
            "amzn-2023",
            [
                ("kubernetes", "@1.36@"),
                ("arch", "@x86_64@"),
                ("role", "@KarpenterNodeRole-NAME@"),
                ("cluster", "@NAME@"),
                ("family", "@g6@"),
                ADDRESS,
                SHA256
            ]
        ),
        UserDataForm::EksUbuntu => form!(
            "eks-ubuntu/user-data.mime",
            "ubuntu-24.04",
            [
                ("cluster", "@NAME@"),
                ("endpoint", "@https://SERVER@"),
                ("ca", "@BASE64@"),
                ADDRESS,
                SHA256
            ]
        ),
        UserDataForm::Aks | UserDataForm::Gke => form!(
            "daemonset/daemonset.yaml",
            "ubuntu-24.04",
            [("registry", "@REGISTRY@"), ("digest", "@DIGEST@")]
        ),
        UserDataForm::AksFlex => form!(
            "aks/user-data.yaml",
            "ubuntu-24.04",
            [
                ("pool", "@POOL@"),
                ("resource-id", "@RESOURCE-ID@"),
                ("location", "@LOCATION@"),
                ("server", "@SERVER@"),
                ("ca", "@BASE64@"),
                ("dns", "@10.0.0.10@"),
                ("kubernetes", "@1.36.4@"),
                ADDRESS,
                SHA256
            ]
        ),
        UserDataForm::Google => form!("google/startup-script.sh", "almalinux-9", [ADDRESS, SHA256]),
    }
}

/// Whether the template is piped to kubectl, which would apply unfilled placeholders. In all other templates, the user's tools
/// can replace the remaining placeholders later.
const fn is_applied(form: UserDataForm) -> bool {
    matches!(
        form,
        UserDataForm::Aks | UserDataForm::Gke | UserDataForm::EksKarpenter
    )
}

/// Removes the NodeConfig part from a template, because EKS adds one if the node group has an AMI type.
fn without_node_config(text: &str) -> String {
    const PART: &str = "--gpu-bootstrap\nContent-Type: ";
    let is_other = |part: &&str| !part.starts_with("application/node.eks.aws");
    let parts: Vec<&str> = text.split(PART).filter(is_other).collect();
    parts.join(PART)
}

pub(super) fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::UserDataArgs,
) -> Result<Exit, Failure> {
    let form = form(args.form);
    let mut text = match args.form {
        UserDataForm::EksNodeGroup => without_node_config(form.text),
        _ => form.text.to_owned(),
    };
    let mut wrong = Vec::new();
    for assignment in &args.value {
        match named(&form, assignment) {
            Ok((placeholder, value)) => text = filled_in(&text, placeholder, value),
            Err(error) => wrong.push(error),
        }
    }
    Failure::unless_none(wrong)?;
    let block = Block::of(&text);
    let mut settings = block.settings(&text);
    let marks = placeholders(&settings);
    for assignment in &args.set {
        settings = set(&settings, assignment)?;
    }
    text.replace_range(block.range.clone(), &block.indented(&settings));
    if !settings.contains(TOKEN_PLACE) {
        for lines in TOKEN_LINES {
            text = text.replace(lines, "");
        }
    }
    let resolution = check(
        host,
        env,
        args.os.as_deref().unwrap_or(form.os),
        &filled(&Block::of(&text).settings(&text), &marks),
    )?;
    if let Some(file) = &args.token_file {
        let cluster = resolution.desired.cluster.as_ref();
        text = with_token(host, file, &text, cluster.map(|spec| &spec.method))?;
    }
    let left = left(&form, &marks, &text);
    if is_applied(args.form) {
        let missing = |(mark, how): &(String, String)| {
            usage(
                &format!("fill in the template: no value for `{mark}`"),
                &format!("add {how}"),
            )
        };
        Failure::unless_none(left.iter().map(missing).collect())?;
    }
    if left.is_empty() {
        text = text.replace(SET_EACH, "");
    }
    let left: Vec<String> = (left.iter())
        .map(|(mark, how)| format!("no value for `{mark}`: add {how}"))
        .collect();
    console.warn(&resolution.warnings);
    console.warn(&left);
    // Print without hiding secrets: the user requested the token, and placeholders in URLs look like credentials.
    print::text(console.out.openly(), &text)?;
    Ok(Exit::Ok)
}

fn usage(message: &str, hint: &str) -> Failure {
    Failure::new(Exit::Usage, "user-data-value", message, Some(hint))
}

/// Replaces a placeholder outside comments.
fn filled_in(text: &str, placeholder: &str, value: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with('#') {
        true => line.to_owned(),
        false => line.replace(placeholder, value),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Parses `NAME=VALUE` and returns the placeholder and the value.
fn named<'a>(form: &Form, assignment: &'a str) -> Result<(&'static str, &'a str), Failure> {
    let known: Vec<&str> = form.values.iter().map(|(name, _)| *name).collect();
    let known = format!("this template has {}", known.join(", "));
    let Some((name, value)) = assignment.split_once('=') else {
        return Err(usage("read `--value`: not `NAME=VALUE`", &known));
    };
    let Some((_, placeholder)) = form.values.iter().find(|(own, _)| *own == name) else {
        return Err(usage(
            &format!("read `--value {name}`: the template has no such value"),
            &known,
        ));
    };
    // Registries and `docker push` print digests with a prefix.
    let value = match name {
        "digest" | "sha256" => value.strip_prefix("sha256:").unwrap_or(value),
        "registry" => value.trim_end_matches('/'),
        _ => value,
    };
    if matches!(name, "role" | "cluster") && value.contains([':', '/']) {
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
        None => Ok((placeholder, value)),
    }
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
fn wrong(name: &str, placeholder: &str, value: &str) -> Option<(&'static str, &'static str)> {
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
fn numbers(text: &str) -> Option<usize> {
    let is_number =
        |part: &str| part.parse::<u16>().is_ok() && part.bytes().all(|byte| byte.is_ascii_digit());
    (text.split('.').all(is_number)).then(|| text.split('.').count())
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.:/+=,?&%~[]".contains(letter)
}

fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 64 && text.bytes().all(is_hex)
}

/// Inserts the token from a file, if it is valid for the join method.
fn with_token(
    host: &Host,
    file: &Utf8Path,
    text: &str,
    method: Option<&JoinMethod>,
) -> Result<String, Failure> {
    if !text.contains(TOKEN) {
        return Err(usage(
            "read `--token-file`: this template contains no token",
            "omit the option; with a secret store in `cluster.token`, the machine fetches the token",
        ));
    }
    let path = prepare::absolute(file)?;
    let read = host.files.read_text(&path).map_err(ConfigError::from);
    let token = read.map_err(ResolveError::from)?;
    let token =
        token.ok_or_else(|| ResolveError::from(ConfigError::MissingFile { path: path.clone() }))?;
    let token = token.trim();
    if token.is_empty() || !token.chars().all(is_plain) {
        // Do not print the token.
        return Err(usage(
            &format!("read `{path}`: not a single line with a token"),
            "write only the token to this file",
        ));
    }
    if let Some(why) = method.and_then(|method| method.implementation().wrong_token(token)) {
        return Err(usage(
            &format!("read `{path}`: {why}"),
            "create the token with the command in the template's comments",
        ));
    }
    Ok(filled_in(text, TOKEN, token))
}

/// The location of the settings in a template.
struct Block {
    range: std::ops::Range<usize>,
    indent: String,
}

impl Block {
    #[expect(
        clippy::expect_used,
        reason = "a test prints every template, and users cannot change the surrounding text"
    )]
    fn of(text: &str) -> Self {
        let name = text
            .find("50-user-data.toml")
            .or_else(|| text.find("50-daemonset.toml"));
        let name = name.expect("each template has settings");
        let opening = ["content: |\n", "<<'END'\n", "50-daemonset.toml: |\n"];
        let ends = opening.iter().filter_map(|word| {
            let at = text[name..].find(word)?;
            Some(name + at + word.len())
        });
        let start = ends.min().expect("the settings have a start");
        let first = text[start..].lines().next().unwrap_or_default();
        let indent = " ".repeat(first.len() - first.trim_start().len());
        let mut end = start;
        for line in text[start..].split_inclusive('\n') {
            let is_inside = line.trim().is_empty() || line.starts_with(&indent);
            if !is_inside || line == "END\n" {
                break;
            }
            end += line.len();
        }
        Self {
            range: start..end,
            indent,
        }
    }

    fn settings(&self, text: &str) -> String {
        let lines = text[self.range.clone()].lines();
        let lines = lines.map(|line| line.strip_prefix(&self.indent).unwrap_or(line));
        lines.map(|line| format!("{line}\n")).collect()
    }

    fn indented(&self, settings: &str) -> String {
        let lines = settings.lines().map(|line| match line {
            "" => "\n".to_owned(),
            line => format!("{}{line}\n", self.indent),
        });
        lines.collect()
    }
}

/// Adds a setting or replaces its value. A new setting is added to its table. If the table is missing, the setting is added
/// with its full key at the start.
fn set(settings: &str, assignment: &str) -> Result<String, Failure> {
    let mut one = SettingSources::default();
    one.set(assignment).map_err(ResolveError::from)?;
    if !sources::secrets(assignment).is_empty() {
        let key = assignment.split('=').next().unwrap_or_default();
        return Err(usage(
            &format!("read `--set {key}`: secrets are not allowed on the command line"),
            "write the secret to the settings in the image, or to the printed user data; other users can read command lines",
        ));
    }
    let mut text = settings.to_owned();
    for setting in one.provenance() {
        text = put(&text, &setting.key, &setting.value);
    }
    Ok(text)
}

fn put(settings: &str, key: &str, value: &str) -> String {
    let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut current = String::new();
    let mut lines: Vec<String> = settings.lines().map(str::to_owned).collect();
    let mut header = None;
    for (at, line) in lines.iter_mut().enumerate() {
        if let Some(rest) = line.strip_prefix('[') {
            rest.trim_end_matches(']').clone_into(&mut current);
            if current == table {
                header = Some(at);
            }
            continue;
        }
        let own = line.split_once('=').map(|(own, _)| own.trim());
        let whole = own.map(|own| match current.as_str() {
            "" => own.to_owned(),
            table => format!("{table}.{own}"),
        });
        if whole.as_deref() == Some(key) {
            *line = format!("{} = {value}", own.unwrap_or(name));
            return lines.join("\n") + "\n";
        }
    }
    match header {
        Some(at) => lines.insert(at + 1, format!("{name} = {value}")),
        None => lines.insert(0, format!("{key} = {value}")),
    }
    lines.join("\n") + "\n"
}

/// Resolves the settings for an operating system. The GPU is unknown, so settings that depend on it are not checked.
fn check(host: &Host, env: &Env, system: &str, settings: &str) -> Result<Resolution, Failure> {
    let matrix = machine::matrix(host, env)?;
    let os = compat::os_named(system)?;
    let facts = trial::without_gpu(&matrix, &os);
    let ask = SettingsRequest {
        config: vec![trial::SETTINGS.into()],
        set: vec!["gpu=optional".to_owned()],
        flags: Flags {
            trial: true,
            ..Flags::default()
        },
        secrets: env.secrets.clone(),
        ..SettingsRequest::default()
    };
    let nothing = trial::nothing();
    let named = trial::with_settings(settings);
    let found = load::load(&*nothing.files, &*named.files, &ask, &facts, &matrix)?;
    Ok(found)
}

/// Replaces each unfilled placeholder in the settings with the example that it contains, so that the settings can be checked.
fn filled(settings: &str, marks: &[String]) -> String {
    let digest = format!("sha256:{}", "0".repeat(64));
    let settings = settings.replace("@sha256:DIGEST@", &digest);
    marks.iter().fold(settings, |text, mark| {
        text.replace(mark, mark.trim_matches('@'))
    })
}

/// Returns the placeholders of the settings, including the `@` signs.
fn placeholders(settings: &str) -> Vec<String> {
    let lines = settings.lines().filter(|line| !line.starts_with('#'));
    let marked = lines.flat_map(|line| line.split('@').skip(1).step_by(2));
    marked.map(|one| format!("@{one}@")).collect()
}

/// Returns the unfilled placeholders with the option that fills each of them.
fn left(form: &Form, marks: &[String], text: &str) -> Vec<(String, String)> {
    let settings = Block::of(text).settings(text);
    let mut left = Vec::new();
    for line in settings.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once('=').unwrap_or_default();
        let whole = value.replace(['[', ']', '"', '@'], "");
        for mark in marks.iter().filter(|mark| line.contains(mark.as_str())) {
            let mut how = format!("`--set cluster.{}=…`", key.trim());
            // The placeholder is only a part of the value.
            if whole.trim() != mark.trim_matches('@') {
                how += &format!(", such as `{}`", whole.trim());
            }
            left.push((mark.clone(), how));
        }
    }
    let is_left = |placeholder: &str| filled_in(text, placeholder, "") != text;
    if is_left(TOKEN) {
        let how = "`--token-file FILE`, or `--set cluster.token=…` for a secret store";
        left.push((TOKEN.to_owned(), how.to_owned()));
    }
    for (name, placeholder) in form.values {
        if is_left(placeholder) {
            left.push(((*placeholder).to_owned(), format!("`--value {name}=…`")));
        }
    }
    // Without the `@` signs, because a URL placeholder would look like a URL with credentials and would be hidden.
    let told = |(mark, how): (String, String)| (mark.trim_matches('@').to_owned(), how);
    left.into_iter().map(told).collect()
}
