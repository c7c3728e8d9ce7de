//! From the command line to the desired state: reads profile and configuration, then resolves.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use crate::{
    compat::matrix::Matrix,
    config::{
        desired::{ClusterWish, ConditionWish, JoinMethod, RuntimeKind},
        error::{ConfigError, ResolveError},
        layers::Layers,
        place::Place,
        profile::Profile,
        resolve::{self, Flags, Inputs, Resolution},
    },
    facts::Facts,
    host::{Files, ReadFiles, trusted::Trusted},
    joins::SecretKind,
    model::{
        environment,
        secret::{Secret, Secrets},
        token::TokenSource,
    },
    runtimes::choice,
    state::bus,
    tools::kubernetes::kubeconfig,
};

/// What was asked on the command line and in the environment.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    pub profile: Option<String>,
    /// `--config`, in order.
    pub config: Vec<Utf8PathBuf>,
    /// The whole environment; variables without our prefix are ignored.
    pub env: Vec<(String, String)>,
    /// `--set`, in order.
    pub set: Vec<String>,
    /// The driver that the machine goes back to, as settings: see [`Layers::only_driver`].
    pub driver: Vec<String>,
    pub lock_timeout_seconds: Option<u64>,
    /// `--image` and `--assume-gpu`.
    pub flags: Flags,
    /// The runtimes that earlier runs have prepared.
    pub our_runtimes: Vec<RuntimeKind>,
    /// What the run hides: secrets of the configuration are added.
    pub secrets: Secrets,
    /// Root obeys the files: those that others may write are refused.
    pub by_root: bool,
}

/// What is asked, and of which machine. The engine asks again with the driver before.
#[derive(Clone)]
pub struct Question {
    /// What was asked.
    pub ask: Ask,
    /// The files of the machine that is looked at.
    pub files: Arc<dyn Files>,
    /// The files of the machine that runs the command.
    pub named: Arc<dyn Files>,
    /// What cannot change.
    pub facts: Arc<Facts>,
    /// What is known about GPUs and drivers.
    pub matrix: Arc<Matrix>,
}

impl Question {
    /// What is wanted.
    ///
    /// # Errors
    /// See [`load`].
    pub fn resolve(&self) -> Result<Resolution, ResolveError> {
        let (files, named) = (&*self.files, &*self.named);
        load(files, named, &self.ask, &self.facts, &self.matrix)
    }

    /// What is wanted with the driver that these settings name, above all others.
    ///
    /// # Errors
    /// A driver that the machine cannot have any more.
    pub fn with_driver(&self, settings: &[String]) -> Result<Resolution, ResolveError> {
        let mut other = self.clone();
        other.ask.driver = settings.to_vec();
        other.resolve()
    }
}

/// The condition of a node whose settings name none. Source: NVIDIA/gpu-operator PR 2573, which reads one of this name.
const NODE_CONDITION: &str = "nvidia.com/GPUReady";

/// Reads profile and configuration and resolves them for a machine.
///
/// `files` are the files of the machine that is looked at; `named` are the files of the machine
/// that runs the command, where paths on its command line lie. They differ with `--root`.
///
/// # Errors
/// Configuration that is wrong (exit 3), or a machine that cannot be in the desired state (exit 5).
pub fn load(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &Ask,
    facts: &Facts,
    matrix: &Matrix,
) -> Result<Resolution, ResolveError> {
    let mut layers = layers(files, named, ask)?;
    if !ask.driver.is_empty() {
        layers.only_driver(&ask.driver)?;
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
    // What we wrote is not the machine's own configuration.
    sources.retain(|entry| entry.binary && !entry.is_ours());
    let reserved = bus::reserved(files, &facts.gpus).map_err(ConfigError::Files)?;
    let mut resolution = resolve::resolve(Inputs {
        choice: &choice,
        layers: &layers,
        facts,
        matrix,
        sources: &sources,
        reserved: &reserved,
        present: &choice::present(files, ask.our_runtimes.clone()).map_err(ConfigError::Files)?,
        flags: &ask.flags,
    })?;
    if let Some(cluster) = &mut resolution.desired.cluster {
        settle_credential(files, &ask.env, cluster);
        learn(files, cluster, &ask.secrets);
        // The journal keeps the command for the run that leaves.
        if let JoinMethod::Command { leave_command, .. } = &cluster.method
            && leave_command.iter().any(|word| ask.secrets.are_in(word))
        {
            let why = "a secret of the settings, or of a file that they name, stands in it, and the journal keeps the \
                       command as it is";
            let hint = "let the command read the value from its environment, which `cluster.environment-file` fills";
            let key = "cluster.leave-command";
            let wrong = ConfigError::Value {
                place: Box::new(layers.place(key).cloned().unwrap_or(Place::Profile)),
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

/// Whether the settings say that the machine may be without a GPU: also where nothing can be resolved for it.
///
/// # Errors
/// Configuration that is wrong.
pub fn is_gpu_optional(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &Ask,
) -> Result<bool, ConfigError> {
    let config = layers(files, named, ask)?.merged()?;
    Ok(config.is_gpu_optional())
}

/// The condition with which the node tells what `check` finds, as the settings name it: also where nothing can be resolved
/// for the machine.
///
/// # Errors
/// Configuration that is wrong.
pub fn node_condition(
    files: &dyn ReadFiles,
    named: &dyn ReadFiles,
    ask: &Ask,
) -> Result<ConditionWish, ConfigError> {
    let config = layers(files, named, ask)?.merged()?.check;
    let kind = config.node_condition;
    Ok(ConditionWish {
        kind: kind.map_or_else(|| NODE_CONDITION.to_owned(), |kind| kind.to_string()),
        meaning: config.node_condition_true.unwrap_or_default(),
    })
}

/// All settings with their places.
fn layers(files: &dyn ReadFiles, named: &dyn ReadFiles, ask: &Ask) -> Result<Layers, ConfigError> {
    let obeyed = Trusted::new(files, ask.by_root);
    let named = Trusted::new(named, ask.by_root);
    let env = ask.env.iter().cloned();
    Layers::read(&obeyed, &named, &ask.config, env, &ask.set)
}

/// Where systemd keeps credentials: what the machine got, and what an administrator stored. Sources: systemd.exec(5),
/// `ImportCredential=`, and systemd's `docs/CREDENTIALS.md`.
const CREDENTIALS: [&str; 3] = [
    "/run/credentials/@system",
    "/etc/credstore",
    "/run/credstore",
];

/// The file of a credential: that of our unit goes before those of the machine. One that is not there stays a name, and
/// the step `cluster.join` says so.
fn settle_credential(files: &dyn ReadFiles, env: &[(String, String)], cluster: &mut ClusterWish) {
    let Some(source) = cluster.method.token_source_mut() else {
        return;
    };
    let TokenSource::Credential(name) = source else {
        return;
    };
    let own = (env.iter()).find(|(variable, _)| variable == "CREDENTIALS_DIRECTORY");
    let own = own.map(|(_, folder)| folder.as_str());
    let found = (own.into_iter().filter(|folder| folder.starts_with('/')))
        .chain(CREDENTIALS)
        .map(|folder| Utf8Path::new(folder).join(&*name))
        // Others than root may not look there, and join nothing.
        .find(|path| files.exists(path).unwrap_or(false));
    if let Some(path) = found {
        *source = TokenSource::File(path);
    }
}

/// Learns the secrets in files that the cluster's settings name, so that nothing shows them. A file that cannot be
/// read has none that anybody could show, and the step `cluster.join` says so.
fn learn(files: &dyn ReadFiles, cluster: &ClusterWish, secrets: &Secrets) {
    let access = (cluster.access.iter()).map(|path| (path, SecretKind::Kubeconfig));
    for (path, kind) in cluster.method.secret_files().into_iter().chain(access) {
        if let Ok(Some(text)) = files.read_text(path) {
            (secrets_in(&text, kind).iter()).for_each(|secret| secrets.learn(secret));
        }
    }
}

/// What is secret in a file. One that is not of its kind is used by nothing, and may be a secret as a whole.
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
        config::desired::{ConditionMeaning, NodeWish},
        host::fake::FakeFiles,
        steps::fixtures::debian,
    };

    #[test]
    fn files_with_secrets_tell_them_by_their_kind() {
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
    fn a_command_that_the_journal_keeps_has_no_secret_of_its_environment() {
        let files = FakeFiles::new();
        files.put_mode("/etc/join.env", "TOKEN=s3cret-1\n", 0o600);
        let leave = |word: &str| {
            let ask = Ask {
                set: vec![
                    "cluster.join=command".to_owned(),
                    "cluster.command=[\"/usr/local/sbin/join\"]".to_owned(),
                    format!("cluster.leave-command=[\"/usr/local/sbin/leave\", \"{word}\"]"),
                    "cluster.environment-file=/etc/join.env".to_owned(),
                    "cluster.joined-file=/etc/joined".to_owned(),
                ],
                ..Ask::default()
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
    fn startup_taints_are_the_usual_one_or_those_that_the_settings_name() {
        let files = FakeFiles::new();
        let startup = |set: &[&str]| {
            let mut all = vec![
                "cluster.join=managed".to_owned(),
                "cluster.kubeconfig-file=/k".to_owned(),
            ];
            all.extend(set.iter().map(|&one| one.to_owned()));
            let ask = Ask {
                set: all,
                ..Ask::default()
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
    fn metrics_and_the_condition_are_there_only_if_a_setting_asks_for_them() {
        let files = FakeFiles::new();
        let ask = |set: &[&str]| Ask {
            set: set.iter().map(|&one| one.to_owned()).collect(),
            ..Ask::default()
        };
        let reports = |set: &[&str]| {
            let matrix = crate::steps::fixtures::matrix();
            let loaded = load(&files, &files, &ask(set), &debian(), &matrix).expect("settings");
            let wish = loaded.desired.reports?;
            Some((
                wish.metrics.map(|path| path.to_string()),
                wish.node_condition,
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
            let wish = node_condition(&files, &files, &ask(set)).expect("settings");
            (wish.kind, wish.meaning)
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
    fn a_link_that_leads_nowhere_is_no_absence_of_settings() {
        let matrix = crate::steps::fixtures::matrix();
        for path in [
            "/etc/gpu-bootstrap/config.toml",
            "/etc/gpu-bootstrap/config.d",
            "/etc/gpu-bootstrap/config.d/50-site.toml",
        ] {
            let files = FakeFiles::new();
            files.put_link(path, "/mnt/settings");
            let loaded = load(&files, &files, &Ask::default(), &debian(), &matrix).map(|_| ());
            let error = loaded.expect_err("no settings").to_string();
            assert!(
                error.contains(&format!("`{path}`: it is a link to `/mnt/settings`")),
                "{error}"
            );
        }
    }

    #[test]
    fn the_lock_of_an_editor_is_no_settings() {
        let matrix = crate::steps::fixtures::matrix();
        let files = FakeFiles::new();
        files.put_link(
            "/etc/gpu-bootstrap/config.d/.#50-site.toml",
            "root@node.412:1764",
        );
        load(&files, &files, &Ask::default(), &debian(), &matrix).expect("settings");
    }

    #[test]
    fn a_credential_is_a_file_of_the_unit_or_of_the_debian() {
        let files = FakeFiles::new();
        let env = [(
            "CREDENTIALS_DIRECTORY".to_owned(),
            "/run/credentials/gpu-bootstrap.service".to_owned(),
        )];
        let settled = |env: &[(String, String)]| {
            let mut cluster = ClusterWish {
                method: JoinMethod::K3s {
                    server: "https://10.0.0.1:6443".to_owned(),
                    token_source: "credential:join-token".parse().expect("a place"),
                },
                node: NodeWish::default(),
                packages: Vec::new(),
                access: None,
                timeout_seconds: 300,
            };
            settle_credential(&files, env, &mut cluster);
            let secrets = Secrets::default();
            learn(&files, &cluster, &secrets);
            let source = cluster.method.token_source().map(ToString::to_string);
            (
                source.unwrap_or_default(),
                secrets.are_in("K10abc::server:x"),
            )
        };
        assert_eq!(settled(&env), ("credential:join-token".to_owned(), false));
        for (folder, env) in [
            ("/run/credstore", &env[..]),
            ("/etc/credstore", &env),
            ("/run/credentials/@system", &env),
            ("/run/credentials/gpu-bootstrap.service", &env),
        ] {
            let path = format!("{folder}/join-token");
            files.put(&path, "K10abc::server:x\n");
            assert_eq!(settled(env), (format!("file:{path}"), true));
        }
        // As after a reboot, in another unit.
        let (source, _) = settled(&[]);
        assert_eq!(source, "file:/run/credentials/@system/join-token");
    }

    #[test]
    fn the_files_of_the_cluster_are_learned() {
        let files = FakeFiles::new();
        files.put("/etc/join.env", "TOKEN=abc-123\n");
        files.put(
            "/etc/admin.conf",
            r#"{"users":[{"user":{"token":"ey.J-admin"}}]}"#,
        );
        let cluster = ClusterWish {
            method: JoinMethod::Command {
                command: vec!["/usr/local/sbin/join".to_owned()],
                environment_file: Some("/etc/join.env".into()),
                joined_file: "/var/lib/joined".into(),
                leave_command: Vec::new(),
            },
            node: NodeWish::default(),
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
