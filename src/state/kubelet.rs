//! The container runtime of the kubelet. A machine can have several containerd instances: the instance of Docker or of the
//! Linux distribution, and the instance of a Kubernetes distribution, which may regenerate its configuration at each start.

use camino::Utf8Path;
use serde::{Deserialize, Serialize};

use super::{State, StateError};
use crate::{
    host::system::Process,
    runtimes::{ConfigFile, KubernetesDistribution, OWNERS, PROGRAMS, RuntimeKind},
    tools::{kubelet, toolkit},
};

/// The program name of the kubelet.
const KUBELET: &str = "kubelet";

/// The container runtime of the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct KubeletRuntime {
    /// `containerd` or `crio`, or the Kubernetes distribution that contains its containerd: `k3s`, `rke2`, `k0s`, `microk8s`.
    /// The socket path if the runtime is unknown.
    pub name: String,
    /// Its socket.
    pub socket: String,
    /// The source of this information, human-readable.
    pub known_by: String,
    /// Whether the kubelet, or the process that contains it, is running.
    pub runs: bool,
    /// Whether the nvidia runtime is configured in the containerd of a Kubernetes distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvidia: Option<bool>,
    /// A user-provided template of the containerd configuration that omits the nvidia runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

impl State {
    /// The path of the kubelet's configuration: the one in the command line of the running kubelet (images of clouds and snaps
    /// have their own), or the one of kubeadm.
    ///
    /// # Errors
    /// If the processes cannot be read.
    pub fn kubelet_config(&self) -> Result<String, StateError> {
        let processes = self.processes_of(&[KUBELET])?;
        let path = processes.iter().find_map(|(_, process)| {
            let path = kubelet::option(process.command.as_deref()?, "--config")?;
            path.starts_with('/').then(|| path.to_owned())
        });
        Ok(path.unwrap_or_else(|| kubelet::CONFIG.to_owned()))
    }

    /// The container runtime of the kubelet, or `None` if no kubelet is running or configured.
    ///
    /// # Errors
    /// If the machine's files cannot be read.
    pub fn kubelet_runtime(&self) -> Result<Option<KubeletRuntime>, StateError> {
        let files = &self.host.files;
        let mut present: Vec<&KubernetesDistribution> = Vec::new();
        for owner in &OWNERS {
            if files.stat(Utf8Path::new(owner.mark))?.is_some() {
                present.push(owner);
            }
        }
        let processes = self.processes_of(&PROGRAMS)?;
        let named = |names: &[&str]| {
            let one = (processes.iter()).find(|(name, _)| names.contains(&name.as_str()));
            one.map(|(_, process)| process)
        };
        let running = (OWNERS.iter()).find(|owner| named(owner.programs).is_some());
        let kubelet = named(&[KUBELET]);
        let found = |socket: &str, by: &str, runs| {
            // RKE2 and k3s use the same socket.
            let of_socket = |owner: &&&KubernetesDistribution| owner.socket == socket;
            let owner = (running.iter())
                .find(of_socket)
                .or_else(|| present.iter().find(of_socket));
            self.described(socket, by, runs, owner.copied())
        };
        let said = |process: &Process| {
            let command = process.command.as_deref().unwrap_or_default();
            kubelet::endpoint(command)
        };
        if let Some(socket) = kubelet.and_then(said) {
            return found(&socket, "the kubelet's command line", true).map(Some);
        }
        let config = self.kubelet_config()?;
        for path in [config.as_str(), kubelet::FLAGS] {
            let Some(text) = files.read_text(Utf8Path::new(path))? else {
                continue;
            };
            let socket = kubelet::socket_in(path, &text).map_err(|why| StateError::Unexpected {
                what: format!("`{path}`"),
                why,
            })?;
            if let Some(socket) = socket {
                return found(&socket, &format!("`{path}`"), kubelet.is_some()).map(Some);
            }
        }
        if let Some(owner) = running {
            let by = format!("the {} process", owner.name);
            return self
                .described(owner.socket, &by, true, Some(owner))
                .map(Some);
        }
        let default = RuntimeKind::KUBELET_DEFAULT.runtime().facts().cri;
        if let (Some(_), Some(socket)) = (&kubelet, default) {
            return found(socket, "the kubelet's default", true).map(Some);
        }
        match present.first() {
            None => Ok(None),
            Some(owner) => {
                let by = format!("`{}`", owner.mark);
                self.described(owner.socket, &by, false, Some(owner))
                    .map(Some)
            }
        }
    }

    fn described(
        &self,
        socket: &str,
        by: &str,
        runs: bool,
        owner: Option<&KubernetesDistribution>,
    ) -> Result<KubeletRuntime, StateError> {
        let name = match owner {
            Some(owner) => owner.name,
            None => RuntimeKind::of_socket(socket).map_or(socket, |kind| kind.name()),
        };
        let nvidia = owner.map(|owner| self.has_nvidia(owner)).transpose()?;
        Ok(KubeletRuntime {
            name: name.to_owned(),
            socket: socket.to_owned(),
            known_by: by.to_owned(),
            runs,
            nvidia,
            template: owner
                .map(|owner| self.template(owner))
                .transpose()?
                .flatten(),
        })
    }

    /// The configuration template of a Kubernetes distribution if it omits the nvidia runtime: it does not extend the built-in
    /// template, has no list of detected runtimes, and does not mention the nvidia runtime.
    fn template(&self, owner: &KubernetesDistribution) -> Result<Option<String>, StateError> {
        for path in owner.templates {
            // The first existing file is used.
            if let Some(text) = self.host.files.read_text(Utf8Path::new(path))? {
                let has = |words: &str| text.contains(words);
                let is_whole =
                    has("template \"base\"") || has("ExtraRuntimes") || toolkit::is_named_in(&text);
                return Ok((!is_whole).then(|| (*path).to_owned()));
            }
        }
        Ok(None)
    }

    /// Returns `true` if the nvidia runtime is in the configuration files of the containerd of a Kubernetes distribution.
    fn has_nvidia(&self, owner: &KubernetesDistribution) -> Result<bool, StateError> {
        let files = self.distribution_files(owner)?;
        let mut texts = files.iter().filter_map(|file| file.text.as_deref());
        Ok(texts.any(KubernetesDistribution::finds_nvidia_in))
    }

    /// The existing configuration files of the containerd of a Kubernetes distribution.
    ///
    /// # Errors
    /// If an existing file cannot be read.
    pub fn distribution_files(
        &self,
        owner: &KubernetesDistribution,
    ) -> Result<Vec<ConfigFile>, StateError> {
        let files = &self.host.files;
        let mut found = Vec::new();
        for path in owner.configs {
            let path = Utf8Path::new(path);
            let mut paths = Vec::new();
            match path.file_name() {
                Some("*.toml") => {
                    let directory = path.parent().unwrap_or(path);
                    for name in files.list(directory)? {
                        if name.ends_with(".toml") {
                            paths.push(directory.join(name));
                        }
                    }
                }
                _ => paths.push(path.to_owned()),
            }
            for path in paths {
                if let Some(text) = files.read_text(&path)? {
                    let text = Some(text);
                    found.push(ConfigFile { path, text });
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::KubeletRuntime;
    use crate::{
        host::fake::{self, Fakes},
        state::processes::tests::{Which, run, run_as},
        steps::fixtures::{facts, state_below_root},
    };

    const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
    const RKE2: &str = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml";

    fn process(fakes: &Fakes, pid: u32, name: &str, command: &str) {
        run_as(&fakes.files, (pid, name), Which::Own, command);
    }

    fn found(prepare: impl Fn(&Fakes)) -> Option<KubeletRuntime> {
        let (host, fakes) = fake::host();
        prepare(&fakes);
        let state = state_below_root(&host, facts());
        state.kubelet_runtime().expect("readable")
    }

    fn said(found: Option<KubeletRuntime>) -> String {
        found.map_or_else(
            || "none".to_owned(),
            |found| {
                let KubeletRuntime {
                    name,
                    socket,
                    known_by,
                    runs,
                    nvidia,
                    template,
                } = found;
                let template = template.map_or_else(String::new, |path| format!(" {path}"));
                format!("{name} {socket} by {known_by}, {runs} {nvidia:?}{template}")
            },
        )
    }

    #[test]
    fn kubelet_runtime_is_found_by_processes_and_files() {
        let nvidia = "[plugins.x.containerd.runtimes.\"nvidia\".options]\nBinaryName = \"/usr/bin/nvidia-container-runtime\"\n";
        assert_eq!(said(found(|_| {})), "none");
        assert_eq!(
            said(found(|fakes| process(
                fakes,
                7,
                "kubelet",
                "/usr/bin/kubelet --container-runtime-endpoint=unix:///run/containerd/containerd.sock --v=2"
            ))),
            "containerd /run/containerd/containerd.sock by the kubelet's command line, true None"
        );
        assert_eq!(
            said(found(|fakes| {
                process(
                    fakes,
                    7,
                    "kubelet",
                    "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml",
                );
                fakes.files.put(
                    "/var/lib/kubelet/config.yaml",
                    "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n",
                );
            })),
            "crio /var/run/crio/crio.sock by `/var/lib/kubelet/config.yaml`, true None"
        );
        assert_eq!(
            said(found(|fakes| {
                fakes.files.put(
                "/var/lib/kubelet/kubeadm-flags.env",
                "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint unix:///run/containerd/containerd.sock\"\n",
            )
            })),
            "containerd /run/containerd/containerd.sock by `/var/lib/kubelet/kubeadm-flags.env`, false None"
        );
        assert_eq!(
            said(found(|fakes| {
                process(fakes, 9, "k3s-agent", "/usr/local/bin/k3s agent");
                fakes
                    .files
                    .put(K3S, "version = 3\n# nvidia-container-runtime\n");
            })),
            "k3s /run/k3s/containerd/containerd.sock by the k3s process, true Some(false)"
        );
        assert_eq!(
            said(found(|fakes| fakes.files.put(K3S, nvidia))),
            "k3s /run/k3s/containerd/containerd.sock by `/var/lib/rancher/k3s/agent/etc/containerd`, false \
             Some(true)"
        );
        // Version 1 lines in a version 2 file (k3d-io/k3d issue 1108).
        for (plugin, known) in [("cri", false), ("'io.containerd.grpc.v1.cri'", true)] {
            let text = format!(
                "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.crun]\n{}",
                nvidia.replace("plugins.x", &format!("plugins.{plugin}"))
            );
            let found = found(|fakes| fakes.files.put(K3S, &*text));
            assert_eq!(found.and_then(|found| found.nvidia), Some(known), "{text}");
        }
        // k3s and RKE2 have the same socket, so the existing files determine the distribution.
        assert_eq!(
            said(found(|fakes| {
                let socket = "unix:///run/k3s/containerd/containerd.sock";
                let command = format!("kubelet --container-runtime-endpoint={socket}");
                process(fakes, 9, "kubelet", &command);
                fakes.files.put(RKE2, nvidia);
            })),
            "rke2 /run/k3s/containerd/containerd.sock by the kubelet's command line, true Some(true)"
        );
        assert_eq!(
            said(found(|fakes| {
                process(
                    fakes,
                    9,
                    "kubelet",
                    "/var/lib/k0s/bin/kubelet --container-runtime-endpoint=unix:///run/k0s/containerd.sock",
                );
                fakes.files.put("/var/lib/k0s/bin/containerd", "");
                fakes.files.put("/etc/k0s/containerd.d/nvidia.toml", nvidia);
            })),
            "k0s /run/k0s/containerd.sock by the kubelet's command line, true Some(true)"
        );
        assert_eq!(
            said(found(|fakes| {
                process(
                    fakes,
                    9,
                    "kubelite",
                    "/snap/microk8s/7/kubelite --kubelet-args-file=x",
                );
                fakes.files.put(
                    "/var/snap/microk8s/current/args/containerd-template.toml",
                    "version = 2\n",
                );
            })),
            "microk8s /var/snap/microk8s/common/run/containerd.sock by the microk8s process, true \
             Some(false)"
        );
    }

    #[test]
    fn template_without_the_nvidia_runtime_is_reported() {
        const DIRECTORY: &str = "/var/lib/rancher/k3s/agent/etc/containerd";
        let template = |files: &[(&str, &str)]| {
            let found = found(|fakes| {
                for (name, text) in files {
                    fakes.files.put(&format!("{DIRECTORY}/{name}"), *text);
                }
            });
            found.expect("k3s is installed").template
        };
        let path = |name: &str| Some(format!("{DIRECTORY}/{name}"));
        let (old, new) = ("config.toml.tmpl", "config-v3.toml.tmpl");
        let base = "{{ template \"base\" . }}\n[x]\n";
        assert_eq!(template(&[("config.toml", "version = 3\n")]), None);
        assert_eq!(template(&[(old, "version = 2\n")]), path(old));
        assert_eq!(template(&[(old, base)]), None);
        assert_eq!(
            template(&[(old, "{{ range $k, $v := .ExtraRuntimes }}\n")]),
            None
        );
        assert_eq!(
            template(&[(old, "BinaryName = \"/usr/bin/nvidia-container-runtime\"\n")]),
            None
        );
        // The newer template is used.
        assert_eq!(template(&[(old, base), (new, "version = 3\n")]), path(new));
    }

    /// If they were trusted, any user could make root configure a containerd and restart the k3s agent.
    #[test]
    fn command_lines_of_foreign_processes_are_ignored() {
        for which in [
            Which::OfUser(65534),
            Which::Contained("pid"),
            Which::Executing("/usr/bin/sudo"),
        ] {
            let found = found(|fakes| {
                let socket = "kubelet --container-runtime-endpoint=unix:///tmp/x.sock";
                run(&fakes.files, 7, which, socket);
                run(&fakes.files, 8, which, "/usr/local/bin/k3s agent");
            });
            assert_eq!(said(found), "none", "{which:?}");
        }
    }
}
