//! `user-data`: prints a form of `cloud-init/` with checked values, ready to paste.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use camino::Utf8Path;

use super::{
    Failure,
    args::{self, UserDataForm},
    compat, machine, prepare, print, trial,
    world::{Console, Env},
};
use crate::{
    config::{
        error::{ConfigError, ResolveError},
        layers::{self, Layers},
        load::{self, Ask},
        resolve::{Flags, Resolution},
    },
    exit::Exit,
    host::Host,
    joins::JoinMethod,
};

/// Where the token is written on the machine, in each form that has one.
const TOKEN: &str = "@TOKEN@";

/// What the comments of a form ask for as long as something is left to fill in.
const SET_EACH: &str = "Set each `@VALUE@`. ";

/// What the forms with a token name as its place.
const TOKEN_PLACE: &str = "\"file:/etc/gpu-bootstrap/join-token\"";

/// The lines that bring a token by user data; they go where it comes from elsewhere.
const TOKEN_LINES: [&str; 2] = [
    "  - path: /etc/gpu-bootstrap/join-token\n    permissions: \"0600\"\n    content: \"@TOKEN@\"\n",
    "printf '%s\\n' '@TOKEN@' >/etc/gpu-bootstrap/join-token\n",
];

/// A form: the file, and what is to be filled in beside the settings, by the names of `--value`.
struct Form {
    text: &'static str,
    /// A system that it is for: its settings are checked as those of one.
    os: &'static str,
    values: &'static [(&'static str, &'static str)],
}

/// The download of the program.
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

/// Whether the form is piped into kubectl, which would apply it with its marks. The others are files, in which tools of the
/// user's may fill in the rest.
const fn is_applied(form: UserDataForm) -> bool {
    matches!(
        form,
        UserDataForm::Aks | UserDataForm::Gke | UserDataForm::EksKarpenter
    )
}

/// The form without its NodeConfig: EKS adds one of its own where a node group has an AMI type.
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
        text = with_token(host, file, &text, cluster.map(|wish| &wish.method))?;
    }
    let left = left(&form, &marks, &text);
    if is_applied(args.form) {
        let missing = |(mark, how): &(String, String)| {
            usage(
                &format!("fill in the form: the value in place of `{mark}` is missing"),
                &format!("add {how}"),
            )
        };
        Failure::unless_none(left.iter().map(missing).collect())?;
    }
    if left.is_empty() {
        text = text.replace(SET_EACH, "");
    }
    let left: Vec<String> = (left.iter())
        .map(|(mark, how)| {
            format!("the value in place of `{mark}` is still to be filled in: {how}")
        })
        .collect();
    console.warn(&resolution.warnings);
    console.warn(&left);
    // It is the user's own text, with the token that was asked for, and marks that look like logins.
    print::text(console.out.openly(), &text)?;
    Ok(Exit::Ok)
}

fn usage(message: &str, hint: &str) -> Failure {
    Failure::new(Exit::Usage, "user-data-value", message, Some(hint))
}

/// The form with a value. Comments stay as they are.
fn filled_in(text: &str, placeholder: &str, value: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with('#') {
        true => line.to_owned(),
        false => line.replace(placeholder, value),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// What `NAME=VALUE` fills in: the placeholder, and the value.
fn named<'a>(form: &Form, assignment: &'a str) -> Result<(&'static str, &'a str), Failure> {
    let known: Vec<&str> = form.values.iter().map(|(name, _)| *name).collect();
    let known = format!("this form has {}", known.join(", "));
    let Some((name, value)) = assignment.split_once('=') else {
        return Err(usage("read `--value`: write `NAME=VALUE`", &known));
    };
    let Some((_, placeholder)) = form.values.iter().find(|(own, _)| *own == name) else {
        return Err(usage(
            &format!("read `--value {name}`: the form has no such value"),
            &known,
        ));
    };
    // Registries and `docker push` write it so.
    let value = match name {
        "digest" | "sha256" => value.strip_prefix("sha256:").unwrap_or(value),
        "registry" => value.trim_end_matches('/'),
        _ => value,
    };
    match wrong(name, placeholder, value) {
        Some((why, hint)) => Err(usage(
            &format!("read `--value {name}`: it cannot be `{value}`: {why}"),
            hint,
        )),
        None => Ok((placeholder, value)),
    }
}

/// Why a value does not fit its kind, and where the right one is.
fn wrong(name: &str, placeholder: &str, value: &str) -> Option<(&'static str, &'static str)> {
    const COMMENTS: &str = "the form's comments say what it is";
    Some(match name {
        _ if value.is_empty() => ("it is empty", COMMENTS),
        // It comes to stand in YAML, JSON and scripts of root.
        _ if !value.chars().all(is_plain) => (
            "it has a letter other than letters, digits and `-_.:/+=,?&%~[]`",
            COMMENTS,
        ),
        "sha256" if !is_digest(value) => (
            "a SHA-256 has 64 digits of 0-9 and a-f",
            "`sha256sum gpu-bootstrap` prints it, of the program itself and not of its archive",
        ),
        "digest" if !is_digest(value) => (
            "a SHA-256 has 64 digits of 0-9 and a-f",
            "`docker push` prints it at its end",
        ),
        "address" if !value.starts_with("https://") && !value.starts_with("http://") => (
            "it begins with neither `https://` nor `http://`",
            "upload the program `gpu-bootstrap` to a web server that the machines reach",
        ),
        "address" if [".tar.gz", ".tgz"].iter().any(|end| value.ends_with(end)) => (
            "it is an archive, and the machine wants the program itself",
            "unpack it, upload `gpu-bootstrap`, and take address and SHA-256 of that",
        ),
        "endpoint" if !value.starts_with("https://") => (
            "it does not begin with `https://`",
            "`aws eks describe-cluster --name NAME --query cluster.endpoint --output text` prints it",
        ),
        "ca" if !is_certificate(value) => (
            "it is no certificate in base64",
            "it is `certificate-authority-data` of a kubeconfig; for EKS `aws eks describe-cluster --name NAME --query \
             cluster.certificateAuthority.data --output text` prints it",
        ),
        "cidr" if !is_network(value) => (
            "it is no network such as `10.100.0.0/16`",
            "`aws eks describe-cluster --name NAME --query cluster.kubernetesNetworkConfig --output text` prints it",
        ),
        "dns" if !is_address(value) => ("it is no IP address", COMMENTS),
        "server" if value.contains('/') || (value.contains(':') && !is_address(value)) => (
            "it is the name of a host, without `https://` and port",
            COMMENTS,
        ),
        "registry" if value.contains("://") => (
            "the name of an image has no `https://`",
            "name host and path, such as `registry.example.com/tools`",
        ),
        "registry" if !is_registry(value) => (
            "the name of an image cannot begin with it",
            "name host and path, the path in small letters, such as `registry.example.com:5000/tools`",
        ),
        "arch" if !matches!(value, "x86_64" | "arm64") => (
            "Amazon has images for `x86_64` and `arm64`",
            "take that of the family, and a program that is built for it",
        ),
        "kubernetes" if numbers(value) != numbers(placeholder.trim_matches('@')) => {
            let why = match numbers(placeholder.trim_matches('@')) {
                Some(2) => "it is no version with two numbers, such as `1.36`",
                _ => "it is no version with three numbers, such as `1.36.4`",
            };
            (why, "`kubectl version` shows that of the cluster")
        }
        _ => return None,
    })
}

/// Whether it is base64 of a certificate in PEM.
fn is_certificate(text: &str) -> bool {
    let decoded = BASE64.decode(text);
    decoded.is_ok_and(|bytes| bytes.starts_with(b"-----BEGIN"))
}

/// Whether the name of an image can begin so: with a host, or a path of Docker Hub (distribution/reference, `reference.go`).
fn is_registry(text: &str) -> bool {
    let mut parts = text.split('/');
    let first = parts.next().unwrap_or_default();
    let (host, port) = first.rsplit_once(':').unwrap_or((first, "443"));
    let is_host = is_name(&host.to_ascii_lowercase()) && port.parse::<u16>().is_ok();
    is_host && parts.all(is_name)
}

/// A part of the name of an image.
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

/// How many numbers a version has; `None` if it is none.
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

/// The form with the token in a file, if it is one for this way to join.
fn with_token(
    host: &Host,
    file: &Utf8Path,
    text: &str,
    method: Option<&JoinMethod>,
) -> Result<String, Failure> {
    if !text.contains(TOKEN) {
        return Err(usage(
            "read `--token-file`: nothing in this form takes a token",
            "leave it out; `cluster.token` can name a store of secrets, from which the machine fetches it",
        ));
    }
    let path = prepare::absolute(file)?;
    let read = host.files.read_text(&path).map_err(ConfigError::from);
    let token = read.map_err(ResolveError::from)?;
    let token =
        token.ok_or_else(|| ResolveError::from(ConfigError::MissingFile { path: path.clone() }))?;
    let token = token.trim();
    if token.is_empty() || !token.chars().all(is_plain) {
        // The token itself is not shown.
        return Err(usage(
            &format!("read `{path}`: it has no token alone, on one line"),
            "write the token into it and nothing else",
        ));
    }
    if let Some(why) = method.and_then(|method| method.way().wrong_token(token)) {
        return Err(usage(
            &format!("read `{path}`: {why}"),
            "the form's comments name the command that makes the right one",
        ));
    }
    Ok(filled_in(text, TOKEN, token))
}

/// Where the settings stand in a form.
struct Block {
    range: std::ops::Range<usize>,
    indent: String,
}

impl Block {
    #[expect(
        clippy::expect_used,
        reason = "a test prints every form, and a user cannot change what stands around"
    )]
    fn of(text: &str) -> Self {
        let name = text
            .find("50-user-data.toml")
            .or_else(|| text.find("50-daemonset.toml"));
        let name = name.expect("each form has settings");
        let opening = ["content: |\n", "<<'END'\n", "50-daemonset.toml: |\n"];
        let ends = opening.iter().filter_map(|word| {
            let at = text[name..].find(word)?;
            Some(name + at + word.len())
        });
        let start = ends.min().expect("the settings begin");
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

/// The settings with one more, or with another value of one. It is written where a person would write it.
fn set(settings: &str, assignment: &str) -> Result<String, Failure> {
    let mut one = Layers::default();
    one.set(assignment).map_err(ResolveError::from)?;
    if !layers::secrets(assignment).is_empty() {
        let key = assignment.split('=').next().unwrap_or_default();
        return Err(usage(
            &format!("read `--set {key}`: its value is a secret"),
            "write it into the settings of the image, or into what is printed: others read command lines",
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

/// What a machine with this system would make of the settings. Nobody has named a GPU, so what depends on one is not
/// checked.
fn check(host: &Host, env: &Env, system: &str, settings: &str) -> Result<Resolution, Failure> {
    let matrix = machine::matrix(host, env)?;
    let os = compat::os_named(system)?;
    let facts = trial::without_gpu(&matrix, &os);
    let ask = Ask {
        config: vec![trial::SETTINGS.into()],
        set: vec!["gpu=optional".to_owned()],
        flags: Flags {
            trial: true,
            ..Flags::default()
        },
        secrets: env.secrets.clone(),
        ..Ask::default()
    };
    let nothing = trial::nothing();
    let named = trial::with_settings(settings);
    let found = load::load(&*nothing.files, &*named.files, &ask, &facts, &matrix)?;
    Ok(found)
}

/// The settings with an example for each mark that is still to be filled in.
fn filled(settings: &str, marks: &[String]) -> String {
    let digest = format!("sha256:{}", "0".repeat(64));
    let settings = settings.replace("@sha256:DIGEST@", &digest);
    marks.iter().fold(settings, |text, mark| {
        text.replace(mark, mark.trim_matches('@'))
    })
}

/// The marks of a form's settings: what is to be filled in, between `@` signs.
fn placeholders(settings: &str) -> Vec<String> {
    let lines = settings.lines().filter(|line| !line.starts_with('#'));
    let marked = lines.flat_map(|line| line.split('@').skip(1).step_by(2));
    marked.map(|one| format!("@{one}@")).collect()
}

/// What is still to be filled in, and how.
fn left(form: &Form, marks: &[String], text: &str) -> Vec<(String, String)> {
    let settings = Block::of(text).settings(text);
    let mut left = Vec::new();
    for line in settings.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once('=').unwrap_or_default();
        let whole = value.replace(['[', ']', '"', '@'], "");
        for mark in marks.iter().filter(|mark| line.contains(mark.as_str())) {
            let mut how = format!("`--set cluster.{}=…`", key.trim());
            // It is a part of the value.
            if whole.trim() != mark.trim_matches('@') {
                how += &format!(", such as `{}`", whole.trim());
            }
            left.push((mark.clone(), how));
        }
    }
    let is_left = |placeholder: &str| filled_in(text, placeholder, "") != text;
    if is_left(TOKEN) {
        let how = "`--token-file FILE`, or `--set cluster.token=…` for a store of secrets";
        left.push((TOKEN.to_owned(), how.to_owned()));
    }
    for (name, placeholder) in form.values {
        if is_left(placeholder) {
            left.push(((*placeholder).to_owned(), format!("`--value {name}=…`")));
        }
    }
    // With its marks an address looks like one with a login, and would be hidden.
    let told = |(mark, how): (String, String)| (mark.trim_matches('@').to_owned(), how);
    left.into_iter().map(told).collect()
}
