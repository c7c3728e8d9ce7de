//! Reads profile and configuration, and resolves them to the desired state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    compat::matrix::Matrix,
    config::{
        desired::{ClusterSpec, ConditionSpec, JoinMethod, RuntimeKind},
        error::{ConfigError, ResolveError},
        location::Location,
        lock::Lock,
        profile::Profile,
        resolve::{self, Flags, Inputs, Resolution},
        sources::SettingSources,
    },
    facts::Facts,
    host::{Files, ReadFiles, trusted::Trusted},
    joins::SecretKind,
    model::{
        environment,
        secret::{Secret, Secrets},
        token::TokenSource,
    },
    runtimes::{archive::ImageArchive, choice},
    state::bus,
    tools::kubernetes::{kubeconfig, membership},
};

/// The configuration from the command line and the environment.
#[derive(Debug, Clone, Default)]
pub struct SettingsRequest {
    pub profile: Option<String>,
    /// `--config`, in order.
    pub config: Vec<Utf8PathBuf>,
    /// The whole environment. Variables with our prefix, the proxy variables and `CREDENTIALS_DIRECTORY` are used.
    pub env: BTreeMap<String, String>,
    /// `--set`, in order.
    pub set: Vec<String>,
    /// Settings that are read and checked, but have no effect.
    pub except: Vec<String>,
    /// Settings that select the driver of a rollback, see [`SettingSources::only_driver`].
    pub driver: Vec<String>,
    /// The text of the lock file. A rollback ignores it.
    pub lock: Option<String>,
    /// Names and versions of the packages in the bundle of the run.
    pub bundled: Option<BTreeSet<(String, String)>>,
    /// The archives of images in the bundle of the run, by runtime and image.
    pub archives: Option<BTreeMap<(RuntimeKind, String), ImageArchive>>,
    /// The directory with the sources of the bundle of the run.
    pub bundle_sources: Option<Utf8PathBuf>,
    pub lock_timeout_seconds: Option<u64>,
    /// `--image` and `--assume-gpu`.
    pub flags: Flags,
    /// The runtimes that earlier runs prepared.
    pub our_runtimes: Vec<RuntimeKind>,
    /// The secrets of the run. Those of the configuration are added.
    pub secrets: Secrets,
    /// Whether root runs the command on this machine. The settings then control what root does, so files writable by non-root
    /// users are rejected.
    pub by_root: bool,
}

/// A request to resolve, and its machine. A rollback resolves again with the previous driver.
#[derive(Clone)]
pub struct Question {
    /// The configuration sources.
    pub ask: SettingsRequest,
    /// The files of the inspected machine.
    pub files: Arc<dyn Files>,
    /// The machine with the files of `--profile` and `--config`, usually the machine that runs the command.
    pub named: Arc<dyn Files>,
    /// The facts.
    pub facts: Arc<Facts>,
    /// The matrix of GPUs and drivers.
    pub matrix: Arc<Matrix>,
}

impl Question {
    /// Resolves the desired state.
    ///
    /// # Errors
    /// See [`load`].
    pub fn resolve(&self) -> Result<Resolution, ResolveError> {
        let (files, named) = (&*self.files, &*self.named);
        load(files, named, &self.ask, &self.facts, &self.matrix)
    }

    /// Resolves the desired state with these settings, which replace all other settings that select a driver.
    ///
    /// # Errors
    /// If the machine no longer supports the driver.
    pub fn with_driver(&self, settings: &[String]) -> Result<Resolution, ResolveError> {
        let mut other = self.clone();
        other.ask.driver = settings.to_vec();
        other.resolve()
    }
}

/// The default type of the node condition. Source: NVIDIA/gpu-operator PR 2573, which reads it.
const NODE_CONDITION: &str = "nvidia.com/GPUReady";

/// Reads profile and configuration and resolves them for a machine.
///
/// `files` is the inspected machine. `named` is the machine with the files of `--profile` and `--config`, usually the machine
/// that runs the command. They differ with `--root`.
///
/// # Errors
/// If the configuration is invalid (exit 3), or the machine does not support the desired state (exit 5).
pub fn load(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &SettingsRequest,
    facts: &Facts,
    matrix: &Matrix,
) -> Result<Resolution, ResolveError> {
    let mut layers = layers(files, named, ask)?;
    let lock = match &ask.lock {
        Some(text) if ask.driver.is_empty() => Some(Lock::parse("the lock file", text)?),
        _ => None,
    };
    let overridden = match &lock {
        Some(_) => overridden_by_lock(&layers),
        None => Vec::new(),
    };
    if let Some(lock) = &lock {
        lock.accepts(facts, ask.flags.image)?;
        if let Some(driver) = &lock.driver {
            layers.only_driver("--lock", &driver.settings())?;
        }
    }
    if !ask.driver.is_empty() {
        layers.only_driver("the previous driver", &ask.driver)?;
    }
    let (obeyed, named) = (
        Trusted::new(files, ask.by_root),
        Trusted::new(named, ask.by_root),
    );
    layers
        .secrets()
        .for_each(|secret| ask.secrets.learn(&secret));
    if let Some(seconds) = ask.lock_timeout_seconds {
        let value = format!("{seconds}s");
        layers.flag("--lock-timeout", "packages.lock-timeout", &value)?;
    }
    let choice = match &ask.profile {
        Some(asked) if Profile::is_path(asked) => {
            Profile::choose(Some(asked), facts.os.as_ref(), &named)?
        }
        asked => {
            let configured = layers.merged()?.profile.map(|profile| profile.to_string());
            let asked = asked.clone().or(configured);
            Profile::choose(asked.as_deref(), facts.os.as_ref(), &obeyed)?
        }
    };
    let backend = choice.profile.manager.backend();
    let mut sources = backend.entries(files).map_err(ConfigError::Sources)?;
    // Entries that we wrote are not the machine's original configuration.
    sources.retain(|entry| entry.binary && !entry.is_ours());
    let reserved = bus::reserved(files, &facts.gpus).map_err(ConfigError::Files)?;
    let mut resolution = resolve::resolve(Inputs {
        choice: &choice,
        layers: &layers,
        facts,
        matrix,
        sources: &sources,
        reserved: &reserved,
        // The join step reports a kubeconfig that cannot be read.
        is_node: !matches!(membership::read(files), Ok(None)),
        present: &choice::present(files, ask.our_runtimes.clone()).map_err(ConfigError::Files)?,
        flags: &ask.flags,
        is_rollback: !ask.driver.is_empty(),
    })?;
    (resolution.desired.packages.bundled).clone_from(&ask.bundle_sources);
    if let Some(lock) = &lock {
        lock.pin(&mut resolution.desired, facts)?;
        if let Some(locked) = &mut resolution.desired.packages.guard.lock {
            locked.bundled.clone_from(&ask.bundled);
        }
        let validation = &mut resolution.desired.validation;
        validation.archives = ask.archives.as_ref().map(|all| {
            (all.iter())
                .filter(|((_, image), _)| validation.image.as_ref() == Some(image))
                .map(|((runtime, _), archive)| (*runtime, archive.clone()))
                .collect()
        });
        let warnings = [
            lock.other_kernel(facts, ask.flags.image),
            lock.has_more(&resolution.desired),
            lock.lacks_fixes(matrix),
        ];
        resolution.warnings.extend(warnings.into_iter().flatten());
    }
    resolution.warnings.extend(overridden);
    if let Some(cluster) = &mut resolution.desired.cluster {
        resolve_credential(files, &ask.env, cluster);
        learn(files, cluster, &ask.secrets);
        // The journal stores the command for `uninstall`, so it must not contain a secret.
        if let JoinMethod::Command { leave_command, .. } = &cluster.method
            && leave_command.iter().any(|word| ask.secrets.are_in(word))
        {
            let why = "contains a secret from the settings or from a configured file, and the journal stores the \
                       command in plain text";
            let hint =
                "let the command read the value from its environment (`cluster.environment-file`)";
            let key = "cluster.leave-command";
            let wrong = ConfigError::Value {
                place: Box::new(layers.place(key).cloned().unwrap_or(Location::Profile)),
                key: key.to_owned(),
                value: "this value".to_owned(),
                why: why.to_owned(),
                hint: Some(hint.to_owned()),
            };
            return Err(wrong.into());
        }
    }
    Ok(resolution)
}

/// The settings that a lock file overrides.
const LOCKED: [&str; 7] = [
    "driver.branch",
    "driver.version",
    "driver.flavor",
    "driver.source",
    "driver.build",
    "driver.cuda",
    "toolkit.version",
];

/// Returns a warning for each flag that has no effect because of a lock file. In a file, such settings are normal, because the
/// nodes without a lock file use them.
fn overridden_by_lock(layers: &SettingSources) -> Vec<String> {
    let is_flag = |key: &&&str| matches!(layers.place(key), Some(Location::Flag { .. }));
    (LOCKED.iter().filter(is_flag))
        .map(|key| format!("`{key}` has no effect, because the lock file selects the versions"))
        .collect()
}

/// Returns whether the machine may be without a GPU. Also works if the desired state cannot be resolved.
///
/// # Errors
/// If the configuration is invalid.
pub fn is_gpu_optional(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &SettingsRequest,
) -> Result<bool, ConfigError> {
    let config = layers(files, named, ask)?.merged()?;
    Ok(config.is_gpu_optional())
}

/// Returns the configured node condition for `check` results. Also works if the desired state cannot be resolved.
///
/// # Errors
/// If the configuration is invalid.
pub fn node_condition(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &SettingsRequest,
) -> Result<ConditionSpec, ConfigError> {
    let config = layers(files, named, ask)?.merged()?.check;
    let kind = config.node_condition;
    Ok(ConditionSpec {
        kind: kind.map_or_else(|| NODE_CONDITION.to_owned(), |kind| kind.to_string()),
        meaning: config.node_condition_true.unwrap_or_default(),
    })
}

/// Returns all settings with their locations.
fn layers(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &SettingsRequest,
) -> Result<SettingSources, ConfigError> {
    let obeyed = Trusted::new(files, ask.by_root);
    let named = Trusted::new(named, ask.by_root);
    let mut layers = SettingSources::read(&obeyed, &named, &ask.config, &ask.env, &ask.set)?;
    layers.remove(&ask.except);
    Ok(layers)
}

/// Credential directories of systemd: credentials of the machine, and those stored by an administrator. Sources:
/// systemd.exec(5), `ImportCredential=`, and `docs/CREDENTIALS.md` of systemd.
const CREDENTIALS: [&str; 3] = [
    "/run/credentials/@system",
    "/etc/credstore",
    "/run/credstore",
];

/// Resolves a credential to its file. The credential directory of our unit has priority over those of the machine. A
/// missing credential keeps its name, and the step `cluster.join` reports it.
fn resolve_credential(
    files: &dyn ReadFiles,
    env: &BTreeMap<String, String>,
    cluster: &mut ClusterSpec,
) {
    let Some(source) = cluster.method.token_source_mut() else {
        return;
    };
    let TokenSource::Credential(name) = source else {
        return;
    };
    let own = env.get("CREDENTIALS_DIRECTORY").map(String::as_str);
    let found = (own
        .into_iter()
        .filter(|directory| directory.starts_with('/')))
    .chain(CREDENTIALS)
    .map(|directory| Utf8Path::new(directory).join(&*name))
    // Non-root users cannot look there, and never join a cluster.
    .find(|path| files.exists(path).unwrap_or(false));
    if let Some(path) = found {
        *source = TokenSource::File(path);
    }
}

/// Registers the secrets in configured files of the cluster settings, so that they are never printed. An unreadable
/// file cannot leak, and the step `cluster.join` reports it.
fn learn(files: &dyn ReadFiles, cluster: &ClusterSpec, secrets: &Secrets) {
    let access = (cluster.access.iter()).map(|path| (path, SecretKind::Kubeconfig));
    for (path, kind) in cluster.method.secret_files().into_iter().chain(access) {
        if let Ok(Some(text)) = files.read_text(path) {
            (secrets_in(&text, kind).iter()).for_each(|secret| secrets.learn(secret));
        }
    }
}

/// Returns the secrets in a file. An invalid file is not used by any step, and may be a secret as a whole.
fn secrets_in(text: &str, kind: SecretKind) -> Vec<Secret> {
    let all = || vec![Secret::new(text.trim())];
    match kind {
        SecretKind::Token => all(),
        SecretKind::Environment => match environment::parse(text) {
            Ok(variables) => (variables.into_iter())
                .map(|(_, value)| Secret::new(value))
                .collect(),
            Err(_) => all(),
        },
        SecretKind::Kubeconfig => kubeconfig::secrets(text).unwrap_or_else(|_| all()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::desired::{ConditionMeaning, NodeSpec},
        host::fake::FakeFiles,
        steps::fixtures::debian,
    };

    #[test]
    fn secrets_are_extracted_by_file_kind() {
        for (kind, text, found) in [
            (
                SecretKind::Token,
                "\nabcdef.0123456789abcdef\n",
                &["abcdef.0123456789abcdef"][..],
            ),
            (SecretKind::Token, "a=b\n", &["a=b"]),
            (SecretKind::Environment, "TOKEN=abc\n", &["abc"]),
            (
                SecretKind::Environment,
                "# cloud\nKEY=\"s3cret-1\"\nURL=https://a\n",
                &["s3cret-1", "https://a"],
            ),
            (SecretKind::Environment, "s3cret", &["s3cret"]),
            (
                SecretKind::Kubeconfig,
                "users: [{name: node, user: {token: ey.J}}]",
                &["ey.J"],
            ),
            (SecretKind::Kubeconfig, "users: [ey.J", &["users: [ey.J"]),
        ] {
            let secrets = secrets_in(text, kind);
            let secrets: Vec<&str> = secrets.iter().map(Secret::expose).collect();
            assert_eq!(secrets, found, "{text}");
        }
    }

    #[test]
    fn leave_command_must_not_contain_secrets() {
        let files = FakeFiles::new();
        files.put_mode("/etc/join.env", "TOKEN=s3cret-1\n", 0o600);
        let leave = |word: &str| {
            let ask = SettingsRequest {
                set: vec![
                    "cluster.join=command".to_owned(),
                    "cluster.command=[\"/usr/local/sbin/join\"]".to_owned(),
                    format!("cluster.leave-command=[\"/usr/local/sbin/leave\", \"{word}\"]"),
                    "cluster.environment-file=/etc/join.env".to_owned(),
                    "cluster.joined-file=/etc/joined".to_owned(),
                ],
                ..SettingsRequest::default()
            };
            let matrix = crate::steps::fixtures::matrix();
            load(&files, &files, &ask, &debian(), &matrix).map(|_| ())
        };
        leave("now").expect("no secret");
        let error = leave("--token=s3cret-1").expect_err("a secret").to_string();
        assert!(
            error.contains("`cluster.leave-command` cannot be this value")
                && !error.contains("s3cret-1"),
            "{error}"
        );
    }

    #[test]
    fn only_flags_are_reported_as_overridden_by_a_lock() {
        let mut layers = SettingSources::default();
        let file = "/etc/gpu-bootstrap/config.toml";
        layers
            .file(file, "[toolkit]\nversion = \"1.19.1\"\n")
            .expect("settings");
        layers.set("driver.branch=580").expect("a setting");
        layers.set("gpu=optional").expect("a setting");
        assert_eq!(
            overridden_by_lock(&layers),
            ["`driver.branch` has no effect, because the lock file selects the versions"]
        );
    }

    #[test]
    fn startup_taints_are_default_or_configured() {
        let files = FakeFiles::new();
        let startup = |set: &[&str]| {
            let mut all = vec![
                "cluster.join=managed".to_owned(),
                "cluster.kubeconfig-file=/k".to_owned(),
            ];
            all.extend(set.iter().map(|&one| one.to_owned()));
            let ask = SettingsRequest {
                set: all,
                ..SettingsRequest::default()
            };
            let matrix = crate::steps::fixtures::matrix();
            let loaded = load(&files, &files, &ask, &debian(), &matrix).expect("settings");
            let node = loaded.desired.cluster.expect("a cluster").node;
            let taints = node.startup_taints.iter().map(ToString::to_string);
            taints.collect::<Vec<_>>()
        };
        let by_default = startup(&[]);
        let [usual] = &by_default[..] else {
            panic!("{by_default:?}");
        };
        assert!(
            usual.starts_with("startup-taint.cluster-autoscaler"),
            "{usual}"
        );
        assert_eq!(startup(&["cluster.startup-taints=[]"]), [""; 0]);
        let own = [
            "skyhook.nvidia.com=runtime-required:NoSchedule",
            "example.com/starting:NoExecute",
        ];
        let set = format!("cluster.startup-taints={}", own.join(","));
        assert_eq!(startup(&[&set]), own);
    }

    #[test]
    fn metrics_and_condition_require_a_setting() {
        let files = FakeFiles::new();
        let ask = |set: &[&str]| SettingsRequest {
            set: set.iter().map(|&one| one.to_owned()).collect(),
            ..SettingsRequest::default()
        };
        let reports = |set: &[&str]| {
            let matrix = crate::steps::fixtures::matrix();
            let loaded = load(&files, &files, &ask(set), &debian(), &matrix).expect("settings");
            let spec = loaded.desired.reports?;
            Some((
                spec.metrics.map(|path| path.to_string()),
                spec.node_condition,
            ))
        };
        assert_eq!(reports(&["check.node-condition-true=problem"]), None);
        let metrics = Some("/srv/textfile/gpu_bootstrap.prom".to_owned());
        assert_eq!(
            reports(&["check.textfile=/srv/textfile"]),
            Some((metrics, false))
        );
        assert_eq!(
            reports(&["check.node-condition=example.com/GPUs"]),
            Some((None, true))
        );
        let condition = |set: &[&str]| {
            let spec = node_condition(&files, &files, &ask(set)).expect("settings");
            (spec.kind, spec.meaning)
        };
        assert_eq!(
            condition(&[]),
            ("nvidia.com/GPUReady".to_owned(), ConditionMeaning::Ready)
        );
        assert_eq!(
            condition(&[
                "check.node-condition=A",
                "check.node-condition-true=problem"
            ]),
            ("A".to_owned(), ConditionMeaning::Problem)
        );
        for wrong in ["Ready", "a b", "/x", "-x"] {
            let set = format!("check.node-condition={wrong}");
            node_condition(&files, &files, &ask(&[&set])).expect_err(wrong);
        }
    }

    #[test]
    fn dangling_settings_symlink_is_an_error() {
        let matrix = crate::steps::fixtures::matrix();
        for path in [
            "/etc/gpu-bootstrap/config.toml",
            "/etc/gpu-bootstrap/config.d",
            "/etc/gpu-bootstrap/config.d/50-site.toml",
        ] {
            let files = FakeFiles::new();
            files.put_link(path, "/mnt/settings");
            let loaded = load(
                &files,
                &files,
                &SettingsRequest::default(),
                &debian(),
                &matrix,
            )
            .map(|_| ());
            let error = loaded.expect_err("no settings").to_string();
            assert!(
                error.contains(&format!("`{path}`: dangling symlink to `/mnt/settings`")),
                "{error}"
            );
        }
    }

    #[test]
    fn editor_lock_file_is_ignored() {
        let matrix = crate::steps::fixtures::matrix();
        let files = FakeFiles::new();
        files.put_link(
            "/etc/gpu-bootstrap/config.d/.#50-site.toml",
            "root@node.412:1764",
        );
        load(
            &files,
            &files,
            &SettingsRequest::default(),
            &debian(),
            &matrix,
        )
        .expect("settings");
    }

    #[test]
    fn credential_file_of_unit_or_machine_is_found() {
        let files = FakeFiles::new();
        let env = BTreeMap::from([(
            "CREDENTIALS_DIRECTORY".to_owned(),
            "/run/credentials/gpu-bootstrap.service".to_owned(),
        )]);
        let resolved = |env: &BTreeMap<String, String>| {
            let mut cluster = ClusterSpec {
                method: JoinMethod::K3s {
                    server: "https://10.0.0.1:6443".to_owned(),
                    token_source: "credential:join-token".parse().expect("a place"),
                },
                node: NodeSpec::default(),
                packages: Vec::new(),
                access: None,
                timeout_seconds: 300,
            };
            resolve_credential(&files, env, &mut cluster);
            let secrets = Secrets::default();
            learn(&files, &cluster, &secrets);
            let source = cluster.method.token_source().map(ToString::to_string);
            (
                source.unwrap_or_default(),
                secrets.are_in("K10abc::server:x"),
            )
        };
        assert_eq!(resolved(&env), ("credential:join-token".to_owned(), false));
        for directory in [
            "/run/credstore",
            "/etc/credstore",
            "/run/credentials/@system",
            "/run/credentials/gpu-bootstrap.service",
        ] {
            let path = format!("{directory}/join-token");
            files.put(&path, "K10abc::server:x\n");
            assert_eq!(resolved(&env), (format!("file:{path}"), true));
        }
        // After a reboot, another unit continues the run, without this credential directory.
        let (source, _) = resolved(&BTreeMap::new());
        assert_eq!(source, "file:/run/credentials/@system/join-token");
    }

    #[test]
    fn secrets_in_cluster_files_are_registered() {
        let files = FakeFiles::new();
        files.put("/etc/join.env", "TOKEN=abc-123\n");
        files.put(
            "/etc/admin.conf",
            r#"{"users":[{"user":{"token":"ey.J-admin"}}]}"#,
        );
        let cluster = ClusterSpec {
            method: JoinMethod::Command {
                command: vec!["/usr/local/sbin/join".to_owned()],
                environment_file: Some("/etc/join.env".into()),
                joined_file: "/var/lib/joined".into(),
                leave_command: Vec::new(),
            },
            node: NodeSpec::default(),
            packages: Vec::new(),
            access: Some("/etc/admin.conf".into()),
            timeout_seconds: 300,
        };
        let secrets = Secrets::default();
        learn(&files, &cluster, &secrets);
        assert_eq!(
            secrets.hide("joined with abc-123, admitted with ey.J-admin"),
            "joined with ***, admitted with ***"
        );
    }
}
