//! `user-data`: prints a template from `cloud-init/` with validated values.

mod values;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use self::values::{
    Values, check_agent, check_family, is_plain, named, of_kind, of_setting, usage, wrong,
};
use super::{
    Failure, args, compat,
    env::{Console, Env},
    forms::{self, Form, GpuPods, Provider, ValueKind},
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
    model::{
        document::{Document, DocumentError, Format, Setting},
        text::shell_word,
    },
};

/// The placeholder of the join token.
const TOKEN: &str = "@TOKEN@";

/// The comment in a template that has unfilled placeholders.
const SET_EACH: &str = "Set each `@VALUE@`. ";

/// The value of `cluster.token` in templates that write the token file.
const TOKEN_PLACE: &str = "\"file:/etc/gpu-bootstrap/join-token\"";

/// The setting that removes the cluster from a template, and its value.
const JOIN: &str = "cluster.join";
const NONE: &str = "none";

/// The lines that write the token file. They are removed if the token comes from another source.
const TOKEN_LINES: [&str; 2] = [
    "  - path: /etc/gpu-bootstrap/join-token\n    permissions: \"0600\"\n    content: \"@TOKEN@\"\n",
    "printf '%s\\n' '@TOKEN@' >/etc/gpu-bootstrap/join-token\n",
];

/// The URL of this binary, which the release build sets.
const RELEASE_URL: Option<&str> = option_env!("GPU_BOOTSTRAP_RELEASE_URL");

/// The placeholders of the URL and the SHA-256 of this binary.
const ADDRESS: &str = "@ADDRESS@";
const SHA256: &str = "@SHA-256@";

/// The forms of the pods that request a GPU: one with the image of gpu-bootstrap, one with a public image.
const TEST_POD: &str = "test-pod";
const NVIDIA_SMI_POD: &str = "nvidia-smi-pod";

/// The value for the registry with the image of gpu-bootstrap.
const REGISTRY: &str = "registry";

/// Removes the MIME part with this content type.
fn without_part(text: &str, content_type: &str) -> String {
    const PART: &str = "--gpu-bootstrap\nContent-Type: ";
    let is_other = |part: &&str| !part.starts_with(content_type);
    let parts: Vec<&str> = text.split(PART).filter(is_other).collect();
    parts.join(PART)
}

/// Removes the comments about other providers, each of which starts with `#   NAME: `. Their other lines are indented.
fn of_provider(text: &str, provider: &str) -> String {
    let mut is_of_other = false;
    let keep = |line: &&str| {
        let name = (line.strip_prefix("#   "))
            .and_then(|rest| rest.split_once(": "))
            .map(|(name, _)| name)
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_uppercase()));
        match name {
            Some(name) => is_of_other = !name.eq_ignore_ascii_case(provider),
            None if !line.starts_with("#    ") => is_of_other = false,
            None => {}
        }
        !is_of_other
    };
    text.split_inclusive('\n').filter(keep).collect()
}

/// Returns the given provider of a form.
fn provider(form: &'static Form, name: Option<&str>) -> Result<Option<&'static Provider>, Failure> {
    let Some(name) = name else {
        return Ok(None);
    };
    let own = |form: &'static Form| form.providers.iter().find(|one| one.name == name);
    let others = || {
        let forms = forms::all().iter().filter(|&form| own(form).is_some());
        let names: Vec<&str> = forms.map(|form| &*form.name).collect();
        usage(
            &format!(
                "read `--provider {name}`: only for `{}`",
                names.join("`, `")
            ),
            "omit the option",
        )
    };
    own(form).map(Some).ok_or_else(others)
}

pub(super) fn run(
    host: &Host,
    env: &Env,
    console: &mut Console<'_>,
    args: &args::UserDataArgs,
) -> Result<Exit, Failure> {
    let form = args.form;
    let provider = provider(form, args.provider.as_deref())?;
    let matrix = machine::matrix(host, env)?;
    let mut text = form.template.to_owned();
    if let Some(provider) = provider {
        text = of_provider(&text, &provider.name);
    }
    if let Some(content_type) = &form.without_part {
        text = without_part(&text, content_type);
    }
    // Each file is read once, because it may be a pipe.
    let files = settings_files(host, args)?;
    let given = given(&files, args)?;
    let values = checked_values(&matrix, form, args, &given)?;
    let arch = of_kind(form, &values, ValueKind::Architecture).map(|(_, arch)| arch);
    for row in &form.values {
        let Some(value) = values.get(&*row.name) else {
            continue;
        };
        text = match &row.insert {
            Some(insert) => {
                let line = insert.line.replace(&row.placeholder, value);
                text.replace(
                    &format!("\n{}\n", insert.after),
                    &format!("\n{}\n{line}\n", insert.after),
                )
            }
            None => filled_in(&text, &row.placeholder, value),
        };
    }
    let mut missing = Vec::new();
    let mut method = None;
    let is_outside =
        (given.values()).any(|(key, _, value)| key == JOIN && value.as_str() == Some(NONE));
    if let Some(os) = &form.os {
        let block = Block::of(&text, &form.settings_file);
        let template = block.settings(&text);
        let mut settings = Document::parse(Format::Toml, &template).map_err(invalid_template)?;
        if is_outside {
            let cluster = Setting {
                key: vec!["cluster".to_owned()],
                value: None,
            };
            settings.set(&cluster).map_err(invalid_template)?;
        }
        let template = settings.text();
        missing = placeholders(&settings.all(), "");
        let except: Vec<&str> = (form.values.iter())
            .filter_map(|row| row.setting.as_deref())
            .collect();
        let resolution = Trial {
            os: args.os.as_deref().unwrap_or(os),
            arch,
            template: &with_examples(&template),
            except: &except,
        }
        .check(env, &matrix, &files, &args.set)?;
        console.warn(&resolution.warnings);
        method = resolution.desired.cluster.map(|spec| spec.method);
        if let Some(agent) = (method.as_ref()).and_then(|one| one.implementation().agent()) {
            check_agent(form, &values, agent)?;
        }
        for (key, path, value) in given.values() {
            if except.contains(&key) {
                continue;
            }
            // Part of the template may be in a shell script.
            if value.to_string().contains('\n') {
                return Err(usage(
                    &format!("add `{key}` to the template: its value has several lines"),
                    "write a script in the image, and use its path as the value",
                ));
            }
            let setting = Setting {
                key: path.to_vec(),
                value: serde_json::to_value(value).ok(),
            };
            settings.set(&setting).map_err(|error| {
                let message = format!("add `{key}` to the template");
                Failure::caused(Exit::Usage, "user-data-value", &message, error, None)
            })?;
            missing.retain(|(own, _)| own != key);
        }
        let settings = settings.text();
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
        text = with_token(host, file, &text, method.as_ref(), &form.name)?;
    }
    text = with_release(text, RELEASE_URL, arch, || {
        let binary = host.files.read(&env.exe)?;
        Ok(binary.map(|binary| sha256(&binary)))
    })
    .map_err(|error| {
        let message = format!("failed to compute the SHA-256 of `{}`", env.exe);
        Failure::caused(Exit::Internal, "binary-unreadable", &message, error, None)
    })?;
    complete(form, &missing, &text)?;
    text = text.replace(SET_EACH, "");
    // Print without hiding secrets: the user requested the token, and placeholders in URLs look like credentials.
    print::text(console.out.openly(), &text)?;
    let gpu_pods = form.gpu_pods.filter(|_| !is_outside);
    let (title, commands) = next(form, gpu_pods, provider, &values);
    console.next(title, &commands);
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

/// The error for an invalid template.
fn invalid_template(error: DocumentError) -> Failure {
    let message = "failed to parse the settings of the template";
    Failure::caused(Exit::Internal, "template-invalid", message, error, None)
}

/// Returns the values of `--value` by name. Some can also be given as a setting.
fn checked_values(
    matrix: &Matrix,
    form: &'static Form,
    args: &args::UserDataArgs,
    given: &SettingSources,
) -> Result<Values, Failure> {
    let mut errors = Vec::new();
    let mut values = Values::new();
    for assignment in &args.value {
        match named(form, assignment) {
            Ok((name, value)) => {
                values.insert(name, value.to_owned());
            }
            Err(error) => errors.push(error),
        }
    }
    for row in &form.values {
        let (name, setting) = (&*row.name, row.setting.as_deref());
        let Some((key, _, set)) = given.values().find(|(key, ..)| Some(*key) == setting) else {
            continue;
        };
        if let Some(value) = values.get(name) {
            errors.push(usage(
                &format!("read `{key}` = {set}: `--value {name}={value}` is the same value"),
                "use only one of them",
            ));
            continue;
        }
        let value = of_setting(row, set.to_string().trim_matches('"'));
        match wrong(row, &value) {
            Some((why, hint)) => {
                let message = format!("read `{key}`: invalid value `{value}`: {why}");
                errors.push(usage(&message, &hint));
            }
            None => {
                values.insert(name, value);
            }
        }
    }
    errors.extend(check_family(matrix, form, &values).err());
    Failure::unless_none(errors)?;
    for row in &form.values {
        let Some(with) = row.only_with.as_deref() else {
            continue;
        };
        if values.contains_key(&*row.name) && !values.contains_key(with) {
            let message = format!("read `--value {}`: only with `--value {with}`", row.name);
            return Err(usage(&message, "add this value, or omit the option"));
        }
    }
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
    let is_left = |placeholder: &str| filled_in(&text, placeholder, "") != text;
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
    let text = filled_in(&text, ADDRESS, url);
    Ok(filled_in(&text, SHA256, &digest))
}

/// Rejects a template with a missing value, because the machine would fail at its first boot. `settings` are the settings that
/// still have placeholders, with examples.
fn complete(form: &Form, settings: &[(String, String)], text: &str) -> Result<(), Failure> {
    let is_left = |placeholder: &str| filled_in(text, placeholder, "") != text;
    let settings = settings.iter();
    let mut options: Vec<String> = settings
        .map(|(key, example)| format!("--set {key}={example}"))
        .collect();
    if is_left(TOKEN) {
        options.push("--token-file FILE".to_owned());
    }
    let mut source = String::new();
    for row in (form.values.iter()).filter(|row| is_left(&row.placeholder)) {
        options.push(format!("--value {}={}", row.name, row.example()));
        if let Some(command) = &row.printed_by {
            source = format!("; `{command}` prints them");
        }
    }
    if is_left(ADDRESS) {
        source += "; \"Put the binary on a server\" in docs/cloud-init.md describes the address";
    }
    let count = match options.len() {
        0 => return Ok(()),
        1 => "1 value is missing".to_owned(),
        count => format!("{count} values are missing"),
    };
    Err(usage(
        &format!("fill in the template: {count}"),
        &format!("add `{}`, with your values{source}", options.join(" ")),
    ))
}

/// The command that creates the runtime class. The GPU Operator also creates it.
const CREATE_RUNTIME_CLASS: &str = "echo '{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: \
                                    nvidia}' | kubectl apply -f -";

/// The command that installs the device plugin. Source: NVIDIA/k8s-device-plugin v0.20.0, README.md.
const DEVICE_PLUGIN: &str = "helm upgrade -i nvdp nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin \
                             --namespace nvidia-device-plugin --create-namespace --version 0.20.0";

/// The command that waits for a pod. A new node becomes ready in less time.
const WAIT_FOR_POD: &str = "kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=20m";

/// Returns the next commands with a title. For nodes of a Kubernetes cluster: the runtime class, the device plugin, and a pod that
/// tests it. For this pod: its result. For a machine outside a cluster: the state of the run.
fn next(
    form: &Form,
    gpu_pods: Option<GpuPods>,
    provider: Option<&Provider>,
    values: &Values,
) -> (&'static str, Vec<String>) {
    if let Some(pod) = &form.pod {
        let command = format!("{WAIT_FOR_POD} pod/{pod} && kubectl logs {pod}");
        return ("To see the result:", vec![command]);
    }
    let Some(gpu_pods) = gpu_pods else {
        let command = "gpu-bootstrap status --wait".to_owned();
        return ("On the machine, until the run has finished:", vec![command]);
    };
    let mut plugin = DEVICE_PLUGIN.to_owned();
    // Without this value, the cluster may have no image of gpu-bootstrap.
    let name = match values.contains_key(REGISTRY) {
        true => TEST_POD,
        false => NVIDIA_SMI_POD,
    };
    let mut pod = format!("gpu-bootstrap user-data {name}");
    let mut commands = Vec::new();
    if gpu_pods == GpuPods::RuntimeClass {
        commands.push(CREATE_RUNTIME_CLASS.to_owned());
    }
    if gpu_pods != GpuPods::DefaultRuntime {
        plugin += " --set runtimeClassName=nvidia";
        pod += " --value runtime-class=nvidia";
    }
    if let Some(options) = provider.and_then(|one| one.device_plugin_options.as_ref()) {
        plugin += &format!(" {options}");
    }
    let of_pod = forms::named(name).into_iter();
    let of_pod = of_pod.flat_map(|form| &form.values);
    for row in of_pod.filter(|row| row.insert.is_none()) {
        let value = values.get(&*row.name);
        let value = value.map_or(row.example(), String::as_str);
        pod += &format!(" --value {}={}", row.name, shell_word(value));
    }
    pod += " | kubectl apply -f -";
    commands.extend([plugin, pod]);
    ("When the node has joined, in the cluster:", commands)
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
    form: &str,
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
            &format!(
                "create the token with the command in the comments that `gpu-bootstrap user-data {form}` prints"
            ),
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
    fn of(text: &str, file: &str) -> Self {
        let name = text.find(file).expect("each template has settings");
        let opening = ["content: |\n", "<<'END'\n", &format!("{file}: |\n")];
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

/// The machine and the template for which the settings are checked.
struct Trial<'a> {
    os: &'a str,
    /// The architecture, with the names of the clouds.
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

/// Replaces each placeholder in the settings with the example that it contains, so that the settings can be checked.
fn with_examples(settings: &str) -> String {
    let digest = format!("sha256:{}", "0".repeat(64));
    settings.replace('@', "").replace("sha256:DIGEST", &digest)
}

/// Returns the settings with placeholders: the keys, and the values as examples.
fn placeholders(value: &Value, key: &str) -> Vec<(String, String)> {
    if let Value::Object(table) = value {
        let own = |(name, value): (&String, &Value)| match key {
            "" => placeholders(value, name),
            key => placeholders(value, &format!("{key}.{name}")),
        };
        return table.iter().flat_map(own).collect();
    }
    let text = value.to_string();
    match text.contains('@') {
        true => vec![(key.to_owned(), text.replace(['[', ']', '"', '@'], ""))],
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
