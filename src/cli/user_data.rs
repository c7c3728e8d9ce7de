//! `user-data`: prints a template from `cloud-init/` with validated values.

mod values;

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use self::values::{is_plain, named, numbers, usage, wrong};
use super::{
    Failure,
    args::{self, Provider, UserDataForm},
    compat,
    env::{Console, Env},
    machine, prepare, print, trial,
};
use crate::{
    compat::matrix::Matrix,
    config::{
        error::{ConfigError, ResolveError},
        load::{self, SettingsRequest},
        resolve::{Flags, Resolution},
        sources::{self, SettingSources},
    },
    exit::Exit,
    host::{FilesError, Host, digest::sha256},
    joins::JoinMethod,
    model::text::shell_word,
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

/// The setting that templates without it have as the value [`KUBERNETES`].
const VERSION: &str = "cluster.version";
const KUBERNETES: &str = "kubernetes";

/// The URL of this binary, which the release build sets.
const RELEASE_URL: Option<&str> = option_env!("GPU_BOOTSTRAP_RELEASE_URL");

/// A template, and its placeholders that are not settings, by `--value` name.
struct Form {
    text: &'static str,
    /// The operating system for which the settings are checked by default. `None` if the template has no settings.
    os: Option<&'static str>,
    values: &'static [(&'static str, &'static str)],
}

/// The download URL of gpu-bootstrap.
const ADDRESS: (&str, &str) = ("address", "@ADDRESS@");
const SHA256: (&str, &str) = ("sha256", "@SHA-256@");

/// The image of the DaemonSet and of the test pod.
const REGISTRY: (&str, &str) = ("registry", "@REGISTRY@");
const DIGEST: (&str, &str) = ("digest", "@DIGEST@");

/// Optional, so the template has no placeholder for it.
const RUNTIME_CLASS: (&str, &str) = ("runtime-class", "@RUNTIME-CLASS@");

macro_rules! form {
    ($file:literal, $os:literal, [$($value:expr),*]) => {
        Form {
            text: include_str!(concat!("../../cloud-init/", $file)),
            os: Some($os),
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
                (KUBERNETES, "@1.36@"),
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
        UserDataForm::NodePool => form!(
            "daemonset/daemonset.yaml",
            "ubuntu-24.04",
            [REGISTRY, DIGEST]
        ),
        UserDataForm::TestPod => Form {
            text: include_str!("../../cloud-init/daemonset/gpu-pod.yaml"),
            os: None,
            values: &[REGISTRY, DIGEST, RUNTIME_CLASS],
        },
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
                (KUBERNETES, "@1.36.4@"),
                ADDRESS,
                SHA256
            ]
        ),
        UserDataForm::Google => form!("google/startup-script.sh", "almalinux-9", [ADDRESS, SHA256]),
    }
}

/// Removes the NodeConfig part from a template, because EKS adds one if the node group has an AMI type.
fn without_node_config(text: &str) -> String {
    const PART: &str = "--gpu-bootstrap\nContent-Type: ";
    let is_other = |part: &&str| !part.starts_with("application/node.eks.aws");
    let parts: Vec<&str> = text.split(PART).filter(is_other).collect();
    parts.join(PART)
}

/// Removes the comments about other providers of node pools.
fn of_provider(text: &str, provider: Provider) -> String {
    let own = match provider {
        Provider::Aks => "#   AKS: ",
        Provider::Gke => "#   GKE: ",
    };
    let mut is_of_other = false;
    let keep = |line: &&str| {
        if ["AKS", "GKE", "EKS"]
            .iter()
            .any(|name| line.starts_with(&format!("#   {name}: ")))
        {
            is_of_other = !line.starts_with(own);
        } else if !line.starts_with("#    ") {
            is_of_other = false;
        }
        !is_of_other
    };
    text.split_inclusive('\n').filter(keep).collect()
}

pub(super) fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::UserDataArgs,
) -> Result<Exit, Failure> {
    let form = form(args.form);
    let matrix = machine::matrix(host, env)?;
    let mut text = match (args.form, args.provider) {
        (UserDataForm::NodePool, Some(provider)) => of_provider(form.text, provider),
        (_, Some(_)) => {
            return Err(usage(
                "read `--provider`: only `node-pool` has providers",
                "omit the option",
            ));
        }
        (UserDataForm::EksNodeGroup, None) => without_node_config(form.text),
        (_, None) => form.text.to_owned(),
    };
    // Each file is read once, because it may be a pipe.
    let files = settings_files(host, args)?;
    let given = given(&files, args)?;
    let values = checked_values(&matrix, &form, args, &given)?;
    for (name, placeholder) in form.values {
        if let Some(value) = values.get(name) {
            text = filled_in(&text, placeholder, value);
        }
    }
    if let Some(class) = values.get(RUNTIME_CLASS.0) {
        text = text.replace(
            "\nspec:\n",
            &format!("\nspec:\n  runtimeClassName: {class}\n"),
        );
    }
    let mut marks = Vec::new();
    let mut method = None;
    if let Some(os) = form.os {
        let block = Block::of(&text);
        let template = block.settings(&text);
        marks = placeholders(&template);
        let has_version = form.values.iter().any(|(name, _)| *name == KUBERNETES);
        let except = if has_version { &[VERSION][..] } else { &[] };
        let resolution = Trial {
            os: args.os.as_deref().unwrap_or(os),
            arch: values.get("arch").map(String::as_str),
            template: &filled(&template, &marks),
            except,
        }
        .check(env, &matrix, &files, &args.set)?;
        console.warn(&resolution.warnings);
        method = resolution.desired.cluster.map(|spec| spec.method);
        let mut settings = template;
        for (key, value) in given.assignments() {
            if except.contains(&key.as_str()) {
                continue;
            }
            // The template is edited by line, and part of it may be in a shell script.
            if value.contains('\n') {
                return Err(usage(
                    &format!("add `{key}` to the template: its value has several lines"),
                    "write a script in the image, and use its path as the value",
                ));
            }
            settings = put(&settings, &key, &value);
        }
        text.replace_range(block.range.clone(), &block.indented(&settings));
        if !settings.contains(TOKEN_PLACE) {
            for lines in TOKEN_LINES {
                text = text.replace(lines, "");
            }
        }
    } else if !(args.set.is_empty() && args.config.is_empty()) {
        return Err(usage(
            "read the settings: this template contains no settings",
            "omit `--set` and `--config`",
        ));
    }
    if let Some(file) = &args.token_file {
        text = with_token(host, file, &text, method.as_ref())?;
    }
    text = with_release(
        text,
        RELEASE_URL,
        values.get("arch").map(String::as_str),
        || {
            let binary = host.files.read(&env.exe)?;
            Ok(binary.map(|binary| sha256(&binary)))
        },
    )
    .map_err(|error| {
        let message = format!("failed to compute the SHA-256 of `{}`", env.exe);
        Failure::caused(Exit::Internal, "binary-unreadable", &message, error, None)
    })?;
    complete(&form, &marks, &text)?;
    text = text.replace(SET_EACH, "");
    // Print without hiding secrets: the user requested the token, and placeholders in URLs look like credentials.
    print::text(console.out.openly(), &text)?;
    console.next("When the nodes are Ready:", &next(args, &values));
    Ok(Exit::Ok)
}

/// Returns the settings of the files and of `--set`.
fn given(
    files: &[(Utf8PathBuf, String)],
    args: &args::UserDataArgs,
) -> Result<SettingSources, Failure> {
    let mut all = SettingSources::default();
    for (path, text) in files {
        all.file(path.as_str(), text).map_err(ResolveError::from)?;
    }
    for assignment in &args.set {
        all.set(assignment).map_err(ResolveError::from)?;
        if !sources::secrets(assignment).is_empty() {
            let key = assignment.split('=').next().unwrap_or_default();
            return Err(usage(
                &format!("read `--set {key}`: secrets are not allowed on the command line"),
                "write the secret to a file for `--config`, or to the settings in the image; other users can read command lines",
            ));
        }
    }
    Ok(all)
}

/// Reads the files of `--config`.
fn settings_files(
    host: &Host,
    args: &args::UserDataArgs,
) -> Result<Vec<(Utf8PathBuf, String)>, Failure> {
    let read = |path: Utf8PathBuf| {
        let text = host.files.read_text(&path).map_err(ConfigError::from)?;
        match text {
            Some(text) => Ok((path, text)),
            None => Err(ResolveError::from(ConfigError::MissingFile { path })),
        }
    };
    let paths = prepare::absolute_all(&args.config)?;
    Ok(paths.into_iter().map(read).collect::<Result<_, _>>()?)
}

/// Returns the values of `--value` by name. The cluster version can also be given as a setting.
fn checked_values(
    matrix: &Matrix,
    form: &Form,
    args: &args::UserDataArgs,
    given: &SettingSources,
) -> Result<BTreeMap<&'static str, String>, Failure> {
    let mut errors = Vec::new();
    let mut values = BTreeMap::new();
    for assignment in &args.value {
        match named(form.values, assignment) {
            Ok((name, value)) => {
                values.insert(name, value.to_owned());
            }
            Err(error) => errors.push(error),
        }
    }
    let placeholder = form.values.iter().find(|(name, _)| *name == KUBERNETES);
    let version = given
        .assignments()
        .into_iter()
        .find(|(key, _)| key == VERSION);
    if let (Some(_), Some((_, version)), Some(value)) =
        (placeholder, &version, values.get(KUBERNETES))
    {
        errors.push(usage(
            &format!(
                "read `{VERSION}` = {version}: `--value {KUBERNETES}={value}` is the same value"
            ),
            "use only one of them",
        ));
    } else if let (Some((name, placeholder)), Some((_, version))) = (placeholder, version) {
        // A template with two numbers needs only the minor version.
        let parts = numbers(placeholder.trim_matches('@')).unwrap_or_default();
        let version: Vec<&str> = version.trim_matches('"').split('.').take(parts).collect();
        let version = version.join(".");
        match wrong(name, placeholder, &version) {
            Some((why, hint)) => {
                let message = format!("read `{VERSION}`: invalid value `{version}`: {why}");
                errors.push(usage(&message, hint));
            }
            None => {
                values.insert(*name, version);
            }
        }
    }
    if let Some(family) = values.get("family") {
        let arch = values.get("arch").map(String::as_str);
        errors.extend(values::family(matrix, family, arch).err());
    }
    Failure::unless_none(errors)?;
    Ok(values)
}

/// Fills in the URL and the SHA-256 of this binary if neither was given, and the instances have the architecture of this binary.
/// `digest` returns `None` if the binary was deleted.
fn with_release(
    text: String,
    url: Option<&str>,
    arch: Option<&str>,
    digest: impl FnOnce() -> Result<Option<String>, FilesError>,
) -> Result<String, FilesError> {
    let is_left = |(_, placeholder): (&str, &str)| filled_in(&text, placeholder, "") != text;
    let own = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        arch => arch,
    };
    let Some(url) =
        url.filter(|_| is_left(ADDRESS) && is_left(SHA256) && arch.is_none_or(|arch| arch == own))
    else {
        return Ok(text);
    };
    let Some(digest) = digest()? else {
        return Ok(text);
    };
    let text = filled_in(&text, ADDRESS.1, url);
    Ok(filled_in(&text, SHA256.1, &digest))
}

/// Rejects a template with a missing value, because the machine would fail at its first boot.
fn complete(form: &Form, marks: &[String], text: &str) -> Result<(), Failure> {
    let options = left(form, marks, text);
    if options.is_empty() {
        return Ok(());
    }
    let count = match options.len() {
        1 => "1 value is missing".to_owned(),
        count => format!("{count} values are missing"),
    };
    let of_eks = ["@https://SERVER@", "@10.100.0.0/16@"]
        .iter()
        .any(|mark| filled_in(text, mark, "") != text);
    let source = if of_eks {
        "; `aws eks describe-cluster --name NAME` prints them"
    } else {
        ""
    };
    Err(usage(
        &format!("fill in the template: {count}"),
        &format!("add `{}`, with your values{source}", options.join(" ")),
    ))
}

/// The command that creates the runtime class. k3s, RKE2 and the GPU Operator also create it.
const CREATE_RUNTIME_CLASS: &str = "echo '{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: \
                                    nvidia}' | kubectl apply -f -";

/// The command that installs the device plugin. Source: NVIDIA/k8s-device-plugin v0.20.0, README.md.
const DEVICE_PLUGIN: &str = "helm upgrade -i nvdp nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin \
                             --namespace nvidia-device-plugin --create-namespace --version 0.20.0";

/// Returns the commands after the nodes have joined: the runtime class, the device plugin, and a pod that tests it. Empty for a
/// machine outside a cluster.
fn next(args: &args::UserDataArgs, values: &BTreeMap<&'static str, String>) -> Vec<String> {
    let is_default = match args.form {
        UserDataForm::Bare | UserDataForm::TestPod => return Vec::new(),
        // nodeadm configures nvidia as the default runtime.
        UserDataForm::Eks | UserDataForm::EksNodeGroup | UserDataForm::EksKarpenter => true,
        _ => false,
    };
    let mut plugin = DEVICE_PLUGIN.to_owned();
    let mut pod = "gpu-bootstrap user-data test-pod".to_owned();
    if !is_default {
        plugin += " --set runtimeClassName=nvidia";
        pod += " --value runtime-class=nvidia";
    }
    if args.provider == Some(Provider::Aks) {
        // The plugin waits for the validation, because no taint does.
        plugin += " --set-string 'nodeSelector.nvidia\\.com/gpu\\.present=true'";
    }
    for (name, placeholder) in [REGISTRY, DIGEST] {
        let value = values
            .get(name)
            .map_or(placeholder.trim_matches('@'), String::as_str);
        pod += &format!(" --value {name}={}", shell_word(value));
    }
    pod += " | kubectl apply -f -";
    let class = (!is_default).then(|| CREATE_RUNTIME_CLASS.to_owned());
    class.into_iter().chain([plugin, pod]).collect()
}

/// Replaces a placeholder outside comments.
fn filled_in(text: &str, placeholder: &str, value: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with('#') {
        true => line.to_owned(),
        false => line.replace(placeholder, value),
    };
    text.split_inclusive('\n').map(line).collect()
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

/// The machine and the template for which the settings are checked.
struct Trial<'a> {
    os: &'a str,
    /// The architecture, as `--value arch`.
    arch: Option<&'a str>,
    /// The settings of the template, with examples instead of placeholders.
    template: &'a str,
    /// Settings that are values of the template.
    except: &'a [&'a str],
}

impl Trial<'_> {
    /// Resolves the settings of the template and of the options. The GPU is unknown, so settings that depend on it are not
    /// checked.
    fn check(
        &self,
        env: &Env,
        matrix: &Matrix,
        files: &[(Utf8PathBuf, String)],
        set: &[String],
    ) -> Result<Resolution, Failure> {
        let os = compat::os_named(self.os)?;
        let facts = trial::without_gpu(
            matrix,
            &os,
            self.arch.map(|arch| arch.replace("arm64", "aarch64")),
        );
        let mut texts = vec![(Utf8PathBuf::from(trial::SETTINGS), self.template.to_owned())];
        texts.extend_from_slice(files);
        let ask = SettingsRequest {
            config: texts.iter().map(|(path, _)| path.clone()).collect(),
            set: (set.iter().cloned())
                .chain(["gpu=optional".to_owned()])
                .collect(),
            except: self.except.iter().map(|&key| key.to_owned()).collect(),
            flags: Flags {
                trial: true,
                ..Flags::default()
            },
            secrets: env.secrets.clone(),
            ..SettingsRequest::default()
        };
        let nothing = trial::nothing();
        let named = trial::with_settings(texts);
        let found = load::load(&*nothing.files, &*named.files, &ask, &facts, matrix)?;
        trial::rejected(&found.desired)?;
        Ok(found)
    }
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

/// Returns the options that fill the remaining placeholders, with examples as values.
fn left(form: &Form, marks: &[String], text: &str) -> Vec<String> {
    let mut left = Vec::new();
    let settings = match marks {
        [] => String::new(),
        _ => Block::of(text).settings(text),
    };
    for line in settings.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once('=').unwrap_or_default();
        if marks.iter().any(|mark| line.contains(mark.as_str())) {
            let example = value.replace(['[', ']', '"', '@'], "");
            left.push(format!("--set cluster.{}={}", key.trim(), example.trim()));
        }
    }
    let is_left = |placeholder: &str| filled_in(text, placeholder, "") != text;
    if is_left(TOKEN) {
        left.push("--token-file FILE".to_owned());
    }
    for (name, placeholder) in form.values {
        if is_left(placeholder) {
            let example = match *name {
                "address" => "https://SERVER/gpu-bootstrap",
                "sha256" => "DIGEST",
                _ => placeholder.trim_matches('@'),
            };
            left.push(format!("--value {name}={example}"));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::cli::help::VALUES;

    #[test]
    fn help_lists_the_values_of_each_form() {
        for one in UserDataForm::value_variants() {
            let name = one.to_possible_value().expect("a visible form");
            let listed = VALUES
                .iter()
                .filter(|(_, forms, _)| forms.contains(&name.get_name()));
            let mut listed: Vec<&str> = listed.map(|(value, ..)| *value).collect();
            let mut values: Vec<&str> = form(*one).values.iter().map(|(value, _)| *value).collect();
            listed.sort_unstable();
            values.sort_unstable();
            assert_eq!(listed, values, "{}", name.get_name());
        }
    }

    /// Only the release build knows the URL of the binary.
    #[test]
    fn release_build_fills_in_its_own_url_and_digest() {
        let text = "get '@ADDRESS@'\necho '@SHA-256@'\n";
        let digest = || Ok(Some("00aa".to_owned()));
        let url = Some("https://example.org/gpu-bootstrap");
        let with =
            |text: &str, url, arch| with_release(text.to_owned(), url, arch, digest).unwrap();
        let other = match std::env::consts::ARCH {
            "aarch64" => "x86_64",
            _ => "arm64",
        };
        let filled = "get 'https://example.org/gpu-bootstrap'\necho '00aa'\n";
        assert_eq!(with(text, url, None), filled);
        assert_eq!(with(text, None, None), text);
        assert_eq!(with(text, url, Some(other)), text);
        // A URL without its digest is an error of the user.
        let own = text.replace("@ADDRESS@", "https://files.example.com/gpu-bootstrap");
        assert_eq!(with(&own, url, None), own);
    }
}
