//! Runs `kubeadm join`, and `kubeadm reset` after a failure or when the machine leaves.

mod tool;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};

pub use tool::{
    BOOTSTRAP_CONF, CA, KUBELET_CONF, KubeadmDiscovery, OF_CONTROL_PLANES, Registration, fault,
    join, join_configuration, reset,
};

use super::{
    Discovery, Given, Join, JoinMethod, Joining, Leave, Leaving, MethodRow, MethodTool, NodeRule,
    Wrongs,
};
use crate::{
    error::one_line,
    model::{paths, secret::Secret, token::TokenSource},
    runtimes::{RuntimeKind, choice::Cluster},
    tools::{
        kubelet,
        kubernetes::{
            kubeconfig,
            membership::Membership,
            skew,
            token::{NOT_BOOTSTRAP, is_bootstrap},
        },
    },
    work::{ChangeError, Hands, Reverted, Sink},
};

/// Marker file in the state directory that exists during a join. If it exists, the files of an incomplete join are ours.
pub(crate) const JOINING: &str = "joining";

/// The kubeadm configuration in the run directory, which exists while kubeadm is running.
pub(crate) const CONFIGURATION: &str = "kubeadm-join.yaml";

/// Directories that kubeadm creates, outermost first. `kubeadm reset` does not remove them.
const DIRECTORIES: [&str; 3] = ["/etc/kubernetes", "/etc/kubernetes/pki", "/var/lib/kubelet"];

pub(super) const ROW: MethodRow = MethodRow {
    keys: &[
        "version",
        "server",
        "token",
        "ca-cert-hashes",
        "discovery-file",
        "ignore-preflight-errors",
    ],
    runtimes: Cluster::OfMachine,
    node: NodeRule::OURS,
    has_packages: true,
    read,
};

fn read(given: &Given<'_>, wrong: &mut Wrongs) -> Option<JoinMethod> {
    let version = wrong.needed(
        "version",
        given.version,
        "set it to the Kubernetes version of the cluster, such as \"1.36\" (see `kubectl version`)",
    );
    let oldest = given.oldest;
    if version.is_some_and(|version| version.minor < oldest) {
        wrong.add::<()>(
            "version",
            &format!(
                "1.{oldest} is the oldest version of Kubernetes that gpu-bootstrap installs; older ones are end-of-life, and their \
                 repositories may keep an expired key"
            ),
            &format!("use a cluster of 1.{oldest} or newer, or `cluster.join = \"command\"`"),
        );
    }
    let usable =
        || RuntimeKind::of_kubelets().filter(|kind| kind.runtime().facts().is_configurable);
    let mut wanted = usable().filter(|kind| given.runtimes.contains(kind));
    let socket = match wanted.find_map(|kind| kind.runtime().facts().cri) {
        Some(socket) => Some(socket),
        None => {
            let titles: Vec<&str> = usable().map(|kind| kind.runtime().facts().title).collect();
            wrong.at(
                "runtime.use",
                &format!("the kubelet needs {}", titles.join(" or ")),
                &format!(
                    "add \"{}\" to `runtime.use`",
                    RuntimeKind::KUBELET_DEFAULT.name()
                ),
            )
        }
    };
    let discovery = discovery(given, wrong);
    let version = version?.to_string();
    if !ignores(&given.ignored, "SystemVerification") {
        let kernel = (given.kernel).and_then(|kernel| tool::with_kernel(&version, kernel));
        let needs_v2 = skew::with_cgroup_v1(&version);
        let hint = refusal_hint(kernel.is_some(), needs_v2.is_some());
        let cgroup = needs_v2.filter(|_| given.cgroup_v1);
        let reasons: Vec<String> = kernel.into_iter().chain(cgroup).collect();
        if !reasons.is_empty() {
            return wrong.add("version", &reasons.join("; "), &hint);
        }
    }
    Some(JoinMethod::Kubeadm {
        discovery: discovery?,
        socket: format!("unix://{}", socket?),
        ignore_preflight_errors: given.ignored.clone(),
    })
}

/// Returns the remedy if kubeadm does not support the kernel, or if the kubelet does not support cgroup v1. `needs_v2` is
/// whether the kubelet needs cgroup v2. `cluster.ignore-preflight-errors` disables both checks of kubeadm.
fn refusal_hint(is_kernel: bool, needs_v2: bool) -> String {
    const BOOT: &str = "boot with `systemd.unified_cgroup_hierarchy=1` in the kernel command line";
    const IGNORE: &str = "`cluster.ignore-preflight-errors = [\"SystemVerification\"]`";
    if !is_kernel {
        return format!(
            "{BOOT}, or set {IGNORE} if the kubelets of the cluster have `failCgroupV1: false`"
        );
    }
    let cgroup = match needs_v2 {
        true => format!(
            "; on a machine with cgroup v1, also {BOOT}, unless the cluster sets `failCgroupV1: false`"
        ),
        false => String::new(),
    };
    format!(
        "use an OS release with a newer kernel, or set {IGNORE} to join with a kernel that Kubernetes does not support{cgroup}"
    )
}

fn discovery(given: &Given<'_>, wrong: &mut Wrongs) -> Option<Discovery> {
    if let Some(file) = given.discovery_file {
        if given.server.is_some() || given.ca_cert_hashes.is_some() {
            return wrong.add(
                "discovery-file",
                "the file contains the API server and its CA, and so do `cluster.server` and \
                 `cluster.ca-cert-hashes`",
                "use only one of them",
            );
        }
        return Some(Discovery::File {
            path: file.to_owned(),
            token_source: given.token.cloned(),
        });
    }
    let server = wrong.needed(
        "server",
        given.server,
        "set it to `HOST:PORT` of the API server, or set `cluster.discovery-file`",
    );
    let server = server.and_then(|server| {
        let has_port = (server.rsplit_once(':'))
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if server.contains("://") || server.contains('/') || !has_port {
            return wrong.add(
                "server",
                "kubeadm requires `HOST:PORT` of the API server",
                "set it without `https://`, such as \"10.0.0.1:6443\"",
            );
        }
        Some(server)
    });
    let token_source = wrong.needed(
        "token",
        given.token,
        "set it to the location of the token, such as \"file:/etc/gpu-bootstrap/join-token\" (create one with \
             `kubeadm token create`)",
    );
    let hashes = wrong.needed(
        "ca-cert-hashes",
        given.ca_cert_hashes.as_ref(),
        "without it, any server could impersonate the cluster; `kubeadm token create \
         --print-join-command` prints the digest",
    );
    if hashes.is_some_and(Vec::is_empty) {
        return wrong.add(
            "ca-cert-hashes",
            "without a digest, any server could impersonate the cluster",
            "run `kubeadm token create --print-join-command` to print the digest",
        );
    }
    Some(Discovery::Token {
        server: server?.to_owned(),
        token_source: token_source?.clone(),
        ca_cert_hashes: hashes?.clone(),
    })
}

fn wrong_token(token: &str) -> Option<&'static str> {
    (!is_bootstrap(token)).then_some(NOT_BOOTSTRAP)
}

fn ignores(ignored: &[String], check: &str) -> bool {
    (ignored.iter()).any(|one| one.eq_ignore_ascii_case(check) || one.eq_ignore_ascii_case("all"))
}

/// Joins with kubeadm.
pub(super) struct ByKubeadm<'a> {
    pub discovery: &'a Discovery,
    pub socket: &'a str,
    pub ignored: &'a [String],
}

#[async_trait]
impl Joining for ByKubeadm<'_> {
    fn tool(&self) -> MethodTool<'_> {
        MethodTool {
            unit: Some(kubelet::UNIT),
            ..MethodTool::default()
        }
    }

    fn wrong_token(&self, token: &str) -> Option<&'static str> {
        wrong_token(token)
    }

    fn discovery_file(&self) -> Option<&Utf8Path> {
        match self.discovery {
            Discovery::File { path, .. } => Some(path),
            Discovery::Token { .. } => None,
        }
    }

    fn another(
        &self,
        membership: &Membership,
        _: Option<&str>,
        wanted: Option<&kubeconfig::Cluster>,
    ) -> Option<String> {
        let Membership { server, ca_pin, .. } = membership;
        match self.discovery {
            Discovery::Token {
                server: wanted,
                ca_cert_hashes,
                ..
            } => match ca_pin {
                Some(pin) if !ca_cert_hashes.contains(pin) => Some(format!(
                    "the digest of its CA key is {pin}, but the settings specify {}",
                    ca_cert_hashes.join(" or ")
                )),
                Some(_) => None,
                None => (server.trim_start_matches("https://") != wanted)
                    .then(|| format!("the settings specify {wanted}")),
            },
            Discovery::File { .. } => wanted.and_then(|wanted| {
                let differs = match (&wanted.ca_pin, ca_pin) {
                    (Some(wanted), Some(pin)) => wanted != pin,
                    _ => wanted.server != *server,
                };
                differs.then(|| format!("`cluster.discovery-file` contains {}", wanted.server))
            }),
        }
    }

    fn starts_kubelet(&self) -> bool {
        true
    }

    fn ignores(&self, check: &str) -> bool {
        ignores(self.ignored, check)
    }

    fn leaving(&self, hands: &Hands, _: &Join) -> Result<Leave, ChangeError> {
        Ok(Leave::Kubeadm {
            socket: self.socket.to_owned(),
            created_directories: hands.directories_of_kubeadm()?,
        })
    }

    async fn join(&self, hands: &Hands, join: &Join, sink: &dyn Sink) -> Result<(), ChangeError> {
        let settings = (self.discovery, self.socket, self.ignored);
        hands.join_by_kubeadm(join, settings, sink).await
    }
}

/// Leaves with `kubeadm reset`.
pub(super) struct Reset<'a> {
    pub socket: &'a str,
    pub directories: &'a [Utf8PathBuf],
}

#[async_trait]
impl Leaving for Reset<'_> {
    fn has_begun(&self, hands: &Hands) -> Result<bool, ChangeError> {
        hands.has_begun()
    }

    /// Removes the configuration, which contains the token, and, if the machine has joined, the marker file.
    async fn clear(&self, hands: &Hands, _: &dyn Sink) -> Result<(), ChangeError> {
        let files = &hands.host.files;
        let configuration = Utf8Path::new(paths::RUN).join(CONFIGURATION);
        if files.exists(&configuration)? {
            files.remove(&configuration)?;
        }
        let mark = hands.state.join(JOINING);
        if hands.joined_cluster()?.is_some() && files.exists(&mark)? {
            files.remove(&mark)?;
        }
        Ok(())
    }

    async fn leave(
        &self,
        hands: &Hands,
        _: bool,
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        (hands.leave_by_kubeadm((self.socket, self.directories), sink)).await
    }
}

impl Hands {
    /// Returns the kubeadm directories that do not exist yet.
    pub(crate) fn directories_of_kubeadm(&self) -> Result<Vec<Utf8PathBuf>, ChangeError> {
        let mut missing = Vec::new();
        for directory in DIRECTORIES {
            if !self.exists(directory)? {
                missing.push(directory.into());
            }
        }
        Ok(missing)
    }

    pub(crate) async fn join_by_kubeadm(
        &self,
        join: &Join,
        (discovery, socket, ignored): (&Discovery, &str, &[String]),
        sink: &dyn Sink,
    ) -> Result<(), ChangeError> {
        self.is_worker()?;
        let mark = self.state.join(JOINING);
        // kubeadm rejects files of an earlier join. They are from an interrupted attempt, because the join step has checked
        // that the machine is not a node. Only remove them if the attempt was ours.
        let found = self.left_of_a_join(ignored)?;
        if !found.is_empty() {
            if !self.host.files.exists(&mark)? {
                return Err(begun(&found));
            }
            sink.line(
                "an earlier attempt to join was interrupted, so `kubeadm reset` cleans up first",
            );
            self.reset(socket, sink).await?;
        }
        let registration = Registration {
            name: &join.node,
            socket,
            labels: &join.labels,
            taints: &join.taints,
            ignore_preflight_errors: ignored,
            timeout: join.timeout(),
        };
        let configuration = self.configuration(discovery, &registration).await?;
        let had_authority = self.exists(tool::CA)?;
        self.host.files.write(&mark, b"", 0o600)?;
        let cmd_of = |path: &Utf8Path| tool::join(path, join.timeout());
        let ran = self
            .with_secret_file(CONFIGURATION, &configuration, async |path| {
                self.exec(&cmd_of(path), sink).await
            })
            .await?;
        let (said, source) = match ran {
            Ok(output) if output.ok() => {
                self.host.files.remove(&mark)?;
                return Ok(());
            }
            Ok(output) => (
                format!("{}\n{}", output.stdout, output.stderr),
                output.failure(&cmd_of(Utf8Path::new(CONFIGURATION))),
            ),
            Err(error) => (error.to_string(), error),
        };
        let signed = matches!(discovery, Discovery::Token { .. });
        let fault = fault(&said, signed);
        let last_words = match &*fault.reason {
            "join-kubelet" => (self.words_of(kubelet::UNIT).await).map(|words| last_of(&words)),
            _ => None,
        };
        // kubeadm would reject these files at the next attempt.
        if self.has_begun()? || (!had_authority && self.exists(tool::CA)?) {
            match self.reset(socket, sink).await {
                Ok(()) => self.host.files.remove(&mark)?,
                // The next attempt cleans up. The first error takes precedence.
                Err(error) => sink.note(&format!("failed to {}", one_line(&error))),
            }
        } else {
            self.host.files.remove(&mark)?;
        }
        let what = format!("join the cluster: {}", fault.what);
        Err(ChangeError {
            hint: fault.hint.clone(),
            retryable: fault.retryable,
            ..ChangeError::new(&fault.reason, what)
                .telling(last_words)
                .caused_by(source)
        })
    }

    async fn configuration(
        &self,
        discovery: &Discovery,
        registration: &Registration<'_>,
    ) -> Result<Secret, ChangeError> {
        match discovery {
            Discovery::Token {
                server,
                token_source,
                ca_cert_hashes,
            } => {
                let token = self.bootstrap_token(token_source).await?;
                let found = KubeadmDiscovery::Token {
                    server,
                    token: &token,
                    ca_cert_hashes,
                };
                Ok(tool::join_configuration(&found, registration))
            }
            Discovery::File { path, token_source } => {
                let token = match token_source {
                    Some(source) => Some(self.bootstrap_token(source).await?),
                    None => None,
                };
                self.refuse_unusable(path)?;
                let found = KubeadmDiscovery::File {
                    path,
                    token: token.as_ref(),
                };
                Ok(tool::join_configuration(&found, registration))
            }
        }
    }

    async fn bootstrap_token(&self, source: &TokenSource) -> Result<Secret, ChangeError> {
        self.usable_token(source, wrong_token).await
    }

    /// Returns the existing files of an earlier join that kubeadm rejects, except those of ignored checks. Source:
    /// kubernetes/kubernetes 1.34, `cmd/kubeadm/app/preflight/checks.go`, `RunJoinNodeChecks`.
    fn left_of_a_join(&self, ignored: &[String]) -> Result<Vec<&'static str>, ChangeError> {
        let mut found = Vec::new();
        for path in [tool::KUBELET_CONF, tool::BOOTSTRAP_CONF, tool::CA] {
            let check = format!("fileavailable-{}", path.replace('/', "-"));
            let is_ignored = (ignored.iter())
                .any(|name| name.eq_ignore_ascii_case("all") || name.eq_ignore_ascii_case(&check));
            if !is_ignored && self.exists(path)? {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Returns `true` if kubeadm has started to join. The join may be incomplete.
    pub(crate) fn has_begun(&self) -> Result<bool, ChangeError> {
        Ok(self.exists(tool::BOOTSTRAP_CONF)? || self.exists(tool::KUBELET_CONF)?)
    }

    /// Rejects a machine that has or had a control plane, because `kubeadm reset` would delete its data.
    fn is_worker(&self) -> Result<(), ChangeError> {
        for mark in tool::OF_CONTROL_PLANES.map(Utf8Path::new) {
            let found = match mark.file_name() {
                Some("manifests") => (self.host.files.list(mark)?)
                    .into_iter()
                    .find(|name| name.ends_with(".yaml"))
                    .map(|name| mark.join(name)),
                _ => (self.host.files.exists(mark)?).then(|| mark.to_owned()),
            };
            if let Some(found) = found {
                return Err(ChangeError::new(
                    "control-plane",
                    format!("join the cluster: `{found}` exists, which is part of a control plane"),
                )
                .advice(
                    "gpu-bootstrap only prepares workers and never resets a control plane; run \
                     `kubeadm reset` yourself if the machine is no longer one",
                ));
            }
        }
        Ok(())
    }

    fn exists(&self, path: &str) -> Result<bool, ChangeError> {
        Ok(self.host.files.exists(Utf8Path::new(path))?)
    }

    async fn reset(&self, socket: &str, sink: &dyn Sink) -> Result<(), ChangeError> {
        let what = "leave the cluster with `kubeadm reset`";
        self.tool(what, &tool::reset(socket), sink).await.map(drop)
    }

    pub(crate) async fn leave_by_kubeadm(
        &self,
        (socket, directories): (&str, &[Utf8PathBuf]),
        sink: &dyn Sink,
    ) -> Result<Reverted, ChangeError> {
        self.is_worker()?;
        if !self.has_begun()? {
            return Ok(Reverted::nothing("the machine is no longer a node"));
        }
        self.reset(socket, sink).await?;
        for directory in directories.iter().rev() {
            self.host.files.remove_empty_directory(directory)?;
        }
        Ok(Reverted::done("the machine has left the cluster"))
    }
}

/// The error if another program has started to join, or if the kubelet has lost its certificate.
fn begun(found: &[&str]) -> ChangeError {
    let paths: Vec<String> = found.iter().map(|path| format!("`{path}`")).collect();
    let are = if paths.len() == 1 { "is" } else { "are" };
    let paths = paths.join(", ");
    ChangeError::new(
        "join-begun",
        format!("join the cluster: {paths} {are} left from an incomplete join"),
    )
    .advice(
        "if `/var/lib/kubelet` is on a separate disk, check that it is mounted. If a failed `kubeadm \
         join` left these files, or if the machine should leave that cluster, run `kubeadm reset`, \
         then run the command again",
    )
}

/// Returns the last lines of the kubelet, shortened. systemd lines about the unit are only included if there are no others,
/// because a kubelet that fails immediately is restarted repeatedly, which would push out its own lines.
fn last_of(words: &str) -> String {
    const LINES: usize = 5;
    const LETTERS: usize = 240;
    // `Started kubelet.service - kubelet: …`, or without the unit name before systemd 250.
    let is_systemds = |line: &&str| {
        let verbs = [
            "Starting ",
            "Started ",
            "Stopping ",
            "Stopped ",
            "Failed to start ",
        ];
        let rest = verbs.iter().find_map(|verb| line.strip_prefix(verb));
        line.starts_with("kubelet.service: ")
            || rest.is_some_and(|rest| rest.starts_with("kubelet"))
    };
    let mut lines: Vec<&str> = words.lines().collect();
    if !lines.iter().all(is_systemds) {
        lines.retain(|line| !is_systemds(line));
    }
    let last = &lines[lines.len().saturating_sub(LINES)..];
    let short = |line: &&str| match line.char_indices().nth(LETTERS) {
        Some((at, _)) => format!("{} …", &line[..at]),
        None => (*line).to_owned(),
    };
    last.iter().map(short).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::last_of;

    #[test]
    fn long_kubelet_lines_are_truncated() {
        let words = format!("1\n2\n3\n4\n5\n{}", "ü".repeat(300));
        let last = last_of(&words);
        assert_eq!(last.lines().count(), 5);
        assert!(last.starts_with("2\n") && last.ends_with("ü …"));
        assert_eq!(last_of("one"), "one");
    }

    #[test]
    fn kubelet_lines_take_precedence_over_systemd_lines() {
        let systemds = "kubelet.service: Failed with result 'exit-code'.\n\
                        Started kubelet: The Kubernetes Node Agent.\n\
                        kubelet.service: Scheduled restart job, restart counter is at 1.\n\
                        Stopped kubelet.service - kubelet: The Kubernetes Node Agent.\n\
                        Starting kubelet.service - kubelet: The Kubernetes Node Agent...";
        assert_eq!(last_of(&format!("its error\n{systemds}")), "its error");
        assert_eq!(last_of(systemds), systemds);
    }
}
