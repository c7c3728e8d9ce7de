//! Runs `kubeadm join`, and `kubeadm reset` after a failure or when the machine leaves.

use camino::{Utf8Path, Utf8PathBuf};

use super::Join;
use crate::work::{Hands, Problem, Reverted, Sink};
use crate::{
    error::one_line,
    model::{cluster::Discovery, secret::Secret, token::TokenSource},
    tools::{
        faults,
        kubernetes::kubeadm::{self, KubeadmDiscovery, Registration},
    },
};

/// Marker file in the state directory that exists during a join. It means that the files of an attempt are ours.
pub(crate) const JOINING: &str = "joining";

/// The kubeadm configuration in the run directory, which exists while kubeadm is running.
pub(crate) const CONFIGURATION: &str = "kubeadm-join.yaml";

/// Directories that kubeadm creates, outermost first. `kubeadm reset` does not remove them.
const FOLDERS: [&str; 3] = ["/etc/kubernetes", "/etc/kubernetes/pki", "/var/lib/kubelet"];

impl Hands {
    /// Returns the kubeadm directories that do not exist yet.
    pub(crate) fn folders_of_kubeadm(&self) -> Result<Vec<Utf8PathBuf>, Problem> {
        let mut missing = Vec::new();
        for folder in FOLDERS {
            if !self.exists(folder)? {
                missing.push(folder.into());
            }
        }
        Ok(missing)
    }

    pub(crate) async fn join_by_kubeadm(
        &self,
        join: &Join,
        (discovery, socket, ignored): (&Discovery, &str, &[String]),
        sink: &dyn Sink,
    ) -> Result<(), Problem> {
        self.is_worker()?;
        let mark = self.state.join(JOINING);
        // An interrupted attempt has left files that kubeadm rejects (its step has checked that the machine is not a node).
        // Files that we did not create are kept.
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
        let had_authority = self.exists(kubeadm::CA)?;
        self.host.files.write(&mark, b"", 0o600)?;
        let cmd_of = |path: &Utf8Path| kubeadm::join(path, join.timeout());
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
        let fault = faults::of_kubeadm(&said, signed);
        let last_words = match &*fault.reason {
            "join-kubelet" => (self.words_of(kubeadm::UNIT).await).map(|words| last_of(&words)),
            _ => None,
        };
        // The next attempt must be able to join.
        if self.has_begun()? || (!had_authority && self.exists(kubeadm::CA)?) {
            match self.reset(socket, sink).await {
                Ok(()) => self.host.files.remove(&mark)?,
                // The next attempt cleans up. The first error takes precedence.
                Err(error) => sink.note(&format!("failed to {}", one_line(&error))),
            }
        } else {
            self.host.files.remove(&mark)?;
        }
        let what = format!("join the cluster: {}", fault.what);
        Err(Problem {
            hint: fault.hint.clone(),
            passes: fault.passes,
            ..Problem::new(&fault.reason, what)
                .telling(last_words)
                .caused_by(source)
        })
    }

    async fn configuration(
        &self,
        discovery: &Discovery,
        registration: &Registration<'_>,
    ) -> Result<Secret, Problem> {
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
                Ok(kubeadm::join_configuration(&found, registration))
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
                Ok(kubeadm::join_configuration(&found, registration))
            }
        }
    }

    async fn bootstrap_token(&self, source: &TokenSource) -> Result<Secret, Problem> {
        let wrong = |token: &str| (!kubeadm::is_token(token)).then_some(kubeadm::NO_TOKEN);
        self.usable_token(source, wrong).await
    }

    /// The files that kubeadm creates and whose existence it rejects, except for ignored checks. Source: kubernetes/kubernetes
    /// 1.34, `cmd/kubeadm/app/preflight/checks.go`, `RunJoinNodeChecks`.
    fn left_of_a_join(&self, ignored: &[String]) -> Result<Vec<&'static str>, Problem> {
        let mut found = Vec::new();
        for path in [kubeadm::KUBELET_CONF, kubeadm::BOOTSTRAP_CONF, kubeadm::CA] {
            let check = format!("fileavailable-{}", path.replace('/', "-"));
            let is_ignored = (ignored.iter())
                .any(|name| name.eq_ignore_ascii_case("all") || name.eq_ignore_ascii_case(&check));
            if !is_ignored && self.exists(path)? {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Returns `true` if kubeadm has started to join and may be incomplete.
    pub(crate) fn has_begun(&self) -> Result<bool, Problem> {
        Ok(self.exists(kubeadm::BOOTSTRAP_CONF)? || self.exists(kubeadm::KUBELET_CONF)?)
    }

    /// Rejects a machine that has or had a control plane, because `kubeadm reset` would delete its data.
    fn is_worker(&self) -> Result<(), Problem> {
        for mark in kubeadm::OF_CONTROL_PLANES.map(Utf8Path::new) {
            let found = match mark.file_name() {
                Some("manifests") => (self.host.files.list(mark)?)
                    .into_iter()
                    .find(|name| name.ends_with(".yaml"))
                    .map(|name| mark.join(name)),
                _ => (self.host.files.exists(mark)?).then(|| mark.to_owned()),
            };
            if let Some(found) = found {
                return Err(Problem::new(
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

    fn exists(&self, path: &str) -> Result<bool, Problem> {
        Ok(self.host.files.exists(Utf8Path::new(path))?)
    }

    async fn reset(&self, socket: &str, sink: &dyn Sink) -> Result<(), Problem> {
        let what = "leave the cluster with `kubeadm reset`";
        self.tool(what, &kubeadm::reset(socket), sink)
            .await
            .map(drop)
    }

    pub(crate) async fn leave_by_kubeadm(
        &self,
        (socket, folders): (&str, &[Utf8PathBuf]),
        sink: &dyn Sink,
    ) -> Result<Reverted, Problem> {
        self.is_worker()?;
        if !self.has_begun()? {
            return Ok(Reverted::nothing("the machine is no longer a node"));
        }
        self.reset(socket, sink).await?;
        for folder in folders.iter().rev() {
            self.host.files.remove_empty_folder(folder)?;
        }
        Ok(Reverted::done("the machine has left the cluster"))
    }
}

/// The error if another program has started to join, or if the kubelet has lost its certificate.
fn begun(found: &[&str]) -> Problem {
    let paths: Vec<String> = found.iter().map(|path| format!("`{path}`")).collect();
    let are = if paths.len() == 1 { "is" } else { "are" };
    let paths = paths.join(", ");
    Problem::new(
        "join-begun",
        format!("join the cluster: {paths} {are} left from an incomplete join"),
    )
    .advice(
        "check whether a disk with `/var/lib/kubelet` is not mounted. If a failed `kubeadm join` \
         left these files, or if the machine should leave that cluster, run `kubeadm reset`, then \
         run the command again",
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
