//! The kubelet's container runtime, and whether the nvidia runtime is configured in it. gpu-bootstrap never writes a
//! configuration that a Kubernetes distribution regenerates at each start.

use camino::Utf8Path;

use super::{operator::ITS_RUNTIME, runtime_files};
use crate::{
    check::{Family, Finding, Subject, Verdict},
    config::desired::Desired,
    host::FileKind,
    model::{id::Id, text::shell_word},
    runtimes::{
        Config, KubernetesDistribution, OWNERS, RuntimeKind, cdi, choice,
        containerd::{self, CONFIG},
        program,
    },
    state::KubeletRuntime,
    step::StepError,
    tools::{systemctl, toolkit},
};

const RUNTIME: Id = Id::new("rt.kubelet.runtime");

/// The `rt.kubelet.runtime` check.
pub(super) const FAMILY: Family = Family {
    ids: || vec![RUNTIME],
    examine: |subject| Box::pin(examine(subject)),
};

fn decide(found: Option<&KubeletRuntime>, toolkit: bool, desired: Option<&Desired>) -> Finding {
    let finding = |status, why: String| Finding::new(RUNTIME, status, why);
    let Some(found) = found else {
        return finding(
            Verdict::Skip,
            "no kubelet is running or configured".to_owned(),
        );
    };
    let KubeletRuntime {
        name,
        socket,
        known_by,
        ..
    } = found;
    let observed = Some(format!("{name} ({socket})"));
    let with = |status, why: String, remedy: String| Finding {
        observed: observed.clone(),
        remedy: Some(remedy),
        ..finding(status, why)
    };
    let pass = |why: String| Finding {
        observed: observed.clone(),
        ..finding(Verdict::Pass, why)
    };
    if let Some(owner) = OWNERS.iter().find(|owner| owner.name == name) {
        let whose =
            format!("the kubelet uses the {name} containerd (`{socket}`, according to {known_by})");
        // A restart regenerates the configuration from the template.
        if let Some(template) =
            (found.template.as_deref()).filter(|_| toolkit && found.nvidia != Some(true))
        {
            return with(
                Verdict::Fail,
                format!(
                    "no GPUs for pods: the nvidia runtime is not in the template `{template}`; a restart of {name} does not \
                     add it"
                ),
                format!(
                    "replace the copied base template at the start of `{template}` with `{{{{ template \"base\" . }}}}`, or \
                     remove the file; then {}",
                    owner.remedy
                ),
            );
        }
        return match (found.nvidia, toolkit) {
            (Some(true), _) => pass(format!(
                "{whose}, which has an nvidia runtime; pods request it with a RuntimeClass unless it is the default"
            )),
            // A missing toolkit is reported by its own step.
            (_, false) => finding(
                Verdict::Skip,
                format!("{whose}; the container toolkit is not installed yet"),
            ),
            (_, true) if owner.detects && !found.runs => pass(format!(
                "{whose}, which detects the nvidia runtime when it starts"
            )),
            (_, true) => {
                let since = match owner.detects {
                    true => "it was not restarted after the container toolkit was installed",
                    false => "its configuration does not contain it",
                };
                with(
                    Verdict::Fail,
                    format!(
                        "no GPUs for pods: the {name} containerd has no nvidia runtime, because {since}"
                    ),
                    owner.remedy.to_owned(),
                )
            }
        };
    }
    // `runtime.use` must not contain a runtime that the join method configures, so such a runtime is wanted without an entry.
    let by_method = |desired: &Desired| {
        (desired.cluster.as_ref()).and_then(|spec| spec.method.implementation().configures())
    };
    let wanted = |kind| {
        desired.is_none_or(|desired| {
            desired.runtimes.iter().any(|spec| spec.kind == kind)
                || by_method(desired) == Some(kind)
        })
    };
    // No setting configures such a runtime. `lacks_runtime` evaluates its configuration.
    let by_administrator = |kind: RuntimeKind| {
        let has_other = desired.is_some_and(|desired| {
            let mut kinds = desired.runtimes.iter().map(|spec| spec.kind);
            by_method(desired).is_some() || kinds.any(|kind| kind.runtime().facts().cri.is_some())
        });
        !kind.runtime().facts().is_configurable && !has_other
    };
    match RuntimeKind::of_socket(socket) {
        Some(kind) if wanted(kind) || by_administrator(kind) => {
            pass(format!("{name} at `{socket}`, according to {known_by}"))
        }
        Some(kind) => with(
            Verdict::Warn,
            format!(
                "the kubelet uses {name} (`{socket}`, according to {known_by}), which is not in `runtime.use`, so \
                 pods get no GPUs"
            ),
            match choice::unsupported(kind) {
                None => format!("add \"{name}\" to `runtime.use` and run `gpu-bootstrap install`"),
                Some(fault) => fault.remedy,
            },
        ),
        None => with(
            Verdict::Warn,
            format!("the kubelet uses an unknown runtime (`{socket}`, according to {known_by})"),
            "configure its nvidia runtime manually".to_owned(),
        ),
    }
}

/// Returns the finding for a kubelet that uses containerd. No pod starts if the CRI plugin is disabled. If the daemon rejects
/// its configuration, another finding reports it.
fn serves(finding: Finding, found: &KubeletRuntime, refused: bool, enabled: bool) -> Finding {
    let KubeletRuntime { known_by, .. } = found;
    if refused {
        return Finding::new(
            RUNTIME,
            Verdict::Skip,
            "the kubelet uses containerd, whose configuration is invalid (`rt.containerd.files`)",
        );
    }
    if enabled {
        return finding;
    }
    Finding {
        observed: Some("`cri` in `disabled_plugins`".to_owned()),
        remedy: Some(format!(
            "run `sed -i 's/^ *disabled_plugins/#&/' {CONFIG} && systemctl restart containerd`, which comments out the line \
             `disabled_plugins`"
        )),
        ..Finding::new(
            RUNTIME,
            Verdict::Fail,
            format!(
                "no pod starts, because `{CONFIG}` disables the CRI plugin of containerd, which the kubelet uses ({known_by})"
            ),
        )
    }
}

/// Returns a finding if a toolkit is installed, but the kubelet's runtime has no nvidia runtime, hook or CDI specification
/// (NVIDIA/k8s-device-plugin issues 307 and 655, berops/claudie issue 1786). On a machine that gpu-bootstrap prepared, the step
/// of the runtime reports this instead, if there is one. Source of the pod label in the remedy: NVIDIA/gpu-operator,
/// `assets/state-container-toolkit/0500_daemonset.yaml`.
fn lacks_runtime(
    subject: &Subject<'_>,
    kind: RuntimeKind,
    cri: &Config,
    path: Option<&Utf8Path>,
) -> Result<Option<Finding>, StepError> {
    let files = subject.host.files();
    let has_nvidia = (cri.runtimes.iter()).any(|name| name.contains("nvidia"))
        || (cri.programs.values()).any(|program| toolkit::is_named_in(program));
    let (on_host, of_operator) = (
        files.exists(toolkit::RUNTIME.into())?,
        files.exists(ITS_RUNTIME.into())?,
    );
    if has_nvidia
        || !(on_host || of_operator)
        || (subject.prepared && kind.runtime().facts().is_configurable)
        || subject.facts.gpus.is_empty()
        || kind.runtime().has_hook(files)?
        || cdi::is_there(files)?
    {
        return Ok(None);
    }
    let (name, title) = (kind.name(), kind.runtime().facts().title);
    let (operator, remedy) = match on_host {
        true => (
            "",
            format!(
                "run `nvidia-ctk runtime configure --runtime={name} && systemctl restart {name}`; pods request it with a \
                 RuntimeClass, or get it by default with `--set-as-default`; if nodeadm generates the file at boot (EKS), \
                 set it in the NodeConfig (`spec.containerd.config`) instead"
            ),
        ),
        false => (
            "the toolkit of the GPU Operator is installed, but ",
            format!(
                "restart the toolkit pod of the operator on this node (`kubectl --namespace gpu-operator delete pod \
                 --selector app=nvidia-container-toolkit-daemonset --field-selector spec.nodeName=NODE`), which configures \
                 {title} again; if another program generates its configuration from a template, add the nvidia runtime to \
                 that template"
            ),
        ),
    };
    Ok(Some(Finding {
        observed: path.map(|path| format!("no nvidia runtime in `{path}`")),
        remedy: Some(remedy),
        // The runtime may be in a file that the daemon does not read.
        because: Some(runtime_files::id(kind)),
        ..Finding::new(
            RUNTIME,
            Verdict::Fail,
            format!(
                "no GPUs for pods: {operator}the kubelet's {title} has neither an nvidia runtime nor a CDI specification"
            ),
        )
    }))
}

/// Returns an error in the containerd files of a Kubernetes distribution that prevents pods from starting: the CRI plugin is
/// disabled, or the binary of the nvidia runtime does not exist. The GPU Operator copies the configuration of another
/// containerd of the machine into these files (NVIDIA/nvidia-container-toolkit issue 982 and pull request 1029). When the
/// operator is uninstalled, it removes its binaries.
fn of_distribution(
    subject: &Subject<'_>,
    owner: &KubernetesDistribution,
) -> Result<Option<Finding>, StepError> {
    let name = owner.name;
    let faulty =
        |why: String, remedy: String| Finding::new(RUNTIME, Verdict::Fail, why).with_remedy(remedy);
    for file in subject.state.distribution_files(owner)? {
        let path = &file.path;
        // Another check reports files with syntax errors.
        let text = file.text.as_deref().unwrap_or_default();
        let Ok(config) = containerd::parse_config(text) else {
            continue;
        };
        if !config.enabled {
            return Ok(Some(faulty(
                format!(
                    "no pod starts, because `{path}` disables the CRI plugin of the {name} containerd, which the kubelet uses"
                ),
                format!(
                    "remove everything except the nvidia runtime from `{path}`, especially `disabled_plugins`, and restart \
                     {name}; if the NVIDIA GPU Operator wrote the file, first set `RUNTIME_EXECUTABLE_PATH` of its toolkit to \
                     the {name} containerd"
                ),
            )));
        }
        for (runtime, program) in &config.programs {
            // The search path for a name without a directory is unknown.
            let is_lost = program.starts_with('/')
                && toolkit::is_named_in(program)
                && program::is_missing(subject.host.files(), program)?;
            if is_lost {
                return Ok(Some(faulty(
                    format!(
                        "pods with runtime `{runtime}` of the {name} containerd do not start, because its binary `{program}` \
                         (`{path}`) does not exist"
                    ),
                    format!(
                        "install `nvidia-container-toolkit` and set the binary of the runtime to `{}`: {}",
                        toolkit::RUNTIME,
                        owner.remedy
                    ),
                )));
            }
        }
    }
    Ok(None)
}

/// Returns the finding for a file of a Kubernetes distribution that only imports the nvidia runtime. k0s merges its files, but
/// not the files that they import (k0sproject/k0s issue 6547; `docs/runtime.md` of k0s: a file with the runtime is merged).
fn only_imports(
    subject: &Subject<'_>,
    owner: &KubernetesDistribution,
) -> Result<Option<Finding>, StepError> {
    let files = subject.host.files();
    let mut unit = None;
    for one in owner.units {
        if unit.is_none() && files.exists(&systemctl::own_file(one))? {
            unit = Some(one);
        }
    }
    let Some(unit) = unit else { return Ok(None) };
    // A file that is not in a drop-in directory is the whole configuration, and containerd reads its imports itself.
    let is_drop_in = |path: &Utf8Path| {
        (owner.configs.iter())
            .filter_map(|config| config.strip_suffix("/*.toml"))
            .any(|directory| path.parent() == Some(Utf8Path::new(directory)))
    };
    for file in subject.state.distribution_files(owner)? {
        let text = file.text.as_deref().unwrap_or_default();
        let imports = containerd::only_imports(text).filter(|_| is_drop_in(&file.path));
        let mut with_runtime = Vec::new();
        for pattern in imports.unwrap_or_default() {
            let directory = pattern.strip_suffix("/*.toml").map(Utf8Path::new);
            let Some(directory) = directory.filter(|directory| directory.is_absolute()) else {
                continue;
            };
            let stat = files.stat(directory)?;
            if !stat.is_some_and(|stat| stat.kind == FileKind::Directory) {
                continue;
            }
            for name in files.list(directory)? {
                if !name.ends_with(".toml") {
                    continue;
                }
                let from = directory.join(&name);
                let text = files.read_lossy(&from)?.unwrap_or_default();
                if containerd::parse_config(&text)
                    .is_ok_and(|config| config.runtimes.iter().any(|name| name.contains("nvidia")))
                {
                    with_runtime.push(from);
                }
            }
        }
        // A copy of one file must not lose the runtimes of another one.
        let [from] = with_runtime.as_slice() else {
            continue;
        };
        return Ok(Some(Finding {
            remedy: Some(format!(
                "run `cp {} {} && systemctl restart {unit}`, which may interrupt its pods: the file then contains the \
                 runtime instead of the import",
                shell_word(from),
                shell_word(&file.path)
            )),
            ..Finding::new(
                RUNTIME,
                Verdict::Fail,
                format!(
                    "no GPUs for pods: the {} containerd has no nvidia runtime, because `{}` only imports it; {} \
                     does not merge imported files",
                    owner.name, file.path, owner.name
                ),
            )
        }));
    }
    Ok(None)
}

/// Returns the finding for a toolkit that is not on the `PATH` of a Kubernetes distribution, which searches for it only there
/// and in `/usr/local/nvidia/toolkit`. Images with a read-only `/usr` install it in `/opt` (k3s-io/k3s issue 10761).
fn out_of_sight(
    subject: &Subject<'_>,
    owner: &KubernetesDistribution,
) -> Result<Option<Finding>, StepError> {
    let files = subject.host.files();
    for name in files.list("/opt".into())? {
        for below in ["usr/bin", "bin"] {
            let directory = format!("/opt/{name}/{below}");
            // The remedy writes the name into a file that a shell or systemd parses.
            if shell_word(&directory) != directory {
                continue;
            }
            if !files.exists(
                format!("{directory}/{}", toolkit::RUNTIME_NAME)
                    .as_str()
                    .into(),
            )? {
                continue;
            }
            let unit = format!("{}-agent", owner.name);
            return Ok(Some(Finding {
                remedy: Some(format!(
                    "run `echo PATH={directory}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin >>/etc/default/{unit} \
                     && systemctl restart {unit}` (on a server: its unit instead of `{unit}`); a restart alone does not help"
                )),
                ..Finding::new(
                    RUNTIME,
                    Verdict::Fail,
                    format!(
                        "no GPUs for pods: {} has no nvidia runtime, because its agent does not search `{directory}`",
                        owner.name
                    ),
                )
            }));
        }
    }
    Ok(None)
}

async fn examine(subject: &Subject<'_>) -> Result<Vec<Finding>, StepError> {
    let found = subject.state.kubelet_runtime()?;
    // k3s and RKE2 detect the toolkit when they start.
    let toolkit = subject.host.files().exists(toolkit::RUNTIME.into())?;
    let finding = decide(found.as_ref(), toolkit, subject.desired);
    let owner = found
        .as_ref()
        .and_then(|found| OWNERS.iter().find(|owner| owner.name == found.name));
    if let Some(owner) = owner {
        let lost = match &found {
            Some(found) if owner.detects && !toolkit && found.nvidia != Some(true) => {
                out_of_sight(subject, owner)?
            }
            Some(found) if !owner.detects && found.nvidia != Some(true) => {
                only_imports(subject, owner)?
            }
            _ => None,
        };
        let finding = lost.unwrap_or(finding);
        return Ok(vec![of_distribution(subject, owner)?.unwrap_or(finding)]);
    }
    let named =
        |one: &KubeletRuntime| RuntimeKind::of_kubelets().find(|kind| kind.name() == one.name);
    let (Some(found), Some(kind)) = (&found, found.as_ref().and_then(named)) else {
        return Ok(vec![finding]);
    };
    let report = subject.state.report(kind).await?;
    let refused = (report.as_ref()).is_some_and(|report| report.refuses());
    let view = subject.state.runtime(kind).await?;
    // If the runtime rejects its configuration, `rt.containerd.files` or `rt.crio.files` reports the error.
    let cri = view.config().filter(|_| !refused);
    let path = view.files.first().map(|file| file.path.as_path());
    let finding = match cri {
        Some(cri) if cri.serves_pods && finding.status == Verdict::Pass => {
            lacks_runtime(subject, kind, cri, path)?.unwrap_or(finding)
        }
        _ => finding,
    };
    Ok(vec![match kind {
        RuntimeKind::Containerd => {
            let enabled = cri.is_none_or(|cri| cri.serves_pods);
            serves(finding, found, refused, enabled)
        }
        _ => finding,
    }])
}

#[cfg(test)]
mod tests {
    use super::{RuntimeKind, decide, examine};
    use crate::{
        check::{Finding, Subject, Verdict},
        config::desired::{ClusterSpec, JoinMethod, NodeSpec},
        host::{ExecError, fake},
        model::id::Id,
        state::KubeletRuntime,
        steps::fixtures::{desired, facts, matrix, state_below_root},
    };

    /// Returns the finding for a tree with these files.
    async fn examined(files: &[(&str, &str)]) -> Finding {
        examined_if(false, files).await
    }

    async fn examined_if(prepared: bool, files: &[(&str, &str)]) -> Finding {
        let (host, fakes) = fake::host();
        for program in ["containerd", "crio"] {
            fakes.exec.on_result(program, |cmd, _| {
                Err(ExecError::NotQueried {
                    command: cmd.line(),
                    why: "a tree".to_owned(),
                })
            });
        }
        for (path, text) in files {
            fakes.files.put(path, *text);
        }
        let (facts, matrix) = (facts(), matrix());
        let state = state_below_root(&host, facts.clone());
        let subject = Subject {
            host: host.reader(),
            facts: &facts,
            state: &state,
            matrix: &matrix,
            desired: None,
            prepared,
        };
        let found = examine(&subject).await.expect("readable");
        found.into_iter().next().expect("one")
    }

    #[tokio::test]
    async fn distribution_containerd_files_are_checked() {
        const PROGRAM: &str = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
        let options = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]";
        let right = format!("version = 2\n{options}\nBinaryName = '{PROGRAM}'\n");
        let off = format!("disabled_plugins = ['cri']\n{right}");
        for (text, program, status, words) in rows! {
            &right, PROGRAM, Verdict::Pass, "has an nvidia runtime";
            &right, "/usr/bin/bash", Verdict::Fail, "does not exist";
            &off, PROGRAM, Verdict::Fail, "no pod starts";
        } {
            let finding = examined(&[
                ("/var/lib/k0s/bin/containerd", ""),
                ("/etc/k0s/containerd.d/nvidia.toml", text),
                ("/usr/bin/runc", ""),
                (program, ""),
            ])
            .await;
            assert_eq!(finding.status, status, "{}", finding.why);
            assert!(finding.why.contains(words), "{}", finding.why);
        }
    }

    #[tokio::test]
    async fn containerd_without_nvidia_runtime_or_cdi_fails() {
        let named = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n\
                     runtime_type = 'io.containerd.runc.v2'\n";
        for (path, text, status) in rows! {
            "/etc/containerd/config.toml", "version = 2\n", Verdict::Fail;
            "/etc/containerd/config.toml", named, Verdict::Pass;
            "/var/run/cdi/nvidia.yaml", "", Verdict::Pass;
        } {
            let finding = examined(&[
                ("/usr/bin/containerd", ""),
                ("/usr/bin/nvidia-container-runtime", ""),
                (
                    "/var/lib/kubelet/config.yaml",
                    "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
                ),
                (path, text),
            ])
            .await;
            assert_eq!(finding.status, status, "{}", finding.why);
            let because = finding.because.as_ref().map(Id::as_str);
            let is_bad = status == Verdict::Fail;
            assert_eq!(because, is_bad.then_some("rt.containerd.files"));
        }
    }

    #[tokio::test]
    async fn runtime_of_the_kubelet_without_nvidia_runtime_fails() {
        let host = "/usr/bin/nvidia-container-runtime";
        let operator = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
        let config = "/etc/crio/crio.conf.d/10-crio.conf";
        let plain = "[crio.runtime.runtimes.crun]\nruntime_path = '/usr/bin/crun'\n";
        let named =
            "[crio.runtime.runtimes.nvidia]\nruntime_path = '/usr/bin/nvidia-container-runtime'\n";
        let hook = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json";
        let (crio, containerd) = ("crio", "containerd");
        for (runtime, toolkit, path, text, status, words) in rows! {
            crio, host, config, plain, Verdict::Fail, "nvidia-ctk runtime configure --runtime=crio";
            crio, host, config, named, Verdict::Pass, "";
            crio, host, hook, "", Verdict::Pass, "";
            crio, "/etc/none", config, plain, Verdict::Pass, "";
            crio, operator, config, plain, Verdict::Fail, "restart the toolkit pod";
            containerd, operator, "/etc/containerd/config.toml", "version = 2\n", Verdict::Fail, "restart the toolkit pod";
        } {
            let kubelet =
                format!("containerRuntimeEndpoint: unix:///run/{runtime}/{runtime}.sock\n");
            let program = format!("/usr/bin/{runtime}");
            let files = [
                (program.as_str(), ""),
                (toolkit, ""),
                ("/var/lib/kubelet/config.yaml", kubelet.as_str()),
                (path, text),
            ];
            // `install` does not configure CRI-O, so no step reports it on a machine that `install` prepared.
            for prepared in [false, runtime == crio] {
                let finding = examined_if(prepared, &files).await;
                assert_eq!(finding.status, status, "{}", finding.why);
                let remedy = finding.remedy.unwrap_or_default();
                assert!(remedy.contains(words), "{remedy}");
            }
        }
    }

    #[tokio::test]
    async fn remedy_replaces_file_that_only_imports_the_runtime() {
        let runtime =
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n";
        let import = "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n";
        for (unit, text, words) in [
            (
                "k0sworker",
                runtime,
                "run `cp '/etc/containerd/conf.d/a b.toml' /etc/k0s/containerd.d/nvidia.toml && systemctl restart k0sworker.service`",
            ),
            ("k0sworker", "version = 2\n", "add the runtime"),
            ("other", runtime, "add the runtime"),
        ] {
            let finding = examined(&[
                ("/var/lib/k0s/bin/containerd", ""),
                ("/etc/k0s/containerd.d/nvidia.toml", import),
                ("/etc/containerd/conf.d/a b.toml", text),
                ("/usr/bin/nvidia-container-runtime", ""),
                (&format!("/etc/systemd/system/{unit}.service"), ""),
            ])
            .await;
            assert_eq!(finding.status, Verdict::Fail, "{}", finding.why);
            let remedy = finding.remedy.unwrap_or_default();
            assert!(remedy.starts_with(words), "{remedy}");
        }
    }

    #[tokio::test]
    async fn toolkit_in_opt_is_reported_for_rke2() {
        let directory = "/opt/nvidia-container-toolkit/usr/bin";
        let config = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml";
        let finding = examined(&[
            (config, "version = 2\n"),
            (&format!("{directory}/nvidia-container-runtime"), ""),
        ])
        .await;
        assert_eq!(finding.status, Verdict::Fail, "{}", finding.why);
        assert!(finding.why.contains(directory), "{}", finding.why);
        let remedy = finding.remedy.unwrap();
        assert!(
            remedy.starts_with(&format!("run `echo PATH={directory}:")),
            "{remedy}"
        );
        let none = examined(&[(config, "version = 2\n")]).await;
        assert_eq!(none.status, Verdict::Skip, "{}", none.why);
    }

    fn runtime(name: &str, runs: bool, nvidia: Option<bool>) -> KubeletRuntime {
        let kind = RuntimeKind::ALL.iter().find(|kind| kind.name() == name);
        let socket = kind.and_then(|kind| kind.runtime().facts().sockets.first());
        KubeletRuntime {
            name: name.to_owned(),
            socket: socket.map_or("/run/x.sock", |socket| *socket).to_owned(),
            known_by: "the kubelet's command line".to_owned(),
            runs,
            nvidia,
            template: None,
        }
    }

    #[test]
    fn distribution_needs_a_restart_after_toolkit_installation() {
        let want = desired();
        let said = |found: &KubeletRuntime, toolkit| {
            let finding = decide(Some(found), toolkit, Some(&want));
            (
                finding.status,
                finding.why,
                finding.remedy.unwrap_or_default(),
            )
        };
        let (status, why, remedy) = said(&runtime("k3s", true, Some(false)), true);
        assert_eq!(status, Verdict::Fail);
        assert!(why.contains("the k3s containerd") && why.contains("after the container toolkit"));
        assert!(remedy.contains("systemctl restart k3s-agent"), "{remedy}");
        let (status, _, remedy) = said(&runtime("k0s", true, Some(false)), true);
        assert!(status == Verdict::Fail && remedy.contains("/etc/k0s/containerd.d"));
        for (found, toolkit, status) in [
            (runtime("rke2", true, Some(true)), true, Verdict::Pass),
            (runtime("rke2", false, Some(false)), true, Verdict::Pass),
            (runtime("rke2", true, Some(false)), false, Verdict::Skip),
            (runtime("microk8s", false, Some(false)), true, Verdict::Fail),
            // `runtime.use` cannot contain it, and contains no runtime of the kubelet.
            (runtime("crio", true, None), true, Verdict::Pass),
            (runtime("/run/other.sock", true, None), true, Verdict::Warn),
        ] {
            assert_eq!(said(&found, toolkit).0, status, "{found:?}");
        }
        let own = KubeletRuntime {
            template: Some("/etc/config.toml.tmpl".to_owned()),
            ..runtime("k3s", true, Some(false))
        };
        let (status, why, remedy) = said(&own, true);
        assert!(status == Verdict::Fail && why.contains("nvidia runtime is not in the template"));
        assert!(remedy.contains("{{ template \"base\" . }}"), "{remedy}");
        assert_eq!(decide(None, true, None).status, Verdict::Skip);
        let containerd = runtime("containerd", true, None);
        assert_eq!(decide(Some(&containerd), true, None).status, Verdict::Pass);
        // Only Docker is configured here.
        assert_eq!(said(&containerd, true).0, Verdict::Warn);
        let mut other = want.clone();
        other.runtimes[0].kind = RuntimeKind::Containerd;
        let crio = decide(Some(&runtime("crio", true, None)), true, Some(&other));
        let remedy = crio.remedy.unwrap_or_default();
        assert_eq!(crio.status, Verdict::Warn);
        assert!(remedy.contains("`runtime.use = []`"), "{remedy}");
        let mut eks = want.clone();
        eks.cluster = Some(ClusterSpec {
            method: JoinMethod::Eks,
            node: NodeSpec::default(),
            packages: Vec::new(),
            access: None,
            timeout_seconds: 1,
        });
        let of_eks = |found| decide(Some(found), true, Some(&eks)).status;
        assert_eq!(of_eks(&containerd), Verdict::Pass);
        assert_eq!(of_eks(&runtime("crio", true, None)), Verdict::Warn);
    }
}
