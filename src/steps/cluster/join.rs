//! `cluster.join`: the machine is a node of the configured cluster. Runs after all preparation and validation,
//! because jobs fail on a GPU node that joins before its GPUs work.
//!
//! gpu-bootstrap does not install k3s, RKE2 or nodeadm: they must already be on the machine. It configures their server
//! and labels in a drop-in file, which contains no secret.

use camino::Utf8Path;

use super::{
    joined, name, no_cluster, place,
    restart_agent::{self, Outdated},
    skew, spec, wanted,
};
use crate::{
    change::{Change, Join},
    config::desired::{ClusterSpec, Desired},
    host::{ReadFiles, trusted::unusable_secret},
    joins::{Found, Lack},
    model::{
        kubernetes::{Labels, NodeName},
        token::TokenSource,
    },
    state::Membership,
    step::{Assessment, Cx, Step, StepError},
    steps::{
        CLUSTER_JOIN, CLUSTER_KERNEL, CLUSTER_PACKAGES, FABRIC_IMEX, HEADERS, PACKAGES_HOLD,
        RDMA_MODULES, TOOLKIT_PACKAGES, VALIDATION_COMPUTE, VALIDATION_CONTAINER,
        VALIDATION_DEVICES, configured_daemons,
    },
    tools::{
        kubelet,
        kubernetes::kubeconfig::{self, Cluster},
        systemctl::{self, UnitState},
    },
};

/// The `cluster.join` step.
pub(in crate::steps) fn step() -> Step {
    Step::new(CLUSTER_JOIN, |cx| Box::pin(assess(cx)))
        .after(configured_daemons())
        .after([
            HEADERS,
            PACKAGES_HOLD,
            FABRIC_IMEX,
            RDMA_MODULES,
            TOOLKIT_PACKAGES,
            VALIDATION_DEVICES,
            VALIDATION_CONTAINER,
            VALIDATION_COMPUTE,
            CLUSTER_KERNEL,
            CLUSTER_PACKAGES,
        ])
}

#[derive(Debug, Clone, Default)]
struct JoinState {
    membership: Option<Membership>,
    /// Whether `cluster.joined-file` exists, which the administrator's join command creates.
    has_joined_file: bool,
    node: Option<NodeName>,
    labels: Labels,
    /// The reason that the GPU labels are not known yet.
    unknown: Option<String>,
    /// Problems with the secret files.
    unusable: Vec<String>,
    /// The state of the unit that joins.
    unit: Option<UnitState>,
    /// Whether the unit state is unknown, e.g. with `--root`.
    is_unit_unknown: bool,
    /// Whether the unit does not start because a conflicting unit, which its file mentions, is enabled.
    is_kept_back: bool,
    /// Whether the program that joins and its directory exist.
    has_program: bool,
    /// The content of our configuration file for this program.
    config: Option<String>,
    /// The cluster in the discovery kubeconfig.
    wanted: Option<Cluster>,
    /// The agent, if it must be restarted.
    outdated: Option<Outdated>,
    /// Versions that the kubelet must support.
    versions: skew::Versions,
}

impl JoinState {
    /// Returns whether the machine has joined, according to the kubelet's kubeconfig or the joined-file.
    const fn is_node(&self) -> bool {
        self.membership.is_some() || self.has_joined_file
    }
}

async fn detect(cx: &Cx<'_>, spec: &ClusterSpec) -> Result<JoinState, StepError> {
    let files = cx.host.files();
    let mut state = JoinState {
        membership: joined(cx, spec).await?,
        node: name(cx, spec)?,
        ..JoinState::default()
    };
    let method = spec.method.implementation();
    if let Some(joined_file) = method.joined_file() {
        state.has_joined_file = files.exists(joined_file)?;
    }
    if cx.desired.image {
        return Ok(state);
    }
    // The access file must be safe as long as the machine is a node, because it may be used at any time. It may be missing:
    // our DaemonSet removes it at the end of each run, and writes it again before the next one.
    if let Some(access) = &spec.access
        && state.is_node()
        && files.exists(access)?
    {
        state.unusable.extend(unusable(files, access)?);
    }
    if state.has_joined_file {
        return Ok(state);
    }
    let tool = method.tool();
    if let Some(config) = tool.config {
        state.config = files.read_text(Utf8Path::new(config))?;
    }
    if let Some(unit) = tool.unit {
        state.unit = match cx.state.unit(unit).await {
            Ok(unit) => unit,
            Err(error) if error.not_queried().is_some() => {
                state.is_unit_unknown = true;
                None
            }
            Err(error) => return Err(error.into()),
        };
    }
    if state.membership.is_some() {
        if let Some(path) = method.discovery_file()
            && let Some(text) = files.read_text(path)?
        {
            let parsed = kubeconfig::parse(&text).map_err(|why| StepError::Unexpected {
                what: format!("`{path}`"),
                why,
            })?;
            state.wanted = Some(parsed);
        }
        state.outdated = restart_agent::detect(cx, spec).await?;
        return Ok(state);
    }
    let wanted = wanted(cx, spec).await;
    state.labels = place(&cx.facts.cloud);
    state.labels.extend(wanted.labels);
    state.unknown = wanted.unknown;
    let secrets = spec.method.secret_files();
    for path in secrets
        .into_iter()
        .map(|(path, _)| path)
        .chain(&spec.access)
    {
        state.unusable.extend(unusable(files, path)?);
    }
    // Detect an invalid token before the first change, because the join is one of the last ones.
    if let (Some(TokenSource::File(path)), true) =
        (spec.method.token_source(), state.unusable.is_empty())
        && let Some(text) = files.read_text(path)?
        && let Some(why) = method.wrong_token(text.trim())
    {
        state
            .unusable
            .push(format!("`{path}` cannot be used: {why}"));
    }
    if let Some(TokenSource::Credential(name)) = spec.method.token_source() {
        state.unusable.push(format!(
            "systemd credential `{name}` does not exist, neither for gpu-bootstrap nor for the machine"
        ));
    }
    state.has_program = true;
    for path in [tool.program, tool.directory].into_iter().flatten() {
        state.has_program &= files.exists(Utf8Path::new(path))?;
    }
    if let (Some(unit), Some(other)) = (tool.unit, tool.conflict) {
        state.is_kept_back = is_kept_back(cx, unit, other).await?;
    }
    state.versions = skew::detect(cx, spec).await?;
    Ok(state)
}

fn unusable_files(state: &JoinState) -> Assessment {
    Assessment::blocked(
        state.unusable.join("; "),
        "write each secret to a file with mode 0600 that root owns, in a directory that root owns, e.g. with `write_files` of \
             cloud-init. A credential may also be in `/etc/credstore`, where a run after a reboot finds it",
    )
}

/// Returns whether a unit does not start because the unit `other`, which its file mentions, is enabled.
async fn is_kept_back(cx: &Cx<'_>, unit: &str, other: &str) -> Result<bool, StepError> {
    let mut names_it = false;
    for directory in systemctl::DIRECTORIES {
        let text = cx
            .host
            .files()
            .read_text(&Utf8Path::new(directory).join(unit))?;
        names_it |= text.is_some_and(|text| text.contains(other));
    }
    if !names_it {
        return Ok(false);
    }
    match cx.state.unit(other).await {
        Ok(unit) => Ok(unit.is_some_and(|unit| unit.is_enabled())),
        Err(error) if error.not_queried().is_some() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the reason that a secret file cannot be used.
fn unusable(files: &dyn ReadFiles, path: &Utf8Path) -> Result<Option<String>, StepError> {
    let why = unusable_secret(files, path)?;
    Ok(why.map(|why| format!("`{path}` cannot be used: {why}")))
}

fn decide(state: &JoinState, desired: &Desired) -> Assessment {
    let Some(spec) = spec(desired) else {
        return no_cluster();
    };
    if desired.image {
        return Assessment::awaits_boot("an image does not join a cluster");
    }
    if state.is_node() && !state.unusable.is_empty() {
        return unusable_files(state);
    }
    if let Some(membership) = &state.membership {
        return of_member(state, membership, spec);
    }
    if state.has_joined_file {
        return Assessment::satisfied("`cluster.joined-file` exists");
    }
    if spec.method.implementation().is_joined_by_provider() {
        return Assessment::BlockedNow {
            why: "`cluster.join` is \"managed\", but the kubelet has no kubeconfig"
                .to_owned(),
            hint: "check if the agent of the provider has failed, or set `cluster.join` to a join method".to_owned(),
            retryable: Some(std::time::Duration::from_secs(spec.timeout_seconds)),
        };
    }
    if !state.unusable.is_empty() {
        return unusable_files(state);
    }
    let Some(node) = &state.node else {
        return Assessment::blocked(
            "the machine has no host name, which is the default node name",
            "set a host name, or `cluster.node-name`",
        );
    };
    let found = Found {
        has_unit: state.is_unit_unknown || state.unit.as_ref().is_some_and(UnitState::exists),
        has_program: state.has_program,
        conflicts: state.is_kept_back,
    };
    if let Some(Lack { why, hint }) = spec.method.implementation().missing(&found) {
        return Assessment::blocked(why, hint);
    }
    if let Some(refused) = skew::refused(spec, &state.versions) {
        return refused;
    }
    let changes = changes(state, spec, node);
    match &state.unknown {
        None => Assessment::needs("the machine has not joined a cluster", changes),
        Some(unknown) => Assessment::After {
            upstream: VALIDATION_DEVICES,
            why: format!("the machine has not joined a cluster; {unknown}"),
            expected: changes,
        },
    }
}

/// Assesses a machine that is already a node.
fn of_member(state: &JoinState, membership: &Membership, spec: &ClusterSpec) -> Assessment {
    let Membership {
        kubeconfig, server, ..
    } = membership;
    let is = format!("the machine is a node of the cluster at {server} (by `{kubeconfig}`)");
    let method = spec.method.implementation();
    let other = method.another(membership, state.config.as_deref(), state.wanted.as_ref());
    if let Some(other) = other {
        return Assessment::blocked(
            format!("{is}, which is not the configured one: {other}"),
            format!(
                "remove the machine from that cluster first (drain and delete its node; {}), or correct the settings in \
                 `[cluster]`",
                kubelet::RESET
            ),
        );
    }
    let mut why = is;
    let mut changes = Vec::new();
    let disabled = (state.unit.as_ref()).filter(|unit| unit.exists() && !unit.is_enabled());
    if let (Some(_), Some(unit)) = (disabled, method.tool().unit) {
        why = format!("{why}, but `{unit}` does not start at the next boot");
        changes.push(enable(unit));
    }
    if let Some(outdated) = &state.outdated {
        why = format!("{why}; {}", outdated.why());
        changes.extend(outdated.change());
    }
    match &state.outdated {
        _ if changes.is_empty() => Assessment::satisfied(why),
        Some(outdated) if !outdated.has_toolkit => Assessment::After {
            upstream: TOOLKIT_PACKAGES,
            why,
            expected: changes,
        },
        _ => Assessment::needs(why, changes),
    }
}

fn changes(state: &JoinState, spec: &ClusterSpec, node: &NodeName) -> Vec<Change> {
    let method = spec.method.implementation();
    let taints: Vec<_> = match method.registers_taints() {
        false => Vec::new(),
        true => (spec.node.taints.iter())
            .chain(&spec.node.startup_taints)
            .cloned()
            .collect(),
    };
    let mut changes = Vec::new();
    let written = method.our_file(node, &state.labels, &taints);
    if let Some((path, content)) = written
        && state.config.as_ref() != Some(&content)
    {
        changes.push(Change::WriteFile {
            path: path.into(),
            content,
            mode: 0o600,
            over: None,
        });
    }
    changes.push(Change::JoinCluster {
        join: Join {
            method: spec.method.clone(),
            node: node.clone(),
            labels: state.labels.clone(),
            taints,
            access: spec.access.clone(),
            timeout_seconds: spec.timeout_seconds,
        },
    });
    // Enabled only after the machine has joined. Otherwise an unvalidated machine would join at the next boot.
    let is_enabled = state.unit.as_ref().is_some_and(UnitState::is_enabled);
    if let (Some(unit), false) = (method.tool().unit, is_enabled) {
        changes.push(enable(unit));
    }
    changes
}

fn enable(unit: &str) -> Change {
    Change::EnableUnit {
        unit: unit.to_owned(),
        start: false,
    }
}

async fn assess(cx: &Cx<'_>) -> Result<Assessment, StepError> {
    let Some(spec) = spec(cx.desired) else {
        return Ok(no_cluster());
    };
    Ok(decide(&detect(cx, spec).await?, cx.desired))
}

#[cfg(test)]
pub(in crate::steps) mod fixtures {
    use crate::{
        config::desired::{ClusterSpec, Desired, Discovery, JoinMethod, NodeSpec},
        model::token::TokenSource,
        steps::{fixtures::desired, specs::fixtures::specs},
    };

    /// A CA digest.
    pub(in crate::steps) const PIN: &str =
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    pub(in crate::steps) fn with_kubeadm(ignored: &[&str]) -> Desired {
        with(JoinMethod::Kubeadm {
            discovery: Discovery::Token {
                server: "10.0.0.1:6443".to_owned(),
                token_source: TokenSource::File("/etc/gpu-bootstrap/join-token".into()),
                ca_cert_hashes: vec![PIN.to_owned()],
            },
            socket: "unix:///run/containerd/containerd.sock".to_owned(),
            ignore_preflight_errors: ignored.iter().map(ToString::to_string).collect(),
        })
    }

    pub(in crate::steps) fn with(method: JoinMethod) -> Desired {
        Desired {
            cluster: Some(ClusterSpec {
                packages: match method {
                    JoinMethod::Kubeadm { .. } => specs(&["kubelet=1.34.*", "kubeadm=1.34.*"]),
                    _ => vec![],
                },
                method,
                node: NodeSpec {
                    taints: vec![
                        "nvidia.com/gpu=present:NoSchedule"
                            .parse()
                            .expect("a taint"),
                    ],
                    startup_taints: vec!["starting:NoSchedule".parse().expect("a taint")],
                    ..NodeSpec::default()
                },
                access: None,
                timeout_seconds: 300,
            }),
            ..desired()
        }
    }
}

#[cfg(test)]
mod tests;
